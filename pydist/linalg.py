"""Linear algebra with PyTorch's names (torch.linalg). NumPy's LAPACK computes the values, and loops over its
arrays those of lu; gradients are formulas over the same functions, so they can be differentiated again. Matrices are the
last two dimensions. Dtypes: float32 and float64.

>>> import pydist
>>> a = pydist.tensor([[2.0, 0.0], [0.0, 4.0]], requires_grad=True)
>>> pydist.linalg.inv(a).sum().backward()
>>> a.grad.tolist()
[[-0.25, -0.125], [-0.125, -0.0625]]
"""

import math
from collections import namedtuple

from pydist import _C
from pydist._autocast import in_float32, in_low
from pydist._functions._register import array_of, as_tuple, axis_of, with_out
from pydist._functions.matrices import cross as _cross
from pydist._functions.matrices import matrix_power, vander
from pydist._functions.products import LinAlgError, mm
from pydist._functions.reduce import norm as _plain_norm
from pydist._functions.shape import broadcast_shape
from pydist._functions.shape import diagonal as _diagonal
from pydist.autograd import Function

__all__ = (
    "LinAlgError cholesky cholesky_ex cond cross det diagonal eig eigh eigvals eigvalsh inv inv_ex lstsq lu lu_factor "
    "lu_factor_ex lu_solve matmul matrix_exp matrix_norm matrix_power matrix_rank multi_dot norm pinv qr slogdet solve "
    "solve_triangular svd svdvals vander vecdot vector_norm"
).split()


def _host(name, function, *tensors):
    """The results of a NumPy function, as tensors with the dtype and on the device of the first tensor."""
    import numpy as np

    try:
        results = function(np.linalg, *(array_of(t) for t in tensors))
    except np.linalg.LinAlgError as error:
        raise LinAlgError(f"linalg.{name}: {error}") from None
    results = results if isinstance(results, tuple) else (results,)
    dtype, device = tensors[0].dtype, tensors[0].device
    return tuple(_C.tensor(np.ascontiguousarray(r), dtype=dtype, device=device) for r in results)


def _svd(linalg, a, full_matrices=True):
    """NumPy's svd, after a check: with infinities LAPACK may never end."""
    import numpy as np

    if not np.isfinite(a).all():
        raise linalg.LinAlgError("an element is infinite or NaN (expected finite ones)")
    return tuple(linalg.svd(a, full_matrices=full_matrices))


def _check(name, *tensors, square=False, ndim=2):
    for t in tensors:
        if t.dtype not in (_C.float32, _C.float64):
            raise RuntimeError(f"linalg.{name}: got dtype {t.dtype} (expected float32 or float64)")
        if t.dtype is not tensors[0].dtype:
            raise RuntimeError(f"linalg.{name}: got dtypes {tensors[0].dtype} and {t.dtype} (expected the same dtype)")
        if t.device != tensors[0].device:
            both = f"{tensors[0].device} and {t.device}"
            raise RuntimeError(f"linalg.{name}: Expected all tensors to be on the same device: got {both}")
    a = tensors[0]
    if a.dim() < ndim or square and a.shape[-1] != a.shape[-2]:
        want = "square matrices" if square else f"at least {ndim} dimensions"
        raise RuntimeError(f"linalg.{name}: shape {tuple(a.shape)} (expected {want})")


def _t(a):
    return a.transpose(-2, -1)


def _diag(v):
    return v.diag_embed()


def _eye(like, n):
    return _C.zeros(n, n, dtype=like.dtype, device=like.device).fill_diagonal_(1)


# Inverses and systems.


class _Inverse(Function):
    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        return _host("inv", lambda np, a: np.inv(a), a)[0]

    @staticmethod
    def backward(ctx, g):
        b = _t(_Inverse.apply(ctx.saved_tensors[0]))
        return -(b @ g @ b)


@in_float32
def inv(A):
    """The inverses of square matrices. Raises LinAlgError if there is none."""
    _check("inv", A, square=True)
    return _Inverse.apply(A)


class _Solve(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return _host("solve", lambda np, a, b: np.solve(a, b), a, b)[0]

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        gb = _Solve.apply(_t(a), g)
        return -(gb @ _t(_Solve.apply(a, b))), gb


def _batched(name, a, b):
    """Both tensors with their common leading dimensions."""
    lead = broadcast_shape(f"linalg.{name}", [a.shape[:-2], b.shape[:-2]])
    return a.expand((*lead, *a.shape[-2:])), b.expand((*lead, *b.shape[-2:]))


@in_float32
def solve(A, B, *, left=True):
    """X with A X = B (left=False: X A = B), for vectors or matrices B. Raises LinAlgError if A is singular."""
    _check("solve", A, B, square=True)
    vector = B.dim() == 1 or A.dim() - 1 == B.dim() and tuple(B.shape) == tuple(A.shape[:-1])
    if vector:
        return solve(A, B.unsqueeze(-1), left=left).squeeze(-1)
    if not left:
        return _t(solve(_t(A), _t(B)))
    if A.shape[-1] != B.shape[-2]:
        raise RuntimeError(
            f"linalg.solve: shapes {tuple(A.shape)}, {tuple(B.shape)} (expected the same number of rows)"
        )
    return _Solve.apply(*_batched("solve", A, B))


class _Triangular(Function):
    @staticmethod
    def forward(ctx, a, b, upper):
        ctx.save_for_backward(a, b)
        ctx.upper = upper
        return _host("solve_triangular", lambda np, a, b: np.solve(a, b), a, b)[0]

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        gb = _Triangular.apply(_t(a), g, not ctx.upper)
        ga = -(gb @ _t(_Triangular.apply(a, b, ctx.upper)))
        return (ga.triu() if ctx.upper else ga.tril()), gb, None


def solve_triangular(A, B, *, upper, left=True, unitriangular=False):
    """solve for triangular matrices A. Only the given triangle of A is read; with unitriangular the diagonal is taken
    as 1 and not read."""
    _check("solve_triangular", A, B, square=True)
    if not left:
        return _t(solve_triangular(_t(A), _t(B), upper=not upper, unitriangular=unitriangular))
    half = A.triu(int(unitriangular)) if upper else A.tril(-int(unitriangular))
    half = half + _eye(A, A.shape[-1]) if unitriangular else half
    return _Triangular.apply(*_batched("solve_triangular", half, B), upper)


def inv_ex(A, *, check_errors=False):
    """(inverse, info). info is always 0, because a singular matrix raises."""
    return namedtuple("inv_ex", "inverse info")(inv(A), _C.zeros(tuple(A.shape[:-2]), dtype=_C.int32, device=A.device))


# Factors.


class _Cholesky(Function):
    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        return _host("cholesky", lambda np, a: np.cholesky(a), a)[0]

    @staticmethod
    def backward(ctx, g):
        l = _Cholesky.apply(ctx.saved_tensors[0])
        p = (_t(l) @ g).tril()
        p = p - 0.5 * _diag(_diagonal(p, 0, -2, -1))
        s = _Solve.apply(_t(l), _t(_Solve.apply(_t(l), _t(p))))
        return 0.5 * (s + _t(s))


@in_float32
def cholesky(A, *, upper=False):
    """L, lower triangular, with A = L L^T for symmetric positive definite A (upper: L^T). Raises LinAlgError for other
    matrices."""
    _check("cholesky", A, square=True)
    l = _Cholesky.apply(A)
    return _t(l) if upper else l


def cholesky_ex(A, *, upper=False, check_errors=False):
    """(L, info). info is 0, or 1 if A is not positive definite; L is NaN then."""
    made = namedtuple("cholesky_ex", "L info")
    lead = tuple(A.shape[:-2])
    try:
        return made(cholesky(A, upper=upper), _C.zeros(lead, dtype=_C.int32, device=A.device))
    except LinAlgError:
        if check_errors:
            raise
        return made(A * math.nan, _C.ones(lead, dtype=_C.int32, device=A.device))


def _getrf(linalg, a):
    """LAPACK's getrf: L and U in one matrix, and the pivots: row k was exchanged with row pivots[k] - 1."""
    import numpy as np

    lu, least = a.reshape(math.prod(a.shape[:-2]), *a.shape[-2:]).copy(), min(a.shape[-2:])
    pivots, each = np.empty((len(lu), least), np.int32), np.arange(len(lu))
    for k in range(least):
        row = k + abs(lu[:, k:, k]).argmax(1)
        lu[each, k], lu[each, row] = lu[each, row], lu[each, k]
        pivots[:, k], pivot = row + 1, lu[:, k, k, None]
        lu[:, k + 1 :, k] /= np.where(pivot == 0, 1, pivot)
        lu[:, k + 1 :, k + 1 :] -= lu[:, k + 1 :, k, None] * lu[:, k, None, k + 1 :]
    return lu.reshape(a.shape), pivots.reshape(*a.shape[:-2], least)


def _permutation(name, pivots, lu):
    """The matrix P with A = P L U, in the dtype of `lu`. Raises RuntimeError if the pivots cannot be those of `lu`."""
    import numpy as np

    shape = (*lu.shape[:-2], min(lu.shape[-2:]))
    if pivots.dtype is not _C.int32 or tuple(pivots.shape) != shape:
        raise RuntimeError(
            f"{name}: pivots are {pivots.dtype} of shape {tuple(pivots.shape)} (expected int32 of shape {shape}, as "
            "lu_factor gives)"
        )
    n, swaps = lu.shape[-2], array_of(pivots).reshape(math.prod(shape[:-1]), shape[-1]) - 1
    if swaps.size and not 0 <= swaps.min() <= swaps.max() < n:
        raise RuntimeError(f"{name}: got pivots outside of 1 to {n} (expected those of lu_factor)")
    rows, each = np.tile(np.arange(n), (len(swaps), 1)), np.arange(len(swaps))
    for k in range(shape[-1]):
        rows[:, k], rows[each, swaps[:, k]] = rows[each, swaps[:, k]], rows[:, k].copy()
    return _t(_eye(lu, n)[_C.tensor(rows.reshape(*shape[:-1], n), device=lu.device)])


def _halves(lu):
    k = min(lu.shape[-2:])
    lower = lu[..., :k].tril(-1)
    return lower + _eye(lu, lu.shape[-2])[:, :k], lu[..., :k, :].triu()


class _LU(Function):
    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        lu, pivots = _host("lu_factor", _getrf, a)
        pivots = pivots.to(_C.int32)
        ctx.mark_non_differentiable(pivots)
        return lu, pivots

    @staticmethod
    def backward(ctx, g, _):
        lu, pivots = _LU.apply(ctx.saved_tensors[0])
        k = min(lu.shape[-2:])
        (l, u), gl, gu = _halves(lu), g[..., :k].tril(-1), g[..., :k, :].triu()
        lower = _t(l[..., :k, :]) @ gl[..., :k, :] - gu[..., k:] @ _t(u[..., k:])
        upper = gu[..., :k] @ _t(u[..., :k]) - _t(l[..., k:, :]) @ gl[..., k:, :]
        back_l = {"A": _t(l[..., :k, :]), "upper": True, "unitriangular": True}
        back_u = {"A": _t(u[..., :k]), "upper": False, "left": False}
        square = solve_triangular(B=lower.tril(-1) + upper.triu(), **back_l)
        found = solve_triangular(B=square, **back_u)
        if lu.shape[-1] > k:
            found = _C.cat([found, solve_triangular(B=gu[..., k:], **back_l)], -1)
        else:
            found = _C.cat([found, solve_triangular(B=gl[..., k:, :], **back_u)], -2)
        return _permutation("linalg.lu_factor", pivots, lu) @ found


def _factored(name, A, pivot):
    _check(name, A)
    if not pivot:
        raise RuntimeError(f"linalg.{name}: LU without pivoting is not implemented (expected pivot=True)")
    return _LU.apply(A)


def _no_pivot(lu):
    """The number, from 1, of the first zero on the diagonal of each U; 0: there is none."""
    zero = _diagonal(lu.detach(), 0, -2, -1) == 0
    zero = _C.cat([zero, _C.ones((*zero.shape[:-1], 1), dtype=_C.bool, device=lu.device)], -1)
    info = zero.int().argmax(-1) + 1
    return info.masked_fill(info == zero.shape[-1], 0).to(_C.int32)


@in_float32
def lu_factor_ex(A, *, pivot=True, check_errors=False):
    """(LU, pivots, info): lu_factor, and the number, from 1, of the first zero on the diagonal of U, or 0 if there is none."""
    lu, pivots = _factored("lu_factor_ex", A, pivot)
    info = _no_pivot(lu)
    if check_errors:
        _check_pivots("lu_factor_ex", info)
    return namedtuple("lu_factor_ex", "LU pivots info")(lu, pivots, info)


def _check_pivots(name, info):
    found = info.reshape(-1).tolist()
    wrong = next((i for i, n in enumerate(found) if n), None)
    if wrong is not None:
        which = f"(Batch element {wrong}): " if info.dim() else ""
        raise RuntimeError(
            f"linalg.{name}: {which}U[{found[wrong]},{found[wrong]}] is zero and using it on lu_solve would result in a "
            "division by zero (expected an invertible matrix; linalg.lu and linalg.lu_factor_ex take others)"
        )


@in_float32
def lu_factor(A, *, pivot=True):
    """(LU, pivots): P L U = A, with L (whose diagonal is 1) and U in one matrix; row k was exchanged with row
    pivots[k] - 1. Raises RuntimeError for a zero on the diagonal of U.

    >>> import pydist
    >>> A, B = pydist.tensor([[0.0, 2.0], [4.0, 0.0]]), pydist.ones(2, 1)
    >>> pydist.linalg.lu_solve(*pydist.linalg.lu_factor(A), B).tolist()
    [[0.25], [0.5]]
    """
    lu, pivots = _factored("lu_factor", A, pivot)
    _check_pivots("lu_factor", _no_pivot(lu))
    return namedtuple("lu_factor", "LU pivots")(lu, pivots)


@in_float32
def lu(A, *, pivot=True):
    """(P, L, U) with A = P L U: a permutation, a lower triangular matrix whose diagonal is 1, an upper triangular matrix."""
    packed, pivots = _factored("lu", A, pivot)
    return namedtuple("lu", "P L U")(_permutation("linalg.lu", pivots, packed), *_halves(packed))


def lu_solve(LU, pivots, B, *, left=True, adjoint=False):
    """X with A X = B (left=False: X A = B; adjoint: with A transposed), from lu_factor(A)."""
    _check("lu_solve", LU, B, square=True)
    if not left:
        return _t(lu_solve(LU, pivots, _t(B), adjoint=not adjoint))
    if B.dim() < 2 or B.shape[-2] != LU.shape[-1]:
        raise RuntimeError(
            f"linalg.lu_solve: shapes {tuple(LU.shape)}, {tuple(B.shape)} (expected matrices B of {LU.shape[-1]} rows)"
        )
    p, (l, u) = _permutation("linalg.lu_solve", pivots, LU), _halves(LU)
    if not adjoint:
        half = solve_triangular(l, _t(p) @ B, upper=False, unitriangular=True)
        return solve_triangular(u, half, upper=True)
    half = solve_triangular(_t(u), B, upper=False)
    return p @ solve_triangular(_t(l), half, upper=True, unitriangular=True)


class _QR(Function):
    @staticmethod
    def forward(ctx, a):
        q, r = _host("qr", lambda np, a: tuple(np.qr(a)), a)
        ctx.save_for_backward(a)
        return q, r

    @staticmethod
    def backward(ctx, gq, gr):
        q, r = _QR.apply(ctx.saved_tensors[0])
        if r.shape[-2] != r.shape[-1]:
            raise RuntimeError("linalg.qr: there is no gradient for matrices with more columns than rows")
        m = (0 if gr is None else r @ _t(gr)) - (0 if gq is None else _t(gq) @ q)
        lower = m.tril(-1)
        m = lower + _t(lower) + _diag(_diagonal(m, 0, -2, -1))
        inner = q @ m if gq is None else gq + q @ m
        return _t(_Solve.apply(r, _t(inner)))


@in_float32
def qr(A, mode="reduced"):
    """(Q, R): A = Q R, Q with orthonormal columns, R upper triangular; mode "complete": Q square; "r": R only."""
    _check("qr", A)
    made = namedtuple("qr", "Q R")
    if mode == "reduced":
        return made(*_QR.apply(A))
    if mode == "r":
        return made(_C.empty(0, dtype=A.dtype, device=A.device), _QR.apply(A)[1])
    if mode != "complete":
        raise RuntimeError(f"linalg.qr: mode is {mode!r} (expected reduced, complete or r)")
    if A.requires_grad:
        raise RuntimeError("linalg.qr: there is no gradient in mode 'complete' (expected mode 'reduced')")
    return made(*_host("qr", lambda np, a: tuple(np.qr(a, mode="complete")), A))


class _Symmetric(Function):
    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        return _host("eigh", lambda np, a: tuple(np.eigh(a)), a)

    @staticmethod
    def backward(ctx, gl, gv):
        values, v = _Symmetric.apply(ctx.saved_tensors[0])
        inner = _C.zeros(v.shape, dtype=v.dtype, device=v.device) if gl is None else _diag(gl)
        if gv is not None:
            gaps = values.unsqueeze(-2) - values.unsqueeze(-1)
            same = _eye(v, v.shape[-1]).bool()
            inner = inner + ((_t(v) @ gv) / gaps.masked_fill(same, 1.0)).masked_fill(same, 0.0)
        return v @ inner @ _t(v)


@in_float32
def eigh(A, UPLO="L"):
    """(eigenvalues in ascending order, eigenvectors as columns) of symmetric matrices. Only one triangle is read."""
    _check("eigh", A, square=True)
    if UPLO not in ("L", "U", "l", "u"):
        raise RuntimeError(f"linalg.eigh: UPLO is {UPLO!r} (expected 'L' or 'U')")
    half = A.detach().tril(-1) if UPLO in "Ll" else A.detach().triu(1)
    even = 0.5 * (A + _t(A))  # the gradient is that of a symmetric matrix, as in PyTorch
    whole = even + (half + _t(half) + _diag(_diagonal(A.detach(), 0, -2, -1)) - even.detach())
    return namedtuple("eigh", "eigenvalues eigenvectors")(*_Symmetric.apply(whole))


def eigvalsh(A, UPLO="L"):
    """The eigenvalues, in ascending order, of symmetric matrices."""
    return eigh(A, UPLO).eigenvalues


def eig(A):
    """(eigenvalues, eigenvectors), complex, of square matrices. Has no gradient."""
    import numpy as np

    _check("eig", A, square=True)
    if A.requires_grad:
        raise NotImplementedError("linalg.eig: there is no gradient (expected eigh, for symmetric matrices)")
    dtype, pair = A.dtype.to_complex(), np.linalg.eig(array_of(A))
    made = (_C.tensor(np.ascontiguousarray(t), dtype=dtype, device=A.device) for t in pair)
    return namedtuple("eig", "eigenvalues eigenvectors")(*made)


def eigvals(A):
    """The eigenvalues that eig returns."""
    return eig(A).eigenvalues


class _SVD(Function):
    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        return _host("svd", lambda np, a: _svd(np, a, full_matrices=False), a)

    @staticmethod
    def backward(ctx, gu, gs, gvh):
        u, s, vh = _SVD.apply(ctx.saved_tensors[0])
        v, k = _t(vh), s.shape[-1]
        inner = _C.zeros((*s.shape, k), dtype=s.dtype, device=s.device) if gs is None else _diag(gs)
        same = _eye(s, k).bool()
        squares = s * s
        gaps = (squares.unsqueeze(-2) - squares.unsqueeze(-1)).masked_fill(same, math.inf)
        out = 0
        if gu is not None:
            m = (_t(u) @ gu) / gaps
            inner = inner + (m + _t(m)) * s.unsqueeze(-2)
            if u.shape[-2] > k:
                out = out + ((gu - u @ (_t(u) @ gu)) / s.unsqueeze(-2)) @ vh
        if gvh is not None:
            gv = _t(gvh)
            m = (vh @ gv) / gaps
            inner = inner + s.unsqueeze(-1) * (m + _t(m))
            if v.shape[-2] > k:
                out = out + (u / s.unsqueeze(-2)) @ _t(gv - v @ (vh @ gv))
        return u @ inner @ vh + out


@in_float32
def svd(A, full_matrices=True, *, driver=None):
    """(U, S, Vh) with A = U diag(S) Vh and S in descending order. full_matrices: U and Vh are square (the added columns
    and rows have no gradient)."""
    _check("svd", A)
    made = namedtuple("svd", "U S Vh")
    u, s, vh = _SVD.apply(A)
    if not full_matrices or A.shape[-1] == A.shape[-2]:
        return made(u, s, vh)
    whole_u, _, whole_vh = _host("svd", _svd, A)
    k = s.shape[-1]
    return made(_C.cat([u, whole_u[..., k:]], -1), s, _C.cat([vh, whole_vh[..., k:, :]], -2))


def svdvals(A, *, driver=None):
    """The singular values in descending order."""
    return svd(A, full_matrices=False).S


# Numbers of a matrix.


def _cofactors(a):
    """The transposed adjugate, also of singular matrices, by the singular value decomposition. Not differentiable."""

    import numpy

    def by_parts(np, a):
        u, s, vh = _svd(np, a)
        k = s.shape[-1]
        rest = [s[..., [j for j in range(k) if j != i]].prod(-1) for i in range(k)]
        rest = numpy.stack(rest, -1)
        return np.det(u)[..., None, None] * np.det(vh)[..., None, None] * ((u * rest[..., None, :]) @ vh)

    return _host("det", by_parts, a)[0]


class _Det(Function):
    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        return _host("det", lambda np, a: np.det(a), a)[0].reshape(a.shape[:-2])

    @staticmethod
    def backward(ctx, g):
        (a,) = ctx.saved_tensors
        g = g.unsqueeze(-1).unsqueeze(-1)
        det = _Det.apply(a)
        if (det == 0).any().item():
            return g * _cofactors(a)
        return g * det.unsqueeze(-1).unsqueeze(-1) * _t(_Inverse.apply(a))


def det(A):
    """The determinants of square matrices."""
    _check("det", A, square=True)
    return _Det.apply(A)


class _LogDet(Function):
    @staticmethod
    def forward(ctx, a):
        sign, size = (t.reshape(a.shape[:-2]) for t in _host("slogdet", lambda np, a: tuple(np.slogdet(a)), a))
        ctx.save_for_backward(a, size)
        ctx.mark_non_differentiable(sign)
        return sign, size

    @staticmethod
    def backward(ctx, _, g):
        a, size = ctx.saved_tensors
        singular = (size == -math.inf).unsqueeze(-1).unsqueeze(-1)
        if singular.any().item():  # infinities there, as PyTorch's division by zero gives
            slope = _t(_Inverse.apply(_C.where(singular, _eye(a, a.shape[-1]), a)))
            slope = _C.where(singular, _cofactors(a) / 0.0, slope)
        else:
            slope = _t(_Inverse.apply(a))
        return g.unsqueeze(-1).unsqueeze(-1) * slope


@in_float32
def slogdet(A):
    """(sign, log of the absolute value) of the determinants of square matrices."""
    _check("slogdet", A, square=True)
    return namedtuple("slogdet", "sign logabsdet")(*_LogDet.apply(A))


def matrix_rank(A, tol=None, hermitian=False, *, atol=None, rtol=None):
    """The number of singular values above max(atol, rtol * the largest one)."""
    s = svdvals(A.detach())
    eps = 2.0**-52 if A.dtype is _C.float64 else 2.0**-23
    atol = tol if tol is not None else 0.0 if atol is None else atol
    rtol = (eps * max(A.shape[-2:]) if not atol else 0.0) if rtol is None else rtol
    least = _C.maximum(s.amax(-1, keepdim=True) * rtol, atol)
    return (s > least).sum(-1)


def cond(A, p=None):
    """norm(A, p) * norm(inv(A), p); with p None: the largest singular value divided by the smallest one."""
    if p in (None, 2, -2):
        s = svdvals(A)
        return s[..., 0] / s[..., -1] if p != -2 else s[..., -1] / s[..., 0]
    return matrix_norm(A, p) * matrix_norm(inv(A), p)


# Norms.


def vector_norm(x, ord=2, dim=None, keepdim=False, *, dtype=None, out=None):
    """(sum of |x| ** ord) ** (1 / ord) over dim, or over all elements. ord inf, -inf: the largest, smallest |x|; ord 0:
    the number of elements that are not 0."""
    if not isinstance(ord, (int, float)):
        raise RuntimeError(f"linalg.vector_norm: ord is {ord!r} (expected a number)")
    return _plain_norm(x, float(ord), dim, keepdim, dtype)


def matrix_norm(A, ord="fro", dim=(-2, -1), keepdim=False, *, dtype=None):
    """Norms of matrices. "fro": the root of the sum of squares; "nuc": the sum of the singular values; 2, -2: the
    largest, smallest singular value; 1, -1: the largest, smallest sum of |x| over a column; inf, -inf: over a row."""
    A = A if dtype is None else A.to(dtype)
    if len(as_tuple(dim)) != 2:
        raise RuntimeError(f"linalg.matrix_norm: dim is {dim} (expected two dimensions)")
    rows, columns = (axis_of("linalg.matrix_norm", d, A.dim()) for d in dim)
    if rows == columns or A.dim() < 2:
        raise RuntimeError(f"linalg.matrix_norm: dimensions {tuple(dim)} of shape {tuple(A.shape)} (expected two)")
    if ord == "fro":
        return _plain_norm(A, 2, (rows, columns), keepdim)
    if ord in ("nuc", 2, -2):
        s = svdvals(A.movedim((rows, columns), (-2, -1)))
        value = s.sum(-1) if ord == "nuc" else s[..., 0] if ord == 2 else s[..., -1]
    elif ord in (1, -1, math.inf, -math.inf):
        along, rest = (rows, columns) if abs(ord) == 1 else (columns, rows)
        sums = A.abs().sum(along, keepdim=True)
        value = sums.amax(rest, keepdim=True) if ord > 0 else sums.amin(rest, keepdim=True)
        return value if keepdim else value.squeeze(max(rows, columns)).squeeze(min(rows, columns))
    else:
        raise RuntimeError(f"linalg.matrix_norm: ord is {ord!r}")
    if keepdim:
        for d in sorted((rows, columns)):
            value = value.unsqueeze(d)
    return value


def norm(A, ord=None, dim=None, keepdim=False, *, out=None, dtype=None):
    """vector_norm over all elements or one dimension, matrix_norm over two. ord None: the root of the sum of squares.

    >>> import pydist
    >>> pydist.linalg.norm(pydist.tensor([3.0, 4.0])).item()
    5.0
    """
    if ord is None:
        value = vector_norm(A, 2, dim, keepdim, dtype=dtype)
    elif dim is None and A.dim() > 2:
        raise RuntimeError(
            f"linalg.norm: ord {ord!r} for shape {tuple(A.shape)} (expected dim, or at most 2 dimensions)"
        )
    elif isinstance(ord, str) or len(as_tuple(dim) if dim is not None else A.shape) == 2:
        value = matrix_norm(A, ord, (-2, -1) if dim is None else as_tuple(dim), keepdim, dtype=dtype)
    else:
        value = vector_norm(A, ord, dim, keepdim, dtype=dtype)
    return value if out is None else out.copy_(value)


# Products.


@in_low
def vecdot(x, y, *, dim=-1, out=None):
    """The sums of products along dim."""
    value = (x * y).sum(dim)
    return value if out is None else out.copy_(value)


def cross(input, other, *, dim=-1):
    """The cross product of vectors with three elements along dim."""
    return _cross(input, other, dim)


def matmul(input, other):
    """input @ other."""
    return _C.matmul(input, other)


def multi_dot(tensors):
    """The product of all matrices (the first and last may be vectors), in the order that needs the fewest
    multiplications."""
    tensors = list(tensors)
    if len(tensors) < 2:
        raise RuntimeError(f"linalg.multi_dot: {len(tensors)} tensors (expected at least 2)")
    first, last = tensors[0].dim() == 1, tensors[-1].dim() == 1
    tensors[0] = tensors[0].unsqueeze(0) if first else tensors[0]
    tensors[-1] = tensors[-1].unsqueeze(1) if last else tensors[-1]
    sizes = [t.shape[0] for t in tensors] + [tensors[-1].shape[1]]
    best = {(i, i): (0, i) for i in range(len(tensors))}
    for width in range(1, len(tensors)):
        for i in range(len(tensors) - width):
            j = i + width
            costs = (
                (best[i, k][0] + best[k + 1, j][0] + sizes[i] * sizes[k + 1] * sizes[j + 1], k) for k in range(i, j)
            )
            best[i, j] = min(costs)

    def product(i, j):
        k = best[i, j][1]
        return tensors[i] if i == j else mm(product(i, k), product(k + 1, j))

    out = product(0, len(tensors) - 1)
    out = out.squeeze(0) if first else out
    return out.squeeze(-1) if last else out


def diagonal(A, *, offset=0, dim1=-2, dim2=-1):
    """The diagonals of matrices."""
    return _diagonal(A, offset, dim1, dim2)


def matrix_exp(A):
    """The sum of A^k / k! over all k, as Taylor's series of A / 2^s, squared s times."""
    _check("matrix_exp", A, square=True)
    size = A.detach().abs().sum(-1).amax().item() if A.numel() else 0.0
    halvings = max(0, math.ceil(math.log2(size)) + 3) if size > 0 and math.isfinite(size) else 0
    small = A / 2.0**halvings
    term = total = _eye(A, A.shape[-1]).expand(A.shape)
    for k in range(1, 17):
        term = term @ small / k
        total = total + term
    for _ in range(halvings):
        total = total @ total
    return total


# Least squares.


@in_float32
def pinv(A, rcond=None, hermitian=False, *, atol=None, rtol=None):
    """The pseudo-inverse V diag(1 / s) U^T, over the singular values s above max(atol, rtol * the largest one)."""
    _check("pinv", A)
    u, s, vh = svd(A, full_matrices=False)
    eps = 2.0**-52 if A.dtype is _C.float64 else 2.0**-23
    rtol = rcond if rtol is None else rtol
    atol = 0.0 if atol is None else atol
    rtol = (eps * max(A.shape[-2:]) if not atol else 0.0) if rtol is None else rtol
    if not s.shape[-1]:
        return _C.zeros((*A.shape[:-2], A.shape[-1], A.shape[-2]), dtype=A.dtype, device=A.device)
    least = _C.maximum(s.detach().amax(-1, keepdim=True) * rtol, atol)
    kept = s > least
    inverse = (1 / s.masked_fill(~kept, 1.0)).masked_fill(~kept, 0.0)
    return (_t(vh) * inverse.unsqueeze(-2)) @ _t(u)


def lstsq(A, B, rcond=None, *, driver=None):
    """(solution, residuals, rank, singular_values). The solution X minimises |A X - B|."""
    _check("lstsq", A, B)
    vector = B.dim() == A.dim() - 1
    b = B.unsqueeze(-1) if vector else B
    x = pinv(A, rtol=rcond) @ b
    full = A.shape[-2] > A.shape[-1]
    residuals = ((A @ x - b) ** 2).sum(-2) if full else _C.empty(0, dtype=A.dtype, device=A.device)
    made = namedtuple("lstsq", "solution residuals rank singular_values")
    return made(x.squeeze(-1) if vector else x, residuals, matrix_rank(A), svdvals(A.detach()))


for _name in "cross det inv inv_ex lu lu_factor lu_factor_ex lu_solve matmul matrix_power multi_dot qr slogdet solve svd svdvals".split():
    globals()[_name] = with_out(globals()[_name])
# PyTorch documents the argument as A, but its functions take input.
for _name in (
    "cholesky cholesky_ex cond eig eigh eigvals eigvalsh matrix_exp matrix_norm matrix_rank norm pinv solve_triangular"
).split():
    globals()[_name] = with_out(globals()[_name], input="A")
vector_norm, lstsq = with_out(vector_norm, input="x"), with_out(lstsq, input="A", b="B")
