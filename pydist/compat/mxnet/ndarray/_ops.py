"""The operations: `table` has each under MXNet's name, as a function on NDArrays. Arguments have MXNet's names."""

import math

import numpy as np

import pydist
from pydist import abs, exp, floor, lgamma, sign, sqrt
from pydist.compat.mxnet._base import dtype_of, shape_of, state
from pydist.compat.mxnet.ndarray._array import NDArray, op, reshaped, run
from pydist.nn import functional as F

table = {}


def _add(fn, *names):
    fn.__name__ = names[0]
    table.update(dict.fromkeys(names, op(fn)))


# ---- elementwise

for (
    _name
) in """abs sign ceil floor trunc exp expm1 log log2 log10 log1p sqrt rsqrt square sin cos tan arcsin arccos arctan sinh
cosh tanh arcsinh arccosh arctanh sigmoid relu erf erfinv reciprocal zeros_like ones_like""".split():
    _add(lambda data, fn=getattr(pydist, _name), **_: fn(data), _name)

# fmt: off
_UNARY = {
    "negative": lambda t: -t, "cbrt": lambda t: sign(t) * abs(t) ** (1 / 3), "gammaln": lgamma, "softsign": F.softsign,
    "rcbrt": lambda t: sign(t) * abs(t) ** (-1 / 3), "gamma": lambda t: exp(lgamma(t)), "rint": pydist.round,
    "hard_sigmoid": lambda t: pydist.clamp(0.2 * t + 0.5, 0.0, 1.0), "fix": pydist.trunc,
    "round": lambda t: sign(t) * floor(abs(t) + 0.5), "degrees": lambda t: t * (180 / math.pi),
    "radians": lambda t: t * (math.pi / 180), "identity": lambda t: t.clone(), "BlockGrad": lambda t: t.detach(),
    "logical_not": lambda t: (t == 0).to(t.dtype), "isnan": lambda t: pydist.isnan(t).to(t.dtype),
    "isinf": lambda t: pydist.isinf(t).to(t.dtype), "isfinite": lambda t: pydist.isfinite(t).to(t.dtype),
    "make_loss": lambda t: t.clone(), "stop_gradient": lambda t: t.detach(),
}
for _name, _fn in _UNARY.items():
    _add(lambda data, fn=_fn: fn(data), _name)


def _like(a, b):
    return a if isinstance(a, pydist.Tensor) else pydist.full((1,), a, dtype=b.dtype, device=b.device)


_BINARY = {  # results have the dtype of the first array: an int array / 2 is one of ints
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "div": lambda a, b: a / b,
    "mod": lambda a, b: pydist.remainder(_like(a, b), b), "power": lambda a, b: a**b,
    "maximum": lambda a, b: pydist.maximum(_like(a, b), _like(b, a)),
    "minimum": lambda a, b: pydist.minimum(_like(a, b), _like(b, a)), "hypot": lambda a, b: sqrt(a * a + b * b),
    "equal": lambda a, b: a == b, "not_equal": lambda a, b: a != b, "greater": lambda a, b: a > b,
    "greater_equal": lambda a, b: a >= b, "lesser": lambda a, b: a < b, "lesser_equal": lambda a, b: a <= b,
    "logical_and": lambda a, b: (_like(a, b) != 0) & (_like(b, a) != 0),
    "logical_or": lambda a, b: (_like(a, b) != 0) | (_like(b, a) != 0),
    "logical_xor": lambda a, b: (_like(a, b) != 0) ^ (_like(b, a) != 0),
}
_OTHER = {"add": ["plus"], "sub": ["minus", "subtract"], "mul": ["multiply"], "div": ["divide"], "power": ["pow"],
          "mod": ["modulo"]}
# fmt: on


def _operand(value):
    """A number or an array for an operator's side."""
    if isinstance(value, np.ndarray):
        return NDArray(pydist.tensor(np.ascontiguousarray(value)))
    if not isinstance(value, (NDArray, int, float, np.generic)):
        raise TypeError(f"NDArray: got {type(value).__name__} beside an array (expected an NDArray or a number)")
    return value.item() if isinstance(value, np.generic) else value


def _binary(name, fn):
    def compute(lhs, rhs):
        return fn(lhs, rhs).to((lhs if isinstance(lhs, pydist.Tensor) else rhs).dtype)

    def function(lhs, rhs, out=None, name=None):
        if not isinstance(lhs, NDArray) and not isinstance(rhs, NDArray):
            return fn(pydist.tensor(lhs), rhs).item()
        return call(_operand(lhs), _operand(rhs), out=out)

    compute.__name__ = function.__name__ = name
    call = op(compute)
    for each in (name, *_OTHER.get(name, ())):
        for full in (each, f"broadcast_{each}", f"elemwise_{each}"):
            table.setdefault(full, function)
    return function


binary = {name: _binary(name, fn) for name, fn in _BINARY.items()}


# ---- reductions


def _axes(data, axis, exclude=False):
    """The dims that an axis argument means."""
    if axis in (None, ()):
        return tuple(range(data.dim()))
    chosen = {a % data.dim() for a in shape_of(axis)}
    return tuple(d for d in range(data.dim()) if (d in chosen) != exclude)


def _one_by_one(fn):
    def reduce(data, axes, keepdims):
        for axis in sorted(axes, reverse=True):
            data = fn(data, axis, keepdims)
        return data

    return reduce


def _finite(t, value):
    return pydist.where(pydist.isnan(t), pydist.full_like(t, value), t)


# fmt: off
_REDUCTIONS = {
    "sum": lambda t, axes, keep: t.sum(axes, keepdim=keep), "max": lambda t, axes, keep: pydist.amax(t, axes, keep),
    "mean": lambda t, axes, keep: (t if t.dtype.is_floating_point else t.double()).mean(axes, keepdim=keep),
    "min": lambda t, axes, keep: pydist.amin(t, axes, keep),
    "prod": _one_by_one(lambda t, d, keep: t.prod(d, keepdim=keep)),
    "nansum": lambda t, axes, keep: _finite(t, 0).sum(axes, keepdim=keep),
    "nanprod": _one_by_one(lambda t, d, keep: _finite(t, 1).prod(d, keepdim=keep)),
}
# fmt: on
for _name, _fn in _REDUCTIONS.items():

    def _reduce(data, axis=None, keepdims=False, exclude=False, fn=_fn):
        axes = _axes(data, axis, exclude)
        return fn(data, axes, keepdims).to(data.dtype) if axes else data.clone()

    _add(_reduce, _name, f"{_name}_axis")

for _name in ("argmax", "argmin"):

    def _arg(data, axis=None, keepdims=False, fn=getattr(pydist, _name)):
        found = fn(data.reshape(-1), 0) if axis is None else fn(data, axis, keepdims)
        found = found.reshape([1] * data.dim()) if axis is None and keepdims else found
        return found.to(data.dtype if data.dtype.is_floating_point else pydist.float32)

    _add(_arg, _name)


def _sorted(data, axis, is_ascend):
    data, axis = (data.reshape(-1), 0) if axis is None else (data, axis)
    return pydist.sort(data, dim=axis, descending=not is_ascend)


# ---- shapes


def _cut(data, keys):
    """data[keys], where steps may be negative."""
    for d, key in enumerate(keys):
        if (key.step or 1) < 0:
            data = data.index_select(d, pydist.tensor(list(range(*key.indices(data.shape[d]))), device=data.device))
        else:
            data = data[(slice(None),) * d + (key,)]
    return data


def _slice(data, begin, end, step=None):
    begin, end, step = [each if isinstance(each, (list, tuple)) else [each] for each in (begin, end, step)]
    return _cut(
        data, [slice(*each) for each in zip(begin, end, (step if step not in ([None], ()) else [None] * len(begin)))]
    )


# ---- rows and elements


def _whole(indices, size, mode="clip"):
    """Indices as int64, clipped or wrapped into range(size)."""
    indices = indices.detach().long()
    return (
        indices
        if mode == "raise"
        else indices.clamp(0, size - 1)
        if mode == "clip"
        else pydist.remainder(indices, size)
    )


# ---- products


def _turned(t, turn):
    return t.transpose(-1, -2) if turn else t


# ---- layers


def known(weight, shape):
    """The tensor of a parameter. One whose shape is not known yet gets `shape`."""
    return weight if isinstance(weight, pydist.Tensor) or weight is None else weight.finish(shape)


_ACTIVATIONS = {
    "relu": pydist.relu,
    "sigmoid": pydist.sigmoid,
    "tanh": pydist.tanh,
    "softrelu": F.softplus,
    "softsign": F.softsign,
}


def _sizes(value, dims, default):
    """`dims` numbers for an int, a tuple or nothing."""
    value = default if value in (None, ()) else value
    return (value,) * dims if isinstance(value, int) else tuple(value)


_LAST = ("NWC", "NHWC", "NDHWC")


def _soft(fn, sign=1):
    return lambda data, axis=-1, temperature=None: fn(
        data * (sign / (temperature or 1)) if (temperature, sign) != (None, 1) else data, axis
    )


def _all_finite(*arrays, num_arrays=None, init_output=True):
    return run(lambda *ts: pydist.tensor([float(all(pydist.isfinite(t).all() for t in ts))]), *arrays)


def _one_of_each(data, indices):
    return data[tuple(_whole(each, n) for each, n in zip(indices, data.shape))]


class _Functions:
    """Operations of several lines, on tensors."""

    def where(condition, x, y):
        if condition.dim() == 1 and x.dim() > 1:
            condition = condition.reshape(-1, *[1] * (x.dim() - 1))
        return pydist.where(condition != 0, x, y)

    def norm(data, ord=2, axis=None, keepdims=False):
        if ord not in (1, 2):
            raise ValueError(f"ord is {ord} (expected 1 or 2)")
        return pydist.linalg.vector_norm(data, ord, _axes(data, axis), keepdims)

    def topk(data, axis=-1, k=1, ret_typ="indices", is_ascend=False, dtype="float32"):
        if ret_typ not in ("indices", "value", "both", "mask"):
            raise ValueError(f"ret_typ is {ret_typ!r} (expected indices, value, both or mask)")
        flat, axis = (data.reshape(-1), 0) if axis is None else (data, axis)
        values, places = pydist.topk(flat, k or flat.shape[axis], dim=axis, largest=not is_ascend)
        if ret_typ == "mask":
            return pydist.zeros_like(flat).scatter(axis, places, 1.0).reshape(data.shape)
        places = places.to(dtype_of(dtype))
        return {"indices": places, "value": values, "both": [values, places]}[ret_typ]

    def squeeze(data, axis=None):
        axes = (
            [d for d, n in enumerate(data.shape) if n == 1]
            if axis is None
            else [a % data.dim() for a in shape_of(axis)]
        )
        if any(data.shape[d] != 1 for d in axes):
            raise ValueError(f"axes {axes} of shape {tuple(data.shape)} (expected sizes of 1)")
        return data.reshape([n for d, n in enumerate(data.shape) if d not in axes] or [1])

    def broadcast_axis(data, axis, size):
        sizes = dict(zip(shape_of(axis), shape_of(size)))
        return data.expand([sizes.get(d, n) for d, n in enumerate(data.shape)])

    def broadcast_like(lhs, rhs, lhs_axes=None, rhs_axes=None):
        if lhs_axes is None:
            return lhs.expand(rhs.shape)
        if not lhs_axes or len(lhs_axes) != len(rhs_axes):
            raise ValueError(f"got lhs_axes {lhs_axes} and rhs_axes {rhs_axes} (expected as many of both)")
        sizes = {a % lhs.dim(): rhs.shape[b] for a, b in zip(lhs_axes, rhs_axes)}
        return lhs.expand([sizes.get(d, n) for d, n in enumerate(lhs.shape)])

    def concat(*data, dim=1):
        return pydist.cat(list(data[0] if isinstance(data[0], list) else data), dim)

    def stack(*data, axis=0):
        return pydist.stack(list(data[0] if isinstance(data[0], list) else data), axis)

    def split(data, num_outputs, axis=1, squeeze_axis=False):
        if data.shape[axis] % num_outputs:
            raise ValueError(
                f"axis {axis} of size {data.shape[axis]} (expected a multiple of num_outputs, {num_outputs})"
            )
        parts = pydist.split(data, data.shape[axis] // num_outputs, axis)
        parts = [part.squeeze(axis) for part in parts] if squeeze_axis else list(parts)
        return parts if num_outputs > 1 else parts[0]

    def slice_like(data, shape_like, axes=None):
        axes = range(shape_like.dim()) if axes in (None, ()) else [a % data.dim() for a in shape_of(axes)]
        return _cut(data, [slice(shape_like.shape[d] if d in axes else None) for d in range(data.dim())])

    def take(a, indices, axis=0, mode="clip"):
        axis = axis % a.dim()
        found = a.index_select(axis, _whole(indices, a.shape[axis], mode).reshape(-1))
        return found.reshape(*a.shape[:axis], *indices.shape, *a.shape[axis + 1 :])

    def pick(data, index, axis=-1, keepdims=False, mode="clip"):
        axis = axis % data.dim()
        index = _whole(index, data.shape[axis], mode)
        found = pydist.gather(data, axis, index if index.dim() == data.dim() else index.unsqueeze(axis))
        return found if keepdims else found.squeeze(axis)

    def one_hot(indices, depth, on_value=1.0, off_value=0.0, dtype="float32"):
        hits = indices.detach().long().unsqueeze(-1) == pydist.arange(depth, device=indices.device)
        return hits.to(dtype_of(dtype)) * (on_value - off_value) + off_value

    def dot(lhs, rhs, transpose_a=False, transpose_b=False, forward_stype=None):
        lhs = lhs.permute(*range(1, lhs.dim()), 0) if transpose_a and lhs.dim() > 1 else lhs
        rhs = rhs.permute(rhs.dim() - 1, *range(rhs.dim() - 1)) if transpose_b and rhs.dim() > 1 else rhs
        if lhs.shape[-1] != rhs.shape[0]:
            raise ValueError(f"got shapes {tuple(lhs.shape)} and {tuple(rhs.shape)} (expected equal inner sizes)")
        return pydist.tensordot(lhs, rhs, 1)

    def FullyConnected(data, weight, bias=None, num_hidden=None, no_bias=False, flatten=True):
        data = data.reshape(data.shape[0], -1) if flatten else data
        weight, bias = known(weight, (num_hidden, data.shape[-1])), None if no_bias else known(bias, (num_hidden,))
        if num_hidden not in (None, weight.shape[0]):
            raise ValueError(f"num_hidden is {num_hidden} (expected {weight.shape[0]}, the rows of weight)")
        return F.linear(data, weight, bias)

    def Activation(data, act_type):
        if act_type not in _ACTIVATIONS:
            raise ValueError(f"act_type is {act_type!r} (expected one of {', '.join(_ACTIVATIONS)})")
        return _ACTIVATIONS[act_type](data)

    def LeakyReLU(data, gamma=None, act_type="leaky", slope=0.25):
        if act_type == "prelu":
            gamma = known(gamma, (data.shape[1],))
            return pydist.where(data > 0, data, data * gamma.reshape(-1, *[1] * max(0, data.dim() - 2)))
        fns = {"leaky": F.leaky_relu, "elu": F.elu, "selu": lambda t, _: F.selu(t), "gelu": lambda t, _: F.gelu(t)}
        if act_type not in fns:
            raise ValueError(f"act_type is {act_type!r} (expected prelu, {', '.join(fns)})")
        return fns[act_type](data, slope)

    def Convolution(data, weight, bias=None, kernel=(), stride=None, dilate=None, pad=None, num_filter=1, num_group=1,
                    workspace=0, no_bias=False, cudnn_tune=None, cudnn_off=False, layout=None):  # fmt: skip
        dims, last = len(kernel), layout in _LAST
        if data.dim() != dims + 2:
            raise ValueError(
                f"got {data.dim()} dims with a kernel of {dims} (expected {dims + 2}: batch, channels, sizes)"
            )
        data = data.movedim(-1, 1) if last else data
        inner = (data.shape[1] // num_group,)
        weight = known(weight, (num_filter, *kernel, *inner) if last else (num_filter, *inner, *kernel))
        options = _sizes(stride, dims, 1), _sizes(pad, dims, 0), _sizes(dilate, dims, 1), num_group
        conv, bias = (F.conv1d, F.conv2d, F.conv3d)[dims - 1], None if no_bias else known(bias, (num_filter,))
        found = conv(data, weight.movedim(-1, 1) if last else weight, bias, *options)
        return found.movedim(1, -1) if last else found

    def Pooling(data, kernel=(), pool_type="max", global_pool=False, cudnn_off=False, pooling_convention="valid",
                stride=None, pad=None, p_value=2, count_include_pad=True, layout=None):  # fmt: skip
        if pool_type not in ("max", "avg"):
            raise ValueError(f"pool_type is {pool_type!r} (expected max or avg)")
        data = data.movedim(-1, 1) if layout in _LAST else data
        dims, largest = data.dim() - 2, pool_type == "max"
        stride, pad, full = _sizes(stride, dims, 1), _sizes(pad, dims, 0), pooling_convention == "full"
        if global_pool:
            found = (pydist.amax if largest else pydist.mean)(data, tuple(range(2, data.dim())), keepdim=True)
        elif any(k > n + 2 * p for k, n, p in zip(kernel, data.shape[2:], pad)):
            raise ValueError(
                f"kernel is {tuple(kernel)} (expected at most the padded sizes of {tuple(data.shape[2:])})"
            )
        elif largest:
            found = getattr(F, f"max_pool{dims}d")(data, kernel, stride, pad, 1, full)
        else:
            found = getattr(F, f"avg_pool{dims}d")(data, kernel, stride, pad, full, count_include_pad is not False)
        return found.movedim(1, -1) if layout in _LAST else found

    def BatchNorm(data, gamma, beta, moving_mean, moving_var, eps=1e-3, momentum=0.9, fix_gamma=True,
                  use_global_stats=False, output_mean_var=False, axis=1, cudnn_off=False):  # fmt: skip
        channels = (data.shape[axis],)
        gamma, beta, mean, var = [known(each, channels) for each in (gamma, beta, moving_mean, moving_var)]
        gamma = pydist.ones_like(gamma) if fix_gamma else gamma
        moved, now = data if axis == 1 else data.movedim(axis, 1), (mean, var)
        if not state.training or use_global_stats:
            found = F.batch_norm(moved, mean, var, gamma, beta, False, 0.0, eps)
        else:
            with pydist.no_grad():  # MXNet's running variance is that of the batch, not the unbiased one
                axes = [d for d in range(moved.dim()) if d != 1]
                now = moved.detach().mean(axes), moved.detach().float().var(axes, correction=0)
                for running, new in zip((mean, var), now):
                    running.mul_(momentum).add_(new.to(running.dtype), alpha=1 - momentum)
            if moved.numel() > channels[0]:
                found = F.batch_norm(moved, None, None, gamma, beta, True, 0.0, eps)
            else:  # one value is its own mean
                found = moved * 0 + beta.reshape(-1, *[1] * (moved.dim() - 2))
        found = found if axis == 1 else found.movedim(1, axis)
        return [found, *now] if output_mean_var else found

    def LayerNorm(data, gamma, beta, axis=-1, eps=1e-5):
        size = data.shape[axis]
        gamma, beta = known(gamma, (size,)), known(beta, (size,))
        if gamma.shape[0] != size:
            raise ValueError(f"axis {axis} of data has size {size} (expected {gamma.shape[0]}, that of gamma)")
        return F.layer_norm(data.movedim(axis, -1), (size,), gamma, beta, eps).movedim(-1, axis)

    def Dropout(data, p=0.5, mode="training", axes=(), cudnn_off=False):
        if p == 0 or not (state.training or mode == "always"):
            return data.view(data.shape)
        if not axes:
            return F.dropout(data, p, True)
        return data * F.dropout(data.new_ones([1 if d in axes else n for d, n in enumerate(data.shape)]), p, True)


_MORE = {
    "broadcast_axis": ["broadcast_axes"],
    "concat": ["Concat"],
    "split": ["SliceChannel"],
    "pick": ["choose_element_0index"],
}
for _name, _fn in list(vars(_Functions).items()):
    if callable(_fn):
        _add(_fn, _name, *_MORE.get(_name, ()))

# fmt: off
for _names, _fn in {
    "clip": lambda data, a_min, a_max: pydist.clamp(data, a_min, a_max),
    "cast Cast": lambda data, dtype: data.to(dtype_of(dtype)),
    "add_n ElementWiseSum": lambda *args: sum(args[1:], args[0].clone()),
    "smooth_l1": lambda data, scalar=1.0: pydist.where(
        abs(data) < 1 / scalar**2, 0.5 * scalar**2 * data * data, abs(data) - 0.5 / scalar**2),
    "sort": lambda data, axis=-1, is_ascend=True: _sorted(data, axis, is_ascend)[0],
    "argsort": lambda data, axis=-1, is_ascend=True, dtype="float32": _sorted(
        data, axis, is_ascend)[1].to(dtype_of(dtype)),
    "reshape Reshape": lambda data, shape, reverse=False: data.reshape(reshaped(tuple(data.shape), shape, reverse)),
    "reshape_like": lambda lhs, rhs: lhs.reshape(rhs.shape),
    "flatten Flatten": lambda data: data.reshape(data.shape[0], -1),
    "transpose": lambda data, axes=None: data.permute(*(axes or range(data.dim() - 1, -1, -1))),
    "swapaxes SwapAxis": lambda data, dim1=0, dim2=0: data.transpose(dim1, dim2),
    "moveaxis": lambda data, source, destination: pydist.movedim(data, source, destination),
    "expand_dims": lambda data, axis: data.unsqueeze(axis),
    "broadcast_to": lambda data, shape: data.expand([n or old for n, old in zip(shape, data.shape)]),
    "shape_array": lambda data: pydist.tensor(tuple(data.shape)),
    "size_array": lambda data: pydist.tensor([data.numel()]),
    "slice crop": _slice,
    "slice_axis": lambda data, axis, begin, end: data[(slice(None),) * (axis % data.dim()) + (slice(begin, end),)],
    "tile": lambda data, reps: pydist.tile(data, shape_of(reps)),
    "repeat": lambda data, repeats, axis=None: pydist.repeat_interleave(
        data.reshape(-1) if axis is None else data, repeats, dim=axis or 0),
    "flip reverse": lambda data, axis: pydist.flip(data, shape_of(axis)),
    "gather_nd": _one_of_each,
    "Embedding": lambda data, weight, input_dim=None, output_dim=None, dtype=None, sparse_grad=False: F.embedding(
        _whole(data, weight.shape[0]), weight),
    "batch_dot": lambda lhs, rhs, transpose_a=False, transpose_b=False: pydist.matmul(
        _turned(lhs, transpose_a), _turned(rhs, transpose_b)),
    "softmax SoftmaxActivation": _soft(pydist.softmax), "log_softmax": _soft(pydist.log_softmax),
    "softmin": _soft(pydist.softmax, -1),
    "softmax_cross_entropy": lambda data, label: F.cross_entropy(data, label.long(), reduction="sum"),
}.items():
    _add(_fn, *_names.split())
# fmt: on
table["multi_all_finite"] = table["all_finite"] = _all_finite
table["concatenate"] = lambda arrays, axis=0, always_copy=True: table["concat"](*arrays, dim=axis)
