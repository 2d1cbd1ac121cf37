"""`python -m pydist.verify train.py arguments...`: whether a script's bits depend on the number of ranks.

Runs the script, which trains over logical shards (distributed.shards, Transaction.over), in many worlds: with other
numbers of ranks and threads, over shared memory, over TCP between pretended hosts and over MPI, and with ranks that
are killed.
Each run writes hashes of every shard's rows, losses and gradients. If all agree, the first line says "same bits".
Otherwise it names the first difference, with step, shard and parameter, and what it is likely to come from.

The script is run as it is. It needs logical shards: from init_process_group, or --shards here.
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import namedtuple
from hashlib import sha256
from pathlib import Path

TRANSPORTS = ("shm", "tcp", "hosts", "mpi")  # one host; a host for each rank; hosts of two ranks; mpirun and MPI
_TAIL = 1 << 16  # bytes at the end of a ledger that hold its last row


class Run(namedtuple("Run", "world threads transport kills", defaults=(0,))):
    """A way to run the script."""

    def __str__(self):
        died = f", {self.kills} killed" if self.kills else ""
        return f"{self.world} rank{'s' * (self.world > 1)}, {self.threads} thread{'s' * (self.threads > 1)}, {self.transport}{died}"


Difference = namedtuple("Difference", "step shard what name cause runs")


class Ledger:
    """What all ranks of a run have written."""

    def __init__(self, rows):
        self.states, self.gradients, self.shards, self.last = {}, {}, {}, -1
        for row in rows:
            if "made" in row:
                self.last = max(self.last, row["step"])
            elif "shard" in row:
                self.shards[row["step"], row["shard"]] = row  # a later attempt replaces an earlier one
            else:
                kind = "state" if "state" in row else "gradients"
                table = self.states if kind == "state" else self.gradients
                table.setdefault(row["step"], []).append(row[kind])

    @property
    def steps(self):
        return self.last + 1


def _first(ours, theirs):
    """The first name whose values differ, or None."""
    return next((name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)), None)


def _among_ranks(tables):
    """The first name that differs between ranks of one run."""
    return next((name for table in tables[1:] if (name := _first(tables[0], table)) is not None), None)


CAUSES = {
    "ranks": "the ranks of one run differ: something outside of the shards changes it on some ranks only, such as a write "
    "to a parameter or a buffer on rank 0",
    "rows": "the rows differ: the data set, a transform or a collate function reads the rank, the time, a set's order, or a "
    "generator that is not seeded by shard",
    "leaf": "rows and state are the same: forward, loss or backward reads the rank or the number of ranks, a generator of "
    "its own, the time, or another rank's numbers",
    "threads": "rows and state are the same, and only the number of threads differs: an operation in forward or backward "
    "depends on it",
    "sum": "all shards' gradients are the same: something changes .grad between the shards, such as a hook or a collective",
    "step": "the gradients are the same: what follows the shards changes the state by the rank or the number of ranks, such "
    "as a learning rate, a clipping or a write by hand",
    "buffer": "parameters are the same: a buffer is written by the rank, or outside of the shards",
    "noted": "rows, state and gradients are the same: a noted value reads the rank or the number of ranks",
}


def difference(runs):
    """The first Difference between {Run: Ledger}, or None."""
    (base, want), *others = runs.items()
    for run, ledger in runs.items():
        for step, tables in sorted(ledger.states.items()):
            if step <= ledger.last + 1 and not run.kills and (name := _among_ranks(tables)) is not None:
                return Difference(step, None, "state", name, CAUSES["ranks"], (run, run))
    found = [_pair(base, want, run, ledger) for run, ledger in others]
    return min(
        (d for d in found if d is not None),
        key=lambda d: (d.step, d.shard if d.shard is not None else 1 << 30),
        default=None,
    )


def _pair(base, want, run, got):
    """The first Difference between two runs, or None."""
    for step in range(min(want.steps, got.steps) + 1):
        for ours, theirs in zip(want.states.get(step, ())[:1], got.states.get(step, ())[:1]):
            if (name := _first(ours, theirs)) is not None:
                return Difference(
                    step, None, "state", name, CAUSES[_cause_of_state(want, got, step, name)], (base, run)
                )
        for shard in sorted({v for at, v in {**want.shards, **got.shards} if at == step}):
            ours, theirs = want.shards.get((step, shard)), got.shards.get((step, shard))
            if ours is None or theirs is None:
                return Difference(step, shard, "shard", "", "only one of the runs has this shard", (base, run))
            for what, cause in (("batches", "rows"), ("leaves", "leaf"), ("noted", "noted")):
                if ours[what] != theirs[what]:
                    name = _first(ours[what], theirs[what]) if what != "batches" else ""
                    if cause == "leaf" and base.world == run.world and base.transport == run.transport:
                        cause = "threads"
                    return Difference(step, shard, what, name, CAUSES[cause], (base, run))
        for ours, theirs in zip(want.gradients.get(step, ())[-1:], got.gradients.get(step, ())[-1:]):
            if (name := _first(ours, theirs)) is not None:
                return Difference(step, None, "gradients", name, CAUSES["sum"], (base, run))
    if want.steps != got.steps:
        step = min(want.steps, got.steps)
        return Difference(
            step, None, "steps", "", f"one run made {want.steps} steps, the other {got.steps}", (base, run)
        )
    return None


def _cause_of_state(want, got, step, name):
    """Why a step's state differs although the step before agreed."""
    if step == 0:
        return "ranks"
    return "step" if any(name in table for table in want.gradients.get(step - 1, ())) else "buffer"


WORDS = {"state": "differs at the beginning", "batches": "the rows differ", "leaves": "the gradient differs",
         "noted": "the noted value differs", "gradients": "the mean gradient differs", "steps": "", "shard": ""}  # fmt: skip


def text_of(d):
    """A Difference in one line."""
    where = f"step {d.step}" + (f", shard {d.shard}" if d.shard is not None else "")
    what = " ".join(filter(None, (d.name, WORDS[d.what])))
    return f"{where}{': ' if what else ''}{what} ({' | '.join(map(str, dict.fromkeys(d.runs)))}): {d.cause}"


# ---- running


def _inside(script, arguments):
    """In a rank of a run: pretends hosts, or chooses MPI, then runs the script."""
    import runpy

    from pydist.distributed._group import backend

    if "PYDIST_VERIFY_MPI" in os.environ:
        backend.default = backend.Backend.MPI
    group = int(os.environ.get("PYDIST_VERIFY_HOSTS", "0"))
    if group:
        os.environ["PYDIST_HOST"] = f"host{int(os.environ['RANK']) // group}"
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    runpy.run_path(script, run_name="__main__")


def _steps_begun(path):
    """How many steps any rank of a job has begun, by the ends of their ledgers."""
    most = 0
    for file in path.parent.glob(path.name + ".*"):
        with file.open("rb") as rows:
            rows.seek(max(0, file.stat().st_size - _TAIL))
            numbers = re.findall(rb'"step": (\d+)', rows.read())
        most = max(most, int(numbers[-1]) + 1 if numbers else 0)
    return most


def _kill_some(process, path, count, options):
    """A thread that kills so many ranks of a launched job, each in a random step before the last ones."""
    chance = random.Random(options.seed)
    steps = sorted(chance.randint(1, max(1, options.steps - 3)) for _ in range(count))

    def work():
        for step in steps:
            while process.poll() is None and _steps_begun(path) < step:
                time.sleep(0.002)
            time.sleep(chance.uniform(0, 0.02))
            children = _children(process.pid)
            if process.poll() is None and len(children) > 1:
                os.kill(chance.choice(children), signal.SIGKILL)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def _children(pid):
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "stat").read_text().rpartition(")")[2].split()[1] == str(pid):
                line = (entry / "cmdline").read_bytes().split(b"\0")
                if b"pydist.verify" in line:
                    found.append(int(entry.name))
        except OSError:
            continue
    return found


def execute(run, options, folder):
    """Runs the script once. Returns its Ledger, or a text that says how it failed."""
    path = Path(folder, re.sub(r"\W+", "-", str(run)))
    hosts = {"tcp": 1, "hosts": 2}.get(run.transport, 0)
    env = {
        **os.environ, "PYDIST_BITS": str(path), "PYDIST_BITS_STEPS": str(options.steps), "OMP_NUM_THREADS": str(run.threads),
        "PYDIST_VERIFY_HOSTS": str(hosts), "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0"),
    }  # fmt: skip
    if options.shards:
        env["PYDIST_SHARDS"] = str(options.shards)
    keep = ["--on-failure=keep"] if run.kills else []
    start = [sys.executable, "-m", "pydist.run", f"--nproc-per-node={run.world}", *keep]
    if run.transport == "mpi":
        start = ["mpirun", "-n", str(run.world), sys.executable]
        env |= {"PYDIST_VERIFY_MPI": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1"}
    process = subprocess.Popen(
        [*start, "-m", "pydist.verify", "--inside", options.script, *options.arguments],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    killer = _kill_some(process, path, run.kills, options)
    try:
        said, _ = process.communicate(timeout=options.timeout)
    except subprocess.TimeoutExpired:
        process.terminate()
        said, _ = process.communicate()
        return f"it had not ended after {options.timeout:g} s\n{said[-2000:]}"
    killer.join()
    # A rank that is killed when the others have ended gives the job its code; if they had not, steps are missing below.
    if process.returncode not in ((0, 128 + signal.SIGKILL) if run.kills else (0,)):
        return f"it ended with code {process.returncode}\n{said[-2000:]}"
    rows = []
    for file in sorted(path.parent.glob(path.name + ".*")):
        for line in file.read_text().splitlines():
            if line.endswith("}"):  # a killed rank may have left half a line
                rows.append(json.loads(line))
    if not rows:
        return "it trained over no logical shards (expected a loop over distributed.shards or Transaction.over)"
    return Ledger(rows)


def _worlds(options):
    for world in options.worlds:
        for threads in options.threads:
            for transport in options.transports:
                if transport in ("shm", "mpi") or world > 1 and (transport == "tcp" or world % 2 == 0 and world > 2):
                    yield Run(world, threads, transport)
    for seed in range(options.kills):
        world = [w for w in options.worlds if w > 1][seed % max(1, sum(w > 1 for w in options.worlds))]
        yield Run(world, options.threads[0], "shm", 1 + seed % (world - 1))


def _numbers(text):
    return [int(word) for word in text.split(",")]


def _parser():
    parser = argparse.ArgumentParser(
        prog="python -m pydist.verify", description=__doc__.split("\n\n")[0].split(": ", 1)[1]
    )
    parser.add_argument(
        "--worlds", type=_numbers, default=[1, 2, 3, 4], metavar="1,2,3", help="numbers of ranks [1,2,3,4]"
    )
    parser.add_argument("--threads", type=_numbers, default=[1], metavar="1,2", help="threads of a rank [1]")
    parser.add_argument(
        "--transports", default="shm", metavar="shm,tcp,hosts,mpi",
        help="shm: one host; tcp: each rank is a host; hosts: two ranks are; mpi: mpirun starts them, over MPI [shm]",
    )  # fmt: skip
    parser.add_argument(
        "--kills", type=int, default=0, metavar="N", help="so many more runs with killed ranks (Transaction.over)"
    )
    parser.add_argument("--steps", type=int, default=20, metavar="N", help="end each run after so many steps [20]")
    parser.add_argument(
        "--shards", type=int, default=0, metavar="V", help="logical shards, if the script does not say them"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the moments of kills")
    parser.add_argument("--timeout", type=float, default=300.0, metavar="SECONDS", help="for each run [300]")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser


def main(argv=None):
    """Runs the command line. Returns 0: same bits; 1: they differ; 2: a run failed."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["--inside"]:
        _inside(argv[1], argv[2:])
        return 0
    parser = _parser()
    options = parser.parse_args(argv)
    options.transports = options.transports.split(",")
    if unknown := [name for name in options.transports if name not in TRANSPORTS]:
        parser.error(f"--transports: {unknown[0]!r} (expected some of {', '.join(TRANSPORTS)})")
    if "mpi" in options.transports and not shutil.which("mpirun"):
        parser.error("--transports: mpi: there is no mpirun (expected that of the MPI which pydist was built with)")
    if not Path(options.script).exists():
        parser.error(f"no such script: {options.script}")
    ledgers = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, run in enumerate(_worlds(options)):
            options.seed += 1
            ledger = execute(run, options, tempfile.mkdtemp(dir=folder, prefix=str(number)))
            if isinstance(ledger, str):
                print(f"{run}: {ledger}")
                return 2
            key = run if run not in ledgers else run._replace(threads=run.threads)
            ledgers[key if key not in ledgers else Run(run.world, run.threads, f"{run.transport} again", run.kills)] = (
                ledger
            )
    found = difference(ledgers)
    steps = min(ledger.steps for ledger in ledgers.values())
    final = [table for ledger in ledgers.values() for table in ledger.states.get(steps, ())[:1]]
    sha = sha256(json.dumps(final[0], sort_keys=True).encode()).hexdigest()[:16] if final else ""
    if options.json:
        print(json.dumps({
            "same": found is None, "runs": [run._asdict() for run in ledgers], "steps": steps, "state": sha,
            "difference": found and {**found._asdict(), "runs": [run._asdict() for run in found.runs]},
        }))  # fmt: skip
    elif found is None:
        print(f"same bits: {len(ledgers)} runs, {steps} steps, {sha}")
    else:
        print(text_of(found))
    return 0 if found is None else 1


if __name__ == "__main__":
    sys.exit(main())
