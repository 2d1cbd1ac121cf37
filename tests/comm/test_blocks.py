"""Logical shards in the engine: how they are dealt out, and sums over them, which have the same bits for any number of
ranks."""

import itertools

import numpy as np
import pytest

import pydist
from lib.ranks import good, run
from lib.trees import tree
from pydist import _C
from pydist import distributed as dist
from pydist.distributed import symmetric_memory
from pydist.testing import run_ranks


def allowed(shards):
    return [q for q in range(shards + 1) if q.bit_count() <= 2]


def all_shares(shards, ranks):
    """Every way to deal out the shards."""
    if ranks == 1:
        return [(shards,)] if shards.bit_count() <= 2 else []
    return [(q, *rest) for q in allowed(shards) for rest in all_shares(shards - q, ranks - 1)]


def check_table(blocks, shares, hosts=None):
    """The table is what its contract says, and its split is the tree over the shards."""
    table, at = blocks.table, 0
    for lo, size, _, _ in table:
        assert lo == at and size & (size - 1) == 0 and lo % size == 0
        at += size
    assert at == blocks.shards
    for rank, share in enumerate(shares):
        own = [(part, size) for _, size, owner, part in table if owner == rank]
        assert sum(size for _, size in own) == share and [part for part, _ in own] == list(range(len(own)))
    assert blocks.parts == max(1, max(part + 1 for _, _, _, part in table))

    def walk(lo, hi, first, size, split):
        """Checks that blocks [lo, hi) are shards [first, first + size), split in the middle again and again."""
        assert table[lo][0] == first
        if hi - lo == 1:
            assert not split
            return
        mid = lo + split[0]
        assert lo < mid < hi and table[mid][0] == first + size // 2
        walk(lo, mid, first, size // 2, split[1 : mid - lo])
        walk(mid, hi, first + size // 2, size // 2, split[mid - lo :])

    walk(0, len(table), 0, blocks.shards, blocks.split)
    for host in set(hosts or []):  # a host's shards are as few subtrees as its share has bits
        mine = [v for v in range(blocks.shards) if hosts[blocks.owner(v)] == host]
        holes = sum(v - 1 not in mine for v in mine)
        assert holes <= len(mine).bit_count()


@pytest.mark.parametrize("shards", [1, 2, 4, 8, 16])
def test_every_table_of_few_ranks(shards):
    for ranks in (1, 2, 3, 4):
        for shares in all_shares(shards, ranks):
            check_table(_C.Blocks(shards, shares), shares)
            hosts = [7] * (ranks // 2) + [3] * (ranks - ranks // 2)
            check_table(_C.Blocks(shards, shares, hosts), shares, hosts)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [5, 6, 7, 8])
def test_every_table_of_many_ranks(ranks):
    for shards in (1, 2, 4, 8, 16):
        for shares in all_shares(shards, ranks):
            check_table(_C.Blocks(shards, shares), shares)


def test_the_table_of_the_header():
    blocks = _C.Blocks(8, [3, 3, 2])
    assert blocks.table == [(0, 2, 0, 0), (2, 2, 1, 0), (4, 2, 2, 0), (6, 1, 0, 1), (7, 1, 1, 1)]
    assert [blocks.of_rank(r) for r in range(3)] == [[0, 1, 6], [2, 3, 7], [4, 5]]
    assert len({_C.Blocks(8, s).key for s in itertools.permutations((3, 3, 2))}) == 3


def least(shards, times):
    """By trying all."""
    ways = all_shares(shards, len(times))
    return min(
        (
            max(q * t for q, t in zip(way, times, strict=True)),
            sum((q * t) ** 2 for q, t in zip(way, times, strict=True)),
        )
        for way in ways
    )


def test_shares_end_a_step_soonest():
    rng = np.random.default_rng(0)
    for shards, ranks in ((1, 3), (4, 3), (8, 2), (8, 3), (16, 2), (16, 3), (16, 4)):
        for times in [[1] * ranks, *rng.integers(1, 6, (8, ranks)).tolist()]:
            got = _C.share_shards(shards, ranks, times)
            assert sum(got) == shards and all(q.bit_count() <= 2 for q in got)
            found = [q * t for q, t in zip(got, times, strict=True)]
            assert (max(found), sum(x * x for x in found)) == least(shards, times), (shards, times, got)
    assert _C.share_shards(8, 3) == [3, 3, 2]
    assert _C.share_shards(16, 2, [2, 1]) == [5, 10] or max(2 * 6, 10) >= 10
    assert _C.share_shards(2, 4) == [1, 1, 0, 0]
    assert sum(_C.share_shards(1024, 11)) == 1024


# ---- sums

WAYS = [
    ("", 1, 3), ("gather_sum", 1, 3), ("scatter_gather", 1, 3), ("slot_sum", 1, 3), ("gather_sum", "all", 3),
    ("scatter_gather", "all", 3), ("", "all", 4), ("", 2, 4), ("hierarchical", 2, 4), ("", 1, 2), ("", 1, 5),
]  # fmt: skip


def leaves_of(shards, n, dtype):
    rng = np.random.default_rng(n)
    return [(rng.standard_normal(n) * 10.0 ** rng.integers(-3, 4)).astype(dtype) for _ in range(shards)]


def own_sums(blocks, rank, leaves):
    """The sums of a rank's blocks, one after the other, as the group takes them."""
    sums = np.full((blocks.parts, *leaves[0].shape), 777, leaves[0].dtype)  # what it must not read
    for lo, size, owner, part in blocks.table:
        if owner == rank:
            sums[part] = tree(leaves[lo : lo + size], np.add)
    return sums


def some_shares(shards, world):
    ways = all_shares(shards, world)
    return [ways[i] for i in sorted({0, len(ways) // 3, len(ways) // 2, len(ways) - 1})] + [
        tuple(_C.share_shards(shards, world))
    ]


@pytest.mark.parametrize("algo, hosts, world", WAYS)
def test_sums_have_the_bits_of_the_tree(algo, hosts, world):
    """By each algorithm, with the steps and bytes that its cost says."""
    count = world if hosts == "all" else hosts

    def fn(group):
        local = group.ranks_per_host
        host_of = [r * count // world for r in range(world)]
        for shards, dtype, n in ((8, "float32", 1000), (16, "float32", 77), (16, "float64", 640), (16, "float32", 0)):
            leaves = leaves_of(shards, n, dtype)
            want = tree(leaves, np.add) * np.dtype(dtype).type(0.125)
            for shares in some_shares(shards, world):
                blocks = _C.Blocks(shards, shares, host_of)
                x = own_sums(blocks, group.rank, leaves)
                before = group.counted
                group.all_reduce(x, scale=0.125, blocks=blocks)
                after = group.counted
                assert x[0].tobytes() == want.tobytes(), (shards, shares, dtype, n)
                fits = algo != "hierarchical" or blocks.hosts == count
                told = _C.comm_cost(
                    "all_reduce", world, n, dtype, group.rank, messages=hosts != 1, local=local,
                    algo=algo if algo and fits else None, slot=1024, blocks=blocks,
                )  # fmt: skip
                assert after["steps"] - before["steps"] == told["steps"]
                for level in ("memory", "messages"):
                    moved = tuple(a - b for a, b in zip(after[level], before[level], strict=True))
                    assert moved == told[level], (shards, shares, dtype, n, level, told["algorithm"])

    good(run(world, fn, hub=_C.Hub(world, count), algo=algo, slot=1024))


def test_bytes_of_three_ranks():
    """8 shards on 3 ranks send at most 1.34 times the bytes of plain ranks; on 2 or 4, as many as those."""

    def sent(world, **how):
        costs = [_C.comm_cost("all_reduce", world, 1 << 20, "float32", r, messages=True, **how) for r in range(world)]
        return sum(cost["messages"][0] for cost in costs)

    blocks = {world: _C.Blocks(8, _C.share_shards(8, world)) for world in (2, 3, 4)}
    for world in (2, 4):
        assert sent(world, blocks=blocks[world]) == sent(world)
    assert sent(3) < sent(3, blocks=blocks[3]) <= 1.34 * sent(3)


@pytest.mark.parametrize("hosts, world", [(1, 3), (1, 4), ("all", 3), (2, 4)])
def test_reduce_scatter_has_the_bits_of_the_tree(hosts, world):
    def fn(group):
        for shards, n in ((8, 333), (16, 5)):
            leaves = [x.reshape(world, n) for x in leaves_of(shards, world * n, "float32")]
            for shares in some_shares(shards, world):
                blocks = _C.Blocks(shards, shares)
                out = np.zeros(n, "float32")
                group.reduce_scatter(out, own_sums(blocks, group.rank, leaves), scale=0.5, blocks=blocks)
                want = tree(leaves, np.add)[group.rank] * np.float32(0.5)
                assert out.tobytes() == want.tobytes(), (shards, shares)

    good(run(world, fn, hub=_C.Hub(world, world if hosts == "all" else hosts), slot=4096))


def _in_symmetric_memory(rank):
    group, world = dist.group.WORLD, dist.get_world_size()
    leaves = leaves_of(16, 5000, "float32")
    want = tree(leaves, np.add)
    for shares in some_shares(16, world):
        blocks = _C.Blocks(16, shares)
        x = symmetric_memory.empty(blocks.parts, 5000)
        x.copy_(pydist.from_numpy(own_sums(blocks, rank, leaves)))
        group.all_reduce(x, blocks=blocks)
        assert x[0].numpy().tobytes() == want.tobytes()
        parts = symmetric_memory.empty(blocks.parts, world, 5000 // world // 8 * 8)
        parts.copy_(pydist.from_numpy(own_sums(blocks, rank, [y[: parts[0].numel()] for y in leaves])).view_as(parts))
        out = pydist.zeros(parts.shape[2])
        group.reduce_scatter(out, parts, blocks=blocks)
        assert out.numpy().tobytes() == want[: parts[0].numel()].reshape(world, -1)[rank].tobytes()
    return group.counted["steps"]


@pytest.mark.parametrize("world", [2, 3])
def test_sums_in_symmetric_memory(world):
    run_ranks(world, _in_symmetric_memory)


def test_a_world_of_one():
    leaves = leaves_of(4, 100, "float32")
    blocks = _C.Blocks(4, [4])
    x = tree(leaves, np.add)
    want = x * np.float32(0.25)
    good(run(1, lambda group: group.all_reduce(x, scale=0.25, blocks=blocks)))
    assert x.tobytes() == want.tobytes()


# ---- bad input


@pytest.mark.parametrize(
    "args, text",
    [
        ((3, [2, 1]), "got 3 .expected a power of two"),
        ((2048, [2048]), "got 2048"),
        ((0, [0]), "got 0"),
        ((8, [7, 1]), "rank 0 has 7 of 8 .expected a number with at most two bits"),
        ((8, [-1, 9]), "rank 0 has -1"),
        ((8, [4, 3]), "less than 8"),
        ((8, [8, 8]), "more than 8"),
        ((8, []), "0 ranks"),
        ((8, [4, 4], [0]), "hosts has 1 numbers"),
    ],
)
def test_wrong_tables(args, text):
    with pytest.raises(ValueError, match=text):
        _C.Blocks(*args)


def test_wrong_shares():
    with pytest.raises(ValueError, match="expected a power of two"):
        _C.share_shards(6, 2)
    with pytest.raises(ValueError, match="rank 1 takes 0"):
        _C.share_shards(4, 2, [1, 5000])
    with pytest.raises(ValueError, match="2 ranks and 1 times"):
        _C.share_shards(4, 2, [1])


def test_wrong_calls():
    blocks = _C.Blocks(4, [3, 1])

    def fn(group):
        for call, error, text in (
            (lambda: group.all_reduce(np.ones(3, "float32"), blocks=blocks), ValueError, "3 elements .*multiple of 2"),
            (lambda: group.all_reduce(np.ones(4, "int32"), blocks=blocks), TypeError, "int32 .expected float32"),
            (lambda: group.all_reduce(np.ones(4, "float16"), blocks=blocks), TypeError, "float16"),
            (lambda: group.all_reduce(np.ones(4, "float32"), "max", blocks=blocks), ValueError, "op is MAX"),
            (lambda: group.all_reduce(np.ones(4, "float32"), blocks=7), TypeError, "blocks is int"),
            (lambda: group.all_reduce(np.ones(4, "float32"), blocks=_C.Blocks(4, [4])), ValueError, "to 1 ranks"),
            (lambda: group.reduce_scatter(np.ones(4, "float32"), np.ones(4, "float32"), blocks=blocks), ValueError,
             "expected 16"),
        ):  # fmt: skip
            with pytest.raises((error, ValueError), match=text):
                call()
        x = np.ones(4, "float32")
        group.all_reduce(x, blocks=blocks)
        assert x[0] == 3

    good(run(2, fn))


def test_ranks_with_different_tables():
    def fn(group):
        shares = [[2, 2], [3, 1]][group.rank]
        with pytest.raises(_C.CommMismatch, match="logical shards"):
            group.all_reduce(np.ones(4, "float32"), blocks=_C.Blocks(4, shares))

    good(run(2, fn))


def test_a_group_that_adds_in_any_order():
    def fn(group):
        with pytest.raises(ValueError, match='order="fast"'):
            group.all_reduce(np.ones(4, "float32"), blocks=_C.Blocks(4, [2, 2]))

    good(run(2, fn, fast=True))
