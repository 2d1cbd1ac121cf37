"""Grids of ranks: parts, flattened and cut dimensions, grids of groups; the same ranks as torch. And all_to_all."""

import ast
import copy
import pickle
import subprocess
import sys
import threading

import pytest

import pydist
from pydist import distributed as dist
from pydist.distributed.device_mesh import DeviceMesh, _mesh_resources, init_device_mesh

run = dist.threads.run


def summed(group):
    """The sum of the ranks of a group, by a collective."""
    x = pydist.tensor([float(dist.get_rank())])
    dist.all_reduce(x, group=group)
    return x.item()


def test_a_mesh_of_two_dimensions():
    def work(rank):
        mesh = dist.init_device_mesh("cpu", (2, 3), mesh_dim_names=("dp", "tp"))
        assert (mesh.ndim, mesh.size(), mesh.size("tp"), mesh.shape) == (2, 6, 3, (2, 3))
        assert mesh.get_coordinate() == (rank // 3, rank % 3)
        assert mesh["tp"].get_local_rank() == mesh.get_local_rank(1) == rank % 3
        x, y = pydist.tensor([float(rank)]), pydist.tensor([float(rank)])
        dist.all_reduce(x, group=mesh["dp"].get_group())
        dist.all_reduce(y, group=mesh.get_group("tp"))
        for call, kind in ((lambda: mesh["pp"], KeyError), (lambda: mesh.get_group(), RuntimeError)):
            with pytest.raises(kind):
                call()
        return x.item(), y.item()

    assert run(work, 6) == [(2.0 * (r % 3) + 3, 9.0 * (r // 3) + 3) for r in range(6)]


def test_a_mesh_of_given_ranks():
    """The ranks may stand in any order, and some may be missing."""

    def work(rank):
        for given in ([[5, 1], [3, 0]], pydist.tensor([[5, 1], [3, 0]]), pydist.tensor([[5, 3], [1, 0]]).T):
            mesh = DeviceMesh("cpu", given, mesh_dim_names=("a", "b"))
            assert mesh.mesh.dtype is pydist.int32 and mesh.mesh.tolist() == [[5, 1], [3, 0]]
            assert (mesh.shape, mesh.device_type, mesh.get_rank()) == ((2, 2), "cpu", rank)
            where = {5: (0, 0), 1: (0, 1), 3: (1, 0), 0: (1, 1)}.get(rank)
            assert mesh.get_coordinate() == where
            if where is None:
                assert mesh.get_group("a") is dist.GroupMember.NON_GROUP_MEMBER
                with pytest.raises(RuntimeError, match=rf"rank {rank} is not in the mesh .expected .5, 1, 3, 0.."):
                    mesh.get_local_rank("a")
                with pytest.raises(RuntimeError, match=rf"rank {rank} is in no part \('b',\) of the mesh"):
                    _ = mesh["b"].mesh
                assert mesh._flatten().mesh.tolist() == [5, 1, 3, 0]
                continue
            assert mesh.get_local_rank("b") == where[1] == mesh["b"].get_local_rank()
            assert mesh["b"].mesh.tolist() == [[5, 1], [3, 0]][where[0]]
            assert mesh["a"].mesh.tolist() == [[5, 3], [1, 0]][where[1]]
            assert (summed(mesh.get_group("a")), summed(mesh["b"].get_group())) == ([8, 1][where[1]], [6, 3][where[0]])
            assert (
                mesh._flatten().get_local_rank() == 2 * where[0] + where[1] and summed(mesh._flatten().get_group()) == 9
            )

    run(work, 6)


def test_parts_and_flattened_dimensions():
    def work(rank):
        mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("dp", "cp", "tp"))
        dp, cp, tp = mesh.get_coordinate()
        assert mesh["dp", "cp", "tp"] is mesh and mesh["cp", "dp"].shape == (2, 2)
        assert mesh["cp", "dp"].mesh.tolist() == mesh["dp", "cp"].mesh.T.tolist()
        flat = mesh["dp", "cp"]._flatten()
        assert flat.mesh_dim_names == ("dp_cp",) and flat.shape == (4,)
        assert flat.get_coordinate() == (2 * dp + cp,) and flat.mesh.tolist() == [tp, 2 + tp, 4 + tp, 6 + tp]
        assert summed(flat.get_group()) == 12 + 4 * tp == summed(mesh.get_group("dp_cp"))
        assert mesh["dp_cp"] is flat is mesh["dp", "cp"]._flatten() is mesh["dp", "cp"]._flatten("dp_cp")
        both = mesh["dp_cp", "tp"]
        assert both.get_coordinate() == (2 * dp + cp, tp) and both.mesh.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
        assert both.get_group("tp") is mesh.get_group("tp") and both.get_all_groups()[0] is flat.get_group()
        assert mesh._flatten("world").get_local_rank() == rank and mesh["tp"]._flatten() is not mesh
        assert mesh["tp"]._flatten("tp2").mesh.tolist() == mesh["tp"].mesh.tolist()
        with pytest.raises(ValueError, match="'dp_cp' is a dimension of .* already"):
            mesh["cp", "tp"]._flatten("dp_cp")
        with pytest.raises(ValueError, match="'dp' is a dimension of .* already"):
            mesh["cp", "tp"]._flatten("dp")
        with pytest.raises(RuntimeError, match=r"dimensions \('dp_cp', 'cp'\) overlap"):
            _ = mesh["dp_cp", "cp"]
        with pytest.raises(KeyError, match="each name once"):
            _ = mesh["dp", "dp"]
        with pytest.raises(KeyError, match="no dimension 'dp_cp'"):
            _ = mesh["dp", "tp"]["dp_cp"]  # a part knows its own names alone
        joined = DeviceMesh._concatenate([mesh["tp"], flat])
        assert joined.mesh_dim_names == ("tp", "dp_cp") and joined.mesh.tolist() == both.mesh.T.tolist()
        with pytest.raises(RuntimeError, match="overlap"):
            DeviceMesh._concatenate([mesh["dp"], flat])
        with pytest.raises(RuntimeError, match="parts of different meshes"):
            DeviceMesh._concatenate([mesh["dp"], init_device_mesh("cpu", (8,), mesh_dim_names=("x",))])

    run(work, 8)


def test_dimensions_that_are_cut():
    def work(rank):
        world = init_device_mesh("cpu", (8,), mesh_dim_names=("world",))
        mesh = world._unflatten("world", (2, 2, 2), ("dp", "cp", "tp"))
        assert mesh.shape == (2, 2, 2) and mesh.mesh.flatten().tolist() == list(range(8))
        assert mesh.get_coordinate() == (rank // 4, rank // 2 % 2, rank % 2)
        assert summed(mesh.get_group("cp")) == 2 * (rank // 4 * 4 + rank % 2) + 2
        more = mesh["dp", "tp"]._unflatten(0, (2, 1), ("out", "in"))
        assert more.mesh_dim_names == ("out", "in", "tp") and more.shape == (2, 1, 2)
        assert more.get_group("tp") is mesh.get_group("tp") and summed(more.get_group("in")) == rank
        flat = mesh["dp", "tp"]._flatten("dt")
        again = flat._unflatten(0, [2, 2], ["a", "b"])
        assert again.mesh.tolist() == mesh["dp", "tp"].mesh.tolist()
        for arguments, kind, text in (
            (("world", (2, 3), ("a", "b")), ValueError, "product is 8"),
            (("world", (8, True), ("a", "b")), ValueError, "product is 8"),
            (("world", (2, 4), ("a",)), RuntimeError, "1 names for 2 sizes"),
            (("world", (2, 4), ("a", "a")), RuntimeError, "2 different names"),
            (("pp", (2, 4), ("a", "b")), ValueError, "dim is 'pp'"),
            ((3, (2, 4), ("a", "b")), ValueError, "dim is 3"),
        ):
            with pytest.raises(kind, match=text):
                world._unflatten(*arguments)
        odd = init_device_mesh("cpu", (2, 3), mesh_dim_names=("a", "b"))
        if rank < 6:
            assert odd["a", "b"]._flatten()._unflatten(0, (3, 2), ("c", "d")).mesh.tolist() == [[0, 1], [2, 3], [4, 5]]
            turned = odd["b", "a"]._flatten("b_a")
            assert turned.mesh.tolist() == [0, 3, 1, 4, 2, 5]
            with pytest.raises(ValueError, match="do not cut"):
                turned._unflatten(0, (2, 3), ("c", "d"))

    run(work, 8)


def test_meshes_of_groups():
    def work(rank):
        row = dist.new_subgroups(2)[0]
        column = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])[0]
        mesh = DeviceMesh.from_group([column, row], "cpu", [[0, 1], [2, 3]], mesh_dim_names=("dp", "tp"))
        assert mesh.get_group("dp") is column and mesh.get_group(1) is row and mesh["tp"].get_group() is row
        assert mesh.get_coordinate() == (rank // 2, rank % 2) and summed(mesh._flatten().get_group()) == 6
        line = DeviceMesh.from_group(row, "cpu", mesh_dim_names=("tp",))
        assert line.mesh.tolist() == dist.get_process_group_ranks(row) and line.get_local_rank() == rank % 2
        assert line._unflatten(0, (2, 1), ("a", "b")).get_local_rank("a") == rank % 2  # by the line's ranks alone
        for arguments, names, text in (
            (([], "cpu"), None, "got no group"),
            (([row, column], "cpu"), ("a", "b"), "expected mesh and mesh_dim_names, too"),
            (([row, column], "cpu", [0, 1]), ("a", "b"), "2 groups for a mesh of shape"),
            (([row, column], "cpu", [[0, 1], [2, 3]]), ("a", "b"), "the group of dimension 0 has the ranks"),
            ((row, "cpu", [0, 1, 2]), None, "the group of dimension 0 has the ranks"),
        ):
            with pytest.raises(ValueError, match=text):
                DeviceMesh.from_group(*arguments, mesh_dim_names=names)

    run(work, 4)


def test_the_mesh_of_a_with_block():
    def work(rank):
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
        with pytest.raises(RuntimeError, match="no mesh is active"):
            _mesh_resources.get_current_mesh()
        with mesh as outer, DeviceMesh("cpu", [1, 0]) as inner:
            assert _mesh_resources.get_current_mesh() is inner and outer is mesh
            assert _mesh_resources.get_root_mesh(mesh) is mesh
        found = []
        with pytest.raises(ZeroDivisionError), mesh:
            thread = threading.Thread(target=lambda: found.append(_mesh_resources.mesh_stack))
            thread.start()
            thread.join()
            _ = 1 // 0
        assert found == [[]] and _mesh_resources.mesh_stack == []

    run(work, 2)


def test_equal_meshes_and_pickles():
    def work(rank):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        other = DeviceMesh("cpu", [[0, 1], [2, 3]], mesh_dim_names=("dp", "tp"))
        assert mesh == other and hash(mesh) == hash(other) and mesh["tp"] == other["tp"] != mesh["dp"]
        assert mesh != DeviceMesh("cpu", [[0, 1], [2, 3]]) and mesh != DeviceMesh("cpu", [[1, 0], [2, 3]]) and mesh != 3
        for made in (pickle.loads(pickle.dumps(mesh["tp"])), copy.deepcopy(mesh["tp"])):
            assert made == mesh["tp"] and summed(made.get_group()) == 4 * (rank // 2) + 1
        sent = [pickle.dumps(mesh)]  # rank 0's, on all ranks
        dist.broadcast_object_list(sent, src=0)
        assert pickle.loads(sent[0]).get_coordinate() == (rank // 2, rank % 2)
        assert (
            repr(mesh) == "DeviceMesh((dp=2, tp=2), 'cpu')"
            and repr(DeviceMesh("cpu", [0])) == "DeviceMesh((1,), 'cpu')"
        )
        alone = pickle.dumps(DeviceMesh("cpu", [3, 2, 1, 0]))
        with pytest.raises(RuntimeError, match="comes from a pickle, and this rank has made no equal mesh"):
            pickle.loads(alone).get_group()

    run(work, 4)


def test_wrong_meshes():
    def work(rank):
        for shape, names, kind in (
            ((3,), None, RuntimeError),
            ((2,), ("a", "b"), RuntimeError),
            ((1, 2), ("a", "a"), RuntimeError),
            ((0,), None, ValueError),
            ((True,), None, ValueError),
            ((), None, ValueError),
        ):
            with pytest.raises(kind, match="init_device_mesh"):
                init_device_mesh("cpu", shape, mesh_dim_names=names)
        for mesh, kind, text in (
            (None, TypeError, "mesh is None"),
            ([0.0, 1.0], TypeError, "expected integers"),
            (pydist.tensor(0), ValueError, "at least one dimension"),
            ([], (TypeError, ValueError), "DeviceMesh"),
            ([0, 0], ValueError, "at most once"),
            ([0, 2], ValueError, "of 0 to 1"),
            ([-1], ValueError, "of 0 to 1"),
            ([[0, 1], [2, 3]], RuntimeError, "4 places .expected at most 2"),
        ):
            with pytest.raises(kind, match=text):
                DeviceMesh("cpu", mesh)
        for op in (lambda kind: init_device_mesh(kind, (2,)), lambda kind: DeviceMesh(kind, [0, 1])):
            with pytest.raises(ValueError, match="device_type is 'xpu' .expected 'cpu' or 'cuda'"):
                op("xpu")
            with pytest.raises(RuntimeError, match="device_type is 'cpu:0' .expected one without a number"):
                op("cpu:0")
            if not pydist.cuda.is_available():
                with pytest.raises(RuntimeError, match="device_type is 'cuda', but there is no GPU .expected 'cpu'"):
                    op("cuda")
        mesh = DeviceMesh("cpu", [[0, 1]])
        with pytest.raises(RuntimeError, match="the mesh has no names"):
            _ = mesh["dp"]
        with pytest.raises(RuntimeError, match="the mesh has no names"):
            mesh._flatten()
        with pytest.raises(IndexError, match="dimension 2 .expected 0 to 1"):
            mesh.get_group(2)
        with pytest.raises(RuntimeError, match="backend_override for 'pp'"):
            init_device_mesh("cpu", (2,), mesh_dim_names=("dp",), backend_override={"pp": "gloo"})
        with pytest.raises(ValueError, match="1 values of backend_override .expected 2"):
            DeviceMesh("cpu", [[0, 1]], backend_override=("gloo",))
        assert init_device_mesh("cpu", (1,)).get_coordinate() == ((0,) if rank == 0 else None)  # the first ranks

    run(work, 2)


def test_pretended_gpus():
    """--cpu-as-cuda: scripts that say "cuda" get their meshes."""
    code = """
import pydist
pydist.cuda.pretend(1)
mesh = pydist.distributed.init_device_mesh("cuda", (1,), mesh_dim_names=("dp",))
assert mesh.device_type == "cuda" and mesh.get_local_rank() == 0
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


PARTS = """
import warnings
warnings.filterwarnings("ignore")
def parts(DeviceMesh, init_device_mesh):
    mesh = init_device_mesh("cpu", (2, 2, 3), mesh_dim_names=("dp", "cp", "tp"))
    flat, odd = mesh["dp", "cp"]._flatten(), mesh["dp", "tp"]._flatten("odd")
    meshes = [mesh, mesh["dp"], mesh["tp"], mesh["dp", "tp"], mesh["dp", "cp"], mesh["cp", "tp"]["tp"], flat, odd, mesh["dp_cp"],
              mesh["dp_cp", "tp"], mesh["odd"], mesh._unflatten("tp", (3, 1), ("a", "b")), flat._unflatten(0, (2, 2), ("e", "f")),
              mesh["dp", "tp"]._unflatten(1, (1, 3), ("g", "h"))["dp", "h"], odd._unflatten(0, (2, 3), ("i", "j")),
              DeviceMesh("cpu", [[3, 1], [11, 0]], mesh_dim_names=("x", "y")),
              DeviceMesh._concatenate([mesh["dp"], mesh["tp"]])]
    found = []
    for one in meshes:
        inside = one.get_coordinate() is not None
        found.append((tuple(one.shape), one.ndim, one.size(), one.mesh_dim_names, one.device_type, one.mesh.tolist(),
                      list(one.get_coordinate()) if inside else None))
    return found
"""


@pytest.mark.parametrize("rank", [0, 4, 11])
def test_beside_torch(torch, rank):
    """torch as one rank of 12, whose others do not exist."""
    theirs = f"""
from torch import distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
dist.init_process_group("fake", store=FakeStore(), rank={rank}, world_size=12)
print(parts(DeviceMesh, init_device_mesh))
"""
    done = subprocess.run([sys.executable, "-c", PARTS + theirs], capture_output=True, text=True, check=True)
    names = {}
    exec(PARTS, names)
    ours = run(lambda rank: names["parts"](DeviceMesh, init_device_mesh), 12)[rank]
    assert ours == ast.literal_eval(done.stdout.splitlines()[-1])


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
