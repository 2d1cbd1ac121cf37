"""pydist's speed, memory and bits next to its peers': `python -m benchmarks [options] [case ...]`; see benchmarks/README.md.

Cases are workloads (mlp, cnn, resnet18, gpt-nano, gpt-baby, gpt2-124M, bert-mini), `ops` (a table of single ops) and
programs (op_call, arrays, norm, beside, import, launch, death, all_reduce), by the beginnings of their names; default: the workloads and programs.
"""

import argparse
import os
import sys

from benchmarks import count, cuda, report
from benchmarks.harness import run
from benchmarks.paired import FRAMEWORKS, MachineBusy, Peer, installed, paired, spread
from benchmarks.programs import CASES
from benchmarks.workloads import WORKLOADS

ALIASES = {"mlp_step": "mlp"}
STEPS = 20  # before the hash


def can(framework, name, dtype, ranks):
    """Whether the framework has this case: see workloads/."""
    file = WORKLOADS[name][0]
    if not installed(framework):
        return False
    if framework == "jax":
        return file in ("mlp", "cnn", "gpt") and dtype == "float32" and ranks == 1
    if framework == "tensorflow":
        return file in ("mlp", "cnn") and dtype == "float32" and ranks == 1
    return framework != "torch.compile" or ranks == 1


def bits(name, dtype, threads, ranks, again):
    """{how it ran: hash of pydist's parameters after 20 steps}: in another process, and with one thread."""
    found = {}
    for label, cores in (("run again", threads), ("1 thread", 1)) if again else ():
        peer = Peer("pydist", cores, ranks)
        try:
            peer.ask("workload", name, dtype)
            found[label] = peer.ask("after", STEPS)[0][0]
        finally:
            peer.close()
    return found


def workload(name, dtype, threads, ranks, args, limits):
    """The results of all frameworks, pydist's first."""
    peers = []
    try:
        for framework in args.frameworks:
            if can(framework, name, dtype, ranks):
                peers.append(Peer(framework, threads, ranks))
                peers[-1].ask("workload", name, dtype)
        after = [peer.ask("after", STEPS) for peer in peers]
        hashes, peaks = [found[0][0] for found in after], [max(peak for _, peak in found) for found in after]
        flops = max(max(peer.ask("flops")) for peer in peers) * ranks
        seconds, discarded = paired(peers, args.repeats, args.probe)
    finally:
        for peer in peers:
            peer.close()
    others = bits(name, dtype, threads, ranks, args.bits)
    results, ours = [], spread(seconds[peers[0].framework])[0]
    for peer, peak, found in zip(peers, peaks, hashes):
        median, iqr = spread(seconds[peer.framework])
        results.append({
            "name": name, "dtype": dtype, "threads": threads, "ranks": ranks, "framework": peer.framework, "repeats": args.repeats,
            "discarded": discarded, "seconds": seconds[peer.framework], "median": median, "iqr": iqr, "ratio": median / ours,
            "flops": flops, "share": flops / median / limits[f"flops {dtype}"], "peak": peak,
            "hash": found, "hashes": {"first": hashes[0], **others}, "same": set(others.values()) <= {hashes[0]},
        })  # fmt: skip
    return results


def single_ops(args, limits):
    """Results of single ops in pydist and torch."""
    from benchmarks.workloads.ops import OPS, SIZES

    peers, results = [Peer(framework, args.threads) for framework in ("pydist", "torch")], []
    try:
        for name in OPS if "ops" in args.cases else [n for n in OPS if f"ops:{n}" in args.cases]:
            for size in SIZES:
                moved = [peer.ask("op", name, size, args.backward)[0] for peer in peers]
                if None in moved:
                    continue
                seconds, discarded = paired(peers, args.repeats, args.probe, seconds=0.02)
                (ours, iqr), (theirs, _) = (spread(seconds[peer.framework]) for peer in peers)
                rate = moved[0] / ours
                results.append({"name": name, "size": size, "backward": args.backward, "median": ours, "iqr": iqr, "peer": theirs, "ratio": theirs / ours,
                                "bytes": moved[0], "rate": rate, "share": rate / limits["bytes"], "discarded": discarded})  # fmt: skip
    finally:
        for peer in peers:
            peer.close()
    return results


def measure_limits(args):
    """{"bytes": bytes/s, "flops float32": FLOP/s, ...}: the best that pydist or torch reaches here."""
    limits = {}
    for framework in ("pydist", "torch"):
        if not installed(framework):
            continue
        peer = Peer(framework, args.threads)
        try:
            for name, order in [("bytes", ("bytes", "float32")), *((f"flops {d}", ("flops", d)) for d in args.dtypes)]:
                limits[name] = max(limits.get(name, 0), *peer.ask("limit", *order))
        finally:
            peer.close()
    print(f"limits on {args.threads} threads: {limits['bytes'] / 1e9:.1f} GB/s, "
          + ", ".join(f"{d} {limits[f'flops {d}'] / 1e9:.0f} GFLOP/s" for d in args.dtypes))  # fmt: skip
    return limits


def parse():
    def words(text):
        return text.split(",")

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", "--rounds", type=int, default=7, help="paired repeats that count (7)")
    parser.add_argument(
        "--frameworks",
        type=words,
        default=list(FRAMEWORKS),
        help=f"of {','.join(FRAMEWORKS)}; those that are installed",
    )
    parser.add_argument("--dtypes", type=words, default=["float32"], help="float32,bfloat16 (autocast)")
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="of a process; ranks share them (all cores)"
    )
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="cuda: gpt2-124M and resnet50 in bfloat16, next to torch's",
    )
    parser.add_argument(
        "--count",
        action="store_true",
        help="with --device cuda: count launches, bytes and FLOPs of a step of pydist on the emulator, and predict its time",
    )
    parser.add_argument(
        "--ranks",
        type=lambda text: [int(n) for n in text.split(",")],
        default=[1],
        help="1,2: with DistributedDataParallel",
    )
    parser.add_argument("--backward", action="store_true", help="ops with their gradients")
    parser.add_argument(
        "--no-bits", dest="bits", action="store_false", help="no other runs of pydist to compare the parameters' bits"
    )
    parser.add_argument(
        "--probe", type=float, default=1.8, help="the least throughput of two threads over one (1.8); 0: measure anyway"
    )
    parser.add_argument("--json", help="write the results here")
    parser.add_argument("--plot", help="draw them here (.png, .svg)")
    parser.add_argument("cases", nargs="*", metavar="case")
    args = parser.parse_args()
    args.cases = [ALIASES.get(case, case) for case in args.cases]
    args.frameworks = ["pydist", *(f for f in args.frameworks if f != "pydist")]
    if unknown := [f for f in args.frameworks if f not in FRAMEWORKS]:
        parser.error(f"--frameworks: {', '.join(unknown)} (expected of {', '.join(FRAMEWORKS)})")
    if args.count and args.device != "cuda":
        parser.error("--count is for --device cuda")
    if args.repeats < 1 or args.threads < 1:
        parser.error("--repeats and --threads are at least 1")
    if len(os.sched_getaffinity(0)) < 2:
        args.probe = 0  # nothing to compare
    return args


def main():
    args = parse()
    if args.count:
        sys.exit(not count.run(args.cases))
    if args.device == "cuda":
        sys.exit(not cuda.run(args.cases, args.frameworks))

    def chosen(name):
        return not args.cases or any(name.startswith(case) for case in args.cases)

    names, programs = [n for n in WORKLOADS if chosen(n)], [c for c in CASES if chosen(c.name)]
    ops = [case for case in args.cases if case == "ops" or case.startswith("ops:")]
    if not names and not programs and not ops:
        sys.exit(
            f"no such case (there are {', '.join(WORKLOADS)}, ops, {', '.join(c.name.partition(':')[0] for c in CASES)})"
        )
    results = []
    limits = measure_limits(args) if names or ops else {}
    try:
        for name in names:
            for dtype in args.dtypes:
                for ranks in args.ranks:
                    results.append(workload(name, dtype, max(1, args.threads // ranks), ranks, args, limits))
                    report.print_workload(results[-1])
        if ops:
            results.append(single_ops(args, limits))
            report.print_ops(results[-1], "torch")
    except MachineBusy as busy:
        sys.exit(str(busy))
    for case in programs:
        run(case, min(args.repeats, 3))
    flat = [r for group in results for r in group]
    if args.json:
        report.write(args.json, vars(args), limits, flat)
    if args.plot and (steps := [r for r in flat if "framework" in r]):
        report.plot(args.plot, steps)


if __name__ == "__main__":
    main()
