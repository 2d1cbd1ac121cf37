"""Jobs that save and are killed, one after the other: a program, so that it can fork before it has any thread.

python -m lib.crashes calls KIND WORLD FOLDER EVERY    a rank dies before its N-th call that changes the disk: each rank,
                                                       N = 1, 1 + EVERY, ... until a save passes
python -m lib.crashes moments KIND WORLD FOLDER TIMES  ranks die at random moments while they save every step

Both print how many jobs died, or what was wrong after one of them, with exit code 1."""

import os
import random
import shutil
import signal
import sys
import time

from lib.processes import within
from lib.steps import LARGE, SHAPES, in_fork, join, look, newest, prepare, saves, state_of
from pydist import _C
from pydist import distributed as dist
from pydist.distributed import checkpoint
from pydist.distributed.checkpoint import _writing, manager

PATIENCE = within(60.0)  # s until a job counts as one that hangs


def said(folder):
    """The last number that any rank of this job said was done; 0: none."""
    found = [0]
    for name in os.listdir(folder):
        if name.startswith("done-"):
            with open(os.path.join(folder, name)) as file:
                found += map(int, file.read().split())
    return max(found)


def start(folder, world, job):
    """Forks the ranks of a job: each calls job(rank, done) in a group. Returns their pids."""
    assert len(os.listdir("/proc/self/task")) == 1, "a process with threads must not fork"

    def rank_of(rank):
        def done(number):
            os.write(file, b"%d\n" % number)

        file = os.open(os.path.join(folder, f"done-{rank}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        join(os.path.join(folder, "meeting"), rank, world)
        try:
            job(rank, done)
        except checkpoint.CheckpointException:
            if world == 1:
                raise  # nobody else has died
        dist.destroy_process_group()

    return [in_fork(lambda rank=rank: rank_of(rank)) for rank in range(world)]


def wait_for(pids):
    """The exit code of each process, or minus the signal; None for one that hangs, which is killed."""
    codes, deadline = {}, time.monotonic() + PATIENCE
    while len(codes) < len(pids):
        late = time.monotonic() > deadline
        for pid in set(pids) - set(codes):
            if late:
                os.kill(pid, signal.SIGKILL)
            got, status = os.waitpid(pid, 0 if late else os.WNOHANG)
            if got:
                codes[pid] = None if late else os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    return [codes[pid] for pid in pids]


def judge(what, folder, kind, codes, victims, before, shapes):
    """Ends the program if something is wrong after this job."""
    place = os.path.join(folder, "steps")
    wrong = [f"rank {rank}: exit code {code}" for rank, code in enumerate(codes) if code != 0 and rank not in victims]
    why = "; ".join(wrong) or look(place, max(before, said(folder)), shapes, "marker" in kind)
    if not why and "marker" not in kind:  # training goes on
        writer = checkpoint.FileSystemWriter(manager.folder_of(place, 10**9), sync_files=False)
        checkpoint.save(state_of(9, shapes), storage_writer=writer)
        why = "" if newest(place, shapes) == 9 else "the next save is not there"
    if why:
        print(f"{what}: {why} (in {folder})")
        sys.exit(1)
    shutil.rmtree(folder)


def calls(kind, world, folder, every):
    """See above."""
    shapes, count = LARGE if world > 1 else SHAPES, 0
    template = os.path.join(folder, "template")
    before = prepare(kind, os.path.join(template, "steps"), shapes)
    os.makedirs(template, exist_ok=True)
    for victim in range(world):
        for number in range(1, 1000, every):
            here = os.path.join(folder, f"{victim}-{number}")
            shutil.copytree(template, here)

            def job(rank, done):
                if rank == victim:
                    _C.fault("kill", number)
                saves(kind, os.path.join(here, "steps"), done, shapes)

            codes = wait_for(start(here, world, job))
            dead = codes[victim] == -signal.SIGKILL
            what = f"{kind}: rank {victim} of {world} dies before call {number}"
            judge(what, here, kind, codes, {victim} if dead else (), before if dead else 3, shapes)
            if not dead:
                break
            count += 1
    print(count)


def moments(kind, world, folder, times):
    """See above."""
    shapes, chance = LARGE if world > 1 else SHAPES, random.Random(1)
    for number in range(times):
        here = os.path.join(folder, str(number))
        os.makedirs(here)

        def job(rank, done):
            with checkpoint.CheckpointManager(
                os.path.join(here, "steps"), keep_last=2, asynchronous=kind == "async"
            ) as saver:
                for step in range(1, 10**6):
                    saver.save(step, state_of(step, shapes))
                    done(step - 1 if kind == "async" else step)  # this save has waited for the one before

        pids = start(here, world, job)
        deadline = time.monotonic() + PATIENCE
        while not said(here) and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(chance.uniform(0, 0.1))
        victims = set(range(world)) if chance.random() < 0.5 else {chance.randrange(world)}
        for rank in victims:
            os.kill(pids[rank], signal.SIGKILL)
        judge(f"{kind}: death {number} of {world}", here, kind, wait_for(pids), victims, 1, shapes)
    print(times)


def plant():
    """A mistake in the package that `calls` must find: the old checkpoint is deleted before the new one has its name."""
    name = _writing.Writing._name

    def deleting(self, part, final):
        if os.path.isdir(final):
            _writing.remove(final)
        return name(self, part, final)

    _writing.Writing._name = deleting


if __name__ == "__main__":
    which, kind, world, folder, count, *mistake = sys.argv[1:]
    if mistake:
        plant()
    {"calls": calls, "moments": moments}[which](kind, int(world), folder, int(count))
