"""Gradients of slices of one tensor, which backward writes into one gradient: any slices, in any order, beside other uses. torch is the
reference; numbers are small integers, so all sums are exact."""

import random

import pytest

import pydist
from pydist.autograd import gradcheck, gradgradcheck
from pydist.profiler import profile


def views(rng, x, n):
    """n random views of parts of x [4, 6, 5]; some overlap, some are empty, some nest."""
    for _ in range(n):
        d = rng.randrange(3)
        size, kind = x.shape[d], rng.randrange(6)
        a, b = sorted(rng.choices(range(size + 1), k=2))
        if kind == 0:
            yield x.select(d, rng.randrange(-size, size))
        elif kind == 1:
            yield x.narrow(d, a, b - a)
        elif kind == 2:
            yield x[(slice(None),) * d + (slice(a, b, rng.randrange(1, 4)),)]
        elif kind == 3:
            yield from x.chunk(rng.randrange(1, size + 1), d)
        elif kind == 4:
            yield x.narrow(d, a, b - a).transpose(0, 2)[:3].reshape(-1)
        else:
            yield x * 2


def run(lib, seed):
    """Gradients of a random program: of a leaf, of what was made of it, and of some slices."""
    rng = random.Random(seed)
    numbers = [float(rng.randrange(-8, 9)) for _ in range(1000)]
    x = lib.tensor(numbers[:120]).view(4, 6, 5).requires_grad_()
    y = x * 3 if rng.random() < 0.7 else x
    y.retain_grad()
    parts, seen, loss = list(views(rng, y, rng.randrange(1, 7))), [], 0
    rng.shuffle(parts)
    for p in parts:
        how = rng.randrange(5)
        if how == 0:
            p.retain_grad()
            seen.append(p)
        elif how == 1 and p.requires_grad:
            p.register_hook(lambda g: g * 2)
        at = rng.randrange(800)
        w = lib.tensor(numbers[at : at + p.numel()] if p.numel() <= 100 else numbers[: p.numel()]).reshape(p.shape)
        loss = loss + (p * w).sum()
    if rng.random() < 0.5:  # some slices get no gradient
        y.narrow(1, 2, 2)
    loss.backward(retain_graph=True)
    if rng.random() < 0.3:
        loss.backward()
    return [[] if t.grad is None else t.grad.flatten().tolist() for t in [x, y, *seen]]


@pytest.mark.parametrize("seed", range(60))
def test_any_slices(seed, torch):
    assert run(pydist, seed) == run(torch, seed)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16", "complex128"])
def test_dtypes(dtype, torch):
    def program(lib):
        x = lib.arange(24).view(2, 12).to(getattr(lib, dtype)).requires_grad_()
        a, b, _, d = (x * 2).split([3, 4, 2, 3], 1)
        (a * a).sum().add((b * 3).sum()).add(d[:, 1].sum()).abs().backward()
        return x.grad.tolist()

    assert program(pydist) == program(torch)


def names_in_backward(n, use):
    x = pydist.randn(4, 3 * n, requires_grad=True)
    loss = sum(part.sin().sum() for part in use(x * 2))
    with profile() as prof:
        loss.backward()
    return [e.name for e in prof.events()]


def test_a_split_adds_nothing():
    for use in (lambda y: y.split(5, 1), lambda y: (y[:, 10:], y[:, 5:10], y[:, :5]), lambda y: y.unbind(1)):
        names = names_in_backward(5, use)
        assert names.count("add_") == 0 and names.count("copy_") == len(use(pydist.zeros(4, 15)))
    assert names_in_backward(5, lambda y: (y[:, :9], y[:, 6:])).count("add_") == 1  # these overlap


def test_gradients_of_some_outputs():
    x = pydist.arange(6.0).requires_grad_()
    y = x * x
    a, b = y.split(3)
    got = pydist.grad(a.sum() + (b * 2).sum(), [y, a, x])
    assert [g.tolist() for g in got] == [[1, 1, 1, 2, 2, 2], [1, 1, 1], [0, 2, 4, 12, 16, 20]]


def test_slices_of_one_of_several_results():
    x = pydist.arange(12.0).view(3, 4).requires_grad_()
    values, at = (x * 1).sort(1, descending=True)
    a, b = values.split(2, 1)
    ((a * 2).sum() + (b * 3).sum() + x[:, 1:3].sum()).backward()
    assert x.grad.tolist() == [[3, 4, 3, 2]] * 3 and at[0].tolist() == [3, 2, 1, 0]


def test_second_derivatives():
    x = pydist.randn(3, 6, dtype=pydist.float64).requires_grad_()

    def f(x):
        a, b, c = (x * x).chunk(3, 1)
        return a * b.sin() + c[:, :1] * x[0, ::3]

    assert gradcheck(f, x) and gradgradcheck(f, x)


def test_a_slice_of_a_gradient_is_nobody_elses():
    x = pydist.ones(4, requires_grad=True)
    y = x * 1
    y.retain_grad()
    a, b = y.split(2)
    a.retain_grad()
    (a * 2 + b * 3).sum().backward()
    a.grad.zero_()
    assert y.grad.tolist() == x.grad.tolist() == [2, 2, 3, 3]


# Attention makes the gradients of q, k and v in their places.


def heads(x):
    return x.view(*x.shape[:2], -1, 4).transpose(1, 2)


def by_chunks(y):
    return [heads(p) for p in y.chunk(3, 2)]


def by_permute(y):
    return list(y.view(2, 5, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0))


def columns_first(y):
    """The last dimension of these is dense, that of their gradients' places is not."""
    z = y.view(2, 5, 3, 2, 4).permute(0, 4, 1, 2, 3)
    return [z.select(3, i).permute(0, 3, 2, 1) for i in range(3)]


def grouped(y):
    return [heads(y[..., :16]), heads(y[..., 16:20]), heads(y[..., 20:])]


def overlapping(y):
    return [heads(y[..., :16]), heads(y[..., 8:]), heads(y[..., 4:20])]


def with_gaps(y):
    return [heads(y[..., 16:24]), heads(y[..., 0:8]), heads(y[..., 8:16]) * 2]


def same_twice(y):
    q, k, _ = by_chunks(y)
    return [q, k, k]


SPLITS = [by_chunks, by_permute, columns_first, grouped, overlapping, with_gaps, same_twice]


def attention_program(lib, split, also, dtype="float64"):
    x = (lib.arange(240).to(getattr(lib, dtype)) / 64 - 2).view(2, 5, 24).requires_grad_()
    y = x if also.startswith("leaf") else x * 2
    seen, more = [], 0
    if also.startswith("used before"):
        more = (y * y).sum() + y[:, 1:3].sum()
    parts = split(y)
    if also.startswith(
        "used between"
    ):  # its gradient comes after attention has made its own, and before the slices have
        more = (y * y).sum() + y[:, 1:3].sum() + (parts[0] * parts[0]).sum()
    if also == "hook":
        parts[1].register_hook(lambda g: g * 3)
    if "seen" in also:
        for p in parts:
            p.register_hook(lambda g: None)
    if also == "retained":
        seen = [y, parts[0]]
        for t in seen:
            t.retain_grad()
    if also == "a part alone":
        parts[1:] = [p.detach() for p in parts[1:]]
    out = lib.nn.functional.scaled_dot_product_attention(*parts, is_causal=True, enable_gqa=split is grouped)
    if also.startswith("used after"):
        more = (y * y).sum() + y[:, 1:3].sum()
    ((out * (lib.arange(out.numel()).view(out.shape) % 7)).sum() + more).backward()
    return [t.grad.flatten().tolist() for t in [x, *seen]]


@pytest.mark.parametrize(
    "also", ["", "hook", "used before", "used between", "used after", "retained", "leaf", "a part alone"]
)
@pytest.mark.parametrize("split", SPLITS)
def test_attention_of_slices(split, also, torch):
    for ours, theirs in zip(attention_program(pydist, split, also), attention_program(torch, split, also)):
        assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("also", ["", "used before", "used between", "used after", "leaf"])
@pytest.mark.parametrize("split", SPLITS)
def test_the_place_changes_no_bits(split, also, dtype):
    """A hook that sees a slice's gradient keeps it from being made in its place."""
    ours = attention_program(pydist, split, also, dtype)
    assert ours == attention_program(pydist, split, also + " seen", dtype)


@pytest.mark.parametrize("split, copies", [(by_chunks, 0), (by_permute, 0), (columns_first, 3), (same_twice, 1)])
def test_attention_makes_its_gradients_where_they_lie(split, copies):
    x = pydist.randn(2, 5, 24, requires_grad=True)
    loss = pydist.nn.functional.scaled_dot_product_attention(*split(x * 2)).sin().sum()
    with profile() as prof:
        loss.backward()
    names = [e.name for e in prof.events()]
    assert names.count("copy_") == copies and names.count("add_") == 0
