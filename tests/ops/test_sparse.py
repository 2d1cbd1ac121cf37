"""pydist.sparse next to torch's: products and their gradients, coalescing, conversions, errors."""

import numpy as np
import pytest

import pydist

torch = pytest.importorskip("torch", reason="needs torch")
INDEX, VALUES = np.array([[0, 2, 1, 2, 2], [1, 0, 3, 0, 2]]), np.array([1.0, 2.0, 3.0, 4.0, -1.0])


def test_as_torch():
    found = []
    for lib in (pydist, torch):
        v, d = (
            lib.tensor(VALUES).requires_grad_(),
            lib.tensor(np.random.default_rng(0).normal(size=(4, 3))).requires_grad_(),
        )
        a = lib.sparse_coo_tensor(lib.tensor(INDEX), v, (3, 4))
        c = a.coalesce()
        assert (
            a.is_sparse
            and not a.is_coalesced()
            and c.is_coalesced()
            and tuple(a.shape) == (3, 4)
            and a._nnz() == 5
            and c._nnz() == 4
            and a.dim() == 2
        )
        y = lib.spmm(a, d)
        (y * y).sum().backward()
        found.append([y, v.grad, d.grad, c.indices(), c.values(), a.to_dense(), a.t().to_dense(), (a * 2).to_dense(), (a + a).to_dense(), (a @ d[:, 0]), lib.sparse.mm(a, d), lib.sparse.sum(a), a.double().to_dense(),
                      lib.sparse.softmax(c, 1).to_dense(), lib.eye(3).to_sparse().indices(), lib.tensor(np.arange(12.0).reshape(3, 4)).sparse_mask(c).values(), torch_like_mm(lib, a, d), lib.sparse_coo_tensor((2, 3)).to_dense()])  # fmt: skip
    for ours, theirs in zip(*found, strict=True):
        assert tuple(ours.shape) == tuple(theirs.shape)
        np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), rtol=1e-12)


def torch_like_mm(lib, a, d):
    return lib.mm(a, d)


def test_old_names_and_errors():
    a = pydist.sparse.FloatTensor(pydist.tensor(INDEX), pydist.tensor(VALUES), pydist.Size([3, 4]))
    assert a.dtype is pydist.float32 and "nnz=5" in repr(a)
    for wrong in (
        lambda: pydist.sparse_coo_tensor(INDEX, VALUES, (2, 4)),
        lambda: pydist.sparse_coo_tensor(INDEX[:, :3], VALUES),
        lambda: a @ pydist.zeros(3, 2),
        lambda: a.indices(),
        lambda: pydist.sparse_coo_tensor([[-1]], [1.0], (2,)),
    ):
        with pytest.raises(RuntimeError):
            wrong()
