"""Recorded steps: the bits of replays, what makes a step run anew or as Python for ever, errors, threads, ranks."""

import functools
import gc
import os
import random
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest

import pydist
from lib.op_samples import HIDDEN, RANDOM, SAMPLES, T, arguments, arrays, build, call, specs_of
from lib.ranks import LONG
from lib.replay_steps import CASES, train
from pydist import _C, _replay, nn, optim
from pydist.nn import functional as F
from pydist.testing import run_ranks

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "fuzz"))
import replays

READY = 3  # calls until a step is replayed


def bits(value):
    """What can be compared with ==, and is only if all bits are."""
    if isinstance(value, pydist.Tensor):
        return str(value.dtype), tuple(value.shape), value.detach().contiguous().numpy().tobytes()
    if isinstance(value, dict):
        return {k: bits(v) for k, v in value.items()}
    return [bits(v) for v in value] if isinstance(value, (list, tuple)) else value


def ready(step, *args, **options):
    """A step that is replayed for these arguments."""
    run = _replay.Recorded(step, **options)
    for _ in range(READY):
        run(*args)
    assert run.state == "replayed"
    return run


# Bits.


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n == "resnet20" else n for n in CASES])
def test_200_steps_have_the_bits_of_python(name):
    want, got = train(name, 200, False), train(name, 200, True)
    assert got == (*want[:2], "replayed")


@pytest.mark.parametrize("name", ["cnn", "lstm", "transformer"])
def test_bits_do_not_depend_on_threads(name):
    before, found = _C.get_num_threads(), []
    try:
        for threads in (1, 2):
            _C.set_num_threads(threads)
            found.append(train(name, 12, True))
    finally:
        _C.set_num_threads(before)
    assert found[0] == found[1] and found[0][2] == "replayed"


def on_rank(rank, name):
    from pydist.nn.parallel import DistributedDataParallel

    return [train(name, 12, record, rank, DistributedDataParallel) for record in (False, True)]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_ranks_replay(name):
    for want, got in run_ranks(2, on_rank, name, processes=True):
        assert got == (*want[:2], "replayed")


def test_ranks_replay_a_model_with_buffers():
    for want, got in run_ranks(2, on_rank, "cnn", processes=True):
        assert got == (*want[:2], "replayed")


SMOOTH = {name for name, _, _, _, differentiable, _ in _C.op_table() if differentiable}
PLACED = [n for n, s in SAMPLES.items() if s and n not in HIDDEN and n not in RANDOM]


@pytest.mark.parametrize("name", PLACED)
def test_ops_give_the_same_bits(name):
    """Each sample of each op, with its gradient, replayed for other values."""
    for sample in SAMPLES[name][:6]:
        values = arrays(name, sample)
        floats = [isinstance(s, T) and s.grad for s in specs_of(sample)]

        def step(tensors, sample=sample, floats=floats):
            leaves = [t.detach().requires_grad_() if g and name in SMOOTH else t for t, g in zip(tensors, floats)]
            out = call(pydist, name, *arguments(sample, leaves), **sample.kwargs)
            outs = list(out) if isinstance(out, (tuple, list)) else [out]
            wanted = [o for o in outs if o.requires_grad]
            some = [x for x in leaves if x.requires_grad]
            grads = pydist.autograd.grad([o.sum() for o in wanted], some, allow_unused=True) if wanted else ()
            return [o.detach() for o in outs], grads

        run = _replay.Recorded(step)
        for k in range(READY + 2):
            given = [v * 0.875**k if v.dtype.kind == "f" else v for v in values]
            assert bits(run(build(pydist, sample, given))) == bits(step(build(pydist, sample, given)))
        assert run.state == "replayed" or "a mask" in run.state


def test_random_steps():
    seeds = 25 if LONG else 9
    states = [replays.case(random.Random(seed)) for seed in range(seeds)]
    assert states.count("replayed") > seeds // 2  # else they show nothing


# What a step may be made of.


def test_views_writes_and_aliases_of_inputs_and_states():
    state, table = pydist.zeros(4), pydist.arange(12.0).reshape(3, 4)

    def step(x):
        row = table[1]
        row.add_(x)
        state.view(2, 2)[0] = x[:2]
        x.mul_(2)
        return table.sum(), state.detach(), x

    def all_of(run):
        table.copy_(pydist.arange(12.0).reshape(3, 4))
        return [bits(run(pydist.full((4,), float(k)))) + [bits(state), bits(table)] for k in range(6)]

    run = _replay.Recorded(step)
    assert all_of(run) == all_of(step) and run.state == "replayed"


def test_inputs_with_history_and_gradients():
    def step(x, w):
        y = (x * w).sum()
        y.backward()
        return y

    def all_of(run):
        found = []
        for k in range(6):
            w = pydist.full((3,), float(k), requires_grad=True)
            x = pydist.ones(3, requires_grad=True) * 2
            found.append(bits([run(x, w), w.grad]))
        return found

    run = _replay.Recorded(step)
    assert all_of(run) == all_of(step) and "history from outside" in run.state


def test_a_forward_on_inputs_with_history():
    """Backward is the caller's, through both graphs."""

    def all_of(run):
        found = []
        for k in range(6):
            w = pydist.full((3,), float(k), requires_grad=True)
            run(w * 2, w).backward()
            found.append(bits(w.grad))
        return found

    def step(x, w):
        return (x * w).sum()

    run = _replay.Recorded(step)
    assert all_of(run) == all_of(step) and run.state == "replayed"


def test_a_result_keeps_its_history():
    w = pydist.ones(3, requires_grad=True)
    run = ready(lambda x: (w * x).sum(), pydist.ones(3))
    w.grad = None
    run(pydist.full((3,), 5.0)).backward()
    assert w.grad.tolist() == [5.0] * 3


def test_gradients_are_accumulated_where_the_step_does_not_clear_them():
    def losses(record):
        w = pydist.ones(3, requires_grad=True)

        def step(x):
            (w * x).sum().backward()

        run = _replay.Recorded(step) if record else step
        found = []
        for k in range(9):
            if k % 3 == 0:
                w.grad = None  # now the step finds none, which is another program
            run(pydist.full((3,), float(k)))
            found.append(bits(w.grad))
        return found

    assert losses(True) == losses(False)


def test_draws_come_from_the_default_stream():
    def step(x):
        return (
            F.dropout(x, 0.5) + pydist.rand(4) + pydist.randn(4),
            pydist.randint(0, 9, (3,)),
            pydist.empty(4).uniform_(),
        )

    def all_of(run):
        pydist.manual_seed(3)
        return [bits(run(pydist.ones(4))) for _ in range(6)], _C._rng_key()

    run = _replay.Recorded(step)
    assert all_of(run) == all_of(step) and run.state == "replayed"


def test_a_constant_is_made_anew_where_it_is_written():
    def step(x):
        total = pydist.zeros(3)
        for row in x:
            total += row
        return total, pydist.ones(2), pydist.tensor([1, 2]) + 1

    run = ready(step, pydist.ones(2, 3))
    first = run(pydist.ones(2, 3))
    first[1].add_(5)  # what the caller does with a result
    assert bits(run(pydist.full((2, 3), 2.0))) == bits(step(pydist.full((2, 3), 2.0)))


def test_arrays_are_read_where_they_lie():
    np = pytest.importorskip("numpy")
    scale = np.ones(3, "float32")
    run = ready(lambda x: x * pydist.from_numpy(scale), pydist.ones(3))
    scale[:] = 7
    assert run(pydist.ones(3)).tolist() == [7.0] * 3


def test_structures_constants_and_results():
    Pair = pytest.importorskip("collections").namedtuple("Pair", "a b")

    def step(batch, *, scale=1.0, names=None):
        x, (y, none) = batch["x"], batch["rest"]
        return Pair(x * scale, [y, {"k": none, "n": 3}]), names

    run = _replay.Recorded(step)
    for k in range(6):
        given = {"x": pydist.full((2,), float(k)), "rest": (pydist.ones(1), None)}
        want, got = step(given, scale=2.0, names=("a",)), run(given, scale=2.0, names=("a",))
        assert type(got[0]) is Pair and bits(got) == bits(want)
    assert run.state == "replayed"
    assert run(given, scale=3.0)[0].a.tolist() == [15.0, 15.0]


def test_results_of_ops_with_names():
    run = ready(lambda x: x.max(0), pydist.ones(3, 2))
    found = run(pydist.tensor([[1.0, 5.0], [2.0, 3.0], [0.0, 4.0]]))
    assert type(found) is type(pydist.ones(1, 1).max(0))
    assert found.values.tolist() == [2.0, 5.0] and found.indices.tolist() == [1, 0]


def test_a_partial_and_an_object_are_steps():
    class Step:
        net = nn.Linear(2, 2)

        def __call__(self, x):
            return self.net(x)

    with pydist.no_grad():
        for step in (functools.partial(lambda net, x: net(x), Step.net), Step()):
            run = ready(step, pydist.ones(1, 2))
            Step.net.weight = nn.Parameter(pydist.zeros(2, 2))
            assert bits(run(pydist.ones(1, 2))) == bits(step(pydist.ones(1, 2)))


def test_a_program_does_not_keep_a_model_alive():
    """The model keeps the step, whose program calls the model's optimizer."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)
            self.layer.weight.owner = self  # a cycle through what a tensor has in Python
            self.optimizer = optim.SGD(self.parameters(), lr=0.1)
            self.step = _replay.Recorded(self.train_step)

        def train_step(self, x):
            self.optimizer.zero_grad()
            self.layer(x).sum().backward()
            self.optimizer.step()

    model = Model()
    for _ in range(5):
        model.step(pydist.ones(2, 2))
    assert model.step.state == "replayed"
    gone = weakref.ref(model)
    del model
    for _ in range(3):
        gc.collect()
    assert gone() is None


def test_nested_gradients():
    w = pydist.ones(3, requires_grad=True)

    def step(x):
        w.grad = None
        (g,) = pydist.autograd.grad((w**3 * x).sum(), w, create_graph=True)
        (g**2).sum().backward()
        return g.detach(), w.grad

    run = ready(step, pydist.ones(3))
    assert bits(run(pydist.full((3,), 2.0))) == bits(step(pydist.full((3,), 2.0)))


# What makes it run anew.


def counted(step, **options):
    """A recorded step, and a list that grows whenever Python runs it."""
    calls = []

    def called(*args):
        calls.append(1)
        return step(*args)

    return _replay.Recorded(called, **options), calls


def check(run, calls, x, want, anew):
    """Four calls give `want`; Python runs at most two of them, and the first if `anew`."""
    before = len(calls)
    for _ in range(4):
        assert bits(run(x)) == bits(want())
    assert (len(calls) > before) == anew and len(calls) <= before + 2


def test_shapes_dtypes_strides_and_modes():
    w = pydist.full((3,), 2.0, requires_grad=True)

    def step(x):
        return F.linear(x, w.unsqueeze(0)) + 1

    run, calls = counted(step)
    x = pydist.ones(2, 3)
    run(x)
    for other in (x, pydist.ones(5, 3), pydist.ones(2, 3, dtype=pydist.float64).float().t().contiguous().t()):
        check(run, calls, other, lambda other=other: step(other), True)
        check(run, calls, other, lambda other=other: step(other), False)
    with pydist.no_grad():
        check(run, calls, x, lambda: step(x), True)
        assert not run(x).requires_grad
    with pydist.autocast("cpu", dtype=pydist.bfloat16):
        check(run, calls, x, lambda: step(x), True)
        assert run(x).dtype is pydist.bfloat16
    w.requires_grad_(False)
    check(run, calls, x, lambda: step(x), True)
    pydist.set_default_dtype(pydist.float64)
    try:
        check(run, calls, x, lambda: step(x), True)
    finally:
        pydist.set_default_dtype(pydist.float32)
    assert run.state == "replayed"


def test_a_ninth_program_is_not_made():
    run, calls = counted(lambda x: x + 1)
    run(pydist.ones(1))
    for n in range(1, 12):
        for _ in range(4):
            assert run(pydist.ones(n)).tolist() == [2.0] * n
    before = len(calls)
    run(pydist.ones(1)), run(pydist.ones(8))
    assert len(calls) == before and run.state == "too many programs"
    run(pydist.ones(9))
    assert len(calls) == before + 1


class Holder:
    pass


def test_rebound_tensors():
    """A program is stale once another tensor is where Python found its own."""
    cell, listed, held = pydist.ones(2), [pydist.ones(2)], Holder()
    held.w = pydist.ones(2)
    named = {"w": pydist.ones(2)}

    def step(x):
        return x * cell + listed[0] * held.w + named["w"]

    run, calls = counted(step)
    x = pydist.ones(2)
    run(x)
    check(run, calls, x, lambda: step(x), True)
    for change in ("cell", "listed", "held", "named"):
        if change == "cell":
            cell = pydist.full((2,), 3.0)
        elif change == "listed":
            listed[0] = pydist.full((2,), 4.0)
        elif change == "held":
            held.w = pydist.full((2,), 5.0)
        else:
            named["w"] = pydist.full((2,), 6.0)
        check(run, calls, x, lambda: step(x), True)


def test_new_data_is_read():
    w = pydist.ones(2)
    run, calls = counted(lambda x: x * w)
    for _ in range(4):
        run(pydist.ones(2))
    before = len(calls)
    w.data = pydist.full((2,), 8.0)
    assert run(pydist.ones(2)).tolist() == [8.0, 8.0] and len(calls) == before
    w.data = pydist.full((1,), 9.0)
    assert run(pydist.ones(2)).tolist() == [9.0, 9.0] and len(calls) == before + 1


def test_modules_are_watched():
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    run, calls = counted(lambda x: net(x), watch=[net])
    x = pydist.randn(4, 3)

    def step():
        return net(x)

    def same(anew):
        before = len(calls)
        for _ in range(4):
            stats = [b.clone() for b in net.buffers()]
            key = _C.get_rng_state()
            want = bits(step())
            for b, s in zip(net.buffers(), stats):
                b.copy_(s)
            _C.set_rng_state(key)
            assert bits(run(x)) == want
        assert (len(calls) > before) == anew

    run(x)
    same(True)
    net.eval()
    same(True)
    net.train()
    same(False)
    net[2].p = 0.25
    same(True)
    net[0].weight = nn.Parameter(pydist.zeros(3, 3))
    same(True)
    net[0] = nn.Linear(3, 3)
    same(True)


def test_a_rate_needs_no_new_program():
    """Numbers of optimizers, schedules and scalers are read in each call."""

    def losses(record):
        pydist.manual_seed(0)
        net = nn.Linear(3, 1)
        optimizer = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        schedule = optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

        def step(x):
            optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            optimizer.step()
            schedule.step()
            return loss.detach()

        run, calls = counted(step) if record else (step, [])
        found = []
        for k in range(12):
            if k == 9:
                optimizer.param_groups[0]["lr"] = 1e-3
            found.append(run(pydist.full((2, 3), 0.1 * k)).item())
        return found, schedule.last_epoch, optimizer.param_groups[0]["lr"], len(calls)

    want, got = losses(False), losses(True)
    assert got == (*want[:3], READY)


# What is not replayed, and why.


class Square(pydist.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g * ctx.saved_tensors[0]


W = pydist.ones(2, requires_grad=True)
KEPT = Holder()


def branch(x):
    return x * 2 if x.sum() > 0 else x


def hooked(x):
    y = W * x
    y.register_hook(lambda g: g * 2)
    return y


def kept(x):
    KEPT.last = x * 2
    return KEPT.last + 1


def counts(x):
    KEPT.n = getattr(KEPT, "n", 0) + 1
    return x * KEPT.n


def rebinds(x):
    KEPT.state = getattr(KEPT, "state", pydist.zeros(2)) + x
    return KEPT.state + 0


def retains(x):
    y = W * x
    y.retain_grad()
    return y


def seeds(x):
    pydist.manual_seed(3)
    return x + pydist.rand(2)


def frees(x):
    KEPT.w = getattr(KEPT, "w", None) if hasattr(KEPT, "w") else pydist.ones(2)
    KEPT.w.requires_grad_(not KEPT.w.requires_grad)
    return x * KEPT.w


def data(x):
    W.data = W.data * 1
    return W * x


def grad_mode(x):
    _C.set_grad_enabled(not _C.is_grad_enabled())
    return x + 1


WHY = {
    "item() reads": lambda x: x * x.sum().item(), "item() reads values": branch, "tolist() reads": lambda x: x + x.tolist()[0],
    "numpy() reads": lambda x: x + float(x.numpy()[0]), "register_hook()": hooked, "Function of Python": lambda x: Square.apply(W * x),
    "a mask decide": lambda x: x[x > -5] + 1, "is kept as 'last'": kept, "with another argument": counts,
    "is kept as 'state'": rebinds, "retain_grad()": retains, "seeds or reads a random generator": seeds,
    "requires_grad": frees, "replaces .data": data, "changes a mode": grad_mode,
    "another one in each step": lambda x: x + pydist.eye(2).sum(0) if hasattr(_C, "no_such_name") else x + pydist.Tensor([1.0]),
    "draws from one of its own": lambda x: x + pydist.rand(2, generator=pydist.Generator().manual_seed(1)),
}  # fmt: skip


@pytest.mark.parametrize("why", [w for w in WHY if w != "another one in each step"])
def test_what_is_not_replayed(why):
    global KEPT
    step, found = WHY[why], []
    for record in (False, True):
        pydist.manual_seed(5)
        KEPT = Holder()  # a new one: conftest.py hides older objects from the garbage collector
        run = _replay.Recorded(step) if record else step
        found.append(
            [bits(run(pydist.full((2,), 1.0 + k))) for k in range(9)] + [bits(W.grad) if W.grad is not None else None]
        )
        W.grad = None
    _C.set_grad_enabled(True)
    KEPT = Holder()
    assert found[0] == found[1]
    assert why in run.state, run.state


def test_a_hook_on_a_parameter_keeps_python():
    w, seen = pydist.ones(2, requires_grad=True), []
    handle = w.register_hook(lambda g: seen.append(g.sum().item()))

    def step(x):
        w.grad = None
        (w * x).sum().backward()

    run = _replay.Recorded(step)
    for k in range(6):
        run(pydist.full((2,), float(k)))
    assert seen == [2.0 * k for k in range(6)] and "hook" in run.state
    handle.remove()


def test_a_hook_on_a_module_keeps_python():
    net, seen = nn.Linear(2, 2), []
    run = ready(lambda x: net(x), pydist.ones(2))
    net.register_forward_hook(lambda module, args, out: seen.append(1))
    for _ in range(5):
        run(pydist.ones(2))
    assert len(seen) == 5 and run.state == "a module has hooks"


def test_a_step_that_differs_at_first_is_replayed_later():
    state = Holder()

    def step(x):
        state.calls = getattr(state, "calls", 0) + 1
        return x + 1 if state.calls > 2 else x - 1

    run = _replay.Recorded(step)
    assert [run(pydist.zeros(1)).item() for _ in range(8)] == [-1, -1, 1, 1, 1, 1, 1, 1]
    assert run.state == "replayed"


# Calls of Python inside a step.


def test_each_time():
    seen = []

    def note(loss, words):
        seen.append((loss.item(), words["k"]))
        return loss * len(seen), None

    def step(x):
        y, none = _replay.each_time(note, (x * 2).sum(), words={"k": 3})
        return y + 1, none

    run = _replay.Recorded(step)
    found = [run(pydist.full((1,), float(k)))[0].item() for k in range(7)]
    assert found == [2.0 * k * (k + 1) + 1 for k in range(7)] and seen == [(2.0 * k, 3) for k in range(7)]
    assert run.state == "replayed"


def test_each_time_that_raises_or_returns_something_else():
    way = Holder()
    way.it = "good"

    def part(x):
        if way.it == "raise":
            raise KeyError("mine")
        return x + 1 if way.it == "good" else None

    run = ready(lambda x: _replay.each_time(part, x) * 2, pydist.ones(1))
    way.it = "raise"
    with pytest.raises(KeyError, match="mine"):
        run(pydist.ones(1))
    way.it = "none"
    with pytest.raises(RuntimeError, match="returned another kind of result"):
        run(pydist.ones(1))
    way.it = "good"
    assert run(pydist.ones(1)).item() == 4 and run.state == "replayed"
    assert _replay.each_time(part, pydist.ones(1)).item() == 2  # outside of a step: a plain call


def test_what_each_time_does_is_rehearsed():
    state = pydist.zeros(3)

    def part(x):
        state.add_(x.sum().item())
        return state * 2

    def step(x):
        return _replay.each_time(part, x) + state

    run = _replay.Recorded(step)
    found = [run(pydist.ones(2)).tolist() for _ in range(6)]
    assert found == [[6.0 * k] * 3 for k in range(1, 7)] and run.state == "replayed"


def test_each_time_may_draw_from_a_generator_of_its_own():
    source, other, total = pydist.Generator().manual_seed(1), pydist.Generator().manual_seed(1), pydist.zeros(2)

    def draw():
        drawn = pydist.rand(2, generator=source)
        total.add_(drawn)
        return drawn

    def step(x):
        return x * _replay.each_time(draw).mul_(2)

    run = _replay.Recorded(step)
    found, want = [bits(run(pydist.ones(2))) for _ in range(6)], [pydist.rand(2, generator=other) for _ in range(6)]
    assert found == [bits(drawn * 2) for drawn in want] and run.state == "replayed"
    assert bits(total) == bits(sum(want, pydist.zeros(2)))


def test_guards_of_a_list_and_of_an_attribute():
    holder, items = Holder(), [1]
    holder.part = object()
    run = ready(lambda x: x + 1, pydist.ones(1), watch=[items, (holder, "part")])
    held = [run._ready[0].run((pydist.ones(1),), {}) is not NotImplemented]
    items.append(2)
    held.append(run._ready[0].run((pydist.ones(1),), {}) is not NotImplemented)
    items.pop()
    holder.part = object()
    held.append(run._ready[0].run((pydist.ones(1),), {}) is not NotImplemented)
    assert held == [True, False, False]


def test_a_guard_that_changes_between_recordings():
    holder = Holder()
    holder.part = 0
    run = _replay.Recorded(lambda x: x + holder.part, watch=[holder])
    for k in range(6):
        holder.part = k // 2  # the second recording finds another value than the first one
        assert run(pydist.ones(1)).item() == 1 + k // 2
    assert ready(lambda x: x + holder.part, pydist.ones(1), watch=[holder]).state == "replayed"
    for k in range(20):
        holder.part = k
        run(pydist.ones(1))
    assert run.state == "'part' of an object that it depends on changes between calls"


# Errors, threads, processes.


def test_an_error_in_a_replay_is_that_of_python():
    def left(record):
        w, table = pydist.zeros(1), pydist.arange(5.0)

        def step(i):
            w.add_(1)
            with pydist.autocast("cpu", dtype=pydist.bfloat16):
                with pydist.no_grad():
                    y = table[i] + w
            return y

        run = _replay.Recorded(step) if record else step
        found = []
        for k in (0, 1, 2, 3, 9, 4, 9):
            try:
                found.append(run(pydist.tensor([k])).tolist())
            except IndexError as error:
                found.append(str(error))
            found.append((w.item(), _C.is_grad_enabled(), _C.autocast_state()))
        return found

    assert left(True) == left(False)


def test_an_error_in_a_recording_gives_no_program():
    fails = Holder()
    fails.now = False

    def step(x):
        y = x + 1
        if fails.now:
            raise KeyError("mine")
        return y

    run = _replay.Recorded(step)
    run(pydist.ones(1))
    fails.now = True
    for _ in range(3):
        with pytest.raises(KeyError):
            run(pydist.ones(1))
    fails.now = False
    assert [run(pydist.ones(1)).item() for _ in range(4)] == [2] * 4 and run.state == "replayed"


def test_a_caught_error_keeps_python():
    def step(x):
        try:
            return x.view(7)
        except RuntimeError:
            return x + 1

    run = _replay.Recorded(step)
    assert [run(pydist.ones(2)).tolist() for _ in range(4)] == [[2.0, 2.0]] * 4
    assert run.state == "an op raised an error in it"


def test_threads():
    """One thread records; others run the same step meanwhile, and then they replay together."""
    run = _replay.Recorded(lambda x: (x * 2).sum() + 1)
    wrong = []

    def work(k):
        for n in range(200):
            if run(pydist.full((3,), float(n + k))).item() != 6.0 * (n + k) + 1:
                wrong.append((n, k))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not wrong and run.state == "replayed"


def test_a_recorded_step_inside_another():
    inner = _replay.Recorded(lambda x: x * 2)
    outer = _replay.Recorded(lambda x: inner(x) + 1)
    for _ in range(5):
        assert inner(pydist.ones(1)).item() == 2
    assert [outer(pydist.ones(1)).item() for _ in range(5)] == [3] * 5
    assert inner.state == outer.state == "replayed"


def test_a_forked_child_replays():
    w = pydist.ones(2)
    run = ready(lambda x: w.mul_(2) + x, pydist.ones(2))
    pid = os.fork()
    if not pid:
        ok = run(pydist.zeros(2)).tolist() == [16.0, 16.0] and run.state == "replayed"
        os._exit(0 if ok else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert run(pydist.zeros(2)).tolist() == [16.0, 16.0]


def test_memory_of_replays_does_not_grow():
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = optim.Adam(net.parameters())

    def step(x):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    x = pydist.ones(4, 8)
    run = ready(step, x)
    for _ in range(5):
        run(x)
    before = _C._memory_asked()
    for _ in range(50):
        run(x)
    assert _C._memory_asked() == before


def test_the_profiler_sees_replays():
    run = ready(lambda x: (x * 2).sum(), pydist.ones(3))
    with pydist.profiler.profile() as prof:
        run(pydist.ones(3))
    assert [e.name for e in prof.events()] == ["mul", "sum"]


def python(code, **env):
    code = "import pydist\nfrom pydist import _replay\n" + code
    return subprocess.run([sys.executable, "-c", code], env={**os.environ, **env}, capture_output=True, text=True)


LOOP = "\nfor k in range(8):\n    run(pydist.ones(2))\nprint(run.state)"


def test_why_is_said_once():
    done = python("run = _replay.Recorded(lambda x: x * x.sum().item(), name='mine')" + LOOP, PYDIST_LOG="2")
    said = "replay: mine: runs as Python from now on: item() reads values of a tensor"
    assert done.stderr.count("replay:") == 1 and said in done.stderr, done.stderr
    assert not python("run = _replay.Recorded(lambda x: x * x.sum().item())" + LOOP).stderr


def test_the_switch():
    code = "run = _replay.Recorded(lambda x: x + 1)" + LOOP
    assert python(code).stdout == "replayed\n"
    assert python(code, PYDIST_REPLAY="0").stdout == "PYDIST_REPLAY is 0\n"
    assert python(code, PYDIST_REPLAY="check").stdout == "recording\n"
    assert "replayed" not in python(code, PYDIST_NAN="1").stdout


def test_check_finds_a_difference():
    code = "n = [0]\ndef step(x):\n    n[0] += 1\n    return x + (n[0] > 5)\nrun = _replay.Recorded(step)"
    done = python(code + LOOP, PYDIST_REPLAY="check")
    assert (
        "RuntimeError: replay: step: call 0 of the step was add, and in the next step add with another argument"
        in done.stderr
    )


@pytest.mark.slow
def test_each_allocation_may_fail():
    """While a step is recorded, rehearsed and replayed: the call raises MemoryError or is right, and the next ones are right."""
    net = nn.Linear(2, 2)
    optimizer = optim.SGD(net.parameters(), lr=0.0)

    def step(x):
        optimizer.zero_grad()
        loss = net(x).sum() + pydist.tensor(1.0)
        loss.backward()
        optimizer.step()
        return loss.detach()

    x = pydist.ones(1, 2)
    want, states = step(x).item(), set()
    for n in range(1, 2000, 4):
        run = _replay.Recorded(step)
        _C.fault_malloc(n)
        try:
            for _ in range(5):
                assert run(x).item() == want
        except MemoryError:
            pass
        reached = _C.fault_malloc(0) >= n
        for _ in range(4):
            assert run(x).item() == want
        states.add(run.state)
        if not reached:
            break
    assert not reached and "replayed" in states
