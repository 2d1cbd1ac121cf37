"""Ops on DTensors beside the same ops on whole tensors: every sample of tests/lib/op_samples.py, every placement of every
operand; values, gradients, second gradients."""

import itertools
import os
import random
import warnings

import pytest

import pydist
from lib.processes import within
from pydist.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, init_device_mesh
from pydist.testing import run_ranks
from tests.lib.op_samples import SAMPLES, arguments, arrays, build, call, specs_of

LONG = int(os.environ.get("FULL_LONG", 0))
RANDOM = {"dropout", "uniform", "normal", "bernoulli"}
NAMES = [name for name, samples in SAMPLES.items() if samples and name not in RANDOM]


def placements_of(t, mesh):
    """Every way in which a tensor can lie along one dimension of a mesh."""
    places = [Replicate(), *[Shard(d) for d in range(t.dim())]]
    return [*places, Partial()] if t.is_floating_point() else places


def spread(t, mesh, places):
    """A DTensor leaf with the values of t."""
    if any(isinstance(p, Partial) for p in places):
        whole = [Replicate() if isinstance(p, Partial) else p for p in places]
        d = distribute_tensor(t, mesh, whole)
        share = 1
        for n, p in zip(mesh.shape, places, strict=True):
            share *= n if isinstance(p, Partial) else 1
        local = d.to_local() / share
        return DTensor.from_local(local.detach(), mesh, places, shape=t.shape).detach().requires_grad_(t.requires_grad)
    return distribute_tensor(t.detach(), mesh, places).requires_grad_(t.requires_grad)


def floats(result):
    results = result if isinstance(result, (tuple, list)) else [result]
    return [r for r in results if r.is_floating_point()], list(results)


def whole(t):
    return t.full_tensor() if isinstance(t, DTensor) else t


def derivatives(result, leaves):
    """First and second gradients of a function that is not linear in the results."""
    outs = [whole(r) for r in floats(result)[0] if r.requires_grad]
    leaves = [t for t in leaves if t.requires_grad]
    if not outs or not leaves:
        return [], []
    loss = sum((o * (o.detach() * 0.5 + 1)).sum() for o in outs)
    first = pydist.autograd.grad(loss, leaves, create_graph=True, allow_unused=True)
    again = [whole(g) for g in first if g is not None and g.requires_grad]
    second = []
    if again:
        size = sum((g * g).sum() for g in again)
        if size.requires_grad:
            second = pydist.autograd.grad(size, leaves, allow_unused=True)
    return [None if g is None else whole(g) for g in first], [None if g is None else whole(g) for g in second]


def equal(a, b, text):
    if a is None or b is None:
        other = a if b is None else b
        assert other is None or not other.abs().sum().item(), text
        return
    assert a.shape == b.shape and a.dtype == b.dtype, (text, a.shape, b.shape, a.dtype, b.dtype)
    if a.is_floating_point():
        bound = 1e-12 if a.dtype == pydist.float64 else 1e-6
        assert pydist.allclose(a, b, rtol=bound, atol=bound, equal_nan=True), (text, a, b)
    else:
        assert pydist.equal(a, b), (text, a, b)


def check(name, sample, mesh, choose):
    values = arrays(name, sample)
    plain = build(pydist, sample, values)
    wanted = [getattr(spec, "grad", False) and sample.grad for spec in specs_of(sample)]
    leaves = [t.requires_grad_(w and t.is_floating_point()) for t, w in zip(plain, wanted, strict=True)]
    kwargs = sample.kwargs
    try:
        expected = call(pydist, name, *arguments(sample, [t.clone() if sample.writes else t for t in leaves]), **kwargs)
    except Exception:
        return 0
    first, second = derivatives(expected, leaves)
    ways = [[tuple(w) for w in itertools.product(placements_of(t, mesh), repeat=mesh.ndim)] for t in plain]
    count = 0
    for places in choose(ways):
        text = f"{name}{sample.args} {kwargs} with {places}"
        parts = [spread(t, mesh, p) for t, p in zip(plain, places, strict=True)]
        given = [t.clone() if sample.writes else t for t in parts]
        try:
            result = call(pydist, name, *arguments(sample, given), **kwargs)
            for got, want in zip(floats(result)[1], floats(expected)[1], strict=True):
                assert isinstance(got, DTensor) or not any(isinstance(g, DTensor) for g in given), text
                assert tuple(got.shape) == tuple(want.shape), (text, got.shape, want.shape)
                equal(whole(got).detach(), want.detach(), text)
            mine, again = derivatives(result, parts)
            for got, want in itertools.zip_longest(mine, first):
                equal(got, want, f"gradient of {text}")
            for got, want in itertools.zip_longest(again, second):
                equal(got, want, f"second gradient of {text}")
        except AssertionError:
            raise
        except Exception as error:
            raise AssertionError(f"{text}: {type(error).__name__}: {error}") from error
        count += 1
    return count


def some(n, seed):
    def choose(ways):
        every = list(itertools.product(*ways)) if all(len(w) < 40 for w in ways) and len(ways) < 5 else None
        rng = random.Random(seed)
        if every is not None and len(every) <= n:
            return every
        return rng.sample(every, n) if every is not None else [tuple(map(rng.choice, ways)) for _ in range(n)]

    return choose


MESHES = [(2,), (3,), (2, 2)] if LONG else [(2,), (2, 2)]


@pytest.mark.parametrize("shape", MESHES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_op_on_parts(name, shape):
    ranks = 1
    for n in shape:
        ranks *= n

    def work(rank):
        mesh = init_device_mesh("cpu", shape)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return sum(
                check(name, s, mesh, some(400 if LONG else 12 if shape == (2,) else 4, i))
                for i, s in enumerate(SAMPLES[name])
            )

    counts = run_ranks(ranks, work, timeout=within(60))
    assert counts[0] and len(set(counts)) == 1
