"""Training steps of small models, for tests that compare replays with calls of Python bit by bit.

A case is a function that makes a step: it takes a batch (x, t) and returns the loss. `train` runs one for some batches, as it
is or through `_replay.Recorded`, and returns the bits of all losses and, at the end, of all parameters, buffers and states.
"""

import hashlib

import pydist
from pydist import _replay, nn, optim
from pydist.nn import functional as F

CASES = {}


def case(shape, classes=4, integers=None, wrap=lambda model: model):
    def keep(make):
        CASES[make.__name__] = make, shape, classes, integers
        return make

    return keep


def step_of(model, optimizer, loss=F.cross_entropy):
    def step(x, t):
        optimizer.zero_grad()
        value = loss(model(x), t)
        value.backward()
        optimizer.step()
        return value.detach()

    return step


def wrapped(model, wrap):
    return wrap(model) if wrap else model


@case((8, 20))
def mlp(wrap):
    net = wrapped(nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 4)), wrap)
    return net, step_of(net, optim.Adam(net.parameters(), lr=1e-2))


@case((4, 3, 12, 12))
def cnn(wrap):
    net = wrapped(
        nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout2d(0.2),
            nn.Conv2d(8, 8, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Dropout(0.3), nn.Linear(72, 4),
        ),
        wrap,
    )  # fmt: skip
    return net, step_of(net, optim.SGD(net.parameters(), lr=1e-2, momentum=0.9, nesterov=True))


class Block(nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        self.one = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.two = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(outside), nn.BatchNorm2d(outside)])
        self.short = nn.Conv2d(inside, outside, 1, stride, bias=False) if inside != outside else nn.Identity()

    def forward(self, x):
        y = self.norms[1](self.two(self.norms[0](self.one(x)).relu_()))
        y += self.short(x)
        return y.relu_()


@case((4, 3, 8, 8))
def resnet20(wrap):
    widths = [4] * 4 + [8] * 3 + [12] * 3
    blocks = [Block(a, b, 1 + (a != b)) for a, b in zip(widths, widths[1:])]
    net = wrapped(nn.Sequential(nn.Conv2d(3, 4, 3, 1, 1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 4)), wrap)  # fmt: skip
    net.to(memory_format=pydist.channels_last)
    return net, step_of(net, optim.RMSprop(net.parameters(), lr=1e-3))


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.cell, self.out = nn.Embedding(30, 8), nn.LSTM(8, 12, 2, batch_first=True, dropout=0.1), nn.Linear(12, 4)  # fmt: skip

    def forward(self, x):
        return self.out(self.cell(self.table(x))[0][:, -1])


@case((4, 7), integers=30)
def lstm(wrap):
    net = wrapped(Reader(), wrap)
    optimizer = optim.AdamW(net.parameters(), lr=1e-2)

    def step(x, t):
        optimizer.zero_grad(set_to_none=False)
        loss = F.cross_entropy(net(x), t)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        return {"loss": loss.detach()}

    return net, step


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(30, 16)
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(16, 2, 32, 0.1, batch_first=True) for _ in range(2)])
        self.out = nn.Linear(16, 4)

    def forward(self, x):
        y = self.table(x) + pydist.arange(x.shape[1], device=x.device).unsqueeze(1) / 10
        for layer in self.layers:
            y = layer(y)
        return self.out(y.mean(1))


@case((4, 6), integers=30)
def transformer(wrap):
    net = wrapped(Transformer(), wrap)
    return net, step_of(net, optim.NAdam(net.parameters(), lr=1e-3))


@case((8, 20))
def autocast(wrap):
    net = wrapped(nn.Sequential(nn.Linear(20, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)), wrap)
    optimizer = optim.Adam(net.parameters(), lr=1e-2)

    def step(x, t):
        optimizer.zero_grad()
        with pydist.autocast("cpu", dtype=pydist.bfloat16):
            loss = F.cross_entropy(net(x), t)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return net, step


@case((8, 20))
def scaler(wrap):
    net = wrapped(nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 4)), wrap)
    optimizer = optim.SGD(net.parameters(), lr=1e-2, momentum=0.9)
    grad_scaler = pydist.amp.GradScaler("cpu", init_scale=2.0**126, growth_interval=7)

    def step(x, t):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), t)
        grad_scaler.scale(loss).backward()
        grad_scaler.step(optimizer)
        grad_scaler.update()
        return loss.detach()

    return net, step


def hash_of(tensors):
    found = hashlib.sha256()
    for t in tensors:
        found.update(t.detach().contiguous().numpy().tobytes())
    return found.hexdigest()


def train(name, steps, record, rank=0, wrap=None):
    """(bits of each loss, bits of the model at the end, how the step ran)"""
    make, shape, classes, integers = CASES[name]
    pydist.manual_seed(7)
    net, step = make(wrap)
    run = _replay.Recorded(step) if record else step
    source, losses = pydist.Generator().manual_seed(11 + rank), []
    for _ in range(steps):
        x = pydist.randint(0, integers, shape, generator=source) if integers else pydist.randn(shape, generator=source)
        loss = run(x, pydist.randint(0, classes, shape[:1], generator=source))
        losses.append((loss["loss"] if isinstance(loss, dict) else loss).item().hex())
    return losses, hash_of([*net.parameters(), *net.buffers()]), run.state if record else "eager"
