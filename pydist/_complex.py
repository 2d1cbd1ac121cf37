"""Pairs of a real and an imaginary tensor, as rotary embeddings use complex numbers: polar, complex, view_as_complex,
products, view_as_real. There are no complex dtypes: a Complex is no Tensor and no parameter, and other functions do not
take one.
"""

from pydist import _C
from pydist._C import Tensor


class Complex:
    """real + i imag, of one shape and floating dtype; gradients flow to both."""

    def __init__(self, real, imag):
        self.real, self.imag = real, imag

    shape = property(lambda self: self.real.shape)
    ndim = property(lambda self: self.real.ndim)
    device = property(lambda self: self.real.device)
    requires_grad = property(lambda self: self.real.requires_grad or self.imag.requires_grad)

    def size(self, dim=None):
        return self.shape if dim is None else self.shape[dim]

    def dim(self):
        return self.ndim

    def numel(self):
        return self.real.numel()

    def is_complex(self):
        return True

    def __mul__(self, other):
        if isinstance(other, Complex):
            real = self.real * other.real - self.imag * other.imag
            return Complex(real, self.real * other.imag + self.imag * other.real)
        return Complex(self.real * other, self.imag * other)

    __rmul__ = __mul__

    def __add__(self, other):
        if isinstance(other, Complex):
            return Complex(self.real + other.real, self.imag + other.imag)
        return Complex(self.real + other, self.imag.clone())

    __radd__ = __add__

    def __neg__(self):
        return Complex(-self.real, -self.imag)

    def __sub__(self, other):
        return self + -other

    def __rsub__(self, other):
        return -self + other

    def __truediv__(self, other):
        if isinstance(other, Complex):
            return self * other.conj() / (other.real * other.real + other.imag * other.imag)
        return Complex(self.real / other, self.imag / other)

    def conj(self):
        """real - i imag."""
        return Complex(self.real, -self.imag)

    def abs(self):
        """The distance from 0."""
        return (self.real * self.real + self.imag * self.imag).sqrt()

    def angle(self):
        """The angle to the positive real axis."""
        return _C.atan2(self.imag, self.real)

    def exp(self):
        """e to this power."""
        return polar(self.real.exp(), self.imag)

    def __getitem__(self, key):
        return Complex(self.real[key], self.imag[key])

    def tolist(self):
        """Nested lists of Python's complex numbers."""

        def pairs(a, b):
            return [pairs(x, y) for x, y in zip(a, b)] if isinstance(a, list) else complex_number(a, b)

        return pairs(self.real.tolist(), self.imag.tolist())

    def __repr__(self):
        return f"Complex(real={self.real}, imag={self.imag})"


complex_number = complex


def _of_both(name):
    def method(self, *args, **kwargs):
        return Complex(getattr(self.real, name)(*args, **kwargs), getattr(self.imag, name)(*args, **kwargs))

    method.__name__, method.__doc__ = name, f"Tensor.{name} of both parts."
    setattr(Complex, name, method)


for _name in (
    "view reshape expand unsqueeze squeeze flatten transpose permute contiguous clone detach to cpu cuda repeat repeat_interleave "
    "narrow select index_select sum mean"
).split():
    _of_both(_name)


def complex(real, imag):  # noqa: A001
    """real + i imag."""
    if real.dtype is not imag.dtype or not real.is_floating_point():
        raise RuntimeError(f"complex: {real.dtype} and {imag.dtype} (expected one floating dtype)")
    return Complex(*(t.expand((real + imag).shape) for t in (real, imag)))


def polar(abs, angle):
    """abs * (cos(angle) + i sin(angle)).

    >>> import pydist
    >>> pydist.polar(pydist.tensor(2.0), pydist.tensor(0.0)).tolist()
    (2+0j)
    """
    if abs.dtype is not angle.dtype or not abs.is_floating_point():
        raise RuntimeError(f"polar: {abs.dtype} and {angle.dtype} (expected one floating dtype)")
    return complex(abs * angle.cos(), abs * angle.sin())


def view_as_complex(input):
    """input[..., 2] as complex numbers [...]."""
    if input.dim() < 1 or input.shape[-1] != 2 or not input.is_floating_point():
        raise RuntimeError(
            f"view_as_complex: {input.dtype} of shape {tuple(input.shape)} (expected floating numbers [..., 2])"
        )
    return Complex(*input.unbind(-1))


def view_as_real(input):
    """Complex numbers [...] as their parts [..., 2]."""
    if not isinstance(input, Complex):
        kind = f"a Tensor of {input.dtype}" if isinstance(input, Tensor) else type(input).__name__
        raise RuntimeError(f"view_as_real: input is {kind} (expected complex numbers)")
    return _C.stack([input.real, input.imag], -1)
