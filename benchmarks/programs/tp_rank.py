"""A rank of a peer of benchmarks/parallel_tp.py: tp_rank.py LIBRARY DESCRIPTOR. LIBRARY is pydist or torch, and
DESCRIPTOR a connection to the harness. It does what the harness orders, (method, *arguments), and answers ("done",
value) or ("failed", text)."""

import os
import sys
import time
import traceback
from contextlib import nullcontext
from importlib import import_module
from multiprocessing.connection import Connection

lib = import_module(sys.argv[1])
optim, dist = import_module(f"{lib.__name__}.optim"), import_module(f"{lib.__name__}.distributed")
llama = import_module("benchmarks.workloads.llama")


class Rank:
    def init(self, rank, world, port, threads):
        os.environ.update(
            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank),
            LOCAL_WORLD_SIZE=str(world),
        )  # fmt: skip
        lib.set_num_threads(threads)
        dist.init_process_group(*(["gloo"] if lib.__name__ == "torch" else []))
        self.world = world

    def make(self, form, texts, length):
        lib.manual_seed(0)
        self.model, self.context = llama.llama(lib, length=length), nullcontext
        if form != "plain":
            tensor, parallel = (import_module(f"{lib.__name__}.distributed.tensor{part}") for part in ("", ".parallel"))
            mesh = tensor.init_device_mesh("cpu", (self.world,))
            parallel.parallelize_module(self.model, mesh, llama.plan(tensor, parallel, form == "sp"))
            self.context = parallel.loss_parallel
        self.optimizer = optim.AdamW(self.model.parameters(), lr=3e-4)
        lib.manual_seed(1)
        self.batch = [lib.randint(0, llama.SIZES["debug"][-1], (texts, length)) for _ in range(2)]

    def step(self):
        x, t = self.batch
        self.optimizer.zero_grad()
        with self.context():
            loss = lib.nn.functional.cross_entropy(self.model(x).flatten(0, 1), t.flatten())
            loss.backward()
        return loss

    def steps(self, count):
        """The seconds of each step."""
        seconds = []
        for _ in range(count):
            begin = time.perf_counter()
            self.step()
            self.optimizer.step()
            seconds.append(time.perf_counter() - begin)
        return seconds

    def loss(self):
        loss = self.step()
        return (loss.full_tensor() if hasattr(loss, "full_tensor") else loss).item()


def main():
    rank, connection = Rank(), Connection(int(sys.argv[2]))
    while True:
        try:
            method, *arguments = connection.recv()
        except EOFError:
            os._exit(0)
        try:
            connection.send(("done", getattr(rank, method)(*arguments)))
        except Exception:
            connection.send(("failed", traceback.format_exc()))


main()
