"""order="fast": schedules as pure numbers for every world up to 64, and groups that run them."""

import threading

import numpy as np
import pytest

import pydist
from lib.ranks import LONG, good, run
from lib.trees import FLOATS, INTS, OPS, defined, expected, from_bf16, hash_of, sample, to_bf16
from pydist import _C
from pydist import distributed as dist

NAMES = ("ring", "halving")


@pytest.mark.parametrize("name", NAMES)
def test_every_rank_gets_every_part_once(name):
    """What a rank has of a part is the set of ranks whose input is in it; sets that are combined must not overlap."""
    for world in range(2, 65):
        parts, steps = _C._schedule(name, world)
        have = [[1 << rank] * parts for rank in range(world)]
        sent = [0] * world  # in parts
        before = [(-1, 0, 0)] * world
        for step in steps:
            now = [list(row) for row in have]  # all at once
            for rank, (source, lo, hi, add) in enumerate(step):
                if source < 0:
                    continue
                assert 0 <= lo < hi <= parts and source != rank
                sent[source] += hi - lo
                for part in range(lo, hi):
                    assert not add or not have[rank][part] & have[source][part], (world, rank, part)
                    now[rank][part] = have[source][part] | (have[rank][part] if add else 0)
                writes, other_lo, other_hi, _ = step[source]
                assert writes < 0 or hi <= other_lo or other_hi <= lo, "it takes what its owner changes"
                last, last_lo, last_hi = before[rank]
                assert last != source or hi <= last_lo or last_hi <= lo, "over messages it may come too early"
            before = [entry[:3] for entry in step]
            have = now
        assert have == [[(1 << world) - 1] * parts] * world
        if name == "ring" or world & (world - 1) == 0:  # the least that an all_reduce can send
            assert sent == [2 * parts * (world - 1) // world] * world
        assert len(steps) == (2 * (world - 1) if name == "ring" else 2 * (world.bit_length() - 1) + 2 * (parts < world))


def everything(group, sizes=(0, 1, 130, 3001)):
    out = []
    for dtype in FLOATS + INTS:
        for op in OPS:
            for n in sizes if defined(dtype, op) else ():
                x = sample(dtype, n, hash_of(dtype, op, n, group.rank))
                if op == "sum" and dtype in FLOATS:  # small numbers that every order adds exactly
                    x = (
                        to_bf16(np.arange(n) % 3 + group.rank)
                        if dtype == "bfloat16"
                        else (np.arange(n) % 3 + group.rank).astype(dtype)
                    )
                group.all_reduce(x, op, dtype=dtype if dtype == "bfloat16" else None)
                out.append((dtype, op, n, x))
    return out


def as_float(x, dtype):
    return from_bf16(x) if dtype == "bfloat16" else x.astype(np.float64)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("world, apart", [(2, False), (3, False), (5, False), (8, False), (2, True), (5, True)])
def test_fast_groups(name, world, apart):
    """Many pieces; the same bits on all ranks, and the tree's up to rounding."""
    hub = _C.Hub(world, world if apart else 1)
    results = good(run(world, everything, hub=hub, algo=name, fast=True, slot=1024))
    for dtype, op, n, got in results[0]:
        inputs = [sample(dtype, n, hash_of(dtype, op, n, r)) for r in range(world)]
        if op == "sum" and dtype in FLOATS:
            want = sum(np.arange(n) % 3 + r for r in range(world)).astype(np.float64)
            assert (as_float(got, dtype) == want).all(), (dtype, n)
            continue
        want = expected(inputs, dtype, op)
        if dtype in FLOATS and op in ("avg", "product"):
            close = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-4, "float64": 1e-12}[dtype]
            scale = np.mean([np.abs(as_float(x, dtype)) for x in inputs], axis=0) if op == "avg" else 1e-3
            a, b = as_float(got, dtype), as_float(want, dtype)
            with np.errstate(invalid="ignore"):  # two infinities
                assert ((a == b) | (np.abs(a - b) <= close * (np.abs(b) + scale))).all(), (dtype, op, n)
        else:
            assert got.tobytes() == want.tobytes(), (dtype, op, n)
    for rank in range(1, world):
        assert all(a[3].tobytes() == b[3].tobytes() for a, b in zip(results[0], results[rank], strict=True))


def test_every_world_up_to_64():
    """The tree's algorithms have the tree's bits; several pieces. Short: all small trees, and the last ones around 32 and 64
    leaves."""

    def fn(group):
        x, y = sample("float32", 700, group.rank), sample("bfloat16", 100, group.rank)
        group.all_reduce(x)
        group.all_reduce(y, dtype="bfloat16")
        return x.tobytes() + y.tobytes()

    for world in range(2, 65) if LONG else (*range(2, 20), 31, 32, 33, 63, 64):
        want = b"".join(
            expected([sample(dtype, n, r) for r in range(world)], dtype, "sum").tobytes()
            for dtype, n in (("float32", 700), ("bfloat16", 100))
        )
        for algo in ("gather_sum", "scatter_gather", "slot_sum"):
            assert set(good(run(world, fn, algo=algo, slot=1024))) == {want}, (world, algo)


def test_large_fast_worlds():
    def fn(group):
        x = np.random.default_rng(group.rank).integers(-1000, 1000, 4001).astype(np.float32)
        group.all_reduce(x)
        return x.tobytes()

    for world in (17, 64):
        want = sum(np.random.default_rng(r).integers(-1000, 1000, 4001).astype(np.float32) for r in range(world))
        for algo in NAMES:
            assert set(good(run(world, fn, algo=algo, fast=True))) == {want.tobytes()}, (world, algo)


def test_fast_reduce_and_segments():
    """Works in a queue, a root, and symmetric memory, between collectives of other kinds."""

    def fn(group):
        x, y = np.arange(5000.0) + group.rank, np.arange(5000.0) * group.rank
        shared = np.frombuffer(group.segment(80000), np.float64)[:5000]
        shared[:] = group.rank
        works = [group.all_reduce(x, async_op=True), group.reduce(y, 1, async_op=True), group.barrier(async_op=True)]
        group.all_reduce(shared)
        for work in works:
            work.wait()
        return x, y, shared.copy()

    for x, y, shared in good(run(3, fn, algo="ring", fast=True, slot=4096)):
        assert (x == 3 * np.arange(5000.0) + 3).all() and (shared == 3).all()
    assert (good(run(3, fn, algo="halving", fast=True))[1][1] == 3 * np.arange(5000.0)).all()


def test_who_may_be_fast(monkeypatch):
    with pytest.raises(ValueError, match="PYDIST_ALGO is 'ring' .*order=\"fast\""):
        _C.comm_init_hub(_C.Hub(1), 0, algo="ring")
    with pytest.raises(ValueError, match="order is 'quick' \\(expected None, 'tree' or 'fast'\\)"):
        dist.init_process_group(order="quick")
    dist.init_process_group(order="fast")
    assert dist.group.WORLD.order == "fast" and dist.new_group([0]).order == "tree"
    assert dist.new_group([0], order="fast").order == "fast"
    dist.destroy_process_group()
    hub, errors = _C.Hub(2), []

    def body(rank):
        try:
            _C.comm_init_hub(hub, rank, timeout=5, fast=rank == 1)
        except _C.DistError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=body, args=(r,)) for r in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors and any("the settings of rank" in text for text in errors)

    def work(rank):
        pair = dist.new_group(order="fast")
        x = pydist.full((1000,), float(rank + 1))
        dist.all_reduce(x, group=pair)
        return pair.order, x.sum().item()

    assert dist.threads.run(work, 2) == [("fast", 3000.0)] * 2
