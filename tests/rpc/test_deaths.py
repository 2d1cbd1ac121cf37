"""Workers that die or stop at random moments, while all of them call each other.

Workers 0 to 2 are callers, callees and owners at once; worker 0 also hosts the place where all meet. Worker 3 is there and
takes no part. FULL_DEATHS: so many deaths for each of the programs."""

import os
import random
import signal
import threading
import time

import pytest

import pydist
from lib.processes import SLOW
from pydist.distributed import CommTimeout, PeerFailed, autograd, rpc
from pydist.distributed.optim import DistributedOptimizer
from pydist.testing import run_ranks

DEATHS = int(os.environ.get("FULL_DEATHS", 0))
ERROR, END = (
    (1 * SLOW, 3 * SLOW) if DEATHS else (10, 20)
)  # seconds from the death to the error, and from there to the end
ACTIVE, BYSTANDER = range(3), 3


class Net(pydist.nn.Linear):
    def rrefs(self):
        return [rpc.RRef(p) for p in self.parameters()]


def echo(x):
    return x


def take(rref):
    return rref.to_here()


def nest(way, x):
    return rpc.rpc_sync(way[0], nest, args=(way[1:], x)) if way else x


def nets(others):
    return [rpc.remote(rank, Net, args=(16, 16)) for rank in others]


def calls(rng, others):
    x = pydist.ones(16, 16)
    while True:
        futures = [
            rpc.rpc_async(rng.choice(others), *rng.choice([(pydist.add, (x, x)), (echo, (x,))])) for _ in range(8)
        ]
        yield [future.wait() for future in futures]


def rrefs(rng, others):
    x = pydist.ones(16, 16)
    while True:
        rref = rpc.remote(rng.choice(others), echo, args=(x,))
        rpc.rpc_sync(rng.choice(others), take, args=(rref,))
        yield rref.to_here()


def nested(rng, others):
    x = pydist.ones(16, 16)
    while True:
        yield nest([rng.choice(others), *rng.choices(ACTIVE, k=4)], x)


def backward(rng, others, optimizer=None, there=None):
    there = there or nets(others)
    while True:
        with autograd.context() as context_id:
            y = pydist.ones(4, 16)
            for net in rng.sample(there, len(there)):
                y = net.rpc_sync().forward(y).tanh()
            autograd.backward(context_id, [y.sum()])
            if optimizer:
                optimizer.step(context_id)
        yield


def step(rng, others):
    there = nets(others)
    parameters = [p for net in there for p in net.rpc_sync().rrefs()]
    return backward(rng, others, DistributedOptimizer(pydist.optim.SGD, parameters, lr=0.01), there)


PROGRAMS = calls, rrefs, nested, backward, step


def worker(rank, program, seed, victim, stop):
    """What happened, and when: {"killed", "failed", "shutdown", "ended": seconds of the machine, "error"}."""
    rng, at = random.Random(seed), {}
    moment, killer = rng.random() * 0.3, rng.choice([other for other in range(4) if other != victim])
    options = rpc.TensorPipeRpcBackendOptions(rpc_timeout=40)
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=4, rpc_backend_options=options)
    turns = program(rng, [other for other in ACTIVE if other != rank]) if rank in ACTIVE else None
    if turns:
        next(turns)
    try:
        pid = rpc.api._all_gather(os.getpid())[f"worker{victim}"]  # all are ready
    except PeerFailed as error:  # others were ready before, and the victim had the store
        at["failed"], at["error"], turns = time.monotonic(), error, None

    def kill():
        at["killed"] = time.monotonic()
        os.kill(pid, stop or signal.SIGKILL)

    timer = threading.Timer(moment, kill)
    if rank == killer:
        timer.start()
    end = time.monotonic() + (1.5 if victim == BYSTANDER else 60)
    try:
        while turns and time.monotonic() < end:
            next(turns)
    except Exception as error:
        at["failed"], at["error"] = time.monotonic(), error
    at["shutdown"] = time.monotonic()
    try:
        rpc.shutdown(timeout=40)
    except Exception as error:
        at["error"] = error
    at["ended"] = time.monotonic()
    if rank == killer:
        timer.join()
        if stop:
            os.kill(pid, signal.SIGKILL)
    return at


def check(found, victim, dead_after=0):
    """dead_after: seconds until the others count the victim as dead."""
    alive = [at for rank, at in enumerate(found) if rank != victim]
    for at in alive:
        if isinstance(at, Exception):
            raise at
    killed = next(at["killed"] for at in alive if "killed" in at)
    worst = 0
    for at in alive[:3] if victim == BYSTANDER else [found[rank] for rank in ACTIVE if rank != victim]:
        if victim == BYSTANDER:
            assert "error" not in at, repr(at["error"])
        else:
            assert isinstance(at["error"], PeerFailed), repr(at["error"])
            worst = max(worst, at["failed"] - killed)
    last = max(at["shutdown"] for at in alive)
    ends = max(at["ended"] for at in alive) - max(last, killed + dead_after)
    assert worst < dead_after + ERROR and ends < END, f"errors after {worst:.2f} s, the end {ends:.2f} s later"
    print(f"errors after {worst:.2f} s, the end {ends:.2f} s later")


def some(program):
    """(program, seed): one death, or FULL_DEATHS of each program."""
    return [(program, seed) for seed in range(DEATHS or 1)]


@pytest.mark.parametrize(
    "program, seed", [one for program in (PROGRAMS if DEATHS else (nested,)) for one in some(program)],
    ids=lambda one: getattr(one, "__name__", one),
)  # fmt: skip
def test_a_worker_is_killed(program, seed):
    victim = random.Random(seed).randrange(4) if DEATHS else 0
    found = run_ranks(4, worker, program, seed, victim, None, processes=True, timeout=90, return_exceptions=True)
    check(found, victim)


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS if DEATHS else (nested,), ids=lambda program: program.__name__)
def test_a_worker_is_stopped(program):
    """Who says nothing for 15 s is dead."""
    victim = PROGRAMS.index(program) % 4
    found = run_ranks(
        4, worker, program, 0, victim, signal.SIGSTOP, processes=True, timeout=120, return_exceptions=True
    )
    check(found, victim, 16)


@pytest.mark.slow
def test_calls_to_a_stopped_worker():
    """They keep their time limits, also before there is a connection and when it is full. shutdown(timeout=) names the
    worker. What that one does when it goes on ends."""

    def body(rank):
        rpc.init_rpc(f"worker{rank}", rank=rank, world_size=3)
        pid = rpc.api._all_gather(os.getpid())["worker2"]
        if rank == 2:
            with pytest.raises((PeerFailed, CommTimeout)):
                while True:
                    rpc.rpc_sync("worker0", echo, args=(1,), timeout=5)
            rpc.shutdown(graceful=False)
            return
        try:
            if rank == 0:
                os.kill(pid, signal.SIGSTOP)
                begin = time.monotonic()
                for data in (1, bytes(10 << 20)):
                    with pytest.raises(rpc.RpcTimeout, match="set timeout .1000 ms"):
                        rpc.rpc_sync("worker2", echo, args=(data,), timeout=1)
                assert time.monotonic() - begin < 2 + END
                assert rpc.rpc_sync("worker1", echo, args=(1,)) == 1
                begin = time.monotonic()
                with pytest.raises(
                    rpc.RpcTimeout, match=r"worker2 \(rank 2\) did not come|runs 1 .1 x echo of worker2"
                ):
                    rpc.shutdown(timeout=2)
                assert time.monotonic() - begin < 2 + END
            else:
                rpc.shutdown(timeout=40)
        finally:
            if rank == 0:
                os.kill(pid, signal.SIGCONT)

    run_ranks(3, body, processes=True)


released = threading.Event()


def hold():
    released.wait(60)


def test_shutdown_does_not_wait_for_a_function_that_goes_on():
    def body(rank):
        rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
        if rank == 0:
            with pytest.raises(rpc.RpcTimeout, match="hold at worker1"):
                rpc.rpc_sync("worker1", hold, timeout=0.2)
        with pytest.raises(
            rpc.RpcTimeout, match=("worker1 .rank 1. did not come", "runs 1 .1 x hold of worker0")[rank]
        ):
            rpc.shutdown(timeout=0.5)
        released.set()

    run_ranks(2, body, processes=True)
