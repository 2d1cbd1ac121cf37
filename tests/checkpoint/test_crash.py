"""A process that dies before any of its calls, or at any moment, leaves the newest checkpoint whole and the next start a
clean folder; the other ranks get an error in time."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lib.processes import environment, within
from lib.steps import KINDS

LONG = "FULL_LONG" in os.environ
TESTS = Path(__file__).resolve().parents[1]


def crashes(*args):
    """What lib/crashes.py counts."""
    path = os.pathsep.join((str(TESTS), environment()["PYTHONPATH"]))
    ended = subprocess.run(
        [sys.executable, "-m", "lib.crashes", *map(str, args)],
        capture_output=True, text=True, env=environment(PYTHONPATH=path, PYDIST_FAULT=""), timeout=within(3600 if LONG else 120),
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return int(ended.stdout.split()[-1])


@pytest.mark.parametrize("kind", KINDS)
def test_death_before_each_call_of_a_world_of_one(kind, tmp_path):
    """FULL_LONG: those whose calls are another kind's calls, too, each call and not every third one."""
    like_another = kind.startswith(("async", "new")) or kind == "marker"
    every = 3 if like_another and not LONG else 1
    assert crashes("calls", kind, 1, tmp_path, every) >= (25 if kind.endswith("manager") else 9) // every


def test_a_planted_mistake_is_found(tmp_path):
    with pytest.raises(
        AssertionError, match="overwrite: rank 0 of 1 dies before call .*the newest is 0, but 2 was done"
    ):
        crashes("calls", "overwrite", 1, tmp_path, 1, "mistake")


@pytest.mark.parametrize("kind", KINDS if LONG else ("first", "overwrite", "async manager"))
def test_death_of_each_of_three_ranks(kind, tmp_path):
    """FULL_LONG: before each call."""
    assert crashes("calls", kind, 3, tmp_path, 1 if LONG else 5) >= (15 if LONG else 3)


@pytest.mark.parametrize("kind, world", [("sync", 1), ("async", 1), ("sync", 3), ("async", 3)])
def test_death_at_random_moments_of_saves_in_a_loop(kind, world, tmp_path):
    """FULL_LONG: 1,000 deaths in all."""
    times = 250 if LONG else 5
    assert crashes("moments", kind, world, tmp_path, times) == times
