"""Asynchronous stores: one update for each push, staleness counted and bounded, no locks where none are wanted."""

import random
import time

import numpy as np
import pytest

import pydist
from lib.processes import within
from lib.ranks import LONG
from pydist import nn, optim
from pydist.distributed import ps
from pydist.nn import functional as F
from pydist.testing import run_ranks

SIZES = [1, 4096, 4097, (1 << 18) + 3]


def additions(rank, kind, pushes):
    kv = ps.create(kind)
    keys = list(range(len(SIZES)))
    kv.init(keys, [pydist.zeros(n, dtype=pydist.float64) for n in SIZES])
    kv.set_optimizer("test")
    for i in range(pushes):
        kv.push(keys, [pydist.full((n,), float(rank + 1), dtype=pydist.float64) for n in SIZES])
        if i % 5 == rank:
            seen = kv.pull(keys, consistent=True)
            assert all(v.min() == v.max() for v in seen)  # each push is seen whole or not at all
    kv.barrier()
    values = kv.pull(keys)
    return [(v.min().item(), v.max().item()) for v in values], kv.version(3), kv.staleness()


@pytest.mark.parametrize("processes", [False, True])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_every_push_is_one_update(world, processes):
    pushes = 30
    total = float(pushes * sum(range(1, world + 1)))
    for values, version, staleness in run_ranks(world, additions, "dist_async", pushes, processes=processes):
        assert values == [(total, total)] * len(SIZES) and version == pushes * world
        assert [sum(w.values()) for w in staleness["workers"]] == [pushes * len(SIZES)] * world
        assert [sum(k.values()) for k in staleness["keys"].values()] == [pushes * world] * len(SIZES)


def one_worker_is_exact(rank, name):
    """One worker's asynchronous updates are those of the optimizer itself."""
    g = [np.random.default_rng(i).standard_normal(5000).astype(np.float32) for i in range(6)]
    own = pydist.ones(5000, requires_grad=True)
    opt = {"adam": optim.Adam, "sgd": optim.SGD}[name]([own], lr=0.01)
    kv = ps.create("dist_async")
    kv.init("w", own.detach())
    kv.set_optimizer(opt)
    for x in g:
        own.grad = pydist.tensor(x)
        opt.step()
        if rank == 0:
            kv.push("w", pydist.tensor(x))
    kv.barrier()
    return (kv.pull("w") == own).all().item()


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_updates(name):
    assert all(run_ranks(2, one_worker_is_exact, name))


# Staleness.


def logged(rank, steps, bound):
    """Each worker writes what it saw; the counts are made again from that."""
    kv, chance, log = ps.create("dist_async", max_staleness=bound), random.Random(rank), []
    kv.init("w", pydist.zeros(1, dtype=pydist.float64))
    kv.set_optimizer("test")
    kv.barrier()
    for _ in range(steps):
        kv.pull("w")
        base = kv._c.version(0)  # at least what it has pulled
        if chance.random() < 0.2:
            time.sleep(chance.random() * 0.002)
        kv.push("w", pydist.ones(1, dtype=pydist.float64))
        log.append((base, kv._c.version(0)))
        kv.clock()
        clocks = [kv._c.worker(w)[0] for w in range(kv.num_workers)]
        if bound is not None:
            assert clocks[rank] <= min(clocks) + bound + 1, clocks
    kv.barrier()
    return log, kv.staleness()


@pytest.mark.parametrize("bound", [0, 1, 4, 16, None])
@pytest.mark.parametrize("world", [2, 4])
def test_the_bound_holds(world, bound):
    steps = 400 if LONG else 60
    for log, staleness in run_ranks(world, logged, steps, bound):
        assert sum(staleness["keys"]["w"].values()) == world * steps
        if bound is not None:  # the most that others push between a pull and the next push
            assert max(staleness["keys"]["w"]) <= (2 * bound + 1) * (world - 1)
        assert len(log) == steps


def in_turn(rank):
    """An order that is known, so each staleness is: the workers push in turn, and pull when `plan` says."""
    kv = ps.create("dist_async")
    kv.init("w", pydist.zeros(3))
    kv.set_optimizer("test")
    chance, version, bases, owns, want = random.Random(7), 0, [0, 0, 0], [0, 0, 0], {}
    for _ in range(200):
        who, pulls = chance.randrange(3), chance.random() < 0.4
        if pulls:
            if rank == who:
                kv.pull("w")
            bases[who], owns[who] = version, 0
        lag = version - bases[who] - owns[who]
        want.setdefault(who, {}).setdefault(lag, 0)
        want[who][lag] += 1
        if rank == who:
            kv.push("w", pydist.ones(3))
        version, owns[who] = version + 1, owns[who] + 1
        kv.barrier()
    return kv.staleness()["workers"], [dict(sorted(want[w].items())) for w in range(3)]


def test_staleness_is_exact():
    for found, want in run_ranks(3, in_turn):
        assert found == want and max(want[0]) > 4


def by_staleness(rank, factor):
    """Rank 1 pushes with a base that is three updates old."""
    kv = ps.create("dist_async", staleness_lr=factor)
    kv.init("w", pydist.zeros(2, dtype=pydist.float64))
    kv.set_optimizer("sgd", learning_rate=1.0)
    kv.pull("w")
    kv.barrier()
    for _ in range(3 if rank == 0 else 0):
        kv.push("w", pydist.zeros(2, dtype=pydist.float64))
    kv.barrier()
    if rank == 1:
        kv.push("w", pydist.full((2,), -1.0, dtype=pydist.float64))
    kv.barrier()
    return kv.pull("w").tolist()


@pytest.mark.parametrize(
    "factor, want",
    [("none", 1.0), ("inverse", 0.25), (0.5, 0.5), (lambda n: 10.0 - n, 7.0)],
    ids=["none", "inverse", "power", "function"],
)
def test_the_learning_rate_by_staleness(factor, want):
    assert run_ranks(2, by_staleness, factor) == [[want, want]] * 2


# Without locks.


def hogwild(rank, kind):
    kv = ps.create(kind)
    kv.init("w", pydist.zeros(50_000))
    kv.set_optimizer("sgd", learning_rate=1.0)
    value = kv.value("w")
    for _ in range(20):
        kv.push("w", pydist.full((50_000,), -1.0))
    kv.barrier()
    return value.data_ptr() == kv.value("w").data_ptr(), value.max().item(), value.min().item(), kv.version("w")


def test_hogwild_shares_its_values():
    for shared, high, low, version in run_ranks(2, hogwild, "dist_hogwild", processes=True):
        assert shared and version == 40 and 20 <= low <= high <= 40  # a lost update is allowed, a torn number is not
        assert high == int(high) and low == int(low)


def classes(rank, kind, bound, steps):
    """A small problem that every mode has to learn."""
    pydist.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
    trainer = ps.Trainer(
        model.named_parameters(), "sgd", {"learning_rate": 0.1, "momentum": 0.5}, kvstore=kind, max_staleness=bound,
        reduce="mean" if kind == "dist_sync" else None,
    )  # fmt: skip
    r = np.random.default_rng(rank)
    centres = np.random.default_rng(99).standard_normal((4, 8))
    for _ in range(steps):
        y = r.integers(0, 4, 32)
        x = pydist.tensor((centres[y] * 2 + r.standard_normal((32, 8))).astype(np.float32))
        model.zero_grad()
        F.cross_entropy(model(x), pydist.tensor(y)).backward()
        trainer.step(1)
    trainer.kvstore.barrier()
    y = np.arange(400) % 4
    x = pydist.tensor((centres[y] * 2 + np.random.default_rng(5).standard_normal((400, 8))).astype(np.float32))
    if kind == "dist_async":
        trainer._pull(trainer.kvstore)
    return (model(x).argmax(1) == pydist.tensor(y)).float().mean().item()


@pytest.mark.parametrize(
    "kind, bound", [("dist_sync", None), ("dist_async", 4), ("dist_async", None), ("dist_hogwild", None)]
)
def test_every_mode_learns(kind, bound):
    assert min(run_ranks(2, classes, kind, bound, 60)) > 0.95


# Pushes that are not finite.


def not_finite(rank, kind, nan):
    kv = ps.create(kind, nan=nan)
    kv.init(["a", "b"], [pydist.ones(5000), pydist.ones(2)])
    kv.set_optimizer("sgd", learning_rate=1.0)
    bad = pydist.zeros(5000)
    bad[4999] = float("inf")
    said = None
    if rank == 0 or kind == "dist_sync":
        try:
            kv.push(["b", "a"], [pydist.ones(2), bad if rank == 0 else pydist.zeros(5000)])
        except ValueError as error:
            said = str(error)
    if kind != "dist_sync" or nan != "raise":
        kv.pull(["a", "b"])
        kv.barrier()
    values = [kv.value(k).sum().item() for k in ("a", "b")]
    return said, values, kv.metrics()["workers"][0]["refused"] if rank == 0 else None


@pytest.mark.parametrize("kind", ["dist_async", "dist_hogwild"])
def test_a_push_that_is_not_finite_is_refused_whole(kind):
    said, values, refused = run_ranks(2, not_finite, kind, "raise")[0]
    assert "key 'a' has elements that are not finite" in said
    assert values == [5000.0, 2.0] and refused == 1  # b's push of the same call is not applied either


def test_one_that_is_skipped_is_counted():
    for kind in ("dist_async", "dist_sync"):
        said, values, refused = run_ranks(2, not_finite, kind, "skip")[0]
        assert said is None and refused == 1 and values[0] == 5000.0
        assert values[1] == (0.0 if kind == "dist_async" else -2.0)


def test_one_that_is_applied():
    found = run_ranks(2, not_finite, "dist_async", "apply")[0]
    assert found[0] is None and found[1][0] == -float("inf") and found[2] == 0


def test_nobody_waits_for_a_worker_that_has_left():
    def work(rank):
        kv = ps.create("dist_async", max_staleness=1)
        kv.init("w", pydist.zeros(1))
        kv.set_optimizer("test")
        for _ in range(3 if rank == 1 else 10):
            kv.push("w", pydist.ones(1))
            kv.clock()
        if rank == 1:
            return None
        return kv.pull("w").item(), kv.get_num_dead_node()

    start = time.monotonic()
    assert run_ranks(2, work, processes=True)[0] == (13.0, 1)
    assert time.monotonic() - start < within(10)
