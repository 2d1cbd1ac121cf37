"""The notebooks run from top to bottom and show what they say; committed without outputs."""

import json
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def test_there_are_notebooks():
    assert "quickstart.ipynb" in [path.name for path in NOTEBOOKS]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_committed_without_outputs(path):
    cells = json.loads(path.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code and not any(cell["outputs"] or cell["execution_count"] for cell in code)


def test_quickstart(tmp_path):
    """It trains, in one process, and plots loss and accuracy."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    for needed in ("ipykernel", "matplotlib", "sklearn"):
        pytest.importorskip(needed)
    notebook = nbformat.read(FOLDER / "quickstart.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    text = "".join(output.get("text", "") for output in outputs)
    accuracies = [float(x) for x in re.findall(r"test accuracy (\d\.\d+)", text)]
    losses = [float(x) for x in re.findall(r"loss (\d\.\d+)", text)]
    assert len(accuracies) == 10 and accuracies[-1] >= 0.95 and losses[-1] < losses[0] / 4
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 2
    assert float(outputs[-1]["data"]["text/plain"]) == pytest.approx(accuracies[-1], abs=1e-3)  # loaded again
