"""mx.kv, mx.optimizer and gluon.Trainer, in one process and in several workers."""

import math

import numpy as np
import pytest

import pydist.compat.mxnet as mx
from pydist.compat.mxnet import autograd, gluon, nd
from pydist.testing import run_ranks

SHAPE = (2, 3)
CPUS = [mx.cpu(0), mx.cpu(1)]


def whole(x):
    return x.asnumpy().tolist()


def test_local_stores():
    kv = mx.kv.create("device")
    kv.init(3, nd.ones(SHAPE))
    kv.init([5, 7], [nd.zeros(SHAPE)] * 2)
    out = [nd.empty(SHAPE, ctx=c) for c in CPUS]
    kv.push(3, [nd.ones(SHAPE, ctx=c) * 2 for c in CPUS])
    kv.pull(3, out)
    assert (kv.type, kv.rank, kv.num_workers) == ("device", 0, 1) and all((o.asnumpy() == 4).all() for o in out)
    kv.set_updater(lambda key, gradient, value: value.__iadd__(gradient * key))
    kv.push([5, 7], [[nd.ones(SHAPE)] * 2, [nd.ones(SHAPE)]])
    pairs = [[nd.empty(SHAPE)] * 2, [nd.empty(SHAPE, dtype="float64")]]
    kv.pull([5, 7], out=pairs)
    assert pairs[0][1].asnumpy()[0, 0] == 10 and pairs[1][0].asnumpy()[0, 0] == 7
    values = [nd.ones(SHAPE), nd.ones(SHAPE)]
    kv.pushpull(5, values)
    assert values[1].asnumpy()[1, 2] == 20


def test_row_sparse_pulls():
    kv = mx.kv.create()
    kv.init("e", nd.arange(6).reshape(3, 2).tostype("row_sparse"))
    outs = [nd.zeros((3, 2), stype="row_sparse") for _ in range(2)]
    kv.row_sparse_pull("e", outs, row_ids=[nd.array([2]), nd.array([[0, 2]])])
    assert whole(outs[0]) == [[0, 0], [0, 0], [4, 5]] and whole(outs[1]) == [[0, 1], [0, 0], [4, 5]]
    kv.pull("e", outs[0])  # row_sparse arrays are left out
    assert whole(outs[0])[0] == [0, 0]
    kv.pull("e", outs[0], ignore_sparse=False)
    assert whole(outs[0])[0] == [0, 1]
    with pytest.raises(mx.MXNetError, match="row_sparse_pull: key 'e' has 1 arrays of default"):
        kv.row_sparse_pull("e", nd.zeros((3, 2)), row_ids=nd.array([1]))


def test_errors_of_stores():
    kv = mx.kv.create()
    kv.init(1, nd.ones(SHAPE))
    for call in (
        lambda: kv.init(1, nd.ones(SHAPE)),
        lambda: kv.push("a", nd.ones(SHAPE)),
        lambda: kv.pull(2, nd.ones(SHAPE)),
        lambda: kv.push([1, 2], nd.ones(SHAPE)),
        lambda: kv.pull(1, nd.ones((7,))),
        lambda: mx.kv.create("dist_snyc"),
    ):
        with pytest.raises(mx.MXNetError, match="expected"):
            call()
    for call in (lambda: kv.push(1, 3.0), lambda: kv.set_optimizer("sgd"), lambda: mx.kv.create(3)):
        with pytest.raises(TypeError, match="expected"):
            call()


def test_stores_of_users():
    @mx.kv.KVStoreBase.register
    class Mine(mx.kv.KVStoreBase):
        @staticmethod
        def is_capable(capability):
            return False

        def broadcast(self, key, value, out, priority=0):
            for each in out:
                each[:] = value

        def pushpull(self, key, value, out=None, priority=0):
            total = sum(value[1:], value[0].copy())
            for each in value:
                each[:] = total * 10

    assert mx.kv.create("teststore").type == "teststore"
    x = gluon.Parameter("x", shape=(2,))
    x.initialize("zeros", ctx=CPUS)
    trainer = gluon.Trainer([x], "sgd", {"learning_rate": 1.0}, kvstore=mx.kv.create("mine"))
    with autograd.record():
        for w in x.list_data():
            (w * 3).backward()
    trainer.step(2)
    assert whole(x.data(CPUS[1])) == [-30, -30]
    with pytest.raises(ValueError, match="update_on_kvstore=True with mine"):
        gluon.Trainer([x], "sgd", kvstore=mx.kv.create("mine"), update_on_kvstore=True).step(1)
    del mx.kv.KVStoreBase.kv_registry["mine"]


# MXNet's rules, each with its default options, on numbers of float64: (states, rule(w, g, states, t) -> w)
def _adam(w, g, s, t):
    s[0], s[1] = 0.9 * s[0] + 0.1 * g, 0.999 * s[1] + 0.001 * g * g
    return w - 0.1 * math.sqrt(1 - 0.999**t) / (1 - 0.9**t) * s[0] / (np.sqrt(s[1]) + 1e-8)


def _momentum(w, g, s, t):
    s[0] = 0.9 * s[0] - 0.1 * g
    return w + s[0]


def _nag(w, g, s, t):
    s[0] = 0.9 * s[0] - 0.1 * g
    return w + 0.9 * s[0] - 0.1 * g


def _adagrad(w, g, s, t):
    s[0] = s[0] + g * g
    return w - 0.1 * g / np.sqrt(s[0] + 1e-7)


def _rmsprop(w, g, s, t):
    s[0] = 0.9 * s[0] + 0.1 * g * g
    return w - 0.1 * g / np.sqrt(s[0] + 1e-8)


def _centered(w, g, s, t):
    s[0], s[1] = 0.9 * s[0] + 0.1 * g * g, 0.9 * s[1] + 0.1 * g
    s[2] = 0.9 * s[2] - 0.1 * g / np.sqrt(s[0] - s[1] ** 2 + 1e-8)
    return w + s[2]


def _adadelta(w, g, s, t):
    s[0] = 0.9 * s[0] + 0.1 * g * g
    step = np.sqrt(s[1] + 1e-5) / np.sqrt(s[0] + 1e-5) * g
    s[1] = 0.9 * s[1] + 0.1 * step * step
    return w - step


def _ftrl(w, g, s, t):
    s[0] = s[0] + g - (np.sqrt(s[1] + g * g) - np.sqrt(s[1])) * w / 0.1
    s[1] = s[1] + g * g
    return np.where(np.abs(s[0]) > 0.01, (np.sign(s[0]) * 0.01 - s[0]) / ((1 + np.sqrt(s[1])) / 0.1), 0)


def _adamax(w, g, s, t):
    s[0], s[1] = 0.9 * s[0] + 0.1 * g, np.maximum(0.999 * s[1], np.abs(g))
    return w - 0.1 / (1 - 0.9**t) * s[0] / s[1]


def _nadam(w, g, s, t):
    now, then = (0.9 * (1 - 0.5 * 0.96 ** (i * 0.004)) for i in (t, t + 1))
    s[2] = (s[2] if t > 1 else 1.0) * now
    s[0], s[1] = 0.9 * s[0] + 0.1 * g, 0.999 * s[1] + 0.001 * g * g
    m = (1 - now) * g / (1 - s[2]) + then * s[0] / (1 - s[2] * then)
    return w - 0.1 * m / (np.sqrt(s[1] / (1 - 0.999**t)) + 1e-8)


RULES = {
    "sgd": ({}, lambda w, g, s, t: w - 0.1 * g),
    "sgd momentum": ({"momentum": 0.9}, _momentum),
    "nag": ({"momentum": 0.9}, _nag),
    "adam": ({}, _adam),
    "adam wd": ({"wd": 0.1}, lambda w, g, s, t: _adam(w, g + 0.1 * w, s, t)),
    "adagrad": ({}, _adagrad),
    "rmsprop": ({}, _rmsprop),
    "rmsprop centered": ({"centered": True}, _centered),
    "adadelta": ({}, _adadelta),
    "ftrl": ({}, _ftrl),
    "adamax": ({}, _adamax),
    "nadam": ({}, _nadam),
}


def steps_by_hand(rule, w, grads):
    states = [np.zeros_like(w) for _ in range(3)]
    for t, g in enumerate(grads, 1):
        w = rule(w, g, states, t)
    return w


@pytest.mark.parametrize("kind", ["device", "dist_sync"])
@pytest.mark.parametrize("name", RULES)
def test_optimizers(name, kind):
    """In this process, and as rules of pydist.distributed.ps."""
    options, rule = RULES[name]
    w, grads = np.linspace(0.5, 1.5, 4), [np.array([1.0, -2, 3, 0.5]) / t for t in (1, 2, 3, 4)]
    kv, out = mx.kv.create(kind), nd.zeros(4)
    kv.init("w", nd.array(w))
    kv.set_optimizer(mx.optimizer.create(name.split()[0], learning_rate=0.1, rescale_grad=0.5, **options))
    for g in grads:
        kv.pushpull("w", nd.array(2 * g), out)
    np.testing.assert_allclose(out.asnumpy(), steps_by_hand(rule, w, grads), rtol=2e-3 if "delta" in name else 2e-4)


def test_optimizers_options():
    def one(name, w, g, state=None, **options):
        optimizer = mx.optimizer.create(name, **options)
        w = nd.array(w)
        optimizer.update(0, w, nd.array(g), optimizer.create_state(0, w))
        return whole(w)

    assert one("sgd", [1.0], [10.0], learning_rate=0.5, wd=0.5, clip_gradient=1.0) == [0.25]
    assert one("test", [1.0], [2.0], rescale_grad=3) == [7]
    with pytest.raises(ValueError, match="got 'sgdd'"):
        mx.optimizer.create("sgdd")
    with pytest.raises(TypeError, match=r"SGD: got \['momentun'\]"):
        mx.optimizer.SGD(momentun=0.9)
    half = mx.optimizer.SGD(learning_rate=1e-4, multi_precision=True)
    w = nd.ones(1, dtype="float16")
    state = half.create_state_multi_precision(0, w)
    for _ in range(10):
        half.update_multi_precision(0, w, nd.ones(1, dtype="float16"), state)
    assert w.asscalar() == np.float16(0.999)  # each step alone would be lost
    lazy = mx.optimizer.SGD(momentum=0.5, learning_rate=1.0)
    updater, w = mx.optimizer.get_updater(lazy), nd.ones((3, 1))
    for rows in ([[1], [0], [1]], [[0], [0], [1]]):
        updater(0, nd.array(rows).tostype("row_sparse"), w)
    assert whole(w) == [[0], [1], [-1.5]]
    named = mx.optimizer.SGD(learning_rate=1.0, wd=0.5, param_idx2name={0: "a_weight", 1: "a_bias"})
    named.set_lr_mult({"a_weight": 0.1})
    assert (named._get_lr(0), named._get_wd(0), named._get_lr(1), named._get_wd(1)) == (0.1, 0.5, 1.0, 0.0)

    @mx.optimizer.register
    class Halves(mx.optimizer.Optimizer):
        def update(self, index, weight, grad, state):
            weight[:] = weight / 2

    kv = mx.kv.create()
    kv.init(0, nd.ones(1))
    kv.set_optimizer(mx.optimizer.create("halves"))
    out = nd.zeros(1)
    kv.pushpull(0, nd.ones(1), out)
    assert out.asscalar() == 0.5
    with pytest.raises(NotImplementedError, match="Halves on a distributed store is not part of pydist"):
        mx.kv.create("dist_sync").set_optimizer(mx.optimizer.create("halves"))
    del mx.optimizer.Optimizer.opt_registry["halves"]
    for other in (mx.optimizer.AdaDelta(wd=0.1), mx.optimizer.RMSProp(clip_weights=1.0)):
        with pytest.raises(NotImplementedError, match="with wd or clip_weights on a distributed store"):
            mx.kv.create("dist_sync").set_optimizer(other)


def small(ctx):
    net = gluon.nn.HybridSequential(prefix="n_")
    with net.name_scope():
        net.add(gluon.nn.Dense(4, activation="tanh"), gluon.nn.Dense(1))
    mx.random.seed(4)
    net.initialize(mx.init.Uniform(0.5), ctx=ctx)
    return net


def rows(worker, step):
    rng = np.random.default_rng(100 * step + worker)
    return nd.array(rng.standard_normal((4, 3))), nd.array(rng.standard_normal((4, 1)))


def trained(worker, workers, ctx, kvstore, steps=4, **options):
    """The parameters after some steps; `workers`: the rows of how many this process takes."""
    net, loss = small(ctx), gluon.loss.L2Loss()
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.05}, kvstore=kvstore, **options)
    for step in range(steps):
        parts = [rows(w, step) for w in range(worker, worker + workers)]
        x, y = (nd.concat(*each, dim=0) for each in zip(*parts))
        with autograd.record():
            losses = [loss(net(a), b) for a, b in zip(*(gluon.utils.split_and_load(t, ctx) for t in (x, y)))]
        autograd.backward(losses)
        trainer.step(8)
    return [p.data(ctx[0]).asnumpy() for p in net.collect_params().values()]


def test_all_ways_to_train_give_the_same():
    """One context, two of them, and two workers; the store or each worker steps."""
    want = trained(0, 2, [mx.cpu()], "device")
    ways = [trained(0, 2, CPUS, "device"), trained(0, 2, CPUS, "local", update_on_kvstore=False)]
    for kvstore in ("dist_sync", "dist_device_sync"):
        for on in (None, False):
            ways += run_ranks(2, lambda rank: trained(rank, 1, [mx.cpu(rank)], kvstore, update_on_kvstore=on))
    for found in ways:
        for a, b in zip(found, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_workers_push_and_pull():
    def work(rank):
        kv, out, log = mx.kv.create("dist_sync"), nd.zeros(SHAPE), []
        kv.init(["3", "9"], [nd.ones(SHAPE) * (rank + 1), nd.ones(SHAPE, dtype="float16").tostype("row_sparse")])
        optimizer = mx.optimizer.create("test", rescale_grad=2)
        kv.set_optimizer(optimizer)
        for _ in range(2):
            kv.push("3", [nd.ones(SHAPE)] * (rank + 1))
            kv.pull("3", out)
            log.append(out.asnumpy()[0, 0])
        part = nd.zeros(SHAPE, stype="row_sparse")
        kv.push("9", nd.ones(SHAPE, dtype="float16").tostype("row_sparse"))
        kv.row_sparse_pull("9", part, row_ids=nd.array([1]))
        kv._barrier()
        return kv.rank, kv.num_workers, log, whole(part)

    assert run_ranks(2, work) == [(rank, 2, [7, 13], [[0] * 3, [5] * 3]) for rank in range(2)]


def test_learning_rates_and_batch_sizes_reach_the_store_of_workers():
    def work(rank):
        x = gluon.Parameter("x", shape=(1,))
        x.initialize("zeros")
        halve = mx.lr_scheduler.FactorScheduler(1, 0.5, base_lr=1.0)
        trainer = gluon.Trainer([x], "sgd", {"learning_rate": 1.0, "lr_scheduler": halve}, kvstore="dist_sync")
        for batch in (2, 2, 4):
            with autograd.record():
                (x.data() * 1).backward()
            trainer.step(batch)
        return x.data().asscalar()

    assert run_ranks(2, work) == [-1.625, -1.625]


def test_trainers_state_and_errors(tmp_path):
    path = str(tmp_path / "states")
    for ctx, on in ((CPUS, None), (CPUS, False), (CPUS[:1], None)):
        x = gluon.Parameter("x", shape=(2,), lr_mult=0.5)
        x.initialize("zeros", ctx=ctx)
        trainer = gluon.Trainer({"x": x}, "sgd", {"learning_rate": 1.0, "momentum": 0.5}, update_on_kvstore=on)

        def step(batch=len(ctx), x=x, trainer=trainer):
            with autograd.record():
                for w in x.list_data():
                    (w * 2).backward()
            trainer.step(batch)
            return x.list_data()[-1].asnumpy()[0]

        assert step() == -1
        trainer.save_states(path)
        assert step() == -2.5
        trainer.load_states(path)
        assert step() == -4
        trainer.set_learning_rate(0.0)
        assert trainer.learning_rate == 0 and step() == -4.75
        if not trainer._update_on_kvstore:
            before = whole(x.list_data()[0])
            trainer.step(1, ignore_stale_grad=True)
            assert whole(x.list_data()[0]) == before
            with pytest.raises(UserWarning, match="no backward"):
                trainer.step(1)
    for wrong, error in (([3], ValueError), ("x", ValueError)):
        with pytest.raises(error, match="Trainer: got a"):
            gluon.Trainer(wrong, "sgd")
    trainer = gluon.Trainer([x], "sgd", kvstore=mx.kv.create("device"))
    with pytest.raises(AssertionError, match="update_on_kvstore=False"):
        trainer.update(1)
    sparse = gluon.Parameter("s", shape=(4, 1), stype="row_sparse", grad_stype="row_sparse")
    sparse.initialize("ones")
    with pytest.raises(RuntimeError, match="expected a dense one"):
        sparse.data()
    trainer = gluon.Trainer([sparse], "sgd", {"learning_rate": 1.0})
    with autograd.record():
        loss = nd.Embedding(nd.array([1, 1]), sparse.row_sparse_data(nd.array([1]))).sum()
    loss.backward()
    trainer.step(1)
    assert whole(sparse.row_sparse_data(nd.arange(4))) == [[1], [-1], [1], [1]]
    with pytest.raises(ValueError, match="sparse weights"):
        gluon.Trainer([gluon_row_sparse()], "sgd", update_on_kvstore=False).step(1)


def gluon_row_sparse():
    p = gluon.Parameter("r", shape=(2, 1), stype="row_sparse")
    p.initialize("ones")
    return p
