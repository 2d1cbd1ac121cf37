"""Futures, communication hooks of DistributedDataParallel, and averaging of models."""

import gc
import threading
import weakref

import numpy as np
import pytest

import pydist
from lib.ranks import outputs, processes
from pydist import nn
from pydist.distributed import threads
from pydist.distributed.algorithms.ddp_comm_hooks import default_hooks
from pydist.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from pydist.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import (
    PowerSGDState,
    batched_powerSGD_hook,
    powerSGD_hook,
)
from pydist.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from pydist.distributed.optim import PostLocalSGDOptimizer
from pydist.futures import Future, collect_all, wait_all
from pydist.nn.parallel import DistributedDataParallel


def net(dtype=pydist.float32):
    pydist.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 3)).to(dtype)


def data(rank, step=0, size=8):
    generator = pydist.Generator().manual_seed(100 * rank + step)
    x = pydist.randn(size, 6, generator=generator)
    return x, (x.sum(1) > 0).long()


def gradients(model, rank, step=0):
    model.zero_grad()
    x, y = data(rank, step)
    nn.functional.cross_entropy(model(x), y).backward()
    return [p.grad.numpy().copy() for p in model.parameters()]


def own_gradients(world, step=0):
    return [gradients(net(), rank, step) for rank in range(world)]


# ---- futures


def test_future_says_what_was_set():
    future, seen = Future(), []
    with pytest.raises(RuntimeError, match="not done"):
        future.value()
    future.add_done_callback(lambda f: seen.append(f.value()))
    later = future.then(lambda f: f.value() + 1).then(lambda f: f.value() * 10)
    threading.Timer(0.05, future.set_result, [4]).start()
    assert later.wait() == 50 and seen == [4] and future.exception() is None
    with pytest.raises(RuntimeError, match="done already"):
        future.set_result(5)


def test_future_hands_exceptions_on(caplog):
    future = Future()
    later = future.then(lambda f: f.value())
    future.add_done_callback(lambda f: 1 / 0)
    future.set_exception(KeyError("gone"))
    assert "callback raised" in caplog.text
    for f in (future, later):
        with pytest.raises(KeyError, match="gone"):
            f.wait()
    assert isinstance(later.exception(), KeyError)
    with pytest.raises(TypeError, match="expected an exception"):
        Future().set_exception(3)
    with pytest.raises(KeyError):
        wait_all([future])
    assert collect_all([]).wait() == []


def test_future_of_a_work():
    def work(rank):
        group = pydist.distributed.group.WORLD
        x, y = pydist.full((4,), float(rank)), pydist.ones(2)
        first = pydist.distributed.all_reduce(x, async_op=True).get_future()
        second = pydist.distributed.all_reduce(y, async_op=True).then(lambda f: f.value()[0] * 2)
        assert second.wait().tolist() == [2.0 * group.size] * 2
        assert wait_all([first])[0][0].tolist() == [sum(range(group.size))] * 4 and first.done()

    threads.run(work, 3)


# ---- hooks


def hooked(hook, state=None, world=2, steps=1, cap=None):
    """The gradients of the last of `steps` backwards on each rank."""

    def work(rank):
        model = DistributedDataParallel(net(), bucket_cap_mb=cap)
        model.register_comm_hook(state() if state else None, hook)
        for step in range(steps):
            found = gradients(model, rank, step)
        return found

    results = threads.run(work, world)
    for found in results[1:]:
        assert all((a == b).all() for a, b in zip(found, results[0]))
    return results[0]


@pytest.mark.parametrize("cap", [None, 0.0005])
def test_allreduce_hook_is_what_happens_without(cap):
    mean = [sum(parts) / 3 for parts in zip(*own_gradients(3))]
    for got, expected in zip(hooked(default_hooks.allreduce_hook, world=3, cap=cap), mean):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_half_hooks_equal_torch(name, torch):
    """PyTorch's formula on PyTorch's tensors: cast, divide, sum, cast back."""
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[name]
    halves = [[torch.from_numpy(g).to(dtype) / 2 for g in own] for own in own_gradients(2)]
    expected = [(a.float() + b.float()).to(dtype).float().numpy() for a, b in zip(*halves)]
    for got, want in zip(hooked(getattr(default_hooks, f"{name}_compress_hook")), expected):
        assert (got == want).all()
    wrapped = getattr(default_hooks, f"{name}_compress_wrapper")(default_hooks.allreduce_hook)
    for got, want in zip(hooked(wrapped), expected):
        assert (got == want).all()


def test_hook_sees_buckets():
    seen = {}

    def hook(state, bucket):
        state.append((bucket.index(), bucket.is_last(), [tuple(p.shape) for p in bucket.parameters()]))
        assert [g.shape for g in bucket.gradients()] == [p.shape for p in bucket.parameters()]
        assert all(g.grad_fn is None for g in bucket.gradients())
        flat, first = bucket.buffer(), bucket.gradients()[0]
        assert first.data_ptr() == flat.data_ptr() and flat[: first.numel()].tolist() == first.reshape(-1).tolist()
        future = Future()
        future.set_result([bucket.buffer() * 0 + bucket.index()])
        return future

    def work(rank):
        model = DistributedDataParallel(net(), bucket_cap_mb=0.0005)
        model.register_comm_hook(seen.setdefault(rank, []), hook)
        return gradients(model, rank)

    for found in threads.run(work, 2):
        assert found[-1].tolist() == [0.0] * 3 and set(np.concatenate([g.reshape(-1) for g in found])) == set(
            map(float, range(len(seen[0])))
        )
    assert seen[0] == seen[1] and [row[0] for row in seen[0]] == list(range(len(seen[0]))) and len(seen[0]) > 2
    assert [row[1] for row in seen[0]] == [False] * (len(seen[0]) - 1) + [True]


def test_hooks_and_unused_parameters():
    """Used on one rank: averaged with zero. Used nowhere: no gradient."""

    def work(rank):
        pydist.manual_seed(1)
        model = nn.ModuleList([nn.Linear(2, 2) for _ in range(3)])
        model.forward = lambda x, which: model[which](x)
        ddp = DistributedDataParallel(model)
        ddp.register_comm_hook(None, default_hooks.allreduce_hook)
        ddp(pydist.ones(1, 2), rank).sum().backward()
        return [None if p.grad is None else p.grad.tolist() for p in model.parameters()]

    a, b = threads.run(work, 2)
    assert a == b and a[4:] == [None, None] and a[0] == [[0.5, 0.5], [0.5, 0.5]] and a[3] == [0.5, 0.5]


@pytest.mark.parametrize(
    "result, match",
    [(3, "returned int"), (None, "returned NoneType"), ("few", "expected a tensor of"), ("raise", "as asked")],
)
def test_wrong_hooks(result, match):
    def hook(state, bucket):
        if result == "raise":
            raise ValueError("as asked")
        future = Future()
        future.set_result(pydist.zeros(1))
        return future if result == "few" else result

    def work(rank):
        model = DistributedDataParallel(net())
        model.register_comm_hook(None, hook)
        with pytest.raises((TypeError, ValueError), match=match):
            gradients(model, rank)
        return True

    assert threads.run(work, 2) == [True, True]


def test_one_hook_only():
    def work(rank):
        model = DistributedDataParallel(net())
        with pytest.raises(TypeError, match="expected a function"):
            model.register_comm_hook(None, 3)
        with pytest.raises(ValueError, match="expected fp16, bf16"):
            model.register_builtin_comm_hook("zip")
        for ratio in (0, 2, float("nan")):
            with pytest.raises(ValueError, match="ratio"):
                model.register_builtin_comm_hook("topk", ratio)
        model.register_builtin_comm_hook("fp16_compress")
        with pytest.raises(RuntimeError, match="a hook is registered already"):
            model.register_comm_hook(None, default_hooks.allreduce_hook)
        return True

    assert all(threads.run(work, 2)) and work(0)


# ---- hooks in C


def built_in(name, ratio=0.01, world=2, steps=1, cap=None):
    def work(rank):
        model = DistributedDataParallel(net(), bucket_cap_mb=cap)
        model.register_builtin_comm_hook(name, ratio)
        return [gradients(model, rank, step) for step in range(steps)]

    results = threads.run(work, world)
    for found in results[1:]:
        assert all((a == b).all() for s, t in zip(found, results[0]) for a, b in zip(s, t))
    return results[0]


@pytest.mark.parametrize("name", ["fp16", "bf16"])
@pytest.mark.parametrize("world", [2, 3])
def test_half_in_c(name, world, torch):
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[name]
    halves = [[torch.from_numpy(g).to(dtype).float() for g in own] for own in own_gradients(world)]
    for got, *parts in zip(built_in(name, world=world)[0], *halves):
        total = sum(parts[1:], parts[0])
        np.testing.assert_allclose(got, (total / world).to(dtype).float().numpy(), rtol=1e-2, atol=1e-7)
        if world == 2:
            assert (got == (total / world).to(dtype).float().numpy()).all()


def test_sign_in_c():
    """Two steps by NumPy: the sign and mean size of gradient plus what was left over."""
    left = [[np.zeros_like(g) for g in own] for own in own_gradients(3)]
    for step, found in enumerate(built_in("sign", world=3, steps=2, cap=0.0005)):
        sent = []
        for own, rest in zip(own_gradients(3, step), left):
            meant = [g + r for g, r in zip(own, rest)]
            sent.append([np.where(m < 0, -1, 1) * np.abs(m).mean(dtype=np.float64) for m in meant])
            rest[:] = [(m - s).astype(np.float32) for m, s in zip(meant, sent[-1])]
        for got, *parts in zip(found, *sent):
            np.testing.assert_allclose(got, sum(parts) / 3, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("ratio", [0.1, 1.0])
def test_topk_in_c(ratio):
    size = sum(p.numel() for p in net().parameters())
    keep, left = int(np.ceil(ratio * size)), [np.zeros(size, np.float32) for _ in range(2)]
    for step, found in enumerate(built_in("topk", ratio, steps=3)):
        total = np.zeros(size)
        for rank, own in enumerate(own_gradients(2, step)):
            meant = left[rank] + np.concatenate([g.reshape(-1) for g in own[::-1]])
            places = np.argsort(-np.abs(meant), kind="stable")[:keep]
            total[places] += meant[places]
            left[rank] = meant.copy()
            left[rank][places] = 0
        flat = np.concatenate([g.reshape(-1) for g in found[::-1]])
        np.testing.assert_allclose(flat, total / 2, rtol=1e-4, atol=1e-6)


def test_topk_with_ties_and_nan():
    """All gradients equal, then NaN: as many as asked for, the first ones, and nothing hangs or crashes."""

    def work(rank):
        model = DistributedDataParallel(nn.Linear(20, 1, bias=False))
        model.register_builtin_comm_hook("topk", 0.25)
        model(pydist.ones(1, 20)).sum().backward()
        ties = model.module.weight.grad.reshape(-1).tolist()
        model.zero_grad()
        (model(pydist.ones(1, 20)).sum() * float("nan")).backward()
        return ties, int(pydist.isnan(model.module.weight.grad).sum())

    for ties, nans in threads.run(work, 2):
        assert ties == [1.0] * 5 + [0.0] * 15 and nans == 5


def final_loss(register, world=2, steps=150, lr=0.1):
    def work(rank):
        model = DistributedDataParallel(net())
        register(model)
        sgd = pydist.optim.SGD(model.parameters(), lr=lr)
        for step in range(steps):
            x, y = data(rank, step, 16)
            sgd.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            sgd.step()
        x, y = data(77, 0, 400)
        return float(nn.functional.cross_entropy(model(x), y)), [p.detach().numpy().copy() for p in model.parameters()]

    results = threads.run(work, world)
    assert all((a == b).all() for a, b in zip(results[0][1], results[1][1]))
    return results[0][0]


def test_lossy_hooks_converge():
    """With error feedback the loss falls nearly as far as without a hook."""
    start, plain = final_loss(lambda model: None, steps=0), final_loss(lambda model: None)
    assert plain < 0.3 * start
    hooks = {
        "topk": lambda m: m.register_builtin_comm_hook("topk", 0.05),
        "sign": lambda m: m.register_builtin_comm_hook("sign"),
        "powerSGD": lambda m: m.register_comm_hook(PowerSGDState(None, 1, 2, min_compression_rate=1), powerSGD_hook),
        "batched": lambda m: m.register_comm_hook(PowerSGDState(None, 2, 2), batched_powerSGD_hook),
    }
    for name, register in hooks.items():
        assert final_loss(register) < plain + 0.1 * start, name


# ---- PowerSGD


def orthonormal(a):
    for i in range(a.shape[1]):
        for j in range(i):
            a[:, i] -= a[:, j] * (a[:, j] @ a[:, i])
        a[:, i] /= np.linalg.norm(a[:, i])
    return a


@pytest.mark.parametrize("rank", [1, 2])
def test_powersgd_is_its_formula(rank):
    """Step 3 and 4 (warm start, error feedback) by NumPy, with the first Q that the state drew."""

    def work(r):
        model = DistributedDataParallel(net(pydist.float32))
        state = PowerSGDState(None, rank, start_powerSGD_iter=2, min_compression_rate=1)
        model.register_comm_hook(state, powerSGD_hook)
        found = [gradients(model, r, step) for step in range(4)]
        return found, state.compression_stats()

    results = threads.run(work, 2)
    found, (rate, before, after) = results[0]
    shapes = [g.shape for g in found[0]]
    rows = [g for g in range(len(shapes)) if len(shapes[g]) == 2 and sum(shapes[g]) * rank < np.prod(shapes[g])]
    assert rows and rate == before / after > 1
    mean = [sum(parts) / 2 for parts in zip(*own_gradients(2, 1))]
    for got, want in zip(found[1], mean):  # the steps before the start
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-7)
    generator = pydist.Generator().manual_seed(0)
    qs = {}
    for g in reversed(rows):
        qs[g] = pydist.randn(shapes[g][1], min(*shapes[g], rank), generator=generator).numpy().astype(np.float64)
    errors = [[np.zeros(s) for s in shapes] for _ in range(2)]
    for step in (2, 3):
        own = own_gradients(2, step)
        for g in range(len(shapes)):
            if g not in rows:
                np.testing.assert_allclose(found[step][g], (own[0][g] + own[1][g]) / 2, rtol=1e-4, atol=1e-6)
                continue
            ms = [own[r][g] + errors[r][g] for r in range(2)]
            p = orthonormal(sum(m @ orthonormal(qs[g]) for m in ms))
            qs[g] = sum(m.T @ p for m in ms) / 2
            product = p @ qs[g].T
            for r in range(2):
                errors[r][g] = ms[r] - product
            np.testing.assert_allclose(found[step][g], product, rtol=1e-3, atol=1e-5)
            qs[g] = qs[g].copy()


def test_powersgd_of_full_rank_loses_nothing():
    state = lambda: PowerSGDState(None, 16, start_powerSGD_iter=2, min_compression_rate=0.01)
    expected = [sum(parts) / 2 for parts in zip(*own_gradients(2, 2))]
    for got, want in zip(hooked(powerSGD_hook, state, steps=3), expected):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-5)


def test_powersgd_state():
    import pickle

    with pytest.raises(ValueError, match="start_powerSGD_iter"):
        PowerSGDState(None, start_powerSGD_iter=1)
    with pytest.raises(ValueError, match="matrix_approximation_rank"):
        PowerSGDState(None, 0)
    state = PowerSGDState(None, 3)
    state.iter = 7
    again = pickle.loads(pickle.dumps(state))
    assert again.iter == 7 and again.matrix_approximation_rank == 3
    assert pydist.randn(2, generator=again.rng).tolist() == pydist.randn(2, generator=state.rng).tolist()


# ---- local SGD


def test_post_local_sgd():
    """Together, then alone, and the averager brings the models together again."""

    def work(rank):
        model = DistributedDataParallel(net())
        model.register_comm_hook(PostLocalSGDState(None, None, 2, False), post_localSGD_hook)
        averager = PeriodicModelAverager(period=3, warmup_steps=2)
        sgd = pydist.optim.SGD(model.parameters(), lr=0.1)
        history = []
        for step in range(6):
            gradients(model, rank, step)
            sgd.step()
            averager.average_parameters(model.parameters())
            history.append(np.concatenate([p.detach().numpy().reshape(-1) for p in model.parameters()]))
        return history

    a, b = threads.run(work, 2)
    assert [bool((x == y).all()) for x, y in zip(a, b)] == [True, True, True, False, False, True]
    with pytest.raises(ValueError, match="period"):
        PeriodicModelAverager(0)


def test_post_local_sgd_optimizer():
    """The steps of the optimizer and of the averager, one after the other, and a state that has both."""

    def made(model):
        sgd = pydist.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return sgd, PeriodicModelAverager(period=3, warmup_steps=2)

    def work(rank, wrapped):
        model = net()
        sgd, averager = made(model)
        optimizer = PostLocalSGDOptimizer(sgd, averager)
        scheduler = pydist.optim.lr_scheduler.ExponentialLR(optimizer if wrapped else sgd, 0.9)
        for step in range(8):
            gradients(model, rank, step)
            if not wrapped:
                sgd.step()
                averager.average_parameters(model.parameters())
            elif step == 3:  # goes on with another optimizer
                other = PostLocalSGDOptimizer(*made(model))
                other.load_state_dict(optimizer.state_dict())
                assert other.averager.step == 3 and repr(other) == repr(other.optim)
                optimizer = scheduler.optimizer = other
            if wrapped:
                optimizer.step()
            scheduler.step()
        optimizer.zero_grad()
        assert all(p.grad is None for p in model.parameters()) and optimizer.state is optimizer.optim.state
        with pytest.warns(UserWarning, match="step counter"):
            optimizer.load_state_dict(optimizer.optim.state_dict())
        assert optimizer.averager.step == 0
        optimizer.add_param_group({"params": [pydist.nn.Parameter(pydist.ones(1))], "lr": 0.5})
        assert optimizer.param_groups is optimizer.optim.param_groups and len(optimizer.param_groups) == 2
        return [p.detach().numpy().tobytes() for p in model.parameters()]

    assert threads.run(work, 2, True) == threads.run(work, 2, False)


def test_hooks_leave_no_cycles():
    """A hook whose state knows the wrapper goes with it."""

    def work(rank):
        model = DistributedDataParallel(net())
        model.register_comm_hook(model, lambda state, bucket: default_hooks.allreduce_hook(None, bucket))
        gradients(model, rank)
        return weakref.ref(model.module)

    modules = threads.run(work, 2)
    gc.collect()
    assert [module() for module in modules] == [None, None]


class Mixed(nn.Module):
    """A parameter without elements, one in channels_last, and ordinary ones; or the first alone."""

    def __init__(self, dtype, empty):
        super().__init__()
        self.none = nn.Parameter(pydist.zeros(0, 3, dtype=dtype))
        self.linear = None if empty else nn.Linear(5, 7).to(dtype)
        self.conv = None if empty else nn.Conv2d(2, 3, 2).to(dtype).to(memory_format=pydist.channels_last)

    def forward(self, x):
        if self.linear is None:
            return self.none.sum()
        images = pydist.ones(1, 2, 4, 4, dtype=x.dtype)
        return self.linear(x).sum() + self.none.sum() + self.conv(images).square().sum()


REGISTER = {
    "fp16": lambda m: m.register_builtin_comm_hook("fp16"),
    "bf16": lambda m: m.register_builtin_comm_hook("bf16"),
    "topk": lambda m: m.register_builtin_comm_hook("topk", 1.0),
    "powersgd": lambda m: m.register_builtin_comm_hook("powersgd"),  # plain averages for a thousand steps
    "sign": lambda m: m.register_builtin_comm_hook("sign"),
    "python": lambda m: m.register_comm_hook(None, default_hooks.fp16_compress_hook),
    "powerSGD": lambda m: m.register_comm_hook(PowerSGDState(None, 1, 2, min_compression_rate=0.1), powerSGD_hook),
    "batched": lambda m: m.register_comm_hook(PowerSGDState(None, 1, 2), batched_powerSGD_hook),
}


@pytest.mark.parametrize("dtype", [pydist.float32, pydist.float64, pydist.float16, pydist.bfloat16], ids=str)
@pytest.mark.parametrize("empty", [False, True])
def test_hooks_on_all_dtypes_layouts_and_uneven_inputs(dtype, empty):
    """The same bits on all ranks with every hook; lossless ones give what no hook gives."""

    def work(rank, register):
        pydist.manual_seed(0)
        model = DistributedDataParallel(Mixed(dtype, empty))
        register(model)
        found = []
        with model.join():
            for step in range(3 + rank):
                model.zero_grad()
                x = pydist.full((2, 5), step + 1.0 + (rank if step < 3 else 0), dtype=dtype)
                model.global_mean(model(x), 2).backward()
                if step < 3:
                    found.append(pydist.cat([p.grad.reshape(-1).double() for p in model.parameters()]))
        return found

    plain = threads.run(work, 2, lambda m: None)[0]
    for name, register in REGISTER.items():
        a, b = threads.run(work, 2, register)
        assert all(pydist.equal(x, y) for x, y in zip(a, b)), name
        close = 0 if name in ("sign", "powerSGD", "batched") else 3
        for got, want in list(zip(a, plain))[:close]:
            assert got.numel() == 0 or float((got - want).abs().max()) <= 0.02 * float(want.abs().max()), name


def test_post_local_sgd_in_subgroups():
    """Four ranks, in pairs from the first step on: gradients are the means of the pairs."""

    def work(rank):
        pair, _ = pydist.distributed.new_subgroups(2)
        model = DistributedDataParallel(net())
        model.register_comm_hook(PostLocalSGDState(None, pair, start_localSGD_iter=0), post_localSGD_hook)
        return gradients(model, rank)

    own, results = own_gradients(4), threads.run(work, 4)
    for rank, found in enumerate(results):
        first = rank // 2 * 2
        for got, a, b in zip(found, own[first], own[first + 1]):
            np.testing.assert_allclose(got, (a + b) / 2, rtol=1e-5, atol=1e-7)


def test_post_local_sgd_in_the_ranks_of_a_host():
    """The default: three ranks on two hosts."""
    script = """
        model = nn.parallel.DistributedDataParallel(nn.Linear(1, 1, bias=False))
        os.environ["PYDIST_HOST"] = "ab"[rank % 2]
        model.register_comm_hook(PostLocalSGDState(None, None, 1), post_localSGD_hook)
        for _ in range(3):
            model.zero_grad()
            model(pydist.full((1, 1), 2.0 ** rank)).sum().backward()
            print(f"{model.module.weight.grad.item():.4f}")
    """
    prelude = """
import os
import pydist
from pydist import nn
from pydist.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
rank = int(os.environ["RANK"])
"""
    printed = outputs(processes(3, script, prelude=prelude))
    assert [text.split() for text in printed] == [
        [f"{7 / 3:.4f}", *[mean] * 2] for mean in ("2.5000", "2.0000", "2.5000")
    ]
