"""pydist.distributed's collectives on tensors and objects: values, layouts, Works, and what wrong arguments say."""

import threading
import time

import pytest

import pydist
from pydist import distributed as dist

OPS = {"SUM": sum, "MIN": min, "MAX": max}


def ranks(world, fn):
    return dist.threads.run(fn, world)


def strided(rank, dtype=pydist.float32):
    """[3, 2], column by column in memory."""
    return (pydist.arange(6).reshape(2, 3).to(dtype) + 10 * rank).t()


def test_empty_lists_of_ranks_without_one():
    """As in PyTorch, where other ranks than the root may give [] or None; the root may not."""

    def work(rank):
        x, got, objects = pydist.full((2,), float(rank)), [pydist.zeros(2)] * (not rank) * 2, [None] * 2 * (not rank)
        got = [t.clone() for t in got]
        dist.gather(x, got)
        dist.scatter(x, [t + 1 for t in got])
        dist.gather_object(rank, objects)
        if rank == 0:
            for call in (lambda: dist.gather(x, []), lambda: dist.scatter(x, []), lambda: dist.gather_object(0, [])):
                with pytest.raises(ValueError, match="expected"):
                    call()
        dist.barrier()
        return [t.tolist() for t in got], x.tolist(), objects

    assert ranks(2, work) == [([[0.0] * 2, [1.0] * 2], [1.0] * 2, [0, 1]), ([], [2.0] * 2, [])]


@pytest.mark.parametrize("world", [1, 2, 3])
def test_list_forms(world):
    def work(rank):
        x = strided(rank)
        apart = [pydist.zeros(3, 2) for _ in range(world)]
        dist.all_gather(apart, x)
        whole = pydist.zeros(world * 3, 2)
        dist.all_gather([whole[3 * r : 3 * r + 3] for r in range(world)], x)
        stacked = pydist.zeros(world, 3, 2)
        dist.all_gather_into_tensor(stacked, x)
        assert [t.tolist() for t in apart] == stacked.tolist()
        assert whole.tolist() == [row for t in apart for row in t.tolist()]
        assert stacked.tolist() == [strided(r).tolist() for r in range(world)]

        inputs = [strided(rank) * (part + 1) for part in range(world)]
        out, flat = pydist.zeros(2, 3).t(), pydist.zeros(3, 2)
        dist.reduce_scatter(out, inputs)
        dist.reduce_scatter_tensor(flat, pydist.cat(inputs))
        expected = sum(strided(r) for r in range(world)) * (rank + 1)
        assert out.tolist() == flat.tolist() == expected.tolist()

    ranks(world, work)


@pytest.mark.parametrize("op", sorted(OPS))
def test_reductions(op):
    def work(rank):
        x, y = strided(rank), strided(rank)
        dist.all_reduce(x, op=getattr(dist.ReduceOp, op))
        dist.reduce(y, 1, op=getattr(dist.reduce_op, op))
        parts = [strided(r).tolist() for r in range(3)]
        expected = [[OPS[op](p[i][j] for p in parts) for j in range(2)] for i in range(3)]
        assert x.tolist() == expected
        assert y.tolist() == (expected if rank == 1 else parts[rank])

    ranks(3, work)


def test_gather_and_scatter():
    def work(rank):
        parts = [pydist.zeros(2) for _ in range(3)] if rank == 2 else None
        dist.gather(pydist.tensor([rank, 0.5]), parts, dst=2)
        mine = pydist.zeros(2)
        dist.scatter(mine, parts and [p * 2 for p in parts], group_src=2)
        return mine.tolist()

    assert ranks(3, work) == [[0.0, 1.0], [2.0, 1.0], [4.0, 1.0]]


@pytest.mark.parametrize("dtype", "bool uint8 int8 int32 int64 float16 bfloat16 float32 float64".split())
def test_dtypes(dtype):
    dtype = getattr(pydist, dtype)

    def work(rank):
        x = pydist.tensor([rank, 1, 0]).to(dtype)
        dist.broadcast(x, 1)
        out = pydist.zeros(6).to(dtype)
        dist.all_gather_into_tensor(out, x)
        dist.all_reduce(out, op=dist.ReduceOp.MAX)
        return out.to(pydist.int64).tolist()

    assert ranks(2, work) == [[1, 1, 0, 1, 1, 0]] * 2


def test_views_are_written_in_place():
    """Only the view's elements change, and the version counter knows."""

    def work(rank):
        base = pydist.zeros(4, 4)
        version = base._version
        dist.all_reduce(base[:, 1].add_(rank + 1))
        assert base._version > version + 1
        return base.tolist()

    expected = [[0.0, 3.0, 0.0, 0.0]] * 4
    assert ranks(2, work) == [expected] * 2


def test_empty_tensors():
    def work(rank):
        x, out = pydist.zeros(0, 3), [pydist.zeros(0, 3) for _ in range(2)]
        dist.all_reduce(x)
        dist.broadcast(x, 0)
        dist.all_gather(out, x)
        dist.reduce_scatter(x, out)
        dist.all_gather_into_tensor(pydist.zeros(0), x)

    ranks(2, work)


def test_leaf_that_requires_grad():
    def work(rank):
        x = pydist.full((2,), float(rank), requires_grad=True)
        dist.all_reduce(x)
        assert x.is_leaf and x.requires_grad
        return x.tolist()

    assert ranks(2, work) == [[1.0, 1.0]] * 2


@pytest.mark.parametrize(
    "dtype, within", [("float64", 1e-15), ("float32", 1e-6), ("bfloat16", 2e-2), ("float16", 2e-3)]
)
def test_premultiplied_sums(dtype, within):
    """Each rank's own factor, on every reduction; the inputs of a call that fails keep their values."""
    dtype, world = getattr(pydist, dtype), 3

    def work(rank):
        factor = 0.5 + rank
        op = dist._make_nccl_premul_sum(pydist.tensor(factor) if rank else factor)
        x, y, part = strided(rank).to(dtype), strided(rank).to(dtype), pydist.zeros(2, dtype=dtype)
        dist.all_reduce(x, op)
        dist.reduce(y, 1, op)
        dist.reduce_scatter_tensor(part, strided(rank).to(dtype).reshape(6), op)
        want = sum(strided(r).double() * (0.5 + r) for r in range(world))
        assert (x.double() - want).abs().max() <= within * want.max()
        assert y.tolist() == (x if rank == 1 else strided(rank)).tolist()
        assert part.tolist() == x.reshape(6)[2 * rank : 2 * rank + 2].tolist()
        again = pydist.ones(2, dtype=dtype)
        assert dist.all_reduce(again, op, async_op=True).wait() and again.tolist() == [4.5, 4.5]
        shared = dist.symmetric_memory.empty(4, dtype=dtype).fill_(2)
        dist.all_reduce(shared, op)
        assert shared.tolist() == [9.0] * 4
        with pytest.raises(TypeError, match="PREMUL_SUM does not support int64"):
            dist.all_reduce(x.long(), op)
        with pytest.raises(ValueError, match="op PREMUL_SUM has no factor"):
            dist.all_reduce(x, dist.ReduceOp.PREMUL_SUM)
        with pytest.raises(dist.CommMismatch, match="PREMUL_SUM"):
            dist.all_reduce(x, op if rank else dist.ReduceOp.SUM)
        assert again.tolist() == [4.5, 4.5]

    ranks(world, work)
    for factor in ("a", None, pydist.ones(2)):
        with pytest.raises((TypeError, ValueError, RuntimeError)):
            dist._make_nccl_premul_sum(factor)


def test_coalesced():
    """Each block is one collective, with the bits of its collectives one by one."""

    def sequence():
        return int(dist.flight_record().splitlines()[-1].split("(#")[1].split(")")[0])

    def work(rank):
        tensors = [strided(rank), pydist.full((4,), 0.1 * rank), pydist.zeros(0)]
        alone = [t.clone() for t in tensors]
        for t in alone:
            dist.all_reduce(t)
        before = sequence()
        with dist._coalescing_manager():
            works = [dist.all_reduce(t, async_op=True) for t in tensors]
            with pytest.raises(ValueError, match="wait: the collective starts only at the end"):
                works[0].wait()
        assert sequence() == before + 1
        assert [t.tolist() for t in tensors] == [t.tolist() for t in alone]

        inputs, outs, wants = [strided(rank), pydist.tensor(float(rank))], [], []
        for t in inputs:
            shape = (2 * t.shape[0], *t.shape[1:]) if t.dim() else (2,)
            outs.append(pydist.zeros(*shape) if t.dim() == 0 else pydist.zeros(*shape[::-1]).t())
            wants.append(pydist.zeros(*shape))
            dist.all_gather_into_tensor(wants[-1], t)
        with dist._coalescing_manager(async_ops=True) as manager:
            for out, t in zip(outs, inputs):
                dist.all_gather_into_tensor(out, t)
        manager.wait()
        assert [t.tolist() for t in outs] == [t.tolist() for t in wants]

        parts = [pydist.zeros(3, 2), pydist.tensor(0.0)]
        with dist._coalescing_manager():
            for part, t in zip(parts, wants):
                dist.reduce_scatter_tensor(part, t, dist.ReduceOp.AVG)
        assert [t.tolist() for t in parts] == [wants[0][3 * rank : 3 * rank + 3].tolist(), float(rank)]

        lists = [[pydist.zeros(3, 2), pydist.tensor(0.0)] for _ in range(2)]
        dist.all_gather_coalesced(lists, inputs)
        assert [[t.tolist() for t in row] for row in lists] == [[strided(r).tolist(), float(r)] for r in range(2)]

        with dist._coalescing_manager():
            pass
        with pytest.raises(RuntimeError, match="collectives of one kind"), dist._coalescing_manager():
            dist.all_reduce(parts[0])
            dist.all_gather_into_tensor(outs[1], inputs[1])
        with pytest.raises(RuntimeError, match="reduce operations"), dist._coalescing_manager():
            dist.all_reduce(parts[0])
            dist.all_reduce(parts[0], dist.ReduceOp.MAX)
        with pytest.raises(ValueError, match="already in such a block"), dist._coalescing_manager():
            with dist._coalescing_manager():
                pass
        with pytest.raises(ValueError, match="2 times as many elements"), dist._coalescing_manager():
            dist.all_gather_into_tensor(pydist.zeros(3), pydist.zeros(2))
        with pytest.raises(TypeError, match="has dtype int64"), dist._coalescing_manager():
            dist.all_reduce(parts[0])
            dist.all_reduce(pydist.ones(2).long())
        with pytest.raises(KeyError), dist._coalescing_manager():
            dist.all_reduce(parts[0])
            raise KeyError
        dist.all_reduce(parts[0])  # at once

    ranks(2, work)


def test_groups_without_checks():
    """What benchmarks compare with: ranks that differ are not found out."""

    def work(rank):
        world = dist.group.WORLD
        x, unchecked = pydist.full((3,), rank + 1.0), world.subgroup([0, 1], check=False)
        unchecked.all_reduce(x, "max" if rank else "sum")
        with pytest.raises(dist.CommMismatch):
            world.subgroup([0, 1], check=True).all_reduce(x, "max" if rank else "sum")
        return x.tolist()

    assert ranks(2, work) == [[3.0] * 3, [2.0] * 3]


# Work.


def test_async_works():
    def work(rank):
        x, out = strided(rank), [pydist.zeros(2, 3).t() for _ in range(2)]
        works = [dist.all_reduce(x, async_op=True), dist.all_gather(out, strided(rank), async_op=True)]
        works.append(dist.barrier(async_op=True))
        assert [type(w) for w in works] == [dist.Work] * 3
        assert all(w.wait(timeout=20) for w in works) and all(w.wait() for w in works)
        assert all(w.is_completed() and w.is_success() and w.exception() is None for w in works)
        assert works[0].result()[0] is x and [a is b for a, b in zip(works[1].result(), out)] == [True, True]
        assert works[2].result() == []
        assert x.tolist() == (strided(0) + strided(1)).tolist()
        assert [t.tolist() for t in out] == [strided(r).tolist() for r in range(2)]

    ranks(2, work)


def test_results_arrive_without_wait():
    """A Work that nobody waits for still puts its result into tensors that are not contiguous."""

    def work(rank):
        x = strided(rank)
        dist.all_reduce(x, async_op=True)
        dist.barrier()
        dist.barrier()
        return x.tolist()

    assert ranks(2, work) == [(strided(0) + strided(1)).tolist()] * 2


def test_work_under_way():
    late = threading.Event()

    def work(rank):
        if rank == 1:
            late.wait(20)
        x = pydist.ones(2)
        handle = dist.all_reduce(x, async_op=True)
        if rank == 0:
            assert not handle.is_completed() and not handle.is_success()
            with pytest.raises(RuntimeError, match="result: the collective is not done"):
                handle.result()
            with pytest.raises(dist.CommTimeout):
                handle.wait(0.05)
            late.set()
        assert handle.wait()
        return handle.result()[0].tolist()

    assert ranks(2, work) == [[2.0, 2.0]] * 2


def test_work_that_fails():
    """The first rank learns it from its Work, the second from its call."""
    posted = threading.Event()

    def work(rank):
        x = pydist.ones(2)
        if rank == 1:
            posted.wait(20)
            with pytest.raises(dist.CommMismatch):
                dist.broadcast(x, 0)
            return x.tolist()
        handle = dist.all_reduce(x, async_op=True)
        posted.set()
        deadline = time.monotonic() + 10
        while not handle.is_completed() and time.monotonic() < deadline:
            time.sleep(0.001)
        assert not handle.is_success() and isinstance(handle.exception(), dist.CommMismatch)
        for end in (handle.wait, handle.result, dist.barrier):
            with pytest.raises(dist.CommMismatch):
                end()
        return x.tolist()

    assert ranks(2, work) == [[1.0, 1.0]] * 2


def test_barrier_with_timeout():
    def work(rank):
        dist.barrier(timeout=20)
        if rank == 0:
            with pytest.raises(dist.CommTimeout):
                dist.barrier(timeout=0.05)
            late.set()
        else:
            late.wait(20)
            dist.barrier()

    late = threading.Event()
    ranks(2, work)


# Objects.


class Unpicklable:
    def __reduce__(self):
        raise TypeError("not this one")


def sample(rank):
    return {"rank": rank, "text": "x" * (rank * 1000), "tensor": pydist.full((rank,), 2.0)}


def plain(obj):
    return {**obj, "tensor": obj["tensor"].tolist()}


@pytest.mark.parametrize("world", [1, 3])
def test_objects(world):
    def work(rank):
        last = world - 1
        everyone = [None] * world
        dist.all_gather_object(everyone, sample(rank))
        assert list(map(plain, everyone)) == [plain(sample(r)) for r in range(world)]
        at_last = [None] * world if rank == last else None
        dist.gather_object(sample(rank), at_last, dst=last)
        assert at_last is None or list(map(plain, at_last)) == list(map(plain, everyone))
        pair = [sample(2), None] if rank == last else [None, 7]
        dist.broadcast_object_list(pair, src=last)
        assert plain(pair[0]) == plain(sample(2)) and pair[1] is None
        mine = [None]
        dist.scatter_object_list(mine, [sample(r) for r in range(world)] if rank == last else None, group_src=last)
        assert plain(mine[0]) == plain(sample(rank))

    ranks(world, work)


def test_object_that_cannot_be_pickled():
    """Its own error on its rank, an error that names it on the others, and the group goes on."""

    def work(rank):
        bad = Unpicklable() if rank == 1 else rank
        out = [None, None]
        calls = [
            lambda: dist.all_gather_object(out, bad),
            lambda: dist.gather_object(bad, out if rank == 0 else None, dst=0),
            lambda: dist.broadcast_object_list([bad], src=1),
            lambda: dist.scatter_object_list([None], [bad, bad] if rank == 1 else None, src=1),
        ]
        for call in calls:
            expected = (TypeError, "not this one") if rank == 1 else (RuntimeError, "rank 1 could not pickle")
            with pytest.raises(expected[0], match=expected[1]):
                call()
        dist.all_gather_object(out, rank)
        return out

    assert ranks(2, work) == [[0, 1]] * 2


# What is wrong.


def test_bad_tensors():
    x = pydist.ones(2, 3)
    out = [pydist.zeros(2, 3), pydist.zeros(2, 3)]
    whole = pydist.zeros(4, 3)
    read_only = pydist.from_numpy(memoryview(b"abcd"))
    cases = [
        (lambda: dist.all_reduce(5), TypeError, "all_reduce: tensor is int (expected a tensor)"),
        (lambda: dist.all_reduce([x, None]), TypeError, "all_reduce: tensor 1 is NoneType (expected a tensor)"),
        (lambda: dist.all_reduce([]), ValueError, "all_reduce: tensor is an empty list (expected tensors)"),
        (lambda: dist.all_reduce(x, op="median"), ValueError, "all_reduce: op is 'median' (expected sum, avg"),
        (lambda: dist.all_reduce(x, op="band"), RuntimeError, "all_reduce: reduce op BAND does not support float32"),
        (
            lambda: dist.all_reduce(x.long(), op=dist.ReduceOp.AVG),
            RuntimeError,
            "all_reduce: reduce op AVG does not support int64",
        ),
        (lambda: dist.all_reduce(x[:1].expand(4, 3)), ValueError, "shape [4, 3], has elements that share memory"),
        (lambda: dist.broadcast(read_only, 0), ValueError, "broadcast: tensor, of shape [4], is read-only"),
        (lambda: dist.broadcast(x, 2), ValueError, "broadcast: root is 2 (expected 0 to 1)"),
        (lambda: dist.broadcast(x, -1), ValueError, "broadcast: root is -1 (expected 0 to 1)"),
        (lambda: dist.broadcast(x, "0"), TypeError, "broadcast: root is str (expected an int)"),
        (
            lambda: dist.all_gather(out[:1], x),
            ValueError,
            "all_gather: output has 1 tensors (expected 2, the same number for each rank)",
        ),
        (lambda: dist.all_gather([x, x.t()], x), ValueError, "all_gather: output 1 has shape [3, 2] (expected [2, 3])"),
        (
            lambda: dist.all_gather([x, x.long()], x),
            TypeError,
            "output 1 has dtype int64 (expected float32, like the first tensor)",
        ),
        (lambda: dist.all_gather(out, x.long()), TypeError, "output has dtype float32 (expected int64, like input)"),
        (lambda: dist.all_gather(out, out), TypeError, "all_gather: input is a list (expected a tensor)"),
        (lambda: dist.all_gather_coalesced([out], out), ValueError, "output has 2 tensors (expected 4"),
        (lambda: dist.all_gather_coalesced([[x, x]], x), TypeError, "input is not a list (expected a list of tensors)"),
        (lambda: dist.all_gather_into_tensor(x, x), ValueError, "has 6 elements (expected 2 * 6, as input has)"),
        (lambda: dist.all_gather_into_tensor(whole, whole[1:3]), ValueError, "all_gather: input and output overlap"),
        (lambda: dist.reduce_scatter_tensor(x, whole[1:]), ValueError, "input has 9 elements (expected 2 * 6"),
        (lambda: dist.reduce_scatter(x, [x]), ValueError, "reduce_scatter: input has 1 tensors (expected 2"),
        (lambda: dist.gather(x, out, dst=1), ValueError, "output is given (expected None except on the root, rank 1)"),
        (lambda: dist.scatter(x, None), ValueError, "scatter: input is None (expected tensors on the root, rank 0)"),
    ]

    def work(rank):
        dist.barrier()
        if rank == 0:
            for call, kind, text in cases:
                with pytest.raises(kind) as raised:
                    call()
                assert text in str(raised.value), raised.value
                assert "on rank 0 of 2" in str(raised.value) or "(expected an int)" in text or "op is" in text
        dist.barrier()  # the group is as it was

    ranks(2, work)
    assert x.tolist() == [[1.0] * 3] * 2


def test_bad_objects():
    cases = [
        (
            lambda: dist.all_gather_object([None] * 2, 1),
            "object_list has 2 entries (expected a list with 1 entries, one per rank)",
        ),
        (
            lambda: dist.all_gather_object((None,), 1),
            "object_list has tuple (expected a list with 1 entries, one per rank)",
        ),
        (lambda: dist.broadcast_object_list([], 0), "object_list is [] (expected a list with at least one entry)"),
        (lambda: dist.scatter_object_list([], [1]), "scatter_object_output_list is [] (expected"),
        (lambda: dist.scatter_object_list([None], None), "scatter_object_input_list has NoneType"),
        (lambda: dist.gather_object(1, None), "object_gather_list has NoneType"),
        (lambda: dist.gather_object(1, [1], dst=0, group_dst=0), "both dst and group_dst (expected exactly one)"),
        (lambda: dist.reduce(pydist.ones(1)), "reduce: got neither dst nor group_dst (expected exactly one)"),
    ]
    for call, text in cases:
        with pytest.raises(ValueError) as raised:
            call()
        assert text in str(raised.value)


def test_groups_that_are_not_there():
    x = pydist.ones(1)
    for call in (dist.all_reduce, dist.get_rank, dist.get_world_size, dist.get_backend):
        with pytest.raises(TypeError, match="group is str"):
            call(*[x] * (call is dist.all_reduce), group="world")

    def work(rank):
        group = dist.group.WORLD
        dist.destroy_process_group()
        with pytest.raises(dist.DistError, match="all_reduce: the group was destroyed on rank"):
            dist.all_reduce(x, group=group)

    ranks(2, work)
