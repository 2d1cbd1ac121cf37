"""Steps made of random calls, as Python and through _replay.Recorded: after each step everything must have the same bits.

    python tests/fuzz/replays.py [--seconds 20] [--seed 0]       (runner.py says how)

A step is a list of actions on tensors: parameters, states, arguments and what actions before have made. Some actions do what
a recording cannot see (they read values, keep tensors, count in Python), and between two steps the program may change what a
step depends on. So a case may be replayed or not; either way the results must be equal.
"""

from functools import partial

import runner

import pydist
from pydist import _replay, optim
from pydist.nn import functional as F

SHAPES = [(), (3,), (2, 3), (3, 3), (2, 3, 3)]
ONE = "tanh sigmoid neg abs square sin relu erf sqrt floor sum mean softmax cumsum amax".split()
TWO = "add sub mul maximum minimum where lt atan2".split()
WRITES = "add_ mul_ copy_ fill_ zero_ relu_ tanh_ uniform_ clamp_ set".split()
VIEWS = "flat turned front first part tail expand detach data".split()
MAKES = "zeros ones full arange tensor rand randn randint empty like".split()
NUMBERS = [0.5, 2, -1.5, 3, True, 0.0]


def one(name, x):
    if name in ("softmax", "cumsum"):
        return getattr(pydist, name)(x if x.dim() else x.reshape(1), -1)
    return getattr(x, name)()


def two(name, x, y):
    if name == "where":
        return pydist.where(x > 0, x, y)
    return getattr(pydist, name)(x, y)


def view(name, x):
    return {
        "flat": lambda: x.reshape(-1), "turned": lambda: x.transpose(0, -1), "front": lambda: x.unsqueeze(0),
        "first": lambda: x[0], "part": lambda: x[..., 1:], "tail": lambda: x[-2:], "expand": lambda: x.expand(2, *x.shape),
        "detach": x.detach, "data": lambda: x.data,
    }[name]()  # fmt: skip


def make(name, x):
    shape = tuple(x.shape)
    return {
        "zeros": lambda: pydist.zeros(shape), "ones": lambda: pydist.ones(shape), "full": lambda: pydist.full(shape, 0.25),
        "arange": lambda: pydist.arange(3.0), "tensor": lambda: pydist.tensor([1.0, -2.0, 0.5]),
        "rand": lambda: pydist.rand(shape), "randn": lambda: pydist.randn(shape), "randint": lambda: pydist.randint(0, 5, shape),
        "empty": lambda: pydist.empty(shape).fill_(1.5), "like": lambda: pydist.zeros_like(x),
    }[name]()  # fmt: skip


def write(name, x, y, number):
    if name == "set":
        x[..., 0] = number
    elif name in ("add_", "mul_"):
        getattr(x, name)(y)
    elif name == "copy_":
        x.copy_(y)
    else:
        getattr(x, name)(*{"fill_": [number], "clamp_": [-1, 1]}.get(name, []))


class Counter:
    """A number of Python's, which nobody watches."""

    n = 0


class World:
    """What one of the two runs has."""

    def __init__(self, random_seed, optimizer):
        pydist.manual_seed(random_seed)
        self.params = [pydist.randn(shape).requires_grad_() for shape in SHAPES]
        self.states = [pydist.randn(shape) for shape in SHAPES]
        self.optimizer = optimizer(self.params)
        self.counter, self.kept, self.flag = Counter(), None, True


def action(random):
    """A function of a world and its tensors, to which it may add one."""
    kind = random.choice(
        ["one"] * 4 + ["two"] * 5 + ["number"] * 2 + ["view"] * 3 + ["make"] * 3 + ["write"] * 2
        + ["state", "cat", "index", "dropout", "cast", "matmul", "linear", "autocast", "no_grad", "backward", "backward", "grad",
           "step", "read_grad", "clear", "each_time", "norm"]
        + random.choices(["item", "keep", "use", "counted", "hidden", "mask", "flag"], k=1)
    )  # fmt: skip
    i, j, k = (random.randrange(1000) for _ in range(3))
    name, number = random.choice(ONE), random.choice(NUMBERS)
    pair, way, new, how = random.choice(TWO), random.choice(VIEWS), random.choice(MAKES), random.choice(WRITES)

    def act(w, env):
        x, y = env[i % len(env)], env[j % len(env)]
        p, s = w.params[k % len(SHAPES)], w.states[k % len(SHAPES)]
        if kind == "one":
            env.append(one(name, x))
        elif kind == "two":
            env.append(two(pair, x, y))
        elif kind == "number":
            env.append(x * number + 1)
        elif kind == "view":
            env.append(view(way, x))
        elif kind == "make":
            env.append(make(new, x))
        elif kind == "write":
            write(how, x, y, number)
        elif kind == "state":
            with pydist.no_grad():
                s.mul_(0.5).add_(x.sum())
        elif kind == "cat":
            env.append(pydist.cat([x, y]) if i % 2 else pydist.stack([x, y]))
        elif kind == "index":
            env.append(x[pydist.tensor([0, 1])] if i % 2 else x[[1, 0]])
        elif kind == "dropout":
            env.append(F.dropout(x, 0.5, i % 3 > 0))
        elif kind == "cast":
            env.append(x.double() if i % 2 else x.to(pydist.bfloat16))
        elif kind == "matmul":
            env.append(x @ y)
        elif kind == "linear":
            env.append(F.linear(x, w.params[3], w.params[1]))
        elif kind == "autocast":
            with pydist.autocast("cpu", dtype=pydist.bfloat16):
                env.append(F.linear(x, w.params[3]).relu() + x)
        elif kind == "no_grad":
            with pydist.no_grad():
                env.append(p * x)
        elif kind == "backward":
            x.sum().backward(retain_graph=i % 2 > 0)
        elif kind == "grad":
            env.extend(
                g for g in pydist.autograd.grad(x.sum(), [p, y], allow_unused=True, retain_graph=True) if g is not None
            )
        elif kind == "step":
            w.optimizer.step()
        elif kind == "read_grad":
            if p.grad is not None:
                env.append(p.grad)
        elif kind == "clear":
            if i % 2:
                w.optimizer.zero_grad(set_to_none=i % 4 > 1)
            else:
                p.grad = None if j % 2 else pydist.ones_like(p)
        elif kind == "each_time":
            env.append(_replay.each_time(w_counted, w, x))
        elif kind == "norm":
            pydist.nn.utils.clip_grad_norm_(w.params, 0.1)
        elif kind == "item":
            env.append(x * x.detach().reshape(-1)[0].item())
        elif kind == "keep":
            w.kept = x
        elif kind == "use":
            if w.kept is not None:
                env.append(x + w.kept.detach().sum())
        elif kind == "counted":
            w.counter.n += 1
            env.append(x * w.counter.n)
        elif kind == "hidden":
            w.states[k % len(SHAPES)] = s * 0.5
        elif kind == "mask":
            env.append(x[x > 0])
        elif kind == "flag":
            env.append(x + 1 if w.flag else x - 1)

    return act


def w_counted(w, x):
    w.counter.n += 1
    return x.detach() * w.counter.n


def meddle(random):
    """What the program does between two steps; mostly nothing."""
    kind = random.choice(
        ["nothing"] * 8 + ["data", "rebind", "write", "freeze", "grads", "flag", "count", "mode", "seed"]
    )
    k = random.randrange(len(SHAPES))

    def act(w):
        p = w.params[k]
        if kind == "data":
            p.data = p.data * 0.5
        elif kind == "rebind":
            w.states[k] = w.states[k] + 1
        elif kind == "write":
            with pydist.no_grad():
                p.mul_(0.5)
        elif kind == "freeze":
            p.requires_grad_(not p.requires_grad)
        elif kind == "grads":
            w.optimizer.zero_grad()
        elif kind == "flag":
            w.flag = not w.flag
        elif kind == "count":
            w.counter.n += 3
        elif kind == "seed":
            pydist.manual_seed(k)
        return kind == "mode"

    return act


def bits(tensors):
    return [
        None
        if t is None
        else (
            str(t.dtype),
            tuple(t.shape),
            t.detach().contiguous().view(pydist.uint8).numpy().tobytes()
            if t.dim() and t.numel()
            else t.tolist().__repr__(),
        )
        for t in tensors
    ]


def plan(random):
    """The actions of a step that succeed at first, and which of the tensors it returns."""
    optimizer = random.choice(
        [partial(optim.SGD, lr=0.1), partial(optim.SGD, lr=0.1, momentum=0.9), partial(optim.Adam, lr=0.01)]
    )
    w, actions = World(1, optimizer), []
    env = [*w.params, *w.states, pydist.randn(2, 3), pydist.randn(3)]
    for _ in range(random.randint(3, 25)):
        act, n = action(random), len(env)
        try:
            act(w, env)
        except (RuntimeError, ValueError, TypeError, IndexError, pydist._C.DistError):
            del env[n:]
        else:
            actions.append(act)
    return optimizer, actions, [random.randrange(len(env)) for _ in range(random.randint(0, 3))]


def run(optimizer, actions, returned, meddling, seed, record):
    """What is left after each step."""
    w = World(seed, optimizer)

    def step(x, y):
        env = [*w.params, *w.states, x, y]
        for act in actions:
            act(w, env)
        return {n: env[i % len(env)] for n, i in enumerate(returned)}

    def whole(x, y):
        try:
            return [*called(x, y).values()]
        except (RuntimeError, ValueError, TypeError, IndexError, pydist._C.DistError) as error:
            return [], f"{type(error).__name__}: {error}"

    called = _replay.Recorded(step, watch=[w]) if record else step
    batches, left = pydist.Generator().manual_seed(seed), []
    for n, act in enumerate(meddling):
        x, y = pydist.randn(2, 3, generator=batches), pydist.randn(3, generator=batches)
        off = act(w)
        with pydist.no_grad() if off else pydist.enable_grad():
            result = whole(x, y)
        error = result[1] if isinstance(result, tuple) else None
        tensors = [] if error else result
        left.append((error, bits(tensors), [t.requires_grad for t in tensors], bits(w.params), bits(w.states),
                     bits([p.grad for p in w.params]), bits([x, y]), w.counter.n, pydist._C._rng_key()))  # fmt: skip
    return left, called.state if record else "eager"


def case(random, steps=8):
    """Returns how the step was run."""
    optimizer, actions, returned = plan(random)
    meddling, seed = [meddle(random) if n > 4 else lambda w: False for n in range(steps)], random.randrange(1000)
    want, _ = run(optimizer, actions, returned, meddling, seed, False)
    got, state = run(optimizer, actions, returned, meddling, seed, True)
    for n, (a, b) in enumerate(zip(want, got)):
        assert a == b, f"step {n} ({state}): " + "; ".join(str(i) for i, (u, v) in enumerate(zip(a, b)) if u != v)
    return state


if __name__ == "__main__":
    runner.main(case)
