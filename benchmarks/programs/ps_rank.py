"""A rank of `python -m benchmarks.ps`: `ps_rank.py CASE SIZE ROUNDS` with CASE memory, small, step or gloo. Rank 0 prints a dict of
lists of seconds, one of each round, as JSON."""

import importlib
import json
import os
import sys
import time

import numpy as np

case, size, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch = importlib.import_module("torch" if case == "gloo" else "pydist")
dist = importlib.import_module(f"{torch.__name__}.distributed")
dist.init_process_group(*(["gloo"] if case == "gloo" else []))
rank, world = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)


def measure(cases):
    """Seconds of each function, in turns; all ranks begin together and wait for the last."""
    found = {name: [] for name in cases}
    for _ in range(rounds + 1):
        for name, run in cases.items():
            dist.barrier()
            start = time.perf_counter()
            run()
            dist.barrier()
            found[name].append(time.perf_counter() - start)
    return {name: seconds[1:] for name, seconds in found.items()}


def memory():
    """A value of `size` float32 numbers."""
    from pydist import optim
    from pydist.distributed import ps

    a, b, c = (np.ones(size, np.float32) for _ in range(3))
    grad, out = torch.full((size,), 0.5), torch.empty(size)
    plain, adam = ps.create("dist_sync", reduce="mean"), ps.create("dist_sync", reduce="mean")
    hogwild = ps.create("dist_hogwild")
    for store in (plain, adam, hogwild):
        store.init("w", torch.zeros(size))
    adam.set_optimizer(optim.Adam([torch.zeros(1, requires_grad=True)]))
    hogwild.set_optimizer("test")
    slot = adam._c.slot(0)

    def pushpull():
        plain.push("w", grad)
        plain.pull("w", out)

    def step(gradient):
        adam.push("w", gradient)
        adam._c.pull([0], [None], False)  # the parameters are views of the store's memory

    return measure({
        "triad": lambda: np.add(a, b, out=c),
        "copy": lambda: np.copyto(c, a),
        "push and pull": pushpull,
        "push, Adam": lambda: step(grad),
        "Adam, gradients in slots": lambda: step(slot),
        "hogwild push": lambda: hogwild.push("w", grad),
    })  # fmt: skip


def small():
    """1000 values of `size` numbers."""
    from pydist.distributed import ps

    keys = list(range(1000))
    grads = [torch.ones(size) for _ in keys]
    flat, to = np.ones(1000 * size, np.float32), np.empty(1000 * size, np.float32)
    cases = {"copy": lambda: np.copyto(to, flat)}
    for kind in ("dist_hogwild", "dist_async", "dist_sync"):
        store = ps.create(kind)
        store.init(keys, [torch.zeros(size) for _ in keys])
        store.set_optimizer("test")
        cases[kind] = lambda store=store: store._c.push(keys, grads, 1.0)
    return measure(cases)


def step():
    """Steps of an MLP of width `size`, by DDP and by Trainer."""
    from pydist import nn, optim
    from pydist.distributed import ps
    from pydist.nn.parallel import DistributedDataParallel

    def made():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, size), nn.ReLU(), nn.Linear(size, 10))

    x, y = torch.randn(32, size), torch.randint(0, 10, (32,))
    ddp, own = DistributedDataParallel(made()), made()
    opt = optim.Adam(ddp.parameters())
    trainer = ps.Trainer(own.parameters(), optim.Adam(own.parameters()), kvstore="dist_sync", reduce="mean")

    def run(model, zero, update):
        for _ in range(10):
            zero()
            nn.functional.cross_entropy(model(x), y).backward()
            update()

    return measure({
        "ddp": lambda: run(ddp, opt.zero_grad, opt.step),
        "trainer": lambda: run(own, trainer.zero_grad, lambda: trainer.step(1)),
    })  # fmt: skip


def gloo():
    value = torch.ones(size)
    return measure({"gloo all_reduce": lambda: dist.all_reduce(value)})


found = {"memory": memory, "small": small, "step": step, "gloo": gloo}[case]()
if rank == 0:
    print(json.dumps(found), flush=True)
dist.destroy_process_group()
os._exit(0) if case == "gloo" else None
