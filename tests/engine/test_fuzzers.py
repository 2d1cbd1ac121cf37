"""The fuzzers of tests/fuzz: a second of each. `.ci/full fuzzers` runs them for long under the address sanitizer."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "fuzz"
FUZZERS = sorted(path for path in FOLDER.glob("*.py") if path.stem != "runner")
SECONDS = os.environ.get("FULL_FUZZERS", "1")


@pytest.mark.parametrize("fuzzer", FUZZERS, ids=lambda path: path.stem)
def test_nothing_fails(fuzzer):
    done = subprocess.run([sys.executable, fuzzer, "--seconds", SECONDS], capture_output=True, text=True)
    assert not done.returncode, done.stdout[-8000:] + done.stderr[-2000:]
    assert re.search(r"^[1-9]\d* cases from seed 0 on, 0 failed$", done.stdout, re.M), done.stdout


BAD = """
import ctypes, os, sys, threading
sys.path.insert(0, {folder!r})
import runner
runner.HANG = 1.0
def case(random):
    if random.random() < 0.02:
        {act}
runner.main(case)
"""


@pytest.mark.parametrize("act, said", [("raise SystemError('odd')", "SystemError: odd"), ("ctypes.string_at(0)", "Segmentation fault"),
    ("os._exit(0)", "ended its process with 0"), ("threading.Event().wait()", "took over 1 s"),
    ("sys.stderr.write('x.c:1: runtime error: y\\n')", "runtime error: y")])  # fmt: skip
def test_the_runner_sees_what_fails(tmp_path, act, said):
    path = tmp_path / "bad.py"
    path.write_text(BAD.format(folder=str(FOLDER), act=act))
    done = subprocess.run([sys.executable, path, "--seconds", "1"], capture_output=True, text=True)
    assert done.returncode == 1 and said in done.stdout and "--case" in done.stdout, done.stdout + done.stderr
