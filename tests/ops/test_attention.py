"""Attention beyond the op samples: masks that hide everything, second gradients, dropout, layouts, bad input."""

import numpy as np
import pytest

import pydist
from pydist.autograd import gradcheck, gradgradcheck
from pydist.nn.functional import scaled_dot_product_attention as attention


def heads(*shapes, seed=0, dtype=pydist.float64):
    rng = np.random.default_rng(seed)
    return [pydist.tensor(rng.standard_normal(shape)).to(dtype).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
def test_first_and_second_gradients(causal, groups):
    tensors = heads((1, 2, 3, 2), (1, 2 // groups, 4, 2), (1, 2 // groups, 4, 3))

    def f(q, k, v):
        return attention(q, k, v, is_causal=causal, enable_gqa=groups > 1)

    assert gradcheck(f, tensors) and gradgradcheck(f, tensors)


def test_a_mask_has_gradients():
    tensors = heads((2, 2, 3, 2), (2, 2, 4, 2), (2, 2, 4, 2), (3, 4))
    assert gradcheck(attention, tensors) and gradgradcheck(attention, tensors)


@pytest.mark.parametrize("dropout_p", [0.0, 1e-30])  # fused, and in ops
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_a_query_that_sees_nothing_gets_zeros(dropout_p, dtype):
    q, k, v = heads(*[(1, 2, 5, 4)] * 3, dtype=getattr(pydist, dtype))
    mask = pydist.ones(5, 5).tril().bool()
    mask[2] = False
    y = attention(q, k, v, mask, dropout_p)
    y.backward(pydist.ones_like(y))
    assert (y[:, :, 2] == 0).all() and not (y[:, :, 3] == 0).any()
    assert (q.grad[:, :, 2] == 0).all()
    assert all(t.grad.isfinite().all() for t in (q, k, v))


def test_no_keys_at_all():
    q, k, v = heads((1, 1, 3, 4), (1, 1, 0, 4), (1, 1, 0, 2))
    y = attention(q, k, v)
    y.sum().backward()
    assert y.shape == (1, 1, 3, 2) and (y == 0).all() and (q.grad == 0).all() and k.grad.shape == k.shape


def test_nan_stays_where_it_is():
    q, k, v = heads(*[(1, 1, 150, 4)] * 3)
    with pydist.no_grad():
        q[0, 0, 7, 1] = float("nan")
    y = attention(q, k, v, is_causal=True)
    assert y[0, 0, 7].isnan().all() and y[0, 0, :7].isfinite().all() and y[0, 0, 8:].isfinite().all()


def test_dropout_takes_probabilities_away():
    q, k = (pydist.zeros(1, 1, 200, 4) for _ in range(2))
    v = pydist.eye(200).reshape(1, 1, 200, 200)
    pydist.manual_seed(0)
    p = attention(q, k, v, dropout_p=0.25)[0, 0] * 200  # 0, or 1 / 0.75
    assert {round(x, 4) for x in p.unique().tolist()} == {0.0, 1.3333}
    assert abs((p == 0).float().mean().item() - 0.25) < 0.01
    assert (attention(q, k, v, dropout_p=1.0) == 0).all()


def test_heads_join_without_a_copy():
    x = pydist.randn(2, 7, 3 * 12, requires_grad=True)
    q, k, v = (t.view(2, 7, 3, 4).transpose(1, 2) for t in x.split(12, 2))
    y = attention(q, k, v, is_causal=True)
    assert y.transpose(1, 2).is_contiguous()
    joined = y.transpose(1, 2).view(2, 7, 12)
    joined.sum().backward()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize(
    "nq, nk, heads_of_keys, d, dv",
    [(64, 64, 2, 32, 32), (100, 77, 2, 40, 24), (130, 150, 1, 5, 100), (17, 300, 2, 64, 33)],
)
@pytest.mark.parametrize("way", ["plain", "causal", "bool", "float"])
def test_bfloat16_next_to_float64(nq, nk, heads_of_keys, d, dv, way):
    """Where there are AMX tiles, or vectors of pairs, they serve: blocks that fill them and blocks that do not, keys shared by heads, masks."""
    rng, exact, low = np.random.default_rng(0), pydist.float64, pydist.bfloat16
    x = [
        rng.standard_normal(s)
        for s in ((2, 2, nq, d), (2, heads_of_keys, nk, d), (2, heads_of_keys, nk, dv), (2, 2, nq, dv))
    ]
    x = [pydist.tensor(t).to(low) for t in x]
    mask = {
        "bool": pydist.tensor(rng.random((2, 1, nq, nk)) < 0.7),
        "float": pydist.tensor(rng.standard_normal((nq, nk))).to(low),
    }.get(way)
    results = []
    for dtype in (exact, low):
        q, k, v, g = (t.to(dtype) for t in x)
        leaves = [t.detach().requires_grad_() for t in (q, k, v)]
        m = mask.to(dtype) if way == "float" else mask
        y = attention(*leaves, m, is_causal=way == "causal", enable_gqa=True)
        y.backward(g)
        results.append([y.detach().to(exact), *(t.grad.to(exact) for t in leaves)])
    for want, got in zip(*results):
        assert (got - want).abs().max().item() < 0.015 * want.abs().max().item()


@pytest.mark.parametrize("dtype", [pydist.float32, pydist.bfloat16])
def test_the_same_bits_for_one_and_two_threads(dtype):
    def run(threads):
        pydist.set_num_threads(threads)
        tensors = heads(*[(3, 2, 300, 16)] * 3, dtype=dtype)
        y = attention(*tensors, is_causal=True)
        y.backward(pydist.cos(y.detach() * 9))
        return [t.detach().float().numpy().tobytes() for t in (y, *(t.grad for t in tensors))]

    before = pydist.get_num_threads()
    try:
        assert run(1) == run(2)
    finally:
        pydist.set_num_threads(before)


x = pydist.zeros(2, 3, 4)


@pytest.mark.parametrize("args, kwargs, error, text", [
    ((x, x, x.double()), {}, pydist.DTypeError, "one dtype"),
    ((x, x[:1], x[:1]), {}, pydist.ShapeError, "expected"),
    ((x, x[..., :2], x), {}, pydist.ShapeError, "expected"),
    ((x, x[:, :2], x), {}, pydist.ShapeError, "expected"),
    ((x[0, 0], x, x), {}, pydist.ShapeError, "expected"),
    ((x.long(), x.long(), x.long()), {}, pydist.DTypeError, "int64"),
    ((x, x, x, pydist.zeros(3, 4)), {}, pydist.ShapeError, "expand"),
    ((x, x, x, pydist.zeros(3, 3).long()), {}, pydist.DTypeError, "attn_mask"),
    ((x, x, x), {"dropout_p": 1.5}, ValueError, "dropout_p"),
    ((x, x, x), {"scale": "a"}, TypeError, "scale"),
    ((x, None, x), {}, TypeError, "key"),
])  # fmt: skip
def test_bad_input(args, kwargs, error, text):
    with pytest.raises(error, match=text):
        attention(*args, **kwargs)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("b, h, t, s", [(3, 0, 4, 1), (0, 2, 4, 3), (2, 2, 0, 3), (2, 2, 3, 0)])
def test_nothing_to_attend(dtype, b, h, t, s):
    q, k, v = (pydist.ones(b, h, n, 4, dtype=getattr(pydist, dtype), requires_grad=True) for n in (t, s, s))
    out = pydist.nn.functional.scaled_dot_product_attention(q, k, v)
    out.sum().backward()
    assert out.shape == (b, h, t, 4) and [g.grad.shape for g in (q, k, v)] == [g.shape for g in (q, k, v)]
    assert not any(g.grad.any() for g in (q, k, v))
