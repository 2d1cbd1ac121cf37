"""A rank of a peer of benchmarks/sharding.py: sharded_rank.py LIBRARY DESCRIPTOR. LIBRARY is pydist or torch, and
DESCRIPTOR a connection to the harness. It does what the harness orders, (method, *arguments), and answers ("done",
value) or ("failed", text)."""

import hashlib
import os
import sys
import threading
import time
import traceback
from importlib import import_module
from multiprocessing.connection import Connection

lib = import_module(sys.argv[1])
nn, optim, dist = (import_module(f"{lib.__name__}.{part}") for part in ("nn", "optim", "distributed"))
gpt = import_module("benchmarks.workloads.gpt")
SAMPLES = 0.01  # seconds between two looks at the memory, and no less than twice what a look takes


def pss():
    """The bytes that this process has in memory; what several processes map is divided by their number."""
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Pss:")) * 1024


class Sampler:
    """The highest pss() while it is open, in a thread."""

    def __enter__(self):
        self.highest, self.stop = pss(), threading.Event()
        self.thread = threading.Thread(target=self.look)
        self.thread.start()
        return self

    def look(self):
        wait = SAMPLES
        while not self.stop.wait(wait):
            begin = time.perf_counter()
            self.highest = max(self.highest, pss())
            wait = max(SAMPLES, 2 * (time.perf_counter() - begin))

    def __exit__(self, *error):
        self.stop.set()
        self.thread.join()


class Rank:
    def init(self, rank, world, port):
        """The level of memory after the import."""
        os.environ.update(
            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank),
            LOCAL_WORLD_SIZE=str(world),
        )  # fmt: skip
        lib.set_num_threads(1)
        dist.init_process_group(*(["gloo"] if lib.__name__ == "torch" else []))
        self.rank, self.world, self.level = rank, world, pss()
        return self.level

    def make(self, form, size, texts, tokens, low):
        """A model and its optimizer; the batch is this rank's share of `texts`."""
        lib.manual_seed(0)
        sizes = list(gpt.SIZES[size])
        sizes[3] = tokens
        gpt.SIZES["asked"] = tuple(sizes)
        model = gpt.gpt(lib, "asked")
        if form == "fully_shard":
            fsdp = import_module(f"{lib.__name__}.distributed.fsdp")
            policy = fsdp.MixedPrecisionPolicy(lib.bfloat16, lib.float32) if low else fsdp.MixedPrecisionPolicy()
            for block in model.blocks:
                fsdp.fully_shard(block, mp_policy=policy)
            fsdp.fully_shard(model, mp_policy=policy)
        elif form == "fsdp1":
            fsdp = import_module(f"{lib.__name__}.distributed.fsdp")
            wrap = import_module(f"{lib.__name__}.distributed.fsdp.wrap")
            policy = wrap.ModuleWrapPolicy({type(model.blocks[0])})
            model = fsdp.FullyShardedDataParallel(model, auto_wrap_policy=policy, use_orig_params=True)
        elif form in ("ddp", "zero1"):
            model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        if form == "zero1":
            zero = import_module(f"{lib.__name__}.distributed.optim").ZeroRedundancyOptimizer
            self.optimizer = zero(model.parameters(), optim.AdamW, parameters_as_bucket_view=True, lr=3e-4)
        else:
            fused = gpt.BEST["torch"] if lib.__name__ == "torch" else {}
            self.optimizer = optim.AdamW(model.parameters(), lr=3e-4, **fused)
        self.model, self.form = model, form
        vocabulary, share = sizes[5], texts // self.world
        lib.manual_seed(1)
        tokens = [lib.randint(0, vocabulary, (texts, tokens)) for _ in range(2)]
        self.batch = [t[self.rank * share : (self.rank + 1) * share].contiguous() for t in tokens]
        return sum(p.numel() for p in model.parameters())

    def step(self):
        self.optimizer.zero_grad()
        loss = self.model(*self.batch)
        loss.backward()
        self.optimizer.step()

    def steps(self, count):
        """The seconds of each step."""
        seconds = []
        for _ in range(count):
            begin = time.perf_counter()
            self.step()
            seconds.append(time.perf_counter() - begin)
        return seconds

    def memory(self, count):
        """The highest bytes in `count` steps, less the level after the import."""
        with Sampler() as seen:
            for _ in range(count):
                self.step()
        return seen.highest - self.level

    def bits(self):
        """A hash of all parameters."""
        digest = hashlib.sha256()
        for _, p in sorted(self.model.named_parameters(), key=lambda item: item[0].removeprefix("module.")):
            whole = p.full_tensor() if hasattr(p, "full_tensor") else p
            digest.update(whole.detach().contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]

    def construct(self, size, tokens):
        """The highest bytes while a model that began on meta is sharded and filled, less the level before; its
        parameters."""
        fsdp = import_module(f"{lib.__name__}.distributed.fsdp")
        sizes = list(gpt.SIZES[size])
        sizes[3] = tokens
        gpt.SIZES["asked"] = tuple(sizes)
        before = pss()
        with Sampler() as seen:
            with lib.device("meta"):
                model = gpt.gpt(lib, "asked")
            for block in model.blocks:
                fsdp.fully_shard(block)
            fsdp.fully_shard(model)
            model.to_empty(device="cpu")
            with lib.no_grad():
                for p in model.parameters():
                    p.fill_(0.5)
        return seen.highest - before, sum(p.numel() for p in model.parameters())


def main():
    connection, rank = Connection(int(sys.argv[2])), Rank()
    while True:
        try:
            method, *args = connection.recv()
        except EOFError:
            return
        try:
            connection.send(("done", getattr(rank, method)(*args)))
        except BaseException:
            connection.send(("failed", traceback.format_exc()))


if __name__ == "__main__":
    main()
