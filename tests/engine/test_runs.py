"""Runs of backward that sleep (csrc/autograd/engine.h): gradients are fed from outside, in any order and between turns."""

import itertools
import threading

import pytest

import pydist
from pydist import _C

SENT = 4


def graph(seed=0):
    """A leaf, SENT tensors that leave this process, and a loss that stays: all are made of one shared result."""
    generator = pydist.Generator().manual_seed(seed)
    w = pydist.randn(5, generator=generator, requires_grad=True)
    shared = w * 3
    sent = [(shared * (i + 0.37)).exp() for i in range(SENT)]
    loss = (shared * shared * sent[0]).sum()
    grads = [pydist.randn(5, generator=generator) for _ in sent]
    return w, sent, loss, grads


def whole(seed=0):
    """.grad of the leaf by one backward, with the gradients of the sent tensors as given ones."""
    w, sent, loss, grads = graph(seed)
    pydist.autograd.backward([loss, *sent], [pydist.ones(()), *grads])
    return w.grad


def fed(order, turns=True, seed=0, **options):
    w, sent, loss, grads = graph(seed)
    run = _C._run_open([loss], [None], **options)
    for t in sent:
        _C._run_discover(run, t)
    for i in order:
        if turns:
            assert not _C._run_turn(run)
        _C._run_feed(run, sent[i], grads[i])
    assert _C._run_turn(run)
    _C._run_close(run)
    return w


def bits(t):
    return t.numpy().tobytes()


def test_any_order_gives_the_same_bits():
    first = None
    for order in itertools.permutations(range(SENT)):
        for turns in (False, True):
            w = fed(order, turns)
            first = first or bits(w.grad)
            assert bits(w.grad) == first
    assert float((w.grad - whole()).abs().max()) <= 1e-5 * float(whole().abs().max())


def test_a_run_that_is_not_fed_is_backward():
    w, sent, loss, grads = graph()
    run = _C._run_open([loss, *sent], [pydist.ones(()), *grads], fed=False)
    assert w.grad is None
    assert _C._run_turn(run)
    _C._run_close(run)
    assert bits(w.grad) == bits(whole())
    run = _C._run_open([(w * 2).sum()], [None], fed=False)
    with pytest.raises(RuntimeError, match="so it discovers no nodes"):
        _C._run_discover(run, sent[0])
    _C._run_close(run, True)


def test_an_unused_output_is_fed_none():
    """What was never used elsewhere counts as not there: also where nothing else arrives, and for a leaf."""
    w, sent, loss, grads = graph()
    run = _C._run_open([], [])
    for t in sent:
        _C._run_discover(run, t)
    for t in sent[:-1]:
        _C._run_feed(run, t, None)
    _C._run_feed(run, sent[-1], grads[-1])
    assert _C._run_turn(run)
    _C._run_close(run)
    other, sent, _, _ = graph()
    sent[-1].backward(grads[-1])
    assert bits(w.grad) == bits(other.grad)

    w, sent, _, _ = graph()
    run = _C._run_open([], [])
    _C._run_discover(run, sent[0])
    _C._run_feed(run, sent[0], None)
    assert _C._run_turn(run)
    _C._run_close(run)
    assert w.grad is None


class Two(pydist.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, a, b):
        return a * 2 + b * 3


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("none", [None, 0, 1])
def test_a_node_of_several_outputs_waits_for_all(order, none):
    x = pydist.ones(3, requires_grad=True)
    outs = Two.apply(x)
    run = _C._run_open([], [])
    _C._run_discover(run, outs[0])
    with pytest.raises(RuntimeError, match="TwoBackward was discovered already"):
        _C._run_discover(run, outs[1])
    _C._run_close(run, True)
    run = _C._run_open([], [])
    _C._run_discover(run, outs[0])
    for i in order:
        assert not _C._run_turn(run)
        _C._run_feed(run, outs[i], None if i == none else pydist.ones(3))
        if i == order[0]:
            with pytest.raises(RuntimeError, match=f"output {i} of TwoBackward was fed already"):
                _C._run_feed(run, outs[i], pydist.ones(3))
    assert _C._run_turn(run)
    _C._run_close(run)
    assert x.grad.tolist() == [{None: 5, 0: 3, 1: 2}[none]] * 3


def test_two_runs_take_turns():
    """Through graphs that share a leaf, each in an order of its own: as one after the other."""
    w = pydist.ones(3, requires_grad=True)
    a, b = (w * 2).exp(), (w * 5).exp()
    runs = [_C._run_open([], []) for _ in (a, b)]
    for run, t in zip(runs, (a, b)):
        _C._run_discover(run, t)
        assert not _C._run_turn(run)
    for run, t in zip(runs, (a, b)):
        _C._run_feed(run, t, pydist.ones(3))
        assert _C._run_turn(run)
    for run in runs:
        _C._run_close(run)
    v = pydist.ones(3, requires_grad=True)
    ((v * 2).exp() + 0).backward(pydist.ones(3))
    ((v * 5).exp() + 0).backward(pydist.ones(3))
    assert bits(w.grad) == bits(v.grad)


def test_a_backward_within_a_turn():
    """A hook that runs a whole backward, and one that ends in another mode: the run goes on as it was."""
    w, other = pydist.ones(2, requires_grad=True), pydist.ones(2, requires_grad=True)
    middle = w * 2

    def hook(g):
        assert not pydist.is_grad_enabled()
        with pydist.enable_grad():
            (other * other).sum().backward()
        pydist.set_grad_enabled(True)

    middle.register_hook(hook)
    sent = middle * 3
    run = _C._run_open([], [])
    _C._run_discover(run, sent)
    _C._run_feed(run, sent, pydist.ones(2))
    with pydist.no_grad():
        assert _C._run_turn(run)
        assert not pydist.is_grad_enabled()
    _C._run_close(run)
    assert w.grad.tolist() == [6, 6] and other.grad.tolist() == [2, 2]


@pytest.mark.parametrize("turns", [0, 1, 2])
def test_closed_early_frees_everything(turns):
    """conftest.py counts tensors, nodes and bytes around each test."""
    w, sent, loss, grads = graph()
    run = _C._run_open([loss], [None])
    for t in sent:
        _C._run_discover(run, t)
    for i in range(turns):
        _C._run_feed(run, sent[i], grads[i])
        _C._run_turn(run)
    with pytest.raises(RuntimeError, match="closed while .* waits for gradients"):
        _C._run_close(run)
    with pytest.raises(RuntimeError, match="the run is closed"):
        _C._run_turn(run)
    assert w.grad is None
    run = _C._run_open([], [])
    del run, w, sent, loss, grads


def test_what_is_wrong():
    w, sent, loss, grads = graph()
    run = _C._run_open([loss], [None])
    with pytest.raises(RuntimeError, match="exp waits for no gradient from outside"):
        _C._run_feed(run, sent[1], grads[1])
    _C._run_discover(run, sent[0])
    with pytest.raises(RuntimeError, match="shape"):
        _C._run_feed(run, sent[0], pydist.ones(4))
    _C._run_feed(run, sent[0], grads[0])
    with pytest.raises(RuntimeError, match="waits for no gradient"):
        _C._run_feed(run, sent[0], grads[0])
    with pytest.raises(RuntimeError, match="is a leaf"):
        _C._run_discover(run, w)
    assert _C._run_turn(run)
    with pytest.raises(RuntimeError, match="discovered after the turn that ran mul"):
        _C._run_discover(run, sent[1])
    with pytest.raises(RuntimeError, match="this run has failed"):
        _C._run_turn(run)
    with pytest.raises(RuntimeError, match="this run has failed"):
        _C._run_feed(run, sent[0], None)
    _C._run_close(run, True)
    with pytest.raises(RuntimeError, match="element 0 of tensors does not require grad"):
        _C._run_open([pydist.ones(1)], [None])


def test_a_hook_that_raises_ends_the_run():
    w, sent, loss, grads = graph()
    sent[0].register_hook(lambda g: 1 / 0)
    run = _C._run_open([], [])
    _C._run_discover(run, sent[0])
    _C._run_feed(run, sent[0], grads[0])
    with pytest.raises(ZeroDivisionError):
        _C._run_turn(run)
    with pytest.raises(RuntimeError, match="this run has failed"):
        _C._run_turn(run)
    _C._run_close(run, True)
    assert w.grad is None


def test_one_thread_at_a_time():
    """Whoever comes while another thread is in the run is refused, and the run goes on."""
    w, sent, loss, grads = graph()
    inside, leave = threading.Event(), threading.Event()
    sent[0].register_hook(lambda g: (inside.set(), leave.wait(60), None)[2])
    run = _C._run_open([], [])
    for t in sent[:2]:
        _C._run_discover(run, t)
    _C._run_feed(run, sent[0], grads[0])
    thread = threading.Thread(target=_C._run_turn, args=(run,))
    thread.start()
    assert inside.wait(60)
    for refused in (
        lambda: _C._run_turn(run),
        lambda: _C._run_feed(run, sent[1], grads[1]),
        lambda: _C._run_discover(run, sent[2]),
        lambda: _C._run_close(run),
    ):
        with pytest.raises(RuntimeError, match="a thread is in"):
            refused()
    leave.set()
    thread.join()
    _C._run_feed(run, sent[1], grads[1])
    assert _C._run_turn(run)
    _C._run_close(run)
    other, sent, _, _ = graph()
    pydist.autograd.backward(sent[:2], grads[:2])
    assert float((w.grad - other.grad).abs().max()) <= 1e-5 * float(other.grad.abs().max())


def test_turns_by_threads_one_after_the_other():
    w, sent, loss, grads = graph()
    run = _C._run_open([loss], [None])
    for t in sent:
        _C._run_discover(run, t)
    for i in (2, 0, 3, 1):
        _C._run_feed(run, sent[i], grads[i])
        thread = threading.Thread(target=_C._run_turn, args=(run,))
        thread.start()
        thread.join()
    _C._run_close(run)
    assert bits(w.grad) == bits(fed(range(SENT)).grad)


def test_a_sink_gets_the_leaves():
    """Their whole gradients, after the hooks; .grad is left alone, and so are hooks that follow it."""
    w, sent, loss, grads = graph()
    got, after = [], []
    w.register_hook(lambda g: g * 2)
    w.register_post_accumulate_grad_hook(after.append)
    run = _C._run_open([loss, *sent], [pydist.ones(()), *grads], sink=lambda leaf, grad: got.append((leaf, grad)))
    assert _C._run_turn(run)
    _C._run_close(run)
    ((leaf, grad),) = got
    assert leaf is w and w.grad is None and not after and bits(grad) == bits(whole() * 2)

    w, sent, loss, grads = graph()
    run = _C._run_open([loss], [None], sink=lambda leaf, grad: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        _C._run_turn(run)
    _C._run_close(run, True)


def test_a_sink_leaves_gradients_with_an_owner_to_them():
    """A parameter of DistributedDataParallel: its bucket is filled, and reduced when the run is closed."""

    def work(rank):
        layer = pydist.nn.Linear(3, 2, bias=False)
        model, free, got = pydist.nn.parallel.DistributedDataParallel(layer), pydist.ones(2, requires_grad=True), []
        y = model(pydist.ones(1, 3) * (rank + 1)) * free
        free_grad = y.detach().clone()[0]
        run = _C._run_open([], [], sink=lambda leaf, grad: got.append((leaf, grad)))
        _C._run_discover(run, y)
        assert not _C._run_turn(run)
        _C._run_feed(run, y, pydist.ones(1, 2))
        assert _C._run_turn(run)
        _C._run_close(run)
        assert [leaf is free for leaf, _ in got] == [True] and pydist.allclose(got[0][1], free_grad)
        return layer.weight.grad.tolist()

    assert pydist.distributed.threads.run(work, 2) == [[[1.5] * 3] * 2] * 2
