"""Data parallel training."""

from pydist.nn.parallel.data_parallel import DataParallel, data_parallel
from pydist.nn.parallel.distributed import DistributedDataParallel

__all__ = ["DataParallel", "DistributedDataParallel", "data_parallel"]
