"""Functions of each element."""

import math

from pydist import _C
from pydist._C import Tensor
from pydist._functions._register import NAMES, both, function, in_place
from pydist._functions.indexing import masked_fill


@in_place
@both
def clip(input, min=None, max=None):
    """The same as clamp."""
    return _C.clamp(input, min, max)


@in_place
@both
def clamp_min(input, min):
    """input, limited to min below."""
    return _C.clamp(input, min)


@in_place
@both
def clamp_max(input, max):
    """input, limited to max above."""
    return _C.clamp(input, None, max)


@both
def isnan(input):
    """True for elements that are NaN."""
    return input != input


@both
def isinf(input):
    """True for elements that are infinite."""
    if input.is_complex():
        return isinf(input.real) | isinf(input.imag)
    return (
        input.abs() == math.inf
        if input.is_floating_point()
        else _C.zeros(*input.shape, dtype=_C.bool, device=input.device)
    )


@both
def isfinite(input):
    """True for elements that are neither infinite nor NaN."""
    if input.is_complex():
        return isfinite(input.real) & isfinite(input.imag)
    return (
        input.abs() < math.inf
        if input.is_floating_point()
        else _C.ones(*input.shape, dtype=_C.bool, device=input.device)
    )


@both
def isclose(input, other, rtol=1e-05, atol=1e-08, equal_nan=False):
    """True where |input - other| <= atol + rtol * |other|."""
    if _C.result_type(input, other) is _C.bool:
        return input == other
    near = (input == other) | (((input - other).abs() <= atol + rtol * other.abs()) & isfinite(other))
    return near | (isnan(input) & isnan(other)) if equal_nan else near


@both
def allclose(input, other, rtol=1e-05, atol=1e-08, equal_nan=False):
    """Whether isclose is true for all elements (a Python bool)."""
    return isclose(input, other, rtol, atol, equal_nan).all().item()


@both
def equal(input, other):
    """Whether both have the same shape and elements (a Python bool)."""
    return tuple(input.shape) == tuple(other.shape) and (input == other).all().item()


@in_place
@both
def nan_to_num(input, nan=None, posinf=None, neginf=None):
    """input with NaN and infinities replaced by numbers (default: 0 and the largest finite ones)."""
    if not input.is_floating_point():
        return input.clone()
    largest = {_C.float64: 1.7976931348623157e308, _C.float32: 3.4028234663852886e38, _C.float16: 65504.0}
    most = largest.get(input.dtype, 3.3895313892515355e38)
    input = masked_fill(input, isnan(input), 0.0 if nan is None else nan)
    input = masked_fill(input, input == math.inf, most if posinf is None else posinf)
    return masked_fill(input, input == -math.inf, -most if neginf is None else neginf)


def _round_at(input, *, decimals, out=None):
    """What the op `round` calls with decimals: keeps so many digits after the point (negative: rounds before it)."""
    scale = 10.0 ** abs(decimals)
    result = _C.round(input * scale) / scale if decimals > 0 else _C.round(input / scale) * scale
    if out is None:
        return result
    _C._write_out("round", out, result)
    return out


def _round_at_(self, *, decimals):
    return self.copy_(_round_at(self, decimals=decimals))


@in_place
@both
def frac(input):
    """input without its integer part."""
    return input - input.trunc()


@both
def rsub(input, other, alpha=1):
    """other - alpha * input."""
    return other - alpha * input


@in_place
@both
def exp2(input):
    """2 ** input."""
    return 2.0**input


@function
def real(input):
    """The real parts, as a view; a real tensor itself."""
    return input.real


@function
def imag(input):
    """The imaginary parts of complex numbers, as a view."""
    return input.imag


def _alias(name, of):
    f = getattr(_C, of)
    NAMES[name] = f
    setattr(Tensor, name, f)
    if hasattr(Tensor, of + "_"):
        setattr(Tensor, name + "_", getattr(Tensor, of + "_"))


for _pair in (
    "multiply=mul divide=div subtract=sub true_divide=div absolute=abs negative=neg greater=gt less=lt greater_equal=ge "
    "less_equal=le not_equal=ne fix=trunc arcsin=asin arccos=acos arctan=atan arcsinh=asinh arccosh=acosh arctanh=atanh arctan2=atan2"
).split():
    _alias(*_pair.split("="))


def _quotient(input, other, mode):
    if mode == "floor":
        return _C.floor_divide(input, other)
    if mode != "trunc":
        raise RuntimeError(f"div: rounding_mode is {mode!r} (expected None, 'trunc' or 'floor')")
    if _C.result_type(input, other).is_floating_point:
        return _C.trunc(_C.div(input, other))
    sign = other.sign() if isinstance(other, Tensor) else (other > 0) - (other < 0)
    return input.sign() * sign * _C.floor_divide(input.abs(), abs(other))


def _with_rounding(divide, in_place):
    def div(input, other, *, rounding_mode=None, **out):
        if rounding_mode is None:
            return divide(input, other, **out)
        result = _quotient(input, other, rounding_mode)
        to = input if in_place else out.get("out")
        return result if to is None else to.copy_(result)

    div.__name__ = div.__qualname__ = "div_" if in_place else "div"
    div.__module__ = "pydist"  # where pickle finds it
    div.__doc__ = """div(input, other, *, rounding_mode=None)

    input / other; rounding_mode "floor" rounds down, "trunc" towards 0, in the dtype of both."""
    return div


NAMES["div"] = NAMES["divide"] = Tensor.div = Tensor.divide = _with_rounding(_C.div, False)
Tensor.div_ = Tensor.divide_ = _with_rounding(Tensor.div_, True)
