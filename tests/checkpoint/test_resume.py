"""A training that is killed and goes on from its newest checkpoint, on any number of ranks, ends with the bits of one that
nobody disturbed."""

import os
import random
import re
import signal
import time
from pathlib import Path

import pytest

from lib.processes import environment, start, within

SCRIPT = Path(__file__).with_name("resumed.py")
LAST = 12
LONG = "FULL_LONG" in os.environ


def job(folder, model, ranks, workers=0):
    env = environment(OMP_NUM_THREADS="1", PYTHONHASHSEED="0")
    env["PYTHONPATH"] = os.pathsep.join([str(SCRIPT.parents[2]), env["PYTHONPATH"]])  # for benchmarks
    return start("--nproc-per-node", ranks, SCRIPT, model, folder, LAST, workers, env=env)


def end_of(process):
    """(the step from which each rank went on, the hash)."""
    with process:
        out, err = process.communicate(timeout=within(300))
    shas = set(re.findall(r"sha (\w{64})", out))
    assert process.returncode == 0 and len(shas) == 1, out + err
    return {int(step) for step in re.findall(r"from (\d+)", out)}, shas.pop()


def kill_at(process, step):
    """Kills the launcher's whole job when it has said that it has made this step. Returns whether it was in time."""
    with process:
        for line in process.stdout:
            if re.search(rf"step {step}$", line):
                process.send_signal(signal.SIGKILL)
                process.communicate(timeout=within(60))
                return True
    return False


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """{model: its hash}."""
    found = {}

    def of(model):
        if model not in found:
            _, found[model] = end_of(job(tmp_path_factory.mktemp("whole"), model, 1))
        return found[model]

    return of


CASES = [("mlp", 2, 1, 0), ("cnn", 1, 2, 2), ("mlp", 2, 2, -2)]
MORE = [
    (model, before, after, workers)
    for model in ("mlp", "cnn", "resnet18", "gpt")
    for before, after in ((1, 4), (4, 1), (2, 3), (3, 2))
    for workers in (0, 2, -2)
]


@pytest.mark.parametrize("model, before, after, workers", MORE if LONG else CASES)
def test_killed_and_resumed(tmp_path, undisturbed, model, before, after, workers):
    step = random.Random(f"{model}{before}{after}{workers}").randrange(2, LAST)
    kill_at(job(tmp_path, model, before, workers), step)
    time.sleep(0.2)  # the guard ends the ranks of a launcher that was killed
    begun, sha = end_of(job(tmp_path, model, after, workers))
    assert len(begun) == 1 and step - 1 <= begun.pop() <= LAST
    assert sha == undisturbed(model)
