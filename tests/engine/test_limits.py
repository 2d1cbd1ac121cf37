"""Edges: nothing, one element, very much, sizes that overflow, no memory, after a fork, several ranks in one process."""

import math
import os
import subprocess
import sys

import pytest

import pydist
from pydist import distributed, nn
from pydist.nn import functional as F


@pytest.fixture(params=["pydist", "torch"])
def lib(request):
    """The library under test, or the reference."""
    return pytest.importorskip(request.param)


def memory_free():
    with open("/proc/meminfo") as f:
        return next(int(line.split()[1]) << 10 for line in f if line.startswith("MemAvailable"))


@pytest.mark.slow
def test_more_than_two_gib():
    """2^31 elements: offsets and counts are beyond 32 bits."""
    if memory_free() < 8 << 30:
        pytest.skip("less than 8 GiB free")
    n = 2**31
    x = pydist.zeros(n, dtype=pydist.int8)
    x[-1], x[n // 2], x[n - 2] = 3, 4, -1
    assert x.numel() == x.nbytes == n and x[n - 1].item() == 3 and x[-2].item() == -1
    assert x.sum().item() == 6 and x.view(2**16, -1)[-1, -2:].tolist() == [-1, 3] and x[:: 2**30].tolist() == [0, 4]
    assert x[pydist.tensor([n - 1, n // 2])].tolist() == [3, 4] and x.view(-1, 2)[-1].tolist() == [-1, 3]
    with pytest.raises(IndexError, match="2147483648"):
        x[n]


def test_products_of_nothing(lib):
    for a, b, want in [
        ((0, 3), (3, 4), (0, 4)), ((2, 0), (0, 4), (2, 4)), ((2, 3), (3, 0), (2, 0)), ((0,), (0,), ()),
        ((5, 0, 3), (5, 3, 2), (5, 0, 2)), ((0, 2, 3), (3, 2), (0, 2, 2)), ((2, 0), (0,), (2,)),
    ]:  # fmt: skip
        x, y = lib.ones(a, requires_grad=True), lib.ones(b, requires_grad=True)
        z = x @ y
        assert tuple(z.shape) == want and z.sum().item() == 0
        z.sum().backward()
        assert x.grad.shape == x.shape and y.grad.shape == y.shape and x.grad.abs().sum().item() == 0


def test_batches_of_nothing(lib):
    F = lib.nn.functional
    w, b, k = (
        lib.ones(4, 3, requires_grad=True),
        lib.ones(4, requires_grad=True),
        lib.ones(2, 3, 3, 3, requires_grad=True),
    )
    x, image = lib.ones(0, 3, requires_grad=True), lib.ones(0, 3, 8, 8, requires_grad=True)
    y = F.relu(F.linear(x, w, b)).tanh().softmax(1)
    assert y.shape == (0, 4)
    y.sum().backward()
    assert x.grad.shape == (0, 3) and w.grad.tolist() == [[0.0] * 3] * 4 and b.grad.tolist() == [0.0] * 4
    out = F.max_pool2d(F.conv2d(image, k, padding=1), 2)
    assert out.shape == (0, 2, 4, 4)
    out.sum().backward()
    assert image.grad.shape == image.shape and k.grad.abs().sum().item() == 0
    target = lib.zeros(0, dtype=lib.int64)
    assert (
        math.isnan(F.cross_entropy(F.linear(x, w), target).item())
        and F.cross_entropy(F.linear(x, w), target, reduction="sum").item() == 0
    )
    assert math.isnan(F.mse_loss(x, x).item()) and math.isnan(x.mean().item()) and x.sum(0).tolist() == [0.0] * 3
    loss = F.cross_entropy(F.linear(x, w), target, reduction="sum")
    w.grad = None
    loss.backward()
    assert w.grad.abs().sum().item() == 0
    for broken in (lambda: x.max(), lambda: x.argmax(), lambda: x.max(0)):
        with pytest.raises((RuntimeError, IndexError)):
            broken()


def test_no_dimensions(lib):
    x = lib.tensor(2.0, requires_grad=True)
    y = (x * x + x.exp().log()).sum().reshape(1, 1).squeeze().unsqueeze(0)[0].permute(()).transpose(0, -1)
    y.backward()
    assert y.shape == () and y.item() == 6 and x.grad.item() == 5
    assert (
        x.max().item() == 2
        and x.softmax(0).item() == 1
        and x.sum(0).item() == 2
        and x.mean(-1).item() == 2
        and x.argmax().item() == 0
        and x[...].item() == 2
        and x[None].shape == (1,)
    )
    for broken in (lambda: x[0], lambda: len(x), lambda: list(x), lambda: x @ x, lambda: x.sum(1)):
        with pytest.raises((IndexError, TypeError, RuntimeError, ValueError)):
            broken()


ONE = pydist.zeros(1)
TOO_LARGE = {  # what needs more memory than there is anywhere
    "empty": lambda: pydist.empty(2**45), "zeros": lambda: pydist.zeros(2**15, 2**15, 2**15), "clone": lambda: ONE.expand(2**45).clone(), "add": lambda: ONE.expand(2**23, 2**22) + 1,
    "outer": lambda: ONE.expand(2**23, 1) + ONE.expand(1, 2**23), "matmul": lambda: ONE.expand(2**23, 1) @ ONE.expand(1, 2**22), "cat": lambda: pydist.cat([ONE.expand(2**44)] * 2),
    "stack": lambda: pydist.stack([ONE.expand(2**44)] * 2), "cast": lambda: ONE.expand(2**45).double(), "arange": lambda: pydist.arange(2**45), "randperm": lambda: pydist.randperm(2**45),
    "rand": lambda: pydist.rand(2**45), "full": lambda: pydist.full((2**45,), 1), "reshape": lambda: ONE.expand(2**23, 2**22).contiguous(), "tensor": lambda: pydist.tensor(ONE.expand(2**45)),
    "conv2d": lambda: F.conv2d(pydist.zeros(1, 1, 3, 3), pydist.zeros(1, 1, 3, 3), padding=2**22), "softmax": lambda: ONE.expand(2**45).softmax(0), "linear": lambda: F.linear(ONE.expand(2**22, 1), ONE.expand(2**23, 1)),
    "new_zeros": lambda: ONE.new_zeros(2**45), "eye": lambda: pydist.eye(2**23), "index": lambda: ONE.expand(4, 2**44)[[0, 1, 2]], "where": lambda: pydist.where(ONE.expand(2**45) > 0, 1.0, 2.0),
}  # fmt: skip


@pytest.mark.parametrize("name", TOO_LARGE)
def test_no_memory(name):
    with pytest.raises(MemoryError) as caught:
        TOO_LARGE[name]()
    assert (
        isinstance(caught.value, pydist.OutOfMemoryError)
        and isinstance(caught.value, RuntimeError)
        and "bytes" in str(caught.value)
    )
    assert (pydist.ones(3) + 1).tolist() == [2, 2, 2]


OVERFLOW = {
    "zeros": lambda: pydist.zeros(2**62, 2**62), "zeros3": lambda: pydist.zeros(2**31, 2**31, 2), "expand": lambda: ONE.expand(2**62, 2**62), "view": lambda: ONE.view(2**62, 2**62), "reshape": lambda: ONE.reshape(2**32, 2**32),
    "as_strided": lambda: ONE.as_strided((2**40, 2**40), (2**40, 1)), "offset": lambda: ONE.as_strided((1,), (1,), 2**62), "randn": lambda: pydist.randn(2**61), "int": lambda: pydist.zeros(2**63), "big": lambda: pydist.zeros(10**30),
    "outer": lambda: ONE.expand(2**40, 1) + ONE.expand(1, 2**40), "matmul": lambda: ONE.expand(2**40, 1) @ ONE.expand(1, 2**40), "cat": lambda: pydist.cat([ONE.expand(2**59)] * 16), "eye": lambda: pydist.eye(2**40),
    "negative": lambda: pydist.zeros(-1), "pad": lambda: F.conv2d(pydist.zeros(1, 1, 3, 3), pydist.zeros(1, 1, 3, 3), padding=2**62), "stride": lambda: F.conv2d(pydist.zeros(1, 1, 3, 3), pydist.zeros(1, 1, 3, 3), stride=0),
    "dilation": lambda: F.conv2d(pydist.zeros(1, 1, 3, 3), pydist.zeros(1, 1, 3, 3), dilation=2**62), "pool": lambda: F.max_pool2d(pydist.zeros(1, 1, 3, 3), 2**62), "topk": lambda: ONE.topk(2**40), "flatten": lambda: ONE.flatten(0, 2**40),
    "select": lambda: ONE[2**62], "select negative": lambda: ONE[-(2**63)], "select huge": lambda: ONE[10**30], "linspace": lambda: pydist.linspace(0, 1, 2**62), "arange": lambda: pydist.arange(0, 1, 1e-300),
}  # fmt: skip


@pytest.mark.parametrize("name", OVERFLOW)
def test_sizes_that_overflow(name):
    with pytest.raises((RuntimeError, ValueError, IndexError, OverflowError, MemoryError)) as caught:
        OVERFLOW[name]()
    assert str(caught.value)


def test_slices_far_away():
    x = pydist.arange(4)
    assert (
        x[2**62 :].tolist() == []
        and x[: 2**62].tolist() == x[-(2**62) :].tolist() == [0, 1, 2, 3]
        and x[:: 2**62].tolist() == [0]
        and x[-(10**30) : 10**30].tolist() == [0, 1, 2, 3]
    )


def test_a_fork_after_a_product():
    """The child computes, with gradients, on one thread."""
    code = (
        "import os, sys, pydist\n"
        "x = pydist.rand(400, 400, requires_grad=True)\n"
        "want = (x @ x).sum().item()\n"
        "(x @ x).sum().backward()\n"
        "pid = os.fork()\n"
        "if not pid:\n"
        "    y = pydist.ones(300_000).exp().sum().item()\n"
        "    g, = pydist.grad((x @ x).sum(), x)\n"
        "    ok = abs((x @ x).sum().item() - want) <= 1e-3 * want and (g - x.grad).abs().max().item() < 1e-2 and pydist.get_num_threads() == 1\n"
        "    os._exit(0 if ok else 1)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )
    # Python 3.12 warns of forks beside threads
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code]
    env = {**os.environ, "OMP_NUM_THREADS": "2"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env)
    assert (done.returncode, done.stderr) == (0, "")


def test_two_ranks_run_one_model():
    model = nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 50), nn.Tanh(), nn.Linear(50, 3))
    inputs = [pydist.rand(16, 20), pydist.rand(16, 20)]
    parameters = list(model.parameters())

    def gradients(x):
        return [g.tolist() for g in pydist.grad(model(x).square().sum(), parameters)]

    want = [gradients(x) for x in inputs]

    def rank(k):
        return [gradients(inputs[k]) for _ in range(30)]

    found = distributed.threads.run(rank, 2)
    assert all(g == w for many, w in zip(found, want) for g in many)
    for p in parameters:
        p.grad = None
    distributed.threads.run(lambda k: [model(inputs[k]).square().sum().backward() for _ in range(30)], 2)
    for i, p in enumerate(parameters):
        both = (pydist.tensor(want[0][i]) + pydist.tensor(want[1][i])) * 30
        assert (p.grad - both).abs().max().item() <= 1e-3 * both.abs().max().item()
