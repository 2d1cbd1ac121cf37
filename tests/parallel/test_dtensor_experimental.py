"""local_map, register_sharding, implicit_replication, CommDebugMode, visualize_sharding, and PyTorch's old names."""

import pytest

import pydist
from pydist import nn
from pydist.distributed import _functional_collectives as funcol
from pydist.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, init_device_mesh
from pydist.distributed.tensor.debug import CommDebugMode, visualize_sharding
from pydist.distributed.tensor.experimental import implicit_replication, local_map, register_sharding
from pydist.testing import run_ranks

C10D = pydist.ops.c10d_functional


def numbers(*shape):
    count = 1
    for n in shape:
        count *= n
    return pydist.arange(float(count)).view(shape) / 7


# ---- local_map


def test_a_function_of_parts():
    def work(rank):
        mesh, w, x = init_device_mesh("cpu", (2,)), numbers(6, 4), numbers(4, 3)

        def product(mesh, w, x):
            return funcol.all_reduce(w @ x, "sum", mesh)

        f = local_map(product, [Replicate()], (None, [Shard(1)], [Shard(0)]), device_mesh=mesh)
        a, b = distribute_tensor(w, mesh, [Shard(1)]), distribute_tensor(x, mesh, [Shard(0)])
        with CommDebugMode() as mode:
            y = f(mesh, a, b)
        assert dict(mode.get_comm_counts()) == {C10D.all_reduce: 1}
        assert y.placements == (Replicate(),) and pydist.allclose(y.to_local(), w @ x)
        assert not isinstance(f(mesh, a.to_local(), b.to_local()), DTensor)

    run_ranks(2, work)


def test_placements_that_differ():
    def work(rank):
        mesh, x = init_device_mesh("cpu", (2,)), numbers(4, 3)
        rows, columns = distribute_tensor(x, mesh, [Shard(0)]), distribute_tensor(x, mesh, [Shard(1)])
        f = local_map(lambda t: t * 2, [Shard(0)], ([Shard(0)],))
        assert pydist.equal(f(rows).full_tensor(), x * 2)
        with pytest.raises(ValueError, match=r"argument 0 has placements \(Shard\(dim=1\),\) .*redistribute_inputs"):
            f(columns)
        moving = local_map(lambda t: t * 2, [Shard(0)], ([Shard(0)],), redistribute_inputs=True)
        assert pydist.equal(moving(columns).full_tensor(), x * 2)

        @local_map(out_placements=([Shard(0)], None), in_placements=([Shard(0)], None))
        def two(t, n):
            return t + n, n

        made, n = two(rows, 3)
        assert n == 3 and pydist.equal(made.full_tensor(), x + 3)
        for bad in (
            lambda: local_map(lambda t: t, [Shard(0)], (None,))(rows),
            lambda: local_map(lambda t: t, [Shard(0)], ([Shard(0)], None))(rows),
            lambda: local_map(lambda t: 3, [Shard(0)])(rows),
            lambda: local_map(lambda t: (t, t), [Shard(0)])(rows),
            lambda: local_map(lambda t: rows, [Shard(0)])(rows),
            lambda: local_map(lambda t, n: t, [Shard(0)], ([Shard(0)], [Shard(0)]))(rows, 3),
            lambda: local_map(lambda t: t, [Shard(0)], None, (None,))(rows),
        ):
            with pytest.raises(AssertionError, match=r"^local_map: .*\(expected"):
                bad()
        plain = local_map(lambda t: t, [Shard(0)], ([Shard(1)],))(numbers(2))
        assert not isinstance(plain, DTensor)

    run_ranks(2, work)


def test_gradients_through_local_map():
    """The gradient of a replicated argument is a summand on each rank, which in_grad_placements says."""

    def work(rank):
        mesh, w, x = init_device_mesh("cpu", (2,)), numbers(3, 2), numbers(4, 3)
        p, q = distribute_tensor(w, mesh, [Replicate()]).requires_grad_(), w.clone().requires_grad_()
        f = local_map(lambda x, w: x @ w, [Shard(0)], ([Shard(0)], [Replicate()]), ([Shard(0)], [Partial()]))
        f(distribute_tensor(x, mesh, [Shard(0)]), p).square().sum().backward()
        (x @ q).square().sum().backward()
        assert pydist.allclose(p.grad.full_tensor(), q.grad)

    run_ranks(2, work)


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_local_map_of_uneven_parts(world, rows):
    def work(rank):
        mesh, x = init_device_mesh("cpu", (world,)), numbers(rows, 2)
        d = distribute_tensor(x, mesh, [Shard(0)])
        assert pydist.equal(local_map(lambda t: t * 2, [Shard(0)])(d).full_tensor(), x * 2)
        pairs = local_map(lambda t: t.sum(1), [Shard(0)])(d)
        assert pairs.shape == (rows,) and pydist.equal(pairs.full_tensor(), x.sum(1))
        if rows == 5:
            with pytest.raises(ValueError, match=r"the ranks' parts of a result have sizes .*\(expected"):
                local_map(lambda t: t.new_zeros(1 if rank == 0 else 2), [Shard(0)])(d)

    run_ranks(world, work)


# ---- register_sharding


def softmax_rule(x, dim, half_to_float):
    dim %= x.ndim
    return [([Replicate()], [Replicate(), None, None])] + [
        ([Shard(d)], [Shard(d), None, None]) for d in range(x.ndim) if d != dim
    ]


@pytest.mark.parametrize(
    "op", [pydist.ops.aten._softmax.default, pydist.ops.aten.softmax, "softmax", pydist.softmax], ids=str
)
def test_a_rule_of_a_program(registered, op):
    """In the place of the rule that the op has: without an offer of columns, columns are gathered."""
    seen = []

    @register_sharding(op)
    def rule(x, dim, half_to_float):
        seen.append((tuple(x.shape), x.dtype, x.placements, x.tensor_meta.shape, dim))
        return softmax_rule(x, dim, half_to_float)[:2]

    def work(rank):
        mesh, x = init_device_mesh("cpu", (2,)), numbers(4, 6, 2)
        d = distribute_tensor(x, mesh, [Shard(0)]).requires_grad_()
        with CommDebugMode() as mode:
            y = pydist.softmax(d, -1)
        assert y.placements == (Shard(0),) and not mode.get_total_counts()
        y.square().sum().backward()
        plain = x.clone().requires_grad_()
        pydist.softmax(plain, -1).square().sum().backward()
        assert pydist.allclose(d.grad.full_tensor(), plain.grad)
        with CommDebugMode() as mode:
            y = pydist.softmax(distribute_tensor(x, mesh, [Shard(1)]), -1)
        assert y.placements == (Shard(0),) and mode.get_comm_counts()[C10D.all_to_all_single] == 1
        assert pydist.allclose(y.full_tensor(), pydist.softmax(x, -1))

    run_ranks(2, work)
    assert seen[0] == ((4, 6, 2), pydist.float32, (Shard(0),), (4, 6, 2), -1)


def test_a_rule_for_an_op_that_has_none(registered):
    @register_sharding([pydist.ops.aten.view_dtype.default])
    def rule(x, dtype):
        return [([Replicate()], [Replicate(), None]), ([Shard(0)], [Shard(0), None])]

    def work(rank):
        mesh, x = init_device_mesh("cpu", (2,)), pydist.arange(6.0).view(3, 2)
        y = distribute_tensor(x, mesh, [Shard(0)]).view(pydist.int32)
        assert y.placements == (Shard(0),) and pydist.equal(y.full_tensor(), x.view(pydist.int32))

    run_ranks(2, work)


def test_lists_of_tensors(registered):
    @register_sharding(pydist.ops.aten.cat.default)
    def rule(tensors, dim):
        n = len(tensors)
        return [([Replicate()], [Replicate()] * n + [None]), ([Shard(1)], [Shard(1)] * n + [None])]

    def work(rank):
        mesh, x = init_device_mesh("cpu", (2,)), numbers(3, 4)
        parts = [distribute_tensor(x, mesh, [Shard(0)]), distribute_tensor(x, mesh, [Shard(1)])]
        y = pydist.cat(parts)
        assert y.placements == (Shard(1),) and pydist.equal(y.full_tensor(), pydist.cat([x, x]))

    run_ranks(2, work)


def test_rules_that_do_not_fit(registered):
    with pytest.raises(ValueError, match=r"register_sharding: op is 'no_such_op' \(expected an op of pydist.ops.aten"):
        register_sharding("no_such_op")
    with pytest.raises(ValueError, match="register_sharding: op is 3"):
        register_sharding(3)

    def work(rank):
        d = distribute_tensor(numbers(4), init_device_mesh("cpu", (2,)), [Shard(0)])
        with pytest.raises(ValueError, match=r"register_sharding: .*exp.*\(expected"):
            d.exp()

    for answer in (
        [], [([Replicate()], [])], [([Replicate()] * 2, [Replicate()])], [([Shard(1)], [Shard(0)])],
        [([Shard(0)], [Shard(-1)])], [([Replicate()], ["R"])],
    ):  # fmt: skip
        register_sharding("exp")(lambda x, answer=answer: answer)
        run_ranks(2, work)


# ---- implicit_replication


def test_plain_tensors_as_replicas():
    def work(rank):
        x = numbers(4, 2)
        d = distribute_tensor(x, init_device_mesh("cpu", (2,)), [Shard(0)])
        with implicit_replication():
            with implicit_replication():
                assert pydist.equal((d + x).full_tensor(), x + x)
            assert pydist.allclose((x @ d.t()).full_tensor(), x @ x.t())
        for _ in range(2):  # also where a plan was kept
            with pytest.raises(
                RuntimeError, match=r"mixed torch.Tensor and DTensor: input 1 .*implicit_replication\(\)"
            ):
                d + x
        ids = pydist.arange(4)  # what functions of the package make beside DTensors is the same on all ranks
        places = nn.functional.one_hot(distribute_tensor(ids, d.device_mesh, [Shard(0)]), 5)
        assert pydist.equal(places.full_tensor(), nn.functional.one_hot(ids, 5))
        with pytest.raises(ZeroDivisionError), implicit_replication():
            1 // 0
        with pytest.raises(RuntimeError, match="mixed torch.Tensor and DTensor"):
            x + d

    run_ranks(2, work)


# ---- CommDebugMode


def test_counts_by_collective():
    def work(rank):
        mesh, x = init_device_mesh("cpu", (2,)), numbers(4, 6)
        d = distribute_tensor(x, mesh, [Shard(0)])
        parts = DTensor.from_local(x, mesh, [Partial()])
        mode = CommDebugMode()
        for start, end, name in (
            (d, Replicate(), "all_gather_into_tensor"), (d, Shard(1), "all_to_all_single"),
            (parts, Replicate(), "all_reduce"), (parts, Shard(0), "reduce_scatter_tensor"),
        ):  # fmt: skip
            with mode:
                start.redistribute(placements=[end])
            assert dict(mode.get_comm_counts()) == {getattr(C10D, name): 1} and mode.get_total_counts() == 1
        with mode:
            d.redistribute(placements=[Shard(0)])
            d * 2 + d
        assert mode.get_total_counts() == 0 and mode.get_comm_counts()[C10D.all_reduce] == 0
        with mode:
            funcol.all_gather_tensor(x, 0, mesh)
            pydist.distributed.all_reduce(x)
            pydist.distributed.barrier()
        assert mode.get_total_counts() == 2
        assert "all_gather_into_tensor: 1" in mode.generate_comm_debug_tracing_table(0)

    run_ranks(2, work)


def test_counts_by_module(tmp_path):
    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4))
        for k, place in ((0, Shard(0)), (2, Shard(1))):
            net[k].weight = nn.Parameter(distribute_tensor(net[k].weight.detach(), mesh, [place]))
            net[k].bias = nn.Parameter(
                distribute_tensor(net[k].bias.detach(), mesh, [Shard(0) if k == 0 else Replicate()])
            )
        with CommDebugMode(net) as mode:
            y = net(distribute_tensor(numbers(3, 4), mesh, [Replicate()])).redistribute(placements=[Replicate()])
            y.sum().backward()
        assert mode.get_comm_counts()[C10D.all_reduce] == 1
        assert mode.get_sharding_info()["Sequential.2.weight"] == (Shard(1),)
        assert set(mode.get_parameter_info()) == {"Sequential.0", "Sequential.2"}
        mode.log_comm_debug_tracing_table_to_file(tmp_path / f"{rank}.txt")
        text = (tmp_path / f"{rank}.txt").read_text()
        assert "Sequential.0\n" in text and "*weight: (Shard(dim=0),)" in text and "module type: ReLU" in text
        with pytest.raises(RuntimeError), mode:
            net(numbers(3, 5))
        assert not mode._hooks
        return mode.comm_module_counts

    run_ranks(2, work)


# ---- visualize_sharding


def test_pictures(capsys):
    def work(rank):
        mesh = init_device_mesh("cpu", (2, 2))
        visualize_sharding(distribute_tensor(numbers(5, 4), mesh, [Shard(0), Replicate()]), header="weight")
        visualize_sharding(distribute_tensor(numbers(0, 4), mesh, [Shard(0), Replicate()]))
        visualize_sharding(distribute_tensor(numbers(1), mesh, [Shard(0), Replicate()]))
        with pytest.raises(RuntimeError, match="has 3 dimensions"):
            visualize_sharding(distribute_tensor(numbers(1, 1, 1), mesh))

    run_ranks(4, work)
    assert capsys.readouterr().out == (
        "weight\n         Col 0-3\n-------  ------------\nRow 0-2  cpu:0, cpu:1\nRow 3-4  cpu:2, cpu:3\n"
        "         Col 0-0\n-------  ------------\nRow 0-0  cpu:0, cpu:1\n"
    )


def test_old_names():
    from pydist.distributed import _tensor, tensor
    from pydist.distributed._tensor import api, debug, device_mesh, placement_types
    from pydist.distributed.tensor import device_mesh as also

    assert _tensor.Shard is placement_types.Shard is api.Shard is Shard and _tensor.debug is debug
    assert device_mesh.DeviceMesh is also.DeviceMesh is tensor.DeviceMesh
    with pytest.raises(NotImplementedError, match=r"_StridedShard: got dim 0, split_factor 2 \(expected Shard"):
        placement_types._StridedShard(0, split_factor=2)


def test_strict(monkeypatch, registered):
    """An op without a rule raises, until a program gives one."""
    monkeypatch.setenv("PYDIST_DTENSOR", "strict")

    def work(rank):
        d = distribute_tensor(pydist.arange(6.0), init_device_mesh("cpu", (2,)), [Shard(0)])
        with pytest.raises(NotImplementedError, match=r"view_dtype: there is no rule .* PYDIST_DTENSOR is strict"):
            d.view(pydist.int32)
        return (d * 2).full_tensor().tolist()

    assert run_ranks(2, work)[0] == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    register_sharding("view_dtype")(lambda x, dtype: [([Shard(0)], [Shard(0), None])])
    run_ranks(
        2, lambda rank: distribute_tensor(numbers(4), init_device_mesh("cpu", (2,)), [Shard(0)]).view(pydist.int32)
    )
