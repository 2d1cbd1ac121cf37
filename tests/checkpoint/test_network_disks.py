"""File systems between hosts: names that appear late, answers that are lost, names that cannot be exchanged at once."""

import errno
import os
import shutil
import threading
import time

import pytest

import pydist
from pydist import _C
from pydist.distributed import checkpoint
from pydist.distributed.checkpoint import CheckpointException, CheckpointManager, FileSystemWriter, manager
from pydist.testing import RankFailed, run_ranks


def save(path, value, **options):
    checkpoint.save({"x": pydist.full((3,), float(value))}, storage_writer=FileSystemWriter(path, **options))


def value_of(path):
    state = {"x": pydist.zeros(3)}
    checkpoint.load(state, checkpoint_id=path)
    return state["x"][0].item()


@pytest.mark.parametrize("commit", ["rename", "marker"])
def test_a_rename_whose_answer_is_lost_has_happened(tmp_path, monkeypatch, commit):
    real = _C.io_rename

    def twice(a, b):
        real(a, b)
        real(a, b)  # as a client of NFS does that has heard nothing

    save(tmp_path / "first", 1, commit=commit)
    monkeypatch.setattr(_C, "io_rename", lambda a, b: (twice if b == str(target) else real)(a, b))
    target = tmp_path / "a" if commit == "rename" else tmp_path / "a" / "manifest.json"
    save(tmp_path / "a", 2, commit=commit)
    assert value_of(tmp_path / "a") == 2 and sorted(os.listdir(tmp_path)) == ["a", "first"]


def test_a_rename_of_nothing_is_an_error(tmp_path, monkeypatch):
    def gone(a, b):
        if b == str(tmp_path / "a"):
            shutil.rmtree(a)
        real(a, b)

    real = _C.io_rename
    monkeypatch.setattr(_C, "io_rename", gone)
    with pytest.raises(CheckpointException, match="No such file"):
        save(tmp_path / "a", 1)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSYS])
@pytest.mark.parametrize("commit", ["rename", "marker"])
def test_names_that_cannot_be_exchanged(tmp_path, monkeypatch, commit, number):
    def cannot(a, b):
        raise OSError(number, os.strerror(number), a, None, b)

    monkeypatch.setattr(_C, "io_exchange", cannot)
    for value in range(3):
        run_ranks(2, lambda rank: save(tmp_path / "a", value, commit=commit))
        assert value_of(tmp_path / "a") == value and os.listdir(tmp_path) == ["a"]
    names = os.listdir(tmp_path / "a")
    assert len(names) == 2 and "manifest.json" in names  # nothing of the older ones


@pytest.mark.parametrize("commit, calls", [("rename", 5), ("marker", 2)])
def test_errors_while_names_are_exchanged_in_steps(tmp_path, monkeypatch, commit, calls):
    """What is there stays, whichever call fails."""

    def cannot(a, b):
        raise OSError(errno.EINVAL, "no flags", a, None, b)

    monkeypatch.setattr(_C, "io_exchange", cannot)
    for failing in range(1, 20):
        save(tmp_path / "a", 1, commit=commit)
        _C.fault("rename", failing)
        try:
            save(tmp_path / "a", 2, commit=commit)
        except CheckpointException:
            assert value_of(tmp_path / "a") == 1 and os.listdir(tmp_path) == ["a"]
        else:
            break
        finally:
            _C.fault("rename", 0)
    assert failing == calls and value_of(tmp_path / "a") == 2


def test_ranks_wait_for_a_step_that_they_do_not_see_yet(tmp_path, monkeypatch):
    """Rank 0 looks into the folder itself; for rank 1 it is another one, where the step appears later."""
    here, there = tmp_path / "here", tmp_path / "there"
    with CheckpointManager(here) as saver:
        saver.save(7, {"x": pydist.ones(3)})
    real = manager._wait_for
    folders = threading.local()
    monkeypatch.setattr(manager, "_wait_for", lambda path: real(path.replace(str(here), str(folders.own))))

    def work(rank, late):
        folders.own = there if rank else here
        if rank and late:
            timer = threading.Timer(0.4, lambda: shutil.copytree(here, there))
            timer.start()
        begin, state = time.monotonic(), {"x": pydist.zeros(3)}
        step = CheckpointManager(here).restore(state)
        return step, state["x"].tolist(), time.monotonic() - begin

    first, second = run_ranks(2, work, True)
    assert first[:2] == second[:2] == (7, [1, 1, 1]) and second[2] > 0.35
    shutil.rmtree(there)
    monkeypatch.setattr(manager, "PATIENCE", 0.3)
    with pytest.raises(RankFailed, match=r"rank 0 sees .*, and on .* it is not there after 0.3 s"):
        run_ranks(2, work, False)
