"""Remote calls: functions that run in other processes, values that live there, and references to them.

Each process is a worker with a name. Start the workers with `python -m pydist.run`, with `multiprocessing.spawn`, or by
hand, and let each of them call `init_rpc`:

    from pydist.distributed import rpc
    rpc.init_rpc("actor", rank=0, world_size=2)        # in the other process: rpc.init_rpc("learner", rank=1, ...)
    loss = rpc.rpc_sync("learner", train, args=(batch,))
    rpc.shutdown()

`rpc_sync` waits for a result, `rpc_async` returns a future, `remote` leaves the result where it was made and returns an
RRef. Gradients flow through calls inside of `pydist.distributed.autograd.context()`. Workers prove to each other that
they belong to the same job; who belongs to it may run code in it, unless `allow` says what.
"""

from pydist.distributed.rpc import api, backend_registry, constants, functions, internal, options
from pydist.distributed.rpc._agent import Agent as TensorPipeAgent
from pydist.distributed.rpc._agent import WorkerInfo
from pydist.distributed.rpc._agent import current as _get_current_rpc_agent
from pydist.distributed.rpc._agent import is_current as _is_current_rpc_agent_set
from pydist.distributed.rpc._errors import RemoteError, RpcTimeout
from pydist.distributed.rpc._pickling import allow
from pydist.distributed.rpc.api import (
    _all_gather,
    _barrier,
    _delete_all_user_and_unforked_owner_rrefs,
    _get_debug_info,
    _init_rpc_backend,
    _rref_context_get_debug_info,
    _set_rpc_timeout,
    _wait_all,
    _wait_all_workers,
    enable_gil_profiling,
    get_rpc_timeout,
    get_worker_info,
    init_rpc,
    leaks,
    remote,
    rpc_async,
    rpc_sync,
    shutdown,
    stats,
)
from pydist.distributed.rpc.backend_registry import BackendType
from pydist.distributed.rpc.options import RpcBackendOptions, TensorPipeRpcBackendOptions
from pydist.distributed.rpc.rref import PyRRef, RRef
from pydist.distributed.rpc.server_process_global_profiler import _server_process_global_profile

__all__ = [
    "BackendType",
    "PyRRef",
    "RRef",
    "RemoteError",
    "RpcBackendOptions",
    "RpcTimeout",
    "TensorPipeRpcBackendOptions",
    "WorkerInfo",
    "allow",
    "backend_registry",
    "constants",
    "enable_gil_profiling",
    "functions",
    "get_rpc_timeout",
    "get_worker_info",
    "init_rpc",
    "internal",
    "is_available",
    "leaks",
    "options",
    "remote",
    "rpc_async",
    "rpc_sync",
    "shutdown",
    "stats",
]


def is_available():
    """Whether this build has RPC: always."""
    return True
