"""A LLaMA over meshes with stages, data, context and tensor parallel at once: losses and parameters are those of one
process, checkpoints go on with other meshes, and norms of gradients have the same bits."""

import functools
import os
from argparse import Namespace

import numpy as np
import pytest

import pydist
from pydist import nn, optim
from pydist.distributed.device_mesh import init_device_mesh
from pydist.distributed.tensor import DTensor
from pydist.examples import llama
from pydist.models import LLaMA, LLaMAConfig
from pydist.testing import run_ranks

LONG = "FULL_LONG" in os.environ
STEPS, ROWS = 10, 8


def whole(t):
    return (t.full_tensor() if isinstance(t, DTensor) else t).detach()


def made(dtype=pydist.float64):
    pydist.manual_seed(0)
    return LLaMA(LLaMAConfig(50, 16, 4, 4, 2, 32, 48)).to(dtype)


def batch(step, length=8):
    drawn = pydist.randint(0, 50, (ROWS, length + 1), generator=pydist.Generator().manual_seed(step))
    return drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()


def options(**given):
    defaults = dict(pp=1, dp=1, cp=1, tp=1, sp=False, loss_parallel=False, checkpoint=False, ddp=False)
    return Namespace(**(defaults | dict(schedule="1F1B", microbatches=4) | given))


class Training:
    """One rank's part of a training."""

    def __init__(self, args, dtype=pydist.float64, lr=1e-2):
        self.args = args
        sizes = args.pp, args.dp, args.cp, args.tp
        self.mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("pp", "dp", "cp", "tp"))
        self.schedule, self.modules = llama.shared_out(made(dtype), self.mesh, args)
        self.parameters = [p for module in self.modules for p in module.parameters()]
        self.optimizers = [optim.AdamW(module.parameters(), lr=lr) for module in self.modules]
        self.data = self.mesh["dp", "cp"]._flatten("data").get_group()

    def gradients(self, step):
        rank = self.mesh.get_local_rank("dp")
        x, t = (part[rank :: self.args.dp] for part in batch(step))
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        with llama.sequences_of(self.args, self.mesh, self.modules, x, t):
            loss = llama.gradients_of(self.schedule, self.modules[0], x, t, self.args.loss_parallel)
        return loss

    def step(self, step):
        """The mean loss, the norm of the gradients before they are clipped."""
        loss = self.gradients(step)
        norm = llama.clip(self.schedule, self.parameters, 0.5)
        for optimizer in self.optimizers:
            optimizer.step()
        return llama.mean_over(loss, self.data, self.mesh.get_group("pp")), whole(norm).item()

    def values(self):
        named = [pair for m in self.modules for pair in getattr(m, "module", m).named_parameters()]
        return {name.replace("_checkpoint_wrapped_module.", ""): whole(p).numpy().copy() for name, p in named}


def train(rank, args, steps=STEPS, dtype=pydist.float64, lr=1e-2):
    training = Training(args, dtype, lr)
    return [training.step(n) for n in range(steps)], training.values()


def in_one_process(steps, dtype, lr=1e-2):
    """Losses, norms and parameters of a plain training."""
    model, seen = made(dtype), []
    optimizer = optim.AdamW(model.parameters(), lr=lr)
    for n in range(steps):
        optimizer.zero_grad()
        loss = llama.loss_of(model, *batch(n))
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        seen.append((loss.item(), norm.item()))
    return seen, {name: p.detach().numpy().copy() for name, p in model.named_parameters()}


@functools.cache
def alone(steps=STEPS):
    return in_one_process(steps, pydist.float64)


WAYS = {
    "pp, dp, tp, 1F1B": dict(pp=2, dp=2, tp=2),
    "pp, dp, tp, Interleaved1F1B": dict(pp=2, dp=2, tp=2, schedule="Interleaved1F1B", sp=True),
    "pp, dp, tp, ZBV": dict(pp=2, dp=2, tp=2, schedule="ZBVZeroBubble", sp=True, loss_parallel=True),
    "pp, dp, tp, DDP, again": dict(pp=2, dp=2, tp=2, ddp=True, checkpoint=True, sp=True),
    "pp, dp": dict(pp=2, dp=2),
    "pp, dp, zero bubble, again": dict(pp=2, dp=2, schedule="InterleavedZeroBubble", checkpoint=True),
    "pp, dp, DDP": dict(pp=2, dp=2, ddp=True),
    "pp, dp, DDP, DualPipeV": dict(pp=2, dp=2, ddp=True, schedule="DualPipeV"),
    "pp, cp": dict(pp=2, cp=2),
    "pp, cp, ZBV": dict(pp=2, cp=2, schedule="ZBVZeroBubble"),
    "pp, tp": dict(pp=2, tp=2, loss_parallel=True),
    "pp 4, uneven microbatches": dict(pp=4, microbatches=3),
}
if LONG:
    WAYS["all"] = dict(pp=2, dp=2, cp=2, tp=2, sp=True, loss_parallel=True, checkpoint=True)


def ranks_of(way):
    return int(np.prod([way.get(name, 1) for name in ("pp", "dp", "cp", "tp")]))


@pytest.mark.parametrize("way", [pytest.param(w, marks=pytest.mark.slow) if "again" in w else w for w in WAYS])
def test_a_llama(way):
    way = WAYS[way]
    seen, parameters = alone()
    found = {}
    for got, own in run_ranks(ranks_of(way), train, options(**way)):
        assert np.abs(np.array(got) - np.array(seen)).max() <= 1e-9
        found.update(own)
    assert found.keys() == parameters.keys()
    for name, value in parameters.items():
        assert np.abs(found[name] - value).max() <= 1e-9, name


def test_loss_curves_in_float32():
    """6 digits."""
    steps = 100 if LONG else 12
    way = dict(pp=2, dp=2, tp=2, schedule="ZBVZeroBubble", sp=True)
    expected, _ = in_one_process(steps, pydist.float32, 1e-3)
    for got, _ in run_ranks(8, train, options(**way), steps, pydist.float32, 1e-3):
        assert np.abs(np.array(got)[:, 0] - np.array(expected)[:, 0]).max() <= 5e-6


# ---- norms


def norms(rank, args):
    training = Training(args, pydist.float32)
    return [training.step(n)[1] for n in range(3)]


@pytest.mark.parametrize("tp, microbatches", [(1, 4), pytest.param(2, 4, marks=pytest.mark.slow), (1, 1), (2, 1)])
def test_norms_have_the_same_bits_on_all_meshes(tp, microbatches):
    """As many ranks of data, ranks of layers and microbatches: any stages, any schedule, fully_shard or DDP."""
    found = []
    ways = [
        dict(pp=2),
        dict(pp=2, schedule="ZBVZeroBubble"),
        dict(pp=2, schedule="Interleaved1F1B"),
        dict(pp=2, ddp=True),
        dict(pp=4),
    ]
    for way in ways if microbatches > 1 else [dict(pp=2), dict(pp=4, ddp=True), dict(pp=1), dict(pp=1, ddp=True)]:
        args = options(**({"dp": 2, "tp": tp, "microbatches": microbatches, "sp": tp > 1} | way))
        found += run_ranks(2 * tp * args.pp, norms, args)
    assert len(set(map(tuple, found))) == 1, found


# ---- messages


def costs(group):
    """Steps of collectives, bytes written and read."""
    return [group.counted["steps"], *group.counted["memory"], *group.counted["messages"]]


def test_fully_shard_gathers_nothing_and_reduces_once():
    """In common memory: forwards and backwards of 4 microbatches have the collectives of one, and nothing is sent but the
    count of tokens."""

    def work(rank, microbatches):
        training = Training(options(pp=2, dp=2, microbatches=microbatches))
        training.gradients(0)
        before = costs(training.data)
        training.gradients(1)
        return [b - a for a, b in zip(before, costs(training.data), strict=True)]

    few, many = run_ranks(4, work, 1), run_ranks(4, work, 4)
    assert few == many and all(steps > 0 and max(moved) <= 8 for steps, *moved in few)


# ---- checkpoints


def resumed(rank, args, folder):
    training = Training(args)
    at = llama.load(folder, training.modules, training.optimizers)
    return at, [training.step(n) for n in range(at, at + 2)]


@pytest.mark.parametrize(
    "other",
    [
        dict(),
        dict(dp=4),
        dict(pp=4, schedule="1F1B"),
        dict(tp=2, cp=2, sp=True),
        dict(pp=2, schedule="ZBVZeroBubble", ddp=True, dp=2),
    ],
    ids=str,
)
def test_a_checkpoint_goes_on_with_another_mesh(other, tmp_path):
    def work(rank, args):
        training = Training(args)
        for n in range(3):
            training.step(n)
        llama.save(tmp_path / "saved", training.modules, training.optimizers, 3)
        return [training.step(n) for n in range(3, 5)]

    saved = options(pp=2, dp=2, tp=2, schedule="Interleaved1F1B", sp=True)
    expected = run_ranks(8, work, saved)[0]
    for at, got in run_ranks(ranks_of(other), resumed, options(**other), tmp_path / "saved"):
        assert at == 3 and np.abs(np.array(got) - np.array(expected)).max() <= 1e-12
