"""The older names of pydist.linalg's functions, as functions and methods."""

from collections import namedtuple

from pydist import _C, linalg
from pydist._functions._register import both, function


def _of_linalg(name, theirs):
    function = getattr(linalg, theirs)

    def call(input, *args, **kwargs):
        return function(input, *args, **kwargs)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"linalg.{theirs}: {function.__doc__}"
    return both(call)


for _name, _theirs in (
    ("inverse", "inv"),
    ("det", "det"),
    ("slogdet", "slogdet"),
    ("pinverse", "pinv"),
    ("matrix_exp", "matrix_exp"),
):
    _of_linalg(_name, _theirs)


@both
def logdet(input):
    """The logarithm of the determinants of square matrices; NaN if a determinant is negative."""
    sign, size = linalg.slogdet(input)
    return size.masked_fill(sign < 0, float("nan"))


@both
def cholesky(input, upper=False):
    """linalg.cholesky."""
    return linalg.cholesky(input, upper=upper)


@both
def cholesky_solve(input, input2, upper=False):
    """X with L L^T X = input, where L is input2 (upper: L^T L X = input)."""
    L = input2
    first = linalg.solve_triangular(L.mT if upper else L, input, upper=False)
    return linalg.solve_triangular(L if upper else L.mT, first, upper=True)


@both
def cholesky_inverse(input, upper=False):
    """The inverse of L L^T, where L is input (upper: L^T L)."""
    L = input
    return linalg.inv(L.mT @ L if upper else L @ L.mT)


@both
def lu(input, pivot=True, get_infos=False):
    """linalg.lu_factor; get_infos=True: linalg.lu_factor_ex."""
    return linalg.lu_factor_ex(input, pivot=pivot) if get_infos else linalg.lu_factor(input, pivot=pivot)


@both
def lu_solve(input, LU_data, LU_pivots):
    """linalg.lu_solve(LU_data, LU_pivots, input)."""
    return linalg.lu_solve(LU_data, LU_pivots, input)


@function
def lu_unpack(LU_data, LU_pivots, unpack_data=True, unpack_pivots=True):
    """(P, L, U) of what linalg.lu_factor has returned; empty tensors in the place of what is not asked for."""
    none = LU_data.new_empty(0)
    p = linalg._permutation("lu_unpack", LU_pivots, LU_data) if unpack_pivots else none
    return namedtuple("lu_unpack", "P L U")(p, *(linalg._halves(LU_data) if unpack_data else (none, none)))


@both
def qr(input, some=True):
    """linalg.qr; some=False: mode "complete"."""
    return linalg.qr(input, "reduced" if some else "complete")


@both
def svd(input, some=True, compute_uv=True):
    """(U, S, V) with input = U diag(S) V^T. some=False: U and V are square."""
    u, s, vh = linalg.svd(input, full_matrices=not some)
    if not compute_uv:
        u, vh = _C.zeros(u.shape, dtype=u.dtype, device=u.device), _C.zeros(vh.shape, dtype=vh.dtype, device=u.device)
    return namedtuple("svd", "U S V")(u, s, vh.mT)
