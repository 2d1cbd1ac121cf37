"""mx.nd and mx.autograd next to NumPy."""

import copy
import pickle

import numpy as np
import pytest

import pydist.compat.mxnet as mx
from pydist.compat.mxnet import autograd, nd

RNG = np.random.default_rng(7)
A, B = (RNG.uniform(0.5, 2.0, (3, 4)).astype(np.float32) for _ in range(2))
C = RNG.standard_normal((2, 3, 4)).astype(np.float32)
ROWS = np.array([2, 0, 1], np.float32)


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


# an expression of F and arrays -> the same with NumPy
CASES = {
    "elementwise": (lambda F, a, b, c: F.log(a) + F.sqrt(b) * F.sigmoid(a) - F.relu(-b) + F.rsqrt(a) + F.tanh(b),
                    lambda a, b, c: np.log(a) + np.sqrt(b) / (1 + np.exp(-a)) + 1 / np.sqrt(a) + np.tanh(b)),
    "arithmetic": (lambda F, a, b, c: (2 - a) * b / 3 + 1 / a - (-b) ** 2 + a % b + 2**a,
                   lambda a, b, c: (2 - a) * b / 3 + 1 / a - b**2 + a % b + 2**a),
    "broadcast": (lambda F, a, b, c: F.broadcast_add(a, b.slice_axis(0, 0, 1)) * c,
                  lambda a, b, c: (a + b[:1]) * c),
    "comparison": (lambda F, a, b, c: (a > b) + 2 * (a <= b) + 4 * (a == a) + 8 * F.broadcast_not_equal(a, b),
                   lambda a, b, c: (a > b) + 2.0 * (a <= b) + 4 + 8.0 * (a != b)),
    "maximum": (lambda F, a, b, c: F.maximum(a, b) - F.minimum(a, 1),
                lambda a, b, c: np.maximum(a, b) - np.minimum(a, 1)),
    "sum": (lambda F, a, b, c: c.sum(), lambda a, b, c: c.sum().reshape(1)),
    "sum axis": (lambda F, a, b, c: c.sum(axis=(0, 2)), lambda a, b, c: c.sum((0, 2))),
    "sum exclude": (lambda F, a, b, c: c.sum(axis=1, exclude=True), lambda a, b, c: c.sum((0, 2))),
    "mean keepdims": (lambda F, a, b, c: F.mean(c, axis=-1, keepdims=True), lambda a, b, c: c.mean(-1, keepdims=True)),
    "max min prod": (lambda F, a, b, c: c.max(axis=1) + c.min(axis=1) + a.prod(axis=0),
                     lambda a, b, c: c.max(1) + c.min(1) + a.prod(0)),
    "norm": (lambda F, a, b, c: F.norm(c, axis=2) + F.norm(a, ord=1).slice_axis(0, 0, 1),
             lambda a, b, c: np.linalg.norm(c, axis=2) + np.abs(a).sum()),
    "argmax": (lambda F, a, b, c: F.argmax(c, axis=2), lambda a, b, c: c.argmax(2).astype(np.float32)),
    "transpose": (lambda F, a, b, c: c.transpose((2, 0, 1)), lambda a, b, c: c.transpose(2, 0, 1)),
    "T": (lambda F, a, b, c: a.T + F.swapaxes(b, 0, 1), lambda a, b, c: a.T + b.T),
    "reshape codes": (lambda F, a, b, c: F.reshape(c, (-3, -1)), lambda a, b, c: c.reshape(6, 4)),
    "reshape split": (lambda F, a, b, c: c.reshape((0, -4, 1, -1, -2)), lambda a, b, c: c.reshape(2, 1, 3, 4)),
    "reshape reverse": (lambda F, a, b, c: F.reshape(c, (-1, 0), reverse=True), lambda a, b, c: c.reshape(6, 4)),
    "concat": (lambda F, a, b, c: F.concat(a, b, dim=1), lambda a, b, c: np.concatenate([a, b], 1)),
    "stack": (lambda F, a, b, c: F.stack(a, b, axis=1), lambda a, b, c: np.stack([a, b], 1)),
    "split": (lambda F, a, b, c: F.split(c, 2, axis=2)[1], lambda a, b, c: c[:, :, 2:]),
    "split squeeze": (lambda F, a, b, c: F.split(c, 2, axis=0, squeeze_axis=True)[1], lambda a, b, c: c[1]),
    "expand squeeze": (lambda F, a, b, c: F.squeeze(a.expand_dims(0).expand_dims(3)), lambda a, b, c: a),
    "tile repeat": (lambda F, a, b, c: F.tile(a, (2, 1)) + F.repeat(b, 2, axis=0),
                    lambda a, b, c: np.tile(a, (2, 1)) + b.repeat(2, 0)),
    "flip slice": (lambda F, a, b, c: F.flip(c, axis=1).slice((None, 0), (None, 2)), lambda a, b, c: c[:, ::-1][:, :2]),
    "slice back": (lambda F, a, b, c: F.slice(a, (2, None), (None, 0), (-1, -2)), lambda a, b, c: a[2::-1, :0:-2]),
    "slice_like": (lambda F, a, b, c: F.slice_like(c, a, axes=(1,)), lambda a, b, c: c[:, :3]),
    "broadcast_to": (lambda F, a, b, c: a.expand_dims(0).broadcast_to((2, 0, 0)) + F.broadcast_like(a, c),
                     lambda a, b, c: np.stack([a, a]) * 2),
    "clip where": (lambda F, a, b, c: F.where(a > b, F.clip(a, 0.8, 1.2), b),
                   lambda a, b, c: np.where(a > b, np.clip(a, 0.8, 1.2), b)),
    "where rows": (lambda F, a, b, c: F.where(F.array([1, 0, 1]), a, b), lambda a, b, c: np.stack([a[0], b[1], a[2]])),
    "take": (lambda F, a, b, c: F.take(a, F.array(ROWS)) + a.take(F.array([5, -1, 0])),
             lambda a, b, c: a[[2, 0, 1]] + a[[2, 0, 0]]),
    "take wrap": (lambda F, a, b, c: c.take(F.array([[-1, 4]]), axis=1, mode="wrap"), lambda a, b, c: c[:, [[2, 1]]]),
    "pick": (lambda F, a, b, c: F.pick(a, F.array(ROWS), axis=1), lambda a, b, c: a[range(3), [2, 0, 1]]),
    "gather_nd": (lambda F, a, b, c: F.gather_nd(a, F.array([[0, 2], [1, 3]])), lambda a, b, c: a[[0, 2], [1, 3]]),
    "one_hot": (lambda F, a, b, c: F.one_hot(F.array(ROWS), 4, 2.0, -1.0),
                lambda a, b, c: np.eye(4)[[2, 0, 1]] * 3 - 1),
    "topk": (lambda F, a, b, c: F.topk(c, k=2, ret_typ="value"), lambda a, b, c: -np.sort(-c)[..., :2]),
    "topk mask": (lambda F, a, b, c: F.topk(a, k=1, ret_typ="mask"), lambda a, b, c: np.eye(4)[a.argmax(1)]),
    "sort": (lambda F, a, b, c: F.sort(c, axis=1, is_ascend=False) + c.argsort(axis=1),
             lambda a, b, c: -np.sort(-c, 1) + c.argsort(1)),
    "dot": (lambda F, a, b, c: F.dot(a, b.T) + F.dot(a, b, transpose_b=True), lambda a, b, c: 2 * a @ b.T),
    "dot dims": (lambda F, a, b, c: F.dot(c, a.T), lambda a, b, c: c @ a.T),
    "batch_dot": (lambda F, a, b, c: F.batch_dot(c, c, transpose_b=True), lambda a, b, c: c @ c.transpose(0, 2, 1)),
    "softmax": (lambda F, a, b, c: F.softmax(c, axis=1) + F.log_softmax(c) + F.softmax(c, temperature=2.0),
                lambda a, b, c: softmax(c, 1) + np.log(softmax(c)) + softmax(c / 2)),
    "fully connected": (lambda F, a, b, c: F.FullyConnected(c, F.ones((5, 12)), F.arange(5), num_hidden=5),
                        lambda a, b, c: c.reshape(2, 12).sum(1, keepdims=True) + np.arange(5)),
    "activations": (lambda F, a, b, c: F.Activation(c, "softrelu") + F.LeakyReLU(c, slope=0.1),
                    lambda a, b, c: np.log1p(np.exp(c)) + np.where(c > 0, c, 0.1 * c)),
    "layer norm": (lambda F, a, b, c: F.LayerNorm(c, F.ones(4), F.zeros(4)),
                   lambda a, b, c: (c - c.mean(-1, keepdims=True)) / np.sqrt(c.var(-1, keepdims=True) + 1e-5)),
    "embedding": (lambda F, a, b, c: F.Embedding(F.array([[1, 0]]), a, 3, 4), lambda a, b, c: a[[[1, 0]]]),
    "pooling": (lambda F, a, b, c: F.Pooling(c, kernel=(2,), stride=(2,), pool_type="avg"),
                lambda a, b, c: c.reshape(2, 3, 2, 2).mean(3)),
    "global pooling": (lambda F, a, b, c: F.Pooling(c, global_pool=True), lambda a, b, c: c.max(2, keepdims=True)),
    "convolution": (lambda F, a, b, c: F.Convolution(c, F.ones((2, 3, 2)), F.arange(2), kernel=(2,), num_filter=2),
                    lambda a, b, c: (c[:, :, 1:] + c[:, :, :-1]).sum(1, keepdims=True) + np.arange(2).reshape(2, 1)),
    "smooth_l1": (lambda F, a, b, c: F.smooth_l1(c), lambda a, b, c: np.where(abs(c) < 1, c * c / 2, abs(c) - 0.5)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_next_to_numpy(name):
    ours, theirs = CASES[name]
    found, want = ours(nd, *map(nd.array, (A, B, C))), np.asarray(theirs(A, B, C))
    assert found.shape == want.shape and found.dtype == np.float32
    np.testing.assert_allclose(found.asnumpy(), want, rtol=2e-5, atol=1e-5)


def test_dtypes_and_contexts():
    assert nd.array(np.arange(3)).dtype == np.float32 and nd.array([1], dtype="int32").dtype == np.int32
    whole = nd.array([7, 8], dtype="int32")
    assert (whole / 2).dtype == np.int32 and (whole / 2).asnumpy().tolist() == [3, 4]
    assert (whole > 7).dtype == np.int32 and (whole + 1.5).dtype == np.int32
    x = nd.ones((2,), ctx=mx.cpu(3), dtype="float16")
    assert (x * 2).context == mx.cpu(3) and x.as_in_context(mx.cpu(3)) is x and x.copyto(mx.cpu(1)).ctx == mx.cpu(1)
    with mx.cpu(5):
        assert nd.zeros(1).context == mx.cpu(5) == mx.current_context()
    with pytest.raises(mx.MXNetError, match=r"gpu\(99\): got \d+ GPUs"):
        nd.ones(1, ctx=mx.gpu(99))
    assert repr(nd.array([[1, 2]])) == "\n[[1. 2.]]\n<NDArray 1x2 @cpu(0)>"


def test_indexing_reads_and_writes_like_numpy():
    for key in [1, -1, slice(1, None), slice(None, None, -2), (slice(None), 2), (0, 1), (Ellipsis, 0), None,
                (slice(None), None), [2, 0], (np.array([0, 2]), np.array([1, 3])),
                (slice(2, None, -1), slice(1, 3))]:  # fmt: skip
        x, want = nd.array(A), A.copy()
        assert np.array_equal(x[key].asnumpy(), np.atleast_1d(want[key])), key
        x[key], want[key] = 5, 5
        assert np.array_equal(x.asnumpy(), want), key
    x = nd.array(A)
    x[nd.array([0, 2])] = nd.array(B[:2])
    assert np.array_equal(x.asnumpy()[[0, 2]], B[:2]) and x[0][1].asscalar() == B[0, 1]
    x[1:2] = B[:1]
    view = x[1:]
    view[:] = 0
    assert not x.asnumpy()[1:].any()
    with pytest.raises(IndexError, match=r"got 3 indices \(expected at most 2"):
        x[0, 0, 0]
    with pytest.raises(ValueError, match="NDArray"):
        x[:] = nd.ones((7, 7))


def test_results_share_no_memory_with_inputs():
    x = nd.array(A)
    for other in (x.T, nd.identity(x), x.astype("float32"), nd.Dropout(x), x.copy(), nd.flatten(x), copy.deepcopy(x)):
        other[:] = 0
    assert np.array_equal(x.asnumpy(), A)
    x.reshape((-1,))[:] = 0
    assert not x.asnumpy().any()


def test_in_place_and_out():
    x = same = nd.array(A)
    x += 1
    x *= nd.array(B)
    nd.exp(x, out=x)
    np.testing.assert_allclose(same.asnumpy(), np.exp((A + 1) * B), rtol=1e-5)
    with pytest.raises(mx.MXNetError, match=r"out has shape \(2,\)"):
        nd.exp(x, out=nd.zeros(2))
    with pytest.raises(mx.MXNetError, match="dot: got shapes"):
        nd.dot(x, x)
    with pytest.raises(ValueError, match="reshape: got"):
        x.reshape((5, -1))
    with pytest.raises(ValueError, match="more are ambiguous"):
        bool(x)
    assert bool(nd.array([2])) and float(nd.array([2])) == 2 and range(5)[nd.array([2], dtype="int32")] == 2


def test_gradients():
    x = nd.array(A)
    x.attach_grad()
    held = x.grad
    for _ in range(2):
        with autograd.record():
            y = (x * x).sum() + nd.dot(x, nd.array(B.T)).sum()
        y.backward()
        assert x.grad is held
        np.testing.assert_allclose(held.asnumpy(), 2 * A + B.sum(0), rtol=1e-5)
    with pytest.raises(mx.MXNetError, match="backward"):
        y.backward()
    with pytest.raises(mx.MXNetError, match="backward: no head"):
        (x * 2).backward()
    x.attach_grad("add")
    for _ in range(3):
        with autograd.record():
            with autograd.pause():
                z = x * 10
            y = x + z + x.detach()
        y.backward(nd.array(B))
    np.testing.assert_allclose(x.grad.asnumpy(), 3 * B, rtol=1e-6)
    x -= 0.1 * x.grad  # a leaf may change outside of record()
    assert x.grad is not None
    with autograd.record(), pytest.raises(mx.MXNetError, match="in-place"):
        x += 1


def test_modes_grad_and_functions():
    assert not autograd.is_recording() and not autograd.is_training()
    with autograd.record(train_mode=False):
        assert autograd.is_recording() and not autograd.is_training()
        with autograd.train_mode():
            assert autograd.is_training() and (nd.Dropout(nd.ones(1000)) == 0).sum().asscalar() > 300
    x = nd.array([1.0, 2.0])
    x.attach_grad()
    with autograd.record():
        first = autograd.grad(x**3, x, create_graph=True)
    first.backward()
    assert x.grad.asnumpy().tolist() == [6, 12]

    class Double(autograd.Function):
        def forward(self, a):
            self.save_for_backward(a)
            return a * 2

        def backward(self, da):
            return da * 7 * self.saved_tensors[0]

    with autograd.record():
        Double()(x).backward()
    assert x.grad.asnumpy().tolist() == [7, 14]


def test_sparse_arrays_keep_their_methods():
    x = mx.nd.sparse.row_sparse_array((A[:2], [3, 1]), shape=(5, 4))
    assert (
        x.stype == "row_sparse" and x.indices.asnumpy().tolist() == [1, 3] and x.copyto(mx.cpu(1)).stype == "row_sparse"
    )
    assert np.array_equal(x.data.asnumpy(), A[[1, 0]])
    kept = mx.nd.sparse.retain(x, nd.array([3]))
    assert kept.indices.asnumpy().tolist() == [3] and kept.tostype("default").stype == "default"
    m = mx.nd.sparse.csr_matrix(([1.0, 2.0], [2, 0], [0, 1, 1, 2]), shape=(3, 4))
    assert m.asnumpy().tolist() == [[0, 0, 1, 0], [0] * 4, [2, 0, 0, 0]] and m.indptr.asnumpy().tolist() == [0, 1, 1, 2]
    with pytest.raises(ValueError, match="tostype"):
        x.tostype("rows")


def test_files(tmp_path):
    path = str(tmp_path / "arrays")
    nd.save(path, {"a": nd.array(A), "b": nd.ones(2).tostype("row_sparse")})
    found = nd.load(path)
    assert np.array_equal(found["a"].asnumpy(), A) and found["b"].stype == "row_sparse"
    nd.save(path, [nd.array(A, dtype="int32")])
    assert nd.load(path)[0].dtype == np.int32
    (tmp_path / "net.params").write_bytes((0x112).to_bytes(8, "little") + bytes(16))
    with pytest.raises(NotImplementedError, match=r"\.params format is not part of pydist"):
        nd.load(str(tmp_path / "net.params"))
    x = pickle.loads(pickle.dumps(nd.array(A, ctx=mx.cpu(2))))
    assert np.array_equal(x.asnumpy(), A) and x.context == mx.cpu(2)


def test_random_arrays():
    def draws():
        mx.random.seed(3)
        return [nd.random.uniform(2, 4, shape=(1000,)), nd.random.normal(1, 2, (1000,)),
                nd.random.randint(0, 3, (1000,)),
                nd.random.exponential(2.0, shape=(1000,)), nd.random.poisson(4.0, shape=(1000,))]  # fmt: skip

    first, second = draws(), draws()
    for x, again, mean in zip(first, second, (3, 1, 1, 2, 4)):
        assert np.array_equal(x.asnumpy(), again.asnumpy()) and abs(x.asnumpy().mean() - mean) < 0.3
    assert first[2].dtype == np.int32 and set(first[2].asnumpy()) == {0, 1, 2}
    assert nd.random.normal(nd.array([0, 100]), nd.array([1, 1]), shape=5).shape == (2, 5)
    assert nd.random.multinomial(nd.array([[0, 1.0], [1, 0]]), shape=4).asnumpy().tolist() == [[1] * 4, [0] * 4]
    assert sorted(nd.random.shuffle(nd.arange(9)).asnumpy()) == list(range(9))


def test_batch_norm_keeps_mxnets_running_variance():
    x, mean, var = nd.array(C), nd.zeros(3), nd.ones(3)
    with autograd.record():
        y = nd.BatchNorm(x, nd.full(3, 9.0), nd.zeros(3), mean, var, momentum=0.75, eps=1e-5)
    want = (C - C.mean((0, 2), keepdims=True)) / np.sqrt(C.var((0, 2), keepdims=True) + 1e-5)
    np.testing.assert_allclose(y.asnumpy(), want, rtol=1e-4, atol=1e-5)  # fix_gamma: 9 is taken as 1
    np.testing.assert_allclose(var.asnumpy(), 0.75 + 0.25 * C.var((0, 2)), rtol=1e-5)
    y = nd.BatchNorm(x, nd.full(3, 9.0), nd.zeros(3), mean, var, fix_gamma=False, eps=0.0)
    want = 9 * (C - mean.asnumpy().reshape(3, 1)) / np.sqrt(var.asnumpy().reshape(3, 1))
    np.testing.assert_allclose(y.asnumpy(), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", "sym symbol mod np npx io image rnn contrib operator profiler".split())
def test_what_is_not_there_says_so(name):
    with pytest.raises(NotImplementedError, match=rf"mx\.{name} is not part of pydist"):
        getattr(mx, name)


def test_unknown_names_and_parts_of_modules_say_so():
    with pytest.raises(AttributeError, match=r"pydist has no mxnet\.nothing"):
        mx.nothing
    for call in (lambda: nd.contrib, lambda: nd.SoftmaxOutput, lambda: mx.gluon.rnn, lambda: mx.gluon.SymbolBlock(1, 2),
                 lambda: mx.gluon.data.vision.CIFAR100, lambda: mx.gluon.model_zoo.vision.vgg16,
                 lambda: mx.autograd.get_symbol(1), lambda: mx.gluon.nn.HybridSequential().export("a")):  # fmt: skip
        with pytest.raises(NotImplementedError, match="is not part of pydist"):
            call()
    with pytest.raises(TypeError, match="dtype: got 'float99'"):
        nd.ones(1, dtype="float99")
    with pytest.raises(KeyError, match="Context: got 'tpu'"):
        mx.Context("tpu")
