"""Padding."""

from pydist.nn import functional as F
from pydist.nn.modules.module import Module


class _Pad(Module):
    """y is x with `padding` more elements (an int, or the numbers before and after along the last dimension, the one
    before it, ...) along the {dims} last dimensions, {what}. Negative numbers remove elements."""

    def __init__(self, padding):
        super().__init__()
        self.padding = (padding,) * (2 * self._dims) if isinstance(padding, int) else tuple(padding)
        if len(self.padding) != 2 * self._dims:
            raise ValueError(f"{type(self).__name__}: {len(self.padding)} numbers (expected {2 * self._dims})")

    def forward(self, input):
        return F.pad(input, self.padding, self._mode)

    def extra_repr(self):
        return f"{self.padding}"


class _ConstantPad(_Pad):
    _mode = "constant"

    def __init__(self, padding, value):
        super().__init__(padding)
        self.value = value

    def forward(self, input):
        return F.pad(input, self.padding, "constant", self.value)

    def extra_repr(self):
        return f"padding={self.padding}, value={self.value}"


class _ZeroPad(_ConstantPad):
    def __init__(self, padding):
        super().__init__(padding, 0.0)

    extra_repr = _Pad.extra_repr


def _kind(name, dims, base, mode, what):
    doc = _Pad.__doc__.format(dims=dims, what=what)
    return type(name, (base,), {"__doc__": doc, "__module__": __name__, "_dims": dims, "_mode": mode})


_VALUE, _ZERO = "all of them `value`", "all of them 0"
ConstantPad1d, ConstantPad2d, ConstantPad3d = (
    _kind(f"ConstantPad{d}d", d, _ConstantPad, "constant", _VALUE) for d in (1, 2, 3)
)
ZeroPad1d, ZeroPad2d, ZeroPad3d = (_kind(f"ZeroPad{d}d", d, _ZeroPad, "constant", _ZERO) for d in (1, 2, 3))
_MIRROR, _COPY, _ROUND = "mirrored at the border element", "copies of the border element", "from the other end"
ReflectionPad1d, ReflectionPad2d, ReflectionPad3d = (
    _kind(f"ReflectionPad{d}d", d, _Pad, "reflect", _MIRROR) for d in (1, 2, 3)
)
ReplicationPad1d, ReplicationPad2d, ReplicationPad3d = (
    _kind(f"ReplicationPad{d}d", d, _Pad, "replicate", _COPY) for d in (1, 2, 3)
)
CircularPad1d, CircularPad2d, CircularPad3d = (
    _kind(f"CircularPad{d}d", d, _Pad, "circular", _ROUND) for d in (1, 2, 3)
)
