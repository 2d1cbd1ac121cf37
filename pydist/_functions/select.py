"""More functions that choose, place, count and sort elements."""

import math
from collections import namedtuple

from pydist import _C
from pydist._C import Tensor
from pydist._functions._register import axis_of, both, few_pieces, function, in_place, method, values_indices, want_data
from pydist._functions.indexing import _along, bincount, lengths_of, nonzero
from pydist._functions.shape import broadcast_tensors


@both
def take(input, index):
    """The elements at index, positions in the flattened input."""
    return input.reshape(-1)[index]


@method
def put_(self, index, source, accumulate=False):
    """Sets the flattened tensor's elements at index to source's (accumulate: adds them)."""
    if index.numel() != source.numel():
        raise IndexError(f"put_: got {index.numel()} indices for {source.numel()} elements (expected the same number)")
    flat = self.view(-1) if self.is_contiguous() else self.reshape(-1)
    flat.index_put_([index.reshape(-1)], source.reshape(-1), accumulate)
    return self if self.is_contiguous() else self.copy_(flat.view(self.shape))


@both
def put(input, index, source, accumulate=False):
    """put_ on a copy."""
    return put_(input.clone(), index, source, accumulate)


@method
def where(self, condition, other):
    """self where condition is True, otherwise other."""
    return _C.where(condition, self, other)


@in_place
@both
def masked_scatter(input, mask, source):
    """input with source's elements, in their order, at the positions where mask (bool, broadcast) is True."""
    if mask.dtype is not _C.bool:
        raise RuntimeError(f"masked_scatter: mask is {mask.dtype} (expected bool)")
    if source.dtype is not input.dtype:
        raise RuntimeError(f"masked_scatter: source is {source.dtype}, input {input.dtype} (expected the same dtype)")
    input, mask = broadcast_tensors(input, mask)
    rank = mask.reshape(-1).cumsum(0) - 1
    count = rank[-1].item() + 1 if rank.numel() and not rank.is_meta else 0
    if count > source.numel():
        raise RuntimeError(
            f"masked_scatter: mask has {count} True elements, but source has only {source.numel()} elements "
            f"(expected at least {count})"
        )
    if not count and not rank.is_meta:
        return input.clone()
    chosen = source.reshape(-1)[rank.clamp(0)].reshape(mask.shape)
    return _C.where(mask, chosen, input)


@in_place
@both
def index_reduce(input, dim, index, source, reduce, *, include_self=True):
    """scatter_reduce of whole slices: those of source with index[i] along dim are reduced to one."""
    dim, index = _along("index_reduce", input, dim, index)
    if reduce not in ("prod", "mean", "amax", "amin"):
        raise RuntimeError(f"index_reduce: reduce is {reduce!r} (expected prod, mean, amax or amin)")
    if input.dim() == 0:
        if index.numel() != 1:
            raise _C.PositionError(f"index_reduce: {index.numel()} indices for a 0-d tensor (expected 1)")
        row = index_reduce(input.reshape(1), 0, index, source.reshape(1), reduce, include_self=include_self)
        return row.reshape(())
    want = (*input.shape[:dim], index.numel(), *input.shape[dim + 1 :])
    if source.shape != want:
        raise RuntimeError(f"index_reduce: source has shape {tuple(source.shape)} (expected {want})")
    wide = index.reshape([-1 if d == dim else 1 for d in range(input.dim())]).expand(source.shape)
    return _C.scatter_reduce(input, dim, wide, source, reduce, include_self=include_self)


@function
def index_put_(input, indices, values, accumulate=False):
    """input[indices] = values (+=), in place."""
    return input.index_put_(indices, values, accumulate)


# Positions.


@both
def argwhere(input):
    """The same as nonzero."""
    want_data("argwhere", input)
    return nonzero(input)


def _finished(mask, dtype, device, pin_memory, requires_grad):
    """The positions of a mask, which are searched on the CPU."""
    at = nonzero(mask).T.contiguous().to(device=_C.empty(0, device=device).device, dtype=dtype)
    return (at.pin_memory() if pin_memory else at).requires_grad_(requires_grad)


@function
def tril_indices(row, col, offset=0, *, dtype=None, device=None, layout=None, pin_memory=False, requires_grad=False):
    """The positions [2, count] of a matrix's lower triangle."""
    mask = _C.ones(row, col, dtype=_C.bool, device="cpu").tril(offset)
    return _finished(mask, dtype, device, pin_memory, requires_grad)


@function
def triu_indices(row, col, offset=0, *, dtype=None, device=None, layout=None, pin_memory=False, requires_grad=False):
    """The positions [2, count] of a matrix's upper triangle."""
    mask = _C.ones(row, col, dtype=_C.bool, device="cpu").triu(offset)
    return _finished(mask, dtype, device, pin_memory, requires_grad)


@function
def unravel_index(indices, shape):
    """The positions, one tensor per dimension, of elements that are numbered in the flattened shape."""
    parts, indices = [], indices.long()
    for size in reversed(tuple(shape) if not isinstance(shape, int) else (shape,)):
        parts.append(_C.remainder(indices, size))
        indices = _C.floor_divide(indices, size)
    return tuple(reversed(parts))


@function
def combinations(input, r=2, with_replacement=False):
    """All combinations of r elements of a vector, as rows."""
    from itertools import combinations as plain
    from itertools import combinations_with_replacement

    if input.dim() != 1 or r < 0:
        raise RuntimeError(f"combinations: shape {tuple(input.shape)}, r {r} (expected a vector, r at least 0)")
    choose, n = (combinations_with_replacement if with_replacement else plain), input.numel()
    if r > n and not with_replacement:
        return input.new_empty(0, r)
    few_pieces("combinations", r)
    few_pieces("combinations", math.comb(max(n + r - 1, 0) if with_replacement else n, r))
    rows = list(choose(range(n), r))
    if not rows or not r:
        return input.new_empty(0, r) if r else input.new_empty(0)
    return input[_C.tensor(rows, dtype=_C.int64, device=input.device).reshape(-1, r)]


# Sorted sequences.


@function
def searchsorted(sorted_sequence, input, *, out_int32=False, right=False, side=None, sorter=None):
    """For each element of input, the first position in the last dimension of sorted_sequence where it could be inserted
    (right: the last one)."""
    if side not in (None, "left", "right") or side == "left" and right:
        raise RuntimeError(
            f"searchsorted: side is {side!r}, but right is {right} (expected 'left' or 'right', in agreement with "
            "right)"
        )
    scalar = not isinstance(input, Tensor)
    values = _C.tensor(input, device=sorted_sequence.device) if scalar else input
    edges = sorted_sequence if sorter is None else sorted_sequence.gather(-1, sorter)
    if edges.dim() != 1 and tuple(edges.shape[:-1]) != tuple(values.shape[:-1]) or edges.dim() == 0:
        shapes = f"{tuple(edges.shape)}, {tuple(values.shape)}"
        raise RuntimeError(f"searchsorted: shapes {shapes} (expected a vector, or equal leading dimensions)")
    high, strict = side == "right" or right, edges.shape[-1]
    low, top = (
        _C.zeros(values.shape, dtype=_C.int64, device=values.device),
        _C.full(tuple(values.shape), strict, dtype=_C.int64, device=values.device),
    )
    rows = edges if edges.dim() == 1 else edges.contiguous()
    for _ in range(strict.bit_length()):  # binary search
        middle = _C.floor_divide(low + top, 2)
        at = middle.clamp(max=max(strict - 1, 0))
        pivot = rows[at] if rows.dim() == 1 else rows.gather(-1, at)
        after = (middle < top) & ((pivot <= values) if high else (pivot < values))
        if values.is_floating_point():
            after = after | (middle < top) & (values != values) & ((pivot == pivot) | high)
        low, top = _C.where(after, middle + 1, low), _C.where(after, top, middle)
    return low.to(_C.int32) if out_int32 else low


@function
def bucketize(input, boundaries, *, out_int32=False, right=False):
    """searchsorted of input in the vector boundaries."""
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)


@both
def msort(input):
    """input, sorted along dimension 0."""
    return input.sort(0).values


@both
@values_indices
def kthvalue(input, k, dim=-1, keepdim=False):
    """(values, indices) of the k-th smallest elements along dim."""
    values, order = input.sort(dim, stable=True)
    size = input.shape[dim] if input.dim() else 1
    if not 1 <= k <= size:
        raise _C.PositionError(f"kthvalue: k is {k} (expected 1 to {size})")
    if input.dim() == 0:
        return values, order
    pair = values.narrow(dim, k - 1, 1), order.narrow(dim, k - 1, 1)
    return pair if keepdim else tuple(t.squeeze(dim) for t in pair)


@both
@values_indices
def mode(input, dim=-1, keepdim=False):
    """(values, indices) of the most frequent elements along dim (of several, the smallest), with their last
    positions."""
    if input.dim() == 0:
        return input.clone(), _C.zeros((), dtype=_C.int64, device=input.device)
    dim = axis_of("mode", dim, input.dim())
    rows = input.movedim(dim, -1)
    values, order = rows.sort(-1, stable=True)
    same = values.unsqueeze(-1) == values.unsqueeze(-2)
    best = same.sum(-1).argmax(-1, keepdim=True)
    value = values.gather(-1, best)
    last = (rows == value).to(_C.int64) * _C.arange(1, rows.shape[-1] + 1, device=input.device)
    index = last.argmax(-1, keepdim=True)
    pair = value.movedim(-1, dim), index.movedim(-1, dim)
    return pair if keepdim else tuple(t.squeeze(dim) for t in pair)


@both
def unique_consecutive(input, return_inverse=False, return_counts=False, dim=None):
    """input without elements (slices of dim) that are equal to the one before. On request also the index of each
    element among the kept ones, and how many each of these stands for."""
    want_data("unique_consecutive", input)
    rows = input.reshape(-1) if dim is None else input.movedim(dim, 0)
    n = rows.shape[0]
    first = _C.ones(n, dtype=_C.bool, device=input.device)
    if n > 1:
        differ = rows[1:] != rows[:-1]
        first[1:] = differ if differ.dim() == 1 else differ.flatten(1).any(1)
    kept = rows[first]
    result = [kept if dim is None else kept.movedim(0, dim)]
    if return_inverse:
        inverse = first.cumsum(0) - 1
        result.append(inverse.reshape(input.shape) if dim is None else inverse)
    if return_counts:
        result.append(lengths_of(first))
    return result[0] if len(result) == 1 else tuple(result)


@function
def isin(elements, test_elements, *, assume_unique=False, invert=False):
    """True where an element of `elements` is also in test_elements."""
    device = next(t.device for t in (elements, test_elements) if isinstance(t, Tensor))
    elements, tests = (t if isinstance(t, Tensor) else _C.tensor(t, device=device) for t in (elements, test_elements))
    tests = tests.reshape(-1).sort().values
    if not tests.numel():
        found = _C.zeros(elements.shape, dtype=_C.bool, device=elements.device)
    else:
        at = searchsorted(tests, elements).clamp(max=tests.numel() - 1)
        found = tests[at] == elements
    return ~found if invert else found


# Counts.


@both
def histc(input, bins=100, min=0, max=0):
    """How many elements are in each of `bins` equal parts of [min, max] (both 0: from the smallest element to the
    largest)."""
    if bins < 1 or max < min:
        raise RuntimeError(f"histc: got {bins} bins from {min} to {max} (expected at least 1 bin, and min <= max)")
    if input.is_meta:
        return _C.empty(bins, dtype=input.dtype, device="meta")
    flat = input.detach().reshape(-1)
    low, high = (flat.min().item(), flat.max().item()) if min == max == 0 and flat.numel() else (min, max)
    if not (math.isfinite(low) and math.isfinite(high)):
        raise RuntimeError(f"histc: the range [{low}, {high}] is not finite (expected finite elements, or min and max)")
    if low == high:
        low, high = low - 1, high + 1
    inside = flat[(flat >= low) & (flat <= high)]
    at = ((inside.double() - low) * (bins / (high - low))).floor().long().clamp(0, bins - 1)
    return bincount(at, minlength=bins).to(input.dtype)


_Histogram = namedtuple("histogram", "hist bin_edges")


@both
def histogram(input, bins=100, *, range=None, weight=None, density=False):
    """(hist, bin_edges): the counts of elements in `bins` equal parts of range, or between the edges in bins."""
    flat = input.detach().reshape(-1)
    if isinstance(bins, Tensor):
        edges = bins
    else:
        low, high = (flat.min().item(), flat.max().item()) if range is None else range
        if low == high:
            low, high = low - 0.5, high + 0.5
        edges = (_C.arange(bins + 1, dtype=_C.float64, device=input.device) * ((high - low) / bins) + low).to(
            input.dtype
        )
        edges[-1] = high
    count = edges.numel() - 1
    at = searchsorted(edges, flat, right=True) - 1
    at = _C.where(flat == edges[-1], count - 1, at)
    inside = (at >= 0) & (at < count)
    weights = _C.ones(flat.shape, dtype=input.dtype, device=input.device) if weight is None else weight.reshape(-1)
    sums = _C.zeros(count, dtype=input.dtype, device=input.device).index_add_(0, at[inside], weights[inside])
    return _Histogram(sums / (sums.sum() * (edges[1:] - edges[:-1])) if density else sums, edges)
