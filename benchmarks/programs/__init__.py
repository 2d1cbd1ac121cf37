"""Programs that measure themselves and print seconds as their last line, and the cases that compare them."""

import shutil
import sys

from benchmarks.harness import Case, program


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
# What a rank of two has to move: its half of both inputs read and the sum written, the other half copied.
MIB_BYTES = 5 << 19

CASES = [
    Case(
        "op_call: x.add(y) of 4 numbers",
        "ns",
        {p: program("op_call", p) for p in ("pydist", "torch")},
        {"torch": ("torch",)},
    ),
    *(
        Case(
            f"arrays: {call} of {size} numbers",
            unit,
            {p: program("arrays", p, call.partition("(")[0].rpartition(".")[2], n) for p in ("pydist", "torch")},
            {"torch": ("torch",)},
        )
        for n, size in ((16, "16"), (1 << 20, "1 Mi"))
        for call, unit in (("from_numpy(a)", "ns"), ("t.numpy()", "ns"), ("tensor(a)", "us" if n > 16 else "ns"))
    ),
    Case(
        "norm: the norm of 124M gradients",
        "ms",
        {name: program("norm", name) for name in ("pydist", "reading", "torch")},
        {"torch": ("torch",)},
    ),
    Case(
        "beside: an mlp step beside a computing thread",
        "us",
        {p: program("beside", p) for p in ("pydist", "torch")},
        {"torch": ("torch",)},
    ),
    Case(
        "import",
        "ms",
        {name: program("import_time", name) for name in ("pydist", "numpy", "torch")},
        {"numpy": ("numpy",), "torch": ("torch",)},
    ),
    Case("launch: two ranks, command to first all_reduce", "s", ranks("launch"), RANK_NEEDS),
    Case(
        "death: a rank is killed, the other one raises PeerFailed",
        "ms",
        {
            "pydist": [
                sys.executable,
                "-m",
                "pydist.run",
                "--nproc-per-node=2",
                "--on-failure=keep",
                program("death")[1],
            ]
        },
    ),
    Case("all_reduce: 4 KiB, two ranks", "us", ranks("all_reduce", 1024, 2000), RANK_NEEDS),
    Case("all_reduce: 1 MiB, two ranks", "us", ranks("all_reduce", 262144, 200), RANK_NEEDS, ("bytes", MIB_BYTES)),
]
