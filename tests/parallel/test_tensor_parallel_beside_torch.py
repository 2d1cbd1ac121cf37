"""Tensor parallel modules beside PyTorch's, over gloo: 20 steps in float64 of a small LLaMA, and where values lie."""

import pytest

from lib.processes import run_beside

PROGRAM = """
import json, sys
from contextlib import nullcontext
import {library} as torch
import {library}.distributed as dist
from {library} import nn
from {library}.nn import functional as F
from {library}.distributed.device_mesh import init_device_mesh
from {library}.distributed.fsdp import fully_shard
from {library}.distributed.tensor import DTensor, Replicate, Shard
from {library}.distributed.tensor.parallel import (
    ColwiseParallel, PrepareModuleInput, PrepareModuleInputOutput, PrepareModuleOutput, RowwiseParallel, SequenceParallel,
    loss_parallel, parallelize_module,
)

torch.set_num_threads(1)
dist.init_process_group(*(["gloo"] if {library!r} == "torch" else []))
rank, world = dist.get_rank(), dist.get_world_size()


class Attention(nn.Module):
    def __init__(self, dim, heads, kv_heads):
        super().__init__()
        self.width = dim // heads
        self.wq, self.wo = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.wk, self.wv = (nn.Linear(dim, kv_heads * self.width, bias=False) for _ in range(2))

    def forward(self, x, *, angles):
        n, t = x.shape[:2]
        q, k, v = (f(x).view(n, t, -1, self.width).transpose(1, 2) for f in (self.wq, self.wk, self.wv))
        q, k = (y * angles.cos() + y.flip(-1) * angles.sin() for y in (q, k))
        repeated = q.shape[1] // k.shape[1]
        k, v = (y.repeat_interleave(repeated, 1) for y in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(n, t, -1))


class FeedForward(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.w1, self.w2, self.w3 = nn.Linear(dim, 24), nn.Linear(24, dim), nn.Linear(dim, 24)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, dim, heads, kv_heads):
        super().__init__()
        self.attention, self.feed_forward = Attention(dim, heads, kv_heads), FeedForward(dim)
        self.attention_norm, self.ffn_norm = nn.RMSNorm(dim, eps=1e-5), nn.LayerNorm(dim)

    def forward(self, x, angles):
        x = x + self.attention(self.attention_norm(x), angles=angles)
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    def __init__(self, dim=16, heads=4, kv_heads=2, vocabulary=30):
        super().__init__()
        self.tok_embeddings, self.output = nn.Embedding(vocabulary, dim), nn.Linear(dim, vocabulary, bias=False)
        self.layers = nn.ModuleList([Block(dim, heads, kv_heads) for _ in range(2)])
        self.norm, self.width = nn.RMSNorm(dim, eps=1e-5), dim // heads

    def forward(self, x):
        angles = torch.outer(torch.arange(x.shape[1]).double(), torch.arange(1, self.width + 1).double() / 5)
        x = self.tok_embeddings(x)
        for layer in self.layers:
            x = layer(x, angles)
        return self.output(self.norm(x))


def plan(sequence, losses):
    place = Shard(1) if sequence else Replicate()
    rows = {{"output_layouts": place, "use_local_output": not sequence}}
    found = {{
        "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), **rows),
        "output": ColwiseParallel(input_layouts=place, output_layouts=Shard(-1) if losses else Replicate(),
                                  use_local_output=not losses),
        "layers.*.attention": PrepareModuleInput(input_layouts=(place,), desired_input_layouts=(Replicate(),)),
        "layers.*.attention.w[qkv]": ColwiseParallel(),
        "layers.*.attention.wo": RowwiseParallel(**rows),
        "layers.*.feed_forward": PrepareModuleInput(input_layouts=(place,), desired_input_layouts=(Replicate(),)),
        "layers.*.feed_forward.w[13]": ColwiseParallel(),
        "layers.*.feed_forward.w2": RowwiseParallel(**rows),
    }}
    if sequence:
        found.update({{"norm": SequenceParallel(), "layers.*.*_norm": SequenceParallel()}})
    return found


def run(tp, sequence, losses, shard, steps=20):
    mesh = init_device_mesh("cpu", (world // tp, tp), mesh_dim_names=("dp", "tp"))
    model = Llama().double()
    with torch.no_grad():
        for i, p in enumerate(model.parameters()):
            p.copy_(torch.sin(torch.arange(p.numel(), dtype=torch.float64) * (i + 1)).view_as(p) / 3)
    parallelize_module(model, mesh["tp"], plan(sequence, losses))
    places = {{name: [repr(p) for p in t.placements] for name, t in model.named_parameters() if isinstance(t, DTensor)}}
    if shard:
        for layer in model.layers:
            fully_shard(layer, mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])
    optimizer, seen, norms = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False), [], []
    row = mesh.get_local_rank("dp")
    for step in range(steps):
        x = (torch.arange(18).view(2, 9) * (step + 3) + 7 * row) % 30
        optimizer.zero_grad()
        with loss_parallel() if losses else nullcontext():
            loss = F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
            loss.backward()
        if sequence:  # torch cannot add norms of DTensors and of plain tensors
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            norms.append((norm.full_tensor() if isinstance(norm, DTensor) else norm).item())
        optimizer.step()
        seen.append((loss.full_tensor() if isinstance(loss, DTensor) else loss).item())
    values = {{n: (p.full_tensor() if isinstance(p, DTensor) else p).detach().flatten().tolist()
               for n, p in sorted(model.named_parameters())}}
    return {{"losses": seen, "norms": norms, "values": values, "places": places}}


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, x):
        return self.inner(x, 2, scale=x)


class Inner(nn.Module):
    def forward(self, x, n, *, scale):
        self.seen = [repr(t.placements) if isinstance(t, DTensor) else list(t.shape) for t in (x, scale)]
        return x * n, n


def prepared(local, out_local):
    # what a module sees, gets and returns
    mesh, x = init_device_mesh("cpu", (world,)), torch.arange(8.0 * world).view(2 * world, 4).requires_grad_()
    model = Outer()
    both = PrepareModuleInputOutput(
        input_layouts=(Replicate(), None), desired_input_layouts=(Shard(0), None), input_kwarg_layouts={{"scale": Replicate()}},
        desired_input_kwarg_layouts={{"scale": Shard(1)}}, use_local_input=local, output_layouts=(Shard(0), None),
        desired_output_layouts=(Replicate(), None), use_local_output=out_local,
    )
    parallelize_module(model, mesh, {{"inner": both}})
    y, n = model(x)
    kind = "DTensor" if isinstance(y, DTensor) else "plain"
    y = y.full_tensor() if isinstance(y, DTensor) else y
    (y * y).sum().backward()
    return {{"seen": model.inner.seen, "kind": kind, "n": n, "y": y.flatten().tolist(), "grad": x.grad.flatten().tolist()}}


def linear(style, inputs, outputs, local):
    # a layer alone: what its result is, and its gradients
    mesh, x = init_device_mesh("cpu", (world,)), torch.cos(torch.arange(6.0 * 8).double()).view(2, 3, 8).requires_grad_()
    layer = nn.Linear(8, 4 * world).double()
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(torch.sin(torch.arange(p.numel()).double()).view_as(p))
    named = {{"R": Replicate(), "-1": Shard(-1), "0": Shard(0)}}
    given = {{"use_local_output": local}}
    if inputs:
        given["input_layouts"] = named[inputs]
    if outputs:
        given["output_layouts"] = named[outputs]
    parallelize_module(layer, mesh, globals()[style](**given))
    here = inputs or ("-1" if style == "RowwiseParallel" else "R")
    part = x if here == "R" else x.chunk(world, int(here))[rank]
    y = layer(part)
    shape, kind = list(y.shape), "DTensor" if isinstance(y, DTensor) else "plain"
    (y.to_local() if isinstance(y, DTensor) else y).square().sum().backward()
    return {{"shape": shape, "kind": kind, "w": layer.weight.grad.full_tensor().flatten().tolist(),
             "b": layer.bias.grad.full_tensor().flatten().tolist(), "x": x.grad.flatten().tolist()}}


found = [globals()[name](**case) for name, case in json.load(sys.stdin)]
if rank == 0:
    print(json.dumps(found))
dist.destroy_process_group()
"""

RUNS = {
    2: [
        ["run", {"tp": 2, "sequence": False, "losses": False, "shard": False}],
        ["run", {"tp": 2, "sequence": True, "losses": True, "shard": False}],
        *[["prepared", {"local": a, "out_local": b}] for a in (False,) for b in (True, False)],
        *[
            ["linear", {"style": style, "inputs": inputs, "outputs": outputs, "local": local}]
            for style, inputs, outputs, local in (
                ("ColwiseParallel", None, None, True), ("ColwiseParallel", "0", "R", False),
                ("ColwiseParallel", "-1", None, False), ("RowwiseParallel", None, None, True),
                ("RowwiseParallel", "R", "0", True), ("RowwiseParallel", None, "-1", False),
            )
        ],
    ],
    4: [
        ["run", {"tp": 2, "sequence": True, "losses": True, "shard": True}],
        ["run", {"tp": 2, "sequence": True, "losses": False, "shard": True, "steps": 5}],
    ],
}  # fmt: skip


def close(got, expected, path=""):
    assert type(got) is type(expected), (path, got, expected)
    if isinstance(expected, dict):
        assert got.keys() == expected.keys(), path
        for key, value in expected.items():
            close(got[key], value, f"{path}.{key}")
    elif isinstance(expected, list):
        assert len(got) == len(expected), path
        for i, (a, b) in enumerate(zip(got, expected, strict=True)):
            close(a, b, f"{path}[{i}]")
    elif isinstance(expected, float):
        assert abs(got - expected) <= 1e-9 * max(1, abs(expected)), (path, got, expected)
    else:
        assert got == expected, path


@pytest.mark.parametrize("world", RUNS)
def test_as_torch(world):
    pytest.importorskip("torch")
    ours, theirs = (run_beside(PROGRAM.format(library=library), world, RUNS[world]) for library in ("pydist", "torch"))
    for (name, case), got, expected in zip(RUNS[world], ours, theirs, strict=True):
        close(got, expected, f"{name}{case}")
