"""Sparse tensors next to PyTorch's: arithmetic, sums, joins, products, coalescing, conversions, gradients, errors. And
beside dense NumPy, without PyTorch."""

import copy
import pickle
import warnings

import numpy as np
import pytest

import pydist
from pydist import sparse

INDEX, VALUES = np.array([[0, 2, 1, 2, 2], [1, 0, 3, 0, 2]]), np.array([1.0, 2.0, 3.0, 4.0, -1.0])


@pytest.fixture(scope="module")
def torch():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield pytest.importorskip("torch", reason="needs torch")


def drawn(rng, shape=(4, 5), dims=2, n=6, dtype="float64"):
    """(indices, values, shape) with repeated positions, in any order."""
    index = np.array([rng.integers(0, size, n) for size in shape[:dims]]).reshape(dims, n)
    values = rng.normal(size=(n, *shape[dims:])) * 4
    return index, values.astype(dtype), shape


def made(lib, parts, coalesced=False, requires_grad=False):
    index, values, shape = parts
    a = lib.sparse_coo_tensor(lib.tensor(index), lib.tensor(values), shape)
    a = a.coalesce() if coalesced else a
    return a.detach().requires_grad_() if requires_grad else a


def dense_of(parts):
    index, values, shape = parts
    out = np.zeros(shape, values.dtype)
    np.add.at(out, tuple(index), values)
    return out


def array(x):
    return (x.to_dense() if x.is_sparse else x).detach().numpy()


def alike(ours, theirs, exact=True):
    """The same layout, shape, dtype and elements; exact: also the same positions, in the same order, and flag."""
    assert ours.is_sparse == theirs.is_sparse and tuple(ours.shape) == tuple(theirs.shape)
    assert str(ours.dtype).split(".")[1] == str(theirs.dtype).split(".")[1]
    np.testing.assert_allclose(array(ours), array(theirs), rtol=1e-12, atol=1e-12)
    if ours.is_sparse:
        if exact:
            assert ours.is_coalesced() == (theirs.is_coalesced() or ours._nnz() < 2) and ours._nnz() == theirs._nnz()
        else:
            ours, theirs = ours.coalesce(), theirs.coalesce()
        np.testing.assert_array_equal(ours._indices().numpy(), theirs._indices().numpy())
        np.testing.assert_allclose(ours._values().numpy(), theirs._values().numpy(), rtol=1e-12, atol=1e-12)


# (name, function of the library, a, b and a dense tensor; whether PyTorch's positions are the same for uncoalesced
# operands, too)
CASES = [
    ("add", lambda lib, a, b, d: a + b, False),
    ("add alpha", lambda lib, a, b, d: lib.add(a, b, alpha=3), False),
    ("sub", lambda lib, a, b, d: a - b, False),
    ("torch.sub", lambda lib, a, b, d: lib.sub(a, b, alpha=2), False),
    ("add itself", lambda lib, a, b, d: a + a, True),
    ("add its multiple", lambda lib, a, b, d: lib.add(a, a * 3, alpha=2), True),
    ("dense add", lambda lib, a, b, d: d + a, True),
    ("dense sub", lambda lib, a, b, d: d - a, True),
    ("torch.add dense", lambda lib, a, b, d: lib.add(d, a, alpha=2), True),
    ("mul", lambda lib, a, b, d: a * b, True),
    ("torch.mul", lambda lib, a, b, d: lib.mul(b, a), True),
    ("mul mixed", lambda lib, a, b, d: a.coalesce() * b, True),
    ("mul mixed back", lambda lib, a, b, d: a * b.coalesce(), True),
    ("mul itself", lambda lib, a, b, d: a * a, True),
    ("mul number", lambda lib, a, b, d: a * 2 + 3 * a, True),
    ("mul dense", lambda lib, a, b, d: a * d, True),
    ("dense mul", lambda lib, a, b, d: d * a, True),
    ("mul 0-d", lambda lib, a, b, d: a * lib.tensor(2.0), True),
    ("div", lambda lib, a, b, d: a / 4, True),
    ("div 0-d", lambda lib, a, b, d: lib.div(a, lib.tensor(3.0)), True),
    ("neg", lambda lib, a, b, d: -a, True),
    ("torch.neg", lambda lib, a, b, d: lib.neg(a), True),
    ("coalesce", lambda lib, a, b, d: a.coalesce(), True),
    ("to_dense", lambda lib, a, b, d: a.to_dense(), True),
    ("clone", lambda lib, a, b, d: lib.clone(a), True),
    ("sum", lambda lib, a, b, d: a.sum(), True),
    ("torch.sum", lambda lib, a, b, d: lib.sum(a), True),
    ("sparse.sum", lambda lib, a, b, d: lib.sparse.sum(a), True),
    ("sparse.sum 0", lambda lib, a, b, d: lib.sparse.sum(a, 0), True),
    ("sparse.sum 1", lambda lib, a, b, d: lib.sparse.sum(a, dim=-1), True),
    ("sparse.sum all", lambda lib, a, b, d: lib.sparse.sum(a, list(range(a.dim()))), True),
    ("sum keepdim", lambda lib, a, b, d: a.sum(0, keepdim=True), True),
    ("stack", lambda lib, a, b, d: lib.stack([a, b, a]), True),
    ("stack 1", lambda lib, a, b, d: lib.stack((a, b), 1), True),
    ("stack -1", lambda lib, a, b, d: lib.stack((a, b), dim=-1), True),
    ("cat", lambda lib, a, b, d: lib.cat([a, b, a]), True),
    ("cat 1", lambda lib, a, b, d: lib.cat((a, b), 1), True),
    ("cat -1", lambda lib, a, b, d: lib.cat((a, b), dim=-1), True),
    ("transpose", lambda lib, a, b, d: a.transpose(0, 1), True),
]


@pytest.mark.parametrize("name", [name for name, _, _ in CASES])
def test_values_and_positions_as_torch(torch, name):
    _, f, same_places = next(case for case in CASES if case[0] == name)
    tried = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        shape, dims = [((4, 5), 2), ((3, 4, 2), 2), ((3, 2, 4), 3), ((1, 1), 2)][seed % 4]
        n, m = rng.integers(0, 9, 2)
        parts = drawn(rng, shape, dims, n), drawn(rng, shape, dims, m)
        dense = rng.normal(size=shape)
        for coalesced in (False, True):
            ours, theirs = (
                f(lib, *(made(lib, p, coalesced) for p in parts), lib.tensor(dense)) for lib in (pydist, torch)
            )
            alike(ours, theirs, exact=coalesced or same_places)
            tried += 1
    assert tried == 24


def test_dtypes_as_torch(torch):
    rng = np.random.default_rng(0)
    for left in ("float32", "float64", "int64", "int32"):
        for right in ("float32", "float64", "int64", "int32"):
            parts = drawn(rng, dtype=left), drawn(rng, dtype=right)
            for f in (
                lambda lib, a, b: a + b,
                lambda lib, a, b: a * b,
                lambda lib, a, b: a * 2,
                lambda lib, a, b: a * 2.0,
                lambda lib, a, b: a / 2,
                lambda lib, a, b: lib.cat([a, b]),
                lambda lib, a, b: lib.stack([a, b]),
                lambda lib, a, b: lib.sparse.sum(a),
                lambda lib, a, b: lib.sparse.sum(a, 0),
                lambda lib, a, b: a.sum(0),
                lambda lib, a, b: b.to_dense() + a,
            ):
                ours, theirs = (f(lib, *(made(lib, p, True) for p in parts)) for lib in (pydist, torch))
                assert str(ours.dtype).split(".")[1] == str(theirs.dtype).split(".")[1]
                np.testing.assert_allclose(array(ours), array(theirs), rtol=1e-5, atol=1e-5)


# Functions whose gradients PyTorch has, too. It keeps the positions that only the other operand of a sum has; these
# gradients have those of the leaf alone.
GRADIENTS = [
    lambda lib, a, b, d: lib.sparse.sum(a),
    lambda lib, a, b, d: (a.to_dense() * d).sum(),
    lambda lib, a, b, d: ((a * 2 - a / 4).to_dense() * d).sum(),
    lambda lib, a, b, d: (a.coalesce().values() ** 2).sum(),
    lambda lib, a, b, d: ((a + b).to_dense() * d).sum(),
    lambda lib, a, b, d: lib.sparse.sum(lib.add(a, b)),
    lambda lib, a, b, d: ((a - b).to_dense() * d).sum(),
    lambda lib, a, b, d: lib.sparse.sum(a * b),
    lambda lib, a, b, d: ((a.coalesce() * b.coalesce()).to_dense() * d).sum(),
    lambda lib, a, b, d: lib.sparse.sum(a * a),
    lambda lib, a, b, d: lib.sparse.sum(a * d),
    lambda lib, a, b, d: lib.sparse.sum(lib.stack([a, b, a], 1)),
    lambda lib, a, b, d: (lib.sparse.sum(a, 0).to_dense() * d[0]).sum(),
    lambda lib, a, b, d: (lib.sparse.mm(a, d.T) * d[:, :4]).sum(),
    lambda lib, a, b, d: lib.sparse.sum(-a.clone()) + lib.sparse.sum(a * 3),
    lambda lib, a, b, d: lib.sparse.sum(a.t() * d.T),
    lambda lib, a, b, d: ((d + a) * d).sum(),
]


@pytest.mark.parametrize("k", range(len(GRADIENTS)))
def test_gradients_as_torch(torch, k):
    for seed in range(8):
        rng = np.random.default_rng([seed, k])
        parts = drawn(rng, n=rng.integers(1, 9)), drawn(rng, n=rng.integers(1, 9))
        dense = rng.normal(size=(4, 5))
        for coalesced in (False, True):
            found = []
            for lib in (pydist, torch):
                leaves = [made(lib, p, coalesced, requires_grad=True) for p in parts]
                d = lib.tensor(dense).requires_grad_()
                assert all(leaf.is_leaf and leaf.grad is None for leaf in leaves)
                GRADIENTS[k](lib, *leaves, d).backward()
                found.append((leaves, d.grad))
            (ours, our_d), (theirs, their_d) = found
            assert (our_d is None) == (their_d is None)
            if our_d is not None:
                np.testing.assert_allclose(our_d.numpy(), array(their_d), rtol=1e-12, atol=1e-12)
            for a, b in zip(ours, theirs):
                if b.grad is None:
                    assert a.grad is None
                    continue
                assert a.grad.is_sparse and a.grad.is_coalesced() and a.grad._nnz() == a.detach().coalesce()._nnz()
                mask = torch.zeros(a.shape, dtype=torch.float64)
                mask[tuple(torch.tensor(a.grad.indices().numpy()))] = 1
                expected = (b.grad.to_dense() if b.grad.is_sparse else b.grad) * mask
                np.testing.assert_allclose(array(a.grad), expected.numpy(), rtol=1e-12, atol=1e-12)


def test_positions_of_gradients_as_torch(torch):
    """Where the operands have the same positions, as in PyTorch."""
    for coalesced in (False, True):
        found = []
        for lib in (pydist, torch):
            index, values = [[0, 1, 1], [2, 0, 2]], ([1, 2, 3], [4, 5, 6])
            a, b = (lib.sparse_coo_tensor(index, v, (3, 3), dtype=lib.float64) for v in values)
            a, b = ((t.coalesce() if coalesced else t).detach().requires_grad_() for t in (a, b))
            lib.sparse.sum((a + b) * b).backward()
            found.append((a.grad, b.grad))
        for ours, theirs in zip(*found):
            alike(ours, theirs, exact=False)
            assert ours._nnz() == theirs.coalesce()._nnz()


def test_beside_numpy():
    rng = np.random.default_rng(1)
    for shape, dims in (((6, 7), 2), ((3, 4, 5), 2), ((9,), 1), ((2, 3, 2, 2), 3)):
        for _ in range(10):
            p, q = (drawn(rng, shape, dims, rng.integers(0, 20)) for _ in "ab")
            a, b, x, y = made(pydist, p), made(pydist, q), dense_of(p), dense_of(q)
            for made_, expected in (
                (a + b, x + y),
                (a - b, x - y),
                (a.coalesce() + b.coalesce(), x + y),
                (a * b, x * y),
                (a.coalesce() * b.coalesce(), x * y),
                (-a * 3 / 2, -x * 1.5),
                (pydist.cat([a, b], -1), np.concatenate([x, y], -1)),
                (pydist.stack([a, b], 1), np.stack([x, y], 1)),
                (sparse.sum(a, 0), x.sum(0)),
                (a.sum(-1), x.sum(-1)),
                (sparse.sum(a), x.sum()),
                (pydist.tensor(y) + a, x + y),
            ):
                np.testing.assert_allclose(array(made_), expected, rtol=1e-12, atol=1e-12)
            c = a.coalesce()
            flat = np.ravel_multi_index(c.indices().numpy(), shape[:dims]) if c._nnz() else np.zeros(0)
            assert (np.diff(flat) > 0).all() and c._nnz() == len(np.unique(p[0], axis=1).T)


def test_gradients_beside_differences():
    """The gradient of the values, by differences of the dense function."""
    rng = np.random.default_rng(2)
    p, q = drawn(rng, n=7), drawn(rng, n=5)
    w = rng.normal(size=(4, 5))

    def loss(values):
        x, y = dense_of((p[0], values, p[2])), dense_of(q)
        return (w * ((x + y) * x - x / 3)).sum()

    v = pydist.tensor(p[1], requires_grad=True)
    a, b = pydist.sparse_coo_tensor(pydist.tensor(p[0]), v, p[2]), made(pydist, q)
    assert not a.is_leaf and a.grad is None
    (((a + b) * a - a / 3).to_dense() * pydist.tensor(w)).sum().backward()
    step = 1e-6
    for k in range(7):
        e = np.eye(7)[k] * step
        assert v.grad[k].item() == pytest.approx((loss(p[1] + e) - loss(p[1] - e)) / (2 * step), rel=1e-6, abs=1e-6)


def test_in_place_as_torch(torch):
    rng = np.random.default_rng(3)
    p, q = drawn(rng), drawn(rng)
    dense = rng.normal(size=(4, 5))
    found = []
    for lib in (pydist, torch):
        a, b = made(lib, p), made(lib, q)
        same, shared = a, a.detach()
        a *= 3
        a /= 2
        kept = [shared.to_dense()]
        a += b
        a -= b * 2
        a *= lib.tensor(dense)
        kept.append(a.to_dense())
        assert a is same
        d = lib.tensor(dense)
        assert d.add_(a, alpha=2) is d
        d.T.sub_(a.t())
        a.zero_()
        assert a._nnz() == 0 and a.is_coalesced()
        found.append([*kept, d])
        for wrong in (lambda a: a.add_(b), lambda a: a.mul_(2), lambda a: a.zero_()):
            with pytest.raises(RuntimeError, match="leaf"):
                wrong(made(lib, p, requires_grad=True))
        whole = made(lib, drawn(rng, dtype="int64"))
        for wrong in (lambda: whole.add_(b), lambda: whole.div_(2), lambda: whole.mul_(b)):
            with pytest.raises(RuntimeError):
                wrong()
    for ours, theirs in zip(*found):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-12)
    leaf = made(pydist, p, requires_grad=True)
    with pydist.no_grad():
        leaf += leaf
    assert leaf.requires_grad and leaf.is_leaf and sparse.leaf_of(leaf._value) is leaf


def test_leaves():
    p = drawn(np.random.default_rng(4))
    v = pydist.tensor(p[1])
    a = pydist.sparse_coo_tensor(pydist.tensor(p[0]), v, p[2], requires_grad=True)
    assert isinstance(a, pydist.Tensor) and pydist.is_tensor(a) and type(a) is sparse.SparseTensor
    assert a.is_leaf and not v.requires_grad and sparse.leaf_of(a._value) is a
    assert sparse.leaf_of(v) is None and sparse.leaf_of((a * 2)._value) is None
    for derived in (a.t(), a.coalesce(), a.clone(), a.float(), a * 1):
        assert derived.requires_grad and not derived.is_leaf and derived.grad is None
    assert not a.detach().requires_grad and not a._values().requires_grad
    b = a * 2
    b.retain_grad()
    sparse.sum(b * b).backward()
    np.testing.assert_allclose(array(a.grad), 8 * dense_of(p))
    np.testing.assert_allclose(array(b.grad), 4 * dense_of(p))
    sparse.sum(a).backward()
    np.testing.assert_allclose(array(a.grad), 8 * dense_of(p) + (dense_of(p) != 0))
    a.grad = a.grad * 2
    np.testing.assert_allclose(array(a.grad), 16 * dense_of(p) + 2 * (dense_of(p) != 0))
    a.grad = None
    assert a.grad is None
    with pytest.raises(RuntimeError, match="grad: .*expected"):
        a.grad = made(pydist, drawn(np.random.default_rng(0), (5, 4)))
    with pytest.raises(RuntimeError, match="expected"):
        pydist.sparse_coo_tensor([[0]], [1], (2,), requires_grad=True)


def test_pickles_and_copies():
    p = drawn(np.random.default_rng(5))
    for a in (made(pydist, p), made(pydist, p, True), made(pydist, p, requires_grad=True)):
        for b in (pickle.loads(pickle.dumps(a)), copy.deepcopy(a)):
            assert type(b) is type(a) and b.is_coalesced() == a.is_coalesced() and b.shape == a.shape
            assert b.requires_grad == a.requires_grad and b.is_leaf and b._nnz() == a._nnz()
            np.testing.assert_array_equal(array(b), array(a))
            assert b._values().data_ptr() != a._values().data_ptr()
    sparse.sum(b * b).backward()
    assert sparse.leaf_of(b._value) is b and b.grad is not None and a.grad is None
    with pytest.raises(RuntimeError, match="expected"):
        copy.deepcopy(a * 2)
    rebuild, (index, values, size, coalesced) = a.__reduce__()
    for wrong in (
        (index, values[1:], size),
        (index + 9, values, size),
        (index, values, size[:1]),
        (index[0], values, size),
    ):
        with pytest.raises(RuntimeError, match="expected"):
            rebuild(*wrong, coalesced)


def test_errors_as_torch(torch):
    def of(lib):
        a = lib.sparse_coo_tensor(lib.tensor(INDEX), lib.tensor(VALUES), (3, 4))
        other = lib.sparse_coo_tensor([[0], [0]], [1.0], (4, 4))
        line = lib.sparse_coo_tensor([[0]], lib.ones(1, 4), (3, 4))
        d = lib.ones(3, 4)
        return [
            lambda: a + 1, lambda: 1 + a, lambda: a + d, lambda: a - d, lambda: d[0] + a, lambda: a + other,
            lambda: lib.add(a, other), lambda: a * other, lambda: a * lib.ones(2), lambda: a / a,
            lambda: a / d, lambda: lib.cat([a, d]), lambda: lib.cat([a, other], 1), lambda: lib.cat([a, line]),
            lambda: lib.cat([a, a], 5), lambda: lib.stack([a, a], 5), lambda: lib.stack([a, other]),
            lambda: lib.sparse.sum(a, 2), lambda: lib.sparse.sum(d), lambda: a == a, lambda: 2 / a, lambda: a.mean(),
            lambda: lib.exp(a), lambda: lib.sigmoid(a), lambda: a.max(), lambda: bool(a), lambda: a.indices(),
            lambda: a.values(), lambda: a @ d, lambda: lib.sparse_coo_tensor([[0, 1]], [1.0], (2,)),
        ]  # fmt: skip

    assert len(of(pydist)) == len(of(torch))
    for k, (ours, theirs) in enumerate(zip(of(pydist), of(torch))):
        with pytest.raises((RuntimeError, IndexError, TypeError)) as expected:
            theirs()
        kind = next(c for c in (NotImplementedError, IndexError, RuntimeError) if issubclass(expected.type, c))
        with pytest.raises(kind) as found:
            ours()
        assert "expected" in str(found.value) or k in (26, 27), (k, str(found.value))


def test_products(torch):
    found = []
    for lib in (pydist, torch):
        v = lib.tensor(VALUES).requires_grad_()
        d = lib.tensor(np.random.default_rng(0).normal(size=(4, 3))).requires_grad_()
        a = lib.sparse_coo_tensor(lib.tensor(INDEX), v, (3, 4))
        c = a.coalesce()
        assert a.is_sparse and not a.is_coalesced() and c.is_coalesced() and tuple(a.shape) == (3, 4)
        assert a._nnz() == 5 and c._nnz() == 4 and a.dim() == 2 and len(a) == 3 and a.numel() == 12
        y = lib.spmm(a, d)
        (y * y).sum().backward()
        found.append([
            y, v.grad, d.grad, c.indices(), c.values(), a @ d[:, 0], lib.sparse.mm(a, d), lib.mm(a, d),
            lib.matmul(a, d), d.T @ a.t(), (c @ lib.eye(4, dtype=lib.float64).to_sparse()).to_dense(),
            lib.sparse.softmax(c, 1).to_dense(),
            lib.eye(3).to_sparse().indices(), lib.tensor(np.arange(12.0).reshape(3, 4)).sparse_mask(c).values(),
            lib.sparse_coo_tensor((2, 3)).to_dense(), lib.sparse_coo_tensor(size=(2, 3)).to_dense(),
            lib.sparse_coo_tensor([[0]], 2.0, (2,)).to_dense(),
            lib.sparse.addmm(lib.ones(3, 3, dtype=lib.float64), a, d, beta=2, alpha=3), a.float().to_dense(),
        ])  # fmt: skip
    for ours, theirs in zip(*found, strict=True):
        assert tuple(ours.shape) == tuple(theirs.shape)
        np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), rtol=1e-12)


def test_old_names_and_errors():
    a = pydist.sparse.FloatTensor(pydist.tensor(INDEX), pydist.tensor(VALUES), pydist.Size([3, 4]))
    assert a.dtype is pydist.float32 and "nnz=5" in repr(a) and "requires_grad" not in repr(a)
    assert "requires_grad=True" in repr(a.requires_grad_()) and "grad_fn=<" in repr(a * 2)
    for wrong in (
        lambda: pydist.sparse_coo_tensor(INDEX, VALUES, (2, 4)),
        lambda: pydist.sparse_coo_tensor(INDEX[:, :3], VALUES),
        lambda: pydist.sparse_coo_tensor([[-1]], [1.0], (2,)),
        lambda: pydist.sparse_coo_tensor([[0], [0]], [1.0], (1 << 40, 1 << 40)).to_dense(),
    ):
        with pytest.raises(RuntimeError, match="expected"):
            wrong()
    with pytest.raises(AttributeError):
        _ = a.no_such_method
    assert (a == None) is False and a != "a" and len({a, a}) == 1  # noqa: E711


def test_embedding_bag_in_the_old_order(torch):
    weight, index, offsets = np.random.default_rng(6).normal(size=(10, 3)), [1, 2, 4, 5, 4, 3, 2, 9], [0, 4]
    found = []
    for lib in (pydist, torch):
        w, i, o = lib.tensor(weight, requires_grad=True), lib.tensor(index), lib.tensor(offsets)
        with pytest.warns(UserWarning, match="embedding_bag"):
            y = lib.nn.functional.embedding_bag(w, i, o, mode="sum")
        (y * y).sum().backward()
        found.append((y.detach().numpy(), w.grad.numpy()))
    for ours, theirs in zip(*found):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)


def test_a_sparse_leaf_in_a_graph_is_the_whole_tensor():
    x = pydist.sparse_coo_tensor([[0, 1], [1, 0]], [3.0, 4.0], (2, 2), requires_grad=True)
    nodes, found = [(x * 2).grad_fn], []
    while nodes:
        node = nodes.pop()
        found += [node.variable] if not node.next_functions else []
        nodes += [n for n, _ in node.next_functions if n is not None]
    assert len(found) == 1 and found[0] is x
