"""`python -m benchmarks.shards`: what logical shards cost, by interleaved runs of whole processes of one thread a rank.

- As many ranks as shards (2), against plain DistributedDataParallel on the same rows; plain runs against themselves say
  how much such a comparison varies.
- One rank with 8 shards, against 8 micro-batches that accumulate in no_sync.
- One rank with 4 shards, against one pass over the rows of all four.
- The gate of Transaction.over, against distributed.shards, on 2 ranks.

Prints the ratio of medians over the rounds, and the band of the ratios. With --balance instead: the step of 2 ranks of which one
is three times as slow, with shares that follow the speeds and with each fixed share, and whether their bits are equal.
"""

import argparse
import statistics
import sys

from benchmarks.harness import measure, program
from benchmarks.workloads.four import MODELS


def command(model, how, shards, world):
    script = program("shard_step", model, how, shards)
    if world == 1:
        return script
    return [sys.executable, "-m", "pydist.run", "--nproc-per-node", str(world), *script[1:]]


CASES = {  # title: (world, shards, what, against)
    "2 shards on 2 ranks / plain ranks": (2, 2, "shards", "plain"),
    "plain ranks / plain ranks": (2, 2, "plain", "plain"),
    "8 shards on 1 rank / accumulation": (1, 8, "shards", "accumulate"),
    "4 shards on 1 rank / one pass": (1, 4, "shards", "whole"),
    "attempts / shards, 2 ranks": (2, 2, "transaction", "shards"),
}


def balance(rounds):
    """Rank 0's share, the median step, and the parameters' hash."""
    ways = "balance", 8, 10, 12, 16
    found = {way: [] for way in ways}
    seen = set()
    for _ in range(rounds):
        for way in ways:
            seconds, _, notes = measure(
                [sys.executable, "-m", "pydist.run", "--nproc-per-node", "2", *program("balance", way)[1:]]
            )
            found[way].append(seconds * 1e3)
            seen.add(notes[0].partition(",")[0])
            if way == "balance":
                print(f"  {notes[0]}")
    times = {way: statistics.median(values) for way, values in found.items()}
    best = min(times[way] for way in ways[1:])
    for way, ms in times.items():
        print(f"  {way!s:9} {ms:9.3f} ms  {ms / best:.3f} of the best fixed share")
    _, _, notes = measure(
        [sys.executable, "-m", "pydist.run", "--nproc-per-node", "2", *program("balance", "even")[1:]]
    )
    seen.add(notes[0].partition(",")[0])
    print(f"  {'equal bits' if len(seen) == 1 else 'bits that differ: ' + str(seen)}, without the sleep, too")


def main():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.shards", description=__doc__.split(": ", 1)[1].split(",")[0]
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--case", type=int, nargs="*", help="numbers of cases, from 0")
    parser.add_argument("--balance", action="store_true", help="shares that follow the speeds, against fixed ones")
    parser.add_argument("models", nargs="*", metavar="model", help=", ".join(MODELS))
    args = parser.parse_args()
    if args.balance:
        balance(args.rounds)
        return
    for number, (title, (world, shards, what, against)) in enumerate(CASES.items()):
        if args.case and number not in args.case:
            continue
        print(title)
        for model in args.models or MODELS:
            pairs = []
            for _ in range(args.rounds):
                ours, *_ = measure(command(model, what, shards, world))
                theirs, *_ = measure(command(model, against, shards, world))
                pairs.append((ours, theirs))
            ours, theirs = (statistics.median(column) * 1e3 for column in zip(*pairs, strict=True))
            ratios = sorted(a / b for a, b in pairs)
            print(f"  {model:9} {ours:9.3f} ms / {theirs:9.3f} ms = {ours / theirs:.3f}  ({ratios[0]:.3f} to {ratios[-1]:.3f})",
                  flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
