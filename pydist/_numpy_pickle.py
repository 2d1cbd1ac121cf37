"""NumPy's arrays and numbers in pickles that are read without running anything: what such a file may name of NumPy."""

import pickle

import numpy as np


class _Dtype:
    """What a pickle says of a dtype: its code, such as "f8", and the order of bytes."""

    def __init__(self, code, *_):
        self.code, self.order = code, "|"

    def __setstate__(self, state):
        self.order = state[1]

    def numpy(self):
        is_plain = isinstance(self.code, str) and self.code[:1] in tuple("biufc") and self.code[1:].isdigit()
        if not is_plain or self.order not in ("<", ">", "|", "="):
            raise pickle.UnpicklingError(f"an array of {self.code!r} (expected numbers)")
        return np.dtype(self.code).newbyteorder(self.order)


class ndarray(np.ndarray):
    """An array whose dtype is checked before its content is taken."""

    def __setstate__(self, state):
        version, shape, dtype, is_fortran, content = state
        if isinstance(content, str):  # Python 2's str, read as latin1
            content = content.encode("latin1")
        super().__setstate__((version, shape, dtype.numpy(), is_fortran, content))


def _reconstruct(kind, shape, code):
    if kind is not ndarray:
        raise pickle.UnpicklingError("an array of a class of its own")
    return ndarray((0,), np.uint8)


def _from_buffer(content, dtype, shape, order):
    return np.frombuffer(content, dtype.numpy()).reshape(shape, order=order).view(ndarray)


def _scalar(dtype, content):
    if isinstance(content, str):
        content = content.encode("latin1")
    return np.frombuffer(content, dtype.numpy(), count=1)[0]


def _encode(text, encoding="latin1"):
    if encoding not in ("latin1", "utf-8"):
        raise pickle.UnpicklingError(f"bytes in the encoding {encoding!r}")
    return text.encode(encoding)


NAMES = {
    ("numpy", "dtype"): _Dtype,
    ("numpy", "ndarray"): ndarray,
    ("_codecs", "encode"): _encode,
    **{
        (f"numpy.{core}.{module}", name): made
        for core in ("core", "_core")
        for module, name, made in (
            ("multiarray", "_reconstruct", _reconstruct),
            ("multiarray", "scalar", _scalar),
            ("numeric", "_frombuffer", _from_buffer),
        )
    },
}
