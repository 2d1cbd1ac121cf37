"""Units of fully_shard that each rank gathers: the windows in which their wholes lie, and when messages are sent."""

import pytest

import pydist
from lib.sharded_models import Block, RULES, assert_same, batch, gpt, loss_of, reference, sharded, train
from pydist import _C, nn
from pydist import distributed as dist
from pydist.distributed.device_mesh import init_device_mesh
from pydist.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from pydist.distributed.fsdp.wrap import ModuleWrapPolicy
from pydist.distributed.tensor import Shard
from pydist.testing import run_ranks


@pytest.fixture(autouse=True)
def private(monkeypatch):
    monkeypatch.setenv("PYDIST_FSDP", "private")


def step(model, optimizer, number):
    optimizer.zero_grad()
    loss_of(model, batch(number)).backward()
    optimizer.step()


def units(model):
    return [block._fsdp.unit for block in model.blocks]


def test_three_windows_whatever_the_model():
    def work(rank):
        model = sharded(gpt(layers=10))
        optimizer = RULES["AdamW"](model.parameters())
        inner, outer = units(model), model._fsdp.unit
        addresses, most = set(), 0

        def look(block, *_):
            nonlocal most
            assert block._fsdp.unit.state == outer.state == "gathered" and outer.window == "own"
            assert all(unit.window in ("", "ring") for unit in inner)
            most = max(most, sum(unit.window == "ring" for unit in inner))
            addresses.add(block.norm.weight.data_ptr())

        for block in model.blocks:
            block.register_forward_pre_hook(look)
            block.up.register_full_backward_hook(lambda module, *_, block=block: look(block))
        for number in range(3):
            step(model, optimizer, number)
        return most, len(addresses)

    assert run_ranks(2, work) == [(3, 3), (3, 3)]


def test_a_backward_finds_the_last_units_of_its_forward():
    def work(rank):
        model = sharded(gpt(layers=6))
        for again in range(2):
            loss = loss_of(model, batch(again))
            states = [unit.state for unit in (*units(model), model._fsdp.unit)]
            assert states == ["", "", "", "dropped", "dropped", "dropped", "dropped"]
            loss.backward()
            assert all(unit.state == "" for unit in units(model))

    run_ranks(2, work)


def test_units_that_stay_have_memory_of_their_own():
    def work(rank):
        kept = sharded(gpt(), reshard_after_forward=False)
        loss = loss_of(kept, batch(0))
        assert all(unit.state == "gathered" and unit.window == "own" for unit in units(kept))
        loss.backward()
        assert all(unit.state == unit.window == "" for unit in units(kept))

        model = sharded(gpt())
        model.blocks[0].unshard()
        with pydist.no_grad():
            model(batch(0))
            first = units(model)[0]
            assert first.window == ""  # a forward ends it
            model.blocks[1].register_forward_hook(lambda block, *_: model.blocks[0].unshard())
            model(batch(0))
            assert (first.state, first.window) == ("gathered", "own")
            weight, wanted = model.blocks[0].up.weight.detach(), sharded(gpt()).blocks[0].up.weight.full_tensor()
            for number in range(3):
                model(batch(number))
            model.blocks[0].unshard()
            assert pydist.equal(model.blocks[0].up.weight.detach(), wanted) and weight.shape == wanted.shape
            model.blocks[0].reshard()
        assert first.window == ""

    run_ranks(2, work)


def test_more_units_at_once_than_windows():
    """Five units, each in the other: all of them are in use in the innermost."""

    class Shell(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.layer, self.inner = nn.Linear(6, 6), inner

        def forward(self, x):
            x = pydist.tanh(self.layer(x))
            return x if self.inner is None else self.inner(x)

    def made():
        pydist.manual_seed(0)
        shells = [Shell(None)]
        while len(shells) < 6:
            shells.append(Shell(shells[-1]))
        return shells

    def work(rank):
        plain, shells = made()[-1], made()
        for shell in shells:
            fully_shard(shell)
        places = []
        shells[0].register_forward_pre_hook(
            lambda *_: places.extend(shell._fsdp.unit.window for shell in reversed(shells))
        )
        x = pydist.ones(2, 6)
        for net in (plain, shells[-1]):
            net(x).sum().backward()
        assert places == ["own", "ring", "ring", "ring", "own", "own"]
        for (name, p), q in zip(plain.named_parameters(), shells[-1].parameters(), strict=True):
            assert pydist.allclose(p.grad, q.grad.full_tensor()), name

    run_ranks(2, work)


def test_wholes_that_a_forward_writes():
    """They are the rank's own; what it writes is gone when the unit is gathered again."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(pydist.ones(4, 4))

        def forward(self, x):
            with pydist.no_grad():
                self.weight.mul_(2)
                return x @ self.weight

    def work(rank):
        inner = Net()
        model = nn.Sequential(fully_shard(inner))
        fully_shard(model)
        for _ in range(2):
            assert model(pydist.ones(1, 4)).tolist() == [[8.0] * 4]
            assert inner._fsdp.unit.state == ""
        assert inner.weight.full_tensor().sum().item() == 16

    run_ranks(2, work)


def test_a_lent_whole_is_not_dropped():
    def work(rank):
        model = fully_shard(nn.Linear(4, 4))
        model.unshard()
        array = model.weight.detach().numpy()
        with pytest.raises(RuntimeError, match="parameter weight is lent when its unit is resharded"):
            model.reshard()
        del array
        model.reshard()

    run_ranks(2, work)


def test_a_tensor_outlives_its_model():
    """The window of a whole that somebody keeps goes to no other unit."""

    def work(rank):
        model = sharded(gpt())
        model.blocks[0].unshard()
        kept = model.blocks[0].up.weight
        wanted = kept.detach().clone()
        del model
        other = sharded(gpt(seed=1))
        train(other, other.parameters())
        assert pydist.equal(kept.detach(), wanted)

    run_ranks(2, work)


@pytest.mark.skipif(not _C._memory_kept(), reason="a sanitizer's build keeps no freed memory")
def test_a_steady_step_asks_for_no_memory():
    def work(rank):
        pydist.set_num_threads(1)
        model = sharded(gpt(layers=10))
        optimizer = RULES["AdamW"](model.parameters())
        asked = []
        for number in range(12):
            before = _C._memory_asked()
            step(model, optimizer, number % 2)
            asked.append(_C._memory_asked() - before)
        return asked

    for asked in run_ranks(2, work, processes=True):
        assert asked[0] > 0 and asked[4:].count(0) >= 6 and sum(asked[4:]) <= 2, asked


# ---- ahead


def states_in(model, look):
    """Calls look(number of the block, states of all blocks) when a block's forward and backward begin."""
    for number, block in enumerate(model.blocks):
        block.register_forward_pre_hook(lambda m, a, n=number: look(n, [unit.state for unit in units(model)]))
        block.down.register_full_backward_hook(lambda m, *_, n=number: look(n, [unit.state for unit in units(model)]))


def test_the_next_unit_is_gathered_ahead():
    def work(rank):
        model = sharded(gpt(layers=6))
        passes, seen = [], []
        states_in(model, lambda number, states: seen.append((number, states)))
        for again in range(3):
            loss = loss_of(model, batch(again))
            passes.append([states[n + 1] for n, states in seen if n < 5])
            seen.clear()
            loss.backward()
            passes.append([states[n - 1] for n, states in seen if n > 0])
            seen.clear()
        nothing, ahead = [""] * 5, ["under way"] * 5
        last = ["dropped"] * 2  # which forward has left in windows
        assert passes == [nothing, last + nothing[2:], ahead, last + ahead[2:], ahead, last + ahead[2:]]

    run_ranks(2, work)


def test_what_a_user_wants_ahead():
    def work(rank):
        expected = reference()
        model = sharded(gpt())
        one, *_, five = model.blocks
        assert one.set_modules_to_forward_prefetch([model.blocks[1], model.blocks[2], model.blocks[3]]) is None
        five.set_modules_to_backward_prefetch([model.blocks[1]])
        with pytest.raises(ValueError, match="set_modules_to_forward_prefetch: got Linear"):
            one.set_modules_to_forward_prefetch([nn.Linear(1, 1)])
        seen = []
        states_in(model, lambda number, states: seen.append(states))
        assert_same(model, *train(model, model.parameters(), steps=1), reference(steps=1))
        assert seen[0] == ["gathered", "under way", "under way", "", ""]  # there are three windows
        assert seen[5] == ["", "under way", "", "dropped", "gathered"]
        model = sharded(gpt())
        for block in model.blocks:
            block.set_modules_to_forward_prefetch([])
            block.set_modules_to_backward_prefetch(list(model.blocks))
        assert_same(model, *train(model, model.parameters()), expected)

    run_ranks(2, work)


@pytest.mark.parametrize("prefetch", list(BackwardPrefetch) + [None])
def test_what_the_wrapper_gathers_ahead(prefetch):
    def work(rank):
        model = FullyShardedDataParallel(gpt(), auto_wrap_policy=ModuleWrapPolicy({Block}), backward_prefetch=prefetch)
        seen = []
        for block in model.module.blocks:
            block.module.down.register_full_backward_hook(
                lambda *_: seen.extend(one._fsdp.unit.state for one in model.module.blocks)
            )
        for again in range(3):
            model(batch(again)).sum().backward()
        assert ("under way" in seen) == (prefetch is not None)
        assert {block._fsdp.unit.state for block in model.module.blocks} == {""}

    run_ranks(2, work)


def test_nothing_is_under_way_when_nothing_runs():
    """A forward that leaves before the units that were gathered ahead, and one that fails."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.early = gpt(), False

        def forward(self, x):
            if self.early == "fails":
                self.inner.blocks[0](self.inner.embed(x))
                raise KeyError
            return self.inner.blocks[0](self.inner.embed(x)) if self.early else self.inner(x)

    def work(rank):
        model = Net()
        for block in model.inner.blocks:
            fully_shard(block)
        fully_shard(model)
        model(batch(0))
        for model.early in (True, "fails"):
            with pytest.raises(KeyError) if model.early == "fails" else pydist.no_grad():
                model(batch(1))
            assert all(unit.state in ("", "dropped") for unit in units(model.inner))
        model.early = False
        plain = gpt()
        assert pydist.equal(model(batch(2)), plain(batch(2)))

    run_ranks(2, work)


def test_unshard_later():
    def work(rank):
        model, plain = sharded(gpt()), gpt()
        first = model.blocks[0]
        handle = first.unshard(async_op=True)
        assert units(model)[0].state == "under way"
        handle.wait()
        handle.wait()
        assert pydist.equal(first.up.weight.detach(), plain.blocks[0].up.weight.detach())
        first.reshard()
        handle = first.unshard(async_op=True)
        assert pydist.equal(model(batch(0)), plain(batch(0)))
        handle.wait()
        assert units(model)[0].state == "" and model.unshard() is None
        model.reshard()
        handle = first.unshard(async_op=True)
        with pydist.no_grad():  # what was sent before is not used
            for param in (*model.parameters(), *plain.parameters()):
                param.mul_(0.5)
        _C.end_writes()
        assert pydist.equal(model(batch(0)), plain(batch(0)))
        first.unshard(async_op=True)
        first.reshard()
        assert units(model)[0].state == ""

    run_ranks(2, work)


def test_wholes_that_stay_over_steps():
    """Ranks with empty shards gather again when the others do."""

    def work(rank):
        pydist.manual_seed(0)
        plain = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 5))
        pydist.manual_seed(0)
        model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 5))
        for layer in model:
            fully_shard(layer)
        fully_shard(model).set_reshard_after_backward(False)
        for net in (plain, model):
            params = list(net.parameters())
            for rule in (pydist.optim.SGD, pydist.optim.AdamW):
                optimizer = rule(params, lr=0.1)
                for _ in range(3):
                    optimizer.zero_grad()
                    net(pydist.ones(2, 1)).square().sum().backward()
                    optimizer.step()
        x = pydist.ones(2, 1)
        assert pydist.allclose(model(x), plain(x))

    run_ranks(4, work)


# ---- messages


class Wide(nn.Sequential):
    """Parameters above and below the size from which they have a message of their own, cut unevenly; one that nobody uses,
    and one that is frozen."""

    def __init__(self):
        super().__init__(nn.Linear(130, 203), nn.Tanh(), nn.Linear(203, 150), nn.Tanh(), nn.Linear(150, 7))
        self.unused = nn.Parameter(pydist.ones(131, 130))
        self[2].bias.requires_grad_(False)


def wide():
    pydist.manual_seed(0)
    return Wide()


def trained(model, params):
    optimizer = pydist.optim.AdamW(params, lr=0.01)
    for number in range(3):
        pydist.manual_seed(10 * number + dist.get_rank())
        optimizer.zero_grad()
        model(pydist.randn(5, 130)).square().mean().backward()
        optimizer.step()
    return [p.detach().full_tensor() if hasattr(p, "full_tensor") else p.detach() for p in params]


def assert_equal(got, wanted):
    assert all(map(pydist.equal, got, wanted)) and len(got) == len(wanted)


@pytest.mark.parametrize("world, shape", [(2, None), (3, None), (4, None), (4, (2, 2)), (4, (4, 1)), (6, (2, 3))])
def test_large_and_small_parameters(world, shape):
    def work(rank):
        plain = wide()
        wanted = trained(nn.parallel.DistributedDataParallel(plain), list(plain.parameters()))
        mesh = None if shape is None else init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
        for layers in ((), (0, 2), (0, 2, 4)):
            model = wide()
            for k in layers:
                fully_shard(model[k], mesh=mesh)
            fully_shard(model, mesh=mesh)
            got = trained(model, list(model.parameters()))
            if shape != (2, 3):  # whose sums are those of three, twice
                assert_equal(got, wanted)
            else:
                apart = max((a - b).abs().max().item() for a, b in zip(got, wanted, strict=True))
                assert apart < 1e-5, apart

    run_ranks(world, work)


def test_large_parameters_of_other_dtypes_and_dimensions():
    """The gathered way has the bits of common memory."""

    def made():
        pydist.manual_seed(0)
        net = nn.Sequential(nn.Linear(130, 204), nn.Tanh(), nn.Linear(204, 150), nn.Tanh(), nn.Linear(150, 8))
        net[4].to(pydist.float64)
        net.insert(4, Cast())
        return net

    def work(rank, private):
        found = []
        for low, cut in ((None, 0), (None, 1), (pydist.bfloat16, 0), (pydist.bfloat16, 1)):
            policy = MixedPrecisionPolicy(low, pydist.float32 if low and not cut else None)
            model = made()
            place = lambda p, cut=cut: Shard(p.dim() - 1 if cut and p.dim() > 1 else 0)
            fully_shard(model[0], mp_policy=policy, shard_placement_fn=place)
            fully_shard(model[2], mp_policy=policy, shard_placement_fn=place)
            fully_shard(model, shard_placement_fn=place)
            assert model[0]._fsdp.unit.kind == ("gathered" if private else "common")
            found.append([p.tolist() for p in trained(model, list(model.parameters()))])
        return found

    gathered = run_ranks(2, work, True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYDIST_FSDP", "auto")
        common = run_ranks(2, work, False)
    assert gathered == common


class Cast(nn.Module):
    def forward(self, x):
        return x.to(pydist.float64)
