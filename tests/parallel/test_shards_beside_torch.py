"""What torch's DistributedDataParallel and logical shards make of one run on 1, 2 and 4 ranks: their hashes, side by side."""

import subprocess
import sys

import pytest

from lib.control import free_port
from lib.processes import environment

PROGRAM = """
import hashlib, sys
import {library} as torch
import {library}.distributed as dist
from {library} import nn
from {library}.nn.parallel import DistributedDataParallel
from {library}.utils.data import DataLoader, DistributedSampler, TensorDataset

{init}
world = dist.get_world_size()
torch.manual_seed(0)
x = torch.randn(256, 64)
data = TensorDataset(x, x[:, :10].argmax(1))
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)))
optimizer = torch.optim.Adam(model.parameters())
loader = DataLoader(data, batch_size={rows}, sampler=DistributedSampler(data, shuffle=False))

def train(x, y):
    nn.functional.cross_entropy(model(x), y).backward()

for step in {steps}:
    optimizer.zero_grad()
    {step}
    optimizer.step()
bits = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
print(hashlib.sha256(bits).hexdigest()[:16] if dist.get_rank() == 0 else "")
dist.destroy_process_group()
"""
TORCH = {
    "library": "torch",
    "init": "dist.init_process_group('gloo')",
    "rows": "64 // world",
    "steps": "loader",
    "step": "train(*step)",
}
OURS = {
    "library": "pydist",
    "init": "dist.init_process_group(logical_shards=8)",
    "rows": "8",
    "steps": "dist.shards(loader)",
    "step": "[train(x, y) for shard in step for x, y in shard]",
}


def sha(how, world):
    """That of rank 0's parameters after four steps of 64 rows."""
    where = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM.format(**how)],
            env=environment(RANK=str(rank), LOCAL_RANK=str(rank), **where),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    texts = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * world
    return texts[0].strip()


@pytest.mark.slow
def test_hashes_of_1_2_and_4_ranks(capsys):
    pytest.importorskip("torch")
    ours, theirs = ({world: sha(how, world) for world in (1, 2, 4)} for how in (OURS, TORCH))
    with capsys.disabled():
        for world in (1, 2, 4):
            print(f"\n{world} ranks: pydist {ours[world]}, torch {theirs[world]}", end="")
    assert len(set(ours.values())) == 1
