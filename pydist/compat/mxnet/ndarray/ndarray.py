"""NDArray with its operators, and the functions that make arrays."""

import numpy as np

import pydist
from pydist.compat.mxnet._base import MXNetError, absent, current_context, dtype_of, shape_of
from pydist.compat.mxnet.ndarray._array import CSRNDArray as CSRNDArray
from pydist.compat.mxnet.ndarray._array import NDArray
from pydist.compat.mxnet.ndarray._array import RowSparseNDArray as RowSparseNDArray
from pydist.compat.mxnet.ndarray._ops import binary, table

_SIGNS = {"add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "mod": "mod", "pow": "power"}
_ORDER = {
    "eq": "equal",
    "ne": "not_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "lt": "lesser",
    "le": "lesser_equal",
}


def _spread(fn, argument):
    """A method whose sizes may come one by one."""

    def method(self, *sizes, **kwargs):
        return fn(self, **{argument: sizes[0] if len(sizes) == 1 else sizes} if sizes else {}, **kwargs)

    return method


def _in_place(fn):
    """A method with `inplace`: the result has the memory of the array."""

    def method(self, *args, inplace=False, **kwargs):
        found = fn(self, *args, **kwargs)
        return self.reshape(found.shape) if inplace else found

    return method


def _operators():
    for sign, name in _SIGNS.items():
        setattr(NDArray, f"__{sign}__", lambda a, b, fn=binary[name]: fn(a, b))
        setattr(NDArray, f"__r{sign}__", lambda a, b, fn=binary[name]: fn(b, a))
        setattr(NDArray, f"__i{sign}__", lambda a, b, fn=binary[name]: fn(a, b, out=a))
    for sign, name in _ORDER.items():
        setattr(NDArray, f"__{sign}__", lambda a, b, fn=binary[name], no=sign == "ne": no if b is None else fn(a, b))
    NDArray.__neg__, NDArray.__abs__ = table["negative"], table["abs"]
    for name in [name for name in table if name[0].islower() and name not in vars(NDArray)]:
        setattr(NDArray, name, table[name])
    for name, argument in (("broadcast_to", "shape"), ("tile", "reps"), ("transpose", "axes"), ("flip", "axis")):
        setattr(NDArray, name, _spread(table[name], argument))
    for name in ("expand_dims", "flatten", "squeeze"):
        setattr(NDArray, name, _in_place(table[name]))


_operators()


def array(source_array, ctx=None, dtype=None):
    """An array of numbers, of a NumPy array or of another array: float32 unless `dtype` or that array says else."""
    if isinstance(source_array, NDArray):
        found = source_array.copyto(ctx or source_array._ctx)
        return found if dtype is None else found.astype(dtype).tostype(found.stype)
    ctx = ctx or current_context()
    values = np.ascontiguousarray(np.asarray(source_array))  # at least one dim
    return NDArray(pydist.tensor(values, dtype=dtype_of(dtype), device=ctx.device), ctx)


def full(shape, val, ctx=None, dtype=None, out=None, stype=None):
    """An array of one number."""
    ctx = ctx or current_context()
    made = NDArray(pydist.full(shape_of(shape), val, dtype=dtype_of(dtype), device=ctx.device), ctx)
    if out is None:
        return made.tostype(stype or "default")
    out[:] = made
    return out


def zeros(shape, ctx=None, dtype=None, stype=None, out=None, **kwargs):
    """An array of zeros."""
    return full(shape, 0, ctx, dtype, out, stype)


def ones(shape, ctx=None, dtype=None, stype=None, out=None, **kwargs):
    """An array of ones."""
    return full(shape, 1, ctx, dtype, out, stype)


def empty(shape, ctx=None, dtype=None, stype=None):
    """An array with any values."""
    return full(shape, 0, ctx, dtype, None, stype)


def arange(start, stop=None, step=1.0, repeat=1, infer_range=None, ctx=None, dtype=None):
    """From `start` up to, but without `stop`, each number `repeat` times."""
    start, stop = (0, start) if stop is None else (start, stop)
    return array(np.repeat(np.arange(start, stop, step), repeat), ctx, dtype)


def linspace(start, stop, num, endpoint=True, ctx=None, dtype=None):
    """`num` numbers from `start` to `stop`."""
    return array(np.linspace(start, stop, num, endpoint), ctx, dtype)


def eye(N, M=0, k=0, ctx=None, dtype=None):
    """Ones on the k-th diagonal of an N x M matrix (M = 0: N)."""
    return array(np.eye(N, M or N, k), ctx, dtype)


def from_numpy(ndarray, zero_copy=True):
    """An array of a NumPy array and of its dtype."""
    return array(ndarray, dtype=ndarray.dtype)


def onehot_encode(indices, out):
    """Writes one-hot rows of out.shape[1] elements into `out`."""
    out[:] = table["one_hot"](indices, out.shape[1])
    return out


def moveaxis(tensor, source, destination):
    """The array with some dims at other places."""
    source, destination = [each if isinstance(each, int) else list(each) for each in (source, destination)]
    try:
        return table["moveaxis"](tensor, source, destination)
    except (MXNetError, IndexError) as error:
        raise ValueError(f"moveaxis: {error} (expected axes of {tensor.ndim} dims)") from error


def waitall():
    """Nothing: results are complete."""


_FORMAT = "pydist.mxnet 1"


def save(fname, data):
    """Writes an array, a list of arrays, or a dict of them, in pydist's format."""
    data = [data] if isinstance(data, NDArray) else data
    names, arrays = (list(data), list(data.values())) if isinstance(data, dict) else (None, list(data))
    if not all(isinstance(each, NDArray) for each in arrays):
        raise TypeError(f"save: got a {type(data).__name__} with other things (expected NDArrays)")
    content = {"names": names, "arrays": [a._t.detach().cpu() for a in arrays], "stypes": [a.stype for a in arrays]}
    pydist.save({"format": _FORMAT, **content}, fname)


def load(fname):
    """What save() wrote: a list or a dict. Raises NotImplementedError for MXNet's own .params files."""
    with open(fname, "rb") as file:
        if int.from_bytes(file.read(8), "little") == 0x112:
            raise absent(f"nd.load: {fname}: MXNet's .params format", "a file of nd.save()")
    content = pydist.load(fname)
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise MXNetError(f"nd.load: {fname} holds no arrays (expected a file of nd.save())")
    arrays = [NDArray(t).tostype(stype) for t, stype in zip(content["arrays"], content["stypes"])]
    return arrays if content["names"] is None else dict(zip(content["names"], arrays))
