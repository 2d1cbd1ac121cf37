"""fully_shard: the bits of DistributedDataParallel, memory that exists once, ranks that read alone, states, bad input."""

import copy
import gc
import os
import pickle
import random
import time
import weakref

import pytest

import pydist
from lib.processes import within
from lib.ranks import LONG
from lib.sharded_models import (
    Gpt,
    RULES,
    assert_same,
    batch,
    equal,
    gpt,
    loss_of,
    reference,
    sharded,
    train,
    whole,
)
from pydist import _C, nn, optim
from pydist import distributed as dist
from pydist.distributed.device_mesh import init_device_mesh
from pydist.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from pydist.distributed.tensor import DTensor, Shard
from pydist.testing import RankFailed, run_ranks


@pytest.fixture(params=["auto", "private"])
def way(request, monkeypatch):
    monkeypatch.setenv("PYDIST_FSDP", request.param)
    return request.param


def sync(model, on):
    model.set_requires_gradient_sync(on)


# ---- bits


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"rule": "SGD", "clip": 0.3},
        {"parts": 3},
        {"frozen": True},
        {"again": False},
        {"again": True},
        {"rule": "Lion", "parts": 2, "clip": 0.1},
        {"rule": "Adagrad"},
    ],
    ids=str,
)
def test_bits_of_ddp(world, options, way):
    model_options = {k: v for k, v in options.items() if k in ("again", "frozen")}
    training = {k: v for k, v in options.items() if k not in model_options}

    def work(rank):
        expected = reference(**training, **model_options)
        model = sharded(gpt(**model_options), reshard_after_forward=way == "private" or rank % 2 == 0)
        losses, optimizer = train(model, model.parameters(), sync=sync, **training)
        assert_same(model, losses, optimizer, expected)
        return model._fsdp.unit.kind

    kinds = run_ranks(world, work)
    assert set(kinds) == {"alone" if world == 1 else "common" if way == "auto" else "gathered"}


@pytest.mark.parametrize("rule", RULES)
def test_optimizers(rule):
    def work(rank):
        expected = reference(rule)
        model = sharded(gpt())
        losses, optimizer = train(model, model.parameters(), rule)
        assert_same(model, losses, optimizer, expected)

    run_ranks(2, work)


def test_processes():
    def work(rank):
        expected = reference(clip=0.3)
        model = sharded(gpt())
        assert_same(model, *train(model, model.parameters(), clip=0.3), expected)

    run_ranks(2, work, processes=True)


@pytest.mark.parametrize("parts", [1, 2])
def test_replicas_of_shards(parts):
    """2 x 2: the bits of four ranks."""

    def work(rank):
        expected = reference(parts=parts)
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        model = sharded(gpt(), mesh=mesh)
        assert_same(model, *train(model, model.parameters(), parts=parts, sync=sync), expected)
        assert model.embed.weight.to_local().shape[0] in (6, 5)
        held = sharded(gpt(), mesh=mesh)

        def only_the_last(model, on):  # each micro-batch is reduced over shards, the sum over replicas
            model.set_requires_all_reduce(on)

        train(held, held.parameters(), parts=parts, sync=only_the_last)
        for (name, a), b in zip(model.named_parameters(), held.parameters(), strict=True):
            assert (whole(a) - whole(b)).abs().max() < 1e-5, name

    run_ranks(4, work)


def test_other_dimensions(way):
    class Net(nn.Sequential):
        def __init__(self):
            super().__init__(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 4))

    def run(model):
        optimizer = optim.AdamW(model.parameters(), lr=0.1)
        for step in range(3):
            pydist.manual_seed(step + 10 * dist.get_rank())
            optimizer.zero_grad()
            model(pydist.randn(5, 8)).square().mean().backward()
            optimizer.step()
        return [whole(p) for p in model.parameters()]

    def work(rank):
        pydist.manual_seed(0)
        expected = run(nn.parallel.DistributedDataParallel(Net()))
        pydist.manual_seed(0)
        model = Net()
        fully_shard(model[0], shard_placement_fn=lambda p: Shard(p.dim() - 1))
        fully_shard(model, shard_placement_fn=lambda p: Shard(1) if p.dim() > 1 else None)
        assert model[0].weight.to_local().shape == (6, 4) and model[2].weight.placements == (Shard(1),)
        assert all(map(pydist.equal, run(model), expected))

    run_ranks(2, work)


def test_sixteen_bits(way):
    """Wholes are rounded shards; the step is made on float32."""

    def work(rank):
        model, seen = gpt(), []
        for block in model.blocks:
            fully_shard(block, mp_policy=MixedPrecisionPolicy(pydist.bfloat16, pydist.float32))
        fully_shard(model, mp_policy=MixedPrecisionPolicy(pydist.bfloat16, pydist.float32, pydist.float32))
        model.blocks[0].register_forward_pre_hook(lambda m, args: seen.append((args[0].dtype, m.up.weight.dtype)))
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            before = {name: whole(p).clone() for name, p in model.named_parameters()}
            out = model(batch(step))
            assert out.dtype == pydist.float32
            loss_of(model, batch(step)).backward()
            grads = {name: whole(p.grad) for name, p in model.named_parameters() if p.grad is not None}
            optimizer.step()
            for name, p in model.named_parameters():
                assert p.dtype == pydist.float32
                if name in grads:
                    assert grads[name].dtype == pydist.float32
                    assert pydist.equal(whole(p), before[name].add(grads[name], alpha=-0.1))
        assert set(seen) == {(pydist.bfloat16, pydist.bfloat16)}
        rounded = whole(model.embed.weight).to(pydist.bfloat16)
        model.unshard()
        assert pydist.equal(model.embed.weight.detach(), rounded)
        model.reshard()

    run_ranks(2, work)


# ---- memory


def test_wholes_exist_once():
    """One memory that all ranks map; shards and wholes are views of it."""

    def work(rank):
        model = sharded(gpt())
        unit = model._fsdp.unit
        model.unshard()
        whole_one = model.embed.weight
        assert unit.nbytes >= 4 * sum(unit.whole(i).numel() for i in range(4))
        model.reshard()
        with pydist.no_grad():
            model.embed.weight.fill_(rank + 1)
        _C.end_writes()
        dist.barrier()
        assert whole_one[:, 0].tolist() == [1.0] * 6 + [2.0] * 5
        return whole_one.data_ptr()

    assert len(set(run_ranks(2, work))) == 1


def test_nothing_is_left():
    def work(rank):
        model = sharded(gpt())
        train(model, model.parameters())

    def live():
        gc.collect()
        return _C.live()

    run_ranks(2, work)
    before = live()
    for _ in range(3):
        run_ranks(2, work)
    assert live() == before


@pytest.mark.skipif(not _C._memory_kept(), reason="a sanitizer's build keeps no freed memory")
def test_memory_of_many_steps_does_not_grow(way):
    """A steady step asks the allocator and the system for nothing."""
    steps = 1000 if os.environ.get("FULL_LONG") else 100

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    def work(rank):
        pydist.set_num_threads(1)
        model = sharded(gpt())
        optimizer = RULES["AdamW"](model.parameters())
        data, seen = batch(0), []
        for number in range(steps):
            optimizer.zero_grad()
            loss_of(model, data).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if number in (steps // 2, steps - 1):
                gc.collect()
                seen.append((_C.live(), _C.memory_allocated(), _C._memory_asked(), resident()))
        return seen

    for (live, held, asked, size), (live_after, held_after, asked_after, size_after) in run_ranks(
        2, work, processes=True
    ):
        assert (live_after, held_after) == (live, held)
        assert asked_after - asked <= 2 and size_after - size < 1 << 20, (asked_after - asked, size_after - size)


def test_results_go_with_their_last_name(way):
    """Nothing that forward leaves holds its activations in a circle."""

    def work(rank):
        model = sharded(gpt())
        gone = []
        gc.disable()
        try:
            out = model(batch(0))
            weakref.finalize(out, gone.append, True)
            del out
            assert gone
        finally:
            gc.enable()

    run_ranks(1, work)


def test_a_world_of_one_copies_no_gradient():
    """The gradient that hooks see becomes .grad, unless one of them keeps it."""

    def work(rank):
        model, seen, kept = sharded(gpt()), [], []
        weight = model.blocks[0].up.weight
        address = weight.register_hook(lambda grad: seen.append(grad.to_local().data_ptr()))
        loss_of(model, batch(0)).backward()
        assert weight.grad.to_local().data_ptr() == seen.pop()
        for keep in (lambda grad: kept.append(grad), lambda grad: kept.append(grad.to_local().view(-1))):
            model.zero_grad()
            handle = weight.register_hook(keep)
            loss_of(model, batch(0)).backward()
            handle.remove()
            before = kept[-1].clone()
            weight.grad.zero_()
            assert pydist.equal(*(whole(t) for t in (before, kept[-1]))) and whole(before).any()
        address.remove()

    run_ranks(1, work)


def test_gathered_wholes_go(monkeypatch):
    monkeypatch.setenv("PYDIST_FSDP", "private")

    def work(rank):
        model = sharded(gpt())
        unit = model.blocks[0]._fsdp.unit
        kept = unit.whole(0)
        assert kept.is_meta
        out = loss_of(model, batch(0))
        assert kept.is_meta and not model.blocks[0]._fsdp.unit.shown
        out.backward()
        assert kept.is_meta
        with pytest.raises((RuntimeError, TypeError), match="meta"):
            (kept.detach() * 1).sum().item()

    run_ranks(2, work)


# ---- ranks alone


def test_one_rank_reads():
    """Generation on one rank between steps, and uneven validation."""

    def work(rank):
        expected = reference(steps=4)
        model, losses = sharded(gpt()), []
        optimizer = RULES["AdamW"](model.parameters())
        for step in range(4):
            optimizer.zero_grad()
            loss = loss_of(model, batch(step))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            with pydist.no_grad():
                for _ in range(5 if rank == 0 else 9 if step == 2 else 0):
                    alone = model(batch(77)).sum().item()
                    assert alone == alone
        assert_same(model, losses, optimizer, expected)

    run_ranks(2, work)


@pytest.mark.parametrize("late", [0, 1])
def test_one_rank_reads_before_the_step(late):
    """The others' step waits for it, and its own step for nobody else's reading."""

    def work(rank):
        expected = reference(steps=3)
        model, losses = sharded(gpt()), []
        optimizer = RULES["AdamW"](model.parameters())
        for step in range(3):
            optimizer.zero_grad()
            loss = loss_of(model, batch(step))
            loss.backward()
            losses.append(loss.item())
            if rank == late:
                time.sleep(0.01)
            if rank == 0:
                with pydist.no_grad():
                    model(batch(77))
            optimizer.step()
        assert_same(model, losses, optimizer, expected)

    run_ranks(2, work)


def test_a_branch_of_one_rank():
    """Only rank 0 uses the extra layer: the others' share of its gradient is zero."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.extra = nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(4, 4)

        def forward(self, x):
            x = pydist.tanh(self.a(x))
            return self.b(self.extra(x) if dist.get_rank() == 0 else x)

    def work(rank):
        pydist.manual_seed(0)
        model = nn.parallel.DistributedDataParallel(Net())
        pydist.manual_seed(0)
        shard = Net()
        fully_shard(shard.extra)
        fully_shard(shard)
        for net in (model, shard):
            net(pydist.ones(3, 4) * (rank + 1)).square().sum().backward()
        for (name, p), q in zip(model.module.named_parameters(), shard.parameters(), strict=True):
            assert pydist.equal(p.grad, whole(q.grad)), name

    run_ranks(3, work)


def test_an_unused_parameter_keeps_its_gradient(way):
    def work(rank):
        model = sharded(gpt())
        loss_of(model, batch(0)).backward()
        assert model.unused.weight.grad is None and model.scale.grad is not None

    run_ranks(2, work)


def test_readers_wait_for_writers():
    """A rank that is late with its step is waited for; so is one that reads for long."""

    def work(rank):
        expected = reference(steps=3)
        model, losses = sharded(gpt()), []
        optimizer = RULES["AdamW"](model.parameters())
        for step in range(3):
            optimizer.zero_grad()
            loss = loss_of(model, batch(step))
            loss.backward()
            losses.append(loss.item())
            if rank == 0:
                time.sleep(0.05)
            optimizer.step()
        assert_same(model, losses, optimizer, expected)

    run_ranks(3, work)


# ---- hooks


def test_hooks_see_shards():
    def work(rank):
        model, seen = sharded(gpt()), []
        weight = model.blocks[0].up.weight
        weight.register_hook(lambda g: seen.append(tuple(g.shape)) or g * 2)
        weight.register_post_accumulate_grad_hook(lambda p: seen.append(type(p).__name__))
        loss_of(model, batch(0)).backward()
        first = whole(weight.grad).clone()
        other = sharded(gpt())
        loss_of(other, batch(0)).backward()
        assert pydist.equal(first, whole(other.blocks[0].up.weight.grad) * 2)
        assert seen == [tuple(weight.shape), "DTensorParameter"]

    run_ranks(2, work)


@pytest.mark.parametrize("replicas", [1, 2])
def test_all_reduce_hook(replicas):
    """It sees parts of sums over all ranks, and may change them; it stays when parameters get other memory."""

    def work(rank):
        mesh = init_device_mesh("cpu", (replicas, 4 // replicas))
        plain, model = sharded(gpt(), mesh=mesh), sharded(gpt(), mesh=mesh).double().float()
        seen = []
        model.blocks[0].set_all_reduce_hook(lambda part: seen.append(tuple(part.shape)) or part.mul_(2))
        for net in (plain, model.double().float()):
            loss_of(net, batch(0)).backward()
        block, other = model.blocks[0], plain.blocks[0]
        assert sorted(seen) == sorted(tuple(p.to_local().shape) for p in block.parameters())
        for p, q in zip(block.parameters(), other.parameters(), strict=True):
            assert pydist.equal(whole(p.grad), whole(q.grad) * 2)
        assert pydist.equal(whole(model.blocks[1].up.weight.grad), whole(plain.blocks[1].up.weight.grad))
        block.set_all_reduce_hook(None)
        loss_of(model, batch(1)).backward()
        assert len(seen) == 6
        with pytest.raises(TypeError, match="hook is int"):
            block.set_all_reduce_hook(3)

    run_ranks(4, work)


def test_a_step_inside_of_backward():
    """Each parameter is stepped as soon as its gradient is there."""

    def work(rank):
        expected = reference("SGD", steps=4)
        model, losses = sharded(gpt()), []
        rules = {p: RULES["SGD"]([p]) for p in model.parameters()}

        def step(param):
            rules[param].step()
            rules[param].zero_grad()

        for param in model.parameters():
            param.register_post_accumulate_grad_hook(step)
        for number in range(4):
            loss = loss_of(model, batch(number))
            loss.backward()
            losses.append(loss.item())
        assert losses == expected[0]
        for name, p in model.named_parameters():
            assert pydist.equal(whole(p), expected[1][name]), name
            states = rules[p].state[p].values()
            assert all(isinstance(v, DTensor) for v in states if isinstance(v, pydist.Tensor))

    run_ranks(2, work)


def test_methods_other_than_forward():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.b(self.encode(x))

        def encode(self, x):
            return pydist.tanh(self.a(x))

    def work(rank):
        pydist.manual_seed(0)
        plain = Net()
        pydist.manual_seed(0)
        model = fully_shard(Net())
        x = pydist.randn(3, 4)
        with pytest.raises((RuntimeError, NotImplementedError), match="DTensor"):
            model.encode(x)
        register_fsdp_forward_method(model, "encode")
        assert pydist.equal(model.encode(x), plain.encode(x))
        model.encode(x).sum().backward()
        plain.encode(x).sum().backward()
        assert pydist.allclose(whole(model.a.weight.grad), plain.a.weight.grad)

    run_ranks(2, work)


# ---- states


def test_meta_then_init():
    """The values of a model that was made whole, for any number of ranks."""

    def filled(model):
        pydist.manual_seed(5)
        for module in model.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
        with pydist.no_grad():
            nn.init.orthogonal_(model.blocks[0].up.weight)
            nn.init.trunc_normal_(model.blocks[1].up.weight, std=0.1)
            nn.init.xavier_uniform_(model.blocks[2].up.weight)
            model.scale.fill_(2)
        return model

    def work(rank, world):
        plain = filled(gpt())
        with pydist.device("meta"):
            model = Gpt()
        model = sharded(model)
        assert model.embed.weight.is_meta
        model.to_empty(device="cpu")
        with pytest.raises(RuntimeError, match="nothing has been written to .*embed.weight"):
            model(batch(0))
        filled(model)
        for (name, a), b in zip(plain.named_parameters(), model.parameters(), strict=True):
            assert pydist.equal(a, whole(b)), name
        assert pydist.equal(plain(batch(0)), model(batch(0)))

    for world in (1, 2, 3):
        run_ranks(world, work, world)


def test_state_dicts(way):
    def work(rank):
        model = sharded(gpt())
        losses, optimizer = train(model, model.parameters())
        state = model.state_dict()
        assert all(isinstance(v, DTensor) for v in state.values())
        full = {name: whole(v) for name, v in state.items()}
        others = []
        for values, assign in ((state, False), (full, False), (state, True), (full, True)):
            other = sharded(gpt(seed=3))
            other.load_state_dict({k: v.clone() for k, v in values.items()}, assign=assign)
            others.append(other)
            assert all(equal(whole(v), full[name]) for name, v in other.state_dict().items())
        moments = copy.deepcopy(optimizer.state_dict())
        out = model(batch(9))
        for other in others:
            again = RULES["AdamW"](other.parameters())
            again.load_state_dict(moments)
            assert pydist.equal(other(batch(9)), out)
            loss_of(other, batch(9)).backward()
            again.step()
        out.sum().backward()  # of another loss: the optimizer of `model` is not used again
        one, *rest = others
        for other in rest:
            for (name, a), b in zip(one.named_parameters(), other.named_parameters(), strict=True):
                assert pydist.equal(whole(a), whole(b[1])), name
        with pytest.raises(RuntimeError, match="Missing key.*head.weight"):
            model.load_state_dict({k: v for k, v in full.items() if k != "head.weight"})
        with pytest.raises(RuntimeError, match="size mismatch for scale"):
            model.load_state_dict({**full, "scale": pydist.ones(2)})

    run_ranks(2, work)


def test_other_dtypes_after_sharding():
    def work(rank):
        model = sharded(gpt()).double()
        assert model.embed.weight.dtype == pydist.float64
        plain = gpt().double()
        assert pydist.equal(model(batch(0)), plain(batch(0)))
        loss_of(model, batch(0)).backward()
        assert model.embed.weight.grad.dtype == pydist.float64

    run_ranks(2, work)


def test_a_scaler_skips_on_all_ranks():
    """The infinity is in one rank's rows."""

    def work(rank):
        model = fully_shard(nn.Linear(1, 2, bias=False))
        optimizer, scaler = optim.SGD(model.parameters(), lr=1.0), pydist.amp.GradScaler("cpu", init_scale=4.0)
        before = whole(model.weight).clone()
        out = model(pydist.ones(1, 1))
        scaler.scale((out * pydist.tensor([float("inf"), 1.0])).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert pydist.equal(whole(model.weight), before) and scaler.get_scale() == 2.0

    run_ranks(2, work)


# ---- bad input


def test_refused_at_the_call():
    def work(rank):
        net = nn.Linear(2, 2)
        for wrong, kind, text in [
            (3, ValueError, "got int"),
            ([], ValueError, "empty list"),
            (nn.ModuleList([net]), ValueError, "does not support containers"),
            (fully_shard(nn.Linear(2, 2)), ValueError, "sharded already"),
        ]:
            with pytest.raises(kind, match=text):
                fully_shard(wrong)
        with pytest.raises(ValueError, match="scale has no dimension to cut"):
            scalar = nn.Module()
            scalar.scale = nn.Parameter(pydist.tensor(1.0))
            fully_shard(scalar)
        with pytest.raises(ValueError, match="weight is not contiguous"):
            turned = nn.Linear(3, 2)
            turned.weight.data = turned.weight.data.t().contiguous().t()
            fully_shard(turned)
        with pytest.raises(ValueError, match="along dimension 1 for 2 ranks"):
            fully_shard(nn.Linear(3, 2, bias=False), shard_placement_fn=lambda p: Shard(1))
        with pytest.raises(ValueError, match="returned 3"):
            fully_shard(nn.Linear(3, 2), shard_placement_fn=lambda p: 3)
        with pytest.raises(ValueError, match="reshard_after_forward is 3"):
            fully_shard(nn.Linear(3, 2), reshard_after_forward=3)
        with pytest.raises(ValueError, match="1 to 2|3 dimensions"):
            fully_shard(nn.Linear(3, 2), mesh=init_device_mesh("cpu", (1, 1, 2)))
        top = nn.Sequential(nn.Linear(2, 2))
        fully_shard(top)
        with pytest.raises(ValueError, match="is a DTensor already"):
            fully_shard(top[0])
        for copied in (copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="state_dict"):
                copied(top)
        with pytest.raises(pydist.DTypeError, match="param_dtype is bfloat16 .* float64"):
            fully_shard(nn.Linear(2, 2).double(), mp_policy=MixedPrecisionPolicy(pydist.bfloat16))
        assert isinstance(fully_shard(nn.ReLU(), offload_policy=CPUOffloadPolicy()), FSDPModule)  # no parameters
        assert fully_shard(nn.Sequential(nn.ReLU()))(pydist.ones(2)).tolist() == [1.0, 1.0]
        ignored = nn.Linear(2, 2)
        fully_shard(ignored, ignored_params={ignored.bias})
        assert not isinstance(ignored.bias, DTensor) and isinstance(ignored.weight, DTensor)

    run_ranks(2, work)


def test_different_models():
    """All ranks raise one text, and the group goes on."""

    def work(rank):
        with pytest.raises(RuntimeError, match="fully_shard: parameter"):
            fully_shard(nn.Linear(3, 2 + rank))
        with pytest.raises(RuntimeError, match="frozen"):
            fully_shard(nn.Linear(3, 2).requires_grad_(rank == 0))
        x = pydist.ones(1)
        dist.all_reduce(x)
        assert x.item() == 2

    run_ranks(2, work)


def test_units_in_another_order():
    """The ranks reduce different units: both are told which."""

    def work(rank):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 5), nn.Linear(5, 4))
        for k in range(3):
            fully_shard(model[k])
        fully_shard(model)
        if rank == 1:
            model.set_gradient_divide_factor(3)
        model(pydist.ones(1, 4)).sum().backward()

    with pytest.raises(RankFailed, match="reduce_unit.*unit 2"):
        run_ranks(2, work)


@pytest.mark.parametrize("how", ["in place", ".data", "copy_"])
def test_writes_to_wholes(how):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(pydist.ones(4, 4))

        def forward(self, x):
            with pydist.no_grad():
                if how == "in place":
                    self.weight.mul_(2)
                elif how == ".data":
                    self.weight.data.add_(1)
                else:
                    self.weight.copy_(pydist.zeros(4, 4))
            return x @ self.weight

    def work(rank):
        model = fully_shard(Net())
        with pytest.raises(RuntimeError, match="memory of parameter weight is shared by 2 ranks"):
            model(pydist.ones(1, 4))
        assert isinstance(model.weight, DTensor)
        assert model.weight.full_tensor().sum().item() == 16

    run_ranks(2, work)


def test_views_of_wholes_are_read_only():
    def work(rank):
        model = fully_shard(nn.Linear(4, 4))
        model.unshard()
        array = model.weight.detach().numpy()
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
        model.reshard()

    run_ranks(2, work)


def test_steps_between_forward_and_backward():
    def work(rank):
        model = sharded(gpt())
        optimizer = RULES["SGD"](model.parameters())
        loss_of(model, batch(0)).backward()
        loss = loss_of(model, batch(1))
        dist.barrier()  # all ranks have read
        optimizer.step()
        with pytest.raises(RuntimeError, match="shards have been written since the forward"):
            loss.backward()
        loss_of(model, batch(2)).backward()

    run_ranks(2, work)


def test_an_edit_on_one_rank():
    def work(rank):
        model = sharded(gpt())
        if rank == 0:
            with pydist.no_grad():
                model.scale.fill_(3)
        loss_of(model, batch(0)).backward()

    with pytest.raises(RankFailed, match="ranks called different collectives|has changed its shards"):
        run_ranks(2, work)


def test_a_group_that_goes_amid_edits():
    """The garbage collector frees it on one rank. The edits there go on."""

    def work(rank):
        model, circle = fully_shard(nn.Linear(4, 4)), [dist.new_group([0, 1])]
        circle.append(circle)
        del circle
        dist.barrier()
        with pydist.no_grad():
            model.weight.fill_(1)
            if rank == 0:
                gc.collect()
            model.bias.fill_(1)
        assert whole(model.weight).sum() + whole(model.bias).sum() == 20

    gc.disable()
    try:
        run_ranks(2, work)
    finally:
        gc.enable()


def test_optimizers_of_before():
    def work(rank):
        model = gpt()
        optimizer = RULES["AdamW"](model.parameters())
        sharded(model)
        loss_of(model, batch(0)).backward()
        with pytest.raises(RuntimeError, match="AdamW: parameter .* is sharded now"):
            optimizer.step()

    run_ranks(2, work)


@pytest.mark.parametrize("where", ["forward", "backward", "hook"])
def test_failures_leave_nothing(where, way):
    """The next step is that of a model that has not failed."""

    class Failing(nn.Module):
        armed = True

        def __init__(self):
            super().__init__()
            self.inner = gpt()

        def forward(self, x):
            x = self.inner(x)
            if self.armed and where == "forward":
                raise KeyError("forward")
            if self.armed and where == "backward":
                x.register_hook(lambda g: 1 / 0)
            return x

    def work(rank):
        model = Failing()
        sharded(model.inner)
        fully_shard(model)
        handle = None
        if where == "hook":
            handle = model.inner.blocks[2].up.weight.register_hook(lambda g: 1 / 0)
        for _ in range(2):
            with pytest.raises((KeyError, ZeroDivisionError)):
                loss_of(model, batch(0)).backward()
        model.armed = False
        if handle is not None:
            handle.remove()
        for param in model.parameters():
            param.grad = None
        loss_of(model, batch(1)).backward()
        assert all(isinstance(p, DTensor) for p in model.parameters())
        other = sharded(gpt())
        loss_of(other, batch(1)).backward()
        for (name, a), b in zip(other.named_parameters(), model.parameters(), strict=True):
            assert equal(whole(a.grad), whole(b.grad)) if a.grad is not None else b.grad is None, name

    run_ranks(2, work)


def test_backward_twice_and_of_gradients():
    def work(rank):
        model = sharded(gpt())
        loss = loss_of(model, batch(0))
        loss.backward(retain_graph=True)
        once = whole(model.scale.grad).clone()
        loss.backward()
        assert pydist.allclose(whole(model.scale.grad), 2 * once)
        with pytest.raises(RuntimeError, match="second time|freed"):
            loss.backward()

    run_ranks(2, work)


def test_empty_shards_and_zero_sizes():
    """More ranks than rows, and parameters without elements."""

    def work(rank):
        model = nn.Module()
        model.a, model.none = nn.Parameter(pydist.ones(2, 3)), nn.Parameter(pydist.ones(0, 3))
        model.forward = lambda: (model.a * 2).sum() + model.none.sum()
        fully_shard(model)
        optimizer = optim.AdamW(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            model().backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            assert abs(norm.item() - 24**0.5) < 1e-5
            optimizer.step()
        return model.a.to_local().shape[0], whole(model.a).tolist()

    results = run_ranks(4, work)
    assert [rows for rows, _ in results] == [1, 1, 0, 0] and len({str(values) for _, values in results}) == 1


@pytest.mark.parametrize("processes", [False, True], ids=["threads", "processes"])
def test_order_under_load(processes):
    """Random reads and writes on four ranks: no reader sees an old value, or two values, and nobody waits for ever."""
    writes = 6000 if LONG else 120  # with their reads 100,000 and more, or some thousands

    def work(rank):
        model, alike, own = fully_shard(nn.Linear(64, 64, bias=False)), random.Random(5), random.Random(rank)
        optimizer, early = optim.SGD(model.parameters(), lr=1.0), []
        with pydist.no_grad():
            model.weight.zero_()
        model.weight.register_post_accumulate_grad_hook(lambda p: early and early.pop()())
        eye, some, value, count = pydist.eye(64), (0, 0, 1, 3, 8), 0, 0

        def reads(times):
            nonlocal count
            with pydist.no_grad():
                for _ in range(times):
                    seen = model(eye)
                    assert seen.min() == seen.max() == value
            count += times

        how = "step"
        for _ in range(writes):  # two edits in a row are one, and no rank reads in the middle of it
            how = alike.choice(("step", "early") if how == "edit" else ("edit", "step", "early"))
            reads(own.choice(some))
            if how == "edit":
                with pydist.no_grad():
                    model.weight.sub_(1)
            else:
                optimizer.zero_grad()
                loss = model(eye).sum()
                reads(own.choice(some))
                if how == "early":
                    early.append(optimizer.step)
                loss.backward()
                if how == "step":
                    reads(own.choice(some))
                    optimizer.step()
            value -= 1
            count += 1
        reads(1)
        return count

    assert sum(run_ranks(4, work, processes=processes, timeout=within(300))) > 15 * writes
