"""Collectives that autograd records: `pydist.distributed.nn.functional`."""

from pydist.distributed.nn import functional
from pydist.distributed.nn.functional import (
    all_gather,
    all_reduce,
    broadcast,
    gather,
    reduce,
    reduce_scatter,
    scatter,
)

__all__ = ["all_gather", "all_reduce", "broadcast", "functional", "gather", "reduce", "reduce_scatter", "scatter"]


def __getattr__(name):
    if name == "RemoteModule":
        from pydist.distributed.nn.api import remote_module

        return remote_module.RemoteModule
    raise AttributeError(f"module 'pydist.distributed.nn' has no attribute {name!r}")
