"""DTensor: parts and wholes, redistribution with gradients, elementwise ops, random fills, norms, what is refused."""

import copy
import gc
import itertools
import pickle
import weakref

import pytest

import pydist
from pydist import distributed as dist
from pydist import nn
from pydist.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
    empty,
    full,
    init_device_mesh,
    ones,
    rand,
    randn,
    zeros,
)
from pydist.nn.utils import clip_grad_norm_, get_total_norm
from pydist.testing import run_ranks


def numbers(*shape):
    count = 1
    for n in shape:
        count *= n
    return pydist.arange(float(count)).view(shape)


PLACEMENTS = [Shard(0), Shard(1), Replicate()]


@pytest.mark.parametrize("world", [1, 2, 3])
def test_every_redistribution(world):
    """Of uneven shapes, also with fewer rows than ranks; values and gradients."""

    def work(rank):
        mesh = init_device_mesh("cpu", (world,))
        for shape in ((5, 4), (2, 7), (1, 1), (0, 3)):
            x = numbers(*shape)
            for a, b in itertools.product(PLACEMENTS, PLACEMENTS):
                start = distribute_tensor(x, mesh, [a]).requires_grad_()
                moved = start.redistribute(placements=[b])
                assert moved.placements == (b,) and moved.shape == x.shape
                assert pydist.equal(moved.full_tensor(), x)
                weights = distribute_tensor(x + 1, mesh, [b])
                (moved * weights).to_local().sum().backward()
                assert start.grad.placements == (a,)
                assert pydist.equal(start.grad.full_tensor(), x + 1), (shape, a, b)
            summands = DTensor.from_local(x * (rank + 1), mesh, [Partial()])
            for b in PLACEMENTS:
                assert pydist.equal(summands.redistribute(placements=[b]).full_tensor(), x * sum(range(1, world + 1)))
            apart = distribute_tensor(x, mesh, [Shard(0)]).redistribute(placements=[Partial()])
            assert pydist.equal(apart.full_tensor(), x)

    run_ranks(world, work)


def test_two_dimensions_of_a_mesh():
    def work(rank):
        mesh, x = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b")), numbers(7, 6)
        every = list(itertools.product(PLACEMENTS, PLACEMENTS))
        for a in every:
            start = distribute_tensor(x, mesh, a)
            for b in every:
                assert pydist.equal(start.redistribute(placements=b).full_tensor(), x), (a, b)
        assert distribute_tensor(x, mesh, [Shard(0), Shard(0)]).to_local().shape[0] in (1, 2)
        assert distribute_tensor(x, mesh["b"], [Shard(1)]).to_local().shape == (7, 3)

    run_ranks(4, work)


def test_from_and_to_local():
    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        local = pydist.full((3 - rank, 2), float(rank + 1), requires_grad=True)
        x = DTensor.from_local(local, mesh, [Shard(0)], shape=(5, 2))
        assert x.shape == (5, 2) and x.full_tensor().sum().item() == 6 + 8
        (x.full_tensor() * numbers(5, 2)).sum().backward()
        assert pydist.equal(local.grad, numbers(5, 2)[:3] if rank == 0 else numbers(5, 2)[3:])
        with pytest.raises(ValueError, match="give `shape`"):
            DTensor.from_local(local.detach(), mesh, [Shard(0)], shape=(9, 2))
        with pytest.raises(TypeError, match="plain Tensor"):
            DTensor.from_local(x, mesh, [Shard(0)])
        same = DTensor.from_local(pydist.full((2,), float(rank)), mesh, [Replicate()], run_check=True)
        assert same.to_local().tolist() == [0.0, 0.0]
        shared = pydist.ones(2, requires_grad=True)
        y = DTensor.from_local(shared, mesh, [Replicate()])
        y.to_local(grad_placements=[Partial()]).mul(rank + 1).sum().backward()
        assert shared.grad.tolist() == [3.0, 3.0]

    run_ranks(2, work)


def test_distribute_takes_the_source_rank():
    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        x = pydist.full((4,), float(rank))
        assert distribute_tensor(x, mesh, [Shard(0)]).full_tensor().tolist() == [0.0] * 4
        assert distribute_tensor(x, mesh, [Shard(0)], src_data_rank=1).full_tensor().tolist() == [1.0] * 4
        own = distribute_tensor(x, mesh, [Shard(0)], src_data_rank=None)
        assert own.full_tensor().tolist() == [0.0, 0.0, 1.0, 1.0]
        leaf = distribute_tensor(nn.Parameter(x), mesh)
        assert leaf.requires_grad and leaf.is_leaf and leaf.placements == (Replicate(),)

    run_ranks(2, work)


def test_elementwise_ops_and_optimizers():
    def work(rank):
        mesh, x = init_device_mesh("cpu", (2,)), numbers(5, 3)
        d = distribute_tensor(x, mesh, [Shard(0)])
        for fn in (
            lambda t: t * 2 + 1,
            lambda t: t.sin() / (t + 1),
            lambda t: (t > 4) & (t < 9),
            lambda t: pydist.where(t > 4, t, -t),
            lambda t: t.clone().mul_(3).sub_(t).clamp_(max=5),
            lambda t: t.double().to(pydist.float16),
            lambda t: pydist.zeros_like(t) + pydist.ones_like(t),
            lambda t: t.detach().data,
            lambda t: t.lerp(t * 3, 0.5),
        ):
            result = fn(d)
            assert isinstance(result, DTensor) and pydist.equal(result.full_tensor(), fn(x))
        p, q = nn.Parameter(d), nn.Parameter(x.clone())
        assert isinstance(p, nn.Parameter) and isinstance(p, DTensor) and p.shape == x.shape and len(p) == 5
        assert p.numel() == 15 and p.stride() == (3, 1) and p.size(0) == 5 and p.nbytes == 60 and p.dim() == 2
        for param in (p, q):
            rule = pydist.optim.AdamW([param], lr=0.1)
            for _ in range(3):
                rule.zero_grad()
                y = param * param * 3
                (y.to_local() if isinstance(y, DTensor) else y).sum().backward()
                rule.step()
        assert pydist.equal(p.full_tensor(), q)

    run_ranks(2, work)


def test_values_of_the_whole():
    """Random fills do not depend on how many ranks there are."""

    def work(rank, world):
        mesh = init_device_mesh("cpu", (world,))
        pydist.manual_seed(3)
        drawn = [pydist.rand(5, 4), pydist.randn(5, 4), pydist.empty(5, 4).exponential_()]
        for place in PLACEMENTS:
            pydist.manual_seed(3)
            where = dict(device_mesh=mesh, placements=[place])
            mine = [rand(5, 4, **where), randn((5, 4), **where), empty(5, 4, **where).exponential_()]
            assert all(pydist.equal(a.full_tensor(), b) for a, b in zip(mine, drawn, strict=True))
            assert ones(3, 2, **where).full_tensor().sum().item() == 6
            assert zeros(3, 2, **where).full_tensor().sum().item() == 0
            assert full((3, 2), 7.0, **where, dtype=pydist.float64).full_tensor().tolist() == [[7.0, 7.0]] * 3

    for world in (1, 2, 3):
        run_ranks(world, work, world)


def test_norms_count_each_element_once():
    def work(rank):
        mesh = init_device_mesh("cpu", (2, 2))
        x, y, z = numbers(7, 3), numbers(2, 2) * 0.3, numbers(3) - 8
        pydist.manual_seed(0)
        spread = [
            distribute_tensor(x, mesh, [Replicate(), Shard(0)]),
            distribute_tensor(y, mesh, [Shard(1), Shard(0)]),
            z,
        ]
        for kind in (2.0, float("inf"), float("-inf"), 1.0, 3.0, 0.0):
            a, b = get_total_norm(spread, kind), get_total_norm([x, y, z], kind)
            assert isinstance(a, DTensor) and abs(a.item() - b.item()) <= 1e-6 * abs(b.item()), kind
        assert get_total_norm(spread).item() == get_total_norm([x, y, z]).item()
        p = nn.Parameter(distribute_tensor(x, mesh, [Shard(0), Shard(0)]))
        p.grad = distribute_tensor(x, mesh, [Shard(0), Shard(0)])
        before = clip_grad_norm_([p], 1.0)
        assert before.full_tensor().item() == get_total_norm([x]).item()
        assert abs(get_total_norm([p.grad]).item() - 1) < 1e-5
        with pytest.raises(ValueError, match="expected Shard and Replicate"):
            get_total_norm([DTensor.from_local(z, mesh, [Partial(), Replicate()])])

    run_ranks(4, work)


def test_copies_and_pickles():
    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        x = nn.Parameter(distribute_tensor(numbers(3, 2), mesh, [Shard(0)]))
        for other in (copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
            assert type(other) is type(x) and other.requires_grad and other.placements == x.placements
            assert pydist.equal(other.full_tensor(), x.full_tensor())
        x.detach().copy_(numbers(3, 2) + 5)
        assert x.full_tensor().sum().item() == 45
        x.detach().copy_(distribute_tensor(numbers(3, 2), mesh, [Shard(1)]))
        assert pydist.equal(x.full_tensor(), numbers(3, 2))
        assert repr(x).startswith("DTensor(local_tensor=")
        chunk = x.__create_chunk_list__()[0]
        assert tuple(chunk.offsets) == ((0, 0) if rank == 0 else (2, 0))
        assert tuple(chunk.sizes) == tuple(x.to_local().shape)
        assert DTensor.from_local(pydist.tensor(3.0), mesh).item() == 3.0 and float(ones(1, device_mesh=mesh)) == 1
        assert (x > 2).tolist() == (numbers(3, 2) > 2).tolist()

    run_ranks(2, work)


def test_modules():
    def work(rank):
        mesh = init_device_mesh("cpu", (2,))

        def partition(name, module, mesh):
            if isinstance(module, nn.Linear):
                module.weight = nn.Parameter(distribute_tensor(module.weight.detach(), mesh, [Shard(0)]))

        net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
        distribute_module(net, mesh, partition, lambda m, args, mesh: (args[0] + 1,))
        assert net[0].weight.placements == (Shard(0),) and net[0].bias.placements == (Replicate(),)
        assert isinstance(net[0].bias, nn.Parameter) and isinstance(net[1].running_mean, DTensor)

    run_ranks(2, work)


def test_what_is_refused():
    def work(rank):
        mesh, other = init_device_mesh("cpu", (2,)), init_device_mesh("cpu", (1, 2))
        x = distribute_tensor(numbers(4, 4), mesh, [Shard(0)])
        y = distribute_tensor(numbers(4, 4), other, [Replicate(), Shard(0)])
        for fn in (lambda: x.numpy(), lambda: x.data_ptr(), lambda: x.storage()):
            with pytest.raises(NotImplementedError, match=r"DTensor.*to_local\(\)"):
                fn()
        for fn in (
            lambda: x + numbers(4, 4),
            lambda: nn.functional.linear(numbers(1, 4), x),
            lambda: numbers(4, 4).add_(x),
            lambda: x.add_(numbers(4, 4)),
        ):
            with pytest.raises(RuntimeError, match=r"got mixed torch.Tensor and DTensor"):
                fn()
        with pytest.raises(RuntimeError, match="got DTensors on two meshes"):
            x + y
        with pytest.raises(ValueError, match="expected 1, one for each"):
            distribute_tensor(numbers(2), mesh, [Shard(0), Shard(0)])
        with pytest.raises(IndexError, match="expected -1 to 0"):
            distribute_tensor(numbers(2), mesh, [Shard(1)])
        with pytest.raises(TypeError, match="a placement is 3"):
            distribute_tensor(numbers(2), mesh, [3])
        with pytest.raises(ValueError, match="expected one kind of Partial"):
            DTensor.from_local(numbers(2), other, [Partial("sum"), Partial("max")])
        with pytest.raises(ValueError, match="expected the tensor's"):
            x.redistribute(other, [Shard(0), Shard(0)])
        with pytest.raises(RuntimeError, match="expected .4, 4."):
            x.copy_(numbers(3, 4))
        assert Shard(0) == Shard(0) and str(Shard(1)) == "S(1)" and hash(Partial()) == hash(Partial("sum"))

    run_ranks(2, work)


def test_nothing_is_left_of_a_mesh():
    def work(rank):
        x = distribute_tensor(numbers(4, 4), init_device_mesh("cpu", (2,)), [Shard(0)])
        return (x * 2).full_tensor().sum().item()

    assert run_ranks(2, work) == [240.0, 240.0]
    assert dist.get_world_size() == 1


def test_ops_on_parts_of_a_sum():
    """Linear ones keep parts of the result's sum; before others the parts are summed. Copies keep parts of any kind."""

    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        local = pydist.tensor([rank + 1.0, -2.0, 0.5])
        for kind, whole in (("sum", pydist.tensor([3.0, -4.0, 1.0])), ("avg", pydist.tensor([1.5, -2.0, 0.5]))):
            x = DTensor.from_local(local.clone(), mesh, [Partial(kind)])
            for fn in (
                lambda t: -t + t.clone() * 3,
                lambda t: pydist.sub(t * 2, t, alpha=4) / 8,
                lambda t: 2 * t.double(),
                lambda t: t * pydist.tensor(0.25),
                lambda t: t.clone().mul_(4).div_(2).add_(t).copy_(t),
                lambda t: t.clone().fill_(1),
                lambda t: t.clone().copy_(pydist.tensor(2.0)),
            ):
                assert fn(x).placements == x.placements and pydist.equal(fn(x).full_tensor(), fn(whole)), kind
            for fn in (
                lambda t: t + 1, lambda t: 1 - t, lambda t: t * t, lambda t: 1 / t, lambda t: t / t, lambda t: t.exp(),
                lambda t: t > 0, lambda t: t.relu(), lambda t: t**2, lambda t: t.sign(), lambda t: t.long(),
            ):  # fmt: skip
                assert fn(x).placements == (Replicate(),) and pydist.equal(fn(x).full_tensor(), fn(whole)), kind
            with pytest.raises(RuntimeError, match="add_: this rank's part of a DTensor"):
                x.clone().add_(1)
            assert pydist.ones_like(x).placements == (Replicate(),) and pydist.ones_like(x).sum().item() == 3
            assert pydist.zeros_like(x).full_tensor().tolist() == [0.0] * 3
            x.copy_(whole + 1)
            assert pydist.equal(x.full_tensor(), whole + 1)
        most = DTensor.from_local(local, mesh, [Partial("max")])
        assert most.clone().double().placements == (Partial("max"),)
        assert most.clone().double().full_tensor().tolist() == [2.0, -2.0, 0.5]
        for fn in (lambda t: -t, lambda t: t + t, lambda t: t * 2):
            assert pydist.equal(fn(most).full_tensor(), fn(pydist.tensor([2.0, -2.0, 0.5])))
        made = ones(3, device_mesh=mesh, placements=[Partial()])
        assert made.full_tensor().tolist() == [1.0] * 3

    run_ranks(2, work)


def test_every_kind_of_partial():
    """To it and back the values stay; a gradient is there for sums and means."""

    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        values = pydist.tensor([-3.0, 2.0, 0.5])
        for kind in ("sum", "avg", "max", "min", "product"):
            there = DTensor.from_local(values, mesh, [Replicate()]).redistribute(placements=[Partial(kind)])
            assert pydist.equal(there.full_tensor(), values), kind
        leaf = values.clone().requires_grad_()
        DTensor.from_local(leaf, mesh, [Partial("avg")]).full_tensor().sum().backward()
        assert leaf.grad.tolist() == [0.5] * 3
        with pytest.raises(NotImplementedError, match=r"the gradient of .* is not there \(expected Partial of a sum"):
            DTensor.from_local(leaf, mesh, [Partial("max")]).full_tensor().sum().backward()
        with pytest.raises(ValueError, match="Partial: reduce_op is 'foo'"):
            Partial("foo")

    run_ranks(2, work)


def test_leaves_that_are_shared_take_one_message():
    """The weights of norms between activations that are cut: their gradients are added over the ranks together, once."""

    def chain(x, weights):
        for w in weights:
            x = nn.functional.layer_norm(x, (6,), w).tanh()
        return (x * x).sum()

    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        group, x, weights = mesh.get_group(0), numbers(4, 6), [pydist.rand(6) + i for i in range(5)]
        plain = [w.clone().requires_grad_() for w in weights]
        chain(x, plain).backward()
        parts = [distribute_tensor(w, mesh, [Replicate()]).requires_grad_() for w in weights]
        loss = chain(distribute_tensor(x, mesh, [Shard(0)]), parts)
        before = group.counted["steps"]
        loss.backward()
        assert group.counted["steps"] == before + 1
        for a, b in zip(plain, parts, strict=True):
            assert pydist.allclose(a.grad, b.grad.full_tensor(), atol=1e-6) and b.grad.placements == (Replicate(),)
        seen = []
        parts[0].register_hook(lambda grad: seen.append(grad.full_tensor()))
        loss = chain(distribute_tensor(x, mesh, [Shard(0)]), parts)
        for a, b in zip(plain, pydist.autograd.grad(loss, parts), strict=True):
            assert pydist.allclose(a.grad, b.full_tensor(), atol=1e-6)
        assert pydist.allclose(seen[0], plain[0].grad, atol=1e-6)

    run_ranks(2, work)


def test_functions_and_hooks_get_dtensors():
    class Twice(pydist.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            assert isinstance(x, DTensor) and isinstance(grad, DTensor) and grad.shape == x.shape
            return (grad * 2).redistribute(placements=[Replicate()])

    def work(rank):
        mesh, seen = init_device_mesh("cpu", (2,)), []
        x = distribute_tensor(numbers(5, 2), mesh, [Shard(0)]).requires_grad_()
        y = Twice.apply(x)
        assert isinstance(y, DTensor) and y.placements == (Shard(0),)
        y.register_hook(lambda grad: seen.append(grad.shape) or grad * 3)
        y.sum().backward()
        assert pydist.equal(x.grad.full_tensor(), pydist.full((5, 2), 6.0)) and seen == [(5, 2)]
        z = pydist.utils.checkpoint.checkpoint(lambda t: (t * t).sin().sum(), x, use_reentrant=False)
        x.grad = None
        z.backward()
        assert pydist.allclose(x.grad.full_tensor(), (numbers(5, 2) ** 2).cos() * 2 * numbers(5, 2), atol=1e-5)

    run_ranks(2, work)


def test_plans_do_not_grow():
    from pydist import _C

    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        w = distribute_tensor(numbers(6, 4), mesh, [Shard(0)])
        for step in range(300):
            x = distribute_tensor(numbers(1 + step % 7, 4), mesh, [Replicate()])
            nn.functional.linear(x, w).relu().sum()
            if step == 20:
                dist.barrier()
                plans = _C.spread_plans()
        dist.barrier()
        return plans, _C.spread_plans()

    for before, after in run_ranks(2, work):
        assert after <= before + 2 and after <= 4096


def test_plans_know_what_attributes_mean():
    """A call has no use for the plan of one with another number, if what the op does to parts depends on it."""

    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        x = DTensor.from_local(numbers(2, 2) * (rank + 1), mesh, [Partial()])
        for value in (0.0, 1.0, 0.0, 2):
            padded = nn.functional.pad(x, (1, 1), value=value)
            assert padded.placements == (Replicate() if value else Partial(),)
            assert pydist.equal(padded.full_tensor(), nn.functional.pad(numbers(2, 2) * 3, (1, 1), value=value)), value
        q = distribute_tensor(pydist.rand(2, 2, 5, 4), mesh, [Shard(0)])
        attend = nn.functional.scaled_dot_product_attention
        for p in (0.0, 1.0, 0.0):
            assert bool((attend(q, q, q, dropout_p=p).full_tensor() == 0).all()) == (p == 1), p

    run_ranks(2, work)


def test_plans_keep_no_tensors():
    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        table = distribute_tensor(numbers(6, 4), mesh, [Shard(0)])
        ids = distribute_tensor(pydist.tensor([0, 5, 3]), mesh)
        nn.functional.embedding(ids, table).full_tensor()
        nn.functional.dropout(table, 0.5).mean()
        gone = weakref.ref(table), weakref.ref(ids)
        del table, ids
        gc.collect()
        return [ref() is None for ref in gone]

    assert run_ranks(2, work) == [[True, True]] * 2


def test_dropout_is_that_of_one_process():
    pydist.manual_seed(5)
    whole = nn.functional.dropout(pydist.ones(7, 5), 0.4)

    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        for place in (Replicate(), Shard(0), Shard(1), Partial()):
            x = distribute_tensor(pydist.ones(7, 5), mesh, [Replicate()]).redistribute(placements=[place])
            pydist.manual_seed(5)
            assert pydist.equal(nn.functional.dropout(x, 0.4).full_tensor(), whole), place

    run_ranks(2, work)


def test_blocks_are_not_cut():
    """5 heads of 3 features on 2 ranks: the cut falls between heads, and a view shows that."""

    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        x, w = numbers(2, 4), numbers(15, 4)
        y = nn.functional.linear(distribute_tensor(x, mesh), distribute_tensor(w, mesh, [Shard(0, 3)]))
        assert y.placements == (Shard(1, 3),) and y.to_local().shape == (2, 9 if rank == 0 else 6)
        heads = y.view(2, 5, 3)
        assert heads.placements == (Shard(1),) and heads.to_local().shape[1] == (3 if rank == 0 else 2)
        assert heads.flatten(1).placements == (Shard(1, 3),)
        assert pydist.allclose(heads.full_tensor(), nn.functional.linear(x, w).view(2, 5, 3))

    run_ranks(2, work)
