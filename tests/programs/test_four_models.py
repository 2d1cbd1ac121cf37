"""The step's gradient of the four models of logical shards is NumPy's sum of their shards' gradients, in the tree's order."""

import sys
from pathlib import Path

import numpy as np
import pytest

from lib.trees import tree
from pydist import distributed as dist
from pydist.nn.parallel import DistributedDataParallel
from pydist.testing import run_ranks
from pydist.utils.data import DataLoader, DistributedSampler

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.workloads import four

SHARDS = 8


def backward(parts, net, x, y):
    loss = parts.loss(net, x, y)
    (loss if parts.scaler is None else parts.scaler.scale(loss)).backward()


def made(name):
    parts = four.made(name, SHARDS * four.ROWS_OF_A_SHARD[name] * 2, dropout=False)
    loader = DataLoader(parts.data, batch_size=four.ROWS_OF_A_SHARD[name], sampler=DistributedSampler(parts.data))
    return parts, loader


def leaf(name, shard):
    """The gradient of one shard alone: on a model of its own, from the same beginning."""
    dist.init_process_group(logical_shards=SHARDS)
    parts, loader = made(name)
    parts.net.train()
    sampler, rows = loader.sampler, four.ROWS_OF_A_SHARD[name]
    for n in range(parts.accumulate):
        batch = sampler.of_shard(shard, n * rows, (n + 1) * rows)
        backward(parts, parts.net, *parts.data.rows(batch))
    return {k: p.grad.numpy().copy() for k, p in parts.net.named_parameters()}


def step(rank, name):
    dist.init_process_group(logical_shards=SHARDS)
    parts, loader = made(name)
    model = DistributedDataParallel(parts.net)
    for one in dist.shards(loader, accumulate=parts.accumulate):
        for shard in one:
            for x, y in shard:
                backward(parts, model, x, y)
        return {k: p.grad.numpy().copy() for k, p in parts.net.named_parameters()}


@pytest.mark.parametrize("name", ["mlp", *(pytest.param(m, marks=pytest.mark.slow) for m in four.MODELS[1:])])
def test_the_gradient_is_numpys_sum(name):
    leaves = [run_ranks(1, lambda rank, v=v: leaf(name, v))[0] for v in range(SHARDS)]
    want = {k: tree([one[k] for one in leaves], np.add) * np.float32(1 / SHARDS) for k in leaves[0]}
    for world in (1, 3):
        for found in run_ranks(world, step, name):
            for k in want:
                assert found[k].tobytes() == want[k].tobytes(), (world, k)
