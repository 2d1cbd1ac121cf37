"""RRef: a reference to a value that lives in one worker."""

import typing

from pydist.distributed.rpc import _agent, _pickling
from pydist.distributed.rpc._errors import RpcTimeout
from pydist.distributed.rpc.constants import UNSET_RPC_TIMEOUT
from pydist.distributed.rpc.options import seconds
from pydist.distributed.rpc.references import Owned

__all__ = ["PyRRef", "RRef"]

_T = typing.TypeVar("_T")


def limit_of(timeout):
    """The seconds of a call: its own, or None for the agent's."""
    if isinstance(timeout, (int, float)) and timeout == UNSET_RPC_TIMEOUT:
        return None
    return seconds(timeout, "timeout")


def _shown(number):
    """A number of References.unique with PyTorch's text, where they count from 0."""
    return f"GloballyUniqueId(created_on={number >> 48}, local_id={(number & (1 << 48) - 1) - 1})"


class _Proxy:
    """Calls methods of an RRef's value where that is."""

    def __init__(self, rref, how, timeout):
        self._rref, self._how, self._timeout = rref, how, timeout

    def __getattr__(self, name):
        from pydist.distributed.rpc import api

        how, rref, timeout = getattr(api, self._how), self._rref, self._timeout

        def method(*args, **kwargs):
            if how is api.remote and name not in rref._known:
                api.rpc_sync(rref.owner(), _check_method, (rref, name), timeout=timeout)
                rref._known = {*rref._known, name}
            return how(rref.owner(), _call_method, args=(rref, name, args, kwargs), timeout=timeout)

        method.__name__ = method.__qualname__ = name
        return method


def _check_method(rref, name):
    """Waits for the value. Raises AttributeError if it has no such method."""
    getattr(rref.local_value(), name)


def _call_method(rref, name, args, kwargs):
    value = rref.local_value()
    _pickling.check(f"{type(value).__module__}.{type(value).__qualname__}.{name}")
    return getattr(value, name)(*args, **kwargs)


def _method_waits(rref, name, args, kwargs):
    return hasattr(getattr(rref.local_value(), name), "_wrapped_async_rpc_function")


_call_method._is_proxy_call = _method_waits


def _fetch(rref):
    return rref._state.future


_fetch._wrapped_async_rpc_function = _fetch


def _backward(rref, context_id, retain_graph):
    rref.backward(context_id, retain_graph)


class RRef(typing.Generic[_T]):
    """A reference to a value of some type in one worker, its owner. Copies of it may be sent to all workers; the value
    lives until the last copy is gone, also if workers die.

    RRef(value) makes this worker the owner of a value. `remote` makes a value at another worker.

    >>> import pydist
    >>> from pydist.distributed import rpc
    >>> rpc.init_rpc("alone", rank=0, world_size=1)
    >>> rref = rpc.RRef(pydist.ones(2))
    >>> rref.is_owner(), rref.owner_name()
    (True, 'alone')
    >>> rpc.rpc_sync("alone", pydist.add, args=(rref.local_value(), 1))
    tensor([2., 2.])
    >>> rref.rpc_sync().sum()
    tensor(2.)
    >>> rpc.shutdown()
    """

    _known = frozenset()  # methods that the value has, as far as remote() proxies have asked
    _type = None  # the Future of the value's class, once somebody has asked

    def __init__(self, value, type_hint=None):
        if not _agent.is_current():
            raise RuntimeError(
                "RRef: Current RPC agent is not set! Did you initialize the RPC framework (e.g. by calling `rpc.init_rpc`)? "
                "(expected init_rpc before)"
            )
        agent = _agent.current()
        self._state = Owned(agent.references.unique(), agent.rank)
        self._state.future.set_result(value)

    @classmethod
    def _of(cls, state):
        rref = cls.__new__(cls)
        rref._state = state
        return rref

    def __reduce__(self):
        raise RuntimeError(
            "Can not pickle rref in python pickler, rref can only be pickled when using RPC (expected an argument or a "
            "result of a call)"
        )

    def __repr__(self):
        if not _agent.is_current():
            return "RRef(of an agent that has shut down)"
        if self.is_owner():
            done = self._state.future.done()
            return f"OwnerRRef({_shown(self._state.id)}{'' if done else ', pending'})"
        return f"UserRRef(RRefId = {_shown(self._state.id)}, ForkId = {_shown(self._state.fork)})"

    def is_owner(self):
        """Whether this worker has the value."""
        return isinstance(self._state, Owned)

    def owner(self):
        """The WorkerInfo of the worker that has the value."""
        return _agent.current().workers[self._state.owner]

    def owner_name(self):
        """That worker's name."""
        return self.owner().name

    def confirmed_by_owner(self):
        """Whether the owner knows this copy, so that it lives as long as the copy."""
        return self.is_owner() or self._state.confirmed.is_set()

    def local_value(self):
        """The value, at its owner; waits until it is there. Raises RuntimeError elsewhere."""
        if not self.is_owner():
            raise RuntimeError(
                f"For UserRRef(rref_id={_shown(self._state.id)}, fork_id={_shown(self._state.fork)}), can't call localValue() on user {_agent.current().me}. Call it on owner {self.owner()} "
                "(expected to_here() here)"
            )
        future = self._state.future
        if not future.done():
            with _agent.current().blocked():
                future._settle()
        return future.value()

    def to_here(self, timeout=UNSET_RPC_TIMEOUT):
        """The value, or a copy of it where this worker is not its owner. timeout: seconds; -1: those of the agent; 0:
        any time. Raises what the call that should make the value has raised."""
        if not _agent.is_current():
            raise RuntimeError(
                "Cannot call to_here() on it after deletion: this process has no rpc agent any more (expected to_here() before "
                "shutdown())"
            )
        agent = _agent.current()
        if self.is_owner():
            return self.local_value()
        made = self._state.made
        if made is not None and made.done() and made.exception() is not None:
            if isinstance(made.exception(), RpcTimeout):
                raise RpcTimeout(
                    "RRef creation via rpc.remote() timed out, and it is possible that the RRef on the owner node does not "
                    f"exist: {made.exception()}"
                ) from made.exception()
            raise made.exception()
        if not agent.in_context():
            return agent.fetch(self._state, limit_of(timeout)).wait()
        return agent.call(self._state.owner, _fetch, (self,), timeout=limit_of(timeout), wait=True).wait()

    def rpc_sync(self, timeout=UNSET_RPC_TIMEOUT):
        """A proxy: its methods call those of the value, at its owner, and wait for the result."""
        limit_of(timeout)
        return _Proxy(self, "rpc_sync", timeout)

    def rpc_async(self, timeout=UNSET_RPC_TIMEOUT):
        """A proxy whose methods return a Future."""
        limit_of(timeout)
        return _Proxy(self, "rpc_async", timeout)

    def remote(self, timeout=UNSET_RPC_TIMEOUT):
        """A proxy whose methods return an RRef to the result. The first call of each method waits for the value, at most
        `timeout`, and raises AttributeError if there is no such method: nobody might wait for the result."""
        limit_of(timeout)
        return _Proxy(self, "remote", timeout)

    def backward(self, dist_autograd_ctx_id=-1, retain_graph=False):
        """Runs backward from the value, a tensor of one element: in the distributed autograd context of that id, or,
        with -1, only at the owner, which has to be this worker."""
        from pydist.distributed import autograd

        if not self.is_owner():
            if dist_autograd_ctx_id == -1:
                raise RuntimeError(
                    "User RRefs require 'dist_autograd_ctx_id' to be specified (expected the id of an autograd context)"
                )
            _agent.current().call(self._state.owner, _backward, (self, dist_autograd_ctx_id, retain_graph)).wait()
            return
        value = self.local_value()
        from pydist import _C

        if not isinstance(value, _C.Tensor):
            raise RuntimeError(
                f"RRef should contain a tensor for .backward() (expected a tensor, got {type(value).__name__})"
            )
        if dist_autograd_ctx_id == -1:
            value.backward(retain_graph=retain_graph)
        else:
            autograd.backward(dist_autograd_ctx_id, [value], retain_graph)

    def _get_type(self, timeout=UNSET_RPC_TIMEOUT, blocking=True):
        """The class of the value; with blocking False a Future of it. The owner is asked once."""
        if self._type is None:
            from pydist.distributed.rpc import api

            self._type = api.rpc_async(self.owner(), _rref_typeof_on_owner, (self,), timeout=timeout)
        return self._type.wait() if blocking else self._type

    def _get_future(self):
        """The Future of the remote() that made the value, or of the value at its owner."""
        return self._state.future if self.is_owner() else self._state.made

    def _get_profiling_future(self):
        """A Future that is done when a profiler has the events of the remote() that made the value."""
        return self._state.made


def _rref_typeof_on_owner(rref):
    return type(rref.local_value())


PyRRef = RRef
