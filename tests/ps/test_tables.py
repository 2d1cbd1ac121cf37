"""Tables of embeddings in a parameter server: rules, duplicates, rows that nobody has pushed, files, bad input."""

import os

import numpy as np
import pytest

import pydist
from pydist import _C, nn
from pydist.distributed import ps
from pydist.nn import functional as F
from pydist.testing import RankFailed, run_ranks

ROWS, DIM = 1000, 6


def pushes(rank, i, n=50):
    r = np.random.default_rng(100 * i + rank)
    return r.integers(0, 40, n) * 7 % ROWS, r.standard_normal((n, DIM)).astype(np.float32)


# The rules, row by row in float64.


def sgd(p, s, g, t):
    return p - 0.1 * (g + 0.01 * p)


def adagrad(p, s, g, t):
    g = g + 0.01 * p
    s["G"] = s.get("G", 0.0) + (g * g).mean()
    return p - 0.1 * g / (np.sqrt(s["G"]) + 1e-10)


def adam(p, s, g, t):
    g = g + 0.01 * p
    s["m"] = 0.9 * s.get("m", 0) + 0.1 * g
    s["v"] = 0.999 * s.get("v", 0) + 0.001 * g * g
    return p - 0.1 * s["m"] / (1 - 0.9**t) / (np.sqrt(s["v"] / (1 - 0.999**t)) + 1e-8)


def ftrl(p, s, g, t):
    z, n = s.get("z", 0 * p), s.get("n", 0 * p)
    s["n"] = n + g * g
    s["z"] = z + g - (np.sqrt(s["n"]) - np.sqrt(n)) / 0.1 * p
    return np.where(
        np.abs(s["z"]) > 0.01, (np.sign(s["z"]) * 0.01 - s["z"]) / ((1.0 + np.sqrt(s["n"])) / 0.1 + 0.01), 0
    )


def pushed(rank, rule, kind, reduce, steps):
    store = ps.create(kind, reduce=reduce)
    table = ps.EmbeddingTable(
        "t", ROWS, DIM, optimizer=rule, kvstore=store, learning_rate=0.1, weight_decay=0.01, seed=3
    )
    start = table.lookup(np.arange(ROWS))
    for i in range(steps):
        table.push(*map(pydist.tensor, pushes(rank, i)))
    end = table.lookup(np.arange(ROWS))
    return start.numpy(), end.numpy(), table.made, table.version


@pytest.mark.parametrize("rule", [sgd, adagrad, adam, ftrl], ids=lambda f: f.__name__)
@pytest.mark.parametrize("world", [1, 2, 3])
def test_rules(rule, world):
    """Duplicates in a push and between workers are one gradient; rows that no push names stay as they were."""
    for start, end, made, version in run_ranks(world, pushed, rule.__name__, "dist_sync", "mean", 4):
        p, states = start.astype(np.float64), {}
        for i in range(4):
            total = np.zeros((ROWS, DIM))
            named = set()
            for w in range(world):
                ids, g = pushes(w, i)
                np.add.at(total, ids, g.astype(np.float64))
                named |= set(ids.tolist())
            for row in named:
                p[row] = rule(p[row], states.setdefault(row, {}), total[row] / world, i + 1)
        np.testing.assert_allclose(end, p, rtol=3e-5, atol=3e-6)
        assert made == len(states) and version == 4


def test_the_same_bits_each_time():
    found = [run_ranks(3, pushed, "adagrad", "dist_sync", "sum", 5, processes=p) for p in (False, True, False)]
    assert all((end == found[0][0][1]).all() for run in found for _, end, _, _ in run)


def added(rank, kind):
    """With a learning rate of -1 and whole numbers a row counts its gradients exactly."""
    table = ps.EmbeddingTable("t", ROWS, DIM, optimizer="sgd", init="zeros", kvstore=kind, learning_rate=-1.0)
    want = np.zeros((ROWS, DIM))
    for i in range(30):
        for w in range(2):
            ids, _ = pushes(w, i)
            np.add.at(want, ids, 1.0)
            if w == rank:
                table.push(pydist.tensor(ids), pydist.ones(len(ids), DIM))
                table.lookup(pydist.tensor(ids))
    table.store.barrier()
    end = table.lookup(np.arange(ROWS)).numpy()
    lags = table.store.metrics()["workers"]
    return (end == want).all(), table.version, [sum(w["staleness"].values()) for w in lags]


@pytest.mark.parametrize("processes", [False, True])
def test_asynchronous_pushes_lose_nothing(processes):
    assert run_ranks(2, added, "dist_async", processes=processes) == [(True, 60, [30, 30])] * 2


def test_hogwild():
    def work(rank):
        table = ps.EmbeddingTable("t", 50, 4, optimizer="sgd", init="zeros", kvstore="dist_hogwild", learning_rate=-1.0)
        for _ in range(20):
            table.push(pydist.arange(50) if rank == 0 else pydist.arange(25), pydist.ones(50 - 25 * rank, 4))
        table.store.barrier()
        end = table.lookup(np.arange(50))
        return end.min().item(), end[25:].max().item(), end.max().item()

    for low, alone, high in run_ranks(2, work):
        assert alone == 20.0 and low >= 20.0 and high <= 40.0


# Rows that nobody has pushed.


def test_rows_begin_as_their_number_says():
    a, b = (ps.EmbeddingTable("t", 10**9, 5, init="normal", scale=2.0, kvstore="local", seed=9) for _ in range(2))
    ids = pydist.tensor([0, 10**9 - 1, 12345, 12345])
    found = a.lookup(ids)
    assert (found == b.lookup(ids)).all() and (found[2] == found[3]).all() and a.made == 0
    assert len(set(found[:3].flatten().tolist())) == 15
    other = ps.EmbeddingTable("t", 10**9, 5, init="normal", scale=2.0, kvstore="local", seed=10)
    assert not (other.lookup(ids) == found).any()
    many = a.lookup(pydist.arange(20_000))
    assert abs(many.mean().item()) < 0.03 and abs(many.std().item() - 2.0) < 0.03
    flat = ps.EmbeddingTable("t", 20_000, 3, kvstore="local", scale=0.5).lookup(pydist.arange(20_000))
    assert flat.abs().max().item() <= 0.5 and abs(flat.std().item() - 0.5 / 3**0.5) < 0.01


def test_memory_is_what_is_pushed():
    def resident():
        with open("/proc/self/smaps_rollup") as file:
            return int(file.read().split("Rss:")[1].split()[0]) << 10

    before = resident()
    table = ps.EmbeddingTable("t", 10**8, 16, kvstore="local")
    table.push(pydist.arange(0, 64 * 4000, 64), pydist.ones(4000, 16))  # one row of each page
    assert resident() - before < 1.3 * 4000 * (4096 + 64 * 4) + (64 << 20)
    assert table.made == 4000


def test_ids_of_any_shape():
    table = ps.EmbeddingTable("t", 10, 2, optimizer="sgd", init="zeros", kvstore="local", learning_rate=1.0)
    table.push(pydist.tensor([[1, 2], [2, 3]]), pydist.ones(2, 2, 2))
    assert table.lookup([[3, 2], [1, 0]]).tolist() == [[[-1.0] * 2, [-2.0] * 2], [[-1.0] * 2, [0.0] * 2]]
    assert table.lookup([]).shape == (0, 2)
    table.push([], pydist.empty(0, 2))
    out = pydist.empty(2, 2)
    assert table.lookup(pydist.tensor([2, 1], dtype=pydist.int32), out) is out and out[0, 0].item() == -2.0
    assert table.version == 2


def test_a_million_duplicates():
    table = ps.EmbeddingTable(
        "t", 10, 1, optimizer="sgd", init="zeros", kvstore="local", learning_rate=-1.0, capacity=10**6
    )
    table.push(pydist.full((10**6,), 4, dtype=pydist.int64), pydist.ones(10**6, 1))
    assert table.lookup([4]).item() == 1e6


# Files.


def in_a_file(rank, path, begins):
    table = ps.EmbeddingTable("t", 5000, 8, optimizer="adam", mmap=path, kvstore="dist_sync", learning_rate=0.1)
    for i in range(begins, begins + 3):
        ids = np.random.default_rng(i + 10 * rank).integers(0, 5000, 100)
        table.prefetch(ids)
        table.push(pydist.tensor(ids), pydist.ones(100, 8) * (rank + 1))
    return table.lookup(np.arange(5000)).numpy(), table.made


def test_a_file_is_the_table(tmp_path):
    """Its rows are there in the next process, and they are those of a table in memory."""
    path = str(tmp_path / "table")
    run_ranks(2, in_a_file, path, 0, processes=True)
    found, made = run_ranks(2, in_a_file, path, 3, processes=True)[0]
    want, count = run_ranks(2, in_memory)[0]
    np.testing.assert_array_equal(found, want)
    assert made == count


def in_memory(rank):
    table = ps.EmbeddingTable("t", 5000, 8, optimizer="adam", kvstore="dist_sync", learning_rate=0.1)
    for i in range(6):
        ids = np.random.default_rng(i + 10 * rank).integers(0, 5000, 100)
        table.push(pydist.tensor(ids), pydist.ones(100, 8) * (rank + 1))
    return table.lookup(np.arange(5000)).numpy(), table.made


def test_files_that_do_not_fit(tmp_path):
    path = tmp_path / "table"
    ps.EmbeddingTable("t", 100, 8, mmap=path, kvstore="local")
    with pytest.raises(ValueError, match="has 100 rows of 8 with rule 1 .expected 100 rows of 9"):
        ps.EmbeddingTable("t", 100, 9, mmap=path, kvstore="local")
    os.truncate(path, 5000)
    with pytest.raises(ValueError, match="has 5000 bytes .expected .*it is cut off"):
        ps.EmbeddingTable("t", 100, 8, mmap=path, kvstore="local")
    path.write_text("rows")
    with pytest.raises(ValueError, match="is no table"):
        ps.EmbeddingTable("t", 100, 8, mmap=path, kvstore="local")
    with pytest.raises(ValueError, match="No such file"):
        ps.EmbeddingTable("t", 100, 8, mmap=tmp_path / "nothing" / "there", kvstore="local")


def test_a_full_disk(tmp_path):
    """Is an error before any row is written."""
    table = ps.EmbeddingTable("t", 10**7, 8, mmap=tmp_path / "table", kvstore="local", optimizer="sgd", init="zeros")
    _C.fault("nospace", 2)
    try:
        with pytest.raises(OSError, match="no place on the disk for rows of table 't'"):
            table.push([1, 9 * 10**6], pydist.ones(2, 8))
    finally:
        _C.fault("nospace", 0)
    assert table.made == 0
    table.push([1, 9 * 10**6], pydist.ones(2, 8))
    assert table.made == 2


def first_half(rank, path):
    table = ps.EmbeddingTable("t", ROWS, DIM, optimizer="adam", kvstore="dist_sync")
    for i in range(6):
        table.push(*map(pydist.tensor, pushes(0, i)))
        if i == 2:
            table.save(path)
    return table.lookup(np.arange(ROWS)).tolist()


def second_half(rank, path):
    store = ps.create("dist_sync", reduce="mean")
    table = ps.EmbeddingTable("t", ROWS, DIM, optimizer="adam", kvstore=store)
    table.load(path)
    for i in range(3, 6):
        table.push(*map(pydist.tensor, pushes(0, i)))
    return table.lookup(np.arange(ROWS)).tolist(), table.version


def test_a_table_goes_on_with_other_workers(tmp_path):
    path = str(tmp_path / "saved.pt")
    want = run_ranks(1, first_half, path)[0]
    for world in (1, 2, 4):
        for found, version in run_ranks(world, second_half, path):
            assert found == want and version == 6
    other = ps.EmbeddingTable("t", ROWS, DIM, optimizer="sgd", kvstore="local")
    with pytest.raises(ValueError, match=r"has .* \(1000, 6, 12\) \(expected \(1000, 6, 0\)\)"):
        other.load(path)


# Bad input.

CALLS = [
    (lambda t: t.lookup([-1]), IndexError, "lookup: id -1 at position 0 of table 't' .expected 0 to 9"),
    (lambda t: t.push([3, 10], pydist.ones(2, 2)), IndexError, "push: id 10 at position 1"),
    (lambda t: t.prefetch([10]), IndexError, "prefetch: id 10"),
    (lambda t: t.lookup(pydist.tensor([1.0])), TypeError, "ids are .*float32 .expected int64"),
    (lambda t: t.push([1], pydist.ones(2, 2)), ValueError, r"grad has shape \(2, 2\) \(expected \(1, 2\)\)"),
    (lambda t: t.push([1], pydist.ones(1, 2).double()), ValueError, "float64 .expected float32"),
    (lambda t: t.push([1] * 9, pydist.ones(9, 2)), ValueError, "9 ids for table 't' .expected at most 8"),
    (lambda t: t.lookup([1], pydist.empty(3)), ValueError, r"out has shape \(3,\)"),
    (lambda t: t.push([1], pydist.full((1, 2), float("nan"))), ValueError, "not finite"),
    (lambda t: ps.EmbeddingTable("x", 0, 2, kvstore="local"), ValueError, "0 rows of 2"),
    (lambda t: ps.EmbeddingTable("x", 1 << 60, 2, kvstore="local"), ValueError, "less than 2.50 elements"),
    (lambda t: ps.EmbeddingTable("x", 2, 1 << 20, kvstore="local"), ValueError, "rows of at most"),
    (lambda t: ps.EmbeddingTable("x", 2, 2, optimizer="adagard"), ValueError, "expected one of sgd, adagrad"),
    (lambda t: ps.EmbeddingTable("x", 2, 2, momentum=1), ValueError, "adagrad has no option 'momentum'"),
    (lambda t: ps.EmbeddingTable("x", 2, 2, init="ones"), ValueError, "init is 'ones'"),
    (lambda t: ps.EmbeddingTable("x", 2, 2, dtype=pydist.float64), TypeError, "expected float32"),
    (lambda t: ps.PSEmbedding(t, "median"), ValueError, "pooling is 'median'"),
]  # fmt: skip


@pytest.mark.parametrize("call, error, says", CALLS, ids=[c[2][:40] for c in CALLS])
def test_bad_input(call, error, says):
    table = ps.EmbeddingTable("t", 10, 2, kvstore="local", capacity=8, optimizer="sgd", init="zeros")
    with pytest.raises(error, match=says):
        call(table)
    assert table.made == 0 and table.version == 0


def test_options_that_differ():
    with pytest.raises(RankFailed, match="options of table 't' on rank 1 differ"):
        run_ranks(2, lambda rank: ps.EmbeddingTable("t", 10 + rank, 2))


# The layer.


@pytest.mark.parametrize("pooling", [None, "sum", "mean", "max"])
def test_a_layer(pooling):
    """The steps of nn.Embedding and EmbeddingBag with SGD."""
    table = ps.EmbeddingTable("t", 30, 4, optimizer="sgd", kvstore="local", learning_rate=0.5)
    start = table.lookup(np.arange(30))
    own = nn.Embedding(30, 4) if pooling is None else nn.EmbeddingBag(30, 4, mode=pooling)
    own.weight.data.copy_(start)
    layer, opt = ps.PSEmbedding(table, pooling), pydist.optim.SGD(own.parameters(), lr=0.5)
    for i in range(3):
        ids = pydist.tensor(np.random.default_rng(i).integers(0, 30, (5, 3)))
        for model in (layer, own):
            out = model(ids)
            F.mse_loss(out, pydist.ones_like(out)).backward()
        layer.step()
        opt.step()
        opt.zero_grad()
    np.testing.assert_allclose(table.lookup(np.arange(30)).numpy(), own.weight.detach().numpy(), rtol=1e-5, atol=1e-6)
    assert "30 rows of 4" in repr(layer)
    layer.step()  # without a gradient: an empty push
    assert table.version == 4
