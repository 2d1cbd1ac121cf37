"""PyTorch's old name of `pydist.distributed.tensor`, whose names it has.

>>> from pydist.distributed import _tensor, tensor
>>> _tensor.DTensor is tensor.DTensor
True
"""

from pydist.distributed.tensor import *
from pydist.distributed.tensor import __all__, debug, experimental
