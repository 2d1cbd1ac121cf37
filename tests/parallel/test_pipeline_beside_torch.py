"""Pipelines beside PyTorch's same schedules over gloo, in float64: losses, outputs, gradients, parameters after steps."""

import os

import pytest

from lib.processes import run_beside

LONG = "FULL_LONG" in os.environ
PROGRAM = """
import json, sys
import {library} as torch
import {library}.distributed as dist
from {library} import nn
from {library}.nn import functional as F
from {library}.distributed.pipelining import PipelineStage
from {library}.distributed.pipelining.schedules import get_schedule_class
from {library}.distributed.pipelining.microbatch import TensorChunkSpec

torch.set_num_threads(1)
dist.init_process_group(*(["gloo"] if {library!r} == "torch" else []))
rank, world = dist.get_rank(), dist.get_world_size()


class Mlp(nn.Module):
    def __init__(self, n=10):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(n), nn.Linear(n, 2 * n), nn.Linear(2 * n, n)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Conv(nn.Module):
    def __init__(self, n=10):
        super().__init__()
        self.conv, self.again = nn.Conv1d(1, 3, 3, padding=1), nn.Conv1d(3, 1, 3, padding=1)

    def forward(self, x):
        return torch.tanh(self.again(F.relu(self.conv(x[:, None])))).squeeze(1) + x


class Attention(nn.Module):
    def __init__(self, n=10):
        super().__init__()
        self.qkv, self.out = nn.Linear(n, 3 * n, bias=False), nn.Linear(n, n)  # Adam makes a step of a zero gradient's noise

    def forward(self, x):
        q, k, v = self.qkv(x[:, None].expand(-1, 4, -1).cumsum(1) / 4).chunk(3, -1)
        a = torch.softmax(q @ k.transpose(1, 2) / 3, -1) @ v
        return x + torch.tanh(self.out(a).mean(1))  # many stages, small numbers


def fill(layer, seed):
    for k, p in enumerate(layer.parameters()):
        n = p.numel()
        values = torch.sin(torch.arange(n, dtype=torch.float64) * (1.7 + k) + seed).view(p.shape) * 0.3
        with torch.no_grad():
            p.copy_(values)


found = []
for run in json.load(sys.stdin):
    m, v = run["m"], 1 if run["schedule"] in ("GPipe", "1F1B") else 2
    kinds = {{"mlp": Mlp, "conv": Conv, "attention": Attention}}
    own = [rank] if v == 1 else [rank, 2 * world - 1 - rank] if run["schedule"] in ("ZBVZeroBubble", "DualPipeV") else [rank, rank + world]
    stages, layers = [], []
    for s in own:
        layer = kinds[run["model"]]().double()
        fill(layer, s)
        layers.append(layer)
        stages.append(PipelineStage(layer, s, v * world, torch.device("cpu")))
    schedule = get_schedule_class(run["schedule"])(stages[0] if v == 1 else stages, m, F.mse_loss, scale_grads=run.get("scale", True))
    x, y = (torch.cos(torch.arange(run["rows"] * 10, dtype=torch.float64) * f).view(-1, 10) for f in (0.7, 0.3))
    parameters = [p for layer in layers for p in layer.parameters()]
    optimizer, steps = torch.optim.AdamW(parameters, lr=1e-2), []
    for _ in range(run["steps"]):
        optimizer.zero_grad()
        losses = []
        out = schedule.step(*([x] if 0 in own else []), **({{"target": y, "losses": losses}} if v * world - 1 in own else {{}}))
        optimizer.step()
        steps.append([[float(loss.detach()) for loss in losses], None if out is None else out.detach().flatten().tolist()])
    mine = [steps, {{s: [[p.grad.flatten().tolist(), p.detach().flatten().tolist()] for p in layer.parameters()] for s, layer in zip(own, layers)}}]
    everybody = [None] * world
    dist.all_gather_object(everybody, mine)
    found.append(everybody)
if rank == 0:
    print(json.dumps(found))
dist.barrier()
"""


def numbers(tree):
    if isinstance(tree, dict):
        return [n for key in sorted(tree) for n in numbers(tree[key])]
    if isinstance(tree, list):
        return [n for entry in tree for n in numbers(entry)]
    return [tree]


@pytest.mark.parametrize("world", [2, 3, 4] if LONG else [2])
def test_steps_beside_pytorch(world):
    """Within 1e-9, in 10 steps of AdamW."""
    pytest.importorskip("torch")
    schedules = ["GPipe", "1F1B", "LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"]
    models = ["mlp", "conv", "attention"]
    runs = [
        {"schedule": name, "model": model, "m": 2 * world, "rows": 4 * world, "steps": 10, "scale": n % 2 == 0}
        for n, name in enumerate(schedules)
        for model in (models if LONG else models[n % 3 : n % 3 + 1])
    ]
    theirs, ours = (run_beside(PROGRAM.format(library=library), world, runs) for library in ("torch", "pydist"))
    for run, a, b in zip(runs, theirs, ours, strict=True):
        a, b = numbers(a), numbers(b)
        assert len(a) == len(b) > 100
        assert [x is None for x in a] == [x is None for x in b], run
        worst = max(abs(x - y) for x, y in zip(a, b, strict=True) if x is not None)
        assert worst <= 1e-9, (run, worst)
