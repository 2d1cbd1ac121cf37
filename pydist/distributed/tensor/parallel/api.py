"""PyTorch's home of parallelize_module, which stands in `pydist.nn.parallel.tensor.api`."""

from pydist._aliases import from_home

__all__ = "parallelize_module".split()
__getattr__ = from_home(__name__, "pydist.nn.parallel.tensor.api", __all__)
