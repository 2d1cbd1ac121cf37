"""FullyShardedDataParallel: the bits of DistributedDataParallel for each strategy and wrap policy, states, bad input."""

import functools
import warnings

import pytest

import pydist
from lib.sharded_models import Block, Gpt, RULES, assert_same, batch, gpt, loss_of, reference, train, whole
from pydist import distributed as dist
from pydist import nn
from pydist.distributed.device_mesh import init_device_mesh
from pydist.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    MixedPrecision,
    ShardedStateDictConfig,
    ShardingStrategy,
    StateDictType,
)
from pydist.distributed.fsdp import FullyShardedDataParallel as FSDP
from pydist.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from pydist.distributed.fsdp.wrap import (
    CustomPolicy,
    ModuleWrapPolicy,
    always_wrap_policy,
    enable_wrap,
    lambda_auto_wrap_policy,
    size_based_auto_wrap_policy,
    transformer_auto_wrap_policy,
    wrap,
)
from pydist.distributed.tensor import DTensor
from pydist.testing import run_ranks

POLICIES = {
    "none": (lambda: None, 1),
    "classes": (lambda: ModuleWrapPolicy({Block}), 6),
    "custom": (lambda: CustomPolicy(lambda m: isinstance(m, Block)), 6),
    "lambda": (lambda: functools.partial(lambda_auto_wrap_policy, lambda_fn=lambda m: isinstance(m, Block)), 6),
    "transformer": (lambda: functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block}), 6),
    "size": (lambda: functools.partial(size_based_auto_wrap_policy, min_num_params=100), 6),
}


def sync(model, on):
    model.set_requires_gradient_sync(on)


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("strategy", list(ShardingStrategy), ids=lambda s: s.name)
def test_bits_of_ddp(world, strategy):
    def work(rank):
        expected = reference(parts=2, clip=0.3)
        model = FSDP(gpt(), sharding_strategy=strategy, auto_wrap_policy=ModuleWrapPolicy({Block}))
        assert_same(model, *train(model, model.parameters(), parts=2, clip=0.3, sync=sync), expected)
        assert model.check_is_root() and not model.module.blocks[0].check_is_root()

    run_ranks(world, work)


@pytest.mark.parametrize("policy", POLICIES)
def test_policies(policy):
    def work(rank):
        make, count = POLICIES[policy]
        expected = reference()
        model = FSDP(gpt(), auto_wrap_policy=make(), sync_module_states=True)
        assert len(FSDP.fsdp_modules(model)) == count and len(FSDP.fsdp_modules(model, root_only=True)) == 1
        assert_same(model, *train(model, model.parameters()), expected)

    run_ranks(2, work)


def test_replicas():
    def work(rank):
        expected = reference()
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        options = dict(sharding_strategy=ShardingStrategy.HYBRID_SHARD, auto_wrap_policy=ModuleWrapPolicy({Block}))
        for where in ({"device_mesh": mesh}, {"process_group": (mesh.get_group(1), mesh.get_group(0))}):
            model = FSDP(gpt(), **options, **where)
            assert_same(model, *train(model, model.parameters()), expected)

    run_ranks(4, work)


def test_nested_by_hand():
    def work(rank):
        with enable_wrap(wrapper_cls=FSDP, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP):
            model = wrap(nn.Sequential(wrap(nn.Linear(4, 8)), nn.Tanh(), nn.Linear(8, 1)))
        assert wrap(model) is model
        assert [type(m).__name__ for m in FSDP.fsdp_modules(model)] == ["FullyShardedDataParallel"] * 2
        names = ["0.weight", "0.bias", "2.weight", "2.bias"]
        assert sorted(n for n, _ in model.named_parameters()) == sorted(names) == sorted(model.state_dict())
        assert model[0].in_features == 4 and isinstance(model.module[0].weight, DTensor)
        model(pydist.ones(2, 4)).sum().backward()
        assert model.clip_grad_norm_(1e-3).item() > 1e-3
        with model.no_sync():
            model(pydist.ones(2, 4)).sum().backward()
        before = whole(model[0].weight.grad).clone()
        model(pydist.ones(2, 4)).sum().backward()
        assert not pydist.equal(before, whole(model[0].weight.grad))

    run_ranks(2, work)


def test_state_dicts():
    def work(rank):
        def made(seed):
            return FSDP(gpt(seed=seed), auto_wrap_policy=ModuleWrapPolicy({Block}))

        model = made(0)
        losses, optimizer = train(model, model.parameters())
        full = model.state_dict()
        assert list(full) == list(gpt().state_dict()) and not any(isinstance(v, DTensor) for v in full.values())
        with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
            parts = model.state_dict()
        assert all(isinstance(v, DTensor) for v in parts.values()) and parts.keys() == full.keys()
        only0 = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
        with FSDP.state_dict_type(
            model, StateDictType.FULL_STATE_DICT, only0, FullOptimStateDictConfig(rank0_only=True)
        ):
            assert len(model.state_dict()) == (len(full) if rank == 0 else 0)
            assert bool(FSDP.optim_state_dict(model, optimizer)) == (rank == 0)
        with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
            sharded_moments = FSDP.optim_state_dict(model, optimizer)
        moments = FSDP.optim_state_dict(model, optimizer)
        assert isinstance(sharded_moments["state"]["scale"]["exp_avg"], DTensor)
        others = []
        for values, saved in ((full, moments), (parts, sharded_moments)):
            other = made(3)
            other.load_state_dict(values)
            again = RULES["AdamW"](other.parameters())
            again.load_state_dict(FSDP.optim_state_dict_to_load(other, again, saved))
            others.append((other, again))
        for net, rule in ((model, optimizer), *others):
            rule.zero_grad()
            loss_of(net, batch(9)).backward()
            rule.step()
        expected = model.state_dict()
        for other, _ in others:
            assert all(pydist.equal(v, expected[k]) for k, v in other.state_dict().items())
        plain = gpt(seed=7)
        plain.load_state_dict(expected)  # names without wrappers
        with pydist.no_grad():
            assert pydist.equal(plain(batch(0)), model(batch(0)))
        assert FSDP.set_state_dict_type(model, StateDictType.LOCAL_STATE_DICT)[0] is StateDictType.FULL_STATE_DICT
        assert FSDP.get_state_dict_type(model)[0] is StateDictType.LOCAL_STATE_DICT

    run_ranks(2, work)


def test_summon_full_params():
    def work(rank):
        model = FSDP(gpt(), auto_wrap_policy=ModuleWrapPolicy({Block}))
        with FSDP.summon_full_params(model):
            assert model.embed.weight.shape == (11, 6) and not isinstance(model.embed.weight, DTensor)
            with pydist.no_grad():
                model.embed.weight.fill_(3)
        with FSDP.summon_full_params(model, writeback=False):
            assert pydist.equal(model.embed.weight, pydist.full((11, 6), 3.0))
        assert isinstance(model.embed.weight, DTensor)
        with FSDP.summon_full_params(model, recurse=False):
            assert isinstance(model.blocks[0].up.weight, DTensor)
        model.apply(lambda m: m.bias.data.fill_(2) if isinstance(m, nn.Linear) and m.bias is not None else None)
        assert (whole(model.blocks[0].up.bias) == 2).all()
        with pytest.raises(NotImplementedError, match="rank0_only"):
            with FSDP.summon_full_params(model, rank0_only=True):
                pass
        loss_of(model, batch(0)).backward()

    run_ranks(2, work)


def test_meta_and_ranks_that_differ():
    def work(rank):
        with pydist.device("meta"):
            net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
        pydist.manual_seed(rank)

        def init(module):
            module.to_empty(device="cpu", recurse=False)
            for p in module.parameters(recurse=False):
                nn.init.uniform_(p)

        model = FSDP(net, param_init_fn=init, sync_module_states=True)
        state = model.state_dict()
        dist.broadcast(first := state["0.weight"].clone(), 0)
        assert pydist.equal(first, state["0.weight"])
        with pydist.device("meta"):
            bare = nn.Module()
            bare.w = nn.Parameter(pydist.ones(2))
        with pytest.raises(ValueError, match="on meta and has no reset_parameters"):
            FSDP(bare)

    run_ranks(2, work)


def test_sixteen_bits_and_ignored():
    def work(rank):
        net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        low = MixedPrecision(pydist.bfloat16, pydist.float32, pydist.float32)
        assert FSDP(net, mixed_precision=low, ignored_modules=[net[1]]).module is net
        assert not isinstance(net[1].weight, DTensor) and isinstance(net[0].weight, DTensor)
        assert net[1].running_mean.dtype == pydist.float32
        other = FSDP(nn.Linear(4, 4), mixed_precision=MixedPrecision(pydist.bfloat16))
        assert other(pydist.ones(1, 4)).dtype == pydist.bfloat16
        scaler = ShardedGradScaler(init_scale=8.0)
        scaler.scale(other(pydist.ones(1, 4)).float().sum()).backward()
        optimizer = pydist.optim.SGD(other.parameters(), lr=0.1)
        scaler.step(optimizer)
        scaler.update()
        assert whole(other.weight.grad).abs().max() == 1

    run_ranks(2, work)


def test_bad_input():
    def work(rank):
        with pytest.raises(TypeError, match="module is int"):
            FSDP(3)
        with pytest.raises(ValueError, match="sharding_strategy is 'FULL'"):
            FSDP(nn.Linear(2, 2), sharding_strategy="FULL")
        with pytest.raises(ValueError, match="auto_wrap_policy is 3"):
            FSDP(nn.Linear(2, 2), auto_wrap_policy=3)
        mesh = init_device_mesh("cpu", (2,))
        with pytest.raises(ValueError, match="expected one of them"):
            FSDP(nn.Linear(2, 2), dist.group.WORLD, device_mesh=mesh)
        with pytest.raises(ValueError, match="expected 2 dimensions"):
            FSDP(nn.Linear(2, 2), sharding_strategy=ShardingStrategy.HYBRID_SHARD, device_mesh=mesh)
        model = FSDP(nn.Linear(2, 2))
        with pytest.raises(NotImplementedError, match="register_comm_hook"):
            model.register_comm_hook(None, None)
        for name in ("full_optim_state_dict", "scatter_full_optim_state_dict"):
            with pytest.raises(NotImplementedError, match="optim_state_dict"):
                getattr(FSDP, name)(model, None)
        with pytest.raises(RuntimeError, match="expected a FullStateDictConfig"):
            FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT, ShardedStateDictConfig())
        with pytest.raises(ValueError, match="returned 3"):
            FSDP(nn.Sequential(nn.Linear(2, 2)), auto_wrap_policy=CustomPolicy(lambda m: 3))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run_ranks(2, work)


def test_always_wrap():
    model = FSDP(nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2))), auto_wrap_policy=always_wrap_policy)
    assert len(FSDP.fsdp_modules(model)) == 4 and isinstance(Gpt(), nn.Module)
