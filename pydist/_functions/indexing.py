"""Elements chosen by index, mask, rank or at random."""

import math
import operator
from itertools import accumulate

from pydist import _C
from pydist._C import Tensor
from pydist._functions._register import (
    axis_of,
    both,
    broadcast_shape,
    holds,
    in_place,
    method,
    size_along,
    values_indices,
    want_data,
)
from pydist._functions.shape import broadcast_tensors


def _grid(index, dim):
    """The index tensors, with the dims of index, of the elements that index chooses along dim."""
    n = index.dim()
    where = [
        _C.arange(s, device=index.device).reshape([-1 if k == d else 1 for k in range(n)])
        for d, s in enumerate(index.shape)
    ]
    if n:
        where[dim] = index
    return where


def _along(name, input, dim, index):
    dim = axis_of(name, dim, input.dim())
    if index.dtype not in (_C.int64, _C.int32):
        raise _C.PositionError(f"{name}: index is {index.dtype} (expected int64)")
    size = input.shape[dim] if input.dim() else 1
    if index.dim() != 1 and index.dim() != 0:
        raise _C.PositionError(f"{name}: index has shape {tuple(index.shape)} (expected 1 dimension)")
    if name == "index_fill":
        index = index + (index < 0) * size
    if index.numel() and not index.is_meta and not (0 <= index.min().item() and index.max().item() < size):
        raise _C.PositionError(f"{name}: an index is out of range for dimension {dim} of size {size}")
    return dim, index.reshape(-1)


@both
def repeat_interleave(input=None, repeats=None, dim=None, *, output_size=None):
    """Every element, repeated `repeats` times in place (a number, or one per element of dim); without dim, of the
    flattened tensor. With only one argument: every index i, as often as element i says."""
    if input is None or repeats is None:
        repeats = input if repeats is None else repeats
        input = _C.arange(repeats.numel(), device=repeats.device)
    if dim is None:
        input, dim = input.reshape(-1), 0
    n = input.shape[axis_of("repeat_interleave", dim, input.dim())]
    counts = repeats.tolist() if isinstance(repeats, Tensor) else repeats
    counts = [operator.index(k) for k in (counts if isinstance(counts, (tuple, list)) else [counts])]
    if len(counts) not in (1, n) or min(counts, default=0) < 0:
        got = f"got {len(counts)} repeats for {n} elements"
        raise RuntimeError(f"repeat_interleave: {got} (expected one per element, none negative)")
    if len(counts) == 1:
        which = _C.arange(n, device=input.device).unsqueeze(1).expand(n, counts[0]).reshape(-1)
    else:  # adds one wherever the copies of the next element begin
        *begins, total = accumulate(counts) if n else (0,)
        begins = [at for at in begins if at < total]
        which = _C.zeros(total, dtype=_C.int64, device=input.device)
        which = which.index_add(
            0,
            _C.tensor(begins, dtype=_C.int64, device=input.device),
            _C.ones(len(begins), dtype=_C.int64, device=input.device),
        ).cumsum(0)
    return _C.index_select(input, dim, which)


@both
def take_along_dim(input, indices, dim=None):
    """gather along dim; without dim, of the flattened tensors."""
    if dim is None:
        return input.reshape(-1).gather(0, indices.reshape(-1))
    dim = axis_of("take_along_dim", dim, input.dim())
    if input.dim() != indices.dim():
        shapes = f"{tuple(input.shape)}, {tuple(indices.shape)}"
        raise RuntimeError(f"take_along_dim: got shapes {shapes} (expected the same number of dimensions)")
    others = [[*t.shape[:dim], 1, *t.shape[dim:][1:]] for t in (input, indices)]
    shape = broadcast_shape("take_along_dim", others)
    both = [[*shape[:dim], t.shape[dim], *shape[dim:][1:]] for t in (input, indices)]
    return input.expand(both[0]).gather(dim, indices.expand(both[1]))


def _put_slices(name, self, dim, index, source, accumulate):
    """Sets (or adds to) self's slices at index along dim: source's slices, or one number. For a 0-d tensor, the tensor
    itself."""
    dim, index = _along(name, self, dim, index)
    target = self.view(1) if self.dim() == 0 else self
    want = [*target.shape[:dim], index.numel(), *target.shape[dim + 1 :]]
    if (
        name != "index_fill"
        and list(source.shape) != want
        and not (self.dim() == 0 and index.numel() == source.numel() == 1)
    ):
        raise _C.PositionError(f"{name}: source has shape {tuple(source.shape)} (expected {tuple(want)})")
    if self.dim() == 0 and isinstance(source, Tensor):
        source = source.reshape(-1)
    target.index_put_([None] * dim + [index], source, accumulate)
    return self


def _source(name, input, index, value):
    """value in input's dtype, cut to the size of index."""
    if not isinstance(value, Tensor):
        return _C.tensor(value, dtype=input.dtype, device=input.device)
    if value.dtype is not input.dtype:
        raise RuntimeError(f"{name}: src is {value.dtype}, input {input.dtype} (expected the same dtype)")
    return value[tuple(slice(0, n) for n in index.shape)] if value.dim() else value


def _check_scatter(name, input, dim, index, src):
    dim = axis_of(name, dim, input.dim())
    if index.dtype not in (_C.int64, _C.int32):
        raise RuntimeError(f"{name}: index is {index.dtype} (expected int64)")
    if index.numel() == 0:
        return dim
    pairs = enumerate(zip(index.shape, input.shape))
    fits = index.dim() == input.dim() and all(d == dim or n <= m for d, (n, m) in pairs)
    if isinstance(src, Tensor):
        fits = (
            fits
            and max(src.dim(), 1) == max(index.dim(), 1)
            and all(n <= m for n, m in zip(index.shape, src.shape or (1,)))
        )
    if not fits:
        other = f", src {tuple(src.shape)}" if isinstance(src, Tensor) else ""
        shapes = f"input has shape {tuple(input.shape)}, index {tuple(index.shape)}{other}"
        raise RuntimeError(f"{name}: {shapes} (expected index to fit into both)")
    size = input.shape[dim] if input.dim() else 1
    if not index.is_meta and (index.min().item() < 0 or index.max().item() >= size):
        raise RuntimeError(f"{name}: an index is out of range for dimension {dim} of shape {tuple(input.shape)}")
    return dim


def _scatter(name, self, dim, index, value, accumulate):
    dim = _check_scatter(name, self, dim, index, value)
    if index.numel() == 0:
        return self
    target = self.view(1) if self.dim() == 0 else self
    index = index.reshape(1).long() if self.dim() == 0 else index.long()
    target.index_put_(_grid(index, dim), _source(name, self, index, value), accumulate)
    return self


@method
def scatter_(self, dim, index, src=None, *, value=None, reduce=None):
    """self[index[i][j]][j] = src[i][j] for dim 0, and so on. src may be a number. reduce "add": += instead of =."""
    if reduce not in (None, "add"):
        raise NotImplementedError(f"scatter_: reduce={reduce!r} is not supported")
    src = src if value is None else value.item() if isinstance(value, Tensor) else value
    return _scatter("scatter", self, dim, index, src, reduce == "add")


@both
def scatter(input, dim, index, src=None, *, value=None, reduce=None):
    """scatter_ on a copy: out[index[i][j]][j] = src[i][j] for dim 0, and so on. src may be a number. reduce "add": +=
    instead of =."""
    return scatter_(input.clone(), dim, index, src, value=value, reduce=reduce)


in_place(_C.scatter_add)
in_place(_C.scatter_reduce)


@method
def index_add_(self, dim, index, source, *, alpha=1):
    """Adds alpha * source's slice i to self's slice index[i] along dim."""
    return _put_slices("index_add", self, dim, index, source if alpha == 1 else source * alpha, True)


@both
def index_add(input, dim, index, source, *, alpha=1):
    """index_add_ on a copy."""
    return index_add_(input.clone(), dim, index, source, alpha=alpha)


@method
def index_copy_(self, dim, index, source):
    """Sets self's slice index[i] along dim to source's slice i."""
    return _put_slices("index_copy", self, dim, index, source, False)


@both
def index_copy(input, dim, index, source):
    """index_copy_ on a copy."""
    return index_copy_(input.clone(), dim, index, source)


@method
def index_fill_(self, dim, index, value):
    """Sets self's slices at index along dim to value. Negative indices count from the end."""
    return _put_slices("index_fill", self, dim, index, _source("index_fill", self, index, value), False)


@both
def index_fill(input, dim, index, value):
    """index_fill_ on a copy.

    >>> import pydist
    >>> pydist.zeros(3).index_fill(0, pydist.tensor([0, -1]), 2.0).tolist()
    [2.0, 0.0, 2.0]
    """
    return index_fill_(input.clone(), dim, index, value)


@in_place
@both
def masked_fill(input, mask, value):
    """value (a number or 0-d tensor) where mask (bool) is True, otherwise input."""
    if mask.dtype is not _C.bool:
        raise RuntimeError(f"masked_fill: mask is {mask.dtype} (expected bool)")
    if isinstance(value, Tensor) and value.dim():
        raise RuntimeError(f"masked_fill: value has shape {tuple(value.shape)} (expected a number)")
    value = (
        value.to(input.dtype) if isinstance(value, Tensor) else _C.tensor(value, dtype=input.dtype, device=input.device)
    )
    return _C.where(mask, value, input)


@both
def masked_select(input, mask):
    """The elements where mask (bool, broadcast) is True, as a vector."""
    if mask.dtype is not _C.bool:
        raise RuntimeError(f"masked_select: mask is {mask.dtype} (expected bool)")
    want_data("masked_select", mask)
    input, mask = broadcast_tensors(input, mask)
    return input.reshape(-1)[mask.reshape(-1)]


@both
def nonzero(input, *, as_tuple=False):
    """The positions of nonzero elements [count, dims] (int64), in order. as_tuple: one vector per dimension."""
    if as_tuple:
        return nonzero(input if input.dim() else input.reshape(1)).unbind(1)
    return (input != 0).positions()


@both
def count_nonzero(input, dim=None):
    """The number of elements that are not 0, over dim or over all."""
    return (input != 0).sum(dim)


@both
def bincount(input, weights=None, minlength=0):
    """How often each number 0, 1, ... occurs in the vector input, or the sum of its weights."""
    if (spec := _C.spread_of(input)) is not None:  # each rank counts in the whole
        weights = weights.full_tensor() if weights is not None and _C.spread_of(weights) is not None else weights
        made = bincount(input.full_tensor(), weights, minlength)
        return _C.as_part(made, spec.everywhere.replaced(shape=tuple(made.shape)))
    want_data("bincount", input)
    if input.dim() != 1 or input.is_floating_point() or (input.numel() and input.min().item() < 0):
        raise RuntimeError(
            f"bincount: input must be a vector of integers, none negative, got {input.dtype} of shape "
            f"{tuple(input.shape)}"
        )
    size = max(minlength, input.max().item() + 1 if input.numel() else 0)
    if weights is None:
        weights = _C.ones(input.numel(), dtype=_C.int64, device=input.device)
    elif weights.dtype not in (_C.float32, _C.float64):
        weights = weights.double()
    return _C.zeros(size, dtype=weights.dtype, device=input.device).index_put_([input.long()], weights, True)


def lengths_of(first):
    """How many elements each True of `first` stands for: itself and those before the next one."""
    n = first.numel()
    starts = _C.cat([_C.arange(n, device=first.device)[first], _C.tensor([n], dtype=_C.int64, device=first.device)])
    return starts[1:] - starts[:-1]


def _unique_slices(input, dim, return_inverse, return_counts):
    if not input.dim():
        raise IndexError(f"unique: dim is {dim}, but the tensor has no dimensions (expected dim=None)")
    along = axis_of("unique", dim, input.dim())
    slices = input.movedim(along, 0)
    rows = slices.reshape(slices.shape[0], -1) if slices.numel() else slices.new_zeros(slices.shape[0], 1)
    order = _C.arange(rows.shape[0], device=input.device)
    for k in range(rows.shape[1] - 1, -1, -1):  # the first element decides, so it is the last sort key
        order = order[rows[order, k].argsort(stable=True)]
    rows, n = rows[order], rows.shape[0]
    first = _C.ones(n, dtype=_C.bool, device=input.device)
    if n > 1:
        first[1:] = (rows[1:] != rows[:-1]).any(1)
    result = [slices[order[first]].movedim(0, along)]
    if return_inverse:
        result.append(_C.index_put(_C.zeros(n, dtype=_C.int64, device=input.device), [order], first.cumsum(0) - 1))
    if return_counts:
        result.append(lengths_of(first))
    return result[0] if len(result) == 1 else tuple(result)


@both
def unique(input, sorted=True, return_inverse=False, return_counts=False, dim=None):
    """The different elements (slices of dim) in ascending order. On request also the index of each element among them,
    and how often each occurs."""
    want_data("unique", input)
    if dim is not None:
        return _unique_slices(input, dim, return_inverse, return_counts)
    values, order = input.reshape(-1).sort(stable=True)
    first = _C.ones(values.numel(), dtype=_C.bool, device=input.device)
    if values.numel() > 1:
        first = _C.cat([first[:1], values[1:] != values[:-1]])
    result = [values[first]]
    if return_inverse:
        inverse = _C.index_put(
            _C.zeros(order.numel(), dtype=_C.int64, device=input.device), [order], first.cumsum(0) - 1
        )
        result.append(inverse.reshape(input.shape))
    if return_counts:
        result.append(lengths_of(first))
    return result[0] if len(result) == 1 else tuple(result)


def shared_by_equals(input, value):
    """value, an element of input, with its gradient shared by all elements that are equal to it."""
    if not (input.requires_grad and _C.is_grad_enabled()):
        return value
    x, value = input.detach(), value.detach()
    equal = (x == value) | (x != x) & (value != value)
    return value + (_C.where(equal & (x.abs() < math.inf), input - x, 0) / equal.sum()).sum()


@both
@values_indices
def median(input, dim=None, keepdim=False):
    """The middle element (of an even number of elements, the lower one). Along dim: (values, indices)."""
    if dim is None:
        flat = input.reshape(-1)
        if not flat.numel():
            return _C.full((), math.nan, dtype=input.dtype, device=input.device)
        nans = not flat.is_meta and (flat != flat).any().item()
        value = flat.sort().values.select(0, flat.numel() - 1 if nans else (flat.numel() - 1) // 2)
        return shared_by_equals(flat, value)
    values, order = input.sort(dim)
    if not input.dim():
        return values, order
    n = size_along("median", input, dim)
    if not n:
        raise _C.PositionError(f"median: shape {tuple(input.shape)} has no element along dimension {dim}")
    nans = (values != values).any(dim, keepdim=True)
    middle = _C.where(nans, n - 1, (n - 1) // 2)  # NaN comes last
    values, order = values.gather(dim, middle), order.gather(dim, middle)
    return (values, order) if keepdim else (values.squeeze(dim), order.squeeze(dim))


@both
def multinomial(input, num_samples, replacement=False, *, generator=None):
    """num_samples indices (int64) for each row of weights input[n] or [rows, n], drawn with probabilities proportional
    to the weights."""
    rows = input.reshape(-1, input.shape[-1]) if input.dim() in (1, 2) and input.is_floating_point() else None
    if rows is None or num_samples < 1 or (not replacement and num_samples > input.shape[-1]):
        got = f"{num_samples} samples of {input.dtype} of shape {tuple(input.shape)}"
        raise RuntimeError(f"multinomial: {got} (expected floating weights [n] or [rows, n], no more samples than n)")
    if not holds((rows >= 0) & (rows < math.inf)) or not holds(rows.sum(-1) > 0):
        raise RuntimeError("multinomial: weights must be finite, none negative, with a sum greater than 0")
    if not replacement:
        waits = (
            -_C.empty(*rows.shape, dtype=rows.dtype, device=rows.device).uniform_().clamp(1e-30).log().clamp(max=-1e-30)
        )
        drawn = (rows / waits).topk(num_samples).indices  # exponential clocks: the first to ring wins
    else:
        edges = rows.double().cumsum(-1)
        at = _C.empty(rows.shape[0], num_samples, dtype=_C.float64, device=rows.device).uniform_() * edges[:, -1:]
        drawn = (edges.unsqueeze(1) <= at.unsqueeze(-1)).sum(-1).clamp(max=input.shape[-1] - 1)
    return drawn.reshape(num_samples) if input.dim() == 1 else drawn
