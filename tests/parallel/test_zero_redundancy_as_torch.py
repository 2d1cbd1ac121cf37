"""What PyTorch's tests of ZeroRedundancyOptimizer assert, in our words. Left out: two GPUs of a rank (model parallel)."""

import copy

import pytest

import pydist
from lib.control import free_port
from lib.processes import start, within
from pydist import distributed as dist
from pydist import nn, optim
from pydist.distributed import threads
from pydist.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import (
    hook_with_zero_step,
    hook_with_zero_step_interleaved,
)
from pydist.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from pydist.distributed.optim import ZeroRedundancyOptimizer
from pydist.nn.parallel import DistributedDataParallel


def same(a, b):
    return all(pydist.equal(p.detach(), q.detach()) for p, q in zip(a, b, strict=True))


def layers(seed, *sizes):
    pydist.manual_seed(seed)
    return nn.Sequential(*(nn.Linear(m, n) for m, n in zip(sizes, sizes[1:])))


def test_a_state_goes_on_where_it_was():
    """With the options that were saved, not those of the constructor."""

    def work(rank):
        x = pydist.ones(1, requires_grad=True)
        zero = ZeroRedundancyOptimizer([x], optimizer_class=optim.SGD, lr=0.1, momentum=0.9)
        x.backward()
        zero.step()
        assert x.item() == pytest.approx(0.9) and zero.optim.state[x]["momentum_buffer"].item() == 1.0
        zero.zero_grad()
        zero.consolidate_state_dict(to=0)
        saved = zero.state_dict()
        assert set(saved) == {"state", "param_groups"}
        options = {name: value for name, value in saved["param_groups"][0].items() if name != "params"}
        assert {
            "lr": 0.1,
            "momentum": 0.9,
            "nesterov": False,
            "weight_decay": 0,
            "dampening": 0,
        }.items() <= options.items()
        assert options == {name: value for name, value in zero.param_groups[0].items() if name != "params"}
        again = ZeroRedundancyOptimizer([x], optimizer_class=optim.SGD, lr=0.01)
        again.load_state_dict(saved)
        assert again.optim.state[x]["momentum_buffer"].item() == 1.0 and again.param_groups[0]["lr"] == 0.1
        x.backward()
        again.step()
        assert x.item() == pytest.approx(0.71) and again.optim.state[x]["momentum_buffer"].item() == pytest.approx(1.9)
        return again.param_groups[0]["params"][0].device == x.device

    assert threads.run(work, 1) == [True]


def test_parameters_in_every_form():
    def work(rank):
        model = layers(0, 5, 10, 10, 10)
        weights, biases = [layer.weight for layer in model], [layer.bias for layer in model]
        for params in (model.parameters(), list(model.parameters()), [{"params": weights}, {"params": biases}]):
            zero = ZeroRedundancyOptimizer(params, optimizer_class=optim.SGD, lr=0.01)
            assert sum(len(group["params"]) for group in zero.param_groups) == 6
        groups = [{"params": weights, "weight_decay": 0.0}, {"params": iter(biases), "weight_decay": 0.01}]
        zero = ZeroRedundancyOptimizer(groups, optimizer_class=optim.AdamW, lr=0.01, betas=(0.9, 0.999), eps=1e-8)
        assert len(zero.param_groups) == len(zero.optim.param_groups) == 2
        assert [group["weight_decay"] for group in zero.optim.param_groups] == [0.0, 0.01]
        sparse = pydist.sparse_coo_tensor([[0], [1]], [1.0], (2, 3))
        for bad in ([sparse], [pydist.ones(1), sparse]):
            with pytest.raises(ValueError, match=r"parameter \d is sparse .expected a dense"):
                ZeroRedundancyOptimizer(bad, optimizer_class=optim.SGD, lr=0.01)
        return True

    assert all(threads.run(work, 2))


@pytest.mark.parametrize("world", [2, 4])
def test_sizes_are_dealt_out_evenly(world):
    """Frozen parameters, too, and those of a group that comes later."""

    def work(rank):
        sizes = [9, 7, 5, 3] * world
        zero = ZeroRedundancyOptimizer([pydist.rand(size, 1) for size in sizes], optim.SGD, lr=0.01)
        held = sum(p.numel() for p in zero.optim.param_groups[0]["params"])
        params = [pydist.rand(size, 1).requires_grad_() for size in sizes[:-1]]
        zero = ZeroRedundancyOptimizer(params, optim.SGD, lr=0.01)
        assert len(zero.param_groups) == 1
        zero.add_param_group({"params": [pydist.rand(3, 1)]})
        later = sum(p.numel() for group in zero.optim.param_groups for p in group["params"])
        assert len(zero.param_groups) == len(zero.optim.param_groups) == 2
        params = [pydist.rand(size, 1).requires_grad_(size != 100) for size in (100, 3, 5, 2, 6, 4)]
        zero = ZeroRedundancyOptimizer(params, optim.SGD, lr=0.01)  # the first one is large and frozen
        zero.add_param_group({"params": [pydist.rand(3, 1)]})
        assert len(zero.param_groups) == len(zero.optim.param_groups) == 2
        return held, later

    assert threads.run(work, world) == [(24, 24)] * world


@pytest.mark.parametrize("view", [False, True])
def test_gradients_of_a_closure_are_the_owners(view):
    """Ranks whose closures find other gradients: each parameter is stepped with those of its owner."""

    def work(rank):
        x, model = pydist.tensor([rank + 1.0]), nn.Linear(1, 1)
        model.weight.data.fill_(1.0)
        model.bias.data.fill_(2.0)
        target = x + 2.0 + 1.0
        zero = ZeroRedundancyOptimizer(model.parameters(), optim.SGD, parameters_as_bucket_view=view, lr=0.1)
        assert [zero._owners[i] for i in (0, 1)] == [0, 1]

        def closure():
            zero.zero_grad()
            loss = nn.functional.l1_loss(model(x), target)
            loss.backward()
            return loss

        loss = zero.step(closure=closure)
        return loss.item(), model.weight.item(), model.bias.item()  # the bias' gradient is -1, the weight's -x

    results = threads.run(work, 2)
    assert results[0] == results[1] == (1.0, pytest.approx(1.1), pytest.approx(2.1))


def test_a_schedule_without_gradients_changes_nothing():
    def work(rank):
        x = pydist.ones(1, requires_grad=True)
        zero = ZeroRedundancyOptimizer([x], optim.SGD, lr=0.01)
        schedule = optim.lr_scheduler.StepLR(zero, 1)
        for _ in range(5):
            x.backward()
            zero.zero_grad()
            zero.step()
            schedule.step()
        assert zero.param_groups[0]["lr"] == pytest.approx(0.01 * 0.1**5)
        return x.item()

    assert threads.run(work, 2) == [1.0, 1.0]


def test_every_other_rank():
    """A group of ranks 0 and 2 of 4, with data of their own: the parameters stay the same on both."""

    def work(rank):
        group = dist.new_group([0, 2])
        if rank % 2:
            return None
        model, data = layers(0, 20, 10, 5), pydist.Generator().manual_seed(rank)
        zero = ZeroRedundancyOptimizer(model.parameters(), optim.SGD, process_group=group, lr=1e-3, momentum=0.99)
        for _ in range(5):
            inputs, target = pydist.rand(3, 20, generator=data), pydist.rand(3, 5, generator=data)

            def closure(inputs=inputs, target=target):
                zero.zero_grad()
                loss = nn.functional.l1_loss(model(inputs), target) / 4
                loss.backward()
                dist.all_reduce(loss, group=group)
                return loss

            zero.step(closure=closure)
            for p in model.parameters():
                found = [pydist.empty_like(p) for _ in range(2)] if rank == 0 else []
                dist.gather(p.detach(), found, dst=0, group=group)
                assert not found or pydist.equal(*found)
        state = [None]
        zero.consolidate_state_dict(to=0)
        if rank == 0:
            state = [zero.state_dict()]
            assert len(state[0]["state"]) == 4
        dist.broadcast_object_list(state, src=0, group=group)
        zero.load_state_dict(state[0])
        return len(zero.state)

    assert threads.run(work, 4) == [1, None, 3, None]


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD"])
def test_parity_with_a_local_optimizer(name, maximize):
    """Under DDP that broadcasts buffers and looks for unused parameters: a parameter that is frozen in every other step,
    and each optimizer goes on with the other's state."""

    def work(rank):
        model, data = layers(rank, 2, 3, 3, 3), pydist.Generator().manual_seed(rank)
        model.register_buffer("test_buffer", pydist.full((1,), float(rank)))
        models = [model, copy.deepcopy(model)]
        options = {"lr": 1e-3, **({"maximize": True} if maximize else {})}
        zero = ZeroRedundancyOptimizer(models[0].parameters(), getattr(optim, name), **options)
        # the parameters are those of rank 0 from here on
        wrapped = [DistributedDataParallel(m, broadcast_buffers=True, find_unused_parameters=True) for m in models]
        local = getattr(optim, name)(models[1].parameters(), **options)
        assert same(*(m.parameters() for m in models))

        def step():
            x, losses = pydist.rand(64, 2, generator=data), []
            for model, optimizer in zip(wrapped, (zero, local), strict=True):

                def closure(model=model, optimizer=optimizer):
                    optimizer.zero_grad()
                    loss = model(x).abs().sum()
                    loss.backward()
                    return loss

                losses.append(optimizer.step(closure=closure).item())
            assert losses[0] == losses[1] and same(*(m.parameters() for m in models))
            assert models[0].test_buffer.item() == models[1].test_buffer.item() == 0.0

        for i in range(20):
            step()
            if i > 10:
                for model in models:
                    next(model.parameters()).requires_grad_(bool(i % 2))
        plain = copy.deepcopy(local.state_dict())
        zero.consolidate_state_dict(to=0)
        sharded = [zero.state_dict() if rank == 0 else {}]
        dist.broadcast_object_list(sharded, src=0)
        local.load_state_dict(sharded[0])
        zero.load_state_dict(plain)
        step()
        local.load_state_dict(plain)
        zero.load_state_dict(sharded[0])
        step()
        return [p.tolist() for p in models[0].parameters()]

    found = threads.run(work, 2)
    assert found[0] == found[1]


@pytest.mark.parametrize("hook", [hook_with_zero_step, hook_with_zero_step_interleaved])
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("shard_buckets", [False, True])
def test_overlap_has_the_bits_of_a_local_optimizer(hook, static, view, shard_buckets):
    """In every form of DDP. PyTorch makes no step in the first two or three backwards; here each of them is one."""

    def work(rank):
        start, options = layers(0, 100, 200, 50), {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.001}
        models, steps = [], []
        for overlaps in (True, False):
            model = DistributedDataParallel(copy.deepcopy(start), gradient_as_bucket_view=view, bucket_cap_mb=0.05)
            if static:
                model._set_static_graph()
            if overlaps:
                made = ZeroRedundancyOptimizer(model.parameters(), optim.SGD, overlap_with_ddp=True, **options)
                model.register_comm_hook(None, hook(allreduce_hook, model, made, shard_buckets=shard_buckets))
            else:
                made = optim.SGD(model.parameters(), **options)
            models.append(model)
            steps.append((made, (lambda: None) if overlaps else made.step))
        for number in range(5):
            x = pydist.randn(1, 100, generator=pydist.Generator().manual_seed(10 * rank + number))
            for model, (made, step) in zip(models, steps, strict=True):
                made.zero_grad()
                model(x).sum().backward()
                step()
        assert same(*(model.parameters() for model in models))
        assert not any(pydist.equal(p, q) for p, q in zip(start.parameters(), models[0].parameters(), strict=True))
        return [p.sum().item() for p in models[0].parameters()]

    found = threads.run(work, 2)
    assert found[0] == found[1]


RECIPE = """
import os, sys
import torch
from torch import distributed, multiprocessing, nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


def train(rank, port, shared_out):
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=port)
    distributed.init_process_group("gloo", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(500, 500).to(rank) for _ in range(4)])
    ddp = DistributedDataParallel(model, device_ids=[rank])
    if shared_out:
        optimizer = ZeroRedundancyOptimizer(ddp.parameters(), optimizer_class=torch.optim.Adam, lr=0.01)
    else:
        optimizer = torch.optim.Adam(ddp.parameters(), lr=0.01)
    nn.MSELoss()(ddp(torch.randn(20, 500).to(rank)), torch.randn(20, 500).to(rank)).backward()
    before = torch.cuda.memory_allocated(rank)
    optimizer.step()
    grown = torch.cuda.memory_allocated(rank) - before
    os.write(1, f"{shared_out} {rank} {grown} {sum(model.parameters()).sum().item()}\\n".encode())  # a whole line


if __name__ == "__main__":
    for shared_out in (True, False):
        multiprocessing.spawn(train, args=(sys.argv[1 + shared_out], shared_out), nprocs=2, join=True)
"""


def test_the_recipe_of_pytorch(tmp_path):
    """Half of Adam's states are on each of two ranks, and the parameters are those of the plain optimizer."""
    script = tmp_path / "recipe.py"
    script.write_text(RECIPE)
    ports = [str(free_port()) for _ in range(2)]
    job = start("--compat", "--cpu-as-cuda", 2, script, *ports)
    out, error = job.communicate(timeout=within(120))
    rows = [line.split() for line in out.splitlines() if line.startswith(("True", "False"))]
    assert job.returncode == 0 and len(rows) == 4, error
    grown = {(row[0], row[1]): int(row[2]) for row in rows}
    states = 2 * 4 * 4 * (500 * 500 + 500)
    for rank in "01":
        assert grown["False", rank] == pytest.approx(states, rel=0.02)
        assert grown["True", rank] == pytest.approx(states / 2, rel=0.02)
    assert len({row[3] for row in rows}) == 1
