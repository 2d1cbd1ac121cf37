"""ZeroRedundancyOptimizer: the bits of a plain optimizer, who owns what, checkpoints, Join, steps in backward, bad input."""

import copy
import functools
import os
import signal
import time

import pytest

import pydist
from lib.processes import within
from lib.ranks import LONG, good, run
from pydist import distributed as dist
from pydist import nn, optim
from pydist.distributed import symmetric_memory, threads
from pydist.distributed.algorithms.ddp_comm_hooks import default_hooks
from pydist.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import (
    hook_with_zero_step,
    hook_with_zero_step_interleaved,
)
from pydist.distributed.algorithms.join import Join, JoinHook, Joinable
from pydist.distributed.optim import ZeroRedundancyOptimizer
from pydist.nn.parallel import DistributedDataParallel
from pydist.testing import RankFailed, run_ranks

OPTIMIZERS = {
    "AdamW": (optim.AdamW, {"lr": 0.01}),
    "SGD": (optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "Adagrad": (optim.Adagrad, {"lr": 0.05}),
    "Lion": (optim.Lion, {"lr": 0.01, "weight_decay": 0.1}),
    "LAMB": (optim.LAMB, {"lr": 0.01, "weight_decay": 0.1}),
    "Adafactor": (optim.Adafactor, {}),
}
if LONG:
    OPTIMIZERS |= {
        name: (getattr(optim, name), {})
        for name in ("Adam", "Adadelta", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "SparseAdam")
    }
WAYS = ("lying", "view", "overlap", "interleaved", "overlap view", "interleaved view")


class Net(nn.Module):
    """Two branches; a parameter that nothing uses, and one that only odd ranks use."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.LayerNorm(24), nn.Linear(24, 10))
        self.odd, self.head = nn.Linear(10, 10), nn.Linear(10, 3)
        self.nothing = nn.Parameter(pydist.ones(7))

    def forward(self, x, odd):
        y = self.body(x)
        return self.head(self.odd(y) if odd else y)


def net(dtype=pydist.float32):
    pydist.manual_seed(5)
    return Net().to(dtype)


def loss_of(model, rank, step, dtype=pydist.float32):
    x = pydist.randn(8, 6, generator=pydist.Generator().manual_seed(100 * rank + step)).to(dtype)
    return nn.functional.cross_entropy(model(x, rank % 2 == 1).float(), (x.float().sum(1) > 0).long())


def bits(value):
    """Nested containers with the bytes of tensors."""
    if isinstance(value, pydist.Tensor):
        value = value.detach()
        return str(value.dtype), tuple(value.shape), value.contiguous().view(-1).view(pydist.uint8).tolist()
    if isinstance(value, dict):
        return {key: bits(item) for key, item in value.items()}
    return [bits(item) for item in value] if isinstance(value, (list, tuple)) else value


def make(way, model, cls, options, params=None):
    """(model, optimizer) for one way of stepping."""
    params = model.parameters() if params is None else params
    if way == "plain":
        return cls(params, **options)
    overlaps = way.split()[0] in ("overlap", "interleaved")
    zero = ZeroRedundancyOptimizer(
        params, cls, parameters_as_bucket_view="view" in way, overlap_with_ddp=overlaps, **options
    )
    if overlaps:
        hook = hook_with_zero_step if way.startswith("overlap") else hook_with_zero_step_interleaved
        model.register_comm_hook(None, hook(default_hooks.allreduce_hook, model, zero))
    return zero


def whole_state(optimizer, to=0):
    """state_dict() on rank `to`, None elsewhere."""
    if isinstance(optimizer, ZeroRedundancyOptimizer):
        optimizer.consolidate_state_dict(to)
    return optimizer.state_dict() if dist.get_rank() == to else None


def train(rank, way, cls, options, steps=3, dtype=pydist.float32, groups=False):
    model = DistributedDataParallel(net(dtype), bucket_cap_mb=0.001)
    params = None
    if groups:
        named = list(model.named_parameters())
        params = [{"params": [(n, p) for n, p in named if p.dim() > 1], "weight_decay": 0.1}]
        params += [{"params": [(n, p) for n, p in named if p.dim() == 1], "lr": 0.003}]
    optimizer = make(way, model, cls, options, params)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, rank, step, dtype).backward()
        optimizer.step()
    return bits(list(model.parameters())), bits(whole_state(optimizer))


def check_same(world, cls, options, ways=WAYS, **how):
    want = threads.run(lambda rank: train(rank, "plain", cls, options, **how), world)
    for way in ways:
        found = threads.run(lambda rank, way=way: train(rank, way, cls, options, **how), world)
        assert [params for params, _ in found] == [params for params, _ in want], way
        assert found[0][1] == want[0][1], way


# ---- bits


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_bits_of_a_plain_optimizer(name, world):
    """DDP + ZeRO-1 = DDP + plain: parameters on all ranks, and the whole state."""
    check_same(world, *OPTIMIZERS[name], ways=WAYS if LONG or name == "AdamW" else WAYS[:3])


def test_bits_with_groups_and_bfloat16():
    """Groups with names and options of their own; bfloat16."""
    check_same(3, optim.AdamW, {"lr": 0.01}, groups=True)
    check_same(2, optim.AdamW, {"lr": 0.01}, dtype=pydist.bfloat16)


def test_rounding_at_random():
    """Other draws than a plain optimizer's, but the same ones each time and on all ranks."""
    options = {"lr": 0.01, "stochastic_rounding": 7}
    runs = [threads.run(train, 2, way, optim.AdamW, options, 4, pydist.bfloat16) for way in ("lying", "view", "lying")]
    assert runs[0] == runs[1] == runs[2] and runs[0][0][0] == runs[0][1][0]


def test_bits_in_a_loop_with_everything():
    """Accumulation, clipping, a scheduler, a scaler whose first steps overflow, a layer that is frozen on the way."""

    def work(rank, way):
        model = DistributedDataParallel(net(), bucket_cap_mb=0.001)
        optimizer = make(way, model, optim.AdamW, {"lr": 0.01})
        scheduler = optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        scaler = pydist.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=2)
        for step in range(6):
            optimizer.zero_grad()
            model.module.body[0].weight.requires_grad_(step not in (3, 4))
            with model.no_sync():
                scaler.scale(loss_of(model, rank, step)).backward()
            scaler.scale(loss_of(model, rank, step + 50)).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
        return bits(list(model.parameters())), bits(whole_state(optimizer)), scaler.get_scale()

    want = threads.run(lambda rank: work(rank, "plain"), 2)
    for way in ("lying", "view"):
        assert threads.run(lambda rank, way=way: work(rank, way), 2)[0] == want[0]


def test_bits_of_large_parameters_in_processes():
    """Parameters of several sizes over what is packed, so that they travel in cuts, or from flat tensors."""

    def work(rank):
        found = {}
        for way in ("plain", "lying", "view"):
            generator = pydist.Generator().manual_seed(1)
            sizes = [(3000, 700), (900, 900), (20_000,), (3,), (700, 3000), (1,), (0, 4), (1100, 1000)]
            params = [pydist.randn(*size, generator=generator).requires_grad_() for size in sizes]
            optimizer = make(way, None, optim.SGD, {"lr": 0.1, "momentum": 0.5}, params)
            for _ in range(3):
                for p in params:
                    p.grad = pydist.randn(p.shape, generator=generator)
                optimizer.step()
            found[way] = pydist._C.hash_tensors([p.detach() for p in params])
            owners = getattr(optimizer, "_owners", None)
        return found["plain"] == found["lying"] == found["view"], found["plain"], owners

    for world in (2, 3) if LONG else (2,):
        results = run_ranks(world, work, processes=True)
        assert all(same for same, _, _ in results) and len({repr(found) for _, found, _ in results}) == 1
        assert set(results[0][2]) == set(range(world))


@pytest.mark.parametrize("hosts", [2, 4])
def test_over_messages(hosts):
    """Four ranks on several hosts, some of which share memory."""

    def work(group, way="lying"):
        params = [pydist.randn(n, generator=pydist.Generator().manual_seed(n)) for n in (40_000, 5, 30_000, 9000)]
        params = [p.requires_grad_() for p in params]
        view = {} if group is None else {"process_group": group, "parameters_as_bucket_view": way == "view"}
        make = optim.AdamW if group is None else functools.partial(ZeroRedundancyOptimizer, optimizer_class=optim.AdamW)
        optimizer = make(params, lr=0.1, **view)
        for step in range(3):
            for p in params:
                p.grad = p.detach().sin() * (step + 1)
            optimizer.step()
        if group is not None:
            optimizer.consolidate_state_dict(to=3)
        state = optimizer.state_dict() if group is None or group.rank == 3 else None
        return pydist._C.hash_tensors([p.detach() for p in params]), bits(state)

    want = work(None)
    for way in ("lying", "view"):
        results = good(run(4, lambda group, way=way: work(group, way), pydist._C.Hub(4, hosts)))
        assert [found for found, _ in results] == [want[0]] * 4 and results[3][1] == want[1]


def test_kinds_of_parameters():
    """Several dtypes, complex numbers, memory in another order of dimensions, no elements, no dimensions."""

    def work(rank, way):
        pydist.manual_seed(2)
        tensors = [pydist.randn(5, 300), pydist.randn(40, 300).t(), pydist.randn(4, 3, 2).permute(2, 0, 1)]
        tensors += [pydist.randn(9000).double(), pydist.randn(70).bfloat16(), pydist.randn(()), pydist.zeros(0, 3)]
        tensors += [pydist.randn(200, dtype=pydist.complex64)]
        params = [t.detach().requires_grad_() for t in tensors]
        strides = [p.stride() for p in params]
        optimizer = make(way, None, optim.SGD, {"lr": 0.1, "momentum": 0.9}, params)
        for _ in range(2):
            for p in params:
                p.grad = pydist.randn_like(p)
            optimizer.step()
        assert [p.stride() for p in params] == strides
        return bits([pydist.view_as_real(p.detach()) if p.is_complex() else p for p in params])

    want = threads.run(lambda rank: work(rank, "plain"), 2)
    assert threads.run(lambda rank: work(rank, "lying"), 2) == threads.run(lambda rank: work(rank, "view"), 2) == want


# ---- who owns what


def test_owners_by_bytes():
    """By hand, for four ranks: the largest first, each to the rank with the fewest bytes; groups one after the other."""

    def work(rank):
        sizes = [(30, pydist.float32), (20, pydist.float64), (7, pydist.float32), (12, pydist.float32)]
        params = [pydist.zeros(n, dtype=dtype, requires_grad=True) for n, dtype in sizes]  # 120, 160, 28, 48 bytes
        zero = ZeroRedundancyOptimizer([{"params": params[:2]}, {"params": params[2:]}], optim.Adam, lr=0.1)
        found = list(zero._owners)
        zero.add_param_group({"params": [pydist.zeros(10, requires_grad=True), pydist.zeros(30, requires_grad=True)]})
        own = [p.numel() for group in zero.optim.param_groups for p in group["params"]]
        return found, zero._owners[4:], own

    results = threads.run(work, 4)
    assert results[0][:2] == ([1, 0, 3, 2], [2, 3]) and [own for _, _, own in results] == [
        [20],
        [30],
        [12, 10],
        [7, 30],
    ]


def test_each_rank_has_its_own_state_only():
    def work(rank):
        model = net()
        zero = ZeroRedundancyOptimizer(model.parameters(), optim.Adam, lr=0.1)
        for p in model.parameters():
            p.grad = pydist.ones_like(p)
        zero.step()
        held = sum(t.numel() for state in zero.state.values() for t in state.values() if t.dim())
        own = sum(p.numel() for p in zero.optim.param_groups[0]["params"])
        assert held == 2 * own and zero.optim.state is zero.state and len(zero.param_groups[0]["params"]) == 11
        return own

    owned = threads.run(work, 3)
    assert sum(owned) == sum(p.numel() for p in net().parameters()) and max(owned) - min(owned) < 100


def test_a_rank_without_parameters():
    def work(rank, way):
        x = pydist.ones(3, requires_grad=True)
        zero = make(way, None, optim.AdamW, {"lr": 0.5}, [x])
        for _ in range(2):
            x.grad = pydist.ones(3)
            zero.step()
        state = whole_state(zero)
        zero.load_state_dict(state or {"state": {}, "param_groups": [{"params": [0], "lr": 0.5}]})
        return x.tolist(), len(zero.optim.param_groups[0]["params"]), len(zero.state)

    for way in ("lying", "view"):
        results = threads.run(lambda rank, way=way: work(rank, way), 3)
        assert len({repr(x) for x, _, _ in results}) == 1 and results[0][0] != [1.0] * 3
        assert [row[1:] for row in results] == [(1, 1), (0, 0), (0, 0)]


# ---- the interface of an optimizer


class Counting(optim.SGD):
    """A user's optimizer: its step has an argument of its own, and adds an option."""

    def step(self, closure=None, seen=None):
        loss = super().step(closure or None)
        if seen is not None:
            seen.append(5)
        self.param_groups[0]["steps"] = self.param_groups[0].get("steps", 0) + 1
        return loss


class WithoutClosure(optim.SGD):
    def step(self):
        return super().step()


def test_steps_as_torchs_tests_ask():
    """The assertions of PyTorch's test_zero_redundancy_optimizer.py in our words: closures, arguments, options."""

    def work(rank):
        x, seen = pydist.ones(1, requires_grad=True), []
        zero = ZeroRedundancyOptimizer([x], Counting, lr=0.1, momentum=0.9)
        assert zero.param_groups[0]["nesterov"] is False and zero.defaults["momentum"] == 0.9
        x.sum().backward()
        zero.step(0, seen=seen)
        zero.step(seen=seen)
        assert seen == [5, 5] and zero.param_groups[0]["steps"] == 2
        zero.zero_grad()
        assert x.grad is None

        def closure():
            zero.zero_grad()
            loss = (2 * x).sum()
            loss.backward()
            return loss

        before = x.item()
        assert zero.step(closure).item() == pytest.approx(2 * before)
        other = ZeroRedundancyOptimizer([x], WithoutClosure, lr=0.1)
        other.step()
        assert "Parameter Group 0" in repr(other)
        return x.item()

    assert len(set(threads.run(work, 2))) == 1 and work(0) is not None


def test_hooks_schedulers_and_options_reach_the_local_optimizer():
    def work(rank):
        x, calls = [pydist.ones(1, requires_grad=True) for _ in range(3)], []
        zero = ZeroRedundancyOptimizer(x, optim.SGD, lr=1.0)
        zero.register_step_pre_hook(lambda *_: calls.append("pre"))
        zero.register_step_post_hook(lambda *_: calls.append("post"))
        scheduler = optim.lr_scheduler.ExponentialLR(zero, 0.5)
        for _ in range(3):
            for p in x:
                p.grad = pydist.ones(1)
            zero.step()
            scheduler.step()
        return [p.item() for p in x], calls

    for values, calls in threads.run(work, 2):
        assert values == [1 - 1.75] * 3 and calls == ["pre", "post"] * 3


def test_add_param_group_is_as_if_all_were_there():
    def work(rank, late, way):
        model = net()
        weights, rest = ([p for p in model.parameters() if (p.dim() > 1) == wide] for wide in (True, False))
        groups = [{"params": weights}, {"params": rest, "weight_decay": 0.3}]
        zero = make(way, None, optim.AdamW, {"lr": 0.01}, groups[: 1 if late else 2])
        if late:
            zero.add_param_group({"params": (p for p in rest), "weight_decay": 0.3})
            with pytest.raises(ValueError, match="more than one parameter group"):
                zero.add_param_group({"params": rest[0]})
            with pytest.raises(ValueError, match="non-leaf"):
                zero.add_param_group({"params": rest[0] * 2})
            with pytest.raises(RuntimeError, match=r"parameter 11 differs .* rank 0 has .*\[3\].* rank 1 has .*\[4\]"):
                zero.add_param_group({"params": pydist.zeros(3 + rank)})
            assert len(zero.param_groups) == len(zero.optim.param_groups) == 2 and len(zero._owners) == 11
        for step in range(2):
            for i, p in enumerate(model.parameters()):
                p.grad = pydist.full(p.shape, 0.1 * (i + step))
            zero.step()
        return bits(list(model.parameters())), bits(whole_state(zero))

    want = threads.run(lambda rank: work(rank, False, "lying"), 2)
    for way in ("lying", "view"):
        assert threads.run(lambda rank, way=way: work(rank, True, way), 2) == want


def test_a_group_of_some_ranks():
    """Ranks 0 and 2 of 3; numbers of ranks count in the group."""

    def work(rank):
        group = dist.new_group([0, 2])
        model = net()
        if rank == 1:
            with pytest.raises(ValueError, match="not in the group"):
                ZeroRedundancyOptimizer(model.parameters(), optim.SGD, process_group=group, lr=0.1)
            return None
        zero = ZeroRedundancyOptimizer(model.parameters(), optim.SGD, process_group=group, lr=0.1, momentum=0.9)
        assert (zero.world_size, zero.rank, zero.global_rank) == (2, rank // 2, rank)
        for p in model.parameters():
            p.grad = pydist.ones_like(p)
        zero.step()
        zero.consolidate_state_dict(to=1)
        if rank == 0:
            with pytest.raises(RuntimeError, match=r"consolidate_state_dict\(to=0\)"):
                zero.state_dict()
        return bits(list(model.parameters())), rank == 0 or len(zero.state_dict()["state"])

    a, none, b = threads.run(work, 3)
    assert a[0] == b[0] and none is None and b[1] == 11


# ---- parameters in flat tensors


def test_views_of_flat_tensors():
    """Each owner's parameters lie end to end; what is given other memory comes home, unless it is another kind."""

    def work(rank):
        params = [pydist.randn(40, 4), pydist.randn(40), pydist.randn(9)]
        params = [p.requires_grad_(i < 2) for i, p in enumerate(params)]
        values, frozen = [p.tolist() for p in params], params[2].data_ptr()
        zero = make("view", None, optim.SGD, {"lr": 1.0}, params)
        assert [p.tolist() for p in params] == values and params[2].data_ptr() == frozen
        addresses = [p.data_ptr() for p in params]
        assert all(address % 64 == 0 for address in addresses[:2])
        params[0].data = pydist.zeros(40, 4)
        for p in params:
            p.grad = pydist.ones_like(p)
        zero.step()
        assert [p.data_ptr() for p in params] == addresses and params[0].tolist() == [[-1.0] * 4] * 40
        params[1].data = pydist.zeros(41)
        params[1].grad = None
        with pytest.raises(
            RuntimeError, match=r"parameter 1 has become pydist.float32 \[41\] on cpu .expected pydist.float32 \[40\]"
        ):
            zero.step()
        return params[2].tolist()

    results = threads.run(work, 2)
    assert results[0] == results[1]


PLACES = {  # offsets of the parts of ranks 0, 1 and 2 in their segments; None: rank 0's are not in segments
    "equal": (16, 16, 16),
    "different": (16, 16, 17),
    "elsewhere": (None, 16, 16),
}


def test_gathers_from_segments():
    """What flat tensors stand on: parts at equal places of segments are read there; others go as ever."""

    def work(rank):
        group, sizes = dist.group.WORLD, [9000, 0, 12_000]
        segments = [symmetric_memory.empty(n + 64) for n in sizes]
        counts = {}
        for number, (name, places) in enumerate(PLACES.items()):
            for asynchronous in (False, True):
                at = places[rank]
                parts = [pydist.empty(n) if at is None else s[at : at + n] for s, n in zip(segments, sizes)]
                parts[rank].fill_(rank + 10 * number + 5)
                before = group.counted["memory"]
                work = group.all_gather(parts, parts[rank], asynchronous, apart=True)
                if asynchronous:
                    work.wait()
                counts[name] = [new - old for old, new in zip(before, group.counted["memory"])]
                assert [part.unique().tolist() for part in parts] == [[10.0 * number + 5], [], [10.0 * number + 7]]
        return counts

    for rank, counts in enumerate(threads.run(work, 3)):
        own = [36_000, 0, 48_000][rank]
        assert counts == {
            "equal": [0, 84_000 - own],
            "different": [own, 84_000 - own],
            "elsewhere": [own, 84_000 - own],
        }


# ---- checkpoints


def test_checkpoints_of_any_world():
    """Saved by three ranks and loaded by two, by one and by a plain optimizer, and back: the steps go on as if nothing had
    happened."""

    def work(rank, way, steps, state=None, params=None):
        model = net()
        if params is not None:
            with pydist.no_grad():
                for p, value in zip(model.parameters(), params):
                    p.copy_(value)
        optimizer = make(way, None, optim.AdamW, {"lr": 0.01 if state is None else 77.0}, model.parameters())
        if state is not None:
            before = copy.deepcopy(state)
            optimizer.load_state_dict(state)
            assert bits(before) == bits(state)
        for step in steps:
            for i, p in enumerate(model.parameters()):
                p.grad = pydist.full(p.shape, 0.01 * (i + step + 1))
            optimizer.step()
        return whole_state(optimizer), [p.detach().clone() for p in model.parameters()]

    want = work(0, "plain", range(6))
    saved = threads.run(work, 3, "lying", range(3))[0]
    assert bits(saved) == bits(work(0, "plain", range(3)))
    assert bits(work(0, "plain", range(3, 6), *saved)) == bits(want)
    for world, way in ((1, "lying"), (2, "view"), (4, "lying")):
        assert bits(threads.run(work, world, way, range(3, 6), *saved)[0]) == bits(want)
    assert bits(threads.run(work, 3, "view", range(3, 6), *work(0, "plain", range(3)))[0]) == bits(want)


def test_a_checkpoint_through_a_file(tmp_path):
    def work(rank):
        params = [pydist.ones(n, requires_grad=True) for n in (3, 4, 5)]
        zero = ZeroRedundancyOptimizer(params, optim.Adam, lr=0.1)
        for p in params:
            p.grad = pydist.ones_like(p)
        zero.step()
        state = whole_state(zero, to=1)
        if rank == 1:
            pydist.save(state, tmp_path / "state")
        dist.barrier()
        zero.load_state_dict(pydist.load(tmp_path / "state"))
        return bits(state), bits(whole_state(zero))

    a, b = threads.run(work, 2)
    assert a[1] == b[0] and len(a[1]["state"]) == 3


def test_the_state_is_that_of_the_last_consolidation():
    def work(rank):
        x = [pydist.ones(n, requires_grad=True) for n in (2, 3)]
        zero = ZeroRedundancyOptimizer(x, optim.SGD, lr=1.0, momentum=0.5)
        text = f"consolidate_state_dict.to={rank}"
        with pytest.raises(RuntimeError, match=text):
            zero.state_dict()
        for _ in range(2):
            for p in x:
                p.grad = pydist.ones_like(p)
            zero.step()
            if "kept" not in locals():
                zero.consolidate_state_dict(to=1)
                kept = bits(zero.state_dict()) if rank == 1 else None
        if rank == 1:
            assert bits(zero.state_dict()) == kept
            zero.state_dict()["state"][0]["momentum_buffer"] = None
            assert bits(zero.state_dict()) == kept
        else:
            with pytest.raises(RuntimeError, match=text):
                zero.state_dict()
        for to in (-1, 2):
            with pytest.raises(ValueError, match="expected 0 to 1"):
                zero.consolidate_state_dict(to)
        return True

    assert all(threads.run(work, 2))


def test_states_that_do_not_fit():
    def work(rank):
        zero = ZeroRedundancyOptimizer([pydist.ones(2, requires_grad=True) for _ in range(2)], optim.SGD, lr=0.1)
        for groups in ([], [{"params": [0]}], [{"params": [0, 1]}, {"params": []}]):
            with pytest.raises(ValueError, match=r"expected \[2\]"):
                zero.load_state_dict({"state": {}, "param_groups": groups})
        with pytest.raises(TypeError, match="expected state_dict"):
            copy.deepcopy(zero)
        return True

    assert all(threads.run(work, 2))


# ---- Join


@pytest.mark.parametrize("counts", [(3, 4), (4, 1, 3), (0, 2), (3, 3), (0, 0)])
@pytest.mark.parametrize("way", ["lying", "view", "overlap"])
def test_join(way, counts):
    """Ranks without data go on stepping: parameters, and the state of the rank with the most data under a plain one."""

    def work(rank, way):
        model = DistributedDataParallel(net(), bucket_cap_mb=0.001)
        optimizer = make(way, model, optim.AdamW, {"lr": 0.01})
        with Join([model] if way in ("plain", "overlap") else [model, optimizer]):
            for step in range(counts[rank]):
                optimizer.zero_grad()
                loss_of(model, rank, step).backward()
                optimizer.step()
        return bits(list(model.parameters())), bits(whole_state(optimizer, counts.index(max(counts))))

    want = threads.run(lambda rank: work(rank, "plain"), len(counts))
    found = threads.run(lambda rank: work(rank, way), len(counts))
    longest = counts.index(max(counts))
    assert [p for p, _ in found] == [p for p, _ in want] and found[longest][1] == want[longest][1]


class Setter(Joinable):
    """A user's joinable that sets the gradients of the others' iterations, as in PyTorch's test."""

    def __init__(self, params):
        self.params, self.join_device, self.join_process_group = params, "cpu", dist.group.WORLD

    join_device = join_process_group = None

    def set(self):
        for p in self.params:
            p.grad = pydist.ones_like(p)

    def join_hook(self, **kwargs):
        hook = JoinHook()
        hook.main_hook = self.set
        return hook


def test_join_with_gradients_of_ones_own():
    def work(rank, sets):
        params = [pydist.zeros(n, requires_grad=True) for n in (4, 5)]
        zero = ZeroRedundancyOptimizer(params, optim.SGD, lr=1.0)
        setter = Setter(params)
        if not sets:
            setter.join_hook = lambda **kwargs: JoinHook()
        with Join([setter, zero], zero_optim=zero):
            for _ in range(1 + 2 * rank):
                Join.notify_join_context(setter)
                setter.set()
                zero.step()
                zero.zero_grad()
        return [p.tolist() for p in params]

    assert threads.run(work, 2, True) == [[[-3.0] * 4, [-3.0] * 5]] * 2
    with pytest.raises(RuntimeError, match="parameter 1 has no gradient on rank 0, which has no data left"):
        threads.run(work, 2, False)


# ---- steps in backward


@pytest.mark.parametrize("way", ["overlap", "interleaved"])
@pytest.mark.parametrize("world", [1, 2])
def test_overlap_with_accumulation_and_a_closure(way, world):
    """no_sync does not step; step() evaluates its closure."""

    def work(rank, way):
        model = DistributedDataParallel(net(), bucket_cap_mb=0.001)
        optimizer = make(way, model, optim.SGD, {"lr": 0.1, "momentum": 0.9})
        values = []
        for step in range(3):

            def closure(step=step):
                optimizer.zero_grad()
                with model.no_sync():
                    loss_of(model, rank, step).backward()
                    values.append(bits(list(model.parameters())))
                loss = loss_of(model, rank, 10 + step)
                loss.backward()
                return loss

            values.append(optimizer.step(closure).item())
        return bits(list(model.parameters())), values

    assert threads.run(lambda rank: work(rank, way), world) == threads.run(lambda rank: work(rank, "plain"), world)


@pytest.mark.parametrize("hook", ["bf16", "fp16", "wrapped"])
def test_overlap_with_other_hooks(hook):
    """The bits of DDP with that hook and a plain optimizer."""
    hooks = {"bf16": default_hooks.bf16_compress_hook, "fp16": default_hooks.fp16_compress_hook}
    hook = hooks.get(hook, default_hooks.bf16_compress_wrapper(default_hooks.allreduce_hook))

    def work(rank, wrapper):
        model = DistributedDataParallel(net(), bucket_cap_mb=0.001)
        if wrapper is None:
            optimizer = optim.AdamW(model.parameters(), lr=0.01)
            model.register_comm_hook(None, hook)
        else:
            optimizer = ZeroRedundancyOptimizer(model.parameters(), optim.AdamW, overlap_with_ddp=True, lr=0.01)
            model.register_comm_hook(None, wrapper(hook, model, optimizer))
        for step in range(3):
            optimizer.zero_grad()
            loss_of(model, rank, step).backward()
            optimizer.step()
        return bits(list(model.parameters()))

    want = threads.run(work, 3, None)
    assert threads.run(work, 3, hook_with_zero_step) == threads.run(work, 3, hook_with_zero_step_interleaved) == want


@pytest.mark.parametrize("how", ["step", "zero_grad"])
def test_clipping_after_the_step_raises(how):
    def work(rank):
        model = DistributedDataParallel(net(), bucket_cap_mb=0.001)
        zero = make("overlap", model, optim.SGD, {"lr": 0.1})
        for _ in range(2):
            zero.zero_grad(set_to_none=how == "step")
            loss_of(model, rank, 0).backward()
            zero.step()
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        with pytest.raises(RuntimeError, match=f"{how}: gradients were changed after backward"):
            getattr(zero, how)()
        zero.zero_grad()
        loss_of(model, rank, 1).backward()
        return True

    assert all(threads.run(work, 2))


def test_hooks_that_do_not_fit():
    def work(rank):
        model = DistributedDataParallel(net())
        plain = ZeroRedundancyOptimizer(model.parameters(), optim.SGD, lr=0.1)
        zero = ZeroRedundancyOptimizer(model.parameters(), optim.SGD, overlap_with_ddp=True, lr=0.1)
        hook = default_hooks.allreduce_hook
        for error, match, args in (
            (ValueError, "expected overlap_with_ddp=True", (hook, model, plain)),
            (TypeError, "hook is int", (3, model, zero)),
            (TypeError, "zero is SGD", (hook, model, plain.optim)),
            (TypeError, "ddp is Net", (hook, model.module, zero)),
        ):
            with pytest.raises(error, match=match):
                hook_with_zero_step(*args)
        with pytest.raises(RuntimeError, match="no hook steps the parameters"):
            zero.step()
        with pytest.raises(RuntimeError, match="add_param_group with overlap_with_ddp=True"):
            zero.add_param_group({"params": pydist.zeros(1)})
        hook_with_zero_step_interleaved(hook, model, zero, shard_buckets=True)
        with pytest.raises(RuntimeError, match="a hook steps this"):
            hook_with_zero_step(hook, model, zero)
        group = dist.new_group([0, 1])
        other = ZeroRedundancyOptimizer(model.parameters(), optim.SGD, group, overlap_with_ddp=True, lr=0.1)
        with pytest.raises(ValueError, match="in different groups"):
            hook_with_zero_step(hook, model, other)
        return True

    assert all(threads.run(work, 2))


def test_a_hook_that_returns_no_future():
    def work(rank):
        model = DistributedDataParallel(net())
        zero = ZeroRedundancyOptimizer(model.parameters(), optim.SGD, overlap_with_ddp=True, lr=0.1)
        model.register_comm_hook(None, hook_with_zero_step(lambda state, bucket: 3, model, zero))
        with pytest.raises(TypeError, match="hook returned int .expected a Future"):
            loss_of(model, rank, 0).backward()
        return True

    assert all(threads.run(work, 2))


# ---- bad input


def p(*shape, **how):
    return pydist.zeros(*shape, requires_grad=True, **how)


@pytest.mark.parametrize(
    "make, error, match",
    [
        (lambda: ([], optim.SGD), ValueError, "empty parameter list .expected at least one"),
        (lambda: ([{"params": []}, {"params": iter(())}], optim.SGD), ValueError, "empty parameter list"),
        (lambda: ([{"lr": 1.0}], optim.SGD), ValueError, "expected the key 'params'"),
        (lambda: (p(3), optim.SGD), TypeError, "iterable of Tensors or dicts, but got Tensor"),
        (lambda: (1.2, optim.SGD), TypeError, "params is float .expected parameters or groups"),
        (lambda: ([p(3), 42], optim.SGD), TypeError, "one of the params is int"),
        (lambda: ([p(3) * 2], optim.SGD), ValueError, "non-leaf"),
        (lambda: ([pydist.sparse_coo_tensor([[0]], [1.0], (2,))], optim.SGD), ValueError, "parameter 0 is sparse"),
        (lambda: ([p(3)[::2].detach()], optim.SGD), ValueError, r"parameter 0 has shape \[2\] and strides \[2\]"),
        (lambda: ([p(3)] * 2, optim.SGD), ValueError, "a group has a parameter twice"),
        (lambda: ([p(3)], nn.Linear), TypeError, "optimizer_class is Linear .expected a subclass"),
        (lambda: ([p(3)], lambda params, lr: 3), TypeError, "optimizer_class is <lambda>"),
        (lambda: ([p(3)], None), TypeError, "optimizer_class is NoneType"),
        (lambda: ([p(3)], optim.LBFGS), ValueError, "LBFGS .expected an optimizer that steps each parameter by itself"),
        (lambda: ([p(3)], ZeroRedundancyOptimizer), ValueError, "steps each parameter by itself"),
    ],
)
@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate")
def test_bad_arguments(make, error, match):
    """The same error on all ranks, and if only rank 1 has it, one that names it on the others."""

    def work(rank, ranks):
        args = make() if rank in ranks else ([p(3)], optim.SGD)
        with pytest.raises(RuntimeError if rank not in ranks else error, match=match):
            ZeroRedundancyOptimizer(*args, lr=0.1)
        dist.barrier()  # the group is as it was
        return True

    assert all(threads.run(work, 2, (0, 1))) and all(threads.run(work, 2, (1,))) and threads.run(work, 1, (0,))


@pytest.mark.parametrize(
    "params, options, match",
    [
        (lambda rank: [p(3), p(4 + rank)], {}, r"parameter 1 differs .* rank 0 has .*\[4\].*rank 1 has .*\[5\]"),
        (lambda rank: [p(3, dtype=pydist.float64 if rank else pydist.float32)], {}, "rank 1 has .*float64"),
        (lambda rank: [p(3) for _ in range(1 + rank)], {}, "parameter 1 differs .* rank 0 has nothing"),
        (lambda rank: [p(3).requires_grad_(not rank)], {}, "rank 1 has .* frozen"),
        (lambda rank: [("a" if rank else "b", p(3))], {}, "rank 0 has b of group 0.*rank 1 has a of group 0"),
        (lambda rank: [{"params": p(3), "lr": 0.1 * (rank + 1)}], {}, "group 0 differs .*lr=0.1.*lr=0.2"),
        (lambda rank: [p(3)], {"momentum": "rank"}, "group 0 differs .*momentum=0"),
    ],
)
def test_ranks_that_differ(params, options, match):
    def work(rank):
        given = dict.fromkeys(options, 0.5 * rank)
        with pytest.raises(RuntimeError, match=match):
            ZeroRedundancyOptimizer(params(rank), optim.SGD, lr=0.1, **given)
        dist.barrier()
        return True

    assert all(threads.run(work, 2))


def test_gradients_that_some_ranks_have():
    """The owner's gradient counts; if it has none, all ranks say so, and nothing is stepped."""

    def work(rank):
        params = [p(2), p(2), p(2)]  # owned by 0, 1, 0
        zero = ZeroRedundancyOptimizer(params, optim.SGD, lr=1.0)
        if rank == 0:
            params[0].grad = pydist.ones(2)
        zero.step()
        assert [x.tolist() for x in params] == [[-1.0] * 2, [0.0] * 2, [0.0] * 2]
        params[0].grad = params[1].grad = None if rank else pydist.ones(2)
        with pytest.raises(
            RuntimeError, match="parameter 1 has a gradient on rank 0 and none on rank 1, which steps it"
        ):
            zero.step()
        zero.zero_grad()
        params[2].requires_grad_(rank == 0)
        with pytest.raises(RuntimeError, match="parameter 2 is frozen on rank 1 and not on rank 0"):
            zero.step()
        params[2].requires_grad_(True)
        zero.step()  # without a gradient on any rank: nothing
        return [x.tolist() for x in params]

    assert threads.run(work, 2) == [[[-1.0] * 2, [0.0] * 2, [0.0] * 2]] * 2


# ---- deaths


class Dying(optim.SGD):
    """Rank 1 dies in its third step."""

    steps = 0

    def step(self):
        self.steps += 1
        if self.steps == 3 and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step()


@pytest.mark.parametrize("way", ["lying", "view", "interleaved"] if LONG else ["view"])
def test_a_death_in_a_step(way):
    def work(rank):
        model = DistributedDataParallel(nn.Linear(300, 300))
        zero = make(way, model, Dying, {"lr": 0.1})
        begin = None
        try:
            for _ in range(9):
                begin = time.monotonic()
                zero.zero_grad()
                model(pydist.ones(2, 300)).sum().backward()
                zero.step()
        except dist.PeerFailed as error:
            assert "rank 1" in str(error)
            return time.monotonic() - begin, model.module.weight.sum().item()

    a, dead, b = run_ranks(3, work, processes=True, return_exceptions=True)
    assert isinstance(dead, RankFailed) and max(a[0], b[0]) < within(1), (a, dead, b)


class Failing(optim.SGD):
    """Rank 1's step raises."""

    def step(self):
        if dist.get_rank() == 1:
            raise ZeroDivisionError("as asked")
        return super().step()


def test_an_error_in_one_ranks_step():
    """It reaches the other ranks, which wait for that rank's parameters."""
    seen = []

    def work(rank):
        params = [p(3), p(3)]
        zero = ZeroRedundancyOptimizer(params, Failing, lr=0.1)
        for x in params:
            x.grad = pydist.ones(3)
        try:
            zero.step()
        except dist.PeerFailed as error:
            seen.append(str(error))

    with pytest.raises(ZeroDivisionError, match="as asked"):
        threads.run(work, 2)
    assert len(seen) == 1 and "as asked" in seen[0]


def test_after_a_death():
    """In the group of the survivors the optimizer says what to do, and a new one does it."""

    def work(rank):
        model = DistributedDataParallel(net())
        zero = ZeroRedundancyOptimizer(model.parameters(), optim.SGD, lr=0.1)
        old, group = dist.group.WORLD, dist.new_group([0, 1])
        if rank == 2:
            return None
        dist.member.rejoin(old, group)
        loss_of(model, rank, 0).backward()
        for call in (zero.step, zero.consolidate_state_dict):
            with pytest.raises(RuntimeError, match="expected a new ZeroRedundancyOptimizer"):
                call()
        ZeroRedundancyOptimizer(model.parameters(), optim.SGD, group, lr=0.1).step()
        return bits(list(model.parameters()))

    a, b, _ = threads.run(work, 3)
    assert a == b


def test_transactions_and_overlap():
    def work(rank):
        model = DistributedDataParallel(net())
        zero = make("overlap", model, optim.SGD, {"lr": 0.1})
        step = dist.Transaction(model)
        with pytest.raises(NotImplementedError, match="overlap_with_ddp=True"):
            for attempt in step:
                with attempt:
                    loss_of(model, rank, 0).backward()
        return zero is not None

    assert all(threads.run(work, 2))
