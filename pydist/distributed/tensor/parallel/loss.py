"""PyTorch's home of loss_parallel, which stands in `pydist.nn.parallel.tensor.loss`."""

from pydist._aliases import from_home

__all__ = "loss_parallel".split()
__getattr__ = from_home(__name__, "pydist.nn.parallel.tensor.loss", __all__)
