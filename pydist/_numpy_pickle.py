"""NumPy's arrays and numbers in pickles that are read without running anything: the names of NumPy that such a file may
use."""

import pickle

import numpy as np


class _Dtype:
    """A dtype as a pickle says it: its code, such as "f8", and the byte order."""

    __slots__ = ("code", "order")

    def __init__(self, code, *_):
        self.code, self.order = code, "|"

    def numpy(self):
        code, order = self.code, self.order
        is_plain = type(code) is str and len(code) <= 3 and code[:1] in tuple("biufc") and code[1:].isdigit()
        if not is_plain or order not in ("<", ">", "|", "="):
            raise pickle.UnpicklingError("an array whose elements are not numbers")
        return np.dtype(code).newbyteorder(order)


class _Kind:
    """numpy.ndarray, as a name inside the file."""

    __slots__ = ()


class _Begun:
    """An array without content so far. Its content makes a new object: nothing that the file refers to ever changes."""

    __slots__ = ()


class Arrays:
    """The names that a file may use, and what calls of them make. `spend`: as of `_unpickle.Maker`, called before
    content is copied."""

    def __init__(self, spend):
        self.spend = spend
        self.kind = _Kind()
        called = {"multiarray": {"_reconstruct": self.reconstruct, "scalar": self.scalar}}
        called["numeric"] = {"_frombuffer": self.from_buffer}
        self.modules = {f"numpy.{core}.{name}": made for core in ("core", "_core") for name, made in called.items()}
        self.modules["numpy"] = {"dtype": _Dtype, "ndarray": self.kind}

    def reconstruct(self, kind, shape, code):
        """numpy.core.multiarray._reconstruct: an array without content."""
        if kind is not self.kind:
            raise pickle.UnpicklingError("an array of a subclass (expected numpy.ndarray)")
        return _Begun()

    def from_buffer(self, content, dtype, shape, order):
        """numpy._core.numeric._frombuffer: an array of these bytes."""
        return self._array(content, dtype, shape, order)

    def scalar(self, dtype, content):
        """numpy.core.multiarray.scalar: one number."""
        return self._array(content, dtype, (), "C")[()]

    def takes_state(self, made):
        """Whether the file may give this object a state."""
        return type(made) in (_Dtype, _Begun)

    def build(self, made, state):
        """The object that replaces `made` when the file gives it a state."""
        if type(made) is _Dtype:
            new = _Dtype(made.code)
            new.order = state[1]
            return new
        _, shape, dtype, is_fortran, content = state
        self.spend(len(content))
        array = self._array(content, dtype, shape, "F" if is_fortran else "C")
        return array.astype(
            array.dtype.newbyteorder("="), order="K"
        )  # a copy, in this machine's byte order, as in NumPy

    def _array(self, content, dtype, shape, order):
        if type(content) is str:  # a str of Python 2, read as latin1
            self.spend(len(content))
            content = content.encode("latin1")
        if type(content) not in (bytes, bytearray) or type(dtype) is not _Dtype or type(shape) is not tuple:
            raise pickle.UnpicklingError("an array that lacks content, dtype or shape")
        array = np.ndarray(shape, dtype.numpy(), content, order="F" if order == "F" else "C")
        if array.nbytes != len(content):
            raise pickle.UnpicklingError(f"an array of {array.nbytes} bytes with a content of {len(content)} bytes")
        return array
