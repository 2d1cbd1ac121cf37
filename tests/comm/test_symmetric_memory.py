"""Tensors in symmetric memory, in processes: the bits of ordinary ones, also after their group."""

import subprocess
import sys

import pytest

import pydist
from pydist import distributed as dist
from pydist.distributed import symmetric_memory

PROGRAM = """
import pydist
from pydist import distributed as dist
from pydist.distributed import symmetric_memory

dist.init_process_group()
rank, world = dist.get_rank(), dist.get_world_size()
for dtype in (pydist.float32, pydist.bfloat16, pydist.int64):
    for n in (3, 5000, 300_001):
        plain = (pydist.arange(n).double() * 0.7 + rank).sin().mul(50).to(dtype)
        shared = symmetric_memory.empty(n, dtype=dtype)
        for op in ("SUM", "MAX"):
            a = plain.clone()
            shared.copy_(plain)
            dist.all_reduce(a, op=getattr(dist.ReduceOp, op))
            dist.all_reduce(shared, op=getattr(dist.ReduceOp, op))
            assert a.tolist() == shared.tolist(), (dtype, n, op)
        a, part = plain.clone(), n // 2
        shared.copy_(plain)
        dist.all_reduce(a[part:])
        dist.all_reduce(shared[part:])  # a part of it
        dist.broadcast(a, world - 1)
        dist.broadcast(shared, world - 1)
        assert a.tolist() == shared.tolist()
shared = symmetric_memory.empty(100_000)
shared.fill_(rank + 1)
dist.all_reduce(shared)
dist.destroy_process_group()
assert shared.sum().item() == 100_000 * world * (world + 1) / 2
shared.fill_(1)
print("good")
"""


@pytest.mark.parametrize("world", [2, 3])
def test_the_bits_of_ordinary_tensors(world, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    command = [sys.executable, "-m", "pydist.run", "--nproc-per-node", str(world), str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.count("good") == world, done.stdout + done.stderr


def test_shapes_and_threads():
    def work(rank):
        x = symmetric_memory.empty(2, 3)
        x.fill_(rank)
        dist.all_reduce(x)
        big = symmetric_memory.empty((50_000,), dtype=pydist.float64)
        big.fill_(rank + 1)
        dist.all_reduce(big)
        return x.tolist(), big[-1].item()

    assert dist.threads.run(work, 3) == [([[3.0] * 3] * 2, 6.0)] * 3
    assert symmetric_memory.empty(0, 2).shape == (0, 2) and symmetric_memory.empty([2]).tolist() == [0, 0]
    with pytest.raises(RuntimeError):
        symmetric_memory.empty(2, device="cuda")
