"""Ranks that work together: process groups and collectives.

A script that is not started by a launcher is a world of one, in which every collective is valid. Where the launcher set
WORLD_SIZE over 1, the first collective joins the others if `init_process_group` was not called before.

>>> from pydist import distributed as dist
>>> dist.get_rank(), dist.get_world_size()
(0, 1)
"""

from pydist._C import CommMismatch, CommTimeout, DistError, PeerFailed
from pydist.distributed.collectives import ReduceOp, all_reduce, barrier, broadcast
from pydist.distributed.process_group import (
    destroy_process_group,
    get_backend,
    get_rank,
    get_world_size,
    group,
    init_process_group,
    is_available,
    is_initialized,
)

__all__ = [
    "CommMismatch",
    "CommTimeout",
    "DistError",
    "PeerFailed",
    "ReduceOp",
    "all_reduce",
    "barrier",
    "broadcast",
    "destroy_process_group",
    "get_backend",
    "get_rank",
    "get_world_size",
    "group",
    "init_process_group",
    "is_available",
    "is_initialized",
]


def __getattr__(name):
    if name == "threads":
        from importlib import import_module

        return import_module("pydist.distributed.threads")
    raise AttributeError(f"module 'pydist.distributed' has no attribute '{name}'")
