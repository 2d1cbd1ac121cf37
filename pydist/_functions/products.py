"""Products of matrices and tensors."""

import math
from functools import reduce, wraps

from pydist import _C
from pydist._C import Tensor
from pydist._autocast import as_given, in_low, in_low_of_cuda
from pydist._functions._register import as_tuple, axis_of, both, broadcast_shape, function, in_place, method, varargs
from pydist._functions.shape import diagonal


class LinAlgError(RuntimeError):
    """The matrix has no inverse, or not the factors that were asked for."""


_C._LinAlgError = LinAlgError  # its place in PyTorch


def _want(name, tensor, ndim):
    if tensor.dim() != ndim:
        raise RuntimeError(f"{name}: got shape {tuple(tensor.shape)} (expected {ndim} dimensions)")


@both
def mm(input, mat2):
    """The product of two matrices, one of which may be sparse."""
    if not (isinstance(input, Tensor) and isinstance(mat2, Tensor)):
        return input @ mat2
    _want("mm", input, 2), _want("mm", mat2, 2)
    return _C.matmul(input, mat2)


@method
def to_sparse(self, sparse_dim=None):
    """The elements that are not 0, with their positions: a sparse.SparseTensor."""
    from pydist import sparse

    return sparse.to_sparse(self, sparse_dim)


@method
def sparse_mask(self, mask):
    """The elements at the positions of the sparse.SparseTensor mask, as a SparseTensor."""
    from pydist import sparse

    return sparse.sparse_mask(self, mask)


@both
@in_low_of_cuda
def mv(input, vec):
    """The product of a matrix and a vector."""
    _want("mv", input, 2), _want("mv", vec, 1)
    return _C.matmul(input, vec)


def _is_whole(t):
    return not (t.is_floating_point() or t.is_complex())


@both
@as_given
def dot(input, tensor):
    """The sum of products of two vectors."""
    _want("dot", input, 1), _want("dot", tensor, 1)
    if input.shape != tensor.shape:
        raise RuntimeError(f"dot: got shapes {tuple(input.shape)} and {tuple(tensor.shape)} (expected the same shape)")
    return (input * tensor).sum() if _is_whole(input) else _C.matmul(input, tensor)


@both
def outer(input, vec2):
    """out[i, j] = input[i] * vec2[j]."""
    _want("outer", input, 1), _want("outer", vec2, 1)
    return input.unsqueeze(1) * vec2


@both
def ger(input, vec2):
    """outer."""
    return outer(input, vec2)


def _scaled(input, product, beta, alpha):
    if _is_whole(product):
        beta, alpha = int(beta), int(alpha)
    if broadcast_shape("the sum", [input.shape, product.shape]) != list(product.shape):
        raise RuntimeError(
            f"input has shape {tuple(input.shape)} (expected one that broadcasts to the product's, "
            f"{tuple(product.shape)})"
        )
    product = product if alpha == 1 else product * alpha
    return product.clone() if beta == 0 else (input if beta == 1 else input * beta) + product


def older_order(fn):
    """`fn` that also accepts PyTorch's deprecated order, with numbers among the tensors: addmm(beta, input, alpha,
    mat1, mat2), or only beta."""

    @wraps(fn)
    def call(*args, **kwargs):
        if len(args) > 3:
            beta, alpha, *more = [*(a for a in args if not isinstance(a, Tensor)), 1]
            args = [a for a in args if isinstance(a, Tensor)]
            if len(args) != 3 or more not in ([], [1]):
                raise TypeError(
                    f"{fn.__name__}: got other arguments (expected three tensors, with beta and alpha before them)"
                )
            return fn(*args, beta=beta, alpha=alpha)
        return fn(*args, **kwargs)

    return call


@in_place
@both
@older_order
@in_low
def addmm(input, mat1, mat2, *, beta=1, alpha=1):
    """beta * input + alpha * mat1 @ mat2."""
    return _scaled(input, mm(mat1, mat2), beta, alpha)


@in_place
@both
@older_order
@in_low_of_cuda
def addmv(input, mat, vec, *, beta=1, alpha=1):
    """beta * input + alpha * mat @ vec."""
    return _scaled(input, mv(mat, vec), beta, alpha)


@in_place
@both
@older_order
@in_low_of_cuda
def addr(input, vec1, vec2, *, beta=1, alpha=1):
    """beta * input + alpha * outer(vec1, vec2)."""
    return _scaled(input, outer(vec1, vec2), beta, alpha)


@in_place
@both
@older_order
@in_low
def baddbmm(input, batch1, batch2, *, beta=1, alpha=1):
    """beta * input + alpha * bmm(batch1, batch2)."""
    return _scaled(input, _C.bmm(batch1, batch2), beta, alpha)


@both
def inner(input, other):
    """The sums of products over the last dimensions."""
    if 0 in (input.dim(), other.dim()):
        return input * other
    if input.shape[-1] != other.shape[-1]:
        raise RuntimeError(
            f"inner: shapes {tuple(input.shape)} and {tuple(other.shape)} (expected the same size of the last dimension)"
        )
    return tensordot(input, other, ([-1], [-1]))


@function
def tensordot(a, b, dims=2):
    """The sums of products over the last `dims` dimensions of a and the first of b, or over two given lists of
    dimensions."""
    if isinstance(dims, int):
        if not 0 <= dims <= min(a.dim(), b.dim()):
            raise RuntimeError(f"tensordot: dims is {dims} (expected 0 to {min(a.dim(), b.dim())})")
        dims = (range(a.dim() - dims, a.dim()), range(dims))
    left, right = dims
    dims = [list(ds) if isinstance(ds, range) else as_tuple(ds) for ds in (left, right)]
    da, db = ([axis_of("tensordot", d, t.dim()) for d in ds] for ds, t in zip(dims, (a, b)))
    for i, j in zip(da, db):  # a size of 1 against a larger one: sum the larger one
        if a.shape[i] == 1 != b.shape[j]:
            b = b.sum(j, keepdim=True)
        elif b.shape[j] == 1 != a.shape[i]:
            a = a.sum(i, keepdim=True)
    if len(da) != len(db) or any(a.shape[i] != b.shape[j] for i, j in zip(da, db)):
        got = f"dims {da} of {tuple(a.shape)} and {db} of {tuple(b.shape)}"
        raise RuntimeError(f"tensordot: {got} (expected equal sizes)")
    fa, fb = [d for d in range(a.dim()) if d not in da], [d for d in range(b.dim()) if d not in db]
    k, shape = math.prod(a.shape[d] for d in da), [a.shape[d] for d in fa] + [b.shape[d] for d in fb]
    left = a.permute(fa + da).reshape(math.prod(shape[: len(fa)]), k)
    return (left @ b.permute(db + fb).reshape(k, math.prod(shape[len(fa) :]))).reshape(shape)


def _subscripts(equation, operands):
    """A string for each operand and one for the result, with one character per dimension. "..." becomes new
    characters."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    parts = left.split(",")
    if len(parts) != len(operands):
        raise RuntimeError(f"einsum: {equation!r} has {len(parts)} operands, got {len(operands)}")
    letters = "".join(parts).replace("...", "") + right.replace("...", "")
    if not (letters.isascii() and letters.isalpha() or not letters):
        raise RuntimeError(f"einsum: {equation!r} (expected letters, commas, '...' and '->')")
    widest = max((t.dim() - len(p.replace("...", "")) for p, t in zip(parts, operands) if "..." in p), default=0)
    dots = "".join(chr(0x100 + i) for i in range(max(widest, 0)))
    full = []
    for p, t in zip(parts, operands):
        extra = t.dim() - len(p.replace("...", ""))
        if extra < 0 or (extra and "..." not in p):
            raise RuntimeError(f"einsum: {p!r} does not fit shape {tuple(t.shape)} (expected one letter per dimension)")
        full.append(p.replace("...", dots[len(dots) - extra :] if extra else ""))
    if not arrow:
        letters = "".join(full)
        right = dots + "".join(sorted(c for c in {*letters} if letters.count(c) == 1 and c not in dots))
    return full, right.replace("...", dots)


def _contract(a, la, b, lb, keep):
    """The product of two operands, summed over all subscripts that are not in keep; and its subscripts."""
    found = {c: {t.shape[i] for t, l in ((a, la), (b, lb)) for i, x in enumerate(l) if x == c} for c in {*la, *lb}}
    size = {c: max(sizes - {1}, default=1) for c, sizes in found.items()}
    for t, letters in ((a, la), (b, lb)):
        for i, c in enumerate(letters):
            if t.shape[i] not in (1, size[c]):
                raise RuntimeError(
                    f"einsum: dimension {c!r} has sizes {t.shape[i]} and {size[c]} (expected equal sizes)"
                )
    a, b = (t.expand([size[c] for c in letters]) for t, letters in ((a, la), (b, lb)))
    alone = [i for i, c in enumerate(la) if c not in lb and c not in keep]
    if alone:
        a, la = a.sum(alone, dtype=a.dtype), "".join(c for c in la if c in lb or c in keep)
    alone = [i for i, c in enumerate(lb) if c not in la and c not in keep]
    if alone:
        b, lb = b.sum(alone, dtype=b.dtype), "".join(c for c in lb if c in la or c in keep)
    batch, inside = [c for c in la if c in lb and c in keep], [c for c in la if c in lb and c not in keep]
    left, right = [c for c in la if c not in lb], [c for c in lb if c not in la]
    count = [math.prod(size[c] for c in group) for group in (batch, left, inside, right)]
    a = a.permute([la.index(c) for c in batch + left + inside]).reshape(count[0], count[1], count[2])
    b = b.permute([lb.index(c) for c in batch + inside + right]).reshape(count[0], count[2], count[3])
    letters = "".join(batch + left + right)
    product = (a.unsqueeze(3) * b.unsqueeze(1)).sum(2, dtype=a.dtype) if _is_whole(a) else _C.bmm(a, b)
    return product.reshape([size[c] for c in letters]), letters


@function
def einsum(equation, *operands):
    """Sums of products by Einstein's convention: "ij,jk->ik" is the product of matrices; "..." stands for any
    dimensions. Operands of several dtypes are promoted to a common one, which is the result's.

    >>> import pydist
    >>> pydist.einsum("ij,j->i", pydist.tensor([[1.0, 2.0], [3.0, 4.0]]), pydist.tensor([1.0, 1.0])).tolist()
    [3.0, 7.0]
    """
    operands = list(varargs(operands))
    parts, out = _subscripts(equation, operands)
    if len({operand.dtype for operand in operands}) > 1:
        dtype = reduce(_C.promote_types, [operand.dtype for operand in operands])
        operands = [operand.to(dtype) for operand in operands]
    if len({*out}) < len(out) or not {*out} <= {*"".join(parts)}:
        raise RuntimeError(
            f"einsum: the result is {out!r} in {equation!r} (expected subscripts of the operands, each once)"
        )
    for k, letters in enumerate(parts):
        while len({*letters}) < len(letters):  # a repeated subscript is a diagonal
            c = next(c for c in letters if letters.count(c) > 1)
            i, j = letters.index(c), letters.rindex(c)
            if operands[k].shape[i] != operands[k].shape[j]:
                raise RuntimeError(
                    f"einsum: {c!r} occurs twice in {parts[k]!r}, but the sizes differ in shape "
                    f"{tuple(operands[k].shape)}"
                )
            operands[k] = diagonal(operands[k], 0, i, j)
            letters = "".join(x for n, x in enumerate(letters) if n not in (i, j)) + c
        parts[k] = letters
    result, letters = operands[0], parts[0]
    for k in range(1, len(operands)):
        result, letters = _contract(result, letters, operands[k], parts[k], {*out, *"".join(parts[k + 1 :])})
    rest = [i for i, c in enumerate(letters) if c not in out]
    if rest:
        result, letters = result.sum(rest), "".join(c for c in letters if c in out)
    return result.permute([letters.index(c) for c in out])
