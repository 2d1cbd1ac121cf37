"""autograd.Function, and cycles that the collector has to find: the same code runs on pydist and, where installed, on torch."""

import gc
import importlib
import threading
import weakref

import pytest

import pydist
from pydist import _C
from pydist.autograd import Function


@pytest.fixture(params=["pydist", "torch"])
def lib(request):
    """The library under test, or the reference: a test that passes with both says the same of both."""
    return pytest.importorskip(request.param)


def leaf(lib, *values):
    return lib.tensor(list(values) if len(values) > 1 else values[0], dtype=lib.float64, requires_grad=True)


def square(lib):
    class Square(lib.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 2 * x * g

    return Square


def affine(lib):
    """y = a * x + b in the form of two parts, with a number and a default among the arguments."""

    class Affine(lib.autograd.Function):
        @staticmethod
        def forward(x, a, b=1.0):
            return a * x + b

        @staticmethod
        def setup_context(ctx, inputs, output):
            x, a, b = inputs
            ctx.save_for_backward(x, a, None)
            ctx.b = b

        @staticmethod
        def backward(ctx, g):
            x, a, nothing = ctx.saved_tensors
            assert nothing is None and ctx.b == 1.0
            return g * a, (g * x).sum(), None

    return Affine


# What it computes.


def test_value_and_gradient(lib):
    x = leaf(lib, 1.0, 2.0, 3.0)
    y = square(lib).apply(x)
    assert y.tolist() == [1, 4, 9] and y.requires_grad and not y.is_leaf and "SquareBackward" in y.grad_fn.name()
    (y * y).sum().backward()
    assert x.grad.tolist() == [4, 32, 108]


def test_two_parts(lib):
    x, a = leaf(lib, 1.0, 2.0), leaf(lib, 3.0)
    y = affine(lib).apply(x, a)
    assert y.tolist() == [4, 7]
    gx, ga = lib.autograd.grad(y.sum(), (x, a))
    assert gx.tolist() == [3, 3] and ga.item() == 3
    assert affine(lib).apply(x, a, 1.0).tolist() == [4, 7]


def test_higher_order(lib):
    x = leaf(lib, 3.0)
    y = square(lib).apply(square(lib).apply(x))  # x^4
    for want in (4 * 27, 12 * 9, 24 * 3, 24):
        (y,) = lib.autograd.grad(y, x, create_graph=True)
        assert y.item() == want


def test_saved_results_have_a_history(lib):
    class Exp(lib.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x.exp()
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0]

    x = leaf(lib, 1.0)
    y = Exp.apply(x)
    for _ in range(3):
        (d,) = lib.autograd.grad(y, x, create_graph=True)
        assert d.item() == pytest.approx(2.718281828459045)
        y = d


def test_what_backward_is_told(lib):
    seen = {}

    class Probe(lib.autograd.Function):
        @staticmethod
        def forward(ctx, x, y, n, z):
            seen["forward"] = (ctx.needs_input_grad, lib.is_grad_enabled(), x.requires_grad)
            ctx.note = n
            ctx.mark_non_differentiable(flags := x > 0)
            return x * 1, y * 2, flags, "text", z * 3

        @staticmethod
        def backward(ctx, *grads):
            seen["backward"] = (ctx.needs_input_grad, ctx.note, lib.is_grad_enabled())
            seen["grads"] = [g if g is None else g.tolist() for g in grads]
            return grads[0], None, None, grads[4]

    x, y, z = leaf(lib, 1.0, 2.0), lib.ones(2, dtype=lib.float64), leaf(lib, 5.0)
    a, b, flags, text, c = Probe.apply(x, y, "n", z)
    assert text == "text" and not flags.requires_grad and a.requires_grad and c.requires_grad
    assert seen["forward"] == ((True, False, False, True), False, True)
    (a * 7).sum().backward()
    assert seen["backward"] == ((True, False, False, True), "n", False)
    assert seen["grads"][0] == [7, 7] and seen["grads"][1] == [0, 0] and seen["grads"][4] == 0
    assert x.grad.tolist() == [7, 7] and z.grad.item() == 0


def test_gradients_that_do_not_come(lib):
    class Two(lib.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.set_materialize_grads(False)
            return x * 1, x * 2

        @staticmethod
        def backward(ctx, g, h):
            assert h is None
            return g

    x = leaf(lib, 2.0)
    Two.apply(x)[0].backward()
    assert x.grad.item() == 1


def test_nothing_is_recorded_without_need(lib):
    x = leaf(lib, 2.0)
    with lib.no_grad():
        assert not square(lib).apply(x).requires_grad
    y = square(lib).apply(x.detach())
    assert not y.requires_grad and y.grad_fn is None


def test_a_gradient_is_summed_over_what_was_broadcast(lib):
    class Grow(lib.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x + lib.zeros(3, 2, dtype=x.dtype)

        @staticmethod
        def backward(ctx, g):
            return g

    x = leaf(lib, 1.0, 2.0)
    Grow.apply(x).sum().backward()
    assert x.grad.tolist() == [3, 3]


def test_written_in_place(lib):
    class Double(lib.autograd.Function):
        @staticmethod
        def forward(ctx, x, k):
            ctx.mark_dirty(x)
            return x.mul_(2)

        @staticmethod
        def backward(ctx, g):
            return g * 2, None

    x = leaf(lib, 1.0, 2.0, 3.0)
    y = x * 3
    z = Double.apply(y, 0)
    assert z is y and y.tolist() == [6, 12, 18] and "Double" in y.grad_fn.name()
    (y * y).sum().backward()
    assert x.grad.tolist() == [2 * 6 * 6, 2 * 12 * 6, 2 * 18 * 6]
    x.grad = None
    y = x * 3
    Double.apply(y[1:], 0)  # a view: the base's history moves on
    assert y.tolist() == [3, 12, 18]
    y.sum().backward()
    assert x.grad.tolist() == [3, 6, 6]
    with pytest.raises(RuntimeError, match="leaf"):
        Double.apply(x, 0)


def test_an_argument_returned(lib):
    class Same(lib.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x

        @staticmethod
        def backward(ctx, g):
            return g * 10

    x = leaf(lib, 1.0, 2.0)
    y = Same.apply(x)
    assert y is not x and y.data_ptr() == x.data_ptr() and x.is_leaf and not y.is_leaf
    y.sum().backward()
    assert x.grad.tolist() == [10, 10]
    with pytest.raises(RuntimeError):
        Same.apply(x * 2).mul_(2)


def test_a_view_returned_cannot_be_written(lib):
    class View(lib.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x[1:]

        @staticmethod
        def backward(ctx, g):
            return lib.cat([lib.zeros(1, dtype=g.dtype), g])

    x = leaf(lib, 1.0, 2.0, 3.0)
    y = View.apply(x * 2)
    with pytest.raises(RuntimeError, match="view|Function"):
        y.mul_(2)
    y.sum().backward()
    assert x.grad.tolist() == [0, 2, 2]


def test_a_backward_within_backward(lib):
    """What checkpointing does: forward again, with a graph, in backward."""

    class Again(lib.autograd.Function):
        @staticmethod
        def forward(ctx, f, x):
            ctx.f = f
            ctx.save_for_backward(x)
            return f(x)

        @staticmethod
        def backward(ctx, g):
            x = ctx.saved_tensors[0].detach().requires_grad_()
            with lib.enable_grad():
                y = ctx.f(x)
            lib.autograd.backward(y, g)
            return None, x.grad

    x, w = leaf(lib, 1.0, 2.0), leaf(lib, 3.0)
    Again.apply(lambda t: (t * t * w).sum(), x * 2).backward()
    assert x.grad.tolist() == [24, 48] and w.grad.item() == 20


def test_gradient_check():
    x = pydist.tensor([0.5, -1.5, 2.0], dtype=pydist.float64, requires_grad=True)
    (d,) = pydist.autograd.grad(square(pydist).apply(x).sum(), x)
    step = 1e-6
    for i in range(3):
        move = pydist.zeros(3, dtype=pydist.float64)
        move[i] = step
        with pydist.no_grad():
            numeric = (square(pydist).apply(x + move) - square(pydist).apply(x - move)).sum().item() / (2 * step)
        assert d[i].item() == pytest.approx(numeric, rel=1e-6)


# What is wrong.


def broken(lib, forward, backward):
    return type(
        "Broken", (lib.autograd.Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    )


@pytest.mark.parametrize(
    "backward, error",
    [
        (lambda ctx, g: None, "1 gradients|gradients .expected 2, got 1"), (lambda ctx, g: (g, g, g), "None|got 3"), (lambda ctx, g: (g, 5), "None|type"),
        (lambda ctx, g: (g[:2], None), "shape"), (lambda ctx, g: (g.view(1, 1, 3, 1).expand(1, 1, 3, 5), None), "shape"), (lambda ctx, g: 1 / 0, "zero"),
        (lambda ctx, g: ("a", None), "Tensor|Variable|str"), (lambda ctx, g: (ctx.missing, None), "missing"),
    ],
)  # fmt: skip
def test_wrong_gradients(lib, backward, error):
    x = leaf(lib, 1.0, 2.0, 3.0)
    y = broken(lib, lambda ctx, x, n: x * 1, backward).apply(x, 7)
    with pytest.raises(Exception, match=error):
        y.sum().backward()
    assert x.grad is None


def test_a_missing_part(lib):
    x = leaf(lib, 1.0)
    empty = type("Empty", (lib.autograd.Function,), {})
    with pytest.raises((NotImplementedError, RuntimeError, TypeError)):
        empty.apply(x)
    half = type("Half", (lib.autograd.Function,), {"forward": staticmethod(lambda ctx, x: x * 2)})
    y = half.apply(x)
    with pytest.raises((NotImplementedError, RuntimeError)):
        y.backward()


def test_errors_name_the_function():
    x = leaf(pydist, 1.0, 2.0)
    for backward, error in [(lambda ctx, g: (g, g), r"BrokenBackward: gradient 1 is .*Tensor"), (lambda ctx, g: (), r"BrokenBackward: backward returned 0 gradients \(expected 1"),
                            (lambda ctx, g: g.expand(3, 2)[:, :1], r"BrokenBackward: gradient 0 is float64 of shape \[3, 1\] .*shape \[2\]")]:  # fmt: skip
        y = broken(pydist, lambda ctx, x: x * 1, backward).apply(x)
        with pytest.raises(RuntimeError, match=error):
            y.sum().backward()
    for mark, error in [
        (lambda ctx, x: ctx.mark_dirty(x * 2), "not an argument"),
        (lambda ctx, x: ctx.mark_dirty(x), "not one of the results"),
    ]:
        with pytest.raises(RuntimeError, match=f"BrokenBackward: mark_dirty.*{error}"):
            broken(pydist, lambda ctx, x: (mark(ctx, x), x * 1)[1], lambda ctx, g: g).apply(x * 1)
    with pytest.raises(TypeError, match="keyword"):
        square(pydist).apply(x=x)
    for wrong in ("save_for_backward", "mark_dirty", "mark_non_differentiable"):
        with pytest.raises(TypeError, match=wrong):
            broken(pydist, lambda ctx, x: getattr(ctx, wrong)(5), lambda ctx, g: g).apply(x)


def test_saved_tensors_may_not_change(lib):
    x = leaf(lib, 1.0, 2.0)
    y = x * 1
    z = square(lib).apply(y)
    with lib.no_grad():
        y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an in-?place"):
        z.sum().backward()


def test_a_graph_serves_once(lib):
    x = leaf(lib, 2.0)
    y = square(lib).apply(x)
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad.item() == 8
    with pytest.raises(RuntimeError):
        y.backward()


def test_once_differentiable(lib):
    once = importlib.import_module(f"{lib.__name__}.autograd.function").once_differentiable

    class Square(lib.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @once
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            assert not lib.is_grad_enabled()
            return 2 * x * g

    x = leaf(lib, 3.0)
    w = leaf(lib, 1.0)
    assert lib.autograd.grad(Square.apply(x), x)[0].item() == 6
    (d,) = lib.autograd.grad(Square.apply(x) * w, x, create_graph=True)
    assert d.item() == 6
    with pytest.raises(RuntimeError, match="once_differentiable"):
        d.backward()


def test_exceptions_come_out_unchanged(lib):
    error = KeyError("from backward")

    def backward(ctx, g):
        raise error

    y = broken(lib, lambda ctx, x: x * 1, backward).apply(leaf(lib, 1.0))
    with pytest.raises(KeyError) as caught:
        y.backward()
    assert caught.value is error
    error.__traceback__ = None


def test_two_threads():
    x = leaf(pydist, 2.0)
    cube, errors = square(pydist), []

    def work():
        try:
            for _ in range(300):
                (d,) = pydist.autograd.grad(cube.apply(cube.apply(x)), x)
                assert d.item() == 32
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=work) for _ in range(3)]
    [t.start() for t in threads]
    [t.join(60) for t in threads]
    assert not errors


def test_a_long_chain():
    """60,000 Functions: neither backward nor freeing recurses."""

    class Step(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            ctx.x = x  # the wrapper as well: freed through Python
            return x + 1

        @staticmethod
        def backward(ctx, g):
            return g

    x = leaf(pydist, 0.0)
    for use in ("backward", "free"):
        y = x
        for _ in range(60_000):
            y = Step.apply(y)
        assert y.item() == 60_000
        if use == "backward":
            y.backward()
        del y
    assert x.grad.item() == 1


# Cycles.


class Witness:
    pass


def gone(build):
    """Builds a cycle around a witness; is it collected, and not before?"""
    gc.collect()
    before = _C.live()
    witness = build()
    assert witness() is not None, "a cycle lives until it is collected"
    gc.collect()
    assert witness() is None
    assert _C.live() == before


def hold(*things):
    """A witness that holds things, and the weak reference to it."""
    w = Witness()
    w.things = things
    return w, weakref.ref(w)


def test_a_hook_that_holds_its_leaf():
    def build():
        x = pydist.ones(3, requires_grad=True)
        w, ref = hold(x)
        x.register_hook(lambda g: w)
        return ref

    gone(build)


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_a_hook_of_a_leaf_that_holds_what_follows(register):
    def build():
        x = pydist.ones(3, requires_grad=True)
        y = (x * 2).exp()
        w, ref = hold(x, y)
        handle = getattr(x, register)(lambda g: w)
        w.handle = handle
        return ref

    gone(build)


def test_hooks_as_models_keep_them():
    """An object keeps activations and output; a hook on an activation is its method."""

    class Model:
        def __init__(self):
            x = pydist.ones(3, requires_grad=True)
            self.activation = x * 2
            self.activation.register_hook(self.save)
            self.out = (self.activation * self.activation).sum()
            self.node = self.out.grad_fn.next_functions[0][0]
            self.view = self.activation[1:]

        def save(self, g):
            self.grad = g

    for run in (False, True):

        def build():
            m = Model()
            if run:
                m.out.backward(retain_graph=True)
            return weakref.ref(m)

        gone(build)


def test_a_hook_that_only_the_tensor_can_let_go():
    """A bound method of C has no way to be cleared itself."""

    def build():
        x = pydist.ones(3, requires_grad=True)
        y = x * 2
        y.note, ref = hold()
        x.register_hook(y.mul)
        del x
        return ref

    gone(build)


@pytest.mark.parametrize("what", ["input", "output", "ctx", "view", "grad_fn"])
def test_a_ctx_that_holds(what):
    def build():
        w, ref = hold()
        kept = []

        class Keep(Function):
            @staticmethod
            def forward(ctx, x):
                kept.append(ctx)
                ctx.w = w
                return x * 2

            @staticmethod
            def backward(ctx, g):
                return g

        x = pydist.ones(3, requires_grad=True)
        y = Keep.apply(x)
        ctx = kept.pop()
        ctx.it = {"input": (x, y), "output": y, "ctx": ctx, "view": y[0], "grad_fn": y.grad_fn}[what]
        z = y.exp()
        ctx.more = z if what != "ctx" else None
        return ref

    gone(build)


def test_attributes_that_hold_what_follows():
    def build():
        x = pydist.ones(3, requires_grad=True)
        x.twice, x.row = x * 2, x[0]
        w, ref = hold(x)
        x.w = w
        return ref

    gone(build)


def test_in_place_and_views():
    def build():
        x = pydist.ones(3, requires_grad=True)
        y = x * 1
        w, ref = hold(x, y)
        y.register_hook(lambda g: w)
        y[0].mul_(5)
        w.v = y[1:]
        w.v.add_(1)
        w.v.register_hook(lambda g: w)
        return ref

    gone(build)


def test_saved_results_make_no_cycle():
    """Reference counts alone free a Function that saves its result."""

    class Exp(Function):
        @staticmethod
        def forward(ctx, x):
            y = x.exp()
            ctx.save_for_backward(x, y)
            return y

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[1]

    gc.collect()
    gc.disable()
    try:
        before = _C.live()
        x = leaf(pydist, 1.0)
        for _ in range(3):
            y = Exp.apply(Exp.apply(x))
            pydist.autograd.grad(y, x, create_graph=True)
        del x, y
        assert _C.live() == before
    finally:
        gc.enable()


def test_what_is_alive_stays():
    """Each reference into a graph, Python's or C's, keeps all that it reaches: hooks, ctx, attributes."""
    calls = []

    class Keep(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.held = Held()
            ctx.held.ctx = ctx
            return x * 2

        @staticmethod
        def backward(ctx, g):
            calls.append(type(ctx.held.ctx).__name__)
            return g * 2

    class Held:
        pass

    def graph():
        x = pydist.ones(3, requires_grad=True)
        x.me = x
        x.note = "x"
        loop = [x]
        loop.append(loop)
        x.register_hook(lambda g: calls.append(x.note))
        y = Keep.apply(x)
        y.register_hook(lambda g: calls.append("y") or y.detach() * 0 + g)
        return y.exp().sum(), weakref.ref(x)

    for keep in (lambda z: z, lambda z: z.grad_fn, lambda z: [z * 1], lambda z: (z * 1).grad_fn.next_functions):
        z, x = graph()
        kept = keep(z)
        if keep(z) is not z:
            del z
        for _ in range(3):
            gc.collect()
        assert x() is not None and x().note == "x" and x().me is x()
        calls.clear()
        if isinstance(kept, pydist.Tensor):
            kept.backward()
            del z
        elif isinstance(kept, list):
            kept[0].backward()
        else:
            assert kept is not None
        assert calls == (["y", "FunctionCtx", "x"] if isinstance(kept, (pydist.Tensor, list)) else [])
        del kept
        gc.collect()
        assert x() is None


def test_a_leaf_in_garbage_still_runs_its_hooks():
    """The wrapper of a leaf is garbage while the graph, which has the leaf, is alive."""
    calls = []
    x = pydist.ones(2, requires_grad=True)
    x.register_hook(lambda g: calls.append(g.tolist()))
    y = (x * 3).sum()
    loop = [x]
    loop.append(loop)
    del x, loop
    gc.collect()
    y.backward()
    assert calls == [[3, 3]]


def test_collections_in_the_middle():
    """A collection while hooks run, in this thread and in others, finds nothing that is in use."""
    seen, stop = [], threading.Event()

    def collect():
        while not stop.is_set():
            gc.collect(1)

    thread = threading.Thread(target=collect)
    thread.start()
    try:
        for _ in range(100):
            x = pydist.ones(40_000, requires_grad=True)
            x.note = [x]
            y = square(pydist).apply(x.exp())
            y.register_hook(lambda g, y=y: seen.append(gc.collect(0) is not None and y.requires_grad))
            (y * 2).tanh().sum().backward()
            assert x.note[0] is x
            x.note = None
    finally:
        stop.set()
        thread.join()
    assert seen == [True] * 100


def test_collection_is_linear():
    """Every result of a long chain in one list: each collection looks at each node once."""
    x = pydist.ones(1, requires_grad=True)
    kept = [x]
    for _ in range(30_000):
        kept.append(kept[-1] * 1)
    w = Witness()
    w.kept = kept
    kept[0].register_hook(lambda g: w)
    ref = weakref.ref(w)
    del w, kept, x
    gc.collect()
    assert ref() is None
