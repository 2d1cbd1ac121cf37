"""The device "meta": ops, functions and layers give there the shapes, dtypes and strides that they give on the CPU."""

import re

import numpy as np
import pytest

import pydist
from lib.layer_samples import LAYERS, LAZY, LOSSES, TWO, loss_arguments
from lib.op_samples import SAMPLES, arguments, arrays, build, call

SAMPLED = [name for name, samples in SAMPLES.items() if samples]
BY_DATA = {"nonzero", "positions", "index", "index_put"}  # a mask says how many elements there are


def as_list(result):
    return [r for r in (result if isinstance(result, (tuple, list)) else [result]) if isinstance(r, pydist.Tensor)]


def on_meta(t):
    """A tensor with t's geometry."""
    return pydist.empty_strided(tuple(t.shape), t.stride(), dtype=t.dtype, device="meta")


def run(name, sample, values, dtype, meta, grad):
    """Results, and gradients of the floating inputs."""
    tensors = [on_meta(t) if meta else t for t in build(pydist, sample, values, dtype)]
    wanted = [t.requires_grad_() for t in tensors if grad and t.is_floating_point()]
    results = as_list(call(pydist, name, *arguments(sample, tensors), **sample.kwargs))
    floating = [r for r in results if r.requires_grad] if wanted else []
    if not floating:
        return results, []
    seeds = [pydist.ones_like(r) for r in floating]
    return results, [g for g in pydist.autograd.grad(floating, wanted, seeds, allow_unused=True) if g is not None]


def geometry(t, strides):
    return t.dtype, tuple(t.shape), t.stride() if strides and t.numel() else None, t.requires_grad


def agree(got, want, what, strides=True):
    for g, w in zip(got, want, strict=True):
        assert g.is_meta and g.data_ptr() == 0, what
        assert geometry(g, strides) == geometry(w, strides), what


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("name", SAMPLED)
def test_ops(name, dtype):
    refused = 0
    for i, sample in enumerate(SAMPLES[name]):
        if sample.dtypes == "wide" and dtype == "bfloat16":
            continue
        values, what = arrays(name, sample), f"{name}[{i}] {dtype}"
        grad = not sample.writes
        try:
            want = run(name, sample, values, dtype, False, grad)
        except RuntimeError:
            grad = False
            want = run(name, sample, values, dtype, False, grad)
        try:
            got = run(name, sample, values, dtype, True, grad)
        except NotImplementedError as error:
            assert name in BY_DATA and re.match(f"({name}|nonzero)_?: .* meta", str(error)), what
            refused += 1
            continue
        agree(got[0] + got[1], want[0] + want[1], what, strides=name != "group_norm")  # its gradient has two forms
    assert bool(refused) == (name in BY_DATA)


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool"])
def test_ops_of_whole_numbers(dtype):
    seen = 0
    for name in SAMPLED:
        for i, sample in enumerate(SAMPLES[name]):
            if sample.dtypes != "all" or name in BY_DATA:
                continue
            values = [np.asarray(abs(v)) for v in arrays(name, sample)]
            try:
                want, _ = run(name, sample, values, dtype, False, False)
            except (RuntimeError, IndexError, TypeError):
                continue
            got, _ = run(name, sample, values, dtype, True, False)
            agree(got, want, f"{name}[{i}] {dtype}")
            seen += 1
    assert seen > 100


def test_random_ops_draw_nothing():
    x, key = pydist.ones(3, 4, device="meta"), pydist._C._rng_key()
    made = [
        pydist.nn.functional.dropout(x, 0.5),
        x.clone().uniform_(),
        x.clone().normal_(),
        x.clone().bernoulli_(0.5),
        pydist.rand(3, 4, device="meta"),
        pydist.randn_like(x),
        pydist.bernoulli(x),
        pydist.poisson(x),
        pydist.normal(0.0, 1.0, size=(3, 4), device="meta"),
        pydist.randint(0, 3, (3, 4), device="meta"),
    ]
    assert all(y.is_meta and y.shape == (3, 4) for y in made) and pydist.randperm(5, device="meta").shape == (5,)
    assert pydist._C._rng_key() == key


MIXED = [  # of a tensor with 3 x 4 elements, in Python
    ("median", ()), ("median", (1,)), ("quantile", (0.5, 1)), ("cummax", (1,)), ("kthvalue", (2,)), ("mode", ()),
    ("var_mean", (1,)), ("histc", (7, -1, 1)), ("roll", (1, 0)), ("tril", ()), ("logit", (0.1,)), ("nan_to_num", ()),
    ("norm", ()), ("renorm", (2, 0, 1.0)), ("diff", ()), ("logcumsumexp", (1,)), ("lgamma", ()), ("erfinv", ()),
    ("erfc", ()), ("i0", ()), ("digamma", ()), ("frexp", ()), ("diag_embed", ()), ("unfold", (1, 2, 1)),
    ("topk", (2,)), ("sort", ()), ("argsort", ()), ("repeat_interleave", (2, 1)), ("cov", ()), ("nanmedian", (1,)),
]  # fmt: skip


@pytest.mark.parametrize("name, args", MIXED)
def test_functions(name, args):
    x = pydist.rand(3, 4) * 0.5 + 0.25
    agree(as_list(getattr(on_meta(x), name)(*args)), as_list(getattr(x, name)(*args)), name)


def test_functions_with_indices():
    x, at, of = pydist.rand(3, 4), pydist.tensor([0, 2]), pydist.rand(2, 4)

    def each(x, at, of):
        grid, mask = at.unsqueeze(1).expand(2, 4), x > 0.5
        yield x.index_add(0, at, of)
        yield x.index_copy(0, at, of)
        yield x.index_fill(0, at, 1.0)
        yield x.index_select(0, at)
        yield x.scatter(0, grid, of)
        yield x.scatter_reduce(0, grid, of, "amax")
        yield x.gather(0, grid)
        yield x[at]
        yield x[:, at]
        yield x[1:, None, ..., -1]
        yield x.masked_fill(mask, 0)
        yield pydist.where(mask, x, 0.0)
        yield pydist.gcd(at, at)
        yield pydist.masked_scatter(x, mask, x)
        yield pydist.nn.functional.one_hot(at, 5)
        yield pydist.nn.functional.embedding(at, x)
        yield pydist.bucketize(x, of[0])
        yield pydist.multinomial(x, 2)
        yield pydist.einsum("ij,kj->ik", x, of)
        yield pydist.cdist(x, of)
        yield pydist.fft.rfft(x)
        yield pydist.nextafter(x, x)

    agree(list(each(on_meta(x), on_meta(at), on_meta(of))), list(each(x, at, of)), "")


def test_what_depends_on_numbers_says_so():
    x = pydist.ones(3, 4, device="meta")
    for name, use in {
        "nonzero": lambda: pydist.nonzero(x),
        "argwhere": lambda: pydist.argwhere(x),
        "masked_select": lambda: x.masked_select(x > 0),
        "unique": lambda: x.unique(),
        "unique_consecutive": lambda: x.unique_consecutive(),
        "bincount": lambda: x.long().view(-1).bincount(),
        "index": lambda: x[x > 0],
        "item": lambda: x.sum().item(),
        "tolist": lambda: x.tolist(),
        "to": lambda: x.to("cpu"),
    }.items():
        with pytest.raises(NotImplementedError, match=rf"{name}: .* meta"):
            use()
    with pytest.raises(NotImplementedError, match="no data"):
        bool(x.sum())
    for use in (x.numpy, lambda: memoryview(x), lambda: np.asarray(x), x.__dlpack__):
        with pytest.raises(TypeError, match="on meta, which has no data"):
            use()


@pytest.mark.parametrize("text, shape", LAYERS + LAZY)
def test_layers(text, shape):
    def run(device):
        with pydist.device(device):
            layer = eval(text if text.startswith("nn.") else f"nn.{text}", {"nn": pydist.nn})
        count = 2 if text.split("(")[0] in TWO else 1
        inputs = [pydist.ones(*shape, device=device, requires_grad=True) for _ in range(count)]
        y = layer(*inputs)
        y.sum().backward()
        return [y, *(x.grad for x in inputs), *(p.grad for p in layer.parameters())]

    agree(run("meta"), run("cpu"), text)


def test_losses():
    for text, kinds in LOSSES:
        values = [pydist.tensor(v) for v in loss_arguments(kinds)]
        loss = eval(f"nn.{text}", {"nn": pydist.nn})
        agree([loss(*map(on_meta, values))], [loss(*values)], text)
