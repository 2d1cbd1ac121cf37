"""DistributedDataParallel: equal to one process on the joined batch, whatever the world and the buckets."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import textwrap
import time

import pytest

import pydist
from lib.processes import all_end, is_alive, within
from pydist import _C, nn
from pydist.distributed import threads
from pydist.distributed.device_mesh import init_device_mesh
from pydist.nn.parallel import DistributedDataParallel
from pydist.utils.checkpoint import checkpoint

STEPS = 20


def net(dtype=pydist.float64):
    pydist.manual_seed(7)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)).to(dtype)


def batches(count, size):
    generator = pydist.Generator().manual_seed(3)
    for _ in range(count):
        x = pydist.randn(size, 6, generator=generator, dtype=pydist.float64)
        yield x, (x.sum(1) > 0).long()


def train(model, rank, world, optimizer=lambda p: pydist.optim.Adam(p, lr=1e-2), size=12):
    step = optimizer(model.parameters())
    losses = []
    for x, y in batches(STEPS, size):
        mine = slice(rank * size // world, (rank + 1) * size // world)
        loss = nn.functional.cross_entropy(model(x[mine]), y[mine])
        step.zero_grad()
        loss.backward()
        step.step()
        losses.append(loss.item())
    return losses, [p.detach().clone() for p in model.parameters()]


def difference(a, b):
    return max(float((x - y).abs().max()) for x, y in zip(a, b))


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("cap", [None, 0.0005, 1 / (1 << 20)])
def test_equals_one_process(world, cap):
    """World sizes with one bucket, with many, and with one for each parameter."""

    def work(rank):
        model = DistributedDataParallel(net(), bucket_cap_mb=cap)
        assert (len(model.reducer.bucket_layout()) > 1) == (cap is not None)
        return train(model, rank, world)

    (single_losses, single), results = train(net(), 0, 1), threads.run(work, world)
    for losses, params in results:
        assert difference(params, single) < 1e-9
        assert difference(params, results[0][1]) == 0  # the same bits on every rank
    mean = [sum(step) / world for step in zip(*(losses for losses, _ in results))]
    assert max(abs(a - b) for a, b in zip(mean, single_losses)) < 1e-9


@pytest.mark.parametrize("set_to_none", [False, True])
def test_a_gradient_given_other_memory_comes_home(set_to_none):
    """p.grad.data = ... takes .grad out of its bucket; what is reduced next is what it holds."""

    def work(rank):
        layer = nn.Linear(3, 2, bias=False)
        model = DistributedDataParallel(layer)
        x = pydist.ones(1, 3) * (rank + 1)
        model(x).sum().backward()
        layer.weight.grad.data = layer.weight.grad.data * 2
        if not set_to_none:
            model(x).sum().backward()
            assert layer.weight.grad.tolist() == [[4.5] * 3] * 2
            layer.weight.grad.data = pydist.ones(3, 2).t()
        model.zero_grad(set_to_none=set_to_none)
        for total in (1.5, 3.0):
            model(x).sum().backward()
            assert layer.weight.grad.tolist() == [[total] * 3] * 2
        layer.weight.grad.data = pydist.zeros(5)
        with pytest.raises(RuntimeError, match="shape"):
            model(x).sum().backward()

    threads.run(work, 2)


def test_a_gradient_has_one_owner():
    """A second DistributedDataParallel of the same parameters is refused by a message that names both; the first is as
    it was, and once it has gone the parameters can be wrapped again."""

    def work(rank):
        layer = nn.Linear(3, 2, bias=False)
        model, outer = DistributedDataParallel(layer), nn.Sequential(layer)
        refused = "parameter 0.weight already belongs to .*DistributedDataParallel, which calls the parameter weight "
        with pytest.raises(ValueError, match=refused):
            DistributedDataParallel(outer)
        x = pydist.ones(1, 3) * (rank + 1)
        model(x).sum().backward()
        assert layer.weight.grad.tolist() == [[1.5] * 3] * 2
        del model
        model = DistributedDataParallel(outer)
        model(x).sum().backward()
        assert layer.weight.grad.tolist() == [[3.0] * 3] * 2

    threads.run(work, 2)


def test_a_leaf_that_is_two_inputs_of_an_op():
    """Both gradients may be made in the bucket: the second one does not write over the first."""

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            pydist.manual_seed(1)
            self.w = nn.Parameter(pydist.randn(4, 4))

        def forward(self, target):
            return 3 * nn.functional.linear_cross_entropy(self.w, self.w, target)

    def grad(model):
        model(pydist.arange(4)).backward()
        return next(model.parameters()).grad

    one = grad(Twice())
    assert all(x < 1e-6 for x in threads.run(lambda rank: difference(grad(DistributedDataParallel(Twice())), one), 2))


def test_gradients_are_views_of_buckets():
    def work(rank):
        model = DistributedDataParallel(net())
        params = list(model.parameters())
        for _ in range(2):  # set_to_none, and the same memory again
            pydist.optim.SGD(params, lr=0.1).zero_grad()
            model(pydist.ones(2, 6, dtype=pydist.float64)).sum().backward()
        first, pointers = [p.grad.data_ptr() for p in params], sorted(p.grad.data_ptr() for p in params)
        layout = model.reducer.bucket_layout()
        assert [row[0] for bucket in layout for row in bucket] == list(reversed(range(len(params))))
        grads = [p.grad for p in params]
        span = pointers[-1] - pointers[0]
        del model
        return first, span, sum(float(g.sum()) for g in grads)  # the views outlive the reducer

    results = threads.run(work, 2)
    assert results[0][2] == results[1][2]
    assert all(0 < span < 1 << 16 for _, span, _ in results)


@pytest.mark.parametrize("shared", [False, True])
def test_large_gradients_are_made_in_their_bucket(shared):
    """Without a copy, also where a weight serves twice, a hook looks at its gradient, or no_sync comes first."""

    def build():
        pydist.manual_seed(0)
        first = nn.Linear(6, 6, dtype=pydist.float64)
        return nn.Sequential(first, nn.Tanh(), first if shared else nn.Linear(6, 6, dtype=pydist.float64))

    def work(rank):
        net, alone, seen = build(), build(), []
        model = DistributedDataParallel(net)
        net[0].weight.register_hook(lambda g: seen.append(g.data_ptr()))
        for scale in (1, 2):  # the second one adds to what no_sync left
            x = pydist.ones(3, 6, dtype=pydist.float64) * scale
            with model.no_sync() if scale == 1 else contextlib.nullcontext():
                model(x).square().sum().backward()
            alone(x).square().sum().backward()
        assert all((p.grad == q.grad).all() for p, q in zip(net.parameters(), alone.parameters()))
        return seen[0] == net[0].weight.grad.data_ptr(), seen[1] == net[0].weight.grad.data_ptr()

    assert threads.run(work, 2) == [(True, False)] * 2


def test_no_sync_adds_up():
    def work(rank):
        model, x = DistributedDataParallel(net()), pydist.full((2, 6), float(rank + 1), dtype=pydist.float64)
        with model.no_sync():
            model(x).sum().backward()
            alone = [p.grad.clone() for p in model.parameters()]
        model(x).sum().backward()
        return alone, [p.grad.clone() for p in model.parameters()]

    (alone0, both0), (alone1, both1) = threads.run(work, 2)
    assert difference(alone0, alone1) > 0.1
    assert difference(both0, both1) == 0
    assert difference(both0, [a + b for a, b in zip(alone0, alone1)]) < 1e-12


def test_second_backward_without_zero_grad():
    """The mean of what is there already is itself: gradients add up as in one process."""

    def work(rank):
        model, x = DistributedDataParallel(net()), pydist.full((2, 6), float(rank + 1), dtype=pydist.float64)
        for _ in range(2):
            model(x).sum().backward()
        return [p.grad.clone() for p in model.parameters()]

    def one():
        model = net()
        for _ in range(2):
            (sum(model(pydist.full((2, 6), float(r + 1), dtype=pydist.float64)).sum() for r in range(2)) / 2).backward()
        return [p.grad for p in model.parameters()]

    a, b = threads.run(work, 2)
    assert difference(a, b) == 0 and difference(a, one()) < 1e-12


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right, self.never = (nn.Linear(2, 2).double() for _ in range(3))

    def forward(self, x, use_left):
        return self.left(x) if use_left else self.right(x)


def test_unused_parameters():
    """Used on one rank: the mean with zero. Used nowhere: .grad stays None. Replicas agree from the first step on."""

    def work(rank):
        pydist.manual_seed(1)
        model = DistributedDataParallel(Branches())
        model(pydist.ones(1, 2, dtype=pydist.float64), rank == 0).sum().backward()
        inner = model.module
        return [None if p.grad is None else p.grad.clone() for p in inner.parameters()]

    a, b = threads.run(work, 2)
    assert [g is None for g in a] == [g is None for g in b] == [False] * 4 + [True] * 2
    assert difference(a[:4], b[:4]) == 0
    assert a[0].tolist() == [[0.5, 0.5], [0.5, 0.5]]


def test_user_replaced_gradient():
    def work(rank):
        model = DistributedDataParallel(net())
        for p in model.parameters():
            p.grad = pydist.zeros_like(p)
        model(pydist.full((2, 6), float(rank), dtype=pydist.float64)).sum().backward()
        return [p.grad.clone() for p in model.parameters()]

    a, b = threads.run(work, 2)
    assert difference(a, b) == 0


def test_failed_backward_then_next_step():
    """A hook that raises on every rank leaves the reducer usable."""

    def work(rank):
        model, x = DistributedDataParallel(net()), pydist.ones(2, 6, dtype=pydist.float64)

        def fail(grad):
            raise ValueError("once")

        handle = next(model.parameters()).register_hook(fail)
        with pytest.raises(ValueError, match="once"):
            model(x).sum().backward()
        handle.remove()
        for p in model.parameters():
            p.grad = None
        model(x).sum().backward()
        return [p.grad.clone() for p in model.parameters()]

    a, b = threads.run(work, 2)
    model = net()
    model(pydist.ones(2, 6, dtype=pydist.float64)).sum().backward()
    assert difference(a, b) == 0 and difference(a, [p.grad for p in model.parameters()]) < 1e-12


class ConvNet(nn.Module):
    """Convolutions, pooling, and batch norm as evaluation uses it: no statistics that depend on the batch."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 8, 3, stride=2)
        self.norm = nn.BatchNorm2d(4).eval()
        self.norm.running_mean.uniform_(-1, 1), self.norm.running_var.uniform_(0.5, 2)
        self.head = nn.Linear(8 * 3 * 3, 3)

    def forward(self, x):
        x = self.conv2(nn.functional.relu(self.norm(self.conv1(x.view(-1, 1, 8, 8)))))
        return self.head(nn.functional.relu(x).view(-1, 72))


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("cap", [25, 0.002])
def test_convolutions_equal_one_process(world, cap):
    def steps(model, rank, world):
        sgd = pydist.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        generator = pydist.Generator().manual_seed(1)
        for _ in range(8):
            x = pydist.randn(12, 64, generator=generator, dtype=pydist.float64)
            y = (x.sum(1) > 0).long()
            mine = slice(rank * 12 // world, (rank + 1) * 12 // world)
            sgd.zero_grad()
            nn.functional.cross_entropy(model(x[mine]), y[mine]).backward()
            sgd.step()
        return [p.detach().clone() for p in model.parameters()]

    def work(rank):
        pydist.manual_seed(rank)  # rank 0's values and buffers win
        return steps(DistributedDataParallel(ConvNet().double(), bucket_cap_mb=cap), rank, world)

    pydist.manual_seed(0)
    single, results = steps(ConvNet().double(), 0, 1), threads.run(work, world)
    for params in results:
        assert difference(params, single) < 1e-9 and difference(params, results[0]) == 0


def double_ones(*shape):
    return pydist.ones(*shape, dtype=pydist.float64)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_stay_views_of_buckets(set_to_none):
    def work(rank):
        model, places = DistributedDataParallel(net()), []
        params = list(model.parameters())
        sgd = pydist.optim.SGD(params, lr=0.1)
        for step in range(3):
            sgd.zero_grad(set_to_none=set_to_none)
            model(double_ones(2, 6) * (rank + 1)).sum().backward()
            places.append([p.grad.data_ptr() for p in params])
        assert places[0] == places[1] == places[2]
        return [p.grad.clone() for p in params]

    model = net()
    (sum(model(double_ones(2, 6) * (r + 1)).sum() for r in range(2)) / 2).backward()
    a, b = threads.run(work, 2)
    assert difference(a, b) == 0 and difference(a, [p.grad for p in model.parameters()]) < 1e-12


def test_several_forwards_before_one_backward():
    """Also with batch norm in evaluation, whose buffers each forward brings again while the first graph needs them."""

    def build():
        pydist.manual_seed(2)
        return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4).eval(), nn.Linear(4, 2)).double()

    def loss(model, scale):
        return sum(model(double_ones(2, 6) * scale * k).square().sum() for k in (1, 2, 3))

    def work(rank):
        model = DistributedDataParallel(build(), bucket_cap_mb=0.0001)
        loss(model, rank + 1).backward()
        return [p.grad.clone() for p in model.parameters()]

    model = build()
    ((loss(model, 1) + loss(model, 2)) / 2).backward()
    a, b = threads.run(work, 2)
    assert difference(a, b) == 0 and difference(a, [p.grad for p in model.parameters()]) < 1e-9


@pytest.mark.parametrize("cap", [None, 0.0005])
def test_a_checkpoint_that_runs_a_backward_inside(cap):
    """use_reentrant=True: the inner backward ends before gradients of earlier layers are there."""

    class Again(nn.Module):
        def __init__(self, layer, reentrant):
            super().__init__()
            self.layer, self.reentrant = layer, reentrant

        def forward(self, x):
            if self.reentrant is None:
                return self.layer(x)
            return checkpoint(self.layer, x, use_reentrant=self.reentrant)

    def work(rank, reentrant):
        inner = net()
        middle = nn.Sequential(inner[0], Again(inner[1:3], reentrant), Again(inner[3:], reentrant))
        return train(DistributedDataParallel(middle, bucket_cap_mb=cap), rank, 2)

    plain = threads.run(lambda rank: work(rank, None), 2)
    for reentrant in (False, True):
        for (losses, params), (a, b) in zip(
            plain, threads.run(lambda rank, how=reentrant: work(rank, how), 2), strict=True
        ):
            assert losses == a and all(map(pydist.equal, params, b))


def test_two_backwards_after_two_forwards():
    """Each backward reduces its own part (PyTorch leaves the second one unreduced)."""

    def work(rank):
        model = DistributedDataParallel(net())
        first, second = model(double_ones(2, 6) * (rank + 1)).sum(), model(double_ones(2, 6) * 5 * rank).sum()
        first.backward()
        second.backward()
        return [p.grad.clone() for p in model.parameters()]

    model = net()
    inputs = [double_ones(2, 6) * scale for scale in (1, 0, 2, 5)]
    (sum(model(x).sum() for x in inputs) / 2).backward()
    a, b = threads.run(work, 2)
    assert difference(a, b) == 0 and difference(a, [p.grad for p in model.parameters()]) < 1e-12


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(nn.functional.relu(self.first(x)))


def test_shared_parameters():
    def build():
        pydist.manual_seed(4)
        return Tied().double()

    def work(rank):
        model = DistributedDataParallel(build())
        assert len(list(model.parameters())) == 1
        assert sorted(model.state_dict()) == ["module.first.weight", "module.second.weight"]
        for _ in range(2):
            model.zero_grad()
            model(double_ones(1, 3) * (rank + 1)).sum().backward()
        return model.module.first.weight.grad.clone()

    model = build()
    ((model(double_ones(1, 3)).sum() + model(double_ones(1, 3) * 2).sum()) / 2).backward()
    a, b = threads.run(work, 2)
    assert difference([a], [b]) == 0 and difference([a], [model.first.weight.grad]) < 1e-12


def test_frozen_parameters(capfd):
    """Frozen before the wrap: not reduced. Frozen later: keeps no bucket waiting, gets no gradient and no warning.
    Thawed: takes part again."""

    def work(rank):
        model = net()
        model[0].weight.requires_grad_(False)
        ddp = DistributedDataParallel(model, bucket_cap_mb=0.0001)
        model[4].bias.requires_grad_(False)
        x = double_ones(2, 6) * (rank + 1)
        ddp(x).sum().backward()
        assert model[0].weight.grad is None and model[4].bias.grad is None
        model[4].bias.requires_grad_(True)
        ddp.zero_grad()
        ddp(x).sum().backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    a, b = threads.run(work, 2)
    assert len(a) == 5 and difference(a, b) == 0 and a[-1].tolist() == [2.0] * 3
    assert "no gradient" not in capfd.readouterr().err


def test_unused_parameters_are_named_once(capfd):
    def work(rank):
        model = DistributedDataParallel(Branches())
        for _ in range(3):
            model(double_ones(1, 2), True).sum().backward()

    threads.run(work, 2)
    said = [line for line in capfd.readouterr().err.splitlines() if "no gradient" in line]
    assert sorted(line.split(": ")[1] for line in said) == ["rank 0", "rank 1"]
    assert all("right.weight, right.bias, never.weight, never.bias" in line for line in said)


def test_gradient_used_by_some_ranks_in_some_steps():
    """.grad left by an earlier step counts again only where the user did not clear it."""

    def work(rank):
        pydist.manual_seed(1)
        model = DistributedDataParallel(Branches())
        seen = []
        for step in range(4):
            model.zero_grad()
            model(double_ones(1, 2), (step + rank) % 2 == 0 or step == 3).sum().backward()
            seen += [p.grad.clone() for p in model.parameters() if p.grad is not None]
        return len(seen), seen

    (n, a), (m, b) = threads.run(work, 2)
    assert n == m == 4 + 4 + 4 + 2 and difference(a, b) == 0
    assert all(set(g.reshape(-1).tolist()) == {0.5} for g in a[:12]) and set(a[-1].tolist()) == {1.0}


def test_requires_backward_grad_sync():
    def work(rank):
        model = DistributedDataParallel(net())
        model.require_backward_grad_sync = False
        model(double_ones(1, 6) * (rank + 1)).sum().backward()
        alone = next(model.parameters()).grad.clone()
        model.require_backward_grad_sync = True
        with model.no_sync():
            assert not model.require_backward_grad_sync
        assert model.require_backward_grad_sync
        return alone

    a, b = threads.run(work, 2)
    assert difference([a], [b]) > 0


def test_buffers_follow_rank_0():
    """As in PyTorch: before a forward that follows a synchronised one, not between micro-batches."""

    class Counter(nn.Module):
        def __init__(self, value):
            super().__init__()
            self.weight = nn.Parameter(pydist.ones(1))
            self.register_buffer("mean", pydist.full((2,), float(value)))
            self.register_buffer("count", pydist.tensor(value))

        def forward(self, x):
            return x * self.weight

    def work(rank):
        def forward():
            model(pydist.ones(1)).sum().backward()
            return model.module.mean.tolist(), model.module.count.item()

        def spoil():
            model.module.mean.fill_(7.0 + rank)
            model.module.count.fill_(7 + rank)

        model = DistributedDataParallel(Counter(rank))
        assert forward() == ([0.0, 0.0], 0)
        spoil()
        assert forward() == ([7.0, 7.0], 7)
        with model.no_sync():
            spoil()
            assert forward() == ([7.0, 7.0], 7)
            spoil()
            assert forward() == ([7.0 + rank] * 2, 7 + rank)
        apart = DistributedDataParallel(Counter(rank), broadcast_buffers=False, init_sync=False)
        apart(pydist.ones(1)).sum().backward()
        assert apart.module.count.item() == rank

    threads.run(work, 2)


def test_construction_takes_rank_0s_values():
    def work(rank):
        pydist.manual_seed(rank)
        layers = nn.Linear(600, 600), nn.BatchNorm1d(600), nn.Linear(600, 2).half()
        model = DistributedDataParallel(nn.Sequential(*layers))
        apart = DistributedDataParallel(nn.Linear(3, 3), init_sync=False)
        return [p.tolist() for p in model.parameters()], apart.module.weight.tolist()

    (a, apart_a), (b, apart_b) = threads.run(work, 2)
    assert a == b and apart_a != apart_b


def test_parameters_to_ignore():
    def work(rank):
        model = net()
        model._ddp_params_and_buffers_to_ignore = ["0.weight"]
        ddp = DistributedDataParallel(model)
        ddp(double_ones(1, 6) * (rank + 1)).sum().backward()
        return [p.grad.clone() for p in ddp.parameters()]

    a, b = threads.run(work, 2)
    assert difference(a[:1], b[:1]) > 0 and difference(a[1:], b[1:]) == 0


def test_copies():
    import copy

    def work(rank):
        model = DistributedDataParallel(net())
        twin = copy.deepcopy(model)
        twin(double_ones(1, 6) * (rank + 1)).sum().backward()
        assert next(model.parameters()).grad is None
        return [p.grad.clone() for p in twin.parameters()]

    a, b = threads.run(work, 2)
    assert difference(a, b) == 0


def test_pytorchs_arguments():
    hooked = nn.Linear(2, 2)
    DistributedDataParallel(
        nn.Linear(2, 2), [0], 0, 0, True, True, pydist.distributed.group.WORLD, 25, True, True, True, True,
        [("weight", hooked.weight)], hooked.weight, None, None, True, None, True, False,
    )  # fmt: skip
    for name in ("mixed_precision", "bucket_cap_mb_list"):
        with pytest.raises(NotImplementedError, match=name):
            DistributedDataParallel(nn.Linear(2, 2), **{name: [1]})
    for wrong, kind, text in (
        ({"device_ids": [0, 1]}, ValueError, "device_ids is \\[0, 1\\]"),
        ({"delay_all_reduce_named_params": []}, ValueError, "both or neither"),
        ({"bucket_cap_mb": 0}, ValueError, "bucket_cap_mb is 0"),
        ({"process_group": 3}, TypeError, "group is int"),
        (
            {"process_group": pydist.distributed.group.WORLD, "device_mesh": init_device_mesh("cpu", (1,))},
            RuntimeError,
            "both process_group",
        ),
        ({"device_mesh": init_device_mesh("cpu", (1, 1))}, RuntimeError, "has 2 dimensions .expected 1"),
    ):
        with pytest.raises(kind, match=text):
            DistributedDataParallel(nn.Linear(2, 2), **wrong)
    with pytest.raises(TypeError, match="module is function"):
        DistributedDataParallel(net)


@pytest.mark.parametrize("build, text", [
    (lambda rank: nn.Linear(2 + rank, 1), r"parameter 0 differs.*rank 0 has weight .* 2\], rank 1 has weight .* 3\]"),
    (lambda rank: nn.Linear(2, 1).to((pydist.float32, pydist.float64)[rank]), "rank 1 has weight pydist.float64"),
    (lambda rank: nn.Linear(2, 1, bias=rank == 0), "parameter 1 differs .* rank 0 has bias .*, rank 1 has nothing"),
    (lambda rank: nn.Sequential(*[nn.Linear(2, 1)] * 1, *[nn.BatchNorm1d(1)] * rank), "rank 1 has 1.weight"),
    (lambda rank: nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1, track_running_stats=rank == 0)), "buffer 0 differs"),
    (lambda rank: nn.Linear(2, 1) if rank == 0 else freeze(nn.Linear(2, 1)), "weight .* frozen"),
])  # fmt: skip
def test_different_models_are_refused(build, text):
    """On every rank, with the same text."""

    def work(rank):
        with pytest.raises(RuntimeError, match=text) as raised:
            DistributedDataParallel(build(rank))
        return str(raised.value)

    assert len(set(threads.run(work, 2))) == 1


def freeze(linear):
    linear.weight.requires_grad_(False)
    return linear


def test_bad_arguments():
    model = net()
    with pytest.raises(RuntimeError, match="parameters that require a gradient"):
        DistributedDataParallel(nn.ReLU())
    with pytest.raises(TypeError):
        _C.Reducer([1], ["a"], pydist.distributed.group.WORLD, 1 << 20, 1 << 20)
    with pytest.raises(TypeError):
        _C.Reducer(list(model.parameters()), ["a"] * 6, None, 1 << 20, 1 << 20)
    with pytest.raises(ValueError, match="a name for each"):
        _C.Reducer(list(model.parameters()), ["a"], pydist.distributed.group.WORLD, 1 << 20, 1 << 20)
    reducer = DistributedDataParallel(model).reducer
    for weight in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="weight: got"):
            reducer.set_weight(weight)


@pytest.mark.parametrize("hook", [None, "bf16"])
def test_weights_of_ranks(hook):
    """Three ranks with 3, 1 and 0 rows have the mean over the rows; what a rank without rows computes does not count."""

    def work(rank):
        model = DistributedDataParallel(net())
        if hook:
            model.register_builtin_comm_hook(hook)
        rows = (3, 1, 0)[rank]
        model.reducer.set_weight(3 * rows / 4)
        x = pydist.full((max(rows, 1), 6), (1.0, 5.0, float("inf"))[rank], dtype=pydist.float64)
        model(x).mean().backward()
        return [p.grad.tolist() for p in model.parameters()]

    found = threads.run(work, 3)
    model = net()
    model(pydist.tensor([[1.0] * 6] * 3 + [[5.0] * 6], dtype=pydist.float64)).mean().backward()
    assert found[0] == found[1] == found[2]
    for mine, p in zip(found[0], model.parameters()):
        pydist.testing.assert_close(
            pydist.tensor(mine, dtype=pydist.float64), p.grad, rtol=1e-2 if hook else 1e-6, atol=1e-6
        )


# ---- processes under the launcher ------------------------------------------------------------------------------------


def launch(tmp_path, script, ranks=2, wait=True, **env):
    path = tmp_path / "script.py"
    path.write_text("import os, sys, time, pydist\nimport pydist.distributed as dist\n" + textwrap.dedent(script))
    command = [sys.executable, "-m", "pydist.run", "--nproc-per-node", str(ranks), str(path)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    job = subprocess.Popen(command, **pipes, env={**os.environ, **env}, start_new_session=True)
    if not wait:
        return job
    out, err = job.communicate(timeout=60)
    return job.returncode, out, err


TRAIN = """
    model = pydist.nn.parallel.DistributedDataParallel(pydist.nn.Linear(64, 64))
    optimizer = pydist.optim.SGD(model.parameters(), lr=0.01)
    rank = dist.get_rank()
    for step in range(100000):
        optimizer.zero_grad()
        model(pydist.ones(8, 64)).sum().backward()
        optimizer.step()
        if step == 20:
            print("running", os.getpid(), flush=True)
        {action}
"""


def wait_for_pids(job, count):
    pids = []
    while len(pids) < count:
        line = job.stdout.readline()
        assert line, job.stderr.read()
        pids += map(int, re.findall(r"running (\d+)", line))
    return pids


@pytest.mark.parametrize(
    "action, cause",
    [
        ("if step == 50 and rank == 1: os.kill(os.getpid(), 9)", "SIGKILL"),
        ("if step == 50 and rank == 1: os._exit(7)", "7"),
        ("if step == 50 and rank == 1: raise ValueError('spoiled')", "ValueError: spoiled"),
    ],
)
def test_a_rank_ends(tmp_path, action, cause):
    """The job ends within 2 s, its first line names rank and cause, and the code is not zero."""
    job = launch(tmp_path, TRAIN.format(action=action), wait=False)
    pids = wait_for_pids(job, 2)
    start = time.monotonic()
    out, err = job.communicate(timeout=30)
    assert time.monotonic() - start < 2.5
    assert job.returncode != 0
    first = next(line for line in err.splitlines() if line.startswith("pydist.run"))
    assert "rank 1" in first and cause in first, err
    assert not any(map(is_alive, pids))


def test_survivor_raises_peer_failed(tmp_path):
    code, out, err = launch(
        tmp_path,
        """
        x = pydist.ones(4)
        dist.all_reduce(x)
        if dist.get_rank() == 1:
            os.kill(os.getpid(), 9)
        start = time.monotonic()
        try:
            dist.all_reduce(x)
        except pydist.PeerFailed as error:
            print("caught", error.rank, round(time.monotonic() - start), flush=True)
            raise
        """,
    )
    assert code != 0 and "caught 1 0" in out, out + err


def test_killed_launcher_leaves_nobody(tmp_path):
    job = launch(tmp_path, TRAIN.format(action="pass"), wait=False)
    pids = wait_for_pids(job, 2)
    job.kill()
    job.wait()
    assert all_end(pids, 2)
    job.stdout.close()
    job.stderr.close()


def test_different_collectives(tmp_path):
    """All ranks raise, naming each rank's call and line, and no byte is touched."""
    code, out, err = launch(
        tmp_path,
        """
        x = pydist.ones(4)
        try:
            dist.all_reduce(x) if dist.get_rank() == 0 else dist.broadcast(x, src=0)
        except pydist.CommMismatch as error:
            print("caught", dist.get_rank(), x.tolist(), error, flush=True)
        """,
    )
    for rank in range(2):
        assert re.search(rf"caught {rank} \[1.0, 1.0, 1.0, 1.0\]", out), out + err
    assert "all_reduce" in out and "broadcast" in out and out.count("script.py:") >= 2, out


def test_interrupt(tmp_path):
    job = launch(tmp_path, TRAIN.format(action="pass"), wait=False)
    pids = wait_for_pids(job, 2)
    job.send_signal(signal.SIGINT)
    out, err = job.communicate(timeout=20)
    assert job.returncode == 130
    assert len([line for line in err.splitlines() if line.strip()]) <= 5, err
    assert not any(map(is_alive, pids))


def test_first_all_reduce_is_quick(tmp_path):
    """From command to first all_reduce; the limit of 0.6 s is measured by the benchmarks, this catches a regression."""
    script = "dist.init_process_group(); x = pydist.ones(4); dist.all_reduce(x); print('done', time.time(), flush=True)"
    times = []
    for _ in range(3):
        start = time.time()
        code, out, err = launch(tmp_path, script)
        assert code == 0, err
        times.append(max(map(float, re.findall(r"done ([\d.]+)", out))) - start)
    assert min(times) < within(1.2)


def test_create_graph_is_refused():
    """A bucket cannot hold a gradient's graph; grad() with create_graph, and backward of what it gives, can."""

    def work(rank):
        model, x = DistributedDataParallel(net()), double_ones(2, 6) * (rank + 1)
        with pytest.raises(RuntimeError, match="create_graph=True needs a .grad with a graph"):
            model(x).square().sum().backward(create_graph=True)
        model.zero_grad()
        grads = pydist.autograd.grad(model(x).square().sum(), list(model.parameters()), create_graph=True)
        sum(g.square().sum() for g in grads).backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    def penalty(model, x):
        grads = pydist.autograd.grad(model(x).square().sum(), list(model.parameters()), create_graph=True)
        return sum(g.square().sum() for g in grads)

    model = net()
    (sum(penalty(model, double_ones(2, 6) * (r + 1)) for r in range(2)) / 2).backward()
    a, b = threads.run(work, 2)
    assert difference(a, b) == 0
    assert difference(a, [p.grad for p in model.parameters() if p.grad is not None]) < 1e-6


@pytest.mark.parametrize("where", [0, 2, 4])
def test_failure_in_backward_changes_nothing_elsewhere(where):
    """A rank raises while gradients come, early or late: the others' backward raises, and their parameters and
    optimizer states are those of the step before."""
    kept = {}

    def work(rank):
        model = DistributedDataParallel(net(), bucket_cap_mb=0.0001)
        adam = pydist.optim.Adam(model.parameters(), lr=1e-2)

        def state():
            values = [value for entry in adam.state.values() for value in entry.values()]
            values = [value if isinstance(value, pydist.Tensor) else pydist.tensor(value) for value in values]
            return [value.detach().clone() for value in (*model.parameters(), *values)]

        def fail(grad):
            raise ValueError("lost")

        for step in range(3):
            before = state()
            if step == 2 and rank == 1:
                model.module[where].weight.register_hook(fail)
            adam.zero_grad()
            loss = model(double_ones(2, 6) * (rank + 1)).square().sum()
            if step == 2 and rank != 1:
                with pytest.raises(pydist.distributed.DistError):
                    loss.backward()
                kept[rank] = all(pydist.equal(a, b) for a, b in zip(before, state()))
            else:
                loss.backward()
                adam.step()

    with pytest.raises(ValueError, match="lost"):
        threads.run(work, 3)
    assert kept == {0: True, 2: True}
