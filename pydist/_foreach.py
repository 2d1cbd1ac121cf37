"""torch._foreach_*: the same function for every tensor of a list."""

from pydist import _C
from pydist._C import Tensor

_UNARY = (
    "abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg reciprocal round rsqrt sigmoid "
    "sign sin sinh sqrt tan tanh trunc"
).split()
_BINARY = "add sub mul div pow maximum minimum clamp_min clamp_max".split()


def _each(other, count):
    """One operand for each tensor: from a list, or the same one for all."""
    if not isinstance(other, (list, tuple)):
        return [other] * count
    if len(other) != count:
        raise RuntimeError(f"_foreach: got {len(other)} operands for {count} tensors (expected one operand per tensor)")
    return other


def _make(name):
    word = name.removeprefix("_foreach_")
    base = word.removesuffix("_")
    if base in _UNARY:
        return lambda self: [getattr(t, word)() for t in self]
    if base in _BINARY:
        method = {"maximum": "clamp_min", "minimum": "clamp_max"}.get(base, base) + ("_" if word.endswith("_") else "")

        def binary(self, other, **kwargs):
            pairs = zip(self, _each(other, len(self)))
            if base in ("maximum", "minimum", "clamp_min", "clamp_max"):
                pick = _C.maximum if base in ("maximum", "clamp_min") else _C.minimum
                made = [
                    pick(t, o) if isinstance(o, Tensor) else getattr(t, method.removesuffix("_"))(o) for t, o in pairs
                ]
                return [t.copy_(m) for t, m in zip(self, made)] if word.endswith("_") else made
            return [getattr(t, method)(o, **kwargs) for t, o in pairs]

        return binary
    if base in ("addcmul", "addcdiv"):

        def ternary(self, tensor1, tensor2, value=1, scalars=None):
            values = _each(value if scalars is None else scalars, len(self))
            values = values.tolist() if isinstance(values, Tensor) else values
            return [getattr(t, word)(a, b, value=v) for t, a, b, v in zip(self, tensor1, tensor2, values)]

        return ternary
    if base == "lerp":
        return lambda self, tensors1, weight: [
            getattr(t, word)(e, w) for t, e, w in zip(self, tensors1, _each(weight, len(self)))
        ]
    if word in ("zero_", "copy_"):

        def write(self, *sources, **kwargs):
            return [getattr(t, word)(*s) for t, *s in zip(self, *sources)]

        return write
    if word == "norm":
        return lambda self, ord=2, dtype=None: [t.norm(ord, dtype=dtype) for t in self]
    if word == "max":
        return lambda self: [t.max() for t in self]
    raise AttributeError(f"module 'pydist' has no attribute '{name}'")


def __getattr__(name):
    if not name.startswith("_foreach_"):
        raise AttributeError(f"module 'pydist._foreach' has no attribute '{name}'")
    call = _make(name)
    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"{name.removeprefix('_foreach_')} for every tensor of a list."
    globals()[name] = call
    return call
