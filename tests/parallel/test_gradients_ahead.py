"""Gradients that lie where their owner wants them: made there by forwards, or replaced by hooks."""

import gc

import pytest

import pydist
from pydist import _C, nn
from pydist import distributed as dist
from pydist.distributed.fsdp import fully_shard
from pydist.nn.parallel import DistributedDataParallel
from pydist.testing import run_ranks

F = nn.functional
ROWS, WIDTH = 40, 8


class Tied(nn.Module):
    """An embedding that is also the head, whose gradient forward makes."""

    def __init__(self, rows):
        super().__init__()
        self.tokens, self.inner = nn.Embedding(rows, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return F.linear_cross_entropy(self.inner(self.tokens(x)).tanh(), self.tokens.weight, x.roll(1))


def made(way, rows=ROWS):
    pydist.manual_seed(0)
    model = Tied(rows)
    if way == "fully_shard":
        fully_shard(model.inner)
        fully_shard(model)
    elif way == "ddp":
        model = DistributedDataParallel(model)
    return model


def batches(rank):
    pydist.manual_seed(10 + rank)
    return [pydist.randint(0, ROWS, (12,)) for _ in range(2)]


def one(model, a, b):
    model(a).backward()


def scaled(model, a, b):
    (model(a) * 0.37).backward()


def two_in_order(model, a, b):
    first, second = model(a), model(b)
    first.backward()
    second.backward()


def two_in_reverse(model, a, b):
    first, second = model(a), model(b)
    second.backward()
    first.backward()


def one_given_up(model, a, b):
    lost = model(b)
    model(a).backward()
    del lost


def kept(model, a, b):
    loss = model(a)
    loss.backward(retain_graph=True)
    (loss * 3).backward()


def summed(model, a, b):
    (model(a) + model(b)).backward()


def micro(model, a, b):
    sync = getattr(model, "set_requires_gradient_sync", lambda on: None)
    sync(False)
    model(a).backward()
    sync(True)
    model(b).backward()


def hooked(model, a, b):
    with pydist.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        loss = model(a)
    loss.backward()


PROGRAMS = [one, scaled, two_in_order, two_in_reverse, one_given_up, kept, summed, micro, hooked]


def gradients(way, program):
    """The mean gradients after each of three steps that change the parameters."""
    model, found = made(way), []
    world = dist.get_world_size()
    for _ in range(3):
        program(model, *batches(dist.get_rank()))
        for p in model.parameters():
            whole = p.grad.full_tensor() if way == "fully_shard" else p.grad.clone()
            if way == "plain":
                dist.all_reduce(whole)
                whole /= world
            found.append(whole)
            with pydist.no_grad():
                p -= 0.1 * (p.grad if way != "plain" else whole)
            p.grad = None
    return found


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_of_forwards(program):
    """Whatever is written to a destination while a forward's gradient lies there does not change that gradient."""

    def rank(_):
        wanted = gradients("plain", program)
        for got, want in zip(gradients("fully_shard", program), wanted, strict=True):
            pydist.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
        dist.barrier()

    run_ranks(2, rank)


def test_no_copy():
    """After the first step a forward has a tied head's gradient in memory that is there already."""

    def rank(_):
        model, x = made("fully_shard", rows=4096), batches(dist.get_rank())[0]
        kept = []
        for _ in range(3):
            gc.collect()
            before = _C.memory_allocated()
            loss = model(x)
            kept.append(_C.memory_allocated() - before)
            loss.backward()
            for p in model.parameters():
                p.grad = None
        return kept

    table = 4096 * WIDTH * 4
    for kept in run_ranks(2, rank, processes=True):
        assert kept[0] > table and max(kept[1:]) < table / 2


@pytest.mark.parametrize("view", [lambda g: g.t(), lambda g: g.flip(0), lambda g: g[:, :1].expand_as(g)])
def test_of_hooks(view):
    """A hook may return another view of the gradient, which lies in the destination already."""

    def rank(_):
        pydist.manual_seed(0)
        layer = nn.Linear(5, 5, bias=False)
        layer.weight.register_hook(view)
        x = pydist.randn(4, 5)
        layer(x).square().sum().backward()
        want, layer.weight.grad = layer.weight.grad.clone(), None
        model = DistributedDataParallel(layer)
        for _ in range(2):
            model.zero_grad()
            model(x).square().sum().backward()
            pydist.testing.assert_close(layer.weight.grad, want)

    run_ranks(2, rank)
