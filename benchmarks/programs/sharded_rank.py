"""A rank of a peer of benchmarks/sharding.py: sharded_rank.py LIBRARY DESCRIPTOR. LIBRARY is pydist or torch, and
DESCRIPTOR a connection to the harness. It does what the harness orders, (method, *arguments), and answers ("done",
value) or ("failed", text)."""

import hashlib
import mmap
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


def own_and_shared(first):
    """The bytes that only this process has in memory, and, for the first one, those of memory files of the whole machine:
    what several processes map counts once, exactly. (Of huge pages that they map in part, Pss is an estimate.)"""
    with open("/proc/self/smaps_rollup") as file:
        held = {line.split()[0]: int(line.split()[1]) * 1024 for line in file if line.startswith("Pss")}
    with open("/proc/meminfo") as file:
        files = next(int(line.split()[1]) for line in file if line.startswith("Shmem:")) * 1024
    return held["Pss:"] - held["Pss_Shmem:"] + files * first


def bytes_of_wholes(model):
    """The bytes that the memory files of all units have (root only)."""
    starts = {state.unit.whole(0).data_ptr() for m in model.modules() if (state := m.__dict__.get("_fsdp"))}
    files = {}
    for name in os.listdir("/proc/self/map_files"):
        begin, end = (int(part, 16) for part in name.split("-"))
        if any(begin <= start < end for start in starts):
            info = os.stat(f"/proc/self/map_files/{name}")
            files[info.st_ino] = info.st_blocks * 512
    return sum(files.values())


class Sampler:
    """(time, held()) again and again while it is open, in a thread."""

    def __init__(self, held=pss):
        self.held = held

    def __enter__(self):
        self.seen, self.stop = [(time.monotonic(), self.held())], threading.Event()
        self.thread = threading.Thread(target=self.look)
        self.thread.start()
        return self

    def look(self):
        wait = SAMPLES
        while not self.stop.wait(wait):
            begin = time.monotonic()
            self.seen.append((begin, self.held()))
            wait = max(SAMPLES, 2 * (time.monotonic() - begin))

    def __exit__(self, *error):
        self.stop.set()
        self.thread.join()
        self.seen.append((time.monotonic(), self.held()))

    @property
    def highest(self):
        return max(held for _, held in self.seen)


class Rank:
    def init(self, rank, world, port, address="127.0.0.1", local=None):
        """The level of memory after the import. `local`: the ranks of a host, if not all are on one."""
        local = local or world
        os.environ.update(
            MASTER_ADDR=address, MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank % local),
            LOCAL_WORLD_SIZE=str(local),
        )  # fmt: skip
        lib.set_num_threads(1)
        dist.init_process_group(*(["gloo"] if lib.__name__ == "torch" else []))
        self.rank, self.world, self.local, self.level = rank, world, local, pss()
        return self.level

    def make(self, form, size, texts, tokens, low, rule="AdamW"):
        """A model and its optimizer; the batch is this rank's share of `texts`."""
        lib.manual_seed(0)
        sizes = list(gpt.SIZES[size])
        sizes[3] = tokens
        gpt.SIZES["asked"] = tuple(sizes)
        model = gpt.gpt(lib, "asked")
        if form in ("fully_shard", "hsdp"):
            fsdp = import_module(f"{lib.__name__}.distributed.fsdp")
            policy = fsdp.MixedPrecisionPolicy(lib.bfloat16, lib.float32) if low else fsdp.MixedPrecisionPolicy()
            mesh = None
            if form == "hsdp":  # shards inside of a host, replicas between hosts
                make = import_module(f"{lib.__name__}.distributed.device_mesh").init_device_mesh
                mesh = make("cpu", (self.world // self.local, self.local), mesh_dim_names=("replicate", "shard"))
            for block in model.blocks:
                fsdp.fully_shard(block, mp_policy=policy, mesh=mesh)
            fsdp.fully_shard(model, mp_policy=policy, mesh=mesh)
        elif form == "fsdp1":
            fsdp = import_module(f"{lib.__name__}.distributed.fsdp")
            wrap = import_module(f"{lib.__name__}.distributed.fsdp.wrap")
            policy = wrap.ModuleWrapPolicy({type(model.blocks[0])})
            model = fsdp.FullyShardedDataParallel(model, auto_wrap_policy=policy, use_orig_params=True)
        elif form in ("ddp", "zero1"):
            model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        if form == "zero1":
            zero = import_module(f"{lib.__name__}.distributed.optim").ZeroRedundancyOptimizer
            self.optimizer = zero(model.parameters(), getattr(optim, rule), parameters_as_bucket_view=True, lr=3e-4)
        else:
            fused = gpt.BEST["torch"] if lib.__name__ == "torch" else {}
            self.optimizer = getattr(optim, rule)(model.parameters(), lr=3e-4, **fused)
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

    def updates(self, count):
        """The seconds of each step of the optimizer alone, all of the gradients of one backward."""
        if all(p.grad is None for p in self.model.parameters()):
            self.model(*self.batch).backward()
        seconds = []
        for _ in range(count):
            dist.barrier()
            begin = time.perf_counter()
            self.optimizer.step()
            seconds.append(time.perf_counter() - begin)
        return seconds

    def norms(self, elements, rounds):
        """(seconds of the exact sum of squares, seconds of reading by sum()) of each round."""
        x, squares, found = lib.randn(elements), import_module(f"{lib.__name__}._C").exact_squares, []
        for _ in range(rounds):
            begin = time.perf_counter()
            squares([x])
            middle = time.perf_counter()
            x.sum()
            found.append((middle - begin, time.perf_counter() - middle))
        return found

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
        """(time, bytes above the level before) again and again while a model that began on meta is sharded and filled; the
        bytes of its units; its parameters."""
        fsdp = import_module(f"{lib.__name__}.distributed.fsdp")
        sizes = list(gpt.SIZES[size])
        sizes[3] = tokens
        gpt.SIZES["asked"] = tuple(sizes)
        dist.barrier()
        before = own_and_shared(self.rank == 0)
        dist.barrier()
        with Sampler(lambda: own_and_shared(self.rank == 0)) as seen:
            with lib.device("meta"):
                model = gpt.gpt(lib, "asked")
            for block in model.blocks:
                fsdp.fully_shard(block)
            fsdp.fully_shard(model)
            model.to_empty(device="cpu")
            with lib.no_grad():
                for p in model.parameters():
                    p.fill_(0.5)
        dist.barrier()
        return (
            [(at, held - before) for at, held in seen.seen],
            bytes_of_wholes(model),
            sum(p.numel() for p in model.parameters()),
        )

    def pages(self, rounds):
        """Seconds of a product and of a sum that read a weight, as lists by where it lies: private memory, shared memory as
        pydist makes it, and shared memory of small pages."""
        rows, width = 50304, 768
        private = lib.full((rows, width), 0.01)
        fd = os.memfd_create("small")
        os.posix_fallocate(fd, 0, rows * width * 4)
        small = lib.frombuffer(mmap.mmap(fd, rows * width * 4), dtype=lib.float32).view(rows, width).fill_(0.01)
        weights = {"private": private, "shared": private.clone().share_memory_(), "shared, small pages": small}
        x, found = lib.randn(128, width), {name: ([], []) for name in weights}
        for k, run in enumerate((lambda w: nn.functional.linear(x, w), lib.sum)):
            for turn in range(rounds):
                for name in list(weights)[:: -1 if turn % 2 else 1]:  # what ran before matters, too
                    begin = time.perf_counter()
                    run(weights[name])
                    found[name][k].append(time.perf_counter() - begin)
        return found


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
