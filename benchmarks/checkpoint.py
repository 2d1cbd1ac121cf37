"""`python -m benchmarks.checkpoint`: saving and loading on two ranks, beside torch.distributed.checkpoint and dd.

The state is that of GPT-2 124M with AdamW, 1.49 GB in 444 tensors. Runs of whole processes, in turns. In a folder in memory
(--memory, /dev/shm) the disk does not decide; in one on a disk (--disk, the current folder) dd writes as many bytes past the
page cache with two processes at once, and its rate is the disk's.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from time import perf_counter

from benchmarks.harness import program


def ranks(framework, folder, rounds, megabytes):
    """What the program of this framework says on two ranks."""
    script = program("checkpoint_ranks", framework, folder, rounds, megabytes)[1:]
    launcher = ["-m", "pydist.run"] if framework == "pydist" else ["-m", "torch.distributed.run", "--standalone"]
    command = [sys.executable, *launcher, "--nproc-per-node", "2", *script]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    lines = [line[line.index("{") :] for line in done.stdout.splitlines() if '{"bytes"' in line]
    if done.returncode or not lines:
        raise SystemExit(f"{framework}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return json.loads(lines[0])


def steps(folder, world, saves, tokens):
    """Prints what a save costs the steps that run beside it."""
    script = program("checkpoint_steps", folder, saves, tokens)[1:]
    launcher = ["-m", "pydist.run", "--nproc-per-node", str(world)] if world > 1 else []
    done = subprocess.run([sys.executable, *launcher, *script], capture_output=True, text=True)
    lines = [line[line.index("{") :] for line in done.stdout.splitlines() if '{"step"' in line]
    if done.returncode or not lines:
        raise SystemExit(f"steps: exit code {done.returncode}\n{done.stderr[-2000:]}")
    found = json.loads(lines[0])
    step, extra, cpu = found["step"], statistics.median(found["extra"]), found["cpu"]
    print(
        f"  {world} rank{'s' * (world > 1)} of one thread: a step {step * 1e3:.0f} ms; a save ends after "
        f"{statistics.median(found['durable']) * 1e3:.0f} ms and costs the steps {extra * 1e3:.0f} ms in all "
        f"({extra / step:.0%} of one step); it takes {cpu * 1e3:.0f} ms of processor time alone, that / {os.cpu_count()} cores "
        f"is {cpu / os.cpu_count() * 1e3:.0f} ms, ratio {extra / (cpu / os.cpu_count()):.2f}"
    )


def dd(folder, nbytes):
    """Seconds in which two processes of dd write that many bytes to the disk, and read them again."""
    paths = [os.path.join(folder, f"dd-{i}") for i in range(2)]
    count = str(max(1, nbytes // 2 // (8 << 20)))
    seconds = []
    for way in (("if=/dev/zero", "of=", "oflag=direct", "conv=fsync"), ("of=/dev/null", "if=", "iflag=direct")):
        begin = perf_counter()
        running = [
            subprocess.Popen(
                ["dd", way[0], way[1] + path, "bs=8M", f"count={count}", *way[2:]], stderr=subprocess.DEVNULL
            )
            for path in paths
        ]
        codes = [process.wait() for process in running]
        if any(codes):
            return None
        seconds.append(perf_counter() - begin)
    for path in paths:
        os.unlink(path)
    return seconds


def compare(title, folder, args, with_dd):
    """Prints the medians of all rounds in this folder."""
    print(f"{title}: {folder}")
    found = {name: [] for name in (*args.frameworks, *(["dd"] if with_dd else []))}
    for _ in range(args.rounds):
        for name in args.frameworks:
            found[name].append(ranks(name, folder, 1, args.megabytes))
        if with_dd:
            found["dd"].append(dd(folder, found[args.frameworks[0]][0]["bytes"]))
    nbytes = found[args.frameworks[0]][0]["bytes"]

    def median(name, what):
        return statistics.median(run[what][0] for run in found[name])

    for what, text in (
        ("save", "save"),
        ("load", "load"),
        ("call", "async_save returns"),
        ("durable", "async_save ends"),
    ):
        line = [f"  {text:18}"]
        for name in args.frameworks:
            line.append(f"{name} {median(name, what) * 1e3:9.1f} ms ({nbytes / median(name, what) / 1e9:6.2f} GB/s)")
        if "torch" in args.frameworks:
            line.append(f"torch / pydist {median('torch', what) / median('pydist', what):.2f}")
        if with_dd and what in ("save", "load") and None not in found["dd"]:
            seconds = statistics.median(pair[what == "load"] for pair in found["dd"])
            line.append(f"dd {seconds * 1e3:.1f} ms, dd / pydist {seconds / median('pydist', what):.2f}")
        print("  ".join(line))
    for name in args.frameworks:
        print(f"  {name}: save and load took {found[name][0]['extra'] / 2**20:.0f} MiB more memory a rank")


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpoint", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=2000, help="the most that the state has")
    parser.add_argument("--frameworks", nargs="+", choices=("pydist", "torch"), default=["pydist", "torch"])
    parser.add_argument("--steps", type=int, metavar="SAVES", help="measure what saves cost the steps of a training")
    parser.add_argument("--tokens", type=int, default=128, help="of a step")
    parser.add_argument("--memory", default="/dev/shm", help="a folder in memory; '' leaves it out")
    parser.add_argument("--disk", default=".", help="a folder on a disk; '' leaves it out")
    args = parser.parse_args()
    for title, parent in (("in memory", args.memory), ("on the disk", args.disk)):
        if parent:
            folder = tempfile.mkdtemp(prefix="checkpoint-", dir=parent)
            try:
                if args.steps:
                    print(f"steps beside saves, {title}: {folder}")
                    for world in (1, 2):
                        steps(folder, world, args.steps, args.tokens)
                    continue
                compare(title, folder, args, with_dd=title == "on the disk")
            finally:
                shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
