"""Logical shards in the data-parallel reducer: .grad is the mean over all shards, with the bits of NumPy's sums in the
order of the tree, for any number of ranks."""

import pytest

import pydist
from lib.shard_sums import Net, expected, one_step, reducer_of, same
from pydist import _C
from pydist.testing import run_ranks

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
