"""The kinds of agents by name, their options, and what starts them. A program may register kinds of its own."""

import enum
import typing

from pydist.distributed.rpc.constants import DEFAULT_INIT_METHOD, DEFAULT_RPC_TIMEOUT_SEC
from pydist.distributed.rpc.options import TensorPipeRpcBackendOptions

__all__ = ["BackendType", "backend_registered", "construct_rpc_backend_options", "init_backend", "register_backend"]


class BackendValue(typing.NamedTuple):
    """What is known of a kind of agents: functions that make its options, and that start an agent."""

    construct_rpc_backend_options_handler: typing.Callable
    init_backend_handler: typing.Callable


def _repr(backend):
    return f"BackendType.{backend.name}"


def _options(rpc_timeout, init_method, **kwargs):
    return TensorPipeRpcBackendOptions(rpc_timeout=rpc_timeout, init_method=init_method, **kwargs)


def _agent(store, name, rank, world_size, rpc_backend_options):
    from pydist.distributed.rpc import api

    return api._joined(name, rpc_backend_options, api._place_by(store, world_size, rank))


BackendType = enum.Enum("BackendType", {"TENSORPIPE": BackendValue(_options, _agent)})
BackendType.__repr__ = _repr
BackendType.__doc__ = "The kinds of agents: TENSORPIPE, under the name of PyTorch's, and those that were registered."


def backend_registered(backend_name):
    """Whether there is an agent of this kind.

    >>> from pydist.distributed.rpc import backend_registry
    >>> backend_registry.backend_registered("TENSORPIPE")
    True
    """
    return backend_name in BackendType.__members__


def register_backend(backend_name, construct_rpc_backend_options_handler, init_backend_handler):
    """Adds a kind of agents and returns its member of BackendType, for `init_rpc(backend=...)`.

    construct_rpc_backend_options_handler(rpc_timeout=, init_method=, ...): its options.
    init_backend_handler(store=, name=, rank=, world_size=, rpc_backend_options=): an agent, with the methods of
    `rpc.TensorPipeAgent`. Raises RuntimeError if the name is taken.
    """
    global BackendType
    if backend_registered(backend_name):
        raise RuntimeError(f"RPC backend {backend_name}: already registered")
    known = {member.name: member.value for member in BackendType}
    known[backend_name] = BackendValue(construct_rpc_backend_options_handler, init_backend_handler)
    doc = BackendType.__doc__
    BackendType = enum.Enum("BackendType", known)
    BackendType.__repr__, BackendType.__doc__ = _repr, doc
    return BackendType[backend_name]


def construct_rpc_backend_options(
    backend, rpc_timeout=DEFAULT_RPC_TIMEOUT_SEC, init_method=DEFAULT_INIT_METHOD, **kwargs
):
    """The options of an agent of this kind.

    >>> from pydist.distributed.rpc import backend_registry
    >>> kind = backend_registry.BackendType.TENSORPIPE
    >>> backend_registry.construct_rpc_backend_options(kind, rpc_timeout=5).rpc_timeout
    5.0
    """
    handler = _value(backend).construct_rpc_backend_options_handler
    return handler(rpc_timeout=rpc_timeout, init_method=init_method, **kwargs)


def init_backend(backend, *args, **kwargs):
    """An agent of this kind; see `register_backend`."""
    return _value(backend).init_backend_handler(*args, **kwargs)


def _value(backend):
    if not is_backend(backend):
        raise TypeError(f"rpc: backend is {backend!r} (expected a BackendType)")
    return backend.value


def is_backend(backend):
    """Whether this is a member of BackendType, also of one before the last register_backend."""
    return isinstance(backend, enum.Enum) and isinstance(backend.value, BackendValue)
