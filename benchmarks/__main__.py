"""`python -m benchmarks [--rounds N] [case ...]`: all cases, or those whose names begin so."""

import argparse
import shutil
import sys

from benchmarks.harness import Case, program, run


def ranks(name, *args):
    """The commands that start two ranks of a program."""
    script = program(name, "pydist", *args)[1:]
    gloo = [script[0], "torch", *script[2:]]
    mpi = [script[0], "mpi4py", *script[2:]]
    peers = {
        "pydist": [sys.executable, "-m", "pydist.run", "--nproc-per-node", "2", *script],
        "torch gloo": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *gloo],
    }
    if shutil.which("mpirun"):
        start = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"]
        peers["OpenMPI (mpi4py)"] = [*start, sys.executable, *mpi]
    return peers


RANK_NEEDS = {"torch gloo": ("torch",), "OpenMPI (mpi4py)": ("mpi4py",)}
TORCH_STEPS = {f"torch {kind}": program("mlp_step", "torch", kind) for kind in ("fused", "foreach", "default")}
TORCH_CNN = {f"torch {kind}": program("cnn_step", "torch", kind) for kind in ("foreach", "default")}
TORCH_RESNET = {f"torch {kind}": program("resnet_step", "torch", kind, 32) for kind in ("channels_last", "default")}
TORCH_ONLY = {peer: ("torch",) for peer in ("torch", *TORCH_STEPS, *TORCH_RESNET)}

# Multiplications and additions of a step's products and convolutions: forward, gradients of weights, and gradients of
# inputs in all layers but the first.
MLP_FLOPS = 2 * 64 * (2 * 784 * 128 + 3 * 128 * 10)
CNN_FLOPS = 2 * 64 * (2 * 26 * 26 * 32 * 9 + 3 * (24 * 24 * 64 * 32 * 9 + 9216 * 128 + 128 * 10))
# Parameters of the blocks' products, times tokens, times six; the halves of the scores that causality leaves are left out.
GPT_FLOPS = {"nano": 6 * 12 * 4 * 128**2 * 12 * 64, "baby": 6 * 12 * 6 * 384**2 * 8 * 256, "124M": 6 * (12 * 12 + 65.5) * 768**2 * 4 * 64}
# What a rank of two has to move: its half of both inputs read and the sum written, the other half copied.
MIB_BYTES = 5 << 19


CASES = [
    Case(
        "mlp_step: 784-128-10, batch 64, Adam",
        "us",
        {"pydist": program("mlp_step", "pydist"), **TORCH_STEPS},
        TORCH_ONLY,
        ("flops", MLP_FLOPS),
    ),
    Case(
        "cnn: training step of the mnist example's network, batch 64, Adadelta",
        "ms",
        {"pydist": program("cnn_step", "pydist"), **TORCH_CNN},
        TORCH_ONLY,
        ("flops", CNN_FLOPS),
    ),
    Case(
        "resnet18: training step on 32 x 32 images, batch 32, SGD with momentum",
        "ms",
        {"pydist": program("resnet_step", "pydist", "default", 32), **TORCH_RESNET},
        TORCH_ONLY,
    ),
    *(
        Case(
            f"gpt-{size}: training step, AdamW",
            "ms",
            {
                "pydist": program("gpt_step", "pydist", size),
                **{f"torch {kind}": program("gpt_step", "torch", size, kind) for kind in ("fused", "default")},
            },
            TORCH_ONLY,
            ("flops", int(flops)),
        )
        for size, flops in GPT_FLOPS.items()
    ),
    Case("op_call: x.add(y) of 4 numbers", "ns", {p: program("op_call", p) for p in ("pydist", "torch")}, TORCH_ONLY),
    Case(
        "import",
        "ms",
        {name: program("import_time", name) for name in ("pydist", "numpy", "torch")},
        {"numpy": ("numpy",), "torch": ("torch",)},
    ),
    Case("launch: two ranks, command to first all_reduce", "s", ranks("launch"), RANK_NEEDS),
    Case("all_reduce: 4 KiB, two ranks", "us", ranks("all_reduce", 1024, 2000), RANK_NEEDS),
    Case("all_reduce: 1 MiB, two ranks", "us", ranks("all_reduce", 262144, 200), RANK_NEEDS, ("bytes", MIB_BYTES)),
]


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("cases", nargs="*", metavar="case", help=", ".join(case.name for case in CASES))
    args = parser.parse_args()
    for case in CASES:
        if not args.cases or any(case.name.startswith(name) for name in args.cases):
            run(case, args.rounds)


if __name__ == "__main__":
    main()
