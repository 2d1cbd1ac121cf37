"""save and load: what is written, what comes back, and on how many ranks."""

import json
import os
import struct
import subprocess
import sys
import zlib

import pytest

import pydist
from lib.control import free_port
from lib.package import COMPARED, installed
from lib.processes import within
from pydist import distributed as dist
from pydist import nn, optim
from pydist.distributed import checkpoint
from pydist.distributed.checkpoint import CheckpointException, TensorPart, format_utils
from pydist.testing import run_ranks

DTYPES = "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool complex64".split()


def trained(steps=1):
    pydist.manual_seed(3)
    model = nn.Sequential(nn.Linear(30, 700), nn.BatchNorm1d(700), nn.Linear(700, 5))
    optimizer = optim.AdamW(model.parameters(), betas=(0.8, 0.99))
    for _ in range(steps):
        optimizer.zero_grad()
        model(pydist.randn(8, 30)).square().sum().backward()
        optimizer.step()
    return model, optimizer


def equal(a, b):
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, pydist.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and (a.numel() == 0 or pydist.equal(a, b))
    return type(a) is type(b) and a == b


def test_objects_bring_their_state(tmp_path):
    """A new model and an optimizer that has not stepped go on with equal bits."""
    model, optimizer = trained(3)
    checkpoint.save({"model": model, "optimizer": optimizer, "step": 3}, checkpoint_id=tmp_path / "a")
    other, theirs = trained(0)
    state = {"model": other, "optimizer": theirs, "step": 0}
    checkpoint.load(state, checkpoint_id=tmp_path / "a")
    assert state["step"] == 3 and state["model"] is other
    assert equal(model.state_dict(), other.state_dict())
    assert equal(optimizer.state_dict(), theirs.state_dict())
    for net, opt in ((model, optimizer), (other, theirs)):
        opt.zero_grad()
        net(pydist.ones(4, 30)).sum().backward()
        opt.step()
    assert equal(model.state_dict(), other.state_dict())


def test_values_that_are_no_tensors(tmp_path):
    values = {
        "none": None, "yes": True, "big": 1 << 80, "half": 0.1, "inf": float("inf"), "text": "ü\0\n", "bytes": b"\0\xff",
        "tuple": (1, (2, "x")), "list": [1, [2, []]], "set": {3}, "complex": 1 + 2j, "size": pydist.Size([1, 2]),
        "dtype": pydist.float16, "numbers": {1: "a", (2, 3): "b"}, "dollar": {"$tuple": [1]}, "empty": {}, "none in": [None],
    }  # fmt: skip
    checkpoint.save({"v": values, "x": pydist.ones(1)}, checkpoint_id=tmp_path / "a")
    state = {"v": dict.fromkeys(values), "x": pydist.zeros(1)}
    state["v"]["numbers"], state["v"]["dollar"], state["v"]["empty"] = {1: 0, (2, 3): 0}, {"$tuple": None}, {}
    checkpoint.load(state, checkpoint_id=tmp_path / "a")
    assert equal(state["v"], values), state["v"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_of_all_dtypes_and_shapes(tmp_path, dtype):
    kind = getattr(pydist, dtype)
    shapes = [(), (0,), (3, 0, 2), (1,), (5,), (2, 3, 4), (1000, 33)]
    tensors = {str(i): (pydist.randn(*shape) * 9).to(kind) for i, shape in enumerate(shapes)}
    tensors["turned"] = (pydist.randn(7, 9) * 9).to(kind).t()
    tensors["part"] = (pydist.randn(7, 9) * 9).to(kind)[1:5:2, 3:]
    checkpoint.save(tensors, checkpoint_id=tmp_path / "a")
    found = {name: pydist.zeros_like(tensor) for name, tensor in tensors.items()}
    found["turned"] = pydist.zeros(7, 9, dtype=kind).t()
    checkpoint.load(found, checkpoint_id=tmp_path / "a")
    assert equal(found, tensors)


def test_dtypes_that_differ(tmp_path):
    checkpoint.save({"x": pydist.full((4,), 1 / 3)}, checkpoint_id=tmp_path / "a")
    state = {"x": pydist.zeros(4, dtype=pydist.bfloat16)}
    checkpoint.load(state, checkpoint_id=tmp_path / "a")  # as in PyTorch: converted
    assert state["x"].dtype is pydist.bfloat16 and state["x"][0] == pydist.tensor(1 / 3).bfloat16()
    with pytest.raises(
        CheckpointException, match="'x' is pydist.int64 in the state and pydist.float32 in the checkpoint"
    ):
        checkpoint.load({"x": pydist.zeros(4, dtype=pydist.int64)}, checkpoint_id=tmp_path / "a")


@pytest.mark.parametrize(
    "state, said",
    [
        ({"x": pydist.ones(3), "y": 1}, "Missing key.*'y'"),
        ({"x": pydist.ones(4)}, r"Size mismatch between saved \(3,\) and current: \(4,\) for 'x'"),
        ({"x": 5}, "'x' is int in the state, but a tensor in the checkpoint"),
        ({"n": pydist.ones(1)}, "'n' is a tensor in the state, but no tensor in the checkpoint"),
        ({"x": TensorPart(pydist.ones(2), (5,), (1,))}, "Size mismatch"),
    ],
)
def test_states_that_do_not_fit(tmp_path, state, said):
    checkpoint.save({"x": pydist.ones(3), "n": 2}, checkpoint_id=tmp_path / "a")
    with pytest.raises(CheckpointException, match=said):
        checkpoint.load(state, checkpoint_id=tmp_path / "a")


def test_numbers_load_into_tensors_without_dimensions(tmp_path):
    """As of a checkpoint whose optimizer counted its steps in ints."""
    model, optimizer = trained(3)
    saved = optimizer.state_dict()
    ints = {i: {**state, "step": int(state["step"])} for i, state in saved["state"].items()}
    assert saved["state"][0]["step"].dtype is pydist.float32 and ints[0]["step"] == 3
    checkpoint.save({"optimizer": {**saved, "state": ints}, "text": "2", "on": True}, checkpoint_id=tmp_path / "a")
    for kind in (dict, optim.AdamW):
        other, theirs = trained(1)
        state = theirs if kind is optim.AdamW else theirs.state_dict()
        checkpoint.load({"optimizer": state}, checkpoint_id=tmp_path / "a")
        assert [s["step"].item() for s in theirs.state.values()] == [3.0] * 6
        for p in other.parameters():
            p.grad = pydist.ones_like(p)
        other.load_state_dict(model.state_dict())
        copied = optim.AdamW(other.parameters(), betas=(0.8, 0.99))
        copied.load_state_dict(saved)
        theirs.step()
        mine = [p.clone() for p in other.parameters()]
        other.load_state_dict(model.state_dict())
        copied.step()
        assert all(map(pydist.equal, mine, other.parameters()))
    for name, said in (("text", "str"), ("on", "bool")):
        with pytest.raises(CheckpointException, match=rf"{name}' is a tensor.*but {said}.*\(expected a number\)"):
            checkpoint.load({name: pydist.zeros(())}, checkpoint_id=tmp_path / "a")


def test_partial_loads(tmp_path):
    checkpoint.save({"x": pydist.ones(3), "extra": pydist.ones(2)}, checkpoint_id=tmp_path / "a")
    state = {"x": pydist.zeros(3), "new": pydist.zeros(2)}
    planner = checkpoint.DefaultLoadPlanner(allow_partial_load=True)
    checkpoint.load(state, checkpoint_id=tmp_path / "a", planner=planner)
    assert state["x"].tolist() == [1, 1, 1] and state["new"].tolist() == [0, 0]


@pytest.mark.parametrize("bad", [object(), [pydist.nn], {"deep": lambda: 0}, {1, object()}])
def test_objects_that_are_no_values(tmp_path, bad):
    with pytest.raises(CheckpointException, match="save: 'bad.*is or has a"):
        checkpoint.save({"bad": bad, "x": pydist.ones(1)}, checkpoint_id=tmp_path / "a")
    assert os.listdir(tmp_path) == []


class Thing:
    def __eq__(self, other):
        return type(other) is Thing


def test_pickles_have_to_be_asked_for(tmp_path):
    saver, loader = checkpoint.DefaultSavePlanner(allow_pickle=True), checkpoint.DefaultLoadPlanner(allow_pickle=True)
    checkpoint.save({"x": Thing()}, checkpoint_id=tmp_path / "a", planner=saver)
    state = {"x": None}
    with pytest.raises(CheckpointException, match="'x' is a pickle, which can run any code"):
        checkpoint.load(state, checkpoint_id=tmp_path / "a")
    checkpoint.load(state, checkpoint_id=tmp_path / "a", planner=loader)
    assert state["x"] == Thing()


def test_wrong_arguments(tmp_path):
    with pytest.raises(TypeError, match="state_dict is list"):
        checkpoint.save([], checkpoint_id=tmp_path / "a")
    with pytest.raises(ValueError, match="neither checkpoint_id nor storage_writer"):
        checkpoint.save({})
    with pytest.raises(TypeError, match="storage_writer is int"):
        checkpoint.save({}, storage_writer=3)
    with pytest.raises(TypeError, match="storage_reader is int"):
        checkpoint.load({}, storage_reader=3)
    with pytest.raises(CheckpointException, match="there is no checkpoint at"):
        checkpoint.load({}, checkpoint_id=tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointException, match="is no checkpoint: it has no manifest.json"):
        checkpoint.load({}, checkpoint_id=tmp_path / "empty")
    for wrong in ({"shape": (2,)}, {"offsets": (1, 2)}, {"offsets": (-1, 0)}, {"replica": 2}):
        with pytest.raises(ValueError, match="TensorPart"):
            TensorPart(**{"local": pydist.ones(2, 2), "shape": (3, 2), "offsets": (1, 0), **wrong})
    with pytest.raises(TypeError, match="local is int"):
        TensorPart(3, (1,), (0,))


# Several ranks.


def test_ranks_share_the_writing(tmp_path):
    """Every rank writes its share of the rows, and any number of ranks loads them."""

    def save(rank):
        state = {"x": pydist.arange(90000.0).reshape(300, 300), "small": pydist.ones(3), "n": 7}
        checkpoint.save(state, checkpoint_id=tmp_path / "a")

    def load(rank):
        state = {"x": pydist.zeros(300, 300), "small": pydist.zeros(3), "n": 0}
        checkpoint.load(state, checkpoint_id=tmp_path / "a")
        return state["n"] == 7 and state["small"].tolist() == [1, 1, 1] and state["x"].sum().item()

    run_ranks(3, save)
    sizes = [os.path.getsize(tmp_path / "a" / f"0000{rank}.safetensors") for rank in range(3)]
    assert max(sizes) - min(sizes) < 10000
    for world in (1, 2, 4):
        assert set(run_ranks(world, load)) == {pydist.arange(90000.0).reshape(300, 300).sum().item()}


def test_parts_of_ranks(tmp_path):
    whole = pydist.arange(60.0).reshape(10, 6)

    def save(rank):
        rows = TensorPart(whole[rank * 5 : rank * 5 + 5], (10, 6), (rank * 5, 0))
        flat = TensorPart.flat(whole.reshape(-1)[rank * 31 : rank * 31 + 31 - 2 * rank], (10, 6), rank * 31)
        both = TensorPart(whole, (10, 6), (0, 0), replica=rank, replicas=2)
        own = {f"stage{rank}": TensorPart(whole + rank, (10, 6), (0, 0))}
        checkpoint.save({"rows": rows, "flat": flat, "both": both, "own": own}, checkpoint_id=tmp_path / "a")

    def load(rank):
        state = {name: TensorPart(pydist.zeros(10, 2), (10, 6), (0, 2 * rank)) for name in ("rows", "flat", "both")}
        state["own"] = {f"stage{i}": pydist.zeros(10, 6) for i in range(2)}
        checkpoint.load(state, checkpoint_id=tmp_path / "a")
        return all(
            pydist.equal(state[name].local, whole[:, 2 * rank : 2 * rank + 2]) for name in ("rows", "flat", "both")
        ) and all(pydist.equal(state["own"][f"stage{i}"], whole + i) for i in range(2))

    run_ranks(2, save)
    assert all(run_ranks(3, load))


def test_one_rank_that_fails_fails_all(tmp_path):
    def save(rank):
        with pytest.raises(CheckpointException) as caught:
            checkpoint.save({"x": object() if rank == 1 else 3}, checkpoint_id=tmp_path / "a")
        checkpoint.save({"x": 4}, checkpoint_id=tmp_path / "a")  # the next one is not disturbed
        return list(caught.value.failures), str(caught.value)

    for failures, text in run_ranks(3, save):
        assert failures == [1] and "rank 1 on " in text and "'x' is or has a builtins.object" in text
    assert os.listdir(tmp_path) == ["a"]


class Broken:
    def state_dict(self):
        raise ZeroDivisionError("no state")

    def load_state_dict(self, state):
        pass


def test_an_object_that_fails_on_one_rank_fails_all(tmp_path):
    def save(rank):
        state = {"x": Broken() if rank == 1 else pydist.nn.Linear(1, 1), "y": 1}
        with pytest.raises(CheckpointException, match="rank 1 on .*ZeroDivisionError: no state"):
            checkpoint.save(state, checkpoint_id=tmp_path / "a")
        with pytest.raises(CheckpointException, match="rank 1 on .*ZeroDivisionError: no state"):
            checkpoint.async_save(state, checkpoint_id=tmp_path / "a").result()

    run_ranks(2, save)
    assert os.listdir(tmp_path) == []


def test_ranks_may_have_different_names(tmp_path):
    """As stages of a pipeline have: each tensor is written once, by ranks that have it, and so is each number."""

    def state_of(rank, fill):
        stage = rank // 2
        sizes = {f"layer{stage}.weight": (300, 100), f"layer{stage}.bias\udc80": (3,), "norm": (5,)}
        tensors = {name: pydist.full(shape, fill + stage if "layer" in name else fill) for name, shape in sizes.items()}
        return {"model": tensors, f"steps{stage}": int(fill) + stage, "both": int(fill)}

    def save(rank):
        checkpoint.save(state_of(rank, 1.0), checkpoint_id=tmp_path / "a")
        checkpoint.async_save(state_of(rank, 5.0), checkpoint_id=tmp_path / "b").result()
        found = []
        for name, fill in (("a", 1.0), ("b", 5.0)):
            state, expected = state_of(rank, 0.0), state_of(rank, fill)
            checkpoint.load(state, checkpoint_id=tmp_path / name)
            tensors = state.pop("model")
            found += [tensors[k].equal(v) for k, v in expected.pop("model").items()] + [state == expected]
        return found

    assert all(all(found) for found in run_ranks(4, save))
    state = {"model": {"layer1.weight": pydist.zeros(300, 100)}, "steps0": 0, "steps1": 0}
    checkpoint.load(state, checkpoint_id=tmp_path / "b")
    assert state["model"]["layer1.weight"].eq(6).all() and (state["steps0"], state["steps1"]) == (5, 6)
    stored = sum(os.path.getsize(path) for path in (tmp_path / "a").glob("*.safetensors"))
    assert 2 * 300 * 100 * 4 < stored < 2 * 300 * 100 * 4 + 20_000


def test_a_tensor_of_two_shapes_is_refused(tmp_path):
    def save(rank):
        checkpoint.save({"x": pydist.ones(3 + rank)}, checkpoint_id=tmp_path / "a")

    said = r"'x' is pydist.float32 of shape \(3,\) on rank 0 and pydist.float32 of shape \(4,\) on rank 1 \(expected TensorPart"
    with pytest.raises(RuntimeError, match=said):
        run_ranks(2, save)
    assert os.listdir(tmp_path) == []


def test_groups_and_single_processes(tmp_path):
    def save(rank):
        group = dist.new_group([0, 2])
        if rank != 1:
            checkpoint.save({"x": pydist.ones(200, 200)}, checkpoint_id=tmp_path / "group", process_group=group)
        checkpoint.save({"x": pydist.ones(2)}, checkpoint_id=tmp_path / f"alone{rank}", no_dist=True)

    run_ranks(3, save)
    assert sorted(os.listdir(tmp_path / "group")) == ["00000.safetensors", "00001.safetensors", "manifest.json"]
    assert sorted(os.listdir(tmp_path / "alone2")) == ["00000.safetensors", "manifest.json"]


# Folders.


def test_overwrite(tmp_path):
    for n in (1, 2):
        checkpoint.save({"x": pydist.full((3,), float(n))}, checkpoint_id=tmp_path / "a")
    state = {"x": pydist.zeros(3)}
    checkpoint.load(state, checkpoint_id=tmp_path / "a")
    assert state["x"].tolist() == [2, 2, 2] and os.listdir(tmp_path) == ["a"]
    writer = checkpoint.FileSystemWriter(tmp_path / "a", overwrite=False)
    with pytest.raises(CheckpointException, match="is there already"):
        checkpoint.save({"x": pydist.ones(3)}, storage_writer=writer)
    assert os.listdir(tmp_path) == ["a"]


def test_commit_by_a_marker(tmp_path):
    def save(rank):
        for n in (1, 2):
            writer = checkpoint.FileSystemWriter(tmp_path / "a", commit="marker", sync_files=n == 1)
            checkpoint.save({"x": pydist.full((300, 300), float(n))}, storage_writer=writer)

    run_ranks(2, save)
    names = sorted(os.listdir(tmp_path / "a"))
    assert len(names) == 3 and names[-1] == "manifest.json" or names[0] == "manifest.json", names
    state = {"x": pydist.zeros(300, 300)}
    checkpoint.load(state, checkpoint_id=tmp_path / "a")
    assert state["x"].unique().tolist() == [2]
    assert json.loads((tmp_path / "a" / "manifest.json").read_text())["durable"] is False


def test_parameters_that_do_not_train_are_written_once(tmp_path):
    model = nn.Sequential(nn.Linear(300, 300), nn.Linear(300, 300))
    model[0].requires_grad_(False)
    links = []
    for step in range(4):
        with pydist.no_grad():
            model[1].weight.add_(1)
            if step == 2:
                model[0].weight.data.add_(1)  # leaves no trace in the version
        checkpoint.save({"model": model}, checkpoint_id=tmp_path / f"{step}")
        links.append(os.stat(tmp_path / f"{step}" / "frozen-00000.safetensors").st_ino)
        other = nn.Sequential(nn.Linear(300, 300), nn.Linear(300, 300))
        checkpoint.load({"model": other}, checkpoint_id=tmp_path / f"{step}")
        assert equal(model.state_dict(), other.state_dict())
    assert links[0] == links[1] != links[2] == links[3]


# By others.


def test_twenty_lines_of_python_read_a_file(tmp_path):
    """The program that docs/guide/checkpoints.md prints."""
    checkpoint.save({"model": {"w": pydist.arange(6.0).reshape(2, 3)}, "step": 5}, checkpoint_id=tmp_path / "a")
    with open(tmp_path / "a" / "manifest.json", "rb") as file:
        text = file.read()
    manifest = json.loads(text)
    assert zlib.crc32(text.replace(manifest["crc"].encode(), b"00000000", 1)) == int(manifest["crc"], 16)
    for entry in manifest["files"]:
        data = (tmp_path / "a" / entry["name"]).read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        assert len(data) == entry["bytes"] and zlib.crc32(data[: 8 + length]) == entry["header_crc"]
        assert (8 + length) % 4096 == 0
        header = json.loads(data[8 : 8 + length])
        sums = json.loads(header["__metadata__"]["crc32"])
        begin, end = header["model.w"]["data_offsets"]
        values = data[8 + length + begin : 8 + length + end]
        assert sums["model.w"] == f"{zlib.crc32(values):08x}"
    assert struct.unpack("<6f", values) == (0, 1, 2, 3, 4, 5)


@pytest.mark.skipif(not installed("safetensors"), reason="no safetensors")
def test_the_safetensors_package_opens_every_file(tmp_path):
    numpy = pytest.importorskip("safetensors.numpy")

    def save(rank):
        checkpoint.save({"x": pydist.arange(90000.0).reshape(300, 300), "n": 1}, checkpoint_id=tmp_path / "a")

    run_ranks(2, save)
    rows = [numpy.load_file(tmp_path / "a" / f"0000{rank}.safetensors")["x"] for rank in range(2)]
    assert sum(len(part) for part in rows) == 300 and rows[1][-1, -1] == 89999


@pytest.mark.skipif(not installed("torch"), reason="no torch")
@pytest.mark.filterwarnings("ignore")
def test_pytorch_reads_the_model_of_four_ranks(tmp_path):
    pytest.importorskip("safetensors")
    torch = pytest.importorskip("torch")
    from torch.distributed import checkpoint as theirs

    model, _ = trained()
    run_ranks(4, lambda rank: checkpoint.save({"model": model}, checkpoint_id=tmp_path / "a"))
    state = {
        f"model.{name}": torch.zeros(tuple(value.shape), dtype=getattr(torch, str(value.dtype).split(".")[1]))
        for name, value in model.state_dict().items()
    }
    theirs.load(state, storage_reader=theirs.HuggingFaceStorageReader(str(tmp_path / "a")), no_dist=True)
    for name, value in model.state_dict().items():
        assert (state[f"model.{name}"].numpy() == value.numpy()).all()
        COMPARED["tensors of checkpoints"] += 1


@pytest.mark.skipif(not installed("torch"), reason="no torch")
@pytest.mark.filterwarnings("ignore")
def test_checkpoints_of_pytorch_are_read(tmp_path):
    torch = pytest.importorskip("torch")
    from torch.distributed import checkpoint as theirs

    state = {
        "model": {"w": torch.arange(6.0).reshape(2, 3), "b": torch.ones(3, dtype=torch.bfloat16)},
        "optimizer": {
            "state": {0: {"step": 3, "exp_avg": torch.full((2, 3), 0.5)}},
            "param_groups": [{"lr": 0.1, "betas": (0.9, 1)}],
        },
        "text": "x",
    }
    theirs.save(state, checkpoint_id=str(tmp_path / "dcp"), no_dist=True)
    torch.save(state, tmp_path / "file.pt")
    for path in ("dcp", "file.pt"):
        mine = {
            "model": {"w": pydist.zeros(2, 3), "b": pydist.zeros(3, dtype=pydist.bfloat16)},
            "optimizer": {"state": {0: {"step": 0, "exp_avg": pydist.zeros(2, 3)}}, "param_groups": [{"lr": 0.0, "betas": None}]},
            "text": "",
        }  # fmt: skip
        checkpoint.load(mine, checkpoint_id=tmp_path / path)
        assert mine["model"]["w"].tolist() == [[0, 1, 2], [3, 4, 5]] and mine["model"]["b"].tolist() == [1, 1, 1]
        assert mine["optimizer"]["state"][0]["exp_avg"].tolist() == [[0.5] * 3] * 2
        assert mine["optimizer"]["state"][0]["step"] == 3 and mine["text"] == "x"
        assert mine["optimizer"]["param_groups"] == [{"lr": 0.1, "betas": (0.9, 1)}]
        COMPARED["checkpoints of torch"] += 1


@pytest.mark.skipif(not installed("torch"), reason="no torch")
def test_to_a_pt_file_and_back(tmp_path):
    torch = pytest.importorskip("torch")
    model, optimizer = trained()
    checkpoint.save({"model": model, "optimizer": optimizer, "n": 1}, checkpoint_id=tmp_path / "a")
    format_utils.dcp_to_torch_save(tmp_path / "a", tmp_path / "a.pt")
    theirs = torch.load(tmp_path / "a.pt")
    assert (theirs["model"]["0.weight"].numpy() == model[0].weight.detach().numpy()).all() and theirs["n"] == 1
    assert theirs["optimizer"]["param_groups"][0]["betas"] == (0.8, 0.99)
    format_utils.torch_save_to_dcp(tmp_path / "a.pt", tmp_path / "b")
    assert equal(format_utils.load_whole(tmp_path / "b"), pydist.load(tmp_path / "a.pt"))
    COMPARED["checkpoints of torch"] += 1


THEIR_RANK = """
import os
import sys
import torch
from torch import distributed as dist
from torch.distributed import checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

rank, port, path = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))
whole = torch.arange(35.0).reshape(7, 5)
state = {"model": {f"sharded{dim}": distribute_tensor(whole + dim, mesh, [Shard(dim)]) for dim in (0, 1)}, "step": 3}
state["model"]["plain"] = torch.arange(4)
checkpoint.save(state, checkpoint_id=path)
dist.barrier()
os._exit(0)  # torch's threads abort the process now and then when it ends
"""


@pytest.mark.skipif(not installed("torch"), reason="no torch")
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_checkpoint_of_two_ranks_of_pytorch_is_read(tmp_path, ranks):
    """DTensors cut by rows and by columns, whole and as other parts."""
    (tmp_path / "rank.py").write_text(THEIR_RANK)
    args = [sys.executable, tmp_path / "rank.py"], [str(free_port()), tmp_path / "theirs"]
    theirs = [subprocess.Popen([*args[0], str(rank), *args[1]], stderr=subprocess.PIPE, text=True) for rank in range(2)]
    for process in theirs:
        with process:
            _, err = process.communicate(timeout=within(60))
            assert process.returncode == 0, err
    whole = pydist.arange(35.0).reshape(7, 5)

    def read(rank):
        begin, end = 7 * rank // ranks, 7 * (rank + 1) // ranks
        part = pydist.zeros(end - begin, 5)
        model = {f"sharded{dim}": pydist.zeros(7, 5) for dim in (0, 1)} | {"plain": pydist.zeros(4, dtype=pydist.int64)}
        state = {"model": model, "step": 0}
        checkpoint.load(state, checkpoint_id=tmp_path / "theirs")
        checkpoint.load(
            {"model": {"sharded1": TensorPart(part, (7, 5), (begin, 0))}}, checkpoint_id=tmp_path / "theirs"
        )
        assert pydist.equal(part, whole[begin:end] + 1) and state["step"] == 3
        assert all(pydist.equal(model[f"sharded{dim}"], whole + dim) for dim in (0, 1))
        assert model["plain"].tolist() == [0, 1, 2, 3]

    run_ranks(ranks, read)
    COMPARED["checkpoints of torch"] += 1
