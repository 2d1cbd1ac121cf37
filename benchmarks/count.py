"""What a training step gives to a GPU, counted without one: `python -m benchmarks --device cuda --count [case ...]`.

`python -m benchmarks.count CASE` runs steps of the case on the hollow emulator (tests/emulator/count.h), which computes nothing, and
prints the count of one as JSON. `run` prints it as a table: of each kind of kernel the launches, the bytes read and written, FLOPs, and
the milliseconds that a machine (machines/) needs for them; beside them what an earlier revision had (counted/).
"""

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks import cuda
from benchmarks.workloads import ON_CUDA

HERE = Path(__file__).resolve().parent
TOP = HERE.parent
WARM = 4  # the first steps make what is kept: plans of products and convolutions, the state of the optimizer


def emulator():
    """The emulator's library: PYDIST_CUDA_LIBRARY, or one that is built here, if the last one is older than its sources."""
    if given := os.environ.get("PYDIST_CUDA_LIBRARY"):
        return Path(given)
    made = TOP / "build" / "emulator.so"
    sources = [*(TOP / "csrc").rglob("*.*"), *(TOP / "tests/emulator").iterdir()]
    if not made.exists() or made.stat().st_mtime < max(source.stat().st_mtime for source in sources):
        made.parent.mkdir(exist_ok=True)
        subprocess.run([sys.executable, TOP / "tests/emulator/build.py", made], check=True)
    return made


class Counter:
    """Counts what the emulator is given in its context. kinds: {name: {column: number}}. expected: the launches that the
    formula for the kind's bytes is written for; touched: the bytes that a traced build saw (tests/emulator/trace.cpp)."""

    COLUMNS = ("calls", "launches", "expected", "read", "written", "flops", "touched read", "touched written")

    def __enter__(self):
        self._library = ctypes.CDLL(os.environ["PYDIST_CUDA_LIBRARY"])
        self._library.pd_count_stop.restype = ctypes.c_char_p
        self._library.pd_count_start()
        self.kinds = {}
        return self

    def __exit__(self, *error):
        for line in self._library.pd_count_stop().decode().splitlines():
            name, *numbers = line.split("\t")
            self.kinds[name] = dict(zip(self.COLUMNS, map(float, numbers)))


def counted(case):
    """{"kinds", "items", "unit", "flops" (of an item, for MFU), "memory" (GiB)} of a step in this process, on the emulator."""
    import pydist

    step, items, unit, flops = cuda.training("pydist", case)
    for _ in range(WARM):
        step().item()
    with Counter() as counter:
        step()
    return {"kinds": counter.kinds, "items": items, "unit": unit, "flops": flops,
            "memory": pydist.cuda.max_memory_allocated() / 2**30}  # fmt: skip


def count(case):
    """`counted` in a process of its own, on the hollow emulator."""
    library = str(emulator())
    settings = {
        "EMULATOR_HOLLOW": "1",
        "PYDIST_CUDA_LIBRARY": library,
        "PYDIST_CUBLASLT": library,
        "PYDIST_CUDNN": library,
    }
    command = [sys.executable, "-m", "benchmarks.count", case]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **settings}, cwd=TOP)
    if done.returncode:
        raise RuntimeError(f"{case}: {done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def rate_of(machine, name):
    """FLOP/s of a kind; None if the machine's file has no rate for it."""
    rates = machine["flops_per_second"]
    return rates[max(found, key=len)] if (found := [start for start in rates if name.startswith(start)]) else None


def milliseconds(machine, name, kind):
    """What the machine needs for a kind: for its bytes, or for its FLOPs, if that is longer and their rate is known."""
    rate = rate_of(machine, name)
    return 1e3 * max(
        (kind["read"] + kind["written"]) / machine["bytes_per_second"], kind["flops"] / rate if rate else 0
    )


def totals(machine, kinds):
    """{"launches", "bytes", "flops", "gpu", "host", "ms"}: the longer one of the GPU's and the host's milliseconds counts."""
    launches = sum(kind["launches"] for kind in kinds.values())
    gpu = sum(milliseconds(machine, name, kind) for name, kind in kinds.items())
    host = 1e3 * launches * machine["seconds_per_launch"]
    return {"launches": launches, "bytes": sum(kind["read"] + kind["written"] for kind in kinds.values()),
            "flops": sum(kind["flops"] for kind in kinds.values()), "gpu": gpu, "host": host, "ms": max(gpu, host)}  # fmt: skip


def problems(kinds):
    """Sentences about kinds whose bytes are not known, or are those of other launches than were made."""
    found = []
    for name, kind in kinds.items():
        if kind["launches"] != kind["expected"]:
            found.append(
                f"{name}: {kind['launches']:.0f} launches (its formula in tests/emulator/work.cpp is for {kind['expected']:.0f})"
            )
    return found


def lines(machine, kinds, before):
    """The table, the longest first. before: kinds of the earlier revision, or {}."""
    yield f"{'kind':38}{'launches':>9}{'GB':>9}{'TFLOP':>8}{'ms':>8}" + (
        f"   before:{'launches':>9}{'GB':>9}{'ms':>8}" if before else ""
    )
    cost = {name: milliseconds(machine, name, kind) for name, kind in {**before, **kinds}.items()}
    none = dict.fromkeys(Counter.COLUMNS, 0)
    for name in sorted(cost, key=lambda name: -cost[name]):
        now, then = kinds.get(name, none), before.get(name, none)
        line = f"{name:38}{now['launches']:9.0f}{(now['read'] + now['written']) / 1e9:9.2f}{now['flops'] / 1e12:8.2f}"
        line += f"{milliseconds(machine, name, now):8.2f}"
        if before:
            line += f"{then['launches']:19.0f}{(then['read'] + then['written']) / 1e9:9.2f}{milliseconds(machine, name, then):8.2f}"
        yield line


def on_gpu():
    """Whether there is a GPU that is not an emulated one."""
    import pydist

    return pydist.cuda.is_available() and not pydist._C.pretended_cuda() and pydist.cuda.get_device_name() != "emulated"


def report(case, found, machine):
    """Prints the table of a case, and its sums."""
    file = HERE / "counted" / f"{case}.json"
    before = json.loads(file.read_text()) if file.exists() else {}
    print(f"{case}, bfloat16 by autocast, a step; ms as predicted for {machine['name']}"
          + (f"; before: {before['revision']}" if before else ""))  # fmt: skip
    for line in lines(machine, found["kinds"], before.get("kinds", {})):
        print(line)
    now = totals(machine, found["kinds"])
    rate = found["items"] / now["ms"] * 1e3
    print(
        f"sum: {now['launches']:.0f} launches, {now['bytes'] / 1e9:.1f} GB, {now['flops'] / 1e12:.2f} TFLOP, memory {found['memory']:.1f} GiB"
    )
    print(f"predicted: GPU {now['gpu']:.1f} ms, host {now['host']:.1f} ms: {now['ms']:.1f} ms, {rate:.0f} {found['unit']}/s, "
          f"MFU {rate * found['flops'] / machine['peak_flops_per_second']:.1%}")  # fmt: skip
    if before:
        then = totals(machine, before["kinds"])
        print(f"now / before: launches {now['launches'] / then['launches']:.2f}, bytes {now['bytes'] / then['bytes']:.2f}, "
              f"memory {found['memory']:.1f} / {before['memory']:.1f} GiB, "
              f"predicted ms {now['ms']:.1f} / {then['ms']:.1f}")  # fmt: skip
    if unknown := [name for name, kind in found["kinds"].items() if kind["flops"] and not rate_of(machine, name)]:
        print(f"predicted by bytes alone, since {machine['name']} has no rate for their FLOPs: {', '.join(unknown)}")
    for problem in problems(found["kinds"]):
        print(f"not as counted: {problem}")
    if on_gpu():
        cuda.run([case], ["pydist"])


def run(cases, machine="h200"):
    """Prints the table of each case; whether all bytes are known."""
    machine = json.loads((HERE / "machines" / f"{machine}.json").read_text())
    good = True
    for case in [c for c in ON_CUDA if not cases or any(c.startswith(beginning) for beginning in cases)]:
        found = count(case)
        report(case, found, machine)
        good = good and not problems(found["kinds"])
    return good


if __name__ == "__main__":
    print(json.dumps(counted(sys.argv[1])))
