"""Functions of tensors that are made of other ops, with PyTorch's names: as functions of pydist, as methods of Tensor,
or both. The ops that they are made of give the gradients.

The first use of a name in _index.LATER imports its file; until then a method is a stand-in. After a function or method
is added to such a file, `python tools/index.py` writes that list.

Some functions are slow on purpose, because few programs call them: `combinations` makes every row in Python,
`repeat_interleave` reads a tensor of repeats into Python, `unique` with a dim sorts once for each element of a slice,
`mode` compares each element with all others along dim, and `erfc` asks the C library for one element after the other.
"""

from importlib import import_module

from pydist import _index
from pydist._C import Tensor
from pydist._functions import elementwise, indexing, products, reduce, shape
from pydist._functions._register import NAMES

globals().update(NAMES)
__all__ = list(NAMES)

LATER = {name: file for file, (functions, _) in _index.LATER.items() for name in functions.split()}


def __getattr__(name):
    if name not in LATER:
        raise AttributeError(f"module 'pydist._functions' has no attribute '{name}'")
    import_module(f"pydist._functions.{LATER[name]}")
    return NAMES[name]


def _stand_in(file, name):
    def first(self, *args, **kwargs):
        import_module(f"pydist._functions.{file}")  # replaces this stand-in by the method
        return getattr(self, name)(*args, **kwargs)

    first.__name__, first.__doc__ = name, f"{name}: in pydist._functions.{file}, which its first call imports."
    setattr(Tensor, name, first)


for _file, (_, _methods) in _index.LATER.items():
    for _name in _methods.split():
        _stand_in(_file, _name)
