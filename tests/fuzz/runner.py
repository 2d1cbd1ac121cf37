"""Runs a fuzzer: cases that are functions of a seed, in child processes that may crash or hang.

    python tests/fuzz/graphs.py [--seconds 20] [--seed 0] [--jobs 1] [--case SEED]

A fuzzer is a file that ends in `runner.main(case)`, where `case(random)` does what the given random.Random draws and
catches the errors that it expects. A case fails where it raises, where its process dies, where a sanitizer reports,
or where it takes longer than HANG. The seed and the end of what the process wrote are printed, and a new process goes
on with the next seed. The last line counts cases and failures; the exit code is 1 if any failed.

--case runs one seed in this process (under gdb, say). Where that seed alone does not fail, --case FIRST:SEED runs all
from FIRST on, the seeds that one process had; a failure names them.
"""

import argparse
import faulthandler
import itertools
import os
import random
import resource
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import traceback

HANG = 20.0  # s that a case may take
START = 120.0  # s more until the first one of a process: its imports, under a sanitizer on a busy machine
CASES = 300  # of one process
SHOWN = 60  # lines of a failure
REPORT = ("ERROR: AddressSanitizer", "runtime error:", "WARNING: ThreadSanitizer")


def main(case):
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20.0, help="how long new cases begin")
    parser.add_argument("--seed", type=int, default=0, help="of the first case")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--case", metavar="[FIRST:]SEED", help="this one (from FIRST on), in this process")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        first, _, last = options.case.rpartition(":")
        for seed in range(int(first or last), int(last) + 1):
            case(random.Random(seed))
    elif options.worker:
        work(case, *map(int, options.worker.split(",")))
    else:
        sys.exit(1 if watch(options.seconds, options.seed, options.jobs) else 0)


def work(case, first, end, pipe):
    """Each case begins with its seed on the pipe, and a raised error follows it there as a line."""
    faulthandler.enable()
    for seed in range(first, end):
        os.write(pipe, b"%d\n" % seed)
        try:
            case(random.Random(seed))
        except Exception:
            traceback.print_exc()
            sys.stderr.flush()
            os.write(pipe, b"raised\n")
    os.write(pipe, b"done\n")
    os._exit(0)  # what a case left behind (threads, say) is no case of its own


class Worker:
    """A process with the seeds from `first` up to `end`."""

    def __init__(self, first, end):
        self.first, self.end, self.seed, self.begun = first, end, first, time.monotonic() + START
        self.verdict = None  # why it ends, where that is neither its last seed nor a death of its own
        self.pipe, theirs = os.pipe()
        self.log = tempfile.TemporaryFile()
        command = [sys.executable, sys.argv[0], "--worker", f"{first},{end},{theirs}"]
        self.process = subprocess.Popen(command, pass_fds=[theirs], stdout=self.log, stderr=self.log)
        os.close(theirs)

    def read(self):
        """The failures that the pipe tells, and whether it has ended."""
        data, failures = os.read(self.pipe, 1 << 16), []
        for word in data.split():
            if word == b"raised":
                failures.append(self.failure("raised"))
            elif word == b"done":
                self.verdict = "done"
            else:
                self.seed, self.begun = int(word), time.monotonic()
        return failures, not data

    def failure(self, what):
        size = os.fstat(self.log.fileno()).st_size
        lines = os.pread(self.log.fileno(), 1 << 18, max(0, size - (1 << 18))).decode(errors="replace").splitlines()
        report = next((n for n, line in enumerate(lines) if any(text in line for text in REPORT)), None)
        lines = lines[-SHOWN:] if report is None else lines[report : report + SHOWN]
        return f"--case {self.first}:{self.seed} {what}\n" + "\n".join("    " + line for line in lines)

    def stop(self):
        """The time is over: what is running is no failure."""
        self.verdict = "stopped"
        self.process.kill()

    def abort(self):
        """Ends a case that takes too long; faulthandler shows where all threads are."""
        self.verdict = f"took over {HANG:.0f} s"
        self.process.send_signal(signal.SIGABRT)
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def close(self):
        """The failures that its end tells."""
        code = self.process.wait()
        os.close(self.pipe)
        failed = []
        if self.verdict not in ("done", "stopped") or (self.verdict == "done" and code):
            failed = [self.failure(self.verdict if code < 0 and self.verdict else f"ended its process with {code}")]
        elif any(text in os.pread(self.log.fileno(), 1 << 24, 0).decode(errors="replace") for text in REPORT):
            failed = [self.failure("or one before it was followed by a report")]
        self.log.close()
        return failed


def watch(seconds, seed, jobs):
    """How many cases failed of those that processes could begin in this time."""
    end, begun, failed, running = time.monotonic() + seconds, 0, 0, set()
    ranges = ((first, first + CASES) for first in itertools.count(seed, CASES))
    selector = selectors.DefaultSelector()

    def start(first, last):
        worker = Worker(first, last)
        running.add(worker)
        selector.register(worker.pipe, selectors.EVENT_READ, worker)

    while running or time.monotonic() < end:
        while len(running) < jobs and time.monotonic() < end:
            start(*next(ranges))
        failures = []
        for key, _ in selector.select(0.5):
            worker = key.data
            found, ended = worker.read()
            failures += found
            if ended:
                selector.unregister(worker.pipe)
                running.remove(worker)
                failures += worker.close()
                begun += worker.seed - worker.first + 1
                # it died: a new one goes on behind the seed
                if worker.seed + 1 < worker.end and time.monotonic() < end:
                    start(worker.seed + 1, worker.end)
        for worker in running:
            if not worker.verdict and time.monotonic() - worker.begun > HANG:
                worker.abort()
            elif not worker.verdict and time.monotonic() > end:
                worker.stop()
        for text in failures:
            failed += 1
            print(text, flush=True)
    print(f"{begun} cases from seed {seed} on, {failed} failed", flush=True)
    return failed


# ---- for fuzzers that look at their process, and send bytes -----------------------------------------------------------


def descriptors():
    """How many this process has open."""
    return len(os.listdir("/proc/self/fd"))


def rss():
    """Bytes of this process's resident memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def noise(random, most=300):
    """Fewer than `most` random bytes."""
    return random.randbytes(random.randrange(most))
