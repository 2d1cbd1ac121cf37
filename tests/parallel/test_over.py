"""Transaction.over: ranks that die change no bit of a training run with logical shards."""

import os
import random
import subprocess
import sys

import pytest

import pydist
from lib.sharded import parts, train
from pydist import _C
from pydist import distributed as dist
from pydist.nn.parallel import DistributedDataParallel
from pydist.testing import RankFailed, run_ranks
from pydist.utils.data import DataLoader, DistributedSampler

LONG = int(os.environ.get("FULL_DEATHS", 0))
SCRIPT = """
import os, signal, sys, threading
from lib.sharded import train
from pydist import distributed as dist

kind, plan, timers = sys.argv[1], eval(sys.argv[2]), eval(sys.argv[3])
me = int(os.environ["RANK"])

def die(*signs):
    os.kill(os.getpid(), signal.SIGKILL)


def before(step, shard):
    if plan.get(me) == (step, shard):
        die()
    if me in timers:  # from the first step on
        threading.Timer(timers.pop(me), die).start()

sha, losses = train(kind, epochs=4, over=True, before=before)
print("sha", sha, repr(losses), dist.get_world_size(), flush=True)
os._exit(0)
"""


@pytest.fixture(scope="module")
def undisturbed():
    return {kind: run_ranks(1, lambda rank, kind=kind: train(kind, epochs=4))[0] for kind in ("mlp", "cnn", "gpt")}


def survive(folder, kind, world, plan=None, timers=None, *options):
    """(sha, losses) of the survivors, which must be equal, and how many there were."""
    script = folder / "train.py"
    script.write_text(SCRIPT)
    command = [
        sys.executable,
        "-m",
        "pydist.run",
        "--on-failure=keep",
        f"--nproc-per-node={world}",
        *options,
        str(script),
        kind,
    ]
    env = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(__file__)), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, repr(plan or {}), repr(timers or {})],
        capture_output=True,
        text=True,
        timeout=120,
        env=env,
        check=False,
    )
    lines = {line.split("sha ", 1)[1] for line in done.stdout.splitlines() if "sha " in line}
    assert len(lines) == 1, done.stdout + done.stderr
    sha, rest = lines.pop().split(" ", 1)
    losses, left = rest.rsplit(" ", 1)
    return (sha, eval(losses, {"nan": float("nan")})), int(left)


@pytest.mark.parametrize("kind, plan", [("mlp", {1: (2, 3)}), ("cnn", {0: (1, 0), 2: (5, 6)}), ("gpt", {1: (3, 7)})])
def test_a_death_inside_a_shard(tmp_path, undisturbed, kind, plan):
    got, left = survive(tmp_path, kind, 3, plan)
    assert got == undisturbed[kind] and left == 3 - len(plan)


@pytest.mark.parametrize("seed", range(2 + LONG))
def test_deaths_at_any_moment(tmp_path, undisturbed, seed):
    chance = random.Random(seed)
    world, kind = chance.choice((2, 3, 4)), chance.choice(("mlp", "cnn", "gpt"))
    victims = chance.sample(range(world), chance.randrange(1, world))
    got, left = survive(tmp_path, kind, world, None, {rank: chance.uniform(0, 0.5) for rank in victims})
    assert got == undisturbed[kind] and left >= world - len(victims)


# ---- the decision (csrc/comm/algo/commit.h)


def test_decisions():
    for made, has, want in (
        ([3, 3, 3], [True, True, True], [True] * 3),
        ([3, 3, 3], [True, False, True], [False] * 3),
        ([4, 3, 4], [False, True, False], [False, True, False]),
        ([4, 3, 4], [True, True, True], [False, True, False]),
        ([0], [True], [True]),
    ):
        assert [_C.commit_decide(made, has, own) for own in range(len(made))] == want
    for made, has in (([5, 3], [False, True]), ([4, 3], [True, False])):
        with pytest.raises(dist.DistError, match="commit: a rank has made 3 steps"):
            _C.commit_decide(made, has, 0)
    for args in (([1], [True, False], 0), ([1], [True], 1), ([1], [True], -1)):
        with pytest.raises(ValueError, match="commit_decide"):
            _C.commit_decide(*args)


class Rank:
    """A survivor or victim in the model of the gate: how many steps it has made, and whether it has the next gradient."""

    def __init__(self):
        self.made, self.has, self.alive, self.at_gate = 0, False, True, False


def schedule(seed):
    """A random run of a few ranks over a few steps, with deaths at random moments. Survivors decide in rounds, in which
    others may die before they have heard the outcome. Returns what each rank that ever lived has made."""
    chance = random.Random(seed)
    ranks = [Rank() for _ in range(chance.randrange(2, 6))]
    for _ in range(40):
        live = [r for r in ranks if r.alive]
        kind = chance.random()
        if kind < 0.08 and len(live) > 1:
            chance.choice(live).alive = False
            recover(ranks, chance)
            continue
        rank = chance.choice(live)
        if not rank.has:
            if all(other.made >= rank.made for other in live):  # a reduction needs all of them
                rank.has = True
        elif all(other.made > rank.made or other.has for other in live):
            rank.made, rank.has = rank.made + 1, False  # the gate is open
    return ranks


def recover(ranks, chance):
    while True:
        live = [r for r in ranks if r.alive]
        made, has = [r.made for r in live], [r.has for r in live]
        heard = chance.randrange(len(live) + 1) if chance.random() < 0.3 and len(live) > 1 else len(live)
        for own in chance.sample(range(len(live)), heard):
            if _C.commit_decide(made, has, own):
                live[own].made += 1
            live[own].has = False
        if heard == len(live):
            return
        chance.choice(live).alive = False  # before all have heard: the others decide again


@pytest.mark.parametrize("block", range(4 + 96 * bool(LONG)))
def test_no_step_is_lost_or_undone(block):
    """After each recovery all survivors have made the same steps, and no step of a dead rank is missing."""
    for seed in range(block * 1000, block * 1000 + 1000):
        ranks = schedule(seed)
        live = [r.made for r in ranks if r.alive]
        assert max(live) - min(live) <= 1
        assert max(r.made for r in ranks) <= max(live)


@pytest.mark.parametrize("world", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_memory_of_a_thousand_steps_does_not_grow(world):
    def size():
        with open("/proc/self/statm") as f:
            return int(f.read().split()[1]) * 4096

    def work(rank):
        dist.init_process_group(logical_shards=8)
        net, data, loss_of, optimizer, *_ = parts("mlp", 8 * 25)
        model = DistributedDataParallel(net, bucket_cap_mb=0.004)
        loader = DataLoader(data, batch_size=1, sampler=DistributedSampler(data))
        step, seen = dist.Transaction(model, optimizer), []
        for epoch in range(40):
            for attempt in step.over(loader):
                with attempt:
                    optimizer.zero_grad()
                    for shard in attempt:
                        for x, y in shard:
                            loss_of(model(x), y).backward()
                    optimizer.step()
            if epoch in (7, 39):
                attempt = x = y = None
                dist.barrier()
                seen.append((pydist._C.memory_allocated(), size()))
                dist.barrier()
        return seen

    for (bytes_before, before), (bytes_after, after) in run_ranks(world, work):
        assert bytes_after == bytes_before and after - before < 4 << 20


# ---- balance


def test_shares_follow_speeds():
    """A rank that takes three times as long for a shard gets fewer of them, and no bit changes."""
    import time

    def work(rank, slow):
        def before(step, shard):
            time.sleep(0.006 if rank == 1 and slow else 0.002)

        found = train("mlp", epochs=6, over=True, balance=True, before=before)
        return found, dist.work_shares()

    want = run_ranks(1, lambda rank: train("mlp", epochs=6))[0]
    found = run_ranks(2, work, True)
    assert [bits for bits, _ in found] == [want] * 2
    assert found[0][1] == found[1][1] and found[0][1][0] > found[0][1][1] >= 1


# ---- what is refused


def refused(text, fn):
    def work(rank):
        dist.init_process_group(logical_shards=2)
        net, data, loss_of, optimizer, *_ = parts("mlp", 16)
        model = DistributedDataParallel(net)
        step = dist.Transaction(model, optimizer)
        fn(step, DataLoader(data, batch_size=4, sampler=DistributedSampler(data)), model, loss_of, optimizer)

    with pytest.raises(RankFailed, match=text):
        run_ranks(1, work)


def without_with(step, loader, *rest):
    for _ in step.over(loader):
        pass


def too_soon(step, loader, model, loss_of, optimizer):
    for attempt in step.over(loader):
        with attempt:
            optimizer.step()


def nested(step, loader, *rest):
    for attempt in step.over(loader):
        with attempt, attempt:
            pass


def raises(step, loader, model, loss_of, optimizer):
    for attempt in step.over(loader):
        with attempt:
            for shard in attempt:
                raise ValueError("mine")


@pytest.mark.parametrize(
    "fn, text",
    [
        (without_with, "an attempt without `with attempt:`"),
        (too_soon, "changes parameters before all its shards were run"),
        (nested, "an attempt inside another attempt"),
        (raises, "mine"),
    ],
)
def test_attempts_that_are_wrong(fn, text):
    refused(text, fn)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have notes from Python 3.11 on")
def test_an_error_says_which_shard():
    def work(rank):
        dist.init_process_group(logical_shards=2)
        net, data, *_ = parts("mlp", 16)
        model = DistributedDataParallel(net)
        step = dist.Transaction(model)
        for attempt in step.over(DataLoader(data, batch_size=4, sampler=DistributedSampler(data))):
            with attempt:
                for shard in attempt:
                    for x, _ in shard:
                        if shard.number:
                            raise ValueError("mine")
                        model(x).sum().backward()

    with pytest.raises(RankFailed) as caught:
        run_ranks(1, work)
    assert caught.value.__cause__.__notes__ == ["in logical shard 1 of step 0"]


def test_what_a_rank_works_on():
    def work(rank):
        dist.init_process_group(logical_shards=2)
        data = pydist.utils.data.TensorDataset(pydist.arange(8))
        found = []
        for step in dist.shards(DataLoader(data, batch_size=4, sampler=DistributedSampler(data))):
            for shard in step:
                found += [shard.number for _ in shard]
        return found

    assert run_ranks(1, work) == [[0, 1]]
