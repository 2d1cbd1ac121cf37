"""The loader's processes, and going on within an epoch."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import suppress

import pytest

import pydist
from lib.processes import all_end
from pydist.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
    prefetch,
)  # fmt: skip


class Items(Dataset):
    """Item i: (i, random numbers, the process)."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        return {"x": pydist.full((2,), float(i)), "noise": pydist.rand(3), "pid": os.getpid(), "text": f"item {i}"}


class Failing(Items):
    def __getitem__(self, i):
        if i == 5:
            raise KeyError("item five")
        if i == 7:
            os._exit(3)
        return i


class Slow(Items):
    def __getitem__(self, i):
        time.sleep(60 if i == 2 else 0)
        return i


class Stream(IterableDataset):
    def __init__(self, size):
        self.size = size

    def __iter__(self):
        info = get_worker_info()
        worker, count = (info.id, info.num_workers) if info else (0, 1)
        return iter(range(worker, self.size - worker, count))


def mark(worker):
    assert get_worker_info().id == worker
    Items.__getitem__ = lambda self, i: (i, worker, get_worker_info().seed)


def refuse(worker):
    raise LookupError(f"worker {worker} refuses")


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_processes_give_what_threads_give(context):
    data = Items(10)
    plain = list(DataLoader(data, 3))
    pydist.manual_seed(5)
    alone = list(DataLoader(data, 3, shuffle=True))
    pydist.manual_seed(5)
    loader = DataLoader(data, 3, shuffle=True, num_workers=2, multiprocessing_context=context)
    batches = list(loader)
    for ours, expected in zip(batches, alone):
        assert ours["x"].tolist() == expected["x"].tolist() and ours["noise"].tolist() == expected["noise"].tolist()
        assert ours["text"] == expected["text"]
    assert len(batches) == len(plain) == 4 and batches[0]["x"].is_shared()
    pids = {pid for batch in batches for pid in batch["pid"].tolist()}
    assert len(pids) == 2 and os.getpid() not in pids
    del batches
    assert not any(alive(pid) for pid in pids)


class Lent(Dataset):
    """Tensors whose memory cannot become shared: an array has it, or it is read-only."""

    def __len__(self):
        return 2

    def __getitem__(self, i):
        x = pydist.full((2,), float(i))
        return {"x": x, "array": x.numpy(), "bytes": pydist.frombuffer(bytes([i, 7]), dtype=pydist.uint8)}


def test_processes_send_copies_of_what_is_lent():
    for i, item in enumerate(DataLoader(Lent(), None, num_workers=1)):
        assert item["x"].tolist() == [i, i] and item["array"].tolist() == [i, i] and item["bytes"].tolist() == [i, 7]


def alive(pid):
    try:
        os.kill(pid, 0)
        return True
    except ProcessLookupError:
        return False


def test_persistent_workers_and_early_ends():
    loader = DataLoader(Items(12), 2, num_workers=2, multiprocessing_context="fork", persistent_workers=True)
    seen = set()
    for epoch in range(3):
        for i, batch in enumerate(loader):
            seen |= set(batch["pid"].tolist())
            assert batch["x"][0, 0].item() == 2 * i
            if epoch == 1 and i == 2:
                break
    assert len(seen) == 2 and all(map(alive, seen))
    del loader
    assert not any(map(alive, seen))
    with pytest.raises(ValueError, match="persistent_workers"):
        DataLoader([1], persistent_workers=True)
    with pytest.raises(ValueError, match="multiprocessing_context is 'threads'"):
        DataLoader([1], num_workers=1, multiprocessing_context="threads")


def test_errors_of_processes():
    loader = DataLoader(Failing(8), 1, num_workers=1, multiprocessing_context="fork")
    got = []
    with pytest.raises(KeyError, match="item five") as caught:
        got.extend(loader)
    assert (
        len(got) == 5
        and "in __getitem__" in str(caught.value.__cause__)
        and "test_workers.py" in str(caught.value.__cause__)
    )
    with pytest.raises(RuntimeError, match=r"worker 0 \(pid \d+\) exited unexpectedly with code 3"):
        list(DataLoader(Failing(8), 1, sampler=[0, 7], num_workers=1, multiprocessing_context="fork"))
    with pytest.raises(RuntimeError, match="timed out after 0.2 seconds"):  # the worker sleeps: ended by force
        iterator = iter(DataLoader(Slow(4), None, num_workers=1, multiprocessing_context="fork", timeout=0.2))
        assert [next(iterator), next(iterator)] == [0, 1]
        next(iterator)


def test_worker_init_fn_and_seeds():
    pydist.manual_seed(0)
    options = {"num_workers": 2, "multiprocessing_context": "fork"}
    got = list(DataLoader(Items(4), None, worker_init_fn=mark, **options))
    assert [(i, worker) for i, worker, _ in got] == [(0, 0), (1, 1), (2, 0), (3, 1)]
    assert got[1][2] == got[0][2] + 1 == got[3][2]
    with pytest.raises(LookupError, match="worker 0 refuses"):
        list(DataLoader(Items(4), worker_init_fn=refuse, **options))
    many = {"shape": pydist.zeros(0), "list": [pydist.ones(1) * i for i in range(300)]}  # more than one message's fds
    (batch,) = DataLoader([many], None, **options)
    assert [t.item() for t in batch["list"]] == list(range(300)) and batch["shape"].shape == (0,)


def test_streams_in_processes():
    options = {"num_workers": 2, "multiprocessing_context": "fork", "persistent_workers": True}
    loader = DataLoader(Stream(9), 2, **options)
    for _ in range(2):  # worker 0 has 0 2 4 6 8, worker 1 has 1 3 5 7; in turn until one has no more
        assert [batch.tolist() for batch in loader] == [[0, 2], [1, 3], [4, 6], [5, 7], [8]]
    assert list(DataLoader(Stream(4), None)) == [0, 1, 2, 3]


def test_compat_forks(monkeypatch):
    monkeypatch.setenv("PYDIST_COMPAT", "1")
    assert DataLoader([1], num_workers=1).multiprocessing_context == "fork"
    assert DataLoader([1]).multiprocessing_context is None


BLOCKED = """
import sys, time
import pydist
from pydist import distributed as dist, multiprocessing
from pydist.utils.data import DataLoader

class Data:
    def __len__(self):
        return 100
    def __getitem__(self, i):
        if i > 3:
            time.sleep(600)
        return i

def loader(**options):
    for i in DataLoader(Data(), None, num_workers=4, **options):
        print(i, flush=True)

def waits(rank):
    print(0, flush=True)
    if rank:
        dist.recv(pydist.ones(1), 0)  # which rank 0 never sends
    time.sleep(600)

if __name__ == "__main__":
    WHAT
"""


@pytest.mark.parametrize("what, lines", [
    ("loader()", 4),
    ("loader(multiprocessing_context='fork')", 4),
    ("loader(multiprocessing_context='fork', persistent_workers=True)", 4),
    ("dist.threads.run(waits, 2)", 2),
    ("multiprocessing.spawn(waits, (), 1)", 1),
])  # fmt: skip
def test_ctrl_c_ends_a_program_whose_workers_are_blocked(tmp_path, what, lines):
    """The signal goes to the parent alone, so no worker is woken by it."""
    script = tmp_path / "script.py"
    script.write_text(BLOCKED.replace("WHAT", what))
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              start_new_session=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))  # fmt: skip
    for _ in range(lines):
        parent.stdout.readline()
    time.sleep(0.2)  # now it waits for the next one
    parent.send_signal(signal.SIGINT)
    try:
        err = parent.communicate(timeout=15)[1]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(parent.pid, signal.SIGKILL)
        parent.communicate()
    assert parent.returncode == -signal.SIGINT and err.splitlines()[-1] == "KeyboardInterrupt"


@pytest.mark.parametrize("context", [None, "fork"])
def test_one_deadline_for_all_blocked_workers(monkeypatch, context):
    monkeypatch.setattr(prefetch, "GRACE", 0.5)
    release = threading.Event()

    class Blocked(Items):
        def __getitem__(self, i):
            if i > 7:
                release.wait(60)
            return i

    batches = iter(DataLoader(Blocked(100), None, num_workers=8, multiprocessing_context=context))
    assert [next(batches) for _ in range(8)] == list(range(8))
    begin = time.monotonic()
    batches.close()
    took = time.monotonic() - begin
    release.set()  # the threads
    assert 0.4 < took < 3


def test_a_persistent_worker_that_hangs_after_an_early_end(monkeypatch):
    """The next epoch says so; it waited for ever."""
    monkeypatch.setattr(prefetch, "GRACE", 0.5)

    class Blocked(Items):
        def __getitem__(self, i):
            time.sleep(600 if i == 1 else 0)
            return i

    options = {"num_workers": 1, "multiprocessing_context": "fork", "persistent_workers": True, "timeout": 0.5}
    loader = DataLoader(Blocked(4), None, **options)
    assert next(iter(loader)) == 0
    with pytest.raises(RuntimeError, match="timed out after 0.5 seconds"):
        next(iter(loader))
    assert next(iter(loader)) == 0  # by a new worker


@pytest.mark.parametrize("then", ["time.sleep(60)", "break"])
def test_workers_do_not_outlive_the_parent(tmp_path, then):
    """The parent is killed while a worker computes and another waits, or while it waits for them to end."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import multiprocessing, os, time
            from pydist.utils.data import DataLoader

            both = multiprocessing.Barrier(2)

            class Data:
                def __len__(self):
                    return 4
                def __getitem__(self, i):
                    os.write(1, b"%d\\n" % os.getpid())  # at once, whatever the buffering
                    if i < 2:
                        both.wait()
                    if i:
                        time.sleep(60)
                    return i

            for _ in DataLoader(Data(), num_workers=2, prefetch_factor=1, multiprocessing_context="fork"):
                THEN
            """
        ).replace("THEN", then)
    )
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    pids = [int(parent.stdout.readline()) for _ in range(2)]
    time.sleep(0.3)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    assert all_end(pids, 20)
    parent.stdout.close()


# Going on within an epoch.


def loaders():
    data = TensorDataset(pydist.arange(23))
    weights = pydist.arange(1.0, 24.0)
    return {
        "in turn": lambda: DataLoader(data, 4),
        "shuffled": lambda: DataLoader(data, 4, shuffle=True),
        "generator": lambda: DataLoader(data, 4, shuffle=True, generator=pydist.Generator().manual_seed(3)),
        "threads": lambda: DataLoader(data, 4, shuffle=True, num_workers=2),
        "processes": lambda: DataLoader(data, 4, shuffle=True, num_workers=1, multiprocessing_context="fork"),
        "replacement": lambda: DataLoader(data, 4, sampler=RandomSampler(data, replacement=True)),
        "weighted": lambda: DataLoader(data, 4, sampler=WeightedRandomSampler(weights, 23)),
        "distributed": lambda: DataLoader(data, 4, sampler=DistributedSampler(data, 2, 1)),
        "single": lambda: DataLoader(Items(9), None, shuffle=True, collate_fn=lambda d: (d["x"], d["noise"])),
        "stream": lambda: DataLoader(Stream(23), 4),
    }


def listed(batches):
    return [[t.tolist() for t in (batch if isinstance(batch, (list, tuple)) else [batch])] for batch in batches]


@pytest.mark.parametrize("given", [0, 1, 3])
@pytest.mark.parametrize("name", loaders())
def test_resuming_gives_the_rest(name, given):
    """The same batches, with the same random numbers, as without the interruption; and the epochs after it."""
    loader = loaders()[name]()
    list(loader)
    iterator = iter(loader)
    for _ in range(given):
        next(iterator)
    state = loader.state_dict()
    rest = listed(iterator)
    random = pydist.get_rng_state()
    pydist.rand(7)
    other = loaders()[name]()
    other.load_state_dict(state)
    before = pydist.get_rng_state()
    got = listed(other)
    if given or name in ("in turn", "stream"):
        assert got == rest
    assert pydist.equal(pydist.get_rng_state(), before)
    assert other.state_dict() == {"begun": None, "batches": 0} == loader.state_dict()
    if loader.generator is None:
        pydist.set_rng_state(random)
        expected = listed(loader)
        pydist.set_rng_state(random)
        assert listed(other) == expected
    with pytest.raises(KeyError):
        other.load_state_dict({})
