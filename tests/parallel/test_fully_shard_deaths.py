"""Ranks of a sharded training die or stop in each of its phases: the others say so within a second, naming rank and
phase, and nothing is left of them. FULL_DEATHS: twice as many deaths."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lib.processes import environment, within

DEATHS = 2 * int(os.environ.get("FULL_DEATHS", 0)) or 5  # at least one in each phase
TESTS = Path(__file__).resolve().parents[1]


def shard_deaths(*args, **more):
    """What lib/shard_deaths.py prints."""
    path = os.pathsep.join((str(TESTS), environment()["PYTHONPATH"]))
    ended = subprocess.run(
        [sys.executable, "-m", "lib.shard_deaths", *map(str, args)],
        capture_output=True, text=True, env=environment(PYTHONPATH=path, OMP_NUM_THREADS="1", **more),
        timeout=within(60 + 5 * DEATHS),
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_deaths_in_each_phase(tmp_path):
    assert f"{DEATHS} deaths" in shard_deaths("kills", 0, DEATHS, tmp_path)


@pytest.mark.slow
def test_stops_in_each_phase(tmp_path):
    """The others name the rank that has stopped, and go on when it does."""
    said = shard_deaths("stops", tmp_path, PYDIST_WARN="0.3")
    assert re.findall(r"^\w+(?=:)", said, re.M) == ["forward", "reduce", "step", "save", "gather"]
