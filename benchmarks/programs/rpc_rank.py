"""A rank of a peer of benchmarks/rpc.py: rpc_rank.py LIBRARY DESCRIPTOR. LIBRARY is pydist or torch, and DESCRIPTOR a
connection to the harness. It does what the harness orders, (method, *arguments), and answers ("done", value) or
("failed", text). Rank 0 measures, and the others are called."""

import os
import sys
import threading
import time
import traceback
from importlib import import_module
from multiprocessing.connection import Connection

lib = import_module(sys.argv[1])
nn, optim, rpc = (import_module(f"{lib.__name__}.{part}") for part in ("nn", "optim", "distributed.rpc"))
stop = threading.Event()
spinning = threading.Event()


def echo(x):
    return x


def is_spinning():
    return spinning.is_set()


def stop_spinning():
    stop.set()


class Half(nn.Module):
    """A layer of the split network."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.layer = nn.Linear(inputs, outputs)

    def forward(self, x):
        return lib.relu(self.layer(x))

    def parameter_rrefs(self):
        return [rpc.RRef(parameter) for parameter in self.parameters()]


def timed(call, calls, warm=10):
    """Seconds of each call."""
    for _ in range(min(warm, calls)):
        call()
    seconds = []
    for _ in range(calls):
        begin = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begin)
    return seconds


class Rank:
    def init(self, rank, world, port):
        """The seconds that init_rpc takes."""
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        begin = time.perf_counter()
        rpc.init_rpc(f"worker{rank}", rank=rank, world_size=world)
        return time.perf_counter() - begin

    def shutdown(self):
        """The seconds that shutdown takes."""
        begin = time.perf_counter()
        rpc.shutdown()
        return time.perf_counter() - begin

    def cycle(self, rank, world, port):
        """The seconds of both."""
        return self.init(rank, world, port) + self.shutdown()

    def spin(self):
        """Keeps this process's main thread in a loop of plain Python until worker0 ends it."""
        stop.clear()
        spinning.set()
        while not stop.is_set():
            sum(range(1000))
        spinning.clear()

    def echo(self, size, calls):
        x = lib.rand(size // 4)
        assert lib.equal(rpc.rpc_sync("worker1", echo, args=(x,)), x)
        return timed(lambda: rpc.rpc_sync("worker1", echo, args=(x,)), calls)

    def add(self, size, calls):
        x = lib.rand(size // 4)
        assert lib.equal(rpc.rpc_sync("worker1", lib.add, args=(x, x)), x + x)
        return timed(lambda: rpc.rpc_sync("worker1", lib.add, args=(x, x)), calls)

    def busy(self, size, calls):
        """add, while the callee's main thread computes."""
        while not rpc.rpc_sync("worker1", is_spinning):
            pass
        seconds = self.add(size, calls)
        rpc.rpc_sync("worker1", stop_spinning)
        return seconds

    def outstanding(self, what, size, calls, window=64):
        """The seconds of a call, of which `window` are on their way at a time: a sample for each window."""
        x = lib.rand(size // 4)
        function, args = (echo, (x,)) if what == "echo" else (lib.add, (x, x))

        def batch():
            for future in [rpc.rpc_async("worker1", function, args=args) for _ in range(window)]:
                future.wait()

        return [seconds / window for seconds in timed(batch, calls, 3)]

    def to_here(self, size, calls):
        x = lib.rand(size // 4)
        rref = rpc.remote("worker1", lib.add, args=(x, x))
        assert lib.equal(rref.to_here(), x + x)
        return timed(rref.to_here, calls)

    def step(self, width, batch, calls):
        """Training steps of two layers, the first of which is worker1's."""
        autograd = import_module(f"{lib.__name__}.distributed.autograd")
        DistributedOptimizer = import_module(f"{lib.__name__}.distributed.optim").DistributedOptimizer
        first, second = rpc.remote("worker1", Half, args=(width, width)), nn.Linear(width, 1)
        parameters = first.rpc_sync().parameter_rrefs() + [rpc.RRef(p) for p in second.parameters()]
        optimizer = DistributedOptimizer(optim.SGD, parameters, lr=0.01)
        x = lib.randn(batch, width)
        y = x.sum(1, keepdim=True)
        losses = []

        def train():
            with autograd.context() as context:
                loss = (second(first.rpc_sync().forward(x)) - y).pow(2).mean()
                autograd.backward(context, [loss])
                optimizer.step(context)
            losses.append(loss.item())

        seconds = timed(train, calls, 5)
        assert losses[-1] < losses[0], losses
        return seconds


def main():
    lib.set_num_threads(1)
    harness, rank = Connection(int(sys.argv[2])), Rank()
    while True:
        try:
            order = harness.recv()
        except EOFError:
            break
        try:
            harness.send(("done", getattr(rank, order[0])(*order[1:])))
        except Exception:
            harness.send(("failed", traceback.format_exc()))


if __name__ == "__main__":
    main()
