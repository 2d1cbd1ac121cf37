"""The laws of the tests: who imports whom, where helpers are, and that what CI and the documents name is there."""

import ast
import os
import re
import subprocess
import sys
from itertools import product
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
TESTS = sorted(TOP.glob("tests/*/test_*.py"))


def imported(source):
    """The modules that Python source imports, also within functions; [] for text that is no Python."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError):
        return []
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    return names + [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module]


def strings(source):
    """Texts that look like programs which a test starts."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "import" in node.value:
            yield re.sub(r"^[ ]+", "", node.value, flags=re.M)


def test_no_test_imports_another():
    """What two test files share is in tests/lib; programs that a test starts may import the test itself."""
    tests, wrong = {path.stem for path in TESTS} | {"conftest"}, []
    for path in [*TESTS, *TOP.glob("tests/lib/*.py"), *TOP.glob("tests/**/conftest.py")]:
        source = path.read_text()
        words = [w for text in strings(source) for w in re.findall(r"^(?:from|import) (\w+)", text, re.M)]
        wrong += [f"{path.name}: {name}" for name in {*imported(source), *words} & (tests - {path.stem})]
    assert len(TESTS) > 80 and not wrong, wrong


def test_names_of_tests_are_unique():
    """pytest imports test files by their bare names."""
    names = [path.name for path in TESTS]
    assert len(names) == len(set(names))
    assert not list(TOP.glob("tests/test_*.py")), "tests are in folders"


def test_ctrl_c_ends_the_tests_with_one_line(tmp_path):
    """No fixture of tests/conftest.py raises at its end: neither after a test nor after a setup that was interrupted."""
    (tmp_path / "test_it.py").write_text(
        "import pytest\n@pytest.fixture\ndef value():\n    raise KeyboardInterrupt\n"
        "def test_a():\n    raise KeyboardInterrupt\ndef test_b(value):\n    pass\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(TOP / "tests"), os.environ["PYTHONPATH"]))}
    options = ["-q", "-p", "conftest", "-c", os.devnull, f"--rootdir={tmp_path}"]
    program = f"import pytest\nfor name in 'ab': print(pytest.main({options} + ['test_it.py::test_' + name]))"
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert ended.stdout.count("no tests ran") == ended.stdout.count("KeyboardInterrupt\n") == 2, ended
    assert "Error" not in ended.stdout + ended.stderr


def braces(word):
    """What the shell makes of a{b,c}d."""
    parts = [re.split(",", part) if i % 2 else [part] for i, part in enumerate(re.split(r"\{([^{}]*)\}", word))]
    return ["".join(chosen) for chosen in product(*parts)]


WRITTEN = ".ci/* *.md *.toml csrc/*.md docs/**/*.md csrc/Makefile tests/gpu/run.sh csrc/**/*.[hc] tests/**/*.py pydist/**/*.py"


def test_files_that_are_named_exist():
    """Paths of tests, tools and CI in CI itself, README, docs and the comments of the sources."""
    count, wrong = 0, []
    for path in sorted(
        {p for pattern in WRITTEN.split() for p in TOP.glob(pattern) if p.is_file()} - {Path(__file__).resolve()}
    ):
        for word in re.findall(r"(?<![\w/.$}])(?:tests|tools|\.ci)/[\w./*{},-]*", path.read_text(errors="replace")):
            for name in braces(word.rstrip(".,")):
                count += 1
                if not name.endswith(".log") and "{" not in name and not any(TOP.glob(name.rstrip("/"))):
                    wrong.append(f"{path.relative_to(TOP)}: {name}")
    assert count > 100 and not wrong, wrong


def test_switches_are_documented():
    text = (TOP / "docs/internals/testing.md").read_text()
    files = [*TESTS, *TOP.glob("tests/lib/*.py"), TOP / ".ci/run", TOP / ".ci/full"]
    found = {name for path in files for name in re.findall(r"\bFULL_[A-Z]+\b", path.read_text())}
    assert len(found) > 5 and not {name for name in found if f"`{name}=" not in text}
    rooms = {path.parent.name for path in TESTS} | {"lib"}
    assert not {room for room in rooms if f"| `tests/{room}` |" not in text}
