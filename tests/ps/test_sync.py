"""Synchronous stores: the bits of DDP with the same optimizer, MXNet's rules, rounds."""

import hashlib

import numpy as np
import pytest

import pydist
from lib.ranks import LONG
from pydist import distributed as dist
from pydist import nn, optim
from pydist.distributed import ps
from pydist.nn.parallel import DistributedDataParallel
from pydist.testing import run_ranks

STEPS = 50 if LONG else 12
WORLDS = (1, 2, 3, 4) if LONG else (1, 2, 3)
OPTIMIZERS = {
    "sgd": lambda p: optim.SGD(p, lr=0.0005, momentum=0.9, weight_decay=1e-2),
    "nesterov": lambda p: optim.SGD(p, lr=0.0005, momentum=0.9, nesterov=True, dampening=0.0),
    "adam": lambda p: optim.Adam(p, lr=0.01, weight_decay=1e-2),
    "amsgrad": lambda p: optim.Adam(p, lr=0.01, amsgrad=True),
    "adamw": lambda p: optim.AdamW(p, lr=0.01),
    "adagrad": lambda p: optim.Adagrad(p, lr=0.005, lr_decay=0.01),
    "rmsprop": lambda p: optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "adadelta": lambda p: optim.Adadelta(p, lr=0.5),
    "adamax": lambda p: optim.Adamax(p, lr=0.01),
    "nadam": lambda p: optim.NAdam(p, lr=0.01),
    "radam": lambda p: optim.RAdam(p, lr=0.01),
    "lion": lambda p: optim.Lion(p, lr=0.001),
}


def model(dtype=pydist.float32):
    """With more than one stripe and more than one piece in a parameter."""
    pydist.manual_seed(5)
    return nn.Sequential(nn.Linear(24, 12000), nn.Tanh(), nn.Linear(12000, 3)).to(dtype)


def rows(rank, i, dtype):
    r = np.random.default_rng(1000 * i + rank)
    return pydist.tensor(r.standard_normal((4, 24)).astype(np.float32)).to(dtype)


def sha(tensors):
    h = hashlib.sha256()
    for t in tensors:
        h.update(t.detach().clone().contiguous().view(pydist.uint8).numpy().tobytes())
    return h.hexdigest()


def shas(own, states):
    """The hash of the parameters, and those of each parameter's states."""
    return sha(own.parameters()), {n: sorted(sha([s]) for s in states(n, p)) for n, p in own.named_parameters()}


def by_ddp(rank, name, dtype, steps):
    own = model(dtype)
    ddp = DistributedDataParallel(own) if dist.get_world_size() > 1 else own
    opt = OPTIMIZERS[name](own.parameters())
    for i in range(steps):
        opt.zero_grad()
        ddp(rows(rank, i, dtype)).square().mean().backward()
        opt.step()
    return shas(own, lambda n, p: [s for s in opt.state[p].values() if s.ndim])


def by_store(rank, name, dtype, steps, kind="dist_sync", bound=None):
    own = model(dtype)
    opt = OPTIMIZERS[name](own.parameters())
    trainer = ps.Trainer(own.named_parameters(), opt, kvstore=kind, reduce="mean", max_staleness=bound)
    for i in range(steps):
        trainer.zero_grad()
        own(rows(rank, i, dtype)).square().mean().backward()
        trainer.step(1)
    kv = trainer.kvstore
    return shas(own, lambda n, p: [s for s in kv._c.states(kv._keys[n])[1:] if s is not None])


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_bits_of_ddp(name, world):
    want = run_ranks(world, by_ddp, name, pydist.float32, STEPS)
    assert run_ranks(world, by_store, name, pydist.float32, STEPS) == want


@pytest.mark.parametrize("dtype", [pydist.float64, pydist.bfloat16, pydist.float16], ids=str)
def test_the_bits_of_ddp_in_other_dtypes(dtype):
    """Without a float32 copy, which ZeRO and DDP do not have either."""
    name = "sgd" if dtype is pydist.float16 else "adamw"  # whose eps is 0 in float16
    assert run_ranks(2, by_store, name, dtype, 6) == run_ranks(2, by_ddp, name, dtype, 6)


def test_the_bits_of_processes_and_of_no_staleness():
    want = run_ranks(2, by_ddp, "adam", pydist.float32, 6)
    assert run_ranks(2, by_store, "adam", pydist.float32, 6, processes=True) == want
    assert run_ranks(2, by_store, "adam", pydist.float32, 6, "dist_async", 0) == want


def half_gradients(rank, i, n):
    r = np.random.default_rng(77 * i + rank)
    return pydist.tensor(r.standard_normal(n).astype(np.float32)).bfloat16()


def wide_by_hand(rank, n, steps):
    """bfloat16 values whose float32 copy is stepped by the sum of bfloat16 gradients, as all_reduce rounds it."""
    start = half_gradients(9, 9, n)
    copy = start.float().requires_grad_()
    opt = optim.AdamW([copy], lr=0.01)
    for i in range(steps):
        g = half_gradients(rank, i, n)
        dist.all_reduce(g, dist.ReduceOp.AVG)
        copy.grad = g.float()
        opt.step()
    return sha([copy]), sha([copy.bfloat16()])


def wide_by_store(rank, n, steps):
    kv = ps.create("dist_sync", reduce="mean")
    kv.init(7, half_gradients(9, 9, n))
    kv.set_optimizer("adamw", learning_rate=0.01, epsilon=1e-8, wd=0.01, multi_precision=True)
    for i in range(steps):
        kv.push(7, half_gradients(rank, i, n))
        value = kv.pull(7)
    return sha([kv._c.states(0)[0]]), sha([value])


@pytest.mark.parametrize("world", WORLDS)
def test_multi_precision(world):
    assert run_ranks(world, wide_by_store, 9000, 5) == run_ranks(world, wide_by_hand, 9000, 5)


def test_multi_precision_is_for_16_bits():
    """Other values are stepped without a copy, as in MXNet."""
    kv = ps.create("local")
    kv.set_optimizer("sgd", learning_rate=0.5, multi_precision=True)
    kv.init(["a", "b"], [pydist.ones(2), pydist.ones(2).half()])
    kv.push(["a", "b"], [pydist.ones(2), pydist.ones(2).half()])
    assert [v.tolist() for v in kv.pull(["a", "b"])] == [[0.5, 0.5]] * 2
    assert [kv._c.states(i)[0] is None for i in range(2)] == [True, False]


# MXNet's rules, by the formulas of its documentation in float64.


def mx_sgd(a):
    def step(p, g, s, t):
        s["m"] = a["momentum"] * s.get("m", 0) - a["lr"] * (g + a["wd"] * p)
        return p + s["m"]

    return step


def mx_adam(a):
    def step(p, g, s, t):
        g = g + a["wd"] * p
        s["m"] = 0.9 * s.get("m", 0) + 0.1 * g
        s["v"] = 0.999 * s.get("v", 0) + 0.001 * g * g
        return p - a["lr"] * np.sqrt(1 - 0.999**t) / (1 - 0.9**t) * s["m"] / (np.sqrt(s["v"]) + 1e-8)

    return step


def mx_rmsprop(a):
    def step(p, g, s, t):
        g = g + a["wd"] * p
        s["n"] = 0.9 * s.get("n", 0) + 0.1 * g * g
        return p - a["lr"] * g / np.sqrt(s["n"] + 1e-8)

    return step


def mx_ftrl(a):
    def step(p, g, s, t):
        z, n = s.get("z", 0 * p), s.get("n", 0 * p)
        after = n + g * g
        z = z + g - (np.sqrt(after) - np.sqrt(n)) / a["lr"] * p
        s["z"], s["n"] = z, after
        return np.where(np.abs(z) > 0.01, (np.sign(z) * 0.01 - z) / ((1.0 + np.sqrt(after)) / a["lr"] + a["wd"]), 0.0)

    return step


def mx_test(a):
    return lambda p, g, s, t: p + g


RULES = {
    "sgd": (mx_sgd, dict(momentum=0.9)),
    "adam": (mx_adam, {}),
    "rmsprop": (mx_rmsprop, {}),
    "ftrl": (mx_ftrl, {}),
    "test": (mx_test, {}),
}


def pushed(rank, i):
    return np.random.default_rng(rank + 31 * i).standard_normal((5, 7))


def by_rule(rank, name, options):
    kv = ps.create("dist_sync")
    kv.init("w", pydist.tensor(pushed(50, 50)))
    kv.set_optimizer(name, learning_rate=0.05, wd=0.01, rescale_grad=0.25, clip_gradient=0.3, **options)
    for i in range(5):
        kv.push("w", [pydist.tensor(pushed(rank, i)), pydist.tensor(pushed(rank + 100, i))])
    return kv.pull("w").numpy()


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("world", [1, 2, 3])
def test_mxnets_rules(name, world):
    """Sums over workers and their devices, rescaled, clipped, then stepped."""
    make, options = RULES[name]
    step, p, s = make(dict(lr=0.05, wd=0.01, **options)), pushed(50, 50), {}
    for i in range(5):
        g = sum(pushed(w, i) + pushed(w + 100, i) for w in range(world)) * 0.25
        p = step(p, np.clip(g, -0.3, 0.3), s, i + 1)
    for found in run_ranks(world, by_rule, name, options):
        np.testing.assert_allclose(found, p, rtol=1e-12, atol=1e-12)


# Rounds.


def without_an_optimizer(rank):
    """The sum takes the place of the value, in every dtype."""
    kv, found = ps.create("dist_sync"), {}
    for dtype in (pydist.float32, pydist.float16, pydist.int64, pydist.uint8):
        key = str(dtype)
        kv.init(key, pydist.zeros(3, dtype=dtype))
        for i in range(3):
            kv.push(key, pydist.full((3,), rank + i, dtype=dtype))
            found[key, i] = kv.pull(key).tolist()
    return found


def test_sums():
    for found in run_ranks(3, without_an_optimizer):
        assert all(v == [3.0 * (i + 1)] * 3 for (_, i), v in found.items()) and len(found) == 12


def pushes_ahead(rank):
    """A second push waits until the first is applied, so a fast worker's gradients are never lost or mixed."""
    kv = ps.create("dist_sync")
    kv.init("w", pydist.zeros(2, dtype=pydist.int64))
    kv.set_optimizer("test")
    for i in range(40):
        kv.push("w", pydist.full((2,), 10**rank, dtype=pydist.int64))
        if rank == 1 and i % 7 == 0:
            kv.pull("w")
    return kv.pull("w").tolist(), kv.version("w")


def test_rounds_wait_for_each_other():
    assert run_ranks(2, pushes_ahead) == [([440, 440], 40)] * 2


def rates(rank):
    """A learning rate holds from the next push on, whoever sets it."""
    kv, found = ps.create("dist_sync"), []
    kv.init(["a", "b"], [pydist.zeros(1), pydist.zeros(1)])
    kv.set_optimizer("sgd", learning_rate=1.0, lr_mult={"b": 10.0})
    for i, lr in enumerate([1.0, 0.5, 0.25]):
        if i and rank == i - 1:
            kv.set_learning_rate(lr)
        kv.barrier()
        kv.push(["a", "b"], [pydist.ones(1)] * 2)
        found.append([v.item() for v in kv.pull(["a", "b"])])
    return found


def test_learning_rates():
    assert run_ranks(2, rates) == [[[-2.0, -20.0], [-3.0, -30.0], [-3.5, -35.0]]] * 2


def empty_and_scalar(rank):
    kv = ps.create("dist_sync")
    kv.init([0, 1], [pydist.zeros(0, 3), pydist.tensor(2.0)])
    kv.set_optimizer("test")
    kv.push([0, 1], [pydist.zeros(0, 3), pydist.tensor(1.0)])
    a, b = kv.pull([0, 1])
    return tuple(a.shape), b.item()


def test_values_without_elements_and_without_dimensions():
    assert run_ranks(2, empty_and_scalar) == [((0, 3), 4.0)] * 2


def outputs(rank):
    """Strided, listed and repeated outputs."""
    kv = ps.create("dist_sync")
    kv.init("w", pydist.arange(6.0).reshape(2, 3))
    across, twice = pydist.zeros(3, 2).t(), [pydist.zeros(2, 3), pydist.zeros(2, 3)]
    kv.pull("w", across)
    kv.pull("w", twice)
    kv.pushpull("w", pydist.ones(2, 3), across)
    return across.tolist(), [t.tolist() for t in twice]


def test_outputs():
    whole = [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert run_ranks(2, outputs) == [([[2.0] * 3] * 2, [whole] * 2)] * 2


def rows_of(rank):
    kv = ps.create("dist_sync")
    kv.init(["w", "v"], [pydist.arange(8.0).reshape(4, 2), pydist.zeros(3, 1)])
    kv.pushpull("w", pydist.full((4, 2), 1.0), pydist.empty(4, 2))
    kv.row_sparse_pull("w", out := pydist.empty(3, 2), row_ids=pydist.tensor([2, 0, 2]))
    both = kv.row_sparse_pull(["w", "v"], row_ids=[pydist.tensor([1]), pydist.tensor([], dtype=pydist.int64)])
    with pytest.raises(IndexError, match=r"row_ids of key 'v' are \[3\] \(expected 0 to 2\)"):
        kv.row_sparse_pull("v", row_ids=pydist.tensor([3]))
    with pytest.raises(ValueError, match="row_ids is None"):
        kv.row_sparse_pull("v", out)
    return out.tolist(), [tuple(b.shape) for b in both]


def test_rows_of_a_value():
    assert run_ranks(2, rows_of) == [([[2.0, 2.0]] * 3, [(1, 2), (0, 1)])] * 2
