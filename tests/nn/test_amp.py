"""Mixed precision: which ops autocast casts (against torch), the scaler, and devices that are names."""

import copy
import pickle
import subprocess
import sys
import warnings

import numpy as np
import pytest

import pydist
from lib import beside
from pydist import amp, nn
from pydist.nn import functional as F

# What each call computes in, of x (float32) and h (x in the low dtype).
CALLS = {
    "linear": lambda L, a: L.nn.functional.linear(a["x"], a["w"], a["b"]),
    "matmul": lambda L, a: a["x"] @ a["x"].t(),
    "mm": lambda L, a: L.mm(a["x"], a["h"].t()),
    "bmm": lambda L, a: L.bmm(a["x3"], a["x3"].transpose(1, 2)),
    "einsum": lambda L, a: L.einsum("ij,kj->ik", a["x"], a["x"]),
    "float64 stays": lambda L, a: a["x"].double() @ a["x"].double().t(),
    "conv2d": lambda L, a: L.nn.functional.conv2d(a["im"], a["k"]),
    "conv1d": lambda L, a: L.nn.functional.conv1d(a["im"][:, :, 0], a["k"][:, :, 0]),
    "batch_norm": lambda L, a: L.nn.functional.batch_norm(a["imh"], a["z"], a["o"], a["o"], a["z"]),
    "batch_norm, training": lambda L, a: L.nn.functional.batch_norm(
        a["imh"], a["z"].clone(), a["o"].clone(), a["o"], a["z"], training=True
    ),
    "layer_norm": lambda L, a: L.nn.functional.layer_norm(a["h"], (4,), a["w"][0], a["w"][1]),
    "layer_norm of float32": lambda L, a: L.nn.functional.layer_norm(a["x"], (4,), a["w"][0], a["w"][1]),
    "group_norm": lambda L, a: L.nn.functional.group_norm(a["imh"], 1, a["o"], a["z"]),
    "softmax": lambda L, a: L.softmax(a["h"], -1),
    "log_softmax": lambda L, a: L.log_softmax(a["h"], -1),
    "sum": lambda L, a: a["h"].sum(),
    "mean": lambda L, a: a["h"].mean(),
    "prod": lambda L, a: a["h"].prod(0),
    "cumsum": lambda L, a: a["h"].cumsum(0),
    "exp": lambda L, a: a["h"].exp(),
    "pow": lambda L, a: a["h"] ** 2,
    "gelu": lambda L, a: L.nn.functional.gelu(a["h"]),
    "add": lambda L, a: a["h"] + a["x"],
    "in place": lambda L, a: a["x"].clone().add_(a["h"]),
    "cat": lambda L, a: L.cat([a["h"], a["x"]]),
    "stack": lambda L, a: L.stack([a["h"], a["x"]]),
    "where": lambda L, a: L.where(a["h"] > 0, a["h"], a["x"]),
    "mse_loss": lambda L, a: L.nn.functional.mse_loss(a["h"], a["h"] * 2),
    "l1_loss": lambda L, a: L.nn.functional.l1_loss(a["h"], a["h"] * 2),
    "smooth_l1_loss": lambda L, a: L.nn.functional.smooth_l1_loss(a["h"], a["h"] * 2),
    "huber_loss": lambda L, a: L.nn.functional.huber_loss(a["h"], a["h"] * 2),
    "cross_entropy": lambda L, a: L.nn.functional.cross_entropy(a["h"], a["t"]),
    "nll_loss": lambda L, a: L.nn.functional.nll_loss(a["h"], a["t"]),
    "bce with logits": lambda L, a: L.nn.functional.binary_cross_entropy_with_logits(a["h"], a["h"].sigmoid()),
    "embedding": lambda L, a: L.nn.functional.embedding(a["t"], a["w"]),
    "addmm": lambda L, a: L.addmm(a["b"], a["x"], a["w"].t()),
    "baddbmm": lambda L, a: L.baddbmm(a["x3"][:, :, :3], a["x3"], a["x3"].transpose(1, 2)),
    "addbmm": lambda L, a: L.addbmm(a["x"][:3, :3], a["x3"], a["x3"].transpose(1, 2)),
    "mv": lambda L, a: L.mv(a["x"], a["w"][0]),
    "mv of low": lambda L, a: L.mv(a["h"], a["h"][0]),
    "dot": lambda L, a: L.dot(a["b"], a["b"]),
    "vecdot": lambda L, a: L.linalg.vecdot(a["x"], a["x"]),
    "prelu": lambda L, a: L.nn.functional.prelu(a["im"], a["o"]),
    "trace": lambda L, a: a["h"].trace(),
    "cdist": lambda L, a: L.cdist(a["h"], a["h"] * 2),
    "quantile": lambda L, a: L.quantile(a["h"], 0.5),
    "inv": lambda L, a: L.linalg.inv((a["h"][:3, :3] + 5 * L.eye(3)).to(a["h"].dtype)),
    "cosine_embedding_loss": lambda L, a: L.nn.functional.cosine_embedding_loss(a["h"], a["h"] * 2, L.ones(5)),
    "margin_ranking_loss": lambda L, a: L.nn.functional.margin_ranking_loss(a["h"], a["h"] * 2, a["h"].sign()),
    "poisson_nll_loss": lambda L, a: L.nn.functional.poisson_nll_loss(a["h"], a["h"].abs()),
    "reflect": lambda L, a: L.nn.functional.pad(a["imh"], (1, 1, 1, 1), mode="reflect"),
    "circular": lambda L, a: L.nn.functional.pad(a["imh"], (1, 1, 1, 1), mode="circular"),
    "fold": lambda L, a: L.nn.functional.fold(L.nn.functional.unfold(a["imh"], 3), (6, 6), 3),
    "max_pool2d": lambda L, a: L.nn.functional.max_pool2d(a["imh"], 2),
}


def arguments(lib, np, low):
    rng = np.random.default_rng(0)
    sizes = {"x": (5, 4), "w": (6, 4), "b": (6,), "x3": (2, 3, 4), "im": (2, 3, 6, 6), "k": (4, 3, 3, 3)}
    made = {name: lib.tensor(rng.normal(size=size).astype("float32")) for name, size in sizes.items()}
    made.update(z=lib.zeros(3), o=lib.ones(3), t=lib.tensor([0, 1, 2, 3, 0]))
    return {**made, "h": made["x"].to(low), "imh": made["im"].to(low)}


@pytest.mark.parametrize("low", ["bfloat16", "float16"])
def test_autocast_computes_in_the_dtypes_of_torch(torch, low):
    np = pytest.importorskip("numpy")
    for name, call in CALLS.items():
        results = []
        for lib in (torch, pydist):
            given = arguments(lib, np, getattr(lib, low))
            with lib.autocast("cpu", dtype=getattr(lib, low)):
                y = call(lib, given)
            values = np.array(y.to(lib.float64).tolist())
            results.append((str(y.dtype).rpartition(".")[2], values))
        (theirs, expected), (ours, values) = results
        assert ours == theirs, name
        assert np.abs(values - expected).max() < 0.02 * (1 + np.abs(expected).max()), name


def test_training_under_autocast(torch):
    """Losses near torch's, gradients in float32; nothing is cast outside, in backward or with enabled=False."""
    np = pytest.importorskip("numpy")
    rng = np.random.default_rng(0)
    x, t = rng.normal(size=(32, 8)).astype("float32"), rng.integers(0, 3, 32)
    weights = [rng.normal(size=size).astype("float32") * 0.4 for size in ((16, 8), (16,), (16,), (16,), (3, 16), (3,))]

    def run(lib):
        net = lib.nn.Sequential(lib.nn.Linear(8, 16), lib.nn.LayerNorm(16), lib.nn.ReLU(), lib.nn.Linear(16, 3))
        with lib.no_grad():
            for p, w in zip(net.parameters(), weights):
                p.copy_(lib.tensor(w))
        opt, losses = lib.optim.SGD(net.parameters(), lr=0.1), []
        for _ in range(10):
            opt.zero_grad()
            with lib.amp.autocast("cpu", dtype=lib.bfloat16):
                out = net(lib.tensor(x))
                with lib.autocast("cpu", enabled=False):
                    assert net(lib.tensor(x)).dtype is lib.float32
                loss = lib.nn.functional.cross_entropy(out, lib.tensor(t))
            assert out.dtype is lib.bfloat16 and loss.dtype is lib.float32
            loss.backward()
            assert all(p.grad.dtype is lib.float32 for p in net.parameters())
            opt.step()
            losses.append(loss.item())
        return losses

    assert run(pydist) == pytest.approx(run(torch), rel=0.02)
    assert pydist._C.autocast_state() is None


def test_state_and_nesting():
    @pydist.autocast("cpu", dtype=pydist.float16)
    def inside():
        return pydist.is_autocast_enabled("cpu"), pydist.get_autocast_dtype("cpu"), (pydist.ones(1, 1) @ x).dtype

    x = pydist.ones(1, 1)
    assert inside() == (True, pydist.float16, pydist.float16)
    assert not pydist.is_autocast_enabled("cpu") and pydist.get_autocast_dtype("cpu") is pydist.bfloat16
    with pytest.raises(KeyError), pydist.cpu.amp.autocast():
        assert (x @ x).dtype is pydist.bfloat16
        raise KeyError
    assert (x @ x).dtype is pydist.float32 and not pydist.is_autocast_cpu_enabled()
    with pytest.warns(UserWarning, match="no CUDA device; "), pydist.cuda.amp.autocast():
        assert (x @ x).dtype is pydist.float32
    with pytest.warns(UserWarning, match="float64 .* disabled"):
        pydist.autocast("cpu", dtype=pydist.float64)
    with pytest.raises(RuntimeError, match="unsupported autocast device_type 'tpu'"):
        pydist.autocast("tpu")
    with pytest.raises(ValueError, match="of type `str`"):
        pydist.autocast(0)
    assert pydist.is_autocast_available("cpu") and not pydist.is_autocast_available("tpu")


def test_custom_functions():
    seen = []

    class Product(pydist.autograd.Function):
        @staticmethod
        @amp.custom_fwd(device_type="cpu")
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            return a @ b

        @staticmethod
        @amp.custom_bwd(device_type="cpu")
        def backward(ctx, g):
            a, b = ctx.saved_tensors
            seen.append(pydist.is_autocast_enabled("cpu"))
            return g @ b.t(), a.t() @ g

    class Wide(Product):
        @staticmethod
        @amp.custom_fwd(device_type="cpu", cast_inputs=pydist.float32)
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            return a @ b

    a = pydist.ones(2, 2, requires_grad=True)
    for kind, dtype, on in ((Product, pydist.bfloat16, True), (Wide, pydist.float32, False)):
        with pydist.autocast("cpu"):
            y = kind.apply(a, a.detach().bfloat16())
        assert y.dtype is dtype
        y.sum().backward()
        assert seen.pop() is on


def scaled(lib, grads, **options):
    """(parameter, scale, tracker) after each step with these gradients of the unscaled loss."""
    p = lib.tensor([1.0, 2.0], requires_grad=True)
    opt, out = lib.optim.SGD([p], lr=0.5), []
    scaler = lib.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2, **options)
    for i, g in enumerate(grads):
        opt.zero_grad()
        scaler.scale((p * lib.tensor(g)).sum()).backward()
        if i % 2:
            scaler.unscale_(opt)
            assert p.grad.tolist() == pytest.approx(g, nan_ok=True)
        scaler.step(opt)
        scaler.update()
        out += [*p.tolist(), scaler.get_scale(), scaler.state_dict().get("_growth_tracker")]
    return out, scaler


def test_scaler_parity(torch):
    inf, nan = float("inf"), float("nan")
    grads = [[1.0, 2.0], [0.5, 0.5], [inf, 1.0], [1.0, 1.0], [nan, 0.0], [1.0, 0.0], [2.0, 0.0], [0.0, 1.0]]
    for options in ({}, {"backoff_factor": 0.25, "growth_factor": 3.0}, {"enabled": False}):
        given = grads if options.get("enabled", True) else grads[:2]
        (ours, scaler), (theirs, other) = (scaled(lib, given, **options) for lib in (pydist, torch))
        assert ours == pytest.approx(theirs, nan_ok=True)
        assert scaler.state_dict() == other.state_dict()
    again = amp.GradScaler("cpu")
    _, scaler = scaled(pydist, grads[:3])
    again.load_state_dict(scaler.state_dict())
    assert again.state_dict() == scaler.state_dict()
    assert pickle.loads(pickle.dumps(again)).get_scale() == again.get_scale()


def test_scaler_says_what_is_wrong():
    p = nn.Parameter(pydist.ones(1))
    opt, scaler = pydist.optim.SGD([p]), amp.GradScaler("cpu")
    with pytest.raises(RuntimeError, match="No inf checks"):
        scaler.update()
    p.grad = pydist.ones(1)
    scaler.unscale_(opt)
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.unscale_(opt)
    scaler.step(opt)
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.step(opt)
    scaler.update(8.0)
    assert scaler.get_scale() == 8.0
    with pytest.raises(ValueError, match="outputs must be"):
        scaler.scale(3)
    with pytest.raises(ValueError, match="growth_factor is 1.0"):
        amp.GradScaler("cpu", growth_factor=1.0)
    with pytest.raises(RuntimeError, match="source state dict is empty"):
        scaler.load_state_dict({})
    half = nn.Parameter(pydist.ones(1, dtype=pydist.float16))
    half.grad = pydist.ones(1, dtype=pydist.float16)
    with pytest.raises(ValueError, match="FP16 gradients"):
        scaler.unscale_(pydist.optim.LAMB([half]))
    with pytest.warns(UserWarning, match="no CUDA device; "):
        off = pydist.cuda.amp.GradScaler()
    assert not off.is_enabled() and off.get_scale() == 1.0 and off.scale(3) == 3


def casts(y):
    """The nodes that made the inputs of the op that made y, where they are casts."""
    nodes = [node for node, _ in y.grad_fn.next_functions]
    return [node for node in nodes if node is not None and node.name() in ("CastBackward0", "CastKeptBackward0")]


def test_parameters_are_cast_once_in_a_region():
    net, x = nn.Linear(3, 3), pydist.ones(2, 3)
    w = net.weight
    with pydist.autocast("cpu"):
        with pydist.no_grad():
            assert not (x @ w).requires_grad
        first, second = nn.functional.linear(x, w), nn.functional.linear(2 * x, w)
        assert casts(first)[0] == casts(second)[0]
        with pydist.no_grad():
            w.add_(1)
        third = nn.functional.linear(x, w)
        assert casts(third)[0] != casts(first)[0] and (third - first).mean().item() == pytest.approx(3, rel=0.02)
        with pydist.autocast("cpu", cache_enabled=False):
            assert not pydist.is_autocast_cache_enabled()
            assert casts(nn.functional.linear(x, w))[0] != casts(nn.functional.linear(x, w))[0]
        fourth = nn.functional.linear(x, w)
        assert casts(fourth)[0] == casts(third)[0]
        pydist.clear_autocast_cache()
        assert casts(nn.functional.linear(x, w))[0] != casts(fourth)[0]
    with pydist.autocast("cpu"):
        assert casts(nn.functional.linear(x, w))[0] != casts(fourth)[0]
    (first.sum() + second.sum()).backward()
    assert w.grad.dtype is pydist.float32 and w.grad.tolist() == [[6.0] * 3] * 3


@pytest.mark.parametrize("low", ["bfloat16", "float16"])
def test_copies_that_the_step_writes(low):
    """Training with them has the bits of training that casts in every region, whoever else writes the parameters."""
    low = getattr(pydist, low)

    def train(keep, kind, **options):
        pydist.manual_seed(0)
        net = nn.Sequential(nn.Linear(70, 90), nn.Tanh(), nn.Linear(90, 5))
        opt = getattr(pydist.optim, kind)(net.parameters(), lr=0.01, **options)
        x, outs = pydist.randn(8, 70), []
        for i in range(9):
            with pydist.autocast("cpu", dtype=low, cache_enabled=keep):
                y = net(x)
                loss = (y.float() ** 2).mean() + y.float().sum() * 0.1
                if i == 3:  # a step inside of a region
                    loss.backward()
                    opt.step()
                    outs.append(net(x).tolist())
            if i != 3:
                opt.zero_grad()
                loss.backward(retain_graph=i == 6)
                opt.step()
            if i == 6:  # what the graph saved is as it was
                loss.backward()
            if i == 4:
                net[0].weight.data.mul_(0.5)
            if i == 5:
                net.load_state_dict({k: v * 0.9 for k, v in net.state_dict().items()})
            if i == 7:
                memoryview(net[2].bias.detach())[0] = 2.0
            if i == 8:
                net[2].weight.data = pydist.ones(5, 90)
            outs.append(net[2].bias.tolist())
        with pydist.autocast("cpu", dtype=low, cache_enabled=keep), pydist.no_grad():
            return outs + [net(x).tolist()]

    for kind, options in (("SGD", {"momentum": 0.9}), ("AdamW", {})):
        assert train(True, kind, **options) == train(False, kind, **options)


@pytest.mark.parametrize("low", [pydist.bfloat16, pydist.float16], ids=str)
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_reads_16_bits(low, reduction, smoothing):
    """Loss, gradient and second gradient have the bits that a cast to float32 gives, and no such cast is kept."""
    for rows, classes in ((1, 3), (67, 40), (5, 3000)):
        data, labels = (3 * pydist.randn(rows, classes)).to(low), pydist.randint(0, classes, (rows,))
        labels[-1] = -100 if rows > 1 else 0
        found = []
        for cast in (False, True):
            x = data.clone().requires_grad_()
            with pydist.autocast("cpu", dtype=low), pydist.profiler.profile() as prof:
                loss = F.cross_entropy(x.float() if cast else x, labels, reduction=reduction, label_smoothing=smoothing)
            assert loss.dtype is pydist.float32
            assert ("cast" in {e.key for e in prof.key_averages()}) == cast
            (grad,) = pydist.autograd.grad(loss.sum(), x, retain_graph=True)
            (again,) = pydist.autograd.grad(loss.sum(), x, create_graph=True)
            (second,) = pydist.autograd.grad(again.float().square().sum(), x)
            assert grad.dtype is again.dtype is second.dtype is low
            assert ((grad - again).abs().max() <= 0.01 * grad.abs().max()).item()
            found.append((loss.detach(), grad, second))
        for got, want in zip(*found):
            assert got.equal(want), (rows, classes)


def test_cross_entropy_with_weights_is_cast():
    x, labels = pydist.randn(6, 5).bfloat16(), pydist.randint(0, 5, (6,))
    weight = pydist.rand(5)
    with pydist.autocast("cpu", dtype=pydist.bfloat16):
        got = [F.cross_entropy(x, labels, w) for w in (weight, weight.bfloat16())]
    assert got[0].equal(F.cross_entropy(x.float(), labels, weight))
    assert got[1].equal(F.cross_entropy(x.float(), labels, weight.bfloat16().float()))


def test_gradients_of_linear_are_not_rounded_to_bfloat16():
    """Those of weights and of inputs that were cast from float32: products of 16-bit numbers, in float32."""
    pydist.manual_seed(0)
    w, x, g = pydist.randn(40, 70), pydist.randn(3, 8, 70), pydist.randn(3, 8, 40).bfloat16()
    w, x = w.requires_grad_(), x.requires_grad_()
    with pydist.autocast("cpu"):
        y = nn.functional.linear(x, w)
    y.backward(g)
    low = [t.detach().bfloat16().double() for t in (w, x, g)]
    for got, want in ((x.grad, low[2] @ low[0]), (w.grad, low[2].reshape(24, 40).t() @ low[1].reshape(24, 70))):
        assert (got.double() - want).abs().max().item() < 1e-4
    leaf = pydist.randn(4, 4, requires_grad=True)  # what somebody sees has the dtype of its tensor
    cast, seen = leaf.bfloat16(), []
    cast.register_hook(lambda grad: seen.append(grad.dtype))
    nn.functional.linear(pydist.ones(2, 4).bfloat16(), cast).sum().backward()
    assert seen == [pydist.bfloat16] and leaf.grad.dtype is pydist.float32
    cast = leaf.bfloat16()
    (grad,) = pydist.autograd.grad(nn.functional.linear(pydist.ones(2, 4).bfloat16(), cast).sum(), [cast])
    assert grad.dtype is pydist.bfloat16


@pytest.mark.parametrize("low", ["bfloat16", "float16"])
def test_products_in_low_precision(low):
    """Near those in float32, and with the same bits for 1 and 2 threads, whichever way they are cut: by rows, by columns,
    along K, B laid out anew, a small K, added to what is there."""
    low, before = getattr(pydist, low), pydist.get_num_threads()
    pydist.manual_seed(0)
    for m, n, k in ((300, 60, 800), (60, 900, 800), (70, 784, 64), (1030, 50, 260), (64, 48, 4200), (33, 17, 129)):
        for turned in (False, True):
            a = pydist.randn(k, m).t() if turned else pydist.randn(m, k)
            b = pydist.randn(k, n) if turned else pydist.randn(n, k).t()
            al, bl = a.to(low), b.to(low)
            expected, results = al.float() @ bl.float(), []
            for threads in (1, 2):
                pydist.set_num_threads(threads)
                results.append(al @ bl)
            assert results[0].equal(results[1]), (m, n, k, turned)
            error = (results[0].float() - expected).abs().max().item()
            assert error <= 2.0**-7 * expected.abs().max().item(), (m, n, k, turned)
    pydist.set_num_threads(before)


@pytest.mark.parametrize("size, stride, dilation", [(5, 1, 1), (8, 2, 1), (6, 1, 2)])
def test_convolution_weights_of_few_pixels(size, stride, dilation):
    """The gradient in bfloat16 next to float64, with the same bits for 1 and 2 threads (oneDNN: by way of a product)."""
    before = pydist.get_num_threads()
    pydist.manual_seed(0)
    x, w = pydist.randn(3, 128, size, size), pydist.randn(130, 128, 3, 3) * 0.05
    results = []
    for dtype, threads in ((pydist.float64, 1), (pydist.bfloat16, 1), (pydist.bfloat16, 2)):
        pydist.set_num_threads(threads)
        leaf = w.bfloat16().to(dtype).requires_grad_()
        image = x.bfloat16().to(dtype).contiguous(memory_format=pydist.channels_last)
        y = nn.functional.conv2d(image, leaf, None, stride, 1, dilation)
        y.backward(pydist.ones_like(y) * 0.5)
        results.append(leaf.grad)
    pydist.set_num_threads(before)
    assert results[1].equal(results[2]) and results[1].dtype is pydist.bfloat16
    assert (results[1].double() - results[0]).abs().max().item() < 2.0**-7 * results[0].abs().max().item()


def test_unscale_and_clip():
    grads, results = [3.0, 4.0, 0.0], []
    for fused in (True, False):
        p = nn.Parameter(pydist.zeros(3))
        opt, scaler = pydist.optim.SGD([p], lr=1.0), amp.GradScaler("cpu", init_scale=8.0)
        for grad in (grads, [1.0, float("inf"), 0.0], [0.1, 0.0, 0.0]):
            p.grad = pydist.tensor(grad) * scaler.get_scale()
            if fused:
                norm = scaler.unscale_and_clip_(opt, 1.0)
            else:
                scaler.unscale_(opt)
                norm = nn.utils.clip_grad_norm_([p], 1.0)
            results.append((norm.item(), p.grad[0].item()))
            scaler.step(opt)
            scaler.update()
        results.append((p.tolist()[0], scaler.get_scale()))
        off = amp.GradScaler("cpu", enabled=False)
        p.grad = pydist.tensor(grads)
        assert off.unscale_and_clip_(opt, 1.0).item() == 5.0 and p.grad[0].item() == pytest.approx(0.6)
    assert results[:1] == [(5.0, pytest.approx(0.6, rel=1e-5))]
    for ours, theirs in zip(results[:4], results[4:]):
        assert ours == pytest.approx(theirs, nan_ok=True, rel=1e-5)


def test_ranks_agree_on_overflow():
    from pydist import distributed as dist

    def work(rank):
        p = nn.Parameter(pydist.zeros(1))
        opt, out = pydist.optim.SGD([p], lr=1.0), []
        scaler = amp.GradScaler("cpu", init_scale=4.0, process_group=dist.group.WORLD)
        for grad in ([1.0, float("nan")], [1.0, 1.0]):
            p.grad = pydist.tensor([grad[rank] * scaler.get_scale()])
            scaler.step(opt)
            scaler.update()
            out.append((p.item(), scaler.get_scale()))
        return out

    assert dist.threads.run(work, 2) == [[(0.0, 2.0), (-1.0, 2.0)]] * 2


# Devices.


def test_devices_are_names():
    device = pydist.device
    cuda = device("cuda", 1)
    assert (cuda.type, cuda.index, str(cuda), repr(cuda)) == ("cuda", 1, "cuda:1", "device(type='cuda', index=1)")
    assert device("cuda:1") == cuda == device(1) != device("cuda") and device("cuda") != "cuda"
    assert len({device("cuda"), device("cuda"), cuda, device("cpu")}) == 3 and device(cuda) == cuda
    assert pickle.loads(pickle.dumps(cuda)) == cuda == copy.deepcopy(cuda) and device("mps").type == "mps"
    assert device("cpu") == pydist.ones(1).device
    for wrong in ("cudax", "cuda:", "cuda:x", "cuda:-1", "", -1, 1 << 40, 1.5, None, "cuda:1000"):
        with pytest.raises((RuntimeError, OverflowError)):
            device(wrong)
    with pytest.raises(RuntimeError, match="already has an index"):
        device("cuda:0", 1)
    x, net = pydist.ones(2), nn.Linear(2, 2)
    for use in (
        lambda: x.to(cuda),
        lambda: x.to(0),
        lambda: x.cuda(),
        lambda: net.cuda(),
        lambda: net.to("cuda"),
        lambda: pydist.zeros(2, device="cuda"),
        lambda: pydist.cuda.FloatTensor(2),
        lambda: pydist.Generator(cuda),
        lambda: pydist.cuda.get_device_name(),
    ):
        with pytest.raises(RuntimeError, match="no CUDA device"):
            use()
    with pytest.raises(RuntimeError, match="'mps'.*is not available"):
        x.to("mps")
    assert x.pin_memory() is x and not x.is_pinned() and pydist.accelerator.current_accelerator() is None


def test_pretended_gpus(tmp_path):
    """A script for two GPUs, their collectives, and autocast by CUDA's list, in a process of its own."""
    script = tmp_path / "script.py"
    script.write_text(
        """
import os, socket
import torch, torch.distributed as dist, torch.multiprocessing as mp
import torch.nn as nn

def main(rank, world):
    torch.cuda.set_device(rank)
    assert torch.cuda.device_count() == world and torch.cuda.current_device() == rank
    dist.init_process_group("nccl", rank=rank, world_size=world)
    net = nn.parallel.DistributedDataParallel(nn.Linear(2, 1).to(rank), device_ids=[rank])
    x = torch.ones(4, 2, device=f"cuda:{rank}") * (rank + 1)
    scaler = torch.cuda.amp.GradScaler(init_scale=16.0)
    with torch.autocast("cuda"):
        y = net(x.cuda(non_blocking=True))
        soft = y.softmax(0)
    assert y.dtype is torch.float16 and soft.dtype is torch.float32 and scaler.is_enabled()
    scaler.scale(y.float().mean()).backward()
    if rank == 0:
        print(net.module.weight.grad.div(scaler.get_scale()).tolist(), flush=True)
    dist.destroy_process_group()

if __name__ == "__main__":
    assert torch.cuda.is_available() and dist.is_nccl_available()
    assert torch.cuda.get_device_properties(0).total_memory > 0 and torch.accelerator.device_count() == 2
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record(); end.record(); torch.cuda.synchronize()
    assert start.elapsed_time(end) >= 0
    try:
        torch.zeros(2, device="cuda:2")
    except RuntimeError as error:
        print(error)
    with torch.cuda.device(1):
        assert torch.cuda.current_device() == 1
    assert torch.cuda.current_device() == 0
    model = nn.DataParallel(nn.Linear(2, 2)).cuda()
    assert model(torch.cuda.FloatTensor(3, 2).zero_()).shape == (3, 2)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(s.getsockname()[1]))
    mp.spawn(main, args=(2,), nprocs=2)
"""
    )
    command = [sys.executable, "-m", "pydist.compat", "--cpu-as-cuda", "2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said, grad = done.stdout.splitlines()
    assert "the CPU stands in for 2 GPUs" in said and grad == "[[1.5, 1.5]]"
    assert done.stderr.count("pydist pretends 2 GPUs") == 1


def test_pretending_is_checked():
    with pytest.raises(ValueError, match="count is -1"):
        pydist.cuda.pretend(-1)
    with pytest.raises(TypeError):
        pydist.cuda.pretend("two")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not pydist.cuda.is_available()


def test_default_backends():
    from pydist import distributed as dist

    assert dist.get_default_backend_for_device(pydist.device("cuda:1")) == "nccl"
    assert dist.is_backend_available("gloo") and not dist.is_backend_available("ucc")
    with pytest.raises(ValueError, match="not registered for device : mps"):
        dist.get_default_backend_for_device("mps")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_products_read_what_norms_wrote_in_16_bits(dtype):
    beside.check_copies_are_casts("cpu", getattr(pydist, dtype))


def test_a_norms_copy_is_not_read_after_a_write():
    beside.check_stale_copies_are_not_read("cpu")
    x, product = pydist.randn(5, 24), pydist.randn(7, 24)
    for share in (lambda h: h.numpy(), lambda h: np.from_dlpack(h)):
        with pydist.autocast("cpu", dtype=pydist.bfloat16):
            h = F.layer_norm(x, (24,))
            shared = share(h)
            shared[:] = 3
            assert F.linear(h, product).tolist() == F.linear(h.clone(), product).tolist()


def test_gradients_through_a_norms_copy():
    beside.check_gradients("cpu")
