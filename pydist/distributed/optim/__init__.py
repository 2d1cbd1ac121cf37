"""Optimizers of several ranks or workers.

`DistributedOptimizer` steps parameters of other workers with the gradients of distributed autograd, or averages the
gradients of a local optimizer over the ranks. `PostLocalSGDOptimizer` averages models. `as_functional_optim` gives an
optimizer its gradients by hand. `ZeroRedundancyOptimizer` shares an optimizer's state out over the ranks.
"""

from pydist._names import also_named
from pydist.distributed.optim.apply_optimizer_in_backward import (
    _apply_optimizer_in_backward,
    _get_in_backward_optimizers,
)
from pydist.distributed.optim.functional import as_functional_optim, register_functional_optim
from pydist.distributed.optim.optimizer import DistributedAdam, DistributedOptimizer, DistributedSGD
from pydist.distributed.optim.post_local_sgd import PostLocalSGDOptimizer
from pydist.distributed.optim.zero_redundancy_optimizer import ZeroRedundancyOptimizer

__all__ = [
    "DistributedAdam",
    "DistributedOptimizer",
    "DistributedSGD",
    "PostLocalSGDOptimizer",
    "ZeroRedundancyOptimizer",
    "as_functional_optim",
    "register_functional_optim",
]

also_named(__name__, post_localSGD_optimizer="post_local_sgd", utils="functional")
