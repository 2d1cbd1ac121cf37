"""Joining and leaving, and the three ways to call a function of another worker."""

import collections
import contextlib
import itertools
import logging
import os
import secrets
import threading
import time

from pydist import _C
from pydist.distributed._group.rendezvous import find_place
from pydist.distributed.rpc import _agent, _pickling
from pydist.distributed.rpc._agent import WorkerInfo, check_name
from pydist.distributed.rpc._errors import RpcTimeout
from pydist.distributed.rpc.constants import UNSET_RPC_TIMEOUT
from pydist.distributed.rpc.options import (
    BackendType,
    RpcBackendOptions,
    TensorPipeRpcBackendOptions,
    seconds,
)
from pydist.distributed.rpc.references import Owned, Used
from pydist.distributed.rpc.rref import RRef, limit_of
from pydist.futures import wait_all
from pydist.profiler import calls

__all__ = [
    "get_rpc_timeout",
    "get_worker_info",
    "init_rpc",
    "leaks",
    "remote",
    "rpc_async",
    "rpc_sync",
    "shutdown",
    "stats",
]

_JOIN = 300.0  # seconds that the other workers may take to come
_REPEATS = 100  # so often all were idle and nothing had changed: a message that was counted was lost
_LEAVE = 10.0  # seconds that they may take to go, after all have agreed to
_worlds = itertools.count(1)  # numbers of this process's worlds, equal in all workers that join and leave together
_lock = threading.Lock()


def _exchange_names(store, number, name, rank, world):
    """The WorkerInfos of all workers."""
    key = f"rpc.{number}.name."
    store.set(f"{key}{rank}", f"{os.getpid()} {name}")
    workers, seen = [], {}
    for other in range(world):
        pid, _, found = bytes(store.get(f"{key}{other}")).decode().partition(" ")
        if found in seen:
            first_rank, first_pid = seen[found]
            raise RuntimeError(
                f"RPC WorkerName {found} is not unique: rank {first_rank} (pid {first_pid}) and rank {other} (pid {pid}) "
                "have it (expected a name of its own for each worker)"
            )
        seen[found] = other, pid
        workers.append(WorkerInfo(found, other))
    return workers


def init_rpc(name, backend=None, rank=-1, world_size=None, rpc_backend_options=None):
    """Makes this process a worker, which calls functions of other workers and runs theirs. Returns when all workers are
    there. Workers meet as the ranks of `init_process_group` do: by the launcher's environment, PyTorch's variables, or
    the options' init_method. An agent and a process group may use the same address.

    name: of this worker, unique in its world; rank: its id; world_size: how many workers there are.

    Raises RuntimeError if this process is a worker already or two workers have the same name, ValueError if rank and
    world_size contradict each other or the environment, CommTimeout if a worker does not come.

    >>> from pydist.distributed import rpc
    >>> rpc.init_rpc("worker0", rank=0, world_size=1)
    >>> rpc.rpc_sync("worker0", max, args=(3, 5))
    5
    >>> rpc.shutdown()
    """
    options = rpc_backend_options
    if backend is not None and not isinstance(backend, BackendType):
        raise TypeError(
            f"Argument backend must be a member of BackendType; got {backend!r} (expected None or a BackendType)"
        )
    if options is not None and not isinstance(options, RpcBackendOptions):
        raise TypeError(
            f"Argument rpc_backend_options must be an instance of RpcBackendOptions; got {options!r} (expected one)"
        )
    check_name(name)
    options = TensorPipeRpcBackendOptions() if options is None else options
    with _lock:
        if _agent.is_current():
            raise RuntimeError("RPC is already initialized (expected shutdown() first)")
        place = find_place(options.init_method, -1 if world_size is None else world_size, rank)
        address = place.address or f"job://rpc.{os.getpid()}.{secrets.token_hex(8)}"
        if os.environ.get("PYDIST_RPC_ALLOW"):
            _pickling.allow(os.environ["PYDIST_RPC_ALLOW"].split(","))
        arena = os.environ.get("PYDIST_RPC_ARENA", "256")
        if not (arena.isdecimal() and len(arena) < 10):
            raise ValueError(f"init_rpc: PYDIST_RPC_ARENA is {arena!r} (expected a number of MiB)")
        number = next(_worlds)
        pipes = _C.Pipes(place.rank, place.world, address, place.secret_fd, number, _JOIN, int(arena) << 20)
        try:
            workers = _exchange_names(pipes.store(), number, name, place.rank, place.world)
            me = workers[place.rank]
            agent = _agent.Agent(me, workers, pipes, options)
        except BaseException:
            with contextlib.suppress(_C.DistError):
                pipes.close(_LEAVE)
            raise
        agent.number = number
        _agent.set_current(agent)
        agent.start()
        _end_with_interpreter()


_registered = False


def _end_with_interpreter():
    """The pool's threads end before the interpreter waits for them."""
    global _registered
    if not _registered:
        _registered = True
        threading._register_atexit(_at_exit)


def _at_exit():
    if _agent.is_current():
        with contextlib.suppress(_C.DistError):  # others may stay longer, or have died
            shutdown(graceful=False)


def _check_call(func, args, kwargs):
    if not callable(func):
        raise TypeError(f"function should be callable. Got {type(func).__name__} (expected a function)")
    args = () if args is None else args
    if not isinstance(args, (tuple, list)):
        raise TypeError(f"rpc: args is {args!r} (expected a tuple)")
    if kwargs is not None and not isinstance(kwargs, dict):
        raise TypeError(f"rpc: kwargs is {kwargs!r} (expected a dict)")
    return tuple(args), kwargs


def rpc_sync(to, func, args=None, kwargs=None, timeout=UNSET_RPC_TIMEOUT):
    """Runs func(*args, **kwargs) at worker `to` and returns its result.

    to: a name, an id or a WorkerInfo. Arguments and results are copied: tensors beside the pickle, all else by pickle;
    functions that cannot be imported there, such as lambdas, by their code. timeout: seconds; -1: those of the agent; 0:
    any time.

    Cost: one message there and one back. On one host a tensor of 16 KiB or more is copied once into shared memory.

    Raises what func raises, with its traceback in the text; RpcTimeout after the time limit; PeerFailed if the worker
    dies. See `init_rpc` for an example."""
    return _call(to, func, args, kwargs, timeout, True).wait()


def rpc_async(to, func, args=None, kwargs=None, timeout=UNSET_RPC_TIMEOUT):
    """The same, but returns a pydist.futures.Future at once.

    >>> from pydist.distributed import rpc
    >>> rpc.init_rpc("worker0", rank=0, world_size=1)
    >>> rpc.rpc_async("worker0", pow, args=(2, 10)).wait()
    1024
    >>> rpc.shutdown()
    """
    future = _call(to, func, args, kwargs, timeout)
    if hasattr(_thread_local_var, "future_list"):
        _thread_local_var.future_list.append(future)
    return future


def _call(to, func, args, kwargs, timeout, wait=False):
    agent = _agent.current()
    worker = agent.worker(to)
    args, kwargs = _check_call(func, args, kwargs)
    span = _span("sync" if wait else "async", func, agent, worker) if calls.listening else None
    return agent.call(worker, func, args, kwargs, limit_of(timeout), wait=wait, span=span)


def _span(how, func, agent, worker):
    """The Span of a call that a profiler of this process or thread wants; else None."""
    from pydist.distributed.rpc._spans import Span

    return Span(how, func, agent.me, worker) if calls.listeners() else None


def remote(to, func, args=None, kwargs=None, timeout=UNSET_RPC_TIMEOUT):
    """Runs func(*args, **kwargs) at worker `to`, which keeps the result, and returns an RRef to it at once.

    >>> from pydist.distributed import rpc
    >>> rpc.init_rpc("worker0", rank=0, world_size=1)
    >>> rref = rpc.remote("worker0", sorted, args=([3, 1, 2],))
    >>> rref.to_here()
    [1, 2, 3]
    >>> rpc.shutdown()
    """
    agent = _agent.current()
    worker = agent.worker(to)
    args, kwargs = _check_call(func, args, kwargs)
    span = _span("remote", func, agent, worker) if calls.listening else None
    number = agent.unique()
    if worker.id == agent.rank:
        state = Owned(number, agent.rank)
        state.made = agent.call(worker, func, args, kwargs, limit_of(timeout), _agent.REMOTE, state, span=span)
        return RRef._of(state)
    state = Used(agent.references, number, number, worker.id)
    agent.references.used[state.fork] = state
    rref = RRef._of(state)
    answer = agent.call(worker, func, args, kwargs, limit_of(timeout), _agent.REMOTE, state, span=span)
    state.made = answer
    confirmed = state.confirmed
    answer._when_done(lambda _: confirmed.set())
    return rref


def get_worker_info(worker_name=None):
    """The WorkerInfo of that name; None: of this worker."""
    agent = _agent.current()
    return agent.me if worker_name is None else agent.worker(worker_name)


def _get_worker_infos():
    agent = _agent.current()
    return [agent.workers[i] for i in sorted(agent.workers)]


def get_rpc_timeout():
    """Seconds that a call may take unless it says otherwise."""
    return _agent.current().timeout


def _set_rpc_timeout(timeout):
    _agent.current().timeout = seconds(timeout, "timeout")


def stats():
    """What the agent has done and what it holds: counts by name. After all calls have ended and all references are gone,
    "calls_pending", "owner_rrefs", "user_rrefs" and "pending_children" are 0."""
    agent = _agent.current()
    return {
        **agent.pipes.stats(),
        **agent.references.stats(),
        **{name: agent.counts[name] for name in ("calls", "handled", "late_answers")},
        "calls_pending": len(agent.answers),
        "calls_waiting": len(agent.todo),
        "calls_running": agent.running,
        "threads": len(agent.threads),
        "threads_idle": agent.idle,
    }


def leaks():
    """The values of this worker that others have references to: a list of (id, type of the value, names of the workers
    that have copies)."""
    agent = _agent.current()
    rows = []
    for state in list(agent.references.owned.values()):
        value = state.future.value() if state.future.done() and state.future.exception() is None else None
        rows.append(
            (state.id, type(value).__name__, sorted({agent.workers[user].name for user in state.forks.values()}))
        )
    return rows


def _get_debug_info():
    """Counts as strings, with PyTorch's names."""
    agent = _agent.current()
    found = stats()
    info = {
        "agent.thread_pool_size": found["threads"],
        "agent.num_idle_threads": found["threads_idle"],
        "agent.num_pending_requests": found["calls_pending"],
        "agent.server_active_calls": found["calls_running"],
        "agent.client_active_calls": found["calls_pending"],
        "agent.server_active_async_calls": 0,
        "num_owner_rrefs": found["owner_rrefs"],
        "num_pending_users": sum(not state.confirmed.is_set() for state in list(agent.references.used.values())),
        "num_pending_futures": sum(not state.future.done() for state in list(agent.references.owned.values())),
        "num_forks": sum(len(state.forks) for state in list(agent.references.owned.values())),
    }
    return {name: str(value) for name, value in info.items()}


def _rref_context_get_debug_info():
    """The part of `_get_debug_info` about references."""
    return {name: value for name, value in _get_debug_info().items() if name.startswith("num_")}


# ---- several calls ---------------------------------------------------------------------------------------------------

_thread_local_var = threading.local()


@contextlib.contextmanager
def _wait_all():
    """Waits at its end for all calls that rpc_async has made in its body, and raises the first error."""
    _thread_local_var.future_list = []
    try:
        yield
        wait_all(_thread_local_var.future_list)
    finally:
        del _thread_local_var.future_list


# ---- all workers together --------------------------------------------------------------------------------------------

_rounds = collections.Counter()  # (world, what) -> how often this worker has taken part


def _gather_together(agent, what, value, timeout, names=None):
    """Each worker's value, by id. Waits for all workers that live. Raises RpcTimeout naming those that have not come."""
    key = f"rpc.{agent.number}.{what}.{_rounds[agent.number, what]}."
    _rounds[agent.number, what] += 1
    store, until = agent.pipes.store(), time.monotonic() + timeout if timeout else None
    members = sorted(agent.workers) if names is None else sorted(agent.names[name].id for name in names)
    store.set(f"{key}{agent.rank}", value)
    found, pause = {agent.rank: value}, 0.0002
    while True:
        missing = [rank for rank in members if rank not in found and rank not in agent.gone]
        for rank in missing:
            if not store.check(f"{key}{rank}"):
                break
            found[rank] = bytes(store.get(f"{key}{rank}"))
        else:
            return found
        if until is not None and time.monotonic() >= until:
            who = ", ".join(f"{agent.workers[rank].name} (rank {rank})" for rank in missing if rank not in found)
            raise RpcTimeout(f"rpc.{what}: {who} did not come within {timeout:.3g} s (expected all workers)")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.02)


def _all_gather(obj, worker_names=None, timeout=UNSET_RPC_TIMEOUT):
    """{name: object} of all workers, or of these."""
    agent = _agent.current()
    limit = limit_of(timeout)
    data, tensors, references = _pickling.dumps(obj, RRef, agent._device_of(agent.me))
    if tensors or references:
        raise TypeError("_all_gather: an object with tensors or references (expected plain objects)")
    names = None if worker_names is None else sorted(worker_names)
    what = "all_gather" if names is None else f"all_gather.{','.join(names)}"
    found = _gather_together(agent, what, data, agent.timeout if limit is None else limit, names)
    return {agent.workers[rank].name: _pickling.loads(value, (), ()) for rank, value in found.items()}


def _barrier(worker_names):
    _all_gather(None, set(worker_names))


def _wait_all_workers(timeout=0.0):
    """Waits until all workers have called it and no call is under way."""
    agent = _agent.current()
    until = time.monotonic() + timeout if timeout else None
    before, repeats = None, 0
    while True:
        while agent.answers or agent.todo or agent.running or agent.outbox:
            if until is not None and time.monotonic() >= until:
                raise RpcTimeout(
                    f"rpc.shutdown: {agent.me.name} has {len(agent.answers)} calls without an answer and runs "
                    f"{agent.running} after {timeout:g} s (expected all of them to end)"
                )
            time.sleep(0.0005)
        left = max(until - time.monotonic(), 0.001) if until is not None else 0
        own = agent.counts["calls"], agent.counts["handled"]
        found = _gather_together(agent, "shutdown", b"%d %d" % own, left)
        sums = [sum(column) for column in zip(*(map(int, value.split()) for value in found.values()))]
        repeats = repeats + 1 if sums == before else 0
        if agent.gone or (sums[0] == sums[1] and repeats) or repeats == _REPEATS:
            return
        before = sums


def shutdown(graceful=True, timeout=0):
    """Ends this worker's agent. graceful: waits until all workers that live have called it and no call is under way,
    `timeout` seconds at most (0: any time). References to other workers' values cannot be used afterwards.

    Raises RpcTimeout naming the workers that did not come; the agent has ended nevertheless. Without an agent it raises
    RuntimeError."""
    agent = _agent.current()
    limit = seconds(timeout, "timeout")
    try:
        if graceful:
            try:
                _wait_all_workers(limit)
            except RpcTimeout:
                raise
            except (
                _C.DistError
            ) as error:  # the worker that hosts the meeting place has died, so nobody can be waited for
                logging.getLogger("pydist.rpc").warning("rpc.shutdown: %s", error)
    finally:
        with _lock:
            if _agent.is_current() and _agent.current() is agent:
                agent.closing = True  # what still arrives is not answered
                _agent.set_current(None)
                agent.close(_LEAVE if graceful else 0.5)
