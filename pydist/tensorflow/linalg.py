"""tf.linalg: products, decompositions and parts of matrices."""

from pydist import _C, _functions
from pydist import linalg as _linalg
from pydist.tensorflow import _tensors as _t
from pydist.tensorflow._arrays import eye as eye
from pydist.tensorflow._arrays import global_norm as global_norm
from pydist.tensorflow._names import lacking as _lacking
from pydist.tensorflow.math import l2_normalize as l2_normalize


def _turned(x, transpose, adjoint):
    return _adjoint(x) if adjoint else x.mT if transpose else x


def _adjoint(x):
    """The conjugate transpose of matrices."""
    return _C.conj(x.mT) if x.is_complex() else x.mT


def matmul(a, b, transpose_a=False, transpose_b=False, adjoint_a=False, adjoint_b=False, a_is_sparse=False,
           b_is_sparse=False, output_type=None, grad_a=False, grad_b=False, name=None):  # fmt: skip
    """The product of matrices, or of stacks of them; each may be transposed first."""
    a, b = (_t.tensor(v) for v in _t.pair(a, b))
    if a.ndim < 2 or b.ndim < 2:
        raise _C.ShapeError(f"matmul: got shapes {tuple(a.shape)} and {tuple(b.shape)} (expected at least 2 axes)")
    dtype = _C.promote_types(a.dtype, b.dtype) if a.dtype is not b.dtype else a.dtype
    a, b = (x if x.dtype is dtype else x.to(dtype) for x in (a, b))
    result = _C.matmul(_turned(a, transpose_a, adjoint_a), _turned(b, transpose_b, adjoint_b))
    return result if output_type is None else result.to(_t.as_dtype(output_type))


def matvec(a, b, transpose_a=False, adjoint_a=False, a_is_sparse=False, b_is_sparse=False, name=None):
    """The product of a matrix and a vector, or of stacks of them."""
    a, b = (_t.tensor(v) for v in _t.pair(a, b))
    return _C.matmul(_turned(a, transpose_a, adjoint_a), b.unsqueeze(-1)).squeeze(-1)


def einsum(equation, *inputs, **kwargs):
    """Einstein's sum: "ij,jk->ik" is a product of matrices."""
    return _functions.einsum(equation, *(_t.tensor(v) for v in inputs))


def tensordot(a, b, axes, name=None):
    """The sum of products along `axes`: their number (the last of a and the first of b), or two lists."""
    a, b = (_t.tensor(v) for v in _t.pair(a, b))
    if hasattr(axes, "tolist"):
        axes = axes.tolist()
    if isinstance(axes, int):
        return _functions.tensordot(a, b, dims=axes)
    first, second = ([i] if isinstance(i, int) else list(i) for i in axes)
    return _functions.tensordot(a, b, dims=(first, second))


def norm(tensor, ord="euclidean", axis=None, keepdims=None, name=None):
    """The norm of all elements, or of vectors (one axis) or matrices (two axes)."""
    x, which = _t.own(tensor), _t.axes(axis)
    keep = bool(keepdims)
    if ord in ("euclidean", "fro") or which is None and ord == 2:
        size = _C.abs(x) if x.is_complex() else x
        squares = _C.sum(_C.square(size), which, keep)
        safe = _C.where(squares > 0, squares, _C.ones_like(squares))
        return _C.where(squares > 0, _C.sqrt(safe), squares)
    if isinstance(which, tuple) and len(which) == 2:
        return _linalg.matrix_norm(x, ord, which, keep)
    which = which[0] if isinstance(which, tuple) else which
    return _linalg.vector_norm(x, float(ord), which, keep)


def normalize(tensor, ord="euclidean", axis=None, name=None):
    """(x / norm, norm)."""
    size = norm(tensor, ord, axis, True)
    return _t.own(tensor) / size, size


# Decompositions.


def _upper(x, adjoint):
    return _adjoint(x) if adjoint else x


def inv(input, adjoint=False, name=None):
    """The inverse of matrices."""
    return _linalg.inv(_upper(_t.tensor(input), adjoint))


def pinv(a, rcond=None, validate_args=False, name=None):
    """The pseudo-inverse of matrices."""
    return _linalg.pinv(_t.tensor(a)) if rcond is None else _linalg.pinv(_t.tensor(a), rcond)


def det(input, name=None):
    """The determinants of matrices."""
    return _linalg.det(_t.tensor(input))


def slogdet(input, name=None):
    """(signs, logarithms of the absolute values) of determinants."""
    return tuple(_linalg.slogdet(_t.tensor(input)))


def logdet(matrix, name=None):
    """The logarithms of the determinants of positive definite matrices."""
    return 2 * _C.sum(_C.log(_functions.diagonal(_linalg.cholesky(_t.tensor(matrix)), 0, -2, -1)), -1)


def cholesky(input, name=None):
    """The lower triangular factors of positive definite matrices."""
    return _linalg.cholesky(_t.tensor(input))


def cholesky_solve(chol, rhs, name=None):
    """x with A x = rhs, of A's lower triangular factor."""
    chol = _t.tensor(chol)
    return triangular_solve(chol, triangular_solve(chol, rhs), adjoint=True)


def solve(matrix, rhs, adjoint=False, name=None):
    """x with matrix x = rhs."""
    return _linalg.solve(_upper(_t.tensor(matrix), adjoint), _t.tensor(rhs))


def triangular_solve(matrix, rhs, lower=True, adjoint=False, name=None):
    """x with matrix x = rhs, of a triangular matrix."""
    matrix = _t.tensor(matrix)
    matrix = _functions.tril(matrix) if lower else _functions.triu(matrix)
    return _linalg.solve_triangular(_upper(matrix, adjoint), _t.tensor(rhs), upper=bool(lower) == bool(adjoint))


def lstsq(matrix, rhs, l2_regularizer=0.0, fast=True, name=None):
    """x for which matrix x is nearest to rhs."""
    matrix, rhs = _t.tensor(matrix), _t.tensor(rhs)
    if not l2_regularizer:
        return _linalg.pinv(matrix) @ rhs
    n = matrix.shape[-1]
    return _linalg.solve(matrix.mT @ matrix + l2_regularizer * eye(n, dtype=matrix.dtype), matrix.mT @ rhs)


def svd(tensor, full_matrices=False, compute_uv=True, name=None):
    """(s, u, v) with x = u diag(s) v^H; s alone without compute_uv."""
    x = _t.own(tensor)
    if not compute_uv:
        return _linalg.svdvals(x)
    u, s, vh = _linalg.svd(x, full_matrices)
    return s, u, _adjoint(vh)


def qr(input, full_matrices=False, name=None):
    """(q, r): an orthogonal and a triangular matrix, whose product is the input."""
    return tuple(_linalg.qr(_t.tensor(input), "complete" if full_matrices else "reduced"))


def eigh(tensor, name=None):
    """(eigenvalues, eigenvectors) of symmetric matrices, in ascending order."""
    return tuple(_linalg.eigh(_t.own(tensor)))


def eigvalsh(tensor, name=None):
    """The eigenvalues of symmetric matrices, in ascending order."""
    return _linalg.eigvalsh(_t.own(tensor))


def eig(tensor, name=None):
    """(eigenvalues, eigenvectors) of square matrices, as complex numbers."""
    return tuple(_linalg.eig(_t.own(tensor)))


def eigvals(tensor, name=None):
    """The eigenvalues of square matrices, as complex numbers."""
    return _linalg.eigvals(_t.own(tensor))


def expm(input, name=None):
    """The exponential of matrices."""
    return _linalg.matrix_exp(_t.tensor(input))


def matrix_rank(a, tol=None, validate_args=False, name=None):
    """The ranks of matrices, as int32."""
    return _linalg.matrix_rank(_t.tensor(a), tol).to(_C.int32)


# Parts.


def trace(x, name=None):
    """The sums of the diagonals."""
    x = _t.tensor(x)
    return _C.sum(_functions.diagonal(x, 0, -2, -1), -1, False, x.dtype)


def diag(diagonal, name="diag", k=0, num_rows=-1, num_cols=-1, padding_value=0, align="RIGHT_LEFT"):
    """Matrices with this diagonal, k places above the main one, and padding_value elsewhere."""
    values, k = _t.tensor(diagonal), _one(k, "diag")

    def placed(values):
        square = _functions.diag_embed(values, k)
        rows, columns = (square.shape[-1] if n == -1 else int(n) for n in (num_rows, num_cols))
        return _C.constant_pad_nd(square, [0, columns - square.shape[-1], 0, rows - square.shape[-2]], 0)

    return (
        _C.where(placed(_C.ones_like(values)) == 1, placed(values), padding_value) if padding_value else placed(values)
    )


def _one(k, where):
    numbers = _t.ints(k)
    if len(numbers) != 1:
        raise NotImplementedError(f"linalg.{where}: k is {numbers} (expected one diagonal)")
    return numbers[0]


def diag_part(input, name="diag_part", k=0, padding_value=0, align="RIGHT_LEFT"):
    """The diagonals of matrices, k places above the main one."""
    return _functions.diagonal(_t.own(input), _one(k, "diag_part"), -2, -1).clone()


def set_diag(input, diagonal, name="set_diag", k=0, align="RIGHT_LEFT"):
    """The matrices with another diagonal."""
    x = _t.own(input)
    return _functions.diagonal_scatter(x, _t.tensor(diagonal, like=x.dtype).to(x.dtype), _one(k, "set_diag"), -2, -1)


def band_part(input, num_lower, num_upper, name=None):
    """The matrices with only so many diagonals below and above the main one; -1: all."""
    x = _t.own(input)
    lower, upper = _t.ints(num_lower)[0], _t.ints(num_upper)[0]
    x = x if lower < 0 else _functions.triu(x, -lower)
    return x if upper < 0 else _functions.tril(x, upper)


def tensor_diag(diagonal, name=None):
    """A tensor of twice as many axes, with the elements on its diagonal."""
    values = _t.tensor(diagonal)
    return _functions.diag_embed(values.reshape(-1)).reshape(*values.shape, *values.shape)


def tensor_diag_part(input, name=None):
    """The diagonal of a tensor whose axes come twice."""
    x = _t.own(input)
    half = x.shape[: x.ndim // 2]
    count = 1
    for n in half:
        count *= n
    return _functions.diagonal(x.reshape(count, count)).clone().reshape(half)


def matrix_transpose(a, name="matrix_transpose", conjugate=False):
    """Matrices with rows and columns exchanged."""
    x = _t.own(a)
    return _adjoint(x) if conjugate else x.mT


def adjoint(matrix, name=None):
    """The conjugate transpose of matrices."""
    return _adjoint(_t.own(matrix))


def cross(a, b, name=None):
    """The cross product of vectors of 3 numbers."""
    return _linalg.cross(*(_t.tensor(v) for v in (a, b)))


__getattr__ = _lacking(__name__)
