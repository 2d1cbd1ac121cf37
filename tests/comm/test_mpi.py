"""Ranks started by mpirun and srun: without arguments on the native backend, and with backend="mpi" on messages of
Open MPI and of MPICH. The srun environment is replayed: there is no Slurm here."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lib.ranks import LONG
from pydist.distributed._group import rendezvous

TOP = Path(__file__).resolve().parents[2]
MPIS = {
    "openmpi": ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe"],
    "mpich": ["mpirun.mpich"],
}

# Every rank writes one file of JSON into the folder TEST_OUT (mpirun mixes long lines). TEST_MPI: the library of
# backend="mpi".
HEAD = """
import json, os, sys
import pydist
from pydist import distributed as dist, nn, optim
from pydist.distributed._group import backend, process_group
backend.MPI_LIBRARY = process_group.MPI_LIBRARY = os.environ.get("TEST_MPI", "")

def say(**what):
    with open(os.path.join(os.environ["TEST_OUT"], str(dist.get_rank())), "w") as file:
        json.dump({"rank": dist.get_rank(), **what}, file)
"""

COLLECTIVES = """
dist.init_process_group(BACKEND, timeout=60)
rank, world = dist.get_rank(), dist.get_world_size()
out = {}
for dtype in (pydist.float32, pydist.bfloat16, pydist.float64, pydist.int32):
    for n in (1, 7, 1000, 300_000):
        x = (pydist.arange(n).double() * 0.37 + rank).sin().mul(100).to(dtype)
        for op in ("SUM", "MAX"):
            y = x.clone()
            dist.all_reduce(y, op=getattr(dist.ReduceOp, op))
            out[f"all_reduce {dtype} {n} {op}"] = y.double().sum().item().hex()
        y = x.clone()
        dist.broadcast(y, world - 1)
        gathered = pydist.zeros(world * n, dtype=dtype)
        dist.all_gather_into_tensor(gathered, x)
        part = pydist.zeros(n, dtype=dtype)
        dist.reduce_scatter_tensor(part, gathered)
        dist.all_reduce(part)
        rows = [n * (1 + (source + d) % world) for source in range(world) for d in range(world)]
        give, take = rows[rank * world : (rank + 1) * world], rows[rank :: world]
        exchanged = pydist.zeros(sum(take), dtype=dtype)
        dist.all_to_all_single(exchanged, x.repeat(sum(give) // n), take, give)
        sizes = [n * (r + 1) // world for r in range(world)]
        uneven = [pydist.zeros(size, dtype=dtype) for size in sizes]
        dist.all_gather(uneven, x[: sizes[rank]].clone())
        own = pydist.zeros(sizes[rank], dtype=dtype)
        dist.reduce_scatter(own, uneven)
        tensors = (y, gathered, part, exchanged, pydist.cat(uneven), own)
        out[f"others {dtype} {n}"] = [t.double().sum().item().hex() for t in tensors]
objects = [None] * world
dist.all_gather_object(objects, {"rank": rank})
dist.barrier()
group = dist.group.WORLD
say(transport=group.transport, backend=dist.get_backend(), objects=objects, out=out, local=dist.get_node_local_rank())
dist.destroy_process_group()
dist.init_process_group(BACKEND)  # again, in the same processes
x = pydist.ones(3)
dist.all_reduce(x)
assert x.tolist() == [world] * 3
dist.destroy_process_group()
"""

FAST = """
dist.init_process_group(BACKEND, timeout=60, order="fast")
rank, world = dist.get_rank(), dist.get_world_size()
groups = [dist.group.WORLD, dist.new_group(range(world), order="fast"), dist.new_group([0, world - 1], order="fast")]
for g, group in enumerate(groups):
    if group.size < 0:
        continue
    for name in ("float32", "float64", "bfloat16", "int32", "uint8", "bool"):
        dtype, ranks = getattr(pydist, name), group.ranks
        ops = ("SUM", "MAX", "MIN", "PRODUCT") + (("AVG",) if dtype.is_floating_point else ("BAND", "BOR", "BXOR"))
        for n in (0, 1, 40_000):
            inputs = [((pydist.arange(n) + 3 * r) % 4).to(dtype) for r in ranks]
            for op in ops:
                x, y = inputs[group.rank].clone(), inputs[group.rank].clone()
                work = dist.all_reduce(x, getattr(dist.ReduceOp, op), group, async_op=True)
                dist.reduce(y, ranks[-1], getattr(dist.ReduceOp, op), group)
                work.wait()
                alike = pydist.stack(inputs).to(pydist.float64)
                bits = pydist.stack(inputs).to(pydist.int64)
                want = {
                    "SUM": lambda: alike.sum(0), "AVG": lambda: alike.mean(0), "PRODUCT": lambda: alike.prod(0),
                    "MAX": lambda: alike.amax(0), "MIN": lambda: alike.amin(0),
                    "BAND": lambda: bits[0] & bits[-1] & bits[len(ranks) // 2],
                    "BOR": lambda: bits[0] | bits[-1] | bits[len(ranks) // 2],
                    "BXOR": lambda: bits[0] ^ bits[-1] ^ (bits[1] if len(ranks) == 3 else bits[0] * 0),
                }[op]().to(dtype)
                near = (x.double() - want.double()).abs().max().item() if n else 0
                assert near <= (1e-6 if name[0] == "f" else 1e-2 if name[0] == "b" else 0), (name, n, op, near)
                assert not n or (y == (x if rank == ranks[-1] else inputs[group.rank])).all()
try:
    dist.all_reduce(pydist.ones(4 + rank))
except dist.CommMismatch as error:
    say(error=str(error))
"""

TRAINING = """
dist.init_process_group(BACKEND, timeout=60)
pydist.manual_seed(0)
x, t = pydist.randn(64, 8, dtype=pydist.float64), pydist.randint(0, 4, (64,))
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).double())
optimizer = optim.SGD(model.parameters(), lr=0.3)
here = slice(32 * dist.get_rank(), 32 * dist.get_rank() + 32)
losses = []
for _ in range(10):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x[here]), t[here])
    loss.backward()
    optimizer.step()
    mean = loss.detach()
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    losses.append(mean.item().hex())
say(losses=losses)
dist.destroy_process_group()
"""

MISMATCH = """
dist.init_process_group(BACKEND, timeout=60)
try:
    dist.all_reduce(pydist.ones(4 + dist.get_rank()))
except dist.CommMismatch as error:
    say(error=str(error))
"""


def lines(command, text, tmp_path, backend=None, env=None, keep=None):
    """What the ranks say, by rank; their standard error joins the list `keep`."""
    script, out = tmp_path / "script.py", tmp_path / f"out{len(os.listdir(tmp_path))}"
    out.mkdir()
    script.write_text(HEAD + text.replace("BACKEND", repr(backend)))
    inherited = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    full = {**inherited, "PYTHONPATH": str(TOP), "TEST_OUT": str(out), **(env or {})}
    command = [*command, sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=full)
    found = said(out)
    if keep is not None:
        keep.append(done.stderr)
    assert done.returncode == 0 and found, done.stdout + done.stderr
    return found


def said(out):
    return sorted((json.loads(path.read_text()) for path in out.iterdir()), key=lambda line: line["rank"])


def launched(text, world, tmp_path):
    command = [sys.executable, "-m", "pydist.run", "--nproc-per-node", str(world), "--no-python"]
    return lines(command, text, tmp_path)


@pytest.fixture(params=sorted(MPIS))
def mpi(request, tmp_path):
    """(mpirun -n, environment with a library made by this MPI's compiler)."""
    compiler, start = f"mpicc.{request.param}", MPIS[request.param]
    if not shutil.which(compiler) or not shutil.which(start[0]):
        pytest.skip(f"no {request.param} here ({compiler}, {start[0]}): its tests were NOT run")
    library = tmp_path / "_mpi.so"
    flags = "-std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -fvisibility=hidden -O2 -fPIC -shared".split()
    subprocess.run([compiler, *flags, f"-I{TOP}/csrc", f"{TOP}/csrc/mpi/mpi.c", "-o", library], check=True)
    return [*start, "-n"], {"TEST_MPI": str(library)}


@pytest.mark.parametrize("world", [2, 3] if LONG else [3])
def test_collectives_have_the_bits_of_the_launchers(mpi, world, tmp_path):
    start, env = mpi
    want = launched(COLLECTIVES, world, tmp_path)
    for backend, transport in ((None, "shm"), ("mpi", "mpi")):
        got = lines([*start, str(world)], COLLECTIVES, tmp_path, backend, env)
        assert [line["rank"] for line in got] == [line["local"] for line in got] == list(range(world))
        for ours, theirs in zip(want, got, strict=True):
            assert theirs["transport"] == transport and theirs["backend"] == (backend or "native")
            assert theirs["objects"] == ours["objects"] and theirs["out"] == ours["out"]


def test_the_same_loss_curve_everywhere(mpi, tmp_path):
    start, env = mpi
    want = launched(TRAINING, 2, tmp_path)
    assert want[0]["losses"] == want[1]["losses"]
    for backend in (None, "mpi"):
        assert lines([*start, "2"], TRAINING, tmp_path, backend, env) == want


def test_fast_groups_use_the_mpis_own_all_reduce(mpi, tmp_path):
    start, env = mpi
    found = lines([*start, "3"], FAST, tmp_path, "mpi", {**env, "PYDIST_LOG": "2"}, keep := [])
    assert len(found) == 3 and all("float32[4]" in line["error"] for line in found)
    assert keep[0].count("all_reduce uses MPI's own") == 3 + 3 + 2  # once a group and rank
    lines([*start, "2"], COLLECTIVES, tmp_path, "mpi", {**env, "PYDIST_LOG": "2"}, keep)
    assert "uses MPI's own" not in keep[1]


def test_ranks_that_differ(mpi, tmp_path):
    start, env = mpi
    for line in lines([*start, "2"], MISMATCH, tmp_path, "mpi", env):
        assert "float32[4]" in line["error"] and "float32[5]" in line["error"] and "script.py" in line["error"]


def test_another_mpirun_than_that_of_the_build(tmp_path):
    if not all(shutil.which(name) for name in ("mpicc.openmpi", "mpirun.mpich")):
        pytest.skip("needs Open MPI and MPICH: NOT run")
    library = tmp_path / "_mpi.so"
    command = ["mpicc.openmpi", "-shared", "-fPIC", f"-I{TOP}/csrc", f"{TOP}/csrc/mpi/mpi.c", "-o", library]
    subprocess.run(command, check=True)
    text = """
try:
    dist.init_process_group("mpi")
except RuntimeError as error:
    say(error=str(error))
"""
    for line in lines(["mpirun.mpich", "-n", "2"], text, tmp_path, env={"TEST_MPI": str(library)}):
        assert "MPICH) started 2 ranks" in line["error"] and "MPICC" in line["error"]


def test_a_replayed_srun(tmp_path):
    """Two processes with the variables that Slurm's srun sets, as documented; Slurm itself is not here."""
    script = tmp_path / "script.py"
    script.write_text(HEAD + TRAINING.replace("BACKEND", "None"))
    processes, out = [], tmp_path / "slurm"
    out.mkdir()
    for rank in range(2):
        slurm = {
            "SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank),
            "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_STEP_NODELIST": "node7",
        }  # fmt: skip
        env = {**os.environ, "PYTHONPATH": str(TOP), "TEST_OUT": str(out), **slurm}
        processes.append(subprocess.Popen([sys.executable, str(script)], env=env))
    assert [process.wait(timeout=60) for process in processes] == [0, 0]
    assert said(out) == launched(TRAINING, 2, tmp_path)


def test_what_the_starters_say(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("OMPI_", "PMI", "SLURM_", "MPI_", "RANK", "WORLD_SIZE", "PYDIST_CONTROL")):
            monkeypatch.delenv(name)
    assert rendezvous.started() is None and rendezvous.expected() == (0, 1)
    monkeypatch.setenv("SLURM_PROCID", "0")  # in an salloc shell, outside of a step
    assert rendezvous.started() is None
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setenv("PMI_SIZE", "4")
    monkeypatch.setenv("MPI_LOCALRANKID", "1")
    monkeypatch.setenv("MPI_LOCALNRANKS", "4")
    start = rendezvous.started()
    assert start[:5] == ("mpirun (MPICH)", 1, 4, 1, 4) and rendezvous.expected() == (1, 4)
    assert rendezvous.find_place().address.startswith("job://")
    monkeypatch.setenv("MPI_LOCALNRANKS", "2")
    with pytest.raises(RuntimeError, match="several hosts .expected MASTER_ADDR"):
        rendezvous.find_place()
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1234")
    assert rendezvous.find_place()[:3] == (1, 4, "tcp://10.0.0.1:1234")
    monkeypatch.delenv("MASTER_ADDR")
    for name, value in {
        "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1", "SLURM_PROCID": "5", "SLURM_LOCALID": "1",
        "SLURM_STEP_NUM_TASKS": "6", "SLURM_STEP_TASKS_PER_NODE": "2(x3)", "SLURM_STEP_NODELIST": "gpu[03-04,9],x",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    place = rendezvous.find_place()
    assert rendezvous.started()[:5] == ("srun", 5, 6, 1, 2) and place.address.startswith("tcp://gpu03:")
    monkeypatch.setenv("RANK", "0")  # PyTorch's variables and the launcher say more
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert rendezvous.started() is None
