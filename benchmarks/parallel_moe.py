"""`python -m benchmarks.parallel_moe [options]`: what expert parallel costs.

An uneven all_to_all beside one memcpy of as many bytes on each rank, in turns: tokens in symmetric memory, in other
memory, and into a new tensor. Then the ops that take tokens to experts and back beside the same from index_select and
bmm. A ratio is the time of the memcpy, or of the other ops, over ours: more is better. On a machine that others use, look
at the best rounds.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

import pydist
from benchmarks.harness import PROGRAMS
from benchmarks.report import machine

LEAST = 0.8  # of a memcpy's rate, for tokens in symmetric memory


def exchange(world, size, rounds):
    """{form: seconds of each round}"""
    command = [sys.executable, "-m", "pydist.run", "--nproc-per-node", str(world), str(PROGRAMS / "exchange.py")]
    done = subprocess.run([*command, str(size), str(rounds)], capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout[done.stdout.index("{") :])


def best(call, rounds):
    """The least seconds of a call."""
    least = float("inf")
    for _ in range(rounds):
        begin = time.perf_counter()
        call()
        least = min(least, time.perf_counter() - begin)
    return least


def routes(tokens, copies, width, experts, rounds):
    """{what: (seconds of our op, of others)}, forward and backward."""
    x = pydist.randn(tokens, width, requires_grad=True)
    weight = pydist.rand(tokens, copies, requires_grad=True)
    order = pydist.randint(0, experts, (tokens * copies,)).argsort(stable=True)
    place = pydist.empty_like(order).scatter_(0, order, pydist.arange(tokens * copies)).view(tokens, copies)
    rows = x.detach().index_select(0, order // copies).requires_grad_()
    by_rows, by_tokens = pydist.randn(tokens * copies, width), pydist.randn(tokens, width)

    def sums():
        found = rows.index_select(0, place.flatten()).view(tokens, copies, width)
        pydist.bmm(weight.unsqueeze(1), found).squeeze(1).backward(by_tokens)

    return {
        "to the experts": (
            best(lambda: pydist.dispatch_rows(x, place, tokens * copies).backward(by_rows), rounds),
            best(lambda: x.index_select(0, order // copies).backward(by_rows), rounds),
        ),
        "and back": (
            best(lambda: pydist.combine_rows(rows, place, weight).backward(by_tokens), rounds),
            best(sums, rounds),
        ),
    }


def moe(args):
    """Prints both tables; 1 if tokens in symmetric memory move too slowly."""
    failed = False
    for world in args.ranks:
        seconds = exchange(world, args.bytes, args.rounds)
        print(f"uneven all_to_all of {args.bytes / 2**20:.0f} MiB a rank, {world} ranks, {args.rounds} rounds")
        for form, each in seconds.items():
            ratio = statistics.median(a / b for a, b in zip(seconds["memcpy"], each, strict=True))
            least = min(seconds["memcpy"]) / min(each)
            failed |= form == "symmetric" and world == 2 and max(ratio, least) < LEAST
            print(f"  {form:12} {statistics.median(each) * 1e3:8.2f} ms, best {min(each) * 1e3:.2f}; "
                  f"{ratio:.2f} x a memcpy's rate, best {least:.2f} x")  # fmt: skip
    print(
        f"{args.tokens} tokens of {args.width} floats to {args.copies} of {args.experts} experts, one process, with gradients"
    )
    for what, (ours, others) in routes(args.tokens, args.copies, args.width, args.experts, args.rounds).items():
        print(f"  {what:15} {ours * 1e3:7.2f} ms; index_select and bmm {others * 1e3:7.2f} ms: {others / ours:.1f} x")
    return 1 if failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2", type=lambda text: [int(n) for n in text.split(",")])
    parser.add_argument("--rounds", default=50, type=int)
    parser.add_argument("--bytes", default=16 << 20, type=int, help="that a rank gives")
    parser.add_argument("--tokens", default=4096, type=int)
    parser.add_argument("--copies", default=2, type=int, help="of a token")
    parser.add_argument("--width", default=1024, type=int, help="floats of a token")
    parser.add_argument("--experts", default=64, type=int)
    args = parser.parse_args()
    print(machine())
    return moe(args)


if __name__ == "__main__":
    raise SystemExit(main())
