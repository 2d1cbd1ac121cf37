"""linear_cross_entropy: the chunked loss against the two functions that it stands for, and against torch's."""

import math

import pytest

import pydist
from pydist.models import GPT, GPTConfig
from pydist.nn import functional as F


def plain(x, w, t, linear_bias=None, options=None, **kwargs):
    return F.cross_entropy(F.linear(x, w, linear_bias), t, **kwargs)


class Rows:
    def __init__(self, batch_chunk_size):
        self.batch_chunk_size = batch_chunk_size


def inputs(dtype=pydist.float64, rows=37, width=8, classes=11):
    pydist.manual_seed(0)
    x, w, b = (pydist.randn(*size, dtype=pydist.float64) for size in ((rows, width), (classes, width), (classes,)))
    t = pydist.randint(0, classes, (rows,))
    t[3] = -1
    return *(v.to(dtype).requires_grad_() for v in (x, w, b)), t


@pytest.mark.parametrize("chunk", [None, 1, 7, 37, 100])
def test_loss_and_gradients(chunk):
    weight = pydist.linspace(0.5, 2, 11, dtype=pydist.float64)
    for kwargs in (
        {},
        {"reduction": "sum", "linear_bias": True},
        {"label_smoothing": 0.1, "linear_bias": True, "weight": weight},
        {"reduction": "none"},
    ):
        results = []
        for f in (plain, F.linear_cross_entropy):
            x, w, b, t = inputs()
            given = {**kwargs, "linear_bias": b} if "linear_bias" in kwargs else kwargs
            loss = f(x, w, t, ignore_index=-1, options=Rows(chunk), **given)
            (loss.sum() * 3).backward()
            results.append([loss.detach(), x.grad, w.grad, *([b.grad] if "linear_bias" in kwargs else [])])
        for expected, got in zip(*results):
            assert got.shape == expected.shape and (got - expected).abs().max().item() < 1e-12


def test_parts_of_the_gradient_and_modes():
    x, w, _, t = inputs()
    expected = plain(x, w, t, ignore_index=-1)
    with pydist.no_grad():
        assert F.linear_cross_entropy(x, w, t, ignore_index=-1).item() == pytest.approx(expected.item())
    loss = F.linear_cross_entropy(x.detach(), w, t, ignore_index=-1)
    loss.backward(retain_graph=True)
    once = w.grad.clone()
    loss.backward()
    assert x.grad is None and w.grad.equal(once * 2)
    assert math.isnan(F.linear_cross_entropy(x, w, t * 0 - 1, ignore_index=-1).item())
    empty = F.linear_cross_entropy(x[:0], w, t[:0], reduction="sum")
    empty.backward()
    assert empty.item() == 0.0 and w.grad.equal(once * 2)
    three = F.linear_cross_entropy(x, w.view(11, 1, 8), t.clamp(min=0).view(37, 1))
    assert three.item() == pytest.approx(F.linear_cross_entropy(x, w, t.clamp(min=0)).item())
    chances = F.linear_cross_entropy(x, w, pydist.full((37, 11), 1 / 11, dtype=pydist.float64))
    assert chances.item() == pytest.approx(-F.linear(x, w).log_softmax(1).mean().item())


def test_second_order():
    x, w, b, t = inputs(rows=4, width=3, classes=5)
    assert pydist.autograd.gradcheck(
        lambda *v: F.linear_cross_entropy(v[0], v[1], t, linear_bias=v[2], ignore_index=-1), (x, w, b)
    )
    assert pydist.autograd.gradgradcheck(
        lambda *v: F.linear_cross_entropy(v[0], v[1], t, linear_bias=v[2], ignore_index=-1, label_smoothing=0.1),
        (x, w, b),
    )


@pytest.mark.parametrize("low", ["bfloat16", "float16"])
def test_mixed_precision(low):
    """Under autocast: the loss and the gradient of the float32 weight in float32, near those of float32; a scaled loss keeps
    float16's small numbers."""
    low = getattr(pydist, low)
    exact = inputs(pydist.float32, 300, 16, 50)
    plain(*exact[:2], exact[3], ignore_index=-1).backward()
    for chunk in (None, 64):
        x, w, _, t = inputs(pydist.float32, 300, 16, 50)
        with pydist.autocast("cpu", dtype=low):
            loss = F.linear_cross_entropy(x, w, t, ignore_index=-1, options=Rows(chunk))
        (loss * 1024).backward()
        assert loss.dtype is w.grad.dtype is x.grad.dtype is pydist.float32
        for got, expected in ((x.grad, exact[0].grad), (w.grad, exact[1].grad)):
            assert (got / 1024 - expected).abs().max().item() < 0.02 * expected.abs().max().item()
    xl, wl = (v.detach().to(low).requires_grad_() for v in exact[:2])
    F.linear_cross_entropy(xl, wl, exact[3], ignore_index=-1, options=Rows(32)).backward()
    assert wl.grad.dtype is low and (wl.grad.float() - exact[1].grad).abs().max() < 0.02 * exact[1].grad.abs().max()


def test_against_torch(torch):
    x, w, _, t = inputs(pydist.float32)
    tx, tw = (torch.tensor(v.tolist(), requires_grad=True) for v in (x, w))
    kwargs = {"ignore_index": -1, "reduction": "mean"}
    theirs = torch.nn.functional.linear_cross_entropy(tx, tw, torch.tensor(t.tolist()), **kwargs)
    theirs.backward()
    ours = F.linear_cross_entropy(x, w, t, **kwargs)
    ours.backward()
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-5)
    assert w.grad.flatten().tolist() == pytest.approx(tw.grad.flatten().tolist(), abs=1e-6)


def test_same_bits_and_a_model():
    """For 1 and 2 threads; GPT's loss is that of its logits."""
    bits, before = [], pydist.get_num_threads()
    for threads in (1, 2):
        pydist.set_num_threads(threads)
        x, w, _, t = inputs(pydist.float32, 200, 64, 700)
        loss = F.linear_cross_entropy(x, w, t, ignore_index=-1, options=Rows(64))
        loss.backward()
        bits.append([loss.item(), x.grad.tolist(), w.grad.tolist()])
    pydist.set_num_threads(before)
    assert bits[0] == bits[1]
    model = GPT(GPTConfig(vocab_size=50, block_size=8, n_layer=1, n_head=2, n_embd=8, dropout=0.0))
    tokens = pydist.randint(0, 50, (2, 8))
    expected = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    assert model.loss(tokens, tokens).item() == pytest.approx(expected.item(), rel=1e-6)


def test_errors():
    x, w, b, t = inputs()
    for wrong, kind in (
        (lambda: F.linear_cross_entropy(x, w[:, :3], t), pydist.ShapeError),
        (lambda: F.linear_cross_entropy(x, w.float(), t), pydist.DTypeError),
        (lambda: F.linear_cross_entropy(x, w, t), IndexError),  # -1 is no class
        (lambda: F.linear_cross_entropy(x, w, t[:-1]), pydist.ShapeError),
        (lambda: F.linear_cross_entropy(x, w, t, linear_bias=b[:-1]), pydist.ShapeError),
        (lambda: F.linear_cross_entropy(x, w, t, label_smoothing=2.0), ValueError),
        (lambda: F.linear_cross_entropy(x, w, t, reduction="most"), ValueError),
        (lambda: F.linear_cross_entropy(x.view(37, 2, 4), w, t), pydist.ShapeError),
    ):
        with pytest.raises(kind):
            wrong()
