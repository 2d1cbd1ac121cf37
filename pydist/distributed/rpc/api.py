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
from pydist.distributed._group.rendezvous import find_place, find_store_place, open_place
from pydist.distributed.rpc import _agent, _open, _pickling, backend_registry, internal
from pydist.distributed.rpc._agent import WorkerInfo, check_name
from pydist.distributed.rpc._agent import current as _get_current_rpc_agent  # noqa: F401
from pydist.distributed.rpc._agent import is_current as _is_current_rpc_agent_set  # noqa: F401
from pydist.distributed.rpc._errors import RpcTimeout
from pydist.distributed.rpc.constants import UNSET_RPC_TIMEOUT
from pydist.distributed.rpc.options import (
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
    there. Without a world_size, here or in the environment, the world is open: workers come and go when they like, each with
    a rank of its own, and nobody waits for others. The first one hosts the place where they meet, so its shutdown waits
    until the others have left. Workers meet as the ranks of `init_process_group` do: by the launcher's environment, PyTorch's variables, or
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
    options = _checked_options(name, backend, rpc_backend_options)
    with _lock:
        if _agent.is_current():
            raise RuntimeError("RPC is already initialized (expected shutdown() first)")
        if backend is None or backend.name == "TENSORPIPE":
            if world_size is None and (url := open_place(options.init_method, rank)) is not None:
                agent = _joined_open(name, options, *url)
            else:
                place = find_place(options.init_method, -1 if world_size is None else world_size, rank)
                agent = _joined(name, options, place)
            _set_and_start_rpc_agent(agent)
            return
        from pydist.distributed import PrefixStore, rendezvous

        store, rank, world_size = next(rendezvous(options.init_method, rank, -1 if world_size is None else world_size))
        _start(backend, PrefixStore("rpc", store), name, rank, world_size, options)


def _init_rpc_backend(backend=None, store=None, name=None, rank=-1, world_size=None, rpc_backend_options=None):
    """The same for workers that share a store, and with any kind of agent."""
    kind = backend_registry.BackendType["TENSORPIPE"] if backend is None else backend
    options = _checked_options(name, backend, rpc_backend_options)
    with _lock:
        if _agent.is_current():
            raise RuntimeError("RPC is already initialized (expected shutdown() first)")
        _start(kind, store, name, rank, world_size, options)


def _start(backend, store, name, rank, world_size, options):
    from pydist.distributed import autograd

    agent = backend_registry.init_backend(
        backend, store=store, name=name, rank=rank, world_size=world_size, rpc_backend_options=options
    )
    _set_and_start_rpc_agent(agent)
    autograd._init(rank)


def _checked_options(name, backend, options):
    if backend is not None and not backend_registry.is_backend(backend):
        raise TypeError(
            f"Argument backend must be a member of BackendType; got {backend!r} (expected None or a BackendType)"
        )
    if options is not None and not isinstance(options, RpcBackendOptions):
        raise TypeError(
            f"Argument rpc_backend_options must be an instance of RpcBackendOptions; got {options!r} (expected one)"
        )
    if options is not None and not isinstance(options, TensorPipeRpcBackendOptions):
        if backend is None or backend.name == "TENSORPIPE":
            what = "`rpc_backend_options` must be a `TensorPipeRpcBackendOptions`"
            what = what if backend is not None else "Could not infer backend for options"
            raise TypeError(f"init_rpc: {what}; got {type(options).__name__} (expected TensorPipeRpcBackendOptions)")
    check_name(name)
    return TensorPipeRpcBackendOptions() if options is None else options


def _place_by(store, world_size, rank):
    return find_store_place(store, -1 if world_size is None else world_size, rank)


def _joined(name, options, place):
    """The agent of a worker that has met the others."""
    address = place.address or f"job://rpc.{os.getpid()}.{secrets.token_hex(8)}"
    if _C.tied(address) not in (None, (place.rank, place.world)):
        address = f"rpc+{address}"  # the process group there has another rank or size
    number = next(_worlds)
    pipes = _pipes(place.rank, place.world, address, place.secret_fd, number)
    try:
        workers = _exchange_names(pipes.store(), number, name, place.rank, place.world)
        agent = _agent.Agent(workers[place.rank], workers, pipes, options)
        _note_kind(agent, "static", "dynamic")
    except BaseException:
        with contextlib.suppress(_C.DistError):
            pipes.close(_LEAVE)
        raise
    agent.number = number
    return agent


def _joined_open(name, options, rank, url):
    """The agent of a worker that has come to an open world."""
    if not 0 <= rank < _open.CAPACITY:
        raise ValueError(f"init_rpc: rank is {rank} (expected 0 to {_open.CAPACITY - 1} where workers come and go)")
    pipes = _pipes(rank, _open.CAPACITY, f"open+{url}", -1, _open.NUMBER)
    try:
        members = _open.Members(pipes, WorkerInfo(name, rank))
        agent = _agent.Agent(members.me, [], pipes, options, members)
        _note_kind(agent, "dynamic", "static")
        members.come()
    except BaseException:
        with contextlib.suppress(_C.DistError):
            pipes.close(_LEAVE)
        raise
    agent.number = _open.NUMBER
    return agent


def _pipes(rank, world, address, secret_fd, number):
    if os.environ.get("PYDIST_RPC_ALLOW"):
        _pickling.allow(os.environ["PYDIST_RPC_ALLOW"].split(","))
    arena = os.environ.get("PYDIST_RPC_ARENA", "256")
    if not (arena.isdecimal() and len(arena) < 10):
        raise ValueError(f"init_rpc: PYDIST_RPC_ARENA is {arena!r} (expected a number of MiB)")
    return _C.Pipes(rank, world, address, secret_fd, number, _JOIN, int(arena) << 20)


def _note_kind(agent, kind, other):
    """Says in the store of the process group, if there is one, that a worker of this kind of world has come. Raises
    RuntimeError if there are workers of the other kind."""
    from pydist.distributed._group.process_group import _existing

    group = _existing()
    store = group.store if group is not None and group.size > 1 else None
    if store is None:
        return
    if store.add(f"rpc.{other}", 0) > 0:
        raise RuntimeError(
            "RPC group mixes statically and dynamically initialized members which is not supported. (expected all workers "
            "to give world_size, or none)"
        )
    store.add(f"rpc.{kind}", 1)

    def leave():
        with contextlib.suppress(_C.DistError, RuntimeError):
            store.add(f"rpc.{kind}", -1)

    agent.leaving.append(leave)


def _set_and_start_rpc_agent(agent):
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
    number = agent.references.unique(2)  # of the value, and of this copy of the reference
    if worker.id == agent.rank:
        state = Owned(number, agent.rank)
        state.made = agent.call(worker, func, args, kwargs, limit_of(timeout), _agent.REMOTE, state, span=span)
        return RRef._of(state)
    state = Used(agent.references, number, number + 1, worker.id)
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
    """Counts of references, of the agent and of distributed autograd, as strings with PyTorch's names."""
    from pydist.distributed import autograd

    contexts = {name: str(count) for name, count in autograd._get_debug_info().items()}
    return {**_rref_context_get_debug_info(), **_agent.current().get_debug_info(), **contexts}


def _rref_context_get_debug_info():
    """Counts of references."""
    references = _agent.current().references
    owned, used = list(references.owned.values()), list(references.used.values())
    info = {
        "num_owner_rrefs": len(owned),
        "num_pending_users": sum(not state.confirmed.is_set() for state in used),
        "num_pending_futures": sum(not state.future.done() for state in owned),
        "num_forks": sum(len(state.forks) for state in owned),
    }
    return {name: str(value) for name, value in info.items()}


def enable_gil_profiling(flag):
    """With True, the agent's get_debug_info() says how long a thread waits for the interpreter's lock at that time:
    "agent.gil_average_wait_time_us"."""
    _agent.current().gil_profiling = bool(flag)


# ---- other picklers ----------------------------------------------------------------------------------------------------

_default_pickler = internal._internal_rpc_pickler


@contextlib.contextmanager
def _use_rpc_pickler(rpc_pickler):
    """In this block calls of this process are serialized by rpc_pickler.serialize(PythonUDF) -> (bytes, tensors), such that
    `rpc.internal.deserialize` can read them. References (RRef) cannot be arguments then."""
    global _default_pickler
    before, _default_pickler = _default_pickler, rpc_pickler
    _pickling.set_pickler(None if rpc_pickler is internal._internal_rpc_pickler else rpc_pickler)
    try:
        yield
    finally:
        _default_pickler = before
        _pickling.set_pickler(None if before is internal._internal_rpc_pickler else before)


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


def _gather_together(agent, what, value, timeout, names=None, since=None):
    """Each worker's value, by id. Waits for all workers that live. Raises RpcTimeout naming those that have not come.
    timeout: seconds after `since` (default: now); 0: any time."""
    key = f"rpc.{agent.number}.{what}.{_rounds[agent.number, what]}."
    _rounds[agent.number, what] += 1
    store, begin = agent.pipes.store(), time.monotonic()
    until = (begin if since is None else since) + timeout if timeout else None
    if until is not None and begin >= until:
        raise RpcTimeout(f"rpc.{what}: the value of {agent.me.name} came after {timeout:.3g} s (expected it before)")
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
    """{name: object} of all workers, or of these. timeout: seconds from now until all have come, the pickling of the object
    included; 0: any time. Raises RpcTimeout."""
    agent = _agent.current()
    begin, limit = time.monotonic(), limit_of(timeout)
    limit = agent.timeout if limit is None else limit
    names = None if worker_names is None else sorted(worker_names)
    what = "all_gather" if names is None else f"all_gather.{','.join(names)}"
    data, tensors, references = _pickling.dumps(obj, RRef, agent._device_of(agent.me))
    if agent.members is not None:
        agent.members.look()
    if tensors or references:
        raise TypeError("_all_gather: an object with tensors or references (expected plain objects)")
    try:
        found = _gather_together(agent, what, data, limit, names, begin)
    except RpcTimeout as error:
        leads = agent.me.name == min(agent.names if names is None else names)
        text = f"timed out in _all_gather after {limit:.2f} seconds" if leads else (
            f"RPC ran for more than set timeout ({round(limit * 1000)} ms)")  # fmt: skip
        raise RpcTimeout(f"{text}: {error}") from None
    return {agent.workers[rank].name: _pickling.loads(value, (), ()) for rank, value in found.items()}


def _barrier(worker_names):
    _all_gather(None, set(worker_names))


def _what_goes_on(agent):
    calls = [f"{answer.what} at {agent.workers[answer.to].name}" for answer in list(agent.answers.values())]
    runs = [f"{run.what} of {agent.workers[run.sender].name}" for run in list(agent.runs.values())]
    unsent = [agent.workers[to].name for to, *_ in list(agent.outbox)]
    return (
        f"waits for {len(calls)} calls ({_agent.common(calls)}), runs {agent.running} ({_agent.common(runs)}) and has "
        f"messages for {_agent.common(unsent)}"
    )


def _wait_all_workers(timeout=0.0):
    """Waits until all workers have called it and no call is under way."""
    agent = _agent.current()
    until = time.monotonic() + timeout if timeout else None
    before, repeats = None, 0
    while True:
        while agent.answers or agent.todo or agent.running or agent.outbox:
            if until is not None and time.monotonic() >= until:
                raise RpcTimeout(
                    f"rpc.shutdown: {agent.me.name} {_what_goes_on(agent)} after {timeout:g} s (expected all of it to end)"
                )
            time.sleep(0.0005)
        if agent.members is not None:  # nobody knows who will still come
            return agent.members.go()
        left = max(until - time.monotonic(), 0.001) if until is not None else 0
        own = agent.counts["calls"], agent.counts["handled"]
        found = _gather_together(agent, "shutdown", b"%d %d" % own, left)
        sums = [sum(column) for column in zip(*(map(int, value.split()) for value in found.values()))]
        repeats = repeats + 1 if sums == before else 0
        if agent.gone or (sums[0] == sums[1] and repeats) or repeats == _REPEATS:
            return
        before = sums


def _time_to_leave(agent, graceful, limit):
    """Seconds that a worker waits at its end for the others, if it hosts the place where they meet."""
    if not graceful:
        return 0.5
    return _LEAVE if agent.members is None else limit or 1e9


_ignore_rref_leak = True  # False: a graceful shutdown raises where references were kept from it


def _delete_all_user_and_unforked_owner_rrefs():
    """Ends this worker's references to others' values. Part of a graceful shutdown, when all have agreed to go."""
    _agent.current().references.clear()


def _check_leaks(agent):
    left = len(agent.references.used)
    if left and not _ignore_rref_leak:
        raise RuntimeError(
            f"Leaking RRef: {agent.me.name} still has {left} references to values of other workers (expected none after "
            "_delete_all_user_and_unforked_owner_rrefs)"
        )


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
                _delete_all_user_and_unforked_owner_rrefs()
                _check_leaks(agent)
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
                agent.close(_time_to_leave(agent, graceful, limit))
