"""NumPy's arrays and numbers in pickles that are read without running anything: what such a file may name of NumPy."""

import pickle

import numpy as np


class _Dtype:
    """What a pickle says of a dtype: its code, such as "f8", and the order of bytes."""

    __slots__ = ("code", "order")

    def __init__(self, code, *_):
        self.code, self.order = code, "|"

    def numpy(self):
        code, order = self.code, self.order
        is_plain = type(code) is str and len(code) <= 3 and code[:1] in tuple("biufc") and code[1:].isdigit()
        if not is_plain or order not in ("<", ">", "|", "="):
            raise pickle.UnpicklingError("an array of other things than numbers")
        return np.dtype(code).newbyteorder(order)


class _Kind:
    """numpy.ndarray, as a name within the file."""

    __slots__ = ()


class _Begun:
    """An array that has got no content yet. It becomes another object then: nothing that the file holds ever changes."""

    __slots__ = ()


class Arrays:
    """The names, and what their objects do. `spend`: of `_unpickle.Maker`, before content is copied."""

    def __init__(self, spend):
        self.spend = spend
        self.kind = _Kind()
        called = {"multiarray": {"_reconstruct": self.reconstruct, "scalar": self.scalar}}
        called["numeric"] = {"_frombuffer": self.from_buffer}
        self.modules = {f"numpy.{core}.{name}": made for core in ("core", "_core") for name, made in called.items()}
        self.modules["numpy"] = {"dtype": _Dtype, "ndarray": self.kind}

    def reconstruct(self, kind, shape, code):
        if kind is not self.kind:
            raise pickle.UnpicklingError("an array of a class of its own")
        return _Begun()

    def from_buffer(self, content, dtype, shape, order):
        return self._array(content, dtype, shape, order)

    def scalar(self, dtype, content):
        return self._array(content, dtype, (), "C")[()]

    def takes_state(self, made):
        return type(made) in (_Dtype, _Begun)

    def build(self, made, state):
        if type(made) is _Dtype:
            new = _Dtype(made.code)
            new.order = state[1]
            return new
        _, shape, dtype, is_fortran, content = state
        self.spend(len(content))
        array = self._array(content, dtype, shape, "F" if is_fortran else "C")
        return array.astype(array.dtype.newbyteorder("="), order="K")  # a copy; this machine's order, as NumPy has it

    def _array(self, content, dtype, shape, order):
        if type(content) is str:  # Python 2's str, read as latin1
            self.spend(len(content))
            content = content.encode("latin1")
        if type(content) not in (bytes, bytearray) or type(dtype) is not _Dtype or type(shape) is not tuple:
            raise pickle.UnpicklingError("an array without content, dtype or shape")
        array = np.ndarray(shape, dtype.numpy(), content, order="F" if order == "F" else "C")
        if array.nbytes != len(content):
            raise pickle.UnpicklingError(f"an array of {array.nbytes} bytes, whose content has {len(content)}")
        return array
