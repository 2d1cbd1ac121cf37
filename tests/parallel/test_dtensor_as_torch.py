"""What PyTorch's tests of DTensor assert about making, redistributing and initialising, in our words, as far as
test_dtensor.py and its neighbours do not. Left out: its caches, padding of parts, and tensors that wait at their first use."""

import copy
import io
import itertools
import math
import pickle

import pytest

import pydist
from pydist import distributed as dist
from pydist import nn
from pydist.distributed.device_mesh import DeviceMesh
from pydist.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
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
from pydist.distributed.tensor._files import described, rebuild
from pydist.distributed.tensor.debug import CommDebugMode
from pydist.testing import run_ranks

C10D = pydist.ops.c10d_functional


def numbers(*shape):
    return pydist.arange(float(math.prod(shape))).view(shape)


class Mlp(nn.Module):
    def __init__(self, device=None):
        super().__init__()
        self.net1, self.net2 = nn.Linear(5, 6, device=device), nn.Linear(6, 4, device=device)
        self.register_buffer("seen", pydist.zeros(3, device=device))

    def forward(self, x):
        return self.net2(pydist.relu(self.net1(x)))


# ---- placements


def test_placements_are_values():
    some = [Shard(0), Shard(1), Shard(2), Replicate(), Partial(), Partial("avg"), Partial("max")]
    again = [Shard(0), Shard(dim=1), Shard(2), Replicate(), Partial("sum"), Partial(reduce_op="avg"), Partial("max")]
    for (i, a), (j, b) in itertools.product(enumerate(some), enumerate(again)):
        assert (a == b) == (i == j) and (a != b) == (i != j)
        assert i != j or hash(a) == hash(b)
    for p in some:
        assert isinstance(p, Placement) and copy.copy(p) is copy.deepcopy(p) is p and pickle.loads(pickle.dumps(p)) is p
        for name in (*vars(p), "other"):
            with pytest.raises(AttributeError):
                setattr(p, name, 3)
            with pytest.raises(AttributeError):
                delattr(p, name)
    assert some == again and Shard(1).is_shard() and Shard(1).is_shard(1) and not Shard(1).is_shard(0)
    assert Replicate().is_replicate() and not Replicate().is_shard() and not Replicate().is_partial()
    assert Partial("avg").is_partial() and Partial("avg").is_partial("avg") and not Partial("avg").is_partial("sum")
    assert (
        repr(Shard(1)) == "Shard(dim=1)"
        and repr(Replicate()) == "Replicate()"
        and repr(Partial()) == "Partial(reduce_op='sum')"
    )
    for bad in (lambda: Shard("0"), lambda: Shard(), lambda: Shard(1.5), lambda: Partial("mean"), lambda: Replicate(1)):
        with pytest.raises((TypeError, ValueError)):
            bad()
    assert Shard(0) != 0 and Replicate() != "R" and len({*some, *again}) == len(some)


# ---- making


def test_leaves_and_their_parts():
    def work(rank):
        mesh = init_device_mesh("cpu", (3,))
        for grad, place in itertools.product((True, False), (Shard(0), Shard(1), Replicate())):
            x = pydist.randn(9, 3, requires_grad=grad)
            d = distribute_tensor(x, mesh, [place])
            assert d.size() == (9, 3) and d.placements == (place,) and d.requires_grad is grad and d.is_leaf
            assert d.to_local().requires_grad is grad and d.device_mesh == mesh and d.stride() == (3, 1)
            assert (d.device, d.dtype, d.layout, d.ndim, d.shape) == (x.device, x.dtype, x.layout, 2, x.shape)
        assert distribute_tensor(numbers(4, 3), mesh, [Shard(-1)]).placements == (Shard(1),)
        local = DTensor.from_local(numbers(2, 3), mesh, [Shard(-1)])
        assert local.placements == (Shard(1),) and local.shape == (2, 9)
        given = [Shard(0)]
        d = DTensor.from_local(numbers(3, 3), mesh, given)
        given[0] = Replicate()
        assert d.placements == (Shard(0),)

    run_ranks(3, work)


def test_uneven_parts_are_chunks():
    def work(rank):
        mesh = init_device_mesh("cpu", (4,))
        for size, dim in itertools.product((1, 5, 6, 7, 11), range(3)):
            shape = [3, 3, 3]
            shape[dim] = size
            x = numbers(*shape)
            d, chunks = distribute_tensor(x, mesh, [Shard(dim)]), list(x.chunk(4, dim))
            assert d.shape == x.shape
            if rank < len(chunks):
                assert pydist.equal(d.to_local(), chunks[rank])
            else:
                assert d.to_local().numel() == 0 and d.to_local().dim() == 3 and d.to_local().shape[dim] == 0
            again = DTensor.from_local(d.to_local(), mesh, [Shard(dim)], shape=x.size(), stride=x.stride())
            assert again.shape == x.shape and pydist.equal(again.full_tensor(), x)

    run_ranks(4, work)


def test_what_cannot_be_distributed():
    def work(rank):
        mesh, square = init_device_mesh("cpu", (4,)), init_device_mesh("cpu", (2, 2))
        with pytest.raises(ValueError, match="placements are"):
            distribute_tensor(numbers(4, 4), square, [Shard(0)])
        with pytest.raises(RuntimeError, match="no leaf"):
            distribute_tensor(pydist.ones(4, requires_grad=True) * 2, mesh, [Shard(0)])
        with pytest.raises(TypeError, match=r"tensor is list \(expected a Tensor\)"):
            distribute_tensor([1.0], mesh, [Shard(0)])
        with pytest.raises(ValueError, match="spread over"):
            distribute_tensor(distribute_tensor(numbers(4, 4), mesh, [Shard(0)]), square, [Shard(0), Replicate()])
        d = distribute_tensor(distribute_tensor(numbers(4, 4), mesh, [Shard(0)]), mesh, [Shard(0)])
        assert d.placements == (Shard(0),)
        with pytest.raises(RuntimeError, match="placements is None"):
            d.redistribute(mesh)
        parts = DTensor.from_local(numbers(4), mesh, [Partial()])
        with pytest.raises(ValueError, match="checkpoint: a DTensor has the placements"):
            parts.__create_chunk_list__()
        made = DTensor(numbers(1, 4), d._spec, requires_grad=True)
        assert made.is_leaf and made.requires_grad and made.shape == (4, 4)
        for bad in (lambda: DTensor(numbers(1, 4), mesh), lambda: DTensor([1], d._spec)):
            with pytest.raises(TypeError, match=r"^DTensor: got .*expected a plain tensor and the _spec"):
                bad()

    run_ranks(4, work)


def test_the_mesh_of_a_with_block():
    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        with mesh:
            d = DTensor.from_local(numbers(2, 2), placements=[Shard(0)])
            assert d.device_mesh is mesh and distribute_tensor(numbers(4), placements=[Shard(0)]).to_local().shape == (
                2,
            )
            assert zeros(4, 2, placements=[Shard(0)]).to_local().shape == (2, 2)
        with pytest.raises(RuntimeError, match="no mesh is active"):
            DTensor.from_local(numbers(2, 2), placements=[Shard(0)])

    run_ranks(2, work)


def test_ranks_outside_of_the_mesh():
    def work(rank):
        mesh = DeviceMesh("cpu", [0, 2])
        d = distribute_tensor(numbers(4, 3), mesh, [Shard(0)])
        inside = rank in (0, 2)
        assert d.shape == (4, 3) and d.to_local().numel() == (6 if inside else 0)
        made = zeros(4, 3, device_mesh=mesh, placements=[Shard(0)])
        assert made.shape == (4, 3) and made.to_local().numel() == (6 if inside else 0)
        if inside:
            assert pydist.equal((d + made).full_tensor(), numbers(4, 3))

    run_ranks(3, work)


def test_functions_that_make():
    """Sizes in every form; each element as in the whole tensor."""

    def work(rank):
        mesh = init_device_mesh("cpu", (2, 2))
        for places in ([Shard(0), Shard(1)], [Replicate(), Shard(0)], [Shard(1), Shard(1)], [Replicate(), Replicate()]):
            for fn, value in ((zeros, 0.0), (ones, 1.0)):
                d = fn(5, 7, device_mesh=mesh, placements=places)
                assert d.placements == tuple(places) and pydist.equal(d.full_tensor(), pydist.full((5, 7), value))
                assert fn((5, 7), device_mesh=mesh).placements == (Replicate(), Replicate())
                assert fn([3], dtype=pydist.float64, requires_grad=True, device_mesh=mesh).requires_grad
            assert (
                full((5, 7), 3, device_mesh=mesh, placements=places, dtype=pydist.int64).full_tensor().sum().item()
                == 105
            )
            assert empty(5, 7, device_mesh=mesh, placements=places).full_tensor().shape == (5, 7)
            for fn, plain in ((rand, pydist.rand), (randn, pydist.randn)):
                pydist.manual_seed(5)
                d = fn(5, 7, device_mesh=mesh, placements=places)
                pydist.manual_seed(5)
                assert pydist.equal(d.full_tensor(), plain(5, 7))
        assert zeros(0, 3, device_mesh=mesh, placements=[Shard(0), Shard(0)]).full_tensor().shape == (0, 3)

    run_ranks(4, work)


INITS = {
    "uniform_": (-1, 2), "normal_": (0.5, 2), "trunc_normal_": (), "constant_": (3.0,), "ones_": (), "zeros_": (), "eye_": (),
    "xavier_uniform_": (), "xavier_normal_": (), "kaiming_uniform_": (), "kaiming_normal_": (), "sparse_": (0.3,),
    "orthogonal_": (),
}  # fmt: skip


@pytest.mark.parametrize("name", INITS)
def test_initialisers_by_global_index(name):
    """Each element gets the value that it would have on one rank, however the tensor lies; fans are the whole's."""

    def work(rank):
        mesh, init = init_device_mesh("cpu", (3,)), getattr(nn.init, name)
        pydist.manual_seed(11)
        expected = init(pydist.empty(5, 4), *INITS[name])
        for place in (Shard(0), Shard(1), Replicate()):
            pydist.manual_seed(11)
            d = empty(5, 4, device_mesh=mesh, placements=[place])
            assert init(d, *INITS[name]) is d and d.placements == (place,)
            assert pydist.equal(d.full_tensor(), expected), place

    run_ranks(3, work)


def test_tensors_like_another_one():
    def work(rank):
        mesh, x = init_device_mesh("cpu", (2,)), numbers(5, 3)
        d = distribute_tensor(x, mesh, [Shard(0)])
        for fn in (
            lambda t: pydist.zeros_like(t), lambda t: pydist.ones_like(t, dtype=pydist.float64),
            lambda t: pydist.full_like(t, 4.0), lambda t: pydist.rand_like(t), lambda t: pydist.randn_like(t),
            lambda t: pydist.randint_like(t, 3, 9), lambda t: pydist.randint_like(t, 4), lambda t: t.clone(),
            lambda t: pydist.rand_like(t, dtype=pydist.float64, requires_grad=True), lambda t: t.new_zeros(5, 3),
        ):  # fmt: skip
            pydist.manual_seed(2)
            a = fn(d)
            pydist.manual_seed(2)
            b = fn(x)
            assert isinstance(a, DTensor) and a.dtype == b.dtype and a.requires_grad == b.requires_grad
            assert pydist.equal(a.full_tensor(), b)
        assert pydist.empty_like(d).placements == pydist.rand_like(d).placements == (Shard(0),)

    run_ranks(2, work)


# ---- modules


def test_modules_are_distributed():
    def work(rank):
        mesh = init_device_mesh("cpu", (2,))

        def cut(name, module, mesh):
            if isinstance(module, nn.Linear):
                for key, p in list(module.named_parameters(recurse=False)):
                    module.register_parameter(key, nn.Parameter(distribute_tensor(p.detach(), mesh, [Shard(0)])))

        pydist.manual_seed(0)
        plain = Mlp()
        for partition, place in ((cut, Shard(0)), (None, Replicate())):
            net = distribute_module(copy.deepcopy(plain), mesh, partition)
            for (name, p), q in zip(net.named_parameters(), plain.parameters(), strict=True):
                assert isinstance(p, DTensor) and isinstance(p, nn.Parameter) and p.requires_grad, name
                assert p.placements == (place,) and pydist.equal(p.full_tensor(), q)
            assert net.seen.placements == (Replicate(),)
        net = distribute_module(
            copy.deepcopy(plain), mesh, cut,
            input_fn=lambda module, inputs, mesh: DTensor.from_local(inputs[0], mesh, [Shard(0)]),
            output_fn=lambda module, outputs, mesh: outputs.full_tensor(),
        )  # fmt: skip
        x = numbers(4, 5) / 9
        y = net(x[2 * rank : 2 * rank + 2])
        assert not isinstance(y, DTensor) and pydist.allclose(y, plain(x), atol=1e-6)
        y.square().sum().backward()
        plain(x).square().sum().backward()
        for p, q in zip(net.parameters(), plain.parameters(), strict=True):
            assert p.grad.placements == (Shard(0),) and pydist.allclose(p.grad.full_tensor(), q.grad, atol=1e-4)

    run_ranks(2, work)


def test_modules_on_meta():
    def work(rank):
        mesh = init_device_mesh("cpu", (2,))

        def cut(name, module, mesh):
            for key, p in list(module.named_parameters(recurse=False)):
                module.register_parameter(key, nn.Parameter(distribute_tensor(p.detach(), mesh, [Shard(0)])))

        net = distribute_module(Mlp("meta"), mesh, cut)
        assert all(p.is_meta and p.placements == (Shard(0),) for p in net.parameters()) and net.net1.weight.shape == (
            6,
            5,
        )
        net.to_empty(device="cpu")
        for p in net.parameters():
            assert not p.is_meta and p.placements == (Shard(0),)
            nn.init.ones_(p)
        assert net.net2.weight.full_tensor().sum().item() == 24.0

    run_ranks(2, work)


def test_states_of_modules(tmp_path):
    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        pydist.manual_seed(rank)

        def cut(name, module, mesh):
            for key, p in list(module.named_parameters(recurse=False)):
                module.register_parameter(key, nn.Parameter(distribute_tensor(p.detach(), mesh, [Shard(0)])))

        net, other = (distribute_module(Mlp(), mesh, cut) for _ in range(2))
        assert [name for name, _ in net.named_parameters()] == [name for name, _ in Mlp().named_parameters()]
        state = net.state_dict()
        assert all(isinstance(v, DTensor) for v in state.values())
        assert str(other.load_state_dict(state)) == "<All keys matched successfully>"
        pydist.save(state, tmp_path / f"{rank}.pt")
        third = distribute_module(Mlp(), mesh, cut)
        third.load_state_dict(pydist.load(tmp_path / f"{rank}.pt"))
        fourth = distribute_module(Mlp(), mesh, cut)
        fourth.load_state_dict({key: v.full_tensor() for key, v in state.items()})  # wholes, the same on all ranks
        for also in (other, third, fourth, copy.deepcopy(net)):
            for (name, p), q in zip(also.named_parameters(), net.parameters(), strict=True):
                assert p.placements == q.placements and pydist.equal(p.full_tensor(), q.full_tensor()), name
        with pytest.raises(RuntimeError, match="size mismatch"):
            net.load_state_dict({**state, "net1.weight": distribute_tensor(numbers(4, 5), mesh, [Shard(0)])})
        double = copy.deepcopy(net).double()
        assert all(p.dtype is pydist.float64 and isinstance(p, DTensor) for p in double.parameters())

    run_ranks(2, work)


def test_files_keep_placements():
    def work(rank):
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
        for t in (numbers(5, 2), nn.Parameter(numbers(3)), numbers(3).long(), numbers(0, 2)):
            for place in (Shard(0), Replicate()):
                d = distribute_tensor(t.detach(), mesh, [place])
                d = nn.Parameter(d) if isinstance(t, nn.Parameter) else d
                file = io.BytesIO()
                pydist.save([d, d.to_local().detach()], file)
                for safe in (True, False):
                    again, local = pydist.load(io.BytesIO(file.getvalue()), weights_only=safe)
                    assert type(again) is type(d) and again.requires_grad == d.requires_grad
                    assert again.placements == (place,) and again.device_mesh == mesh
                    assert pydist.equal(again.full_tensor(), t.detach()) and pydist.equal(local, d.to_local().detach())

    run_ranks(2, work)


def test_descriptions_in_files_that_are_wrong():
    """A file says what its DTensors are parts of; nothing else can be made by it."""

    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        local, key, places, shape, grad, shared = described(distribute_tensor(numbers(4, 2), mesh, [Shard(0)]))
        assert shared == 0 and pydist.equal(rebuild(local, key, places, shape, grad).full_tensor(), numbers(4, 2))
        for bad in (
            (local, key, places, (9, 2), grad), (local, key, places, (-4, 2), grad), (local, key, places, [4, 2], grad),
            (local, key, (("Shard", 5, 1),), shape, grad), (local, key, (("Other",),), shape, grad), (local, key, (), shape, grad), (local, key, places, shape, grad, 2), (local, key, places, shape, grad, "x"),
            (local, ("cpu", (0, 1), ((0, 7),), None), places, shape, grad), (local, ("disk", *key[1:]), places, shape, grad),
            (local, ("cpu", (0, 1), ((),), None), places, shape, grad), (3, key, places, shape, grad),
            (local, ("cpu", (0, 1), ((0, 1),), ("a", "b")), places, shape, grad), (local, (), places, shape, grad),
            (local, ("cpu", (1, 0), ((0, 1),), None), places, shape, grad), (local, key, (("Shard", "x", 1),), shape, grad),
        ):  # fmt: skip
            with pytest.raises((ValueError, IndexError, RuntimeError, TypeError), match="expected"):
                rebuild(*bad)

    run_ranks(2, work)


# ---- redistribution: the collectives of both directions


def counted(start, places, weights):
    """(result, collectives forward, collectives backward)"""
    with CommDebugMode() as forward:
        end = start.redistribute(placements=places)
    with CommDebugMode() as backward:
        end.to_local().backward(weights)
    return end, *(
        {key.default.name().partition("::")[2]: n for key, n in mode.get_comm_counts().items()}
        for mode in (forward, backward)
    )


@pytest.mark.parametrize("shape, dim", [((8, 3), 0), ((5, 6), 0), ((5, 6), 1), ((2, 5), 1), ((1, 7, 3), 1)])
def test_collectives_of_both_directions(shape, dim):
    gather, reduce = {"all_gather_into_tensor": 1}, {"all_reduce": 1}
    table = [
        (Shard(dim), Replicate(), gather, {}), (Replicate(), Replicate(), {}, {}), (Replicate(), Shard(dim), {}, gather),
        (Partial(), Replicate(), reduce, {}), (Partial(), Shard(dim), {"reduce_scatter_tensor": 1}, gather),
        (Shard(dim), Shard(dim), {}, {}),
        (Shard(dim), Shard((dim + 1) % len(shape)), {"all_to_all_single": 1}, {"all_to_all_single": 1}),
    ]  # fmt: skip

    def work(rank):
        mesh, x = init_device_mesh("cpu", (2,)), numbers(*shape) + 1
        for a, b, there, back in table:
            if a.is_partial():
                start = DTensor.from_local(x / 2, mesh, [a]).detach().requires_grad_()
            else:
                start = distribute_tensor(x, mesh, [a]).requires_grad_()
            weights = distribute_tensor(x * 3, mesh, [Replicate() if b.is_partial() else b]).to_local()
            end, forward, backward = counted(start, [b], weights)
            assert end.placements == (b,) and end.shape == x.shape and end.requires_grad
            assert (forward, backward) == (there, back), (a, b)
            assert pydist.equal(end.detach().full_tensor(), x) and (a is not b or end is start)
            assert start.grad.placements == (Replicate() if a.is_partial() else a,)
            assert pydist.equal(start.grad.full_tensor(), x * 3)

    run_ranks(2, work)


def test_gradients_that_are_summands():
    """to_local(grad_placements): the ranks' gradients of a replica are added."""

    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        d = distribute_tensor(numbers(4, 3), mesh, [Replicate()]).requires_grad_()
        with CommDebugMode() as mode:
            (d.to_local(grad_placements=[Partial()]) * (rank + 1)).sum().backward()
        assert mode.get_comm_counts()[C10D.all_reduce] == 1 and d.grad.full_tensor().tolist() == [[3.0] * 3] * 4
        d.grad = None
        whole = d.full_tensor(grad_placements=[Partial()])
        (whole * (rank + 1)).sum().backward()
        assert d.grad.placements == (Replicate(),) and d.grad.to_local().tolist() == [[3.0] * 3] * 4
        s = distribute_tensor(numbers(4, 3), mesh, [Shard(0)]).requires_grad_()
        (s.full_tensor(grad_placements=[Partial()]) * (rank + 1)).sum().backward()
        assert s.grad.placements == (Shard(0),) and s.grad.full_tensor().tolist() == [[3.0] * 3] * 4

    run_ranks(2, work)


def test_gradients_of_means():
    """A mean over what ranks have is Partial("avg"): its gradient is the whole's, wherever backward begins."""
    fns = (lambda t: t.mean(), lambda t: nn.functional.mse_loss(t, t.detach() * 2), lambda t: t.square().mean() * 3,
           lambda t: t.mean(0), lambda t: t.sum())  # fmt: skip

    def work(rank):
        mesh, x = init_device_mesh("cpu", (2,)), numbers(4, 2)
        for fn in fns:
            q = x.clone().requires_grad_()
            fn(q).sum().backward()
            for begin in (
                lambda y: y.backward(distribute_tensor(pydist.ones(tuple(y.shape)), mesh)),
                lambda y: pydist.autograd.backward([y], [distribute_tensor(pydist.ones(tuple(y.shape)), mesh)]),
                lambda y: y.full_tensor().sum().backward(), lambda y: y.to_local().sum().backward(),
                lambda y: y.redistribute(placements=[Replicate()]).sum().backward(),
                lambda y: y.to_local(grad_placements=[Replicate()]).sum().backward(),
            ):  # fmt: skip
                d = distribute_tensor(x, mesh, [Shard(0)]).requires_grad_()
                begin(fn(d))
                assert pydist.allclose(d.grad.full_tensor(), q.grad)
            d = distribute_tensor(x, mesh, [Shard(0)]).requires_grad_()
            if fn(x).dim() == 0:
                fn(d).backward()
                assert pydist.allclose(d.grad.full_tensor(), q.grad)
                (grad,) = pydist.autograd.grad(fn(d), d)
                assert pydist.allclose(grad.full_tensor(), q.grad)

    run_ranks(2, work)


def test_gradients_of_a_mean_on_the_way():
    """Hooks and autograd.grad see the whole's gradient of a Partial("avg"), too."""

    def work(rank):
        mesh, x = init_device_mesh("cpu", (2,)), numbers(4, 2)
        for fn in (lambda t: t.mean(), lambda t: t.mean(0), lambda t: t.sum(0), lambda t: t * 2):
            seen = []
            for leaf in (distribute_tensor(x, mesh, [Shard(0)]).requires_grad_(), x.clone().requires_grad_()):
                y = fn(leaf)
                y.register_hook(lambda g: g * 3)
                y.register_hook(lambda g: seen.append(g.clone()))
                (y * 5).sum().backward()
                seen += [leaf.grad, pydist.autograd.grad((fn(leaf) * 7).sum(), leaf)[0]]
                middle = fn(leaf)
                seen += pydist.autograd.grad((middle * middle).sum(), middle)
            for got, want in zip(seen[:4], seen[4:], strict=True):
                assert isinstance(got, DTensor) and pydist.allclose(got.full_tensor(), want)

    run_ranks(2, work)


def test_dtypes_of_redistribution():
    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        d = distribute_tensor(numbers(4, 3), mesh, [Shard(0)]).requires_grad_()
        low = d.redistribute(placements=[Replicate()], forward_dtype=pydist.bfloat16, backward_dtype=pydist.float32)
        assert low.dtype is pydist.bfloat16
        low.to_local().sum().backward()
        assert d.grad.dtype is pydist.float32 and d.grad.full_tensor().tolist() == [[1.0] * 3] * 4
        waits = d.redistribute(placements=[Replicate()], async_op=True)
        assert pydist.equal(waits.to_local(), numbers(4, 3))

    run_ranks(2, work)


def test_every_way_over_two_dimensions():
    """Also where both dimensions of the mesh cut one of the tensor, and parts are uneven; Partial there and back."""
    every = list(itertools.product([Shard(0), Shard(1), Replicate(), Partial()], repeat=2))

    def work(rank):
        mesh, x = init_device_mesh("cpu", (2, 2)), numbers(3, 5)
        for a, b in itertools.product(every, every):
            start = distribute_tensor(x, mesh, [Replicate() if p.is_partial() else p for p in a]).redistribute(
                placements=a
            )
            end = start.redistribute(placements=b)
            assert end.placements == b and pydist.equal(end.full_tensor(), x), (a, b)

    run_ranks(4, work)


# ---- what a DTensor says of itself


def test_specs():
    def work(rank):
        mesh = init_device_mesh("cpu", (2, 2))
        d = distribute_tensor(numbers(4, 6, 2), mesh, [Shard(1), Replicate()])
        spec = d._spec
        assert spec.mesh is spec.device_mesh is mesh and spec.placements == (Shard(1), Replicate())
        assert spec.tensor_meta.shape == spec.shape == (4, 6, 2) and spec.tensor_meta.stride == spec.stride == (
            12,
            2,
            1,
        )
        assert (spec.ndim, spec.dim_map, spec.num_shards, spec.sums) == (3, [-1, 0, -1], 2, [])
        parts = DTensor.from_local(numbers(3), mesh, [Shard(0), Partial()])._spec
        assert (parts.dim_map, parts.num_shards, parts.sums) == ([0], 2, [1])
        again = distribute_tensor(numbers(4, 6, 2), mesh, [Shard(1), Replicate()])._spec
        assert again == spec and hash(again) == hash(spec) and pickle.loads(pickle.dumps(spec)) == spec
        assert again != d.redistribute(placements=[Shard(0), Replicate()])._spec
        assert parts != spec
        chunk = distribute_tensor(numbers(5, 3), mesh, [Shard(0), Shard(1)]).__create_chunk_list__()[0]
        assert tuple(chunk.offsets) == ((0, 3)[rank // 2], (0, 2)[rank % 2])
        assert tuple(chunk.sizes) == ((3, 2)[rank // 2], (2, 1)[rank % 2])

    run_ranks(4, work)


def test_lists_of_tensors_at_once():
    """_foreach functions, which optimizers and clipping use."""

    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        x, y = numbers(5, 2) + 1, numbers(3) + 1
        a, b = distribute_tensor(x, mesh, [Shard(0)]), distribute_tensor(y, mesh, [Replicate()])
        for fn in (
            lambda l: pydist._foreach_add(l, 1.5), lambda l: pydist._foreach_add(l, l, alpha=2),
            lambda l: pydist._foreach_mul(l, [2.0, 3.0]), lambda l: pydist._foreach_lerp(l, l, 0.5),
            lambda l: pydist._foreach_addcdiv(l, l, l, value=2), lambda l: pydist._foreach_norm(l),
            lambda l: pydist._foreach_norm(l, 1), lambda l: pydist._foreach_sqrt(pydist._foreach_abs(l)),
        ):  # fmt: skip
            for got, want in zip(fn([a, b]), fn([x, y]), strict=True):
                assert isinstance(got, DTensor) and pydist.allclose(got.full_tensor(), want)
        pydist._foreach_mul_([a, b], 2.0)
        assert pydist.equal(a.full_tensor(), x * 2) and pydist.equal(b.full_tensor(), y * 2)

    run_ranks(2, work)


@pytest.mark.parametrize("rule", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "LAMB"])
def test_training_as_on_one_rank(rule):
    """Weights cut along different dimensions, clipping, an optimizer: as one process computes."""

    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        pydist.manual_seed(0)
        plain = Mlp()
        net = copy.deepcopy(plain)
        for layer, place in ((net.net1, Shard(0)), (net.net2, Shard(1))):
            layer.weight = nn.Parameter(distribute_tensor(layer.weight.detach(), mesh, [place]))
            layer.bias = nn.Parameter(
                distribute_tensor(layer.bias.detach(), mesh, [Shard(0) if place.dim == 0 else Replicate()])
            )
        steps = [getattr(pydist.optim, rule)(m.parameters(), lr=0.01) for m in (net, plain)]
        x = pydist.randn(6, 5)
        for _ in range(3):
            net(distribute_tensor(x, mesh, [Replicate()])).square().mean().backward()
            plain(x).square().mean().backward()
            norms = [nn.utils.clip_grad_norm_(m.parameters(), 0.1) for m in (net, plain)]
            assert abs(norms[0].item() - norms[1].item()) < 1e-5
            for step in steps:
                step.step()
                step.zero_grad()
        for (name, p), q in zip(net.named_parameters(), plain.named_parameters(), strict=True):
            assert pydist.allclose(p.full_tensor(), q[1], atol=2e-5), name

    run_ranks(2, work)


def test_slices_of_a_mesh_carry_tensors():
    def work(rank):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        d = distribute_tensor(numbers(4, 4), mesh["tp"], [Shard(1)])
        assert d.device_mesh.mesh_dim_names == ("tp",) and d.to_local().shape == (4, 2)
        assert pydist.equal((d @ d.t()).full_tensor(), numbers(4, 4) @ numbers(4, 4).t())
        flat = mesh._flatten("all")
        e = distribute_tensor(numbers(8), flat, [Shard(0)])
        assert e.to_local().tolist() == [2.0 * rank, 2.0 * rank + 1] and dist.get_world_size(flat.get_group()) == 4
        assert distribute_tensor(numbers(4, 4), mesh["tp"], [Shard(1)])._spec == d._spec

    run_ranks(4, work)


# ---- what PyTorch's test files found


@pytest.mark.parametrize("dtype", [pydist.bfloat16, pydist.float16])
def test_autocast_of_operands_with_two_dtypes(dtype):
    """As on plain tensors: a layer's result is 16 bits wide, the next layer's weight is not."""

    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        pydist.manual_seed(0)
        plain = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 4), nn.RMSNorm(4))
        net, x = copy.deepcopy(plain), pydist.randn(6, 8)
        for layer, place in ((net[0], Shard(0)), (net[3], Shard(1))):
            layer.weight = nn.Parameter(distribute_tensor(layer.weight.detach(), mesh, [place]))
        distribute_module(net, mesh)
        with pydist.autocast("cpu", dtype=dtype):
            got, want = net(distribute_tensor(x, mesh)), plain(x)
        assert got.dtype == want.dtype and pydist.allclose(got.full_tensor().float(), want.float(), atol=3e-2)
        got.float().square().mean().backward()
        want.float().square().mean().backward()
        for a, b in zip(net.parameters(), plain.parameters(), strict=True):
            assert a.grad.dtype == b.grad.dtype and pydist.allclose(a.grad.full_tensor(), b.grad, atol=3e-2)

    run_ranks(2, work)


def test_ranks_outside_of_the_mesh_have_no_elements():
    """Ops do nothing there, whatever they would do on the mesh."""

    def work(rank):
        mesh = DeviceMesh("cpu", [0, 1])
        made = [
            DTensor.from_local(numbers(4, 3), mesh, [Shard(0)]), distribute_tensor(numbers(8, 3), mesh, [Shard(1)]),
            randn(8, 3, device_mesh=mesh, placements=[Shard(0)]),
        ]  # fmt: skip
        ops = [
            lambda d: d @ d.t(), lambda d: pydist.cat([d, d]), lambda d: d.softmax(1), lambda d: d.norm(), lambda d: d.exp().mean(0),
            lambda d: d.add_(1), lambda d: d.redistribute(placements=[Replicate()]), lambda d: d.uniform_(), lambda d: d.clone(),
            lambda d: d.split(4)[0], lambda d: d.new_zeros(8, 3),
        ]  # fmt: skip
        for d in made:
            assert d.equal(d) and d.shape == (8, 3)
            results = [op(d) for op in ops]
            shapes = [tuple(r.shape) for r in results]
            assert shapes == [(8, 8), (16, 3), (8, 3), (), (3,), *[(8, 3)] * 4, (4, 3), (8, 3)]
            if rank == 2:
                assert all(tuple(r.to_local().shape) == tuple(r.full_tensor().shape) == (0,) for r in [d, *results])

    run_ranks(3, work)


def test_counts_are_there_inside_of_the_block():
    def work(rank):
        x, counts = distribute_tensor(numbers(4), init_device_mesh("cpu", (2,)), [Shard(0)]), []
        with CommDebugMode() as mode:
            for _ in range(2):
                x.full_tensor()
                counts.append(
                    (mode.get_total_counts(), dict(mode.get_comm_counts()), mode.comm_counts[C10D.all_reduce])
                )
        gather = C10D.all_gather_into_tensor
        assert counts == [(1, {gather: 1}, 0), (2, {gather: 2}, 0)] and mode.get_total_counts() == 2

    run_ranks(2, work)


def test_complex_tensors_are_distributed():
    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        x = pydist.complex(numbers(4, 2), numbers(4, 2) + rank)
        for place in (Shard(0), Replicate(), Partial()):
            got = distribute_tensor(x, mesh, [place]).full_tensor()
            assert got.equal(pydist.complex(numbers(4, 2), numbers(4, 2)))
        checked = DTensor.from_local(x, mesh, [Replicate()], run_check=True)
        assert checked.to_local().imag.equal(numbers(4, 2))

    run_ranks(2, work)


def test_groups_say_their_size_and_rank_in_both_ways():
    def work(rank):
        group = init_device_mesh("cpu", (2,)).get_group()
        assert group.size() == group.size == 2 and group.rank() == group.rank == rank and type(group.size()) is int
        assert type(pickle.loads(pickle.dumps(group.size))) is int and [5, 6][group.rank] == 5 + rank
        assert group.name() == "pydist" and group.group_name != dist.group.WORLD.group_name
        with pytest.raises(TypeError, match="expected none"):
            group.size(1)
        outside = dist.new_group([0])
        assert rank == 0 or outside.size() == outside.rank() == -1

    run_ranks(2, work)


def test_functions_that_count():
    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        numbers_of = distribute_tensor(pydist.tensor([1, 1, 2, 5, 3]), mesh, [Shard(0)])
        assert pydist.bincount(numbers_of).full_tensor().tolist() == [0, 2, 1, 1, 0, 1]
        assert pydist.bincount(numbers_of, distribute_tensor(pydist.ones(5), mesh)).full_tensor().sum() == 5
        assert distribute_tensor(numbers(8), mesh, [Shard(0)]).histc(4).full_tensor().tolist() == [2.0] * 4
        weight = distribute_tensor(pydist.ones(4, 2), mesh, [Shard(1)]).requires_grad_()
        index = distribute_tensor(pydist.tensor([1, 1, 2]), mesh)
        nn.functional.embedding(index, weight, scale_grad_by_freq=True).sum().backward()
        assert weight.grad.full_tensor()[:, 0].tolist() == [0, 1, 1, 0]

    run_ranks(2, work)


def test_strides_are_those_of_the_order_in_memory():
    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        for x in (numbers(8, 12), numbers(2, 3, 4).permute(2, 0, 1), numbers(4, 1, 6).transpose(0, 2)):
            for dim in range(x.dim()):
                spread = distribute_tensor(x.contiguous(), mesh, [Shard(dim)])
                assert spread.stride() == x.contiguous().stride() and spread.is_contiguous()
        t = distribute_tensor(numbers(8, 12), mesh, [Shard(0)])
        assert t.t().stride() == (1, 12) and t.t().stride(1) == 12 and not t.t().is_contiguous()
        assert t.expand(3, 8, 12).stride() == (0, 12, 1)

    run_ranks(2, work)


def test_new_tensors_lie_as_the_one_whose_sizes_they_have():
    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        x, summands = (
            distribute_tensor(numbers(8, 4), mesh, [Shard(0)]),
            distribute_tensor(numbers(3), mesh, [Partial()]),
        )
        for new in (
            x.new_zeros(8, 4), x.new_ones((8, 4)), x.new_full((8, 4), 3.0), x.new_empty(8, 4), x.new_empty_strided((8, 4), (4, 1)),
        ):  # fmt: skip
            assert new.placements == (Shard(0),) and new.to_local().shape == (4, 4)
        assert x.new_full((2, 2), 3.0).placements == summands.new_zeros(3).placements == (Replicate(),)
        assert x.new_full((8, 4), 3.0, dtype=pydist.float64).full_tensor().sum().item() == 96
        assert pydist.ones_like(summands).full_tensor().tolist() == [1.0] * 3 and summands.to_local()[1] == 1 - rank

    run_ranks(2, work)


def test_a_module_is_distributed_once():
    net, mesh = nn.Linear(2, 2), init_device_mesh("cpu", (1,))
    distribute_module(net, mesh)
    with pytest.raises(RuntimeError, match="distributed already"):
        distribute_module(net, mesh)
    assert pydist.zero_(pydist.fill_(pydist.empty(2), 3.0)).tolist() == [0, 0]
    assert pydist.ones(2).new_empty_strided((2, 3), (1, 2), dtype=pydist.int64).stride() == (1, 2)
