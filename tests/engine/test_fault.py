"""Fails the N-th allocation of a scenario for N = 1, 2, ... until the scenario passes: every run raises MemoryError, leaks
nothing and leaves the process usable. Counts are printed (pytest -s)."""

import copy
import gc
import os
import subprocess
import sys

import numpy as np
import pytest

import pydist
from pydist import _C, nn, optim
from pydist.nn import functional as F

LIMIT = 2000  # allocations of one scenario; far above what any needs

SCENARIOS = {}


def scenario(make):
    """`make` prepares what must not fail and returns the function that is run."""
    SCENARIOS[make.__name__] = make
    return make


@scenario
def mlp_step():
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Dropout(0.5), nn.Linear(5, 3))
    x, t = pydist.rand(4, 6), pydist.tensor([0, 1, 2, 0])

    def run():
        try:
            F.cross_entropy(model(x), t).backward()
        finally:
            for p in model.parameters():
                p.grad = None

    return run


@scenario
def logical_shards():
    """Four shards of a world of one, whose sums need memory of their own; a parameter of 16 bits, and one out of order."""
    model = nn.Sequential(nn.Conv2d(2, 3, 3).to(memory_format=pydist.channels_last), nn.Flatten(), nn.Linear(12, 2))
    model[2].bfloat16()
    x, params = pydist.rand(4, 2, 4, 4), dict(model.named_parameters())
    blocks = _C.Blocks(4, [4])
    reducer = _C.Reducer(list(params.values()), list(params), pydist.distributed.group.WORLD, 64, 64, blocks)

    def run():
        try:
            for k in range(4):
                reducer.open_shard(k)
                if k != 2:
                    reducer.last_backward()
                    model[2](model[:2](x).bfloat16()).float().square().sum().backward()
                reducer.close_shard()
        finally:
            for p in params.values():
                p.grad = None

    return run


@scenario
def elementwise_and_reductions():
    x, y = pydist.rand(3, 4, requires_grad=True), pydist.rand(4, requires_grad=True)

    def run():
        z = ((x + y).exp() * x.tanh() / (y + 2) - x.square().sqrt()).clone()
        z = z.softmax(1).log_softmax(0).maximum(y).pow(2) + pydist.where(x > y, x, 0.5)
        pydist.grad(z.sum(0).mean() + z.max(1).values.sum() + z.prod() + z.topk(2).values.sum() + z.amax(), [x, y])
        z.argmax(1), z.any(), z.eq(z).all(), (z > 1).sum(), x.T.sum((0, 1))

    return run


@scenario
def second_order():
    x = pydist.rand(3, 4, requires_grad=True)

    def run():
        (g,) = pydist.grad((x.sigmoid() * x.exp()).matmul(x.T).sum(), x, create_graph=True)
        pydist.grad(g.square().sum(), x)

    return run


@scenario
def indexing():
    x = pydist.rand(4, 5, requires_grad=True)
    mask, rows = pydist.rand(4, 5) > 0.5, pydist.tensor([0, 3, 3])

    def run():
        z = x * 1
        (z[1:, ::2].sum() + z[rows].sum() + z[mask].sum() + z[[0, 1], [2, -1]].sum() + z[None, ..., 0].sum()).backward(
            inputs=[x]
        )
        x.grad = None
        plain = pydist.zeros(4, 5)
        plain[0], plain[rows], plain[mask], plain[:, [1]] = 1.0, pydist.ones(5), 2.0, pydist.ones(4, 1)
        plain.index_put([rows], pydist.ones(3, 5), True)

    return run


@scenario
def cat_and_stack():
    parts = [pydist.rand(2, 3, requires_grad=True) for _ in range(3)]

    def run():
        joined = (
            pydist.cat([pydist.stack(parts, 1).flatten(0, 1), parts[0].reshape(-1, 3)])
            .permute(1, 0)
            .unsqueeze(0)
            .expand(2, -1, -1)
        )
        pydist.grad(joined.sum(), parts)

    return run


@scenario
def in_place_on_views():
    x = pydist.rand(4, 3, requires_grad=True)

    def run():
        y = x * 2
        v = y.view(12)[2:8]
        v.mul_(3)
        y[0].add_(y[1])
        y.T[1:] = 0
        pydist.grad((y * y).sum() + v.exp().sum(), x)

    return run


@scenario
def functions():
    class Swap(pydist.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            out = x * 2
            ctx.save_for_backward(x, out, None)
            ctx.mark_dirty(y)
            return out, x, y.mul_(3)

        @staticmethod
        def backward(ctx, g, h, k):
            x, out, _ = ctx.saved_tensors
            return g * x + out + h, k

    x, y = pydist.rand(4, 3, requires_grad=True), pydist.rand(4, 3, requires_grad=True)

    def run():
        out, same, z = Swap.apply(x, y * 1)
        pydist.grad((out * same * z).sum(), [x, y], create_graph=True)

    return run


@scenario
def convolution_and_norm():
    x, w, b = (pydist.rand(*s, requires_grad=True) for s in ((2, 3, 6, 6), (4, 3, 3, 3), (4,)))
    mean, var = pydist.zeros(4), pydist.ones(4)

    def run():
        y = F.batch_norm(pydist.conv2d(x, w, b, padding=1), mean, var, b, b, True)
        pydist.grad(y.square().sum(), [x, w, b])
        pydist.grad(pydist.conv2d(x.double(), w.double(), stride=2).sum(), [x, w])

    return run


@scenario
def numpy_both_ways():
    a = np.arange(12.0).reshape(3, 4)

    def run():
        t = pydist.from_numpy(a.T)
        assert (t + 1).numpy().sum() == 78 and bytes(memoryview(t[0])) and pydist.as_tensor(a).sum().item() == 66
        (
            pydist.tensor(a),
            pydist.tensor([[1.0, 2], [3, 4]]),
            pydist.from_numpy(a[1:, ::2]).contiguous().half().to(pydist.int8),
        )

    return run


@scenario
def making_and_copying():
    x = pydist.rand(3, requires_grad=True)
    x.note = [1]

    def run():
        (
            pydist.arange(5), pydist.full((2,), 3), pydist.randperm(9), pydist.randn(2, 2).normal_(),
            pydist.randint(4, (3,)), pydist.ones_like(x),
        )  # fmt: skip
        assert copy.deepcopy(x).note == [1] and x.detach().tolist() and repr(x * 1)

    return run


@scenario
def hooks():
    x = pydist.rand(3, requires_grad=True)

    def run():
        y = x * 2
        handles = [
            y.register_hook(lambda g: g * 2),
            x.register_hook(lambda g: g + 1),
            x.register_post_accumulate_grad_hook(lambda t: t.grad.add_(1)),
        ]
        try:
            y.exp().sum().backward(retain_graph=True)
            y.sum().backward()
        finally:
            x.grad = None
            for h in handles:
                h.remove()

    return run


def steps(make):
    model = nn.Linear(4, 3)
    optimizer = make(model.parameters())
    for p in model.parameters():
        p.grad = pydist.ones_like(p).detach()

    def run():
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    return run


@scenario
def sgd_steps():
    return steps(lambda ps: optim.SGD(ps, lr=0.1, momentum=0.9, weight_decay=0.01))


@scenario
def adam_steps():
    return steps(lambda ps: optim.Adam(ps, lr=0.1))


@scenario
def adadelta_steps():
    return steps(lambda ps: optim.Adadelta(ps))


@scenario
def rmsprop_steps():
    return steps(lambda ps: optim.RMSprop(ps, momentum=0.9, centered=True))


@scenario
def adagrad_steps():
    return steps(lambda ps: optim.Adagrad(ps))


@scenario
def nadam_steps():
    return steps(lambda ps: optim.NAdam(ps))


@scenario
def clipping():
    p = nn.Parameter(pydist.ones(4))
    p.grad = pydist.ones(4)
    return lambda: (nn.utils.clip_grad_norm_([p], 1.0), nn.utils.clip_grad_value_([p], 0.1))


@scenario
def collectives():
    """Lists and layouts that are staged."""
    from pydist import distributed as dist

    x, out = pydist.rand(4, 3).t(), [pydist.zeros(4, 3).t()]
    dist.barrier()

    def run():
        dist.all_gather(out, x)
        dist.reduce_scatter(out[0], [x])
        dist.all_reduce(x)
        work = dist.all_gather(out, x, async_op=True)
        assert work.wait() and work.result()[0] is out[0] and out[0].tolist() == x.tolist()

    return run


@scenario
def loader():
    from pydist.utils.data import DataLoader, TensorDataset

    data = TensorDataset(pydist.rand(10, 3), pydist.arange(10))

    def run():
        for _ in DataLoader(data, batch_size=4, shuffle=True):
            pass

    return run


@scenario
def layouts():
    """Pieces, buckets and owners; and the wrapper that has one."""
    pieces = [(f"p{i}", (i, 3), pydist.float32, "whole") for i in range(5)]
    model = nn.Linear(4, 3)

    def run():
        layout = _C.Layout(pieces, 100)
        assert layout.range(4, 0, 3) == (0, 12) and layout.range(4, 1, 2) == (0, 0)
        nn.parallel.DistributedDataParallel(model)

    return run


def counts():
    gc.collect()
    _C.trim()
    return _C.live(), _C.cached(), _C.memory_allocated()


def usable():
    x = pydist.ones(2, 2, requires_grad=True)
    (x @ x).sum().backward()
    return x.grad.tolist() == [[4, 4], [4, 4]] and pydist.is_grad_enabled()


def fails_at(run, n):
    """Whether the run with the n-th allocation failing raised MemoryError."""
    _C.fault_malloc(n)
    try:
        run()
    except MemoryError as e:
        assert isinstance(e, pydist.OutOfMemoryError) and "memory" in str(e), repr(e)
        return True
    finally:
        made = _C.fault_malloc(0)
    assert made < n, f"allocation {n} of {made} failed and nothing was raised"
    return False


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_allocation_may_fail(name):
    run = SCENARIOS[name]()
    run()  # scratch memory and states that are made once
    before, n = counts(), 1
    while fails_at(run, n):
        assert usable(), f"after allocation {n}"
        after = counts()
        assert after == before, f"allocation {n} leaked: {before} -> {after}"
        n += 1
        assert n < LIMIT
    print(f"{name}: {n - 1} allocations")
    run()
    assert counts() == before


def test_a_failed_step_changes_nothing():
    """A step that runs out of memory leaves parameters and state as they were."""
    for make in (lambda ps: optim.SGD(ps, lr=0.1, momentum=0.9), lambda ps: optim.Adam(ps, lr=0.1)):
        model = nn.Linear(4, 3)
        optimizer = make(model.parameters())
        n = 1
        for p in model.parameters():
            p.grad = pydist.ones_like(p).detach()
        while True:
            old = [p.tolist() for p in model.parameters()]
            if not fails_at(optimizer.step, n):
                break
            assert [p.tolist() for p in model.parameters()] == old, n
            n += 1
        assert [p.tolist() for p in model.parameters()] != old


def test_fault_by_environment(tmp_path):
    code = "import pydist\ntry:\n    [pydist.ones(3) for _ in range(100)]\nexcept MemoryError as e:\n    print(type(e).__name__, e)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=tmp_path,
        env={**os.environ, "PYDIST_FAULT": "malloc:37"},
    )  # fmt: skip
    assert done.stdout.startswith("OutOfMemoryError") and not done.stderr, done
