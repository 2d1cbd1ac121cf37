"""PyTorch's names for tensor parallel modules, which stand in `pydist.nn.parallel.tensor`: they are about modules."""

from pydist._aliases import from_home

__all__ = (
    "ColwiseParallel ParallelStyle PrepareModuleInput PrepareModuleInputOutput PrepareModuleOutput RowwiseParallel "
    "SequenceParallel loss_parallel parallelize_module"
).split()
__getattr__ = from_home(__name__, "pydist.nn.parallel.tensor", __all__)
