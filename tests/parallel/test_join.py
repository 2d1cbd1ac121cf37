"""Uneven inputs, also of sharded models, exact means, accumulation, divergence of replicas, and figures of DistributedDataParallel."""

import pytest

import pydist
from pydist import distributed as dist
from pydist import nn
from pydist.distributed import threads
from pydist.distributed.algorithms.join import Join, JoinHook, Joinable
from pydist.distributed.device_mesh import init_device_mesh
from pydist.distributed.fsdp import FullyShardedDataParallel, fully_shard
from pydist.nn.parallel import DistributedDataParallel


def net():
    pydist.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1)).double()


def batch(rank, step, size=4):
    generator = pydist.Generator().manual_seed(1000 * rank + step)
    return pydist.randn(size, 5, generator=generator, dtype=pydist.float64)


def size_of(rank, step):
    return 1 + (3 * rank + 2 * step) % 5


def flat(model):
    return pydist.cat([p.detach().reshape(-1) for p in model.parameters()])


def near(a, b):
    return float((a - b).abs().max()) < 1e-12


def by_one(counts, loss_of_step):
    """One process's parameters after the steps, each with the gradient of loss_of_step(model, active ranks, step)."""
    model = net()
    sgd = pydist.optim.SGD(model.parameters(), lr=0.1)
    for step in range(max(counts)):
        sgd.zero_grad()
        loss_of_step(model, [rank for rank, count in enumerate(counts) if step < count], step).backward()
        sgd.step()
    return flat(model)


COUNTS = [(3, 4), (4, 3), (4, 1, 3), (0, 2), (3, 3)]


@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("by_all", [True, False])
def test_join_equals_one_process(counts, by_all):
    """Sums of the ranks' means over all ranks, or over those that have data; then all have the last one's values."""

    def work(rank):
        model = DistributedDataParallel(net(), bucket_cap_mb=0.0001)
        sgd = pydist.optim.SGD(model.parameters(), lr=0.1)
        with model.join(divide_by_initial_world_size=by_all):
            for step in range(counts[rank]):
                sgd.zero_grad()
                model(batch(rank, step)).square().mean().backward()
                sgd.step()
        model.zero_grad()
        model(batch(rank, 9)).square().mean().backward()  # afterwards all take part again
        return flat(model), pydist.cat([p.grad.reshape(-1) for p in model.parameters()])

    def loss(model, active, step):
        return sum(model(batch(r, step)).square().mean() for r in active) / (len(counts) if by_all else len(active))

    expected, results = by_one(counts, loss), threads.run(work, len(counts))
    for params, grads in results:
        assert near(params, expected) and pydist.equal(params, results[0][0]) and pydist.equal(grads, results[0][1])


@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("by_all", [True, False])
def test_exact_means_of_uneven_batches(counts, by_all):
    def work(rank):
        model = DistributedDataParallel(net())
        sgd = pydist.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        with model.join(by_all):
            for step in range(counts[rank]):
                sgd.zero_grad()
                squares = model(batch(rank, step, size_of(rank, step))).square()
                loss = model.global_mean(squares.sum(), len(squares))
                loss.backward()
                losses.append(loss.item())
                sgd.step()
        return flat(model), losses

    def loss(model, active, step):
        return pydist.cat([model(batch(r, step, size_of(r, step))).square().reshape(-1) for r in active]).mean()

    expected = by_one(counts, loss)
    for params, _ in threads.run(work, len(counts)):
        assert near(params, expected)


def test_exact_mean_without_join():
    """Also with an empty batch on one rank, in a world of one, and nowhere any sample."""

    def work(rank):
        model = DistributedDataParallel(net())
        squares = model(batch(rank, 0, 3 * rank)).square()
        model.global_mean(squares.sum(), len(squares)).backward()
        grads = [p.grad.clone() for p in model.parameters()]
        assert model.global_mean(squares.sum(), 0).item() == 0
        for count in (-1, float("nan"), float("inf")):
            with pytest.raises(ValueError, match="expected a finite number"):
                model.global_mean(squares.sum(), count)
        return grads

    model = net()
    pydist.cat([model(batch(r, 0, 3 * r)).square().reshape(-1) for r in range(3)]).mean().backward()
    for grads in threads.run(work, 3):
        assert all(near(g, p.grad) for g, p in zip(grads, model.parameters()))
    alone = DistributedDataParallel(net())
    with alone.join():
        assert near(alone.global_mean(pydist.tensor(6.0), 3), pydist.tensor(2.0))


@pytest.mark.parametrize("wide", [2, 3])
def test_join_with_accumulation_and_evaluation(wide):
    """no_sync steps, a look at the validation loss, two forwards before a backward, and buffers from a rank that is
    still there: the followers do what the others do."""

    def build():
        pydist.manual_seed(3)
        return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 1)).double()

    def work(rank):
        model = DistributedDataParallel(build())
        sgd = pydist.optim.SGD(model.parameters(), lr=0.05)
        with model.join():
            for step in range(2 + rank):
                sgd.zero_grad()
                with model.no_sync():
                    model(batch(rank, step)).square().mean().backward()
                with pydist.no_grad():
                    model(batch(rank, 50))
                (model(batch(rank, step)).mean() + model(batch(rank, step + 1)).square().mean()).backward()
                sgd.step()
        return flat(model), model.module[1].running_mean.clone()

    results = threads.run(work, wide)
    for params, mean in results:
        assert pydist.equal(params, results[0][0]) and pydist.equal(mean, results[0][1])
    assert not near(results[0][0], flat(build()))


def test_join_leaves_after_a_forward_without_backward():
    def work(rank):
        model = DistributedDataParallel(net())
        with model.join():
            for step in range(1 + 2 * rank):
                model(batch(rank, step)).sum().backward()
            model(batch(rank, 9))
        return True

    assert threads.run(work, 2) == [True, True]


def test_join_throws_when_asked():
    def work(rank):
        model, steps = DistributedDataParallel(net()), 0
        with pytest.raises(RuntimeError, match="rank 0 of 3 ran out of inputs"):
            with model.join(throw_on_early_termination=True):
                for step in range(2 + rank):
                    model(batch(rank, step)).sum().backward()
                    steps += 1
        model(batch(rank, 0)).sum().backward()  # the group is as it was
        return steps

    assert threads.run(work, 3) == [2, 2, 2]


def test_join_that_is_off_or_wrong():
    def work(rank):
        model = DistributedDataParallel(net())
        with model.join(enable=False):
            model(batch(rank, 0)).sum().backward()
        model.register_builtin_comm_hook("fp16")
        with pytest.raises(ValueError, match="beside a communication hook"):
            model.join(divide_by_initial_world_size=False)
        with model.join():
            for step in range(1 + rank):
                model(batch(rank, step)).sum().backward()
        with pytest.raises(ValueError, match="joinables is empty"):
            Join([])
        with pytest.raises(TypeError, match="expected a Joinable"):
            Join([nn.Linear(1, 1)])
        with pytest.raises(KeyError), model.join():  # an error in the loop on all ranks goes through
            raise KeyError(rank)
        return True

    assert all(threads.run(work, 2))


class Counter(Joinable):
    """A user's class: counts all ranks' iterations."""

    def __init__(self, group):
        super().__init__()
        self.group, self.total, self.ended = group, 0, None

    def __call__(self, here=1):
        if here:
            Join.notify_join_context(self)
        seen = pydist.tensor([here])
        self.group.all_reduce(seen)
        self.total += seen.item()

    def join_hook(self, **kwargs):
        counter = self

        class Hook(JoinHook):
            def main_hook(self):
                counter(0)

            def post_hook(self, is_last_joiner):
                counter.ended = is_last_joiner

        return Hook()

    @property
    def join_device(self):
        return pydist.device("cpu")

    @property
    def join_process_group(self):
        return self.group


def test_join_of_a_users_class_and_a_model():
    def work(rank):
        model = DistributedDataParallel(net())
        counter = Counter(model.process_group)
        with Join([model, counter], divide_by_initial_world_size=True):
            for step in range(2 + 2 * rank):
                model(batch(rank, step)).sum().backward()
                counter()
        return counter.total, counter.ended

    assert threads.run(work, 3) == [(12, False), (12, False), (12, True)]


# ---- accumulation


PATTERNS = ["last of three", "none", "all but the first", "forwards outside"]


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("static_graph", [False, True])
def test_accumulation(pattern, static_graph):
    """Two rounds of three micro-batches with zero_grad between: one process's gradients in each pattern."""

    def round_of(model, rank, k, sync):
        loss = lambda m: model(batch(rank, 3 * k + m)).square().sum()
        if pattern == "none":
            for m in range(3):
                loss(m).backward()
        elif pattern == "last of three":
            for m in range(3):
                if m < 2:
                    with sync():
                        loss(m).backward()
                else:
                    loss(m).backward()
        elif pattern == "all but the first":
            with sync():
                loss(0).backward()
            for m in (1, 2):
                loss(m).backward()
        else:
            losses = [loss(m) for m in range(3)]
            with sync():
                losses[0].backward()
                losses[1].backward()
            losses[2].backward()

    def work(rank):
        model = DistributedDataParallel(net(), bucket_cap_mb=0.0001, static_graph=static_graph)
        found = []
        for k in range(2):
            model.zero_grad()
            round_of(model, rank, k, model.no_sync)
            found.append(pydist.cat([p.grad.reshape(-1) for p in model.parameters()]))
        return found

    model = net()
    results = threads.run(work, 2)
    for k in range(2):
        model.zero_grad()
        (sum(model(batch(r, 3 * k + m)).square().sum() for r in range(2) for m in range(3)) / 2).backward()
        expected = pydist.cat([p.grad.reshape(-1) for p in model.parameters()])
        assert near(results[0][k], expected) and pydist.equal(results[0][k], results[1][k])


def test_backward_within_backward():
    """A hook that runs a backward of its own, through another part of the wrapped module's parameters or none."""

    def work(rank):
        model = DistributedDataParallel(net())
        side = nn.Linear(2, 1).double()

        def inner(grad):
            with pydist.enable_grad():
                side(pydist.ones(1, 2, dtype=pydist.float64)).sum().backward()

        hidden = model.module[0](batch(rank, 0))
        hidden.register_hook(inner)
        model(batch(rank, 0)).sum().backward()
        (model(batch(rank, 1)).sum() + model.module[2](hidden.tanh()).sum()).backward()
        assert side.weight.grad.tolist() == [[1.0, 1.0]]
        return pydist.cat([p.grad.reshape(-1) for p in model.parameters()])

    model = net()
    parts = [model(batch(r, 0)).sum() * 2 + model(batch(r, 1)).sum() for r in range(2)]
    (sum(parts) / 2).backward()
    a, b = threads.run(work, 2)
    assert pydist.equal(a, b) and near(a, pydist.cat([p.grad.reshape(-1) for p in model.parameters()]))


def test_part_of_the_module():
    """Only some layers, called around the wrapper: the rest counts as unused."""

    def work(rank):
        model = DistributedDataParallel(net())
        model.module[2](model.module[1](pydist.full((1, 8), rank + 1.0, dtype=pydist.float64))).sum().backward()
        assert model.module[0].weight.grad is None
        return model.module[2].weight.grad.clone()

    a, b = threads.run(work, 2)
    expected = sum(pydist.full((1, 8), k, dtype=pydist.float64).tanh() for k in (1.0, 2.0)) / 2
    assert pydist.equal(a, b) and near(a, expected)


# ---- divergence


def test_check_replicas_names_tensor_and_rank():
    def work(rank):
        model = net()
        pydist.distributed.check_replicas(model)
        if rank == 2:
            with pydist.no_grad():
                model[2].weight[0, 3] += 1e-15
                model[2].bias.zero_()
        with pytest.raises(RuntimeError, match="rank 0 has 2.weight with hash .*, rank 2 has 2.weight with hash"):
            pydist.distributed.check_replicas(model)
        return True

    assert all(threads.run(work, 3))


def test_check_replicas_every():
    def work(rank):
        model = DistributedDataParallel(net(), check_replicas_every=3)
        steps = 0
        with pytest.raises(RuntimeError, match="0.bias"):
            for steps in range(7):  # checked before the fourth and the seventh step
                model(batch(rank, steps)).sum().backward()
                if steps == 4 and rank == 1:
                    model.module[0].bias.data[0] = float("nan")
        return steps

    assert threads.run(work, 2) == [6, 6]


def test_hashes():
    """Equal bits, equal hash; every element, the length and the order count."""
    x = pydist.arange(1000, dtype=pydist.float32)
    one = pydist._C.hash_tensors([x, x.clone(), x[:999], x.flip(0), pydist.zeros(0), pydist.zeros(3), pydist.zeros(4)])
    assert one[0] == one[1] and len(set(one)) == 6
    seen = set()
    for size in (1, 3, 32, 70):
        for at in range(size):
            for bit in range(8):
                y = pydist.zeros(size, dtype=pydist.uint8)
                y[at] = 1 << bit
                seen.add(pydist._C.hash_tensors([y])[0])
    assert len(seen) == 8 * (1 + 3 + 32 + 70)
    for wrong in ([pydist.zeros(3, 4).t()], [None], 3, [3]):
        with pytest.raises((ValueError, TypeError)):
            pydist._C.hash_tensors(wrong)


# ---- figures


def test_logging_data():
    def work(rank):
        model = DistributedDataParallel(net())
        for step in range(3):
            model(batch(rank, step)).sum().backward()
        return model.logging_data()

    for data in threads.run(work, 2):
        assert data["steps"] == 3 and data["bytes"] >= 57 * 8
        for figures in (data["last"], data["mean"]):
            assert all(value > 0 for value in figures.values())
            assert figures["exposed"] == pytest.approx(figures["communication"] + figures["wait"])


# ---- sharded models


def sharded(kind):
    model = net()
    if kind == "ddp":
        return DistributedDataParallel(model)
    if kind == "FSDP1":
        model[0] = FullyShardedDataParallel(model[0])
        return FullyShardedDataParallel(model)
    fully_shard(model[0])
    return fully_shard(model)


def trained(rank, kind, counts, by_all, clip, parts=1):
    """The parameters after uneven steps with momentum, clipping and a schedule, and after one even step."""
    model = sharded(kind)
    sgd = pydist.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = pydist.optim.lr_scheduler.ExponentialLR(sgd, 0.7)

    def step(number):
        sgd.zero_grad()
        for part in range(parts):
            loss = model(batch(rank, number, size_of(rank, number + part))).square().mean()
            if kind == "ddp":
                model.reducer.sync = part == parts - 1
            else:
                model.set_requires_gradient_sync(part == parts - 1)
            loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        sgd.step()
        schedule.step()

    with Join([model], divide_by_initial_world_size=by_all):
        for number in range(counts[rank]):
            if rank == 0:  # forwards of one rank are nobody's business
                with pydist.no_grad():
                    model(batch(rank, number)) if kind != "ddp" else None
            step(number)
    whole = [p.full_tensor() if kind != "ddp" else p for p in model.parameters()]
    rate = sgd.param_groups[0]["lr"]
    model.zero_grad()
    model(batch(rank, 9)).square().mean().backward()  # afterwards all take part again
    grads = [p.grad.full_tensor() if kind != "ddp" else p.grad for p in model.parameters()]
    return [t.detach().clone() for t in (*whole, *grads)], rate


@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("kind", ["fully_shard", "FSDP1"])
def test_sharded_models_have_the_bits_of_ddp(counts, kind):
    for by_all, clip, parts in ((True, False, 1), (False, True, 1), (True, True, 2)):
        work = [threads.run(trained, len(counts), k, counts, by_all, clip, parts) for k in ("ddp", kind)]
        last = counts.index(max(counts))
        for (expected, _), (got, rate) in zip(*work, strict=True):
            assert all(map(pydist.equal, got, expected))
            assert rate == work[1][last][1]  # of ranks without data too, whose schedules stood still


def test_sharded_models_that_cannot_be_joined(monkeypatch):
    def work(rank):
        model = sharded("fully_shard")
        with pytest.raises(ValueError, match="a sharded model beside other joinables"):
            Join([model, sharded("ddp")])
        model.set_gradient_divide_factor(3)
        with pytest.raises(ValueError, match="beside set_gradient_divide_factor"):
            Join([model], divide_by_initial_world_size=False)
        with pytest.raises(NotImplementedError, match="the model has replicas"):
            Join([fully_shard(net(), mesh=init_device_mesh("cpu", (2, 1)))])
        model(batch(rank, 0))
        with pytest.raises(ValueError, match="a part of a sharded model"):
            Join([model[0]])
        monkeypatch.setenv("PYDIST_FSDP", "private")
        with pytest.raises(NotImplementedError, match="the ranks gather this model's wholes"):
            Join([sharded("fully_shard")])
        dist.barrier()
        monkeypatch.delenv("PYDIST_FSDP", raising=False)
        dist.barrier()
        model = sharded("fully_shard")
        with pytest.raises(RuntimeError, match="ran out of inputs"):
            with Join([model], throw_on_early_termination=True):
                for number in range(1 + rank):
                    model(batch(rank, number)).square().mean().backward()

    threads.run(work, 2)
