"""What a call of an op costs on DTensors of one rank, and on plain tensors: microseconds, as JSON. Argument: the library."""

import importlib
import json
import os
import sys
import time

lib = importlib.import_module(sys.argv[1])
calls = int(sys.argv[2])
if sys.argv[1] == "torch":
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=sys.argv[3], RANK="0", WORLD_SIZE="1")
    importlib.import_module("torch.distributed").init_process_group("gloo")
spread = importlib.import_module(sys.argv[1] + ".distributed.tensor")
mesh = importlib.import_module(sys.argv[1] + ".distributed.device_mesh").init_device_mesh("cpu", (1,))
linear = importlib.import_module(sys.argv[1] + ".nn.functional").linear


def microseconds(call):
    best = float("inf")
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter() - begin) / calls)
    return best * 1e6


def both(make):
    """(on plain tensors, on DTensors)"""
    return [microseconds(make(lambda t: t)), microseconds(make(lambda t: spread.distribute_tensor(t, mesh, places)))]


def add(wrap):
    x = wrap(lib.randn(1024))
    return lambda: x + x


def product(wrap):
    x, w, b = (wrap(lib.randn(*size)) for size in ((4, 16), (16, 16), (16,)))
    return lambda: linear(x, w, b)


def step(wrap):
    x, w = wrap(lib.randn(4, 16)), wrap(lib.randn(16, 16)).requires_grad_()

    def forward_and_backward():
        linear(x, w).sum().backward()

    return forward_and_backward


def moved():
    x, places = spread.distribute_tensor(lib.randn(1024), mesh, [spread.Replicate()]), (spread.Shard(0),)
    return lambda: x.redistribute(placements=places)


places = [spread.Replicate()]
print(json.dumps({"add": both(add), "linear": both(product), "linear, sum, backward": both(step),
                  "redistribute R to S": [0.0, microseconds(moved())]}))  # fmt: skip
