"""PyTorch's place of these names, which stand in `pydist.nn.parallel.composable`."""

from pydist._aliases import from_home

__getattr__ = from_home(__name__, "pydist.nn.parallel.composable", ("DDP", "replicate"))
