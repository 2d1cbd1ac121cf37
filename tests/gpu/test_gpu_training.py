"""Training on CUDA next to the CPU: the same losses and parameters, whatever the optimizer."""

import pytest

import pydist
from pydist import nn
from pydist.nn import functional as F

if not pydist.cuda.is_available() or pydist._C.pretended_cuda():
    pytest.skip("no CUDA device", allow_module_level=True)

OPTIMIZERS = {
    "SGD": {"lr": 0.05, "momentum": 0.9, "nesterov": True}, "Adam": {"lr": 1e-2, "amsgrad": True}, "AdamW": {"lr": 1e-2}, "Adadelta": {},
    "RMSprop": {"lr": 1e-3, "momentum": 0.5, "centered": True}, "Adagrad": {}, "NAdam": {}, "RAdam": {}, "Adamax": {}, "ASGD": {}, "Rprop": {},
    "Lion": {"lr": 1e-3}, "LAMB": {"lr": 1e-2, "weight_decay": 0.01}, "Adafactor": {}, "SparseAdam": {"lr": 1e-2, "eps": 1e-3},
}  # fmt: skip


def train(device, optimizer, dtype, steps=6):
    pydist.manual_seed(0)
    model = (
        nn.Sequential(nn.Linear(20, 33), nn.GELU(), nn.LayerNorm(33), nn.Dropout(0.1), nn.Linear(33, 5))
        .to(dtype)
        .to(device)
    )
    steps_of = getattr(pydist.optim, optimizer)(model.parameters(), **OPTIMIZERS[optimizer])
    x, y = pydist.randn(16, 20, dtype=dtype).to(device), pydist.randint(0, 5, (16,)).to(device)
    losses = []
    for _ in range(steps):
        steps_of.zero_grad()
        loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        steps_of.step()
        losses.append(loss.item())
    return losses, [p.detach().cpu() for p in model.parameters()]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_steps_are_the_cpus(optimizer, dtype):
    near = 2e-3 if dtype == "float32" else 1e-9
    want, got = (train(device, optimizer, getattr(pydist, dtype)) for device in ("cpu", "cuda"))
    assert len(set(want[0])) == len(want[0])
    assert max(abs(a - b) for a, b in zip(got[0], want[0])) <= near
    if optimizer not in ("Lion", "Rprop") or dtype == "float64":  # these step by the sign of what may be 0
        assert max((a - b).abs().max().item() for a, b in zip(got[1], want[1])) <= near


@pytest.mark.parametrize("optimizer", ["Muon", "LBFGS"])
def test_steps_of_matrices_are_the_cpus(optimizer):
    found = []
    for device in ("cpu", "cuda"):
        pydist.manual_seed(0)
        p, x, y = (pydist.randn(*size).to(device) for size in ((7, 5), (20, 7), (20, 5)))
        steps_of, losses = getattr(pydist.optim, optimizer)([p.requires_grad_()], lr=0.1), []

        def closure():
            steps_of.zero_grad()
            loss = F.mse_loss(x @ p, y)
            loss.backward()
            return loss

        losses = [steps_of.step(closure).item() for _ in range(4)]
        found.append(losses + p.flatten().tolist())
    assert found[1] == pytest.approx(found[0], abs=2e-2 if optimizer == "Muon" else 1e-3)  # Muon turns in bfloat16
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_16_bit_parameters_step_as_the_cpus(optimizer, dtype):
    """Also by chance, by which bfloat16 is rounded alike on both."""
    by_chance = {"stochastic_rounding": 5} if optimizer in ("SGD", "Adam", "AdamW") and dtype == "bfloat16" else {}
    found = []
    for device in ("cpu", "cuda"):
        params = [pydist.linspace(-1, 1, n).to(getattr(pydist, dtype)).to(device).requires_grad_() for n in (5, 1030)]
        steps_of = getattr(pydist.optim, optimizer)(params, **OPTIMIZERS[optimizer], **by_chance)
        for _ in range(3):
            for p in params:
                p.grad = p.detach() * 0.5
            steps_of.step()
        found.append([p.detach().cpu().float() for p in params])
    for got, want in zip(*found[::-1]):
        differ = (got - want).abs()
        assert differ.max().item() <= 2**-6 and (differ > 0).float().mean().item() < 0.05


KERAS = {
    "sgd": (1, {"momentum": 0.9, "nesterov": True}),
    "adam": (3, {"beta1": 0.9, "beta2": 0.99, "eps": 1e-3, "amsgrad": True}),
    "moments": (2, {"beta1": 0.9, "beta2": 0.99, "eps": 1e-3, "momentum_decay": 1.0, "nesterov": True}),
    "adamax": (2, {"beta1": 0.9, "beta2": 0.99, "eps": 1e-3}),
    "rmsprop": (3, {"alpha": 0.9, "eps": 1e-3, "momentum": 0.9, "centered": True}),
    "adagrad": (1, {"eps": 1e-3}),
}


@pytest.mark.parametrize("method", KERAS)
def test_steps_by_keras_formulas_are_the_cpus(method):
    """The gradients are a list, and the numbers of the step are tensors, here on the host."""
    columns, options = KERAS[method]
    pydist.manual_seed(0)
    start, grads = pydist.randn(2, 700), pydist.randn(3, 2, 700)
    results = []
    for device in ("cpu", "cuda"):
        p = start.clone().to(device)
        states = [pydist.full_like(p, 0.25) for _ in range(columns)]
        for n, grad in enumerate(grads):
            now = pydist.full((), 0.5**n), pydist.full((), n, dtype=pydist.int64), pydist.ones(())
            step = getattr(pydist._C, f"{method}_step")
            step([p], *([state] for state in states), keras=([grad.to(device)], *now), **options)
        results.append([p.cpu(), *(state.cpu() for state in states)])
    for ours, cpus in zip(*results):
        pydist.testing.assert_close(ours, cpus, rtol=1e-5, atol=1e-6)


def test_bad_labels_are_named():
    x, y = pydist.randn(4, 3, device="cuda"), pydist.tensor([0, 2, 7, 1], device="cuda")
    with pytest.raises(IndexError, match="cross_entropy: target 7 at row 2 is out of range .expected 0 to 2"):
        F.cross_entropy(x, y).item()  # nobody waits for the labels before that


@pytest.mark.parametrize("sizes", [(1, 1, 1), (64, 64, 16), (65, 63, 17), (3, 200, 5), (130, 7, 70), (5, 4, 0)])
def test_products(sizes):
    M, N, K = sizes
    for dtype in (pydist.float32, pydist.float64, pydist.bfloat16, pydist.float16):
        a, b = pydist.randn(M, K).to(dtype), pydist.randn(N, K).to(dtype)
        want, near = a.double() @ b.double().T, 0.02 * max(K, 1) ** 0.5 if dtype.itemsize == 2 else 1e-4
        for got in (a.cuda() @ b.cuda().T, a.T.contiguous().cuda().T @ b.cuda().T, F.linear(a.cuda(), b.cuda())):
            assert ((got.cpu().double() - want).abs() <= near).all().item(), (dtype, sizes)
