"""The tape and the engine: hooks, what may be done twice, in-place writes, modes, errors, threads, depth, and that nothing stays.

Gradients of single ops are in test_ops.py."""

import contextlib
import gc
import math
import os
import subprocess
import sys
import threading

import pytest

import pydist
from pydist import _C


def leaf(*values):
    return pydist.tensor(values, requires_grad=True)


# Backward and grad.


def test_gradients_add_up():
    x = leaf(1.0, 2.0)
    (x * x + 3 * x).sum().backward()
    assert x.grad.tolist() == [5, 7]
    first = x.grad
    (x * 2).sum().backward()
    assert x.grad is first and x.grad.tolist() == [7, 9] and not x.grad.requires_grad
    x.grad = None
    y = x * 2
    pydist.backward([y, y * x], [pydist.ones(2), pydist.ones(2)])
    assert x.grad.tolist() == [6, 10]
    y = (x * 3).backward(pydist.tensor([1.0, 10.0]))
    assert y is None and x.grad.tolist() == [9, 40]


def test_a_gradient_is_nobody_elses():
    """The .grad of two leaves, or of a leaf and what the caller gave, never share memory."""
    x, y, g = leaf(1.0), leaf(2.0), pydist.ones(1)
    (x + y).backward(g)
    x.grad.add_(10)
    assert y.grad.tolist() == [1] and g.tolist() == [1]
    z = leaf(1.0)
    z.backward(g)
    z.grad.add_(5)
    assert g.tolist() == [1]
    w = leaf(1.0, 2.0)
    w.sum().backward()
    w.grad.add_(pydist.tensor([1.0, 2.0]))  # not an expanded scalar
    assert w.grad.tolist() == [2, 3]
    a, b = leaf(1.0), leaf(1.0)
    out = pydist.grad(a + b, [a, b])
    out[0].add_(1)
    assert a.grad is None


def test_roots_that_cannot_be():
    x = leaf(1.0, 2.0)
    for broken, text in [
        (lambda: (x * 2).backward(), r"\[2\]"), (lambda: pydist.ones(1).backward(), "grad"), (lambda: (x * 2).backward(pydist.ones(3)), r"\[3\].*\[2\]|\[2\].*\[3\]"),
        (lambda: pydist.backward([x * 2], [pydist.ones(2)] * 2), "2"), (lambda: pydist.grad(x.sum(), [pydist.ones(1)]), "grad|used"),
        (lambda: pydist.backward([x.sum(), None]), "None"), (lambda: pydist.grad(x.sum(), [x, 3]), "int"), (lambda: x.sum().backward(inputs=[x, "a"]), "str"),
        (lambda: x.sum().backward(inputs=[]), "inputs"),
    ]:  # fmt: skip
        with pytest.raises((RuntimeError, TypeError), match=text):
            broken()
    assert x.grad is None


def test_grad():
    x, y, z = leaf(2.0), leaf(3.0), leaf(1.0)
    out = x * y
    assert [g.item() for g in pydist.grad(out, [x, y], retain_graph=True)] == [3, 2]
    assert x.grad is None and y.grad is None
    with pytest.raises(RuntimeError, match="allow_unused"):
        pydist.grad(out, [x, z], retain_graph=True)
    assert pydist.grad(out, [z, x], retain_graph=True, allow_unused=True)[0] is None
    assert pydist.grad(out, x, pydist.tensor([10.0]), retain_graph=True)[0].item() == 30
    middle = out * 2
    end = middle * middle
    gm, gx = pydist.grad(end, [middle, x])
    assert gm.item() == 24 and gx.item() == 24 * 2 * 3
    assert pydist.grad(x, x)[0].item() == 1
    assert pydist.grad([x * y, x], [x])[0].item() == 4
    assert [g.item() for g in pydist.grad(x * 3, [x, x])] == [3, 3]


def test_backward_into_chosen_leaves():
    x, y = leaf(2.0), leaf(3.0)
    (x * y).backward(inputs=[x])
    assert x.grad.item() == 3 and y.grad is None


def test_a_graph_serves_once():
    x = leaf(1.0, 2.0)
    y = (x * x).sum()
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad.tolist() == [4, 8]
    with pytest.raises(RuntimeError, match="retain_graph"):
        y.backward()
    assert x.grad.tolist() == [4, 8]
    s = x.sum()
    s.backward()
    shared = x.exp()
    (shared * 2).sum().backward()
    with pytest.raises(RuntimeError, match="retain_graph"):
        (shared * 3).sum().backward()


def test_create_graph():
    x = leaf(2.0)
    y = x**3
    (g,) = pydist.grad(y, x, create_graph=True)
    (h,) = pydist.grad(g, x, create_graph=True)
    (k,) = pydist.grad(h, x)
    assert (g.item(), h.item(), k.item()) == (12, 12, 6)
    x.grad = None
    (x**3).backward(create_graph=True)
    assert x.grad.requires_grad
    x.grad = None  # a cycle through .grad is the user's to break


def test_retain_grad():
    x = leaf(1.0, 2.0)
    y = x * 2
    y.retain_grad()
    (y * y).sum().backward()
    assert y.grad.tolist() == [4, 8] and x.grad.tolist() == [8, 16]
    x.retain_grad()
    with pytest.raises(RuntimeError):
        pydist.ones(1).retain_grad()


def test_retain_grad_where_the_history_changes():
    """What retain_grad() hung on a node goes with the tensor to its new one, and never outlives it."""
    x = leaf(1.0, 2.0, 3.0, 4.0)
    y = x * 2
    y.retain_grad()
    y.mul_(3)  # a new node
    (y * 5).sum().backward()
    assert y.retains_grad and y.grad.tolist() == [5] * 4

    y = x * 2
    y.retain_grad()
    later = y + 1
    y.detach_()
    later.sum().backward()
    assert y.grad.tolist() == [1] * 4 and y.is_leaf
    del y

    for drop in (True, False):
        base = x * 1
        view = base[:2]
        view.retain_grad()
        before = view + 1
        base[2:].mul_(3)  # through another view: view's own node is made anew
        assert view.grad_fn is not None
        after = (view * 2).sum()
        if drop:
            del view
            strangers = [leaf(1.0) for _ in range(8)]
            for w in strangers:
                w.register_hook(lambda g: None)  # so that they have what view had
            before.sum().backward(retain_graph=True)
            assert all(w.grad is None for w in strangers)
        else:
            before.sum().backward(retain_graph=True)
            assert view.grad is None
            after.backward()
            assert view.grad.tolist() == [2, 2]


def test_a_retained_gradient_is_nobody_elses():
    x = leaf(1.0, 2.0)
    a, b = x * 1, x * 2
    a.retain_grad()
    b.retain_grad()
    (a + b).sum().backward()
    a.grad.add_(7)
    assert a.grad.tolist() == [8, 8] and b.grad.tolist() == [1, 1]


def test_a_long_chain_of_grads_ends():
    """Seen by the collector and released by loops: a small stack is enough."""
    lengths = []

    def work():
        for step in (lambda: pydist.ones(2), lambda: pydist.ones(2)[:]):  # a view has the next one at its base
            g = pydist.ones(2)
            for _ in range(10_000):
                t = step()
                (t if t._base is None else t._base).grad = g
                g = t
            gc.collect()
            live = _C.live()["tensors"]
            del t, g
            lengths.append(live - _C.live()["tensors"])

    size = threading.stack_size(1 << 18)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    threading.stack_size(size)
    assert len(lengths) == 2 and min(lengths) >= 10_000


def test_the_end_of_a_gradient_may_look_at_its_tensor():
    """.grad is another one, or none, before the old one goes."""

    class Last:
        def __del__(self):
            seen.append(x.grad is None or x.grad.tolist())

    x, seen = leaf(1.0, 2.0), []
    optimizer = pydist.optim.SGD([x], lr=0.1)
    ways = (lambda: optimizer.zero_grad(), lambda: setattr(x, "grad", None), lambda: setattr(x, "grad", pydist.zeros(2)),
            lambda: (x * x).sum().backward(create_graph=True), lambda: optimizer.zero_grad(set_to_none=False))  # fmt: skip
    for way in ways:
        x.grad = None
        (x * x).sum().backward(create_graph=True)
        x.grad.friend = Last()
        way()
        gc.collect()
    assert seen == [True, True, [0, 0], [4, 8], [0, 0]]
    x.grad = None


# What a hook, or another thread, does to the graph that backward walks.


def test_a_hook_may_drop_the_graph():
    kept = []
    for drop in ("detach", "list", "inputs"):
        x = leaf(1.0, 2.0, 3.0)
        h = x * 2
        y = (h * 3).sum()
        roots, inputs = [y], [x]

        def hook(g, y=y, roots=roots, inputs=inputs, drop=drop):
            if drop == "detach":
                y.detach_()
            roots.clear(), inputs.clear()
            kept.append([leaf(1.0) * 2 for _ in range(20)])  # takes the memory of what is freed

        h.register_hook(hook)
        del h, y, hook
        if drop == "inputs":
            assert [g.tolist() for g in pydist.grad(roots, inputs)] == [[6, 6, 6]]
        else:
            pydist.autograd.backward(roots)
            assert x.grad.tolist() == [6, 6, 6]


def test_a_hook_may_give_the_input_another_history():
    class Two(pydist.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1, x * 2

        @staticmethod
        def backward(ctx, a, b):
            return a + 2 * b

    b = Two.apply(leaf(1.0, 2.0))[1]  # output 1 of its node
    later = b + 3

    def hook(g):
        with pydist.enable_grad():
            b.mul_(2)  # output 0 of another one

    later.register_hook(hook)
    assert pydist.grad(later.sum(), b)[0].tolist() == [1, 1]


def test_an_unpack_hook_may_run_the_same_backward():
    x = leaf(1.0, 2.0)
    inner = []

    def unpack(t):
        if not inner:
            inner.append(1)
            again.backward()
        return t * 1

    with pydist.autograd.graph.saved_tensors_hooks(lambda t: t * 1, unpack):
        y = x * x
    again = y.sum()
    y.sum().backward()
    assert inner and x.grad.tolist() == [4, 8]  # both had what they needed


def test_a_gradient_keeps_its_shape_dtype_and_device():
    """Kernels trust them: a hook that changes one is an error, whether it returns another tensor or writes .data."""
    wide = pydist.randn(4, 3000)
    for broken in (lambda g: g.half(), lambda g: g[:1], lambda g: g.to(pydist.int8), lambda g: g.sum()):
        for op in (lambda x: x.softmax(1), lambda x: pydist.nn.functional.layer_norm(x, (3000,)), lambda x: x * 2):
            x = wide.clone().requires_grad_()
            y = op(x)
            y.register_hook(broken)
            with pytest.raises(RuntimeError, match="a (gradient )?hook returned"):
                y.sum().backward()
        x = wide.clone().requires_grad_()
        x.register_hook(broken)
        with pytest.raises(RuntimeError, match="a (gradient )?hook returned"):
            (x * 2).sum().backward()

    def shrink(g):
        g.data = pydist.zeros(1, dtype=pydist.int8)

    for create_graph in (False, True):
        x = wide.clone().requires_grad_()
        y, z = x.softmax(1), x.exp()
        (y + z).register_hook(lambda g: None)
        y.register_hook(shrink)  # the gradient that y and z share
        if create_graph:
            with pytest.raises(RuntimeError, match="a (gradient )?hook returned"):
                (y + z).sum().backward(create_graph=True)
        else:
            (y + z).sum().backward()  # what the hook saw was its own
            assert pydist.allclose(x.grad, wide.exp(), atol=1e-4)

    given = pydist.ones(4, 3000)
    x = wide.clone().requires_grad_()
    y, z = x.softmax(1), x * 1
    z.register_hook(lambda g: [given.resize_(1)][1:] or None)
    pydist.autograd.backward([y, z], [given, given])
    assert x.grad.shape == (4, 3000)


def test_data_replaced_before_backward():
    """A saved leaf whose .data is another tensor by now: no kernel reads that by the old geometry."""
    F = pydist.nn.functional
    other = lambda t: pydist.zeros(1)
    same = lambda t: t.detach().clone()
    for new in (other, same):
        w, x = pydist.rand(3000, requires_grad=True), pydist.rand(4, 3000, requires_grad=True)
        y = F.layer_norm(x, (3000,), w)
        w.data = new(w)
        with pytest.raises(RuntimeError, match=r"input 1, .* new .data"):
            y.sum().backward()
    w = pydist.rand(10, 4, requires_grad=True)
    y = F.embedding(pydist.arange(10), w)  # nothing of w is saved, but its .grad must fit it
    w.data = pydist.zeros(1, 1)
    with pytest.raises(RuntimeError, match="a leaf is float32 of shape"):
        y.sum().backward()
    x = pydist.rand(12, requires_grad=True)
    y = x.as_strided((3, 2), (4, 1))  # saves its input for the geometry
    x.data = pydist.zeros(2)
    with pytest.raises(RuntimeError, match="a leaf is float32 of shape"):
        y.sum().backward()
    for at in ("index", "target"):  # kept as they were
        x, i = pydist.rand(5, 5, requires_grad=True), pydist.arange(5)
        y = x[i].sum() if at == "index" else F.cross_entropy(x, i)
        i.data = pydist.full((5,), 1 << 40)
        y.backward()
        assert x.grad.shape == (5, 5)
    x = pydist.rand(5, requires_grad=True)
    y = x.exp()
    y.data = pydist.zeros(5)
    for broken in (pydist.zeros(4), pydist.zeros(5).half()):  # exp would get a gradient of what it did not make
        with pytest.raises(RuntimeError, match="data: a recorded op made this tensor"):
            y.data = broken
    y.detach_().data = pydist.zeros(4)
    y = x.sum()
    x.data = pydist.zeros(1)
    with pytest.raises(RuntimeError, match="two uses of a tensor"):
        (y + x.sum()).backward()
    x = pydist.rand(3, requires_grad=True)
    x.sum().backward()
    x.grad.data = pydist.zeros(2)
    with pytest.raises(RuntimeError, match=".grad of a leaf is float32 of shape"):
        x.sum().backward()


def test_leaves_that_threads_share():
    """Two threads in backward, one of which gives Python's lock up while it adds to a large .grad."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    shared = pydist.zeros(3_000_000, requires_grad=True)
    shared.grad = pydist.zeros(3_000_000)
    small = leaf(0.0)
    ends = []

    def work():
        for _ in range(30):
            shared[0].sum().backward()
            (small * 2).sum().backward()
        ends.append(1)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
    try:
        for t in threads:
            t.start()
        for t in threads:
            t.join(100)
    finally:
        sys.setswitchinterval(interval)
    assert len(ends) == 3 and shared.grad[0].item() == 90 and small.grad.tolist() == [180]


def test_threads_through_one_graph():
    """Each either has its gradients or is told that another backward freed the graph."""
    for _ in range(5):
        x = pydist.rand(400, 400, requires_grad=True)
        y = x
        for _ in range(6):
            y = (y @ x).softmax(1)
        loss, told = y.sum(), []

        def work(loss=loss, told=told):
            try:
                loss.backward()
                told.append("")
            except RuntimeError as e:
                told.append(str(e))

        threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(100)
        assert len(told) == 3 and all(not e or "an earlier backward freed" in e for e in told)


def test_an_input_that_is_written_in_place_keeps_its_value_for_the_gradient():
    """Also where the op computes in another dtype, in new memory."""
    x, y = pydist.tensor([0.5, 2.0]).bfloat16().requires_grad_(), leaf(0.75, 3.0)
    z = x * 1
    z.atan2_(y)
    z.sum().backward()
    assert x.grad.dtype is pydist.bfloat16 and x.grad.tolist() == pytest.approx([0.75 / 0.8125, 3 / 13], rel=4e-3)
    assert y.grad.tolist() == pytest.approx([-0.5 / 0.8125, -2 / 13])


def test_two_graphs_of_the_same_leaves():
    """Backwards that come to a leaf in the same moment both count; neither's gradient is lost."""
    for _ in range(100):
        leaves = [pydist.ones(2048, requires_grad=True) for _ in range(400)]
        losses = [pydist.cat([x * 2 for x in leaves]).sum() for _ in range(2)]
        gate = threading.Barrier(2)

        def work(loss, gate=gate):
            gate.wait()
            loss.backward()

        threads = [threading.Thread(target=work, args=(loss,), daemon=True) for loss in losses]
        for t in threads:
            t.start()
        for t in threads:
            t.join(100)
        assert all((x.grad == 4).all() for x in leaves)


# Hooks.


def test_hooks_in_order_and_replacing():
    x, calls = leaf(1.0, 2.0), []

    def note(name, factor=None):
        def hook(g):
            calls.append((name, g.tolist()))
            return None if factor is None else g * factor

        return hook

    y = x * 3
    y.register_hook(note("y1", 10))
    y.register_hook(note("y2"))
    x.register_hook(note("x1", 2))
    x.register_hook(note("x2"))
    x.register_post_accumulate_grad_hook(lambda t: calls.append(("post", t.grad.tolist())))
    y.sum().backward()
    assert calls == [("y1", [1, 1]), ("y2", [10, 10]), ("x1", [30, 30]), ("x2", [60, 60]), ("post", [60, 60])]
    assert x.grad.tolist() == [60, 60]


def test_hooks_see_the_whole_gradient_once():
    x, seen = leaf(1.0), []
    y = x * 1
    y.register_hook(lambda g: seen.append(g.item()))
    x.register_hook(lambda g: seen.append(g.item()))
    (y * 2 + y * 3 + x * 4).backward()
    assert seen == [5, 9]
    seen.clear()
    z = x * 2
    z.register_hook(lambda g: g * 100)
    assert pydist.grad(z * 1, x)[0].item() == 200
    assert seen == [200]


def test_hooks_can_be_removed():
    x, seen = leaf(1.0), []
    a = x.register_hook(lambda g: seen.append("a"))
    b = x.register_hook(lambda g: seen.append("b"))
    p = x.register_post_accumulate_grad_hook(lambda t: seen.append("p"))
    a.remove()
    a.remove()
    (x * 1).backward()
    b.remove(), p.remove()
    (x * 1).backward()
    assert seen == ["b", "p"]
    y = x * 1
    h = y.register_hook(lambda g: seen.append("y"))
    del y
    h.remove()
    x.register_hook(lambda g: handle.remove())
    handle = x.register_hook(lambda g: seen.append("last"))
    (x * 1).backward()
    (x * 1).backward()  # a hook may remove another in the middle of a walk
    assert seen.count("last") <= 1


def test_hooks_that_cannot_be():
    x = leaf(1.0, 2.0)
    for broken in (
        lambda: pydist.ones(1).register_hook(print),
        lambda: x.register_hook(None),
        lambda: (x * 2).register_post_accumulate_grad_hook(print),
    ):
        with pytest.raises((RuntimeError, TypeError)):
            broken()
    for result in (5, "a", pydist.ones(3)):
        y = x * 2
        y.register_hook(lambda g: result)
        with pytest.raises((RuntimeError, TypeError), match="hook"):
            y.sum().backward()


class Oops(Exception):
    pass


@pytest.mark.parametrize("where", ["leaf", "node", "post"])
def test_exceptions_come_out_unchanged(where):
    x = leaf(1.0, 2.0)
    error = Oops("from the hook")

    def hook(_):
        raise error

    y = x * 2
    z = (y * y).sum()
    handle = {"leaf": x.register_hook, "node": y.register_hook, "post": x.register_post_accumulate_grad_hook}[where](
        hook
    )
    for _ in range(2):
        with pytest.raises(Oops) as caught:
            z.backward(retain_graph=True)
        assert caught.value is error and any(t.name == "hook" for t in caught.traceback)
        del caught
    assert pydist.is_grad_enabled()
    handle.remove()
    x.grad = None
    z.backward()
    assert x.grad.tolist() == [8, 16]
    error.__traceback__ = None


def test_hooks_run_backward_of_their_own():
    x, w = leaf(2.0), leaf(5.0)

    def hook(g):
        with pydist.enable_grad():
            (w * w).backward()
            (h,) = pydist.grad(w * 3, w)
        return g * h

    y = x * 2
    y.register_hook(hook)
    (y * y).backward()
    assert w.grad.item() == 10 and x.grad.item() == 2 * 8 * 3
    deep = []

    def again(g):
        if len(deep) < 50:
            deep.append(1)
            with pydist.enable_grad():
                v = w * 1
            v.register_hook(again)
            v.backward()

    z = x * 1
    z.register_hook(again)
    z.backward()
    assert len(deep) == 50


def test_grad_mode_in_hooks():
    x, modes = leaf(1.0), []
    y = x * 1
    y.register_hook(lambda g: modes.append((pydist.is_grad_enabled(), g.requires_grad)))
    y.backward(retain_graph=True)
    pydist.grad(y * x, x, create_graph=True)
    assert modes[0] == (False, False) and modes[1][0] is True and pydist.is_grad_enabled()


# In-place writes.


def test_a_saved_tensor_may_not_change():
    x = leaf(1.0, 2.0)
    for save, change, name in [
        (lambda y: y.exp(), lambda y, z: z.add_(1), "exp"), (lambda y: y * y, lambda y, z: y.add_(1), "mul"), (lambda y: y.sin(), lambda y, z: y[0].zero_(), "sin"),
        (lambda y: y @ y, lambda y, z: y.mul_(2), "matmul|bmm"), (lambda y: y.relu(), lambda y, z: z.detach().add_(1), "relu"), (lambda y: y.log(), lambda y, z: y.view(2, 1).fill_(1), "log"),
    ]:  # fmt: skip
        y = x * 1
        z = save(y)
        change(y, z)
        with pytest.raises(RuntimeError, match=name) as caught:
            z.sum().backward()
        assert (
            "version" in str(caught.value)
            or "in place" in str(caught.value)
            or "in-place" in str(caught.value)
            or "inplace" in str(caught.value)
        )
        del caught
    y = x * 1
    z = y.exp()
    y.add_(1)  # exp keeps its result, not its input
    z.data.add_(1)  # .data has a counter of its own: on the user's own risk
    z.sum().backward()


def test_in_place_is_recorded():
    x = leaf(1.0, 2.0)
    y = x * 2
    y.mul_(3)
    y += 1
    assert y.tolist() == [7, 13] and y.grad_fn.name() == "AddBackward0"
    y.sum().backward()
    assert x.grad.tolist() == [6, 6]


def test_writes_through_views():
    x = leaf(1.0, 2.0, 3.0)
    y = x * 2
    y[0].mul_(5)
    assert y.tolist() == [10, 4, 6]
    (y * pydist.tensor([1.0, 10.0, 100.0])).sum().backward()
    assert x.grad.tolist() == [10, 20, 200]
    x.grad = None
    y = x * 1
    v, w = y[:2], y.view(3, 1)
    v.mul_(2)
    w[1:].mul_(3)
    assert y.tolist() == [2, 12, 9] and v.tolist() == [2, 12]
    v.sum().backward()
    assert x.grad.tolist() == [2, 6, 0]
    x.grad = None
    y = x * 1
    y[1] = x[0] * 7
    y[[0, 2]] = pydist.tensor([5.0, 6.0])
    y.sum().backward()
    assert y.tolist() == [5, 7, 6] and x.grad.tolist() == [7, 0, 0]


def test_a_leaf_into_a_buffer():
    """A plain tensor that is written with a tracked one becomes part of the graph, so do its views."""
    x, buffer = leaf(1.0, 2.0), pydist.zeros(4)
    early = buffer[1:]
    buffer[1:3] = x * 2
    assert buffer.requires_grad and early.requires_grad and not buffer.is_leaf
    (early * early).sum().backward()
    assert x.grad.tolist() == [8, 16]
    x.grad = None
    out = pydist.zeros(2)
    out.copy_(x).mul_(3)
    out.sum().backward()
    assert x.grad.tolist() == [3, 3]


def test_in_place_second_order():
    x = pydist.tensor([1.0, 2.0], dtype=pydist.float64, requires_grad=True)
    y = x * x
    y[0].mul_(y[1])  # (x0 x1)^2, x1^2
    (g,) = pydist.grad(y.sum(), x, create_graph=True)
    (h,) = pydist.grad(g.sum(), x)
    assert g.tolist() == [8, 8] and h.tolist() == [2 * 4 + 4 * 2, 4 * 2 + 2 + 2]


def test_leaves_may_not_be_written():
    x = pydist.ones(2, 2, requires_grad=True)
    for write in (lambda: x.add_(1), lambda: x[0].zero_(), lambda: x.__setitem__(0, 1), lambda: x.T.mul_(2), lambda: x.zero_(), lambda: x.uniform_(), lambda: x.view(4).copy_(pydist.ones(4)),
                  lambda: x.__setitem__([0], 1.0), lambda: x.__iadd__(1)):  # fmt: skip
        with pytest.raises(RuntimeError, match="leaf"):
            write()
    assert x.tolist() == [[1, 1], [1, 1]] and x._version == 0
    with pydist.no_grad():
        x.add_(1)
        x[0] = 5
    x.data.add_(1)
    x.detach().mul_(2)
    assert x.tolist() == [[12, 12], [6, 6]] and x._version == 3 and x.is_leaf and x.requires_grad


def test_views_made_without_grad_may_not_be_written_with_it():
    """The write could not be recorded: x would get a gradient that is silently wrong."""
    y = leaf(1.0, 2.0) * 2
    with pydist.no_grad():
        v = y[:1]
        v.mul_(1)
    with pytest.raises(RuntimeError, match="mul.*no_grad"):
        v.mul_(3)


# Modes.


def test_no_grad():
    x = leaf(1.0)
    with pydist.no_grad():
        assert not (x * 2).requires_grad and not pydist.is_grad_enabled()
        with pydist.enable_grad():
            assert (x * 2).requires_grad
        assert not pydist.is_grad_enabled()
    assert pydist.is_grad_enabled()
    with pytest.raises(Oops), pydist.no_grad():
        raise Oops
    assert pydist.is_grad_enabled()

    @pydist.no_grad()
    def inside():
        return (x * 2).requires_grad, pydist.is_grad_enabled()

    assert inside() == (False, False)
    seen = []
    with pydist.no_grad():
        thread = threading.Thread(target=lambda: seen.append(pydist.is_grad_enabled()))
        thread.start(), thread.join()
    assert seen == [True], "the mode belongs to a thread"


@pytest.fixture(params=["pydist", "torch"])
def lib(request):
    """The library under test, or the reference."""
    return pytest.importorskip(request.param)


def test_inference_tensors(lib):
    w = lib.ones(2, requires_grad=True)
    normal = lib.zeros(2)
    with lib.inference_mode():
        assert lib.is_inference_mode_enabled() and not lib.is_grad_enabled()
        made, y, view = lib.ones(2), w * 2, normal[:1]
        assert (
            made.is_inference()
            and y.is_inference()
            and not w.is_inference()
            and not view.is_inference()
            and not y.requires_grad
        )
        made.add_(1)
        normal.add_(1)
        with lib.enable_grad():
            assert not (w * 2).requires_grad
        with lib.inference_mode(False):
            assert lib.is_grad_enabled() and (w * 2).requires_grad and not lib.ones(1).is_inference()
        assert made[0].is_inference() and lib.is_inference_mode_enabled()
    assert lib.is_grad_enabled() and not lib.is_inference_mode_enabled() and not lib.ones(1).is_inference()
    assert (
        made[:1].is_inference()
        and not made.clone().is_inference()
        and not (made + 1).is_inference()
        and normal._version == 1
    )
    assert (w + made).requires_grad, "nothing is saved"
    for broken in (lambda: w * made, lambda: made.add_(1), lambda: made[0].zero_(), lambda: made.requires_grad_(), lambda: made._version,
                   lambda: lib.add(normal, 1, out=made), lambda: made.__setitem__(0, 1.0)):  # fmt: skip
        with pytest.raises(RuntimeError, match="[Ii]nference|inference"):
            broken()
    made = made.clone()
    made[0] = 2
    (w * made).sum().backward()
    assert w.grad.tolist() == [2, 2]


def test_inference_mode_decorates(lib):
    x = lib.ones(1, requires_grad=True)

    @lib.inference_mode
    def plain():
        return x * 2

    @lib.inference_mode(mode=True)
    def called():
        return x * 2

    @lib.inference_mode()
    def several():
        for _ in range(2):
            got = yield x * 2
            assert lib.is_inference_mode_enabled() and got == "sent"

    assert plain().is_inference() and called().is_inference() and plain.__name__ == "plain"
    body = several()
    assert next(body).is_inference() and not lib.is_inference_mode_enabled() and body.send("sent").is_inference()
    with pytest.raises(StopIteration):
        body.send("sent")
    with pytest.raises(Oops), lib.inference_mode():
        raise Oops
    assert not lib.is_inference_mode_enabled() and lib.is_grad_enabled()


def test_backward_within_inference_mode():
    x = leaf(1.0, 2.0)
    y = (x * x).sum()
    with pydist.inference_mode():
        y.backward()
    assert not x.grad.is_inference()
    x.grad.add_(1)


@pytest.mark.parametrize("name", ["no_grad", "enable_grad"])
def test_modes_decorate_generators(lib, name):
    mode = getattr(lib, name)
    log = []

    @mode()
    def body():
        try:
            while True:
                log.append(lib.is_grad_enabled())
                try:
                    yield lib.is_grad_enabled()
                except KeyError:
                    log.append(lib.is_grad_enabled())
        finally:
            log.append(lib.is_grad_enabled())

    want = name == "enable_grad"
    with lib.set_grad_enabled(not want):
        g = body()
        assert next(g) is want and lib.is_grad_enabled() is not want
        assert g.throw(KeyError) is want and lib.is_grad_enabled() is not want
        g.close()
        assert lib.is_grad_enabled() is not want
    assert log == [want] * 4
    assert lib.is_grad_enabled()


def test_set_grad_enabled(lib):
    lib.set_grad_enabled(False)
    try:
        assert not lib.is_grad_enabled()
        with lib.set_grad_enabled(True):
            assert lib.is_grad_enabled()
        assert not lib.is_grad_enabled()
    finally:
        lib.set_grad_enabled(True)

    @lib.set_grad_enabled(False)
    def off():
        return lib.is_grad_enabled()

    assert lib.is_grad_enabled() and off() is False and lib.is_grad_enabled()

    @lib.no_grad()
    def deep(n):
        return lib.is_grad_enabled() if n == 0 else deep(n - 1)

    assert deep(5) is False


def test_detach_and_requires_grad():
    x = leaf(1.0, 2.0)
    y = x * 2
    d = y.detach()
    assert d.is_leaf and not d.requires_grad and d.data_ptr() == y.data_ptr() and y.requires_grad
    d.requires_grad_()
    (d * 2).sum().backward()
    assert d.grad.tolist() == [2, 2] and x.grad is None
    y.detach_()
    assert y.is_leaf and not y.requires_grad
    with pytest.raises(RuntimeError, match="leaf"):
        (x * 2).requires_grad = False
    with pytest.raises(RuntimeError, match="float"):
        pydist.arange(3).requires_grad_()
    assert not (x > 1).requires_grad and not x.argmax().requires_grad and not (x * 2).long().requires_grad
    z = x * 2
    z.requires_grad = True
    assert not z.is_leaf
    v = (x * 1)[0]
    with pytest.raises(RuntimeError):
        v.detach_()


def test_graph_can_be_read():
    x, y = leaf(1.0), leaf(2.0)
    z = x * y + x
    assert z.grad_fn.name() == "AddBackward0" and (x.grad_fn, y.is_leaf, z.is_leaf) == (None, True, False)
    (product, k), (again, _) = z.grad_fn.next_functions
    assert (
        product.name() == "MulBackward0"
        and k == 0
        and again.variable is x
        and product == z.grad_fn.next_functions[0][0]
        and hash(product) == hash(z.grad_fn.next_functions[0][0])
    )
    assert [n.variable is m for (n, _), m in zip(product.next_functions, (x, y))] == [True, True]


def test_a_leaf_in_a_graph_is_an_accumulate_grad(torch):
    x, w = leaf(1.0), leaf(5.0)
    y = x * 3 * w.detach()
    node = (y + x).grad_fn.next_functions[1][0]
    assert isinstance(node, pydist.autograd.graph.Node) and repr(node) == "<torch::autograd::AccumulateGrad>"
    assert node.variable is x and node.next_functions == () and node.name() == "torch::autograd::AccumulateGrad"
    assert (
        node == y.grad_fn.next_functions[0][0].next_functions[0][0]
        and len({node, (w * 1).grad_fn.next_functions[0][0]}) == 2
    )
    assert node != y.grad_fn and y.grad_fn.next_functions[1][0] is None and not hasattr(y.grad_fn, "variable")
    del x
    gc.collect()
    x = node.variable  # the node keeps it
    for library in (pydist, torch):
        calls, a = [], library.ones(2, requires_grad=True)
        for factor in (1, 2):
            at = (a * 1).grad_fn.next_functions[0][0]
            handle = at.register_hook(
                lambda ins, outs, k=factor: calls.append((k, ins, outs[0].tolist(), a.grad.tolist()))
            )
        a.register_hook(lambda g: g + 1)
        (a * 2).sum().backward()
        assert library.autograd.grad((a * 2).sum(), a)[0].tolist() == [3, 3]  # nothing is accumulated: no call
        want = [(k, (), [3.0, 3.0], [3.0, 3.0]) for k in (1, 2)]
        assert (calls if library is pydist else calls[-1:]) == (want if library is pydist else want[1:])
    handle = node.register_hook(lambda ins, outs: 3)
    with pytest.raises(TypeError, match=r"returned int \(expected None or \(\)\)"):
        (x * 2).backward()
    handle.remove()
    with pytest.raises(NotImplementedError, match="MulBackward0.*AccumulateGrad"):
        y.grad_fn.register_hook(print)
    kept = [node]
    x.note = kept  # a cycle through the node, which the collector frees


def test_dtypes_across_edges():
    """A gradient comes back in the dtype of its leaf."""
    x = pydist.ones(2, dtype=pydist.float16, requires_grad=True)
    w = pydist.ones(2, dtype=pydist.float64, requires_grad=True)
    y = (x * w + x.float()).sum() + x.double().sum()
    y.backward()
    assert x.grad.dtype == pydist.float16 and w.grad.dtype == pydist.float64 and x.grad.tolist() == [3, 3]


# Nothing stays.


def test_no_cycles():
    """Reference counts alone free every graph: with the collector off nothing is left over."""
    gc.collect()
    gc.disable()
    try:
        before = _C.live()
        x = pydist.rand(6, 4, requires_grad=True)
        w = pydist.rand(3, 4, requires_grad=True)
        for op in (lambda: x.exp(), lambda: x.softmax(1), lambda: x.tanh().sigmoid().sqrt(), lambda: pydist.nn.functional.linear(x, w), lambda: x.max(1).values, lambda: x[[0, 1]],
                   lambda: x.prod(), lambda: pydist.nn.functional.batch_norm(x, None, None, training=True), lambda: pydist.dropout(x, 0.5), lambda: (x * 1)[0].mul_(2), lambda: x.amax(0),
                   lambda: pydist.nn.functional.cross_entropy(x, pydist.zeros(6, dtype=pydist.int64)), lambda: x.topk(2).values, lambda: pydist.cat([x, x]).relu_()):  # fmt: skip
            y = op()  # not used any more
            op().sum().backward()
            op().sum().backward(retain_graph=True)
            y = op()
            y.register_hook(lambda g: g * 2)
            pydist.grad(y.sum(), x)
            y.grad_fn.next_functions
            z = op() * 1
            v = z.view(-1)
            z.mul_(1)
            v.sum().backward()
        del y, z, v, op, x, w
        assert _C.live() == before
    finally:
        gc.enable()


@pytest.mark.parametrize("build", ["y * 1", "y[:]", "y.neg_()", "y.view(1)", "(y + x)"])
def test_depth(build):
    """100,000 nodes: neither backward nor freeing recurses."""
    x = leaf(1.0)
    code = compile(build, "build", "eval")
    for use in ("backward", "free", "grad"):
        y = x * 1
        for i in range(100_000):
            y = eval(code, {"x": x, "y": y, "i": i})
        if use == "backward":
            y.backward()
        elif use == "grad":
            pydist.grad(y, x)
        del y
    assert x.grad is not None


def test_wide():
    x = leaf(1.0)
    parts = [x * i for i in range(2000)]
    pydist.cat(parts).sum().backward()
    assert x.grad.item() == 1999 * 1000


def rss():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4096


def test_training_does_not_grow():
    model = pydist.nn.Sequential(pydist.nn.Linear(32, 64), pydist.nn.ReLU(), pydist.nn.Linear(64, 10))
    optimizer = pydist.optim.Adam(model.parameters(), lr=1e-3)
    x, t = pydist.rand(16, 32), pydist.randint(10, (16,))
    for i in range(1200):
        optimizer.zero_grad()
        pydist.nn.functional.cross_entropy(model(x), t).backward()
        optimizer.step()
        if i == 199:
            live, size, bytes_ = _C.live(), rss(), _C.memory_allocated()
    assert _C.live() == live and _C.memory_allocated() == bytes_
    assert rss() - size < 4 << 20


# Threads.


def run_threads(n, work):
    errors, start = [], threading.Barrier(n)

    def run(k):
        try:
            start.wait(10)
            work(k)
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not errors and not any(t.is_alive() for t in threads), errors


def test_threads_with_models_of_their_own():
    results = {}

    def work(k):
        w = pydist.full((300, 300), 0.01, requires_grad=True)
        x = pydist.full((200, 300), float(k + 1))
        for _ in range(20):
            w.grad = None
            ((x @ w).tanh() @ w).sum().backward()
        results[k] = w.grad.double().sum().item()

    for k in range(2):
        work(k)
    alone = dict(results)
    run_threads(2, work)
    assert results == alone


def test_threads_on_one_leaf():
    x = pydist.ones(50_000, requires_grad=True)
    seen = []
    x.register_post_accumulate_grad_hook(lambda t: seen.append(1))

    def work(k):
        for _ in range(50):
            (x * 2).sum().backward()

    run_threads(4, work)
    assert x.grad.tolist() == [400] * 50_000 and len(seen) == 200


def test_threads_on_one_graph():
    x = pydist.ones(1000, requires_grad=True)
    y = (x * x).exp().sum()

    alone = pydist.grad(y, x, retain_graph=True)[0]

    def work(k):
        for _ in range(50):
            assert pydist.equal(pydist.grad(y, x, retain_graph=True)[0], alone)

    run_threads(3, work)
    assert alone[0].item() == pytest.approx(2 * math.e) and x.grad is None


def test_threads_share_wrappers():
    """Many threads make and drop wrappers of the same tensors while graphs die."""
    x = leaf(1.0)
    x.note = 1

    def work(k):
        for _ in range(2000):
            y = x * 2
            assert y.grad_fn.next_functions[0][0].variable.note == 1
            y.backward()

    run_threads(4, work)
    assert x.grad.item() == 16000


def test_backward_at_interpreter_exit(tmp_path):
    """A graph alive at exit, a hook among it, ends quietly."""
    code = (
        "import pydist, threading\n"
        "x = pydist.ones(3, requires_grad=True); x.note = [x]\n"
        "y = (x * 2).exp(); y.register_hook(lambda g: None); y.sum().backward(retain_graph=True)\n"
        "class Sub(pydist.Tensor):\n    def __del__(self): pass\n"
        "s = pydist.Tensor._make_subclass(Sub, pydist.ones(2), True); z = s * 2; del s\n"
        "print('done')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


# PYDIST_NAN.

NAN_PROGRAM = """
import pydist
{}
x = pydist.tensor([[1.0, 0.0], [2.0, 3.0]], dtype=pydist.{}, requires_grad=True)
pydist.full((2,), float("inf")).exp(), pydist.zeros(2).fill_(float("nan")), pydist.maximum(x, float("-inf"))  # what the user gave is no news
y = x.T.sqrt() * 2
y.sum().backward()
(x - 5).log()
print("end")
"""


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_the_first_nan_is_named(dtype):
    def run(level, before=""):
        env = {**os.environ, "PYDIST_NAN": str(level), "RANK": "3"}
        done = subprocess.run(
            [sys.executable, "-c", NAN_PROGRAM.format(before, dtype)],
            capture_output=True,
            text=True,
            timeout=60,
            env=env,
        )
        return done.returncode, done.stdout, done.stderr

    assert run(0) == (0, "end\n", "")
    code, out, err = run(1)
    assert (
        (code, out) == (0, "end\n")
        and err
        == f"pydist: rank 3: the first NaN or infinity comes from sqrt: the gradient of input 0, {dtype} of shape [2, 2]\n"
    )
    code, out, err = run(2)
    assert (
        code == 1
        and out == ""
        and f"RuntimeError: sqrt: the gradient of input 0, {dtype} of shape [2, 2] on rank 3, has a NaN or an infinity"
        in err
    )
    code, out, err = run(2, f"(pydist.ones(5, dtype=pydist.{dtype})[::2] * 0).log_()")
    assert code == 1 and "RuntimeError: log: result 0" in err and "shape [3]" in err


# Anomaly mode.


def test_anomalies_name_their_forward_line(lib):
    x = lib.zeros(2, requires_grad=True)

    def forward():
        return x.sqrt() * 0  # the line that is named

    forward().sum().backward()
    assert x.grad.isnan().all() if lib is not pydist else not (x.grad == x.grad).any()
    with lib.autograd.detect_anomaly():
        assert lib.is_anomaly_enabled()
        y = forward().sum()
        with (
            pytest.warns(UserWarning, match="(?s)(Error detected in .*[Ss]qrt.*return x.sqrt..|Anomaly)") as warned,
            pytest.raises(RuntimeError, match="(?i)nan values"),
        ):
            y.backward()
        assert any("the line that is named" in str(w.message) for w in warned)
        z = x * 2
        z.register_hook(lambda g: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            z.sum().backward()
    assert not lib.is_anomaly_enabled()
    with lib.autograd.set_detect_anomaly(True, check_nan=False):
        forward().sum().backward()
    lib.autograd.set_detect_anomaly(True)
    assert lib.is_anomaly_enabled()
    lib.autograd.set_detect_anomaly(False)
    assert not lib.is_anomaly_enabled()


@pytest.mark.parametrize("dtype", [pydist.float64, pydist.bfloat16])
@pytest.mark.parametrize("backwards", [1, 2])
@pytest.mark.parametrize("padding", [None, 3])
@pytest.mark.parametrize("index_dtype", [pydist.int64, pydist.int32])
def test_a_weight_that_is_looked_up_and_multiplied(dtype, backwards, padding, index_dtype):
    """Its gradient is that of two weights: the rows looked up are added to what the product left, which hooks see whole."""
    start, index = pydist.randint(-4, 5, (50, 8)).double() / 4, pydist.randint(0, 50, (4, 6)).to(index_dtype)
    tied, table, head = (start.clone().requires_grad_() for _ in range(3))
    seen = []
    tied.register_hook(lambda g: seen.append(g.clone()))
    for weights in ((tied, tied), (table, head)):
        for _ in range(backwards):
            with pydist.autocast("cpu", dtype=dtype, enabled=dtype is not pydist.float64):
                h = pydist.nn.functional.embedding(index, weights[0], padding_idx=padding)
                loss = pydist.nn.functional.linear(h, weights[1]).square().mean()
            loss.backward()
    both = table.grad + head.grad
    assert pydist.allclose(tied.grad, both, rtol=1e-12, atol=1e-15)
    assert len(seen) == backwards and pydist.allclose(sum(seen), both, rtol=1e-12, atol=1e-15)


def test_a_tied_weight_has_second_derivatives():
    w, index = pydist.randn(5, 3, dtype=pydist.float64, requires_grad=True), pydist.tensor([0, 2, 2])
    assert pydist.autograd.gradgradcheck(
        lambda w: pydist.tanh(pydist.nn.functional.embedding(index, w) @ w.t()).sum(), (w,)
    )


@pytest.mark.parametrize("end", [lambda t: t.detach_(), lambda t: t.requires_grad_(False)])
def test_a_view_of_what_was_a_leaf_is_not_written(end):
    """As in PyTorch. The write would make the leaf a result of itself, which nothing could free."""
    before = _C.live()["nodes"]
    x = pydist.ones(3, requires_grad=True)
    v = x[None]
    end(x)
    with pytest.raises(RuntimeError, match="view of a leaf Variable that requires grad"):
        v.mul_(2)
    with pydist.no_grad():
        v.mul_(2)
    v.sum().backward()
    assert x.tolist() == [2, 2, 2] and x.grad.tolist() == [1, 1, 1]
    del x, v
    assert _C.live()["nodes"] == before


@pytest.mark.parametrize("end", [lambda t: t.detach_(), lambda t: t.requires_grad_(False)])
@pytest.mark.parametrize("kind", ["other", "own"])
def test_backward_into_a_leaf_that_became_a_result_raises(end, kind):
    """As in PyTorch. The result would get a .grad, of values that it had before."""
    x, w = pydist.ones(3, requires_grad=True), pydist.ones(3, requires_grad=True)
    y = x + 1
    end(x)
    x.mul_(w if kind == "other" else y.detach() * w)
    with pytest.raises(RuntimeError, match=r"a leaf, float32 of shape \[3\], has become the result of mul"):
        y.sum().backward()
    assert x.grad is None
    x.sum().backward()
    assert x.grad is None and w.grad.tolist() == [1 + (kind == "own")] * 3


@pytest.mark.parametrize("made", [lambda t: t, lambda t: t * 1])
def test_a_long_chain_of_hooks_that_hold_tensors_is_freed(made):
    """C and Python free it in turns: a bound method in Python has no trashcan."""
    before = _C.live()
    t = pydist.ones((), requires_grad=True)
    for _ in range(100_000):
        last, t = t, made(pydist.ones((), requires_grad=True))
        t.register_hook(last.add)
    del last, t
    assert _C.live() == before


def test_a_later_result_of_an_op_becomes_a_leaf():
    """The second result of a node, once detached, has a gradient of its own: not the second of a leaf's."""

    class Two(pydist.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2, x.sum()

        @staticmethod
        def backward(ctx, a, b):
            return a * 2 + b

    _, m = Two.apply(pydist.rand(3, requires_grad=True))
    m.detach_().requires_grad_()
    (m * 2 + m).backward()
    assert m.grad.item() == 3
    m.backward()
    assert m.grad.item() == 4
    assert pydist.autograd.grad(m * 5, m)[0].item() == 5


def test_a_pack_hook_that_fails_leaves_a_node_that_says_so():
    """The Function has changed its input before; what is the input's history then has nothing saved."""

    class Double(pydist.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x * 1)
            ctx.mark_dirty(x)
            return x.mul_(2)

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0]

    def pack(t):
        raise ValueError("of pack")

    x = pydist.ones(3, requires_grad=True) * 1
    with pytest.raises(ValueError, match="of pack"), pydist.autograd.graph.saved_tensors_hooks(pack, lambda p: p):
        Double.apply(x)
    with pytest.raises(RuntimeError, match="pack hook for saved tensors failed"):
        x.sum().backward()


def test_a_view_that_a_function_wrote_and_a_hook_packed_is_freed():
    class Double(pydist.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            ctx.mark_dirty(x)
            return x.mul_(2)

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0]

    before = _C.live()["nodes"]
    leaf = pydist.ones(3, requires_grad=True)
    with pydist.autograd.graph.saved_tensors_hooks(lambda t: (t,), lambda p: p[0]):
        x = Double.apply((leaf * 1)[1:])
    x.sum().backward()
    assert leaf.grad.tolist() == [0, 2, 2]
    with pydist.autograd.graph.saved_tensors_hooks(lambda t: (t,), lambda p: p[0]):
        x = Double.apply((leaf * 1)[1:])
    del x
    gc.collect()
    assert _C.live()["nodes"] == before


HOLDERS = {
    "nothing": lambda logits, loss: None,
    "loss": lambda logits, loss: loss.grad_fn,
    "logits": lambda logits, loss: logits,
    "view": lambda logits, loss: logits[2:],
    "detached": lambda logits, loss: logits.detach(),
    "numpy": lambda logits, loss: logits.detach().numpy(),
    "node": lambda logits, loss: (logits * 2).exp().grad_fn,
    "retain": lambda logits, loss: None,
    "hook": lambda logits, loss: None,
}


@pytest.mark.parametrize("held", HOLDERS)
def test_the_gradient_of_logits_is_written_over_them(held):
    """Where nobody can see the logits again; else they keep their values. The gradient is the same."""
    x, w, t, seen = pydist.randn(6, 4), pydist.randn(4, 5).requires_grad_(), pydist.arange(6) % 5, []

    def run(held):
        hooks = pydist.autograd.graph.saved_tensors_hooks(lambda s: s.clone(), lambda s: s)
        with hooks if held == "hook" else contextlib.nullcontext():
            logits = (x @ w).view(6, 5)
            loss = pydist.nn.functional.cross_entropy(logits, t)
        at, values = logits.data_ptr(), logits.tolist()
        logits.register_hook(lambda g: seen.append((g.data_ptr() == at, g.tolist())))
        kept = HOLDERS[held](logits, loss)
        del logits
        loss.backward(retain_graph=held == "retain")
        if held in ("logits", "detached", "numpy"):
            assert kept.tolist() == values
        if held == "retain":
            loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()

    run("nothing")
    run(held)
    over = {"nothing": [True], "loss": [True], "retain": [False, True]}.get(held, [False])
    assert [place for place, _ in seen] == [True, *over]
    assert all(g == seen[0][1] for _, g in seen)


def test_the_gradient_of_logits_of_16_bits_is_written_over_them():
    x, w = pydist.randn(6, 4), pydist.randn(4, 5).requires_grad_()
    with pydist.autocast("cpu", dtype=pydist.bfloat16):
        logits = x @ w
        at, seen = logits.data_ptr(), []
        logits.register_hook(lambda g: seen.append((g.data_ptr(), g.dtype)))
        loss = pydist.nn.functional.cross_entropy(logits, pydist.arange(6) % 5)
    assert logits.dtype == pydist.bfloat16 and loss.dtype == pydist.float32
    del logits
    loss.backward()
    assert seen == [(at, pydist.bfloat16)]
