"""`python -m benchmarks.ps_modes [options]`: what asynchronous training costs in accuracy and gives in speed.

LeNet learns Fashion-MNIST on four workers, with the same rows in every mode: test accuracy over seeds, seconds, the most stale
push; then the same with a worker that sleeps in each step. PYDIST_DATA names the
folder of data sets."""

import argparse
import json
import statistics
import subprocess
import sys

from benchmarks.harness import PROGRAMS
from benchmarks.report import machine

PROGRAM = str(PROGRAMS / "ps_modes.py")
# name, kind, bound, factor of the learning rate, seconds that worker 0 sleeps in a step
MODES = [
    ("one process, whole batches", "process", "-", "none", "0"),
    ("dist_sync", "dist_sync", "-", "none", "0"),
    ("dist_async, max_staleness=4", "dist_async", "4", "none", "0"),
    ("dist_hogwild", "dist_hogwild", "-", "none", "0"),
    ("dist_async, worker 0 late", "dist_async", "-", "none", "0.03"),
    ("the same, staleness_lr=inverse", "dist_async", "-", "inverse", "0.03"),
    ("dist_sync, a random worker late", "dist_sync", "-", "none", "0.03r"),
    ("dist_async, max_staleness=4, same", "dist_async", "4", "none", "0.03r"),
]


def run(kind, bound, factor, seed, batches, slow):
    launcher = [] if kind == "process" else ["-m", "pydist.run", "--nproc-per-node", "4"]
    call = [sys.executable, *launcher, PROGRAM, kind, bound, factor, str(seed), str(batches), slow]
    done = subprocess.run(call, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError(f"{' '.join(call)}\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout[done.stdout.index("{") :])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default=5, type=int)
    parser.add_argument("--batches", default=937, type=int, help="of 32 rows, on each worker; 937: two epochs")
    args = parser.parse_args()
    print(machine())
    for name, kind, bound, factor, slow in MODES:
        batches = args.batches // 3 if slow != "0" else args.batches
        found = [run(kind, bound, factor, seed, batches, slow) for seed in range(args.seeds)]
        accuracy = [100 * row["accuracy"] for row in found]
        print(f"{name:33} {batches} batches: {statistics.mean(accuracy):.2f} % (from {min(accuracy):.2f} to {max(accuracy):.2f}), "
              f"{statistics.median(row['seconds'] for row in found):.1f} s, the most stale push by {max(row['most'] for row in found)}",
              flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
