"""scatter_reduce and its kin against PyTorch: every reduction, dtype and form of the index; values, gradients among
equals, NaN, zeros; the same bits for any number of threads; what is refused."""

import itertools

import numpy as np
import pytest

import pydist

torch = pytest.importorskip("torch", reason="needs torch")
HOW = ("sum", "prod", "mean", "amax", "amin")
FLOATS = {"float32": 1e-5, "float64": 1e-12, "float16": 1e-2, "bfloat16": 2e-2}
DTYPES = [*FLOATS, "int64", "int32", "int16", "int8", "uint8", "bool", "complex64"]


def numbers(t, lib):
    return t.detach().to(lib.complex128 if t.is_complex() else lib.float64).numpy()


def index_of(rng, form, shape, dim):
    """(the index, as large as the source; the sizes to which it is to be expanded)."""
    size = [9 if d == dim else max(1, n - (form == "smaller")) for d, n in enumerate(shape)]
    one = [n if d <= dim or form != "expanded" else 1 for d, n in enumerate(size)]
    return rng.integers(0, shape[dim], one), size


@pytest.mark.parametrize("form", ["plain", "expanded", "smaller"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_as_torch(dtype, form):
    rng = np.random.default_rng(0)
    for how, own, shape in itertools.product(HOW, (True, False), ((7,), (3, 5), (2, 3, 4), (5, 3, 130))):
        if (dtype, how) == ("bool", "mean") or (dtype == "complex64" and how in ("amax", "amin")):
            continue
        for dim in range(len(shape)):
            index, size = index_of(rng, form, shape, dim)
            x, src = (rng.integers(0 if dtype == "uint8" else -2, 3, n).astype(float) for n in (shape, size))
            if dtype in FLOATS:
                src.flat[0] = np.nan
            results = []
            for lib in (pydist, torch):
                a, b = (lib.from_numpy(n.copy()).to(getattr(lib, dtype)) for n in (x, src))
                a, b = (t.requires_grad_() if dtype in FLOATS else t for t in (a, b))
                y = a.scatter_reduce(dim, lib.from_numpy(index).expand(*size), b, how, include_self=own)
                assert y.dtype is a.dtype
                results.append([numbers(y, lib)])
                if dtype in FLOATS:
                    (y * (lib.arange(y.numel()).reshape(shape) % 5 + 1).to(y.dtype)).sum().backward()
                    results[-1] += [numbers(t.grad, lib) for t in (a, b)]
            for k, (ours, theirs) in enumerate(zip(*results)):
                near = FLOATS.get(dtype, 1e-5 if dtype == "complex64" else 0) if k or dtype == "complex64" else 0
                what = f"{how}, include_self={own}, {shape}, dimension {dim}, result {k}"
                np.testing.assert_allclose(ours, theirs, near, near, err_msg=what)


@pytest.mark.parametrize("how", HOW[1:])
def test_index_reduce(how):
    rng = np.random.default_rng(0)
    for own, shape, dtype in itertools.product((True, False), ((7,), (3, 5), (4, 3, 40)), ("float32", "int64")):
        for dim in range(len(shape)):
            index = rng.integers(0, shape[dim], 9)
            x, src = (rng.integers(-2, 3, n) for n in (shape, [9 if d == dim else n for d, n in enumerate(shape)]))
            ours, theirs = (
                lib.from_numpy(x)
                .to(getattr(lib, dtype))
                .index_reduce(
                    dim, lib.from_numpy(index), lib.from_numpy(src).to(getattr(lib, dtype)), how, include_self=own
                )
                for lib in (pydist, torch)
            )
            np.testing.assert_array_equal(ours.numpy(), theirs.numpy(), f"{own}, {shape}, dimension {dim}")


def test_16_bits_add_up_in_float():
    for name in ("scatter_add", "scatter_reduce"):
        x, ones = pydist.full((1,), 256.0, dtype=pydist.bfloat16), pydist.ones(4, dtype=pydist.bfloat16)
        y = getattr(x, name)(0, pydist.zeros(4, dtype=pydist.int64), ones, *(["sum"] if name[-1] == "e" else []))
        assert y.item() == 260  # 257 is not a bfloat16


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("dim", [0, 1])
def test_bits_do_not_depend_on_threads(how, dim):
    pydist.manual_seed(0)
    x, index, src = pydist.randn(300, 130), pydist.randint(0, 130, (300, 130)), pydist.randn(300, 130)
    wide = pydist.randint(0, 300, (3000, 1)).expand(3000, 130)
    threads, bits = pydist.get_num_threads(), []
    try:
        for n in (1, 2, 3):
            pydist.set_num_threads(n)
            some = [x.scatter_reduce(dim, index, src, how), x.scatter_reduce(0, wide, src.repeat(10, 1), how)]
            bits.append([t.numpy().tobytes() for t in some])
    finally:
        pydist.set_num_threads(threads)
    assert bits[0] == bits[1] == bits[2]


def test_second_gradient():
    pydist.manual_seed(0)
    index = pydist.tensor([0, 2, 0, 1, 2])
    for how, own in itertools.product(HOW, (True, False)):
        x, src = (pydist.randn(n, dtype=pydist.float64).requires_grad_() for n in (4, 5))
        args = {"x": x.detach().numpy().copy(), "src": src.detach().numpy().copy()}
        got = []
        for lib in (pydist, torch):
            a, b = (lib.from_numpy(v.copy()).requires_grad_() for v in args.values())
            y = a.scatter_reduce(0, lib.from_numpy(index.numpy()), b, how, include_self=own)
            first = lib.autograd.grad((y * y * y).sum(), [a, b], create_graph=True)
            second = lib.autograd.grad(sum((g * g).sum() for g in first), [a, b])
            got.append([t.detach().numpy() for t in (*first, *second)])
        for ours, theirs in zip(*got):
            np.testing.assert_allclose(ours, theirs, 1e-10, 1e-10, err_msg=f"{how}, include_self={own}")


def test_no_dimensions_and_no_elements():
    two, zero = pydist.tensor(2.0), pydist.tensor(0)
    assert two.scatter_reduce(0, zero, pydist.tensor(5.0), "prod").tolist() == 10
    assert two.scatter_reduce(0, zero.reshape(1), pydist.tensor([5.0]), "mean").tolist() == 3.5
    assert two.reshape(1).scatter_reduce(0, zero, pydist.tensor(5.0), "amax").tolist() == [5]
    none = pydist.zeros(0, 3, dtype=pydist.int64)
    for x in (pydist.zeros(0, 3), pydist.ones(2, 3)):
        assert x.scatter_reduce(0, none, pydist.zeros(2, 3), "amin", include_self=False).equal(x)
    assert pydist.ones(3).index_reduce(0, none[:, 0], pydist.zeros(0), "prod").tolist() == [1, 1, 1]


def test_in_place_and_into_out():
    x, at, src = pydist.ones(3), pydist.tensor([0, 0, 2]), pydist.tensor([2.0, 3.0, 4.0])
    assert x.scatter_reduce_(0, at, src, "prod") is x and x.tolist() == [6, 1, 4]
    out = pydist.empty(3)
    assert pydist.scatter_reduce(x, 0, at, src, "amax", out=out) is out and out.tolist() == [6, 1, 4]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x, i, s: x.scatter_reduce(0, i, s, "most"), RuntimeError, "'most'.*sum.prod.mean.amax.amin"),
        (lambda x, i, s: x.scatter_reduce(0, i, s.double(), "sum"), RuntimeError, "src is float64, input float32"),
        (lambda x, i, s: x.scatter_reduce(0, i.float(), s, "sum"), RuntimeError, "index is float32"),
        (lambda x, i, s: x.scatter_reduce(0, i + 9, s, "amax"), RuntimeError, "index 9 is out of range"),
        (lambda x, i, s: x.scatter_reduce(0, i - 1, s, "prod"), RuntimeError, "index -1 is out of range"),
        (lambda x, i, s: x.scatter_reduce(0, i, s[:1], "sum"), RuntimeError, "expected index to fit into src"),
        (lambda x, i, s: x.scatter_reduce(2, i, s, "sum"), IndexError, "dimension 2"),
        (lambda x, i, s: x.bool().scatter_reduce(0, i, s.bool(), "mean"), RuntimeError, "bool.*mean"),
        (lambda x, i, s: (x * 1j).scatter_reduce(0, i, s * 1j, "amax"), RuntimeError, "complex64.*amax"),
        (lambda x, i, s: x.index_reduce(0, i[0, :2], s, "sum"), RuntimeError, "'sum'.*prod, mean, amax or amin"),
        (lambda x, i, s: x.index_reduce(0, i[0, :2], s[:, :2], "mean"), RuntimeError, r"\(2, 2\).*\(2, 4\)"),
    ],
)
def test_refused(call, error, words):
    x, index, src = pydist.zeros(3, 4), pydist.zeros(2, 4, dtype=pydist.int64), pydist.ones(2, 4)
    with pytest.raises(error, match=words):
        call(x, index, src)
