"""Data parallel training."""

from pydist.nn.parallel.distributed import DistributedDataParallel

__all__ = ["DistributedDataParallel"]
