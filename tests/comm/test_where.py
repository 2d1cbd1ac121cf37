"""What a waiting rank says about those that it waits for, the flight record, and long tasks."""

import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

import pydist
from lib.ranks import Ranks, outputs, processes
from pydist import distributed as dist

PRELUDE = """
import os, signal, sys, time
import pydist
from pydist import distributed as dist
rank = int(os.environ["RANK"])
x = pydist.ones(4)
def wake(*_):
    raise InterruptedError
signal.signal(signal.SIGUSR2, wake)
"""
LINE = re.compile(r"all_reduce\(float32\[4\], SUM\) at test_where.py:\d+ \(#\d+\): done, [\d.]+ ms")


def test_the_record_has_the_last_collectives_in_order():
    def work(rank):
        for _ in range(70):
            dist.all_reduce(pydist.ones(4))
        dist.barrier()
        return dist.flight_record().splitlines()

    for rank, lines in enumerate(dist.threads.run(work, 2)):
        assert lines[0].startswith(f"rank {rank} of 2, group")
        assert len(lines) == 1 + 64 and "barrier() at test_where.py" in lines[-1]
        assert all(LINE.search(line) for line in lines[1:-1])
        numbers = [int(re.search(r"#(\d+)", line)[1]) for line in lines[1:]]
        assert numbers == list(range(numbers[0], numbers[0] + 64))


def test_messages_have_a_record_of_their_own():
    def work(rank):
        x = pydist.ones(4)
        for _ in range(70):
            dist.send(x, 1) if rank == 0 else dist.recv(x, 0)
        dist.barrier()
        pending = [dist.irecv(x, 0, tag=9) for _ in range(66)] if rank else []  # more than rows
        dist.barrier()
        text = dist.flight_record().splitlines()
        dist.barrier()
        for _ in range(66):
            if rank == 0:
                dist.send(x, 1, tag=9)
        for w in pending:
            w.wait()
        return text, dist.flight_record().splitlines()

    for rank, (text, after) in enumerate(dist.threads.run(work, 2)):
        name = "recv(float32[4], src=0" if rank else "send(float32[4], dst=1"
        assert sum("barrier()" in line for line in text) == 2 and len(text) == 1 + 3 + 64
        assert all(name in line and "at test_where.py:" in line for line in text[4:])
        assert [": waits," in line for line in text[4:]] == [bool(rank)] * 64
        assert all(name in line and ": done, " in line and "tag=9" in line for line in after[5:])


def test_a_world_of_one_has_no_record():
    assert dist.flight_record() == ""


def test_a_rank_that_fails_keeps_its_record():
    def work(rank):
        with pytest.raises(dist.CommMismatch):
            dist.all_reduce(pydist.ones(4 + rank))
        return dist.flight_record().splitlines()[-1]

    for rank, line in enumerate(dist.threads.run(work, 2)):
        assert f"all_reduce(float32[{4 + rank}], SUM)" in line and ": failed," in line


def test_sigusr1_writes_the_record_of_a_rank_that_hangs():
    script = """
        dist.all_reduce(x)
        print("ready", flush=True)
        if rank == 0:
            dist.all_reduce(x)  # waits
        else:
            sum(range(10 ** 10))  # in C, with the GIL
    """
    with Ranks(2, script, prelude=PRELUDE) as ranks:
        assert [ranks.line(r) for r in range(2)] == ["ready"] * 2
        for rank, expected in ((0, ": waits, "), (1, ": done, ")):
            ranks.processes[rank].send_signal(signal.SIGUSR1)
            text = [ranks.processes[rank].stderr.readline() for _ in range(3 if rank else 4)]
            assert f"flight record, as SIGUSR1 asked for: rank {rank} of 2" in text[0]
            assert "all_reduce(float32[4], SUM) at <string>:" in text[-1] and expected in text[-1]


def test_a_handler_of_the_users_is_left_alone():
    script = """
        seen = []
        if rank == 0:
            signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
        dist.all_reduce(x)
        if rank == 1:
            signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
        os.kill(os.getpid(), signal.SIGUSR1)
        end = time.monotonic() + 10
        while not seen and time.monotonic() < end:
            time.sleep(0.001)
        dist.destroy_process_group()
        from pydist import _C
        _C.comm_leave()
        assert seen == [1] and callable(signal.getsignal(signal.SIGUSR1))
    """
    outputs(processes(2, script, prelude=PRELUDE))


def woken(ranks, rank):
    """Ends what the rank does where it waits for SIGUSR2: when the test has seen what it waits for, however long that took."""
    ranks.processes[rank].send_signal(signal.SIGUSR2)


def test_the_warning_says_where_the_missing_ranks_are():
    script = """
        def busy():  # a signal's error at the end of a loop misses an except around it in Python 3.13.0
            while True:
                pass
        dist.all_reduce(x)
        try:
            if rank == 1:
                time.sleep(60)
            if rank == 2:
                busy()
            if rank == 3:
                os.kill(os.getpid(), signal.SIGSTOP)
        except InterruptedError:
            pass
        dist.all_reduce(x)
    """
    with Ranks(4, script, prelude=PRELUDE, PYDIST_WARN="0.5") as ranks:
        line = ranks.processes[0].stderr.readline()
        asleep, busy, stopped = re.split(", rank (?=[23])", line.split("for rank 1", 1)[1])
        assert "it sleeps at <string>:17, in <module>; ended all_reduce(float32[4], SUM) at <string>:14" in asleep
        assert re.search(r"it computes at <string>:1[23], in busy", busy)
        assert "its process is stopped (SIGSTOP" in stopped
        woken(ranks, 1)
        woken(ranks, 2)
        ranks.processes[3].send_signal(signal.SIGCONT)
        outputs(ranks.wait())


def test_the_timeout_says_where_the_missing_rank_is():
    script = """
        group = dist.new_group([0, 1], timeout=0.6)
        dist.all_reduce(x, group=group)
        if rank == 1:
            try:
                time.sleep(60)
            except InterruptedError:
                sys.exit()
        try:
            dist.all_reduce(x, group=group)
        except dist.CommTimeout as e:
            print(str(e).replace("\\n", " "), flush=True)
    """
    with Ranks(2, script, prelude=PRELUDE) as ranks:
        text = ranks.line(0)
        woken(ranks, 1)
        (_, _, err), _ = ranks.wait()
    assert "rank 1 (last: #2 all_reduce): it sleeps at <string>:15" in text, err
    assert "flight record of rank 0 of 2" in err and ": failed, " in err


@pytest.mark.slow
def test_a_long_task_is_waited_for():
    script = """
        group = dist.new_group([0, 1], timeout=2)
        dist.all_reduce(x, group=group)
        if rank == 1:
            with dist.long_task("tokenise", minutes=1):
                with dist.long_task("inner", minutes=0.5):
                    pass
                try:
                    time.sleep(60)
                except InterruptedError:
                    pass
        dist.all_reduce(x, group=group)
        try:
            print(x[0].item(), flush=True)
            time.sleep(60 * rank)
        except InterruptedError:
            pass
        try:
            dist.all_reduce(x, group=group)
        except (dist.CommTimeout, dist.PeerFailed) as e:
            print(type(e).__name__, flush=True)
    """
    with Ranks(2, script, prelude=PRELUDE, PYDIST_WARN="1.5") as ranks:
        warning = ranks.processes[0].stderr.readline()
        time.sleep(1)  # beyond the timeout
        woken(ranks, 1)
        assert [ranks.line(0), ranks.line(0), ranks.line(1)] == ["4.0", "CommTimeout", "4.0"]
        woken(ranks, 1)
        # Rank 0 had put its data before it gave up: a rank that has not heard of that yet may end the collective.
        assert outputs(ranks.wait())[1] in ("CommTimeout\n", "")
    assert "rank 1 (last: #2 all_reduce): long task 'tokenise': it sleeps" in warning


def test_messages_that_are_late(tmp_path):
    script = """
        group = dist.new_group([0, 1], timeout=0.5)
        dist.all_reduce(x, group=group)
        try:
            if rank == 0:
                while not os.path.exists(os.environ["ASLEEP"]): time.sleep(0.01)
                dist.recv(x, 1, group=group)
                time.sleep(60)
            else:
                with dist.long_task("read", minutes=1):
                    open(os.environ["ASLEEP"], "w").close()
                    time.sleep(60)
        except InterruptedError:
            pass
        if rank == 1:
            dist.send(x, 0, group=group)
            try:
                dist.recv(x, 0, group=group)
            except dist.CommTimeout as e:
                print(str(e).replace("\\n", " "), flush=True)
    """
    with Ranks(2, script, prelude=PRELUDE, PYDIST_WARN="0.3", ASLEEP=str(tmp_path / "asleep")) as ranks:
        late = ranks.processes[0].stderr.readline()
        time.sleep(0.3)  # beyond the timeout
        woken(ranks, 1)
        text = ranks.line(1)
        woken(ranks, 0)
        outputs(ranks.wait())
    line = r"recv\(float32\[4\], src=1, tag=0\) at <string>:16 \(#1\) has waited 0 s for rank 1 \(last: #\d+ \w+\): "
    assert re.search(line + "long task 'read': it sleeps at <string>:21", late), late
    assert re.search(r"recv\(.*\) at <string>:27 .*: rank 1 waited .* for rank 0 .*it sleeps at <string>:17", text), (
        text
    )


CIRCLES = """
import time
import pydist
from pydist import distributed as dist

def run(work, world, *expected):
    def caught(rank):
        groups = [dist.new_group([r, (r + 1) % world]) for r in range(world)] if world > 2 else []
        dist.barrier()
        try:
            work(rank, groups)
        except dist.CommTimeout as e:
            return str(e)
        except dist.PeerFailed:  # of one who was faster
            return ""
    begin = time.perf_counter()
    texts = dist.threads.run(caught, world)
    took = time.perf_counter() - begin
    circles = [t for t in texts if t and "wait for each other" in t]
    assert bool(circles) == bool(expected) and took < 30, (texts, took)
    for part in expected:
        assert any(part in text for text in circles), circles

def receive(rank, groups):
    dist.recv(pydist.ones(2), 1 - rank)

def mixed(rank, groups):
    dist.recv(pydist.ones(2), 1) if rank == 0 else dist.all_reduce(pydist.ones(4))

def ring(rank, groups):  # everybody begins with the group of itself and the next
    dist.barrier(groups[rank])
    dist.barrier(groups[rank - 1])

def busy(rank, groups):  # 0 waits for 1, which waits for 2, which works
    if rank == 2:
        time.sleep(0.5)
    dist.barrier(groups[1]) if rank else None
    dist.barrier(groups[0]) if rank < 2 else None

def aside(rank, groups):  # 0 waits for 1, and 1 and 2 for each other
    if rank == 0:
        dist.barrier(groups[0])
    else:
        dist.recv(pydist.ones(1), 3 - rank)

def many(rank, groups):  # 1 and 2 go on and on without 0
    for _ in range(150 if rank else 0):
        dist.barrier(groups[1])
        time.sleep(0.002)
    dist.barrier()

run(receive, 2, "in recv(float32[2], src=", ": it has been waiting")
run(mixed, 2, "recv(float32[2], src=1", "all_reduce(float32[4], SUM)")
run(ring, 3, "barrier()", ": it has been waiting")
run(busy, 3)
run(aside, 3, "in recv(float32[1], src=")
run(many, 3)
"""


@pytest.mark.slow
def test_ranks_that_wait_for_each_other():
    ended = subprocess.run([sys.executable, "-c", CIRCLES], env={**os.environ, "PYDIST_BLOCKED": "0.2"},
                           capture_output=True, text=True, timeout=120)  # fmt: skip
    assert ended.returncode == 0, ended.stderr


def test_a_circle_of_processes():
    script = """
        dist.all_reduce(x)
        try:
            dist.recv(x, 1) if rank == 0 else dist.all_reduce(x)
        except dist.CommTimeout as e:
            print(e)
        except dist.PeerFailed:
            pass
        time.sleep(0.3)
    """
    ended = processes(2, script, prelude=PRELUDE, PYDIST_BLOCKED="0.2")
    texts = [out for out in outputs(ended) if out]
    assert texts and all("wait for each other" in text and "at <string>:" in text for text in texts)


def test_a_long_task_of_a_thread_and_its_end():
    over = threading.Event()

    def work(rank):
        group = dist.new_group([0, 1], timeout=0.3)
        dist.barrier(group)
        if rank == 1:
            with dist.long_task("save", minutes=1):
                time.sleep(0.7)
        dist.barrier(group)  # waits for more than its timeout
        if rank == 1:
            assert over.wait(60)
            return
        with pytest.raises(dist.CommTimeout):
            dist.barrier(group)
        over.set()

    dist.threads.run(work, 2)


BAD = [((3,), TypeError), (("x", -1), ValueError), (("x", float("nan")), ValueError), (("x", "y"), ValueError)]


@pytest.mark.parametrize("arguments, error", BAD)
def test_bad_long_tasks(arguments, error):
    with pytest.raises(error), dist.long_task(*arguments):
        pass
