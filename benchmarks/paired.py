"""Peers in processes of their own, measured in turns, and only while the machine is theirs.

A repeat times each peer once. Before and after it the probe runs: the throughput of two threads that hash over that of
one. Where that is under 1.8 somebody else was computing, and the repeat does not count. Where too few do, there are no
figures: MachineBusy.
"""

import hashlib
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path

HERE = Path(__file__).parent
FRAMEWORKS = ("pydist", "torch", "torch.compile", "jax", "tensorflow")
SECONDS = 0.4  # of a peer in a repeat, or one step


class MachineBusy(Exception):
    """Too many repeats were disturbed."""


def installed(framework):
    return find_spec(framework.partition(".")[0]) is not None


def probe(block=bytes(1 << 20), calls=24):
    """Two threads' throughput over one's, about 2 on two free cores, or less by what the threads did not get of their cores
    (others may leave two threads twice of the little that one gets). Hashing gives up Python's lock."""
    got = []

    def spin():
        begin, cpu = time.perf_counter(), time.thread_time()
        for _ in range(calls):
            hashlib.sha256(block).digest()
        got.append((time.thread_time() - cpu) / (time.perf_counter() - begin))

    def seconds(count):
        threads = [threading.Thread(target=spin) for _ in range(count)]
        begin = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.perf_counter() - begin

    return min(2 * seconds(1) / seconds(2), 2 * min(got))


class Peer:
    """The processes of one framework; ask() gives an order to all ranks and returns what they answer. `root` is the folder
    whose pydist they import, `name` what the results call them."""

    def __init__(self, framework, threads, ranks=1, root=HERE.parent, name=None):
        self.framework, self.threads, self.ranks = name or framework, threads, ranks
        self.folder = tempfile.TemporaryDirectory()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(os.path.join(self.folder.name, "socket"))
        self.listener.listen(ranks)
        self.listener.settimeout(0.2)
        worker = [str(HERE / "worker.py"), self.listener.getsockname(), framework, str(threads), str(ranks)]
        launch = []
        if ranks > 1:
            launcher = ["pydist.run"] if framework == "pydist" else ["torch.distributed.run", "--standalone"]
            launch = ["-m", *launcher, "--nproc-per-node", str(ranks)]
        path = os.pathsep.join(filter(None, (str(root), str(HERE.parent), os.environ.get("PYTHONPATH"))))
        env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": str(threads), "TF_CPP_MIN_LOG_LEVEL": "2",
               "TF_NUM_INTRAOP_THREADS": str(threads), "TF_NUM_INTEROP_THREADS": "1", "JAX_PLATFORMS": "cpu"}  # fmt: skip
        self.log = open(os.path.join(self.folder.name, "log"), "w+")  # close() closes it
        self.process = subprocess.Popen([sys.executable, *launch, *worker], env=env, stdout=self.log, stderr=self.log)
        self.connections = [self._accept() for _ in range(ranks)]

    def _accept(self):
        for _ in range(600):
            try:
                return Connection(self.listener.accept()[0].detach())
            except TimeoutError:
                if self.process.poll() is not None:
                    break
        raise RuntimeError(f"{self.framework} did not start\n{self._said()}")

    def _said(self):
        self.log.flush()
        return Path(self.log.name).read_text()[-4000:]

    def ask(self, *order):
        """The answers, one for each rank."""
        for connection in self.connections:
            connection.send(order)
        answers = []
        for connection in self.connections:
            try:
                state, value = connection.recv()
            except (EOFError, ConnectionError):
                state, value = "failed", self._said()
            if state == "failed":
                raise RuntimeError(f"{self.framework}: {order}\n{value}")
            answers.append(value)
        return answers

    def time(self, calls):
        return max(self.ask("time", calls))

    def close(self):
        for connection in self.connections:
            connection.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.listener.close()
        self.log.close()
        self.folder.cleanup()


def calls_for(peer, seconds=SECONDS):
    """How many calls take about so long, after a warm-up."""
    calls = 1
    while (took := peer.time(calls) * calls) < seconds / 4 and calls < 1 << 20:
        calls = min(calls * 10, max(calls + 1, int(calls * seconds / max(took, 1e-7))))
    return max(1, int(calls * seconds / took))


def paired(peers, repeats, threshold=1.8, seconds=SECONDS):
    """({framework: seconds of a call, one for each repeat that counts}, how many did not count)."""
    calls = [calls_for(peer, seconds) for peer in peers]
    found, discarded = {peer.framework: [] for peer in peers}, 0
    before = probe()
    while len(found[peers[0].framework]) < repeats:
        times = [peer.time(n) for peer, n in zip(peers, calls)]
        after = probe()
        if min(before, after) >= threshold:
            for peer, took in zip(peers, times):
                found[peer.framework].append(took)
        else:
            discarded += 1
            if discarded > 2 * repeats + 3:
                raise MachineBusy(
                    f"machine busy: {discarded} repeats were disturbed (two threads reached {min(before, after):.2f} times one)"
                )
            time.sleep(0.2)
        before = after
    return found, discarded


def spread(values):
    """(median, distance of the quartiles)"""
    if len(values) < 2:
        return values[0], 0.0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return statistics.median(values), high - low
