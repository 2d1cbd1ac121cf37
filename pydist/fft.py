"""Discrete Fourier transforms with PyTorch's names, by NumPy's pocketfft on the CPU. All have gradients of any order.

norm, as in PyTorch, says which transform is divided. None or "backward": the inverse one by n; "forward": the forward
one by n; "ortho": both by sqrt(n).

>>> import pydist
>>> pydist.fft.fft(pydist.tensor([1.0, 0.0, 0.0, 0.0])).tolist()
[(1+0j), (1+0j), (1+0j), (1+0j)]
"""

import math

from pydist import _C
from pydist._functions._register import array_of, as_tuple, axis_of, with_out
from pydist.autograd import Function

__all__ = (
    "fft ifft rfft irfft hfft ihfft fft2 ifft2 rfft2 irfft2 fftn ifftn rfftn irfftn fftfreq rfftfreq fftshift ifftshift"
).split()


def _computed(input, dtype, run, sizes=None):
    """The result of the NumPy function `run` for input's array, as a tensor of dtype. sizes: those that differ from
    input's, by dimension."""
    if input.is_meta:
        shape = [(sizes or {}).get(d, n) for d, n in enumerate(input.shape)]
        return _C.empty(shape, dtype=dtype, device="meta")
    import numpy as np

    return _C.from_numpy(np.ascontiguousarray(run(np.fft, array_of(input)))).to(input.device, dtype)


class _Complex(Function):
    """sum_j x[j] exp(-+2 pi i j k / n) along dims, without division."""

    @staticmethod
    def forward(ctx, x, dims, inverse):
        ctx.rest = dims, inverse
        name, norm = ("ifftn", "forward") if inverse else ("fftn", "backward")
        return _computed(x, x.dtype, lambda fft, a: getattr(fft, name)(a, axes=dims, norm=norm))

    @staticmethod
    def backward(ctx, g):
        dims, inverse = ctx.rest
        return _Complex.apply(g, dims, not inverse), None, None


class _Real(Function):
    """The first n // 2 + 1 elements of the transform of a real x along one dim; the others are their conjugates."""

    @staticmethod
    def forward(ctx, x, dim):
        ctx.rest = dim, x.shape[dim]
        return _computed(x, x.dtype.to_complex(), lambda fft, a: fft.rfft(a, axis=dim), {dim: x.shape[dim] // 2 + 1})

    @staticmethod
    def backward(ctx, g):
        dim, n = ctx.rest
        return _Complex.apply(_resized(g, (n,), (dim,)), (dim,), True).real, None


class _Half(Function):
    """The real x of length n whose conjugate-symmetric spectrum begins with y, without division."""

    @staticmethod
    def forward(ctx, y, n, dim):
        ctx.dim = dim
        return _computed(y, y.dtype.to_real(), lambda fft, a: fft.irfft(a, n, axis=dim, norm="forward"), {dim: n})

    @staticmethod
    def backward(ctx, g):
        n, dim = g.shape[ctx.dim], ctx.dim
        weight = _C.full([n // 2 + 1 if d == dim else 1 for d in range(g.dim())], 2.0, dtype=g.dtype, device=g.device)
        weight.select(dim, 0).fill_(1)
        if n % 2 == 0:
            weight.select(dim, n // 2).fill_(1)
        return _Real.apply(g, dim) * weight, None, None


def _resized(x, sizes, dims):
    """x cut, or padded with zeros, to sizes along dims."""
    pad = [0] * (2 * x.dim())
    for size, dim in zip(sizes, dims):
        pad[2 * (x.dim() - 1 - dim) + 1] = size - x.shape[dim]
    return _C.constant_pad_nd(x, pad, 0) if any(pad) else x


def _places(name, x, s, dim):
    """(sizes, dims) of the dimensions to transform; all dimensions if s and dim are not given."""
    if dim is None:
        dims = range(x.dim()) if s is None else range(x.dim() - len(as_tuple(s)), x.dim())
    else:
        dims = as_tuple(dim)
    dims = tuple(axis_of(name, d, x.dim()) for d in dims)
    sizes = [x.shape[d] for d in dims] if s is None else list(as_tuple(s))
    if len(sizes) != len(dims) or len({*dims}) < len(dims) or not x.dim():
        raise RuntimeError(
            f"{name}: sizes {s} and dims {dim} for shape {tuple(x.shape)} (expected one size per dim, and each dim once)"
        )
    return [x.shape[d] if size == -1 else size for size, d in zip(sizes, dims)], dims


def _scaled(name, y, sizes, norm, inverse):
    divided = {None: inverse, "backward": inverse, "forward": not inverse, "ortho": 0.5}
    if norm not in divided:
        raise RuntimeError(f"{name}: norm is {norm!r} (expected 'backward', 'forward', 'ortho' or None)")
    n = math.prod(sizes)
    if n < 1 or min(sizes, default=1) < 1:
        raise RuntimeError(f"{name}: {n} points along the dimensions {sizes} (expected at least 1)")
    return y / n ** float(divided[norm]) if divided[norm] else y


def _floating(name, x, complex_too=True):
    if x.is_complex() and not complex_too:
        raise RuntimeError(f"{name}: input is {x.dtype} (expected real numbers)")
    if x.is_complex() or x.dtype in (_C.float32, _C.float64):
        return x
    if x.is_floating_point():
        raise RuntimeError(f"{name}: input is {x.dtype} (expected float32, float64 or complex numbers)")
    return x.to(_C.get_default_dtype())


def _to_complex(name, x, s, dim, norm, inverse):
    x = _floating(name, x)
    sizes, dims = _places(name, x, s, dim)
    wide = _resized(x.to(x.dtype.to_complex()), sizes, dims)
    return _scaled(name, _Complex.apply(wide, dims, inverse) if wide.numel() else wide, sizes, norm, inverse)


def _of_real(name, x, s, dim, norm):
    x = _floating(name, x, complex_too=False)
    sizes, dims = _places(name, x, s, dim)
    y = _scaled(name, _resized(x, sizes, dims), sizes, norm, False)
    y = _Real.apply(y, dims[-1])
    return _Complex.apply(y, dims[:-1], False) if len(dims) > 1 else y


def _to_real(name, y, s, dim, norm):
    y = _floating(name, y)
    sizes, dims = _places(name, y, s, dim)
    if s is None:
        sizes[-1] = 2 * (y.shape[dims[-1]] - 1)
    y = _resized(y.to(y.dtype.to_complex()), [*sizes[:-1], sizes[-1] // 2 + 1], dims)
    y = _scaled(name, y, sizes, norm, True)
    y = _Complex.apply(y, dims[:-1], True) if len(dims) > 1 else y
    return _Half.apply(y, sizes[-1], dims[-1])


def fft(input, n=None, dim=-1, norm=None):
    """X[k] = sum_j x[j] exp(-2 pi i j k / n) along dim. x is cut, or padded with zeros, to n elements."""
    return _to_complex("fft", input, n, dim, norm, False)


def ifft(input, n=None, dim=-1, norm=None):
    """x[j] = 1/n sum_k X[k] exp(2 pi i j k / n) along dim."""
    return _to_complex("ifft", input, n, dim, norm, True)


def rfft(input, n=None, dim=-1, norm=None):
    """The first n // 2 + 1 elements of fft of real numbers; the others are their conjugates.

    >>> import pydist
    >>> pydist.fft.rfft(pydist.ones(4)).tolist()
    [(4+0j), 0j, 0j]
    """
    return _of_real("rfft", input, n, dim, norm)


def irfft(input, n=None, dim=-1, norm=None):
    """The n real numbers (default: 2 (size - 1)) whose rfft is input."""
    return _to_real("irfft", input, n, dim, norm)


def hfft(input, n=None, dim=-1, norm=None):
    """The fft of a conjugate-symmetric signal, of which input is the first half. The result is real."""
    turned = {None: "forward", "backward": "forward", "forward": "backward"}.get(norm, norm)
    return _to_real("hfft", input.conj(), n, dim, turned)


def ihfft(input, n=None, dim=-1, norm=None):
    """The first half of the ifft of real numbers."""
    turned = {None: "forward", "backward": "forward", "forward": "backward"}.get(norm, norm)
    return _of_real("ihfft", input, n, dim, turned).conj()


def fft2(input, s=None, dim=(-2, -1), norm=None):
    """fft along two dimensions."""
    return _to_complex("fft2", input, s, dim, norm, False)


def ifft2(input, s=None, dim=(-2, -1), norm=None):
    """ifft along two dimensions."""
    return _to_complex("ifft2", input, s, dim, norm, True)


def rfft2(input, s=None, dim=(-2, -1), norm=None):
    """rfft along the last of two dimensions, fft along the other one."""
    return _of_real("rfft2", input, s, dim, norm)


def irfft2(input, s=None, dim=(-2, -1), norm=None):
    """The real numbers whose rfft2 is input."""
    return _to_real("irfft2", input, s, dim, norm)


def fftn(input, s=None, dim=None, norm=None):
    """fft along dims; along all dimensions if dim is not given."""
    return _to_complex("fftn", input, s, dim, norm, False)


def ifftn(input, s=None, dim=None, norm=None):
    """ifft along dims; along all dimensions if dim is not given."""
    return _to_complex("ifftn", input, s, dim, norm, True)


def rfftn(input, s=None, dim=None, norm=None):
    """rfft along the last of dims, fft along the others; dims are all dimensions if dim is not given."""
    return _of_real("rfftn", input, s, dim, norm)


def irfftn(input, s=None, dim=None, norm=None):
    """The real numbers whose rfftn is input."""
    return _to_real("irfftn", input, s, dim, norm)


def _frequencies(counts, span, dtype, requires_grad, pin_memory):
    made = (counts.double() / span).to(dtype or _C.get_default_dtype())
    return (made.pin_memory() if pin_memory else made).requires_grad_(requires_grad)


def fftfreq(n, d=1.0, *, dtype=None, device=None, requires_grad=False, layout=None, pin_memory=None):
    """The frequencies of fft's elements for samples d apart: [0, 1, ..., -2, -1] / (n d).

    >>> import pydist
    >>> pydist.fft.fftfreq(4)
    tensor([ 0.0000,  0.2500, -0.5000, -0.2500])
    """
    half = (n - 1) // 2 + 1
    counts = _C.cat([_C.arange(half, device=device), _C.arange(-(n // 2), 0, device=device)])
    return _frequencies(counts, n * d, dtype, requires_grad, pin_memory)


def rfftfreq(n, d=1.0, *, dtype=None, device=None, requires_grad=False, layout=None, pin_memory=None):
    """The frequencies of rfft's elements: [0, 1, ..., n // 2] / (n d)."""
    return _frequencies(_C.arange(n // 2 + 1, device=device), n * d, dtype, requires_grad, pin_memory)


def fftshift(input, dim=None):
    """input with frequency 0 moved to the middle along dims; along all dimensions if dim is not given."""
    dims = range(input.dim()) if dim is None else as_tuple(dim)
    return input.roll([input.shape[d] // 2 for d in dims], tuple(dims))


def ifftshift(input, dim=None):
    """The inverse of fftshift."""
    dims = range(input.dim()) if dim is None else as_tuple(dim)
    return input.roll([(input.shape[d] + 1) // 2 for d in dims], tuple(dims))


for _name in __all__[:-2]:
    globals()[_name] = with_out(globals()[_name])
