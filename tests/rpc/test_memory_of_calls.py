"""Many calls and references of all kinds between three workers: at the end nothing is held, and memory does not grow."""

import ctypes
import gc
import random
import resource
import time

import pytest

import pydist
from lib.ranks import LONG
from pydist.distributed import rpc
from pydist.testing import run_ranks

CALLS, RREFS = (100_000, 10_000) if LONG else (6_000, 600)
PARTS, WARM = 10, 5  # of the parts the first ones warm up


def rss():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


class Thing:
    def __init__(self, x):
        self.x = x

    def plus(self, y):
        return self.x + y


def echo(x):
    return x


def fetch(rref):
    return rref.to_here()


def ask(to, x):
    return rpc.rpc_sync(to, echo, args=(x,))


def calls(rng, n, x, large):
    for i in range(n):
        to, other = rng.choices(range(3), k=2)
        if i % 7 < 3:
            rpc.rpc_sync(to, pydist.add, args=(x, 1))
        elif i % 7 == 3:
            rpc.rpc_sync(to, echo, args=(x,))
        elif i % 7 == 4:
            rpc.rpc_sync(to, echo, args=(large if i % 5 == 0 else "text",))
        elif i % 7 == 5:
            rpc.rpc_async(to, echo, args=({"a": [x, 1]},)).wait()
        else:
            rpc.rpc_sync(to, ask, args=(other, x))


def rrefs(rng, n, x):
    for i in range(n):
        to, other = rng.choices(range(3), k=2)
        rref = rpc.remote(to, Thing, args=(x,))
        if i % 3 == 0:
            rref.rpc_sync().plus(i)
        elif i % 3 == 1:
            rpc.rpc_sync(other, fetch, args=(rpc.remote(to, echo, args=(x,)),))
        if i % 10 == 0:
            rref.to_here()


@pytest.mark.slow
def test_memory_does_not_grow():
    """It is looked at when all ranks rest and what is free has gone back to the system: otherwise it depends on how many
    calls were there at once."""

    def body(rank):
        rpc.init_rpc(f"worker{rank}", rank=rank, world_size=3)
        rng, x, large = random.Random(rank), pydist.ones(256), pydist.ones(1 << 16)
        libc, marks = ctypes.CDLL(None), []
        for _ in range(PARTS):
            calls(rng, CALLS // 3 // PARTS, x, large)
            rrefs(rng, RREFS // 3 // PARTS, x)
            rpc.api._barrier({f"worker{i}" for i in range(3)})
            gc.collect()
            pydist._C.trim()
            libc.malloc_trim(0)
            marks.append(rss())
            rpc.api._barrier({f"worker{i}" for i in range(3)})
        rpc.shutdown(timeout=60)
        return max(marks[WARM:]) - marks[WARM - 1]

    growth = run_ranks(3, body, processes=True, timeout=600)
    print(growth)
    assert max(growth) <= 2 << 20


def test_nothing_is_held_at_the_end():
    def body(rank):
        rpc.init_rpc(f"worker{rank}", rank=rank, world_size=3)
        agent, rng, x = rpc.api._agent.current(), random.Random(rank), pydist.ones(256)
        calls(rng, 70, x, pydist.ones(1 << 16))
        rrefs(rng, 30, x)
        rpc.api._wait_all_workers(60)  # as shutdown does
        found = rpc.stats()
        names = "calls_pending", "calls_waiting", "calls_running", "pending_children", "arena_lent", "late_answers"
        assert not {name: found[name] for name in names if found[name]} and not agent.outbox
        rpc.shutdown(timeout=60)

    run_ranks(3, body, processes=True)


def down(depth, to, back):
    return rpc.rpc_sync(to, down, args=(depth - 1, back, to)) if depth else 0


def test_threads_of_calls_inside_of_calls_end():
    def body(rank):
        options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=2)
        rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)
        if rank == 0:
            assert rpc.rpc_sync("worker1", down, args=(40, "worker0", "worker1")) == 0
            assert rpc.stats()["threads"] >= 20
            end = time.monotonic() + 30
            while max(rpc.stats()["threads"], rpc.rpc_sync("worker1", rpc.stats)["threads"]) > 4:
                assert time.monotonic() < end
                time.sleep(0.1)
            assert rpc.rpc_sync("worker1", down, args=(40, "worker0", "worker1")) == 0
        rpc.shutdown(timeout=60)

    run_ranks(2, body, processes=True)
