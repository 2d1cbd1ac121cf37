"""Special functions, elementwise, computed in float64."""

import math

from pydist import _C
from pydist._C import Tensor
from pydist._functions._register import both, function, in_place
from pydist._functions.elementwise import isnan
from pydist._functions.elements import xlogy
from pydist._functions.indexing import masked_fill
from pydist.autograd import Function


def _wide(formula):
    """The function computed in float64, in the input's dtype (integers: the default float dtype)."""

    def apply(input, *args):
        dtype = input.dtype if input.is_floating_point() else _C.get_default_dtype()
        return formula(input.double(), *args).to(dtype)

    apply.__name__ = apply.__qualname__ = formula.__name__
    apply.__doc__ = formula.__doc__
    return apply


# The gamma function and its logarithmic derivatives: the argument is moved beyond 10, where Stirling's series holds.

_SHIFT = 10
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)  # B2, B4, ...


def _stirling(y):
    series = sum(b / ((2 * k + 2) * (2 * k + 1)) * y ** -(2 * k + 1) for k, b in enumerate(_BERNOULLI))
    return (y - 0.5) * y.log() - y + 0.5 * math.log(2 * math.pi) + series


def _of_positive(x):
    product = x
    for k in range(1, _SHIFT):
        product = product * (x + k)
    return _stirling(x + _SHIFT) - product.log()


@in_place
@both
@_wide
def lgamma(input):
    """log |Gamma(input)|."""
    mirrored = input < 0.5
    x = _C.where(mirrored, 1 - input, input)
    huge = x > 1e8
    value = _C.where(huge, _stirling(masked_fill(x, ~huge, 1e8)), _of_positive(masked_fill(x, huge, 1.0)))
    sine = masked_fill(
        (masked_fill(input, ~mirrored, 0.25) * math.pi).sin().abs(), (input == input.floor()) & mirrored, 0.0
    )
    return _C.where(mirrored, math.log(math.pi) - sine.log() - value, value)


@in_place
@both
@_wide
def digamma(input):
    """The derivative of lgamma."""
    mirrored = input < 0.5
    x = _C.where(mirrored, 1 - input, input)
    y = x + _SHIFT
    value = y.log() - 0.5 / y - sum(b / (2 * k + 2) * y ** -(2 * k + 2) for k, b in enumerate(_BERNOULLI))
    for k in range(_SHIFT):
        value = value - 1 / (x + k)
    pole = (input == input.floor()) & (input <= 0)
    safe = masked_fill(masked_fill(input, ~mirrored, 0.25), pole, 0.25)
    value = _C.where(mirrored, value - math.pi / (safe * math.pi).tan(), value)
    value = masked_fill(value, pole, math.nan)
    return _C.where(input == 0, -(1 / input), value)


def _hurwitz(s, x):
    """The sum of (x + k) ** -s over k >= 0 (Euler-Maclaurin)."""
    y = x + _SHIFT
    value = y ** (1 - s) / (s - 1) + 0.5 * y**-s
    for k in range(_SHIFT):
        value = value + (x + k) ** -s
    factor = s
    for k, b in enumerate(_BERNOULLI):
        value = value + b / math.factorial(2 * k + 2) * factor * y ** (-s - 2 * k - 1)
        factor = factor * (s + 2 * k + 1) * (s + 2 * k + 2)
    return value


def zeta(input, other):
    """The sum of (other + k) ** -input over all k >= 0 (Hurwitz), for input > 1."""
    dtype = next((t.dtype for t in (input, other) if isinstance(t, Tensor)), None)
    input, other = (t.double() if isinstance(t, Tensor) else t for t in (input, other))
    value = _hurwitz(input, other)
    return value.to(dtype) if dtype.is_floating_point else value.float()


@function
def polygamma(n, input):
    """The n-th derivative of digamma."""
    if n < 0:
        raise RuntimeError(f"polygamma: n is {n} (expected at least 0)")
    if n == 0:
        return digamma(input)
    factor = (1 if n % 2 else -1) * (float(math.factorial(n)) if n <= 170 else math.inf)  # more than a double can hold
    value = factor * _hurwitz(n + 1.0, input.double())
    return value.to(input.dtype if input.is_floating_point() else _C.float32)


@both
def mvlgamma(input, p):
    """The logarithm of the p-dimensional gamma function."""
    if p < 1 or not ((input > (p - 1) / 2).all().item()):
        raise RuntimeError(f"mvlgamma: p is {p} (expected p >= 1 and input > (p - 1) / 2)")
    halves = _C.arange(p, dtype=_C.float64) / 2
    return (lgamma(input.double().unsqueeze(-1) - halves).sum(-1) + p * (p - 1) / 4 * math.log(math.pi)).to(input.dtype)


def _polygamma(self, n):
    """The n-th derivative of digamma."""
    return polygamma(n, self)


Tensor.polygamma = _polygamma


# The normal distribution.


def _by_host(formula, x):
    import numpy as np

    values = np.array([formula(v) for v in x.detach().reshape(-1).tolist()], dtype=np.float64)
    return _C.tensor(values).reshape(x.shape)


def _safe_inverse(v):
    from statistics import NormalDist

    if not abs(v) < 1:
        return math.copysign(math.inf, v) if abs(v) == 1 else math.nan
    root = -NormalDist().inv_cdf((1 - abs(v)) / 2) / math.sqrt(2) if v else 0.0
    for _ in range(2 if abs(v) < 0.9 else 0):  # Newton, where the difference keeps its digits
        root -= (math.erf(root) - abs(v)) / (2 / math.sqrt(math.pi) * math.exp(-root * root))
    return math.copysign(root, v)


class _Erfc(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return _by_host(math.erfc, x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (-x * x).exp() * (-2 / math.sqrt(math.pi))


class _Erfinv(Function):
    @staticmethod
    def forward(ctx, x):
        y = _by_host(_safe_inverse, x)
        ctx.save_for_backward(x)
        return y

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        y = _Erfinv.apply(x)
        return grad * (y * y).exp() * (math.sqrt(math.pi) / 2)


@in_place
@both
@_wide
def erfc(input):
    """1 - erf(input), exact where that is small."""
    return _Erfc.apply(input)


@in_place
@both
@_wide
def erfinv(input):
    """The number whose error function is input."""
    return _Erfinv.apply(input)


@_wide
def erfcx(input):
    """exp(input ** 2) * erfc(input)."""
    large = input > 25
    x = masked_fill(input, ~large, 30.0)
    tail = (1 - 0.5 / x**2 + 0.75 / x**4 - 1.875 / x**6 + 6.5625 / x**8) / (x * math.sqrt(math.pi))
    small = masked_fill(input, large, 0.0)
    return _C.where(large, tail, (small * small).exp() * erfc(small))


@_wide
def ndtr(input):
    """The distribution function of the normal distribution."""
    return 0.5 * erfc(input * -math.sqrt(0.5))


@_wide
def log_ndtr(input):
    """log(ndtr(input)), exact far below 0."""
    low = input < -1
    x = masked_fill(input, ~low, -1.0)
    tail = (erfcx(x * -math.sqrt(0.5)) / 2).log() - x * x / 2
    return _C.where(low, tail, ndtr(masked_fill(input, low, 0.0)).log())


@_wide
def ndtri(input):
    """The number whose ndtr is input."""
    return math.sqrt(2) * erfinv(2 * input - 1)


def entr(input):
    """-input * log(input), 0 at 0."""
    return -xlogy(input, input)


def xlog1py(input, other):
    """input * log1p(other), 0 where input is 0."""
    zero = (input == 0) & ~isnan(other)
    return input * masked_fill(other, zero, 0.0).log1p()


@in_place
@both
@_wide
def i0(input):
    """The modified Bessel function of the first kind and order 0, by its series (the asymptotic one beyond 30)."""
    x = input.abs()
    large = x > 30
    small = masked_fill(x, large, 1.0)
    quarter = small * small / 4
    term = total = _C.ones(tuple(x.shape), dtype=_C.float64)
    for k in range(1, 60):
        term = term * quarter / (k * k)
        total = total + term
    y = masked_fill(x, ~large, 40.0)
    step = series = _C.ones(tuple(x.shape), dtype=_C.float64)
    for k in range(1, 12):
        step = step * ((2 * k - 1) ** 2 / (8 * k)) / y
        series = series + step
    return _C.where(large, y.exp() / (2 * math.pi * y).sqrt() * series, total)
