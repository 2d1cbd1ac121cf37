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
