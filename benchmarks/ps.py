"""`python -m benchmarks.ps [options]`: what the parameter server costs on one host.

Two workers push and pull one large value: the bytes that this takes over the time, beside triad and a copy in the same rounds;
many small values; steps of an MLP by Trainer beside DDP; PyTorch's all_reduce over gloo of the same bytes."""

import argparse
import json
import statistics
import subprocess
import sys

from benchmarks.harness import PROGRAMS
from benchmarks.report import machine

PROGRAM = str(PROGRAMS / "ps_rank.py")


def seconds(case, size, args):
    launcher = "torch.distributed.run" if case == "gloo" else "pydist.run"
    call = ["-m", launcher, "--nproc-per-node", str(args.ranks), PROGRAM, case, str(size), str(args.rounds)]
    done = subprocess.run([sys.executable, *call], capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError(f"{' '.join(call)}\n{done.stdout}{done.stderr}")
    line = next(line for line in done.stdout.splitlines() if "{" in line)
    return {name: (statistics.median(s), min(s)) for name, s in json.loads(line[line.index("{") :]).items()}


def memory(args):
    """Bytes that a worker's push and pull move, over the time; the rule of counting is the guide's."""
    n, w = args.elements << 20, args.ranks
    moved = {
        "triad": 12 * w,
        "copy": 8 * w,
        "push and pull": 8 * w + 4 * w + 4 + 8 * w,  # into the slots, their sum, out again
        "push, Adam": 8 * w + 4 * w + 24,
        "Adam, gradients in slots": 4 * w + 24,
        "hogwild push": 12 * w,
    }
    found = seconds("memory", n, args)
    triad = 12 * w * n / found["triad"][1]
    print(f"{args.elements} Mi float32 numbers, {w} workers")
    for name, (median, best) in found.items():
        rate = moved[name] * n / best
        print(
            f"  {name:25} {median * 1e3:8.1f} ms, best {best * 1e3:8.1f}: {rate / 1e9:6.1f} GB/s, {rate / triad:5.2f} of triad"
        )
    if args.torch:
        median, best = seconds("gloo", n, args)["gloo all_reduce"]
        ours = found["push and pull"]
        print(
            f"  torch, gloo all_reduce    {median * 1e3:8.1f} ms, best {best * 1e3:8.1f}: {best / ours[1]:.1f} x ours"
        )


def small(args):
    found = seconds("small", 1024, args)
    print("1000 values of 1024 float32 numbers, pushes (the rule adds)")
    for name, (median, best) in found.items():
        print(
            f"  {name:25} {median * 1e6:8.0f} us, best {best * 1e6:8.0f}: {found['copy'][1] / best:.2f} of the copy's rate"
        )


def step(args):
    for width in (256, 1024):
        found = seconds("step", width, args)
        ddp, ours = found["ddp"], found["trainer"]
        print(f"10 steps of an MLP of width {width}: DDP {ddp[0] * 1e3:.1f} ms, best {ddp[1] * 1e3:.1f}; Trainer {ours[0] * 1e3:.1f} ms, "
              f"best {ours[1] * 1e3:.1f}: {ours[0] / ddp[0]:.2f} x, best {ours[1] / ddp[1]:.2f} x")  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default=2, type=int)
    parser.add_argument("--elements", default=64, type=int, help="of the large value, in Mi")
    parser.add_argument("--rounds", default=7, type=int)
    parser.add_argument("--torch", action=argparse.BooleanOptionalAction, default=True)
    args = parser.parse_args()
    print(machine())
    memory(args)
    small(args)
    step(args)


if __name__ == "__main__":
    main()
