"""`python -m benchmarks.comm`: all_reduce against gloo and OpenMPI on one host, with the share of the memory's bandwidth;
with --all-to-all an uneven all_to_all against OpenMPI's Alltoallv.

Every peer runs all sizes in processes of its own, pinned to cores, and the peers take turns; a figure is the median over the
repeats. Ratios are the peer's time over pydist's. The limit is what two processes reach together in a triad past the
cache; an all_reduce in place reads and writes every rank's bytes at least once, so moves 2 W n bytes. What the check of
identities costs is measured by blocks of 1,000 calls with and without it, in turn in one process.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from benchmarks.harness import PROGRAMS, ROOT

SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20, 128 << 20)


def text(size):
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def commands(ranks, sizes, how):
    """how: "rewritten", "all_to_all" or None; programs/comm_sizes.py says what they are."""
    program = str(PROGRAMS / "comm_sizes.py")
    what = [",".join(map(str, sizes)), *([how] if how else [])]
    start = ["--nproc-per-node", str(ranks), program]
    peers = {
        "pydist": [sys.executable, "-m", "pydist.run", *start, "pydist", *what],
        "pydist symmetric": [sys.executable, "-m", "pydist.run", *start, "symmetric", *what],
    }
    if how == "all_to_all":
        del peers["pydist symmetric"]
    elif find_spec("torch"):  # gloo has no all_to_all
        peers["gloo"] = [sys.executable, "-m", "torch.distributed.run", "--standalone", *start, "torch", *what]
    if find_spec("mpi4py") and shutil.which("mpirun"):
        mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(ranks)]
        peers["OpenMPI"] = [*mpirun, sys.executable, program, "mpi4py", *what]
    return peers


def measured(command):
    path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=600)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    line = next(line for line in done.stdout.splitlines() if "{" in line)
    return json.loads(line[line.index("{") :])


def bandwidth():
    """GB/s of a triad in two processes, or None without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        return None
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "triad")
        done = subprocess.run([compiler, "-O3", PROGRAMS / "triad.c", "-o", program], capture_output=True)
        return None if done.returncode else float(subprocess.run([program], capture_output=True, check=True).stdout)


def run(ranks, sizes, repeats, how=None):
    peers = commands(ranks, sizes, how)
    samples, limits = {peer: [] for peer in peers}, []
    for _ in range(repeats):
        limits.append(bandwidth())
        for peer, command in peers.items():
            samples[peer].append(measured(command))
    limit = statistics.median(limits) if all(limits) else None
    what = {None: "all_reduce", "rewritten": "all_reduce of tensors just written", "all_to_all": "uneven all_to_all"}[
        how
    ]
    print(f"{what} on {ranks} ranks, {repeats} repeats" + (f"; triad {limit:.1f} GB/s" if limit else ""))
    for case in samples["pydist"][0]:
        dtype, size = case.split()
        seconds = {peer: statistics.median(s[case] for s in got) for peer, got in samples.items() if case in got[0]}
        print(f"  {dtype} {text(int(size))}")
        for peer, mine in seconds.items():
            ratios = [
                f"{mine / seconds[ours]:6.2f}x {ours}" for ours in seconds if ours.startswith("pydist") and ours != peer
            ]
            share = (
                f"{2 * ranks * int(size) / mine / 1e9 / limit:5.0%} of the limit" if limit else ""
            )  # of all_to_all, too
            print(f"    {peer:18} {mine * 1e6:12.1f} us  {share}  {'  '.join(ratios)}")
    sys.stdout.flush()


def identity_checks(ranks):
    command = [sys.executable, "-m", "pydist.run", "--nproc-per-node", str(ranks), str(PROGRAMS / "comm_check.py")]
    print(f"identity checks on {ranks} ranks, blocks of 1,000 calls in turn")
    for size, times in measured(command).items():
        on, off = times["on"] * 1e6, times["off"] * 1e6
        print(f"  {text(int(size)):8} on {on:8.3f} us, off {off:8.3f} us: {on - off:+.3f} us, {on / off - 1:+.2%}")
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks.comm", description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="BYTES")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rewritten", action="store_true", help="each rank writes its tensor before each call")
    parser.add_argument("--all-to-all", action="store_true", help="uneven all_to_all instead of all_reduce")
    args = parser.parse_args()
    how = "all_to_all" if args.all_to_all else "rewritten" if args.rewritten else None
    for ranks in args.ranks:
        run(ranks, args.sizes, args.repeats, how)
    if args.all_to_all:
        return
    identity_checks(min(args.ranks))


if __name__ == "__main__":
    main()
