"""The process of one peer, or of one of its ranks: does what the harness asks for, on cores of its own.

    worker.py ADDRESS FRAMEWORK THREADS RANKS

It connects to the harness's socket and answers orders, (method, *arguments), with ("done", value) or ("failed", text).
"""

import gc
import os
import sys
import time
import traceback
from importlib import import_module
from multiprocessing.connection import Client


def _status(name):
    """A line of /proc/self/status, in bytes."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(name))


class Peer:
    def __init__(self, framework, threads, ranks):
        self.framework, self.threads, self.ranks = framework, threads, ranks
        self.rank = int(os.environ.get("RANK", 0)) if ranks > 1 else 0
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, [cores[(self.rank * threads + i) % len(cores)] for i in range(threads)])
        self.lib = None
        if framework in ("pydist", "torch", "torch.compile"):
            self.lib = import_module(framework.partition(".")[0])
            self.lib.set_num_threads(threads)
            if framework == "pydist":
                self.lib._C.onednn_version()  # opened at first use; torch's is part of its import
        if ranks > 1:
            self.dist = import_module(f"{self.lib.__name__}.distributed")
            self.dist.init_process_group("gloo" if self.lib.__name__ == "torch" else None)

    def workload(self, name, dtype):
        """Makes it; what it holds from then on counts as its memory."""
        if self.framework == "jax":
            from benchmarks.workloads.jax_form import Training

            self.subject = Training(name)
        elif self.framework == "tensorflow":
            from benchmarks.workloads.keras_form import Training

            self.subject = Training(name)
        else:
            from benchmarks.workloads.training import Training

            self.subject = Training(self.lib, name, dtype, self.framework == "torch.compile", self.ranks, self.rank)
        gc.collect()
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # the peak counts from here
        self.level = _status("VmRSS")

    def op(self, name, size, backward):
        """Makes it; the bytes that a call moves, or None where it has no such gradient."""
        from benchmarks.workloads.ops import Op

        self.subject = Op(self.lib, name, size, backward)
        return self.subject.bytes if self.subject.step else None

    def after(self, steps):
        """After so many steps: the parameters' hash, and the peak of resident memory over the level after import and
        construction, in bytes."""
        for _ in range(steps):
            self.subject.step()
        peak = max(_status("VmHWM") - self.level, 0)  # before the hash, which imports NumPy
        return self.subject.hash(), peak

    def flops(self):
        return self.subject.flops()

    def time(self, calls):
        step = self.subject.step
        begin = time.perf_counter()
        for _ in range(calls):
            step()
        return (time.perf_counter() - begin) / calls

    def limit(self, kind, dtype):
        """The best rate of this library: FLOP/s of a product of 2048 x 2048, bytes/s of y.copy_(x) past the cache."""
        if kind == "flops":
            a, b = (self.lib.randn(2048, 2048).to(getattr(self.lib, dtype)) for _ in range(2))
            self.subject, amount = (
                type("Product", (), {"step": staticmethod(lambda: self.lib.matmul(a, b))}),
                2 * 2048**3,
            )
        else:
            x, y = self.lib.ones(1 << 26), self.lib.zeros(1 << 26)
            self.subject, amount = type("Copy", (), {"step": staticmethod(lambda: y.copy_(x))}), 2 << 28
        return amount / min(self.time(1) for _ in range(8))


def main():
    address, framework, threads, ranks = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    connection = Client(address, "AF_UNIX")
    peer = None
    while True:
        try:
            order = connection.recv()
        except EOFError:
            break
        try:
            peer = peer or Peer(framework, threads, ranks)
            connection.send(("done", getattr(peer, order[0])(*order[1:])))
        except Exception:
            connection.send(("failed", traceback.format_exc()))
    if ranks > 1 and peer:
        peer.dist.destroy_process_group()


if __name__ == "__main__":
    main()
