"""mx.gluon, mx.init, mx.metric and mx.lr_scheduler."""

import gzip
import math
import warnings

import numpy as np
import pytest

import pydist.compat.mxnet as mx
from pydist.compat.mxnet import autograd, gluon, nd
from pydist.compat.mxnet.gluon import nn
from pydist.compat.mxnet.gluon.data.vision import transforms

RNG = np.random.default_rng(5)


def net(prefix="net_"):
    made = nn.HybridSequential(prefix=prefix)
    with made.name_scope():
        made.add(nn.Conv2D(4, 3, padding=1, activation="relu"), nn.BatchNorm(), nn.MaxPool2D(), nn.Flatten())
        made.add(nn.Dense(8, activation="tanh"), nn.LayerNorm(), nn.Dropout(0.5), nn.Dense(3))
    return made


def test_shapes_and_names_are_found_in_the_first_forward(tmp_path):
    model = net()
    model.hybridize(static_alloc=True)
    model.initialize(mx.init.Xavier())
    with pytest.raises(gluon.DeferredInitializationError, match="net_conv0_weight"):
        model[0].weight.data()
    x = nd.array(RNG.standard_normal((2, 2, 6, 6)))
    y = model(x)
    assert y.shape == (2, 3) and model[0].weight.shape == (4, 2, 3, 3) and model[4].weight.shape == (8, 36)
    names = list(model.collect_params())
    assert names[:4] == ["net_conv0_weight", "net_conv0_bias", "net_batchnorm0_gamma", "net_batchnorm0_beta"]
    assert list(model.collect_params(".*dense1")) == ["net_dense1_weight", "net_dense1_bias"]
    path = str(tmp_path / "net.params")
    model.save_parameters(path)
    other = net("other_")
    other.load_parameters(path)
    assert np.array_equal(other(x).asnumpy(), y.asnumpy()) and "0.weight" in nd.load(path)
    model.collect_params().save(path, strip_prefix="net_")
    third = net("third_")
    third.load_parameters(path)
    assert np.array_equal(third(x).asnumpy(), y.asnumpy())
    smaller = nn.HybridSequential()
    smaller.add(nn.Conv2D(4, 3))
    model.save_parameters(path)
    with pytest.raises(ValueError, match=r"has '1.gamma' \(expected only names"):
        smaller.load_parameters(path)
    smaller.load_parameters(path, ignore_extra=True)
    model.add(nn.Dense(1))
    with pytest.raises(AssertionError, match=r"has no '8.weight'"):
        model.load_parameters(path)


def test_layers_next_to_numpy():
    x = RNG.standard_normal((2, 3, 6)).astype(np.float32)
    dense = nn.Dense(4, flatten=False, weight_initializer=mx.init.Normal(1.0), bias_initializer="ones")
    dense.initialize()
    got = dense(nd.array(x)).asnumpy()
    np.testing.assert_allclose(got, x @ dense.weight.data().asnumpy().T + 1, rtol=1e-4, atol=1e-5)
    conv = nn.Conv1D(2, 2, use_bias=False)
    conv.initialize(mx.init.One())
    np.testing.assert_allclose(
        conv(nd.array(x)).asnumpy()[:, 0], (x[:, :, 1:] + x[:, :, :-1]).sum(1), rtol=1e-4, atol=1e-5
    )
    last = nn.Conv2D(2, 1, layout="NHWC", weight_initializer="ones")
    last.initialize()
    z = RNG.standard_normal((1, 4, 5, 3)).astype(np.float32)
    np.testing.assert_allclose(last(nd.array(z)).asnumpy()[..., 1], z.sum(-1), rtol=1e-4, atol=1e-5)
    assert nn.AvgPool2D(3, 2, 1)(nd.ones((1, 1, 5, 5))).asnumpy()[0, 0, 0, 0] == np.float32(4 / 9)
    assert nn.AvgPool2D(3, 2, 1, count_include_pad=False)(nd.ones((1, 1, 5, 5))).asnumpy()[0, 0, 0, 0] == 1
    assert nn.MaxPool2D(2, ceil_mode=True)(nd.ones((1, 1, 5, 5))).shape == (1, 1, 3, 3)
    assert nn.GlobalAvgPool2D()(nd.array(z.transpose(0, 3, 1, 2))).shape == (1, 3, 1, 1)
    assert nn.LeakyReLU(0.5)(nd.array([-2.0, 2])).asnumpy().tolist() == [-1, 2]
    both = nn.HybridSequential()
    both.add(nn.HybridLambda("relu"), nn.HybridLambda(lambda F, t: F.exp(t) + 1))
    assert both(nd.array([-1.0])).asscalar() == 2 and nn.Lambda("relu")(nd.array([-1.0])).asscalar() == 0
    assert str(both).startswith("HybridSequential(\n  (0): HybridLambda(relu)")
    norm = nn.BatchNorm(gamma_initializer=mx.init.Constant(3.0))
    norm.initialize()
    np.testing.assert_allclose(norm(nd.array(x)).asnumpy(), 3 * x / np.sqrt(1 + 1e-5), rtol=1e-5)
    table = nn.Embedding(5, 2, sparse_grad=True)
    table.initialize()
    with autograd.record():
        table(nd.array([[1, 3], [1, 1]])).sum().backward()
    assert table.weight.grad().stype == "row_sparse" and table.weight.grad().asnumpy()[:, 0].tolist() == [0, 3, 0, 1, 0]


class Scaled(gluon.HybridBlock):
    """A user's block with parameters, a constant and a child."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.weight = self.params.get("weight", shape=(4, 0), allow_deferred_init=True)
            self.two = self.params.get_constant("two", [2.0])
            self.inner = nn.Dense(2)

    def hybrid_forward(self, F, x, scale=None, *, weight, two):
        return self.inner(F.FullyConnected(x, weight, no_bias=True, num_hidden=4) * two)


def test_blocks_of_users():
    block = Scaled(prefix="s_")
    block.initialize(mx.init.One())
    seen = []
    handle = block.register_forward_hook(lambda b, args, out: seen.append((b.name, args[0].shape, out.shape)))
    assert block(nd.ones((1, 3))).asnumpy().tolist() == [[24, 24]]
    handle.detach()
    block(nd.ones((1, 3)))
    assert seen == [("s", (1, 3), (1, 2))] and block.weight.shape == (4, 3)
    assert list(block.collect_params()) == ["s_weight", "s_two", "s_dense0_weight", "s_dense0_bias"]
    block.cast("float64")
    assert block(nd.ones((1, 3), dtype="float64")).dtype == np.float64
    with pytest.raises(TypeError, match=r"Scaled.inner: got int \(expected a Dense"):
        block.inner = 3
    with pytest.raises(ValueError, match="child Sequential"):
        block.more = nn.Sequential()
    block.layers = [nn.Dense(1)]
    with pytest.warns(UserWarning, match="Scaled.layers"):
        block.collect_params()
    shared = Scaled(prefix="t_", params=block.params)
    assert shared.weight is block.weight


def test_parameters():
    p = gluon.Parameter("w", shape=(2, 3), init=mx.init.Constant(2.0))
    with pytest.raises(RuntimeError, match="Parameter w has no values"):
        p.data()
    p.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
    assert [d.context for d in p.list_data()] == p.list_ctx() == [mx.cpu(0), mx.cpu(1)]
    p.set_data(nd.ones((2, 3)))
    assert p.data(mx.cpu(1)).asnumpy().sum() == 6
    with pytest.raises(RuntimeError, match=r"cpu\(4\)"):
        p.data(mx.cpu(4))
    p.reset_ctx(mx.cpu(4))
    assert p.data().context == mx.cpu(4)
    p.grad_req = "null"
    with pytest.raises(RuntimeError, match="no gradient"):
        p.grad()
    for wrong in ({"stype": "rows"}, {"grad_req": "both"}):
        with pytest.raises(AssertionError, match="Parameter x"):
            gluon.Parameter("x", shape=(1,), **wrong)
    with pytest.raises(AssertionError, match="expected a shape that fits"):
        p.shape = (2, 4)
    params = gluon.ParameterDict("net_")
    assert params.get("w", shape=(2, 0), allow_deferred_init=True) is params.get("w", shape=(2, 5))
    assert params["net_w"].shape == (2, 5) and str(params).splitlines()[0] == "net_ ("
    with pytest.raises(ValueError, match="expected known sizes"):
        gluon.Parameter("y", shape=(0, 1)).initialize()


LOSSES = {
    "L2Loss": lambda p, y: ((p - y) ** 2).mean(1) / 2,
    "L1Loss": lambda p, y: np.abs(p - y).mean(1),
    "HuberLoss": lambda p, y: np.where(np.abs(p - y) > 1, np.abs(p - y) - 0.5, (p - y) ** 2 / 2).mean(1),
    "HingeLoss": lambda p, y: np.maximum(0, 1 - p * y).mean(1),
    "SigmoidBinaryCrossEntropyLoss": lambda p, y: (np.log1p(np.exp(p)) - p * y).mean(1),
    "KLDivLoss": lambda p, y: (y * (np.log(y) - p)).mean(1),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name):
    p, y = RNG.standard_normal((4, 3)).astype(np.float32), RNG.uniform(0.1, 0.9, (4, 3)).astype(np.float32)
    want, weights = LOSSES[name](p, y), np.array([[1], [0], [2], [1]], np.float32)
    make = getattr(gluon.loss, name)
    np.testing.assert_allclose(make()(nd.array(p), nd.array(y)).asnumpy(), want, rtol=1e-4, atol=1e-6)
    got = make(weight=3.0)(nd.array(p), nd.array(y), nd.array(weights))
    np.testing.assert_allclose(got.asnumpy(), 3 * want * weights[:, 0], rtol=1e-4, atol=1e-6)


def test_cross_entropies():
    p, y = RNG.standard_normal((4, 3)).astype(np.float32), np.array([0, 2, 1, 1])
    logs = p - np.log(np.exp(p).sum(1, keepdims=True))
    want = -logs[range(4), y]
    loss = gluon.loss.SoftmaxCrossEntropyLoss
    np.testing.assert_allclose(loss()(nd.array(p), nd.array(y)).asnumpy(), want, rtol=1e-5)
    np.testing.assert_allclose(loss(sparse_label=False)(nd.array(p), nd.array(np.eye(3)[y])).asnumpy(), want, rtol=1e-5)
    np.testing.assert_allclose(loss(from_logits=True)(nd.array(logs), nd.array(y)).asnumpy(), want, rtol=1e-5)
    planes = nd.array(p).T.expand_dims(0)  # classes along axis 1
    assert loss(axis=1)(planes, nd.array(y[None])).asscalar() == pytest.approx(want.mean(), rel=1e-5)
    half, sure = gluon.loss.SigmoidBCELoss(), gluon.loss.SigmoidBCELoss(from_sigmoid=True)
    bits = nd.array(np.eye(3)[y])
    np.testing.assert_allclose(
        half(nd.array(p), bits).asnumpy(), sure(nd.array(p).sigmoid(), bits).asnumpy(), rtol=1e-4
    )
    weighted = half(nd.array(p), bits, None, nd.full((1, 3), 2.0)).asnumpy()
    extra = (np.log1p(np.exp(-p)) * np.eye(3)[y]).mean(1)
    np.testing.assert_allclose(weighted, half(nd.array(p), bits).asnumpy() + extra, rtol=1e-4)


def test_data(tmp_path):
    x, y = np.arange(20.0).reshape(10, 2), np.arange(10)
    data = gluon.data.ArrayDataset(x, nd.array(y))
    assert len(data) == 10 and data[3][1] == 3
    loader = gluon.data.DataLoader(data, 4, last_batch="discard")
    assert [b[1].asnumpy().tolist() for b in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]] and len(loader) == 2
    twice = data.transform(lambda a, b: (a * 2, b)).transform_first(lambda a: a + 1)
    for workers in (0, 2):
        batches = list(gluon.data.DataLoader(twice, 3, num_workers=workers, prefetch=1))
        assert np.array_equal(np.concatenate([b[0].asnumpy() for b in batches]), x * 2 + 1) and len(batches) == 4
    rolled = gluon.data.BatchSampler(gluon.data.SequentialSampler(10), 4, "rollover")
    assert [list(map(len, rolled)), len(rolled), list(map(len, rolled))] == [[4, 4], 3, [4, 4, 4]]
    order = [b.asnumpy().tolist() for b in gluon.data.DataLoader(gluon.data.SimpleDataset(list(y)), 10, shuffle=True)]
    assert sorted(order[0]) == list(range(10)) != order[0]
    assert [len(data.shard(3, i)) for i in range(3)] == [4, 3, 3] and len(data.filter(lambda s: s[1] > 6)) == 3
    assert len(data.take(4)) == 4
    for wrong in (
        {},
        {"batch_size": 1, "shuffle": True, "sampler": rolled},
        {"batch_size": 2, "batch_sampler": rolled},
    ):
        with pytest.raises(ValueError, match="DataLoader"):
            gluon.data.DataLoader(data, **wrong)
    with pytest.raises(AssertionError, match="lengths are"):
        gluon.data.ArrayDataset(x, y[:3])


def test_images(tmp_path):
    pixels = RNG.integers(0, 256, (3, 28, 28), dtype=np.uint8)
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(
        b"\0\0\x08\x03" + np.array(pixels.shape, ">u4").tobytes() + pixels.tobytes()
    )
    with gzip.open(tmp_path / "t10k-labels-idx1-ubyte.gz", "wb") as file:
        file.write(b"\0\0\x08\x01" + np.array([3], ">u4").tobytes() + bytes([5, 0, 9]))
    data = gluon.data.vision.MNIST(str(tmp_path), train=False)
    image, label = data[2]
    assert image.shape == (28, 28, 1) and image.dtype == np.uint8 and label == 9 and label.dtype == np.int32
    assert np.array_equal(image.asnumpy()[..., 0], pixels[2])
    change = transforms.Compose([transforms.ToTensor(), transforms.Normalize(0.5, 0.25)])
    found = next(iter(gluon.data.DataLoader(data.transform_first(change), 3)))[0].asnumpy()
    np.testing.assert_allclose(found[:, 0], (pixels / 255 - 0.5) / 0.25, rtol=1e-4, atol=1e-5)
    with pytest.raises(FileNotFoundError, match=r"FashionMNIST: no train-images.* \(expected it there; no downloads\)"):
        gluon.data.vision.FashionMNIST(str(tmp_path))
    rows = RNG.integers(0, 256, (2, 3073), dtype=np.uint8)
    (tmp_path / "test_batch.bin").write_bytes(rows.tobytes())
    data = gluon.data.vision.CIFAR10(str(tmp_path), train=False, transform=lambda d, y: (d.transpose((2, 0, 1)), y))
    assert np.array_equal(data[1][0].asnumpy().reshape(-1), rows[1, 1:]) and data[1][1] == rows[1, 0]
    (tmp_path / "test_batch.bin").write_bytes(b"too short")
    with pytest.raises(ValueError, match="9 bytes"):
        gluon.data.vision.CIFAR10(str(tmp_path), train=False)


def test_initializers():
    def filled(init, shape=(64, 32, 3, 3)):
        p = gluon.Parameter("weight", shape=shape)
        p.initialize(init)
        return p.data().asnumpy()

    mx.random.seed(2)
    limit = math.sqrt(3 / ((64 + 32) * 9 / 2))
    xavier = filled("xavier")
    assert np.abs(xavier).max() <= limit and np.abs(xavier).max() > 0.99 * limit
    assert filled(mx.init.Xavier("gaussian", "in", 2)).std() == pytest.approx(math.sqrt(2 / 288), rel=0.05)
    assert filled(mx.init.MSRAPrelu("out", 0.0)).std() == pytest.approx(math.sqrt(2 / 576), rel=0.05)
    assert filled(mx.init.Uniform(0.5)).max() == pytest.approx(0.5, rel=0.01) and filled("zeros").max() == 0
    assert filled(mx.init.Normal(3.0)).std() == pytest.approx(3, rel=0.05) and (filled(mx.init.Constant(4)) == 4).all()
    q = filled(mx.init.Orthogonal(scale=2.0), (4, 9))
    np.testing.assert_allclose(q @ q.T, 4 * np.eye(4), atol=1e-5)
    assert mx.init.create(mx.init.Xavier(magnitude=2).dumps()) == mx.init.Xavier(magnitude=2)
    with pytest.raises(ValueError, match="got 'xavir'"):
        filled("xavir")
    bias = nd.ones(3)
    mx.init.Xavier()("fc_bias", bias)
    assert not bias.asnumpy().any()


def test_metrics():
    label, pred = nd.array([0, 2, 1]), nd.array([[0.7, 0.2, 0.1], [0.3, 0.4, 0.3], [0.1, 0.8, 0.1]])
    both = mx.metric.create(["acc", "ce"])
    both.update([label], [pred])
    names, values = both.get()
    assert names == ["accuracy", "cross-entropy"]
    assert values == pytest.approx([2 / 3, -np.log([0.7, 0.3, 0.8]).mean()], rel=1e-5)
    top = mx.metric.TopKAccuracy(2)
    top.update(nd.array([1, 2]), nd.array([[0.5, 0.3, 0.2], [0.5, 0.3, 0.2]]))
    assert top.get() == ("top_k_accuracy_2", 0.5)
    for name, want in (("mae", 1.5), ("mse", 2.5), ("rmse", math.sqrt(2.5))):
        metric = mx.metric.create(name)
        metric.update(nd.array([1, 4]), nd.array([2, 2]))
        assert metric.get() == (name, pytest.approx(want)) and math.isnan(mx.metric.create(name).get()[1])
        metric.reset_local()
        assert math.isnan(metric.get()[1]) and metric.get_global()[1] == pytest.approx(want)
    loss = mx.metric.Loss()
    loss.update(None, [nd.array([1, 2]), nd.array([6])])
    assert loss.get() == ("loss", 3) and mx.metric.create(lambda a, b: 7).get()[0] == "custom(<lambda>)"
    with pytest.raises(ValueError, match="got 'accurate'"):
        mx.metric.create("accurate")
    with pytest.raises(ValueError, match="got 1 labels and 2 predictions"):
        loss = mx.metric.Accuracy()
        loss.update([label], [pred, pred])


def test_schedulers():
    rates = lambda s, n: [s(i) for i in range(1, n + 1)]
    assert rates(mx.lr_scheduler.FactorScheduler(2, 0.5, base_lr=1.0), 5) == [1, 1, 0.5, 0.5, 0.25]
    assert rates(mx.lr_scheduler.MultiFactorScheduler([1, 3], 0.1, 1.0), 4) == pytest.approx([1, 0.1, 0.1, 0.01])
    assert rates(mx.lr_scheduler.PolyScheduler(4, 1.0, 2), 5) == pytest.approx([9 / 16, 1 / 4, 1 / 16, 0, 0])
    cosine = mx.lr_scheduler.CosineScheduler(6, 1.0, 0.1, warmup_steps=2, warmup_begin_lr=0.0)
    assert rates(cosine, 6) == pytest.approx(
        [0.5, 1, *(0.1 + 0.45 * (1 + math.cos(math.pi * d)) for d in (0.25, 0.5, 0.75, 1))]
    )
    for wrong in (lambda: mx.lr_scheduler.FactorScheduler(0), lambda: mx.lr_scheduler.MultiFactorScheduler([3, 2]),
                  lambda: mx.lr_scheduler.PolyScheduler(0),
                  lambda: mx.lr_scheduler.FactorScheduler(1, 2.0)):  # fmt: skip
        with pytest.raises(ValueError, match="LRScheduler"):
            wrong()


def test_utils_and_models():
    parts = gluon.utils.split_and_load(nd.arange(10).reshape(5, 2), [mx.cpu(0), mx.cpu(1)], even_split=False)
    assert [p.shape for p in parts] == [(3, 2), (2, 2)] and parts[1].context == mx.cpu(1)
    with pytest.raises(ValueError, match="split_data"):
        gluon.utils.split_data(nd.ones((5, 2)), 2)
    arrays = [nd.array([3.0]), nd.array([0.0, 4.0])]
    assert gluon.utils.clip_global_norm(arrays, 1.0) == 5 and arrays[1].asnumpy()[1] == pytest.approx(0.8)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        gluon.utils.clip_global_norm([nd.array([math.nan])], 1.0)
    assert len(found) == 1
    model = gluon.model_zoo.vision.get_model("resnet18_v1", classes=3, thumbnail=True, prefix="r_")
    model.initialize(mx.init.Xavier())
    with autograd.record():
        out = model(nd.random.uniform(shape=(2, 3, 8, 8)))
    out.backward()
    names = list(model.collect_params())
    assert (
        out.shape == (2, 3) and len(names) == 98 and "r_stage1_conv0_weight" in names and names[-1] == "r_dense0_bias"
    )
    assert all(np.isfinite(p.grad().asnumpy()).all() for p in model.collect_params().values() if p.grad_req != "null")
    assert len(gluon.model_zoo.vision.resnet50_v1().collect_params()) == 299
    with pytest.raises(ValueError, match="get_model: got 'resnet19_v1'"):
        gluon.model_zoo.vision.get_model("resnet19_v1")
