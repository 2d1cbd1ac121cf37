"""A steady training step asks the system for no memory: what one step frees serves the next."""

import sys
from pathlib import Path

import pytest

import pydist
from pydist import _C, nn, optim
from pydist.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.workloads.gpt import gpt


def mlp():
    net = nn.Sequential(nn.Linear(30, 20), nn.ReLU(), nn.Dropout(0.1), nn.Linear(20, 5))
    x, t = pydist.randn(8, 30), pydist.randint(0, 5, (8,))
    return net, lambda: nn.functional.cross_entropy(net(x), t), optim.Adam


def cnn():
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3), nn.Flatten(),
        nn.Linear(200, 5),
    )  # fmt: skip
    x, t = pydist.randn(4, 3, 16, 16), pydist.randint(0, 5, (4,))
    return net, lambda: nn.functional.nll_loss(net(x).log_softmax(1), t), lambda p: optim.SGD(p, lr=0.1, momentum=0.9)


def gpt_nano():
    net = gpt(pydist, "nano")
    x, t = (pydist.randint(0, 65, (2, 64)) for _ in range(2))
    return net, lambda: net(x, t), optim.AdamW


def checkpointed():
    net = nn.Sequential(nn.Linear(30, 20), nn.Tanh(), nn.Linear(20, 5))
    x = pydist.randn(8, 30)
    return net, lambda: checkpoint(net, x, use_reentrant=False).square().mean(), optim.AdamW


@pytest.mark.skipif(not _C._memory_kept(), reason="a sanitizer's build keeps no freed memory")
@pytest.mark.parametrize("make", [mlp, cnn, gpt_nano, checkpointed])
def test_a_steady_step_asks_for_no_memory(make):
    _C._thread_num_threads(1)  # which threads meet in a primitive differs from step to step
    try:
        net, loss_of, optimizer = make()
        optimizer = optimizer(net.parameters())
        asked = []
        for _ in range(8):
            before = _C._memory_asked()
            optimizer.zero_grad()
            loss_of().backward()
            optimizer.step()
            asked.append(_C._memory_asked() - before)
    finally:
        _C._thread_num_threads(0)
    assert asked[0] > 0 and asked[4:] == [0, 0, 0, 0], asked
