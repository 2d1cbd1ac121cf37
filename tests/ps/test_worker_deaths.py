"""Workers die while they push: each push is applied once or not at all, and the others go on. FULL_DEATHS=N: at every
7th point between two stores, and at 2 N random times in each mode."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lib.processes import environment, within

LONG = int(os.environ.get("FULL_DEATHS", 0))
TESTS = Path(__file__).resolve().parents[1]


def deaths(*args, seconds=60, **more):
    """What lib/ps_deaths.py prints."""
    path = os.pathsep.join((str(TESTS), environment()["PYTHONPATH"]))
    ended = subprocess.run(
        [sys.executable, "-m", "lib.ps_deaths", *map(str, args)], capture_output=True, text=True,
        env=environment(PYTHONPATH=path, OMP_NUM_THREADS="1", **more), timeout=within(seconds),
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.parametrize("mode", ["dist_async", "dist_sync"])
def test_at_points_of_an_update(mode, tmp_path):
    step, most = (7, 10**4) if LONG else (167, 900)
    assert int(deaths("points", mode, 1, most, step, tmp_path, seconds=1500 if LONG else 60).split()[0]) >= 5


@pytest.mark.parametrize("mode", ["dist_async", "dist_sync"])
def test_at_random_times(mode, tmp_path):
    times = 2 * LONG or 2
    assert f"{times} deaths" in deaths("times", mode, 0, times, tmp_path, seconds=1500 if LONG else 60)


def test_a_synchronous_training_goes_on_with_its_bits(tmp_path):
    times = LONG or 3
    assert f"{times} trainings" in deaths("resumes", 0, times, tmp_path, seconds=300 if LONG else 60)


@pytest.mark.slow
def test_a_stopped_worker_is_waited_for_and_named(tmp_path):
    assert "clock: rank 0 has waited" in deaths("stops", tmp_path / "job", PYDIST_WARN="0.2")


def test_bounds_hold_whoever_stops(tmp_path):
    count = 25_000 if LONG else 300
    said = deaths("clocks", count, tmp_path, seconds=900 if LONG else 60)
    assert said.count(f"{4 * count} clocks") == 3
