"""`python -m benchmarks.parallel_pipeline [options]`: what a pipeline costs.

A GPT in two stages, by 1F1B, beside one process with as many threads as there are ranks, and beside PyTorch's same schedule
over gloo, in turns. The bound is m / (m + p - 1), since ranks wait at both ends. A ratio is the time of one process over that
of the pipeline: more is better. On a machine that others use, look at the best rounds.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

from benchmarks.harness import PROGRAMS
from benchmarks.report import machine

LEAST = 0.8  # of one process's rate
PROGRAM = str(PROGRAMS / "pipeline.py")


def seconds(library, schedule, args):
    """Of each step. schedule none: one process."""
    sizes = [args.layers, args.width, args.rows, args.length, args.microbatches, args.steps]
    call = [PROGRAM, library, schedule, *map(str, sizes)]
    launcher = {"torch": ["torch.distributed.run"], "pydist": ["pydist.run", "--fold", "off"]}[library]
    if schedule != "none":
        call = ["-m", *launcher, "--nproc-per-node", str(args.ranks), *call]
    environment = {**os.environ, "THREADS": str(args.ranks)}
    done = subprocess.run([sys.executable, *call], capture_output=True, text=True, timeout=600, env=environment)
    if done.returncode:
        raise RuntimeError(f"{' '.join(call)}\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout[done.stdout.rindex("[") :])


def pipeline(args):
    """Prints the table; 1 if the pipeline is too slow beside one process."""
    libraries, found = ["pydist"] + ["torch"] * args.torch, {}
    for _ in range(args.rounds):
        for library in libraries:
            for schedule in ("none", args.schedule):
                found.setdefault((library, schedule), []).extend(seconds(library, schedule, args))
    bound = args.microbatches / (args.microbatches + args.ranks - 1)
    print(f"GPT of {args.layers} layers of {args.width}, {args.rows} x {args.length} tokens, {args.microbatches} microbatches, "
          f"{args.ranks} stages, {args.schedule}; the bound is {bound:.2f} x")  # fmt: skip
    ratios = {}
    for library in libraries:
        one, staged = found[library, "none"], found[library, args.schedule]
        ratios[library] = max(statistics.median(one) / statistics.median(staged), min(one) / min(staged))
        print(f"  {library:7} one process {statistics.median(one):.3f} s, best {min(one):.3f}; pipeline "
              f"{statistics.median(staged):.3f} s, best {min(staged):.3f}: {statistics.median(one) / statistics.median(staged):.2f} x, "
              f"best {min(one) / min(staged):.2f} x")  # fmt: skip
    return 0 if ratios["pydist"] >= LEAST else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default=2, type=int)
    parser.add_argument("--schedule", default="1F1B", help="one with a stage on each rank: 1F1B or GPipe")
    parser.add_argument("--microbatches", default=8, type=int)
    parser.add_argument("--layers", default=12, type=int)
    parser.add_argument("--width", default=384, type=int)
    parser.add_argument("--rows", default=16, type=int, help="of a batch")
    parser.add_argument("--length", default=128, type=int, help="tokens of a row")
    parser.add_argument("--steps", default=5, type=int)
    parser.add_argument("--rounds", default=3, type=int)
    parser.add_argument("--torch", action=argparse.BooleanOptionalAction, default=True)
    args = parser.parse_args()
    print(machine())
    return pipeline(args)


if __name__ == "__main__":
    raise SystemExit(main())
