"""tf.debugging: checks of values and shapes, which raise _errors.InvalidArgumentError."""

from pydist import _C
from pydist.data.strings import StringTensor as _StringTensor
from pydist.tensorflow import _tensors as _t
from pydist.tensorflow import errors as _errors
from pydist.tensorflow._flow import Assert as Assert
from pydist.tensorflow._names import lacking as _lacking


def _fail(name, message, what):
    raise _errors.InvalidArgumentError(f"debugging.{name}: {f'{message}: ' if message else ''}{what}")


def _compared(name, holds, what):
    def check(x, y, message=None, summarize=None, name_=None, name=None):
        x, y = _t.pair(x, y)
        true = holds(x, y)
        if not bool(true.all() if isinstance(true, _t.Tensor) else true):
            _fail(check.__name__, message, f"got {_short(x)} and {_short(y)} (expected x {what} y, for all elements)")

    check.__name__ = check.__qualname__ = name
    check.__doc__ = f"Raises InvalidArgumentError unless x {what} y for all elements."
    return check


def _short(x):
    text = str(x.tolist() if isinstance(x, (_t.Tensor, _StringTensor)) else x)
    return text if len(text) <= 60 else f"{text[:57]}..."


assert_equal = _compared("assert_equal", lambda x, y: x == y, "==")
assert_none_equal = _compared("assert_none_equal", lambda x, y: x != y, "!=")
assert_less = _compared("assert_less", _C.lt, "<")
assert_less_equal = _compared("assert_less_equal", _C.le, "<=")
assert_greater = _compared("assert_greater", _C.gt, ">")
assert_greater_equal = _compared("assert_greater_equal", _C.ge, ">=")


def _signed(name, holds, what):
    def check(x, message=None, summarize=None, name=None):
        x = _t.tensor(x)
        if not bool(holds(x).all()):
            _fail(check.__name__, message, f"got {_short(x)} (expected {what} elements)")

    check.__name__ = check.__qualname__ = name
    check.__doc__ = f"Raises InvalidArgumentError unless all elements are {what}."
    return check


assert_positive = _signed("assert_positive", lambda x: x > 0, "positive")
assert_non_negative = _signed("assert_non_negative", lambda x: x >= 0, "non-negative")
assert_negative = _signed("assert_negative", lambda x: x < 0, "negative")
assert_non_positive = _signed("assert_non_positive", lambda x: x <= 0, "non-positive")
assert_all_finite = _signed("assert_all_finite", lambda x: (x - x) == 0, "finite")


def assert_near(x, y, rtol=None, atol=None, message=None, summarize=None, name=None):
    """Raises InvalidArgumentError unless |x - y| <= atol + rtol |y| for all elements."""
    x, y = (_t.tensor(v) for v in _t.pair(x, y))
    rtol, atol = (_eps(x.dtype) if v is None else v for v in (rtol, atol))
    if not bool((_C.abs(x - y) <= atol + rtol * _C.abs(y)).all()):
        _fail("assert_near", message, f"got {_short(x)} and {_short(y)} (expected nearly equal elements)")


def _eps(dtype):
    from pydist._dtypes import finfo

    return 10 * finfo(dtype).eps


def assert_rank(x, rank, message=None, name=None):
    """Raises ValueError unless the tensor has so many axes."""
    x, wanted = _t.tensor(x), _t.ints(rank)[0]
    if x.ndim != wanted:
        raise ValueError(
            f"debugging.assert_rank: {f'{message}: ' if message else ''}got {x.ndim} axes (expected {wanted})"
        )


def assert_rank_at_least(x, rank, message=None, name=None):
    """Raises ValueError unless the tensor has at least so many axes."""
    x, wanted = _t.tensor(x), _t.ints(rank)[0]
    if x.ndim < wanted:
        raise ValueError(
            f"debugging.assert_rank_at_least: {f'{message}: ' if message else ''}got {x.ndim} axes (expected at "
            f"least {wanted})"
        )


def assert_rank_in(x, ranks, message=None, name=None):
    """Raises ValueError unless the number of axes is one of these."""
    x, wanted = _t.tensor(x), [_t.ints(r)[0] for r in ranks]
    if x.ndim not in wanted:
        raise ValueError(
            f"debugging.assert_rank_in: {f'{message}: ' if message else ''}got {x.ndim} axes (expected one of {wanted})"
        )


def assert_scalar(tensor, message=None, name=None):
    """Raises ValueError unless the tensor has no axes."""
    assert_rank(tensor, 0, message)


def assert_type(tensor, tf_type, message=None, name=None):
    """Raises TypeError unless the tensor has this dtype."""
    wanted = _t.as_dtype(tf_type)
    if tensor.dtype != wanted:
        raise TypeError(
            f"debugging.assert_type: {f'{message}: ' if message else ''}got {tensor.dtype} (expected "
            f"{_t.NAMES[wanted]})"
        )


def assert_integer(x, message=None, name=None):
    """Raises TypeError unless the dtype is one of integers."""
    x = _t.tensor(x)
    if isinstance(x, _StringTensor) or not _t.is_integer(x.dtype):
        raise TypeError(
            f"debugging.assert_integer: {f'{message}: ' if message else ''}got {_t.NAMES[x.dtype]} (expected integers)"
        )


def assert_same_float_dtype(tensors=None, dtype=None):
    """Raises ValueError unless the tensors have one dtype, a floating one. Returns it."""
    found = [_t.as_dtype(t.dtype) for t in tensors or ()] + ([] if dtype is None else [_t.as_dtype(dtype)])
    found = found or [_C.float32]
    if len(set(found)) > 1 or not found[0].is_floating_point:
        raise ValueError(
            f"debugging.assert_same_float_dtype: got {[_t.NAMES[d] for d in found]} (expected one floating dtype)"
        )
    return found[0]


def assert_shapes(shapes, data=None, summarize=None, message=None, name=None):
    """Raises ValueError unless tensors have shapes in which equal letters are equal sizes: {x: ("N", 3), y: ("N",)}."""
    sizes = {}
    for x, wanted in shapes.items() if hasattr(shapes, "items") else shapes:
        x = _t.tensor(x.deref() if hasattr(x, "deref") else x)
        wanted = tuple(wanted)
        if wanted and wanted[0] == "...":
            wanted = (None,) * (x.ndim - len(wanted) + 1) + wanted[1:]
        if len(wanted) != x.ndim:
            raise ValueError(f"debugging.assert_shapes: got a tensor of {x.ndim} axes (expected {len(wanted)})")
        for want, size in zip(wanted, x.shape):
            want = sizes.setdefault(want, size) if isinstance(want, str) and not want.isdigit() else want
            if want is not None and int(want) != size:
                raise ValueError(
                    f"debugging.assert_shapes: got shape {tuple(x.shape)} (expected {wanted}, where {sizes})"
                )


def check_numerics(tensor, message, name=None):
    """The tensor. Raises InvalidArgumentError if it has infinite elements or NaN."""
    from pydist.tensorflow._tensors import tensor as as_tensor

    x = as_tensor(tensor)
    if not bool(((x - x) == 0).all()):
        kind = "NaN" if bool((x != x).any()) else "Inf"
        _fail("check_numerics", message, f"_t.Tensor had {kind} values (expected finite ones)")
    return x


def is_numeric_tensor(tensor):
    """Whether it is a tensor of numbers."""
    return isinstance(tensor, _t.Tensor) and tensor.dtype is not _C.bool


def set_log_device_placement(enabled):
    """Accepted: there is no log of devices."""


def get_log_device_placement():
    """False."""
    return False


def enable_check_numerics(stack_height_limit=30, path_length_limit=50):
    """Raises NotImplementedError: the environment variable PYDIST_NAN does it."""
    raise NotImplementedError(
        "debugging.enable_check_numerics: cannot be switched on in a running process (expected PYDIST_NAN=2 in its "
        "environment)"
    )


__getattr__ = _lacking(__name__)
