"""pydist.compress: schedules to the number, masks by them at every step, and on several ranks. tests/keras has Keras."""

import gzip
import io

import numpy as np
import pytest

import pydist
from lib.processes import within
from lib.ranks import LONG
from pydist import compress, nn, optim
from pydist import distributed as dist
from pydist.nn.parallel import DistributedDataParallel
from pydist.nn.utils import prune
from pydist.testing import run_ranks


def reference(step, initial, final, begin, end, power):
    """By the formula, in NumPy."""
    t = np.clip((np.float64(step) - begin) / (end - begin), 0, 1)
    return final + (initial - final) * (1 - t) ** power


@pytest.mark.parametrize("args", [(0.0, 0.8, 0, 10, 3, 1), (0.2, 0.9, 3, 20, 1, 4), (0.5, 0.5, 2, 9, 2, 3)])
def test_polynomial_decay(args):
    schedule = compress.PolynomialDecay(*args[:4], power=args[4], frequency=args[5])
    due = [step for step in range(1, 40) if schedule.is_due(step)]
    assert due == sorted({s for s in range(args[2], args[3] + 1, args[5]) if s} | {args[3]})
    for step in range(40):
        assert schedule.sparsity(step) == pytest.approx(reference(step, *args[:5]), abs=1e-15)


@pytest.mark.parametrize("call, match", [
    (lambda: compress.ConstantSparsity(1.0), "target_sparsity is 1.0"),
    (lambda: compress.ConstantSparsity("a"), "target_sparsity is 'a'"),
    (lambda: compress.ConstantSparsity(float("nan")), "target_sparsity is nan"),
    (lambda: compress.ConstantSparsity(0.5, begin_step=-1), "begin_step is -1"),
    (lambda: compress.ConstantSparsity(0.5, frequency=0), "frequency is 0"),
    (lambda: compress.ConstantSparsity(0.5, 10, 5), "end_step is 5"),
    (lambda: compress.PolynomialDecay(0, 0.5, 10, -1), "end_step is -1"),
    (lambda: compress.PolynomialDecay(0, 0.5, 10, 20, power=0), "power is 0"),
    (lambda: compress.PolynomialDecay(-0.1, 0.5, 10, 20), "initial_sparsity is -0.1"),
    (lambda: compress.Pruner([], compress.ConstantSparsity(0.5)), "got no parameters"),
])  # fmt: skip
def test_wrong_arguments(call, match):
    with pytest.raises(ValueError, match=match):
        call()


def trained(net, optimizer, steps, seed=0, each=lambda: None):
    generator = pydist.Generator().manual_seed(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        net(pydist.randn(6, 20, generator=generator)).square().mean().backward()
        optimizer.step()
        each()


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("make", [lambda ps: optim.SGD(ps, lr=0.05, momentum=0.9), lambda ps: optim.AdamW(ps, lr=0.01)])
def test_masks_follow_the_schedule_at_every_step(make, across):
    """The exact number of zeros, in the weights that compute; what is pruned stays so."""
    net = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 7))
    places, optimizer = [(net[0], "weight"), (net[2], "weight")], make(net.parameters())
    schedule = compress.PolynomialDecay(0.1, 0.8, 2, 20, frequency=3)
    pruner = compress.Pruner(iter(places), schedule, across=across)
    handle, last, pruned = pruner.attach(optimizer), [0.0], []

    def check():
        step = pruner.steps
        if schedule.is_due(step):
            last[0] = schedule.sparsity(step)
        masks = [module.weight_mask for module, _ in places]
        counts = [round(last[0] * m.numel()) for m in masks]
        zeros = [int((module.weight == 0).sum()) for module, _ in places]
        assert sum(zeros) == round(last[0] * sum(m.numel() for m in masks)) if across else zeros == counts
        assert pruner.sparsity() == pytest.approx(sum(zeros) / sum(m.numel() for m in masks))
        new = pydist.cat([(m == 0).reshape(-1) for m in masks])
        assert not pruned or (new | ~pruned[-1]).all()
        pruned.append(new)

    trained(net, optimizer, 25, each=check)
    assert pruner.sparsity() == pytest.approx(0.8, abs=1e-3)
    x = pydist.randn(3, 20)
    want = net(x)
    handle.remove()
    assert pruner.finish() == places and pydist.equal(net(x), want) and not prune.is_pruned(net)


def test_it_goes_on_from_files():
    def made():
        pydist.manual_seed(1)
        net = nn.Sequential(nn.Linear(20, 9))
        optimizer = optim.SGD(net.parameters(), lr=0.05)
        pruner = compress.Pruner([(net[0], "weight")], compress.PolynomialDecay(0.0, 0.7, 0, 12, frequency=2))
        pruner.attach(optimizer)
        return net, optimizer, pruner

    net, optimizer, pruner = made()
    trained(net, optimizer, 5)
    buffer = io.BytesIO()
    pydist.save([net.state_dict(), optimizer.state_dict(), pruner.state_dict()], buffer)
    buffer.seek(0)
    other, again, later = made()
    for part, state in zip((other, again, later), pydist.load(buffer), strict=True):
        part.load_state_dict(state)
    trained(net, optimizer, 7, seed=3)
    trained(other, again, 7, seed=3)
    assert pydist.equal(net[0].weight, other[0].weight) and pruner.sparsity() == later.sparsity() > 0.69


def test_masks_are_equal_on_all_ranks():
    def work(rank):
        pydist.manual_seed(5)
        net = nn.Sequential(nn.Linear(20, 9))
        model, optimizer = DistributedDataParallel(net), optim.SGD(net.parameters(), lr=0.05)
        pruner = compress.Pruner([(net[0], "weight")], compress.PolynomialDecay(0.0, 0.7, 0, 6, frequency=2))
        pruner.attach(optimizer)
        trained(model, optimizer, 6, seed=rank)
        masks = [None] * 2
        dist.all_gather_object(masks, net[0].weight_mask.tolist())
        return masks[0] == masks[1], pruner.sparsity()

    assert run_ranks(2, work) == [(True, pytest.approx(0.7))] * 2


def test_ranks_that_differ_are_an_error():
    def work(rank):
        pydist.manual_seed(rank)
        net = nn.Linear(20, 9)
        pruner = compress.Pruner([(net, "weight")], compress.ConstantSparsity(0.5, frequency=1))
        with pytest.raises(dist.CommMismatch, match="after step 1 ranks 0 and 1 prune different elements"):
            pruner.step()
        return pruner.sparsity()

    assert run_ranks(2, work) == [0, 0]


@pytest.mark.skipif(not LONG, reason="takes minutes: .ci/full runs it")
def test_a_convnet_on_mnist_loses_four_fifths_of_its_weights(data_folder):
    """Accuracy within 0.3 points of the same training without pruning; on two ranks, with equal masks."""

    def read(name, skip):
        return np.frombuffer(gzip.decompress((data_folder("mnist") / f"{name}-ubyte.gz").read_bytes()), np.uint8)[skip:]

    (x, y), (tx, ty) = (
        (
            pydist.tensor(read(f"{which}-images-idx3", 16)).view(-1, 1, 28, 28).float() / 255,
            pydist.tensor(read(f"{which}-labels-idx1", 8)).long(),
        )
        for which in ("train", "t10k")
    )

    def work(rank, pruned):
        pydist.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2),
                            nn.Flatten(), nn.Linear(800, 64), nn.ReLU(), nn.Linear(64, 10))  # fmt: skip
        model, optimizer = DistributedDataParallel(net), optim.Adam(net.parameters(), lr=1e-3)
        layers = [(net[i], "weight") for i in (0, 3, 7, 9)]
        epochs, batch = 4, 64
        steps = epochs * (len(x) // (2 * batch))
        schedule = compress.PolynomialDecay(0.0, 0.8, steps // 8, steps * 3 // 4, frequency=50)
        pruner = compress.Pruner(layers, schedule, across=True)
        if pruned:
            pruner.attach(optimizer)
        for epoch in range(epochs):
            order = pydist.randperm(len(x), generator=pydist.Generator().manual_seed(epoch))[rank::2]
            for rows in order.split(batch)[: len(x) // (2 * batch)]:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
                optimizer.step()
        share = pruner.sparsity()
        pruner.finish()
        with pydist.no_grad():
            right = sum(int((net(a).argmax(1) == b).sum()) for a, b in zip(tx.split(1000), ty.split(1000), strict=True))
        return share, right / len(tx), [int((m.weight == 0).sum()) for m, _ in layers]

    (none, plain, _), _ = run_ranks(2, work, False, timeout=within(900))
    first, second = run_ranks(2, work, True, timeout=within(900))
    assert none == 0 and first == second and first[0] == pytest.approx(0.8, abs=1e-4)
    assert first[1] > plain - 0.003 and plain > 0.975, (plain, first)
