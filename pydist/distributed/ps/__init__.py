"""A parameter server: values that workers push gradients to and pull, synchronously, with bounded staleness, or without
locks.

`create()` makes a KVStore with MXNet's names, `Trainer` trains a model through one. docs/guide/parameter-server.md says
which mode when.
"""

from pydist.distributed.ps.kvstore import KVStore, create
from pydist.distributed.ps.trainer import Trainer

__all__ = ["KVStore", "Trainer", "create"]
