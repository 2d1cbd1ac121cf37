"""The kinds of agents, and their options, by name."""

from pydist.distributed.rpc.constants import DEFAULT_INIT_METHOD, DEFAULT_RPC_TIMEOUT_SEC
from pydist.distributed.rpc.options import BackendType, TensorPipeRpcBackendOptions

__all__ = ["BackendType", "backend_registered", "construct_rpc_backend_options"]


def backend_registered(backend_name):
    """Whether there is an agent of this kind: "TENSORPIPE".

    >>> from pydist.distributed.rpc import backend_registry
    >>> backend_registry.backend_registered("TENSORPIPE")
    True
    """
    return backend_name in BackendType.__members__


def construct_rpc_backend_options(
    backend, rpc_timeout=DEFAULT_RPC_TIMEOUT_SEC, init_method=DEFAULT_INIT_METHOD, **kwargs
):
    """The options of an agent of this kind.

    >>> from pydist.distributed.rpc import backend_registry
    >>> backend_registry.construct_rpc_backend_options(backend_registry.BackendType.TENSORPIPE, rpc_timeout=5).rpc_timeout
    5.0
    """
    if not isinstance(backend, BackendType):
        raise TypeError(f"construct_rpc_backend_options: backend is {backend!r} (expected a BackendType)")
    return TensorPipeRpcBackendOptions(rpc_timeout=rpc_timeout, init_method=init_method, **kwargs)
