"""Tensor parallel modules: the ranks of a mesh share the weights of each layer out. PyTorch's name for this package is
`distributed.tensor.parallel`.

>>> import pydist
>>> from pydist.distributed.tensor import init_device_mesh
>>> from pydist.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
>>> model = pydist.nn.Sequential(pydist.nn.Linear(4, 8), pydist.nn.ReLU(), pydist.nn.Linear(8, 2))
>>> mesh = init_device_mesh("cpu", (1,))
>>> _ = parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
>>> model[0].weight.placements, model(pydist.ones(3, 4)).shape
((Shard(dim=0),), pydist.Size([3, 2]))
"""

from pydist.nn.parallel.tensor.api import parallelize_module
from pydist.nn.parallel.tensor.loss import loss_parallel
from pydist.nn.parallel.tensor.style import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
)

__all__ = (
    "ColwiseParallel ParallelStyle PrepareModuleInput PrepareModuleInputOutput PrepareModuleOutput RowwiseParallel "
    "SequenceParallel loss_parallel parallelize_module"
).split()
