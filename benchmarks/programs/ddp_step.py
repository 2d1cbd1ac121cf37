"""One data-parallel training step with SGD: ddp_step.py MODEL LIBRARY THREADS BATCH [BACKEND]. BATCH is the global one;
BACKEND: under a launcher, else a world of one without DistributedDataParallel. Prints the median step.

MODEL: cnn, the mnist example's network on 28 x 28 images; gpt, a GPT of 4 layers of width 128 on texts of 64 tokens."""

import sys
import time
from importlib import import_module
from statistics import median

from benchmarks.workloads.gpt import SIZES, gpt

name, lib, threads, batch = sys.argv[1], import_module(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
nn, optim, dist = (import_module(f"{lib.__name__}.{part}") for part in ("nn", "optim", "distributed"))
DistributedDataParallel = import_module(f"{lib.__name__}.nn.parallel").DistributedDataParallel

lib.set_num_threads(threads)
rank, world = 0, 1
if len(sys.argv) > 5:
    dist.init_process_group(sys.argv[5])
    rank, world = dist.get_rank(), dist.get_world_size()
lib.manual_seed(0)
if name == "cnn":
    net = nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten(),
        nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10),
    )  # fmt: skip
    x, t = lib.randn(batch // world, 1, 28, 28), lib.randint(0, 10, (batch // world,))
else:
    net = gpt(lib, "nano")
    x, t = (lib.randint(0, SIZES["nano"][-1], (batch // world, SIZES["nano"][3])) for _ in range(2))
model = DistributedDataParallel(net) if world > 1 else net
optimizer = optim.SGD(net.parameters(), lr=0.01, momentum=0.9)


def step():
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), t) if name == "cnn" else model(x, t)
    loss.backward()
    optimizer.step()


seconds, cpus = [], []
for _ in range(3):
    step()
for _ in range(24):  # the same number on all ranks
    begin, cpu = time.perf_counter(), time.process_time()
    step()
    seconds.append(time.perf_counter() - begin)
    cpus.append(time.process_time() - cpu)
if world > 1 and hasattr(model, "logging_data") and rank == 0:
    mean = model.logging_data()["mean"]
    print(
        f"note: exposed communication {mean['exposed']:.2f} ms a step "
        f"({mean['communication']:.2f} during backward, {mean['wait']:.2f} after it, a slower rank's lag included)"
    )
if rank == 0:
    print(f"note: {median(cpus) * 1e3:.2f} ms of this process's CPU time a step")
    print(median(seconds), flush=True)
if world > 1:
    dist.destroy_process_group()
