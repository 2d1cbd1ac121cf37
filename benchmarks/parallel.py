"""`python -m benchmarks.parallel {context,dtensor} [options]`: forms of parallel training beside one process.

context: causal attention of a sequence that context_parallel spreads over ranks of one thread each, forward and backward,
beside one process with as many threads, in turns: seconds, the median of the rounds' ratios (one process over the ranks:
more is better), and how far the ranks' seconds in the kernels lie apart. Then the memory of a model of `--layers` blocks:
what forward keeps on a rank, over its share of what one process keeps; and the highest level during forward and backward,
over its share of that in one process and keys and values of a layer. PyTorch's context parallel has no kernel for CPUs, so there is none beside it.

dtensor: what DTensors cost a call of add (1,024 elements), of linear, of linear with its backward, and a redistribution
from Replicate to Shard, on one rank: microseconds more than on plain tensors, beside PyTorch's, in turns.
"""

import argparse
import json
import statistics
import subprocess
import sys

from benchmarks.harness import PROGRAMS
from benchmarks.report import machine
from benchmarks.rpc import Ranks, free_port

PROGRAM = "parallel_rank.py"
METHODS = ["allgather", "alltoall"]
MIB = 1 << 20
LEAST = 0.9  # of one process' seconds over those of 2 ranks
MOST = {"busy": 1.05, "memory": 1.05}  # the slowest rank over the fastest, and memory over what is expected


def peer(world, threads=1):
    ranks = Ranks("pydist", world, PROGRAM, OMP_NUM_THREADS=str(threads))
    try:
        ranks.ask_all("init", free_port(), threads, numbered=True)
    except BaseException:
        ranks.close()
        raise
    return ranks


def attention_in_turns(world, args):
    """For one process and for each method: of each round the median seconds of a step, and the ranks' in the kernels."""
    peers, found = {}, []
    try:
        peers = {"one process": peer(1, world), "ranks": peer(world)}
        forms = [("one process", METHODS[0]), *(("ranks", method) for method in METHODS)]
        for _ in range(args.rounds + 1):
            each = {}
            for name, method in forms:
                steps = peers[name].ask_all("attention", args.heads, args.width, args.length, method, args.steps)
                seconds = statistics.median(max(s for s, _ in step) for step in zip(*steps, strict=True))
                busy = [statistics.median(b for _, b in of_rank) for of_rank in steps]
                each[method if name == "ranks" else name] = seconds, max(busy) / min(busy)
            found.append(each)
    finally:
        for ranks in peers.values():
            ranks.close()
    return found[1:]


def context(args):
    failed = False
    for world in args.ranks:
        rounds = attention_in_turns(world, args)
        one = statistics.median(r["one process"][0] for r in rounds)
        print(f"causal attention, {args.heads} heads of {args.width}, {args.length} rows, {world} ranks of 1 thread")
        print(f"  {'one process':12} {one * 1e3:8.1f} ms with {world} threads")
        for method in METHODS:
            seconds = statistics.median(r[method][0] for r in rounds)
            ratio = statistics.median(r["one process"][0] / r[method][0] for r in rounds)
            busy = statistics.median(r[method][1] for r in rounds)
            failed |= world == 2 and (ratio < LEAST or busy > MOST["busy"])
            print(f"  {method:12} {seconds * 1e3:8.1f} ms, {ratio:.2f} x, the ranks' kernels within {busy - 1:.1%}")
    return 1 if memory_of_context(args) or failed else 0


def memory_of_context(args):
    """Whether a rank has more than expected: its share, and while it computes keys and values of a layer."""
    sizes = (args.layers, args.heads, args.heads * args.width, args.rows)
    keys, failed, one = 2 * args.rows * args.heads * args.width * 4, False, None
    for world in (1, *args.worlds):
        ranks = peer(world)
        try:
            for method in METHODS if world > 1 else METHODS[:1]:
                seen = ranks.ask_all("activations", *sizes, method)
                kept, highest = (max(column) for column in zip(*seen, strict=True))
                one = one or (kept, highest)
                ratios = kept / (one[0] / world), highest / (one[1] / world + keys * (world > 1))
                failed |= max(ratios) > MOST["memory"]
                print(f"{args.layers} blocks, {args.rows} rows, {world} ranks, {method}: forward keeps {kept / MIB:.1f} MiB, "
                      f"{ratios[0]:.3f} of 1/{world}; highest {highest / MIB:.1f} MiB, {ratios[1]:.3f} of 1/{world} and K, V")  # fmt: skip
        finally:
            ranks.close()
    return failed


MORE = {"add": 1.0, "linear": 1.5, "redistribute R to S": 2.0}  # microseconds that DTensors may cost a call
TIMES = 30  # as much PyTorch's cost at least


def dtensor(args):
    rounds = {"pydist": [], "torch": []}
    for _ in range(args.rounds):
        for lib, calls in (("pydist", 20000), ("torch", 1000)):
            command = [sys.executable, str(PROGRAMS / "dtensor_call.py"), lib, str(calls), str(free_port())]
            done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
            rounds[lib].append(json.loads(done.stdout))
    failed = False
    for name in rounds["pydist"][0]:
        plain, ours = (statistics.median(r[name][k] for r in rounds["pydist"]) for k in (0, 1))
        cost = statistics.median(r[name][1] - r[name][0] for r in rounds["pydist"])
        theirs = statistics.median(r[name][1] - r[name][0] for r in rounds["torch"])
        failed |= name in MORE and (cost > MORE[name] or theirs < TIMES * cost)
        print(f"  {name:22} {plain:6.2f} us plain, {ours:6.2f} us on DTensors: {cost:5.2f} us more; PyTorch's cost {theirs:7.1f} us, "
              f"{theirs / max(cost, 1e-3):.0f} x")  # fmt: skip
    return int(failed)


PARTS = {"context": context, "dtensor": dtensor}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=list(PARTS))
    parser.add_argument("--ranks", default="2", type=lambda text: [int(n) for n in text.split(",")])
    parser.add_argument("--rounds", default=5, type=int)
    parser.add_argument("--steps", default=3, type=int)
    of_context = parser.add_argument_group("context")
    of_context.add_argument("--heads", default=4, type=int)
    of_context.add_argument("--width", default=64, type=int, help="of a head")
    of_context.add_argument("--length", default=8192, type=int, help="rows of the attention")
    of_context.add_argument("--layers", default=4, type=int, help="of the model whose memory is measured")
    of_context.add_argument("--rows", default=4096, type=int, help="rows of that model")
    of_context.add_argument("--worlds", default="2,4", type=lambda text: [int(n) for n in text.split(",")],
                            help="ranks of that model")  # fmt: skip
    args = parser.parse_args()
    print(machine())
    return PARTS[args.what](args)


if __name__ == "__main__":
    raise SystemExit(main())
