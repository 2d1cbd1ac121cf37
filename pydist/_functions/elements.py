"""More functions of each element."""

import math

from pydist import _C
from pydist._C import Tensor
from pydist._functions._register import array_of, as_floats, both, in_place, want_tensors
from pydist._functions.elementwise import isfinite, isinf, isnan
from pydist._functions.indexing import masked_fill


@in_place
@both
def hypot(input, other):
    """sqrt(input ** 2 + other ** 2), without overflow."""
    want_tensors("hypot", input, other)
    a, b = input.abs(), other.abs()
    top = _C.maximum(a, b).detach()
    top = masked_fill(top, (top == 0) | isinf(top), 1.0)
    size = ((a / top) ** 2 + (b / top) ** 2).sqrt() * top
    return masked_fill(size, isinf(a) | isinf(b), math.inf)


@both
def fmax(input, other):
    """The larger of the two. If one of them is NaN, the other one."""
    return _C.where((input >= other) | isnan(other), input, other)


@both
def fmin(input, other):
    """The smaller of the two. If one of them is NaN, the other one."""
    return _C.where((input <= other) | isnan(other), input, other)


@both
def signbit(input):
    """True if the sign is negative, also for -0.0."""
    if not input.is_floating_point():
        return input < 0
    return (input < 0) | (input == 0) & (1.0 / input.detach() < 0)


@in_place
@both
def copysign(input, other):
    """|input| with the sign of other, whose gradient is 0."""
    input, other = as_floats(input, other)
    size = input.abs()
    if other.requires_grad:
        size = _C.where(_C.zeros_like(other, dtype=_C.bool), other, size)
    return _C.where(signbit(other), -size, size)


@in_place
@both
def nextafter(input, other):
    """The next number of the dtype after input in the direction of other."""
    import numpy as np

    want_tensors("nextafter", input, other)
    if input.dtype is not other.dtype or input.dtype not in (_C.float32, _C.float64):
        raise RuntimeError(f"nextafter: got {input.dtype} and {other.dtype} (expected both float32 or both float64)")
    if input.is_meta:
        target = (input + other).detach()
    else:
        target = _C.tensor(np.nextafter(array_of(input), array_of(other)), device=input.device)
    if not input.requires_grad:
        return target
    return target + masked_fill(input - input.detach(), ~isfinite(input), 0.0)


@in_place
@both
def xlogy(input, other):
    """input * log(other); 0 if input is 0."""
    input, other = as_floats(input, other)
    zero = (input == 0) & ((other <= 0) | (other == math.inf))
    safe = _C.where(zero, _C.ones((), dtype=other.dtype, device=other.device), other)
    return input * safe.log()


@in_place
@both
def heaviside(input, values):
    """0 if input is negative, 1 if it is positive, values if it is 0."""
    return _C.where(input == 0, values, (input > 0).to(input.dtype))


@in_place
@both
def float_power(input, exponent):
    """input ** exponent in float64."""
    input, exponent = (t.double() if isinstance(t, Tensor) else float(t) for t in (input, exponent))
    return input**exponent if isinstance(input, Tensor) else _C.pow(input, exponent)


@both
def logaddexp2(input, other):
    """log2(2 ** input + 2 ** other), without overflow."""
    input, other = as_floats(input, other)
    return _C.logaddexp(input * math.log(2), other * math.log(2)) / math.log(2)


@in_place
@both
def ldexp(input, other):
    """input * 2 ** other."""
    return input * 2.0**other


@in_place
@both
def deg2rad(input):
    """Degrees converted to radians."""
    return input * (math.pi / 180)


@in_place
@both
def rad2deg(input):
    """Radians converted to degrees."""
    return input * (180 / math.pi)


@in_place
@both
def logit(input, eps=None):
    """log(x / (1 - x)), where x is input limited to [eps, 1 - eps]."""
    x = input if input.is_floating_point() else input.float()
    x = x if eps is None else x.clamp(eps, 1 - eps)
    return x.log() - (-x).log1p()


@in_place
@both
def sinc(input):
    """sin(pi x) / (pi x), 1 at 0."""
    zero = input == 0
    x = masked_fill(input if input.is_floating_point() else input.float(), zero, 1.0) * math.pi
    return masked_fill(x.sin() / x, zero, 1.0)


@in_place
@both
def sgn(input):
    """The sign; for complex numbers x / |x|, and 0 at 0."""
    if not input.is_complex():
        return input.sign()
    size = input.abs()
    return input / masked_fill(size, size == 0, 1.0)


@both
def positive(input):
    """input itself."""
    return input


@both
def isneginf(input):
    """True for elements that are -inf."""
    return input == -math.inf


@both
def isposinf(input):
    """True for elements that are inf."""
    return input == math.inf


def _whole(name, *tensors):
    want_tensors(name, *tensors)
    for t in tensors:
        if t.is_floating_point():
            raise RuntimeError(f"{name}: got {t.dtype} (expected an integer dtype)")
    dtype = _C.result_type(*tensors)
    return [t.to(dtype) for t in tensors]


@in_place
@both
def gcd(input, other):
    """The greatest common divisor."""
    input, other = _whole("gcd", input, other)
    a, b = input.abs() + other * 0, other.abs() + input * 0
    while not b.is_meta and (b != 0).any().item():
        a, b = _C.where(b != 0, b, a), _C.where(b != 0, _C.remainder(a, masked_fill(b, b == 0, 1)), b)
    return a


@in_place
@both
def lcm(input, other):
    """The least common multiple."""
    input, other = _whole("lcm", input, other)
    divisor = gcd(input, other)
    return (_C.floor_divide(input, masked_fill(divisor, divisor == 0, 1)) * other).abs()


@both
def frexp(input):
    """(mantissa, exponent) with input = mantissa * 2 ** exponent and 0.5 <= |mantissa| < 1."""
    zero = (input == 0) | ~isfinite(input)
    size = masked_fill(input.detach().abs(), zero, 1.0)
    exponent = size.double().log2().floor() + 1
    exponent = (
        exponent
        + (size.double() / 2.0**exponent >= 1).to(exponent.dtype)
        - (size.double() / 2.0**exponent < 0.5).to(exponent.dtype)
    )
    exponent = masked_fill(exponent, zero, 0.0)
    return (input / (2.0**exponent).to(input.dtype)).to(input.dtype), exponent.to(_C.int32)


# Conjugates and negatives are computed at once, into their own memory: no tensor is a lazy one.


@both
def resolve_conj(input):
    """input itself."""
    return input


@both
def resolve_neg(input):
    """input itself."""
    return input


@both
def isreal(input):
    """True for elements whose imaginary part is 0."""
    return input.imag == 0 if input.is_complex() else _C.ones(*input.shape, dtype=_C.bool, device=input.device)


@both
def is_conj(input):
    """False: conjugates are computed at once."""
    return False


@both
def is_neg(input):
    """False: negatives are computed at once."""
    return False


def _over(name, of):
    """The method `name`, which writes the result of the function `of` (for example a bool) into the tensor."""

    def write(self, *args, **kwargs):
        return self.copy_(of(self, *args, **kwargs))

    write.__name__, write.__doc__ = name, f"{name[:-1]}, in place."
    setattr(Tensor, name, write)


for _name in (
    "eq ne lt le gt ge logical_and logical_or logical_xor logical_not bitwise_not not_equal greater greater_equal less less_equal "
    "cumsum conj_physical"
).split():
    _over(_name + "_", getattr(Tensor, _name))
