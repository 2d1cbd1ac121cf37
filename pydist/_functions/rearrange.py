"""More ways to join, cut, view and resize tensors."""

import math

from pydist import _C
from pydist._C import Tensor
from pydist._functions._register import as_tuple, axis_of, both, broadcast_shape, function, method, varargs
from pydist._functions.shape import (
    chunk,
    cuts,
    diag,
    diagonal,
    meshgrid,
    movedim,
    split,
    swapaxes,
    swapdims,
    tensor_split,
    vstack,
)  # fmt: skip

# Joining and cutting.


def _at_least(n):
    def grown(*tensors):
        tensors = varargs(tensors)

        def one(t):
            if t.dim() == 0:
                return t.reshape((1,) * n)
            if n == 2 and t.dim() == 1:
                return t.unsqueeze(0)
            if n == 3 and t.dim() < 3:
                return t.reshape(1, -1, 1) if t.dim() == 1 else t.unsqueeze(-1)
            return t

        return one(tensors[0]) if len(tensors) == 1 else tuple(map(one, tensors))

    grown.__name__ = f"atleast_{n}d"
    grown.__doc__ = f"The tensor, or each of several, with at least {n} dimensions."
    return function(grown)


atleast_1d, atleast_2d, atleast_3d = map(_at_least, (1, 2, 3))


@function
def dstack(tensors):
    """The tensors, joined along a third dimension."""
    return _C.cat([atleast_3d(t) for t in tensors], 2)


@function
def column_stack(tensors):
    """The tensors, joined along dimension 1. Vectors count as columns."""
    return _C.cat([t.reshape(-1, 1) if t.dim() < 2 else t for t in tensors], 1)


@function
def row_stack(tensors):
    """vstack."""
    return vstack(tensors)


def _cut(name, input, indices_or_sections, dim, least):
    if input.dim() < least:
        raise RuntimeError(f"{name}: shape {tuple(input.shape)} (expected at least {least} dimensions)")
    if isinstance(indices_or_sections, int) and input.shape[dim] % max(indices_or_sections, 1):
        raise RuntimeError(
            f"{name}: got {indices_or_sections} sections for size {input.shape[dim]} (expected a divisor of the size)"
        )
    return tensor_split(input, indices_or_sections, dim)


@both
def hsplit(input, indices_or_sections=None, *, indices=None, sections=None):
    """tensor_split along dimension 1 (for a vector: 0)."""
    return _cut(
        "hsplit", input, cuts("hsplit", indices_or_sections, indices, sections), 0 if input.dim() == 1 else 1, 1
    )


@both
def vsplit(input, indices_or_sections=None, *, indices=None, sections=None):
    """tensor_split along dimension 0."""
    return _cut("vsplit", input, cuts("vsplit", indices_or_sections, indices, sections), 0, 2)


@both
def dsplit(input, indices_or_sections=None, *, indices=None, sections=None):
    """tensor_split along dimension 2."""
    return _cut("dsplit", input, cuts("dsplit", indices_or_sections, indices, sections), 2, 3)


@both
def split_with_sizes(input, split_sizes, dim=0):
    """split into pieces of the given sizes."""
    return split(input, list(split_sizes), dim)


@both
def unsafe_chunk(input, chunks, dim=0):
    """chunk."""
    return chunk(input, chunks, dim)


@both
def unsafe_split(input, split_size, dim=0):
    """split."""
    return split(input, split_size, dim)


@function
def block_diag(*tensors):
    """A matrix with the matrices along its diagonal and zeros elsewhere."""
    parts = [atleast_2d(t) for t in tensors]
    width, at, rows = sum(t.shape[1] for t in parts), 0, []
    for t in parts:
        rows.append(_C.constant_pad_nd(t, (at, width - at - t.shape[1])))
        at += t.shape[1]
    return _C.cat(rows) if rows else _C.zeros(1, 0)


@function
def cartesian_prod(*tensors):
    """All combinations of one element from each vector, as rows."""
    tensors = varargs(tensors)
    if len(tensors) == 1:
        return tensors[0]
    return _C.stack([t.reshape(-1) for t in meshgrid(*tensors)], 1)


@function
def broadcast_shapes(*shapes):
    """The shape to which shapes (tuples or ints) broadcast."""
    return _C.Size(broadcast_shape("broadcast_shapes", [as_tuple(shape) for shape in shapes]))


# Views.


@function
def t(input):
    """The transpose of a matrix. Vectors stay as they are."""
    if input.dim() > 2:
        raise RuntimeError(f"t: shape {tuple(input.shape)} (expected at most 2 dimensions)")
    return input.transpose(0, 1) if input.dim() == 2 else input


@both
def adjoint(input):
    """The conjugate transpose of the last two dimensions."""
    return input.mH


@method
def unfold(self, dimension, size, step):
    """A view of all slices of `size` elements along dimension, `step` apart. The slices are along a new last
    dimension."""
    dim = axis_of("unfold", dimension, self.dim())
    shape, strides = list(self.shape) or [1], list(self.stride()) or [1]
    if size > shape[dim] or size < 0 or step < 1:
        raise RuntimeError(f"unfold: size {size}, step {step} for dimension {dim} of shape {tuple(self.shape)}")
    along = strides[dim]
    shape[dim], strides[dim] = (shape[dim] - size) // step + 1, along * step
    if self.dim() == 0:
        return self.as_strided((size,), (1,), self.storage_offset())
    return self.as_strided([*shape, size], [*strides, along], self.storage_offset())


@function
def unfold_copy(input, dimension, size, step):
    """A copy of input.unfold(dimension, size, step), the windows of `size` elements along a dimension.

    >>> import pydist
    >>> pydist.unfold_copy(pydist.arange(4), 0, 2, 1).tolist()
    [[0, 1], [1, 2], [2, 3]]
    """
    return input.unfold(dimension, size, step).clone(memory_format=_C.contiguous_format)


def _geometry(name, view, doc):
    """A method that turns the tensor itself into the view."""

    def change(self, *args, **kwargs):
        if self.requires_grad:
            raise RuntimeError(f"{name}: the tensor requires grad (expected {name[:-1]}, which makes a new one)")
        self.data = view(self.data, *args, **kwargs)
        return self

    change.__name__, change.__doc__ = name, doc
    return method(change)


for _name, _view in (
    ("t_", t), ("transpose_", Tensor.transpose), ("swapaxes_", swapaxes), ("swapdims_", swapdims),
    ("squeeze_", Tensor.squeeze), ("unsqueeze_", Tensor.unsqueeze), ("as_strided_", Tensor.as_strided),
):  # fmt: skip
    _geometry(_name, _view, f"{_name[:-1]}, of the tensor itself.")


@method
def resize_(self, *sizes, size=None, memory_format=None):
    """Gives the tensor itself other sizes. It keeps its first elements in their order; further elements are undefined.
    Raises RuntimeError if that needs new memory while an array, a DLPack capsule or a running collective has the old
    one."""
    sizes = varargs(sizes if size is None else (size,))
    if self.requires_grad:
        raise RuntimeError("resize_: the tensor requires grad (expected one that does not)")
    if tuple(self.shape) == tuple(sizes):
        return self
    count = math.prod(sizes)
    if count <= self.numel() and self.is_contiguous():
        self.data = self.data.reshape(-1)[:count].view(sizes)
        return self
    _C.storage_may_move(self, "resize_")
    larger = _C.empty(sizes, dtype=self.dtype, device=self.device)
    kept = min(count, self.numel())
    larger.view(-1)[:kept].copy_(self.data.reshape(-1)[:kept])
    self.data = larger
    return self


@method
def resize_as_(self, the_template, memory_format=None):
    """resize_ to the sizes of another tensor."""
    return self.resize_(tuple(the_template.shape))


@method
def resize(self, *sizes):
    """resize_ of a copy."""
    return self.clone().resize_(*sizes)


@method
def set_(self, source=None, storage_offset=None, size=None, stride=None):
    """Puts the tensor itself over source's memory, with source's sizes or the given ones (without source: empty)."""
    source = _C.empty(0, dtype=self.dtype, device=self.device) if source is None else source.detach()
    if size is not None:
        stride = _C.empty(size, device=self.device).stride() if stride is None else stride
        source = source.as_strided(size, stride, storage_offset or 0)
    self.data = source
    return self


@method
def sum_to_size(self, *sizes, size=None):
    """The sums over all dimensions that broadcasting from `size` would repeat."""
    size = varargs(sizes if size is None else (size,))
    lead = self.dim() - len(size)
    want = (1,) * lead + tuple(size)
    if lead < 0 or any(n not in (1, m) for n, m in zip(want, self.shape)):
        raise RuntimeError(
            f"sum_to_size: {tuple(size)} does not broadcast to {tuple(self.shape)} (expected a size that does)"
        )
    dims = [d for d, (n, m) in enumerate(zip(want, self.shape)) if n == 1 and (m != 1 or d < lead)]
    summed = dims or not want  # a number, too, as in PyTorch: sums of small integers are int64
    return (self.sum(dims, keepdim=True) if summed else self).reshape(size)


@both
def rot90(input, k=1, dims=(0, 1)):
    """input, rotated by k quarter turns in the plane of dims, from the first towards the second."""
    if len(dims) != 2 or input.dim() < 2:
        raise RuntimeError(f"rot90: dims {tuple(dims)} of shape {tuple(input.shape)} (expected two)")
    a, b = (axis_of("rot90", d, input.dim()) for d in dims)
    if a == b:
        raise RuntimeError(f"rot90: dims {tuple(dims)} are the same dimension (expected two dimensions)")
    k %= 4
    if k == 2:
        return input.flip((a, b))
    if k == 0:
        return input.clone()
    return input.transpose(a, b).flip((a,)) if k == 1 else input.flip((a,)).transpose(a, b)


@both
def diag_embed(input, offset=0, dim1=-2, dim2=-1):
    """Zeros with input's last dimension on the diagonals of dimensions dim1 and dim2, `offset` above the main
    diagonal."""
    n = input.dim() + 1
    a, b = axis_of("diag_embed", dim1, n), axis_of("diag_embed", dim2, n)
    if a == b:
        raise RuntimeError(f"diag_embed: dimensions {dim1} and {dim2} are the same (expected two dimensions)")
    size = input.shape[-1] + abs(offset)
    rows = _C.arange(size, device=input.device).unsqueeze(1)
    wide = _C.constant_pad_nd(input, (max(offset, 0), max(-offset, 0)))  # column j is in row j - offset
    full = _C.where(
        _C.arange(size, device=input.device) - rows == offset,
        wide.unsqueeze(-2),
        _C.zeros((), dtype=input.dtype, device=input.device),
    )
    return movedim(full, (-2, -1), (a, b))


@both
def diagflat(input, offset=0):
    """A matrix with input's elements on its diagonal."""
    return diag(input.reshape(-1), offset)


# Copies with a part replaced.


def _replaced(name, input, part, src):
    out = input.clone()
    view = part(out)
    if tuple(view.shape) != tuple(src.shape):
        raise RuntimeError(f"{name}: src has shape {tuple(src.shape)} (expected {tuple(view.shape)})")
    view.copy_(src)
    return out


@both
def select_scatter(input, src, dim, index):
    """A copy of input with src at `index` of dim."""
    return _replaced("select_scatter", input, lambda x: x.select(dim, index), src)


@both
def slice_scatter(input, src, dim=0, start=None, end=None, step=1):
    """A copy of input with src at start:end:step of dim."""
    start, end = 0 if start is None else start, input.shape[dim] if end is None else end
    return _replaced("slice_scatter", input, lambda x: _C.slice(x, dim, start, end, step), src)


@both
def diagonal_scatter(input, src, offset=0, dim1=0, dim2=1):
    """A copy of input with src on a diagonal."""
    return _replaced("diagonal_scatter", input, lambda x: diagonal(x, offset, dim1, dim2), src)


@both
def as_strided_scatter(input, src, size, stride, storage_offset=None):
    """A copy of input with src at the positions of as_strided."""
    return _replaced("as_strided_scatter", input, lambda x: x.as_strided(size, stride, storage_offset or 0), src)
