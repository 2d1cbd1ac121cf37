"""DTensors and bad input: sizes that leave ranks without rows, operands that do not belong together, ranks that differ,
groups that are gone. Every mismatch ends on all ranks, with a text that says what was wrong."""

import gc
import itertools
import operator
import os
import signal
import threading
import time

import numpy as np
import pytest

import pydist
from lib import ranks as engine
from lib.processes import within
from pydist import _C, nn
from pydist import distributed as dist
from pydist.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, init_device_mesh, zeros
from pydist.testing import RankFailed, run_ranks

MIXED = r"got mixed torch.Tensor and DTensor: .*\(expected DTensors, or `with implicit_replication\(\):`"


def numbers(*shape):
    count = 1
    for n in shape:
        count *= n
    return pydist.arange(float(count)).view(shape)


def fails(*cases):
    """Each (error, text, function) fails so; the function gets nothing."""
    for error, text, call in cases:
        with pytest.raises(error, match=text):
            call()


# ---- sizes


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("size", [0, 1, 5])
def test_few_rows(size, world):
    """Ranks without rows take part in everything; values and gradients are the whole's."""
    fns = (
        lambda t: t * 2 + 1, lambda t: t.sum(), lambda t: t.sum(0), lambda t: t.sum(1), lambda t: t.t() @ t,
        lambda t: t @ t.t(), lambda t: t.softmax(1), lambda t: t.softmax(0), lambda t: t.reshape(-1), lambda t: t.t(),
        lambda t: pydist.cat([t, t]), lambda t: pydist.stack([t, t], 1), lambda t: t.view(-1, 1, 2, 2) if t.numel() else t,
        lambda t: t.flip(0), lambda t: t.cumsum(0), lambda t: t[:1], lambda t: t.unsqueeze(0), lambda t: t.exp().mean(1),
        lambda t: t.square().mean() if t.numel() else t, lambda t: t.norm(), lambda t: t.std(1) if t.numel() else t,
    )  # fmt: skip

    def work(rank):
        mesh, x = init_device_mesh("cpu", (world,)), (numbers(size, 4) + 1) / 7
        places = [Shard(0), Shard(1), Replicate()]
        for a, b in itertools.product(places, places):
            assert pydist.equal(distribute_tensor(x, mesh, [a]).redistribute(placements=[b]).full_tensor(), x)
        for i, fn in enumerate(fns):
            q = x.clone().requires_grad_()
            want = fn(q)
            want.square().sum().backward()
            for place in (Shard(0), Shard(1)):
                d = distribute_tensor(x, mesh, [place]).requires_grad_()
                got = fn(d)
                assert isinstance(got, DTensor) and got.shape == want.shape, (i, place)
                assert pydist.allclose(got.full_tensor(), want, atol=1e-5), (i, place)
                got.square().sum().backward()
                assert pydist.allclose(d.grad.full_tensor(), q.grad, rtol=1e-4, atol=1e-4), (i, place)

    run_ranks(world, work)


@pytest.mark.filterwarnings("error:add has no rule for DTensors")  # its shapes do not fit
def test_wrong_sizes():
    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        d, part = distribute_tensor(numbers(5, 2), mesh, [Shard(0)]), pydist.ones(2)
        fails(
            (RuntimeError, "add: shapes .5, 2. and .4, 2.", lambda: d + distribute_tensor(numbers(4, 2), mesh, [Shard(0)])),
            (RuntimeError, "cannot be multiplied: got .5, 2. and .5, 2.", lambda: d @ d),
            (IndexError, r"sum: dimension 5 out of range", lambda: d.sum(5)),
            (IndexError, "index 7 is out of range for dimension 0 .expected -5 to 4.", lambda: d[7]),
            (IndexError, "index 9 is out of range for dimension 0 of size 5", lambda: d[pydist.tensor([9])]),
            (IndexError, "too many indices: got 3", lambda: d[0, 0, 0]),
            (IndexError, "float32", lambda: d[pydist.tensor([0.5])]),
            (ValueError, "slice step is -1", lambda: d[::-1]),
            (RuntimeError, "view|reshape", lambda: d.view(3, 3)),
            (TypeError, "len.. of a 0-d tensor", lambda: len(d[0, 0])),
            (ValueError, "expected .[45]. of the whole's .9.", lambda: DTensor.from_local(part, mesh, [Shard(0)], shape=(9,))),
            (ValueError, "give `shape`", lambda: DTensor.from_local(part, mesh, [Shard(0)], shape=(4, 1))),
            (ValueError, "give `shape`", lambda: DTensor.from_local(part, mesh, [Shard(0)], shape=(-4,))),
            (ValueError, "give `shape`", lambda: DTensor.from_local(part, mesh, [Replicate()], shape=(4,))),
            (IndexError, "expected -1 to 0", lambda: DTensor.from_local(part, mesh, [Shard(1)])),
            (ValueError, "expected 1, one for each", lambda: DTensor.from_local(part, mesh, [Shard(0)] * 2)),
            (TypeError, "local_tensor is list", lambda: DTensor.from_local([1.0], mesh, [Shard(0)])),
            (RuntimeError, "negative", lambda: zeros(-1, device_mesh=mesh)),
            (RuntimeError, "shape .5, 2. .expected one element", lambda: (d.clone().requires_grad_() * 2).backward()),
            (RuntimeError, "shape .5, 2. is ambiguous", lambda: bool(d)),
            (RuntimeError, "has 10 elements", lambda: d.item()),
            (IndexError, "expected -2 to 1", lambda: d.redistribute(placements=[Shard(2)])),
            (TypeError, "a placement is 'R'", lambda: d.redistribute(placements="R")),
        )  # fmt: skip
        assert d.sum().item() == 45.0 and bool(d[0, 1]) and not bool(d[0, 0]) and 9.0 in d and 10.0 not in d

    run_ranks(2, work)


# ---- operands


def test_parts_that_are_summands():
    """An op that is not linear adds them first; in place it cannot."""

    def work(rank):
        mesh, x = init_device_mesh("cpu", (2,)), pydist.tensor([1.0, -2.0, 4.0])
        d = DTensor.from_local(x / 2, mesh, [Partial()])
        for fn in (
            lambda t: t.exp(), lambda t: t.relu(), lambda t: t * t, lambda t: t + 1, lambda t: t > 0, lambda t: t.softmax(0),
            lambda t: t.sort()[0], lambda t: t.long(), lambda t: t.amax(), lambda t: 1 / t, lambda t: t.abs().sqrt(),
        ):  # fmt: skip
            assert pydist.allclose(fn(d).full_tensor().double(), fn(x).double())
        for fn in (operator.methodcaller("relu_"), operator.methodcaller("add_", 1), operator.methodcaller("exp_")):
            copy = d.clone()
            with pytest.raises(
                RuntimeError, match=r"_: this rank's part of a DTensor .*expected redistribute\(\) before"
            ):
                fn(copy)
            assert pydist.equal(copy.full_tensor(), x)
        most = DTensor.from_local(x * (rank + 1), mesh, [Partial("max")])
        assert (-most).full_tensor().tolist() == [-2.0, 2.0, -8.0] and (most + most).full_tensor().tolist() == [
            4.0,
            -4.0,
            16.0,
        ]

    run_ranks(2, work)


def test_views_across_a_cut():
    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        for shape, views in (
            ((4, 6), ((24,), (2, 12), (3, 8), (4, 2, 3), (6, 4))),
            ((5, 2), ((10,), (2, 5), (1, 5, 2))),
        ):
            x = numbers(*shape)
            for place, view in itertools.product((Shard(0), Shard(1)), views):
                d = distribute_tensor(x, mesh, [place]).requires_grad_()
                v = d.view(view)
                assert v.shape == view and pydist.equal(v.full_tensor(), x.view(view))
                (v * distribute_tensor(x.view(view), mesh)).sum().backward()
                assert pydist.equal(d.grad.full_tensor(), x)

    run_ranks(2, work)


def test_plain_operands():
    """Also where a layer passes them on: its weights, or a batch for weights that are cut."""

    def work(rank):
        mesh, x = init_device_mesh("cpu", (2,)), numbers(4, 4)
        d = distribute_tensor(x, mesh, [Shard(0)])
        layer = nn.Linear(4, 4)
        cut = nn.Linear(4, 4)
        cut.weight = nn.Parameter(distribute_tensor(cut.weight.detach(), mesh, [Shard(0)]))
        for call in (
            lambda: d + x, lambda: x + d, lambda: d @ x, lambda: pydist.cat([d, x]), lambda: pydist.where(d > 0, d, x),
            lambda: layer(d), lambda: cut(x), lambda: nn.functional.linear(x, d), lambda: nn.functional.mse_loss(d, x),
            lambda: nn.Sequential(nn.Linear(4, 4), cut)(x),
            lambda: nn.functional.gaussian_nll_loss(d, x, x),
            lambda: nn.LayerNorm(4)(d), lambda: nn.Conv2d(1, 1, 1)(distribute_tensor(numbers(2, 1, 2, 2), mesh, [Shard(0)])),
            lambda: d.clone().add_(x), lambda: d.clone().mul_(x), lambda: d.lerp(x, 0.5),
        ):  # fmt: skip
            with pytest.raises(RuntimeError, match=MIXED):
                call()
        for call in (
            lambda: x.clone().add_(d),
            lambda: x.clone().copy_(d),
            lambda: pydist.add(d, 1, out=pydist.empty(4, 4)),
        ):
            with pytest.raises(RuntimeError, match="got mixed torch.Tensor and DTensor"):
                call()
        assert pydist.equal((d * pydist.tensor(2.0)).full_tensor(), x * 2)
        with pytest.raises(
            RuntimeError, match="data: got mixed torch.Tensor and DTensor: a DTensor cannot become a plain"
        ):
            d.data = x
        with pytest.raises(RuntimeError, match="data: got mixed"):
            x.data = d
        other = d.clone()
        other.data = d.redistribute(placements=[Replicate()])
        assert other.placements == (Replicate(),) and pydist.equal(other.to_local(), x)

    run_ranks(2, work)


def test_two_meshes():
    def work(rank):
        first, second = init_device_mesh("cpu", (2,)), init_device_mesh("cpu", (1, 2))
        a = distribute_tensor(numbers(4, 4), first, [Shard(0)])
        b = distribute_tensor(numbers(4, 4), second, [Replicate(), Shard(0)])
        for call in (lambda: a + b, lambda: a @ b, lambda: pydist.cat([a, b]), lambda: a.clone().add_(b)):
            with pytest.raises(RuntimeError, match=r"got DTensors on two meshes, .*\(expected one"):
                call()
        same = distribute_tensor(numbers(4, 4), init_device_mesh("cpu", (2,)), [Shard(0)])
        assert pydist.equal((a + same).full_tensor(), numbers(4, 4) * 2)

    run_ranks(2, work)


def test_results_in_other_tensors():
    def work(rank):
        mesh, x = init_device_mesh("cpu", (2,)), numbers(5, 2)
        d = distribute_tensor(x, mesh, [Shard(0)])
        for place in (Shard(0), Shard(1), Replicate()):
            out = distribute_tensor(pydist.zeros(5, 2), mesh, [place])
            assert pydist.add(d, 1, out=out) is out and out.placements == (place,)
            assert pydist.equal(out.full_tensor(), x + 1)
            other = distribute_tensor(x, mesh, [place])
            own = d.clone()
            assert own.add_(other) is own and own.placements == (Shard(0),) and pydist.equal(own.full_tensor(), x * 2)
        for name, args in (
            ("unsqueeze_", (0,)), ("squeeze_", ()), ("t_", ()), ("transpose_", (0, 1)), ("resize_", (3, 3)), ("set_", (x,)),
            ("as_strided_", ((2,), (1,))), ("fill_diagonal_", (0,)), ("resize_as_", (x,)), ("swapaxes_", (0, 1)),
        ):  # fmt: skip
            with pytest.raises(
                NotImplementedError, match=rf"^{name}: got a DTensor \(expected an op that makes a new DTensor"
            ):
                getattr(d.clone(), name)(*args)

    run_ranks(2, work)


@pytest.mark.filterwarnings("ignore:index has no rule for DTensors")  # masks
def test_sharded_indices():
    def work(rank):
        mesh, x = init_device_mesh("cpu", (2,)), numbers(5, 3)
        rows = pydist.tensor([0, 4, 1])
        for place, where in itertools.product((Shard(0), Shard(1), Replicate()), (Shard(0), Replicate())):
            d = distribute_tensor(x, mesh, [place]).requires_grad_()
            q = x.clone().requires_grad_()
            got = d[distribute_tensor(rows, mesh, [where])]
            assert pydist.equal(got.full_tensor(), q[rows])
            (got * got).sum().backward()
            (q[rows] * q[rows]).sum().backward()
            assert pydist.equal(d.grad.full_tensor(), q.grad)
            assert pydist.equal(d.detach()[d.detach() > 4].full_tensor(), x[x > 4])

    run_ranks(2, work)


def test_memory_that_is_in_several_places():
    def work(rank):
        d = distribute_tensor(numbers(4, 2), init_device_mesh("cpu", (2,)), [Shard(0)])
        for call in (
            lambda: d.data_ptr(), lambda: d.numpy(), lambda: np.asarray(d), lambda: np.array(d), lambda: memoryview(d),
            lambda: bytes(d), lambda: pydist.from_dlpack(d), lambda: d.untyped_storage(),
        ):  # fmt: skip
            with pytest.raises((NotImplementedError, BufferError), match=r"got a DTensor \(expected to_local\(\)"):
                call()

    run_ranks(2, work)


# ---- ranks that differ


def mismatch(work):
    """Both ranks get CommMismatch."""
    found = run_ranks(2, work, return_exceptions=True, timeout=30)
    assert all(isinstance(f, RankFailed) and isinstance(f.__cause__, dist.CommMismatch) for f in found), found


FULL = operator.methodcaller("full_tensor")


@pytest.mark.parametrize(
    "make, use",
    [
        (lambda rank, mesh: DTensor.from_local(numbers(2 + rank), mesh, [Shard(0)]), FULL),
        (lambda rank, mesh: DTensor.from_local(numbers(2 + rank), mesh, [Partial()]), FULL),
        (lambda rank, mesh: DTensor.from_local(numbers(2 + rank, 3), mesh, [Shard(0)]),
         lambda d: d.redistribute(placements=[Shard(1)])),
        (lambda rank, mesh: DTensor.from_local(numbers(2 + rank), mesh, [Partial()]),
         lambda d: d.redistribute(placements=[Shard(0)])),
        (lambda rank, mesh: DTensor.from_local(numbers(2).to((pydist.float32, pydist.float64)[rank]), mesh, [Shard(0)]), FULL),
        (lambda rank, mesh: DTensor.from_local(numbers(*[2] * (1 + rank)), mesh, [Shard(0)]), FULL),
        (lambda rank, mesh: distribute_tensor(numbers(4 + rank), mesh, [Shard(0)]), FULL),
        (lambda rank, mesh: distribute_tensor(numbers(4).to((pydist.float32, pydist.float64)[rank]), mesh, [Shard(0)]), FULL),
        (lambda rank, mesh: distribute_tensor(numbers(4), mesh, [Shard(0)], src_data_rank=rank), FULL),
        (lambda rank, mesh: (rank, distribute_tensor(numbers(4, 4), mesh, [Shard(0)])),
         lambda pair: pair[1].redistribute(placements=[(Replicate(), Shard(1))[pair[0]]])),
        (lambda rank, mesh: (rank, distribute_tensor(numbers(4, 4), mesh, [Shard(0)])),
         lambda pair: (pair[1].softmax(0) if pair[0] else pair[1].sum(0).full_tensor())),
        # messages of the same sizes
        (lambda rank, mesh: distribute_tensor(numbers(4, 4), mesh, [Shard(rank)], src_data_rank=None), FULL),
        (lambda rank, mesh: (rank, DTensor.from_local(numbers(4, 4), mesh, [Partial()])),
         lambda pair: pair[1].redistribute(placements=[Shard(pair[0])])),
        (lambda rank, mesh: (rank, distribute_tensor(numbers(4, 4, 4), mesh, [Shard(rank)], src_data_rank=None)),
         lambda pair: pair[1].redistribute(placements=[Shard(2)])),
    ],
)  # fmt: skip
def test_ranks_that_differ(make, use):
    mismatch(lambda rank: use(make(rank, init_device_mesh("cpu", (2,)))))


def test_a_rank_that_raises():
    def work(rank):
        d = distribute_tensor(numbers(4), init_device_mesh("cpu", (2,)), [Shard(0)])
        return d.full_tensor() if rank else 1 // 0

    first, second = run_ranks(2, work, return_exceptions=True)
    assert isinstance(first.__cause__, ZeroDivisionError) and isinstance(second.__cause__, dist.PeerFailed)


# ---- groups and processes that are gone


def test_a_closed_group():
    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        d = distribute_tensor(numbers(4, 2), mesh, [Shard(0)])
        dist.destroy_process_group(mesh.get_group())
        for call in (lambda: d.full_tensor(), lambda: d.sum().item(), lambda: d.softmax(0), lambda: d.tolist()):
            with pytest.raises(dist.DistError, match="the group was destroyed"):
                call()
        assert d.to_local().shape == (2, 2) and repr(d).startswith("DTensor(") and (d * 2).to_local().sum().item() >= 0

    run_ranks(2, work)


def test_threads():
    """Threads of a rank use its DTensors; each op is called on all ranks in the same order."""

    def work(rank):
        d, found = distribute_tensor(numbers(8, 2), init_device_mesh("cpu", (2,)), [Shard(0)]), []

        def use():
            for _ in range(50):
                found.append(((d * 2).sum(1) + 1).to_local().tolist())

        threads = [threading.Thread(target=use) for _ in range(3)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        alone = threading.Thread(target=lambda: found.append(d.full_tensor()))
        alone.start()
        alone.join()
        assert pydist.equal(found.pop(), numbers(8, 2)) and len(found) == 150 and all(f == found[0] for f in found)

    run_ranks(2, work)


def test_a_forked_child():
    """It has no groups: it computes on its parts, and raises where the others would be needed."""

    def work(rank):
        d = distribute_tensor(numbers(4), init_device_mesh("cpu", (2,)), [Shard(0)])
        if rank == 0:
            pid = os.fork()
            if not pid:
                good = (d * 2).to_local().tolist() == [0.0, 2.0]
                for call in (lambda: d.full_tensor(), lambda: d.sum().item(), lambda: d.tolist()):
                    try:
                        call()
                        good = False
                    except dist.DistError:
                        pass
                os._exit(7 if good else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        return d.full_tensor().tolist()

    assert run_ranks(2, work, processes=True, timeout=within(60)) == [[0.0, 1.0, 2.0, 3.0]] * 2


@pytest.mark.parametrize("use", ["redistribute", "matmul", "backward", "item"])
def test_a_killed_rank_of_a_mesh(use):
    def work(rank):
        mesh = init_device_mesh("cpu", (3,))
        d = distribute_tensor(pydist.ones(6, 6), mesh, [Shard(0)]).requires_grad_()
        calls = {
            "redistribute": lambda: d.redistribute(placements=[Shard(1)]), "matmul": lambda: d @ d,
            "backward": lambda: (d @ d.redistribute(placements=[Replicate()])).sum().backward(),
            "item": lambda: d.sum().item(),
        }  # fmt: skip
        begin = None
        try:
            for step in range(10**5):
                begin = time.monotonic()
                if rank == 1 and step == 20:
                    os.kill(os.getpid(), signal.SIGKILL)
                calls[use]()
        except dist.PeerFailed as error:
            return time.monotonic() - begin, "rank 1" in str(error)

    a, dead, b = run_ranks(3, work, processes=True, return_exceptions=True, timeout=within(60))
    assert isinstance(dead, RankFailed) and a[1] and b[1] and max(a[0], b[0]) < within(1), (a, dead, b)


def test_an_error_leaves_nothing_behind():
    """Half of a plan was made, or a move was refused: the next call is as ever."""

    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        d = distribute_tensor(numbers(4, 2), mesh, [Shard(0)])
        for _ in range(20):
            with pytest.raises(RuntimeError):
                d @ d
            with pytest.raises(RuntimeError):
                d + numbers(4, 2)
        gc.collect()
        assert pydist.equal((d @ d.t()).full_tensor(), numbers(4, 2) @ numbers(4, 2).t())

    run_ranks(2, work)


def test_every_allocation_may_fail():
    """Of two ranks that are threads, in moves of every kind, their gradients and plans: MemoryError where it failed, and
    PeerFailed on the other one, or it is done; nothing stays behind."""
    places = [Shard(0), Shard(1), Replicate(), Partial()]

    def prepare(rank):
        mesh = dist.device_mesh.DeviceMesh.from_group(dist.group.WORLD, "cpu")
        x = distribute_tensor(pydist.arange(15.0).view(5, 3), mesh, [Shard(1)]).requires_grad_()
        weight = distribute_tensor(pydist.ones(3), mesh).requires_grad_()

        def steps():
            for a, b in itertools.product(places, places):
                y = x.redistribute(placements=[a]).redistribute(placements=[b])
                (y.redistribute(placements=[Shard(0)]) * weight).sum().backward()

        return steps

    engine.every_allocation_fails(prepare, 307)


def test_planners_ask_for_ops_with_all_their_inputs():
    """What is missing is refused, and never read."""
    x = pydist.ones(2, 2, device="meta")
    for ask in (_C.op_is_each, _C.op_apply):
        for op, inputs in (("linear", (x,)), ("linear", (x, x)), ("add", (x,)), ("add", (x, x, x)), ("index_put", ())):
            with pytest.raises(
                ValueError, match=rf"of {op}, with \d+ bytes, {len(inputs)} inputs \(expected an op's\)"
            ):
                ask(op, inputs, _C.op_attrs(op, None, {}))
        with pytest.raises(ValueError, match=r"of linear, without weight \(expected a Tensor\)"):
            ask("linear", (x, None, None), _C.op_attrs("linear", None, {}))
    assert _C.op_is_each("add", (x, x), _C.op_attrs("add", None, {}))
    assert not _C.op_is_each("linear", (x, x, None), _C.op_attrs("linear", None, {}))
