"""PyTorch's old name of `pydist.distributed.tensor.placement_types`."""

from pydist.distributed.tensor.placement_types import *
from pydist.distributed.tensor.placement_types import __all__  # noqa: F401
