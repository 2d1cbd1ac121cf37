"""Grids of ranks, and all_to_all."""

import pytest

import pydist
from pydist import distributed as dist

run = dist.threads.run


def test_a_mesh_of_two_dimensions():
    def work(rank):
        mesh = dist.init_device_mesh("cpu", (2, 3), mesh_dim_names=("dp", "tp"))
        assert (mesh.ndim, mesh.size(), mesh.size("tp"), mesh.shape) == (2, 6, 3, (2, 3))
        assert mesh.get_coordinate() == [rank // 3, rank % 3]
        assert mesh["tp"].get_local_rank() == mesh.get_local_rank(1) == rank % 3
        x, y = pydist.tensor([float(rank)]), pydist.tensor([float(rank)])
        dist.all_reduce(x, group=mesh["dp"].get_group())
        dist.all_reduce(y, group=mesh.get_group("tp"))
        for call, kind in ((lambda: mesh["pp"], KeyError), (lambda: mesh.get_group(), RuntimeError)):
            with pytest.raises(kind):
                call()
        return x.item(), y.item()

    assert run(work, 6) == [(2.0 * (r % 3) + 3, 9.0 * (r // 3) + 3) for r in range(6)]


def test_wrong_meshes():
    def work(rank):
        for shape, names, kind in (
            ((3,), None, RuntimeError),
            ((2,), ("a", "b"), RuntimeError),
            ((0,), None, ValueError),
        ):
            with pytest.raises(kind, match="init_device_mesh"):
                dist.init_device_mesh("cpu", shape, mesh_dim_names=names)

    run(work, 2)


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_all_to_all_of_different_sizes(world):
    """Rank s has (s + 2 d) % 4 rows for rank d, of numbers that say so."""

    def part(src, dst):
        return pydist.full(((src + 2 * dst) % 4, 2), 10.0 * src + dst)

    def work(rank):
        inputs = [part(rank, d) for d in range(world)]
        expected = [part(s, rank) for s in range(world)]
        outputs = [pydist.zeros(*t.shape) for t in expected]
        dist.all_to_all(outputs, inputs)
        assert [t.tolist() for t in outputs] == [t.tolist() for t in expected]
        whole = pydist.cat(expected)
        out = pydist.zeros(*whole.shape)
        sizes = [len(t) for t in expected], [len(t) for t in inputs]
        work = dist.all_to_all_single(out, pydist.cat(inputs), *sizes, async_op=True)
        work.wait()
        assert out.tolist() == whole.tolist()
        out = pydist.zeros(world)
        dist.all_to_all_single(out, pydist.arange(world).to(pydist.float32) + 10 * rank)
        assert out.tolist() == [10.0 * r + rank for r in range(world)]

    run(work, world)


def test_split_tables_that_differ():
    def work(rank):
        out = pydist.zeros(4)
        sizes = [1, 3] if rank else [2, 2]
        with pytest.raises(dist.CommMismatch, match="rank 0 has 2 elements for rank 1, but that rank expects 1"):
            dist.all_to_all_single(out, pydist.ones(4), sizes, [2, 2])
        assert out.tolist() == [0.0] * 4

    run(work, 2)
