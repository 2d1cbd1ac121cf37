"""Runs notebooks from top to bottom and writes them back with what they print: `python tools/notebooks.py [FILE ...]`.

Without arguments it runs all of notebooks/. Do this after changing one: tests/programs/test_notebooks.py runs them in the
same way and compares."""

import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"


def run(path):
    """The notebook after a run in an empty folder. Raises nbclient's CellExecutionError where a cell raises."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        place = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=120, resources=place, record_timing=False).execute()
    notebook.metadata.language_info = {"name": "python"}  # not the version that it ran on
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = joined(cell.outputs)
    return notebook


def joined(outputs):
    """A cell's outputs, those that follow each other in one stream as one: where they are cut is chance."""
    found = []
    for output in outputs:
        if found and output.output_type == "stream" and found[-1].get("name") == output.name:
            found[-1].text += output.text
        else:
            found.append(output)
    return found


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]) if sys.argv[1:] else sorted(FOLDER.glob("*.ipynb")):
        nbformat.write(run(path), path)
