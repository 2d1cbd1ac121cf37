"""DLPack: tensors in memory that pydist shares with other libraries, in both directions.

>>> import pydist
>>> x = pydist.arange(3)
>>> y = from_dlpack(to_dlpack(x))
>>> y[0] = 7
>>> x
tensor([7, 1, 2])
"""

from pydist._C import from_dlpack, to_dlpack

__all__ = ["from_dlpack", "to_dlpack"]
