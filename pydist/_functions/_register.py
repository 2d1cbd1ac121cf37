"""How a function of this package becomes a function of pydist, a method of Tensor, or both; and helpers for common
arguments."""

from collections import namedtuple
from functools import wraps

from pydist import _C
from pydist._C import Tensor

NAMES = {}  # all functions of pydist
# the engine's methods, without a generator
FILLS = {name: getattr(Tensor, name) for name in ("bernoulli_", "normal_", "uniform_")}


_WITH_OUT = frozenset(
    (
        "addbmm addmm addmv addr aminmax baddbmm bernoulli bmm bucketize chain_matmul cholesky cholesky_inverse "
        "cholesky_solve clip column_stack concat concatenate copysign cross cummax cummin cumprod deg2rad diag "
        "diff digamma dot dstack erfc erfinv exp2 float_power fmax fmin frac frexp gcd ger heaviside histc "
        "histogram hstack hypot i0 index_add index_copy index_reduce inner isin isneginf isposinf kron kthvalue "
        "lcm ldexp lgamma logaddexp2 logcumsumexp logit logsumexp lu_solve lu_unpack masked_select matrix_power "
        "median mm mode msort multinomial mv mvlgamma nan_to_num nanmean nanmedian nanquantile nansum nextafter "
        "nonzero norm outer polygamma qr quantile rad2deg renorm row_stack scatter searchsorted sgn signbit sinc "
        "slice_scatter std svd take take_along_dim tensordot tril triu unfold_copy var vdot vstack xlogy"
    ).split()
)


def with_out(f, **also):
    """f with one more argument, `out`: a tensor to write the result into (or a tuple with one tensor for each result).
    `also`: other names of f's arguments, as in with_out(inv, input="A")."""

    @wraps(f)
    def call(*args, out=None, **kwargs):
        if also:
            kwargs = {also.get(name, name): value for name, value in kwargs.items()}
        results = f(*args, **kwargs)
        if out is None:
            return results
        if isinstance(results, Tensor):
            _C._write_out(f.__name__, out, results)
            return out
        if not isinstance(out, (tuple, list)) or len(out) != len(results):
            raise TypeError(f"{f.__name__}: out is {type(out).__name__} (expected {len(results)} tensors)")
        for to, result in zip(out, results):
            _C._write_out(f.__name__, to, result)
        return out

    call.also_named = {**also, "out": None}
    return call


def function(f):
    """Makes f a function of pydist."""
    if f.__name__ in _WITH_OUT:
        f = with_out(f)
    NAMES[f.__name__] = f
    return f


def method(f):
    """Makes f a method of Tensor."""
    setattr(Tensor, f.__name__, f)
    return f


def both(f):
    """Makes f a function of pydist and a method of Tensor."""
    return method(function(f))  # for torch.f(x, out=y); the method takes out, too


def in_place(f):
    """The method f_, which writes f's result into the tensor. Where f takes a dtype, it computes in the tensor's."""
    takes_dtype = "dtype" in (getattr(getattr(f, "__wrapped__", f), "__kwdefaults__", None) or {})

    def write(self, *args, **kwargs):
        if takes_dtype and kwargs.get("dtype") is None:
            kwargs["dtype"] = self.dtype
        recorded = any(isinstance(t, Tensor) and t.requires_grad for t in (self, *args, *kwargs.values()))
        kept = self.clone() if recorded else self  # a copy, because the gradient may read it
        result = f(kept, *args, **kwargs)
        rounds = result.is_floating_point() and not self.is_floating_point()
        if rounds or self.dtype is _C.bool and result.dtype is not _C.bool:
            raise _C.DTypeError(
                f"{write.__name__}: the result is {result.dtype}, but the tensor is {self.dtype} (expected equal "
                "dtypes)"
            )
        return self.copy_(result)

    write.__name__ = write.__qualname__ = f.__name__ + "_"
    write.__doc__, write.__module__ = f"{f.__name__}, in place.", f.__module__
    setattr(Tensor, write.__name__, write)
    return f


def values_indices(f):
    """f with its two results as a named tuple (values, indices)."""
    kind = namedtuple(f.__name__, "values indices")

    @wraps(f)
    def call(*args, **kwargs):
        result = f(*args, **kwargs)
        return kind(*result) if isinstance(result, tuple) else result

    call.result = kind
    return call


def axis_of(name, dim, ndim):
    """dim, counted from the front."""
    if not -max(ndim, 1) <= dim < max(ndim, 1):
        raise _C.DimError(f"{name}: dimension {dim} is out of range (expected {-max(ndim, 1)} to {max(ndim, 1) - 1})")
    return dim % max(ndim, 1)


def size_along(name, input, dim):
    """input's size along dim. Raises PositionError for a 0-d tensor."""
    if input.dim() == 0:
        raise _C.PositionError(f"{name}: a 0-d tensor has no dimension {dim}")
    return input.shape[axis_of(name, dim, input.dim())]


def few_pieces(name, count):
    """Raises ArgumentError for a very large number of pieces: each is a Python object, so it would take hours and all
    memory."""
    if count > 1 << 24:
        raise _C.ArgumentError(f"{name}: got {count} pieces (expected at most {1 << 24})")
    return count


def want_tensors(name, *args):
    """Raises TypeError unless all arguments are tensors."""
    for a in args:
        if not isinstance(a, Tensor):
            raise TypeError(f"{name}: got {type(a).__name__} (expected Tensor)")


def holds(condition):
    """Whether a check of numbers passes: whether all elements are True. On meta, which has no numbers, it passes."""
    return condition.is_meta or condition.all().item()


def want_data(name, input):
    """Raises NotImplementedError for a tensor on meta: the shape of this function's result depends on numbers."""
    if input.is_meta:
        raise NotImplementedError(
            f"{name}: the result's shape depends on the numbers of a tensor on meta, which has none (expected a tensor on "
            "another device)"
        )


def as_floats(*operands):
    """The two tensors or numbers as tensors of the floating dtype in which arithmetic computes them."""
    dtype = _C.result_type(*operands)
    dtype = dtype if dtype.is_floating_point else _C.get_default_dtype()
    device = next((t.device for t in operands if isinstance(t, Tensor)), None)
    return [t.to(dtype) if isinstance(t, Tensor) else _C.tensor(t, dtype=dtype, device=device) for t in operands]


def array_of(tensor):
    """The tensor's values as a NumPy array on the host: what NumPy or a loop in Python computes takes them from here.
    The result goes back to the tensor's device."""
    return tensor.detach().cpu().numpy()


def as_tuple(v):
    """The argument as a tuple."""
    return tuple(v) if isinstance(v, (tuple, list)) else (v,)


def varargs(v):
    """Arguments that were given one by one or as one list."""
    return as_tuple(v[0]) if len(v) == 1 else tuple(v)


def broadcast_shape(name, shapes):
    """The shape to which the shapes broadcast."""
    n = max(map(len, shapes), default=0)
    out = [1] * n
    for shape in shapes:
        for d, size in enumerate(shape, n - len(shape)):
            if size != 1 and out[d] not in (1, size):
                raise RuntimeError(
                    f"{name}: the shapes {[tuple(s) for s in shapes]} do not broadcast (expected equal sizes, or 1)"
                )
            out[d] = size if out[d] == 1 else out[d]
    return out
