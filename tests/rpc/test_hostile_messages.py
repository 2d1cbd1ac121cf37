"""Strangers at the door, and messages that no pydist sends."""

import os
import random
import socket
import struct
import time

import pytest

import pydist
from lib.ranks import LONG
from pydist.distributed import rpc
from pydist.distributed.rpc import _agent
from pydist.testing import run_ranks


def echo(x):
    return x


def doors():
    """The names of all pipes' sockets on this host."""
    with open("/proc/net/unix") as lines:
        return {line.split()[-1] for line in lines if "@pydist-pipe-" in line}


def test_strangers_are_refused():
    def body(rank):
        before = doors()
        rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
        if rank == 0:
            for name in doors() - before:
                for data in (b"", b"x", bytes(72), os.urandom(72), os.urandom(100000)):
                    with socket.socket(socket.AF_UNIX) as stranger:
                        stranger.settimeout(8)
                        stranger.connect("\0" + name[1:])
                        assert len(stranger.recv(16)) == 16  # random numbers, and nothing before a proof
                        try:
                            stranger.sendall(data)
                            if len(data) >= 72:
                                assert stranger.recv(1) == b""
                        except (BrokenPipeError, ConnectionResetError):
                            pass
            assert rpc.rpc_sync("worker1", echo, args=(5,)) == 5
        rpc.shutdown()

    run_ranks(2, body, processes=True)


@pytest.mark.parametrize("seed", range(4 if LONG else 1))
def test_messages_that_make_no_sense(seed, capfd):
    """A worker that has the token, and lost its mind: the other one answers, and lives."""

    def body(rank, seed):
        rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
        if rank == 0:
            rng, pipes = random.Random(seed), rpc._get_current_rpc_agent().pipes
            x = pydist.ones(3, 4)
            good, tensors = pydist._C._op_pack(pydist.add, (x, 1), None)
            for _ in range(3000 if LONG else 300):
                kind = rng.randrange(0, 20)
                data = rng.randbytes(rng.choice((0, 1, 8, 19, 20, 40, 300)))
                if kind in (_agent.OPCALL, _agent.OPRESULT):  # a call of an op with a few bytes changed
                    data = bytearray(good)
                    for _ in range(rng.randrange(1, 6)):
                        data[rng.randrange(len(data))] = rng.randrange(256)
                elif rng.random() < 0.5:  # a head that may be one
                    data = struct.pack("<QQHH", 0, 0, rng.randrange(3), rng.randrange(3)) + data
                pipes.send(1, kind, rng.randrange(1 << 20), bytes(data), [x] * rng.randrange(3))
            assert rpc.rpc_sync("worker1", echo, args=(7,)) == 7
            assert rpc.rpc_sync("worker1", pydist.add, args=(x, 1)).sum() == 24
            time.sleep(0.2)
            assert rpc.rpc_sync("worker1", rpc.stats)["threads_idle"] > 0
        rpc.shutdown(timeout=20)  # although the counts of calls will never be equal

    run_ranks(2, body, seed, processes=True)


def works_again(calls):
    """Whether one of so many calls works: the last fault may be seen only when an answer is sent."""
    for left in reversed(range(calls)):
        try:
            return rpc.rpc_sync("worker0", echo, args=(1,)) == 1
        except pydist.distributed.DistError:
            if not left:
                raise


@pytest.mark.parametrize("what", [*(pytest.param(w, marks=pytest.mark.slow) for w in ("send", "recv")), "malloc"])
def test_what_fails_once(what):
    """A connection that breaks is made again; a message that was lost, or for which there was no memory, is an error of its
    call: no fault may cost more than three calls. Rank 1 has the faults, as rank 0's process also has the control
    server."""
    faults = 6 if LONG else 2

    def body(rank):
        rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
        wrong = 0
        if rank == 1:
            for i in range(5 * faults):
                if i % 5 == 1:
                    pydist._C.fault(what, 1 + i // 5)
                try:
                    assert rpc.rpc_sync("worker0", echo, args=(i,), timeout=1) == i
                except (pydist.distributed.DistError, MemoryError):
                    wrong += 1
            pydist._C.fault(what, 0)
            assert works_again(3)
            assert rpc.rpc_sync("worker0", rpc.stats)["calls_pending"] == 0
        rpc.shutdown(timeout=20)
        return wrong

    assert 1 <= run_ranks(2, body, processes=True)[1] <= 3 * faults
