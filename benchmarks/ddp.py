"""Two ranks of one thread against one process of two threads on the same global batch, by interleaved runs.

    python -m benchmarks.ddp [--rounds N] [--torch] [cnn | gpt] ...

Prints the median step of each, the median over the rounds of the throughput that two ranks reach, the exposed
communication of a step, and the CPU time, which says more where others use the machine: two ranks lose nothing where
each takes half of what the one process does. --torch: the same for PyTorch with gloo.
"""

import argparse
import statistics
import sys

from benchmarks.harness import measure, program

BATCHES = {"cnn": (64, 256), "gpt": (64, 256)}
LAUNCHER = {"pydist": ["pydist.run"], "torch": ["torch.distributed.run", "--standalone"]}
BACKEND = {"pydist": "native", "torch": "gloo"}


def compare(lib, model, batch, rounds):
    """Rounds of (seconds of two ranks, seconds of one process), and what the last runs had to say."""
    one = program("ddp_step", model, lib, 2, batch)
    script = program("ddp_step", model, lib, 1, batch, BACKEND[lib])[1:]
    two = [sys.executable, "-m", *LAUNCHER[lib], "--nproc-per-node", "2", *script]
    pairs = []
    for _ in range(rounds):
        (a, _, of_ranks), (b, _, of_one) = measure(two), measure(one)
        pairs.append((a, b))
    return pairs, [f"2 ranks: {note}" for note in of_ranks] + [f"1 process: {note}" for note in of_one]


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ddp", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--torch", action="store_true", help="PyTorch besides")
    parser.add_argument("models", nargs="*", metavar="model", help="cnn, gpt")
    args = parser.parse_args()
    for model in args.models or BATCHES:
        for batch in BATCHES[model]:
            for lib in ("pydist", "torch") if args.torch else ("pydist",):
                pairs, notes = compare(lib, model, batch, args.rounds)
                two, one = (statistics.median(column) * 1e3 for column in zip(*pairs))
                share = statistics.median(b / a for a, b in pairs)
                print(f"{model}, global batch {batch}, {lib}: 2 ranks x 1 thread {two:.2f} ms, "
                      f"1 process x 2 threads {one:.2f} ms: {share:.2f} of its throughput")  # fmt: skip
                print(*(f"    {note}" for note in notes), sep="\n", flush=True)


if __name__ == "__main__":
    main()
