"""Ranks that speak to the engine itself (`_C`): as threads of this process, or as processes that run a script.

What runs above `pydist.distributed` uses the fixture `ranks` of pydist.testing."""

import contextlib
import gc
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from lib.processes import within
from pydist import _C, distributed, testing
from pydist.distributed.threads import Together

TESTS = str(Path(__file__).resolve().parents[1])
LONG = "FULL_LONG" in os.environ  # .ci/full: more worlds, sizes and seconds
WORLDS = (1, 2, 3, 4, 5, 8) if LONG else (1, 2, 3, 5)
APART = False  # whether every rank pretends to be on a host of its own: set by the fixture `apart` of tests/comm


def also_apart(test):
    """Runs a test twice: on one host, and with every rank on a host of its own."""
    twice = pytest.mark.parametrize("apart", [False, True], ids=["together", "apart"], indirect=True)
    return pytest.mark.usefixtures("apart")(twice(test))


def apart_when_long(test):
    """The same for a test that waits for a second: apart with FULL_LONG alone."""
    return also_apart(test) if LONG else test


# Ranks as threads.


def run(world, fn, hub=None, **kw):
    """Results of fn(group) by rank; an exception is a result."""
    hub = hub or _C.Hub(world, world if APART else 1)

    def body(rank):
        group = None
        try:
            group = _C.comm_init_hub(hub, rank, **kw)
            return fn(group)
        except BaseException as e:
            return e.with_traceback(None)
        finally:
            if group is not None:
                with contextlib.suppress(Exception):
                    group.destroy()

    together = Together(world, body)
    assert not together.join(within(60)), "a rank hangs"
    return together.results


def good(results):
    for r in results:
        if isinstance(r, BaseException):
            raise r
    return results


# Ranks as processes.

PRELUDE = """
import os, signal, sys, threading, time
import numpy as np
from pydist import _C
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
def init(timeout=20, **kw):
    fd = int(os.environ["PYDIST_SECRET_FD"])
    return _C.comm_init(rank, world, os.environ["PYDIST_CONTROL"], fd, timeout, **kw)
def leave():
    group.destroy()
    _C.comm_leave()
group = init()
"""

FAULTS = """
def init_with_faults():
    # Rank 1's N-th allocation fails, for each N: it gets MemoryError, the others an error that names it.
    for n in range(1, 100):
        if rank == 1:
            _C.fault_malloc(n)
        try:
            return init(), n - 1
        except MemoryError:
            assert rank == 1
        except _C.DistError as e:
            assert rank != 1 and "rank 1" in str(e), str(e)
        finally:
            if rank == 1:
                _C.fault_malloc(0)
    raise AssertionError("init() allocates without end")
"""  # a script's beginning, after PRELUDE


class Ranks:
    """One process per rank, and the server that they connect to; the ranks in `far` come to it over tcp."""

    def __init__(self, world, script, prelude=PRELUDE, far=(), **env):
        self.server = _C.ControlServer(world, listen="127.0.0.1:0" if far else None)
        self.processes = []
        for rank in range(world):
            e = dict(
                os.environ,
                RANK=str(rank),
                WORLD_SIZE=str(world),
                OMP_NUM_THREADS="1",
                PYDIST_CONTROL=self.server.tcp_address if rank in far else self.server.address,
                PYDIST_SECRET_FD=str(self.server.secret_fd),
                PYTHONPATH=os.pathsep.join(filter(None, (TESTS, os.environ.get("PYTHONPATH")))),
            )
            e.update(env)
            if not far:
                e["LOCAL_WORLD_SIZE"] = str(world)
            if APART and not far:
                e["PYDIST_HOST"] = f"host{rank}"
            command = [sys.executable, "-c", prelude + textwrap.dedent(script)]
            self.processes.append(
                subprocess.Popen(
                    command, env=e, pass_fds=[self.server.secret_fd], text=True, stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                )
            )  # fmt: skip

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for p in self.processes:
            p.kill()
            p.wait()
            p.stdout.close()
            p.stderr.close()
        self.server.close()

    def line(self, rank):
        return self.processes[rank].stdout.readline().strip()

    def wait(self, timeout=60):
        """(code, stdout, stderr) by rank."""
        deadline = time.monotonic() + timeout
        ended = []
        for p in self.processes:
            out, err = p.communicate(timeout=max(0.1, deadline - time.monotonic()))
            ended.append((p.returncode, out, err))
        return ended


def processes(world, script, **kw):
    with Ranks(world, script, **kw) as ranks:
        return ranks.wait()


def outputs(ended):
    for code, out, err in ended:
        assert code == 0, err
    return [out for _, out, _ in ended]


def every_allocation_fails(prepare, stride):
    """Two ranks that are threads call what prepare(rank) returns, again and again, and one allocation after the other fails
    on rank 0 (every `stride`-th one, unless LONG): MemoryError there and PeerFailed on the other rank, or it is done.
    Nothing stays behind."""

    def work(rank, n):
        steps = prepare(rank)
        distributed.barrier()
        if rank == 0:
            _C.fault_malloc(n)
        distributed.barrier()
        try:
            steps()
            distributed.barrier()
        except MemoryError:
            return MemoryError
        except distributed.PeerFailed:
            return distributed.PeerFailed
        return _C.fault_malloc(0) < n if rank == 0 else None

    failed, held = 0, None
    for n in range(1, 100_000, 1 if LONG else stride):
        found = testing.run_ranks(2, work, n, return_exceptions=True)
        _C.fault_malloc(0)
        gc.collect()
        held = _C.memory_allocated() if held is None else held
        assert _C.memory_allocated() == held
        assert not any(isinstance(x, testing.RankFailed) for x in found) or MemoryError in found, found
        failed += MemoryError in found
        if found[0] is True:
            break
    assert found == [True, None] and failed > 10
