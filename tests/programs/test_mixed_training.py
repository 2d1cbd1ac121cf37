"""Training in bfloat16 and float16 comes as far as in float32: PyTorch's example network on digits, a small GPT on characters.

The long form (FULL_LONG) makes 1,000 steps of the full sizes and demands 1 %."""

import os

import numpy as np
import pytest

import pydist
from pydist import amp, optim
from pydist.examples.mnist import Convolutional
from pydist.models import GPT, GPTConfig
from pydist.nn import functional as F
from pydist.vision.datasets import idx

LONG = "FULL_LONG" in os.environ
STEPS = 1000 if LONG else 20
WITHIN = 0.01 if LONG else 0.03


def images(folder):
    x, t = idx.read_pair(folder, "train" if LONG else "t10k")
    x, t = (v if LONG else v[:1024] for v in (x, t))
    x = pydist.tensor((np.array(x, np.float32) / 255 - 0.13) / 0.31).unsqueeze(1)
    return x if LONG else F.avg_pool2d(x, 2), pydist.tensor(np.array(t, np.int64))


def digits(data_folder):
    x, t = images(data_folder("mnist"))
    model = Convolutional(*x.shape[2:])
    order = np.random.default_rng(0)
    optimizer = optim.Adadelta(model.parameters(), lr=0.5)

    def loss():
        at = pydist.tensor(order.integers(0, len(x), 64 if LONG else 32))
        return F.cross_entropy(model(x[at]), t[at])

    return model, optimizer, loss


def characters(data_folder):
    text = (data_folder("text") / "wikitext-2-valid.txt").read_text("utf-8")[:200_000]
    letters = sorted(set(text))
    numbers = np.array([letters.index(c) for c in text])
    length = 64 if LONG else 16
    model = GPT(
        GPTConfig(len(letters), length, n_layer=4 if LONG else 2, n_head=4, n_embd=128 if LONG else 32, dropout=0.0)
    )
    order = np.random.default_rng(0)
    optimizer = optim.AdamW(model.parameters(), lr=1e-3 if LONG else 3e-3)

    def loss():
        rows = np.array([numbers[i : i + length + 1] for i in order.integers(0, len(numbers) - length - 1, 12)])
        return model.loss(pydist.tensor(rows[:, :-1].copy()), pydist.tensor(rows[:, 1:].copy()))

    return model, optimizer, loss


def train(task, data_folder, dtype):
    """The mean loss of the second half of the steps."""
    pydist.manual_seed(0)
    model, optimizer, loss_of = task(data_folder)
    scale = 2.0**16 if LONG else 2.0**10  # so that few of few steps are left out
    scaler, losses = amp.GradScaler("cpu", init_scale=scale, enabled=dtype is pydist.float16), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        with pydist.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            loss = loss_of()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    return sum(losses[STEPS // 2 :]) / (STEPS - STEPS // 2)


@pytest.mark.parametrize("task", [digits, characters])
def test_low_precision_comes_as_far(data_folder, task):
    exact = train(task, data_folder, None)
    for dtype in (pydist.bfloat16, pydist.float16):
        reached = train(task, data_folder, dtype)
        print(task.__name__, dtype, f"{reached:.4f}, float32 {exact:.4f}: {reached / exact - 1:+.2%}")
        assert reached < exact * (1 + WITHIN), (task.__name__, dtype, reached, exact)
