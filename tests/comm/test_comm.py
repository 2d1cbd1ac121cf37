"""Groups and collectives: the same bits everywhere, an error instead of a hang everywhere, and nothing left behind."""

import gc
import hashlib
import os
import re
import signal
import threading
import time

import numpy as np
import pytest

from lib.processes import is_alive, shared_files, within
from lib.ranks import FAULTS, LONG, PRELUDE, Ranks, WORLDS, also_apart, apart_when_long, good, outputs, processes, run
from lib.trees import FLOATS, INTS, OPS, defined, every_collective, expected, hash_of, reduce_everything, sample
from pydist import _C


@also_apart
@pytest.mark.parametrize("algo", ["gather_sum", "scatter_gather", "slot_sum"])
@pytest.mark.parametrize("world", [1, 2, 3, 4, 5])
def test_every_dtype_and_op_has_the_trees_bits(world, algo):
    results = good(run(world, reduce_everything, algo=algo, slot=1024))  # many pieces
    for (dtype, op, n, _), *got in zip(results[0], *results, strict=True):
        inputs = [sample(dtype, n, hash_of(dtype, op, n, r)) for r in range(world)]
        want = expected(inputs, dtype, op).tobytes()
        for rank in range(world):
            assert got[rank][3].tobytes() == want, (dtype, op, n, rank)


@also_apart
@pytest.mark.parametrize("world", [2, 3] if LONG else [3])
def test_processes_give_the_same_bits(world):
    script = """
        import hashlib
        from lib.trees import reduce_everything
        h = hashlib.sha256()
        for dtype, op, n, x in reduce_everything(group, (0, 1, 7, 30000)):
            h.update(x.tobytes())
        print(h.hexdigest())
        leave()
    """
    h = hashlib.sha256()
    for dtype in FLOATS + INTS:
        for op in OPS:
            for n in (0, 1, 7, 30000):
                if defined(dtype, op):
                    inputs = [sample(dtype, n, hash_of(dtype, op, n, r)) for r in range(world)]
                    h.update(expected(inputs, dtype, op).tobytes())
    out = outputs(processes(world, script))
    assert {o.strip() for o in out} == {h.hexdigest()}


@also_apart
@pytest.mark.parametrize("world", [2, 3, 5])
def test_sizes_around_every_edge(world):
    sizes = [0, 1, 63, 64, 65, 4095, 4096, 4097, 8192, 16383, 65535, 65536, 65537, 200001, 1000003]

    def fn(group):
        out = []
        for n in sizes:
            x = np.random.default_rng([n, group.rank]).standard_normal(n).astype(np.float32)
            group.all_reduce(x)
            out.append(x)
        return out

    results = good(run(world, fn))
    for i, n in enumerate(sizes):
        want = expected(
            [np.random.default_rng([n, r]).standard_normal(n).astype(np.float32) for r in range(world)],
            "float32",
            "sum",
        )
        for rank in range(world):
            assert results[rank][i].tobytes() == want.tobytes()


@also_apart
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_segments_give_the_same_bits(world):
    n = 50001

    def fn(group):
        segment = group.segment(n * 4 + 4096)
        whole = np.frombuffer(segment, np.uint8)
        assert not whole.any()
        out = []
        for dtype in FLOATS + INTS:
            for op in OPS:
                if defined(dtype, op):
                    x = whole[64 : 64 + 40000].view("uint16" if dtype == "bfloat16" else dtype)
                    x[:] = sample(dtype, len(x), hash_of(dtype, op, 0, group.rank))
                    group.all_reduce(x, op, dtype=dtype if dtype == "bfloat16" else None)
                    want = expected([sample(dtype, len(x), hash_of(dtype, op, 0, r)) for r in range(world)], dtype, op)
                    assert x.tobytes() == want.tobytes(), (dtype, op)
        for op, offset, scale in (("sum", 0, 1.0), ("avg", 64, 1.0), ("sum", 4096 * group.rank % 8192 // 2, 0.25)):
            x = whole[offset : offset + 4 * n].view(np.float32)
            x[:] = np.random.default_rng([group.rank, offset if op == "avg" else 0]).standard_normal(n)
            group.all_reduce(x, op, scale=scale)
            out.append(x.copy())
        group.destroy()
        whole[:] = 7  # it outlives the group
        return out

    results = good(run(world, fn))
    for i, (op, seed, scale) in enumerate((("sum", 0, 1.0), ("avg", 64, 1.0), ("sum", 0, 0.25))):
        inputs = [np.random.default_rng([r, seed]).standard_normal(n).astype(np.float32) for r in range(world)]
        want = expected(inputs, "float32", op, scale)
        for rank in range(world):
            assert results[rank][i].tobytes() == want.tobytes()


@also_apart
def test_segment_on_some_ranks_only():
    """The others' data lie elsewhere: all take the staged way, with the same bits."""
    n = 300000

    def fn(group):
        segment = group.segment(n * 4)
        x = np.frombuffer(segment, np.float32) if group.rank != 1 else np.empty(n, np.float32)
        x[:n] = np.arange(n) + group.rank
        for _ in range(3):
            group.all_reduce(x[:n])
        x = x[:n].copy()
        y = np.frombuffer(segment, np.float32)[:n] if group.rank else np.empty(n, np.float32)
        y[:] = group.rank
        group.broadcast(y, 2)
        return x, y.copy()

    results = good(run(3, fn))
    for _ in range(3):
        inputs = [np.arange(n, dtype=np.float32) + r for r in range(3)]
    want = expected(inputs, "float32", "sum")
    for _ in range(2):
        want = expected([want] * 3, "float32", "sum")
    for x, y in results:
        assert x.tobytes() == want.tobytes() and (y == 2).all()


def test_parts_of_segments():
    """Any part will do, also one that ends where the segment does; what reaches past it is not in it."""
    n = 50000

    def fn(group):
        segment, other = group.segment(n * 4), group.segment(n * 4)
        x, y = np.frombuffer(segment, np.float32)[:n], np.frombuffer(other, np.float32)[:n]
        x[:], y[:] = np.arange(n) + group.rank, group.rank
        group.all_reduce(x[n // 3 :])
        group.all_reduce(x if group.rank else y)  # in different segments
        return x.copy(), y.copy()

    results = good(run(2, fn))
    zero = np.arange(n, dtype=np.float32)
    zero[n // 3 :] = 2 * zero[n // 3 :] + 1
    one = zero.copy()
    one[: n // 3] += 1
    assert (results[0][0] == zero).all() and (results[1][0] == one).all() and (results[0][1] == one).all()


def test_wrong_segments():
    def fn(group):
        for size in (-1, 1 << 60):
            with pytest.raises(ValueError):
                group.segment(size)
        empty = group.segment(0)
        with pytest.raises(_C.CommMismatch, match=r"segment\(0 bytes\)"):
            group.segment(group.rank)
        del empty

    good(run(2, fn))


@also_apart
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_broadcast_and_all_gather(world):
    def fn(group):
        for n in (0, 1, 100, 20000, 300000):
            for root in range(world):
                x = np.full(n, group.rank, np.int64)
                group.broadcast(x, root)
                assert (x == root).all()
            out = np.empty(n * world, np.int32)
            group.all_gather(out, np.full(n, group.rank + 5, np.int32))
            assert (out == np.repeat(np.arange(world) + 5, n)).all()
        segment = group.segment(400000)
        x = np.frombuffer(segment, np.uint8)
        x[:] = group.rank
        group.broadcast(x, world - 1)
        assert (x == world - 1).all()
        group.barrier()

    good(run(world, fn))


@pytest.mark.parametrize("world", WORLDS if LONG else (1, 2, 3))
def test_every_collective_gives_the_same_bits_on_every_transport(world):
    inproc = good(run(world, every_collective))
    slot = 8192 if LONG else 1024  # in many pieces
    assert good(run(world, every_collective, slot=slot)) == inproc
    if world > 1:
        assert good(run(world, every_collective, hub=_C.Hub(world, world))) == inproc
        assert good(run(world, every_collective, hub=_C.Hub(world, 2), slot=slot)) == inproc
    if world in (2, 3):
        script = """
            from lib.trees import every_collective
            print(group.transport, every_collective(group))
            leave()
        """
        assert [o.split() for o in outputs(processes(world, script))] == [["shm", h] for h in inproc]


@also_apart
def test_reduce_scatter_reads_segments_where_they_lie():
    n = 40000

    def fn(group):
        rng = np.random.default_rng(group.rank)
        x = rng.standard_normal(n * group.size).astype(np.float32)
        want, out = x.copy(), np.zeros(n, np.float32)
        group.all_reduce(want, scale=0.5)
        segment = group.segment(4 * n * group.size)
        y = np.frombuffer(segment, np.float32)[: n * group.size]
        for on_all in (True, False):  # where some have their data elsewhere, all stage it
            y[:] = x
            group.reduce_scatter(out, y if on_all or group.rank else x, scale=0.5)
            assert (out == want[group.rank * n : (group.rank + 1) * n]).all()
        group.barrier()
        y[:] = x
        group.reduce_scatter(y[group.rank * n : (group.rank + 1) * n], y, scale=0.5)
        assert (y[group.rank * n : (group.rank + 1) * n] == out).all()

    good(run(3, fn))


def test_bad_exchanges():
    def fn(group):
        x = np.zeros(6, np.float32)
        for output, input, error in (
            (np.zeros(5, np.float32), np.zeros(5, np.float32), _C.ShapeError),
            (np.zeros(4, np.float32), x, _C.ShapeError),
            (np.zeros(6), x, _C.DTypeError),
            (x[:4], x[2:], ValueError),
            ([x], [x], TypeError),
        ):
            with pytest.raises(error):
                group.all_to_all(output, input)
        group.all_to_all(x, x)

    good(run(2, fn))


@also_apart
def test_nan_and_signed_zero():
    def fn(group):
        x = np.array([np.nan, 1.0, -0.0, np.inf] if group.rank else [1.0, np.nan, 0.0, -np.inf], np.float32)
        out = []
        for op in ("min", "max", "sum"):
            y = x.copy()
            group.all_reduce(y, op)
            out.append(y)
        return out

    (low, high, total), other = good(run(2, fn))
    assert np.isnan(low[:2]).all() and np.isnan(high[:2]).all() and np.isnan(total[3])
    assert low[3] == -np.inf and high[3] == np.inf
    assert all(a.tobytes() == b.tobytes() for a, b in zip((low, high, total), other))


def test_every_half_goes_through_unchanged():
    """Sums with zero: conversion to float32 and back is exact for all 65536 patterns."""

    def fn(group):
        out = []
        for dtype in ("float16", "bfloat16"):
            x = np.arange(65536).astype(np.uint16) if group.rank == 0 else np.zeros(65536, np.uint16)
            y = x.view(np.float16) if dtype == "float16" else x
            group.all_reduce(y, dtype=dtype)
            out.append(x)
        return out

    for f16, bf16 in good(run(2, fn)):
        for got, exponent in ((f16, 0x7C00), (bf16, 0x7F80)):
            bits, mantissa = np.arange(65536).astype(np.uint16), 0x7FFF - exponent
            nan = ((bits & exponent) == exponent) & ((bits & mantissa) != 0)
            zero = (bits & 0x7FFF) == 0
            assert (got[~nan & ~zero] == bits[~nan & ~zero]).all()
            assert ((got[nan] & exponent) == exponent).all() and (got[nan] & mantissa).all()


@also_apart
def test_bad_arguments_leave_the_group_as_it_is():
    def fn(group):
        for call, error in (
            (lambda: group.all_reduce(np.zeros(3, np.int32), "avg"), TypeError),
            (lambda: group.all_reduce(np.zeros(3, np.float32), "band"), TypeError),
            (lambda: group.all_reduce(np.zeros(3, bool), "avg"), TypeError),
            (lambda: group.all_reduce(np.zeros(3, np.int32), scale=0.5), TypeError),
            (lambda: group.all_reduce(np.zeros(3, np.complex64)), TypeError),
            (lambda: group.all_reduce(np.zeros(3), "median"), ValueError),
            (lambda: group.all_reduce(np.zeros(3), 99), ValueError),
            (lambda: group.all_reduce(np.zeros((4, 4))[:, 1]), (ValueError, BufferError)),
            (lambda: group.all_reduce(b"constant"), (BufferError, TypeError, ValueError)),
            (lambda: group.all_reduce(7), TypeError),
            (lambda: group.all_reduce(), TypeError),
            (lambda: group.all_reduce(np.zeros(3), unknown=1), TypeError),
            (lambda: group.all_reduce(np.zeros(3), "sum", op="sum"), TypeError),
            (lambda: group.broadcast(np.zeros(3), 2), ValueError),
            (lambda: group.broadcast(np.zeros(3), -1), ValueError),
            (lambda: group.all_gather(np.zeros(5), np.zeros(3)), (ValueError, RuntimeError)),
        ):
            with pytest.raises(error):
                call()
        x = np.ones(3)
        group.all_reduce(x)
        return x.sum()

    assert good(run(2, fn)) == [6.0, 6.0]


# Asynchronous works.


@also_apart
def test_async_works_in_order():
    def fn(group):
        arrays = [np.full(n, group.rank + i, np.float32) for i, n in enumerate((10, 100000, 5, 700000, 64))]
        works = [group.all_reduce(x, async_op=True) for x in arrays]
        works.append(group.barrier(True))
        y = np.full(3, group.rank, np.int64)
        group.broadcast(y, 1)  # synchronous, behind all of them
        assert all(w.is_completed() for w in works)
        for w in reversed(works):
            assert w.wait() is True
        return [x[0] for x in arrays] + [y[0]]

    assert good(run(2, fn)) == [[1, 3, 5, 7, 9, 1]] * 2


@also_apart
def test_works_may_be_dropped():
    def fn(group):
        x = np.full(100000, 1.0)
        group.all_reduce(x, async_op=True)
        gc.collect()
        group.barrier()
        return x[0]

    assert good(run(3, fn)) == [3.0] * 3


@also_apart
def test_progress_without_waiting():
    def fn(group):
        x = np.ones(5)
        if group.rank == 0:
            work = group.all_reduce(x, async_op=True)
            assert not work.is_completed()
            with pytest.raises(_C.CommTimeout):
                work.wait(0.1)  # patience ends, not the group
            while not work.is_completed():
                group.progress()
                time.sleep(0.001)
        else:
            time.sleep(0.4)
            group.all_reduce(x)
        group.barrier()
        return x[0]

    assert good(run(2, fn)) == [2.0, 2.0]


@also_apart
def test_threads_of_one_rank_take_turns():
    """Two threads of a rank use its group at once; the order between them is theirs, so all do the same."""
    script = """
        total = []
        def body():
            for _ in range(200):
                x = np.ones(10, np.float32)
                group.all_reduce(x)
                total.append(float(x[0]))
        threads = [threading.Thread(target=body) for _ in range(3)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert total == [2.0] * 600
        leave()
    """
    outputs(processes(2, script))


# Worlds of one.


def test_a_world_of_one():
    group = _C.comm_init(0, 1, None, -1)
    assert (group.rank, group.size, group.transport) == (0, 1, "none")
    x = np.array([1.0, 2.0])
    group.all_reduce(x, "avg")
    group.all_reduce(x, scale=2.0)
    assert x.tolist() == [2.0, 4.0]
    assert group.all_reduce(x, async_op=True).wait()
    group.broadcast(x)
    group.barrier()
    y = np.zeros(2)
    group.all_gather(y, x)
    assert y.tolist() == [2.0, 4.0]
    s = group.segment(100)
    assert not np.frombuffer(s, np.uint8).any()
    with pytest.raises(RuntimeError):
        group.store
    group.destroy()
    with pytest.raises(_C.DistError, match="destroyed"):
        group.all_reduce(x)
    assert np.frombuffer(s, np.uint8).size == 4096


# Different calls.


def differing():
    f4, zeros = lambda: np.full(4, 9.0, np.float32), np.zeros
    return {
        "op": (lambda g, x: g.all_reduce(x), lambda g, x: g.broadcast(x), f4, f4),
        "reduce": (lambda g, x: g.all_reduce(x, "sum"), lambda g, x: g.all_reduce(x, "max"), f4, f4),
        "dtype": (lambda g, x: g.all_reduce(x), lambda g, x: g.all_reduce(x), f4, lambda: zeros(4, np.int32)),
        "count": (lambda g, x: g.all_reduce(x), lambda g, x: g.all_reduce(x), f4, lambda: zeros(8, np.float32)),
        "large": (lambda g, x: g.all_reduce(x), lambda g, x: g.all_reduce(x), f4, lambda: zeros(1 << 20, np.float32)),
        "root": (lambda g, x: g.broadcast(x, 0), lambda g, x: g.broadcast(x, 1), f4, f4),
        "scale": (lambda g, x: g.all_reduce(x), lambda g, x: g.all_reduce(x, scale=0.5), f4, f4),
        "barrier": (lambda g, x: g.barrier(), lambda g, x: g.all_reduce(x), f4, f4),
        "gather": (lambda g, x: g.all_gather(zeros(4 * g.size, np.float32), x), lambda g, x: g.all_reduce(x), f4, f4),
        "async": (lambda g, x: g.all_reduce(x, async_op=True).wait(), lambda g, x: g.barrier(True).wait(), f4, f4),
    }


@also_apart
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("kind", differing())
def test_a_mismatch_is_raised_on_all_ranks(kind, world):
    first, second, make_first, make_second = differing()[kind]

    def fn(group):
        group.barrier()
        odd = group.rank == 1
        x = (make_second if odd else make_first)()
        before = x.copy()
        try:
            (second if odd else first)(group, x)
        except _C.CommMismatch as e:
            assert (x == before).all()
            with pytest.raises(_C.CommMismatch):  # poisoned: the first text again
                group.barrier()
            return str(e)

    texts = good(run(world, fn))
    for text in texts:
        assert text, texts
        lines = text.splitlines()
        assert len(lines) == world + 1
        for rank in range(world):
            assert lines[rank + 1].strip().startswith(f"rank {rank}: ")
            assert "test_comm.py:" in lines[rank + 1]
        assert lines[1].split(": ", 1)[1] != lines[2].split(": ", 1)[1]


def test_a_mismatch_names_the_calls():
    def fn(group):
        if group.rank == 0:
            group.all_reduce(np.zeros(4, np.float32))
        else:
            group.all_reduce(np.zeros(5, np.float64), "max")

    for e in run(2, fn):
        assert isinstance(e, _C.CommMismatch)
        assert "rank 0: all_reduce(float32[4], SUM) at test_comm.py:" in str(e)
        assert "rank 1: all_reduce(float64[5], MAX) at test_comm.py:" in str(e)


@apart_when_long
def test_a_mismatch_between_some_ranks_does_not_wait_for_the_rest():
    def fn(group):
        if group.rank == 2:
            time.sleep(1.4)  # longer than MISMATCH_NS
        x = np.zeros(4 + (group.rank == 1))
        start = time.monotonic()
        try:
            group.all_reduce(x)
        except _C.CommMismatch as e:
            return time.monotonic() - start, str(e)

    results = good(run(3, fn))
    assert all(results)
    assert results[0][0] < 1.39 and "rank 2: nothing yet" in results[0][1]
    assert results[2][0] < 1


@also_apart
def test_a_mismatch_between_processes():
    script = """
        try:
            group.all_reduce(np.zeros(4 + rank, np.float32))
        except _C.CommMismatch as e:
            print(str(e).replace(chr(10), " | "))
        leave()
    """
    for out in outputs(processes(2, script)):
        assert "rank 0: all_reduce(float32[4], SUM) at <string>:" in out
        assert "rank 1: all_reduce(float32[5], SUM) at <string>:" in out


@also_apart
def test_identities_can_go_unchecked():
    script = """
        x = np.ones(4, np.float32 if rank else np.int32)
        group.all_reduce(x)
        leave()
    """
    outputs(processes(2, script, PYDIST_CHECK="0"))


# Ranks that end.

WAIT = """
    start = time.monotonic()
    try:
        group.all_reduce(np.zeros(4))
    except _C.PeerFailed as e:
        print(f"{e.rank}|{time.time():.6f}|" + str(e).replace(chr(10), "~"), flush=True)
        try:
            group.barrier()
        except _C.PeerFailed:
            pass
"""


@also_apart
def test_a_killed_rank_is_reported_at_once():
    script = f"""
    if rank == 1:
        print("ready", flush=True)
        time.sleep(60)
    {WAIT}
    """
    with Ranks(3, script) as ranks:
        assert ranks.line(1) == "ready"
        time.sleep(0.3)
        start = time.time()
        ranks.processes[1].send_signal(signal.SIGKILL)
        for rank in (0, 2):
            failed, when, text = ranks.line(rank).split("|")
            assert failed == "1" and float(when) - start < 0.5
            assert "rank 1 (pid %d)" % ranks.processes[1].pid in text and "SIGKILL" in text
            assert "all_reduce(float64[4], SUM) at <string>:" in text
        ranks.wait()


@also_apart
@pytest.mark.parametrize(
    "how, word",
    [
        ("os._exit(3)", "code 3"),
        ("os._exit(0)", "code 0"),
        ("os.abort()", "SIGABRT"),
        ("sys.exit(0)", "rank 1"),
        ("os.kill(os.getpid(), 15)", "SIGTERM"),
    ],
)
def test_other_ends(how, word):
    """An end without goodbye is a death, however it comes about."""
    script = f"""
    if rank == 1:
        time.sleep(0.2)
        {how}
    {WAIT}
    """
    (code, out, err), _ = processes(2, script)
    assert code == 0 and out.startswith("1|") and word in out, (out, err)


@also_apart
def test_a_rank_that_raises_sends_its_traceback():
    script = f"""
    if rank == 1:
        time.sleep(0.2)
        _C.comm_raised("Traceback (most recent call last):" + chr(10) + "x" * 100000 + chr(10) + "ValueError: too bad")
        group.destroy()
        time.sleep(0.4)
        sys.exit(1)
    {WAIT}
    """
    with Ranks(2, script) as ranks:
        (code, out, err), _ = ranks.wait()
        assert code == 0 and out.startswith("1|") and "raised" in out, err
        assert out.strip().endswith("ValueError: too bad")
        assert ranks.server.first_raised()[0] == 1


@apart_when_long
def test_a_traceback_explains_a_leave_that_came_first():
    script = f"""
    if rank == 1:
        time.sleep(0.2)
        group.destroy()
        time.sleep(0.05)
        _C.comm_raised("Traceback" + chr(10) + "KeyError: 5")
        time.sleep(0.4)
        sys.exit(1)
    {WAIT}
    """
    (code, out, err), _ = processes(2, script)
    assert "KeyError: 5" in out, (out, err)


@also_apart
@pytest.mark.parametrize("leaving", ["leave()", "group.destroy()\n        time.sleep(0.6)", "_C.comm_leave()"])
def test_a_rank_that_leaves_is_missed(leaving):
    script = f"""
    if rank == 1:
        {leaving}
        sys.exit(0)
    {WAIT}
    """
    (code, out, err), (code1, _, _) = processes(2, script)
    assert (code, code1) == (0, 0) and out.startswith("1|") and "left the group" in out, (out, err)


@also_apart
def test_leaving_after_the_last_collective_is_fine():
    script = """
        for _ in range(50):
            x = np.ones(100000 if _ % 2 else 10, np.float32)
            group.all_reduce(x)
            assert x[0] == world
        if rank == 0:
            time.sleep(0.2)
        leave()
    """
    outputs(processes(3, script))


@also_apart
def test_the_launcher_ends():
    script = """
        print("ready", flush=True)
        try:
            while True:
                group.all_reduce(np.zeros(4))
                time.sleep(0.01)
        except _C.DistError as e:
            print(str(e).replace(chr(10), " "), flush=True)
    """
    with Ranks(2, script) as ranks:
        for r in range(2):
            assert ranks.line(r) == "ready"
        ranks.server.close()
        ranks.processes[0].send_signal(signal.SIGSTOP)  # or both go on: nobody is missing
        assert "launcher is gone" in ranks.line(1)
        ranks.processes[0].send_signal(signal.SIGCONT)


@also_apart
def test_a_dead_rank_whose_child_keeps_the_socket():
    """The child of a fork holds the descriptors of its dead parent; the process's end is seen all the same."""
    script = f"""
    if rank == 1:
        time.sleep(0.2)
        if (child := os.fork()) == 0:
            time.sleep(60)
            os._exit(0)
        print(child, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    {WAIT}
    """
    with Ranks(2, script) as ranks:
        child = int(ranks.line(1))
        try:
            assert ranks.line(0).startswith("1|") and is_alive(child)
        finally:
            os.kill(child, signal.SIGKILL)


@also_apart
def test_init_with_a_dead_rank():
    script = """
        if rank == 1:
            os._exit(1)
        time.sleep(0.3)
        group.destroy()
        try:
            init()
        except _C.PeerFailed as e:
            print(e.rank, str(e))
    """
    (code, out, err), _ = processes(2, script)
    assert out.startswith("1 init: rank 1"), (out, err)


@apart_when_long
def test_a_rank_that_never_comes():
    script = """
        if rank == 0:
            try:
                init(timeout=0.7)
            except _C.CommTimeout as e:
                print("timeout", e)
        else:
            time.sleep(1)
    """
    (code, out, err), _ = processes(2, script, prelude=PRELUDE.replace("group = init()", ""), PYDIST_WARN="0.3")
    assert "timeout" in out and "rank 1" in out, err
    assert re.search(r"has waited [\d.]+ s for rank 1", err)


@pytest.mark.slow
def test_all_ranks_that_do_not_come_are_named():
    """After the time that they have to come, which is not that of the group."""
    script = """
        if rank in (0, 2):
            try:
                init(patience=PATIENCE, timeout=1000)
            except _C.CommTimeout as e:
                print("timeout", e)
            except _C.DistError as e:
                print("gave up", e)
        else:
            time.sleep(1.4 * PATIENCE)
    """.replace("PATIENCE", f"{within(0.7):g}")
    ended = processes(4, script, prelude=PRELUDE.replace("group = init()", ""), PYDIST_WARN=f"{within(0.3):g}")
    found = "".join(out + err for _, out, err in ended)
    waited = f"{within(0.7):.1f}"
    assert re.search(rf"timeout init: rank [02] waited {waited} s for ranks 1, 3 to join group 1\n", found), found
    # rank 0 or 2, if the machine is so busy that it comes after the warning, is named, too
    assert re.search(r"has waited \d+ s for ranks (0, )?1, (2, )?3 to join group 1\n", found), found


@apart_when_long
def test_a_timeout_names_the_missing_rank():
    script = """
        group.destroy()
        group = init(timeout=1)
        if rank == 1:
            time.sleep(1.4)
        start = time.monotonic()
        try:
            group.all_reduce(np.zeros(4))
        except _C.CommTimeout as e:
            print(f"{time.monotonic() - start:.2f} {isinstance(e, TimeoutError)} {e}")
    """
    (_, first, err), (_, second, _) = processes(2, script, PYDIST_WARN="0.5")
    seconds, right, text = first.split(" ", 2)
    assert 0.9 < float(seconds) < 1.39 and right == "True" and "rank 1 (last: #1 init)" in text
    assert "rank 0" in second  # rank 1 hears that rank 0 gave up
    warnings = [line for line in err.splitlines() if "has waited" in line]
    assert len(warnings) == 1 and "for rank 1" in warnings[0] and "<string>:" in warnings[0]


# After a failure.


def test_a_new_group_after_a_failure():
    hub = _C.Hub(2)

    def bad(group):
        segment = group.segment(1 << 16)
        x = np.frombuffer(segment, np.float32)
        x[:] = group.rank + 1
        with pytest.raises(_C.CommMismatch):
            group.all_reduce(np.zeros(4 + group.rank))
        with pytest.raises(_C.CommMismatch):
            group.all_reduce(x)
        return x

    def fine(group):
        x = np.ones(4)
        group.all_reduce(x)
        return x[0], group.epoch

    old = good(run(2, bad, hub))
    assert good(run(2, fine, hub)) == [(2.0, 2)] * 2
    for rank, x in enumerate(old):
        assert (x == rank + 1).all()


def test_segments_of_a_poisoned_group_are_private_and_keep_their_values():
    script = """
        segment = group.segment(1 << 20)
        x = np.frombuffer(segment, np.float32)
        x[:] = rank + 1
        address = x.ctypes.data
        def mapping():
            for line in open("/proc/self/maps"):
                low, high = (int(v, 16) for v in line.split()[0].split("-"))
                if low <= address < high:
                    return line
        assert "memfd:pydist" in mapping()
        try:
            group.all_reduce(np.zeros(4 + rank))
        except _C.CommMismatch:
            pass
        assert "memfd" not in mapping() and (x == rank + 1).all()
        x += 1
        group.destroy()
        group = init()
        y = np.ones(4)
        group.all_reduce(y)
        assert y[0] == 2 and group.epoch == 2 and (x == rank + 2).all()
        leave()
    """
    outputs(processes(2, script))


@also_apart
def test_works_of_a_failed_group_raise():
    def fn(group):
        group.barrier()
        x = np.zeros(4)
        if group.rank == 1:
            return None  # leaves
        works = [group.all_reduce(x, async_op=True) for _ in range(3)]
        with pytest.raises(_C.PeerFailed) as e:
            works[0].wait()
        assert e.value.rank == 1
        for w in works:
            assert w.is_completed()
            with pytest.raises(_C.PeerFailed):
                w.wait()

    good(run(2, fn))


@also_apart
def test_destroy_ends_another_threads_wait():
    def fn(group):
        if group.rank == 0:
            threading.Timer(0.2, group.destroy).start()
            with pytest.raises(_C.DistError):
                group.barrier()
        else:
            time.sleep(0.5)

    good(run(2, fn))


@apart_when_long
def test_ctrl_c_in_a_wait():
    script = """
        def handler(*_):
            raise KeyboardInterrupt
        signal.signal(signal.SIGUSR2 if rank else signal.SIGINT, handler)
        if rank == 1:
            try:
                print("ready", flush=True)
                time.sleep(60)
            except KeyboardInterrupt:  # when rank 0 was interrupted
                pass
        try:
            if rank == 0:
                print("ready", flush=True)
            group.all_reduce(np.zeros(4))
            group.barrier()  # rank 0's data may have come before the news of its end
        except KeyboardInterrupt:
            print("interrupted", flush=True)
            try:
                group.barrier()
            except _C.DistError as e:
                print("then", e, flush=True)
        except _C.PeerFailed as e:
            print("peer", e.rank, flush=True)
    """
    with Ranks(2, script) as ranks:
        for r in range(2):
            assert ranks.line(r) == "ready"
        time.sleep(0.15)
        ranks.processes[0].send_signal(signal.SIGINT)
        assert ranks.line(0) == "interrupted"
        ranks.processes[1].send_signal(signal.SIGUSR2)
        assert ranks.line(0).startswith("then the group ended, because a collective was interrupted")
        said = ranks.line(1)
        assert said == "peer 0", ranks.wait()


@also_apart
def test_a_signal_handler_may_not_use_the_group_it_interrupts():
    script = """
        def handler(*_):
            try:
                group.barrier()
            except RuntimeError as e:
                print("handler", e, flush=True)
        signal.signal(signal.SIGUSR1, handler)
        print("ready", flush=True)
        if rank == 1:
            time.sleep(0.5)
        x = np.ones(4)
        group.all_reduce(x)
        assert x[0] == 2
        leave()
    """
    with Ranks(2, script) as ranks:
        for r in range(2):
            assert ranks.line(r) == "ready"
        time.sleep(0.15)
        ranks.processes[0].send_signal(signal.SIGUSR1)
        assert "signal handler" in ranks.line(0)
        outputs(ranks.wait())


@also_apart
def test_a_forked_child_has_no_groups():
    script = """
        segment = group.segment(4096)
        pid = os.fork()
        if pid == 0:
            ok = 0
            for use in (group.barrier, lambda: group.store.set("a", b"b"), init, lambda: group.segment(4096)):
                try:
                    use()
                except _C.DistError:
                    ok += 1
            group.destroy()
            _C.comm_leave()
            del group, segment
            os._exit(ok)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 4
        x = np.ones(4)
        group.all_reduce(x)
        assert x[0] == 2
        leave()
    """
    outputs(processes(2, script))


# Allocations that fail, and what is left.


@pytest.mark.slow
@also_apart
def test_every_allocation_of_init_may_fail():
    """Rank 1's N-th allocation fails: it gets MemoryError, rank 0 an error that says so, and the next init works."""
    script = """
        group.destroy()
        group, failures = init_with_faults()
        assert failures > 5, failures
        x = np.ones(1000)
        group.all_reduce(x)
        assert x[0] == 2
        group.destroy()
        group = init()
        group.barrier()
        leave()
    """
    outputs(processes(2, script, prelude=PRELUDE + FAULTS))


@pytest.mark.slow
@also_apart
def test_every_allocation_of_a_segment_may_fail():
    script = """
        n = failures = 0
        while True:
            n += 1
            if rank == 1:
                _C.fault_malloc(n)
            try:
                segment = group.segment(1 << 16)
                what = "fine"
            except (MemoryError, _C.DistError):
                what = "failed"
            if rank == 1:
                _C.fault_malloc(0)
            try:
                x = np.ones(1000)
                group.all_reduce(x)
                assert x[0] == 2
            except (MemoryError, _C.DistError):
                group.destroy()
                group = init()
            if what == "fine":
                break
            failures += 1
            assert n < 100
        assert failures > 3, failures
        leave()
    """
    outputs(processes(2, script))


@also_apart
def test_no_room_for_a_segment_is_an_error_on_all_ranks():
    script = """
        try:
            group.segment(1 << 50)
        except MemoryError as e:
            print("memory", e)
        x = np.ones(4)
        group.all_reduce(x)
        assert x[0] == 2
        leave()
    """
    for out in outputs(processes(2, script)):
        assert out.startswith("memory")


@also_apart
def test_nothing_is_left_after_many_groups():
    script = """
        from lib.processes import shared_files
        def left():
            return (len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), shared_files(),
                    sum("memfd" in line for line in open("/proc/self/maps")))
        group.destroy()
        def cycle():
            group = init()
            segment = group.segment(1 << 16)
            work = group.all_reduce(np.frombuffer(segment, np.float32), async_op=True)
            work.wait()
            group.destroy()
        cycle()
        before = left()
        for _ in range(50):
            cycle()
        assert left() == before, (before, left())
        _C.comm_leave()
    """
    outputs(processes(2, script))


@also_apart
def test_nothing_is_left_after_sigkill():
    script = """
        segment = group.segment(1 << 20)
        print("ready", flush=True)
        time.sleep(60)
    """
    before = shared_files()
    with Ranks(2, script) as ranks:
        for r in range(2):
            assert ranks.line(r) == "ready"
        for p in ranks.processes:
            p.kill()
        ranks.wait()
    assert shared_files() == before


@also_apart
def test_hub_groups_leave_nothing():
    def threads_and_descriptors():
        return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

    def fn(group):
        segment = group.segment(1 << 16)
        group.all_reduce(np.frombuffer(segment, np.float32))

    good(run(3, fn))
    time.sleep(0.1)
    before = threads_and_descriptors()
    for _ in range(50):
        good(run(3, fn))
    deadline = time.monotonic() + 5  # a joined thread may still be listed for a moment
    while threads_and_descriptors() != before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threads_and_descriptors() == before


def test_hub_seats():
    hub = _C.Hub(2)
    assert hub.world == 2
    for rank in (2, -1):
        with pytest.raises(ValueError):
            _C.comm_init_hub(hub, rank)
    with pytest.raises(ValueError):
        _C.Hub(0)
    with pytest.raises(ValueError):
        _C.comm_init_hub(_C.Hub(1), 0, algo="fastest")


def test_ranks_with_other_settings_are_refused():
    hub = _C.Hub(2)
    results = [None, None]

    def body(rank):
        try:
            _C.comm_init_hub(hub, rank, timeout=5, slot=1024 << rank)
        except _C.DistError as e:
            results[rank] = str(e)

    threads = [threading.Thread(target=body, args=(r,)) for r in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(20)
    assert all(results) and any("the settings of rank" in r for r in results)


@also_apart
@pytest.mark.slow
def test_random_collectives_many_times():
    """Mixed sizes, algorithms and works for some seconds: the pieces never overtake each other."""
    script = """
        rng = np.random.default_rng(7)
        segment = group.segment(1 << 20)
        shared = np.frombuffer(segment, np.float64)
        end = time.monotonic() + float(os.environ.get("FULL_LONG", 0.5))
        pending = []
        i = 0
        go_on = np.ones(1, np.int32)
        while True:
            i += 1
            kind, n = int(rng.integers(0, 6)), int(rng.integers(0, 60000 if rng.integers(0, 4) else 300))
            if kind == 0:
                x = np.full(n, rank + i, np.float64)
                group.all_reduce(x)
                assert (x == world * i + world * (world - 1) / 2).all()
            elif kind == 1:
                x = np.full(n, rank + i, np.int64)
                group.broadcast(x, i % world)
                assert (x == i % world + i).all()
            elif kind == 2:
                x = np.empty(n * world, np.int64)
                group.all_gather(x, np.full(n, rank + i, np.int64))
                assert (x == np.repeat(np.arange(world) + i, n)).all()
            elif kind == 3:
                group.barrier()
            elif kind == 4 and not pending:
                x = shared[:n]
                x[:] = rank + i
                group.all_reduce(x)
                assert (x == world * i + world * (world - 1) / 2).all()
            else:
                x = np.full(n, rank + i, np.float64)
                pending.append((group.all_reduce(x, async_op=True), x, i))
                if len(pending) > 3:
                    for work, y, j in pending:
                        work.wait()
                        assert (y == world * j + world * (world - 1) / 2).all()
                    pending = []
            if i % 50 == 0:
                go_on[0] = time.monotonic() < end
                group.broadcast(go_on)
                if not go_on[0]:
                    break
        for work, y, j in pending:
            work.wait()
        leave()
        print(i)
    """
    for world in (2, 3):
        assert len(set(outputs(processes(world, script)))) == 1
