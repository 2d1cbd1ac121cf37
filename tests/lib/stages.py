"""Small models in stages, steps of them by any schedule, and the same by one process that accumulates in order."""

import hashlib

import pydist
from pydist import nn, optim
from pydist.distributed.pipelining import PipelineStage
from pydist.distributed.pipelining.schedules import get_schedule_class
from pydist.nn import functional as F

NAMES = ["GPipe", "1F1B", "LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"]
IN_V = ("ZBVZeroBubble", "DualPipeV")


def sha(tensors):
    digest = hashlib.sha256()
    for t in tensors:
        digest.update(t.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


class Block(nn.Module):
    def __init__(self, n, drop):
        super().__init__()
        self.norm, self.up, self.down, self.drop = (
            nn.LayerNorm(n),
            nn.Linear(n, 2 * n),
            nn.Linear(2 * n, n),
            nn.Dropout(drop),
        )

    def forward(self, x):
        return x + self.drop(self.down(F.gelu(self.up(self.norm(x)))))


class Conv(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.conv, self.norm = nn.Conv1d(1, 3, 3, padding=1), nn.GroupNorm(1, 3)

    def forward(self, x):
        return F.relu(self.norm(self.conv(x[:, None]))).mean(1) + x


def made(count, kind="blocks", n=12, dtype=pydist.float32, drop=0.0):
    """As many layers as the model has, the same on every rank."""
    pydist.manual_seed(0)
    make = {"blocks": lambda: Block(n, drop), "convolutions": lambda: Conv(n)}[kind]
    return [make().to(dtype) for _ in range(count)]


def batch(rows, n=12, dtype=pydist.float32):
    generator = pydist.Generator().manual_seed(3)
    return (pydist.randn(rows, n, generator=generator, dtype=dtype) for _ in range(2))


def placed(name, rank, p, layers, group=None, **options):
    """This rank's stages of the layers, and {stage: its layers}."""
    v = 1 if name in ("GPipe", "1F1B") else 2
    own = [rank] if v == 1 else [rank, 2 * p - 1 - rank] if name in IN_V else [rank, rank + p]
    per = len(layers) // (p * v)
    parts = {s: layers[s * per : (s + 1) * per] for s in own}
    modules = {s: nn.Sequential(*part) if per > 1 else part[0] for s, part in parts.items()}
    return [PipelineStage(modules[s], s, p * v, "cpu", group=group, **options) for s in own], parts


def scheduled(name, stages, m, loss_fn=F.mse_loss, **options):
    return get_schedule_class(name)(stages[0] if name in ("GPipe", "1F1B") else stages, m, loss_fn, **options)


def step(schedule, x, y, **options):
    first = any(stage.is_first for stage in schedule._stages)
    return schedule.step(*([x] if first else []), target=y, **options)


def in_pipeline(rank, name, p, m, rows, kind, dtype, drop, steps, per=1):
    """[(stage, its parameters' gradients)], losses, output, parameters after some steps."""
    layers = made(2 * p * per, kind, dtype=dtype, drop=drop)
    stages, parts = placed(name, rank, p, layers)
    schedule, (x, y) = scheduled(name, stages, m), batch(rows, dtype=dtype)
    own = [q for s in sorted(parts) for layer in parts[s] for q in layer.parameters()]
    optimizer, losses = optim.AdamW(own, lr=1e-2), []
    pydist.manual_seed(5)
    for n in range(steps):
        optimizer.zero_grad()
        out = step(schedule, x, y, losses=losses)
        if n + 1 < steps:
            optimizer.step()
    found = {s: [[q.grad, q] for layer in parts[s] for q in layer.parameters()] for s in parts}
    return found, losses, out


def in_order(p, m, rows, kind, dtype, steps, per=1):
    """The same by one process that accumulates m microbatches in order."""
    model, (x, y) = nn.Sequential(*made(2 * p * per, kind, dtype=dtype)), batch(rows, dtype=dtype)
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    for n in range(steps):
        optimizer.zero_grad()
        losses, outs = [], []
        for a, b in zip(pydist.tensor_split(x, m), pydist.tensor_split(y, m), strict=True):
            outs.append(model(a))
            losses.append(F.mse_loss(outs[-1], b))
            (losses[-1] / m).backward()
        if n + 1 < steps:
            optimizer.step()
    return sha([q.grad for q in model.parameters()]), sha(model.parameters()), sha(losses), sha([pydist.cat(outs)])


def gathered(results):
    """What in_order returns, from what ranks have returned."""
    parts = {s: pairs for found, _, _ in results for s, pairs in found.items()}
    pairs = [pair for s in sorted(parts) for pair in parts[s]]
    (losses,) = [losses for _, losses, _ in results if losses]
    (out,) = [out for _, _, out in results if out is not None]
    assert not any(loss.requires_grad for loss in losses) and not out.requires_grad
    return sha([grad for grad, _ in pairs]), sha([q for _, q in pairs]), sha(losses), sha([out])
