"""The older names of pydist.linalg's functions, as functions and methods."""

from collections import namedtuple

from pydist import _C, linalg
from pydist._functions._register import both


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
