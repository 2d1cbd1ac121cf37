"""What pydist.doctor reports about this host's GPUs: driver, devices, NCCL and how the GPUs reach each other."""

import subprocess
import sys
from collections import Counter
from shutil import which

from pydist import _C
from pydist._nvidia import NCCL_WHEEL, nccl_version_text

_PROBE = "from pydist import _C, distributed; distributed.is_nccl_available(); _C.cuda_current(); _C.nccl_probe()"


def driver(path="/proc/driver/nvidia/version"):
    """The driver's version, or None."""
    try:
        with open(path) as file:
            words = file.readline().split()
    except OSError:
        return None
    return next((word for word in words if word.count(".") >= 1 and word[0].isdigit()), "of unknown version")


def pairs(table):
    r"""{(i, j): word} for GPUs i < j, from a matrix that `nvidia-smi topo` prints, whose first line names the columns.

    >>> pairs("\tGPU0\tGPU1\tNIC0\nGPU0\t X \tNV18\tSYS\nGPU1\tNV18\t X \tSYS\n")
    {(0, 1): 'NV18'}
    """
    rows = [[cell.strip() for cell in line.split("\t")] for line in table.splitlines()]
    gpus = [row for row in rows if row[0].startswith("GPU") and row[0][3:].isdigit()]
    return {
        (i, j): row[1 + j]
        for i, row in enumerate(gpus)
        for j in range(i + 1, len(gpus))
        if len(row) > 1 + j and row[1 + j]
    }


def _topology(*arguments):
    try:
        done = subprocess.run(["nvidia-smi", "topo", *arguments], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return pairs(done.stdout)


def _names(many, most=3):
    listed = [f"{i} and {j}" for i, j in many]
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} pairs more" if len(listed) > most else "")


def reach_findings(links, reads):
    """Findings from nvidia-smi's matrices of links and of access to each other's memory (P2P)."""
    if links:
        kinds = ", ".join(f"{count} by {kind}" for kind, count in Counter(links.values()).most_common())
        yield "ok", "GPU links", f"pairs of GPUs: {kinds} (NV: NVLink, PIX to SYS: PCIe, the farther the slower)"
    without = {pair: word for pair, word in reads.items() if word != "OK"}
    if without:
        words = "/".join(sorted(set(without.values())))
        text = f"GPUs {_names(without)} cannot read each other's memory ({words}): NCCL copies through host memory"
        yield "warning", "GPU links", text


def _probe():
    """Why a communicator of one rank cannot be made, tried in another process; None if it can."""
    try:
        done = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        return "it hangs"
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no word"])[-1]


def findings():
    """(severity, check, text) of each finding."""
    found, count = driver(), _C.cuda_count()
    yield "ok", "GPU driver", f"NVIDIA {found}" if found else "no NVIDIA driver: pydist computes on the CPU"
    if found and not count:
        yield "warning", "GPUs", f"there is a driver, but pydist can use no GPU: {_C.cuda_why()}"
    if not count:
        return
    names = Counter(_C.cuda_properties(i)[0] for i in range(count))
    yield "ok", "GPUs", ", ".join(f"{number} x {name}" for name, number in names.items()) + f" ({_C.cuda_built()})"
    version = _C.nccl_version()
    if not version:
        text = "no NCCL: ranks cannot communicate between GPUs" if count > 1 else "no NCCL"
        yield "warning" if count > 1 else "ok", "NCCL", f"{text} (pip install {NCCL_WHEEL})"
        return
    where, wrong = f"NCCL {nccl_version_text(version)} ({_C.nccl_where()})", _probe()
    yield "problem" if wrong else "ok", "NCCL", f"{where} cannot make a communicator: {wrong}" if wrong else where
    if count > 1 and which("nvidia-smi"):
        yield from reach_findings(_topology("-m"), _topology("-p2p", "r"))
