"""Jobs of the launcher, started from outside, and what is left of them."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pydist
from lib.control import all_good, finish, free_port

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(pydist.__file__)))
# How much slower tests run than alone in a usual build: beside others (pytest-xdist), or as FULL_SLOW says.
SLOW = float(os.environ.get("FULL_SLOW", os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1)))


def within(seconds):
    """A limit of time that a usual build keeps."""
    return seconds * SLOW


def command(*args):
    return [sys.executable, "-m", "pydist.run", *map(str, args)]


def environment(**more):
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "PYTHONUNBUFFERED", "RANK")}
    path = ROOT + os.pathsep + kept.get("PYTHONPATH", "")
    return {**kept, "PYTHONPATH": path, **more}


def start(*args, **more):
    # a test run in the background of a shell ignores SIGINT, and so would the launcher
    more = {
        "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, "text": True,
        "env": environment(), "preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), **more,
    }  # fmt: skip
    return subprocess.Popen(command(*args), **more)


def launch(*args, timeout=20, **more):
    """(exit code, stdout, stderr, seconds)."""
    begin = time.monotonic()
    with start(*args, **more) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return process.returncode, out, err, time.monotonic() - begin


# A process with PyTorch's gloo may abort at its exit, after all is said: a thread of it is not joined.
LEAVE = """
import os
sys.stdout.flush()
if "torch" in sys.modules:
    os._exit(0)
"""


def run_beside(program, world, runs):
    """What rank 0 of a job prints, as JSON; the ranks run the same text, which imports sys, and read `runs` from their
    input, as JSON."""
    where = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", program + LEAVE],
            env=environment(RANK=str(rank), LOCAL_RANK=str(rank), OMP_NUM_THREADS="1", **where),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    for process in ranks:
        process.stdin.write(json.dumps(runs))
        process.stdin.close()
        process.stdin = None
    ended = finish(ranks, within(120))
    all_good(ended)
    return json.loads(ended[0][1])


def shared_files():
    """The names in /dev/shm, without those of other programs (semaphores, Open MPI's vader) and of tests of files and
    snapshots, which come and go, and those of LLVM's OpenMP, which a killed process leaves behind."""
    others = ("sem.", "vader_segment", "psm_", "__KMP_REGISTERED_LIB_", "pydist-io-", "pydist-snapshots-")
    return sorted(name for name in os.listdir("/dev/shm") if not name.startswith(others))


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # gone before the open, or before the read
        return False


def all_end(pids, seconds):
    deadline = time.monotonic() + seconds
    while any(map(is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not any(map(is_alive, pids))


def own_lines(err):
    return [line for line in err.splitlines() if line.startswith("pydist.run:")]


def terminal(data):
    """The lines of a terminal that knows \\r, \\n, up and erase-to-end; without colours."""
    lines, row, column = [""], 0, 0
    for token in re.findall(r"\x1b\[[AK]|.", re.sub(r"\x1b\[[\d;]*m", "", data), flags=re.S):
        if token == "\x1b[K":
            lines[row] = lines[row][:column]
        elif token == "\x1b[A":
            row = max(0, row - 1)
        elif token == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        elif token == "\r":
            column = 0
        else:
            lines[row] = lines[row][:column].ljust(column) + token + lines[row][column + 1 :]
            column += 1
    return lines
