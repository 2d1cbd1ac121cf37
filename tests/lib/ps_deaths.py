"""Workers of a parameter server that are killed while they push: a program, so that it can fork before it has any thread.

python -m lib.ps_deaths points MODE FIRST LAST STEP FOLDER   a worker dies at the store points FIRST, FIRST + STEP, ...
python -m lib.ps_deaths times MODE FIRST TIMES FOLDER        deaths at random times, of the seeds FIRST, FIRST + 1, ...
python -m lib.ps_deaths resumes FIRST TIMES FOLDER           a synchronous training dies, and goes on from what is left
python -m lib.ps_deaths stops FOLDER                         a worker stops for a while
python -m lib.ps_deaths clocks COUNT FOLDER                  for bounds of 1 to 16, COUNT clocks of workers that stop and sleep

MODE: dist_async or dist_sync. The rule adds, so values count pushes. It prints what it has seen, or what was wrong, with
exit code 1."""

import contextlib
import os
import random
import signal
import sys
import time

import pydist
from lib.crashes import wait_for
from lib.processes import within
from lib.shard_deaths import descriptors, found_by, start
from lib.steps import join
from pydist import _C, optim
from pydist import distributed as dist
from pydist.distributed import ps

SIZES = {"small": 3, "pieces": 9000, "stripes": 2 * (1 << 18) + 5000}
PUSHES, VICTIM = 6, 1


def after_adam(steps):
    """9000 zeros after so many steps with gradients of 1."""
    value = pydist.zeros(9000, requires_grad=True)
    opt = optim.Adam([value])
    for _ in range(steps):
        value.grad = pydist.ones(9000)
        opt.step()
    return value.detach()


def job(rank, say, folder, mode, world, point):
    """The victim dies at a store point (0: when its parent kills it). The others push, and settle what it left."""
    join(os.path.join(folder, "meeting"), rank, world)
    first = descriptors()
    kv = ps.create(mode, on_death="continue")
    kv.init(list(SIZES), [pydist.zeros(n, dtype=pydist.float64) for n in SIZES.values()])
    kv.set_optimizer("test")
    ones = [pydist.ones(n, dtype=pydist.float64) for n in SIZES.values()]
    table = ps.EmbeddingTable("t", 10**6, 4, optimizer="sgd", init="zeros", kvstore=kv, learning_rate=-1.0)
    ids = pydist.arange(0, 10**6, 3700)
    rows = pydist.ones(len(ids), 4)
    alone = ps.create(
        mode, on_death="continue"
    )  # the victim pushes to it, and nobody else looks at it before its death
    alone.init("w", pydist.zeros(9000))
    alone.set_optimizer(optim.Adam([pydist.zeros(1, requires_grad=True)]))
    log = os.open(os.path.join(folder, f"log-{rank}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    kv.barrier()
    if rank == VICTIM:
        say()
        _C.fault("stripe", point)
    for _ in range(PUSHES if rank != VICTIM or point else 10**9):
        os.write(log, b"b")
        kv.push(list(SIZES), ones)
        if mode == "dist_sync":
            kv._c.pull(list(range(len(SIZES))), [None] * len(SIZES), False)
        table.push(ids, rows)
        if mode == "dist_async" and rank == VICTIM:
            alone.push("w", pydist.ones(9000))
        if mode == "dist_sync":
            table.lookup(ids)
        os.write(log, b"a")
    if rank == VICTIM:
        _C.fault("stripe", 0)
        os.kill(os.getpid(), signal.SIGKILL)  # it has outlived its points
    kv.clock()
    os.close(log)
    until = time.monotonic() + within(20)
    others = [w for w in range(world) if w != VICTIM]
    while not (kv.get_num_dead_node() == 1 and all(kv._c.worker(w)[0] for w in others)):
        assert time.monotonic() < until, "the death is not noticed"
        time.sleep(0.002)
    died = time.monotonic()
    kv._c.settle()
    alone._c.settle()
    if not (alone.value("w") == after_adam(alone.version("w"))).all():
        raise AssertionError(f"version {alone.version('w')} is not that of Adam: {alone.value('w')[:3]}")
    values = [kv.value(k) for k in SIZES] + [table.lookup(ids)]
    found = {"low": [v.min().item() for v in values], "high": [v.max().item() for v in values]}
    found["seconds"], found["metrics"] = time.monotonic() - died, kv.metrics()
    found["alone"] = alone.version("w")
    del values, table, kv, alone
    open(os.path.join(folder, f"closed-{rank}"), "w").close()  # the last one to close it frees the memory
    while not all(os.path.exists(os.path.join(folder, f"closed-{w}")) for w in others):
        time.sleep(0.002)
    dist.destroy_process_group()
    found["left"] = list(descriptors() - first)
    return found


def count(folder, rank):
    """(pushes that it began, pushes that were acknowledged)"""
    with open(os.path.join(folder, f"log-{rank}"), "rb") as file:
        said = file.read()
    return said.count(b"b"), said.count(b"a")


def one(folder, mode, world, point, seconds=0.0):
    """One death. Returns whether it came before the victim's last point."""
    pids, reading = start(folder, world, lambda rank, say: job(rank, say, folder, mode, world, point))
    os.read(reading, 1)
    if not point:
        time.sleep(seconds)
        os.kill(pids[VICTIM], signal.SIGKILL)
    codes = wait_for(pids)
    os.close(reading)
    begun, acked = count(folder, VICTIM)
    for rank in set(range(world)) - {VICTIM}:
        if codes[rank] != 0:
            with open(os.path.join(folder, "said")) as file:
                sys.exit(f"rank {rank} ended with {codes[rank]}: {file.read()}")
        found = found_by(folder, rank)
        others = PUSHES * (world - 1)
        if not all(low == high for low, high in zip(found["low"], found["high"], strict=True)):
            sys.exit(f"{folder}: a push is applied in part: {found}")
        counts = {low - others for low in found["low"]}  # the keys of a call, and the table
        counts |= {found["alone"]} if mode == "dist_async" else set()
        if len(set(found["low"][:-1])) != 1 or not counts <= {acked, begun}:
            sys.exit(f"{folder}: {found['low']} (expected {others} and {acked} acknowledged of {begun} pushes)")
        if found["left"] or found["seconds"] > within(2):
            sys.exit(f"{folder}: {found}")
    return not point or begun < PUSHES or acked < begun


# A training with a bound of 0 that dies and goes on.


def training(kv, rank, first, last, before=lambda step: None):
    """Adam on gradients that depend on the step and the rank."""
    for step in range(first, last):
        before(step)
        kv.push(["a", "b"], [pydist.full((n,), (step + 1) * 0.01 + rank) for n in (20_000, 7)])
        kv.pull(["a", "b"])


def trained(world):
    kv = ps.create("dist_sync", reduce="mean")
    kv.init(["a", "b"], [pydist.zeros(20_000), pydist.zeros(7)])
    kv.set_optimizer("adamw", learning_rate=0.01)
    return kv


def resumed(rank, say, folder, world, when, steps=12):
    """The victim dies in step `when`; the others save; all that are left go on in a new job."""
    join(os.path.join(folder, "meeting"), rank, world)
    kv, path = trained(world), os.path.join(folder, "saved")

    def before(step):
        if step == when and rank == VICTIM:
            say()
            _C.fault("stripe", random.Random(folder).randrange(1, 20))
        if step == steps - 1 and rank == VICTIM:  # the others were faster, and left it nothing to do
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        training(kv, rank, 0, steps, before)
        raise AssertionError("nobody has died")
    except dist.PeerFailed as error:
        found = {"error": str(error), "versions": [kv.version(k) for k in ("a", "b")]}
    kv.save(path)
    return found


def one_resumed(folder, seed):
    """A death, and the end of the training: its bits, and those of a training that nobody disturbed."""
    chance = random.Random(seed)
    world, when, steps = chance.choice((2, 3)), chance.randrange(0, 10), 12
    pids, reading = start(folder, world, lambda rank, say: resumed(rank, say, folder, world, when))
    codes = wait_for(pids)
    os.close(reading)
    found = [found_by(folder, r) for r in range(world) if r != VICTIM and codes[r] == 0]
    first = found[0]["versions"] if found else []
    if len(found) != world - 1 or any(f["versions"] != [first[0]] * 2 for f in found) or first[0] < when:
        with open(os.path.join(folder, "said")) as file:
            sys.exit(f"{folder}: {codes} {found} {file.read()}")

    def whole(rank, say, begins):
        join(os.path.join(folder, f"again-{begins}"), rank, world)
        kv = trained(world)
        if begins:
            kv.load(os.path.join(folder, "saved"))
        training(kv, rank, begins, steps)
        values = [v.tolist() for v in kv.pull(["a", "b"])]
        dist.barrier()
        return values

    values = []
    for begins in (first[0], 0):
        here = os.path.join(folder, f"whole-{begins}-{len(values)}")
        pids, reading = start(here, world, lambda rank, say, begins=begins: whole(rank, say, begins))
        if set(wait_for(pids)) != {0}:
            with open(os.path.join(here, "said")) as file:
                sys.exit(file.read())
        os.close(reading)
        values.append(found_by(here, 0))
    if values[0] != values[1]:
        sys.exit(f"{folder}: a training that goes on after a death in step {when} has other bits")


def stopped(rank, say, folder):
    join(os.path.join(folder, "meeting"), rank, 2)
    kv = ps.create("dist_async", max_staleness=2)
    kv.init("w", pydist.zeros(1))
    kv.set_optimizer("test")
    kv.barrier()
    most = 0
    for i in range(12):
        if rank == VICTIM and i == 4:
            say()
        kv.push("w", pydist.ones(1))
        kv.clock()
        most = max(most, kv._c.worker(0)[0] - kv._c.worker(1)[0])
    kv.barrier()
    return {"most": most, "value": kv.pull("w").item()}


def stops(folder):
    pids, reading = start(folder, 2, lambda rank, say: stopped(rank, say, folder), stops=True)
    os.read(reading, 1)
    time.sleep(within(1.0))
    os.kill(pids[VICTIM], signal.SIGCONT)
    codes = wait_for(pids)
    with open(os.path.join(folder, "said")) as file:
        said = file.read()
    found = found_by(folder, 0)
    if set(codes) != {0} or found["most"] > 3 or found["value"] != 24.0 or "for rank 1" not in said:
        sys.exit(f"{codes} {found} {said}")
    print(said)


def clocked(rank, say, folder, bound, count):
    """Pushes and clocks, with random sleeps. How far it saw itself ahead of the slowest worker when it began a step."""
    join(os.path.join(folder, "meeting"), rank, 4)
    kv, chance, most = ps.create("dist_async", max_staleness=bound), random.Random(rank), 0
    kv.init("w", pydist.zeros(2))
    kv.set_optimizer("test")
    kv.barrier()
    say()
    for _ in range(count):
        kv.pull("w")
        kv.push("w", pydist.ones(2))
        kv.clock()
        clocks = [kv._c.worker(w)[0] for w in range(4)]
        most = max(most, clocks[rank] - min(clocks))
        if chance.random() < 0.01:
            time.sleep(chance.random() * 0.002)
    kv.barrier()
    lags = kv.staleness()["workers"][rank]
    return {"most": most, "pushes": sum(lags.values()), "value": kv.pull("w")[0].item(), "late": max(lags)}


def clocks(count, folder):
    for bound in (1, 4, 16):  # 0 is a synchronous store
        here, chance, stops = os.path.join(folder, str(bound)), random.Random(bound), 0
        pids, reading = start(here, 4, lambda rank, say, here=here, bound=bound: clocked(rank, say, here, bound, count))
        os.read(reading, 4)
        ended = {}
        while len(ended) < 4:
            time.sleep(chance.random() * 0.02)
            pid = chance.choice([p for p in pids if p not in ended])
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                time.sleep(chance.random() * 0.01)
                os.kill(pid, signal.SIGCONT)
                stops += 1
            for p in pids:
                if p not in ended and (done := os.waitpid(p, os.WNOHANG))[0]:
                    ended[p] = done[1]
        found = [found_by(here, rank) for rank in range(4)]
        good = all(f["most"] <= bound and f["pushes"] == count and f["value"] == 4.0 * count for f in found)
        if set(ended.values()) != {0} or not good or max(f["late"] for f in found) > (2 * bound + 1) * 3:
            sys.exit(f"bound {bound}: {ended} {found}")
        print(f"bound {bound}: {4 * count} clocks, {stops} stops, at most {max(f['most'] for f in found)} ahead")


def main():
    what, mode, *rest = sys.argv[1:]
    deaths = 0
    if what == "stops":
        return stops(mode)
    if what == "clocks":
        return clocks(int(mode), rest[0])
    if what == "resumes":
        for seed in range(int(mode), int(mode) + int(rest[0])):
            one_resumed(os.path.join(rest[1], str(seed)), seed)
            deaths += 1
        print(f"{deaths} trainings go on")
        return None
    if what == "points":
        first, last, step = map(int, rest[:3])
        for point in range(first, last, step):
            if not one(os.path.join(rest[3], str(point)), mode, 2 + point % 2, point):
                break
            deaths += 1
    else:
        for seed in range(int(rest[0]), int(rest[0]) + int(rest[1])):
            chance = random.Random(seed)
            world, seconds = chance.choice((2, 3)), chance.random() * chance.choice((0.002, 0.02))
            one(os.path.join(rest[2], str(seed)), mode, world, 0, seconds)
            deaths += 1
    print(f"{deaths} deaths in {mode}")
    return None


if __name__ == "__main__":
    main()
