"""PyTorch's old name of what makes DTensors, and of their placements."""

from pydist.distributed.tensor import *
from pydist.distributed.tensor import __all__  # noqa: F401
