"""Sparse tensors in coordinate form, as in torch.sparse. A SparseTensor has indices[dims, n], values[n, ...] and a
shape, arithmetic, sums, products with dense matrices, and the methods below. The engine sees only its two tensors:
gradients flow to the values and to the dense operands.

>>> import pydist
>>> a = pydist.sparse_coo_tensor([[0, 1], [1, 0]], [2.0, 3.0], (2, 2), requires_grad=True)
>>> (a @ pydist.eye(2)).tolist()
[[0.0, 2.0], [3.0, 0.0]]
>>> pydist.sparse.sum(a * a + a).backward()
>>> a.grad.to_dense().tolist()
[[0.0, 5.0], [7.0, 0.0]]
"""

import math
from functools import partial
from itertools import accumulate
from numbers import Number
from weakref import WeakValueDictionary

from pydist import _C
from pydist._C import Tensor
from pydist._functions._register import axis_of
from pydist._layout import sparse_coo

__all__ = ["SparseTensor", "addmm", "mm", "softmax", "sparse_coo_tensor", "spmm", "sum", "to_sparse"]

_leaves = WeakValueDictionary()  # SparseTensors that are leaves, by the id of their values


def leaf_of(values):
    """The SparseTensor that is a leaf and has these values, or None. Autograd knows the values alone, so whoever gets a
    leaf from it and wants to show it asks here."""
    leaf = _leaves.get(id(values))
    return leaf if leaf is not None and leaf._value is values else None


class SparseTensor:
    """A tensor with elements values[k] at the positions indices[:, k]. Elements at the same position are added.

    Coalesced: the positions are sorted, each once; a tensor of at most one element always is. isinstance(x, Tensor) is
    true, as in PyTorch. The gradient of a leaf is sparse and has the leaf's positions. An op in place gives the tensor
    new elements; those that share the old ones keep them.
    """

    is_sparse, layout = True, sparse_coo
    __class__ = property(lambda self: Tensor)  # what isinstance sees beside the type

    def __init__(self, indices, values, size, coalesced=False):
        self._index, self._value, self.shape = indices, values, _C.Size(size)
        self._coalesced = coalesced or indices.shape[1] < 2

    dtype = property(lambda self: self._value.dtype, doc="The dtype of the elements.")
    device = property(lambda self: self._value.device, doc="The device of the elements.")
    is_cuda = property(lambda self: self._value.is_cuda, doc="Whether the elements are on a CUDA device.")
    is_meta = property(lambda self: self._value.is_meta, doc="Whether the elements are on meta, which has no memory.")
    ndim = property(lambda self: len(self.shape), doc="The number of dimensions.")
    requires_grad = property(lambda self: self._value.requires_grad, doc="Whether autograd records its operations.")
    is_leaf = property(lambda self: self._value.is_leaf, doc="True if no recorded op made this tensor.")
    grad_fn = property(lambda self: self._value.grad_fn, doc="The autograd node that made the values, or None.")
    data = property(lambda self: self.detach(), doc="The same elements without a history.")

    @property
    def grad(self):
        """The gradient of a leaf, coalesced, at its own positions; None if there is none. Can be set."""
        return None if self._value.grad is None else self.with_gradient(self._value.grad)

    @grad.setter
    def grad(self, grad):
        if grad is not None:
            _want_like("grad", self, grad)
            grad = grad.detach().coalesce()._read(self._flat())
        self._value.grad = grad

    def with_gradient(self, of_values):
        """The gradient of this tensor, of which of_values is that of its values. All elements at one position have the
        same gradient."""
        if self._coalesced:
            return self._with(of_values)
        places, which = self._flat().unique(return_inverse=True)
        values = _C.zeros((places.numel(), *of_values.shape[1:]), dtype=of_values.dtype, device=of_values.device)
        return SparseTensor(self._places(places), values.index_copy(0, which, of_values), self.shape, True)

    def _with(self, values):
        return SparseTensor(self._index, values, self.shape, self._coalesced)

    def _shared(self):
        """The values, for another tensor, which is no leaf."""
        return self._value.view(self._value.shape) if self.requires_grad and self.is_leaf else self._value

    def indices(self):
        """The positions of the elements of a coalesced tensor: int64 [dims, n]."""
        if not self._coalesced:
            raise RuntimeError("Cannot get indices on an uncoalesced tensor, please call .coalesce() first")
        return self._index

    def values(self):
        """The elements of a coalesced tensor."""
        if not self._coalesced:
            raise RuntimeError("Cannot get values on an uncoalesced tensor, please call .coalesce() first")
        return self._shared()

    def _indices(self):
        return self._index

    def _values(self):
        return self._value.detach()

    def _nnz(self):
        return self._index.shape[1]

    def is_coalesced(self):
        """Whether the positions are known to be sorted and each to occur once."""
        return self._coalesced

    def _flat(self):
        """The positions as numbers in the flattened sparse dimensions."""
        sizes = self.shape[: self.sparse_dim()]
        if math.prod(sizes) >= 1 << 63:
            raise RuntimeError(
                f"sparse: the sparse dimensions have sizes {tuple(sizes)} (expected below 2**63 positions)"
            )
        if not sizes:
            return _C.zeros(self._nnz(), dtype=_C.int64, device=self._index.device)
        flat = self._index[0]
        for row, size in zip(self._index[1:], sizes[1:]):
            flat = flat * size + row
        return flat

    def _places(self, flat):
        """The inverse of _flat: indices [dims, n]."""
        rows = []
        for size in reversed(self.shape[: self.sparse_dim()]):
            rows.append(_C.remainder(flat, max(size, 1)))
            flat = _C.floor_divide(flat, max(size, 1))
        return _C.stack(rows[::-1]) if rows else _C.zeros(0, flat.numel(), dtype=_C.int64, device=flat.device)

    def _find(self, flat):
        """Of a coalesced tensor: where each position is among its own, and whether it is there."""
        own, count = self._flat(), math.prod(self.shape[: self.sparse_dim()])
        if count > 16 * (own.numel() + flat.numel()):  # too many for a table of all positions: of those that occur
            places, which = _C.cat([own, flat]).unique(return_inverse=True)
            count, own, flat = places.numel(), which[: own.numel()], which[own.numel() :]
        table = _C.zeros(count, dtype=_C.int64, device=flat.device)
        at = table.index_put_((own,), _C.arange(1, own.numel() + 1, device=flat.device))[flat] - 1
        return at.clamp(min=0), at >= 0

    def _read(self, flat):
        """Of a coalesced tensor: the elements at these positions, 0 where there is none."""
        if not self._nnz():
            return _C.zeros((flat.numel(), *self._value.shape[1:]), dtype=self.dtype, device=self.device)
        at, there = self._find(flat)
        return _C.where(there.reshape(-1, *[1] * self.dense_dim()), self._value[at], 0)

    def coalesce(self):
        """The same tensor with sorted positions, each of them once. Cost: a sort of n numbers, none if that is so."""
        if self._coalesced:
            return self
        flat = self._flat()
        if (flat[1:] > flat[:-1]).all().item():
            return SparseTensor(self._index, self._value.clone(), self.shape, True)
        places, which = flat.unique(return_inverse=True)
        values = _C.zeros((places.numel(), *self._value.shape[1:]), dtype=self.dtype, device=self.device)
        values.index_put_((which,), self._value, accumulate=True)
        return SparseTensor(self._places(places), values, self.shape, True)

    def to_dense(self, dtype=None):
        """The same elements as a Tensor, with zeros elsewhere."""
        dense = _write_sum(_C.zeros(self.shape, dtype=self.dtype, device=self.device), self)
        return dense if dtype is None else dense.to(dtype)

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

    def is_floating_point(self):
        """Whether the elements are floating point numbers."""
        return self.dtype.is_floating_point

    def is_complex(self):
        """Whether the elements are complex numbers."""
        return self.dtype.is_complex

    def item(self):
        """The number, of a tensor with one element."""
        return self.to_dense().item()

    def __bool__(self):
        if self.numel() != 1:
            raise RuntimeError(
                f"bool: the Boolean value of a tensor of shape {tuple(self.shape)} is ambiguous (expected one element)"
            )
        return bool(self.item())

    def __len__(self):
        return self.shape[0]

    def t(self):
        """The transpose of a matrix."""
        return self.transpose(0, 1)

    T = property(t)

    def transpose(self, dim0, dim1):
        """The tensor with two sparse dimensions exchanged."""
        order, shape = list(range(self.sparse_dim())), list(self.shape)
        order[dim0], order[dim1] = order[dim1], order[dim0]
        shape[dim0], shape[dim1] = shape[dim1], shape[dim0]
        return SparseTensor(self._index[_C.tensor(order, device=self._index.device)], self._shared(), shape)

    def __matmul__(self, other):
        """The product of a sparse matrix and a matrix or vector. See mm."""
        return mm(self, other)

    mm = matmul = spmm = __matmul__

    def __rmatmul__(self, other):
        return mm(other, self)

    def __mul__(self, other):
        """Each element times a number, times a Tensor's element at its position (the Tensor broadcasts to this shape),
        or times the element of another SparseTensor. Then the result has the positions that both have, if both are
        coalesced; else those of one of them, as in PyTorch."""
        return _mul(self, other)

    __rmul__ = mul = multiply = __mul__

    def __truediv__(self, other):
        """Each element divided by a number, or by a Tensor of one."""
        return _div(self, other)

    div = divide = true_divide = __truediv__

    def __neg__(self):
        return self._with(-self._value)

    neg = negative = __neg__

    def add(self, other, *, alpha=1):
        """self + alpha * other, of two SparseTensors of one shape. If both are coalesced, the result is, too. Else the
        elements of both stand side by side, unless they have the same positions."""
        return _add(self, other, alpha=alpha)

    __add__ = add

    def __radd__(self, other):
        return _add(other, self)

    def sub(self, other, *, alpha=1):
        """self - alpha * other. See add."""
        return _sub(self, other, alpha=alpha)

    __sub__ = subtract = sub

    def __rsub__(self, other):
        return _sub(other, self)

    def _become(self, name, made):
        """Takes over what an op in place has computed."""
        leaf = self.requires_grad and self.is_leaf
        if leaf and _C.is_grad_enabled():
            raise RuntimeError(
                f"{name}: a leaf Variable that requires grad is being used in an in-place operation (expected no_grad)"
            )
        if made.dtype != self.dtype:
            raise RuntimeError(f"{name}: the result is {made.dtype} (expected {self.dtype}, as the tensor)")
        self._index, self._value, self._coalesced = made._index, made._value, made._coalesced
        return self.requires_grad_() if leaf else self

    def add_(self, other, *, alpha=1):
        """add, in place."""
        return self._become("add_", _add(self, other, alpha=alpha))

    def sub_(self, other, *, alpha=1):
        """sub, in place."""
        return self._become("sub_", _sub(self, other, alpha=alpha))

    def mul_(self, other):
        """mul, in place."""
        return self._become("mul_", _mul(self, other))

    def div_(self, other):
        """div, in place."""
        return self._become("div_", _div(self, other))

    def zero_(self):
        """Removes all elements."""
        return self._become("zero_", _empty(self.shape, self.sparse_dim(), self.dtype, self.device))

    __iadd__, __isub__, __imul__, __itruediv__ = add_, sub_, mul_, div_

    def sum(self, dim=None, keepdim=False, dtype=None):
        """The sum of all elements, a Tensor; or the sums over dim (one or several). These are sparse, or a Tensor if no
        sparse dimension is left."""
        if dim is not None and dtype is None and not (self.is_floating_point() or self.is_complex()):
            dtype = _C.int64
        return _sum(self, dim, keepdim, dtype)

    def to(self, *args, **kwargs):
        """The tensor in another dtype or on another device, by the arguments of Tensor.to."""
        values = self._value.to(*args, **kwargs)
        if values is self._value:
            return self
        return SparseTensor(self._index.to(values.device), values, self.shape, self._coalesced)

    def cpu(self):
        """The tensor on the CPU."""
        return self.to("cpu")

    def cuda(self, device=None):
        """The tensor on a GPU."""
        return self.to("cuda" if device is None else device)

    def float(self):
        """The tensor in float32."""
        return self.to(_C.float32)

    def double(self):
        """The tensor in float64."""
        return self.to(_C.float64)

    def detach(self):
        """The same elements without a history."""
        return self._with(self._value.detach())

    def clone(self):
        """A copy with its own memory."""
        return SparseTensor(self._index.clone(), self._value.clone(), self.shape, self._coalesced)

    def requires_grad_(self, requires_grad=True):
        """Sets, in place, whether autograd records operations on the values. Returns the tensor."""
        self._value.requires_grad_(requires_grad)
        if self.is_leaf:
            _leaves[id(self._value)] = self
        return self

    def retain_grad(self):
        """Keeps .grad although the tensor is no leaf."""
        self._value.retain_grad()

    def to_sparse(self, *args, **kwargs):
        """The tensor itself."""
        return self

    def __reduce__(self):
        return _rebuilt, (self._index, self._value, tuple(self.shape), self._coalesced)

    def __repr__(self):
        def lined(name, tensor):
            return f"{name}={tensor!r}".replace("\n", "\n" + " " * (len("tensor(") + len(name) + 1))

        notes = f"size={tuple(self.shape)}, nnz={self._nnz()}"
        notes += "" if self.dtype in (_C.get_default_dtype(), _C.int64) else f", dtype={self.dtype}"
        notes += ", layout=sparse_coo"
        if self.grad_fn is not None:
            notes += f", grad_fn=<{self.grad_fn.name()}>"
        elif self.requires_grad:
            notes += ", requires_grad=True"
        parts = lined("indices", self._index), lined("values", self._value.detach()), notes
        return f"tensor({(',' + chr(10) + ' ' * 7).join(parts)})"

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        """What a function of the engine calls for an argument that is sparse."""
        return _FUNCTIONS.get(func.__name__, partial(_refuse, func.__name__))(*args, **kwargs or {})

    def __getattr__(self, name):
        if not name.startswith("_") and callable(getattr(Tensor, name, None)):
            return partial(_refuse, name, self)
        raise AttributeError(f"'SparseTensor' object has no attribute '{name}' (expected one of a SparseTensor)")


def _refuse(name, *args, **kwargs):
    raise NotImplementedError(f"{name}: there is none for sparse tensors (expected to_dense() first)")


def _operator(name):
    def refused(self, *other):
        if name in ("__eq__", "__ne__") and not isinstance(other[0], (Tensor, Number)):
            return NotImplemented
        _refuse(name.strip("_"))

    refused.__name__ = name
    return refused


for _name in "eq ne lt le gt ge pow rpow rtruediv floordiv rfloordiv mod rmod and or xor getitem iter abs".split():
    setattr(SparseTensor, f"__{_name}__", _operator(f"__{_name}__"))


def _empty(shape, sparse_dim, dtype, device):
    index = _C.zeros(sparse_dim, 0, dtype=_C.int64, device=device)
    return SparseTensor(index, _C.zeros((0, *shape[sparse_dim:]), dtype=dtype, device=device), shape)


def _rebuilt(indices, values, size, coalesced):
    """Makes the tensor that a pickle holds. Nothing in it is believed but that it is coalesced."""
    made = SparseTensor(*_checked(indices, values, size), coalesced)
    if made.requires_grad and made.is_leaf:
        made.requires_grad_()
    return made


def _checked(indices, values, size):
    """indices, values and size, which fit each other; size None: the smallest."""
    if indices.dim() != 2 or values.dim() < 1 or indices.shape[1] != values.shape[0]:
        raise RuntimeError(
            f"sparse_coo_tensor: indices {tuple(indices.shape)}, values {tuple(values.shape)} (expected [dims, n] and "
            "[n, ...])"
        )
    dims, some = indices.shape[0], indices.numel() > 0
    least = [n + 1 for n in indices.amax(1).tolist()] if some else [0] * dims
    size = (*least, *values.shape[1:]) if size is None else tuple(size)
    if len(size) != dims + values.dim() - 1 or tuple(size[dims:]) != tuple(values.shape[1:]):
        raise RuntimeError(
            f"sparse_coo_tensor: size {size} does not fit indices {tuple(indices.shape)}, values {tuple(values.shape)} "
            "(expected a size for each row of indices and dimension of the values)"
        )
    if some and (indices.amin().item() < 0 or any(n > m for n, m in zip(least, size))):
        raise RuntimeError(
            f"sparse_coo_tensor: size {size} is too small for the indices, which reach {[n - 1 for n in least]} "
            "(expected indices from 0 to below the sizes)"
        )
    return indices, values, size


def sparse_coo_tensor(
    indices=None,
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
    indices. sparse_coo_tensor(size), with or without the name: an empty one. Raises RuntimeError for indices outside the
    size and for shapes that do not fit. requires_grad: it is a leaf; else gradients flow to values, where these require
    them."""
    if values is None and (indices is None) != (size is None):
        size = tuple(indices if size is None else size)
        made = _empty(size, len(size), dtype, device)
        return made.requires_grad_() if requires_grad else made
    values = values if isinstance(values, Tensor) else _C.tensor(values, dtype=dtype, device=device)
    values = values.to(device or values.device, dtype or values.dtype)
    indices = indices if isinstance(indices, Tensor) else _C.tensor(indices, device=values.device)
    indices, values, size = _checked(
        indices.to(values.device, _C.int64), values.reshape(1) if values.dim() == 0 else values, size
    )
    recorded = values.requires_grad and not requires_grad
    made = SparseTensor(indices, values.view(values.shape) if recorded else values.detach(), size, bool(is_coalesced))
    return made.requires_grad_() if requires_grad else made


# Arithmetic.


def _is_number(x):
    return isinstance(x, Number) or type(x) is not SparseTensor and isinstance(x, Tensor) and x.dim() == 0


def _want_number(name, other):
    if not _is_number(other):
        what = f"shape {tuple(other.shape)}" if isinstance(other, Tensor) else type(other).__name__
        raise RuntimeError(f"{name}: the divisor of a sparse tensor is {what} (expected a number or a 0-d Tensor)")


def _want_like(name, a, b):
    if tuple(a.shape) != tuple(b.shape) or a.sparse_dim() != b.sparse_dim():
        raise RuntimeError(
            f"{name}: sparse tensors of shapes {tuple(a.shape)} and {tuple(b.shape)} with {a.sparse_dim()} and "
            f"{b.sparse_dim()} sparse dimensions (expected equal ones)"
        )


def _write_sum(dense, sparse, alpha=1):
    """dense += alpha * sparse. Cost: as many additions as sparse has elements."""
    if not isinstance(sparse, SparseTensor) or tuple(dense.shape) != tuple(sparse.shape):
        raise RuntimeError(
            f"add: got {_kind(sparse)} of shape {tuple(sparse.shape)} (expected a sparse one of shape "
            f"{tuple(dense.shape)})"
        )
    if (dtype := _C.result_type(dense, sparse._value)) != dense.dtype:
        raise RuntimeError(f"add_: the result is {dtype} (expected {dense.dtype}, as the tensor)")
    values = (sparse._value if alpha == 1 else sparse._value * alpha).to(dtype)
    if not sparse.sparse_dim():
        return dense.add_(values.sum(0))
    return dense.index_put_(tuple(sparse._index), values, accumulate=True)


def _add(input, other, *, alpha=1):
    if not isinstance(input, SparseTensor) and isinstance(input, Tensor):
        dtype = _C.result_type(input, other._value)
        return _write_sum(input.to(dtype, copy=True), other, alpha)
    if not isinstance(input, SparseTensor) or not isinstance(other, SparseTensor):
        raise RuntimeError(
            f"add: add(sparse, dense) is not supported: got {_kind(input)} and {_kind(other)} (expected two sparse "
            "tensors, or a dense and a sparse one)"
        )
    _want_like("add", input, other)
    both = input._coalesced and other._coalesced
    if _same_places(input, other):
        return SparseTensor(input._index, _C.add(input._value, other._value, alpha=alpha), input.shape, both)
    values = _C.cat([input._value, other._value if alpha == 1 else other._value * alpha])
    joined = SparseTensor(_C.cat([input._index, other._index], 1), values, input.shape)
    return joined.coalesce() if both else joined


def _kind(x):
    return "a sparse tensor" if type(x) is SparseTensor else "a dense one" if type(x) is Tensor else type(x).__name__


def _sub(input, other, *, alpha=1):
    return _add(input, other, alpha=-alpha)


def _mul(input, other):
    if not isinstance(input, SparseTensor):
        input, other = other, input
    if isinstance(other, SparseTensor):
        return _mul_sparse(input, other)
    if _is_number(other):
        return input._with(input._value * other)
    if not isinstance(other, Tensor):
        raise TypeError(f"mul: got {type(other).__name__} (expected a sparse tensor, a Tensor or a number)")
    if other.dim() > input.dim():
        raise RuntimeError(f"mul: shapes {tuple(input.shape)}, {tuple(other.shape)} (expected the second to broadcast)")
    dense = other.expand(input.shape)
    at_places = dense[tuple(input._index)] if input.sparse_dim() else dense.unsqueeze(0)[input._flat()]
    return input._with(input._value * at_places)


def _same_places(a, b):
    a, b = a._index, b._index
    return a is b or a.shape == b.shape and (a == b).all().item()


def _mul_sparse(input, other):
    _want_like("mul", input, other)
    if input._coalesced and other._coalesced:
        if _same_places(input, other):
            return input._with(input._value * other._value)
        at, there = other._find(input._flat())
        kept = there.nonzero().reshape(-1)
        values = input._value[kept] * other._value[at[kept]]
        return SparseTensor(input._index[:, kept], values, input.shape, True)
    if not (input._nnz() and other._nnz()):
        return SparseTensor(input._index[:, :0], input._value[:0] * other._value[:0], input.shape)
    # PyTorch's rule for whose positions the result has
    swap = input._nnz() < other._nnz() if input._coalesced == other._coalesced else other._coalesced
    table, source = (other, input) if swap else (input, other)
    return SparseTensor(source._index, source._value * table.coalesce()._read(source._flat()), source.shape)


def _div(input, other):
    if not isinstance(input, SparseTensor):
        _refuse("div")
    _want_number("div", other)
    return input._with(input._value / other)


def _cat(tensors, dim=0):
    for i, t in enumerate(tensors):
        if not isinstance(t, SparseTensor):
            raise RuntimeError(f"cat: tensor {i} is dense and others are sparse (expected sparse ones alone)")
    first = tensors[0]
    dim, dims = axis_of("cat", dim, first.dim()), first.sparse_dim()
    for i, t in enumerate(tensors):
        rest = [tuple(s for d, s in enumerate(x.shape) if d != dim) for x in (first, t)]
        if t.dim() != first.dim() or rest[0] != rest[1] or t.sparse_dim() != dims:
            raise RuntimeError(
                f"cat: tensor {i} has shape {tuple(t.shape)} and {t.sparse_dim()} sparse dimensions (expected "
                f"{tuple(first.shape)} but for dimension {dim}, and {dims})"
            )
    ends = list(accumulate(t.shape[dim] for t in tensors))
    shape = list(first.shape)
    shape[dim] = ends[-1]
    indices, values = [], []
    for t, end in zip(tensors, ends):
        index, value, before = t._index, t._value, end - t.shape[dim]
        if dim < dims:
            index = index.clone()
            index[dim] += before
        else:
            filled = list(value.shape)
            filled[dim - dims + 1] = shape[dim]
            value = _C.zeros(filled, dtype=value.dtype, device=value.device).slice_scatter(
                value, dim - dims + 1, before, end
            )
        indices.append(index), values.append(value)
    return SparseTensor(_C.cat(indices, 1), _C.cat(values), shape)


def _stack(tensors, dim=0):
    shapes = [tuple(t.shape) for t in tensors]
    if (i := next((i for i, s in enumerate(shapes) if s != shapes[0]), None)) is not None:
        raise RuntimeError(f"stack: tensor {i} has shape {shapes[i]} (expected {shapes[0]}, as the first)")
    return _cat([_unsqueeze(t, axis_of("stack", dim, len(shapes[0]) + 1)) for t in tensors], dim)


def _unsqueeze(t, dim):
    if not isinstance(t, SparseTensor):
        return t.unsqueeze(dim)
    shape, dims = [*t.shape[:dim], 1, *t.shape[dim:]], t.sparse_dim()
    if dim > dims:
        return SparseTensor(t._index, t._value.unsqueeze(dim - dims + 1), shape)
    row = _C.zeros(1, t._nnz(), dtype=_C.int64, device=t.device)
    return SparseTensor(_C.cat([t._index[:dim], row, t._index[dim:]]), t._value, shape)


def _sum(input, dim=None, keepdim=False, dtype=None):
    if dim is None:
        return input._value.sum(dtype=dtype)
    dims = input.sparse_dim()
    over = {axis_of("sum", d, input.dim()) for d in ([dim] if isinstance(dim, int) else dim)}
    kept = [d for d in range(dims) if d not in over]
    whole = input.coalesce() if len(kept) == dims else input
    within = [d - dims + 1 for d in over if d >= dims]
    values = whole._value if dtype is None else whole._value.to(dtype)
    values = values.sum(within, keepdim=keepdim, dtype=values.dtype) if within else values
    shape = [1 if d in over else s for d, s in enumerate(input.shape) if keepdim or d not in over]
    if len(kept) == dims:
        return SparseTensor(whole._index, values, shape, True)
    if not kept:
        return values.sum(0, dtype=values.dtype).reshape(shape)
    index = whole._index[_C.tensor(kept, device=whole._index.device)]
    made = SparseTensor(index, values, [input.shape[d] for d in kept] + list(values.shape[1:])).coalesce()
    for d in sorted(over) if keepdim else ():
        made = _unsqueeze(made, d) if d < dims else made
    return made


_FUNCTIONS = {
    "add": _add,
    "add_": lambda input, other, *, alpha=1: _write_sum(input, other, alpha),
    "cat": _cat,
    "clone": SparseTensor.clone,
    "div": _div,
    "matmul": lambda input, other: mm(input, other),
    "mul": _mul,
    "neg": SparseTensor.__neg__,
    "stack": _stack,
    "sub": _sub,
    "sub_": lambda input, other, *, alpha=1: _write_sum(input, other, -alpha),
    "sum": SparseTensor.sum,
    "transpose": SparseTensor.transpose,
}


# Functions of torch.sparse.


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
    """The sum of all elements, a Tensor; or the sums over dim (one or several), in the tensor's dtype. See
    SparseTensor.sum."""
    if not isinstance(input, SparseTensor):
        raise RuntimeError(f"sparse.sum: got {_kind(input)} (expected a sparse tensor)")
    return _sum(input, dim, dtype=dtype)


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
