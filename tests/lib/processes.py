"""Jobs of the launcher, started from outside, and what is left of them."""

import os
import re
import signal
import subprocess
import sys
import time

import pydist

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(pydist.__file__)))
SLOW = float(os.environ.get("FULL_SLOW", 1))  # how much slower this build is than a usual one


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


def shared_files():
    """The names in /dev/shm, without those of other programs (semaphores, Open MPI's vader), which come and go, and
    those of LLVM's OpenMP, which a killed process leaves behind."""
    others = ("sem.", "vader_segment", "psm_", "__KMP_REGISTERED_LIB_")
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
