"""PyTorch's home of styles of tensor parallel modules, which stands in `pydist.nn.parallel.tensor.style`."""

from pydist._aliases import from_home

__all__ = (
    "ColwiseParallel ParallelStyle PrepareModuleInput PrepareModuleInputOutput PrepareModuleOutput RowwiseParallel "
    "SequenceParallel"
).split()
__getattr__ = from_home(__name__, "pydist.nn.parallel.tensor.style", __all__)
