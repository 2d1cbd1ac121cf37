"""More products of vectors and matrices."""

from pydist import _C
from pydist._C import Tensor
from pydist._autocast import as_given, in_float32, in_low
from pydist._functions._register import both, function, in_place, varargs
from pydist._functions.products import _scaled, dot, mm, older_order
from pydist._functions.reduce import norm
from pydist._functions.shape import broadcast_tensors


@function
@as_given
def vdot(input, other):
    """The dot product with the conjugate of input."""
    return dot(input.conj(), other)


Tensor.vdot = vdot


@function
def chain_matmul(*matrices):
    """The product of all matrices."""
    matrices = varargs(matrices)
    out = matrices[0]
    for m in matrices[1:]:
        out = mm(out, m)
    return out


@in_place
@both
@older_order
@in_low
def addbmm(input, batch1, batch2, *, beta=1, alpha=1):
    """beta * input + alpha * the sum over the batch of the products batch1 @ batch2."""
    return _scaled(input, _C.bmm(batch1, batch2).sum(0), beta, alpha)


@both
def kron(input, other):
    """The Kronecker product: every element of input times other."""
    n = max(input.dim(), other.dim())
    a, b = (t.reshape((1,) * (n - t.dim()) + tuple(t.shape)) for t in (input, other))
    wide = a.reshape([s for d in a.shape for s in (d, 1)]) * b.reshape([s for d in b.shape for s in (1, d)])
    return wide.reshape([p * q for p, q in zip(a.shape, b.shape)])


@both
def cross(input, other, dim=None):
    """The cross product of vectors with three elements along dim (default: the first dimension of size 3)."""
    input, other = broadcast_tensors(input, other)
    if dim is None:
        dim = next((d for d, n in enumerate(input.shape) if n == 3), None)
    if dim is None or input.shape[dim] != 3:
        raise RuntimeError(f"cross: shape {tuple(input.shape)}, dim {dim} (expected a dim of size 3)")
    a, b = ([t.select(dim, i) for i in range(3)] for t in (input, other))
    return _C.stack([a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]], dim)


@function
@in_float32
def cdist(x1, x2, p=2.0, compute_mode="use_mm_for_euclid_dist_if_necessary"):
    """The p-norms of the differences between all rows of x1[..., P, M] and x2[..., R, M]: [..., P, R]."""
    if min(x1.dim(), x2.dim()) < 2 or x1.shape[-1] != x2.shape[-1]:
        raise RuntimeError(f"cdist: shapes {tuple(x1.shape)}, {tuple(x2.shape)} (expected [..., P, M] and [..., R, M])")
    return norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), p, -1)


@function
def vander(x, N=None, increasing=False):
    """The powers of a vector's elements as N columns (default: as many as elements), in descending order unless
    increasing."""
    if N is not None and N < 0:
        raise RuntimeError(f"vander: N is {N} (expected at least 0)")
    powers = _C.arange(x.numel() if N is None else N, device=x.device)
    return x.unsqueeze(1) ** (powers if increasing else powers.flip((0,)))


@both
def matrix_power(input, n):
    """The product of n factors of the square matrices input; for negative n, of their inverses."""
    if input.dim() < 2 or input.shape[-1] != input.shape[-2]:
        raise RuntimeError(f"matrix_power: shape {tuple(input.shape)} (expected square matrices)")
    if abs(n) >= 1 << 63:
        raise OverflowError(f"matrix_power: n has {n.bit_length()} bits (expected an int64)")
    if n < 0:
        from pydist import linalg

        input, n = linalg.inv(input), -n
    out = None
    while n:
        if n & 1:
            out = input if out is None else out @ input
        n >>= 1
        input = input @ input if n else input
    if out is None:
        eye = _C.zeros(input.shape[-1], input.shape[-1], dtype=input.dtype, device=input.device).fill_diagonal_(1)
        return eye.expand(input.shape).clone()
    return out
