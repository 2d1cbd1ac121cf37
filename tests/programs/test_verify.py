"""`python -m pydist.verify`: scripts whose bits do not depend on the number of ranks, and planted ones that do."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from pydist import distributed as dist
from pydist import verify

SCRIPT = """
import random, time
import pydist
from pydist import distributed as dist, nn, optim
from pydist.nn.parallel import DistributedDataParallel
from pydist.utils.data import DataLoader, Dataset, DistributedSampler

dist.init_process_group(logical_shards=4)
rank, world = dist.get_rank(), dist.get_world_size()
pydist.manual_seed(0)
TABLE = pydist.randn(32, 8)

class Data(Dataset):
    own = random.Random(0)
    def __len__(self):
        return 32
    def __getitem__(self, i):
        x = TABLE[i]
        {item}
        return x, x[:2].argmax()

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 2)
        self.register_buffer("seen", pydist.zeros(1))
        self.generator = pydist.Generator().manual_seed(rank)
    def forward(self, x):
        h = self.a(x).relu()
        {forward}
        return self.b(h)

data, net = Data(), Net()
model = DistributedDataParallel(net)
optimizer = optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(data, batch_size={batch}, sampler=DistributedSampler(data))
for epoch in range(2):
    for step in dist.shards(loader):
        optimizer.zero_grad()
        for shard in step:
            for x, y in shard:
                loss = nn.functional.cross_entropy(model(x), y)
                {loss}
                loss.backward()
                step.note(loss)
        {after}
        optimizer.step()
        {end}
"""
PLANTS = {
    "get_rank in a data set": ({"item": "x = x + 0.001 * rank"}, "rows"),
    "a generator of its own in a transform": ({"item": "x = x * self.own.random()"}, "rows"),
    "the time as a seed": ({"item": "x = x + random.Random(time.time_ns()).random()"}, "rows"),
    "a set's order": ({"item": "x = x * list({1.0 + id(object()) % 7, 2.5})[0] + id(self) % 1000"}, "rows"),
    "SyncBatchNorm by hand": ({"forward": "m = h.detach().mean(); dist.group.WORLD.all_reduce(m); h = h - m"}, "leaf"),
    "a loss averaged by the number of ranks": ({"loss": "loss = loss / world"}, "leaf"),
    "a buffer written on rank 0": ({"end": "net.seen += rank == 0"}, "ranks"),
    "dropout with a generator per rank": ({"forward": "h = h * (pydist.rand(h.shape, generator=self.generator) > 0.1)"}, "leaf"),
    "a batch size by the number of ranks": ({"batch": "8 // world"}, "rows"),
    "an op that depends on threads": ({"forward": "h = h * (1 + 1e-3 * pydist.get_num_threads())"}, "threads"),
    "a learning rate by the number of ranks": ({"after": "optimizer.param_groups[0]['lr'] = 0.1 * world"}, "step"),
}  # fmt: skip
SLOW = [name for name in PLANTS if name not in ("get_rank in a data set", "a loss averaged by the number of ranks")]


def written(folder, **plants):
    script = folder / "train.py"
    fields = {"item": "", "forward": "", "loss": "", "after": "", "end": "", "batch": "4", **plants}
    text = textwrap.dedent(SCRIPT)
    for name, value in fields.items():
        text = text.replace("{" + name + "}", value)
    script.write_text(text)
    return script


def run(script, *options):
    command = [sys.executable, "-m", "pydist.verify", "--steps", "3", *options, str(script)]
    return subprocess.run(command, capture_output=True, text=True, timeout=200)


def test_the_same_bits(tmp_path):
    done = run(written(tmp_path), "--worlds", "1,2,3", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 0 and found["same"] and found["steps"] == 2 * 2 - 1 and len(found["runs"]) == 3, found


@pytest.mark.parametrize(
    "name", [name if name not in SLOW else pytest.param(name, marks=pytest.mark.slow) for name in PLANTS]
)
def test_planted_dependences(tmp_path, name):
    plants, cause = PLANTS[name]
    ways = ["--threads", "1,2", "--worlds", "1"] if cause == "threads" else ["--worlds", "1,2"]
    done = run(written(tmp_path, **plants), *ways)
    line = done.stdout.splitlines()[0]
    assert done.returncode == 1 and line.endswith(verify.CAUSES[cause]), line
    assert line.startswith("step 0, shard " if cause in ("rows", "leaf", "threads") else "step 1: "), line
    if cause in ("leaf", "threads"):
        assert "a.weight" in line or "b.weight" in line or "a.bias" in line or "b.bias" in line


@pytest.mark.slow
def test_a_collective_inside_a_shard_fails_every_run(tmp_path):
    done = run(written(tmp_path, forward="m = h.detach().mean(); dist.all_reduce(m); h = h - m"), "--worlds", "1,2")
    assert done.returncode == 2 and "a collective or message inside logical shard 0" in done.stdout, done.stdout


@pytest.mark.slow
def test_deaths(tmp_path):
    script = written(tmp_path)
    text = script.read_text().replace(
        "for step in dist.shards(loader):", "for step in transaction.over(loader):\n      with step:"
    )
    text = text.replace("optimizer = optim", "optimizer = optim", 1).replace(
        "loader = DataLoader", "transaction = dist.Transaction(model, optimizer)\nloader = DataLoader", 1
    )
    script.write_text(text)
    done = run(script, "--worlds", "1,2,4", "--transports", "shm,tcp,hosts", "--kills", "2")
    assert done.returncode == 0 and done.stdout.startswith("same bits: 8 runs"), done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_models_of_the_benchmarks(model):
    root = Path(__file__).resolve().parents[2]
    script = root / "benchmarks" / "programs" / "four_models.py"
    command = [sys.executable, "-m", "pydist.verify", "--worlds", "1,2,3", "--steps", "10", str(script), model]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=200, env={**os.environ, "PYTHONPATH": str(root)}
    )
    assert done.stdout.startswith("same bits: 3 runs, 10 steps"), done.stdout + done.stderr


@pytest.mark.slow
def test_ranks_over_mpi(tmp_path, monkeypatch):
    if not (dist.is_mpi_available() and shutil.which("mpirun")):
        pytest.skip("pydist was built without an MPI, or there is no mpirun: NOT tested")
    monkeypatch.setenv("OMPI_ALLOW_RUN_AS_ROOT", "1")
    monkeypatch.setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
    script = written(
        tmp_path, after="assert dist.group.WORLD.transport in ('none', os.environ['WANTED']), dist.group.WORLD"
    )
    script.write_text("import os\n" + script.read_text())
    monkeypatch.setenv("WANTED", "mpi")
    done = run(script, "--worlds", "1,2,3", "--transports", "mpi")
    assert done.stdout.startswith("same bits: 3 runs, 3 steps"), done.stdout
    monkeypatch.setenv("WANTED", "shm")
    assert run(script, "--worlds", "2").stdout.rpartition(" ")[2] == done.stdout.rpartition(" ")[2]


def test_what_is_refused(tmp_path):
    assert "no such script" in run(tmp_path / "nothing.py").stderr
    assert "--transports: 'wire'" in run(written(tmp_path), "--transports", "wire").stderr
    plain = tmp_path / "plain.py"
    plain.write_text("print(1)")
    done = run(plain, "--worlds", "1")
    assert done.returncode == 2 and "it trained over no logical shards" in done.stdout
    plain.write_text("raise ValueError('mine')")
    done = run(plain, "--worlds", "1")
    assert done.returncode == 2 and "it ended with code 1" in done.stdout and "mine" in done.stdout
