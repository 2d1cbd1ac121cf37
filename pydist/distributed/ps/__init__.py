"""A parameter server: values that workers push gradients to and pull, synchronously, with bounded staleness, or without
locks.

`create()` makes a KVStore with MXNet's names, `Trainer` trains a model through one. docs/guide/parameter-server.md says
which mode when.
"""

from pydist._aliases import from_home
from pydist.distributed.ps.embedding import EmbeddingTable
from pydist.distributed.ps.kvstore import KVStore, create
from pydist.distributed.ps.trainer import Trainer

__all__ = ["EmbeddingTable", "KVStore", "PSEmbedding", "Trainer", "create"]
__getattr__ = from_home(__name__, "pydist.nn.parallel.ps_embedding", ("PSEmbedding",))
