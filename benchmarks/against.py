"""This checkout next to an earlier commit of it: `python -m benchmarks.against REVISION [case ...]`.

The commit is built in a folder of its own (kept in build/against, so that the next run has it). Cases are workloads and the programs
op_call and all_reduce, by the beginnings of their names. In each repeat three peers run in turn: now, before, and before
once more. The ratio now/before is slower where its median lies above the upper quartile of before/before: the band that
the machine's own noise has in the same run. Exit status 1 if a case is slower.

--instructions counts the instructions of a step in one thread instead (valgrind, kernels for AVX2): the same in every
run, whatever else the machine does. More than 1% above is slower.
"""

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.harness import measure, program
from benchmarks.paired import MachineBusy, Peer, paired
from benchmarks.programs import CASES
from benchmarks.workloads import WORKLOADS

TOP = Path(__file__).resolve().parents[1]
NOW, BEFORE, AGAIN = "now", "before", "before again"
COUNTED = {"op_call": 2000, "mlp": 20, "cnn": 1, "gpt-nano": 1}  # steps that are counted, after as many
ALLOWED = 1.01  # instructions


def tree(revision):
    """The folder with the commit's package, built."""
    commit = subprocess.run(["git", "-C", TOP, "rev-parse", revision + "^{commit}"], capture_output=True, text=True)
    if commit.returncode:
        sys.exit(f"benchmarks.against: {revision} is no commit of {TOP}: {commit.stderr.strip()}")
    folder = TOP / "build" / "against" / commit.stdout.strip()[:12]
    if not list(folder.glob("pydist/_C*.so")):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        files = subprocess.run(["git", "-C", TOP, "archive", commit.stdout.strip(), "csrc", "pydist", "setup.py", "pyproject.toml", "README.md"],
                               capture_output=True, check=True)  # fmt: skip
        subprocess.run(["tar", "-x", "-C", folder], input=files.stdout, check=True)
        env = {**os.environ, "PYDIST_MPI": "0", "PYDIST_CUDA": "0"}
        subprocess.run([sys.executable, "setup.py", "-q", "build_ext", "--inplace"], cwd=folder, env=env, check=True)
    return folder


def workload(name, threads, roots, args):
    """{peer: seconds of a step in each repeat}"""
    peers = []
    try:
        for peer, root in roots.items():
            peers.append(Peer("pydist", threads, root=root, name=peer))
            peers[-1].ask("workload", name, args.dtype)
        return paired(peers, args.repeats, args.probe)[0]
    finally:
        for peer in peers:
            peer.close()


def programs(case, roots, args):
    """{peer: seconds that the program printed in each repeat}"""
    found = {peer: [] for peer in roots}
    for _ in range(args.repeats):
        for peer, root in roots.items():
            found[peer].append(measure(case.peers["pydist"], root)[0])
    return found


def report(name, found):
    """Prints the ratios of a case; True if it is slower."""

    def ratios(peer):
        return statistics.quantiles([a / b for a, b in zip(found[peer], found[BEFORE])], n=4, method="inclusive")

    now, same = ratios(NOW), ratios(AGAIN)
    slower = now[1] > max(same[2], 1.0)
    seconds = " ".join(f"{peer} {statistics.median(values) * 1e6:.4g} us," for peer, values in found.items())
    print(f"{name}: {seconds} now/before {now[1]:.3f} ({now[0]:.3f} to {now[2]:.3f}), "
          f"before/before {same[1]:.3f} ({same[0]:.3f} to {same[2]:.3f}){': SLOWER' if slower else ''}", flush=True)  # fmt: skip
    return slower


def counted(case, steps, root):
    """Instructions of a step: those of 2 * steps less those of steps."""
    env = {
        **os.environ,
        "PYTHONPATH": f"{root}{os.pathsep}{TOP}",
        "PYDIST_ISA": "avx2",
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
    }
    counts = []
    for n in (steps, 2 * steps):
        command = [
            "valgrind",
            "--tool=cachegrind",
            "--cache-sim=no",
            "--cachegrind-out-file=/dev/null",
            *program("steps", case, n),
        ]
        said = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stderr
        counts.append(int(re.search(r"I +refs: +([\d,]+)", said)[1].replace(",", "")))
    return (counts[1] - counts[0]) / steps


def instructions(name, folder):
    """Prints the counts of a case; True if there are more."""
    now, before = (counted(name, COUNTED[name], root) for root in (TOP, folder))
    slower = now > ALLOWED * before
    print(
        f"{name}: {now:,.0f} instructions, before {before:,.0f}: {now / before:.4f}{': MORE' if slower else ''}",
        flush=True,
    )
    return slower


def main():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.against", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("revision", help="the commit before")
    parser.add_argument("cases", nargs="*", metavar="case", help="default: mlp op_call gpt-nano all_reduce")
    parser.add_argument("--repeats", type=int, default=9, help="that count (9)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--probe", type=float, default=1.8, help="the least throughput of two threads over one (1.8); 0: measure anyway"
    )
    parser.add_argument("--instructions", action="store_true", help=f"count instructions: {', '.join(COUNTED)}")
    args = parser.parse_intermixed_args()
    if args.repeats < 2:
        parser.error("--repeats is at least 2")
    cases = args.cases or ["mlp", "op_call", "gpt-nano", "all_reduce"]
    folder = tree(args.revision)
    roots = {NOW: TOP, BEFORE: folder, AGAIN: folder}

    def chosen(names):
        return [n for n in names if any(n.startswith(case) for case in cases)]

    slower = []
    try:
        if args.instructions:
            slower = [name for name in chosen(COUNTED) if instructions(name, folder)]
        else:
            slower = [name for name in chosen(WORKLOADS) if report(name, workload(name, args.threads, roots, args))]
            some = [c for c in CASES if c.name.startswith(("op_call", "all_reduce")) and chosen([c.name])]
            slower += [
                c.name
                for c in some
                if report(c.name.partition(":")[0] + c.name.partition(":")[2], programs(c, roots, args))
            ]
    except MachineBusy as busy:
        sys.exit(str(busy))
    sys.exit(f"slower: {', '.join(slower)}" if slower else 0)


if __name__ == "__main__":
    main()
