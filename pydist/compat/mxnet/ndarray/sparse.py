"""Arrays with MXNet's storage types "row_sparse" and "csr". Their memory is dense here."""

import numpy as np

from pydist.compat.mxnet.ndarray import ndarray as _nd
from pydist.compat.mxnet.ndarray._array import CSRNDArray, RowSparseNDArray
from pydist.compat.mxnet.ndarray._ops import table

BaseSparseNDArray = (RowSparseNDArray, CSRNDArray)


def _parts(parts, dtype):
    """NumPy arrays of index and data arrays, and the dtype of the data."""
    kind = dtype or getattr(parts[0], "dtype", None)
    return [np.asarray(parts[0]), *[np.asarray(each).astype(np.int64) for each in parts[1:]]], kind


def _is_shape(arg):
    return isinstance(arg, tuple) and all(isinstance(n, (int, np.integer)) for n in arg)


def row_sparse_array(arg1, shape=None, ctx=None, dtype=None):
    """Of (rows, their numbers), of a shape, or of a dense array."""
    if _is_shape(arg1):
        return zeros("row_sparse", arg1, ctx, dtype)
    if isinstance(arg1, tuple):
        (rows, places), dtype = _parts(arg1, dtype)
        arg1 = np.zeros(shape or (places.max(initial=-1) + 1, *rows.shape[1:]), rows.dtype)
        arg1[places] = rows.reshape(len(places), *arg1.shape[1:])
    return _nd.array(arg1, ctx, dtype).tostype("row_sparse")


def csr_matrix(arg1, shape=None, ctx=None, dtype=None):
    """Of (data, columns, row starts), of (data, (rows, columns)), of a shape, of a matrix of SciPy, or of an array."""
    if hasattr(arg1, "toarray"):
        dtype, arg1 = dtype or arg1.dtype, arg1.toarray()
    if _is_shape(arg1):
        return zeros("csr", arg1, ctx, dtype)
    if isinstance(arg1, tuple):
        if len(arg1) == 3:
            (data, columns, starts), dtype = _parts(arg1, dtype)
            rows = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
            shape = shape or (len(starts) - 1, columns.max(initial=-1) + 1)
        else:
            (data, rows, columns), dtype = _parts((arg1[0], *arg1[1]), dtype)
        arg1 = np.zeros(shape or (rows.max(initial=-1) + 1, columns.max(initial=-1) + 1), data.dtype)
        np.add.at(arg1, (rows, columns), data)
    return _nd.array(arg1, ctx, dtype).tostype("csr")


def array(source_array, ctx=None, dtype=None):
    """A copy with the same storage type; SciPy's matrices become csr."""
    made = csr_matrix if hasattr(source_array, "toarray") else _nd.array
    return made(source_array, ctx=ctx, dtype=dtype)


def zeros(stype, shape, ctx=None, dtype=None, **kwargs):
    """Zeros of a storage type."""
    return _nd.zeros(shape, ctx, dtype, stype)


def retain(data, indices):
    """Only these rows of a row_sparse array; the others become 0."""
    return data.retain(indices)


def __getattr__(name):
    if name in table:
        return table[name]
    raise AttributeError(f"pydist has no mxnet.nd.sparse.{name}")
