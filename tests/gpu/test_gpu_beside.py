"""What kernels make besides in the pass that writes a tensor, next to the same made apart: a hook on a tensor sees its gradient, so
nothing is made of it before."""

import numpy as np
import pytest

import pydist
from lib import beside
from pydist import nn
from pydist.nn import functional as F

if not pydist.cuda.is_available() or pydist._C.pretended_cuda():
    pytest.skip("no CUDA device", allow_module_level=True)

ACTIVATIONS = (F.gelu, F.relu, F.silu, pydist.tanh, pydist.sigmoid, F.elu, lambda x: F.gelu(x, approximate="tanh"))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_products_read_what_norms_wrote_in_16_bits(dtype):
    beside.check_copies_are_casts("cuda", getattr(pydist, dtype))


def test_a_norms_copy_is_not_read_after_a_write():
    beside.check_stale_copies_are_not_read("cuda")


def test_gradients_through_a_norms_copy():
    beside.check_gradients("cuda")


def in_16_bits(g):
    """The product that reads a norm under autocast gives its gradient in 16 bits."""
    return g.bfloat16().float()


class Block(nn.Module):
    """As in a GPT; where `apart`, with hooks on all that it makes."""

    def __init__(self, width, norm, fused):
        super().__init__()
        self.norms = nn.ModuleList([norm(width) for _ in range(2)])
        self.attn, self.proj = nn.Linear(width, width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)
        self.fused, self.apart = fused, False

    def tap(self, t, hook=lambda g: None):
        if self.apart:
            t.register_hook(hook if pydist.is_autocast_enabled("cuda") else lambda g: None)
        return t

    def add(self, x, y, norm):
        if not self.fused:
            s = self.tap(x + y)
            return s, self.tap(norm(s), in_16_bits)
        add = F.add_layer_norm if isinstance(norm, nn.LayerNorm) else F.add_rms_norm
        s, h = add(x, y, norm.normalized_shape, *norm.parameters())
        return self.tap(s), self.tap(h, in_16_bits)

    def forward(self, x):
        y = self.tap(self.attn(self.tap(self.norms[0](x), in_16_bits)))
        x, h = self.add(x, self.tap(self.proj(y)), self.norms[1])
        return self.tap(x + self.tap(self.fc2(self.tap(F.gelu(self.tap(self.fc1(h)))))))


def model_of(width, norm, fused):
    pydist.manual_seed(3)
    return nn.Sequential(*(Block(width, norm, fused) for _ in range(2)), norm(width)).cuda()


def gradients(model, x, apart, dtype, times=1, **options):
    """{name: gradient} of the parameters and of x."""
    for block in list(model)[:-1]:
        block.apart = apart
    model.zero_grad()
    x = x.detach().clone().requires_grad_()
    with pydist.autocast("cuda", dtype=dtype, enabled=dtype is not None):
        loss = (model(x) * x.detach().cos()).sum()
    for _ in range(times):
        loss.backward(retain_graph=times > 1, **options)
    found = {name: p.grad.detach().cpu().numpy() for name, p in (*model.named_parameters(), ("x", x))}
    model.zero_grad()  # with create_graph gradients hold the graph, and that holds the parameters
    x.grad = None
    return found


def compare(found, want):
    """Sums of columns are added in another order; what is not made of them has the same bits."""
    assert found.keys() == want.keys()
    for name, g in found.items():
        if name.endswith(("attn.bias", "proj.bias", "fc1.bias", "fc2.bias")):
            np.testing.assert_allclose(g, want[name], rtol=1e-5, atol=1e-5 * np.abs(want[name]).max(), err_msg=name)
        else:
            assert (g == want[name]).all(), name


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
@pytest.mark.parametrize("width, rows", [(24, 150), (33, 20)])
def test_a_residual_block_made_in_few_passes(width, rows, norm, fused):
    model, x = model_of(width, norm, fused), pydist.randn(2, rows, width).cuda()
    for dtype in (pydist.bfloat16, None) if width == 24 else (pydist.bfloat16,):
        compare(gradients(model, x, False, dtype), gradients(model, x, True, dtype))


@pytest.mark.parametrize("width, rows", [(1064, 20), (8216, 3), (1035, 9), (8, 600)])
def test_the_columns_of_wide_rows(width, rows):
    """In registers and beyond them, in vectors and one by one."""
    layer, x, y = nn.Linear(4, width).cuda(), pydist.randn(rows, width).cuda(), pydist.randn(rows, 4).cuda()
    for norm in (lambda s, p: F.layer_norm(s + p, (width,)), lambda s, p: F.add_rms_norm(s, p, (width,))[1]):
        grads = []
        for apart in (False, True):
            layer.zero_grad()
            with pydist.autocast("cuda", dtype=pydist.bfloat16):
                p = layer(y)
                if apart:
                    p.register_hook(lambda g: None)
                (norm(x, p) * x.cos()).sum().backward()
            grads.append((layer.bias.grad.cpu().numpy(), layer.weight.grad.tolist()))
        assert grads[0][1] == grads[1][1]
        np.testing.assert_allclose(grads[0][0], grads[1][0], rtol=1e-5, atol=1e-5 * np.abs(grads[1][0]).max())


def test_gradients_that_are_kept_and_made_again():
    model, x = model_of(24, nn.LayerNorm, False), pydist.randn(40, 24).cuda()
    once, twice = gradients(model, x, False, pydist.bfloat16), gradients(model, x, False, pydist.bfloat16, times=2)
    assert all((2 * g == twice[name]).all() for name, g in once.items())
    again = gradients(model, x, False, pydist.bfloat16, create_graph=True)  # nothing is made besides
    compare(again, gradients(model, x, True, pydist.bfloat16, create_graph=True))


def test_gradients_that_somebody_asks_for():
    layer, x = nn.Linear(24, 24).cuda(), pydist.randn(40, 24).cuda()
    with pydist.autocast("cuda", dtype=pydist.bfloat16):
        s = x + layer(x)
        h = F.layer_norm(s, (24,))
        loss = layer(h).float().square().sum()
    found = pydist.grad(loss, (h, s, layer.bias), retain_graph=True)
    assert [g.dtype for g in found] == [pydist.float32] * 3
    h.retain_grad()
    s.retain_grad()
    layer.bias.grad = None
    loss.backward()
    assert h.grad.dtype == s.grad.dtype == pydist.float32
    for g, kept in zip(found, (h.grad, s.grad, layer.bias.grad), strict=True):
        np.testing.assert_allclose(g.cpu().numpy(), kept.cpu().numpy(), rtol=1e-2, atol=4e-3 * kept.abs().max().item())


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", None])  # autocast's; all in float32; all in bfloat16
@pytest.mark.parametrize("shape", [(3, 50, 40), (130, 33), (1, 8), (1100, 1), (9, 2, 1032)])
def test_an_activation_sums_its_gradients_columns(shape, dtype):
    """For the bias of the layer before."""
    pydist.manual_seed(5)
    layer, x = nn.Linear(6, shape[-1]).cuda(), pydist.randn(*shape[:-1], 6).cuda()
    if dtype is None:
        layer, x = layer.bfloat16(), x.bfloat16()
    for f in ACTIVATIONS:
        grads = []
        for apart in (False, True):
            layer.zero_grad()
            with pydist.autocast("cuda", dtype=pydist.bfloat16, enabled=dtype == "bfloat16"):
                y = layer(x)
                if apart:
                    y.register_hook(lambda g: None)
                (f(y) * y.detach().cos()).sum().backward()
            assert layer.bias.grad.dtype == layer.bias.dtype
            grads.append({"bias": layer.bias.grad.float().cpu().numpy(), "weight": layer.weight.grad.tolist()})
        assert grads[0]["weight"] == grads[1]["weight"]
        by = 1e-2 if dtype is None else 1e-5
        np.testing.assert_allclose(
            grads[0]["bias"], grads[1]["bias"], rtol=by, atol=by * np.abs(grads[1]["bias"]).max()
        )


def bias_of_attention(dtype, heads, width, rows, use=lambda y: 0, apart=False):
    """The gradients of bias and weight of the layer whose result is split into q, k and v; use: else of the result."""
    pydist.manual_seed(6)
    queries, keys = heads
    sizes = [queries * width, keys * width, keys * width]
    layer, x = nn.Linear(6, sum(sizes)).cuda(), pydist.randn(3, rows, 6).cuda()
    with pydist.autocast("cuda", dtype=dtype, enabled=dtype is not None):
        y = layer(x)
        if apart:
            y.register_hook(lambda g: None)
        q, k, v = (p.view(3, rows, -1, width).transpose(1, 2) for p in y.split(sizes, 2))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=queries > keys)
        ((out * out.detach().cos()).sum() + use(y)).backward()
    return layer.bias.grad.cpu().numpy(), layer.weight.grad.tolist()


@pytest.mark.parametrize("dtype", [pydist.bfloat16, pydist.float16, None])
@pytest.mark.parametrize("heads", [(2, 2), (4, 2)])
@pytest.mark.parametrize("width, rows", [(16, 150), (40, 70), (136, 40), (20, 9)])
def test_attention_sums_its_gradients_columns(width, rows, heads, dtype):
    """For the bias of the layer that makes q, k and v: on tensor cores, whose blocks are parts of the sums, and without."""
    found, weight = bias_of_attention(dtype, heads, width, rows)
    want, same = bias_of_attention(dtype, heads, width, rows, apart=True)
    assert weight == same
    by = 1e-3 if dtype == pydist.float16 else 1e-5  # the sum made apart has 16 bits
    np.testing.assert_allclose(found, want, rtol=by, atol=by * np.abs(want).max())


OTHERS = {
    "all": lambda y: y,
    "some columns": lambda y: y[..., :16],
    "some rows": lambda y: y[:, :3],
    "heads": lambda y: F.scaled_dot_product_attention(*y.view(3, 50, 6, 16).transpose(1, 2).chunk(3, 1)),
    "another dimension": lambda y: F.scaled_dot_product_attention(*y.view(3, 50, 3, 2, 16).transpose(1, 3).unbind(2)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_attention_is_not_the_only_one(name):
    """Others give gradients of the same tensor."""
    inputs = pydist.bfloat16, (2, 2), 16, 50, lambda y: OTHERS[name](y).float().sin().sum()
    found, weight = bias_of_attention(*inputs)
    want, same = bias_of_attention(*inputs, apart=True)
    assert weight == same
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


def test_frozen_parameters_and_several_uses():
    x = pydist.randn(70, 24).cuda()
    for frozen in ("weight", "bias"):
        layer = nn.Linear(24, 40).cuda()
        getattr(layer, frozen).requires_grad_(False)
        y = layer(x)
        F.gelu(y).sum().backward()
        assert getattr(layer, frozen).grad is None
    layer = nn.Linear(24, 40).cuda()
    y = layer(x)
    (F.gelu(y).sum() + F.relu(y).sum()).backward()  # the sums of one of the gradients are not those of both
    found, layer.bias.grad = layer.bias.grad.tolist(), None
    y = layer(x)
    y.register_hook(lambda g: None)
    (F.gelu(y).sum() + F.relu(y).sum()).backward()
    np.testing.assert_allclose(found, layer.bias.grad.tolist(), rtol=1e-5)
