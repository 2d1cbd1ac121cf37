"""Special functions, elementwise, computed in float64."""

import math

from pydist import _C
from pydist._C import Tensor
from pydist._functions._register import both, function, holds, in_place
from pydist._functions.elements import xlogy
from pydist._functions.elementwise import isnan
from pydist._functions.indexing import masked_fill
from pydist.autograd import Function


def _wide(formula):
    """The function, computed in float64. The result has the input's dtype (integers: the default float dtype)."""

    def apply(input, *args):
        dtype = input.dtype if input.is_floating_point() else _C.get_default_dtype()
        return formula(input.double(), *args).to(dtype)

    apply.__name__ = apply.__qualname__ = formula.__name__
    apply.__doc__ = formula.__doc__
    return apply


# The gamma function and its logarithmic derivatives: shifts the argument beyond 10, where Stirling's series is exact.

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
    factor = (1 if n % 2 else -1) * (float(math.factorial(n)) if n <= 170 else math.inf)  # larger than any float64
    value = factor * _hurwitz(n + 1.0, input.double())
    return value.to(input.dtype if input.is_floating_point() else _C.float32)


@both
def mvlgamma(input, p):
    """The logarithm of the p-dimensional gamma function."""
    if p < 1 or not holds(input > (p - 1) / 2):
        raise RuntimeError(f"mvlgamma: p is {p} (expected p >= 1 and input > (p - 1) / 2)")
    halves = _C.arange(p, dtype=_C.float64, device=input.device) / 2
    return (lgamma(input.double().unsqueeze(-1) - halves).sum(-1) + p * (p - 1) / 4 * math.log(math.pi)).to(input.dtype)


def _polygamma(self, n):
    """The n-th derivative of digamma."""
    return polygamma(n, self)


Tensor.polygamma = _polygamma


# The normal distribution.


def _erfc(x):
    import numpy as np

    if x.is_meta:
        return _C.empty_like(x, dtype=_C.float64)
    values = np.fromiter(map(math.erfc, x.detach().reshape(-1).tolist()), np.float64, x.numel())
    return _C.tensor(values, device=x.device).reshape(x.shape)


# The normal quantile by Wichura's algorithm AS 241 (1988): a ratio of polynomials for the middle and each of two tails.
_MIDDLE = (
    (
        3.3871328727963666080, 1.3314166789178437745e2, 1.9715909503065514427e3, 1.3731693765509461125e4,
        4.5921953931549871457e4, 6.7265770927008700853e4, 3.3430575583588128105e4, 2.5090809287301226727e3,
    ),
    (
        1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3, 2.1213794301586595867e4,
        3.9307895800092710610e4, 2.8729085735721942674e4, 5.2264952788528545610e3,
    ),
)  # fmt: skip
_TAIL = (
    (
        1.42343711074968357734, 4.63033784615654529590, 5.76949722146069140550, 3.64784832476320460504,
        1.27045825245236838258, 2.41780725177450611770e-1, 2.27238449892691845833e-2, 7.74545014278341407640e-4,
    ),
    (
        1.0, 2.05319162663775882187, 1.67638483018380384940, 6.89767334985100004550e-1, 1.48103976427480074590e-1,
        1.51986665636164571966e-2, 5.47593808499534494600e-4, 1.05075007164441684324e-9,
    ),
)  # fmt: skip
_FAR = (
    (
        6.65790464350110377720, 5.46378491116411436990, 1.78482653991729133580, 2.96560571828504891230e-1,
        2.65321895265761230930e-2, 1.24266094738807843860e-3, 2.71155556874348757815e-5, 2.01033439929228813265e-7,
    ),
    (
        1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2, 7.86869131145613259100e-4,
        1.84631831751005468180e-5, 1.42151175831644588870e-7, 2.04426310338993978564e-15,
    ),
)  # fmt: skip
_PIECE = 1 << 15  # so many elements, with intermediate values, fit the cache


def _ratio(polynomials, r):
    above, below = (_C.empty_like(r).fill_(p[-1]) for p in polynomials)
    for a, b in zip(reversed(polynomials[0][:-1]), reversed(polynomials[1][:-1])):
        above.mul_(r).add_(a)
        below.mul_(r).add_(b)
    return above.div_(below)


def _erfinv(v):
    """The inverse of erf for a piece of float64 numbers: the quantile of (1 + v) / 2, divided by sqrt(2)."""
    q = v / 2
    out = q * _ratio(_MIDDLE, 0.180625 - q * q)
    outer = q.abs() > 0.425
    if not outer.is_meta and outer.any().item():
        r = (0.5 - q[outer].abs()).log().neg().sqrt()  # NaN beyond 1, infinite at 1
        tail = _C.where(r <= 5, _ratio(_TAIL, r - 1.6), _ratio(_FAR, r - 5))
        out[outer] = masked_fill(tail, r == math.inf, math.inf) * q[outer].sign()
    return out.mul_(math.sqrt(0.5))


class _Erfc(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return _erfc(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (-x * x).exp() * (-2 / math.sqrt(math.pi))


class _Erfinv(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return _C.cat([_erfinv(piece) for piece in x.reshape(-1).split(_PIECE)]).reshape(x.shape)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        y = _Erfinv.apply(x)
        return grad * (y * y).exp() * (math.sqrt(math.pi) / 2)


@in_place
@both
@_wide
def erfc(input):
    """1 - erf(input), accurate also where that is small."""
    return _Erfc.apply(input)


@in_place
@both
@_wide
def erfinv(input):
    """The number whose erf is input."""
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
    """log(ndtr(input)), accurate also for very negative input."""
    low = input < -1
    x = masked_fill(input, ~low, -1.0)
    tail = (erfcx(x * -math.sqrt(0.5)) / 2).log() - x * x / 2
    return _C.where(low, tail, ndtr(masked_fill(input, low, 0.0)).log())


@_wide
def ndtri(input):
    """The number whose ndtr is input."""
    return math.sqrt(2) * erfinv(2 * input - 1)


def entr(input):
    """-input * log(input); 0 at 0."""
    return -xlogy(input, input)


def xlog1py(input, other):
    """input * log1p(other); 0 if input is 0."""
    zero = (input == 0) & ~isnan(other)
    return input * masked_fill(other, zero, 0.0).log1p()


@in_place
@both
@_wide
def i0(input):
    """The modified Bessel function of the first kind of order 0, by its series (above 30 by the asymptotic series)."""
    x = input.abs()
    large = x > 30
    small = masked_fill(x, large, 1.0)
    quarter = small * small / 4
    term = total = _C.ones(tuple(x.shape), dtype=_C.float64, device=x.device)
    for k in range(1, 60):
        term = term * quarter / (k * k)
        total = total + term
    y = masked_fill(x, ~large, 40.0)
    step = series = _C.ones(tuple(x.shape), dtype=_C.float64, device=x.device)
    for k in range(1, 12):
        step = step * ((2 * k - 1) ** 2 / (8 * k)) / y
        series = series + step
    return _C.where(large, y.exp() / (2 * math.pi * y).sqrt() * series, total)
