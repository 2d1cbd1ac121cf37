"""pydist.linalg and pydist.special next to torch's: values, first and second gradients, errors."""

import math
from statistics import NormalDist

import numpy as np
import pytest

import pydist
from pydist import linalg, special

torch = pytest.importorskip("torch", reason="needs torch")
RNG = np.random.default_rng(0)
SQUARE, TALL, WIDE = RNG.normal(size=(2, 3, 3)), RNG.normal(size=(2, 4, 3)), RNG.normal(size=(2, 3, 4))
POSITIVE, TRIANGLE = SQUARE @ SQUARE.transpose(0, 2, 1) + np.eye(3), np.tril(SQUARE) + 3 * np.eye(3)
CASES = [
    ("inv", SQUARE), ("solve", SQUARE, TALL[:, :3]), ("solve", SQUARE[0], TALL[:, :3]), ("solve", SQUARE[0], SQUARE[0, 0]), ("cholesky", POSITIVE), ("det", SQUARE), ("det", SQUARE[0]), ("qr", TALL), ("qr", SQUARE),
    ("eigvalsh", POSITIVE), ("svdvals", TALL), ("svdvals", WIDE), ("pinv", TALL), ("pinv", WIDE), ("matrix_exp", SQUARE), ("norm", SQUARE), ("norm", SQUARE[0], "nuc"), ("norm", SQUARE[0], 2), ("norm", SQUARE[0, 0], 3),
    ("norm", SQUARE, math.inf, 1), ("vector_norm", SQUARE, 1, (0, 1)), ("vector_norm", SQUARE), *[("matrix_norm", SQUARE, o) for o in ("fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf)], ("cond", SQUARE),
    ("vecdot", SQUARE, SQUARE[0]), ("cross", SQUARE, SQUARE[:1]), ("diagonal", WIDE), ("multi_dot", [SQUARE[0], WIDE[0], TALL[0, :, 0]]), ("matrix_power", SQUARE, -2), ("matrix_rank", WIDE), ("matmul", SQUARE, WIDE),
]  # fmt: skip


def leaves(lib, args):
    def made(a):
        return (
            [made(b) for b in a]
            if isinstance(a, list)
            else lib.tensor(a).requires_grad_()
            if isinstance(a, np.ndarray)
            else a
        )

    values = [made(a) for a in args]
    return values, [t for v in values for t in (v if isinstance(v, list) else [v]) if isinstance(t, lib.Tensor)]


def weighed(lib, outs):
    """A number that depends on all elements; of factors, whose signs are free, on what does not depend on these."""
    outs = outs if isinstance(outs, (tuple, list)) else [outs]
    return sum(
        (lib.tensor(np.random.default_rng(k).uniform(0.5, 1.5, tuple(o.shape))) * o).sum()
        for k, o in enumerate(outs)
        if o.is_floating_point()
    )


def compare(run, args):
    found = []
    for lib in (pydist, torch):
        values, inputs = leaves(lib, args)
        outs = run(lib, *values)
        total = weighed(lib, outs)
        result = list(outs) if isinstance(outs, (tuple, list)) else [outs]
        if getattr(total, "requires_grad", False):
            grad = lib.grad if lib is pydist else lib.autograd.grad
            first = grad(total, inputs, create_graph=True, allow_unused=True)
            result += [g for g in first if g is not None]
            slope = sum((g * g).sum() for g in first if g is not None)
            if slope.requires_grad:
                result += [g for g in grad(slope, inputs, allow_unused=True) if g is not None]
        found.append(result)
    for ours, theirs in zip(*found, strict=True):
        assert tuple(ours.shape) == tuple(theirs.shape)
        a, b = ours.detach().numpy(), theirs.detach().numpy(force=True)
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-8 * max(1, np.abs(b).max(initial=0)))


@pytest.mark.parametrize("case", CASES, ids=lambda c: str(c[0]))
def test_as_torch(case):
    name, *args = case
    compare(lambda lib, *a: getattr(lib.linalg, name)(*a), args)


def test_what_has_free_signs():
    compare(
        lambda lib, a: (lambda u, s, vh: (u @ (s * s).diag_embed() @ u.mT, vh.mT @ s.diag_embed() @ vh))(
            *lib.linalg.svd(a, full_matrices=False)
        ),
        [TALL],
    )
    compare(lambda lib, a: (lambda v, q: q @ (v**3).diag_embed() @ q.mT)(*lib.linalg.eigh(a + a.mT)), [SQUARE])
    compare(lambda lib, a: lib.linalg.slogdet(a)[1], [SQUARE])
    compare(lambda lib, a, b: lib.linalg.solve_triangular(a, b, upper=False), [TRIANGLE, TALL[:, :3]])
    compare(
        lambda lib, a, b: lib.linalg.solve_triangular(a.mT, b, upper=True, left=False, unitriangular=True),
        [TRIANGLE, TALL],
    )
    compare(lambda lib, a, b: lib.linalg.lstsq(a, b).solution, [TALL, TALL[:, :, :2]])
    u, s, vh = linalg.svd(pydist.tensor(TALL))
    assert tuple(u.shape) == (2, 4, 4) and np.allclose((u[..., :3] @ s.diag_embed() @ vh).numpy(), TALL)
    q, r = linalg.qr(pydist.tensor(TALL), "complete")
    assert np.allclose((q @ r).numpy(), TALL)
    singular = pydist.tensor([[1.0, 2.0], [2.0, 4.0]], requires_grad=True)
    linalg.det(singular).backward()
    assert np.allclose(singular.grad.numpy(), [[4, -2], [-2, 1]], atol=1e-5)
    assert np.allclose(linalg.eigvals(pydist.tensor([[2.0, 1.0], [0.0, 3.0]])).numpy(), [2, 3])
    values, vectors = linalg.eig(turn := pydist.tensor([[0.0, 1.0], [-1.0, 0.0]]))
    assert values.dtype is pydist.complex64 and np.allclose(sorted(values.numpy(), key=lambda v: v.imag), [-1j, 1j])
    assert np.allclose((turn.cfloat() @ vectors).numpy(), (vectors * values).numpy(), atol=1e-6)
    u, s, v = pydist.svd(pydist.tensor(TALL))
    assert np.allclose((u @ s.diag_embed() @ v.mT).numpy(), TALL) and np.allclose(
        pydist.inverse(pydist.tensor(SQUARE)).numpy(), np.linalg.inv(SQUARE)
    )
    assert np.allclose(pydist.tensor(POSITIVE).logdet().numpy(), np.linalg.slogdet(POSITIVE)[1])


LARGE = RNG.normal(size=(2, 9, 9))


@pytest.mark.parametrize("a", [SQUARE, SQUARE[0], TALL, WIDE, LARGE, np.zeros((2, 0, 3)), np.zeros((0, 2, 2))])
def test_lu(a):
    """Factors, pivots, first and second gradients as torch's; singular matrices have factors, too."""
    compare(lambda lib, a: lib.linalg.lu_factor(a), [a])
    compare(lambda lib, a: lib.linalg.lu(a), [a])
    compare(lambda lib, a: lib.lu_unpack(*lib.linalg.lu_factor_ex(a)[:2]), [a])
    compare(lambda lib, a: lib.lu_unpack(*lib.linalg.lu_factor(a), unpack_pivots=False), [a])
    compare(lambda lib, a: lib.lu_unpack(*lib.linalg.lu_factor(a.detach()), unpack_data=False), [a])
    made, theirs = linalg.lu_factor_ex(pydist.tensor(a)), torch.linalg.lu_factor_ex(torch.tensor(a))
    assert made.pivots.numpy().dtype == np.int32 and np.array_equal(made.pivots.numpy(), theirs.pivots.numpy())
    assert tuple(made.info.shape) == tuple(theirs.info.shape) and made.info.dtype is pydist.int32


@pytest.mark.parametrize("adjoint", [False, True])
def test_lu_solve(adjoint):
    def solved(lib, a, b, **options):
        return lib.linalg.lu_solve(*lib.linalg.lu_factor(a), b, adjoint=adjoint, **options)

    compare(solved, [SQUARE, TALL[:, :3]])
    compare(solved, [SQUARE[0], TALL[:, :3]])
    compare(solved, [LARGE, LARGE[0]])
    compare(lambda lib, a, b: solved(lib, a, b, left=False), [SQUARE, TALL])
    a, b = pydist.tensor(SQUARE), pydist.tensor(TALL[:, :3])
    assert np.allclose(b.lu_solve(*a.lu()).numpy(), np.linalg.solve(SQUARE, TALL[:, :3]))
    assert len(a.lu(get_infos=True)) == 3


def test_lu_of_singular_matrices():
    a = np.stack([np.eye(3), np.arange(9.0).reshape(3, 3), np.zeros((3, 3)), [[1, 2, 3], [0, 0, 5], [0, 0, 6]]])
    for ours, theirs in (
        *zip(linalg.lu_factor_ex(pydist.tensor(a)), torch.linalg.lu_factor_ex(torch.tensor(a))),
        *zip(linalg.lu(pydist.tensor(a)), torch.linalg.lu(torch.tensor(a))),
    ):
        assert np.allclose(ours.numpy(), theirs.numpy(), atol=1e-15)
    for call, which in (
        (lambda: linalg.lu_factor(pydist.tensor(a[2:])), r"lu_factor: \(Batch element 0\): U\[1,1\] is zero"),
        (lambda: linalg.lu_factor_ex(pydist.tensor(a[3]), check_errors=True), r"lu_factor_ex: U\[2,2\] is zero"),
    ):
        with pytest.raises(RuntimeError, match=which):
            call()


PIVOTS = pydist.tensor([1, 2], dtype=pydist.int32)
WRONG = [
    (lambda: linalg.lu_factor(pydist.eye(2), pivot=False), RuntimeError, "pivot=True"), (lambda: linalg.lu(pydist.ones(2)), RuntimeError, "lu: shape"), (lambda: linalg.lu_factor(pydist.eye(2).long()), RuntimeError, "int64"),
    (lambda: linalg.lu_solve(pydist.eye(2), PIVOTS.long(), pydist.ones(2, 1)), RuntimeError, "int32"), (lambda: linalg.lu_solve(pydist.eye(2), PIVOTS[:1], pydist.ones(2, 1)), RuntimeError, r"shape \(2,\)"),
    (lambda: linalg.lu_solve(pydist.eye(2), PIVOTS + 1, pydist.ones(2, 1)), RuntimeError, "outside of 1 to 2"), (lambda: linalg.lu_solve(pydist.eye(2), PIVOTS, pydist.ones(2)), RuntimeError, "2 rows"), (lambda: linalg.lu_solve(pydist.eye(3)[:2], PIVOTS, pydist.ones(2, 1)), RuntimeError, "square"),
    (lambda: pydist.lu_unpack(pydist.eye(2), PIVOTS - 1), RuntimeError, "lu_unpack: got pivots outside"),
    (lambda: linalg.inv(pydist.zeros(2, 2)), linalg.LinAlgError, "inv.*ingular"), (lambda: linalg.cholesky(-pydist.eye(2)), linalg.LinAlgError, "cholesky"), (lambda: linalg.inv(pydist.zeros(2, 3)), RuntimeError, "square"),
    (lambda: linalg.solve(pydist.eye(2), pydist.zeros(3, 1)), RuntimeError, "rows"), (lambda: linalg.det(pydist.eye(2).long()), RuntimeError, "int64"), (lambda: linalg.inv(pydist.zeros(2)), RuntimeError, "square"),
    (lambda: linalg.norm(pydist.zeros(2, 2, 2), 2), RuntimeError, "norm"), (lambda: linalg.multi_dot([pydist.eye(2)]), RuntimeError, "multi_dot"),
    (lambda: linalg.solve(pydist.eye(2), pydist.eye(2).double()), RuntimeError, "float64"), (lambda: linalg.inv(pydist.full((2, 2), math.nan).fill_(0)), pydist._C._LinAlgError, "inv"),
]  # fmt: skip


@pytest.mark.parametrize("case", WRONG, ids=range(len(WRONG)))
def test_errors(case):
    call, kind, text = case
    with pytest.raises(kind, match=text):
        call()


X = np.concatenate([np.linspace(-4.3, 4.3, 23), [0.5, 1.0, 2.0, 12.5, 30.0]])
SPECIAL = [("gammaln", X[abs(X) > 1e-9]), ("digamma", X[X > -4]), ("polygamma", 1, X[X > 0]), ("polygamma", 2, X[X > 0]), ("erfc", X), ("erfinv", np.linspace(-0.99, 0.99, 21)), ("ndtr", X[X < 8]), ("ndtri", np.linspace(0.01, 0.99, 21)),
           ("log_ndtr", np.linspace(-20, 5, 26)), ("erfcx", X[X > -3]), ("i0", X), ("xlogy", X[X > 0], X[X > 0]), ("xlog1py", X[X > 0], X[X > 0]), ("entr", X[X > 0]), ("logit", np.linspace(0.1, 0.9, 9)), ("sinc", X), ("multigammaln", X[X > 1.1], 3)]  # fmt: skip


@pytest.mark.parametrize("case", SPECIAL, ids=lambda c: str(c[0]))
def test_special_functions_as_torch(case):
    name, *args = case
    found = []
    for lib in (pydist, torch):
        values, inputs = leaves(lib, args)
        y = getattr(lib.special, name)(*values)
        y.sum().backward()
        found.append([y, *(t.grad for t in inputs)])
    for ours, theirs in zip(*found):
        np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), rtol=2e-9, atol=1e-12)


def test_erfinv_everywhere():
    """In the middle, both tails, at the ends, beyond, and over several pieces."""
    small = 10.0 ** np.arange(-300.0, 0.0)
    v = np.concatenate([small, -small, 1 - small[-15:], np.linspace(-0.999, 0.999, 70001)])
    found = pydist.erfinv(pydist.tensor(v)).numpy()
    expected = [math.copysign(NormalDist().inv_cdf((1 + abs(x)) / 2), x) / math.sqrt(2) for x in v[-70001:]]
    np.testing.assert_allclose(found[-70001:], expected, rtol=1e-10, atol=1e-16)
    np.testing.assert_allclose(found[:600], v[:600] * math.sqrt(math.pi) / 2, rtol=0.01)
    for x, y in zip(v[600:615], found[600:615]):
        assert math.erfc(y) == pytest.approx(1 - x, rel=1e-12)
    ends = pydist.tensor([1.0, -1.0, 0.0, 1.5, math.nan]).erfinv().tolist()
    assert ends[:3] == [math.inf, -math.inf, 0.0] and math.isnan(ends[3]) and math.isnan(ends[4])
    assert pydist.erfinv(pydist.zeros(0, 3)).shape == (0, 3)


def test_special_functions_as_methods():
    x = pydist.tensor([0.5, 2.5])
    assert x.lgamma().dtype is pydist.float32 and np.allclose(
        x.polygamma(1).numpy(), torch.tensor([0.5, 2.5]).polygamma(1).numpy()
    )
    assert np.allclose(
        pydist.erfinv(x / 4).numpy(), torch.erfinv(torch.tensor([0.125, 0.625])).numpy()
    ) and np.allclose(x.erfc().numpy(), [math.erfc(0.5), math.erfc(2.5)])
    assert special.zeta(pydist.tensor(2.0), pydist.tensor(1.0)).item() == pytest.approx(math.pi**2 / 6)
    assert special.lgamma(pydist.tensor([0.0, -1.0, 1.0])).tolist() == [math.inf, math.inf, pytest.approx(0, abs=1e-12)]


def test_the_log_of_a_zero_determinant_has_infinite_slopes():
    """As in PyTorch; the other matrices of a batch keep their slopes."""
    a = pydist.tensor([[[1.0, 2.0], [2.0, 4.0]], [[1.0, 2.0], [3.0, 5.0]]], dtype=pydist.float64, requires_grad=True)
    size = pydist.linalg.slogdet(a)[1]
    size.sum().backward()
    assert size[0].item() == -float("inf") and a.grad[0].isinf().all()
    assert pydist.allclose(a.grad[1], pydist.tensor([[-5.0, 3.0], [2.0, -1.0]], dtype=pydist.float64))


def test_the_log_of_a_determinant_too_small_for_its_dtype_has_a_slope():
    a = (0.01 * pydist.eye(200, dtype=pydist.float64)).requires_grad_()
    assert pydist.linalg.det(a).item() == 0  # 1e-400
    pydist.linalg.slogdet(a)[1].backward()
    assert pydist.allclose(a.grad, 100 * pydist.eye(200, dtype=pydist.float64))
