"""Functions of tensors that are made of other ops, and the names under which PyTorch has them: as functions of pydist, as
methods of Tensor, or both. What they are made of gives the gradients."""

from pydist._functions import elements, elementwise, forms, indexing, products, random, rearrange, reduce, select, shape
from pydist._functions._register import NAMES

globals().update(NAMES)
__all__ = list(NAMES)
