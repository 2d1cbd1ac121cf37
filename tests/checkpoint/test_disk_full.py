"""A save that cannot be: a full disk, a disk with errors, folders that nobody may write to. All ranks learn which rank, on
which host, at which path; the old checkpoint is as it was; nothing is left over; training can go on."""

import os
import re
import socket
import subprocess
import threading

import pytest

import pydist
from lib.steps import LARGE, newest, state_of, value_of
from pydist import _C, nn, optim
from pydist import distributed as dist
from pydist.distributed import checkpoint
from pydist.distributed.checkpoint import CheckpointException, CheckpointManager, FileSystemWriter, manager
from pydist.testing import RankFailed, run_ranks

WORLD = 3


@pytest.fixture
def fault():
    """_C.fault; no fault stays."""
    used = set()

    def arm(kind, number):
        used.add(kind)
        return _C.fault(kind, number)

    yield arm
    for kind in used:
        _C.fault(kind, 0)


@pytest.fixture
def small_disk(tmp_path):
    """A tmpfs of 1 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "pydist-test", folder], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip("mount is not allowed")
    yield folder
    subprocess.run(["umount", folder], check=True)


def fails(path, value, world=WORLD, asynchronous=False, **options):
    """The errors of all ranks of a save that fails."""

    def work(rank):
        writer = FileSystemWriter(path, **options)
        with pytest.raises(CheckpointException) as caught:
            if asynchronous:
                checkpoint.async_save(state_of(value, LARGE), storage_writer=writer).result()
            else:
                checkpoint.save(state_of(value, LARGE), storage_writer=writer)
        return caught.value

    return run_ranks(world, work)


def saved(path, value, world=WORLD, **options):
    def work(rank):
        checkpoint.save(state_of(value, LARGE), storage_writer=FileSystemWriter(path, **options))

    run_ranks(world, work)


def names(folder):
    return sorted(os.listdir(folder))


# ---- no space ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("number", [1, 3, 5, 7])  # 7: the manifest
def test_full_disk_is_told_to_all_ranks(number, asynchronous, tmp_path, fault):
    path = str(tmp_path / "x")
    saved(path, 1)
    fault("nospace", number)
    errors = fails(path, 2, asynchronous=asynchronous)
    fault("nospace", 0)
    assert len({str(error) for error in errors}) == 1
    for error in errors:
        ((rank, text),) = error.failures.items()
        for what in (f"rank {rank} on {socket.gethostname()}", str(tmp_path), "No space left on device", "bytes"):
            assert what in text and what in str(error), text
        assert int(re.search(r"(\d+) bytes", text)[1]) > 25_000
    assert value_of(path, LARGE) == 1 and names(tmp_path) == ["x"]
    saved(path, 3)
    assert value_of(path, LARGE) == 3


@pytest.mark.parametrize("other", [860_000, 900_000])
def test_small_disk(other, small_disk):
    """A real one: the space is too small for all ranks together, which writes see, or for one, which sees it before."""
    path = str(small_disk / "x")
    saved(path, 1)
    (small_disk / "fill").write_bytes(bytes(other))
    errors = fails(path, 2)
    for error in errors:
        assert socket.gethostname() in str(error) and path in str(error).replace(".tmp-", "") and "bytes" in str(error)
        assert "No space" in str(error)
    assert value_of(path, LARGE) == 1 and names(small_disk) == ["fill", "x"]
    (small_disk / "fill").unlink()
    saved(path, 3)
    assert value_of(path, LARGE) == 3


@pytest.mark.parametrize("asynchronous", [False, True])
def test_training_goes_on(asynchronous, small_disk):
    """on_error="warn": steps are saved again when there is space."""
    with CheckpointManager(small_disk / "c", keep_last=2, asynchronous=asynchronous, on_error="warn") as saver:
        saver.save(1, state_of(1, LARGE))
        saver.wait_until_finished()
        (small_disk / "fill").write_bytes(bytes(900_000))
        with pytest.warns(UserWarning, match="step [23] was not saved.*bytes"):
            for step in (2, 3):
                saver.save(step, state_of(step, LARGE))
            saver.wait_until_finished()
        assert saver.all_steps() == [1] and newest(saver.directory, LARGE) == 1
        (small_disk / "fill").unlink()
        saver.save(4, state_of(4, LARGE))
    assert saver.all_steps() == [1, 4] and newest(saver.directory, LARGE) == 4


def test_manager_raises_the_error_of_a_background_save(tmp_path, fault):
    saver = CheckpointManager(tmp_path / "c")
    fault("nospace", 1)
    saver.save(1, state_of(1))
    with pytest.raises(CheckpointException, match="No space"):
        saver.save(2, state_of(2))
    saver.save(2, state_of(2))
    saver.close()
    assert saver.all_steps() == [2]


# ---- errors of the disk --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", ["rename", "marker"])
@pytest.mark.parametrize("kind", ["write", "fsync", "rename"])
@pytest.mark.parametrize("old", [False, True])
def test_errors_of_the_disk(kind, commit, old, tmp_path, fault):
    """Each call of a kind fails once. The error says which; what was there is as it was, until a save passes."""
    path = str(tmp_path / "x")
    for number in range(1, 40):
        if old:
            saved(path, number, 2, commit=commit)
        fault(kind, number)

        def work(rank):
            try:
                checkpoint.save(state_of(100, LARGE), storage_writer=FileSystemWriter(path, commit=commit))
            except CheckpointException as error:
                return str(error)
            return ""

        errors = run_ranks(2, work)
        seen = _C.fault(kind, 0)
        assert len(set(errors)) == 1
        if not errors[0]:
            assert value_of(path, LARGE) == 100 and seen < number
            break
        assert "Input/output error" in errors[0] and socket.gethostname() in errors[0] and path in errors[0]
        if old:
            assert value_of(path, LARGE) == number
        elif os.path.exists(path):
            assert commit == "marker" and "manifest.json" not in names(path)
    assert number >= (2 if kind == "rename" else 4)


def test_failed_sync_after_the_name(tmp_path, fault):
    """The disk may have the folder's old or its new name: neither content is deleted. A new manager finishes the new one
    or removes it."""
    path = manager.folder_of(tmp_path, 1)
    saved(path, 1, 1)
    fault("fsync", 4)  # file, manifest, folder, parent
    with pytest.raises(CheckpointException, match="Input/output error"):
        checkpoint.save(state_of(2, LARGE), checkpoint_id=path)
    fault("fsync", 0)
    left = [name for name in names(tmp_path) if name.startswith(".tmp-")]
    assert len(left) == 1 and value_of(path, LARGE) == 1 and value_of(str(tmp_path / left[0]), LARGE) == 2
    manager.clean(tmp_path)
    assert names(tmp_path) == [os.path.basename(path)] and value_of(path, LARGE) == 1


def test_old_step_that_cannot_be_removed_is_a_warning(tmp_path, fault):
    with CheckpointManager(tmp_path, keep_last=1, asynchronous=False) as saver:
        saver.save(1, state_of(1))
        fault("rename", 3)  # manifest, folder, trash
        with pytest.warns(UserWarning, match="step 1 was not removed"):
            saver.save(2, state_of(2))
        assert saver.all_steps() == [1, 2]
        saver.save(3, state_of(3))
        assert saver.all_steps() == [3] and newest(tmp_path) == 3


def test_damaged_marker_checkpoint_is_replaced(tmp_path):
    path = tmp_path / "x"
    saved(path, 1, 1, commit="marker")
    (path / "manifest.json").write_text("{")
    saved(path, 2, 1, commit="marker")
    assert value_of(path, LARGE) == 2


# ---- folders -------------------------------------------------------------------------------------------------------


def test_folder_that_nobody_may_write_to(tmp_path):
    """Root may write to any folder, so a file stands in the way, too."""
    (tmp_path / "file").write_text("")
    for error in fails(str(tmp_path / "file" / "x"), 1):
        assert "NotADirectoryError" in str(error) or "FileExistsError" in str(error)
        assert str(tmp_path / "file") in str(error) and socket.gethostname() in str(error)
    locked = tmp_path / "locked"
    locked.mkdir(0o500)
    if os.geteuid() == 0:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "ro,size=1m", "pydist-test", locked], capture_output=True, text=True
        )
        if mounted.returncode:
            pytest.skip("mount is not allowed")
    try:
        for error in fails(str(locked / "x"), 1):
            assert re.search("Read-only file system|Permission denied", str(error)) and str(locked) in str(error)
            assert set(error.failures) == set(range(WORLD))
    finally:
        if os.geteuid() == 0:
            subprocess.run(["umount", locked], check=True)


@pytest.mark.parametrize("commit", ["rename", "marker"])
def test_folder_that_exists(commit, tmp_path):
    path = str(tmp_path / "x")
    saved(path, 1, commit=commit)
    before = names(path)
    for error in fails(path, 2, overwrite=False, commit=commit):
        assert "is there already" in str(error) and path in str(error)
    assert value_of(path, LARGE) == 1 and names(tmp_path) == ["x"] and names(path) == before


# ---- at the same time ----------------------------------------------------------------------------------------------


def together(*jobs):
    """Runs them in threads; raises what one raised."""
    errors = []

    def run(job):
        try:
            job()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


def test_two_jobs_save_to_one_folder(tmp_path):
    """The last one stays, whole."""
    path = str(tmp_path / "x")
    saved(path, 1, 1)
    for number in range(10):
        first, second = 10 + number, 50 + number
        together(*(lambda value=value: saved(path, value, 2, sync_files=False) for value in (first, second)))
        assert value_of(path, LARGE) in (first, second) and names(tmp_path) == ["x"]


def test_load_while_another_saves(tmp_path):
    """A load has one save's values, or says that the checkpoint was replaced; it never mixes."""
    path, found, stop = str(tmp_path / "x"), set(), threading.Event()
    saved(path, 1, 1)

    def loads():
        for _ in range(60):
            try:
                found.add(value_of(path, LARGE))
            except CheckpointException as error:
                assert "was replaced by another save" in str(error)
                found.add("error")
        stop.set()

    def saving():
        value = 2
        while not stop.is_set():
            checkpoint.save(
                state_of(value, LARGE), storage_writer=FileSystemWriter(path, sync_files=False), no_dist=True
            )
            value += 1

    together(loads, saving)
    assert len(found) > 1 and found != {"error"}
    assert isinstance(value_of(path, LARGE), int)


def test_second_async_save_waits_for_the_first(tmp_path):
    futures = [checkpoint.async_save(state_of(n, LARGE), checkpoint_id=str(tmp_path / str(n))) for n in range(1, 5)]
    assert all(future.done() for future in futures[:-1])
    for number, future in enumerate(futures, 1):
        future.result(60)
        assert value_of(str(tmp_path / str(number)), LARGE) == number


def test_training_while_a_save_runs(tmp_path):
    """What is saved is the state at the call."""
    model = nn.Linear(200, 300)
    optimizer = optim.SGD(model.parameters(), lr=1.0)
    for step in range(5):
        before = model.weight.detach().clone()
        future = checkpoint.async_save({"m": model}, checkpoint_id=str(tmp_path / str(step)))
        model(pydist.ones(4, 200)).sum().backward()
        optimizer.step()
        future.result(60)
        state = {"m": nn.Linear(200, 300)}
        checkpoint.load(state, checkpoint_id=str(tmp_path / str(step)))
        assert pydist.equal(state["m"].weight, before) and not pydist.equal(model.weight, before)


# ---- groups --------------------------------------------------------------------------------------------------------


def test_groups_save_apart_and_at_once(tmp_path):
    def work(rank):
        groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        mine = rank // 2
        for step in range(3):
            path = str(tmp_path / f"{mine}-{step}")
            checkpoint.save(state_of(10 * mine + step, LARGE), checkpoint_id=path, process_group=groups[mine])
            assert value_of(path, LARGE) == 10 * mine + step
        checkpoint.save(state_of(rank, LARGE), checkpoint_id=str(tmp_path / f"alone-{rank}"), no_dist=True)
        assert value_of(str(tmp_path / f"alone-{rank}"), LARGE) == rank
        checkpoint.save(state_of(99, LARGE), checkpoint_id=str(tmp_path / "all"))
        return value_of(str(tmp_path / "all"), LARGE)

    assert run_ranks(4, work) == [99] * 4
    assert not [name for name in names(tmp_path) if name.startswith(".")]
    assert names(tmp_path / "all") == [*(f"0000{rank}.safetensors" for rank in range(4)), "manifest.json"]


# ---- tensors -------------------------------------------------------------------------------------------------------


def test_tensors_of_all_kinds(tmp_path):
    base = pydist.arange(60_000.0).view(200, 300)
    leaf = pydist.ones(3, requires_grad=True)
    kinds = {
        "whole": base, "same": base, "rows": base[10:20], "columns": base[:, 5:7], "steps": base[::3, ::2],
        "turned": base.t(), "expanded": pydist.ones(3, 1).expand(3, 4), "permuted": base.view(20, 10, 300).permute(2, 0, 1),
        "leaf": leaf, "result": leaf * 2,
    }  # fmt: skip
    for name, save in (("sync", checkpoint.save), ("async", checkpoint.async_save)):
        ended = save(dict(kinds), checkpoint_id=str(tmp_path / name))
        if name == "async":
            ended.result()
        state = {key: pydist.zeros(value.shape) for key, value in kinds.items()}
        checkpoint.load(state, checkpoint_id=str(tmp_path / name))
        for key, value in kinds.items():
            assert pydist.equal(state[key], value.detach()), key
        # into tensors that are not contiguous, and that share memory
        target = pydist.zeros(300, 200)
        views = {"whole": target.t(), "columns": pydist.zeros(200, 9)[:, 3:5], "rows": target.t()[10:20]}
        checkpoint.load(views, checkpoint_id=str(tmp_path / name))
        assert pydist.equal(target.t(), base) and pydist.equal(views["columns"], base[:, 5:7])


def test_tensors_without_data_are_refused(tmp_path):
    path = str(tmp_path / "x")

    def work(rank):
        state = {"w": pydist.ones(3, device="meta" if rank == 1 else "cpu"), "v": pydist.ones(2)}
        if rank == 1:
            state["v"] = pydist.ones(2, device="meta")
        with pytest.raises(CheckpointException, match="'[wv]' is on meta") as caught:
            checkpoint.save(state, checkpoint_id=path)
        return list(caught.value.failures)

    assert run_ranks(2, work) == [[1], [1]]
    assert names(tmp_path) == []


# ---- a rank that dies ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "victim, asynchronous",
    [(0, False), (2, True), *(pytest.param(*more, marks=pytest.mark.slow) for more in ((0, True), (2, False)))],
)
def test_rank_that_dies_is_named(victim, asynchronous, tmp_path):
    """The others get its name, and PeerFailed as the cause, and do not hang. Without a launcher rank 0 takes the control
    server with it, so the others only know that this is lost."""
    path, log = str(tmp_path / "x"), tmp_path / "log"
    log.mkdir()

    def work(rank):
        state = state_of(1, LARGE)
        dist.barrier()
        if rank == victim:
            _C.fault("kill", 4)
        try:
            if asynchronous:
                checkpoint.async_save(state, checkpoint_id=path).result()
            else:
                checkpoint.save(state, checkpoint_id=path)
        except CheckpointException as error:
            causes, cause = [], error
            while cause is not None:
                causes.append(type(cause).__name__)
                cause = cause.__cause__
            (log / str(rank)).write_text(f"{causes} {list(error.failures)} {error}")
            raise

    with pytest.raises(RankFailed) as caught:
        run_ranks(WORLD, work, processes=True, timeout=60)
    assert caught.value.rank == victim and "SIGKILL" in str(caught.value)
    said = {int(name): (log / name).read_text() for name in names(log)}
    assert set(said) == set(range(WORLD)) - {victim}
    for text in said.values():
        assert "was not saved" in text or "rank 0 has not said" in text
        assert f"rank {victim}" in text or victim == 0 and "control server" in text
    if victim:
        assert "PeerFailed" in said[0] and f"[{victim}]" in said[0]
        assert not [name for name in names(tmp_path) if name.startswith((".tmp", "x"))]
