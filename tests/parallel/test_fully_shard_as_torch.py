"""What PyTorch's tests of fully_shard assert about sharding, training, clipping and 16 bits, in our words, as far as
test_fully_shard.py and its neighbours do not. Left out: tensor parallel modules, streams, and the names of internal states."""

import contextlib
import copy
import gc
import math
from dataclasses import dataclass
from typing import NamedTuple

import pytest

import pydist
from lib.sharded_models import batch, gpt, loss_of, sharded, whole
from pydist import distributed as dist
from pydist import nn, optim
from pydist.distributed._composable import checkpoint as checkpointed
from pydist.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from pydist.distributed.device_mesh import DeviceMesh, init_device_mesh
from pydist.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
    share_comm_ctx,
)
from pydist.distributed.tensor import DTensor, Shard, distribute_tensor
from pydist.nn.parallel import DistributedDataParallel
from pydist.testing import run_ranks
from pydist.utils.checkpoint import checkpoint


@pytest.fixture(params=["auto", "private"])
def way(request, monkeypatch):
    monkeypatch.setenv("PYDIST_FSDP", request.param)
    return request.param


class Mlp(nn.Module):
    def __init__(self, n, times=4, buffer=False, bias=True):
        super().__init__()
        self.in_proj, self.out_proj = nn.Linear(n, times * n, bias=bias), nn.Linear(times * n, n, bias=bias)
        if buffer:
            self.register_buffer("buffer", pydist.randn(n))

    def forward(self, x):
        x = self.out_proj(pydist.tanh(self.in_proj(x)))
        return x + self.buffer if hasattr(self, "buffer") else x

    def reset_parameters(self):
        if hasattr(self, "buffer"):
            nn.init.normal_(self.buffer)


def mlps(count, n=4, **options):
    pydist.manual_seed(0)
    return nn.Sequential(*(Mlp(n, **options) for _ in range(count)))


def shard_each(model, **options):
    for layer in model:
        fully_shard(layer, **options)
    return fully_shard(model, **options)


def values(*shape, seed=0):
    """Other values on each rank."""
    pydist.manual_seed(1000 * seed + dist.get_rank())
    return pydist.randn(*shape)


def compare(model, plain, near=0.0):
    """Parameters and gradients, whole."""
    for (name, p), q in zip(model.named_parameters(), plain.parameters(), strict=True):
        for a, b in ((p, q), (p.grad, q.grad)):
            assert (a is None) == (b is None), name
            if b is not None:
                assert a.dtype == b.dtype and (whole(a) - b.detach()).abs().max() <= near, name


def train_beside_ddp(model, plain, data, steps=3, parts=1, sync=None):
    """The bits of DistributedDataParallel(plain): losses, gradients and parameters. sync(model, on): whether the next
    backward of the model reduces."""
    wrapped = DistributedDataParallel(plain)
    rules = [optim.Adam(net.parameters(), lr=0.01) for net in (plain, model)]
    for step in range(steps):
        for part in range(parts):
            last, found = part == parts - 1, []
            if sync is not None:
                sync(model, last)
            with contextlib.nullcontext() if last else wrapped.no_sync():
                for net in (wrapped, model):
                    loss = net(data(step * parts + part)).square().mean()
                    loss.backward()
                    found.append(loss.item())
            assert found[0] == found[1]
        compare(model, plain)
        for rule in rules:
            rule.step()
            rule.zero_grad(set_to_none=step % 2 == 0)
    compare(model, plain)


def is_whole(params):
    """Whether all of these are plain, or none."""
    (found,) = {not isinstance(p, DTensor) for p in params}
    return found


def names_of_unit(module, model):
    """Parameters that module.unshard() shows."""
    module.unshard()
    found = {name for name, p in model.named_parameters(remove_duplicate=False) if not isinstance(p, DTensor)}
    module.reshard()
    return found


def names_below(model, *prefixes):
    return {name for name, _ in model.named_parameters() if name.startswith(prefixes)}


# ---- what belongs to a unit


def test_parameters_of_a_unit():
    """Those below, without modules that are sharded already; a module or parameter that is there twice counts once."""

    def work(rank):
        model = mlps(2)
        every = names_below(model, "")
        assert names_of_unit(fully_shard(model), model) == every
        model = mlps(3)
        fully_shard(model[0])
        fully_shard(model[2].in_proj)
        fully_shard(model)
        assert names_of_unit(model, model) == names_below(model, "1", "2.out_proj")
        assert names_of_unit(model[0], model) == names_below(model, "0")
        model = mlps(5)
        fully_shard([model[0], model[1], model[2]])
        fully_shard([model[3]])
        fully_shard(model)
        assert all(names_of_unit(model[k], model) == names_below(model, "0", "1", "2") for k in range(3))
        assert names_of_unit(model[3], model) == names_below(model, "3")
        assert names_of_unit(model, model) == names_below(model, "4")
        model.unshard()
        assert len({id(p) for p in model.parameters()}) == 20
        model.reshard()

        twice = nn.Sequential(mlp := Mlp(4), mlp)
        fully_shard(twice)
        assert len(list(twice.parameters())) == 4 and len(names_of_unit(twice, twice)) == 8
        tied = mlps(3, buffer=True)
        tied[0].in_proj.weight = tied[2].in_proj.weight = tied[1].in_proj.weight
        tied[1].buffer = tied[2].buffer
        fully_shard(tied)
        assert tied[0].in_proj.weight is tied[1].in_proj.weight is tied[2].in_proj.weight
        assert len(list(tied.parameters())) == 10 and tied[1].buffer is tied[2].buffer
        tied.unshard()
        assert tied[0].in_proj.weight is tied[1].in_proj.weight is tied[2].in_proj.weight
        assert all(not isinstance(t, DTensor) and t.is_cpu for t in (*tied.parameters(), *tied.buffers()))
        tied.reshard()

    run_ranks(2, work)


def test_shards_are_chunks():
    def work(rank):
        for tie in (False, True):
            model = mlps(3, n=3, times=3)
            if tie:
                model[0].in_proj = model[1].in_proj
            before = [p.detach().clone() for p in model.parameters()]
            fully_shard(model)
            for p, old in zip(model.parameters(), before, strict=True):
                assert isinstance(p, DTensor) and p.device_mesh == init_device_mesh("cpu", (2,))
                assert p.size() == old.size() and p.stride() == old.stride() and p.placements == (Shard(0),)
                assert pydist.equal(p.to_local(), old.chunk(2)[rank])

    run_ranks(2, work)


def test_layers_that_are_made_one_after_the_other():
    """No new parameter is taken for one that has gone."""

    def work(rank):
        model = nn.Sequential()
        for _ in range(8):
            model.append(block := nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4, bias=False)))
            fully_shard(block)
            gc.collect()
        fully_shard(model)(pydist.ones(2, 4)).sum().backward()
        assert all(p.grad is not None for p in model.parameters())

    run_ranks(2, work)


def test_the_former_place_of_the_names():
    from pydist.distributed._composable.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    def work(rank):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        for module in (*model, model):
            assert isinstance(fully_shard(module, mp_policy=MixedPrecisionPolicy(pydist.bfloat16)), FSDPModule)
        model(pydist.ones(2, 4)).sum().backward()

    run_ranks(2, work)


def test_frozen_parameters_of_another_dtype():
    def work(rank):
        model = nn.Module()
        model.codes = nn.Parameter(pydist.ones(6, 4, dtype=pydist.bool), requires_grad=False)
        model.weight = nn.Parameter(pydist.ones(6, 4))
        model.forward = lambda: model.weight.sum() * model.codes.dim()
        fully_shard(model)
        model().backward()
        assert model.codes.dtype == pydist.bool and model.codes.to_local().shape == (3, 4)
        assert whole(model.weight.grad).tolist() == [[2.0] * 4] * 6

    run_ranks(2, work)


# ---- the outermost module


def test_a_module_below_runs_first():
    """Also one that is a list's: PyTorch refuses both when the outermost module runs."""

    def work(rank):
        model, plain = mlps(2), DistributedDataParallel(mlps(2))
        fully_shard(model[0].in_proj)
        fully_shard(model[0].out_proj)
        fully_shard(model)
        x = values(2, 4)
        assert pydist.equal(model[0].in_proj(x), plain.module[0].in_proj(x))
        for net in (model, plain):
            net(x).sum().backward()
        compare(model, plain.module)

        model = mlps(2)
        fully_shard([model[0], model[1]])  # nothing above them is sharded
        model(x).sum().backward()
        compare(model, plain.module)

    run_ranks(2, work)


def test_inner_module_after_the_outermost(way):
    def work(rank):
        model, plain = mlps(3), mlps(3)
        shard_each(model)
        train_beside_ddp(model, plain, lambda step: values(4, 4, seed=step), steps=1)
        train_beside_ddp(model[0], plain[0], lambda step: values(4, 4, seed=step), steps=1)
        train_beside_ddp(model, plain, lambda step: values(4, 4, seed=step), steps=1)

    run_ranks(2, work)


def test_forward_without_parameters_and_without_inputs():
    class Sum(nn.Module):
        def forward(self, x, pair):
            return x + pair[0] + pair[1] + 1

    def work(rank):
        model = fully_shard(Sum())
        assert model(pydist.ones(3), (pydist.ones(3), pydist.ones(3))).tolist() == [4.0] * 3
        alone = nn.Module()
        alone.weight = nn.Parameter(pydist.ones(4, 4))
        alone.forward = lambda: alone.weight @ alone.weight
        out = fully_shard(alone)()
        out.sum().backward()
        assert out.shape == (4, 4) and whole(alone.weight.grad).tolist() == [[8.0] * 4] * 4

    run_ranks(2, work)


# ---- parameters in the modules' places


@pytest.mark.parametrize("again", [True, False, 2])
def test_parameters_after_forward_and_backward(again, way):
    def work(rank):
        x = pydist.ones(2, 3)
        for inner in (False, True):
            model, plain = mlps(2, n=3), mlps(2, n=3)
            units = [model[0].in_proj, model[0].out_proj] if inner else []
            for unit in (*units, model):
                fully_shard(unit, reshard_after_forward=again)
            assert not is_whole(model.parameters())
            compare(model, plain)
            out = model(x)
            assert is_whole(model.parameters()) == (again is False)
            compare(model, plain)
            for unit in (*units, model):
                unit.reshard()
            assert not is_whole(model.parameters())
            compare(model, plain)
            out.sum().backward()
            assert not is_whole(model.parameters())
            model(x).sum().backward()
            assert not is_whole(model.parameters())

    run_ranks(4, work)


def test_other_dtypes_beside_ddp(way):
    def work(rank):
        model, plain = mlps(1), mlps(1).double()
        for module in (model[0].in_proj, model[0].out_proj, model):
            fully_shard(module)
        model.to(pydist.float64)
        train_beside_ddp(model, plain, lambda step: values(2, 4, seed=step).double())
        model(values(2, 4).double()).sum().backward()
        for p in model.parameters():
            assert p.dtype == p.to_local().dtype == p.grad.dtype == p.grad.to_local().dtype == pydist.float64

    run_ranks(2, work)


# ---- from meta, and from one rank


@pytest.mark.parametrize(
    "policy", [MixedPrecisionPolicy(), MixedPrecisionPolicy(pydist.bfloat16, pydist.float32)], ids=str
)
def test_sharded_under_meta(policy, way):
    """Even and uneven rows, and fewer than ranks; the call itself runs under the context, too."""

    def work(rank):
        meshes = None, init_device_mesh("cpu", (4,))
        for n in (8, 3, 1):
            for mesh in meshes:
                with pydist.device("meta"):
                    model = nn.Sequential(Mlp(n, 1, buffer=True, bias=False), Mlp(n, 1, bias=False))
                    shard_each(model, mesh=mesh, mp_policy=policy)
                assert all(t.is_meta for t in (*model.parameters(), *model.buffers()))
                model.to_empty(device="cpu")
                assert all(t.is_cpu for t in (*model.parameters(), *model.buffers()))
                optimizer = optim.Adam(model.parameters(), lr=0.01)
                for t in (*model.parameters(), *model.buffers()):
                    t.detach().fill_(1337)
                for module in model.modules():
                    if hasattr(module, "reset_parameters"):
                        module.reset_parameters()
                for t in (*model.parameters(), *model.buffers()):
                    assert not (whole(t) == 1337).any()
                model(pydist.ones(4, n)).sum().backward()
                optimizer.step()

    run_ranks(4, work)


def test_still_on_meta():
    """The error names the parameters."""

    def work(rank):
        with pydist.device("meta"):
            model = mlps(2)
        shard_each(model)
        text = r"fully_shard: 0.in_proj.weight, 0.in_proj.bias, .* are on meta \(expected to_empty"
        with pytest.raises(RuntimeError, match=text):
            model(pydist.ones(4, 4))
        model[0].to_empty(device="cpu")
        for p in model[0].parameters():
            p.detach().fill_(1)
        with pytest.raises(RuntimeError, match="fully_shard: 1.in_proj.weight, .*, 1.out_proj.bias are on meta"):
            model(pydist.ones(4, 4))

    run_ranks(2, work)


def test_a_parameter_that_is_made_anew():
    """Of a model that began on meta: made from weights that are there already."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
            self.norms = nn.Parameter(pydist.empty(3))

        def forward(self, x):
            return self.two(self.one(x)).sum() + self.norms.sum()

    def work(rank):
        with pydist.device("meta"):
            model = Net()
        for module in (model.one, model.two, model):
            fully_shard(module)
        for layer in (model.one, model.two):
            layer.to_empty(device="cpu").reset_parameters()
        with pydist.no_grad():
            norms = sum(pydist.linalg.norm(layer.weight.full_tensor(), dim=1) for layer in (model.one, model.two))
        model.norms = nn.Parameter(norms)
        model(pydist.ones(3, 3)).backward()
        assert isinstance(model.norms, DTensor) and pydist.equal(whole(model.norms), norms)
        assert whole(model.norms.grad).tolist() == [1.0] * 3

    run_ranks(2, work)


def test_a_state_of_rank_0(way):
    """Each parameter is broadcast and cut, and becomes the model's, which was on meta."""

    def work(rank):
        with pydist.device("meta"):
            model = gpt()
        sharded(model)
        full = gpt(seed=3 + rank).state_dict()  # rank 0's is wanted
        state = {}
        for name, meta in model.state_dict().items():
            value = full[name] if rank == 0 else pydist.empty(meta.size(), dtype=meta.dtype)
            mesh = meta.device_mesh
            dist.broadcast(value, src=0, group=mesh.get_group(0))
            state[name] = nn.Parameter(distribute_tensor(value, mesh, meta.placements))
        model.load_state_dict(state, assign=True)
        assert all(isinstance(p, DTensor) and p.is_cpu for p in model.parameters())
        plain = gpt(seed=3)
        other = sharded(gpt(seed=3))
        compare(model, plain)
        for net in (model, other):
            loss_of(net, batch(0)).backward()
        for p, q in zip(model.parameters(), other.parameters(), strict=True):
            assert (p.grad is None) == (q.grad is None)
            assert p.grad is None or pydist.equal(p.grad.to_local(), q.grad.to_local())

    run_ranks(4, work)


# ---- meshes and replicas


def test_a_mesh_of_groups():
    """DeviceMesh.from_group: one group, and one of replicas with one of shards."""

    def work(rank):
        both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        mesh = DeviceMesh.from_group(both["dp"].get_group(), "cpu", mesh_dim_names=("dp",))
        assert mesh.mesh.tolist() == both["dp"].mesh.tolist() == [rank % 2, rank % 2 + 2]
        models = [mlps(1, n=8) for _ in range(2)]
        for model, where in zip(models, (mesh, both["dp"]), strict=True):
            for module in (model[0].in_proj, model[0].out_proj, model):
                fully_shard(module, mesh=where)
        pydist.manual_seed(rank // 2)  # the same data along tp
        x = pydist.randn(4, 8)
        assert pydist.equal(*(model(x) for model in models))
        for model in models:
            model(x).square().sum().backward()
        for p, q in zip(*(model.parameters() for model in models), strict=True):
            assert pydist.equal(p.to_local(), q.to_local()) and pydist.equal(p.grad.to_local(), q.grad.to_local())
            assert p.device_mesh.mesh.tolist() == q.device_mesh.mesh.tolist()

        names = ("replicate", "shard")
        wanted = init_device_mesh("cpu", (2, 2), mesh_dim_names=names)
        groups = {ranks: dist.new_group(ranks) for ranks in ((0, 1), (2, 3), (0, 2), (1, 3))}
        shards, replicas = groups[(0, 1) if rank < 2 else (2, 3)], groups[rank % 2, rank % 2 + 2]
        mesh = DeviceMesh.from_group([replicas, shards], "cpu", mesh=pydist.arange(4).view(2, 2), mesh_dim_names=names)
        assert mesh == wanted and mesh.get_coordinate() == wanted.get_coordinate()
        for name in names:
            assert mesh[name] == wanted[name]
            ranks = [dist.get_process_group_ranks(m[name].get_group()) for m in (mesh, wanted)]
            assert ranks[0] == ranks[1]
        model, plain = mlps(1, n=8), mlps(1, n=8)
        for module in (model[0].in_proj, model[0].out_proj, model):
            fully_shard(module, mesh=mesh)
        train_beside_ddp(model, plain, lambda step: values(4, 8, seed=step), steps=2)

    run_ranks(4, work)


def test_a_part_of_a_mesh():
    """The dimensions of a 3-D mesh that are about data."""

    def work(rank):
        mesh = init_device_mesh("cpu", (1, 2, 2), mesh_dim_names=("pp", "replicate", "shard"))["replicate", "shard"]
        model, plain = shard_each(mlps(2, n=5), mesh=mesh), mlps(2, n=5)
        train_beside_ddp(model, plain, lambda step: values(4, 5, seed=step), steps=2)
        for p in model.parameters():
            assert p.device_mesh.ndim == len(p.placements) == 2 and p.device_mesh.mesh_dim_names == (
                "replicate",
                "shard",
            )

    run_ranks(4, work)


def test_replicas_from_the_first(way):
    """Values and buffers of the first replica are broadcast to the others."""

    def work(rank):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        model = gpt()
        model.register_buffer("buf", pydist.ones(3))
        sharded(model, mesh=mesh)
        every = [*model.parameters(), model.buf]
        group = mesh.get_group("replicate")

        def alike():
            for t in every:
                local = t.detach().to_local() if isinstance(t, DTensor) else t
                parts = [pydist.empty_like(local) for _ in range(2)]
                dist.all_gather(parts, local.clone(), group=group)
                yield pydist.equal(*parts)

        if mesh.get_local_rank("replicate") > 0:
            for t in every:
                t.detach().fill_(1337)
        assert not all(alike())
        for t in every:
            local = t.to_local() if isinstance(t, DTensor) else t
            dist.broadcast(local.detach(), src=dist.get_process_group_ranks(group)[0], group=group)
        assert all(alike())
        compare(model, gpt())
        loss_of(model, batch(0)).backward()

    run_ranks(4, work)


def test_a_hook_that_reduces_over_other_ranks(way):
    """Shards inside of each half, and means over the halves by a hook: those of a 2-D mesh."""

    def work(rank):
        mesh = init_device_mesh("cpu", (2, 2))
        groups = mesh.get_group(0), mesh.get_group(1)
        model, wanted = mlps(2), mlps(2)
        shard_each(model, mesh=DeviceMesh.from_group(groups[1], "cpu"))
        shard_each(wanted, mesh=mesh)
        calls = []

        def mean(part):
            calls.append(part.shape)
            dist.all_reduce(part, group=groups[0], op=dist.ReduceOp.AVG)

        for layer in model:
            layer.set_all_reduce_hook(mean)
        for net in (model, wanted):
            net(values(4, 4)).square().sum().backward()
        assert len(calls) == 8
        for p, q in zip(model.parameters(), wanted.parameters(), strict=True):
            assert pydist.allclose(p.grad.to_local(), q.grad.to_local())

    run_ranks(4, work)


@pytest.mark.parametrize("n", [3, 16])
@pytest.mark.parametrize("reduce_every", [False, True])
def test_replicas_of_shards_beside_ddp(n, reduce_every, way):
    def work(rank):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
        for again in (False, True):
            for recomputed in (False, True):

                def made():
                    pydist.manual_seed(0)
                    return nn.Sequential(nn.LayerNorm(n, bias=False), Mlp(n, 3), Mlp(n), Mlp(n, 3))

                model, plain = made(), made()
                if recomputed:
                    for layer in model:
                        checkpointed(layer)
                shard_each(
                    model, mesh=mesh, reshard_after_forward=again, offload_policy=CPUOffloadPolicy(pin_memory=False)
                )
                if reduce_every:
                    train_beside_ddp(model, plain, lambda step: values(8, n, seed=step), steps=2)
                else:
                    sync = type(model).set_requires_gradient_sync
                    train_beside_ddp(model, plain, lambda step: values(8, n, seed=step), 2, 3, sync)

    run_ranks(4, work)


# ---- other dimensions


@pytest.mark.parametrize(
    "place", [lambda p: Shard(p.shape.index(max(p.shape))), lambda p: Shard(-1)], ids=["largest", "last"]
)
def test_dimensions_of_each_parameter(place, way):
    """Placements count from 0; wholes and gradients are contiguous; training has the bits of DistributedDataParallel."""

    def work(rank):
        model, plain, seen = mlps(3, n=8), mlps(3, n=8), []
        for layer in model:
            layer.in_proj.register_forward_pre_hook(
                lambda m, args: seen.append(m.weight.is_contiguous() and m.weight.stride() == (8, 1))
            )
        shard_each(model, shard_placement_fn=place)
        dims = [p.placements[0].dim for p in model.parameters()]
        assert set(dims) == {0, 1}
        compare(model, plain)
        train_beside_ddp(model, plain, lambda step: values(2, 8, seed=step))
        model(values(2, 8)).sum().backward()
        assert seen == [True] * 12
        for p in model.parameters():
            for t in (p.grad, p.grad.to_local(), *((p, p.to_local()) if way == "private" else ())):
                assert t.is_contiguous()  # in common memory a part lies in the whole

    run_ranks(4, work)


def test_a_dimension_that_is_not_there():
    def work(rank):
        with pytest.raises(IndexError, match=r"fully_shard: S\(1\) of a tensor with 1 dimensions"):
            fully_shard(nn.Linear(4, 4), shard_placement_fn=lambda p: Shard(1))

    run_ranks(2, work)


# ---- what runs several times, and other ways to run


@pytest.mark.parametrize("again", [True, False, 2])
def test_a_module_that_runs_twice(again, way):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.outer = nn.Linear(4, 4), nn.Linear(4, 5)

        def forward(self, x):
            return self.outer(self.inner(x) + self.inner(pydist.tanh(x)))

    def made():
        pydist.manual_seed(0)
        return Twice()

    def work(rank):
        model, plain = made(), made()
        fully_shard(model.inner, reshard_after_forward=again)
        fully_shard(model, reshard_after_forward=again)
        train_beside_ddp(model, plain, lambda step: values(8, 4, seed=step))

    run_ranks(2, work)


def test_methods_of_inner_modules(way):
    class Vision(nn.Module):
        def __init__(self):
            super().__init__()
            self.proj = nn.Conv2d(1, 6, 2, stride=2)

        def features(self, x):
            return self.proj(x).flatten(2).transpose(1, 2)

        def forward(self, x):
            return self.features(x).sum(1)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.vision, self.head = Vision(), nn.Linear(6, 3)

        def forward(self, x):
            return self.head(self.vision.features(x))

    def made():
        pydist.manual_seed(0)
        return Model()

    def work(rank):
        model, plain = made(), made()
        for module in (model.vision, model.head, model):
            fully_shard(module)
        register_fsdp_forward_method(model.vision, "features")
        train_beside_ddp(model, plain, lambda step: values(2, 1, 4, 4, seed=step))

    run_ranks(2, work)


@pytest.mark.parametrize("kind", ["composable", "wrapper", "utils"])
@pytest.mark.parametrize("units", ["blocks", "lists", "tied"])
def test_checkpoints_and_lists_of_modules(kind, units, way):
    """Activations that backward computes again, in units of one block, or of several modules."""

    def work(rank):
        for again in (True, False):
            plain = gpt(layers=3)
            model = gpt(layers=3, again=False if kind == "utils" else None)
            if units == "lists":
                for net in (model, plain):  # not tied
                    net.head.weight = nn.Parameter(net.embed.weight.detach().clone())
            if kind == "wrapper":
                apply_activation_checkpointing(model, check_fn=lambda m: m in set(model.blocks))
            elif kind == "composable":
                for block in model.blocks:
                    checkpointed(block)
            if units == "lists":
                fully_shard(model.blocks[0], reshard_after_forward=again)
                fully_shard([model.blocks[1], model.blocks[2]], reshard_after_forward=again)
                fully_shard(model.embed, reshard_after_forward=again)
                model.embed.set_unshard_in_backward(False)
                fully_shard(model.head, reshard_after_forward=again)
            else:
                if units == "tied":
                    fully_shard([model.embed, model.head], reshard_after_forward=again)
                for block in model.blocks:
                    fully_shard(block, reshard_after_forward=again)
            fully_shard(model, reshard_after_forward=again)
            train_beside_ddp(model, plain, lambda step: batch(step), steps=2)

    run_ranks(2, work)


def test_two_forwards_before_a_backward(way):
    """Of units inside of units, with checkpoints."""

    def work(rank):
        for again in (True, False):
            for kind in ("composable", "utils"):
                plain, model = gpt(layers=3), gpt(layers=3, again=False if kind == "utils" else None)
                for block in model.blocks:
                    if kind == "composable":
                        checkpointed(block)
                    fully_shard(block.up, reshard_after_forward=again)
                    fully_shard(block.down, reshard_after_forward=again)
                    fully_shard(block, reshard_after_forward=again)
                fully_shard(model, reshard_after_forward=again)
                wrapped = DistributedDataParallel(plain)
                for net in (wrapped, model):
                    (net(batch(0)).sum() - net(batch(1)).square().sum()).square().backward()
                compare(model, plain)

    run_ranks(2, work)


def test_one_order_for_several_roots(way):
    """share_comm_ctx of layers that nothing above them joins."""

    def work(rank):
        model, plain = mlps(3), mlps(3)
        for layer in model:
            fully_shard(layer)
        share_comm_ctx(list(model))
        train_beside_ddp(model, plain, lambda step: values(2, 4, seed=step), steps=2)

    run_ranks(2, work)


# ---- a unit of several modules, of which a forward runs some


class Headed(nn.Module):
    """The head may be called by itself, in pieces of a batch."""

    def __init__(self, tie):
        super().__init__()
        self.embed, self.body = nn.Embedding(19, 8), nn.Linear(8, 8, bias=False)
        self.norm, self.head = nn.RMSNorm(8), nn.Linear(8, 19, bias=False)
        if tie:
            self.head.weight = self.embed.weight

    def forward(self, tokens, skip_head=False):
        x = self.norm(self.body(self.embed(tokens)))
        return x if skip_head else self.head(x)


def headed(together=True, tie=False, policy=MixedPrecisionPolicy(), outer=MixedPrecisionPolicy(), **options):
    pydist.manual_seed(0)
    model = Headed(tie)
    if together is None:
        return model
    fully_shard(model.body, mp_policy=outer, **options)
    if tie:
        fully_shard([model.embed, model.norm, model.head], mp_policy=policy, **options)
    else:
        fully_shard(model.embed, mp_policy=outer, **options)
        for modules in [[model.norm, model.head]] if together else [[model.norm], [model.head]]:
            fully_shard(modules, mp_policy=policy, **options)
    return fully_shard(model, mp_policy=outer, **options)


def tokens_of(step):
    pydist.manual_seed(100 * step + dist.get_rank())
    return pydist.randint(0, 19, (2, 8))


def in_pieces(model, step, after=lambda: None):
    """Forward without the head, the head of four pieces, and backward through the rest. Returns the loss."""
    x, grads, loss = model(tokens_of(step), skip_head=True), [], 0.0
    for piece in x.detach().float().chunk(4, dim=1):
        piece = piece.clone().requires_grad_()
        part = model.head(piece).float().square().sum()
        part.backward()
        after()
        loss += part.item()
        grads.append(piece.grad)
    x.backward(pydist.cat(grads, 1).to(x.dtype))
    return loss


@pytest.mark.parametrize("tie", [False, True], ids=["apart", "tied"])
@pytest.mark.parametrize("again", [True, False, 1])
def test_a_head_in_pieces(again, tie, way):
    """The gradients of each piece are added up. Units of two modules have the bits of units of one."""

    def work(rank):
        plain, model = headed(None, tie), headed(True, tie, reshard_after_forward=again)
        nets = [plain, model] if tie else [plain, model, headed(False, reshard_after_forward=again)]
        rules = [optim.Adam(net.parameters(), lr=0.01) for net in nets]
        for step in range(3):
            losses = [in_pieces(net, step) for net in nets]
            assert losses[1] == losses[-1] and losses[0] == pytest.approx(losses[1], rel=1e-5)
            for p in plain.parameters():
                dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
            compare(model, plain, 1e-4)
            for p, q in zip(model.parameters(), nets[-1].parameters(), strict=True):
                assert pydist.equal(p.grad.to_local(), q.grad.to_local())
            for rule in rules:
                rule.step()
                rule.zero_grad(set_to_none=step % 2 == 0)
        compare(model, plain, 1e-4)

    run_ranks(2, work)


@pytest.mark.parametrize("everywhere", [True, False])
def test_dtypes_of_a_head_in_pieces(everywhere, way):
    """A module of a unit that did not run last has the unit's output_dtype, also if the outermost module has none."""

    def work(rank):
        low = MixedPrecisionPolicy(pydist.float32, output_dtype=pydist.bfloat16)
        outer = low if everywhere else MixedPrecisionPolicy(pydist.float32)
        model = headed(policy=low, outer=outer)
        x = model(tokens_of(0), skip_head=True)
        assert x.dtype == model.head(x).dtype == pydist.bfloat16
        in_pieces(model, 1)
        assert all(p.grad.dtype == pydist.float32 for p in model.parameters())

    run_ranks(2, work)


def test_a_head_in_pieces_without_reductions(way):
    """Micro-batches of which the last one reduces."""

    def work(rank):
        for again in (True, False):
            plain = headed(None)
            nets = [headed(together, reshard_after_forward=again) for together in (True, False)]
            for net in nets:
                for part in range(3):
                    net.set_requires_gradient_sync(part == 2)
                    net.set_is_last_backward(part == 2)
                    in_pieces(net, part)
            for part in range(3):
                in_pieces(plain, part)
            for p in plain.parameters():
                dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
            for net in nets:
                compare(net, plain, 1e-3)

    run_ranks(2, work)


@pytest.mark.parametrize("again", [True, False])
def test_a_head_that_stays_whole(again, way):
    """Between pieces the head's parameters stay in their places, until reshard()."""

    def work(rank):
        for tie in (False, True):
            model = headed(tie=tie, reshard_after_forward=again)
            optimizer = optim.Adam(model.parameters(), lr=0.01)
            for step in range(3):
                x, grads = model(tokens_of(step), skip_head=True), []
                model.head.set_reshard_after_forward(False)
                model.head.set_reshard_after_backward(False)
                for piece in x.detach().chunk(4, dim=1):
                    piece = piece.clone().requires_grad_()
                    model.head(piece).sum().backward()
                    grads.append(piece.grad)
                    assert not isinstance(model.head.weight, DTensor)
                model.head.set_reshard_after_forward(True)
                model.head.set_reshard_after_backward(True)
                model.head.reshard()
                assert isinstance(model.head.weight, DTensor)
                x.backward(pydist.cat(grads, 1))
                assert all(p.grad is not None for p in model.parameters())
                optimizer.step()
                optimizer.zero_grad(set_to_none=step % 2 == 0)

    run_ranks(2, work)


def test_forwards_of_a_part_of_a_unit(way):
    """Two of them before a backward, and one that fails."""

    def work(rank):
        model, plain = headed(), headed(None)
        for net in (model, plain):
            (net(tokens_of(0), skip_head=True).sum() + net(tokens_of(1), skip_head=True).square().sum()).backward()
        for p in plain.parameters():
            if p.grad is not None:
                dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        compare(model, plain, 1e-5)
        assert model.head.weight.grad is None and model.norm.weight.grad is not None

        model = headed()
        handle = model.body.register_forward_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model(tokens_of(0), skip_head=True)
        handle.remove()
        model.reset_iter_state()
        model(tokens_of(0)).sum().backward()
        assert all(p.grad is not None for p in model.parameters())

    run_ranks(2, work)


@pytest.mark.parametrize("again", [True, False])
def test_tied_rows_of_all_ranks(again, way):
    """Rows that the ranks do not divide: each is trained, also the last rank's."""

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(13, 8), nn.Linear(8, 13, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x):
            return self.head(self.embed(x))

    def work(rank):
        pydist.manual_seed(0)
        model = Tied()
        fully_shard([model.embed, model.head], reshard_after_forward=again)
        fully_shard(model, reshard_after_forward=again)
        model.embed.unshard()
        before = model.embed.weight.detach().clone()
        model.embed.reshard()
        optimizer = optim.AdamW(model.parameters(), lr=0.01)
        for step in range(4):
            loss_of(model, tokens_of(step) % 13).backward()
            optimizer.step()
            optimizer.zero_grad()
        model.embed.unshard()
        assert (model.embed.weight != before).any(1).all() and model.head.weight is model.embed.weight
        model.embed.reshard()

    run_ranks(3, work)


# ---- micro-batches


@pytest.mark.parametrize("shape", [(4,), (2, 2)], ids=["shards", "replicas"])
@pytest.mark.parametrize("again", [True, False])
def test_units_that_reduce_and_units_that_wait(again, shape, way):
    """All units, the outermost one, or some wait until the last micro-batch: as many reductions as that, and the mean."""

    def work(rank):
        mesh = init_device_mesh("cpu", shape)

        def made():
            pydist.manual_seed(0)
            return nn.Sequential(nn.Linear(6, 6), *(Mlp(6) for _ in range(3)))

        for waiting in ("all", "root", "some"):
            for stays in (False, True) if again is False and waiting != "some" else (False,):
                for by_replicas in (False, True)[: len(shape)]:
                    plain, model = made(), made()
                    for layer in model[1:]:
                        fully_shard(layer, mesh=mesh, reshard_after_forward=again)
                    fully_shard(model, mesh=mesh, reshard_after_forward=again)
                    units, calls = [model[0], *(layer.in_proj for layer in model[1:])], [0] * 4
                    for k, unit in enumerate(units):

                        def count(param, k=k, calls=calls):
                            calls[k] += 1

                        unit.weight.register_post_accumulate_grad_hook(count)

                    def set_flags(last):
                        every = model[1:3] if waiting == "some" else [model]
                        for module in every:
                            set_sync = (
                                module.set_requires_all_reduce if by_replicas else module.set_requires_gradient_sync
                            )
                            set_sync(last, recurse=waiting != "root")
                            if stays:
                                module.set_reshard_after_backward(last, recurse=waiting != "root")

                    for step in range(2):
                        for part in range(3):
                            set_flags(part == 2)
                            x = values(2, 6, seed=3 * step + part)
                            a, b = plain(x).square().sum(), model(x).square().sum()
                            a.backward()
                            b.backward()
                            assert a.item() == pytest.approx(b.item(), rel=1e-4)
                            if waiting != "some":
                                assert isinstance(model[0].weight, DTensor) == (part == 2 or not stays)
                        for p in plain.parameters():
                            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
                        compare(model, plain, 1e-3)
                        for net in (plain, model):
                            optim.SGD(net.parameters(), lr=0.01).step()
                            net.zero_grad(set_to_none=step == 1)
                    wanted = {"all": [2] * 4, "root": [2, 6, 6, 6], "some": [6, 2, 2, 6]}[waiting]
                    assert calls == wanted, (waiting, by_replicas)

    run_ranks(4, work)


@pytest.mark.parametrize("early", [False, True])
def test_micro_batches_with_wholes_that_stay(early, way):
    """Forward and backward in turns, as a pipeline does, and one reduction at the end."""

    def work(rank):
        for stays in (False, True):
            model, plain = gpt(layers=2), gpt(layers=2)
            sharded(model, reshard_after_forward=False)
            waiting = [module for module in model.modules() if early and isinstance(module, FSDPModule)]

            def set_flags(model, last, stays=stays, waiting=waiting):
                while waiting:
                    waiting.pop().unshard(async_op=True)
                model.set_requires_gradient_sync(last)
                model.set_is_last_backward(last)
                if stays:
                    model.set_reshard_after_backward(last)

            train_beside_ddp(model, plain, batch, steps=1, parts=3, sync=set_flags)

    run_ranks(2, work)


# ---- clipping


@pytest.mark.parametrize("shape", [(4,), (2, 2)], ids=["shards", "replicas"])
@pytest.mark.parametrize("kind", [2.0, 1.0, 3.0, float("inf")])
def test_clipping_by_each_norm(kind, shape):
    def work(rank):
        model, plain = gpt(layers=2), gpt(layers=2)
        sharded(model, mesh=init_device_mesh("cpu", shape))
        wrapped = DistributedDataParallel(plain)
        rules = [optim.Adam(net.parameters(), lr=0.01) for net in (plain, model)]
        for step in range(3):
            norms = []
            for net, rule in zip((wrapped, model), rules, strict=True):
                rule.zero_grad()
                (net(batch(step)) * 100).square().sum().backward()
                before = [p.grad.clone() for p in net.parameters() if p.grad is not None]
                norm = nn.utils.clip_grad_norm_(net.parameters(), max_norm=1, norm_type=kind, foreach=True)
                norms.append(whole(norm).item())
                after = [p.grad for p in net.parameters() if p.grad is not None]
                assert nn.utils.get_total_norm(after, kind).item() <= 1.0001
                for a, b in zip(before, after, strict=True):
                    a, b = whole(a), whole(b)
                    assert pydist.linalg.vector_norm(b, kind) <= 1.0001 and (not a.any() or not pydist.equal(a, b))
            assert norms[0] == pytest.approx(norms[1], rel=1e-6) and norms[0] > 1
            compare(model, plain, 1e-5)
            for rule in rules:
                rule.step()

    run_ranks(4, work)


# ---- 16 bits


def sixteen_bits_beside(model, plain, data, policy, steps=3, parts=1, near=1e-5):
    """A reference that computes with 16-bit copies, and steps float32 parameters with means over the ranks."""
    low = policy.param_dtype or pydist.float32
    reduced = policy.reduce_dtype or low
    rules = [optim.Adam(net.parameters(), lr=0.01) for net in (plain, model)]
    for step in range(steps):
        sums = [pydist.zeros_like(p) for p in plain.parameters()]
        for part in range(parts):
            copy_of = copy.deepcopy(plain).to(low)
            copy_of.zero_grad()
            x = data(step * parts + part)
            model.set_requires_gradient_sync(part == parts - 1)
            losses = [copy_of(x.to(low)).sum(), model(x).sum()]
            assert losses[0].dtype == losses[1].dtype == low
            assert losses[0].item() == losses[1].item()
            for loss in losses:
                loss.backward()
            for total, p in zip(sums, copy_of.parameters(), strict=True):
                total += p.grad
        for p, total in zip(plain.parameters(), sums, strict=True):
            mean = total.to(reduced).float()  # of each rank, in the dtype in which it is sent
            dist.all_reduce(mean, op=dist.ReduceOp.AVG)
            p.grad = mean.to(reduced).float()
        for (name, p), q in zip(model.named_parameters(), plain.parameters(), strict=True):
            assert p.dtype == p.grad.dtype == pydist.float32
            assert (whole(p.grad) - q.grad).abs().max() <= near * max(1.0, q.grad.abs().max().item()), name
        for p, q in zip(model.parameters(), plain.parameters(), strict=True):
            q.grad.copy_(whole(p.grad))  # later steps begin with the same values
        for rule in rules:
            rule.step()
            rule.zero_grad(set_to_none=step % 2 == 0)
        for p, q in zip(model.parameters(), plain.parameters(), strict=True):
            assert pydist.equal(whole(p), q.detach())


@pytest.mark.parametrize(
    "low, reduced",
    [("bfloat16", None), ("float16", None), ("bfloat16", "float32"), (None, "bfloat16"), ("bfloat16", "bfloat16")],
)
def test_computing_and_reducing_in_16_bits(low, reduced, way):
    policy = MixedPrecisionPolicy(*(name and getattr(pydist, name) for name in (low, reduced)))

    def work(rank):
        for again in (False, True):
            for place in (None, lambda p: Shard(p.shape.index(max(p.shape)))):
                model, plain = mlps(2, n=8), mlps(2, n=8)
                shard_each(model, mp_policy=policy, reshard_after_forward=again, shard_placement_fn=place)
                near = 1e-5 if reduced == "float32" else 0.01
                sixteen_bits_beside(model, plain, lambda step: values(4, 8, seed=step), policy, near=near)

    run_ranks(2, work)


@pytest.mark.parametrize("again", [True, False])
def test_micro_batches_of_16_bits(again, way):
    """Their gradients are added up in float32 on each rank, and reduced once, in float32."""
    policy = MixedPrecisionPolicy(pydist.bfloat16, pydist.float32)

    def work(rank):
        model, plain = mlps(3, n=8), mlps(3, n=8)
        shard_each(model, mp_policy=policy, reshard_after_forward=again)
        sixteen_bits_beside(model, plain, lambda step: values(2, 8, seed=step), policy, parts=4)

    run_ranks(2, work)


class Sometimes(nn.Module):
    """Its second layer runs if the batch's first element is 1."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 6)

    def forward(self, x):
        y = pydist.tanh(self.first(x))
        return self.second(y) if x[0, 0] == 1 else y


@pytest.mark.parametrize("mesh", [(1,), (3,), (2, 2)], ids=str)
def test_micro_batches_of_16_bits_that_use_a_layer_on_some_ranks(mesh):
    """Rank 1 runs it in its first micro-batch, rank 2 in its last one, and the others never."""
    policy, count = MixedPrecisionPolicy(pydist.bfloat16, pydist.float32), math.prod(mesh)

    def work(rank):
        pydist.manual_seed(0)
        plain = Sometimes()
        model, where = copy.deepcopy(plain), init_device_mesh("cpu", mesh)
        for place in (model.first, model.second, model):
            fully_shard(place, mesh=where, mp_policy=policy)
        for step in range(2):
            sums = [pydist.zeros_like(p) for p in plain.parameters()]
            for part in range(3):
                x = values(2, 4, seed=3 * step + part)
                x[0, 0] = float((rank, part) in ((1, 0), (2, 2)))
                low = copy.deepcopy(plain).to(pydist.bfloat16)
                low.zero_grad()
                model.set_requires_gradient_sync(part == 2)
                for net in (low, model):
                    net(x.bfloat16()).square().sum().backward()
                for total, p in zip(sums, low.parameters(), strict=True):
                    if p.grad is not None:
                        total += p.grad
            for (name, p), total in zip(model.named_parameters(), sums, strict=True):
                dist.all_reduce(total, op=dist.ReduceOp.AVG)
                used = count > 1 or name.startswith("first")
                assert (p.grad is not None) == used, name
                assert not used or (whole(p.grad) - total).abs().max() < 1e-6, name
            model.zero_grad()

    run_ranks(count, work)


def test_parameters_that_are_frozen_first(way):
    """Their first forward has no gradients; then they are trained."""

    def work(rank):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        fully_shard(model, mp_policy=MixedPrecisionPolicy(pydist.bfloat16, pydist.float32))
        model.requires_grad_(False)
        with pydist.no_grad():
            model(pydist.ones(4, 4))
        model.requires_grad_(True)
        model(pydist.ones(4, 4)).sum().backward()
        for p in model.parameters():
            assert p.grad.dtype == pydist.float32 and whole(p.grad).any()

    run_ranks(2, work)


@dataclass
class Pair:
    x: pydist.Tensor
    y: pydist.Tensor


@dataclass(frozen=True)
class Nested:
    pair: Pair
    z: pydist.Tensor
    name: str = "n"


class NamedPair(NamedTuple):
    x: pydist.Tensor
    y: pydist.Tensor


class Begin(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def forward(self, x):
        if self.kind is Nested:
            return Nested(Pair(x, x.clone()), x * 2)
        return self.kind(x, x.clone())


class Between(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, value):
        if isinstance(value, Nested):
            return Nested(self.forward(value.pair), self.layer(value.z))
        return type(value)(self.layer(value.x), self.layer(value.y))


class End(nn.Module):
    def forward(self, value):
        if isinstance(value, Nested):
            return self.forward(value.pair) + value.z
        return value.x + value.y


@pytest.mark.parametrize("kind", [Pair, Nested, NamedPair])
@pytest.mark.parametrize("reduced", [None, "bfloat16", "float32"])
def test_values_with_names_between_modules(kind, reduced, way):
    """Tensors in dataclasses and named tuples are cast, and their gradients are awaited, as those of tuples are."""

    def made():
        pydist.manual_seed(0)
        return nn.Sequential(Begin(kind), Between(), Between(), End())

    def work(rank):
        model, plain = made(), made()
        policy = MixedPrecisionPolicy(reduced and pydist.bfloat16, reduced and getattr(pydist, reduced))
        shard_each(model, mp_policy=policy)
        if reduced:
            sixteen_bits_beside(model, plain, lambda step: values(2, 4, seed=step), policy, near=0.01)
        else:
            train_beside_ddp(model, plain, lambda step: values(2, 4, seed=step))

    run_ranks(2, work)


class Recording(nn.Linear):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.seen, self.made = [], []

    def forward(self, x, *others):
        self.seen.append([t.dtype for t in (x, *others)])
        y = super().forward(x.to(self.weight.dtype))
        self.made.append(y.dtype)
        return y


def test_dtypes_of_inputs_and_outputs():
    """One layer of 16 bits: it casts, the user does, or its output does."""

    def made():
        return nn.Sequential(Recording(4, 4), Recording(4, 4))

    def work(rank):
        half, single = pydist.float16, pydist.float32
        for layer, policy, wanted in (
            (1, MixedPrecisionPolicy(half), [single, half]),
            (1, MixedPrecisionPolicy(half, cast_forward_inputs=False), [single, single]),
            (0, MixedPrecisionPolicy(half, output_dtype=single), [half, single]),
        ):
            model = made()
            fully_shard(model[layer], mp_policy=policy)
            fully_shard(model)
            model(pydist.zeros(2, 4)).sum().backward()
            assert [module.seen for module in model] == [[[dtype]] for dtype in wanted]

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.one, self.two = Recording(4, 4), Recording(4, 4)

            def forward(self, x):
                return self.two(self.one(x), pydist.ones(2, 4))  # one that comes from outside

        for casts in (True, False):
            model = Model()
            fully_shard(model.two, mp_policy=MixedPrecisionPolicy(half, cast_forward_inputs=casts))
            fully_shard(model, mp_policy=MixedPrecisionPolicy(half))
            model(pydist.zeros(2, 4)).sum().backward()
            assert model.one.seen == [[half]] and model.two.seen == [[half, half if casts else single]]

    run_ranks(2, work)


def test_each_module_of_a_list_casts():
    """Also the one that gets a float32 from the forward above them."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)

        def forward(self, x):
            return self.b(self.a(x).float())

    def work(rank):
        model = Model()
        policy = MixedPrecisionPolicy(pydist.bfloat16)
        fully_shard([model.a, model.b], mp_policy=policy)
        out = fully_shard(model, mp_policy=policy)(values(2, 4))
        out.sum().backward()
        assert out.dtype == pydist.bfloat16 and all(p.grad is not None for p in model.parameters())

    run_ranks(2, work)


@pytest.mark.parametrize("what", ["inputs", "outputs"])
def test_a_checkpoint_casts_again(what, way):
    """What backward computes again has the dtypes of the forward."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.outputs = Recording(4, 4), []

        def run(self, x):
            x = self.layer(x)
            self.outputs.append(x.dtype)
            return x

        def forward(self, x):
            x = x.to(pydist.float32 if what == "inputs" else pydist.bfloat16)
            return checkpoint(self.run, x, use_reentrant=False, early_stop=False).float().sum()

    def work(rank):
        model, low = Model(), pydist.bfloat16
        single = None if what == "inputs" else pydist.float32
        policy = MixedPrecisionPolicy(low, low, output_dtype=single, cast_forward_inputs=what == "inputs")
        fully_shard(model.layer, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
        model(values(3, 4)).backward()
        assert model.layer.seen == [[low]] * 2 and model.outputs == [single or low] * 2

    run_ranks(2, work)


@pytest.mark.parametrize("low", ["bfloat16", "float16"])
def test_norms_between_16_bits(low):
    """A layer norm of 16 bits, and batch norms, which compute in float32 and give their results in 16 bits."""
    low = getattr(pydist, low)
    policy = MixedPrecisionPolicy(low)

    def work(rank):
        x, image = values(4, 8), values(3, 1, 9, 9)
        of_norm = MixedPrecisionPolicy(output_dtype=low)
        for first, norm, last, its, value in (
            (nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8), policy, x),
            (nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8), of_norm, x),
            (nn.Conv2d(1, 5, 3), nn.BatchNorm2d(5), nn.Conv2d(5, 4, 3), of_norm, image),
        ):
            fully_shard(norm, mp_policy=its)
            model = nn.Sequential(first, norm, last)
            for module in (first, last, model):
                fully_shard(module, mp_policy=policy)
            out = model(value)
            out.sum().backward()
            assert out.dtype == low and all(p.grad is not None for p in model.parameters())

    run_ranks(2, work)


def test_a_model_that_was_made_in_16_bits(way):
    """After .to(float32) it steps float32 parameters; gradients are rounded to the policy's 16 bits."""

    def work(rank):
        low = pydist.bfloat16
        model = nn.Sequential(nn.Linear(8, 8, dtype=low), nn.Linear(8, 8, dtype=low))
        policy = MixedPrecisionPolicy(low, low)
        assert policy.reduce_dtype == low
        shard_each(model, mp_policy=policy).to(pydist.float32)
        model(values(4, 8)).sum().backward()
        for p in model.parameters():
            grad = whole(p.grad)
            assert p.dtype == grad.dtype == pydist.float32 and pydist.equal(grad, grad.to(low).float())

    run_ranks(2, work)


def test_directional_derivatives(way):
    """Of a function that runs a sharded module on values from outside: they do not depend on its argument."""

    def work(rank):
        low = pydist.bfloat16
        with pydist.device("meta"):
            encode, decode = nn.Linear(8, 6, bias=False), nn.Linear(6, 4, bias=False)
        for module in (encode, decode):
            policy = MixedPrecisionPolicy(low, pydist.float32)
            fully_shard(module, mp_policy=policy, reshard_after_forward=False).to_empty(device="cpu")
            with pydist.no_grad():
                module.weight.normal_()
        encoded = encode(pydist.ones(8, dtype=low))
        point, direction = pydist.ones(4, dtype=low, requires_grad=True), pydist.ones(4, dtype=low)
        out, derivative = pydist.func.jvp(lambda unused: decode(encoded), (point,), (direction,))
        assert out.shape == (4,) and out.dtype == low and not derivative.any()

    run_ranks(2, work)
