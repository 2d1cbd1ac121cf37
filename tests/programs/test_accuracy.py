"""Classifiers next to torch's: from the same weights and in the same order, the accuracy on what was not trained on.

FULL_LONG trains as long as it takes to compare accuracies; the short form compares the first losses.
"""

import gzip
import importlib
import os
import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import pydist

LONG = "FULL_LONG" in os.environ


@pytest.fixture
def transplanted(torch, monkeypatch):
    """A function from the name of a module of pydist's, and of those that it imports, to its source run over torch. The
    one name that torch has not is made of what it has."""

    def add_norm(norm, x, y, low_precision=False):
        return x + y, norm(x + y)

    monkeypatch.setattr(torch.nn.modules.normalization, "add_norm", add_norm, raising=False)

    def load(name, *others):
        for ours in (*others, name):
            theirs = ours.replace("pydist", "torch", 1)
            monkeypatch.setitem(sys.modules, theirs, module := ModuleType(theirs))
            source = Path(importlib.import_module(ours).__file__).read_text("utf-8")
            exec(compile(re.sub(r"\bpydist\b", "torch", source), theirs, "exec"), vars(module))
        return module

    return load


def train(lib, net, batches, steps, lr):
    """The losses of Adam, whose rate falls from `lr` to 0 over the steps."""
    optimizer, losses = lib.optim.AdamW(net.parameters(), lr=lr, weight_decay=0.01), []
    schedule = lib.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    net.train()
    for *inputs, target in batches:
        optimizer.zero_grad()
        loss = lib.nn.functional.cross_entropy(net(*map(lib.from_numpy, inputs)), lib.from_numpy(target))
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return np.array(losses)


def accuracy(lib, net, batches):
    """In percent."""
    net.eval()
    with lib.no_grad():
        right = [net(*map(lib.from_numpy, inputs)).argmax(1).numpy() == target for *inputs, target in batches]
    return 100 * np.concatenate(right).mean()


def compare(torch, ours, theirs, batches, test, lr, points):
    """`batches` is a list, `test` a function to one."""
    ours.load_state_dict({k: pydist.from_numpy(v.numpy().copy()) for k, v in theirs.state_dict().items()})
    mine, want = (train(lib, net, batches, len(batches), lr) for lib, net in ((pydist, ours), (torch, theirs)))
    np.testing.assert_allclose(mine[:3], want[:3], rtol=1e-3)
    if LONG:
        got, expected = accuracy(pydist, ours, test()), accuracy(torch, theirs, test())
        print(f"accuracy {got:.2f}, torch {expected:.2f}; loss {mine[-20:].mean():.4f}, torch {want[-20:].mean():.4f}")
        assert abs(got - expected) <= points


# CIFAR-10


def images(folder, name):
    """(images [N, 3, 32, 32], labels [N])"""
    rows = np.frombuffer(gzip.decompress((folder / f"{name}.bin.gz").read_bytes()), np.uint8).reshape(-1, 3073)
    return (rows[:, 1:].reshape(-1, 3, 32, 32).astype(np.float32) - 120) / 64, rows[:, 0].astype(np.int64)


def test_resnet18(torch, data_folder, transplanted):
    """Three epochs over one batch of CIFAR-10, within two points."""
    folder = data_folder("cifar-10")
    x, y = images(folder, "data_batch_1")
    order = np.random.default_rng(0)
    rows = [part for _ in range(3) for part in np.array_split(order.permutation(len(y)), len(y) // 128)]
    batches = [(x[part], y[part]) for part in (rows if LONG else [part[:8] for part in rows[:3]])]

    def test():
        tx, ty = images(folder, "test_batch")
        return [(tx[i : i + 500], ty[i : i + 500]) for i in range(0, len(ty), 500)]

    def network(models):
        return models.ResNet(models.BasicBlock, [2, 2, 2, 2] if LONG else [1, 1, 1, 1], num_classes=10)

    torch.manual_seed(0)
    theirs = network(transplanted("pydist.vision.models.resnet", "pydist.vision.models._api"))
    compare(torch, network(importlib.import_module("pydist.vision.models.resnet")), theirs, batches, test, 1e-3, 2.0)


# SST-2


def sentences(data_folder, parts, longest=48):
    """[(tokens, label)] for each part, the first of which is the training set, and how many tokens there are: words of
    the training set from 3 on, 1 for others, 2 before each sentence, 0 for padding."""
    folder, numbers, read = data_folder("sst2"), {}, []
    for part in parts:
        lines = (folder / f"stsa.binary.{part}").read_text("utf-8", errors="replace").splitlines()
        rows = [line.split() for line in lines]
        if not read:
            numbers = {word: i for i, word in enumerate(sorted({word for _, *words in rows for word in words}), 3)}
        read.append([([2, *(numbers.get(w, 1) for w in words)][:longest], int(label)) for label, *words in rows])
    return read, len(numbers) + 3


def batched(pairs, rows):
    """[(tokens [N, T], labels [N])], T at least 8."""
    batches = []
    for part in rows:
        tokens = np.zeros((len(part), max(8, *(len(pairs[i][0]) for i in part))), np.int64)
        for at, i in enumerate(part):
            tokens[at, : len(pairs[i][0])] = pairs[i][0]
        batches.append((tokens, np.array([pairs[i][1] for i in part])))
    return batches


def compare_on_sst2(torch, data_folder, make, epochs, lr):
    """`make(lib, words)` makes the network."""
    (train, dev, test), words = sentences(data_folder, ("train", "dev", "test"))
    order = np.random.default_rng(0)
    rows = [part for _ in range(epochs) for part in np.array_split(order.permutation(len(train)), len(train) // 32)]
    held = sorted(dev + test, key=lambda pair: len(pair[0]))  # like lengths together
    torch.manual_seed(0)
    theirs = make(torch, words)
    compare(
        torch, make(pydist, words), theirs, batched(train, rows if LONG else [part[:8] for part in rows[:3]]),
        lambda: batched(held, np.array_split(np.arange(len(held)), len(held) // 64)), lr, 1.0,
    )  # fmt: skip


def test_bert_mini(torch, data_folder, transplanted):
    bert = {pydist: pydist.models.bert, torch: transplanted("pydist.models.bert", "pydist.models._parts")}

    def make(lib, words):
        class Classifier(bert[lib].BERTClassifier):
            def forward(self, tokens):
                return super().forward(tokens, tokens != 0)

        return Classifier(bert[lib].BERTConfig(words, 48, 1, 4, 4, 256, dropout=0.0), 2)

    compare_on_sst2(torch, data_folder, make, 3, 3e-4)


def test_text_convolutions(torch, data_folder):
    """A classifier of words by convolutions of three widths (Kim, arXiv 1408.5882)."""

    def make(lib, words):
        class Classifier(lib.nn.Module):
            def __init__(self):
                super().__init__()
                self.embedding = lib.nn.Embedding(words, 100, padding_idx=0)
                self.convolutions = lib.nn.ModuleList([lib.nn.Conv1d(100, 100, width) for width in (3, 4, 5)])
                self.out = lib.nn.Linear(300, 2)

            def forward(self, tokens):
                x = self.embedding(tokens).transpose(1, 2)
                return self.out(lib.cat([conv(x).relu().amax(2) for conv in self.convolutions], 1))

        return Classifier()

    compare_on_sst2(torch, data_folder, make, 4, 1e-3)
