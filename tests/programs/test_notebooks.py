"""The tutorials run from top to bottom in an empty folder, and give what they are committed with."""

import json
import math
import re
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from lib.package import installed

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
TUTORIALS = sorted(FOLDER.glob("*.ipynb"))
NAMES = [
    "01_train",
    "02_data_parallel",
    "03_a_rank_dies",
    "04_mixed_precision",
    "05_your_own_op_in_c",
    "06_debugging_a_hang",
    "07_pipelines",
    "keras",
]

# What differs from run to run: times, process ids, ports, addresses in memory, the name of a cell's file.
CHANCE = re.compile(r"\d+(\.\d+)? ?(s|ms|us|MB|GB/s)\b|\bpid \d+|:\d{4,5}\b|0x[0-9a-f]+|\b\d{6,}\.py\b")
NUMBER = re.compile(r"-?\d+\.\d+(?:e[+-]\d+)?")
CURE = "Where the new output is right: python tools/notebooks.py"
each = pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)


def code(path):
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


def shown(output):
    """An output as text; of a picture, that it is one."""
    data = output.get("data", {})
    text = "picture" if "image/png" in data else output.get("text") or data.get("text/plain") or output.get("evalue")
    return "".join(text)


def same(committed, got):
    """Whether two texts are equal, up to chance and to the last digits of what is not a whole number: those differ
    between processors."""
    committed, got = (CHANCE.sub("?", text) for text in (committed, got))
    pairs = zip(NUMBER.findall(committed), NUMBER.findall(got))
    return NUMBER.sub("#", committed) == NUMBER.sub("#", got) and all(
        math.isclose(float(a), float(b), rel_tol=0.15, abs_tol=0.03) for a, b in pairs
    )


def test_what_same_means():
    assert same("loss 0.50 in 3.1 s, pid 17", "loss 0.52 in 0.9 s, pid 4711")
    assert not same("loss 0.5", "loss 0.7") and not same("2 ranks", "3 ranks") and not same("rank 1", "a rank 1")


def test_the_list_of_tutorials():
    assert [path.stem for path in TUTORIALS] == NAMES


@each
def test_a_tutorial_is_committed_with_outputs(path):
    """Of one run, in order."""
    cells = code(path)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert not [output for cell in cells for output in cell["outputs"] if output["output_type"] == "error"]


@each
def test_a_tutorial_says_what_to_install(path):
    """Where a package that its first cell imports is missing."""
    first = "".join(code(path)[0]["source"])
    wanted = re.findall(r"^    (?:from|import) (\w+)", first, re.M)
    assert wanted[-1] == "pydist"
    for package in wanted:
        names = {"__builtins__": {**vars(__import__("builtins")), "__import__": without(package)}}
        with pytest.raises(ImportError, match=r"this tutorial needs `pip install 'pydist\[notebook(,keras)?\]'`"):
            exec(first, names)


def without(package):
    """An import that does not find it, and finds something for every other name."""

    def find(name, *args):
        if name.split(".")[0] == package:
            raise ModuleNotFoundError(f"No module named '{package}'")
        return MagicMock()

    return find


@pytest.mark.slow
@each
def test_a_tutorial_runs(path):
    for needed in ("nbclient", "nbformat", "ipykernel", "matplotlib", "sklearn"):
        pytest.importorskip(needed)
    if path.stem == "keras" and not installed("keras"):
        pytest.skip("no keras (pip install '.[keras]')")
    import notebooks

    ran = [cell for cell in notebooks.run(path).cells if cell.cell_type == "code"]
    for before, cell in zip(code(path), ran, strict=True):
        committed, got = [shown(output) for output in before["outputs"]], [shown(output) for output in cell.outputs]
        assert len(committed) == len(got), cell.source
        for a, b in zip(committed, got):
            assert same(a, b), f"{cell.source}\n\ncommitted:\n{a}\n\ngot:\n{b}\n\n{CURE}"


def test_the_op_in_the_engine_is_shown_as_it_is():
    """What tutorial 5 quotes stands in the file that it names."""
    cells = json.loads((FOLDER / "05_your_own_op_in_c.ipynb").read_text())["cells"]
    text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    quoted = re.findall(r"In\s`(\S+)`:\n\n```\w+\n(.*?)```", text, re.S)
    assert len(quoted) == text.count("```") // 2 == 7
    assert not [path for path, part in quoted if part not in (FOLDER.parent / path).read_text()]
