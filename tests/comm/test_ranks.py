"""pydist.testing.run_ranks and its fixture: results, failures that name their rank, time limits, and that nobody is left."""

import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import resource_tracker
from pathlib import Path

import pytest

import pydist
from lib.ranks import LONG
from pydist import distributed as dist
from pydist.testing import RankFailed, RankTimeout, run_ranks

KINDS = pytest.mark.parametrize("processes", [False, True], ids=["threads", "processes"])


def children():
    """Processes that this one has started and that are still there."""
    with open(f"/proc/{os.getpid()}/task/{os.getpid()}/children") as file:
        return set(file.read().split())


@pytest.fixture(autouse=True)
def nobody_is_left():
    resource_tracker.ensure_running()  # multiprocessing's own process
    before, open_files = children(), len(os.listdir("/proc/self/fd"))
    yield
    assert children() <= before
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= open_files


def total(rank, start):
    x = pydist.full((2,), start + rank)
    dist.all_reduce(x)
    return rank, dist.get_rank(), dist.get_world_size(), x


@KINDS
def test_results_by_rank(processes):
    for rank, (number, same, world, x) in enumerate(run_ranks(3, total, 1.0, processes=processes)):
        assert (number, same, world, x.tolist()) == (rank, rank, 3, [6.0, 6.0])
    assert not dist.is_initialized()


@KINDS
def test_nested_functions_and_lambdas(processes):
    factor, table = 3, {"a": pydist.ones(2)}

    def helper(x):
        assert x >= 0, "pytest's rewritten assert works there, too"
        return x * factor

    def work(rank, more):
        return helper(rank) + more(rank) + table["a"].sum().item()

    assert run_ranks(2, work, lambda rank: 10 * rank, processes=processes) == [2.0, 15.0]


def test_processes_are_processes_of_their_own():
    def work(rank):
        os.environ["ONLY"] = str(rank)
        return os.getpid()

    assert len({os.getpid(), *run_ranks(2, work, processes=True)}) == 3 and "ONLY" not in os.environ
    assert {os.getpid(), *run_ranks(2, work)} == {os.getpid()}
    del os.environ["ONLY"]


@KINDS
def test_an_exception_names_its_rank(processes):
    def work(rank):
        if rank == 1:
            raise KeyError("the cause")
        dist.barrier()

    with pytest.raises(RankFailed, match="^rank 1 of 3 raised KeyError: 'the cause'") as caught:
        run_ranks(3, work, processes=processes)
    error = caught.value
    assert (error.rank, error.world, type(error.__cause__)) == (1, 3, KeyError)
    assert not processes or "in work" in error.details
    found = run_ranks(3, work, processes=processes, return_exceptions=True)
    assert [type(one.__cause__) for one in found] == [pydist.PeerFailed, KeyError, pydist.PeerFailed]


class Odd(Exception):
    def __init__(self, one, two):  # cannot be made again from its text
        super().__init__(f"{one} and {two}")


@KINDS
def test_exceptions_that_cannot_be_sent(processes):
    def work(rank):
        raise Odd("this", "that")

    with pytest.raises(RankFailed, match="rank [01] of 2 raised (?:.*)Odd: this and that"):
        run_ranks(2, work, processes=processes)


def test_results_and_arguments_that_cannot_be_sent():
    with pytest.raises(RankFailed, match="rank 0 of 1 raised TypeError: what it returned, lock, cannot be sent"):
        run_ranks(1, lambda rank: threading.Lock(), processes=True)
    with pytest.raises(TypeError, match="lock"):
        run_ranks(1, total, threading.Lock(), processes=True)


END = {
    "exit": ("sys.exit(3)", "exited with code 3 and did not return"),
    "exit 0": ("os._exit(0)", "exited with code 0 and did not return"),
    "kill": ("os.kill(os.getpid(), signal.SIGKILL)", "died by SIGKILL"),
    "crash": ("import ctypes; ctypes.string_at(0)", "died by SIGSEGV"),
}


@pytest.mark.parametrize("how", END)
def test_a_process_that_ends(how):
    act, said = END[how]

    def work(rank):
        if rank == 1:
            exec(act, {"os": os, "sys": sys, "signal": signal})
        try:
            dist.barrier()
        except pydist.PeerFailed:
            return "alive"

    first, second = run_ranks(2, work, processes=True, return_exceptions=True)
    assert first == "alive" and second.rank == 1 and str(second).startswith(f"rank 1 of 2 {said}")
    assert how != "crash" or "Segmentation fault" in second.details and "in work" in second.details
    if how == "kill" or LONG:
        with pytest.raises(RankFailed, match=f"^rank 1 of 2 {said}"):
            run_ranks(2, work, processes=True)


def test_a_process_that_dies_after_it_has_returned():
    def work(rank):
        import atexit

        atexit.register(os.kill, os.getpid(), signal.SIGKILL)

    with pytest.raises(RankFailed, match="rank 0 of 1 died by SIGKILL after it had returned"):
        run_ranks(1, work, processes=True)


def sleep_on_rank_1(rank, wait):
    if rank == 1:
        wait(600)
    dist.barrier()


def hang_in_a_collective(rank, wait):
    if rank == 0:
        dist.barrier()
    else:
        dist.recv(pydist.ones(1), 0)


LIMITS = (1.5, 8.0, 40.0)  # s; a busy machine has not started processes after the first


@KINDS
@pytest.mark.parametrize("work", [sleep_on_rank_1, hang_in_a_collective])
def test_the_time_is_over(work, processes):
    released = threading.Event()
    for limit in LIMITS if processes else (0.4,):
        begin = time.monotonic()
        with pytest.raises(RankTimeout, match=rf"^rank 0 of 2 has not returned after {limit:g} s \(nor have") as caught:
            run_ranks(2, work, time.sleep if processes else released.wait, processes=processes, timeout=limit)
        assert isinstance(caught.value, TimeoutError) and time.monotonic() - begin < limit + 20
        if caught.value.details.count(work.__name__) == 2:
            break
    assert caught.value.details.count(work.__name__) == 2, caught.value.details
    released.set()  # a thread cannot be ended
    for thread in threading.enumerate():
        if thread.name.startswith("rank "):
            thread.join(60)


def ignore_signals(rank, path):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGABRT):
        signal.signal(number, signal.SIG_IGN)
    (path / str(rank)).touch()
    time.sleep(600)


def stop(rank, path):
    (path / str(rank)).touch()
    os.kill(os.getpid(), signal.SIGSTOP)


@pytest.mark.parametrize("work", [ignore_signals, stop])
@pytest.mark.slow
def test_processes_that_do_not_want_to_end(tmp_path, work):
    for limit in LIMITS:
        with pytest.raises(RankTimeout, match=f"rank 0 of 2 has not returned after {limit:g} s"):
            run_ranks(2, work, tmp_path, processes=True, timeout=limit)
        if {path.name for path in tmp_path.iterdir()} == {"0", "1"}:
            return
    raise AssertionError("the ranks did not come to what they were to do")


@pytest.mark.parametrize("args, error", [((0, total), ValueError), ((True, total), ValueError), (("2", total), ValueError),
    ((10**9, total), ValueError), ((2, 5), TypeError), ((2, None), TypeError)])  # fmt: skip
def test_bad_arguments(args, error):
    with pytest.raises(error, match="run_ranks: "):
        run_ranks(*args)
    with pytest.raises(ValueError, match="run_ranks: timeout is 0"):
        run_ranks(2, total, timeout=0)


# A suite of somebody else.

SUITE = """
import os, signal, sys, time
import pytest
import pydist
from pydist import distributed as dist

@pytest.mark.parametrize("processes", [False, True])
def test_sum(ranks, processes):
    def work(rank):
        x = pydist.full((2,), rank + 1.0)
        dist.all_reduce(x)
        return x.tolist()

    assert ranks(2, work, processes=processes) == [[3.0, 3.0]] * 2

def loud(rank):
    print("loud" * 500_000)
    print("err" * 500_000, file=sys.stderr)
    return rank

def test_a_lot_of_output(ranks):
    assert ranks(2, loud, processes=True) == [0, 1]

@pytest.mark.parametrize("processes", [False, True])
def test_skip(ranks, processes):
    ranks(2, lambda rank: pytest.skip("not here"), processes=processes)

def fail(rank):
    print(f"rank {rank} was here")
    assert rank == 0, "only rank 0"

def test_fails(ranks):
    ranks(2, fail, processes=True)

def test_hangs(ranks):
    ranks(2, lambda rank: time.sleep(600), processes=True, timeout=1)

def test_dies(ranks):
    ranks(2, lambda rank: os.kill(os.getpid(), signal.SIGKILL), processes=True)
"""
FORMS = [("--import-mode=importlib",), (), ("-s",), ("--capture=sys",), ("-n2",)]


@pytest.mark.parametrize("words", FORMS if LONG else FORMS[:1], ids=lambda words: " ".join(words) or "plain")
@pytest.mark.slow
def test_a_suite_with_the_plugin(tmp_path, words):
    if words == ("-n2",):
        pytest.importorskip("xdist")
    inner = tmp_path / "suite" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "suite" / "conftest.py").write_text('pytest_plugins = ["pydist.testing.pytest"]\n')
    (inner / "test_it.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rs", *words, "."]
    done = subprocess.run(command, cwd=tmp_path / "suite", capture_output=True, text=True, timeout=300)
    assert re.search(r"^3 failed, 3 passed, 2 skipped in", done.stdout, re.M), done.stdout[-3000:]
    assert "RankFailed: rank 1 of 2 raised AssertionError: only rank 0" in done.stdout
    assert "RankTimeout: rank 0 of 2 has not returned after 1 s" in done.stdout
    assert "not here" in done.stdout and re.search(r"RankFailed: rank [01] of 2 died by SIGKILL", done.stdout)
    said = done.stdout + done.stderr
    assert "rank 1 was here" in said
    assert 6_000_000 < len(said) if {"-s", "--capture=sys"} & {*words} else len(said) < 100_000  # two of 3.5 MB


def test_the_documented_example(tmp_path):
    text = (Path(__file__).resolve().parents[2] / "docs/internals/testing.md").read_text()
    conftest, example = re.findall(r"```python\n(.*?)```", text, re.S)
    (tmp_path / "conftest.py").write_text(conftest)
    (tmp_path / "test_example.py").write_text(example)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert "1 passed" in done.stdout, done.stdout
