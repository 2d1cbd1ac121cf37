"""all_to_all, all_gather and reduce_scatter with parts of different sizes, on every transport, against NumPy."""

import contextlib
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import pydist
from pydist import _C
from pydist import distributed as dist

LONG = "FULL_LONG" in os.environ  # .ci/full
DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")
WAYS = {  # hosts of a world, and whether ranks of a host share memory besides the messages
    "threads": lambda world: 1,
    "tcp": lambda world: world,
    "hosts": lambda world: 2,
}


def on_ranks(world, fn, hosts=1, **options):
    """Results of fn(rank) in threads that are the ranks of a group; the first error that is no consequence is raised."""
    from pydist.distributed._group.process_group import _here

    hub, results, errors = _C.Hub(world, hosts), [None] * world, []

    def body(rank):
        try:
            _here.group = _C.comm_init_hub(hub, rank, **options)
            results[rank] = fn(rank)
        except BaseException as error:
            errors.append(error)
        finally:
            with contextlib.suppress(Exception):
                dist.destroy_process_group()

    threads = [threading.Thread(target=body, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads), "a rank hangs"
    if errors:
        raise next((error for error in errors if not isinstance(error, _C.PeerFailed)), errors[0])
    return results


def numbers(dtype, n, seed):
    """A tensor of n numbers that every dtype has, and float64 of the same."""
    values = np.random.default_rng(seed).integers(0, 2 if dtype == "bool" else 100, n)
    return pydist.tensor(values.astype(np.float64)).to(getattr(pydist, dtype)), values.astype(np.float64)


def sizes_of(world, most, seed):
    """[source][destination]; some are 0."""
    table = np.random.default_rng(seed).integers(0, most + 1, (world, world))
    table[np.random.default_rng(seed + 1).random((world, world)) < 0.25] = 0
    return table


def values(tensor):
    return tensor.to(pydist.float64).numpy()


def check_all_to_all(rank, world, dtype, most, seed, asynchronous=False):
    table = sizes_of(world, most, seed)
    sent = [numbers(dtype, 3 * int(table[source].sum()), seed + source) for source in range(world)]
    x = sent[rank][0].view(-1, 3)
    ends = np.cumsum(table, 1)
    want = [
        sent[source][1].reshape(-1, 3)[ends[source][rank] - table[source][rank] : ends[source][rank]]
        for source in range(world)
    ]
    out = pydist.zeros(int(table[:, rank].sum()), 3).to(x.dtype)
    work = dist.all_to_all_single(out, x, table[:, rank].tolist(), table[rank].tolist(), async_op=asynchronous)
    if asynchronous:
        work.wait()
    assert np.array_equal(values(out), np.concatenate(want))
    outs = [pydist.zeros(len(part), 3).to(x.dtype) for part in want]  # apart in memory
    ins = [part.clone() for part in x.split(table[rank].tolist())]
    work = dist.all_to_all(outs, ins, async_op=asynchronous)
    if asynchronous:
        work.wait()
    assert all(np.array_equal(values(part), expected) for part, expected in zip(outs, want, strict=True))


def check_all_gather(rank, world, dtype, most, seed, asynchronous=False):
    sizes = sizes_of(world, most, seed)[0].tolist()
    given = [numbers(dtype, sizes[r], seed + r) for r in range(world)]
    outs = [pydist.zeros(n).to(given[0][0].dtype) for n in sizes]
    work = dist.all_gather(outs, given[rank][0], async_op=asynchronous)
    if asynchronous:
        work.wait()
    assert all(np.array_equal(values(part), given[r][1]) for r, part in enumerate(outs))
    whole = pydist.zeros(sum(sizes)).to(given[0][0].dtype)
    dist.all_gather(list(whole.split(sizes)), given[rank][0])  # end to end
    assert np.array_equal(values(whole), np.concatenate([v for _, v in given]))


def tree(items, op):
    """In the order of csrc/comm/algo/reduce.h."""
    if len(items) == 1:
        return items[0]
    half = 1 << (len(items) - 1).bit_length() - 1
    return op(tree(items[:half], op), tree(items[half:], op))


def check_reduce_scatter(rank, world, dtype, most, seed, op="sum", asynchronous=False):
    sizes = sizes_of(world, most, seed)[0].tolist()
    random = [np.random.default_rng(seed + r).standard_normal(sum(sizes)) for r in range(world)]
    given = [pydist.tensor(v).to(getattr(pydist, dtype)) for v in random]
    whole = given[rank].clone()
    dist.all_reduce(whole, op)  # the bits that it has to have
    out = pydist.zeros(sizes[rank]).to(given[0].dtype)
    parts = [part.clone() for part in given[rank].split(sizes)]
    work = dist.reduce_scatter(out, parts, op, async_op=asynchronous)
    if asynchronous:
        work.wait()
    at = sum(sizes[:rank])
    assert np.array_equal(values(out), values(whole[at : at + sizes[rank]]))
    if dtype in ("float32", "float64") and op == "sum":
        sums = tree([v.astype(dtype) for v in random], np.add)
        assert np.array_equal(values(out), sums[at : at + sizes[rank]].astype(np.float64))


def check_everything(rank, world, most=(5, 700), dtypes=DTYPES):
    for seed, dtype in enumerate(dtypes):
        for n in most:
            check_all_to_all(rank, world, dtype, n, seed, asynchronous=seed % 2 == 1)
            check_all_gather(rank, world, dtype, n, seed, asynchronous=seed % 2 == 0)
    for seed, (dtype, op) in enumerate(
        [("float32", "sum"), ("bfloat16", "sum"), ("float64", "avg"), ("float16", "max"), ("int32", "product")]
    ):
        for n in most:
            check_reduce_scatter(rank, world, dtype, n, seed, op, asynchronous=seed % 2 == 1)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("world", [2, 3, 4, 5])
def test_every_dtype(way, world):
    if way == "hosts" and world != 4:
        pytest.skip("hosts of the same power of two ranks only")

    def fn(rank):
        transport = {"threads": "inproc"}.get(way, "tcp")
        assert dist.group.WORLD.transport == transport
        assert dist.group.WORLD.ranks_per_host == (2 if way == "hosts" else 1)
        check_everything(rank, world)

    on_ranks(world, fn, WAYS[way](world), slot=1024)  # many pieces


@pytest.mark.parametrize("way", ["threads", "tcp"])
def test_large_parts(way):
    """Some parts are large, and some ranks have small ones only."""

    def fn(rank):
        for seed in range(3):
            check_all_to_all(rank, 3, "float32", 200_000, seed)
            check_all_gather(rank, 3, "int16", 400_000, seed, asynchronous=True)
            check_reduce_scatter(rank, 3, "float32", 200_000, seed)
        for large in range(3):  # one part is large, in each place
            sizes = [1, 2, 3]
            sizes[large] = 500_000
            x = pydist.arange(sum(sizes)).to(pydist.float32) + rank
            out = pydist.zeros(3 * sizes[rank])
            dist.all_to_all_single(out, x, [sizes[rank]] * 3, sizes)
            at = sum(sizes[:rank])
            want = np.concatenate([np.arange(at, at + sizes[rank], dtype=np.float32) + r for r in range(3)])
            assert np.array_equal(out.numpy(), want)

    on_ranks(3, fn, WAYS[way](3))


PROCESS = """
import sys
sys.path.insert(0, sys.argv[1])
import test_uneven
from pydist import distributed as dist
dist.init_process_group()
rank, world = dist.get_rank(), dist.get_world_size()
test_uneven.check_everything(rank, world, (5, 700, 60_000), ("bool", "bfloat16", "float32", "int64"))
for seed in range(2):
    test_uneven.check_all_to_all(rank, world, "float32", 150_000, seed, asynchronous=seed == 1)
print("fine", dist.group.WORLD.transport)
dist.destroy_process_group()
"""


def launched(world, program, *arguments, **env):
    """What ranks in processes print."""
    command = [sys.executable, "-m", "pydist.run", "--nproc-per-node", str(world), str(program), *arguments]
    top = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": top, **env}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("world", [2, 3, 4, 5] if LONG else [2, 5])
def test_processes(world, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROCESS)
    assert launched(world, program, os.path.dirname(__file__)).count("fine shm") == world


@pytest.mark.parametrize("ranks", ["1", "012"])
def test_memory_that_cannot_be_read(ranks, tmp_path):
    """One rank may not read the others' memory, or none may: large parts go through shared memory."""
    program = tmp_path / "program.py"
    program.write_text(
        f"import os\nos.environ['PYDIST_PEEK'] = str(int(os.environ['RANK'] not in '{ranks}'))\n" + PROCESS
    )
    assert launched(3, program, os.path.dirname(__file__)).count("fine shm") == 3


def test_one_tensor_for_several_ranks():
    def fn(rank):
        for n in (3, 200_000):
            x, outs = pydist.full((n,), rank + 1.0), [pydist.zeros(n) for _ in range(3)]
            dist.all_to_all(outs, [x, x, x])
            assert [out.sum().item() for out in outs] == [n * 1.0, n * 2.0, n * 3.0]

    for hosts in (1, 3):
        on_ranks(3, fn, hosts)


def test_results_that_are_written_past_the_caches():
    """From 16 MiB on (base/copy.h); all parts begin and end within a cache line."""
    n = 6_000_007

    def fn(rank):
        whole = np.random.default_rng(0).integers(0, 256, (3, 3 * n + 3), np.uint8)  # by source
        sizes = np.array([[n + 1, n, n + 2], [n, n + 3, n], [n + 1, n + 1, n + 1]])  # from, to
        edges = np.hstack([np.zeros((3, 1), int), sizes.cumsum(1)])
        y = pydist.zeros(int(sizes[:, rank].sum()) + 3, dtype=pydist.uint8)[3:]
        x = pydist.from_numpy(whole[rank])
        dist.all_to_all_single(y, x, sizes[:, rank].tolist(), sizes[rank].tolist())
        parts = [whole[r, edges[r, rank] : edges[r, rank + 1]] for r in range(3)]
        assert np.array_equal(y.numpy(), np.concatenate(parts))
        y = pydist.zeros(3 * n + 1, dtype=pydist.uint8)[1:]
        dist.all_gather_into_tensor(y, x[:n])
        assert np.array_equal(y.numpy(), whole[:, :n].reshape(-1))
        dist.all_to_all_single(y, x[: 3 * n])
        assert np.array_equal(y.numpy(), whole[:, rank * n : rank * n + n].reshape(-1))
        dist.broadcast(y, 1)
        assert np.array_equal(y.numpy(), whole[:, n : 2 * n].reshape(-1))

    on_ranks(3, fn)


def test_no_elements_anywhere():
    def fn(rank):
        out = pydist.zeros(0, 4)
        dist.all_to_all_single(out, pydist.zeros(0, 4), [0, 0, 0], [0, 0, 0])
        dist.all_to_all([pydist.zeros(0)] * 3, [pydist.zeros(0)] * 3)
        dist.all_to_all_single(out, pydist.zeros(0, 4), [0, 0, 0], [0, 0, 0], async_op=True).wait()
        x = pydist.ones(2)
        dist.all_reduce(x)
        return x.tolist()

    for hosts in (1, 3):
        assert on_ranks(3, fn, hosts) == [[3.0, 3.0]] * 3


def test_a_world_of_one():
    x, out = pydist.arange(6).to(pydist.float32), pydist.zeros(6)
    dist.all_to_all_single(out, x, [6], [6])
    assert out.tolist() == x.tolist()
    outs = [pydist.zeros(6)]
    dist.all_to_all(outs, [x], async_op=True).wait()
    assert outs[0].tolist() == x.tolist()
    with pytest.raises(ValueError, match="6 elements, output 5"):
        dist.all_to_all_single(pydist.zeros(5), x, [5], [6])


def test_layouts():
    """What is not contiguous goes through a copy; one side may have equal parts."""

    def fn(rank):
        x = pydist.arange(12).to(pydist.float32).view(4, 3).t() + 100 * rank  # [3, 4], columns in memory
        out = pydist.zeros(2 * (1 if rank else 2), 8)[:, ::2]
        dist.all_to_all_single(out, x, None, [2, 1])
        rows = [(np.arange(12, dtype=np.float32).reshape(4, 3).T + 100 * r)[2 * rank : 2 + rank] for r in range(2)]
        assert np.array_equal(out.contiguous().numpy(), np.concatenate(rows))
        outs = [pydist.zeros(4, 2 - rank).t(), pydist.zeros(2 - rank, 4)]
        dist.all_to_all(outs, [x[:2], x[2:]])
        assert [np.array_equal(t.contiguous().numpy(), r) for t, r in zip(outs, rows, strict=True)] == [True, True]

    on_ranks(2, fn)


BAD = [
    (lambda x, out: dist.all_to_all_single(out, x, [2, 2], [-1, 5]), ValueError, r"input of 4 rows.*\[-1, 5\]"),
    (lambda x, out: dist.all_to_all_single(out, x, [2, 1], [2, 2]), ValueError, r"output of 4 rows.*\[2, 1\]"),
    (lambda x, out: dist.all_to_all_single(out, x, [2, 2], [2, 2, 0]), ValueError, r"\[2, 2, 0\].*expected 2 sizes"),
    (lambda x, out: dist.all_to_all_single(out, x, [2, 2], [4]), ValueError, r"\[4\].*expected 2 sizes"),
    (lambda x, out: dist.all_to_all_single(out, x, [2, 2], [2**63, 2]), OverflowError, "int"),
    (lambda x, out: dist.all_to_all_single(out, x, [2, 2], [2**62, 2**62]), ValueError, "4 rows"),
    (lambda x, out: dist.all_to_all_single(out, x, [2, 2], ["2", 2]), TypeError, "int"),
    (lambda x, out: dist.all_to_all_single(out, x, [2, 2], 4), TypeError, "sequence"),
    (lambda x, out: dist.all_to_all_single(out, x[:3], [2, 2]), ValueError, "3 rows .expected a multiple of 2"),
    (lambda x, out: dist.all_to_all_single(out.to(pydist.float64), x, [2, 2], [2, 2]), TypeError, "float64"),
    (lambda x, out: dist.all_to_all_single(x, x, [2, 2], [2, 2]), ValueError, "overlap"),
    (lambda x, out: dist.all_to_all_single(x[:2], x, [1, 1], [2, 2]), ValueError, "overlap"),
    (lambda x, out: dist.all_to_all_single(out.sum(), x, [1, 0], [2, 2]), ValueError, "0 rows"),
    (lambda x, out: dist.all_to_all([out[:2], out[2:]], [x[:1]]), ValueError, "1 tensors .expected 2"),
    (lambda x, out: dist.all_to_all([out[:2]] * 3, [x[:1]] * 2), ValueError, "3 tensors .expected 2"),
    (lambda x, out: dist.all_to_all([out, out.int()], [x, x]), TypeError, "int32"),
    (lambda x, out: dist.all_to_all([out, out], [x, 3]), TypeError, "int"),
    (lambda x, out: dist.group.WORLD.all_to_all([out, out], x), TypeError, "a list and a tensor"),
    (
        lambda x, out: dist.group.WORLD.all_to_all([out], [x], False, [1], [1]),
        TypeError,
        "is a list, but sizes of parts are given",
    ),
    (lambda x, out: dist.all_gather([out[:1], out[:2]], x), ValueError, r"input has shape"),
    (lambda x, out: dist.all_gather([out[:1], out[:2], out], x), ValueError, "3 tensors .expected 2"),
    (lambda x, out: dist.all_gather([out, out.to(pydist.int32)[:1]], x), TypeError, "int32"),
    (lambda x, out: dist.all_gather([x[:3], x[:4]], x[1:4]), ValueError, "overlap|has shape"),
    (lambda x, out: dist.reduce_scatter(out, [x[:1], x[:2]]), ValueError, r"output has shape"),
    (lambda x, out: dist.reduce_scatter(out[:2].int(), [x[:2], x[:3]]), TypeError, "float32"),
    (
        lambda x, out: dist.reduce_scatter(out.bool()[: 1 + 2 * dist.get_rank()], [x[:1].bool(), x[:3].bool()], "avg"),
        TypeError,
        "avg|AVG|bool",
    ),
]


@pytest.mark.parametrize("number", range(len(BAD)))
def test_bad_arguments_leave_the_group_as_it_is(number):
    call, kind, text = BAD[number]

    def fn(rank):
        x, out = pydist.ones(4), pydist.full((4,), -1.0)
        with pytest.raises(kind, match=text) as caught:
            call(x, out)
        assert "on rank" in str(caught.value) or kind in (OverflowError,) or "sequence" in text or "int" in text
        assert out.tolist() == [-1.0] * 4 and x.tolist() == [1.0] * 4
        dist.all_reduce(x)
        return x.tolist()

    assert on_ranks(2, fn) == [[2.0] * 4] * 2


class Size:
    """An int whose reading empties the list that it stands in."""

    def __init__(self, sizes, value):
        self.sizes, self.value = sizes, value

    def __index__(self):
        self.sizes.clear()
        return self.value


def emptied(values):
    sizes = []
    sizes.extend(Size(sizes, value) for value in values)
    return sizes


def test_sizes_are_taken_before_they_are_read():
    def fn(rank):
        x, out = pydist.arange(4.0), pydist.zeros(4)
        dist.group.WORLD.all_to_all(out, x, False, emptied([2, 2]), emptied([2, 2]))
        return out.tolist()

    assert on_ranks(2, fn) == [[0.0, 1.0, 0.0, 1.0], [2.0, 3.0, 2.0, 3.0]]
    read, want = {"op": "all_gather", "world": 3, "count": 6}, [1, 2, 3]
    assert _C.comm_cost(**read, sizes=emptied(want)) == _C.comm_cost(**read, sizes=want)


def differing(rank, kind):
    x, out = pydist.ones(6), pydist.full((6,), -1.0)
    try:
        match kind:
            case "one more":
                dist.all_to_all_single(
                    out[:5] if rank == 1 else out, x, [1, 2, 2] if rank == 1 else [2, 2, 2], [2, 2, 2]
                )
            case "one's own":
                dist.all_to_all_single(out, x, [1, 3, 2] if rank == 1 else [2, 2, 2], [2, 2, 2])
            case "dtype":
                dtype = pydist.int32 if rank == 1 else pydist.float32
                dist.all_to_all_single(out.to(dtype), x.to(dtype), [2, 2, 2], [2, 2, 2])
            case "with and without sizes":
                dist.all_to_all_single(out, x, *[[2, 2, 2], [2, 2, 2]] * (rank == 1))
            case "all_gather":
                sizes = [1, 2, 2] if rank == 1 else [1, 2, 3]
                dist.all_gather(list(out[: sum(sizes)].split(sizes)), x[: sizes[rank]])
            case "reduce_scatter":
                sizes = [2, 3, 1] if rank == 1 else [1, 3, 2]
                dist.reduce_scatter(out[: sizes[rank]], list(x.split(sizes)))
    except dist.CommMismatch as error:
        text = str(error)
    with pytest.raises(dist.CommMismatch):
        dist.barrier()
    assert out.tolist() == [-1.0] * 6
    return text


@pytest.mark.parametrize("hosts", [1, 3])
@pytest.mark.parametrize(
    "kind, words",
    [
        ("one more", "rank 0 has 2 elements for rank 1, but that rank expects 1"),
        ("one's own", "rank 0 has 2 elements for rank 1, but that rank expects 1"),
        (
            "dtype",
            "rank 1: all_to_all(int32[2], the largest part) giving 2, 2, 2 and taking 2, 2, 2 at test_uneven.py:",
        ),
        ("with and without sizes", "rank 0: all_to_all(float32[2])"),
        ("all_gather", "rank 1: all_gather(float32[5], in parts) of 1, 2, 2 at test_uneven.py:"),
        ("reduce_scatter", "rank 1: reduce_scatter(float32[6], SUM) of 2, 3, 1 at test_uneven.py:"),
    ],
)
def test_sizes_that_differ_are_an_error_on_every_rank(kind, words, hosts):
    texts = on_ranks(3, lambda rank: differing(rank, kind), hosts)
    assert len(set(texts)) == 1 and words in texts[0]


UNCHECKED = """
import pydist
from pydist import distributed as dist
dist.init_process_group()
x, out = pydist.ones(6), pydist.zeros(6)
dist.all_to_all_single(out, x, [4, 2] if dist.get_rank() else [3, 3], [3, 3])
dist.barrier()
"""


def test_sizes_may_go_unchecked(tmp_path):
    """Without the check nothing is read or written beside the parts."""
    program = tmp_path / "program.py"
    program.write_text(UNCHECKED)
    assert launched(2, program, PYDIST_CHECK="0") == ""


def test_many_random_ones_in_a_queue():
    """Asynchronous calls in any mixture; works are waited for in reverse."""

    def fn(rank):
        random = np.random.default_rng(3)  # the same on all ranks
        works = []
        for seed in range(60):
            most = int(random.choice([0, 3, 100, 3000]))
            table = sizes_of(3, most, seed)
            sent = [numbers("int32", int(table[s].sum()), seed + s) for s in range(3)]
            if random.random() < 0.3:
                y = pydist.ones(most + 1)
                works.append((dist.all_reduce(y, async_op=True), y, np.full(most + 1, 3.0)))
            ends = np.cumsum(table, 1)
            want = np.concatenate([sent[s][1][ends[s][rank] - table[s][rank] : ends[s][rank]] for s in range(3)])
            out = pydist.zeros(len(want), dtype=pydist.int32)
            sizes = table[:, rank].tolist(), table[rank].tolist()
            work = dist.all_to_all_single(out, sent[rank][0], *sizes, async_op=random.random() < 0.7)
            if work is None:
                assert np.array_equal(values(out), want)
            else:
                works.append((work, out, want))
        for work, out, want in reversed(works):
            work.wait()
            assert np.array_equal(values(out), want)

    for hosts in (1, 3):
        on_ranks(3, fn, hosts, slot=4096)


def test_a_rank_that_raises_ends_the_others_calls():
    def fn(rank):
        if rank == 1:
            time.sleep(0.05)
            raise KeyError("on purpose")
        with pytest.raises(dist.PeerFailed, match="rank 1"):
            dist.all_to_all_single(pydist.zeros(6), pydist.zeros(6), [1, 2, 3], [1, 2, 3])

    with pytest.raises(KeyError):
        dist.threads.run(fn, 3)
