"""What a waiting rank says about those that it waits for, the flight record, and long tasks."""

import re
import signal
import time

import pytest
from test_comm import Ranks, outputs, processes

import pydist
from pydist import distributed as dist

PRELUDE = """
import os, signal, sys, time
import pydist
from pydist import distributed as dist
rank = int(os.environ["RANK"])
x = pydist.ones(4)
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
            assert f"flight record, on SIGUSR1: rank {rank} of 2" in text[0]
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
        time.sleep(0.01)
        dist.destroy_process_group()
        from pydist import _C
        _C.comm_leave()
        assert seen == [1] and callable(signal.getsignal(signal.SIGUSR1))
    """
    outputs(processes(2, script, prelude=PRELUDE))


def test_the_warning_says_where_the_missing_ranks_are():
    script = """
        dist.all_reduce(x)
        if rank == 1:
            time.sleep(1.2)
        elif rank == 2:
            end = time.monotonic() + 1.2
            while time.monotonic() < end:
                pass
        elif rank == 3:
            os.kill(os.getpid(), signal.SIGSTOP)
        dist.all_reduce(x)
    """
    with Ranks(4, script, prelude=PRELUDE, PYDIST_WARN="0.5") as ranks:
        line = ranks.processes[0].stderr.readline()
        asleep, busy, stopped = re.split(", rank (?=[23])", line.split("for rank 1", 1)[1])
        assert "it sleeps at <string>:10, in <module>; ended all_reduce(float32[4], SUM) at <string>:8" in asleep
        assert re.search(r"it computes at <string>:1[34], in <module>", busy)
        assert "its process is stopped (SIGSTOP" in stopped
        ranks.processes[3].send_signal(signal.SIGCONT)
        outputs(ranks.wait())


def test_the_timeout_says_where_the_missing_rank_is():
    script = """
        dist.init_process_group(timeout=0.6)
        dist.all_reduce(x)
        if rank == 1:
            time.sleep(1)
            sys.exit()
        try:
            dist.all_reduce(x)
        except dist.CommTimeout as e:
            print(e)
    """
    (_, text, err), _ = processes(2, script, prelude=PRELUDE)
    assert "rank 1 (last: #2 all_reduce): it sleeps at <string>:11" in text, err
    assert "flight record of rank 0 of 2" in err and ": failed, " in err


def test_a_long_task_is_waited_for():
    script = """
        dist.init_process_group(timeout=0.6)
        dist.all_reduce(x)
        if rank == 1:
            with dist.long_task("tokenise", minutes=1):
                with dist.long_task("inner", minutes=0.5):
                    pass
                time.sleep(1.2)
        dist.all_reduce(x)
        print(x[0].item())
        if rank == 1:
            time.sleep(1)
        try:
            dist.all_reduce(x)
        except (dist.CommTimeout, dist.PeerFailed) as e:
            print(type(e).__name__)
    """
    ended = processes(2, script, prelude=PRELUDE, PYDIST_WARN="0.4")
    assert [out.split() for out in outputs(ended)] == [["4.0", "CommTimeout"]] * 2
    assert "rank 1 (last: #2 all_reduce): long task 'tokenise': it sleeps" in ended[0][2]


def test_a_long_task_of_a_thread_and_its_end():
    def work(rank):
        if rank == 1:
            with dist.long_task("save", minutes=1):
                time.sleep(0.3)
        dist.barrier()

    dist.threads.run(work, 2)


BAD = [((3,), TypeError), (("x", -1), ValueError), (("x", float("nan")), ValueError), (("x", "y"), ValueError)]


@pytest.mark.parametrize("arguments, error", BAD)
def test_bad_long_tasks(arguments, error):
    with pytest.raises(error), dist.long_task(*arguments):
        pass
