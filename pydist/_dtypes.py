"""The limits of dtypes and casts between them: finfo, iinfo, can_cast."""

from pydist import _C

# bits, (mantissa bits, largest exponent)
_FLOATS = {_C.float16: (16, 10, 15), _C.bfloat16: (16, 7, 127), _C.float32: (32, 23, 127), _C.float64: (64, 52, 1023)}
_FLOATS.update(
    {dtype: _FLOATS[dtype.to_real()] for dtype in (_C.complex64, _C.complex128)}
)  # bits of the real and imaginary part
_INTS = {_C.uint8: 8, _C.int8: 8, _C.int16: 16, _C.int32: 32, _C.int64: 64}


class finfo:
    """The limits of a floating dtype (default: that of new tensors): bits, eps, max, min, tiny, smallest_normal, resolution.

    >>> import pydist
    >>> pydist.finfo(pydist.float16).max
    65504.0
    """

    def __init__(self, type=None):
        type = _C.get_default_dtype() if type is None else type
        if type not in _FLOATS:
            raise TypeError(f"finfo: got {type} (expected a floating dtype)")
        self.bits, mantissa, exponent = _FLOATS[type]
        self.dtype = repr(type.to_real()).split(".")[1]
        self.eps = 2.0**-mantissa
        self.max = (2.0 - self.eps) * 2.0**exponent
        self.min = -self.max
        self.tiny = self.smallest_normal = 2.0 ** (1 - exponent)
        self.resolution = 10.0 ** -int(mantissa * 0.30103)

    def __repr__(self):
        values = f"resolution={self.resolution:g}, min={self.min:g}, max={self.max:g}, eps={self.eps:g}"
        return f"finfo({values}, smallest_normal={self.smallest_normal:g}, tiny={self.tiny:g}, dtype={self.dtype})"


class iinfo:
    """The limits of an integer dtype: bits, min, max.

    >>> import pydist
    >>> pydist.iinfo(pydist.int8)
    iinfo(min=-128, max=127, dtype=int8)
    """

    def __init__(self, type):
        if type not in _INTS:
            raise TypeError(f"iinfo: got {type} (expected an integer dtype)")
        self.bits = _INTS[type]
        self.dtype = repr(type).split(".")[1]
        self.min = 0 if type is _C.uint8 else -(2 ** (self.bits - 1))
        self.max = 2**self.bits - 1 + self.min

    def __repr__(self):
        return f"iinfo(min={self.min}, max={self.max}, dtype={self.dtype})"


def can_cast(from_, to):
    """Whether the kind of dtype `to` can hold that of `from_`. The order of kinds is bool, integers, floats, complex
    numbers; sizes do not matter.

    >>> import pydist
    >>> pydist.can_cast(pydist.float64, pydist.float32), pydist.can_cast(pydist.float32, pydist.int64)
    (True, False)
    """

    def kind(dtype):
        return 3 if dtype.is_complex else 2 if dtype.is_floating_point else 1 if dtype in _INTS else 0

    return kind(from_) <= kind(to)
