"""A worker of `python -m benchmarks.ps_modes`: `ps_modes.py KIND BOUND FACTOR SEED BATCHES SLOW`.

LeNet learns Fashion-MNIST (of the folder PYDIST_DATA) from BATCHES batches of 32 on each worker. KIND "process" is one
process with the whole batch. SLOW: worker 0 sleeps so long in each step (s); 0.03r: another worker in each step, at random. Rank 0 prints a dict: the test accuracy, seconds, the
most stale push."""

import gzip
import json
import os
import sys
import time

import numpy as np

import pydist
from pydist import distributed as dist
from pydist import nn, optim
from pydist.distributed import ps
from pydist.nn import functional as F

kind, bound, factor, seed, batches, slow = sys.argv[1:7]
seed, batches, drawn, slow = int(seed), int(batches), slow.endswith("r"), float(slow.rstrip("r"))
sleepers = np.random.default_rng(seed).integers(0, 4, batches) if drawn else np.zeros(batches, int)
rank, world = dist.get_rank(), dist.get_world_size()
pydist.set_num_threads(1)


def read(name, skip):
    with gzip.open(os.path.join(os.environ["PYDIST_DATA"], "fashion-mnist", f"{name}-ubyte.gz")) as file:
        return np.frombuffer(file.read(), np.uint8, offset=skip)


def data(name):
    images = read(f"{name}-images-idx3", 16).reshape(-1, 1, 28, 28).astype(np.float32) / 255.0 - 0.5
    return pydist.tensor(images), pydist.tensor(read(f"{name}-labels-idx1", 8).astype(np.int64))


def lenet():
    pydist.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


def order(worker):
    return np.random.default_rng([seed, worker]).permutation(len(y))[: batches * 32].reshape(batches, 32)


x, y = data("train")
model = lenet()
RATE = 0.02  # of a worker's gradient; a round adds those of all, so one process with the mean of all has four times as much
own = optim.SGD(model.parameters(), lr=RATE * (4 if kind == "process" else 1), momentum=0.5)
most = 0
if kind == "process":
    start = time.perf_counter()
    for parts in zip(*(order(w) for w in range(4))):
        rows = pydist.tensor(np.concatenate(parts))
        own.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        own.step()
else:
    store = ps.create(kind, reduce="sum", max_staleness=None if bound == "-" else int(bound),
                      staleness_lr=factor)  # fmt: skip
    trainer = ps.Trainer(model.named_parameters(), own, kvstore=store)
    store.barrier()
    start = time.perf_counter()
    for part, sleeper in zip(order(rank), sleepers):
        rows = pydist.tensor(part)
        trainer.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        if slow and rank == sleeper:
            time.sleep(slow)
        trainer.step(1)
    store.barrier()
    if kind == "dist_async":
        trainer._pull(store)
    most = max((max(w) for w in store.staleness()["workers"] if w), default=0)
seconds = time.perf_counter() - start
if rank == 0:
    images, labels = data("t10k")
    with pydist.no_grad():
        right = sum(
            (model(images[i : i + 500]).argmax(1) == labels[i : i + 500]).sum().item()
            for i in range(0, len(labels), 500)
        )
    print(json.dumps({"accuracy": right / len(labels), "seconds": seconds, "most": most}), flush=True)
if world > 1:
    dist.barrier()
