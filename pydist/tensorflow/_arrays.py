"""Tensors that are made, and their shapes and places: tf.constant, tf.reshape, tf.gather, tf.where and their kin."""

import builtins
import collections
import math

import pydist
from pydist import _C, _functions
from pydist.data.strings import StringTensor, joined, stacked
from pydist.data.strings import string as string_dtype
from pydist.tensorflow._shapes import TensorShape
from pydist.tensorflow._tensors import (
    Tensor,
    as_dtype,
    dtype_or_none,
    ints,
    is_integer,
    of_variable,
    own,
    pair,
    tensor,
)
from pydist.tensorflow._tensors import (
    axes as axes_of,
)

Unique = collections.namedtuple("Unique", "y idx")
UniqueWithCounts = collections.namedtuple("UniqueWithCounts", "y idx count")

# Made of values and sizes.


def constant(value, dtype=None, shape=None, name="Const"):
    """A tensor of numbers, strings, lists or arrays. With a shape, one number fills it."""
    made = own(value, dtype_or_none(dtype))
    if isinstance(made, Tensor) and made is value:
        made = made.clone()
    if shape is None:
        return made
    shape = ints(shape)
    return made.expand(shape).clone() if made.ndim == 0 else made.reshape(shape)


def convert_to_tensor(value, dtype=None, dtype_hint=None, name=None):
    """The value as a tensor; a tensor is returned as it is, the value of a variable as a copy."""
    dtype = dtype_or_none(dtype)
    held = of_variable(value)
    return own(value, dtype) if held is not None else tensor(value, dtype, dtype_or_none(dtype_hint))


def is_tensor(x):
    """Whether x is a tensor or a variable."""
    return isinstance(x, (Tensor, StringTensor)) or of_variable(x) is not None


def _strings_of(text, shape):
    made = StringTensor([text])
    return StringTensor._of(made._data, made._spans.expand(*shape, 2))


def fill(dims, value, name=None):
    """A tensor of this shape, of one value."""
    value = tensor(value)
    if isinstance(value, StringTensor):
        return _strings_of(value.numpy(), ints(dims))
    return value.expand(ints(dims)).clone()


def zeros(shape, dtype="float32", name=None, layout=None):
    """A tensor of zeros; of empty strings for tf.string."""
    dtype = as_dtype(dtype)
    return _strings_of("", ints(shape)) if dtype is string_dtype else pydist.zeros(ints(shape), dtype=dtype)


def ones(shape, dtype="float32", name=None, layout=None):
    """A tensor of ones."""
    return pydist.ones(ints(shape), dtype=as_dtype(dtype))


def zeros_like(input, dtype=None, name=None, layout=None):
    """Zeros in the shape of a tensor."""
    input = tensor(input)
    if isinstance(input, StringTensor):
        return zeros(input.shape, dtype or string_dtype)
    return pydist.zeros_like(input, dtype=dtype_or_none(dtype))


def ones_like(input, dtype=None, name=None, layout=None):
    """Ones in the shape of a tensor."""
    return pydist.ones_like(tensor(input), dtype=dtype_or_none(dtype))


def eye(num_rows, num_columns=None, batch_shape=None, dtype="float32", name=None):
    """The identity matrix, or as many of it as batch_shape says."""
    rows = int(num_rows)
    made = pydist.eye(rows, rows if num_columns is None else int(num_columns), dtype=as_dtype(dtype))
    return made if batch_shape is None else made.expand(*ints(batch_shape), *made.shape).clone()


def range(start, limit=None, delta=1, dtype=None, name="range"):
    """start, start + delta, ... below limit; range(limit) begins with 0. Whole numbers are int32."""
    start, limit = (0, start) if limit is None else (start, limit)
    parts = [
        v.item() if hasattr(v, "item") else of_variable(v).item() if hasattr(v, "assign") else v
        for v in (start, limit, delta)
    ]
    if dtype is None:
        given = [v.dtype for v in (start, limit, delta) if hasattr(v, "dtype")]
        whole = all(isinstance(v, int) for v in parts)
        kinds = [as_dtype(d) for d in given if is_integer(as_dtype(d)) == whole]
        dtype = kinds[0] if kinds else _C.int32 if whole else _C.float32
    if parts[2] == 0:
        raise ValueError("range: delta is 0 (expected another number)")
    return (
        _C.arange(parts[0], parts[1], parts[2], dtype=as_dtype(dtype))
        if (parts[1] - parts[0]) * parts[2] > 0
        else (_C.empty(0, dtype=as_dtype(dtype)))
    )


def linspace(start, stop, num, name=None, axis=0):
    """`num` numbers from start to stop, both included, evenly spaced; of tensors along `axis`."""
    start, num = tensor(start), int(num)
    start = start if start.is_floating_point() else start.to(_C.float64)
    stop = tensor(stop, like=start.dtype).to(start.dtype)
    if num == 1:
        return start.unsqueeze(axis) if start.ndim else start.reshape(1)
    places = _C.arange(num, dtype=start.dtype) / (num - 1)
    places = places.reshape(
        [-1] + [1] * (start.ndim if axis == 0 else builtins.max(start.ndim - axis % (start.ndim + 1), 0))
    )
    first, last = start.unsqueeze(axis), stop.unsqueeze(axis)
    made = first + (last - first) * places
    return _C.where(places == 1, last, made)


def one_hot(indices, depth, on_value=None, off_value=None, axis=None, dtype=None, name=None):
    """A new axis (the last) of `depth` elements: on_value (1) at the index, off_value (0) elsewhere."""
    indices, depth = tensor(indices), int(depth)
    on, off = (1 if on_value is None else on_value), (0 if off_value is None else off_value)
    if dtype is None:
        kinds = [tensor(v).dtype for v in (on_value, off_value) if v is not None]
        dtype = kinds[0] if kinds else _C.float32
    at = -1 if axis is None else int(axis)
    at = at if at >= 0 else indices.ndim + 1 + at
    places = _C.arange(depth, dtype=_C.int64).reshape([-1] + [1] * (indices.ndim - at))
    hit = indices.to(_C.int64).unsqueeze(at) == places
    return _C.where(hit, tensor(on, as_dtype(dtype)), tensor(off, as_dtype(dtype)))


def meshgrid(*args, indexing="xy", name=None):
    """Grids of the numbers of each argument along its own axis."""
    return list(_functions.meshgrid(*(tensor(v) for v in args), indexing=indexing))


def sequence_mask(lengths, maxlen=None, dtype="bool", name=None):
    """A new last axis: true for the places below each length."""
    lengths = tensor(lengths)
    size = (lengths.max().item() if lengths.numel() else 0) if maxlen is None else int(maxlen)
    return (_C.arange(size, dtype=lengths.dtype) < lengths.unsqueeze(-1)).to(as_dtype(dtype))


# Dtype, shape and identity.


def cast(x, dtype, name=None):
    """x in another dtype."""
    dtype = as_dtype(dtype)
    x = own(x)
    return x if x.dtype is dtype else _converted(x, dtype)


def complex(real, imag, name=None):
    """Complex numbers of their real and imaginary parts."""
    real = tensor(real)
    return _C.complex(real, tensor(imag, like=real.dtype))


def required_space_to_batch_paddings(input_shape, block_shape, base_paddings=None, name=None):
    """(paddings, crops) that make each size a multiple of a block."""
    sizes, blocks = ints(input_shape), ints(block_shape)
    base = [[0, 0]] * len(sizes) if base_paddings is None else [ints(p) for p in base_paddings]
    ends = [(-(n + b[0] + b[1])) % block for n, block, b in zip(sizes, blocks, base)]
    paddings = [[b[0], b[1] + end] for b, end in zip(base, ends)]
    return tuple(_C.tensor(v, dtype=_C.int32).reshape(len(sizes), 2) for v in (paddings, [[0, end] for end in ends]))


def _converted(x, dtype):
    if isinstance(x, StringTensor) or dtype is string_dtype:
        raise TypeError("cast: got strings (expected tf.strings.to_number or tf.strings.as_string)")
    if x.is_complex() and not dtype.is_complex:
        x = x.real
    return x.to(dtype)


def saturate_cast(value, dtype, name=None):
    """value in another dtype; what does not fit becomes its least or greatest number."""
    value, dtype = tensor(value), as_dtype(dtype)
    if not is_integer(dtype):
        return cast(value, dtype)
    from pydist._dtypes import iinfo

    limits = iinfo(dtype)
    wide = value.to(_C.float64) if value.is_floating_point() else value.to(_C.int64)
    return _C.clamp(wide, limits.min, limits.max).to(dtype)


def bitcast(input, type, name=None):
    """The same bytes as another dtype. Its size divides or multiplies the last axis."""
    input, dtype = tensor(input), as_dtype(type)
    if dtype.itemsize < input.element_size():
        return input.unsqueeze(-1).view(dtype)
    return input.view(dtype).squeeze(-1) if dtype.itemsize > input.element_size() else input.view(dtype)


def identity(input, name=None):
    """A tensor of the same values."""
    return own(input)


def stop_gradient(input, name=None):
    """The same values, through which no gradient flows."""
    input = own(input)
    return input.detach() if isinstance(input, Tensor) else input


def shape(input, out_type="int32", name=None):
    """The sizes, as a tensor."""
    return _C.tensor(list(tensor(input).shape), dtype=as_dtype(out_type))


def size(input, out_type="int32", name=None):
    """The number of elements, as a tensor."""
    return _C.tensor(math.prod(tensor(input).shape), dtype=as_dtype(out_type))


def rank(input, name=None):
    """The number of axes, as a tensor."""
    return _C.tensor(tensor(input).ndim, dtype=_C.int32)


def ensure_shape(x, shape, name=None):
    """x. Raises ValueError if its shape does not fit (None: any size)."""
    x, wanted = tensor(x), TensorShape(shape)
    if not wanted.is_compatible_with(x.shape):
        raise ValueError(f"ensure_shape: got a tensor of shape {tuple(x.shape)} (expected {wanted})")
    return x


def get_static_value(tensor, partial=False):
    """The tensor as an array."""
    return tensor.numpy() if is_tensor(tensor) else tensor


def broadcast_static_shape(shape_x, shape_y):
    """The shape of an operation on tensors of these two shapes."""
    return TensorShape(_functions.broadcast_shapes(ints(shape_x), ints(shape_y)))


def broadcast_dynamic_shape(shape_x, shape_y):
    """The shape of an operation on tensors of these two shapes, as a tensor."""
    return _C.tensor(list(_functions.broadcast_shapes(ints(shape_x), ints(shape_y))), dtype=_C.int32)


# Rearranged.


def _spans(x):
    """What StringTensors and tensors have in common: (the tensor, whose last axes `extra` belong to an element, a
    function from its result)."""
    if isinstance(x, StringTensor):
        return x._spans, 1, lambda spans: StringTensor._of(x._data, spans)
    return x, 0, lambda result: result


def reshape(tensor, shape, name=None):
    """The same elements in another shape; one size may be -1."""
    x, extra, back = _spans(own(tensor))
    sizes = ints(shape)
    return back(x.reshape(*sizes, 2) if extra else x.reshape(sizes))


def transpose(a, perm=None, conjugate=False, name="transpose"):
    """The axes in another order (reversed)."""
    x, extra, back = _spans(own(a))
    order = list(builtins.range(x.ndim - extra))[::-1] if perm is None else ints(perm)
    result = back(x.permute(*order, *([x.ndim - 1] * extra)))
    return _C.conj(result) if conjugate else result


def expand_dims(input, axis, name=None):
    """A new axis of size 1 before `axis`."""
    x, extra, back = _spans(own(input))
    axis = ints(axis)[0]
    return back(x.unsqueeze(axis if axis >= 0 else axis - extra))


def squeeze(input, axis=None, name=None):
    """Without the axes of size 1, or those of `axis`. Raises ValueError if one of these is longer."""
    x, extra, back = _spans(own(input))
    sizes = x.shape[: x.ndim - extra]
    which = [i for i, n in enumerate(sizes) if n == 1] if axis is None or axis == [] else ints(axis)
    for i in which:
        if sizes[i] != 1:
            raise ValueError(f"squeeze: axis {i} has size {sizes[i]} (expected 1)")
    which = [i % len(sizes) for i in which]
    return back(x.reshape([n for i, n in enumerate(x.shape) if i not in which]))


def _all_strings(values):
    return any(isinstance(v, StringTensor) for v in values)


def _promoted(values):
    """Tensors of a list, lists and numbers in the dtype of the tensors beside them."""
    like = next((v.dtype for v in values if isinstance(v, Tensor) or hasattr(v, "assign")), None)
    return [tensor(v, like=like if like is not string_dtype else None) for v in values]


def concat(values, axis, name="concat"):
    """Tensors one behind the other along an axis."""
    if isinstance(values, Tensor):
        values = list(values) if values.ndim > 1 else [values]
    parts, axis = _promoted(values), ints(axis)[0]
    if _all_strings(parts):
        moved = [transposed(p, 0, axis % p.ndim) for p in parts]
        return transposed(joined(moved), 0, axis % parts[0].ndim)
    return _C.cat(parts, axis)


def transposed(x, first, second):
    """A tensor with two axes exchanged."""
    if first == second:
        return x
    spans, extra, back = _spans(x)
    order = list(builtins.range(spans.ndim))
    order[first], order[second] = second, first
    return back(spans.permute(*order))


def stack(values, axis=0, name="stack"):
    """Tensors of one shape along a new axis."""
    parts = _promoted(values if isinstance(values, (list, tuple)) else list(values))
    if _all_strings(parts):
        result = stacked(parts)
        order = list(builtins.range(1, result.ndim))
        order.insert(axis % result.ndim, 0)
        return transpose(result, order)
    return _C.stack(parts, ints(axis)[0])


def unstack(value, num=None, axis=0, name="unstack"):
    """The parts along an axis, as a list of tensors."""
    value, axis = own(value), ints(axis)[0]
    if isinstance(value, StringTensor):
        return list(transposed(value, 0, axis % value.ndim))
    return list(_functions.unbind(value, axis))


def split(value, num_or_size_splits, axis=0, num=None, name="split"):
    """A list of parts along an axis: so many equal ones, or of these sizes (-1: what is left)."""
    value, axis = own(value), ints(axis)[0]
    spans, extra, back = _spans(value)
    axis = axis % (spans.ndim - extra)
    length = spans.shape[axis]
    sizes = ints(num_or_size_splits)
    if not isinstance(num_or_size_splits, (list, tuple)) and getattr(num_or_size_splits, "ndim", 0) == 0:
        count = sizes[0]
        if count < 1 or length % count:
            raise ValueError(f"split: axis {axis} has size {length} (expected a multiple of {count})")
        sizes = [length // count] * count
    if -1 in sizes:
        sizes[sizes.index(-1)] = length - sum(n for n in sizes if n != -1)
    if sum(sizes) != length:
        raise ValueError(f"split: the sizes are {sizes} (expected a sum of {length})")
    return [back(part) for part in _functions.split(spans, sizes, axis)]


def tile(input, multiples, name=None):
    """The tensor repeated along each axis."""
    spans, extra, back = _spans(tensor(input))
    return back(_functions.tile(spans, (*ints(multiples), *[1] * extra)))


def repeat(input, repeats, axis=None, name=None):
    """Each element so many times, one behind the other; without axis, of the flattened tensor."""
    spans, extra, back = _spans(tensor(input))
    if axis is None:
        spans = spans.reshape(-1, *spans.shape[spans.ndim - extra :])
        axis = 0
    times = ints(repeats)
    times = times[0] if len(times) == 1 else _C.tensor(times, dtype=_C.int64)
    return back(_functions.repeat_interleave(spans, times, axis if axis >= 0 else axis - extra))


def broadcast_to(input, shape, name=None):
    """The tensor in a shape that it broadcasts to."""
    spans, extra, back = _spans(own(input))
    return back(spans.expand(*ints(shape), *spans.shape[spans.ndim - extra :]))


def reverse(tensor, axis, name=None):
    """The elements in reverse order along these axes."""
    spans, extra, back = _spans(own(tensor))
    return back(_C.flip(spans, [i % (spans.ndim - extra) for i in ints(axis)]))


def roll(input, shift, axis, name=None):
    """The elements moved along axes; those that leave at the end come in at the front."""
    spans, extra, back = _spans(tensor(input))
    return back(_functions.roll(spans, tuple(ints(shift)), tuple(i % (spans.ndim - extra) for i in ints(axis))))


def pad(tensor, paddings, mode="CONSTANT", constant_values=0, name=None):
    """The tensor with [before, after] more elements along each axis: of one value, or mirrored (REFLECT, SYMMETRIC)."""
    x = own(tensor)
    amounts = paddings.tolist() if hasattr(paddings, "tolist") else [ints(p) for p in paddings]
    mode = mode.upper()
    if len(amounts) != x.ndim:
        raise ValueError(f"pad: got {len(amounts)} pairs for a tensor of {x.ndim} axes (expected one for each axis)")
    if mode == "CONSTANT":
        value = constant_values.item() if hasattr(constant_values, "item") else constant_values
        return _C.constant_pad_nd(x, [n for p in reversed(amounts) for n in p], value)
    if mode not in ("REFLECT", "SYMMETRIC"):
        raise ValueError(f"pad: mode is {mode!r} (expected CONSTANT, REFLECT or SYMMETRIC)")
    edge = mode == "SYMMETRIC"
    for axis, (before, after) in enumerate(amounts):
        length = x.shape[axis]
        if max(before, after) > length - (not edge):
            raise ValueError(
                f"pad: axis {axis} has size {length}, too short for {before} and {after} more (expected at least "
                f"{max(before, after) + (not edge)}, for {mode})"
            )
        front = [before - i - edge for i in builtins.range(before)]
        back = [length - 2 - i + edge for i in builtins.range(after)]
        places = _C.tensor([*front, *builtins.range(length), *back], dtype=_C.int64, device=x.device)
        x = _C.index_select(x, axis, places) if before or after else x
    return x


# Picked.


def slice(input_, begin, size, name=None):
    """The part that begins at `begin` and has these sizes (-1: to the end)."""
    spans, extra, back = _spans(own(input_))
    starts, sizes = ints(begin), ints(size)
    index = tuple(builtins.slice(b, None if n == -1 else b + n) for b, n in zip(starts, sizes))
    for axis, (b, n) in enumerate(zip(starts, sizes)):
        if b < 0 or n < -1 or b + builtins.max(n, 0) > spans.shape[axis]:
            raise ValueError(
                f"slice: begin {b}, size {n} at axis {axis} of size {spans.shape[axis]} (expected a part of it)"
            )
    return back(spans[index])


def strided_slice(input_, begin, end, strides=None, begin_mask=0, end_mask=0, ellipsis_mask=0, new_axis_mask=0,
                  shrink_axis_mask=0, var=None, name=None):  # fmt: skip
    """input_[begin[0]:end[0]:strides[0], ...]. Bit i of begin_mask or end_mask: without that limit; of
    shrink_axis_mask: the element begin[i] alone; of new_axis_mask: a new axis; of ellipsis_mask: as many axes as are
    left."""
    starts, ends = ints(begin), ints(end)
    steps = [1] * len(starts) if strides is None else ints(strides)
    index = []
    for i, (b, e, s) in enumerate(zip(starts, ends, steps)):
        bit = 1 << i
        if ellipsis_mask & bit:
            index.append(...)
        elif new_axis_mask & bit:
            index.append(None)
        elif shrink_axis_mask & bit:
            index.append(b)
        else:
            index.append(builtins.slice(None if begin_mask & bit else b, None if end_mask & bit else e, s))
    return picked(own(input_), tuple(index))


def picked(x, index):
    """x[index], also with negative steps."""
    parts = index if isinstance(index, tuple) else (index,)
    if not any(isinstance(p, builtins.slice) and p.step is not None and int(p.step) < 0 for p in parts):
        return x[index]
    axes_taken = sum(1 for p in parts if p is not None and p is not Ellipsis)
    axis, back, plain = 0, [], []
    for p in parts:
        if p is Ellipsis:
            axis += x.ndim - axes_taken
        elif p is not None:
            if isinstance(p, builtins.slice) and p.step is not None and int(p.step) < 0:
                numbers = builtins.range(x.shape[axis])[p]
                back.append((axis, numbers))
                p = builtins.slice(None)
            axis += 1
        plain.append(p)
    for axis, numbers in back:
        x = _C.index_select(x, axis, _C.tensor(list(numbers), dtype=_C.int64, device=x.device))
    return x[tuple(plain)]


def _checked_indices(indices, limit, where):
    if indices.numel() and indices.device.type == "cpu":
        least, most = indices.min().item(), indices.max().item()
        if least < 0 or most >= limit:
            bad = least if least < 0 else most
            raise IndexError(f"{where}: index {bad} is not in [0, {limit}) (expected one of the elements)")
    return indices


def gather(params, indices, validate_indices=None, axis=None, batch_dims=0, name=None):
    """The slices of `params` with these numbers along `axis` (0). The first batch_dims axes of both go together."""
    spans, extra, back = _spans(own(params))
    indices = tensor(indices).to(_C.int64)
    batch = int(batch_dims) % (indices.ndim + 1)
    axis = batch if axis is None else ints(axis)[0] % (spans.ndim - extra)
    if not batch:
        _checked_indices(indices, spans.shape[axis], "gather")
        found = _C.index_select(spans, axis, indices.reshape(-1))
        return back(found.reshape(*spans.shape[:axis], *indices.shape, *spans.shape[axis + 1 :]))
    moved = spans.movedim(axis, batch)
    flat = moved.reshape(math.prod(moved.shape[:batch]), *moved.shape[batch:])
    _checked_indices(indices, flat.shape[1], "gather")
    rows = indices.reshape(flat.shape[0], -1)
    found = flat[_C.arange(flat.shape[0], device=rows.device)[:, None], rows]
    found = found.reshape(*indices.shape, *moved.shape[batch + 1 :])
    inner = indices.ndim - batch
    order = list(builtins.range(found.ndim))
    picked_axes = order[batch : batch + inner]
    rest = [i for i in order if i not in picked_axes]
    return back(found.permute(*rest[:axis], *picked_axes, *rest[axis:]))


def gather_nd(params, indices, batch_dims=0, name=None):
    """The elements or slices of `params` at these places: the last axis of indices counts axes of params."""
    spans, extra, back = _spans(own(params))
    indices, batch = tensor(indices).to(_C.int64), int(batch_dims)
    places = list(_functions.unbind(indices, -1))
    for axis, numbers in enumerate(places):
        _checked_indices(numbers, spans.shape[batch + axis], "gather_nd")
    first = [
        _C.arange(spans.shape[i]).reshape([-1 if j == i else 1 for j in builtins.range(indices.ndim - 1)])
        for i in builtins.range(batch)
    ]
    return back(spans[(*first, *places)] if first or places else spans)


def boolean_mask(tensor, mask, axis=None, name="boolean_mask"):
    """The elements along `axis` where the mask is true."""
    spans, extra, back = _spans(own(tensor))
    mask = own(mask).to(_C.bool)
    at = 0 if axis is None else ints(axis)[0]
    return back(spans[(builtins.slice(None),) * at + (mask,)])


def where(condition, x=None, y=None, name=None):
    """x where the condition is true, else y. Without them: the places of true elements, as int64 rows."""
    condition = tensor(condition)
    condition = condition if condition.dtype is _C.bool else condition != 0
    if x is None and y is None:
        return _functions.nonzero(condition)
    if x is None or y is None:
        raise ValueError("where: got one of x and y (expected both or none)")
    x, y = pair(x, y)
    if isinstance(x, StringTensor):
        return _chosen_strings(condition, x, y)
    return _C.where(condition, x, y)


def _chosen_strings(condition, x, y):
    sizes = _functions.broadcast_shapes(condition.shape, x.shape, y.shape)
    both = joined([reshape(broadcast_to(v, sizes), [-1]) for v in (x, y)])
    count = math.prod(sizes)
    places = _C.arange(count) + _C.where(condition.expand(sizes).reshape(-1), 0, count)
    return reshape(StringTensor._of(both._data, both._spans[places]), sizes)


def sort(values, axis=-1, direction="ASCENDING", name=None):
    """The values in order along an axis; direction: ASCENDING or DESCENDING."""
    return _C.sort(tensor(values), ints(axis)[0], _descending(direction))[0]


def argsort(values, axis=-1, direction="ASCENDING", stable=False, name=None):
    """The places of the values in order, as int32. Equal values stay in order."""
    return _C.argsort(tensor(values), ints(axis)[0], _descending(direction), True).to(_C.int32)


def _descending(direction):
    if direction not in ("ASCENDING", "DESCENDING"):
        raise ValueError(f"sort: direction is {direction!r} (expected ASCENDING or DESCENDING)")
    return direction == "DESCENDING"


def searchsorted(sorted_sequence, values, side="left", out_type="int32", name=None):
    """Where each value would be put so that the sequence stays sorted."""
    sequence, values = pair(tensor(sorted_sequence), tensor(values))
    return _functions.searchsorted(sequence.contiguous(), values.contiguous(), right=side == "right").to(
        as_dtype(out_type)
    )


def _unique(x, name):
    """(values in the order in which they come, for each element its number, counts) of a list."""
    x = tensor(x)
    if x.ndim != 1:
        raise ValueError(f"{name}: got a tensor of shape {tuple(x.shape)} (expected one axis)")
    numbers, first, inverse = {}, [], []
    for at, value in enumerate(x.tolist()):
        if value not in numbers:
            numbers[value] = len(first)
            first.append(at)
        inverse.append(numbers[value])
    counts = [0] * len(first)
    for n in inverse:
        counts[n] += 1
    places = _C.tensor(first, dtype=_C.int64)
    return x[places], inverse, counts


def unique(x, out_idx="int32", name=None):
    """(the values, each once, in the order in which they come; for each element the number of its value)."""
    values, inverse, _ = _unique(x, "unique")
    return Unique(values, _C.tensor(inverse, dtype=as_dtype(out_idx)))


def unique_with_counts(x, out_idx="int32", name=None):
    """unique, and how often each value comes."""
    values, inverse, counts = _unique(x, "unique_with_counts")
    return UniqueWithCounts(*(values, *(_C.tensor(v, dtype=as_dtype(out_idx)) for v in (inverse, counts))))


# Written at places.


def _at(indices):
    return tuple(_functions.unbind(tensor(indices).to(_C.int64), -1))


def _checked_places(indices, sizes, where):
    for axis, numbers in enumerate(places := _at(indices)):
        _checked_indices(numbers, sizes[axis], where)
    return places


def scatter_nd(indices, updates, shape, name=None):
    """Zeros with the updates added at these places."""
    updates, sizes = tensor(updates), ints(shape)
    made = _C.zeros(sizes, dtype=updates.dtype, device=updates.device)
    places = _checked_places(indices, sizes, "scatter_nd")
    return _C.index_put(made, places, updates.expand(*places[0].shape, *sizes[len(places) :]), True)


def tensor_scatter_nd_update(tensor, indices, updates, name=None):
    """The tensor with the updates in these places."""
    return _scattered(tensor, indices, updates, lambda x, p, u: _C.index_put(x, p, u))


def tensor_scatter_nd_add(tensor, indices, updates, name=None):
    """The tensor with the updates added at these places."""
    return _scattered(tensor, indices, updates, lambda x, p, u: _C.index_put(x, p, u, True))


def tensor_scatter_nd_sub(tensor, indices, updates, name=None):
    """The tensor with the updates subtracted at these places."""
    return _scattered(tensor, indices, updates, lambda x, p, u: _C.index_put(x, p, -u, True))


def tensor_scatter_nd_max(tensor, indices, updates, name=None):
    """The tensor, with an update in each place where that is greater."""
    return _scattered(tensor, indices, updates, lambda x, p, u: _folded(x, p, u, "amax"))


def tensor_scatter_nd_min(tensor, indices, updates, name=None):
    """The tensor, with an update in each place where that is less."""
    return _scattered(tensor, indices, updates, lambda x, p, u: _folded(x, p, u, "amin"))


def _scattered(x, indices, updates, function):
    x = own(x)
    places = _checked_places(indices, x.shape, "tensor_scatter_nd")
    updates = tensor(updates, like=x.dtype).to(x.dtype)
    return function(x, places, updates.expand(*places[0].shape, *x.shape[len(places) :]))


def _folded(x, places, updates, how):
    rest = x.shape[len(places) :]
    numbers = _C.zeros_like(places[0])
    for place, n in zip(places, x.shape):
        numbers = numbers * n + place
    flat = x.reshape(-1, *rest)
    where = numbers.reshape(-1, *[1] * len(rest)).expand(-1, *rest)
    return _C.scatter_reduce(flat, 0, where, updates.reshape(-1, *rest), how, include_self=True).reshape(x.shape)


# Limited.


def clip_by_value(t, clip_value_min, clip_value_max, name=None):
    """The values, not below clip_value_min and not above clip_value_max."""
    t = tensor(t)
    low, high = (
        v if isinstance(v, (int, float)) else tensor(v, like=t.dtype) for v in (clip_value_min, clip_value_max)
    )
    return _C.clamp(t, low, high)


def clip_by_norm(t, clip_norm, axes=None, name=None):
    """The tensor, scaled down where its root of squares is more than clip_norm."""
    t, which = tensor(t), axes_of(axes)
    squares = _C.sum(_C.square(t), which, True)
    safe = _C.where(squares > 0, squares, _C.ones_like(squares))
    norm = _C.where(squares > 0, _C.sqrt(safe), squares)
    return t * clip_norm / _C.maximum(norm, clip_norm)


def global_norm(t_list, name=None):
    """The root of the sum of squares of all tensors of a list; None in it counts as nothing."""
    return _C.sqrt(sum(_C.sum(_C.square(tensor(t))) for t in t_list if t is not None))


def clip_by_global_norm(t_list, clip_norm, use_norm=None, name=None):
    """(the tensors, scaled down together if their global norm is more than clip_norm; that norm)."""
    norm = global_norm(t_list) if use_norm is None else tensor(use_norm)
    scale = clip_norm / _C.maximum(norm, clip_norm)
    return [None if t is None else tensor(t) * scale for t in t_list], norm
