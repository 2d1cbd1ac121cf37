"""One data-parallel training step of the mnist example's network on 28 x 28 images, global batch 64 (or the third
argument), with SGD: ddp_step.py LIBRARY THREADS [BATCH]. In a world of one without DistributedDataParallel."""

import sys
from importlib import import_module

from timing import best

lib, threads = import_module(sys.argv[1]), int(sys.argv[2])
batch = int(sys.argv[3]) if len(sys.argv) > 3 else 64
nn, optim, dist = (import_module(f"{lib.__name__}.{name}") for name in ("nn", "optim", "distributed"))
DistributedDataParallel = import_module(f"{lib.__name__}.nn.parallel").DistributedDataParallel

lib.set_num_threads(threads)
world = 1
if len(sys.argv) > 4:  # under a launcher
    dist.init_process_group(sys.argv[4])
    world = dist.get_world_size()
lib.manual_seed(0)
net = nn.Sequential(
    nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten(),
    nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10),
)  # fmt: skip
model = DistributedDataParallel(net) if world > 1 else net
optimizer = optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
x, t = lib.randn(batch // world, 1, 28, 28), lib.randint(0, 10, (batch // world,))


def step():
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), t).backward()
    optimizer.step()


seconds = best(step, 10)
if world > 1 and hasattr(model, "logging_data") and dist.get_rank() == 0:
    mean = model.logging_data()["mean"]
    print(
        f"note: exposed communication {mean['exposed']:.2f} ms a step "
        f"({mean['communication']:.2f} during backward, {mean['wait']:.2f} after it, a slower rank's lag included)"
    )
if world == 1 or dist.get_rank() == 0:
    print(seconds, flush=True)
if world > 1:
    dist.destroy_process_group()
