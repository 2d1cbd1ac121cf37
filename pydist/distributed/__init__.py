"""Distributed training: process groups and collectives, with PyTorch's names.

A script that no launcher started is a world of one rank, in which every collective works. Under a launcher that sets
WORLD_SIZE to more than 1, the first collective joins the other ranks, unless the script has called `init_process_group`
before.

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
    all_to_all,
    all_to_all_single,
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

DistBackendError = DistNetworkError = DistStoreError = DistError  # PyTorch's names for the kinds of failure
_LATER = {  # file: the names whose first use imports it
    "_ops.agreement": "check_replicas",
    "_ops.objects": "all_gather_object broadcast_object_list gather_object scatter_object_list",
    "_ops.p2p": "P2POp batch_isend_irecv irecv isend recv recv_object_list send send_object_list",
    "autograd": "autograd_backward",
    "algorithms.ddp_comm_hooks._bucket": "BuiltinCommHookType GradBucket",
    "device_mesh": "DeviceMesh init_device_mesh",
    "_group.logical": "get_logical_shards work_shares",
    "_group.stores": "rendezvous",
    "recovery.shrink": "shrink_group",
    "recovery.transaction": "Transaction",
    "steps": "shards",
    "store": "FileStore HashStore PrefixStore QueueEmptyError Store",
    "tcp_store": "TCPStore",
}
_HOME = {name: file for file, names in _LATER.items() for name in names.split()}

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
    "Work",
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
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
    "rendezvous",
    "scatter",
    "split_group",
    *_HOME,
]


_ROOMS = {
    "algorithms", "autograd", "distributed_c10d", "member", "nn", "optim", "pipelining", "rpc", "symmetric_memory", "tensor", "threads",
}  # fmt: skip


def __getattr__(name):
    from importlib import import_module

    if name in _ROOMS:
        return import_module(f"pydist.distributed.{name}")
    if name in _HOME:
        return getattr(import_module(f"pydist.distributed.{_HOME[name]}"), name)
    raise AttributeError(f"module 'pydist.distributed' has no attribute '{name}'")
