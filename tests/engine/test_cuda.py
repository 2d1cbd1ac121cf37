"""CUDA on a machine without a GPU: it is not there, and says why. What runs on a device is in tests/gpu; .ci/run runs that
on the emulator of tests/emulator."""

import os
import subprocess
import sys

import pytest

import pydist
from pydist import info

ASK = """
import time
import pydist
start = time.process_time()
print(pydist.cuda.is_available(), pydist.cuda.device_count(), time.process_time() - start < 0.5)
for call in (lambda: pydist.zeros(2, device="cuda"), lambda: pydist.zeros(2).to("cuda:1"), lambda: pydist.nn.Linear(2, 2).cuda()):
    try:
        call()
    except RuntimeError as error:
        print(error)
print(pydist.zeros(2).sum().item())
"""


def ask(library):
    env = {**os.environ, "PYDIST_CUDA_LIBRARY": str(library), "PYDIST_CPU_AS_CUDA": "0"}
    done = subprocess.run([sys.executable, "-c", ASK], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "what, why",
    [
        ("nothing", "this build of pydist has no CUDA (PYDIST_CUDA=1 builds it)"),
        ("rubbish", "file too short"),
        ("other", "undefined symbol: pd_cuda_library_of_pydist"),
    ],
)
def test_a_missing_library_is_named(tmp_path, what, why):
    library = tmp_path / "_cuda.so"
    if what == "rubbish":
        library.write_text("#!")
    if what == "other":
        library = pydist._C.__file__
    said = ask(library)
    assert said.startswith("False 0 True\n") and said.endswith("0.0\n"), said
    assert said.count("there is no CUDA device: ") == 3 and said.count(why) == 3, said


def test_questions_have_answers_here():
    if pydist.cuda.is_available():
        pytest.skip("there is a device")
    with pytest.raises(RuntimeError, match="cuda.current_device: there is no CUDA device"):
        pydist.cuda.current_device()
    assert pydist.cuda.memory_allocated() == 0 and not pydist.cuda.is_initialized()
    assert not pydist.zeros(1).is_cuda and pydist.zeros(1).get_device() == -1
    assert any(line.startswith("CUDA: ") for line in info.lines())


def test_the_environment_sets_timing_of_products_and_a_program_changes_it():
    program = "from pydist.cuda import tunable as t\nprint(t.is_enabled(), t.enable(False), t.is_enabled())"
    env = {**os.environ, "PYDIST_CUDA_TUNE": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout == "True None False\n", done.stderr
