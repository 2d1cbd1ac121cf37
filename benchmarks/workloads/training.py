"""A training step of a workload in a library with PyTorch's names, eager or compiled, alone or data-parallel."""

import hashlib
from contextlib import nullcontext
from importlib import import_module

from benchmarks.workloads import load


class Training:
    """step() is one step; hash() names the bits of the parameters, flops() counts the products of a step."""

    def __init__(self, lib, name, dtype, compiled=False, world=1, rank=0):
        for part in ("nn", "optim", "distributed", "nn.parallel"):
            import_module(f"{lib.__name__}.{part}")
        module, sizes = load(name)
        self.lib = lib
        lib.manual_seed(0)
        self.model, batch, optimizer = module.make(lib, module.BEST.get(lib.__name__, {}), **sizes)
        self.batch = [t.chunk(world)[rank] for t in batch]
        self.optimizer = optimizer(self.model.parameters())
        self.context = lambda: nullcontext() if dtype == "float32" else lib.autocast("cpu", dtype=getattr(lib, dtype))
        self.run = self.model
        if world > 1:
            self.run = lib.nn.parallel.DistributedDataParallel(self.model)
        if compiled:
            self.run = lib.compile(self.run)

    def step(self):
        self.optimizer.zero_grad()
        with self.context():
            loss = self.run(*self.batch)
        loss.backward()
        self.optimizer.step()

    def hash(self):
        found = hashlib.sha256()
        for p in self.model.parameters():
            found.update(p.detach().contiguous().numpy().tobytes())
        return found.hexdigest()[:12]

    def flops(self):
        """By pydist's profiler; 0 in other libraries."""
        if self.lib.__name__ != "pydist":
            return 0
        with self.lib.profiler.profile(with_flops=True) as prof:
            self.step()
        return sum(e.flops for e in prof.events())
