"""Ranks that work together: process groups and collectives.

A script that is not started by a launcher is a world of one, in which every collective is valid. Where the launcher set
WORLD_SIZE over 1, the first collective joins the others if `init_process_group` was not called before.

>>> from pydist import distributed as dist
>>> dist.get_rank(), dist.get_world_size()
(0, 1)
"""

from pydist._C import CommMismatch, CommTimeout, DistError, PeerFailed, Work
from pydist._C import Group as ProcessGroup
from pydist.distributed._group.backend import (
    Backend,
    get_default_backend_for_device,
    is_backend_available,
    is_gloo_available,
    is_mpi_available,
    is_nccl_available,
)
from pydist.distributed._group.groups import new_group, new_subgroups, new_subgroups_by_enumeration, split_group
from pydist.distributed._group.process_group import (
    GroupMember,
    destroy_process_group,
    get_backend,
    get_global_rank,
    get_group_rank,
    get_node_local_rank,
    get_process_group_ranks,
    get_rank,
    get_world_size,
    group,
    init_process_group,
    is_available,
    is_initialized,
    is_torchelastic_launched,
)
from pydist.distributed._ops.coalescing import _coalescing_manager, all_gather_coalesced
from pydist.distributed._ops.collectives import (
    ReduceOp,
    _make_nccl_premul_sum,
    all_gather,
    all_gather_into_tensor,
    all_reduce,
    all_reduce_coalesced,
    barrier,
    broadcast,
    gather,
    monitored_barrier,
    reduce,
    reduce_op,
    reduce_scatter,
    reduce_scatter_tensor,
    scatter,
)
from pydist.distributed.diagnostics import flight_record, long_task

DistBackendError = DistNetworkError = DistStoreError = DistError  # PyTorch's names for the reasons of a failure
_DDP = ("BuiltinCommHookType", "GradBucket")
_STORES = ("FileStore", "HashStore", "PrefixStore", "QueueEmptyError", "Store", "TCPStore")
_P2P = ("P2POp", "batch_isend_irecv", "irecv", "isend", "recv", "recv_object_list", "send", "send_object_list")
_EXCHANGE = ("all_to_all", "all_to_all_single")
_MESH = ("DeviceMesh", "init_device_mesh")
_OBJECTS = ("all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list")

__all__ = [
    "Backend",
    "CommMismatch",
    "CommTimeout",
    "DistBackendError",
    "DistError",
    "DistNetworkError",
    "DistStoreError",
    "GroupMember",
    "PeerFailed",
    "ProcessGroup",
    "ReduceOp",
    "Transaction",
    "Work",
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_reduce",
    "all_reduce_coalesced",
    "barrier",
    "broadcast",
    "destroy_process_group",
    "flight_record",
    "gather",
    "get_backend",
    "get_global_rank",
    "get_group_rank",
    "get_node_local_rank",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
    "group",
    "init_process_group",
    "is_available",
    "is_backend_available",
    "is_gloo_available",
    "is_initialized",
    "is_mpi_available",
    "get_default_backend_for_device",
    "is_nccl_available",
    "is_torchelastic_launched",
    "long_task",
    "monitored_barrier",
    "new_group",
    "new_subgroups",
    "new_subgroups_by_enumeration",
    "reduce",
    "reduce_op",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "shrink_group",
    "check_replicas",
    *_DDP,
    "split_group",
    *_EXCHANGE,
    *_MESH,
    *_OBJECTS,
    *_P2P,
    *_STORES,
]


def __getattr__(name):
    from importlib import import_module

    if name in ("algorithms", "distributed_c10d", "member", "nn", "symmetric_memory", "threads"):
        return import_module(f"pydist.distributed.{name}")
    if name == "check_replicas":
        return import_module("pydist.distributed._ops.agreement").check_replicas
    if name in _DDP:
        return getattr(import_module("pydist.distributed.algorithms.ddp_comm_hooks._bucket"), name)
    if name == "shrink_group":
        return import_module("pydist.distributed.recovery.shrink").shrink_group
    if name == "Transaction":
        return import_module("pydist.distributed.recovery.transaction").Transaction
    if name in _STORES:
        return getattr(import_module(f"pydist.distributed.{'tcp_' * (name == 'TCPStore')}store"), name)
    if name in _EXCHANGE:
        return getattr(import_module("pydist.distributed._ops.all_to_all"), name)
    if name in _MESH:
        return getattr(import_module("pydist.distributed.device_mesh"), name)
    if name in _P2P:
        return getattr(import_module("pydist.distributed._ops.p2p"), name)
    if name in _OBJECTS:  # pickle is needed by few
        return getattr(import_module("pydist.distributed._ops.objects"), name)
    raise AttributeError(f"module 'pydist.distributed' has no attribute '{name}'")
