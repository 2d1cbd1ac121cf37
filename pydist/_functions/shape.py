"""Pieces of tensors, and tensors in other shapes."""

import math
from itertools import accumulate

from pydist import _C
from pydist._C import Tensor
from pydist._autocast import in_float32
from pydist._functions._register import (
    as_tuple,
    axis_of,
    both,
    broadcast_shape,
    few_pieces,
    function,
    in_place,
    method,
    size_along,
    varargs,
)  # fmt: skip
from pydist._make import empty_strided


def _layout(self):
    """The memory layout: pydist.strided."""
    from pydist._layout import strided

    return strided


Tensor.layout = property(_layout)


@both
def narrow(input, dim, start, length):
    """A view of input's elements from start to start + length along dim."""
    size = size_along("narrow", input, dim)
    start = int(start) + (size if start < 0 else 0)
    if length < 0 or start < 0 or start + length > size:
        raise _C.PositionError(
            f"narrow: start {start} and length {length} go beyond the size {size} of dimension {dim}"
        )
    return _C.slice(input, dim, start, start + length)


@function
def split(tensor, split_size_or_sections, dim=0):
    """Views of pieces along dim: all of one size (the last one may be smaller), or of the given sizes."""
    size, sizes = size_along("split", tensor, dim), split_size_or_sections
    if not isinstance(sizes, (tuple, list)):
        if sizes < 0 or (sizes == 0 and size):
            raise RuntimeError(f"split: split_size is {sizes} (expected above 0)")
        few_pieces("split", size // max(sizes, 1))
        sizes = [min(sizes, size - at) for at in range(0, size, max(sizes, 1))] or [0]
    elif sum(sizes) != size or min(sizes, default=0) < 0:
        raise RuntimeError(f"split: the sizes {list(sizes)} do not add up to {size}, the size of dimension {dim}")
    return tuple(narrow(tensor, dim, end - n, n) for n, end in zip(sizes, accumulate(sizes)))


def _split(self, split_size, dim=0):
    return split(self, split_size, dim)


_split.__name__, _split.__doc__ = "split", split.__doc__
method(_split)


@both
def chunk(input, chunks, dim=0):
    """At most `chunks` views of equal size along dim (the last one may be smaller)."""
    if chunks < 1:
        raise RuntimeError(f"chunk: chunks is {chunks} (expected more than 0)")
    size = size_along("chunk", input, dim)
    return split(input, -(-size // chunks), dim) if size else (input,) * few_pieces("chunk", chunks)


def cuts(name, *given):
    """Whichever of indices_or_sections, indices and sections was given."""
    given = [v for v in given if v is not None]
    if len(given) != 1:
        raise TypeError(f"{name}: got {len(given)} of indices_or_sections, indices and sections (expected one of them)")
    found = given[0].tolist() if hasattr(given[0], "tolist") else given[0]
    if not isinstance(found, (int, list, tuple)):  # an iterator may be endless
        raise TypeError(f"{name}: got {type(found).__name__} (expected an int, or a list or tuple of ints)")
    return found


@both
def tensor_split(
    input, indices_or_sections=None, dim=0, *, indices=None, sections=None, tensor_indices_or_sections=None
):
    """Views along dim: the given number of them, with sizes that differ by at most one, or cut before each given
    index."""
    indices_or_sections = cuts("tensor_split", indices_or_sections, indices, sections, tensor_indices_or_sections)
    size = size_along("tensor_split", input, dim)
    if isinstance(indices_or_sections, int):
        if indices_or_sections < 1:
            raise RuntimeError(f"tensor_split: sections is {indices_or_sections} (expected above 0)")
        small, more = divmod(size, indices_or_sections)
        pieces = range(few_pieces("tensor_split", indices_or_sections))
        return split(input, [small + (i < more) for i in pieces], dim)
    ends = [min(max(i + size if i < 0 else i, 0), size) for i in indices_or_sections]
    return tuple(narrow(input, dim, a, max(b - a, 0)) for a, b in zip([0, *ends], [*ends, size]))


@both
def unbind(input, dim=0):
    """Views at every index of dim, without that dimension."""
    return tuple(input.select(dim, i) for i in range(few_pieces("unbind", size_along("unbind", input, dim))))


@function
def hstack(tensors):
    """The tensors, joined along dimension 1 (vectors: 0)."""
    tensors = [t.reshape(1) if t.dim() == 0 else t for t in tensors]
    return _C.cat(tensors, 0 if tensors and tensors[0].dim() == 1 else 1)


@function
def vstack(tensors):
    """The tensors, joined along dimension 0. Vectors count as rows."""
    return _C.cat([t.reshape(1, -1) if t.dim() < 2 else t for t in tensors], 0)


@function
def concat(tensors, dim=0):
    """The same as cat."""
    return _C.cat(tensors, dim)


@function
def concatenate(tensors, dim=0):
    """The same as cat."""
    return _C.cat(tensors, dim)


@both
def movedim(input, source, destination):
    """input with the dimensions `source` moved to the positions `destination`. The others keep their order."""
    n = input.dim()
    source = [axis_of("movedim", d, n) for d in as_tuple(source)]
    target = [axis_of("movedim", d, n) for d in as_tuple(destination)]
    if len(source) != len(target) or len({*source}) < len(source) or len({*target}) < len(target):
        raise RuntimeError(
            f"movedim: source {source} and destination {target} (expected the same number of each, and no "
            "dimension twice)"
        )
    rest, order = iter([d for d in range(n) if d not in source]), dict(zip(target, source))
    return input.permute([order[d] if d in order else next(rest) for d in range(n)])


@both
def moveaxis(input, source, destination):
    """The same as movedim."""
    return movedim(input, source, destination)


@both
def swapaxes(input, axis0, axis1):
    """The same as transpose."""
    return input.transpose(axis0, axis1)


@both
def swapdims(input, dim0, dim1):
    """The same as transpose."""
    return input.transpose(dim0, dim1)


@both
def unflatten(input, dim, sizes):
    """Dimension dim, split into `sizes`, one of which may be -1."""
    size_along("unflatten", input, dim)
    dim, sizes = axis_of("unflatten", dim, input.dim()), list(sizes)
    if not sizes:
        raise RuntimeError("unflatten: sizes is empty (expected at least one)")
    if -1 in sizes:
        known = -math.prod(sizes)
        sizes[sizes.index(-1)] = input.shape[dim] // known if known else -1
    if math.prod(sizes) != input.shape[dim]:
        want = input.shape[dim]
        raise RuntimeError(
            f"unflatten: sizes are {sizes} (expected sizes with the product {want}, the size of dimension {dim})"
        )
    return input.reshape(*input.shape[:dim], *sizes, *input.shape[dim + 1 :])


@method
def repeat(self, *sizes, repeats=None):
    """The tensor, repeated sizes[d] times along each dimension. Additional sizes add dimensions in front."""
    sizes = varargs(sizes if repeats is None else (repeats,))
    lead = len(sizes) - self.dim()
    if lead < 0 or min(sizes, default=0) < 0:
        shape = tuple(self.shape)
        raise RuntimeError(
            f"repeat: sizes {sizes} for shape {shape} (expected at least one per dimension, none negative)"
        )
    shape = (1,) * lead + tuple(self.shape)
    pairs = self.reshape([n for s in shape for n in (1, s)]) if shape else self
    wide = pairs.expand([n for r, s in zip(sizes, shape) for n in (r, s)]) if shape else pairs
    return wide.reshape([r * s for r, s in zip(sizes, shape)]).clone()


@both
def tile(input, *sizes, dims=None):
    """repeat; if there are fewer sizes than dimensions, ones are added in front."""
    dims = varargs(sizes if dims is None else (dims,))
    return repeat(input, *(1,) * (input.dim() - len(dims)), *dims)


@both
def roll(input, shifts, dims=None):
    """The elements, moved by shifts along dims. Elements that leave at one end come back at the other. Without dims, of
    the flattened tensor."""
    if dims is None or dims == ():
        return roll(input.reshape(-1), shifts, 0).reshape(input.shape)
    shifts, dims = as_tuple(shifts), as_tuple(dims)
    if len(shifts) != len(dims):
        raise RuntimeError(f"roll: got {len(shifts)} shifts for {len(dims)} dims (expected one shift per dim)")
    out = input
    for shift, dim in zip(shifts, dims):
        n = out.shape[axis_of("roll", dim, out.dim())]
        if n and shift % n:
            out = _C.cat([narrow(out, dim, n - shift % n, shift % n), narrow(out, dim, 0, n - shift % n)], dim)
    return input.clone() if out is input else out


@both
def fliplr(input):
    """flip along dimension 1."""
    if input.dim() < 2:
        raise RuntimeError(f"fliplr: shape {tuple(input.shape)} (expected at least 2 dimensions)")
    return input.flip((1,))


@both
def flipud(input):
    """flip along dimension 0."""
    size_along("flipud", input, 0)
    return input.flip((0,))


@both
def ravel(input):
    """The elements as one vector."""
    return input.reshape(-1)


@both
def broadcast_to(input, size):
    """The same as expand."""
    return input.expand(size)


@function
def broadcast_tensors(*tensors):
    """The tensors, expanded to their common shape. Tensors that have this shape already are returned themselves."""
    tensors = varargs(tensors)
    shape = broadcast_shape("broadcast_tensors", [t.shape for t in tensors])
    return tuple(t if tuple(t.shape) == tuple(shape) else t.expand(shape) for t in tensors)


@function
def meshgrid(*tensors, indexing=None):
    """For vectors x, y, ...: X[i, j, ...] = x[i], Y[i, j, ...] = y[j], and so on ("xy": with i and j swapped)."""
    tensors = varargs(tensors)
    if indexing not in (None, "ij", "xy"):
        raise RuntimeError(f"meshgrid: indexing is {indexing!r} (expected 'ij' or 'xy')")
    if not tensors or any(t.dim() > 1 for t in tensors):
        raise RuntimeError(f"meshgrid: shapes {[tuple(t.shape) for t in tensors]} (expected vectors or numbers)")
    n = len(tensors)
    swap = indexing == "xy" and n > 1
    places = [1, 0, *range(2, n)] if swap else range(n)
    shape = [t.numel() for t in (tensors[p] for p in places)]
    return tuple(t.reshape([-1 if d == p else 1 for d in range(n)]).expand(shape) for t, p in zip(tensors, places))


@both
def diagonal(input, offset=0, dim1=0, dim2=1):
    """A view of the diagonal of dimensions dim1 and dim2, `offset` above the main diagonal, as the last dimension."""
    n = input.dim()
    a, b = axis_of("diagonal", dim1, n), axis_of("diagonal", dim2, n)
    if a == b or n < 2:
        raise RuntimeError(
            f"diagonal: dimensions {dim1} and {dim2} of shape {tuple(input.shape)} are the same (expected two "
            "dimensions)"
        )
    rows, cols = input.shape[a], input.shape[b]
    length = max(min(rows + min(offset, 0), cols - max(offset, 0)), 0)
    rest = [d for d in range(n) if d not in (a, b)]
    skipped = input.stride(b) * offset if offset > 0 else -input.stride(a) * offset
    start = input.storage_offset() + (skipped if length else 0)
    sizes, strides = [input.shape[d] for d in rest], [input.stride(d) for d in rest]
    return input.as_strided([*sizes, length], [*strides, input.stride(a) + input.stride(b)], start)


@both
def diag(input, diagonal=0):
    """A matrix's diagonal; or a matrix with the vector input on its diagonal."""
    if input.dim() == 2:
        return Tensor.diagonal(input, diagonal).clone()
    if input.dim() != 1:
        raise RuntimeError(f"diag: input has shape {tuple(input.shape)} (expected 1 or 2 dimensions)")
    n, k = input.numel(), abs(diagonal)
    at = _C.arange(n, device=input.device)
    zeros = _C.zeros(n + k, n + k, dtype=input.dtype, device=input.device)
    return _C.index_put(zeros, [at + max(-diagonal, 0), at + max(diagonal, 0)], input)


@both
@in_float32
def trace(input):
    """The sum of a matrix's diagonal."""
    if input.dim() != 2:
        raise RuntimeError(f"trace: input has shape {tuple(input.shape)} (expected a matrix)")
    return diagonal(input).sum()


def _triangle(input, k, upper):
    if input.dim() < 2:
        name, shape = "triu" if upper else "tril", tuple(input.shape)
        raise RuntimeError(f"{name}: input has shape {shape} (expected at least 2 dimensions)")
    columns, rows = (
        _C.arange(input.shape[-1], device=input.device),
        _C.arange(k, input.shape[-2] + k, device=input.device).unsqueeze(1),
    )
    keep = columns >= rows if upper else columns <= rows
    return _C.where(keep, input, False) if input.dtype is _C.bool else _C.where(keep, input, 0)


@in_place
@both
def tril(input, diagonal=0):
    """The matrices input with zeros above the diagonal that is `diagonal` above the main one."""
    return _triangle(input, diagonal, False)


@in_place
@both
def triu(input, diagonal=0):
    """The matrices input with zeros below the diagonal that is `diagonal` above the main one."""
    return _triangle(input, diagonal, True)


@method
def fill_diagonal_(self, fill_value, wrap=False):
    """Sets the diagonal to fill_value (with more than two dimensions: the elements whose indices are all equal). wrap:
    the diagonal starts again below."""
    if self.dim() < 2 or self.dim() > 2 and len({*self.shape}) > 1:
        raise RuntimeError(f"fill_diagonal_: shape {tuple(self.shape)} (expected a matrix, or equal sizes)")
    step = sum(self.stride(d) for d in range(self.dim()))
    rows, columns = self.shape[0], self.shape[-1]
    self.as_strided((min(self.shape),), (step,), self.storage_offset()).fill_(fill_value)
    if wrap and self.dim() == 2 and rows > columns + 1:
        self[columns + 1 :].fill_diagonal_(fill_value, True)
    return self


@method
def new_empty_strided(self, size, stride, dtype=None, device=None, requires_grad=False, layout=None, pin_memory=False):
    """An uninitialised tensor with these sizes and strides, and this one's dtype and device unless others are given. Of a
    DTensor: with a copy on each rank, or placed as it is if the sizes are its own; strides do not count then."""
    if _C.spread_of(self) is not None:
        return self.new_empty(size, dtype=dtype or self.dtype, requires_grad=requires_grad)
    return empty_strided(
        size, stride, dtype=dtype or self.dtype, device=device or self.device, requires_grad=requires_grad,
        pin_memory=pin_memory,
    )  # fmt: skip


@function
def fill_(input, value):
    """`input.fill_(value)`."""
    return input.fill_(value)


@function
def zero_(input):
    """`input.zero_()`."""
    return input.zero_()
