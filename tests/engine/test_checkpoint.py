"""utils.checkpoint and the hooks for saved tensors: the same bits as without, less memory, errors that say what differs."""

import gc
import threading
import weakref

import pytest

import pydist
from pydist import _C, nn
from pydist.autograd import graph
from pydist.nn import functional as F
from pydist.utils.checkpoint import CheckpointError, checkpoint, checkpoint_sequential, set_checkpoint_early_stop

FORMS = pytest.mark.parametrize("use_reentrant", [False, True])


class Block(nn.Module):
    """Attention, norm, dropout, a convolution: ops that save inputs, outputs and both."""

    def __init__(self, width=16):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.conv = nn.Conv2d(1, 1, 3, padding=1)

    def forward(self, x, scale=1.0):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        y = F.scaled_dot_product_attention(q.unsqueeze(1), k.unsqueeze(1), v.unsqueeze(1), is_causal=True).squeeze(1)
        y = F.dropout(F.gelu(self.out(y)), 0.3)
        y = y + self.conv(y.unsqueeze(1)).squeeze(1).relu() * y.softmax(-1)
        return x + y.contiguous() * scale


def train(run, blocks=3, steps=2):
    """Bits of the gradients and of the next random numbers; `run(block, x)` is a block with or without checkpointing."""
    pydist.manual_seed(3)
    net = nn.ModuleList([Block() for _ in range(blocks)])
    x = pydist.randn(2, 5, 16, requires_grad=True)
    for _ in range(steps):
        h = x
        for block in net:
            h = run(block, h)
        h.square().sum().backward()
    return [p.grad.tolist() for p in [x, *net.parameters()]] + [pydist.rand(2).tolist()]


@FORMS
def test_the_bits_are_those_without(use_reentrant):
    plain = train(lambda block, x: block(x))
    assert train(lambda block, x: checkpoint(block, x, use_reentrant=use_reentrant)) == plain


def test_nested_and_with_keywords():
    plain = train(lambda block, x: block(x, scale=0.5))

    def inner(block, x, scale):
        return checkpoint(block, x, scale=scale, use_reentrant=False)

    assert train(lambda block, x: checkpoint(inner, block, x, scale=0.5, use_reentrant=False)) == plain
    twice = lambda block, x: checkpoint(inner, block, x, 0.5, use_reentrant=False)
    assert train(lambda block, x: checkpoint(twice, block, x, use_reentrant=False)) == plain
    with set_checkpoint_early_stop(False):
        assert train(lambda block, x: checkpoint(inner, block, x, 0.5, use_reentrant=False)) == plain
    assert train(lambda block, x: checkpoint(block, x, 0.5, use_reentrant=False, early_stop=False)) == plain


@FORMS
def test_sequential(use_reentrant):
    pydist.manual_seed(0)
    net = nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.5))))
    x = pydist.randn(4, 8, requires_grad=True)
    state, found = pydist.get_rng_state(), []
    for segments in (None, 1, 2, 4, 9):
        pydist.set_rng_state(state)
        net.zero_grad()
        x.grad = None
        y = net(x) if segments is None else checkpoint_sequential(net, segments, x, use_reentrant=use_reentrant)
        y.sum().backward()
        found.append([p.grad.tolist() for p in [x, *net.parameters()]])
    assert all(f == found[0] for f in found)
    for bad in (0, 10):
        with pytest.raises(ValueError, match=f"got {bad} segments for 9 functions"):
            checkpoint_sequential(net, bad, x, use_reentrant=use_reentrant)


@FORMS
def test_autocast_is_forwards(use_reentrant):
    pydist.manual_seed(0)
    net, x = nn.Linear(8, 8), pydist.randn(4, 8, requires_grad=True)
    seen, grads = [], []

    def run(t):
        y = net(t)
        seen.append(y.dtype)
        return y.float().square()

    for inside in (False, True):  # backward within the context too
        with pydist.autocast("cpu"):
            y = checkpoint(run, x, use_reentrant=use_reentrant).sum()
            if inside:
                y.backward()
        if not inside:
            y.backward()
        grads.append(x.grad.tolist())
        x.grad = None
    assert set(seen) == {pydist.bfloat16} and len(seen) == 4 and grads[0] == grads[1]
    with pydist.autocast("cpu"):
        net(x).float().square().sum().backward()
    assert x.grad.tolist() == grads[0]


def test_memory_is_less():
    """Between the parts only: the input of each, and what one of them needs."""
    net = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(256, 256), nn.Tanh())))

    def held(run):
        x = pydist.ones(256, 256, requires_grad=True)
        before = pydist.memory_allocated()
        y = run(x)
        forward = pydist.memory_allocated() - before
        y.sum().backward()
        return forward

    plain = held(net)
    assert held(lambda x: checkpoint(net, x, use_reentrant=False)) < plain / 5
    assert held(lambda x: checkpoint_sequential(net, 4, x, use_reentrant=False)) < plain * 0.7
    whole = lambda x: checkpoint(
        lambda t: checkpoint_sequential(net, 4, t, use_reentrant=False), x, use_reentrant=False
    )
    assert held(whole) < plain / 5


def test_gradients_of_some_inputs_and_of_higher_order():
    w = pydist.tensor([0.5, -1.0, 2.0], requires_grad=True)
    x = pydist.tensor([1.0, 2.0, 3.0], requires_grad=True)

    def f(t):
        return (t * w).tanh().exp() * t

    def second(run):
        (g,) = pydist.autograd.grad(run(x).sum(), x, create_graph=True)
        return pydist.autograd.grad(g.square().sum(), (x, w))

    def hooked(t):
        return checkpoint(f, t, use_reentrant=False)

    for a, b in zip(second(f), second(hooked)):
        assert a.tolist() == b.tolist()
    y = checkpoint(f, x, use_reentrant=True).sum()
    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        pydist.autograd.grad(y, x)


def test_retained_graphs_and_parts_of_results():
    x = pydist.ones(3, requires_grad=True)
    runs = []

    def f(t):
        runs.append(1)
        a = t.exp()
        return a, a.sin(), {"more": [t.cos()]}

    a, b, rest = checkpoint(f, x, use_reentrant=False)
    for _ in range(2):
        (a + b).sum().backward(retain_graph=True)
    rest["more"][0].sum().backward()
    want = 2 * (x.exp() + x.exp().cos() * x.exp()) - x.sin()
    assert pydist.allclose(x.grad, want) and 3 <= len(runs) <= 4
    with pydist.no_grad():
        runs.clear()
        checkpoint(f, x, use_reentrant=False)
        checkpoint(lambda t: f(t)[0], x, use_reentrant=True)
        assert len(runs) == 2


def test_a_function_may_save_tensors_too():
    class Square(pydist.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x, x + 1, None)
            return x * x

        @staticmethod
        def backward(ctx, g):
            x, y, none = ctx.saved_tensors
            again, _, _ = ctx.saved_tensors
            assert none is None and again.tolist() == x.tolist() and y.tolist() == (x + 1).tolist()
            return 2 * x * g

    x = pydist.tensor([1.0, 2.0], requires_grad=True)
    checkpoint(lambda t: Square.apply(t.exp()), x, use_reentrant=False).sum().backward()
    assert pydist.allclose(x.grad, 2 * (2 * x).exp())


def test_what_differs_is_told():
    x = pydist.ones(4, requires_grad=True)
    calls = []

    def other_number(t):
        calls.append(1)
        return t.exp() if len(calls) % 2 else t.exp().sin().cos()

    def other_shape(t):
        calls.append(1)
        return (t if len(calls) % 2 else t[:2]).exp().sum()

    for f, text in (
        (other_number, r"saved 3 tensors when it ran again \(expected 1"),
        (other_shape, r"shape \[2\].*\(expected .*\[4\]"),
    ):
        calls.clear()
        y = checkpoint(f, x, use_reentrant=False, early_stop=False, debug=f is other_shape).sum()
        with pytest.raises(CheckpointError, match=text) as error:
            y.backward()
        assert ("forward: " in str(error.value)) == (f is other_shape)

    calls.clear()
    y = checkpoint(other_shape, x, use_reentrant=False, determinism_check="none")
    with pytest.raises(RuntimeError, match=r"returned .*\[2\] \(expected .*\[4\]"):
        y.backward()

    z = x * 1
    y = checkpoint(lambda t: t.exp(), z, use_reentrant=False).sum()
    with pydist.no_grad():
        z.add_(1)
    with pytest.raises(RuntimeError, match="changed by an in-place op"):
        y.backward()

    def fails(t):
        calls.append(1)
        if len(calls) > 1:
            raise KeyError("second run")
        return t.exp()

    for use_reentrant in (False, True):
        calls.clear()
        y = checkpoint(fails, x, use_reentrant=use_reentrant).sum()
        with pytest.raises(KeyError, match="second run"):
            y.backward()
    assert _C._saved_hooks() is None and pydist.is_grad_enabled()


def test_bad_arguments():
    x = pydist.ones(2, requires_grad=True)
    for match, error, options in (
        ("unexpected keyword arguments: scale", ValueError, {"use_reentrant": True, "scale": 1}),
        ("context_fn or debug", ValueError, {"use_reentrant": True, "debug": True}),
        ("determinism_check is 'all'", ValueError, {"use_reentrant": False, "determinism_check": "all"}),
    ):
        with pytest.raises(error, match=match):
            checkpoint(lambda t: t, x, **options)
    with pytest.raises(TypeError, match="function is int"):
        checkpoint(3, x, use_reentrant=False)
    with pytest.warns(UserWarning, match="use_reentrant is not given"):
        checkpoint(lambda t: t * 2, x)
    with pytest.warns(UserWarning, match="no argument requires grad"):
        checkpoint(lambda t: t * 2, pydist.ones(2), use_reentrant=True)
    y = checkpoint(lambda t: t.detach() * 1, x, use_reentrant=True)
    with pytest.raises(RuntimeError, match="none of the outputs requires grad"):
        y.sum().backward()


def test_contexts_for_both_runs():
    entered = []

    class Note:
        def __init__(self, name):
            self.name = name

        def __enter__(self):
            entered.append(self.name)

        def __exit__(self, *error):
            entered.append(f"end of {self.name}")

    x = pydist.ones(2, requires_grad=True)
    y = checkpoint(lambda t: t.exp(), x, use_reentrant=False, context_fn=lambda: (Note("forward"), Note("again")))
    assert entered == ["forward", "end of forward"]
    y.sum().backward()
    assert entered[2:] == ["again", "end of again"]


def test_the_graph_goes_when_its_results_go():
    x = pydist.ones(2, requires_grad=True)

    def f(t):
        return t.exp().sin()

    gone = weakref.ref(f)
    y = checkpoint(f, x, use_reentrant=False)
    del f
    assert gone()
    del y
    assert not gone()
    held = [pydist.ones(2, requires_grad=True)]  # a cycle through a packed tensor
    with graph.saved_tensors_hooks(lambda t: held, lambda h: h[0]):
        held.append(held[0].exp())
    seen = weakref.ref(held[1])
    del held
    gc.collect()
    assert seen() is None


# ---- hooks for saved tensors -------------------------------------------------------------------------------------------


def test_hooks_see_what_is_saved_as_torch_has_it(torch):
    def program(lib):
        packed, unpacked = [], []

        def pack(t):
            packed.append(list(t.shape))
            return len(packed), t.detach() * 1

        def unpack(p):
            unpacked.append(p[0])
            return p[1]

        a = lib.tensor([1.0, 2.0, 3.0], requires_grad=True)
        b = lib.tensor([0.5, 0.25, 1.0], requires_grad=True) * 2
        with lib.autograd.graph.saved_tensors_hooks(pack, unpack):
            y = a * b
            z = y.exp()
        assert not unpacked
        z.sum().backward()
        return packed, len(unpacked), a.grad.tolist()

    assert program(pydist) == program(torch)


def test_hooks_and_higher_order():
    x = pydist.tensor([0.3, 0.7], dtype=pydist.float64, requires_grad=True)
    w = pydist.randn(2, 2, dtype=pydist.float64, requires_grad=True)

    def f(x, w):
        with graph.saved_tensors_hooks(lambda t: t.tolist(), lambda v: pydist.tensor(v, dtype=pydist.float64)):
            return ((x.tanh() * x).unsqueeze(0) @ w.softmax(-1)).exp()

    assert pydist.autograd.gradcheck(f, (x, w)) and pydist.autograd.gradgradcheck(f, (x, w))


def test_views_written_in_place_and_layouts_with_hooks():
    def program(packs):
        x = (pydist.arange(24.0) / 24).reshape(2, 3, 4).requires_grad_()
        with packs:
            y = x * 2
            y[:, 1].mul_(3)
            z = y.as_strided((2, 2), (12, 1), 3).exp() * y.transpose(0, 2).softmax(0).sum()
        z.sum().backward()
        return x.grad.tolist()

    other_layout = graph.saved_tensors_hooks(lambda t: t.transpose(0, -1).clone(), lambda t: t.transpose(0, -1))
    assert program(other_layout) == program(pydist.enable_grad()) == program(graph.save_on_cpu(pin_memory=True))


def test_hooks_that_fail():
    x = pydist.ones(3, requires_grad=True)

    def backward_with(unpack):
        with graph.saved_tensors_hooks(lambda t: t, unpack):
            y = x.exp().sum()
        y.backward()

    with pytest.raises(TypeError, match="unpack hook returned int"):
        backward_with(lambda t: 3)
    with pytest.raises(RuntimeError, match=r"exp: the unpack hook for saved tensors returned float32 of shape \[2\]"):
        backward_with(lambda t: t[:2])
    with pytest.raises(RuntimeError, match=r"returned float64"):
        backward_with(lambda t: t.double())
    with pytest.raises(ZeroDivisionError):
        backward_with(lambda t: 1 / 0)
    with pytest.raises(ZeroDivisionError), graph.saved_tensors_hooks(lambda t: 1 / 0, lambda t: t):
        x.exp()
    for bad in (None, (1, 2), (len,)):
        with pytest.raises(TypeError):
            graph.saved_tensors_hooks(bad, len)
        if bad:
            with pytest.raises(TypeError, match="two functions"):
                _C._set_saved_hooks(bad)
    with graph.disable_saved_tensors_hooks("not here"), pytest.raises(RuntimeError, match="not here"):
        with graph.saved_tensors_hooks(len, len):
            pass
    assert _C._saved_hooks() is None


def test_hooks_nest_and_are_of_their_thread():
    order = []

    def pair(name):
        return graph.saved_tensors_hooks(lambda t: (order.append(name), t)[1], lambda t: t)

    x = pydist.ones(2, requires_grad=True)
    with pair("outer"):
        x.exp()
        with pair("inner"):
            x.exp()
        thread = threading.Thread(target=x.exp)
        thread.start()
        thread.join()
        x.exp()
    x.exp()
    assert order == ["outer", "inner", "outer"]
