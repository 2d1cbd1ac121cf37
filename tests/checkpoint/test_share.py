"""load(share=): a tensor that all ranks want is read by one of them."""

import os
import threading

import pytest

import pydist
from lib.processes import environment, launch, within
from pydist.distributed import checkpoint
from pydist.distributed.checkpoint import CheckpointException, DefaultLoadPlanner, FileSystemReader, TensorPart
from pydist.testing import RankFailed, run_ranks

LARGE = {f"layer{i}": (100, 200 + i) for i in range(7)}


def filled(dtype=pydist.float32):
    """Large tensors, small ones and other values."""
    pydist.manual_seed(3)
    return {name: pydist.randn(shape).to(dtype) for name, shape in LARGE.items()} | {"small": pydist.ones(3), "n": 5}


def empty():
    return {name: pydist.zeros(shape) for name, shape in LARGE.items()} | {"small": pydist.zeros(3), "n": 0}


def same(state):
    want = filled()
    return state["n"] == 5 and all(pydist.equal(state[name], want[name]) for name in [*LARGE, "small"])


@pytest.fixture
def saved(tmp_path):
    run_ranks(2, lambda rank: checkpoint.save(filled(), checkpoint_id=tmp_path / "a"))
    return tmp_path / "a"


@pytest.fixture
def reads(monkeypatch):
    """[names that a rank reads] of each rank."""
    found, lock, real = [], threading.Lock(), FileSystemReader.read_data

    def read_data(self, plan, planner):
        with lock:
            found.append({item.dest_index.fqn for item in plan.items})
        real(self, plan, planner)

    monkeypatch.setattr(FileSystemReader, "read_data", read_data)
    return found


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_each_large_tensor_is_read_once(saved, reads, ranks):
    def load(rank):
        state = empty()
        checkpoint.load(state, checkpoint_id=saved, share=True)
        return same(state)

    assert run_ranks(ranks, load) == [True] * ranks
    assert sorted(name for names in reads for name in names & set(LARGE)) == sorted(LARGE)
    assert (
        all({"small", "n"} <= names for names in reads)
        and max(len(names & set(LARGE)) for names in reads) <= 7 // ranks + 1
    )


def test_on_one_host_every_rank_reads_by_itself(saved, reads):
    run_ranks(2, lambda rank: checkpoint.load(empty(), checkpoint_id=saved))
    assert all(names >= set(LARGE) for names in reads)


def test_ranks_that_want_different_things_read_by_themselves(saved):
    def load(rank):
        state = empty()
        if rank:
            state["layer1"] = state["layer1"].double()
            state["layer2"] = TensorPart(pydist.zeros(10, 202), LARGE["layer2"], (5, 0))
        checkpoint.load(state, checkpoint_id=saved, share=True)
        want = filled()
        assert pydist.equal(state["layer1"].float(), want["layer1"]) and pydist.equal(state["layer6"], want["layer6"])
        return not rank or pydist.equal(state["layer2"].local, want["layer2"][5:15])

    assert run_ranks(2, load) == [True, True]


def test_a_transposed_tensor_and_a_planner_of_ones_own(saved, reads):
    class Own(DefaultLoadPlanner):
        pass

    def load(rank):
        state = empty()
        state["layer1"] = pydist.zeros(LARGE["layer1"][::-1]).t()
        checkpoint.load(state, checkpoint_id=saved, share=True)
        assert same(state)
        checkpoint.load(state, checkpoint_id=saved, share=True, planner=Own())
        return same(state)

    assert run_ranks(2, load) == [True, True]
    assert sum("layer1" in names for names in reads) == 4 and sum("layer2" in names for names in reads) == 3


def test_a_failure_of_one_rank_is_all_ranks(saved):
    """None of them waits; the error names the rank and what it could not read."""

    def load(rank, path):
        with pytest.raises(CheckpointException) as caught:
            checkpoint.load({**empty(), **({"none": 1} if rank == 1 else {})}, checkpoint_id=path, share=True)
        return str(caught.value)

    texts = run_ranks(3, load, saved)
    assert len(set(texts)) == 1 and texts[0].startswith(
        "load: rank 1: load: Missing key in checkpoint state_dict: 'none'"
    )
    path = saved / "00001.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)

    def damaged(rank):
        with pytest.raises(CheckpointException, match=r"load: rank \d: load: .*00001.safetensors: 'layer.' is damaged"):
            checkpoint.load(empty(), checkpoint_id=saved, share=True)

    run_ranks(3, damaged)
    with pytest.raises((RankFailed, ValueError), match="share is 3"):
        checkpoint.load(empty(), checkpoint_id=saved, share=3)


SCRIPT = """
import os, sys
os.environ["PYDIST_HOST"] = f"host{int(os.environ['RANK']) // 2}"
import pydist
from pydist import distributed as dist
from pydist.distributed import checkpoint
from pydist.distributed.checkpoint import FileSystemReader

dist.init_process_group()
names, real = set(), FileSystemReader.read_data
FileSystemReader.read_data = lambda s, plan, p: (names.update(i.dest_index.fqn for i in plan.items), real(s, plan, p))
state = {f"x{i}": pydist.full((200, 100), float(i)) for i in range(6)}
checkpoint.save(state, checkpoint_id=sys.argv[1])
found = {name: pydist.zeros_like(value) for name, value in state.items()}
checkpoint.load(found, checkpoint_id=sys.argv[1])
assert all(pydist.equal(found[name], state[name]) for name in state)
print("read", len(names), flush=True)
dist.destroy_process_group()
"""


def test_ranks_of_several_hosts_share_by_themselves(tmp_path):
    script = tmp_path / "share.py"
    script.write_text(SCRIPT)
    code, out, err, _ = launch(
        "--nproc-per-node",
        4,
        "--fold",
        "off",
        script,
        tmp_path / "a",
        timeout=within(60),
        env=environment(OMP_NUM_THREADS="1"),
    )
    assert code == 0, out + err
    assert sum(int(line.split()[-1]) for line in out.splitlines()) == 6, out
    assert os.path.exists(tmp_path / "a")
