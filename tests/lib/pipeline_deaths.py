"""Ranks of a pipeline that are killed at random actions: a program, so that it can fork before it has any thread.

python -m lib.pipeline_deaths FIRST TIMES FOLDER    the deaths of the seeds FIRST, FIRST + 1, ...

It prints what it has seen, or what was wrong, with exit code 1."""

import os
import sys
import time

import pydist
from lib.shard_deaths import descriptors, kills
from lib.stages import NAMES, placed, scheduled
from lib.steps import join
from pydist import distributed as dist
from pydist import nn
from pydist.distributed.pipelining import _step

SAYS = r"stage \d+, microbatch \d+, (forward|backward|messages)|at its end|beginning of a pipeline's step"


def counted(do, before):
    """What does an action, and calls before() first."""

    def wrapped(step, s, mb):
        before()
        do(step, s, mb)

    return wrapped


def plan(chance, seed, folder):
    """See kills in lib/shard_deaths.py."""
    name, world = chance.choice(NAMES), chance.choice((2, 3, 4))
    victim, m, width = chance.randrange(world), chance.choice((1, 2, 4, 5)), chance.choice((8, 3000))
    when = chance.randrange(1, 60)

    def job(rank, say):
        join(os.path.join(folder, "meeting"), rank, world)
        first = descriptors()
        stages, _ = placed(name, rank, world, [nn.Linear(width, width) for _ in range(2 * world)])
        schedule = scheduled(name, stages, m)
        x, found, actions = pydist.ones(8, width), {}, iter(range(10**6))

        def before():
            if rank == victim and next(actions) == when:
                say()

        for kind, do in list(_step._DO.items()):
            _step._DO[kind] = counted(do, before)
        try:
            while True:
                schedule.step(x, target=x)
        except dist.PeerFailed as error:
            notes = getattr(error, "__notes__", ())
            found = {"at": time.monotonic(), "error": "\n".join([f"{type(error).__name__}: {error}", *notes])}
        found["values"] = sum(p.count_nonzero().item() for stage in stages for p in stage.parameters())
        del stages, schedule, x
        dist.destroy_process_group()
        found["left"] = list(descriptors() - first)
        return found

    return world, victim, job, f"dies at action {when} of {name} with {m} microbatches", SAYS


if __name__ == "__main__":
    first, times, folder = sys.argv[1:]
    kills(int(first), int(times), folder, plan)
