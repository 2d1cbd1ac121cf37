"""all_reduce over hosts of several ranks: through shared memory within a host, one message a host between them, and the
bits of every other algorithm."""

import hashlib
import os

import numpy as np
import pytest

from lib.ranks import FAULTS, PRELUDE, Ranks, good, outputs, processes, run
from lib.trees import expected, hash_of, reduce_everything, sample
from pydist import _C

TWO_HOSTS = "import os\nos.environ['PYDIST_HOST'] = f'host{int(os.environ[\"RANK\"]) // 2}'\n" + PRELUDE


@pytest.mark.parametrize("world, hosts", [(4, 2), (8, 2), (6, 3), (8, 4)])
@pytest.mark.slow
def test_every_dtype_and_op_has_the_trees_bits(world, hosts):
    def fn(group):
        assert (group.ranks_per_host, group.transport) == (world // hosts, "tcp")
        return reduce_everything(group, (1, 130, 3001))

    results = good(run(world, fn, hub=_C.Hub(world, hosts), algo="hierarchical", slot=1024))  # many pieces
    for i, (dtype, op, n, _) in enumerate(results[0]):
        want = expected([sample(dtype, n, hash_of(dtype, op, n, r)) for r in range(world)], dtype, op).tobytes()
        assert all(results[rank][i][3].tobytes() == want for rank in range(world)), (dtype, op, n)


@pytest.mark.parametrize("world, hosts", [(6, 2), (5, 2), (3, 2), (3, 3), (4, 1)])
def test_hosts_that_are_no_subtrees_go_the_flat_way(world, hosts):
    def fn(group):
        x = sample("float32", 50000, group.rank)
        group.all_reduce(x)
        return group.ranks_per_host, x.tobytes()

    want = expected([sample("float32", 50000, r) for r in range(world)], "float32", "sum").tobytes()
    for algo in ("", "hierarchical"):
        assert set(good(run(world, fn, hub=_C.Hub(world, hosts), algo=algo))) == {(1, want)}


def test_between_other_collectives():
    """Works in a queue, one with a root and a scale, subgroups of one host and across hosts, and a failure."""

    def fn(group):
        rank, xs = group.rank, []
        works = []
        for i in range(4):
            xs.append(np.full(20000 + i, rank + i, np.float64))
            works.append(group.all_reduce(xs[-1], "avg" if i % 2 else "sum", async_op=True))
        y, z = np.full(30000, rank, np.float32), np.zeros(4 * 30000, np.float32)
        group.reduce(y, 2)
        group.all_gather(z, np.full(30000, rank, np.float32))
        for work in works:
            work.wait()
        for i, x in enumerate(xs):
            assert (x == ((1.5 + i) if i % 2 else (6 + 4 * i))).all()
        assert (y == (6 if rank == 2 else rank)).all() and (z == np.repeat(np.arange(4), 30000)).all()
        near = group.subgroup([0, 1], epoch=1) if rank < 2 else group.subgroup([2, 3], epoch=2)
        across = group.subgroup([rank % 2, rank % 2 + 2], epoch=3 + rank % 2)
        y = np.full(30000, rank, np.float32)
        near.all_reduce(y)
        across.all_reduce(y)
        assert (y == 6).all() and (near.ranks_per_host, across.ranks_per_host) == (1, 1)
        assert near.transport != "tcp" and across.transport == "tcp"
        with pytest.raises(_C.CommMismatch):
            group.all_reduce(np.zeros(30000 + (rank == 3)))

    good(run(4, fn, hub=_C.Hub(4, 2)))


def test_processes_of_two_hosts():
    script = """
        import hashlib
        x = np.random.default_rng(rank).standard_normal(300_000).astype(np.float32)
        group.all_reduce(x)
        h = np.random.default_rng(rank).standard_normal(70_000).astype(np.float16)
        group.all_reduce(h)
        print(group.ranks_per_host, hashlib.sha256(x.tobytes() + h.tobytes()).hexdigest())
        leave()
    """
    with Ranks(4, script, prelude=TWO_HOSTS) as ranks:
        found = outputs(ranks.wait())
    want = b"".join(
        expected([np.random.default_rng(r).standard_normal(n).astype(dtype) for r in range(4)], dtype, "sum").tobytes()
        for n, dtype in ((300_000, "float32"), (70_000, "float16"))
    )
    assert set(found) == {f"2 {hashlib.sha256(want).hexdigest()}\n"}


@pytest.mark.parametrize("reach", [True, False])
def test_ranks_that_come_over_tcp(reach):
    """No descriptors travel: each finds its neighbours' memory through the kernel, or all do without."""
    script = """
        x = np.random.default_rng(rank).standard_normal(100_000).astype(np.float32)
        group.all_reduce(x)
        print(group.ranks_per_host, group.transport, hashlib.sha256(x.tobytes()).hexdigest())
        leave()
    """
    hidden = "import ctypes\nctypes.CDLL(None).prctl(4, int(rank != 1))  # PR_SET_DUMPABLE: nobody may look at rank 1\n"
    if os.getuid() == 0:  # root may look at everybody
        hidden = "os.setgid(65534), os.setuid(65534)\n" + hidden
    hidden = "" if reach else hidden
    prelude = "import hashlib, numpy.random\n" + TWO_HOSTS.replace("group = init()", hidden + "group = init()")
    inputs = [np.random.default_rng(r).standard_normal(100_000).astype(np.float32) for r in range(4)]
    digest = hashlib.sha256(expected(inputs, "float32", "sum").tobytes()).hexdigest()
    ended = processes(4, script, prelude=prelude, far=range(4))
    assert set(outputs(ended)) == {f"{2 if reach else 1} tcp {digest}\n"}


def test_a_rank_that_dies():
    script = """
        x = np.ones(200_000)
        if rank == 3:
            group.all_reduce(x)
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            while True:
                group.all_reduce(x)
        except _C.PeerFailed as e:
            print(e.rank)
    """
    with Ranks(4, script, prelude=TWO_HOSTS) as ranks:
        ended = ranks.wait()
    assert [(code, out) for code, out, _ in ended[:3]] == [(0, "3\n")] * 3


def test_nothing_is_left():
    hub = _C.Hub(4, 2)

    def descriptors():
        return len(os.listdir("/proc/self/fd"))

    def fn(group):
        group.all_reduce(np.ones(50000))

    good(run(4, fn, hub=hub))
    before = descriptors()
    for _ in range(5):
        good(run(4, fn, hub=hub))
    assert descriptors() == before


def test_every_allocation_of_init_may_fail():
    script = """
        group.destroy()
        group, failures = init_with_faults()
        x = np.ones(50000)
        group.all_reduce(x)
        assert failures > 9 and x[0] == 4 and group.ranks_per_host == 2
        leave()
    """
    with Ranks(4, script, prelude=TWO_HOSTS + FAULTS) as ranks:
        outputs(ranks.wait())
