"""Quantiles, running reductions, differences, distances and moments."""

import math

from pydist import _C
from pydist._C import Tensor
from pydist._autocast import in_float32
from pydist._functions._register import axis_of, both, function, holds, in_place, values_indices
from pydist._functions.elementwise import isnan
from pydist._functions.indexing import masked_fill, shared_by_equals
from pydist._functions.reduce import norm


@both
def nansum(input, dim=None, keepdim=False, *, dtype=None):
    """The sum, in which NaN counts as 0."""
    kept = masked_fill(input, isnan(input), 0) if input.is_floating_point() else input
    return kept.sum(dim, keepdim=keepdim, dtype=dtype)


@both
def nanmean(input, dim=None, keepdim=False, *, dtype=None):
    """The mean of the elements that are not NaN."""
    return nansum(input, dim, keepdim, dtype=dtype) / (~isnan(input)).sum(dim, keepdim=keepdim)


def _at_quantile(values, count, q, interpolation):
    """The element at q * (count - 1), or between two elements, of values that are sorted along the last dimension."""
    at = q * (count - 1)
    if interpolation == "nearest":
        at = at.round()
    low, high = at.floor(), at.ceil()
    if interpolation in ("lower", "nearest"):
        return values.gather(-1, low.long())
    if interpolation == "higher":
        return values.gather(-1, high.long())
    part = (at - low).to(values.dtype) if interpolation == "linear" else 0.5
    below, above = values.gather(-1, low.long()), values.gather(-1, high.long())
    return below + (above - below) * part


def _quantile(name, input, q, dim, keepdim, interpolation, skip_nan):
    if interpolation not in ("linear", "lower", "higher", "midpoint", "nearest"):
        raise RuntimeError(f"{name}: interpolation is {interpolation!r}")
    if not input.is_floating_point() or not input.numel():
        raise RuntimeError(
            f"{name}: input is {input.dtype} of shape {tuple(input.shape)} (expected floating numbers, not empty)"
        )
    single = not isinstance(q, Tensor) or q.dim() == 0
    q = (q if isinstance(q, Tensor) else _C.tensor(q, dtype=input.dtype, device=input.device)).reshape(-1)
    if not holds((q >= 0) & (q <= 1)):
        raise RuntimeError(f"{name}: q must be from 0 to 1")
    whole = [1] * input.dim()
    if dim is None:
        rows, back = input.reshape(1, -1), None
    else:
        back = axis_of(name, dim, input.dim())
        rows = input.movedim(back, -1) if input.dim() else input.reshape(1)
        whole = [n for d, n in enumerate(input.shape) if d != back]
    values = rows.sort(-1).values  # NaN comes last
    count = (~isnan(values)).sum(-1, keepdim=True)
    wide = q.double().expand(*values.shape[:-1], q.numel())
    if skip_nan:
        found = _at_quantile(values, count.clamp(1), wide, interpolation)
        found = masked_fill(found, count == 0, math.nan)
    else:
        found = _at_quantile(values, values.shape[-1], wide, interpolation)
        found = masked_fill(found, count < values.shape[-1], math.nan)
    if dim is None:
        found = found.reshape(-1, *(whole if keepdim else []))
    else:
        found = found.movedim(-1, 0) if input.dim() else found
        found = found.unsqueeze(back + 1) if keepdim and input.dim() else found
    return found[0] if single else found


@both
@in_float32
def quantile(input, q, dim=None, keepdim=False, *, interpolation="linear"):
    """The numbers below which the shares q of the elements are, along dim or of all."""
    return _quantile("quantile", input, q, dim, keepdim, interpolation, False)


@both
@in_float32
def nanquantile(input, q, dim=None, keepdim=False, *, interpolation="linear"):
    """quantile of the elements that are not NaN."""
    return _quantile("nanquantile", input, q, dim, keepdim, interpolation, True)


@both
@values_indices
def nanmedian(input, dim=None, keepdim=False):
    """median of the elements that are not NaN."""
    flat = input.reshape(-1) if dim is None else input
    if dim is None and not flat.numel():
        return _C.full((), math.nan, dtype=input.dtype, device=input.device)
    values, order = flat.sort(-1 if dim is None else dim)
    along = 0 if dim is None else axis_of("nanmedian", dim, input.dim())
    if dim is not None and 0 in input.shape[along : along + 1]:
        raise _C.PositionError(f"nanmedian: shape {tuple(input.shape)} has no element along dimension {dim}")
    middle = ((~isnan(values)).sum(along, keepdim=True) - 1).clamp(0) // 2
    value, index = values.gather(along, middle), order.gather(along, middle)
    if dim is None:
        return shared_by_equals(flat, value.reshape(()))
    return (value, index) if keepdim else (value.squeeze(along), index.squeeze(along))


# Running reductions.


@in_place
@both
def cumprod(input, dim, *, dtype=None):
    """The product of all elements up to each one, along dim. Integers and bool give int64."""
    x = input.to(dtype) if dtype is not None else input if input.is_floating_point() else input.long()
    along = axis_of("cumprod", dim, input.dim())
    if input.dim() == 0:
        return x.clone()
    # doubling: after step k each element is the product of 2 ** k elements up to it
    step, n = 1, x.shape[along]
    while step < n:
        x = _C.cat([x.narrow(along, 0, step), x.narrow(along, step, n - step) * x.narrow(along, 0, n - step)], along)
        step *= 2
    return x.clone() if n <= 1 else x


def _running_extreme(input, dim, largest):
    along = axis_of("cummax" if largest else "cummin", dim, input.dim())
    if input.dim() == 0:
        return input.clone(), _C.zeros((), dtype=_C.int64, device=input.device)
    x, n, step = input.detach(), input.shape[along], 1
    at = (
        _C.arange(n, device=input.device)
        .reshape([-1 if d == along else 1 for d in range(input.dim())])
        .expand(input.shape)
        .clone()
    )
    while step < n:
        here, before = x.narrow(along, step, n - step), x.narrow(along, 0, n - step)
        wins = (before > here) if largest else (before < here)  # of equal elements the later one
        if x.is_floating_point():
            wins = (wins | isnan(before)) & ~isnan(here)
        x = _C.cat([x.narrow(along, 0, step), _C.where(wins, before, here)], along)
        places = _C.where(wins, at.narrow(along, 0, n - step), at.narrow(along, step, n - step))
        at = _C.cat([at.narrow(along, 0, step), places], along)
        step *= 2
    return input.gather(along, at), at


@both
@values_indices
def cummax(input, dim):
    """(values, indices): along dim, the largest of all elements up to each one, and its position."""
    return _running_extreme(input, dim, True)


@both
@values_indices
def cummin(input, dim):
    """(values, indices): along dim, the smallest of all elements up to each one, and its position."""
    return _running_extreme(input, dim, False)


@both
def logcumsumexp(input, dim):
    """Along dim, the logarithm of the sum of the exponentials of all elements up to each one."""
    along, x, step = axis_of("logcumsumexp", dim, input.dim()), input, 1
    if input.dim() == 0:
        return input.clone()
    n = x.shape[along]
    while step < n:
        sums = _C.logaddexp(x.narrow(along, step, n - step), x.narrow(along, 0, n - step))
        x = _C.cat([x.narrow(along, 0, step), sums], along)
        step *= 2
    return x.clone() if n <= 1 else x


@both
def diff(input, n=1, dim=-1, prepend=None, append=None):
    """The differences of neighbours along dim, taken n times."""
    along = axis_of("diff", dim, input.dim())
    if input.dim() == 0 or n < 0:
        raise RuntimeError(f"diff: shape {tuple(input.shape)}, n {n} (expected at least 1 dimension, n at least 0)")
    parts = [t for t in (prepend, input, append) if t is not None]
    x = _C.cat(parts, along) if len(parts) > 1 else input
    for _ in range(min(n, x.shape[along])):  # then no element is left
        size = max(x.shape[along] - 1, 0)
        after, before = x.narrow(along, min(1, x.shape[along]), size), x.narrow(along, 0, size)
        x = after != before if x.dtype is _C.bool else after - before
    return x


def _strips(name, y, x, dx, dim):
    along = axis_of(name, dim, y.dim())
    if y.dim() == 0:
        raise IndexError(f"{name}: y has no dimensions (expected at least 1)")
    n = y.shape[along]
    if x is not None and x.dim() == 1 and x.shape[0] != n:
        raise RuntimeError(f"{name}: x has {x.shape[0]} positions, y {n} values along dim {dim} (expected as many)")
    sums = y.narrow(along, min(n, 1), max(n - 1, 0)) + y.narrow(along, 0, max(n - 1, 0))
    if x is None:
        return sums * (dx / 2), along
    if x.dim() == 1 and y.dim() > 1:
        x = x.reshape([-1 if d == along else 1 for d in range(y.dim())])
        return sums * diff(x, dim=along) / 2, along
    return sums * diff(x, dim=dim) / 2, along


@both
def trapezoid(y, x=None, *, dx=1, dim=-1):
    """The integral of y along dim by the trapezoidal rule, at the positions x or with distance dx.

    Where x has one dimension, it has as many positions as y has values along dim; otherwise the distances of its neighbours
    along dim are broadcast."""
    if y.dim() and not y.shape[axis_of("trapezoid", dim, y.dim())]:
        return _C.zeros_like(y.detach().sum(dim), dtype=y.dtype)  # of nothing, wherever it lies
    strips, along = _strips("trapezoid", y, x, dx, dim)
    return strips.sum(along)


@function
def trapz(y, x=None, *, dx=1, dim=-1):
    """The same as trapezoid."""
    return trapezoid(y, x, dx=dx, dim=dim)


@function
def cumulative_trapezoid(y, x=None, *, dx=1, dim=-1):
    """The integral up to each element except the first."""
    strips, along = _strips("cumulative_trapezoid", y, x, dx, dim)
    return strips.cumsum(along)


# Distances and moments.


@both
def dist(input, other, p=2):
    """The p-norm of input - other."""
    return norm(input - other, p)


@in_place
@both
def renorm(input, p, dim, maxnorm):
    """input, in which each slice along dim with a p-norm greater than maxnorm is scaled down to maxnorm."""
    along = axis_of("renorm", dim, input.dim())
    if input.dim() < 2 or p <= 0 or maxnorm < 0:
        got = f"shape {tuple(input.shape)}, p {p}, maxnorm {maxnorm}"
        raise RuntimeError(f"renorm: {got} (expected at least 2 dimensions, p above 0, maxnorm at least 0)")
    rest = tuple(d for d in range(input.dim()) if d != along)
    size = norm(input, p, rest, keepdim=True)
    return input * _C.where(size > maxnorm, maxnorm / (size + 1e-7), 1.0)


@both
def cov(input, *, correction=1, fweights=None, aweights=None):
    """The covariances of the rows of input[variables, observations] (or of one row), with weights if given."""
    if input.dim() > 2:
        raise RuntimeError(f"cov: shape {tuple(input.shape)} (expected at most 2 dimensions)")
    x = input.reshape(1, -1) if input.dim() < 2 else input
    x = x if x.is_floating_point() or x.is_complex() else x.to(_C.get_default_dtype())
    w = fweights if aweights is None else aweights if fweights is None else fweights * aweights
    count = x.shape[1] if w is None else w.sum()
    mean = x.mean(1, keepdim=True) if w is None else (x * w).sum(1, keepdim=True) / count
    away = x - mean
    if aweights is None:
        less = count - correction
    else:
        less = count - correction * (w * aweights).sum() / count
    less = less.clamp(0) if isinstance(less, Tensor) else max(less, 0)
    c = (away if w is None else away * w) @ away.T / less
    return c.reshape(()) if c.numel() == 1 else c


@both
def corrcoef(input):
    """The correlations of the rows of input[variables, observations]."""
    c = cov(input)
    if c.dim() == 0:
        return c / c
    spread = c.diagonal().sqrt()
    return (c / spread.unsqueeze(1) / spread).clamp(-1, 1)
