"""Ranks of a sharded training that are killed or stopped in each of its phases: a program, so that it can fork before it
has any thread.

python -m lib.shard_deaths kills FIRST TIMES FOLDER    the deaths of the seeds FIRST, FIRST + 1, ...
python -m lib.shard_deaths stops FOLDER                in each phase one rank stops for a while

Both print what they have seen, or what was wrong, with exit code 1."""

import gc
import json
import os
import random
import re
import shutil
import signal
import sys
import time
from collections import Counter

from lib.crashes import PATIENCE, wait_for
from lib.processes import within
from lib.sharded_models import RULES, batch, gpt, loss_of, sharded, whole
from lib.steps import in_fork, join
from pydist import distributed as dist
from pydist.distributed import checkpoint

LIMIT = within(1)  # s from a death to the error of each survivor
PHASES = ("forward", "reduce", "step", "save", "gather")
# What a survivor may wait for when it hears of a death in a phase, and later: the others are not all in the same one.
CALLS = r"reduce_unit|read_shards|write_shards|barrier|all_gather|broadcast|all_reduce|gather|scatter|exchange|segment|save:"


def training(model, folder, before):
    """Steps for ever. before(step, phase) is called before each phase."""
    optimizer = RULES["AdamW"](model.parameters())
    for step in range(10**6):
        before(step, "forward")
        optimizer.zero_grad()
        loss = loss_of(model, batch(step))
        before(step, "reduce")
        loss.backward()
        before(step, "step")
        optimizer.step()
        before(step, "save")
        writer = checkpoint.FileSystemWriter(os.path.join(folder, "saved"), sync_files=False)
        checkpoint.save({"model": model.state_dict()}, storage_writer=writer)
        before(step, "gather")
        yield sum(whole(p).double().sum().item() for p in model.parameters())


def descriptors():
    """What this process has open, and the memfds that it maps."""
    gc.collect()
    with open("/proc/self/maps") as file:
        maps = [line.split(maxsplit=5)[5].strip() for line in file if "memfd:" in line]
    names = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
    return Counter([os.readlink(name) for name in names if os.path.lexists(name)] + maps)


def rank_of_job(folder, rank, world, victim, phase, when, say, steps=10**6):
    """Trains, and says when this rank, the victim, is about to begin the phase. Returns what is to be known of it."""
    now, found = None, {}

    def before(step, what):
        nonlocal now
        now = what
        if rank == victim and step == when and what == phase:
            say()

    join(os.path.join(folder, "meeting"), rank, world)
    first = descriptors()  # those of the control plane stay
    model = sharded(gpt())
    try:
        for number, found["digest"] in enumerate(training(model, folder, before), 1):
            if number == steps:
                break
    except (dist.PeerFailed, checkpoint.CheckpointException) as error:
        found = {"at": time.monotonic(), "phase": now, "error": f"{type(error).__name__}: {error}"}
        found["values"] = sum(p.to_local().count_nonzero().item() for p in model.parameters())  # they can still be read
    del model
    dist.destroy_process_group()
    found["left"] = list(descriptors() - first)
    return found


def start(folder, world, job, stops=False):
    """Forks the ranks, which run job(rank, say); what it returns lies in the folder, as JSON. Returns their pids, and a
    descriptor from which one reads when a rank has called say(); `stops`: that rank stops itself then."""
    reading, writing = os.pipe()

    def say():
        os.write(writing, b".")
        if stops:
            os.kill(os.getpid(), signal.SIGSTOP)

    def work(rank):
        os.dup2(os.open(os.path.join(folder, "said"), os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        found = job(rank, say)
        with open(os.path.join(folder, f"found-{rank}"), "w") as file:
            json.dump(found, file)

    os.makedirs(folder)
    pids = [in_fork(lambda rank=rank: work(rank)) for rank in range(world)]
    os.close(writing)
    return pids, reading


def found_by(folder, rank):
    with open(os.path.join(folder, f"found-{rank}")) as file:
        return json.load(file)


def plan_of_shards(chance, seed, folder):
    """(ranks, victim, job, what happens, what a survivor says)."""
    world, phase, when = chance.choice((2, 3, 4)), PHASES[seed % len(PHASES)], chance.randrange(4)
    victim = chance.randrange(world)

    def job(rank, say):
        return rank_of_job(folder, rank, world, victim, phase, when, say)

    return world, victim, job, f"dies in {phase} of step {when}", CALLS


def kills(first, times, folder, plan=plan_of_shards):
    """See above."""
    worst = 0
    for seed in range(first, first + times):
        chance, here = random.Random(seed), os.path.join(folder, str(seed))
        world, victim, job, what, says = plan(chance, seed, here)
        pids, reading = start(here, world, job)
        os.read(reading, 1)
        time.sleep(chance.choice((0, 1e-4, 1e-3, 4e-3)) * chance.random())
        os.kill(pids[victim], signal.SIGKILL)
        died = time.monotonic()
        codes = wait_for(pids)
        os.close(reading)
        what = f"seed {seed}: rank {victim} of {world} {what}"
        for rank in set(range(world)) - {victim}:
            if codes[rank] != 0:
                with open(os.path.join(here, "said")) as file:
                    sys.exit(f"{what}: rank {rank} has exit code {codes[rank]}: {file.read()}")
            found = found_by(here, rank)
            took = found["at"] - died
            worst = max(worst, took)
            named = re.search(rf"rank {victim}\b", found["error"]) and re.search(says, found["error"])
            if not named or took > LIMIT or found["left"] or not found["values"]:
                sys.exit(f"{what}: rank {rank} after {took:.2f} s: {found}")
        shutil.rmtree(here)
    print(f"{times} deaths, the last survivor heard after {worst:.2f} s")


def stops(folder):
    """See above. The others say for whom they wait, and all go on together. Rank 0 would take the control server with it."""
    waits = rf"rank \d+: (?:{CALLS})\b.* has waited .*\brank {{0}}\b|rank {{0}} \(pid \d+\) is not responding"
    for number, phase in enumerate(PHASES):
        here, world, victim = os.path.join(folder, phase), 3, 1 + number % 2

        def job(rank, say, here=here, world=world, victim=victim, phase=phase):
            return rank_of_job(here, rank, world, victim, phase, 1, say, steps=3)

        pids, reading = start(here, world, job, stops=True)
        os.read(reading, 1)
        try:
            text, named, deadline = "", None, time.monotonic() + PATIENCE
            while not named and time.monotonic() < deadline:
                time.sleep(0.02)
                with open(os.path.join(here, "said")) as file:
                    text = file.read()
                named = re.search(waits.format(victim), text)
        finally:
            os.kill(pids[victim], signal.SIGCONT)
        codes = wait_for(pids)
        os.close(reading)
        if codes != [0] * world or not named:
            sys.exit(f"rank {victim} stops in {phase}: exit codes {codes}; {text}")
        found = [found_by(here, rank) for rank in range(world)]
        if len({one["digest"] for one in found}) != 1 or any(one["left"] for one in found):
            sys.exit(f"rank {victim} stops in {phase}: {found}")
        print(f"{phase}: {named[0]}")


if __name__ == "__main__":
    which, *numbers, folder = sys.argv[1:]
    {"kills": kills, "stops": stops}[which](*map(int, numbers), folder)
