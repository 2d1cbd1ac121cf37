"""Pads, transposed and 3-D convolutions, instance norms, attention, Transformers, embedding bags, ranking losses: values, gradients,
state dictionaries and text as torch's."""

import copy

import numpy as np
import pytest

import pydist
from lib.layer_samples import LAYERS, LAZY, LOSSES, TWO, loss_arguments
from pydist import nn

torch = pytest.importorskip("torch", reason="needs torch")


def pair(text):
    torch.manual_seed(0)
    made = [eval(f"nn.{text}", {"nn": lib.nn}) for lib in (pydist, torch)]
    return [m.double() for m in made]


def same(a, b, what=""):
    if b is None:
        assert a is None or not a.numpy().any(), what
        return
    assert tuple(a.shape) == tuple(b.shape), what
    np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-9, atol=1e-10, err_msg=str(what))


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def compare(ours, theirs, args, kwargs=({}, {}), inputs=()):
    """Results and gradients; args are arrays (floating ones with gradients) or other values."""
    ours.load_state_dict({k: pydist.tensor(v.numpy()) for k, v in theirs.state_dict().items()})
    assert [(k, tuple(v.shape)) for k, v in ours.state_dict().items()] == [
        (k, tuple(v.shape)) for k, v in theirs.state_dict().items()
    ]
    found = []
    for lib, layer, more in ((pydist, ours, kwargs[0]), (torch, theirs, kwargs[1])):
        given = [lib.tensor(a) if isinstance(a, np.ndarray) else a for a in args]
        leaves = [t.requires_grad_() for t in given if isinstance(t, lib.Tensor) and t.is_floating_point()]
        out = layer(*given, **more)
        out = [o for o in (out if isinstance(out, tuple) else (out,)) if o is not None]
        sum((o * lib.tensor(np.random.default_rng(5).uniform(0.5, 1.5, tuple(o.shape)))).sum() for o in out).backward()
        found.append([*out, *(t.grad for t in leaves), *(p.grad for p in layer.parameters()), *layer.buffers()])
    for k, (a, b) in enumerate(zip(*found, strict=True)):
        same(a, b, k)


@pytest.mark.parametrize("text, shape", LAYERS)
def test_layers_as_torch(text, shape):
    for train in (True, False):
        ours, theirs = (m.train(train) for m in pair(text))
        assert repr(ours) == repr(theirs)
        args = [numbers(*shape)] + ([numbers(*shape, seed=1)] if text.startswith(TWO) else [])
        compare(ours, theirs, args)


def test_transposed_convolution_of_a_size():
    ours, theirs = pair("ConvTranspose2d(2, 3, 3, 2, 1)")
    for size in ((5, 7), (6, 8)):
        compare(ours, theirs, [numbers(1, 2, 3, 4)], [{"output_size": size}] * 2)
    with pytest.raises(ValueError, match="output size"):
        ours(pydist.zeros(1, 2, 3, 4).double(), output_size=(9, 9))


def test_unpooling_as_torch():
    x = numbers(1, 2, 6, 6)
    results = []
    for lib in (pydist, torch):
        y, where = lib.nn.MaxPool2d(2, return_indices=True)(lib.tensor(x))
        results.append([lib.nn.MaxUnpool2d(2)(y, where), lib.nn.MaxUnpool2d(2)(y, where, output_size=(7, 7))])
    for a, b in zip(*results):
        same(a, b)


@pytest.mark.parametrize("dims, shape, options", [
    (2, (2, 3, 7, 9), {"output_size": (3, 4)}), (2, (3, 8, 6), {"output_ratio": 0.5}), (2, (1, 2, 5, 5), {"output_size": 1}),
    (3, (2, 2, 5, 6, 7), {"output_size": (2, 3, 3)}), (3, (2, 6, 5, 8), {"output_ratio": (0.5, 0.6, 0.5)}),
])  # fmt: skip
def test_fractional_pooling_as_torch(dims, shape, options):
    x = numbers(*shape)
    samples = np.random.default_rng(1).random((*(shape[:2] if len(shape) == dims + 2 else (1, shape[0])), dims))
    found = []
    for lib in (pydist, torch):
        layer = getattr(lib.nn, f"FractionalMaxPool{dims}d")(
            2, **options, return_indices=True, _random_samples=lib.tensor(samples)
        )
        leaf = lib.tensor(x).requires_grad_()
        values, indices = layer(leaf)
        (values * values).sum().backward()
        found.append((values, indices, leaf.grad))
    for a, b in zip(*found, strict=True):
        same(a, b)
    one = getattr(pydist.nn, f"FractionalMaxPool{dims}d")(2, **options)(pydist.tensor(x))
    assert one.shape == found[0][0].shape and set(one.flatten().tolist()) <= set(x.flatten().tolist())


def test_adaptive_softmax_as_torch():
    ours, theirs = pair("AdaptiveLogSoftmaxWithLoss(8, 20, [3, 9, 14], div_value=2.0, head_bias=True)")
    x, target = numbers(6, 8), np.array([0, 2, 5, 13, 13, 1])  # none of the last cluster
    compare(ours, theirs, (x, target))
    same(ours.log_prob(pydist.tensor(x)), theirs.log_prob(torch.tensor(x)))
    assert ours.predict(pydist.tensor(x)).tolist() == theirs.predict(torch.tensor(x)).tolist()
    same(ours(pydist.tensor(x[0]), pydist.tensor(19)).output, theirs(torch.tensor(x[0]), torch.tensor(19)).output)
    for bad in (np.array([20]), np.array([-1])):
        with pytest.raises(RuntimeError, match=r"in \[0, 19\]"):
            ours(pydist.tensor(x[:1]), pydist.tensor(bad))
    for lib in (pydist, torch):
        with pytest.raises(RuntimeError):
            lib.nn.AdaptiveLogSoftmaxWithLoss(8, 20, [3])(lib.zeros(2, 8), lib.zeros(3, dtype=lib.int64))
        for cutoffs in ([3, 3], [5, 2], [20], [0], []):
            with pytest.raises(ValueError):
                lib.nn.AdaptiveLogSoftmaxWithLoss(8, 20, cutoffs)


def test_buffers():
    for lib in (pydist, torch):
        module = lib.nn.Module()
        module.a, module.b = lib.nn.Buffer(lib.zeros(2)), lib.nn.Buffer(lib.ones(1), persistent=False)
        assert list(module.state_dict()) == ["a"] and [name for name, _ in module.named_buffers()] == ["a", "b"]
        module.a = lib.ones(3)
        assert module.state_dict()["a"].shape == (3,) and module.double().b.dtype == lib.float64
        with pytest.raises(AttributeError):
            type("M", (lib.nn.Module,), {"__init__": lambda self: setattr(self, "x", lib.nn.Buffer())})()


ATTENTIONS = [
    "8, 2",
    "8, 4, bias=False, batch_first=True",
    "8, 2, kdim=5, vdim=6",
    "8, 2, add_bias_kv=True, add_zero_attn=True",
]


@pytest.mark.parametrize("text", ATTENTIONS)
def test_attention_as_torch(text):
    ours, theirs = pair(f"MultiheadAttention({text})")
    first = "batch_first" in text
    kd, vd = (5, 6) if "kdim" in text else (8, 8)
    q, k, v = (
        numbers(*((3, n) if first else (n, 3)), d, seed=s) for s, (n, d) in enumerate(((4, 8), (5, kd), (5, vd)))
    )
    mask, hidden = np.random.default_rng(9).normal(size=(4, 5)), np.zeros((3, 5), bool)
    hidden[1, 3:] = True

    def given(**more):
        return [
            {k: lib.tensor(v) if isinstance(v, np.ndarray) else v for k, v in more.items()} for lib in (pydist, torch)
        ]

    for more in (
        {},
        {"need_weights": False},
        {"attn_mask": mask},
        {"attn_mask": mask > 1.5, "average_attn_weights": False},
        {"attn_mask": np.repeat(mask[None], 3 * ours.num_heads, 0)},
    ):
        compare(ours, theirs, [q, k, v], given(**more))
    as_float = np.where(hidden, -np.inf, 0.0)
    for need in (True, False):
        compare(ours, theirs, [q, k, v], given(key_padding_mask=hidden, need_weights=need))
        compare(ours, theirs, [q, k, v], given(key_padding_mask=as_float, attn_mask=mask, need_weights=need))
    if "kdim" not in text:
        compare(ours, theirs, [q[0], q[1], q[1]] if first else [q[:, 0], k[:, 0], v[:, 0]])


@pytest.mark.parametrize("options", ["batch_first=True", "norm_first=True, activation='gelu'"])
def test_transformer_as_torch(options):
    ours, theirs = pair(f"Transformer(8, 2, 2, 1, 16, 0.0, {options})")
    assert repr(ours) == repr(theirs)
    first = "batch_first" in options
    src, tgt = (numbers(*((3, n) if first else (n, 3)), 8, seed=n) for n in (5, 4))
    hidden = np.zeros((3, 5), bool)
    hidden[0, 3:] = True
    for lib in (pydist, torch):
        assert lib.nn.Transformer.generate_square_subsequent_mask(3).tolist() == [
            [0, -np.inf, -np.inf],
            [0, 0, -np.inf],
            [0, 0, 0],
        ]
    more = []
    for lib in (pydist, torch):
        causal, h = (
            lib.nn.Transformer.generate_square_subsequent_mask(4).double(),
            lib.zeros(3, 5).double().masked_fill(lib.tensor(hidden), -np.inf),
        )
        more.append(
            {"tgt_mask": causal, "tgt_is_causal": True, "src_key_padding_mask": h, "memory_key_padding_mask": h}
        )
    compare(ours, theirs, [src, tgt], more)


def test_embedding_bags_as_torch():
    indices, offsets = np.array([1, 2, 4, 5, 4, 3, 2, 9]), np.array([0, 3, 3, 7])
    for text in (
        "mode='sum'",
        "mode='mean'",
        "mode='max'",
        "mode='mean', padding_idx=4",
        "mode='sum', include_last_offset=True",
    ):
        ours, theirs = pair(f"EmbeddingBag(10, 3, {text})")
        assert repr(ours) == repr(theirs)
        compare(ours, theirs, [indices, np.append(offsets, 8) if "last" in text else offsets])
        if "last" not in text:
            compare(*pair(f"EmbeddingBag(10, 3, {text})"), [indices.reshape(2, 4)])
    ours, theirs = pair("EmbeddingBag(10, 3, mode='sum')")
    weights = [{"per_sample_weights": lib.tensor(numbers(8))} for lib in (pydist, torch)]
    compare(ours, theirs, [indices, offsets], weights)
    for text in ("max_norm=1.0", "scale_grad_by_freq=True", "max_norm=0.5, norm_type=1.0"):
        compare(*pair(f"Embedding(10, 3, {text})"), [indices])
    with pytest.raises(ValueError, match="mode"):
        nn.functional.embedding_bag(pydist.tensor([[1]]), pydist.zeros(2, 2), mode="min")


@pytest.mark.parametrize("text, kinds", LOSSES)
def test_losses_as_torch(text, kinds):
    args = loss_arguments(kinds)
    for reduction in ("mean", "sum", "none"):
        full = (
            text.replace("()", f"(reduction='{reduction}')")
            if "()" in text
            else text.replace(")", f", reduction='{reduction}')")
        )
        ours, theirs = pair(full)
        compare(ours, theirs, args)


def test_dropout_that_keeps_mean_and_variance():
    pydist.manual_seed(0)
    x = pydist.randn(40000)
    y = nn.AlphaDropout(0.3)(x)
    assert abs(y.mean().item()) < 0.05 and abs(y.std().item() - 1) < 0.05 and nn.AlphaDropout(0.3).eval()(x) is x
    whole = nn.FeatureAlphaDropout(0.5)(pydist.ones(50, 4, 3))
    assert (whole == whole[..., :1]).all().item() and nn.Dropout3d(1.0)(pydist.ones(2, 3, 2, 2, 2)).sum().item() == 0
    hard = nn.functional.gumbel_softmax(pydist.randn(6, 4), hard=True)
    assert pydist.allclose(hard.sum(-1), pydist.ones(6)) and ((hard - hard.round()).abs() < 1e-6).all().item()
    slopes = nn.RReLU(0.2, 0.4)(-pydist.ones(1000))
    assert -0.4 <= slopes.min().item() < slopes.max().item() <= -0.2 and nn.RReLU(0.2, 0.4).eval()(
        -pydist.ones(1)
    ).item() == pytest.approx(-0.3)


@pytest.mark.parametrize("text, shape", LAZY)
def test_lazy_modules(text, shape):
    ours, theirs = pair(text)
    again, before = pair(text)[0], list(ours.parameters())
    x = np.random.default_rng(0).normal(size=shape)
    theirs(torch.tensor(x))
    ours(pydist.tensor(x))
    name = text.removeprefix("Lazy").split("(")[0]
    assert (
        type(ours) is getattr(nn, name)
        and repr(ours) == repr(theirs)
        and all(a is b for a, b in zip(before, ours.parameters(), strict=True))
    )
    assert [(k, tuple(v.shape), str(v.dtype)[7:]) for k, v in ours.state_dict().items()] == [
        (k, tuple(v.shape), str(v.dtype)[6:]) for k, v in theirs.state_dict().items()
    ]
    ours.load_state_dict({k: pydist.from_numpy(v.detach().numpy().copy()) for k, v in theirs.state_dict().items()})
    if ours.state_dict():
        again.load_state_dict(ours.state_dict())  # before its first call
    for module in (ours, again):
        theirs.zero_grad()
        compare(module, theirs, [x])


def test_lazy_modules_before_their_first_call():
    layer = nn.Sequential(nn.LazyLinear(3), nn.LazyLinear(2))
    assert layer[0].has_uninitialized_params() and "Uninitialized" in repr(layer[0].weight)
    with pytest.raises(RuntimeError, match="no shape yet"):
        layer[0].weight.shape
    optimizer = pydist.optim.SGD(layer.parameters(), lr=1.0)
    other = copy.deepcopy(layer)
    other.load_state_dict(layer.state_dict())
    assert isinstance(other[0], nn.LazyLinear)
    layer(pydist.ones(4, 5)).sum().backward()
    old = layer[0].bias.detach().clone()
    optimizer.step()
    assert not pydist.equal(layer[0].bias, old) and layer[0].weight.shape == (3, 5)
    with pytest.raises(RuntimeError, match="Missing key"):
        other.load_state_dict({})
    for _ in range(2):  # a copy's hook is its own
        assert other(pydist.ones(4, 5)).shape == (4, 2) and type(other[0]) is nn.Linear
    with pytest.raises(RuntimeError, match="LazyConv2d.*expected 3 or 4 dimensions"):
        nn.LazyConv2d(2, 3)(pydist.ones(2))


WRONG = [
    (lambda: nn.functional.pad(pydist.zeros(2, 3, 3), (3, 0), "reflect"), RuntimeError, "pad.*expected 0 to 2"), (lambda: nn.functional.pad(pydist.zeros(3), (1, 0, 2, 1)), RuntimeError, "constant_pad_nd"), (lambda: nn.functional.pad(pydist.zeros(2, 3), (-4, 0)), RuntimeError, "which removes more of dimension"),
    (lambda: nn.functional.pad(pydist.zeros(2, 3), (1, 0), "mirror"), ValueError, "mode.*mirror"), (lambda: nn.functional.interpolate(pydist.zeros(1, 1, 4), mode="bilinear", size=3), NotImplementedError, "bilinear"),
    (lambda: nn.functional.interpolate(pydist.zeros(1, 1, 4)), ValueError, "size or scale_factor"), (lambda: nn.functional.interpolate(pydist.zeros(1, 1, 4), scale_factor=float("nan")), RuntimeError, "more than 0"), (lambda: nn.functional.interpolate(pydist.zeros(1, 1, 4), size=0), RuntimeError, "at least 1"), (lambda: nn.functional.pixel_shuffle(pydist.zeros(3, 2, 2), 2), RuntimeError, "pixel_shuffle"),
    (lambda: nn.MultiheadAttention(8, 3), AssertionError, "divisible"), (lambda: nn.MultiheadAttention(8, 2)(*[pydist.zeros(4, 3, 8)] * 3, attn_mask=pydist.zeros(2, 2)), RuntimeError, "attn_mask"), (lambda: nn.ConvTranspose2d(2, 2, 3)(pydist.zeros(1, 3, 4, 4)), RuntimeError, "conv_transpose2d"),
    (lambda: nn.ConvTranspose2d(2, 2, 3, output_padding=1)(pydist.zeros(1, 2, 4, 4)), ValueError, "output_padding"), (lambda: nn.Conv3d(2, 2, 5)(pydist.zeros(1, 2, 4, 4, 4)), RuntimeError, "conv3d"), (lambda: nn.functional.unfold(pydist.zeros(1, 1, 2, 2), 3), RuntimeError, "unfold"),
    (lambda: nn.InstanceNorm2d(3)(pydist.zeros(2, 3)), ValueError, "expected"), (lambda: nn.functional.grid_sample(pydist.zeros(1, 1, 2, 2), pydist.zeros(1, 2, 2, 3), align_corners=False), RuntimeError, "grid_sample"), (lambda: nn.ConstantPad2d((1, 2), 0.0), ValueError, "ConstantPad2d"),
    (lambda: nn.functional.conv_transpose2d(pydist.zeros(1, 1, 2, 2), pydist.zeros(1, 1, 2, 2), stride=2**40), (ValueError, RuntimeError), "stride|large"), (lambda: nn.TripletMarginLoss(margin=-1), ValueError, "margin"), (lambda: nn.functional.glu(pydist.zeros(3)), RuntimeError, "glu"),
]  # fmt: skip


@pytest.mark.parametrize("case", WRONG, ids=range(len(WRONG)))
def test_errors(case):
    call, kind, text = case
    with pytest.raises(kind, match=text):
        call()


@pytest.mark.parametrize("text, norm, shape, transpose", [
    ("Conv2d(3, 4, 3, bias=False)", "BatchNorm2d(4)", (2, 3, 5, 6), False), ("Conv1d(3, 4, 2)", "BatchNorm1d(4, affine=False)", (2, 3, 5), False),
    ("ConvTranspose2d(3, 4, 3)", "BatchNorm2d(4)", (2, 3, 4, 4), True), ("Linear(5, 4, bias=False)", "BatchNorm1d(4)", (3, 5), None),
])  # fmt: skip
def test_batch_norms_folded_as_torch(text, norm, shape, transpose):
    found = []
    for lib in (pydist, torch):
        lib.manual_seed(0)
        layer, bn = (eval(f"nn.{t}", {"nn": lib.nn}).double() for t in (text, norm))
        with lib.no_grad():
            for i, t in enumerate([*layer.state_dict().values(), *bn.state_dict().values()]):
                if t.is_floating_point():
                    t.copy_(lib.tensor(abs(numbers(*t.shape, seed=i)) + 0.1))
        if transpose is None:
            fuse, more = lib.nn.utils.fusion.fuse_linear_bn_eval, ()
        else:
            fuse, more = lib.nn.utils.fusion.fuse_conv_bn_eval, (transpose,)
        with pytest.raises(AssertionError):
            fuse(layer, bn, *more)
        fused, x = fuse(layer.eval(), bn.eval(), *more), lib.tensor(numbers(*shape))
        found.append([fused.weight, fused.bias, fused(x)])
        same(fused(x), bn(layer(x)) if lib is torch else torch.tensor(bn(layer(x)).detach().numpy()))
    for a, b in zip(*found):
        same(a, b)
