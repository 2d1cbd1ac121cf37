"""Keras' own tests, which its wheel carries, over pydist and over PyTorch: `python tools/keras_tests.py [PART ...]`.

Prints, for each part of keras.src, how many tests pass with PyTorch, and how many of these pass over pydist. It lists the
others, with the reason that docs/internals/keras.md has for them or with their error. The exit code is 1 if a part is
below 99 %, or if a test fails that the document does not list. Each part runs in two processes, one after the other.

    --reference PYTHON   a Python with keras, torch, pytest (this one; torch may be installed beside pydist)
    --keep FOLDER        there the outcomes with PyTorch are looked for, and kept
    -k EXPRESSION        only tests that match, as in pytest

jax and tensorflow, which some tests use, are empty modules where they are not installed: such tests then fail on both
sides, and do not count. Install jax: most tests of dtypes use it.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import types
from pathlib import Path

PARTS = "ops losses initializers activations regularizers constraints random tree dtype_policies".split()
BAR = 0.99
DOCUMENT = Path(__file__).parents[1] / "docs" / "internals" / "keras.md"


# ---- in the processes that run the tests: this file is a plugin of pytest ----


class _Empty(types.ModuleType):
    """A module that is not installed, for tests that only import it."""

    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Empty(f"{self.__name__}.{name}")


def pytest_configure(config):
    import pytest

    for marker in ("requires_trainable_backend", "multi_device"):
        config.addinivalue_line("markers", marker)
    conftest = sys.modules["conftest"] = types.ModuleType("conftest")  # Keras' own is not in its wheel
    conftest.skip_if_backend = lambda backend, reason: pytest.mark.skipif(backend == "torch", reason=reason)
    if os.environ["KERAS_TESTS_OVER"] == "pydist":
        from pydist import keras  # noqa: F401
    from keras.src.utils import module_utils

    for name in ("jax", "tensorflow"):
        if not getattr(module_utils, name).available and not importlib.util.find_spec(name):
            for part in ("", ".numpy", ".experimental", ".experimental.sparse", ".summary", ".lax", ".scipy.special"):
                sys.modules[name + part] = _Empty(name + part)


def pytest_runtest_logreport(report):
    if report.when == "call" or report.failed:
        lines = str(report.longrepr).splitlines() if report.failed else []
        why = next((line[2:].strip() for line in lines if line.startswith("E  ")), "")
        _tell(report.nodeid.partition("keras/src/")[2] or report.nodeid, report.outcome, why)


def pytest_collectreport(report):
    if report.failed:
        lines = str(report.longrepr).splitlines()
        _tell(f"{report.nodeid} (import)", "failed", lines[-1] if lines else "")


def _tell(test, outcome, why):
    with open(os.environ["KERAS_TESTS_INTO"], "a") as out:
        print(json.dumps([test, outcome, why]), file=out)


# ---- in the process that compares ----


def outcomes(python, over, part, match):
    """{test: (outcome, error)} of a part."""
    with tempfile.TemporaryDirectory() as folder:
        into, log = Path(folder, "outcomes"), Path(folder, "log")
        into.touch()
        env = dict(os.environ, KERAS_BACKEND="torch", KERAS_TESTS_OVER=over, KERAS_TESTS_INTO=str(into))
        env["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *env.get("PYTHONPATH", "").split(os.pathsep)])
        env.update(PYTHONDONTWRITEBYTECODE="1", OMP_NUM_THREADS="1")
        env.pop("PYTEST_ADDOPTS", None)
        options = "-q --tb=short -p no:cacheprovider -p no:warnings --continue-on-collection-errors".split()
        command = [python, "-m", "pytest", *options, "-p", "keras_tests", "--pyargs", f"keras.src.{part}"]
        with open(log, "w") as out:
            code = subprocess.run(
                [*command, *(["-k", match] if match else [])], cwd=folder, env=env, stdout=out, stderr=out
            )
        found = [json.loads(line) for line in into.read_text().splitlines()]
        if code.returncode not in (0, 1) or not found:
            sys.exit(f"{part} over {over}: pytest returned {code.returncode}\n{log.read_text()[-4000:]}")
    return {test: (outcome, why) for test, outcome, why in found}


def reference(python, part, match, folder):
    """The outcomes with PyTorch, from a file in `folder` if it is there."""
    file = folder and Path(folder, f"{part}.{match or 'all'}.json")
    if file and file.exists():
        return json.loads(file.read_text())
    found = outcomes(python, "torch", part, match)
    if file:
        file.write_text(json.dumps(found))
    return found


def listed():
    """{test: reason} of the table in the document."""
    rows = (line.split("|") for line in DOCUMENT.read_text().splitlines() if "::" in line and line.startswith("| `"))
    return {row[1].strip().strip("`"): row[2].strip() for row in rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=PARTS, metavar="PART")
    parser.add_argument("--reference", default=sys.executable)
    parser.add_argument("--keep", metavar="FOLDER")
    parser.add_argument("-k", dest="match")
    args = parser.parse_args()
    known, good, sums = listed(), True, [0, 0]
    for part in args.parts:
        theirs = reference(args.reference, part, args.match, args.keep)
        ours = outcomes(sys.executable, "pydist", part, args.match)
        passed = [test for test, (outcome, _) in theirs.items() if outcome == "passed"]
        failed = {test: ours.get(test, ("missing", ""))[1] for test in passed if ours.get(test, "-")[0] != "passed"}
        both = len(passed) - len(failed)
        sums = [sums[0] + both, sums[1] + len(passed)]
        good = good and both >= BAR * len(passed) and failed.keys() <= known.keys()
        print(f"{part}: {both} of {len(passed)}, {both / max(1, len(passed)):.2%}", flush=True)
        for test, why in failed.items():
            print(f"  {test}: {known.get(test, 'NOT LISTED: ' + why)}")
    print(f"of {sums[1]} tests that pass on PyTorch, {sums[0]} pass over pydist, {sums[0] / max(1, sums[1]):.2%}")
    sys.exit(not good)


if __name__ == "__main__":
    main()
