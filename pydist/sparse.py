"""Sparse matrices in coordinate form, as in torch.sparse, for graph programs. A SparseTensor is not a Tensor. It has
indices[dims, n], values[n, ...] and a shape, products with dense matrices, and the methods below. Gradients flow to
its values and to the matrices.

>>> import pydist
>>> a = pydist.sparse_coo_tensor([[0, 1], [1, 0]], [2.0, 3.0], (2, 2))
>>> (a @ pydist.eye(2)).tolist()
[[0.0, 2.0], [3.0, 0.0]]
"""

import math

from pydist import _C
from pydist._C import Tensor
from pydist._layout import sparse_coo

__all__ = ["SparseTensor", "addmm", "mm", "softmax", "sparse_coo_tensor", "spmm", "sum", "to_sparse"]


class SparseTensor:
    """A tensor with elements values[k] at the positions indices[:, k]. Elements at the same position are added."""

    is_sparse, layout = True, sparse_coo

    def __init__(self, indices, values, size, coalesced=False):
        self._index, self._value, self.shape, self._coalesced = indices, values, _C.Size(size), coalesced

    dtype = property(lambda self: self._value.dtype, doc="The dtype of the elements.")
    device = property(lambda self: self._value.device, doc="The device of the elements.")
    ndim = property(lambda self: len(self.shape), doc="The number of dimensions.")
    requires_grad = property(lambda self: self._value.requires_grad, doc="Whether autograd records its operations.")
    grad = property(
        lambda self: None if self._value.grad is None else self._with(self._value.grad),
        doc="The gradient, with the same positions; None if there is none.",
    )

    def _with(self, values):
        return SparseTensor(self._index, values, self.shape, self._coalesced)

    def indices(self):
        """The positions of the elements of a coalesced tensor: int64 [dims, n]."""
        if not self._coalesced:
            raise RuntimeError("Cannot get indices on an uncoalesced tensor, please call .coalesce() first")
        return self._index

    def values(self):
        """The elements of a coalesced tensor."""
        if not self._coalesced:
            raise RuntimeError("Cannot get values on an uncoalesced tensor, please call .coalesce() first")
        return self._value

    def _indices(self):
        return self._index

    def _values(self):
        return self._value

    def _nnz(self):
        return self._index.shape[1]

    def is_coalesced(self):
        """Whether the positions are sorted and each occurs once."""
        return self._coalesced

    def _flat(self):
        """The positions as numbers in the flattened sparse dimensions."""
        flat = _C.zeros(self._nnz(), dtype=_C.int64, device=self._index.device)
        for row, size in zip(self._index, self.shape):
            flat = flat * size + row
        return flat

    def coalesce(self):
        """The same tensor with sorted positions, each of them once."""
        if self._coalesced:
            return self
        places, which = self._flat().unique(return_inverse=True)
        values = _C.zeros(
            (places.numel(), *self._value.shape[1:]), dtype=self.dtype, device=self._value.device
        ).index_add(0, which, self._value)
        return SparseTensor(_C.stack(_unravel(places, self.shape[: self.sparse_dim()])), values, self.shape, True)

    def to_dense(self, dtype=None):
        """The same elements as a Tensor, with zeros elsewhere."""
        n = math.prod(self.shape[: self.sparse_dim()])
        dense = _C.zeros((n, *self._value.shape[1:]), dtype=self.dtype, device=self._value.device).index_add(
            0, self._flat(), self._value
        )
        return (dense if dtype is None else dense.to(dtype)).reshape(self.shape)

    def sparse_dim(self):
        """The number of dimensions that the indices count."""
        return self._index.shape[0]

    def dense_dim(self):
        """The number of further dimensions, which the values have."""
        return self._value.dim() - 1

    def size(self, dim=None):
        """The shape, or the size of one dimension."""
        return self.shape if dim is None else self.shape[dim]

    def dim(self):
        """The number of dimensions."""
        return len(self.shape)

    def numel(self):
        """The number of elements, zeros included."""
        return math.prod(self.shape)

    def t(self):
        """The transpose of a matrix."""
        return self.transpose(0, 1)

    T = property(t)

    def transpose(self, dim0, dim1):
        """The tensor with two sparse dimensions exchanged."""
        order, shape = list(range(self.sparse_dim())), list(self.shape)
        order[dim0], order[dim1] = order[dim1], order[dim0]
        shape[dim0], shape[dim1] = shape[dim1], shape[dim0]
        return SparseTensor(self._index[_C.tensor(order, device=self._index.device)], self._value, shape)

    def __matmul__(self, other):
        """The product of a sparse matrix and a matrix or vector. See mm."""
        return mm(self, other)

    mm = matmul = spmm = __matmul__

    def __rmatmul__(self, other):
        return mm(other, self)

    def __mul__(self, other):
        """Each element times a number, or times a Tensor's element at its position."""
        if isinstance(other, (int, float)) or isinstance(other, Tensor) and other.dim() == 0:
            return self._with(self._value * other)
        if isinstance(other, Tensor):
            dense = other.expand(self.shape)
            return self._with(self._value * dense[tuple(self._index)])
        return NotImplemented

    __rmul__ = mul = __mul__

    def __truediv__(self, other):
        """Each element divided by a number."""
        return self._with(self._value / other)

    div = __truediv__

    def __neg__(self):
        return self._with(-self._value)

    def __add__(self, other):
        """The sum with a SparseTensor, or with a Tensor (which gives a Tensor)."""
        if isinstance(other, SparseTensor):
            if self.shape != other.shape:
                raise RuntimeError(f"sparse: shapes {tuple(self.shape)}, {tuple(other.shape)} (expected equal)")
            return SparseTensor(_C.cat([self._index, other._index], 1), _C.cat([self._value, other._value]), self.shape)
        return self.to_dense() + other

    __radd__ = add = __add__

    def __sub__(self, other):
        return self + -other

    def sum(self, dim=None):
        """The sum of all elements, or a Tensor with the sums over dim."""
        return self._value.sum() if dim is None else self.to_dense().sum(dim)

    def to(self, *args, **kwargs):
        """The tensor in another dtype. Devices are as for Tensors."""
        return self._with(self._value.to(*args, **kwargs))

    def cpu(self):
        """The tensor itself: it is always on the CPU."""
        return self

    cuda = cpu

    def float(self):
        """The tensor in float32."""
        return self._with(self._value.float())

    def double(self):
        """The tensor in float64."""
        return self._with(self._value.double())

    def detach(self):
        """The same elements without a history."""
        return self._with(self._value.detach())

    def clone(self):
        """A copy with its own memory."""
        return SparseTensor(self._index.clone(), self._value.clone(), self.shape, self._coalesced)

    def requires_grad_(self, requires_grad=True):
        """Sets, in place, whether autograd records operations on the values. Returns the tensor."""
        self._value.requires_grad_(requires_grad)
        return self

    def to_sparse(self, *args, **kwargs):
        """The tensor itself."""
        return self

    def __repr__(self):
        return f"tensor(indices={self._index},\n       values={self._value},\n       size={tuple(self.shape)}, nnz={self._nnz()}, layout=sparse_coo)"


def _unravel(flat, shape):
    parts = []
    for size in reversed(shape):
        parts.append(_C.remainder(flat, max(size, 1)))
        flat = _C.floor_divide(flat, max(size, 1))
    return parts[::-1]


def sparse_coo_tensor(
    indices,
    values=None,
    size=None,
    *,
    dtype=None,
    device=None,
    requires_grad=False,
    check_invariants=None,
    is_coalesced=None,
):
    """A SparseTensor of values[n, ...] at indices[dims, n]. Without a size it gets the smallest one that holds the
    indices. sparse_coo_tensor(size): an empty one. Raises RuntimeError for indices outside the size and for shapes that
    do not fit."""
    if values is None and size is None:
        shape = tuple(indices)
        return SparseTensor(
            _C.zeros(len(shape), 0, dtype=_C.int64, device=device), _C.zeros(0, dtype=dtype, device=device), shape, True
        )
    indices = (indices if isinstance(indices, Tensor) else _C.tensor(indices, device=device)).long()
    values = values if isinstance(values, Tensor) else _C.tensor(values, device=device)
    values = values if dtype is None else values.to(dtype)
    if indices.dim() != 2 or values.dim() < 1 or indices.shape[1] != values.shape[0]:
        raise RuntimeError(
            f"sparse_coo_tensor: indices {tuple(indices.shape)}, values {tuple(values.shape)} (expected [dims, n] and [n, ...])"
        )
    least = [n + 1 for n in indices.amax(1).tolist()] if indices.shape[1] else [0] * indices.shape[0]
    size = (*least, *values.shape[1:]) if size is None else tuple(size)
    if len(size) != indices.shape[0] + values.dim() - 1 or tuple(size[indices.shape[0] :]) != tuple(values.shape[1:]):
        raise RuntimeError(
            f"sparse_coo_tensor: size {size} does not fit indices {tuple(indices.shape)} and values {tuple(values.shape)}"
        )
    if indices.numel() and (indices.amin().item() < 0 or any(n > m for n, m in zip(least, size))):
        raise RuntimeError(
            f"sparse_coo_tensor: size {size} is too small for the indices, which reach {[n - 1 for n in least]}"
        )
    made = SparseTensor(indices, values.detach() if requires_grad else values, size, bool(is_coalesced))
    return made.requires_grad_() if requires_grad else made


def to_sparse(input, sparse_dim=None):
    """The elements of a Tensor that are not 0, with their positions."""
    dims = input.dim() if sparse_dim is None else sparse_dim
    filled = input != 0 if dims == input.dim() else (input != 0).flatten(dims).any(-1)
    index = filled.nonzero().T.contiguous()
    return SparseTensor(index, input[tuple(index)], input.shape, True)


def sparse_mask(input, mask):
    """input's elements at the positions of the SparseTensor mask."""
    mask = mask.coalesce()
    return SparseTensor(mask._index, input[tuple(mask._index)], mask.shape, True)


def mm(sparse, dense):
    """The product of a sparse matrix and a dense matrix or vector; with another sparse matrix the product is sparse."""
    if not isinstance(sparse, SparseTensor):
        if not isinstance(dense, SparseTensor):
            return _C.matmul(sparse, dense)
        return mm(dense.t(), sparse.transpose(-2, -1)).transpose(-2, -1)
    if sparse.dim() != 2 or sparse.shape[1] != dense.shape[0]:
        raise RuntimeError(
            f"sparse.mm: shapes {tuple(sparse.shape)}, {tuple(dense.shape)} (expected equal inner sizes)"
        )
    if isinstance(dense, SparseTensor):
        return to_sparse(mm(sparse, dense.to_dense()))
    rows, columns = sparse._index
    each = dense[columns] * sparse._value.reshape(-1, *[1] * (dense.dim() - 1))
    return _C.zeros((sparse.shape[0], *dense.shape[1:]), dtype=each.dtype, device=each.device).index_add(0, rows, each)


def spmm(input, mat2):
    """The same as mm."""
    return mm(input, mat2)


def addmm(input, sparse, dense, *, beta=1, alpha=1):
    """beta * input + alpha * sparse @ dense."""
    return input * beta + mm(sparse, dense) * alpha


def sum(input, dim=None, dtype=None):
    """The sum of all elements, or the sums over dim."""
    return input.sum(dim)


def softmax(input, dim, *, dtype=None):
    """softmax of a sparse matrix's elements along dim. Positions without an element count as -inf."""
    whole = input.coalesce()
    keep = [d for d in range(whole.dim()) if d != dim % whole.dim()]
    group = _C.zeros(whole._nnz(), dtype=_C.int64, device=whole._index.device)
    for d in keep:
        group = group * whole.shape[d] + whole._index[d]
    count = math.prod(whole.shape[d] for d in keep)
    top = _C.full((count,), -math.inf, dtype=whole.dtype, device=whole._value.device).scatter_reduce(
        0, group, whole._value.detach(), "amax"
    )
    parts = (whole._value - top[group]).exp()
    return whole._with(
        parts / _C.zeros(count, dtype=whole.dtype, device=whole._value.device).index_add(0, group, parts)[group]
    )


class _Typed(type):
    def __call__(cls, indices, values, size=None):
        return sparse_coo_tensor(indices, values.to(cls.dtype), size)


class FloatTensor(metaclass=_Typed):
    """sparse_coo_tensor of float32, by its older name."""

    dtype = _C.float32


class DoubleTensor(metaclass=_Typed):
    """sparse_coo_tensor of float64, by its older name."""

    dtype = _C.float64
