"""Optimizers: the update rules against torch where it is installed, groups, state and schedules."""

import copy
import math
import pickle
import re
import warnings

import pytest

import pydist
from pydist import nn, optim


def parameter(values, grad=None):
    p = nn.Parameter(pydist.tensor(values, dtype=pydist.float64))
    if grad is not None:
        p.grad = pydist.tensor(grad, dtype=pydist.float64)
    return p


VARIANTS = [
    ("SGD", {}),
    ("SGD", {"weight_decay": 0.1, "maximize": True}),
    ("SGD", {"momentum": 0.9}),
    ("SGD", {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1}),
    ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("Adam", {}),
    ("Adam", {"betas": (0.8, 0.95), "eps": 1e-4, "weight_decay": 0.1}),
    ("Adam", {"amsgrad": True, "maximize": True}),
    ("AdamW", {}),
    ("AdamW", {"amsgrad": True, "weight_decay": 0.3}),
    ("Adadelta", {}),
    ("Adadelta", {"rho": 0.7, "eps": 1e-3, "weight_decay": 0.1, "maximize": True}),
    ("RMSprop", {}),
    ("RMSprop", {"centered": True, "weight_decay": 0.1, "maximize": True}),
    ("RMSprop", {"momentum": 0.9, "alpha": 0.8, "eps": 1e-3}),
    ("RMSprop", {"momentum": 0.5, "centered": True}),
    ("Adagrad", {}),
    ("Adagrad", {"lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.2, "maximize": True}),
    ("NAdam", {}),
    ("NAdam", {"weight_decay": 0.1, "momentum_decay": 0.1, "betas": (0.8, 0.95), "maximize": True}),
    ("NAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("RAdam", {}),
    ("RAdam", {"weight_decay": 0.1, "betas": (0.8, 0.7), "maximize": True}),
    ("RAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True, "eps": 1e-4}),
    ("Adamax", {}),
    ("Adamax", {"weight_decay": 0.1, "betas": (0.7, 0.8), "eps": 1e-3, "maximize": True}),
    ("ASGD", {}),
    ("ASGD", {"lambd": 0.1, "alpha": 0.5, "t0": 3, "weight_decay": 0.1, "maximize": True}),
    ("Adafactor", {}),
    ("Adafactor", {"weight_decay": 0.1, "d": 1.5, "beta2_decay": -0.5, "eps": (1e-4, 1e-2), "maximize": True}),
    ("Rprop", {}),
    ("Rprop", {"etas": (0.3, 1.5), "step_sizes": (1e-3, 0.05), "maximize": True}),
]
IDS = [f"{kind}-{'-'.join(options) or 'plain'}" for kind, options in VARIANTS]


def to_torch(torch, tensor):
    return torch.from_numpy(tensor.detach().numpy().copy())


def from_torch(tensor):
    return pydist.from_numpy(tensor.detach().numpy().copy())


def build(nn, dtype):
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4)).to(dtype)


@pytest.fixture
def double(torch):
    """Optimizers keep some numbers of the state in float64 if it is the default dtype."""
    for lib in (torch, pydist):
        lib.set_default_dtype(lib.float64)
    yield
    for lib in (torch, pydist):
        lib.set_default_dtype(lib.float32)


@pytest.mark.parametrize("kind, options", VARIANTS, ids=IDS)
def test_training_parity(torch, double, kind, options):
    """50 steps in float64 from the same weights: the same losses within 1e-9."""
    torch.manual_seed(0)
    theirs, ours = build(torch.nn, torch.float64), build(nn, pydist.float64)
    ours.load_state_dict({name: from_torch(value) for name, value in theirs.state_dict().items()})
    lr = 0.05 if kind == "SGD" else 0.01
    opt_theirs = getattr(torch.optim, kind)(theirs.parameters(), lr=lr, **options)
    opt_ours = getattr(optim, kind)(ours.parameters(), lr=lr, **options)
    for _ in range(50):
        x, t = torch.randn(32, 6, dtype=torch.float64), torch.randint(0, 4, (32,))
        opt_theirs.zero_grad()
        loss_theirs = torch.nn.functional.cross_entropy(theirs(x), t)
        loss_theirs.backward()
        opt_theirs.step()
        opt_ours.zero_grad()
        loss_ours = nn.functional.cross_entropy(ours(from_torch(x)), from_torch(t))
        loss_ours.backward()
        opt_ours.step()
        assert abs(loss_ours.item() - loss_theirs.item()) < 1e-9
    for p, q in zip(ours.parameters(), theirs.parameters()):
        assert (to_torch(torch, p) - q).abs().max() < 1e-9


def orders(home, full):
    """The same numbers, [2, 3, 4, 5], in all orders of memory, with gaps and without; `full` makes them from a shape."""
    x = full(2, 3, 4, 5)
    wide = home.zeros(2, 3, 4, 10, dtype=home.float64)
    wide[..., ::2] = x
    return {
        "contiguous": x.clone(),
        "channels_last": x.clone().contiguous(memory_format=home.channels_last),
        "transposed": x.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0),
        "gaps": wide[..., ::2],
    }


@pytest.mark.parametrize("state", ["own", "loaded"])
@pytest.mark.parametrize("kind, options", VARIANTS, ids=IDS)
def test_any_order_of_memory(torch, double, kind, options, state):
    """Parameters, gradients and states in any order, all against all; also gradients that repeat one number."""
    torch.manual_seed(2)

    def make():
        x = torch.randn(2, 3, 4, 5)
        return orders(torch, lambda *shape: x), orders(pydist, lambda *shape: from_torch(x))

    names = ["contiguous", "channels_last", "transposed", "gaps"]
    theirs, ours = [], []
    for _ in range(5):
        their, our = make()
        theirs += [torch.nn.Parameter(their[name]) for name in names]
        ours += [nn.Parameter(our[name]) for name in names]
    assert [p.stride() for p in ours] == [q.stride() for q in theirs]
    opt_theirs, opt_ours = (getattr(o, kind)(p, lr=0.1, **options) for o, p in ((torch.optim, theirs), (optim, ours)))
    for step in range(3):
        for i, (p, q) in enumerate(zip(ours, theirs)):
            their, our = make()
            name = [*names, "expanded"][i // 4]
            q.grad = their[name] if name in their else torch.full((1, 1, 1, 1), 0.5).expand(2, 3, 4, 5)
            p.grad = (
                our[name] if name in our else pydist.full((1, 1, 1, 1), 0.5, dtype=pydist.float64).expand(2, 3, 4, 5)
            )
        versions = [p._version for p in ours]
        opt_theirs.step()
        opt_ours.step()
        assert all(p._version > version for p, version in zip(ours, versions))
        if state == "loaded":  # as a checkpoint of contiguous tensors would
            saved = copy.deepcopy(opt_ours.state_dict())
            for entry in saved["state"].values():
                entry.update({k: v.contiguous() for k, v in entry.items() if isinstance(v, pydist.Tensor)})
            opt_ours.load_state_dict(saved)
    for p, q in zip(ours, theirs):
        assert (to_torch(torch, p) - q).abs().max() < 1e-9 and p.stride() == q.stride()


def test_gradients_of_any_order_are_clipped_unscaled_and_zeroed(torch):
    x = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    theirs, ours = orders(torch, lambda *shape: x), orders(pydist, lambda *shape: from_torch(x))

    def parameters(home, grads):
        made = [home.nn.Parameter(home.zeros(2, 3, 4, 5, dtype=home.float64)) for _ in grads]
        for p, g in zip(made, grads.values()):
            p.grad = g
        return made

    p_theirs, p_ours = parameters(torch, theirs), parameters(pydist, ours)

    def same():
        return all(
            (to_torch(torch, p.grad) - q.grad).abs().max() < 1e-12 and p.grad.stride() == q.grad.stride()
            for p, q in zip(p_ours, p_theirs)
        )

    for norm in (2.0, 1.0, math.inf):
        assert (
            abs(
                nn.utils.clip_grad_norm_(p_ours, 0.7, norm).item()
                - torch.nn.utils.clip_grad_norm_(p_theirs, 0.7, norm).item()
            )
            < 1e-9
        )
        assert same()
    for clip in (nn.utils.clip_grad_value_, torch.nn.utils.clip_grad_value_):
        clip(p_ours if clip is nn.utils.clip_grad_value_ else p_theirs, 0.01)
    assert same()
    scaler = pydist.amp.GradScaler("cpu", init_scale=4.0)
    optimizer = optim.SGD(p_ours, lr=1.0)
    scaler.scale(pydist.ones(1))
    before = [p.grad.clone() for p in p_ours]
    scaler.unscale_(optimizer)
    assert all(bool((p.grad * 4 == g).all()) for p, g in zip(p_ours, before))
    optimizer.zero_grad(set_to_none=False)
    assert all(not p.grad.any() for p in p_ours)
    repeats = nn.Parameter(pydist.zeros(4))
    repeats.grad = pydist.full((1,), 3.0).expand(4)
    assert nn.utils.get_total_norm([repeats.grad]).item() == 6
    with pytest.raises(RuntimeError, match="share memory"):
        nn.utils.clip_grad_norm_([repeats], 1.0)
    optim.SGD([repeats], lr=1.0).step()
    assert repeats.tolist() == [-3] * 4


def forms(state):
    """What each entry of a state is: its dtype, shape and device, or its type."""
    return [
        (k, str(v.dtype).split(".")[1], tuple(v.shape), str(v.device)) if hasattr(v, "dtype") else (k, type(v))
        for k, v in state.items()
    ]


@pytest.mark.parametrize("kind, options", VARIANTS, ids=IDS)
def test_missing_gradients_and_state_parity(torch, double, kind, options):
    """Parameters that sometimes have no gradient; dictionaries that each side loads from the other."""
    torch.manual_seed(1)
    start = [torch.randn(3, dtype=torch.float64) for _ in range(3)]
    theirs = [torch.nn.Parameter(p.clone()) for p in start]
    ours = [nn.Parameter(from_torch(p)) for p in start]
    opt_theirs = getattr(torch.optim, kind)(theirs, lr=0.1, **options)
    opt_ours = getattr(optim, kind)(ours, lr=0.1, **options)

    def steps(count):
        for step in range(count):
            for i, (p, q) in enumerate(zip(ours, theirs)):
                g = torch.randn(3, dtype=torch.float64)
                skip = i == step % 4
                p.grad, q.grad = (None, None) if skip else (from_torch(g), g)
            opt_ours.step()
            opt_theirs.step()

    def check():
        for p, q in zip(ours, theirs):
            assert (to_torch(torch, p) - q).abs().max() < 1e-12

    steps(9)
    check()
    a, b = opt_ours.state_dict(), opt_theirs.state_dict()
    assert a["param_groups"] == b["param_groups"] and list(a["param_groups"][0]) == list(b["param_groups"][0])
    assert {i: forms(s) for i, s in a["state"].items()} == {i: forms(s) for i, s in b["state"].items()}
    assert repr(opt_ours) == repr(opt_theirs)
    to_ours = {
        i: {k: from_torch(v) if isinstance(v, torch.Tensor) else v for k, v in s.items()} for i, s in b["state"].items()
    }
    to_theirs = {
        i: {k: to_torch(torch, v) if isinstance(v, pydist.Tensor) else v for k, v in s.items()}
        for i, s in a["state"].items()
    }
    opt_ours = getattr(optim, kind)(ours, lr=7.0, **options)
    opt_theirs = getattr(torch.optim, kind)(theirs, lr=7.0, **options)
    opt_ours.load_state_dict({"state": to_ours, "param_groups": b["param_groups"]})
    opt_theirs.load_state_dict({"state": to_theirs, "param_groups": a["param_groups"]})
    steps(5)
    check()


COUNTING = {kind: options for kind, options in reversed(VARIANTS) if kind != "SGD"}


@pytest.mark.parametrize("kind", [*COUNTING, "Lion", "LAMB"])
def test_step_counts_are_tensors(torch, kind):
    """Of float32 on the CPU, in the state and its dictionaries, as PyTorch's are; and saved numbers of any kind load."""
    options, home = COUNTING.get(kind, {}), torch if kind in COUNTING else pydist
    ours, theirs = ([lib.nn.Parameter(lib.ones(2, 3)) for _ in range(3)] for lib in (pydist, home))

    def steps(made, params, count=2):
        for step in range(count):
            for i, p in enumerate(params):  # two parameters have made fewer steps than the third
                p.grad = None if step == i == 1 else p.detach() * 0 + 0.5 + i
            made.step()

    mine, torchs = (getattr(lib.optim, kind)(p, **options) for lib, p in ((pydist, ours), (home, theirs)))
    steps(mine, ours)
    steps(torchs, theirs)
    assert [forms(s) for s in mine.state_dict()["state"].values()] == [forms(s) for s in torchs.state.values()]
    assert [mine.state[p]["step"].cpu().item() for p in ours] == [2.0, 1.0, 2.0]
    for count in (
        int,
        float,
        pydist.tensor,
        lambda n: pydist.tensor([n]),
        lambda n: pydist.tensor(n, dtype=pydist.int64),
    ):
        saved = copy.deepcopy(mine.state_dict())
        for state in saved["state"].values():
            state["step"] = count(int(state["step"]))
            state.update((name, float(state[name])) for name in ("eta", "mu", "mu_product") if name in state)
        copies = [nn.Parameter(p.detach().clone()) for p in ours]
        other = getattr(optim, kind)(copies, **options)
        other.load_state_dict(saved)
        assert all(isinstance(state["step"], pydist.Tensor) for state in other.state.values())
        steps(other, copies, 1)
        assert [forms(s) for s in other.state.values()] == [forms(s) for s in torchs.state.values()]
        assert [other.state[p]["step"].item() for p in copies] == [3.0, 2.0, 3.0]
        changed = copy.deepcopy(mine)
        changed.__setstate__({**mine.__getstate__(), "state": {p: dict(mine.state[p], step=5) for p in ours}})
        assert [changed.state[p]["step"].item() for p in ours] == [5.0] * 3
    alone = pickle.loads(pickle.dumps(mine.state_dict()["state"][0]["step"]))
    assert alone.shape == () and alone.item() == 2 and alone.dtype == pydist.float32


@pytest.mark.parametrize("how", ["in place", "another tensor", "a number", "removed"])
@pytest.mark.parametrize("kind", ["Adam", "NAdam", "ASGD", "Adagrad", "LAMB"])
def test_step_counts_that_a_user_sets(kind, how):
    """One parameter's count is set to 0 by hand: its next step is that of count 1, and the other's is not."""
    params = [parameter([1.0, 2.0]) for _ in range(3)]
    made = getattr(optim, kind)(params[:2], lr=0.5), getattr(optim, kind)(params[2:], lr=0.5)
    for step in range(3):
        for p in params:
            p.grad = pydist.tensor([1.0, step], dtype=pydist.float64)
        if step == 2:  # the reference has had no steps: its state is new, but for what counts no steps
            state, reference = made[0].state[params[0]], made[1].state[params[2]]
            if how == "in place":
                state["step"].zero_()
            elif how == "removed" and kind != "LAMB":
                del state["step"]
            else:
                state["step"] = 0 if how == "a number" else pydist.tensor(0.0)
            made[1].load_state_dict({**made[1].state_dict(), "state": {0: {**reference, "step": 0}}})
        for optimizer in made:
            optimizer.step()
    assert params[0].tolist() == params[2].tolist()
    if kind not in ("ASGD", "Adagrad"):  # whose first steps do not depend on the count
        assert params[0].tolist() != params[1].tolist()
    assert [made[i].state[p]["step"].item() for i, p in ((0, params[0]), (0, params[1]), (1, params[2]))] == [1, 3, 1]


@pytest.mark.parametrize(
    "options",
    [
        {"lr": 0.01},
        {"lr": 0.1, "max_iter": 4, "history_size": 3},
        {"line_search_fn": "strong_wolfe"},
        {"lr": 0.5, "line_search_fn": "strong_wolfe", "history_size": 2, "max_iter": 8, "max_eval": 30},
        {"lr": 30.0, "line_search_fn": "strong_wolfe", "max_eval": 9},
        {"lr": 1e-3, "line_search_fn": "strong_wolfe", "tolerance_change": 1e-3},
    ],
)
def test_lbfgs_parity(torch, options):
    """A least-squares problem and Rosenbrock's valley, which turns: the same point after every step, the same counts."""
    a = torch.randn(20, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def run(lib, a, start):
        x, y = (nn.Parameter(v) if lib is pydist else torch.nn.Parameter(v) for v in start)
        opt, path = lib.optim.LBFGS([x, y], **options), []

        def closure():
            opt.zero_grad()
            valley = ((1 - y[:-1]) ** 2 + 10 * (y[1:] - y[:-1] ** 2) ** 2).sum()
            loss = ((a @ x - 1) ** 2).mean() + valley
            loss.backward()
            return loss

        for _ in range(4):
            path.append(opt.step(closure).item())
            path += [*x.tolist(), *y.tolist()]
        state = next(iter(opt.state_dict()["state"].values()))
        return path, state["func_evals"], state["n_iter"], set(state) - {"al"}

    start = [torch.zeros(4, dtype=torch.float64), torch.tensor([-1.2, 1.0, 0.5], dtype=torch.float64)]
    ours = run(pydist, from_torch(a), [from_torch(v) for v in start])
    theirs = run(torch, a, [v.clone() for v in start])
    assert ours[0] == pytest.approx(theirs[0], rel=1e-9, abs=1e-9)
    assert ours[1:] == theirs[1:]


def test_muon_parity(torch):
    """The orthogonalised step is of bfloat16, so it agrees to its rounding."""
    g = torch.Generator().manual_seed(0)
    for shape, options in (((6, 4), {}), ((4, 9), {"nesterov": False, "adjust_lr_fn": "match_rms_adamw"})):
        q = torch.nn.Parameter(torch.randn(shape, generator=g))
        p = nn.Parameter(from_torch(q))
        theirs, ours = torch.optim.Muon([q], lr=0.1, **options), optim.Muon([p], lr=0.1, **options)
        for _ in range(3):
            q.grad = torch.randn(shape, generator=g)
            p.grad = from_torch(q.grad)
            theirs.step()
            ours.step()
        assert (to_torch(torch, p) - q).abs().max() < 0.02
        assert set(ours.state[p]) == set(theirs.state[q])


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_sparse_adam_parity(torch):
    """Rows without a gradient rest; torch is given the same gradients as sparse ones."""
    g = torch.Generator().manual_seed(0)
    q = torch.nn.Parameter(torch.randn(6, 3, generator=g, dtype=torch.float64))
    p = nn.Parameter(from_torch(q))
    options = {"lr": 0.1, "betas": (0.8, 0.95), "maximize": True}
    theirs, ours = torch.optim.SparseAdam([q], **options), optim.SparseAdam([p], **options)
    for rows in ([0, 3], [3], [], [1, 3, 5]):
        grad = torch.zeros(6, 3, dtype=torch.float64)
        grad[rows] = torch.randn(len(rows), 3, generator=g, dtype=torch.float64)
        place, values = torch.tensor([rows], dtype=torch.int64), grad[rows]
        q.grad, p.grad = torch.sparse_coo_tensor(place, values, (6, 3)), from_torch(grad)
        theirs.step()
        ours.step()
        assert (to_torch(torch, p) - q).abs().max() < 1e-12
    for name in ("exp_avg", "exp_avg_sq"):
        assert (to_torch(torch, ours.state[p][name]) - theirs.state[q][name]).abs().max() < 1e-12
    assert ours.state[p]["step"] == theirs.state[q]["step"] == 4


@pytest.mark.parametrize("kind, options", [(k, o) for k, o in VARIANTS if k != "Adafactor"])
def test_infinite_parameters_stay_as_in_torch(torch, kind, options):
    """Without weight decay an infinite parameter does not become NaN by a factor of 0."""
    values, outs = [1.0, math.inf, -math.inf, math.nan], []
    for lib in (torch, pydist):
        p = lib.nn.Parameter(lib.tensor(values))
        opt = getattr(lib.optim, kind)([p], lr=0.1, **options)
        for _ in range(2):
            p.grad = lib.ones(4)
            opt.step()
        outs.append(p.tolist())
    assert outs[1] == pytest.approx(outs[0], nan_ok=True, rel=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_parameters(torch, dtype):
    """Computed in float, as torch's fused steps are, rounded once; beside parameters of other dtypes."""
    g = torch.Generator().manual_seed(0)
    start, grads = torch.randn(1000, generator=g), [torch.randn(1000, generator=g) for _ in range(3)]
    for kind, options in (("SGD", {"momentum": 0.9}), ("AdamW", {"weight_decay": 0.1}), ("Adam", {"amsgrad": True})):
        outs = []
        for lib in (torch, pydist):
            low = getattr(lib, dtype)
            given = torch.clone if lib is torch else from_torch
            p, wide = (lib.nn.Parameter(given(start).to(t)) for t in (low, lib.float32))
            fused = None if kind == "SGD" else True  # torch 2.13's fused SGD leaves 16-bit parameters as they are
            opt = getattr(lib.optim, kind)([p, wide], lr=0.1, fused=fused, **options)
            for grad in grads:
                p.grad, wide.grad = given(grad).to(low), given(grad)
                opt.step()
            assert opt.state[p]["momentum_buffer" if kind == "SGD" else "exp_avg"].dtype is low
            outs.append([torch.tensor(t.float().tolist()) for t in (p.detach(), wide.detach())])
        eps = 2.0**-7 if dtype == "bfloat16" else 2.0**-10
        assert (outs[0][0] - outs[1][0]).abs().max() <= 8 * eps and (outs[0][1] - outs[1][1]).abs().max() < 1e-5


def test_stochastic_rounding():
    """Steps far below bfloat16's precision add up on average; the draw depends on seed, step and place alone."""

    def train(opt, steps=20, rounding=True, threads=1, n=40_000, **options):
        p = nn.Parameter(pydist.ones(n, dtype=pydist.bfloat16))
        o = opt([p], stochastic_rounding=rounding, **options)
        before = pydist.get_num_threads()
        pydist.set_num_threads(threads)
        for _ in range(steps):
            p.grad = pydist.ones(n, dtype=pydist.bfloat16)
            o.step()
        pydist.set_num_threads(before)
        return p.detach().float(), o

    plain, _ = train(optim.SGD, rounding=False, lr=1e-4)
    assert plain.min().item() == plain.max().item() == 1.0  # every step was lost
    for opt, options in ((optim.SGD, {}), (optim.SGD, {"momentum": 0.5}), (optim.AdamW, {"weight_decay": 0.0})):
        p, o = train(opt, lr=1e-4, **options)
        expected = 1 - (20 * 1e-4 if not options.get("momentum") else 1e-4 * sum(2 - 0.5**k for k in range(20)))
        assert p.mean().item() == pytest.approx(expected, abs=3e-4), (opt, options)
        assert p.unique().numel() > 1
        again, _ = train(opt, lr=1e-4, threads=2, **options)
        other, _ = train(opt, lr=1e-4, rounding=7, **options)
        assert again.equal(p) and not other.equal(p)
    assert o.param_groups[0]["stochastic_rounding"] is True
    with pytest.raises(ValueError, match="stochastic_rounding: -1"):
        optim.SGD([nn.Parameter(pydist.ones(1))], stochastic_rounding=-1)
    special = pydist.tensor([float("inf"), float("-inf"), float("nan"), 0.0]).bfloat16()
    p = nn.Parameter(special)
    p.grad = pydist.zeros(4, dtype=pydist.bfloat16)
    optim.SGD([p], lr=1.0, stochastic_rounding=True).step()
    assert str(p.tolist()) == str([float("inf"), float("-inf"), float("nan"), 0.0])


# The rules without torch.


def test_lion_and_lamb_by_formula():
    np = pytest.importorskip("numpy")
    rng = np.random.default_rng(0)
    start, grads = rng.normal(size=(3, 2)), rng.normal(size=(6, 3, 2))
    p, q = nn.Parameter(pydist.tensor(start)), nn.Parameter(pydist.tensor(start))
    lion = optim.Lion([p], lr=0.1, betas=(0.8, 0.9), weight_decay=0.2)
    lamb = optim.LAMB([q], lr=0.1, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.2)
    x, m = start.copy(), 0
    y, mean, square = start.copy(), 0, 0
    for t, g in enumerate(grads, 1):
        p.grad = q.grad = pydist.tensor(g)
        lion.step()
        lamb.step()
        x = x * (1 - 0.1 * 0.2) - 0.1 * np.sign(0.8 * m + 0.2 * g)
        m = 0.9 * m + 0.1 * g
        mean, square = 0.8 * mean + 0.2 * g, 0.9 * square + 0.1 * g * g
        d = mean / (1 - 0.8**t) / (np.sqrt(square / (1 - 0.9**t)) + 1e-3) + 0.2 * y
        y = y - 0.1 * np.linalg.norm(y) / np.linalg.norm(d) * d
    assert np.abs(p.detach().numpy() - x).max() < 1e-12 and np.abs(q.detach().numpy() - y).max() < 1e-12
    zero = nn.Parameter(pydist.zeros(2))
    zero.grad = pydist.ones(2)
    optim.LAMB([zero], lr=0.5, eps=0.0).step()  # without a norm the ratio is 1
    assert zero.tolist() == pytest.approx([-0.5, -0.5])


def test_sgd_by_hand():
    p = parameter([1.0], [2.0])
    opt = optim.SGD([p], lr=0.1, momentum=0.5)
    opt.step()
    assert p.item() == pytest.approx(0.8)
    opt.step()  # b = 0.5 * 2 + 2
    assert p.item() == pytest.approx(0.5)
    assert opt.state[p]["momentum_buffer"].item() == pytest.approx(3.0)


def test_adam_by_hand():
    p = parameter([1.0], [2.0])
    optim.Adam([p], lr=0.1).step()
    assert p.item() == pytest.approx(0.9)
    q = parameter([1.0], [2.0])
    optim.AdamW([q], lr=0.1, weight_decay=0.5).step()
    assert q.item() == pytest.approx(0.85)


def test_groups_have_their_own_options():
    a, b = parameter([1.0], [1.0]), parameter([1.0], [1.0])
    opt = optim.SGD([{"params": [a]}, {"params": b, "lr": 0.5}], lr=0.1)
    opt.step()
    assert (a.item(), b.item()) == pytest.approx((0.9, 0.5))
    c = parameter([1.0], [1.0])
    opt.add_param_group({"params": [c], "momentum": 0.9})
    opt.param_groups[0]["lr"] = 1.0
    opt.step()
    assert (a.item(), b.item(), c.item()) == pytest.approx((-0.1, 0.0, 0.9))
    assert set(opt.state) == {c}


def test_options_and_state_may_change_between_steps():
    p = parameter([1.0], [1.0])
    opt = optim.SGD([p], lr=0.1)
    opt.step()
    opt.param_groups[0]["momentum"] = 0.9
    opt.step()
    opt.step()  # b = 0.9 + 1
    assert p.item() == pytest.approx(1 - 0.1 - 0.1 - 0.19)
    opt.state.clear()
    opt.step()
    assert p.item() == pytest.approx(1 - 0.1 - 0.1 - 0.19 - 0.1)
    q = parameter([1.0], [1.0])
    opt.param_groups[0]["params"][0] = q
    opt.step()
    assert q.item() == pytest.approx(0.9)


def test_named_parameters():
    net = nn.Linear(2, 2)
    opt = optim.SGD(net.named_parameters(), lr=0.1)
    assert opt.param_groups[0]["param_names"] == ["weight", "bias"]
    assert opt.param_groups[0]["params"][0] is net.weight
    with pytest.raises(ValueError, match="with/without names"):
        opt.add_param_group({"params": [parameter([1.0])]})


def test_closure_runs_with_gradients():
    p = parameter([3.0])
    opt = optim.SGD([p], lr=0.5)

    def closure():
        opt.zero_grad()
        loss = (p * p).sum()
        loss.backward()
        return loss

    with pydist.no_grad():
        assert opt.step(closure).item() == 9
    assert p.item() == 0


def test_zero_grad():
    p = parameter([1.0], [2.0])
    opt = optim.SGD([p], lr=0.1)
    opt.zero_grad(set_to_none=False)
    assert p.grad.tolist() == [0]
    opt.zero_grad()
    assert p.grad is None
    opt.step()
    assert p.item() == 1


class Own(optim.Optimizer):
    """A user's optimizer: p -= lr * g by ops, in a step of its own."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, dict(lr=lr))

    @pydist.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad, alpha=-group["lr"])


class OwnTwice(Own):
    def step(self, closure=None):
        super().step(closure)
        return super().step(closure)


ALL = [name for name in optim.__all__ if isinstance(getattr(optim, name), type) and name not in ("Optimizer", "Muon")]


@pytest.mark.parametrize("name", [*ALL, "Muon", "Own", "OwnTwice"])
def test_hooks(name):
    """Each runs once a step, before the first and after the last write, with PyTorch's arguments."""
    p = parameter([[1.0]], [[2.0]])
    opt, calls = (getattr(optim, name, None) or globals()[name])([p], lr=0.1), []
    before = opt.register_step_pre_hook(lambda o, args, kwargs: calls.append((p.item(), o is opt, args, kwargs)))
    after = opt.register_step_post_hook(lambda o, args, kwargs: calls.append((p.item(), o is opt, args, kwargs)))

    def closure():
        return (p * p).sum()

    opt.step(closure) if name == "LBFGS" else opt.step()
    before.remove()
    after.remove()
    now = p.item()
    opt.step(closure)
    given = (opt, closure) if name == "LBFGS" else (opt,)
    assert now != 1.0 and calls == [(1.0, True, given, {}), (now, True, given, {})]


def test_a_pre_hook_gives_other_arguments():
    p = parameter([1.0], [2.0])
    opt = optim.SGD([p], lr=0.1)
    handle = opt.register_step_pre_hook(lambda o, args, kwargs: (args, {"closure": lambda: 7}))
    assert opt.step() == 7
    handle.remove()
    handle = opt.register_step_pre_hook(lambda o, args, kwargs: 5)
    with pytest.raises(RuntimeError, match="a step pre hook returned 5"):
        opt.step()
    handle.remove()
    assert opt.step() is None


def test_a_step_that_raises_has_no_end():
    p, calls = parameter([1.0], [2.0]), []
    opt = optim.SGD([p], lr=0.1)
    opt.register_step_post_hook(lambda *args: calls.append(args))

    def fails():
        raise ValueError("no loss")

    with pytest.raises(ValueError, match="no loss"):
        opt.step(fails)
    assert not calls and p.item() == 1
    opt.step()
    assert len(calls) == 1


@pytest.mark.parametrize(
    "name, late", [*((n, late) for n in ("SGD", "Adam", "LAMB") for late in (False, True)), ("Own", False)]
)
def test_a_step_writes_all_parameters_or_none(name, late):
    """The second parameter lies in memory that may only be read: the first one is not written either. late: a closure
    makes the gradients."""
    fixed = pydist.frombuffer(bytes(8), dtype=pydist.float32).requires_grad_()
    params = [parameter([1.0], [2.0]), fixed]
    fixed.grad = pydist.ones(2)
    opt = (getattr(optim, name, None) or globals()[name])([{"params": [p]} for p in params], lr=0.1)

    def closure():
        fixed.grad = pydist.ones(2)

    if late:
        fixed.grad = None
    with pytest.raises(RuntimeError, match=f"{name}: .*read"):
        opt.step(closure if late else None)
    assert params[0].item() == 1


def test_copies_are_independent():
    p = parameter([1.0], [2.0])
    opt = optim.Adam([p], lr=0.1)
    opt.step()
    other = copy.deepcopy(opt)
    assert other.param_groups[0]["params"][0] is not p
    opt.step()
    assert opt.state[p]["step"] == 2 and next(iter(other.state.values()))["step"] == 1


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda p: optim.SGD([p], lr=-1), "Invalid learning rate: -1"),
        (lambda p: optim.SGD([p], momentum=-1), "Invalid momentum value: -1"),
        (lambda p: optim.SGD([p], weight_decay=-1), "Invalid weight_decay value: -1"),
        (lambda p: optim.SGD([p], nesterov=True), "Nesterov momentum requires a momentum and zero dampening"),
        (lambda p: optim.Adam([p], lr=-1), "Invalid learning rate: -1"),
        (lambda p: optim.Adam([p], eps=-1), "Invalid epsilon value: -1"),
        (lambda p: optim.Adam([p], betas=(1.0, 0.9)), "Invalid beta parameter at index 0: 1.0"),
        (lambda p: optim.Adam([p], betas=(0.9, -1)), "Invalid beta parameter at index 1: -1"),
        (lambda p: optim.AdamW([p], weight_decay=-1), "Invalid weight_decay value: -1"),
        (lambda p: optim.Adadelta([p], rho=1.5), "Invalid rho value: 1.5"),
        (lambda p: optim.Adadelta([p], eps=-1), "Invalid epsilon value: -1"),
        (lambda p: optim.Adadelta([p], lr=float("nan")), "Invalid learning rate: nan"),
        (lambda p: optim.RMSprop([p], alpha=-1), "Invalid alpha value: -1"),
        (lambda p: optim.RMSprop([p], momentum=-1), "Invalid momentum value: -1"),
        (lambda p: optim.Adagrad([p], lr_decay=-1), "Invalid lr_decay value: -1"),
        (lambda p: optim.Adagrad([p], initial_accumulator_value=-1), "Invalid initial_accumulator_value value: -1"),
        (lambda p: optim.NAdam([p], momentum_decay=-1), "Invalid momentum_decay value: -1"),
        (lambda p: optim.RAdam([p], betas=(0.9, 1.0)), "Invalid beta parameter at index 1: 1.0"),
        (lambda p: optim.Adamax([p], eps=-1), "Invalid epsilon value: -1"),
        (lambda p: optim.ASGD([p], weight_decay=-1), "Invalid weight_decay value: -1"),
        (lambda p: optim.Rprop([p], etas=(1.5, 2.0)), "Invalid eta values: 1.5, 2.0"),
        (lambda p: optim.Lion([p], lr=-1), "Invalid learning rate: -1"),
        (lambda p: optim.LAMB([p], eps=-1), "Invalid epsilon value: -1"),
        (lambda p: optim.Muon([p]), "only supports 2D parameters"),
        (lambda p: optim.Muon([p], adjust_lr_fn="best"), "best is not supported"),
        (lambda p: optim.LBFGS([{"params": [p]}, {"params": [parameter([1.0])]}]), "per-parameter options"),
        (lambda p: optim.LBFGS([p], lr=-1), "Invalid learning rate: -1"),
        (lambda p: optim.SGD([]), "empty parameter list"),
        (lambda p: optim.SGD([p * 2]), "non-leaf"),
        (lambda p: optim.SGD([{"params": [p]}, {"params": [p]}]), "more than one parameter group"),
        (lambda p: optim.SGD(p), "iterable of Tensors"),
        (lambda p: optim.SGD([1]), "can only optimize Tensors"),
        (lambda p: optim.SGD([{"params": {p}}]), "ordered collections"),
        (lambda p: optim.SGD([p]).add_param_group(3), "must be a dict"),
        (lambda p: optim.SGD([p], differentiable=True), "differentiable"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises((ValueError, TypeError, NotImplementedError), match=message):
        make(parameter([1.0]))


@pytest.mark.parametrize(
    "keras, message",
    [
        ([], "keras is [] (expected None or a tuple of 1 to 4 entries)"),
        ((), "keras is () (expected None or a tuple of 1 to 4 entries)"),
        (([], None), "got 1 parameters and 0 gradients (expected one gradient for each parameter)"),
        (([None], None), "gradient 0 is None (expected Tensor)"),
        (
            ([pydist.ones(3)], None),
            "the gradient of parameter 0 is float32 of shape [3] (expected float32 of shape [2])",
        ),
        (([pydist.ones(2)], 0.1), "keras is float (expected Tensor)"),
        (([pydist.ones(2)], pydist.ones(2)), "got a number as float32 of shape [2] (expected one real element)"),
    ],
)
def test_bad_arguments_of_keras_steps(keras, message):
    p = pydist.ones(2)
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        pydist._C.sgd_step([p], None, lr=0.1, keras=keras)
    assert p.tolist() == [1.0, 1.0]


def test_bad_state():
    p, q = parameter([1.0]), parameter([1.0])
    opt = optim.SGD([p])
    with pytest.raises(ValueError, match="number of parameter groups"):
        opt.load_state_dict(optim.SGD([{"params": [p]}, {"params": [q]}]).state_dict())
    with pytest.raises(ValueError, match="doesn't match the size"):
        opt.load_state_dict(optim.SGD([p, q]).state_dict())
    with pytest.warns(UserWarning, match="duplicate"):
        optim.SGD([p, p])


# Schedules.


SCHEDULES = [
    ("MultiStepLR", {"milestones": [2, 5, 5], "gamma": 0.5}),
    ("ExponentialLR", {"gamma": 0.9}),
    ("ConstantLR", {"factor": 0.5, "total_iters": 4}),
    ("ConstantLR", {"total_iters": 0}),
    ("LinearLR", {}),
    ("LinearLR", {"start_factor": 1.0, "end_factor": 0.25, "total_iters": 8}),
    ("CosineAnnealingLR", {"T_max": 4, "eta_min": 0.01}),
    ("CosineAnnealingLR", {"T_max": 10}),
    ("StepLR", {"step_size": 3, "gamma": 0.5}),
    ("LambdaLR", {"lr_lambda": lambda epoch: 0.9**epoch}),
    ("MultiplicativeLR", {"lr_lambda": lambda epoch: 0.9 + 0.01 * epoch}),
    ("PolynomialLR", {"total_iters": 7, "power": 1.5}),
    ("PolynomialLR", {}),
    ("CosineAnnealingWarmRestarts", {"T_0": 2, "T_mult": 2, "eta_min": 0.01}),
    ("CosineAnnealingWarmRestarts", {"T_0": 3}),
    ("CyclicLR", {"base_lr": 0.01, "max_lr": [0.1, 0.2], "step_size_up": 3, "step_size_down": 2}),
    ("CyclicLR", {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 2, "mode": "triangular2", "cycle_momentum": False}),
    ("CyclicLR", {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 2, "mode": "exp_range", "gamma": 0.9}),
    ("CyclicLR", {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 2, "scale_fn": lambda x: 1 / x}),
    ("OneCycleLR", {"max_lr": [0.1, 0.4], "total_steps": 11}),
    ("OneCycleLR", {"max_lr": 0.1, "epochs": 4, "steps_per_epoch": 3, "three_phase": True, "pct_start": 0.4}),
    ("OneCycleLR", {"max_lr": 0.1, "total_steps": 12, "anneal_strategy": "linear", "cycle_momentum": False}),
    ("LambdaLR", {"lr_lambda": [lambda epoch: 1.0, lambda epoch: 1 / (1 + epoch)]}),
]


def follow(lib, make, schedule, kind="SGD", steps=10, epochs=None):
    """(lr and momentum of both groups after each step, the schedule)"""
    groups = [{"params": [make()], "lr": 0.1}, {"params": [make()], "lr": 0.2}]
    opt = getattr(lib.optim, kind)(groups, lr=1.0)
    made, out = schedule(lib.optim.lr_scheduler, opt), []
    for i in range(steps):
        out += [group["lr"] for group in opt.param_groups]
        out += [group["momentum"] if kind == "SGD" else group["betas"][0] for group in opt.param_groups]
        assert list(made.get_last_lr()) == [group["lr"] for group in opt.param_groups]
        opt.step()
        made.step(*epochs[i : i + 1] if epochs else ())
    return out, made


def both(torch, schedule, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's about the epoch given to step
        theirs = follow(torch, lambda: torch.zeros(1, requires_grad=True), schedule, **options)
    ours = follow(pydist, lambda: parameter([1.0]), schedule, **options)
    assert ours[0] == pytest.approx(theirs[0], rel=1e-12)
    return ours[1], theirs[1]


@pytest.mark.parametrize("kind, options", SCHEDULES)
def test_schedule_parity(torch, kind, options):
    """Step by step, and where an epoch is named; the state dictionaries have the same keys."""
    optimizer = "Adam" if options.get("cycle_momentum") is False or "max_lr" in options else "SGD"
    ours, theirs = both(torch, lambda module, opt: getattr(module, kind)(opt, **options), kind=optimizer)
    own = {"_get_lr_called_within_step", "_scale_fn_ref"}  # of PyTorch's checks
    assert set(ours.state_dict()) == set(theirs.state_dict()) - own
    if "max_lr" in options and options.get("cycle_momentum", True):
        both(torch, lambda module, opt: getattr(module, kind)(opt, **options))
    both(torch, lambda module, opt: getattr(module, kind)(opt, **options), kind=optimizer, epochs=[0, 3, 4, 1, 7] * 2)


def test_composed_schedules_parity(torch):
    def sequence(module, opt):
        parts = [
            module.LinearLR(opt, 0.1, total_iters=3),
            module.StepLR(opt, 2, 0.5),
            module.CosineAnnealingLR(opt, 5, 0.01),
            module.ExponentialLR(opt, 0.9),
        ]
        return module.SequentialLR(opt, parts, [3, 7, 11])

    def chain(module, opt):
        return module.ChainedScheduler([module.ConstantLR(opt, 0.1, 4), module.MultiplicativeLR(opt, lambda e: 0.9)])

    def nested(module, opt):
        return module.SequentialLR(opt, [chain(module, opt), module.MultiStepLR(opt, [0, 2], 0.5)], [4])

    for schedule in (sequence, chain, nested):
        ours, theirs = both(torch, schedule, steps=15)
        state = ours.state_dict()
        assert set(state) == set(theirs.state_dict())
        assert [set(s) - {"_get_lr_called_within_step"} for s in theirs.state_dict()["_schedulers"]] == [
            set(s) for s in state["_schedulers"]
        ]
        _, other = follow(pydist, lambda: parameter([1.0]), schedule, steps=2)
        other.load_state_dict(state)
        other.optimizer.load_state_dict(ours.optimizer.state_dict())
        ours.step()
        other.step()
        assert other.get_last_lr() == ours.get_last_lr()


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"patience": 1, "cooldown": 2, "factor": 0.5},
        {"patience": 0, "threshold": 0.3, "threshold_mode": "abs", "min_lr": [0.05, 0.01]},
        {"patience": 2, "min_lr": 1e-3, "eps": 0.02},
    ],
)
def test_plateau_parity(torch, mode, options):
    def run(optim, make):
        opt = optim.SGD([{"params": [make()], "lr": 0.1}, {"params": [make()], "lr": 0.2}])
        schedule = optim.lr_scheduler.ReduceLROnPlateau(opt, mode, **options)
        out = []
        for metric in [3.0, 2.0, 2.5, 2.4, 1.9, 1.9, 1.9, 5.0, 1.0, 1.1] * 4:
            schedule.step(metric)
            out += schedule.get_last_lr()
        return out

    theirs = run(torch.optim, lambda: torch.zeros(1, requires_grad=True))
    assert run(optim, lambda: parameter([1.0])) == pytest.approx(theirs)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda o: optim.lr_scheduler.ConstantLR(o, 2.0), "between 0 and 1"),
        (lambda o: optim.lr_scheduler.LinearLR(o, 0.0), "greater than 0"),
        (lambda o: optim.lr_scheduler.LinearLR(o, end_factor=2.0), "between 0 and 1"),
        (lambda o: optim.lr_scheduler.ReduceLROnPlateau(o, factor=1.0), "< 1.0"),
        (lambda o: optim.lr_scheduler.ReduceLROnPlateau(o, "low"), "mode low is unknown"),
        (lambda o: optim.lr_scheduler.ReduceLROnPlateau(o, threshold_mode="x"), "threshold mode x is unknown"),
        (lambda o: optim.lr_scheduler.ReduceLROnPlateau(o, min_lr=[0.1, 0.1]), "expected 1 min_lrs, got 2"),
        (lambda o: optim.lr_scheduler.SequentialLR(o, [], []), "at least one scheduler"),
        (lambda o: optim.lr_scheduler.SequentialLR(o, [optim.lr_scheduler.StepLR(o, 2)], [1]), "1 schedulers and 1"),
        (lambda o: optim.lr_scheduler.ChainedScheduler([optim.lr_scheduler.ReduceLROnPlateau(o)]), "index 0"),
        (lambda o: optim.lr_scheduler.CyclicLR(o, 0.1, [1.0, 2.0]), "has 2 values, param_groups has 1"),
        (lambda o: optim.lr_scheduler.CyclicLR(o, 0.1, 1.0, mode="x"), "mode is invalid"),
        (lambda o: optim.lr_scheduler.OneCycleLR(o, 0.1), "either total_steps"),
        (lambda o: optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=0), "positive integer total_steps"),
        (lambda o: optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 0), "positive integer T_0"),
        (lambda o: optim.lr_scheduler.ReduceLROnPlateau(3), "int is not an Optimizer"),
    ],
)
def test_bad_schedules(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make(optim.SGD([parameter([1.0])]))


# Clipping.


def grads(torch, dtype="float64", shapes=((3, 4), (5,), (2, 2, 2), (0,))):
    torch.manual_seed(3)
    made = [torch.randn(shape, dtype=getattr(torch, dtype)) for shape in shapes]
    theirs = [torch.nn.Parameter(torch.zeros_like(g)) for g in (*made, torch.ones(1))]
    ours = [nn.Parameter(from_torch(p)) for p in theirs]
    for p, q, g in zip(ours, theirs, made):
        p.grad, q.grad = from_torch(g), g
    return ours, theirs


@pytest.mark.parametrize("norm_type", [2.0, 1, 3.5, 0.5, float("inf"), 0])
@pytest.mark.parametrize("max_norm", [0.1, 1e3, 0.0, -1.0])
def test_clip_norm_parity(torch, norm_type, max_norm):
    ours, theirs = grads(torch, shapes=((3, 4), (5,), (2, 2, 2)))
    a = nn.utils.clip_grad_norm_(iter(ours), max_norm, norm_type)
    b = torch.nn.utils.clip_grad_norm_(theirs, max_norm, norm_type)
    assert a.dim() == 0 and a.dtype == pydist.float64 and a.item() == pytest.approx(b.item())
    for p, q in zip(ours[:-1], theirs):
        assert p.grad.flatten().tolist() == pytest.approx(q.grad.flatten().tolist(), rel=1e-12)
    assert ours[-1].grad is None


def test_clip_value_parity(torch):
    ours, theirs = grads(torch, "float32")
    nn.utils.clip_grad_value_(ours, 0.5)
    torch.nn.utils.clip_grad_value_(theirs, 0.5)
    for p, q in zip(ours[:-1], theirs):
        assert p.grad.tolist() == q.grad.tolist()


def test_clip_corners():
    p = parameter([3.0, 4.0], [float("nan"), 1.0])
    with pytest.raises(RuntimeError, match="The total norm of order 2.0 .* is non-finite"):
        nn.utils.clip_grad_norm_(p, 1.0, error_if_nonfinite=True)
    assert p.grad[1].item() == 1.0
    nn.utils.clip_grad_norm_(p, 1.0)
    assert p.grad[1].item() != p.grad[1].item()
    assert nn.utils.clip_grad_norm_([], 1.0).item() == 0.0
    for norm_type in (float("inf"), 0, 1, 2, 3):
        assert nn.utils.get_total_norm([pydist.zeros(0), pydist.ones(1)], norm_type).item() == 1.0
        assert nn.utils.get_total_norm([pydist.zeros(0)], norm_type).item() == 0.0
    assert nn.utils.clip_grad_norm_(parameter([1.0]), 1.0).item() == 0.0
    big = pydist.full((4,), 1e30)
    assert nn.utils.get_total_norm(big).item() == pytest.approx(2e30)
    q = nn.Parameter(pydist.zeros(2, 3))
    q.grad = pydist.ones(3, 1).expand(3, 2).t()
    assert nn.utils.get_total_norm([q.grad]).item() == pytest.approx(6**0.5)
    with pytest.raises(TypeError, match="floating dtype"):
        nn.utils.get_total_norm([pydist.tensor([1])])


def test_parameters_as_a_vector():
    net = nn.Linear(2, 3)
    vector = nn.utils.parameters_to_vector(net.parameters())
    assert vector.tolist() == [*net.weight.flatten().tolist(), *net.bias.tolist()]
    nn.utils.vector_to_parameters(pydist.arange(9.0), net.parameters())
    assert net.weight.tolist() == [[0, 1], [2, 3], [4, 5]] and net.bias.tolist() == [6, 7, 8]
    with pytest.raises(ValueError, match="8 elements \\(expected 9\\)"):
        nn.utils.vector_to_parameters(pydist.zeros(8), net.parameters())
    with pytest.raises(TypeError, match="expected Tensor"):
        nn.utils.vector_to_parameters([1.0], net.parameters())


def test_schedule_resumes():
    def make():
        return optim.SGD([parameter([1.0])], lr=1.0)

    opt = make()
    schedule = optim.lr_scheduler.StepLR(opt, 2, 0.1)
    for _ in range(3):
        schedule.step()
    other = make()
    resumed = optim.lr_scheduler.StepLR(other, 2, 0.1)
    resumed.load_state_dict(schedule.state_dict())
    other.load_state_dict(opt.state_dict())
    schedule.step()
    resumed.step()
    assert resumed.get_last_lr() == schedule.get_last_lr() == pytest.approx([0.01])
    with pytest.raises(KeyError, match="initial_lr"):
        optim.lr_scheduler.StepLR(make(), 2, last_epoch=3)
    with pytest.raises(TypeError, match="not an Optimizer"):
        optim.lr_scheduler.StepLR(3, 2)
    with pytest.raises(ValueError, match="Expected 1 lr_lambdas, but got 2"):
        optim.lr_scheduler.LambdaLR(make(), [abs, abs])
