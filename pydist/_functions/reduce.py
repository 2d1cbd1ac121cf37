"""Reductions of all elements, or along dimensions."""

import math
from collections import namedtuple

from pydist import _C
from pydist._functions._register import as_tuple, axis_of, both
from pydist._functions.elementwise import isinf
from pydist._functions.indexing import masked_fill


def _count(input, dim):
    if dim is None or dim == ():
        return input.numel()
    return math.prod(input.shape[axis_of("var", d, input.dim())] if input.dim() else 1 for d in as_tuple(dim))


def _correction(dim, unbiased, correction):
    """In var(x, unbiased) the flag is in the place of dim: this moves it."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    return dim, (0 if unbiased is False else 1) if correction is None else correction


@both
def var(input, dim=None, unbiased=None, keepdim=False, *, correction=None):
    """The mean squared distance from the mean over dim (default: over all), divided by n - correction instead of n
    (correction is 1; unbiased=False: 0)."""
    dim, correction = _correction(dim, unbiased, correction)
    away = input - input.mean(dim, keepdim=True)
    n = _count(input, dim) - correction
    away = away.abs() if input.is_complex() else away
    return away.square_sum(dim, keepdim) / float(max(n, 0))


def _root(square):
    """The square root, with gradient 0 at 0."""
    if not (square.requires_grad and _C.is_grad_enabled()):
        return square.sqrt()
    zero = square == 0
    return masked_fill(masked_fill(square, zero, 1.0).sqrt(), zero, 0.0)


@both
def std(input, dim=None, unbiased=None, keepdim=False, *, correction=None):
    """The square root of var."""
    return _root(var(input, dim, unbiased, keepdim, correction=correction))


@both
def var_mean(input, dim=None, unbiased=None, keepdim=False, *, correction=None):
    """(var, mean)."""
    over = None if isinstance(dim, bool) else dim
    return var(input, dim, unbiased, keepdim, correction=correction), input.mean(over, keepdim=keepdim)


@both
def std_mean(input, dim=None, unbiased=None, keepdim=False, *, correction=None):
    """(std, mean)."""
    over = None if isinstance(dim, bool) else dim
    return std(input, dim, unbiased, keepdim, correction=correction), input.mean(over, keepdim=keepdim)


@both
def norm(input, p="fro", dim=None, keepdim=False, dtype=None):
    """sum(|x| ** p) ** (1 / p) over dim (default: over all). p "fro" means 2; infinite p: the largest |x|; p 0: the
    number of elements that are not 0."""
    if p in (None, "fro"):
        p = 2
    if not isinstance(p, (int, float)):
        raise RuntimeError(f"norm: p is {p!r} (expected a number or 'fro')")
    input = input if dtype is None else input.to(dtype)
    input = input.abs() if input.is_complex() else input
    if not input.is_floating_point():
        raise RuntimeError(f"norm: input is {input.dtype} (expected a floating dtype)")
    plain = not (input.requires_grad and _C.is_grad_enabled()) and _C.spread_of(input) is None
    if p == 2 and dim is None and not keepdim and plain and input.is_contiguous():
        return _C.sums_of_squares([input]).sum().sqrt().to(input.dtype)
    if p == 2:
        return _root(input.square_sum(dim, keepdim))
    size = input.abs()
    if p == 1:
        return size.sum(dim, keepdim=keepdim)
    if math.isinf(p):
        return size.amax(dim, keepdim=keepdim) if p > 0 else size.amin(dim, keepdim=keepdim)
    if p == 0:
        nonzero = input != 0
        # the gradient of a count is 0
        return masked_fill(masked_fill(input, nonzero, 1.0), ~nonzero, 0.0).sum(dim, keepdim=keepdim)
    if 0 < p < 1:  # the power has no gradient at 0
        zero = size == 0
        powers = masked_fill(masked_fill(size, zero, 1.0) ** p, zero, 0.0)
    else:
        powers = size**p
    total = powers.sum(dim, keepdim=keepdim)
    zero = total == 0  # at 0 the root has no gradient
    return masked_fill(masked_fill(total, zero, 1.0) ** (1.0 / p), zero, 0.0 if p > 0 else math.inf)


@both
def logsumexp(input, dim, keepdim=False):
    """log(sum(exp(input))) over dim, without overflow."""
    input = input if input.is_floating_point() else input.to(_C.get_default_dtype())
    top = input.detach().amax(dim, keepdim=True) if input.numel() else input.detach().sum(dim, keepdim=True)
    top = masked_fill(top, isinf(top), 0.0)
    total = (input - top).exp().sum(dim, keepdim=keepdim).log()
    return total + (top if keepdim else top.reshape(total.shape))


_Extremes = namedtuple("aminmax", "min max")


@both
def aminmax(input, *, dim=None, keepdim=False):
    """(min, max): amin and amax in one call."""
    return _Extremes(input.amin(dim, keepdim=keepdim), input.amax(dim, keepdim=keepdim))
