"""Functions made of other ops (pydist/_functions), as functions and as methods: values, dtypes and gradients as PyTorch's."""

import importlib
import itertools

import numpy as np
import pytest

import pydist

torch = pytest.importorskip("torch", reason="needs torch")


def f(*shape, lo=-2.0, hi=2.0):
    return ("float", shape, lo, hi)


def i(*shape, lo=0, hi=4):
    return ("int", shape, lo, hi)


def b(*shape):
    return ("bool", shape, 0, 1)


def is_spec(a):
    return isinstance(a, tuple) and len(a) == 4 and a[0] in ("float", "int", "bool")


CASES = [
    ("narrow", f(3, 4), 1, 1, 2), ("narrow", f(3, 4), 0, -2, 2), ("split", f(7, 3), 3), ("split", f(7, 3), [2, 5]), ("split", f(2, 5), 2, -1), ("split", f(0, 3), 2),
    ("chunk", f(7, 3), 3), ("chunk", f(2, 5), 2, 1), ("tensor_split", f(7, 2), 3), ("tensor_split", f(7, 2), (2, 5, 9)), ("unbind", f(3, 2)), ("unbind", f(3, 2), 1),
    ("movedim", f(2, 3, 4), 0, 2), ("movedim", f(2, 3, 4), (0, 1), (2, 0)), ("swapaxes", f(2, 3), 0, 1), ("unflatten", f(6, 2), 0, (2, -1)), ("tile", f(2, 3), (2,)),
    ("tile", f(3), (2, 2)), ("repeat_interleave", f(2, 3), 2), ("repeat_interleave", f(2, 3), 2, 1), ("roll", f(3, 4), 1), ("roll", f(3, 4), (1, -2), (0, 1)),
    ("fliplr", f(2, 3)), ("flipud", f(2, 3)), ("ravel", f(2, 3)), ("broadcast_to", f(3), (2, 3)), ("diagonal", f(3, 4)), ("diagonal", f(3, 4), 1), ("diagonal", f(3, 4), -2),
    ("diagonal", f(2, 3, 4), 0, 0, 2), ("diagonal", f(3, 4), 9), ("diag", f(3, 4)), ("diag", f(3)), ("diag", f(3), -1), ("trace", f(3, 4)), ("tril", f(3, 4)), ("tril", f(2, 3, 3), -1),
    ("triu", f(3, 4), 1), ("triu", i(3, 3)), ("index_select", f(3, 4), 1, i(5)), ("index_select", f(3, 4), 0, i(2, hi=3)), ("scatter", f(3, 4), 1, i(3, 1), f(3, 1)),
    ("scatter_add", f(3, 4), 0, i(5, 4, hi=3), f(5, 4)), ("scatter_add", f(5), 0, i(9), f(9)), ("index_add", f(3, 4), 1, i(5), f(3, 5)), ("index_copy", f(3, 4), 0, i(1, hi=3), f(1, 4)),
    ("index_fill", f(3, 4), 1, i(2), 0.5), ("masked_fill", f(3, 4), b(3, 4), 0.5), ("masked_fill", f(3, 4), b(4), -np.inf), ("masked_fill", i(3, 4), b(3, 1), 7),
    ("masked_select", f(3, 4), b(3, 4)), ("masked_select", f(3, 4), b(4)), ("nonzero", i(3, 4, hi=2)), ("nonzero", b(0, 3)), ("nonzero", b(2, 2, 2)), ("count_nonzero", i(3, 4, hi=2)),
    ("bincount", i(20)), ("bincount", i(20), None, 9), ("unique", i(3, 9)), ("unique", i(30), True, True, True), ("median", f(7)), ("median", f(4, 6)), ("median", f(3, 5), 1),
    ("clip", f(3, 4), -0.5, 0.5), ("clamp_min", f(9), 0.2), ("clamp_max", f(9), 0.2), ("isnan", f(3)), ("isinf", f(3)), ("isfinite", i(3)), ("isclose", f(4), f(4)),
    ("frac", f(9, lo=-5, hi=5)), ("rsub", f(3), f(3)), ("exp2", f(5)), ("var", f(3, 4)), ("var", f(3, 4), 1), ("var", f(3, 4), (0, 1), False), ("var", f(3, 4), False), ("std", f(3, 4), 0, True, True),
    ("var_mean", f(3, 4), 1), ("std_mean", f(3, 4)), ("norm", f(3, 4)), ("norm", f(3, 4), 1), ("norm", f(3, 4), 3, 1), ("norm", f(3, 4), float("inf"), 0), ("norm", f(3, 4), 2, (0, 1), True),
    ("norm", f(3, 4), 0), ("logsumexp", f(3, 4), 1), ("logsumexp", f(3, 4), (0, 1), True), ("logsumexp", f(2, 3, 4), -2), ("mm", f(2, 3), f(3, 4)), ("mv", f(2, 3), f(3)), ("dot", f(3), f(3)), ("dot", i(3), i(3)),
    ("outer", f(2), f(3)), ("addmm", f(4), f(2, 3), f(3, 4)), ("addmv", f(2), f(2, 3), f(3)), ("addr", f(2, 3), f(2), f(3)), ("baddbmm", f(2, 2, 4), f(2, 2, 3), f(2, 3, 4)), ("inner", f(2, 3), f(4, 3)),
    ("hypot", f(9), f(9)), ("fmax", f(9), f(9)), ("fmin", f(3, 4), f(4)), ("signbit", f(9)), ("copysign", f(9), f(9)), ("nextafter", f(9), f(9)), ("xlogy", f(9, lo=0.1), f(9, lo=0.1)),
    ("heaviside", i(9, lo=-1, hi=2), i(9)), ("float_power", f(9, lo=0.1), 2.5), ("logaddexp2", f(9), f(9)), ("ldexp", f(4), i(4)), ("deg2rad", f(3)), ("rad2deg", f(3)), ("logit", f(9, lo=0.1, hi=0.9)),
    ("logit", f(9, lo=0.1, hi=0.9), 0.3), ("sinc", f(9)), ("isneginf", f(3)), ("isposinf", f(3)), ("gcd", i(20, hi=60), i(20, hi=60)), ("lcm", i(20, hi=60), i(20, hi=60)), ("angle", f(9)),
    ("frexp", f(20, lo=-50, hi=50)), ("isreal", f(3)), ("take", f(3, 4), i(2, 3, hi=12)), ("put", f(3, 4), i(3), f(3)), ("put", f(3, 4), i(9, hi=12), f(9), True), ("masked_scatter", f(3, 4), b(3, 4), f(12)),
    *[("scatter_reduce", f(3, 4), d, i(5, 4, hi=3) if d == 0 else i(3, 6), f(5, 4) if d == 0 else f(3, 6), how) for d in (0, 1) for how in ("sum", "prod", "mean", "amax", "amin")],
    ("index_reduce", f(3, 4), 1, i(5), f(3, 5), "prod"), ("argwhere", i(3, 4, hi=2)), ("msort", f(5, 3)), ("kthvalue", f(3, 5), 2), ("kthvalue", f(3, 5), 3, 0, True), ("mode", i(3, 9)), ("mode", f(3, 4), 0),
    ("unique_consecutive", i(30, hi=2), True, True), ("histc", f(50), 7), ("histc", f(50), 5, -1, 1), ("nansum", f(3, 4), 1), ("nanmean", f(3, 4), 0, True),
    *[("quantile", f(4, 7), q, dim, keep) for q in (0.3, 1.0) for dim in (None, 0, 1) for keep in (False, True)], ("nanquantile", f(4, 7), 0.6, 1), ("nanmedian", f(4, 6)), ("nanmedian", f(4, 6), 1),
    ("cumprod", f(3, 5), 1), ("cumprod", f(5, 2), 0), ("cumprod", i(5), 0), ("cummax", f(3, 5), 1), ("cummin", f(6), 0), ("cummax", i(9, hi=3), 0), ("logcumsumexp", f(3, 5), 1), ("diff", f(3, 5)), ("diff", f(5, 3), 2, 0),
    ("dist", f(3, 4), f(3, 4)), ("dist", f(3, 4), f(4), 1), ("renorm", f(3, 4), 2, 0, 1.0), ("cov", f(3, 5)), ("corrcoef", f(3, 5)), ("vdot", f(3), f(3)), ("addbmm", f(2, 4), f(3, 2, 3), f(3, 3, 4)), ("kron", f(2, 3), f(3, 2)),
    ("kron", f(2), f(2, 3)), ("cross", f(4, 3), f(4, 3)), ("cross", f(3, 2), f(3, 2), 0), ("matrix_power", f(3, 3), 3), ("matrix_power", f(2, 3, 3), 0), ("hsplit", f(2, 4), 2), ("vsplit", f(4, 2), [1, 3]), ("dsplit", f(2, 2, 4), 2),
    ("split_with_sizes", f(5, 2), [2, 3]), ("t", f(2, 3)), ("t", f(3)), ("adjoint", f(2, 3, 4)), ("unfold", f(3, 9), 1, 4, 2), ("unfold", f(5, 2), 0, 2, 3), ("sum_to_size", f(2, 3, 4), 3, 1), ("rot90", f(2, 3)), ("rot90", f(2, 3), 3),
    ("rot90", f(2, 3, 2), 2, (0, 2)), ("diag_embed", f(2, 3)), ("diag_embed", f(2, 3), 1), ("diag_embed", f(2, 3), -2, 0, 2), ("diagflat", f(2, 2), 1), ("select_scatter", f(3, 4), f(4), 0, 1), ("slice_scatter", f(5, 2), f(2, 2), 0, 1, 5, 2),
    ("diagonal_scatter", f(3, 3), f(2), 1), ("as_strided_scatter", i(6), i(2, 2), (2, 2), (2, 1), 1), ("bernoulli", f(3, lo=1, hi=1)),
    ("multiply", f(3), 2), ("absolute", f(3)), ("greater", f(3), 0), ("nan_to_num", f(3)), ("take_along_dim", f(3, 4), i(3, 2), 1),
]  # fmt: skip
FUNCTIONS = [  # of several tensors
    ("einsum", "ij,jk->ik", f(2, 3), f(3, 4)), ("einsum", "ij,jk", f(2, 3), f(3, 4)), ("einsum", "bij,bjk->bik", f(2, 2, 3), f(2, 3, 4)), ("einsum", "ii->i", f(3, 3)), ("einsum", "ii", f(3, 3)),
    ("einsum", "ij->ji", f(2, 3)), ("einsum", "i,j->ij", f(2), f(3)), ("einsum", "...ij,...jk->...ik", f(2, 1, 2, 3), f(4, 3, 2)), ("einsum", "ij,ij->", f(2, 3), f(2, 3)),
    ("einsum", "ij,jk,kl->il", f(2, 3), f(3, 4), f(4, 2)), ("einsum", "bhqd,bhkd->bhqk", f(1, 2, 3, 4), f(1, 2, 5, 4)), ("einsum", "ij,k->j", f(2, 3), f(4)), ("einsum", "...,...->...", f(2, 3), f(3)),
    ("tensordot", f(2, 3, 4), f(3, 4, 2)), ("tensordot", f(2, 3, 4), f(4, 2, 3), ([1, 2], [2, 0])), ("meshgrid", f(2), f(3)), ("broadcast_tensors", f(2, 1), f(3)),
    ("atleast_1d", f()), ("atleast_2d", f(3), f()), ("atleast_3d", f(2, 3), f(3)), ("dstack", [f(2, 3), f(2, 3)]), ("column_stack", [f(3), f(3, 2)]), ("row_stack", [f(3), f(2, 3)]), ("block_diag", f(2, 2), f(1, 3), f(2)),
    ("cartesian_prod", f(2), f(3)), ("tril_indices", 3, 4), ("triu_indices", 4, 3, 1), ("unravel_index", i(5, hi=12), (3, 4)), ("combinations", f(4), 2), ("combinations", f(3), 2, True), ("searchsorted", f(0), f(3)), ("isin", i(3, 4), i(2)),
    ("trapezoid", f(3, 5)), ("trapz", f(3, 5), f(5)), ("cumulative_trapezoid", f(3, 5)), ("chain_matmul", f(2, 3), f(3, 4), f(4, 2)), ("cdist", f(3, 4), f(5, 4)), ("cdist", f(2, 3, 4), f(2, 5, 4), 1.0), ("vander", i(4)), ("vander", i(4), 3, True),
    ("hstack", [f(2, 3), f(2, 1)]), ("hstack", [f(2), f(1)]), ("vstack", [f(3), f(2, 3)]), ("concat", [f(2, 3), f(1, 3)]),
]  # fmt: skip


def fill(lib, arg, rng, leaves):
    if isinstance(arg, list) and arg and is_spec(arg[0]):
        return [fill(lib, a, rng, leaves) for a in arg]
    if not is_spec(arg):
        return arg
    kind, shape, lo, hi = arg
    if kind == "float":
        t = lib.tensor(rng.uniform(lo, hi, shape)).requires_grad_()
        leaves.append(t)
        return t
    return lib.tensor(rng.integers(lo, hi, shape) if kind == "int" else rng.random(shape) < 0.5)


def run(home, place, name, args, lib=None):
    lib = lib or home
    rng, leaves = np.random.default_rng(len(name)), []
    values = [fill(lib, a, rng, leaves) for a in args]
    out = getattr(home, name)(*values) if place == "function" else getattr(values[0], name)(*values[1:])
    out = list(out) if isinstance(out, (tuple, list)) else [out]
    floats = [o for o in out if o.requires_grad]
    grads = []
    if floats:
        total = sum((o * lib.tensor(np.random.default_rng(1).uniform(0.5, 1.5, tuple(o.shape)))).sum() for o in floats)
        total.backward()
        grads = [t.grad for t in leaves]
    return out, grads


def test_median_of_rows_with_nan():
    x = np.array([[1.0, np.nan, 3.0], [4.0, 6.0, 5.0]])
    for dim in (0, 1):
        for name in ("median", "nanmedian"):
            same(
                *(
                    getattr(lib.tensor(x), name)(dim).values if lib is torch else getattr(lib.tensor(x), name)(dim)[0]
                    for lib in (pydist, torch)
                )
            )


def same(got, want):
    assert tuple(got.shape) == tuple(want.shape) and str(got.dtype).split(".")[-1] == str(want.dtype).split(".")[-1]
    np.testing.assert_allclose(got.detach().numpy(), want.detach().numpy(), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    "case",
    [(*c, p) for c in CASES for p in ("function", "method")] + [(*c, "function") for c in FUNCTIONS],
    ids=lambda c: f"{c[0]}-{c[-1]}",
)
def test_as_torch(case):
    name, *args, place = case
    owner = pydist if place == "function" else pydist.Tensor
    where = torch if place == "function" else torch.Tensor
    if not hasattr(where, name) and not hasattr(owner, name):
        pytest.skip("neither has it")
    assert getattr(owner, name).__doc__
    if not hasattr(where, name):
        pytest.skip("torch has it elsewhere")
    (got, grads), (want, wanted) = run(pydist, place, name, args), run(torch, place, name, args)
    for g, w in zip(got, want, strict=True):
        same(g, w)
    for g, w in itertools.zip_longest(grads, wanted):
        assert (g is None or not g.numpy().any()) if w is None else True
        if w is not None and (g is not None or w.any()):
            same(g, w)


@pytest.mark.parametrize(
    "name, args", [("repeat", ((2, 3),)), ("repeat", (2, 1, 3)), ("view_as", None), ("reshape_as", None)]
)
def test_methods(name, args):
    results = []
    for lib in (pydist, torch):
        x = lib.tensor(np.arange(6.0).reshape(2, 3)).requires_grad_()
        y = getattr(x, name)(*(args or (lib.zeros(3, 2),)))
        (y * y).sum().backward()
        results.append((y, x.grad))
    for ours, theirs in zip(*results):
        same(ours, theirs)


IN_PLACE = [
    ("masked_fill_", f(3, 4), b(3, 4), 0.5), ("scatter_", f(3, 4), 1, i(3, 1), f(3, 1)), ("scatter_", f(3, 4), 1, i(3, 2), 0.5), ("scatter_add_", f(3, 4), 1, i(3, 2), f(3, 2)),
    ("index_add_", f(3, 4), 1, i(5), f(3, 5)), ("index_fill_", f(3, 4), 1, i(2), 0.5), ("tril_", f(3, 3)), ("clamp_", f(3, 4), -0.5, 0.5), ("addmm_", f(2, 4), f(2, 3), f(3, 4)),
    ("addcmul_", f(3), f(3), f(3)), ("lerp_", f(3), f(3), 0.5), ("floor_divide_", i(9), 2), ("bitwise_xor_", i(9), 3), ("clamp_min_", f(9), 0.1), ("index_copy_", f(3, 4), 0, i(1, hi=3), f(1, 4)),
]  # fmt: skip


@pytest.mark.parametrize("case", IN_PLACE, ids=lambda c: c[0])
def test_in_place(case):
    name, *args = case
    results = []
    for lib in (pydist, torch):
        rng, leaves = np.random.default_rng(3), []
        values = [fill(lib, a, rng, leaves) for a in args]
        y = values[0] * 1
        assert getattr(y, name)(*values[1:]) is y
        if y.requires_grad:
            (y * lib.tensor(np.random.default_rng(1).uniform(0.5, 1.5, tuple(y.shape)))).sum().backward()
        results.append([y, *(t.grad for t in leaves if t.grad is not None)])
    for ours, theirs in zip(*results, strict=True):
        same(ours, theirs)


def test_views_are_views():
    x = pydist.zeros(4, 6)
    for part in (
        x.split(2)[1], x.chunk(3, 1)[2], x.narrow(0, 1, 2), x.unbind(1)[3], x.diagonal(1), x.movedim(0, 1), x.mT,
    ):  # fmt: skip
        part.fill_(1)
        assert part._base is x and x.sum().item() == part.numel()
        x.zero_()


def test_norm_of_zeros_has_gradient_zero():
    x = pydist.zeros(3, requires_grad=True)
    x.norm().backward()
    assert x.grad.tolist() == [0, 0, 0]


@pytest.mark.parametrize("zeros", [(), (1,), (1, 2), (0, 1, 2, 3)])
@pytest.mark.parametrize("dim", [None, 0, 1])
def test_gradient_of_a_product_with_zeros(zeros, dim):
    values = np.random.default_rng(0).uniform(0.5, 2, (4, 3))
    values[list(zeros), 1] = 0
    grads = []
    for lib in (pydist, torch):
        x = lib.tensor(values).requires_grad_()
        y = x.prod() if dim is None else x.prod(dim)
        (y * y + y).sum().backward()
        y = x.prod() if dim is None else x.prod(dim)
        (first,) = (lib if lib is pydist else lib.autograd).grad(y.sum(), x, create_graph=True)
        (second,) = (lib if lib is pydist else lib.autograd).grad((first * first + first).sum(), x)
        grads.append([x.grad, first, second])
    for ours, theirs in zip(*grads):
        same(ours, theirs)


def test_multinomial():
    pydist.manual_seed(3)
    weights = pydist.tensor([[0.1, 0.0, 0.3, 0.6], [1.0, 1.0, 0.0, 2.0]])
    drawn = weights.multinomial(20000, replacement=True).numpy()
    for row, w in zip(drawn, weights.numpy()):
        assert np.abs(np.bincount(row, minlength=4) / row.size - w / w.sum()).max() < 0.02
    firsts = np.zeros((2, 4))
    for _ in range(2000):
        two = weights.multinomial(2).numpy()
        assert (two[:, 0] != two[:, 1]).all() and 1 not in two[0] and 2 not in two[1]
        firsts[[0, 1], two[:, 0]] += 1
    assert np.abs(firsts / 2000 - weights.numpy() / weights.numpy().sum(1, keepdims=True)).max() < 0.05
    for wrong in (
        lambda: weights.multinomial(5),
        lambda: (-weights).multinomial(1),
        lambda: (weights * 0).multinomial(1),
        lambda: weights.long().multinomial(1),
    ):
        with pytest.raises(RuntimeError, match="multinomial"):
            wrong()


def test_operators():
    x, y = pydist.tensor([7, -7, 6]), pydist.tensor([3, 3, 5])
    a, c = (np.array(t.tolist()) for t in (x, y))
    for op in ("__floordiv__", "__mod__", "__and__", "__or__", "__xor__", "__lshift__", "__rshift__"):
        assert getattr(x, op)(y).tolist() == getattr(a, op)(c).tolist(), op
    assert (~x).tolist() == (~a).tolist() and (7 // y).tolist() == [2, 2, 1] and (7 % y).tolist() == [1, 1, 2]
    for code in ("//=", "%=", "&=", "|=", "^=", "<<=", ">>=", "**="):
        space = {"x": x.clone(), "a": a.copy()}
        exec(f"x {code} 2\na {code} 2", space)
        assert space["x"].tolist() == space["a"].tolist(), code
    mask = x > 0
    assert (
        (~mask).tolist() == [False, True, False]
        and (mask & ~mask).tolist() == [False] * 3
        and (mask ^ True).tolist() == [False, True, False]
    )


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int64", "int32", "int8", "uint8"])
def test_sort_is_stable(dtype):
    values = np.random.default_rng(1).integers(0, 100, (3, 500))
    x = pydist.tensor(values).to(getattr(pydist, dtype))
    for descending in (False, True):
        got = x.sort(descending=descending)
        order = np.argsort(-values if descending else values, kind="stable")
        assert (
            np.array_equal(got.indices.numpy(), order)
            and got.values.tolist() == np.take_along_axis(values, order, 1).tolist()
        )


def test_sort_places_specials_as_torch():
    v = [1.0, np.nan, -np.inf, 0.0, -0.0, np.inf, -1.0, np.nan, -np.nan]
    for n, descending in itertools.product((1, 5), (False, True)):
        ours, theirs = (
            pydist.tensor(v * n).sort(descending=descending),
            torch.tensor(v * n).sort(stable=True, descending=descending),
        )
        assert ours.indices.tolist() == theirs.indices.tolist() and np.array_equal(
            ours.values.numpy(), theirs.values.numpy(), equal_nan=True
        )


NN = [  # functions of nn.functional without an op of their own
    ("celu", f(9), 0.5), ("selu", f(9)), ("relu6", f(9, lo=-3, hi=9)), ("softsign", f(9)), ("tanhshrink", f(9)), ("prelu", f(3, 4), f(1)), ("prelu", f(2, 3, 4), f(3)), ("softmin", f(3, 4), 1),
    ("glu", f(4, 6)), ("glu", f(4, 6), 0), ("threshold", f(9), 0.3, 5.0), ("hardshrink", f(9)), ("softshrink", f(9), 0.7), ("rrelu", f(9)), ("pixel_shuffle", f(2, 8, 2, 3), 2), ("pixel_unshuffle", f(2, 4, 6), 2),
    ("channel_shuffle", f(1, 6, 2, 2), 3), *[("pad", f(2, 3, 4, 5), (1, 2, 2, 1), mode) for mode in ("reflect", "replicate", "circular", "constant")], ("pad", f(2, 3, 4), (-1, 2), "reflect"), ("pad", i(2, 3), (1, 0), "constant", 7),
    ("pad", f(1, 2, 3, 4, 3), (1, 1, 0, 2, 1, 0), "replicate"), ("unfold", f(2, 3, 5, 6), (2, 3), 1, 1, 2), ("unfold", f(3, 5, 6), 2, 2), ("fold", f(2, 12, 12), (4, 5), 2), ("fold", f(2, 12, 6), (5, 6), 2, 1, 0, 2), ("fold", f(4, 9), (4, 4), 2, 1, 1, 2),
    *[("interpolate", f(2, 3, *[4, 5, 3][:d]), None, s, mode) for d, modes in ((1, ("nearest", "linear")), (2, ("nearest", "bilinear", "bicubic", "nearest-exact")), (3, ("nearest", "trilinear"))) for mode in modes for s in (2, 1.7, 0.6)],
    ("interpolate", f(2, 3, 4, 5), (7, 3), None, "bilinear", True), ("interpolate", f(1, 2, 5, 5), (3, 8), None, "bicubic", True), ("interpolate", f(2, 3, 4, 6), (2, 3), None, "area"), ("interpolate", f(1, 1, 3, 3), None, (2, 1.5), "bilinear", False, True),
    ("conv1d", f(2, 3, 9), f(4, 3, 3), f(4), 2, 1), ("conv3d", f(2, 2, 4, 5, 6), f(3, 2, 2, 3, 2), f(3), (1, 2, 1), (1, 0, 1)), ("conv3d", f(4, 5, 4, 4), f(4, 2, 3, 2, 2), None, 1, "same", 1, 2),
    ("conv3d", f(1, 2, 7, 4, 4), f(3, 2, 3, 2, 2), f(3), 2, 0, (2, 1, 1)), ("conv_transpose1d", f(2, 3, 5), f(3, 2, 4), f(2), 2, 1, 1), ("conv_transpose2d", f(3, 4, 4), f(3, 2, 3, 3), f(2), 2, 1, 1),
    ("conv_transpose3d", f(2, 4, 3, 2, 3), f(4, 2, 3, 2, 2), f(2), (2, 1, 2), (1, 0, 0), (1, 0, 1), 1), ("conv_transpose3d", f(1, 4, 2, 2, 2), f(4, 1, 2, 3, 2), None, 1, 0, 0, 2, (2, 1, 1)), ("bilinear", f(3, 4), f(3, 5), f(2, 4, 5), f(2)),
    ("max_pool3d", f(2, 3, 5, 6, 4), 2), ("max_pool3d", f(2, 5, 6, 7), 3, 2, 1), ("avg_pool3d", f(2, 3, 5, 6, 4), 2), ("avg_pool3d", f(1, 2, 5, 6, 4), 3, 2, 1, True, False), ("avg_pool3d", f(1, 2, 5, 6, 4), 2, 2, 0, False, True, 3),
    ("adaptive_avg_pool3d", f(2, 3, 5, 6, 4), (2, 3, None)), ("adaptive_max_pool3d", f(2, 3, 5, 6, 4), 2), ("lp_pool2d", f(2, 3, 6, 6, lo=0.1), 2, 2), ("lp_pool1d", f(2, 3, 6, lo=0.1), 3, 2), ("affine_grid", f(2, 2, 3), (2, 1, 3, 4), True),
    ("affine_grid", f(1, 3, 4), (1, 1, 2, 3, 4), False), *[("grid_sample", f(2, 3, 4, 5), f(2, 3, 3, 2, lo=-1.3, hi=1.3), mode, pad, align) for mode in ("bilinear", "nearest", "bicubic") for pad in ("zeros", "border", "reflection") for align in (False, True)],
    ("grid_sample", f(1, 2, 3, 4, 3), f(1, 2, 2, 3, 3, lo=-1.2, hi=1.2), "bilinear", "zeros", False), ("instance_norm", f(2, 3, 4, 4), None, None, f(3), f(3)), ("local_response_norm", f(2, 5, 3), 3, 0.1), ("cosine_similarity", f(3, 4), f(3, 4)),
    ("cosine_similarity", f(3, 4, 2), f(1, 4, 2), 1), ("pairwise_distance", f(3, 4), f(3, 4)), ("pdist", f(4, 3)), ("soft_margin_loss", f(3, 4), i(3, 4)), ("multilabel_soft_margin_loss", f(3, 4), f(3, 4, lo=0, hi=1)),
    ("multi_margin_loss", f(3, 4), i(3)), ("multi_margin_loss", f(3, 4), i(3), 2, 0.5), ("multilabel_margin_loss", f(3, 4), i(3, 4, lo=-1)), ("poisson_nll_loss", f(3, 4), f(3, 4, lo=0, hi=5)), ("poisson_nll_loss", f(3, 4, lo=0.1), f(3, 4, lo=0, hi=5), False, True),
    ("gaussian_nll_loss", f(3, 4), f(3, 4), f(3, 4, lo=0.1), True), ("gaussian_nll_loss", f(3, 4), f(3, 4), f(3, lo=0.1)), ("triplet_margin_loss", f(3, 4), f(3, 4), f(3, 4)), ("triplet_margin_loss", f(3, 4), f(3, 4), f(3, 4), 2.0, 1, 1e-6, True),
    ("margin_ranking_loss", f(5), f(5), f(5)), ("scaled_dot_product_attention", f(2, 3, 4, 5), f(2, 3, 6, 5), f(2, 3, 6, 2)), ("scaled_dot_product_attention", f(2, 4, 5), f(2, 6, 5), f(2, 6, 2), b(4, 6)),
    ("scaled_dot_product_attention", f(4, 5), f(4, 5), f(4, 2), None, 0.0, True), ("scaled_dot_product_attention", f(2, 4, 5), f(2, 6, 5), f(2, 6, 2), f(4, 6)),
    *[("cross_entropy", f(4, 5, *more), f(4, 5, *more, lo=0.0, hi=1.0), w, None, -100, None, how, smooth) for more, w, how, smooth in (((), None, "mean", 0.0), ((2, 3), f(5, lo=0.1), "mean", 0.1), ((), None, "none", 0.2), ((), f(5, lo=0.1), "sum", 0.0))],
    ("cross_entropy", f(5), f(5, lo=0.0)), ("one_hot", i(3, 4)), ("one_hot", i(3), 6), ("normalize", f(3, 4)), ("normalize", f(3, 4), 3.0, 0), ("embedding", i(3, 4), f(4, 2), 1), ("max_pool1d", f(2, 3, 9), 2),
    ("adaptive_max_pool1d", f(2, 3, 9), 2), ("adaptive_avg_pool2d", f(2, 3, 9, 8), (None, 2)), ("rms_norm", f(3, 4), (4,), f(4)), ("leaky_relu", f(9), 0.2), ("hardtanh", f(9), -0.5, 1.0),
]  # fmt: skip


@pytest.mark.parametrize("case", NN, ids=lambda c: c[0])
def test_functions_of_nn(case):
    name, *args = case
    (got, grads), (want, wanted) = (run(lib.nn.functional, "function", name, args, lib) for lib in (pydist, torch))
    for g, w in zip([*got, *grads], [*want, *wanted], strict=True):
        if g is not None or w is not None and w.any():
            same(g, w)


@pytest.mark.parametrize("file", pydist._index.LATER)
def test_names_of_files_imported_later(file):
    functions, methods = (names.split() for names in pydist._index.LATER[file])
    importlib.import_module(f"pydist._functions.{file}")
    assert not [n for n in methods if "which its first call imports" in getattr(pydist.Tensor, n).__doc__]
    assert set(functions) == {
        n for n, f in pydist._functions.NAMES.items() if f.__module__ == f"pydist._functions.{file}"
    }


def test_attention_of_groups():
    for mask in (None, "float", "bool"):
        results = []
        for lib in (pydist, torch):
            q, k, v = (
                lib.tensor(np.random.default_rng(s).normal(size=(2, h, 5, 4))).requires_grad_()
                for s, h in ((0, 4), (1, 2), (2, 2))
            )
            m = np.random.default_rng(3).normal(size=(5, 5))
            m = None if mask is None else lib.tensor(m if mask == "float" else m > 0)
            y = lib.nn.functional.scaled_dot_product_attention(
                q, k, v, m, is_causal=mask is None, scale=0.3, enable_gqa=True
            )
            (y * y).sum().backward()
            results.append([y, q.grad, k.grad, v.grad])
        for ours, theirs in zip(*results):
            same(ours, theirs)
    q = pydist.ones(2, 3)
    hidden = pydist.tensor([[True, False, True], [False] * 3])
    assert pydist.nn.functional.scaled_dot_product_attention(
        q, pydist.ones(3, 3), pydist.ones(3, 1), hidden
    ).tolist() == [[1.0], [0.0]]


def test_ctc_loss():
    rng = np.random.default_rng(0)
    scores, targets = rng.normal(size=(9, 3, 5)), rng.integers(1, 5, (3, 4))
    targets[0, 1] = targets[0, 0]  # the same label twice
    for kwargs in ({}, {"reduction": "sum"}, {"reduction": "none", "zero_infinity": True}, {"reduction": "none"}):
        for flat in (False, True):
            results = []
            for lib in (pydist, torch):
                x = lib.tensor(scores).requires_grad_()
                labels = lib.tensor(
                    np.concatenate([row[:n] for row, n in zip(targets, (4, 2, 0))]) if flat else targets
                )
                sizes = (
                    (lib.tensor([9, 7, 5]), lib.tensor([4, 2, 0]))
                    if "zero_infinity" in kwargs
                    else ((9, 7, 5), (4, 2, 0))
                )
                losses = lib.nn.functional.ctc_loss(x.log_softmax(-1), labels, *sizes, **kwargs)
                losses.sum().backward()
                results.append((losses, x.grad))
            for ours, theirs in zip(*results):
                np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), rtol=1e-9, atol=1e-11)
    short = [
        lib.nn.functional.ctc_loss(
            lib.zeros(2, 1, 3), lib.tensor([[1, 1, 2]]), [2], [3], reduction="none", zero_infinity=z
        ).tolist()
        for lib in (pydist, torch)
        for z in (False, True)
    ]
    assert short == [[np.inf], [0.0]] * 2
    blanks = [  # labels that are blanks have no alignment of their own, and still a number
        lib.nn.functional.ctc_loss(
            lib.tensor(scores).log_softmax(-1),
            lib.tensor([[0, 1, 2, 0], [1, 2, 0, 0], [0, 0, 3, 0]]),
            [9, 7, 5],
            [4, 3, 3],
        ).item()
        for lib in (pydist, torch)
    ]
    assert blanks[0] == pytest.approx(blanks[1], rel=1e-12)


def test_histogram_and_searchsorted():
    values = np.random.default_rng(0).normal(size=60)
    for kwargs in ({}, {"density": True}, {"range": (-1.0, 0.5)}):
        for ours, theirs in zip(
            pydist.histogram(pydist.tensor(values), 7, **kwargs), torch.histogram(torch.tensor(values), 7, **kwargs)
        ):
            np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-12)
    edges, looked = np.array([[0.0, 1, 1, 2], [1, 2, 3, 4]]), np.array([[-1, 1, 1.5, np.nan], [4, 4.5, 1, 0]])
    for right in (False, True):
        ours, theirs = (lib.searchsorted(lib.tensor(edges), lib.tensor(looked), right=right) for lib in (pydist, torch))
        assert ours.tolist() == theirs.tolist()
        assert (
            pydist.bucketize(pydist.tensor(looked), pydist.tensor(edges[1]), right=right).tolist()
            == torch.bucketize(torch.tensor(looked), torch.tensor(edges[1]), right=right).tolist()
        )
    with pytest.raises(RuntimeError, match="searchsorted"):
        pydist.searchsorted(pydist.zeros(2, 3), pydist.zeros(3, 2))


def test_geometry_in_place():
    for lib in (pydist, torch):
        x = lib.arange(6).reshape(2, 3)
        assert x.t_() is x and tuple(x.shape) == (3, 2) and x.tolist() == [[0, 3], [1, 4], [2, 5]]
        assert tuple(x.unsqueeze_(0).transpose_(0, 2).shape) == (2, 3, 1) and tuple(x.squeeze_().shape) == (2, 3)
        y = lib.arange(6)
        assert (
            y.resize_(2, 2).tolist() == [[0, 1], [2, 3]]
            and tuple(y.resize_(3, 4).shape) == (3, 4)
            and y.reshape(-1)[:4].tolist() == [0, 1, 2, 3]
        )
        assert y.set_(x).tolist() == x.tolist() and lib.zeros(3, 3).fill_diagonal_(2).sum().item() == 6
        assert lib.zeros(7, 2).fill_diagonal_(1, True).tolist() == torch.zeros(7, 2).fill_diagonal_(1, True).tolist()


def test_random_functions():
    pydist.manual_seed(0)
    n = 20000
    for t, mean, std in (
        (pydist.empty(n).exponential_(2.0), 0.5, 0.5), (pydist.empty(n).geometric_(0.25), 4, 12**0.5), (pydist.bernoulli(pydist.full((n,), 0.3)), 0.3, 0.21**0.5),
        (pydist.normal(2.0, pydist.full((n,), 3.0)), 2, 3), (pydist.normal(1.0, 0.5, (n,)), 1, 0.5), (pydist.poisson(pydist.full((n,), 5.0)), 5, 5**0.5), (pydist.zeros(n).bernoulli_(pydist.full((n,), 0.3)), 0.3, 0.21**0.5),
        (pydist.empty(n).log_normal_(0, 0.5), np.exp(0.125), ((np.exp(0.25) - 1) * np.exp(0.25)) ** 0.5),
    ):  # fmt: skip
        assert abs(t.mean().item() - mean) < 6 * std / n**0.5 and abs(t.std().item() - std) < 0.1 * std
    assert abs(pydist.empty(n).cauchy_(1.0, 2.0).median().item() - 1) < 0.15
    first = [pydist.zeros(3).uniform_(generator=pydist.Generator().manual_seed(5)).tolist() for _ in range(2)]
    assert first[0] == first[1] != pydist.zeros(3).uniform_().tolist()
    for wrong in (
        lambda: pydist.bernoulli(pydist.tensor([2.0])),
        lambda: pydist.zeros(2).exponential_(-1),
        lambda: pydist.normal(1.0, 2.0),
    ):
        with pytest.raises((RuntimeError, TypeError)):
            wrong()


def test_kl_div_by_batch():
    for log_target in (False, True):
        losses = []
        for lib in (pydist, torch):
            x, y = (lib.tensor(np.random.default_rng(k).uniform(0.1, 0.9, (3, 4))) for k in (0, 1))
            y = y.log() if log_target else y
            losses.append(lib.nn.functional.kl_div(x.log(), y, reduction="batchmean", log_target=log_target))
        same(*losses)


WRONG = [
    (lambda x: x.split(-1), RuntimeError, "split.*-1"), (lambda x: x.split([1, 5]), RuntimeError, "split.*1, 5"), (lambda x: x.chunk(0), RuntimeError, "chunk.*0"),
    (lambda x: x.narrow(0, 1, 9), IndexError, "narrow"), (lambda x: x.split(1, 5), IndexError, "split.*5"), (lambda x: x.repeat(2), RuntimeError, "repeat"),
    (lambda x: x.scatter(0, x, 1.0), RuntimeError, "scatter.*float"), (lambda x: x.scatter(0, pydist.tensor([[9, 0, 0]]), 1.0), RuntimeError, "scatter.*range"),
    (lambda x: x.index_select(0, pydist.tensor([7])), IndexError, "index_select.*range"), (lambda x: x.masked_fill(x, 0), RuntimeError, "masked_fill.*bool"),
    (lambda x: x.mm(x), RuntimeError, "matmul"), (lambda x: x.dot(x), RuntimeError, "dot.*2, 3"), (lambda x: x.norm("nuc"), RuntimeError, "norm.*nuc"),
    (lambda x: pydist.einsum("ij,jk", x), RuntimeError, "einsum.*2 operands"), (lambda x: pydist.einsum("ijk->i", x), RuntimeError, "einsum.*ijk"), (lambda x: pydist.einsum("ij->ik", x), RuntimeError, "einsum"),
    (lambda x: pydist.einsum("ij,ij->i", x, x.T), RuntimeError, "einsum.*sizes"), (lambda x: x.unflatten(1, (2, 2)), RuntimeError, "unflatten"), (lambda x: x.movedim(0, 5), IndexError, "movedim.*5"),
    (lambda x: x.diagonal(0, 0, 0), RuntimeError, "diagonal"), (lambda x: x.bincount(), RuntimeError, "bincount"), (lambda x: x.tril().sum().tril(), RuntimeError, "tril"),
    (lambda x: pydist.trapezoid(x[:, 0], x[0]), RuntimeError, "trapezoid.*3 positions.*2 values"), (lambda x: pydist.trapz(x.sum()), IndexError, "trapezoid.*no dimensions"),
]  # fmt: skip


@pytest.mark.parametrize("case", WRONG, ids=range(len(WRONG)))
def test_errors(case):
    call, kind, text = case
    with pytest.raises(kind, match=text):
        call(pydist.ones(2, 3))


def test_lists_of_tensors():
    for lib in (pydist, torch):
        xs, ys = [lib.tensor([1.0, 4.0]), lib.tensor([9.0])], [lib.tensor([1.0, 2.0]), lib.tensor([3.0])]
        assert [t.tolist() for t in lib._foreach_add(xs, ys, alpha=2)] == [[3, 8], [15]] and [
            t.tolist() for t in lib._foreach_div(xs, [2.0, 3.0])
        ] == [[0.5, 2], [3]]
        assert (
            [t.tolist() for t in lib._foreach_sqrt(xs)] == [[1, 2], [3]]
            and [t.tolist() for t in lib._foreach_maximum(xs, 4.0)] == [[4, 4], [9]]
            and lib._foreach_norm(ys)[1].item() == 3
        )
        (
            lib._foreach_mul_(xs, 2.0),
            lib._foreach_addcmul_(xs, ys, ys, value=0.5),
            lib._foreach_lerp_(xs, ys, 0.5),
            lib._foreach_sub_(xs, 1.0),
        )
        assert [t.tolist() for t in xs] == [[0.75, 5.0], [11.75]]
        lib._foreach_zero_(xs), lib._foreach_copy_(xs, ys)
        assert [t.tolist() for t in xs] == [[1, 2], [3]]
    with pytest.raises(AttributeError, match="_foreach_nothing"):
        pydist._foreach_nothing
    with pytest.raises(RuntimeError, match="3 operands"):
        pydist._foreach_add(xs, [1, 2, 3])


def test_cumprod_in_place_computes_in_the_dtype_of_the_tensor():
    for dtype, want in (
        (pydist.bool, [True, False, False]),
        (pydist.int8, [100, 0, 0]),
        (pydist.float32, [100.0, 0.0, 0.0]),
    ):
        assert pydist.tensor([100, 0, 7]).to(dtype).cumprod_(0).tolist() == want
        assert pydist.tensor(1).to(dtype).cumprod_(0).dtype is dtype
