"""multiprocessing.spawn: fresh processes from scripts, modules, notebooks and standard input; how they end."""

import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time

import pytest

import pydist
from lib.processes import all_end, within
from pydist import multiprocessing as mp
from pydist.distributed._group import rendezvous


def put(index, queue, value):
    queue.put((index, value.sum().item(), os.getpid()))


def fail(index, kind):
    if index == 1:
        if kind == "raise":
            raise ValueError("the cause\nin two lines")
        if kind == "exit":
            sys.exit(3)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def fail_because_of_another(index, queue):
    if index == 1:
        for _ in range(2):
            queue.put("here")
        time.sleep(0.2)
        raise ValueError("the cause")
    queue.get()
    raise pydist.PeerFailed("rank 1 failed")


def ignore_sigterm(index, queue):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    queue.put(os.getpid())
    if index == 0:
        time.sleep(0.3)
        raise ValueError("done")
    time.sleep(60)


def meet(index, queue, world):
    pydist.distributed.init_process_group("gloo", rank=index, world_size=world)
    x = pydist.ones(1) * (index + 1)
    pydist.distributed.all_reduce(x)
    queue.put((x.item(), "MASTER_ADDR" in os.environ))


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_children_meet_without_an_address(method, monkeypatch):
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    queue = mp.get_context(method).SimpleQueue()
    both = [mp.start_processes(meet, (queue, 2), 2, join=False, start_method=method) for _ in range(2)]  # apart
    for context in both:
        while not context.join(60):
            pass
    assert [queue.get() for _ in range(4)] == [(3.0, False)] * 4


def test_an_address_that_was_set_counts(monkeypatch):
    monkeypatch.setenv("PYDIST_MEETING", "job://spawned")
    assert rendezvous.find_place(None, 2, 0).address == "job://spawned"
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29512")
    assert rendezvous.find_place(None, 2, 0).address == "tcp://127.0.0.1:29512"


def test_arguments_and_results():
    queue = mp.get_context("spawn").SimpleQueue()
    assert mp.spawn(put, (queue, pydist.ones(3)), nprocs=3) is None
    results = sorted(queue.get() for _ in range(3))
    assert [r[:2] for r in results] == [(0, 3.0), (1, 3.0), (2, 3.0)]
    assert len({pid for *_, pid in results} | {os.getpid()}) == 4


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_other_methods(method):
    queue = mp.get_context(method).SimpleQueue()
    mp.start_processes(put, (queue, pydist.ones(2)), 2, start_method=method)
    assert sorted(queue.get()[:2] for _ in range(2)) == [(0, 2.0), (1, 2.0)]


@pytest.mark.parametrize("kind, error, text", [
    ("raise", mp.ProcessRaisedException, "\n\n-- Process 1 terminated with the following error:\nTraceback (most"),
    ("exit", mp.ProcessExitedException, "process 1 terminated with exit code 3"),
    ("kill", mp.ProcessExitedException, "process 1 terminated with signal SIGKILL"),
])  # fmt: skip
def test_one_fails(kind, error, text):
    context = mp.spawn(fail, (kind,), nprocs=3, join=False)
    pids = context.pids()
    with pytest.raises(error) as raised:
        while not context.join(timeout=20):
            pass
    got = raised.value
    assert str(got).startswith(text) and (got.error_index, got.error_pid) == (1, pids[1])
    if kind == "raise":
        assert "ValueError: the cause\nin two lines" in str(got) and "in fail" in str(got)
    else:
        assert (got.exit_code, got.signal_name) == ((3, None) if kind == "exit" else (-9, "SIGKILL"))
    assert all_end(pids, 0)
    again = pickle.loads(pickle.dumps(got))
    assert type(again) is error and str(again) == str(got) and again.error_index == 1


def test_the_cause_is_raised():
    """Not the error of a process that failed only because of it, though that one came first."""
    queue = mp.get_context("spawn").SimpleQueue()
    with pytest.raises(mp.ProcessRaisedException, match="ValueError: the cause") as raised:
        mp.spawn(fail_because_of_another, (queue,), nprocs=3)
    assert raised.value.error_index == 1


def test_stubborn_processes():
    queue = mp.get_context("spawn").SimpleQueue()
    begin = time.monotonic()
    with pytest.raises(mp.ProcessRaisedException, match="done"):
        mp.spawn(ignore_sigterm, (queue,), nprocs=2)
    assert time.monotonic() - begin < within(10)
    assert all_end([queue.get() for _ in range(2)], 0)


def test_join_with_timeout():
    context = mp.spawn(time.sleep, (), nprocs=1, join=False)
    assert context.join(timeout=0) is False or not context.sentinels
    assert context.join(timeout=20) is True and context.join() is True
    assert [process.exitcode for process in context.processes] == [0]


def test_nested_functions_travel_by_value():
    queue = mp.get_context("spawn").SimpleQueue()
    offset = 10

    def count(n):
        return n and 1 + count(n - 1)

    def work(index, queue, scale=2, *, plus=offset):
        queue.put(count(index) * scale + plus + offset)

    mp.spawn(work, (queue,), nprocs=2)
    mp.spawn(lambda index, queue: queue.put(-index), (queue,), nprocs=2)
    assert sorted(queue.get() for _ in range(4)) == [-1, 0, 20, 22]


@pytest.mark.parametrize("arguments, kind, text", [
    ((3,), TypeError, "fn is int"),
    ((put, (), 0), ValueError, "nprocs is 0"),
    ((put, (), "2"), ValueError, "nprocs is '2'"),
    ((put, (open,), 1, True, False, "teleport"), ValueError, "teleport"),
])  # fmt: skip
def test_bad_arguments(arguments, kind, text):
    with pytest.raises(kind, match=text):
        mp.spawn(*arguments)


def test_what_cannot_be_sent():
    with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
        mp.spawn(put, (sys._getframe(), 1), nprocs=2)


SCRIPT = """
import os, sys
import pydist
from pydist import multiprocessing as mp, nn
LIMIT = 3
class Net(nn.Module):
    scale = 2.0
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(LIMIT, 1)
    def forward(self, x):
        return self.linear(x) * self.scale
def helper(x):
    return helper(x - 1) + 1 if x else os.getppid()
def work(index, parent):
    assert helper(5) - 5 == parent
    os.write(1, f"{type(Net()(pydist.ones(1, LIMIT))).__name__} {index}\\n".encode())
if __name__ == "__main__":
    mp.spawn(work, (os.getpid(),), nprocs=2)
    print("end")
"""


@pytest.mark.parametrize("way", ["script", "stdin", "-c", "module"])
def test_from_main(tmp_path, way):
    (tmp_path / "spawning.py").write_text(SCRIPT)
    command = {"script": ["spawning.py"], "stdin": [], "-c": ["-c", SCRIPT], "module": ["-m", "spawning"]}[way]
    done = subprocess.run([sys.executable, *command], input=SCRIPT if way == "stdin" else "", cwd=tmp_path,
                          capture_output=True, text=True, timeout=60)  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == ["Tensor 0", "Tensor 1", "end"]


def test_from_a_notebook(tmp_path):
    """What IPython's kernel does: cells are executed in a __main__ without a file."""
    cells = SCRIPT.split("if __name__")[0], "mp.spawn(work, (os.getpid(),), nprocs=2)"
    program = textwrap.dedent("""
        import sys, types
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        for cell in CELLS:
            exec(compile(cell, "<cell>", "exec"), main.__dict__)
    """).replace("CELLS", repr(cells))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == ["Tensor 0", "Tensor 1"]


def test_nobody_outlives_a_killed_parent():
    program = """
from pydist import multiprocessing as mp
import os, time
def work(index):
    os.write(1, b"%d\\n" % os.getpid())  # one write: a print of each rank may mix
    time.sleep(60)
mp.spawn(work, nprocs=2)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        pids = [int(process.stdout.readline()) for _ in range(2)]
        process.kill()
        process.wait()
        assert all_end(pids, 2)
