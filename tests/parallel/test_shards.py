"""Logical shards in the data-parallel reducer: .grad is the mean over all shards, with the bits of NumPy's sums in the
order of the tree, for any number of ranks."""

import numpy as np
import pytest

import pydist
from lib.trees import tree
from pydist import _C, nn
from pydist import distributed as dist
from pydist.testing import run_ranks

F = nn.functional


class Net(nn.Module):
    """With a convolution in channels_last, a parameter that is used twice, one that some shards do not reach, and a
    frozen one."""

    def __init__(self, dtype=pydist.float32):
        super().__init__()
        pydist.manual_seed(3)
        self.conv = nn.Conv2d(2, 4, 3, padding=1).to(memory_format=pydist.channels_last)
        self.shared = nn.Linear(16, 16)
        self.odd = nn.Linear(16, 3)
        self.even = nn.Linear(16, 3)
        self.never = nn.Linear(2, 2)
        self.frozen = nn.Linear(16, 16)
        self.to(dtype)
        for p in self.frozen.parameters():
            p.requires_grad_(False)

    def forward(self, x, shard):
        x = self.conv(x).relu().mean(1).flatten(1)
        x = self.frozen(self.shared(self.shared(x).tanh()))
        return (self.odd if shard % 3 else self.even)(x)


def batch(shard, part=0):
    rng = np.random.default_rng([shard, part])
    return pydist.from_numpy(rng.standard_normal((5, 2, 4, 4)).astype("float32"))


def named(net):
    return {name: p for name, p in net.named_parameters() if p.requires_grad}


def loss_of(net, shard, part=0):
    dtype = next(net.parameters()).dtype
    return net(batch(shard, part).to(dtype), shard).square().float().sum()


def expected(shards, parts=1, dtype=pydist.float32):
    """The bits that every table has to give."""
    net, leaves = Net(dtype), []
    for shard in range(shards):
        net.zero_grad()
        for part in range(parts):
            loss_of(net, shard, part).backward()
        leaves.append({k: None if p.grad is None else p.grad.float().numpy().copy() for k, p in named(net).items()})
    means = {}
    for name, p in named(net).items():
        found = [np.zeros(p.shape, "float32") if leaf[name] is None else leaf[name] for leaf in leaves]
        if any(leaf[name] is not None for leaf in leaves):
            mean = tree(found, np.add) * np.float32(1 / shards)
            means[name] = pydist.from_numpy(mean).to(dtype)
    return means


def reducer_of(net, blocks, cap=600):
    names, params = zip(*named(net).items())
    return _C.Reducer(list(params), list(names), dist.group.WORLD, cap, cap, blocks)


def one_step(net, reducer, mine, parts=1, announced=True):
    for k, shard in enumerate(mine):
        reducer.open_shard(k)
        for part in range(parts):
            if announced and part == parts - 1:
                reducer.last_backward()
            loss_of(net, shard, part).backward()
        reducer.close_shard()
    if not mine:
        reducer.close_shard()


def same(net, want):
    for name, p in named(net).items():
        if name not in want:
            assert p.grad is None, name
            continue
        assert p.grad.dtype == p.dtype and p.grad.stride() == p.stride(), name
        assert p.grad.float().numpy().tobytes() == want[name].float().numpy().tobytes(), name


TABLES = [
    (1, [8]), (2, [4, 4]), (2, [5, 3]), (2, [0, 8]), (3, [3, 3, 2]), (3, [6, 1, 1]), (4, [2, 2, 2, 2]), (8, [1] * 8),
    (5, [2, 2, 2, 1, 1]),
]  # fmt: skip


@pytest.mark.parametrize("parts, announced", [(1, True), (1, False), (2, True), (3, False)])
@pytest.mark.parametrize("world, shares", TABLES)
def test_the_bits_of_the_tree(world, shares, parts, announced):
    want = expected(8, parts)

    def work(rank):
        net, blocks = Net(), _C.Blocks(8, shares)
        reducer, mine = reducer_of(net, blocks), blocks.of_rank(rank)
        assert reducer.shards == len(mine)
        for _ in range(3):
            one_step(net, reducer, mine, parts, announced)
            same(net, want)

    run_ranks(world, work)


@pytest.mark.parametrize("world, shares", [(1, [4]), (2, [3, 1]), (2, [2, 2]), (4, [1] * 4)])
@pytest.mark.parametrize("dtype", [pydist.bfloat16, pydist.float16], ids=str)
def test_16_bits_are_summed_in_32(world, shares, dtype):
    """The oracle's leaves are exact in float32; the mean is rounded once."""
    want = expected(4, 1, dtype)

    def work(rank):
        net, blocks = Net(dtype), _C.Blocks(4, shares)
        one_step(net, reducer_of(net, blocks), blocks.of_rank(rank))
        same(net, want)

    run_ranks(world, work)
