"""Optimizers over shards. Those that need a whole parameter, LAMB its norms and Muon the matrix, give its bits for any
cut. Step counts are plain tensors on the CPU, as PyTorch's."""

import pytest

import pydist
from pydist import distributed as dist
from pydist import nn, optim
from pydist.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict
from pydist.distributed.device_mesh import init_device_mesh
from pydist.distributed.fsdp import FullyShardedDataParallel, fully_shard
from pydist.distributed.optim import ZeroRedundancyOptimizer
from pydist.distributed.tensor import Replicate, Shard, distribute_tensor
from pydist.nn.parallel import DistributedDataParallel
from pydist.testing import run_ranks

# Shapes with their cuts; None: a plain tensor. Some ranks have no row of the second one.
CUTS = [
    ((5, 3), Shard(0)),
    ((1, 4), Shard(0)),
    ((4, 7), Shard(1)),
    ((3, 2), Replicate()),
    ((2, 6), None),
    ((9,), Shard(0)),
]
RULES = {
    "LAMB": (optim.LAMB, {"lr": 0.1, "weight_decay": 0.1}),
    "LAMB, maximize": (optim.LAMB, {"lr": 0.1, "betas": (0.5, 0.9), "maximize": True}),
    "Muon": (optim.Muon, {"lr": 0.1}),
    "Muon, plain momentum": (optim.Muon, {"lr": 0.1, "nesterov": False, "adjust_lr_fn": "match_rms_adamw"}),
}


def values(shape, seed, dtype):
    """Numbers over 12 orders of magnitude, so that a sum in another order has other bits."""
    made = pydist.Generator().manual_seed(seed)
    return (pydist.randn(shape, generator=made) * 10 ** (6 * pydist.randn(shape, generator=made).clamp(-1, 1))).to(
        dtype
    )


def trained(rule, cuts, place, dtype, steps=3):
    """(parameters, states) of two groups."""
    made, options = RULES[rule]
    shapes = [(i, shape, cut) for i, (shape, cut) in enumerate(cuts) if made is optim.LAMB or len(shape) == 2]
    params = [nn.Parameter(place(values(shape, i, dtype), cut)) for i, shape, cut in shapes]
    if rule == "LAMB":
        params[0].data.zero_()  # its ratio is 1
    optimizer = made([{"params": params[::2]}, {"params": params[1::2], "lr": 0.02}], **options)
    for step in range(steps):
        for param, (i, shape, cut) in zip(params, shapes, strict=True):
            rests = step == 1 == i
            param.grad = None if rests else place(values(shape, 100 * step + i, dtype), cut)
        optimizer.step()
    return params, [optimizer.state[p] for p in params]


def whole(value):
    return value.detach().full_tensor() if hasattr(value, "full_tensor") else value.detach()


@pytest.mark.parametrize("dtype", [pydist.float32, pydist.float64, pydist.bfloat16], ids=str)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("world", [1, 2, 3])
def test_shards_give_the_bits_of_whole_parameters(world, rule, dtype):
    expected, states = trained(rule, CUTS, lambda value, cut: value, dtype)

    def work(rank):
        mesh = init_device_mesh("cpu", (world,))
        place = lambda value, cut: value if cut is None else distribute_tensor(value, mesh, [cut])
        params, found = trained(rule, CUTS, place, dtype)
        for i, (param, want) in enumerate(zip(params, expected, strict=True)):
            assert pydist.equal(whole(param), want.detach()), i
            assert found[i].keys() == states[i].keys()
            assert all(pydist.equal(whole(found[i][key]), value) for key, value in states[i].items()), i

    run_ranks(world, work)


def test_one_message_for_all_norms(monkeypatch):
    """Of the parameters that are sharded over the same ranks, however many groups of options they are in."""

    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        sizes, reduce = [], dist.all_reduce

        def counted(tensor, *args, **kwargs):
            sizes.append((tensor.dtype, tuple(tensor.shape)))
            return reduce(tensor, *args, **kwargs)

        if rank == 0:
            monkeypatch.setattr(dist, "all_reduce", counted)
        dist.barrier()
        cuts = [cut for cut in CUTS if isinstance(cut[1], Shard)]
        trained("LAMB", cuts, lambda value, cut: distribute_tensor(value, mesh, [cut]), pydist.float32, steps=1)
        dist.barrier()
        return sizes

    sizes = run_ranks(2, work)[0]
    assert {dtype for dtype, _ in sizes} == {pydist.int64} and len(sizes) == 2  # ranks are threads: both call it
    assert {shape[0] for _, shape in sizes} == {8}


def test_step_counts_of_sharded_models():
    """A script may call .cpu() on each entry of a state, as PyTorch's FSDP2 example does, and load what it got."""

    def work(rank):
        model = fully_shard(nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2)))
        optimizer = optim.AdamW(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            model(pydist.ones(4, 3)).sum().backward()
            optimizer.step()
        saved = {i: {key: whole(t).cpu() for key, t in s.items()} for i, s in optimizer.state_dict()["state"].items()}
        full = get_optimizer_state_dict(
            model, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
        )
        wrapped = FullyShardedDataParallel(nn.Linear(3, 5), use_orig_params=True)
        other = optim.AdamW(wrapped.parameters())
        wrapped(pydist.ones(4, 3)).sum().backward()
        other.step()
        of_fsdp1 = FullyShardedDataParallel.optim_state_dict(wrapped, other)
        for states, count in ((saved, 2), (full["state"] if rank == 0 else {}, 2), (of_fsdp1["state"], 1)):
            for state in states.values():
                assert state["step"].dtype is pydist.float32 and state["step"].shape == () and state["step"].is_cpu
                assert state["step"].item() == count
        again = optim.AdamW(model.parameters(), lr=0.1)
        again.load_state_dict({**optimizer.state_dict(), "state": saved})
        for made in (optimizer, again):
            for key, state in made.state_dict()["state"].items():
                assert all(pydist.equal(whole(t), saved[key][name]) for name, t in state.items())
        return True

    assert all(run_ranks(2, work))


@pytest.mark.parametrize("kind", ["AdamW", "SGD"])
@pytest.mark.parametrize("way", ["rows", "columns", "zero"])
def test_stochastic_rounding_does_not_depend_on_the_cut(kind, way):
    """bfloat16 parameters that are rounded at random have the bits of DistributedDataParallel."""

    def trained(rank, way):
        pydist.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 12, bias=False)).to(pydist.bfloat16)
        if way in ("rows", "columns"):
            options = {"shard_placement_fn": lambda p: Shard(1) if way == "columns" and p.dim() == 2 else Shard(0)}
            fully_shard(model[0], **options)
            wrapped = fully_shard(model, **options)
        else:
            wrapped = DistributedDataParallel(model)
        options, rule = {"lr": 0.01, "stochastic_rounding": 7}, getattr(optim, kind)
        if way == "zero":
            optimizer = ZeroRedundancyOptimizer(model.parameters(), rule, **options)
        else:
            optimizer = rule(model.parameters(), **options)
        pydist.manual_seed(rank)
        for _ in range(4):
            optimizer.zero_grad()
            wrapped(pydist.randn(4, 8).to(pydist.bfloat16)).square().sum().backward()
            optimizer.step()
        return [whole(p) for p in model.parameters()]

    def work(rank):
        for got, want in zip(trained(rank, way), trained(rank, "ddp"), strict=True):
            assert pydist.equal(got, want)

    for world in (2, 4):
        run_ranks(world, work)
