"""Whole training runs next to torch's: the same weights at the start, the same numbers on the way.

fp64 runs agree to rounding. In fp32 two correct programs drift apart, faster the deeper the network, so the fp64 run is
the reference and torch's own fp32 distance from it the measure.
"""

import statistics

import pytest

import pydist

STEPS = 50
OPTIMIZERS = [
    ("SGD", {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3}),
    ("Adam", {"lr": 1e-3}),
    ("AdamW", {"lr": 1e-3}),
    ("Adadelta", {"lr": 1.0}),
]


def mlp(lib):
    nn = lib.nn
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def cnn(lib):
    nn = lib.nn
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip


def from_torch(tensor):
    return pydist.from_numpy(tensor.detach().numpy().copy())


def batches(torch, dtype, seed, count):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        x = torch.randn(16, 1, 8, 8, generator=generator, dtype=torch.float64).to(dtype)
        yield x, torch.randint(0, 10, (16,), generator=generator)


def start(torch, make, seed, dtype):
    """The pair of networks with equal weights, those of the seed rounded to dtype."""
    torch.manual_seed(seed)
    theirs = make(torch).double().to(dtype)
    ours = make(pydist).to(getattr(pydist, str(dtype).rpartition(".")[2]))
    ours.load_state_dict({name: from_torch(value) for name, value in theirs.state_dict().items()})
    return ours, theirs


def train(lib, net, optimizer, data):
    """The losses of the steps."""
    losses = []
    for x, t in data:
        optimizer.zero_grad()
        loss = lib.nn.functional.cross_entropy(net(x), t)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def ours_from(data):
    return ((from_torch(x), from_torch(t)) for x, t in data)


@pytest.mark.parametrize("make", [mlp, cnn], ids=lambda f: f.__name__)
@pytest.mark.parametrize("kind, options", OPTIMIZERS, ids=[kind for kind, _ in OPTIMIZERS])
def test_fifty_steps_in_fp64(torch, make, kind, options):
    ours, theirs = start(torch, make, 0, torch.float64)
    data = list(batches(torch, torch.float64, 1, STEPS))
    a = train(pydist, ours, getattr(pydist.optim, kind)(ours.parameters(), **options), ours_from(data))
    b = train(torch, theirs, getattr(torch.optim, kind)(theirs.parameters(), **options), data)
    assert len(a) == STEPS and max(abs(x - y) for x, y in zip(a, b)) < 1e-9
    assert a[0] != a[-1]
    for name, value in theirs.state_dict().items():
        assert (ours.state_dict()[name] - from_torch(value)).abs().max().item() < 1e-9, name


@pytest.mark.parametrize("make", [mlp, cnn], ids=lambda f: f.__name__)
def test_first_gradients_in_fp32(torch, make):
    """Within 1e-5 of the largest element of torch's."""
    ours, theirs = start(torch, make, 2, torch.float32)
    ((x, t),) = batches(torch, torch.float32, 3, 1)
    torch.nn.functional.cross_entropy(theirs(x), t).backward()
    pydist.nn.functional.cross_entropy(ours(from_torch(x)), from_torch(t)).backward()
    largest = max(q.grad.abs().max().item() for q in theirs.parameters())
    for (name, p), q in zip(ours.named_parameters(), theirs.parameters()):
        assert (p.grad - from_torch(q.grad)).abs().max().item() <= 1e-5 * largest, name


def test_trajectory_in_fp32(torch):
    """Our fp32 CNN ends no further from torch's fp64 run than twice as far as torch's fp32 run does (median of 5)."""
    ratios = []
    for seed in range(5):
        _, exact = start(torch, cnn, seed, torch.float64)
        ours, theirs = start(torch, cnn, seed, torch.float32)
        data = list(batches(torch, torch.float32, 100 + seed, STEPS))
        options = {"lr": 0.05, "momentum": 0.9}
        train(torch, exact, torch.optim.SGD(exact.parameters(), **options), [(x.double(), t) for x, t in data])
        train(torch, theirs, torch.optim.SGD(theirs.parameters(), **options), data)
        train(pydist, ours, pydist.optim.SGD(ours.parameters(), **options), ours_from(data))

        def distance(values):
            pairs = zip(values, exact.parameters())
            return sum(((value - q.detach()) ** 2).sum().item() for value, q in pairs) ** 0.5

        theirs_off = distance(q.detach().double() for q in theirs.parameters())
        ours_off = distance(torch.from_numpy(p.detach().double().numpy().copy()) for p in ours.parameters())
        assert theirs_off > 0
        ratios.append(ours_off / theirs_off)
    assert statistics.median(ratios) <= 2.0, ratios
