"""Strategies with the names of tf.distribute, for pydist's own modules and loops and for Keras.

>>> import pydist
>>> from pydist import distribute, nn, optim
>>> strategy = distribute.MirroredStrategy(["CPU:0", "CPU:1"])
>>> with strategy.scope():
...     model = nn.Linear(2, 1)
...     optimizer = optim.SGD(model.parameters(), lr=0.1)
>>> def step(x, y):
...     optimizer.zero_grad()
...     loss = distribute.compute_average_loss(((model(x) - y) ** 2).sum(1), global_batch_size=3)
...     loss.backward()
...     optimizer.step()  # with the sum of the replicas' gradients
...     return loss.detach()
>>> batches = [(pydist.ones(3, 2), pydist.zeros(3, 1))]
>>> for x, y in strategy.experimental_distribute_dataset(batches):
...     losses = strategy.run(step, args=(x, y))
>>> strategy.reduce("SUM", losses, axis=None).shape
pydist.Size([])
"""

from pydist.distribute import cluster_resolver
from pydist.distribute._near import missing_name
from pydist.distribute.context import (
    experimental_set_strategy,
    get_replica_context,
    get_strategy,
    has_strategy,
    in_cross_replica_context,
)
from pydist.distribute.input import DistributedDataset, DistributedIterator
from pydist.distribute.losses import compute_average_loss, scale_regularization_loss
from pydist.distribute.mirrored import MirroredStrategy
from pydist.distribute.optimizer import CrossReplicaOptimizer
from pydist.distribute.options import InputContext, InputOptions, InputReplicationMode, RunOptions
from pydist.distribute.reduce import (
    CrossDeviceOps,
    HierarchicalCopyAllReduce,
    NcclAllReduce,
    ReduceOp,
    ReductionToOneDevice,
)
from pydist.distribute.replica import ReplicaContext
from pydist.distribute.server import ParameterServerStrategy, Server
from pydist.distribute.strategy import OneDeviceStrategy, Strategy, StrategyExtended
from pydist.distribute.tpu import TPUStrategy
from pydist.distribute.values import DistributedValues, PerReplica
from pydist.distribute.workers import MultiWorkerMirroredStrategy

__all__ = [
    "CrossDeviceOps",
    "CrossReplicaOptimizer",
    "DistributedDataset",
    "DistributedIterator",
    "DistributedValues",
    "HierarchicalCopyAllReduce",
    "InputContext",
    "InputOptions",
    "InputReplicationMode",
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "NcclAllReduce",
    "OneDeviceStrategy",
    "ParameterServerStrategy",
    "PerReplica",
    "ReduceOp",
    "ReductionToOneDevice",
    "ReplicaContext",
    "RunOptions",
    "Server",
    "Strategy",
    "StrategyExtended",
    "TPUStrategy",
    "cluster_resolver",
    "compute_average_loss",
    "experimental_set_strategy",
    "get_replica_context",
    "get_strategy",
    "has_strategy",
    "in_cross_replica_context",
    "scale_regularization_loss",
]
_SUBMODULES = ("coordinator", "experimental", "runner")


def __getattr__(name):
    from importlib import import_module

    if name in _SUBMODULES:
        return import_module(f"pydist.distribute.{name}")
    raise missing_name(__name__, name, [*__all__, *_SUBMODULES])
