"""tf.math: functions of elements, reductions, comparisons. A mixed pair of dtypes is promoted, where TensorFlow
raises."""

import builtins as _builtins
import collections as _collections

import pydist as _pydist
from pydist import _C, _functions
from pydist.nn import functional as _functional
from pydist.tensorflow import _tensors as _t
from pydist.tensorflow._names import lacking as _lacking

_TopK = _collections.namedtuple("TopKV2", "values indices")


def _named(function, name, doc):
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


def _unary(name, function, doc):
    return _named(lambda x, name=None: function(_t.tensor(x)), name, doc)


def _binary(name, function, doc):
    return _named(lambda x, y, name=None: function(*_t.pair(x, y)), name, doc)


# Of one argument.

abs = _unary("abs", _C.abs, "The absolute value of each element.")
acos = _unary("acos", _C.acos, "The inverse cosine.")
acosh = _unary("acosh", _C.acosh, "The inverse hyperbolic cosine.")
angle = _unary("angle", _C.angle, "The angle of each complex number.")
asin = _unary("asin", _C.asin, "The inverse sine.")
asinh = _unary("asinh", _C.asinh, "The inverse hyperbolic sine.")
atan = _unary("atan", _C.atan, "The inverse tangent.")
atanh = _unary("atanh", _C.atanh, "The inverse hyperbolic tangent.")
bessel_i0 = _unary("bessel_i0", _functions.i0, "The modified Bessel function of order 0.")
ceil = _unary("ceil", _C.ceil, "The least integer that is not below each element.")
conj = _unary("conj", _C.conj, "The complex conjugate.")
cos = _unary("cos", _C.cos, "The cosine.")
cosh = _unary("cosh", _C.cosh, "The hyperbolic cosine.")
digamma = _unary("digamma", _functions.digamma, "The derivative of lgamma.")
erf = _unary("erf", _C.erf, "The error function.")
erfc = _unary("erfc", _functions.erfc, "1 - erf(x).")
erfinv = _unary("erfinv", _functions.erfinv, "The inverse of erf.")
exp = _unary("exp", _C.exp, "e to the power of each element.")
expm1 = _unary("expm1", _C.expm1, "exp(x) - 1, exact near 0.")
floor = _unary("floor", _C.floor, "The greatest integer that is not above each element.")
imag = _unary("imag", lambda x: x.imag if x.is_complex() else _C.zeros_like(x), "The imaginary part.")
is_finite = _unary("is_finite", _functions.isfinite, "Which elements are neither infinite nor NaN.")
is_inf = _unary("is_inf", _functions.isinf, "Which elements are infinite.")
is_nan = _unary("is_nan", _functions.isnan, "Which elements are NaN.")
lgamma = _unary("lgamma", _functions.lgamma, "The logarithm of the absolute value of the gamma function.")
log = _unary("log", _C.log, "The natural logarithm.")
log1p = _unary("log1p", _C.log1p, "log(1 + x), exact near 0.")
log_sigmoid = _unary("log_sigmoid", _functional.logsigmoid, "The logarithm of the sigmoid.")
logical_not = _unary("logical_not", _C.logical_not, "Not, for each bool.")
negative = _unary("negative", _C.neg, "-x.")
real = _unary("real", lambda x: x.real if x.is_complex() else x, "The real part.")
reciprocal = _unary("reciprocal", _C.reciprocal, "1 / x.")
reciprocal_no_nan = _unary("reciprocal_no_nan", lambda x: divide_no_nan(1.0, x), "1 / x, and 0 where x is 0.")
rint = _unary("rint", _C.round, "The nearest integer; of two the even one.")
round = _unary("round", _C.round, "The nearest integer; of two the even one.")
rsqrt = _unary("rsqrt", _C.rsqrt, "1 / sqrt(x).")
sigmoid = _unary("sigmoid", _C.sigmoid, "1 / (1 + exp(-x)).")
sign = _unary("sign", _functions.sgn, "-1, 0 or 1; of a complex number the number of size 1 in its direction.")
sin = _unary("sin", _C.sin, "The sine.")
sinh = _unary("sinh", _C.sinh, "The hyperbolic sine.")
softplus = _unary("softplus", _functional.softplus, "log(1 + exp(x)).")
softsign = _unary("softsign", lambda x: x / (1 + _C.abs(x)), "x / (1 + abs(x)).")
sqrt = _unary("sqrt", _C.sqrt, "The square root.")
square = _unary("square", _C.square, "x * x.")
tan = _unary("tan", _C.tan, "The tangent.")
tanh = _unary("tanh", _C.tanh, "The hyperbolic tangent.")


def ndtri(x, name=None):
    """The inverse of the normal distribution's cumulative function."""
    return 2**0.5 * _functions.erfinv(2 * _t.tensor(x) - 1)


# Of two arguments.


def _true_quotient(x, y):
    x, y = (_C.tensor(v) if not isinstance(v, _t.Tensor) else v for v in (x, y))
    if not (x.is_floating_point() or x.is_complex() or y.is_floating_point() or y.is_complex()):
        x, y = x.to(_C.float64), y.to(_C.float64)
    return _C.div(x, y)


def _no_nan(x, y, quotient):
    zero = _C.eq(y, 0)
    return _C.where(zero, _C.zeros_like(y), quotient(x, _C.where(zero, _C.ones_like(y), y)))


def _integers_differ(x, y):
    return _C.square(x - y)


add = _binary("add", _C.add, "x + y.")
atan2 = _binary("atan2", _C.atan2, "The angle of the point (y, x): its arguments are y, x.")
divide = _binary("divide", _true_quotient, "x / y; of integers as float64.")
equal = _binary("equal", lambda x, y: x == y, "Which elements are equal.")
floordiv = _binary("floordiv", _C.floor_divide, "x / y, rounded down.")
floormod = _binary("floormod", _C.remainder, "x - y * floor(x / y): it has the sign of y.")
greater = _binary("greater", _C.gt, "x > y.")
greater_equal = _binary("greater_equal", _C.ge, "x >= y.")
less = _binary("less", _C.lt, "x < y.")
less_equal = _binary("less_equal", _C.le, "x <= y.")
logical_and = _binary("logical_and", _C.logical_and, "And, for each pair of bools.")
logical_or = _binary("logical_or", _C.logical_or, "Or, for each pair of bools.")
logical_xor = _binary("logical_xor", _C.logical_xor, "Exclusive or, for each pair of bools.")
maximum = _binary("maximum", _C.maximum, "The greater one of each pair.")
minimum = _binary("minimum", _C.minimum, "The lesser one of each pair.")
multiply = _binary("multiply", _C.mul, "x * y.")
not_equal = _binary("not_equal", lambda x, y: x != y, "Which elements differ.")
squared_difference = _binary("squared_difference", _integers_differ, "(x - y) squared.")
subtract = _binary("subtract", _C.sub, "x - y.")
truediv = _binary("truediv", _true_quotient, "x / y; of integers as float64.")
mod = floormod


def pow(x, y, name=None):
    """x to the power of y."""
    return _C.pow(*_t.pair(x, y))


def divide_no_nan(x, y, name=None):
    """x / y, and 0 where y is 0."""
    x, y = _t.pair(x, y)
    return _no_nan(x, y if isinstance(y, _t.Tensor) else _pydist.full_like(x, y), _C.div)


def multiply_no_nan(x, y, name=None):
    """x * y, and 0 where y is 0, even if x is infinite or NaN."""
    x, y = (_t.tensor(v) for v in (x, y))
    return _C.where(_C.eq(y, 0), _C.zeros_like(y), x * y)


def xdivy(x, y, name=None):
    """x / y, and 0 where x is 0."""
    x, y = _t.pair(x, y)
    zero = _C.eq(x, 0)
    return _C.where(zero, _C.zeros_like(x), x / _C.where(zero, _C.ones_like(x), y))


def xlogy(x, y, name=None):
    """x * log(y), and 0 where x is 0."""
    return _functions.xlogy(*_t.pair(x, y))


def xlog1py(x, y, name=None):
    """x * log(1 + y), and 0 where x is 0."""
    x, y = (_t.tensor(v) for v in (x, y))
    zero = _C.eq(x, 0)
    return _C.where(zero, _C.zeros_like(x), x * _C.log1p(_C.where(zero, _C.zeros_like(y), y)))


def scalar_mul(scalar, x, name=None):
    """x times a number."""
    return multiply(x, scalar)


def add_n(inputs, name=None):
    """The sum of a list of tensors."""
    if not isinstance(inputs, (list, tuple)):
        return _t.tensor(inputs)
    if not inputs:
        raise ValueError("add_n: got no tensors (expected at least one)")
    first, *rest = inputs
    total = _t.tensor(first)
    for part in rest:
        total = total + _t.tensor(part)
    return total


def polyval(coeffs, x, name=None):
    """The polynomial with these coefficients, the one of the highest power first, at x."""
    x = _t.tensor(x)
    value = _C.zeros_like(x)
    for c in coeffs:
        value = value * x + c
    return value


# Reductions.


def _reduction(name, function, doc):
    def reduce(input_tensor, axis=None, keepdims=False, name=None):
        return function(_t.tensor(input_tensor), _t.axes(axis), _builtins.bool(keepdims))

    return _named(reduce, name, f"{doc} `axis`: None (all), a number or a list of them.")


def _over(x, axis):
    return tuple(range(x.ndim)) if axis is None else axis if isinstance(axis, tuple) else (axis,)


def _mean(x, axis, keepdims):
    if x.is_floating_point() or x.is_complex():
        return x if axis == () else _C.mean(x, axis, keepdims)
    total = _C.sum(x, _over(x, axis), keepdims, x.dtype)
    return _functions.div(total, x.numel() // _builtins.max(total.numel(), 1), rounding_mode="trunc").to(x.dtype)


def _variance(x, axis, keepdims):
    apart = x - _C.mean(x, axis, True)
    return _C.mean(_C.square(apart) if not x.is_complex() else _C.square(_C.abs(apart)), axis, keepdims)


def _log_sum_exp(x, axis, keepdims):
    return _functions.logsumexp(x, _over(x, axis), keepdims)


reduce_all = _reduction("reduce_all", lambda x, a, k: x if a == () else _C.all(x, a, k), "Whether all are true.")
reduce_any = _reduction("reduce_any", lambda x, a, k: x if a == () else _C.any(x, a, k), "Whether any is true.")
reduce_max = _reduction("reduce_max", lambda x, a, k: x if a == () else _C.amax(x, a, k), "The greatest element.")
reduce_min = _reduction("reduce_min", lambda x, a, k: x if a == () else _C.amin(x, a, k), "The least element.")
reduce_mean = _reduction("reduce_mean", _mean, "The mean; of integers rounded towards 0.")
reduce_prod = _reduction(
    "reduce_prod", lambda x, a, k: x if a == () else _C.prod(x, _over(x, a), k, x.dtype), "The product."
)
reduce_sum = _reduction(
    "reduce_sum", lambda x, a, k: x if a == () else _C.sum(x, a, k, x.dtype), "The sum, in the dtype of the tensor."
)
reduce_variance = _reduction("reduce_variance", _variance, "The mean of the squares of the distances from the mean.")
reduce_std = _reduction("reduce_std", lambda x, a, k: _C.sqrt(_variance(x, a, k)), "The square root of the variance.")
reduce_logsumexp = _reduction("reduce_logsumexp", _log_sum_exp, "The logarithm of the sum of exp(x).")
reduce_euclidean_norm = _reduction(
    "reduce_euclidean_norm", lambda x, a, k: _C.sqrt(_C.sum(_C.square(x), a, k)), "The root of the sum of squares."
)


def count_nonzero(input, axis=None, keepdims=None, dtype="int64", name=None):
    """How many elements are not 0."""
    return _C.sum(_C.ne(_t.tensor(input), 0), _t.axes(axis), _builtins.bool(keepdims), _t.as_dtype(dtype))


def zero_fraction(value, name=None):
    """The part of elements that are 0, as float32."""
    return _C.mean(_C.eq(_t.tensor(value), 0).to(_C.float32))


def argmax(input, axis=None, output_type="int64", name=None):
    """The place of the greatest element along `axis` (0)."""
    return _C.argmax(_t.tensor(input), 0 if axis is None else _t.axes(axis)).to(_t.as_dtype(output_type))


def argmin(input, axis=None, output_type="int64", name=None):
    """The place of the least element along `axis` (0)."""
    return _C.argmin(_t.tensor(input), 0 if axis is None else _t.axes(axis)).to(_t.as_dtype(output_type))


def _running(name, function, start, doc):
    def running(x, axis=0, exclusive=False, reverse=False, name=None):
        x, axis = _t.tensor(x), _t.axes(axis)
        if reverse:
            x = _C.flip(x, [axis])
        if exclusive:
            first = _functions.narrow(x, axis, 0, _builtins.min(1, x.shape[axis]))
            x = _C.cat(
                [_pydist.full_like(first, start), _functions.narrow(x, axis, 0, _builtins.max(x.shape[axis] - 1, 0))],
                axis,
            )
        result = function(x, axis)
        return _C.flip(result, [axis]) if reverse else result

    return _named(running, name, f"{doc} `exclusive`: without the element itself. `reverse`: from the end.")


cumsum = _running("cumsum", lambda x, axis: _C.cumsum(x, axis, x.dtype), 0, "The sums of the elements up to each one.")
cumprod = _running(
    "cumprod",
    lambda x, axis: _functions.cumprod(x, axis, dtype=x.dtype),
    1,
    "The products of the elements up to each one.",
)
cumulative_logsumexp = _running(
    "cumulative_logsumexp",
    _functions.logcumsumexp,
    -3.4028234663852886e38,
    "The logarithms of the sums of exp(x) up to each.",
)


# Counting, ranks, segments.


def top_k(input, k=1, sorted=True, index_type="int32", name=None):
    """(values, indices) of the k greatest elements along the last axis."""
    values, indices = _C.topk(_t.tensor(input), int(k), -1, True, _builtins.bool(sorted))
    return _TopK(values, indices.to(_t.as_dtype(index_type)))


def in_top_k(targets, predictions, k, name=None):
    """Whether each row's target is among its k greatest predictions."""
    targets, predictions = _t.tensor(targets), _t.tensor(predictions)
    own = _C.gather(predictions, 1, targets.to(_C.int64)[:, None])
    return (_C.sum(predictions > own, 1) < int(k)) & _functions.isfinite(own[:, 0])


def confusion_matrix(labels, predictions, num_classes=None, weights=None, dtype="int32", name=None):
    """[i, j]: how many elements of class i were predicted to be of class j, or the sum of their weights."""
    labels, predictions = (_t.tensor(v).to(_C.int64) for v in (labels, predictions))
    if num_classes is None:
        num_classes = _builtins.max(v.max().item() for v in (labels, predictions)) + 1
    classes = int(num_classes)
    for name, values in (("labels", labels), ("predictions", predictions)):
        if values.numel() and not 0 <= values.min().item() <= values.max().item() < classes:
            raise ValueError(f"confusion_matrix: {name} has a value out of range (expected 0 to {classes - 1})")
    counts = (
        _C.ones_like(labels).to(_t.as_dtype(dtype)) if weights is None else _t.tensor(weights, like=_t.as_dtype(dtype))
    )
    flat = _C.zeros(classes * classes, dtype=_t.as_dtype(dtype), device=labels.device)
    places = (labels * classes + predictions).reshape(-1)
    return _C.scatter_add(flat, 0, places, counts.to(flat.dtype).reshape(-1)).reshape(classes, classes)


def bincount(
    arr, weights=None, minlength=None, maxlength=None, dtype="int32", name=None, axis=None, binary_output=False
):
    """How often each number 0, 1, ... occurs, or the sum of its weights. `axis=-1`: for each row."""
    arr = _t.tensor(arr).to(_C.int64)
    size = arr.max().item() + 1 if arr.numel() else 0
    size = _builtins.max(size, 0 if minlength is None else int(minlength))
    size = size if maxlength is None else _builtins.min(size, int(maxlength))
    rows = arr.reshape(-1, arr.shape[-1]) if axis == -1 and arr.ndim > 1 else arr.reshape(1, -1)
    values = _C.ones_like(rows).to(_t.as_dtype(dtype)) if weights is None else _t.tensor(weights).reshape(rows.shape)
    inside = rows < size
    counts = _C.zeros(rows.shape[0], size + 1, dtype=values.dtype, device=arr.device)
    counts = _C.scatter_add(counts, 1, _C.where(inside, rows, size), values)[:, :size]
    counts = (counts > 0).to(counts.dtype) if binary_output else counts
    return counts if axis == -1 and arr.ndim > 1 else counts[0]


def invert_permutation(x, name=None):
    """y with y[x[i]] = i."""
    x = _t.tensor(x)
    return _C.argsort(x, 0).to(x.dtype)


def _fold(data, segment_ids, count, how, start):
    data, ids = _t.tensor(data), _t.tensor(segment_ids).to(_C.int64)
    count = (ids.max().item() + 1 if ids.numel() else 0) if count is None else int(count)
    rest = data.shape[ids.ndim :]
    flat, ids = data.reshape(-1, *rest), ids.reshape(-1)
    keep = ids >= 0
    if not keep.all():
        flat, ids = flat[keep], ids[keep]
    places = ids.reshape(-1, *[1] * len(rest)).expand(flat.shape)
    result = _C.full((count, *rest), start, dtype=data.dtype, device=data.device)
    if how == "sum":
        return _C.scatter_add(result, 0, places, flat)
    return _C.scatter_reduce(result, 0, places, flat, how, include_self=how != "mean")


def _least(dtype):
    from pydist._dtypes import finfo, iinfo

    return iinfo(dtype) if _t.is_integer(dtype) else finfo(dtype)


def _segment(kind, sorted):
    how = {"sum": "sum", "mean": "mean", "max": "amax", "min": "amin", "prod": "prod"}[kind]
    empty = {"sum": 0, "mean": 0, "prod": 1}

    def start(data):
        if sorted or kind in empty:
            return empty.get(kind, 0)
        return _least(data.dtype).min if kind == "max" else _least(data.dtype).max

    if sorted:

        def reduce(data, segment_ids, name=None):
            ids = _t.tensor(segment_ids)
            if ids.ndim != 1 or ids.numel() > 1 and (ids[1:] < ids[:-1]).any():
                raise ValueError(
                    f"segment_{kind}: segment_ids must be a sorted list (expected unsorted_segment_{kind})"
                )
            if kind in ("sum", "mean", "prod"):
                return _fold(data, ids, None, how, start(data))
            data = _t.tensor(data)
            result = _fold(data, ids, None, how, _least(data.dtype).min if kind == "max" else _least(data.dtype).max)
            there = _fold(_C.ones_like(ids), ids, None, "sum", 0) > 0
            return _C.where(there.reshape(-1, *[1] * (result.ndim - 1)), result, _C.zeros_like(result))

        return _named(reduce, f"segment_{kind}", f"The {kind} of the rows with each number; the numbers are sorted.")

    def reduce_unsorted(data, segment_ids, num_segments, name=None):
        data = _t.tensor(data)
        return _fold(data, segment_ids, num_segments, how, start(data))

    doc = f"The {kind} of the rows with each number below num_segments; rows with negative numbers are left out."
    return _named(reduce_unsorted, f"unsorted_segment_{kind}", doc)


segment_max, unsorted_segment_max = _segment("max", True), _segment("max", False)
segment_mean, unsorted_segment_mean = _segment("mean", True), _segment("mean", False)
segment_min, unsorted_segment_min = _segment("min", True), _segment("min", False)
segment_prod, unsorted_segment_prod = _segment("prod", True), _segment("prod", False)
segment_sum, unsorted_segment_sum = _segment("sum", True), _segment("sum", False)


def l2_normalize(x, axis=None, epsilon=1e-12, name=None):
    """x divided by the root of the sum of its squares along `axis`, or by the root of epsilon if that is greater."""
    x = _t.tensor(x)
    return x * _C.rsqrt(_C.maximum(_C.sum(_C.square(x), _t.axes(axis), True), epsilon))


def is_non_decreasing(x, name=None):
    """Whether no element is less than the one before."""
    x = _t.tensor(x).reshape(-1)
    return _C.all(x[1:] >= x[:-1])


def is_strictly_increasing(x, name=None):
    """Whether each element is greater than the one before."""
    x = _t.tensor(x).reshape(-1)
    return _C.all(x[1:] > x[:-1])


__getattr__ = _lacking(__name__)
