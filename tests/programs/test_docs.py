"""python -m pydist.docs: every public name is in what it builds, no link is dead, and nothing is lost where it fails."""

import ast
import fcntl
import importlib
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

import pydist
from lib import html, package
from pydist import _C, _legacy
from pydist._docs import pages

PROGRAM = """
import runpy, socket, sys
def refuse(*_):
    raise OSError("the build must not need a network")
socket.socket.connect = socket.getaddrinfo = refuse
for name in sys.argv.pop(1).split():
    sys.modules[name] = None
runpy.run_module("pydist.docs", run_name="__main__")
"""


def run(out, without=""):
    """(exit code, all that it says) of a build without network and without these packages."""
    command = [sys.executable, "-c", PROGRAM, without, str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The documentation, by path of its pages below its folder."""
    pytest.importorskip("pdoc")
    pytest.importorskip("nbconvert")
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base  # pytest's processes share one
    out = base / "docs" / "new" / "out"
    (base / "docs").mkdir(exist_ok=True)
    with open(base / "docs.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not out.parent.exists():
            code, said = run(out)
            assert code == 0 and said.endswith(f"docs: {out / 'index.html'}\n"), said
    assert os.listdir(out.parent) == ["out"]
    return {path.relative_to(out.resolve()).as_posix(): page for path, page in html.pages(out).items()}


def test_a_dead_link_is_found(tmp_path):
    (tmp_path / "a.html").write_text('<a href="b.html#x">1</a><a href="b.html#y">2</a><a href="c.html">3</a>')
    (tmp_path / "b.html").write_text('<p id="x"></p><script src="http://x.y/z.js"></script><a href="http://x.y/">4</a>')
    found = [line.split(": ")[1] for line in html.dead_links(html.pages(tmp_path))]
    assert found == ["b.html#y", "c.html", "http://x.y/z.js"]


@pytest.mark.slow
def test_no_link_is_dead(built):
    pages = {page.path: page for page in built.values()}
    assert len(pages) > 300 and sum(len(page.links) for page in pages.values()) > 10_000
    assert not list(html.dead_links(pages))


@cache
def public_modules():
    return ["pydist", *(name for name in package.modules() if "._" not in name)]


@pytest.mark.slow
@pytest.mark.parametrize("name", public_modules())
def test_every_public_name_is_documented(built, name):
    """On its module's page, or by a link from there to another one. A module has a page of its own. FloatTensor and its
    kin are names of old scripts, which a module makes when they are asked for."""
    page, module = built[f"reference/{name.replace('.', '/')}.html"], importlib.import_module(name)
    names = getattr(module, "__all__", None) or [
        called
        for called, thing in vars(module).items()
        if callable(thing) and (name == "pydist" or getattr(thing, "__module__", None) == name)
    ]
    names = [
        called
        for called in names
        if called not in _legacy._DTYPES and not isinstance(getattr(module, called), ModuleType)
    ]
    missing = {called for called in names if not called.startswith("_")} - page.anchors - page.named
    assert not missing


@pytest.mark.slow
def test_what_c_gives_is_documented(built):
    """The functions and classes of _C that pydist has, with the methods of its stubs."""
    page, missing = built["reference/pydist.html"], []
    stubs = ast.parse(Path(_C.__file__).with_name("_C.pyi").read_text()).body
    tensor = next(node for node in stubs if isinstance(node, ast.ClassDef) and node.name == "Tensor")
    for node in tensor.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            missing += {f"Tensor.{node.name}"} - page.anchors
    functions = [
        name for name in dir(_C) if not name.startswith("_") and getattr(pydist, name, None) is getattr(_C, name)
    ]
    missing += {name for name in functions if callable(getattr(_C, name))} - page.anchors - page.named
    assert len(functions) > 250 and not missing
    assert "max(x, 0), elementwise." in page.text and "normalized_shape" in page.text


@pytest.mark.slow
def test_pages_and_tutorials_are_there(built):
    index = built["index.html"]
    linked = {link for _, link in index.links}
    assert {"docs/index.html", "notebooks/01_train.html", "reference/pydist/nn.html"} <= linked
    assert "test accuracy" in built["notebooks/01_train.html"].text


def test_an_installed_package_has_no_pages(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "TOP", Path(__file__).parents[2])
    assert "docs/index.md" in pages.sources()
    monkeypatch.setattr(pages, "TOP", tmp_path)
    assert pages.sources() == []


@pytest.mark.parametrize("missing", ["pdoc", "nbconvert"])
def test_without_its_extra(tmp_path, missing):
    code, said = run(tmp_path / "out", without=missing)
    assert code == 1 and "pip install 'pydist[docs]'" in said and len(said.splitlines()) == 1
    assert not os.listdir(tmp_path)


def test_a_folder_that_has_something_keeps_it(tmp_path):
    pytest.importorskip("pdoc")
    (tmp_path / "mine.txt").write_text("mine")
    for out in (tmp_path, tmp_path / "mine.txt"):
        code, said = run(out)
        assert code == 1 and said == (
            f"docs: {out} is there already (expected a folder that does not exist, or is empty)\n"
        )
    assert os.listdir(tmp_path) == ["mine.txt"] and (tmp_path / "mine.txt").read_text() == "mine"


def test_a_folder_that_cannot_be_written(tmp_path):
    pytest.importorskip("pdoc")
    (tmp_path / "file").write_text("")
    code, said = run(tmp_path / "file" / "out")
    assert (
        code == 1
        and f"cannot be written: File exists: {tmp_path / 'file'} (expected" in said
        and len(said.splitlines()) == 1
    )
    assert os.listdir(tmp_path) == ["file"]
