"""tf.sparse: tensors by their elements that are not 0. They are tuples of three tensors, in pipelines, too."""

import collections as _collections
import math as _math

from pydist import _C
from pydist.data.strings import StringTensor as _StringTensor
from pydist.tensorflow import _arrays as _a
from pydist.tensorflow import _tensors as _t
from pydist.tensorflow import errors as _errors
from pydist.tensorflow._names import lacking as _lacking
from pydist.tensorflow._shapes import TensorShape as _TensorShape


class SparseTensor(_collections.namedtuple("SparseTensor", "indices values dense_shape")):
    """`values` at the places that the rows of `indices` say, in a tensor of shape `dense_shape` of zeros."""

    __slots__ = ()

    def __new__(cls, indices, values, dense_shape):
        if hasattr(indices, "is_compatible_with"):  # what a pipeline knows of the three
            return super().__new__(cls, indices, values, dense_shape)
        indices, values, sizes = (_t.tensor(v) for v in (indices, values, dense_shape))
        indices, sizes = indices.to(_C.int64), sizes.to(_C.int64)
        if indices.ndim != 2 or values.ndim != 1 or indices.shape != (len(values), len(sizes)):
            raise ValueError(
                f"SparseTensor: indices have shape {tuple(indices.shape)}, values {tuple(values.shape)}, dense_shape "
                f"{tuple(sizes.shape)} (expected [n, axes], [n] and [axes])"
            )
        return super().__new__(cls, indices, values, sizes)

    @property
    def value_type(self):
        """The class, of what a pipeline knows."""
        return SparseTensor

    @property
    def shape(self):
        """The sizes."""
        return _TensorShape(self.dense_shape.tolist())

    def get_shape(self):
        """The sizes."""
        return self.shape

    @property
    def dtype(self):
        """The dtype of the values."""
        return self.values.dtype

    def __repr__(self):
        return f"SparseTensor(indices={self.indices}, values={self.values}, dense_shape={self.dense_shape})"

    __str__ = __repr__


def to_dense(sp_input, default_value=None, validate_indices=True, name=None):
    """The tensor, with default_value (0, or "") at all other places."""
    sizes, values = sp_input.dense_shape.tolist(), sp_input.values
    for row, size in zip(sp_input.indices.T, sizes):
        if len(row) and not 0 <= row.min().item() <= row.max().item() < size:
            raise _errors.InvalidArgumentError(f"sparse.to_dense: an index is out of range (expected 0 to {size - 1})")
    strings = isinstance(values, _StringTensor)
    default = default_value if default_value is not None else "" if strings else 0
    if strings:
        flat = [default.encode() if isinstance(default, str) else bytes(default)] * _math.prod(sizes)
        for place, value in zip(_flat(sp_input).tolist(), values._items()):
            flat[place] = value
        return _a.reshape(_StringTensor(flat), sizes)
    made = _a.fill(sizes, _t.tensor(default, values.dtype))
    return _a.tensor_scatter_nd_update(made, sp_input.indices, values) if len(values) else made


def _flat(sparse):
    """The place of each value in the flattened tensor."""
    found = _C.zeros(len(sparse.values), dtype=_C.int64)
    for axis, size in enumerate(sparse.dense_shape.tolist()):
        found = found * size + sparse.indices[:, axis]
    return found


def from_dense(tensor, name=None):
    """The SparseTensor of a tensor."""
    x = _t.tensor(tensor)
    there = _a.where(x != (b"" if isinstance(x, _StringTensor) else 0))
    return SparseTensor(there, _a.gather_nd(x, there), list(x.shape))


def reorder(sp_input, name=None):
    """The same tensor, with its elements in the order of their places."""
    order = _C.argsort(_flat(sp_input), 0, False, True)
    return SparseTensor(sp_input.indices[order], _a.gather(sp_input.values, order), sp_input.dense_shape)


def sparse_dense_matmul(sp_a, b, adjoint_a=False, adjoint_b=False, name=None):
    """The product of a sparse and a dense matrix."""
    from pydist.tensorflow import linalg

    return linalg.matmul(to_dense(sp_a), b, adjoint_a=adjoint_a, adjoint_b=adjoint_b)


__getattr__ = _lacking(__name__)
