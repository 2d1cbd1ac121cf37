"""add_layer_norm and add_rms_norm: the bits of an add and a norm, torch's numbers, and the modules that call them."""

import numpy as np
import pytest

import pydist
from pydist import nn
from pydist.nn import functional as F
from pydist.nn.modules.normalization import add_norm

F32, F64, F16, BF16 = pydist.float32, pydist.float64, pydist.float16, pydist.bfloat16


def drawn(seed, *shape, dtype=F32):
    values = np.random.default_rng(seed).standard_normal(shape)
    return pydist.tensor(values.astype("float32")).to(dtype).detach().requires_grad_()


def composed(x, y, shape, w, b=None, eps=1e-5, rms=False):
    s = x + y
    return s, F.rms_norm(s, shape, w, eps) if rms else F.layer_norm(s, shape, w, b, eps)


def fused(x, y, shape, w, b=None, eps=1e-5, rms=False, **kw):
    if rms:
        return F.add_rms_norm(x, y, shape, w, eps, **kw)
    return F.add_layer_norm(x, y, shape, w, b, eps, **kw)


def gradients(function, leaves, *args, stream=True, **kw):
    s, n = function(*leaves[:2], *args, *leaves[2:], **kw)
    parts = [(t, drawn(k + 7, *t.shape, dtype=t.dtype).detach()) for k, t in enumerate((s, n)) if stream or k]
    grads = pydist.autograd.grad([t for t, _ in parts], leaves, [g for _, g in parts])
    return [s.detach(), n.detach(), *grads]


def equal(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())


@pytest.mark.parametrize("rms", [False, True], ids=["layer", "rms"])
@pytest.mark.parametrize("stream", [False, True], ids=["norm", "stream"])
@pytest.mark.parametrize(
    "dtypes", [(F32, F32), (F64, F64), (BF16, BF16), (F32, BF16), (F16, F32), (F16, BF16), (F32, F64)], ids=str
)
def test_the_bits_of_an_add_and_a_norm(dtypes, stream, rms):
    for shape, over in (((3, 5, 24), (24,)), ((7, 700), (700,)), ((4, 3, 6), (3, 6))):
        x, y = (drawn(k, *shape, dtype=t) for k, t in enumerate(dtypes))
        weights = [drawn(3, *over, dtype=(x + y).dtype), drawn(4, *over, dtype=(x + y).dtype)][: 1 if rms else 2]
        leaves = [x, y, *weights]
        ours, theirs = (gradients(f, leaves, over, stream=stream, rms=rms) for f in (fused, composed))
        assert [equal(a, b) for a, b in zip(ours, theirs)] == [True] * len(theirs)


def test_only_one_of_the_two_wants_a_gradient():
    for mine in (0, 1):
        x, y, w = drawn(0, 6, 40), drawn(1, 6, 40, dtype=BF16), drawn(2, 40)
        (x, y)[1 - mine].requires_grad_(False)
        leaf = (x, y)[mine]
        found = []
        for function in (fused, composed):
            s, n = function(x, y, (40,), w)
            found += pydist.autograd.grad((s.float() * 2 + n * n).sum(), (leaf, w))
        assert equal(found[0], found[2]) and equal(found[1], found[3])


def test_torch_gives_the_same_numbers_and_second_gradients():
    torch = pytest.importorskip("torch")
    ours = [drawn(k, *shape, dtype=F64) for k, shape in enumerate(((5, 12), (5, 12), (12,), (12,)))]
    theirs = [torch.tensor(t.detach().numpy(), requires_grad=True) for t in ours]

    def of(lib, leaves, pair):
        x, y, w, b = leaves
        s, n = pair(x, y, w, b)
        first = lib.autograd.grad((s * s).sum() + (n**3).sum(), leaves, create_graph=True)
        return [s, n, *first, *lib.autograd.grad(sum((g**2).sum() for g in first), leaves)]

    mine = of(pydist, ours, lambda x, y, w, b: F.add_layer_norm(x, y, 12, w, b))
    torchs = of(torch, theirs, lambda x, y, w, b: (x + y, torch.nn.functional.layer_norm(x + y, (12,), w, b)))
    for a, b in zip(mine, torchs):
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("rms", [False, True], ids=["layer", "rms"])
@pytest.mark.parametrize("stream", [F32, BF16], ids=str)
def test_under_autocast_the_dtypes_are_those_of_the_norm_unless_low_precision_is_asked_for(stream, rms):
    x, y, w = drawn(0, 4, 6, 32, dtype=stream), drawn(1, 4, 6, 32, dtype=BF16), drawn(2, 32)
    with pydist.autocast("cpu", dtype=BF16):
        found, expected = (gradients(f, [x, y, w], (32,), rms=rms) for f in (fused, composed))
        low = fused(x, y, (32,), w, rms=rms, low_precision=True)
    assert [t.dtype for t in found] == [t.dtype for t in expected]
    for a, b in zip(found, expected):
        near = 2**-7 if b.dtype == BF16 else 1e-5
        np.testing.assert_allclose(a.float().numpy(), b.float().numpy(), rtol=near, atol=4 * near)
    assert low[0].dtype == found[0].dtype and low[1].dtype == BF16
    assert equal(low[1].detach(), found[1].to(BF16))
    assert fused(x.float(), y.float(), (32,), w, low_precision=True, rms=rms)[1].dtype == F32


def test_under_autocast_weights_may_have_any_dtypes():
    x, y, w, b = drawn(0, 4, 32), drawn(1, 4, 32, dtype=BF16), drawn(2, 32, dtype=BF16), drawn(3, 32)
    with pydist.autocast("cpu", dtype=BF16):
        found, expected = (gradients(f, [x, y, w, b], (32,)) for f in (fused, composed))
    assert all(equal(a, b) for a, b in zip(found, expected))


def test_low_precision_gives_the_gradients_of_a_cast():
    x, y, w, b = drawn(0, 9, 48), drawn(1, 9, 48, dtype=BF16), drawn(2, 48), drawn(3, 48)
    g = drawn(4, 9, 48, dtype=BF16).detach()
    with pydist.autocast("cpu", dtype=BF16):
        s, n = F.add_layer_norm(x, y, 48, w, b, low_precision=True)
        t, m = composed(x, y, (48,), w, b)
        ours = pydist.autograd.grad((s.sum(), n), (x, y, w, b), (pydist.ones(()), g))
        theirs = pydist.autograd.grad((t.sum(), m.to(BF16)), (x, y, w, b), (pydist.ones(()), g))
    assert all(equal(a, b) for a, b in zip(ours, theirs))


def test_a_norm_adds_its_gradient_to_the_streams():
    torch = pytest.importorskip("torch")

    def block(lib, x, w, b, k):
        for _ in range(3):
            x = x + (lib.nn.functional.layer_norm(x, (24,), w, b) @ k).sin()
        return (x * x).sum()

    values = [drawn(n, *shape, dtype=F64).detach() for n, shape in enumerate(((6, 24), (24,), (24,), (24, 24)))]
    ours = [v.clone().requires_grad_() for v in values]
    block(pydist, *ours).backward()
    theirs = [torch.tensor(v.numpy(), requires_grad=True) for v in values]
    block(torch, *theirs).backward()
    for a, b in zip(ours, theirs):
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-9, atol=1e-11)


def test_a_gradient_that_a_hook_has_kept_is_not_written():
    kept = []
    x = drawn(0, 6, 24)
    h = x * 2
    s = h + F.layer_norm(h, (24,)).sin()
    s.register_hook(lambda g: kept.append((g, g.clone())))
    (s * s).sum().backward()
    assert equal(*kept[0])


def test_shapes_and_dtypes_that_do_not_fit_are_refused():
    x = drawn(0, 3, 4)
    with pytest.raises(pydist.ShapeError, match=r"add_layer_norm: input has shape \[3, 4\], other has shape \[4\]"):
        F.add_layer_norm(x, drawn(1, 4), 4)
    with pytest.raises(pydist.ShapeError, match=r"add_rms_norm: weight is float32 of shape \[3\] \(expected float32"):
        F.add_rms_norm(x, x, 4, drawn(1, 3))
    with pytest.raises(pydist.ShapeError, match="add_layer_norm: bias is float64"):
        F.add_layer_norm(x, x, 4, None, drawn(1, 4, dtype=F64))
    with pytest.raises(pydist.DTypeError, match="add_layer_norm: input 1 is int64"):
        F.add_layer_norm(x, pydist.ones(3, 4, dtype=pydist.int64), 4)


def test_changed_norms_are_called():
    x, y = drawn(0, 3, 8), drawn(1, 3, 8)
    for norm in (nn.LayerNorm(8), nn.RMSNorm(8), nn.LayerNorm(8, elementwise_affine=False)):
        expected = norm(x + y)
        assert equal(add_norm(norm, x, y)[1], expected)
        seen = []
        norm.register_forward_hook(lambda *args: seen.append(1))
        assert equal(add_norm(norm, x, y)[1], expected) and seen == [1]
    assert equal(add_norm(nn.Identity(), x, y)[1], x + y)
    assert add_norm(nn.LayerNorm(8), x, drawn(2, 1, 8))[0].shape == (3, 8)
    norm = nn.LayerNorm(8)
    norm.forward = lambda t: t * 3
    assert equal(add_norm(norm, x, y)[1], (x + y) * 3)
