"""Distributed autograd: the gradients of local autograd, whatever way calls and gradients take between workers."""

import contextlib
import os
import random
import signal
import threading
import time
import weakref

import pytest

import pydist
from lib import rpc_threads
from lib.ranks import LONG
from pydist import _C
from pydist.distributed import PeerFailed, autograd
from pydist.distributed.autograd import _contexts, _messages
from pydist.testing import run_ranks

SIZE = 5
_weights = {}
_way = threading.local()  # .call: how `remote` calls; the workers' threads have none


def weight(rank):
    """The parameter of a worker; the same numbers in each process."""
    if rank not in _weights:
        generator = pydist.Generator().manual_seed(rank)
        _weights[rank] = pydist.randn(SIZE, SIZE, generator=generator, dtype=pydist.float64, requires_grad=True)
    return _weights[rank]


def cloned(value):
    return rpc_threads.copied(value, iter([t.clone() for t in rpc_threads.tensors_of(value)]))


def remote(to, function, *args):
    if hasattr(rpc_threads._here, "agent"):
        return rpc_threads.call(to, function, *args)
    if getattr(_way, "local", False):
        return cloned(function(*cloned(args)))
    from pydist.distributed import rpc

    return rpc.rpc_sync(f"worker{to}", function, args=args)


# Programs over workers 0, 1 and 2.


def layer(x, rank):
    return (x @ weight(rank)).tanh()


def chain(x):
    for rank in (1, 2, 1, 0, 2):
        x = remote(rank, layer, x, rank)
    return (x * x).sum()


def diamond(x):
    a, b = remote(1, layer, x, 1), remote(2, layer, x, 2)
    return (a * b + remote(1, layer, a + b, 1)).sum()


def inner(x, rank):
    y = layer(x, rank)
    return y * remote(rank + 1, layer, y, rank + 1) if rank < 2 else y


def nested(x):
    return remote(1, inner, x * 2, 1).sum()


def bounce(x, rank, depth):
    y = layer(x, rank)
    return y + remote(1 - rank, bounce, y, 1 - rank, depth - 1) if depth else y


def mutual(x):
    return (bounce(x, 0, 5) ** 2).sum()


def branch(x, depth):
    if not depth:
        return x.exp()
    return sum(remote(rank, branch, layer(x, 0) * (rank + 1), depth - 1) for rank in range(3))


def tree(x):
    weight(0)  # of all that is used, only worker 0's is in every process
    return remote(0, branch, x, 0).sum() + remote(1, leaves, x, 1, 2).sum()


def leaves(x, rank, depth):
    y = layer(x, rank)
    return y if not depth else sum(remote(to, leaves, y * (to + 1), to, depth - 1) for to in range(3))


def reused(x):
    y = remote(1, layer, x, 1)
    z = remote(2, layer, y, 2) + remote(2, layer, y, 2) + remote(1, layer, y, 1) * y
    return (z * x).sum() + y.sum()


def unused(x):
    remote(1, layer, x, 1)
    y = remote(2, layer, x, 2)
    remote(1, layer, y, 1)
    return (y * x).sum()


def several(x, rank):
    return [layer(x, rank), x * 2, x.detach(), (x.sum(), "text", weight(rank))]


def some_results(x):
    a, b, c, (d, text, w) = remote(1, several, x, 1)
    assert text == "text" and not c.requires_grad and a.requires_grad
    return (b * c).sum() + w.sum() * d


def same_worker(x):
    return remote(0, layer, remote(0, inner, x, 0), 0).sum()


def in_place(x):
    """What is sent is what it was: later writes change neither values nor gradients."""
    a = x * 3
    y = remote(1, layer, a, 1)
    a.mul_(2)
    y.add_(a)
    return (y * y).sum()


class Twice(pydist.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return None


def no_gradient(x):
    """A gradient ends at another worker, or before it left this one."""
    return (Twice.apply(remote(1, layer, x, 1)) + remote(2, Twice.apply, x)).sum() + x.sum()


def not_at_the_root(x):
    """All graphs are elsewhere."""
    return remote(1, inner, x.detach(), 1).sum()


GRAPHS = {
    f.__name__: f
    for f in (chain, diamond, nested, mutual, tree, reused, unused, some_results, same_worker, in_place, no_gradient)
}
GRAPHS["not_at_the_root"] = not_at_the_root


def numbers(grad):
    return None if grad is None else grad.tolist()


def start():
    return pydist.linspace(-1, 1, 3 * SIZE, dtype=pydist.float64).reshape(3, SIZE).requires_grad_()


def by_local_autograd(program):
    """The gradients of x and of the three weights."""
    _way.local = True
    try:
        x = start()
        for rank in range(3):
            weight(rank).grad = None
        program(x).backward()
        return [numbers(x.grad)] + [numbers(weight(rank).grad) for rank in range(3)]
    finally:
        _way.local = False
        for rank in range(3):
            weight(rank).grad = None


def of_weight(context_id, rank):
    assert weight(rank).grad is None
    try:
        return numbers(autograd.get_gradients(context_id).get(weight(rank)))
    except RuntimeError as error:
        assert "Could not find autograd context" in str(error)  # no call has carried it there
        return None


def all_gradients(context_id, x):
    assert x.grad is None
    grads = autograd.get_gradients(context_id)
    return [numbers(grads.get(x))] + [remote(rank, of_weight, context_id, rank) for rank in range(3)]


def by_distributed_autograd(program, passes=1):
    x = start()
    with autograd.context() as context_id:
        loss = program(x)
        for left in reversed(range(passes)):
            autograd.backward(context_id, [loss], retain_graph=left > 0)
        return all_gradients(context_id, x)


def assert_equal_within(got, wanted, factor=1):
    assert len(got) == len(wanted)
    for a, b in zip(got, wanted):
        if b is None:
            assert a is None
            continue
        b = pydist.tensor(b, dtype=pydist.float64) * factor
        assert float((pydist.tensor(a, dtype=pydist.float64) - b).abs().max()) <= 1e-12 * max(1, float(b.abs().max()))


@pytest.fixture
def world():
    with rpc_threads.World(3) as world:
        yield world
    _weights.clear()


@pytest.fixture(autouse=True)
def no_weights():
    yield
    _weights.clear()


# ---- the same gradients


@pytest.mark.parametrize("trails", [True, False])
@pytest.mark.parametrize("name", GRAPHS)
def test_gradients_are_those_of_local_autograd(name, trails, monkeypatch):
    if not trails:
        monkeypatch.setattr(_contexts, "_TRAIL", -1)
    wanted = by_local_autograd(GRAPHS[name])
    with rpc_threads.World(3):
        assert_equal_within(by_distributed_autograd(GRAPHS[name]), wanted)


@pytest.mark.parametrize("trails", [True, False])
@pytest.mark.parametrize("name", ["diamond", "tree", "reused", "mutual"])
def test_repeats_give_the_same_bits(name, trails, monkeypatch):
    """Although requests overtake each other."""
    first = None
    if not trails:
        monkeypatch.setattr(_contexts, "_TRAIL", -1)
    for seed in range(20):
        with rpc_threads.World(3, delay=0.003) as world:
            world._random.seed(seed)
            got = by_distributed_autograd(GRAPHS[name])
        first = first or got
        assert got == first


def test_passes_in_one_context_add_up(world):
    wanted = by_local_autograd_in_a_thread(diamond)
    assert_equal_within(by_distributed_autograd(diamond, passes=3), wanted, factor=3)


def by_local_autograd_in_a_thread(program):
    """In a thread that belongs to no worker."""
    got = []
    thread = threading.Thread(target=lambda: got.append(by_local_autograd(program)))
    thread.start()
    thread.join()
    return got[0]


def test_several_roots(world):
    x = start()
    with autograd.context() as context_id:
        y = remote(1, layer, x, 1)
        roots = [remote(2, layer, y, 2).sum(), y.sum(), (x * x).sum()]
        autograd.backward(context_id, roots)
        got = all_gradients(context_id, x)

    def together(x):
        y = remote(1, layer, x, 1)
        return remote(2, layer, y, 2).sum() + y.sum() + (x * x).sum()

    assert_equal_within(got, by_local_autograd_in_a_thread(together))


def test_eight_contexts_at_once(world):
    """Their passes meet in the same leaves."""
    names, results = list(GRAPHS)[:8], {}
    for rank in range(3):
        weight(rank)

    def work(name):
        rpc_threads._here.agent = world.agents[0]
        results[name] = by_distributed_autograd(GRAPHS[name])

    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for name in names:
        assert_equal_within(results[name], by_local_autograd_in_a_thread(GRAPHS[name]))


@pytest.mark.parametrize("dtype", [pydist.float32, pydist.bfloat16, pydist.complex128])
def test_dtypes(world, dtype):
    x = pydist.ones(3, requires_grad=True, dtype=dtype)
    with autograd.context() as context_id:
        y = remote(1, pydist.mul, x, 2)
        autograd.backward(context_id, [y.sum().abs() if dtype.is_complex else y.sum()])
        grad = autograd.get_gradients(context_id)[x]
    assert grad.dtype == dtype and grad.tolist() == [2, 2, 2]


def test_hooks_run_where_the_tensor_is(world):
    x, seen = start(), []
    x.register_hook(lambda grad: grad * 2)
    x.register_post_accumulate_grad_hook(seen.append)

    def hooked(x):
        x.register_hook(lambda grad: seen.append(rpc_threads.rank()))
        return x * 1

    with autograd.context() as context_id:
        autograd.backward(context_id, [remote(1, hooked, x).sum()])
        assert autograd.get_gradients(context_id)[x].tolist() == [[2.0] * SIZE] * 3
    assert seen == [1]


def test_gradients_share_no_memory(world):
    class Same(pydist.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            return a + b

        @staticmethod
        def backward(ctx, grad):
            return grad, grad

    a, b = start(), start()
    with autograd.context() as context_id:
        autograd.backward(context_id, [Same.apply(a, b).sum()])
        grads = autograd.get_gradients(context_id)
        grads[a].zero_()
        assert float(grads[b].sum()) == 3 * SIZE


# ---- what is recorded, and what it costs


def test_nodes_and_workers_of_a_context(world):
    x, y = start(), pydist.ones(3, SIZE, dtype=pydist.float64)
    with autograd.context() as context_id:
        context = autograd._current_context()
        assert context is autograd._retrieve_context(context_id) and context._context_id() == context_id
        assert _messages.current() == context_id
        remote(1, pydist.add, y, y)
        assert not context._send_functions() and not context._recv_functions() and context._known_worker_ids() == {1}
        result = remote(2, pydist.add, x, y)
        (send,), (recv,) = context._send_functions().values(), context._recv_functions().values()
        assert send.name() == "torch::distributed::autograd::SendRpcBackward"
        assert [(of.name(), of.variable is x) for of, _ in send.next_functions] == [
            ("torch::autograd::AccumulateGrad", True)
        ]
        assert result.grad_fn == recv and recv.name() == "torch::distributed::autograd::RecvRpcBackward"
        assert recv.next_functions == ()
        assert context._known_worker_ids() == {1, 2}
        with pydist.no_grad():
            assert not remote(1, pydist.add, x, y).requires_grad
        remote(0, pydist.add, x, y)
        assert len(context._send_functions()) == 3 and context._known_worker_ids() == {1, 2}  # call and answer here
    assert _messages.current() == 0
    with pytest.raises(RuntimeError, match="Current thread doesn't have a valid autograd context"):
        autograd._current_context()


def test_ids(world):
    assert autograd._get_max_id() == (1 << 48) - 1
    assert rpc_threads.call_async(2, autograd._get_max_id).wait()[0] == (3 << 48) - 1
    ids = set()
    for _ in range(20):
        with autograd.context() as context_id:
            ids.add(context_id)
    assert len(ids) == 20 and {i >> 48 for i in ids} == {0}
    autograd._init(0)
    with pytest.raises(RuntimeError, match="this is worker 0, not 1"):
        autograd._init(1)


def test_what_is_not_reached_costs_no_request(world):
    x = start()
    with autograd.context() as context_id:
        y = remote(1, layer, x, 1)
        for _ in range(5):
            remote(2, layer, x, 2)
        z = remote(1, layer, x.detach(), 1)
        world.requests.clear()
        autograd.backward(context_id, [y.sum()])
        assert world.requests == [(0, 1, "_start"), (1, 0, "_gradients")]
        world.requests.clear()
        autograd.backward(context_id, [z.sum()])
        assert world.requests == [(0, 1, "_start")]
        world.requests.clear()
        y = remote(1, inner, x.detach(), 1)
        world.requests.clear()
        autograd.backward(context_id, [y.sum()])
        assert sorted(world.requests) == [
            (0, 1, "_start"),
            (0, 2, "_start"),
            (1, 2, "_gradients"),
            (2, 1, "_gradients"),
        ]


@pytest.mark.parametrize("trails", [True, False])
def test_the_fast_mode_names_what_is_not_used(world, trails, monkeypatch):
    if not trails:
        monkeypatch.setattr(_contexts, "_TRAIL", -1)
    for program in GRAPHS.values():
        x = start()
        with autograd.context() as context_id:
            loss = program(x)
            if program is unused:
                with pytest.raises(RuntimeError, match=r"which worker [01] sent to worker [01] in autograd context"):
                    autograd.backward(context_id, [loss], mode="fast")
                assert autograd.get_gradients(context_id) == {}
                autograd.backward(context_id, [program(x)])
            else:
                autograd.backward(context_id, [loss], mode="fast")
    with autograd.context() as context_id, pytest.raises(ValueError, match="mode 'quick'"):
        autograd.backward(context_id, [remote(1, layer, start(), 1).sum()], mode="quick")


def test_long_trails_are_not_carried(world, monkeypatch):
    """Then the workers are asked."""
    monkeypatch.setattr(_contexts, "_TRAIL", 1)
    x = start()
    with autograd.context() as context_id:
        y = remote(1, layer, remote(1, layer, x, 1), 1)
        world.requests.clear()
        autograd.backward(context_id, [y.sum()])
        assert world.requests[:4] == [(0, 1, "_discover"), (1, 0, "_discover")] * 2
        got = all_gradients(context_id, x)
    monkeypatch.undo()
    assert_equal_within(got, by_local_autograd_in_a_thread(lambda x: layer(layer(x, 1), 1).sum()))


def test_many_nodes_and_many_messages(world):
    """More than a message tells of."""

    def long(x, n):
        for _ in range(n):
            x = x * 0.999
        return x

    def program(x):
        y = remote(1, long, x, 600)
        z = sum(remote(2, long, y, 1) for _ in range(70))
        for _ in range(150):
            z = remote(1, long, z, 1)
        return (remote(2, layer, z, 2) * y).sum()

    assert_equal_within(by_distributed_autograd(program), by_local_autograd_in_a_thread(program))


def test_debug_info(world):
    seen = []

    def look(grad):
        seen.append(autograd._get_debug_info())

    x = start()
    x.register_hook(look)
    with autograd.context() as context_id:
        autograd.backward(context_id, [remote(1, layer, x, 1).sum()])
        assert autograd._get_debug_info() == {"num_current_backward_passes": 0, "num_autograd_contexts": 1}
    assert seen == [{"num_current_backward_passes": 1, "num_autograd_contexts": 1}]


def test_a_message_that_could_not_be_sent(world):
    x = start()
    with autograd.context() as context_id:
        same, message, flags = _messages.outgoing([x, x.detach()], 1)
        assert same == context_id and [bool(flag) for flag in flags] == [True, False]
        _messages.undo(context_id, message)
        assert not autograd._current_context()._send_functions()
    assert _messages.outgoing([x], 1) is None


# ---- contexts end


def contexts(world):
    return [list(agent.autograd.contexts) if hasattr(agent, "autograd") else [] for agent in world.agents]


def test_contexts_end_everywhere(world):
    with autograd.context() as context_id:
        nested(start())
        assert contexts(world) == [[context_id]] * 3
    world.quiet()
    assert contexts(world) == [[]] * 3
    with pytest.raises(RuntimeError, match=f"Could not find autograd context with id: {context_id}"):
        autograd._retrieve_context(context_id)


def test_a_late_message_does_not_bring_a_context_back(world):
    x, hold = start(), threading.Event()

    def slow(x):
        hold.wait(10)
        return remote(2, layer, x, 2)

    with autograd.context() as context_id:
        late = rpc_threads.call_async(1, slow, x)
        while not contexts(world)[1]:
            time.sleep(0.001)
        before = _messages.outgoing([x], 2)
    time.sleep(0.05)
    hold.set()
    result = rpc_threads._unpack(*late.wait())
    assert not result.requires_grad
    rpc_threads._here.agent = world.agents[1]  # which has heard of its end
    (t,) = _messages.incoming(before[0], before[1], [x.detach().clone()], before[2], 0)
    assert not t.requires_grad
    with _messages.entered(context_id):
        assert _messages.current() == 0
    rpc_threads._here.agent = world.agents[0]
    world.quiet()
    assert contexts(world) == [[]] * 3


def test_nothing_is_held_after_the_block(world):
    x, refs = start(), []
    live = _C.live()

    def keep(x):
        y = layer(x, 1)
        refs.append(weakref.ref(y))
        return y

    with autograd.context() as context_id:
        y = remote(1, keep, x * 2)
        assert refs[0]() is None  # a sent result is not held, only its graph is
        loss = (y * y).sum()
        refs.append(weakref.ref(y))
        autograd.backward(context_id, [loss])
        refs.append(weakref.ref(autograd.get_gradients(context_id)[x]))
        assert refs[-1]() is not None
        del y, loss
    world.quiet()
    assert [ref() for ref in refs] == [None] * 3
    _weights.clear()
    assert {name: count for name, count in _C.live().items() if count > live.get(name, 0)} == {}


def test_a_nested_context_is_refused(world):
    with autograd.context():
        with pytest.raises(RuntimeError, match="Already have an autograd context id for this thread"):
            with autograd.context():
                pass
        assert _messages.current()


def test_released_by_hand(world):
    context = autograd._new_context()
    autograd._release_context(context._context_id())
    assert _messages.current() == 0
    with pytest.raises(RuntimeError, match="Could not find autograd context"):
        autograd._release_context(context._context_id())


def test_a_context_that_ends_during_the_pass(world):
    """The pass raises, and nobody hangs or keeps anything."""
    x = start()
    context = autograd._new_context()
    y = remote(1, layer, x, 1)
    y.register_hook(lambda grad: autograd._release_context(context._context_id()))
    with pytest.raises(RuntimeError, match="Could not find autograd context with id"):
        autograd.backward(context._context_id(), [y.sum()])
    world.quiet()
    assert contexts(world) == [[]] * 3


def test_leaving_drops_contexts():
    with rpc_threads.World(2) as world:
        autograd._new_context()
        context = autograd._current_context()
    assert not world.agents[0].autograd.contexts and context.ended and _messages.current() == 0


# ---- what is wrong


def test_bad_roots(world):
    x = start()
    with autograd.context() as context_id:
        for bad in (None, 3, x.sum(), [3], "x"):
            with pytest.raises(TypeError, match="incompatible function arguments"):
                autograd.backward(context_id, bad)
        with pytest.raises(TypeError, match="incompatible function arguments"):
            autograd.backward(None, [x.sum()])
        for roots, text in (
            ([], "No tensors provided for gradient computation"),
            ([x.detach().sum()], "requires_grad not set on"),
            ([x * 2], "is not a scalar, all roots need to be scalar"),
            ([pydist.ones(1, requires_grad=True)], "does not have a valid gradient function"),
        ):
            with pytest.raises(RuntimeError, match=text):
                autograd.backward(context_id, roots)
        autograd.backward(context_id, [x.sum()])
        for call in (lambda i: autograd.backward(i, [x.sum()]), autograd.get_gradients, autograd._is_valid_context):
            with pytest.raises(RuntimeError, match="Could not find autograd context with id: 100"):
                call(100)


def test_without_an_agent():
    with pytest.raises(RuntimeError, match="init_rpc"):
        with autograd.context():
            pass


def test_a_plain_backward_does_not_leave_the_worker(world):
    x = start()
    with autograd.context() as context_id:
        y = remote(1, layer, x, 1)
        with pytest.raises(RuntimeError, match=r"the graph goes on at worker 1.*distributed\.autograd\.backward"):
            y.sum().backward(retain_graph=True)
        autograd.backward(context_id, [y.sum()])


def test_a_tensor_of_another_context(world):
    x = start()
    with autograd.context():
        y = remote(1, layer, x, 1)
    with autograd.context() as context_id:
        with pytest.raises(RuntimeError, match="is used in context .* .expected one that was received in the same"):
            autograd.backward(context_id, [(y * remote(1, layer, x, 1)).sum()])
        autograd.backward(context_id, [remote(1, layer, x, 1).sum()])


def test_two_passes_at_once(world):
    x, inside, leave = start(), threading.Event(), threading.Event()

    def wait(grad):
        inside.set()
        leave.wait(10)

    with autograd.context() as context_id:
        y = remote(1, layer, x, 1)
        y.register_hook(wait)

        def first():
            rpc_threads._here.agent = world.agents[0]
            autograd.backward(context_id, [y.sum()], retain_graph=True)

        thread = threading.Thread(target=first)
        thread.start()
        assert inside.wait(10)
        with pytest.raises(RuntimeError, match="while one of worker 0 runs in it"):
            autograd.backward(context_id, [y.sum()])
        leave.set()
        thread.join()
        autograd.backward(context_id, [y.sum()])
        got = all_gradients(context_id, x)
    assert_equal_within(got, by_local_autograd_in_a_thread(lambda x: layer(x, 1).sum()), factor=2)


def test_a_freed_graph(world):
    with autograd.context() as context_id:
        loss = chain(start())
        autograd.backward(context_id, [loss])
        before = remote(1, of_weight, context_id, 1)
        with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
            autograd.backward(context_id, [loss])
        assert remote(1, of_weight, context_id, 1) == before


class Broken(pydist.autograd.Function):
    error = None

    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        if Broken.error is not None:
            raise Broken.error
        return grad


def breaks(x):
    return Broken.apply(layer(x, 2))


def through(x):
    return remote(2, breaks, layer(x, 1))


@pytest.mark.parametrize("error", [Exception, RuntimeError, ZeroDivisionError])
@pytest.mark.parametrize("at", [0, 2])
def test_an_error_on_a_worker(world, error, at):
    """Its class comes to the root, the context is as before, and the next pass works."""
    x = start()

    def program(x):
        return (remote(1, through, x) if at else Broken.apply(remote(1, through, x))).sum()

    Broken.error = None
    with autograd.context() as context_id:
        loss = program(x) + remote(1, layer, x, 1).sum()
        autograd.backward(context_id, [loss], retain_graph=True)
        before = all_gradients(context_id, x)
        for _ in range(3):
            Broken.error = error("no luck")
            with pytest.raises(RuntimeError if error is Exception else error, match="no luck") as caught:
                autograd.backward(context_id, [loss], retain_graph=True)
            text = str(caught.value) + " ".join(getattr(caught.value, "__notes__", []))
            assert f"Error on Node {at}" in text
            assert all_gradients(context_id, x) == before
            assert autograd._get_debug_info()["num_current_backward_passes"] == 0
            Broken.error = None
            del caught
        autograd.backward(context_id, [loss])
        assert_equal_within(all_gradients(context_id, x), before, factor=2)


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("when", ["before", "during"])
def test_a_worker_dies(world, rank, when):
    x = start()
    with autograd.context() as context_id:
        y = remote(1, inner, x, 1)

        def kill(grad):
            world.kill(rank)

        if when == "before":
            world.kill(rank)
        else:
            y.register_hook(kill)
        begin = time.monotonic()
        with pytest.raises(PeerFailed, match=f"worker{rank}") as caught:
            autograd.backward(context_id, [y.sum()])
        assert caught.value.rank == rank and time.monotonic() - begin < 1
        assert autograd.get_gradients(context_id) == {}
        autograd.backward(context_id, [(x * x).sum()])  # the context goes on without it
    world.quiet()
    assert all(not of for agent, of in zip(world.agents, contexts(world)) if agent.alive)


@pytest.mark.parametrize("seed", range(200 if LONG else 20))
def test_a_worker_dies_at_any_time(seed, monkeypatch):
    """The pass ends, or names the dead one; the context has all of the gradients or none; nothing stays."""
    rng = random.Random(seed)
    monkeypatch.setattr(_contexts, "_TRAIL", rng.choice([-1, 3, 256]))
    name, rank, after = rng.choice(["nested", "tree", "diamond", "reused"]), rng.choice([1, 2]), rng.random() * 0.03
    with rpc_threads.World(3, delay=0.005) as world:
        world._random.seed(seed)
        x = start()
        with autograd.context() as context_id:
            loss = GRAPHS[name](x)
            timer = threading.Timer(after, world.kill, (rank,))
            timer.start()
            try:
                autograd.backward(context_id, [loss])
            except PeerFailed as error:
                assert error.rank == rank and autograd.get_gradients(context_id) == {}
            else:
                assert x in autograd.get_gradients(context_id)
            timer.join()
        world.quiet()
        assert all(not of for agent, of in zip(world.agents, contexts(world)) if agent.alive)


def test_the_root_dies(world):
    """Those that take part give up, and its contexts end with it."""
    inside, leave = threading.Event(), threading.Event()
    x = start()

    def held(x):
        y = layer(x, 1)
        y.register_hook(lambda grad: (inside.set(), leave.wait(10))[0])
        return y

    def root():
        with autograd.context() as context_id:
            autograd.backward(context_id, [remote(1, held, remote(2, layer, x, 2)).sum()])

    thread = world.start(world.agents[0], lambda: pytest.raises(RuntimeError, root))
    assert inside.wait(10)
    world.kill(0)
    for agent in world.agents[1:]:
        while agent.autograd.contexts:
            time.sleep(0.001)
    leave.set()
    thread.join(1)
    world.quiet()
    assert contexts(world)[1:] == [[], []]


def test_an_answer_does_not_wait_for_a_long_turn(world):
    """A worker has died, and another one computes: the root has its error."""
    leave, x = threading.Event(), start()

    def wait(grad):
        if rpc_threads.rank() == 1:
            world.kill(2)
        leave.wait(10)

    def long(x):
        y = x * 1
        y.register_hook(wait)
        return y

    with autograd.context() as context_id:
        loss = remote(1, long, x).sum() + remote(2, long, x).sum()
        begin = time.monotonic()
        with pytest.raises(PeerFailed):
            autograd.backward(context_id, [loss])
        assert time.monotonic() - begin < 1
        leave.set()


def test_ctrl_c_at_the_root(world):
    x = start()
    Broken.error = KeyboardInterrupt()
    with autograd.context() as context_id:
        y = remote(1, layer, x, 1)
        with pytest.raises(KeyboardInterrupt):
            autograd.backward(context_id, [(Broken.apply(x).sum() + y.sum())])
        Broken.error = None
        autograd.backward(context_id, [remote(1, layer, x, 1).sum()])
    world.quiet()
    assert contexts(world) == [[]] * 3


def test_a_gradient_that_does_not_fit(world):
    """As a peer might send: the pass fails with the shapes."""
    x = start()
    with autograd.context() as context_id:
        y = remote(1, lambda x: x * 1, x)
        (message,) = autograd._current_context()._send_functions()
        y.register_hook(lambda grad: _feed(world, context_id, message))
        with pytest.raises(
            RuntimeError, match=r"the gradient is float32 of shape .2., the tensor float64 of shape .3, 5."
        ):
            autograd.backward(context_id, [y.sum()])


def _feed(world, context_id, message):
    from pydist.distributed.autograd import _passes

    current = autograd._current_context().current
    _passes._gradients(current.id, context_id, 0, False, message, [pydist.ones(2)])


# ---- DistributedDataParallel inside


def test_distributed_data_parallel_inside(world):
    """Its averages go to the context; .grad is what it was."""
    generator = pydist.Generator().manual_seed(3)
    x = pydist.randn(4, SIZE, generator=generator, dtype=pydist.float64)
    weight(2)

    def model():
        pydist.manual_seed(11)
        return pydist.nn.Linear(SIZE, 2).double()

    def work(rank):
        rpc_threads._here.agent = world.agents[rank]
        layer_ = model()
        wrapped = pydist.nn.parallel.DistributedDataParallel(layer_)
        layer_.bias.grad = pydist.ones(2, dtype=pydist.float64)
        results = []
        for _ in range(2):
            with autograd.context() as context_id:
                y = remote(2, layer, x[2 * rank : 2 * rank + 2], 2)
                autograd.backward(context_id, [(wrapped(y) ** 2).mean()])
                grads = autograd.get_gradients(context_id)
                assert len(grads) == 2 and layer_.weight.grad is None and layer_.bias.grad.tolist() == [1, 1]
                results.append([grads[p].tolist() for p in layer_.parameters()])
        return results

    got = pydist.distributed.threads.run(work, 2)
    alone = model()
    (alone(layer(x, 2).detach()) ** 2).mean().backward()
    for results in got:
        assert results[0] == results[1]
        assert_equal_within(results[0], [p.grad.tolist() for p in alone.parameters()])


# ---- workers as processes


class Half(pydist.nn.Module):
    def __init__(self, i, o):
        super().__init__()
        pydist.manual_seed(i)
        self.layer = pydist.nn.Linear(i, o).double()

    def forward(self, x):
        return self.layer(x).relu()

    def update(self, context_id):
        grads = autograd.get_gradients(context_id)
        with pydist.no_grad():
            for p in self.parameters():
                p -= 0.05 * grads[p]


def train(first, second, forward, steps):
    """The losses of a split model, by distributed autograd if `first` is an RRef."""
    generator = pydist.Generator().manual_seed(0)
    x = pydist.randn(64, 10, generator=generator, dtype=pydist.float64)
    y, losses = x.sum(1, keepdim=True), []
    for _ in range(steps):
        with contextlib.nullcontext() if isinstance(first, Half) else autograd.context() as context_id:
            loss = (second(forward(x)) - y).pow(2).mean()
            losses.append(loss.item())
            if isinstance(first, Half):
                for p in [*first.parameters(), *second.parameters()]:
                    p.grad = None
                loss.backward()
                with pydist.no_grad():
                    for p in [*first.parameters(), *second.parameters()]:
                        p -= 0.05 * p.grad
            else:
                autograd.backward(context_id, [loss])
                first.rpc_sync().update(context_id)
                second.update(context_id)
    return losses


def all_programs(rank):
    from pydist.distributed import rpc

    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=3)
    found = {}
    if rank == 0:
        for name, program in GRAPHS.items():
            found[name] = [by_distributed_autograd(program) for _ in range(20)]

        def at_once(name):
            found[f"{name} at once"] = [by_distributed_autograd(GRAPHS[name]) for _ in range(5)]

        threads = [threading.Thread(target=at_once, args=(name,)) for name in list(GRAPHS)[:8]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        first = rpc.remote("worker1", Half, args=(10, 32))
        found["losses"] = train(first, Half(32, 1), first.rpc_sync().forward, 200)
        del first
        Broken.error = None
        x = start()
        for at in (0, 1):
            with autograd.context() as context_id:
                y = remote(1, through, x).sum() + x.sum()
                remote(2, _break, at)
                try:
                    autograd.backward(context_id, [y])
                except ZeroDivisionError as error:
                    found[f"error {at}"] = str(error), autograd.get_gradients(context_id)
        deadline = time.monotonic() + 10
        while any(remote(to, count_contexts) for to in range(3)) and time.monotonic() < deadline:
            time.sleep(0.01)
        found["contexts"] = [remote(to, count_contexts) for to in range(3)]
    rpc.shutdown()
    return found


def _break(at):
    Broken.error = ZeroDivisionError("no luck") if at else None


def count_contexts():
    return autograd._get_debug_info()["num_autograd_contexts"]


@pytest.fixture(scope="module")
def processes():
    return run_ranks(3, all_programs, processes=True, timeout=300)[0]


@pytest.mark.parametrize("name", GRAPHS)
def test_processes_compute_the_same_gradients(processes, name):
    got = processes[name]
    assert_equal_within(got[0], by_local_autograd(GRAPHS[name]))
    assert all(again == got[0] for again in got)
    for again in processes.get(f"{name} at once", ()):
        assert_equal_within(again, by_local_autograd(GRAPHS[name]))


def test_a_model_over_two_processes_trains_as_one(processes):
    first, second = Half(10, 32), Half(32, 1)
    wanted = train(first, second, first, 200)
    assert wanted[-1] < 0.6 * wanted[0]
    assert max(abs(a - b) / b for a, b in zip(processes["losses"], wanted)) <= 1e-12


def test_errors_and_ends_in_processes(processes):
    assert "error 0" not in processes
    text, grads = processes["error 1"]
    assert "no luck" in text and grads == {}
    assert processes["contexts"] == [0, 0, 0]


def dies(x):
    y = layer(x, 2)
    y.register_hook(lambda grad: os.kill(os.getpid(), signal.SIGKILL))
    return y


def with_a_death(rank):
    from pydist.distributed import rpc

    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=3)
    try:
        return _meet_the_death(rank, rpc)
    finally:
        rpc.shutdown(timeout=30)  # the dead one counts as arrived


def _meet_the_death(rank, rpc):
    if rank == 0:
        x = start()
        with autograd.context() as context_id:
            loss = (remote(1, layer, x, 1) * remote(2, dies, x)).sum()
            begin = time.monotonic()
            try:
                autograd.backward(context_id, [loss])
            except PeerFailed as error:
                took = time.monotonic() - begin
                autograd.backward(context_id, [remote(1, layer, x, 1).sum()])
                return error.rank, took, x in autograd.get_gradients(context_id)
    return None


def test_kill_of_a_process_in_its_turn():
    rank, took, goes_on = run_ranks(3, with_a_death, processes=True, return_exceptions=True)[0]
    assert rank == 2 and took < 1 and goes_on


# ---- the short form


def test_autograd_backward(world):
    x = start()
    loss = (x * x).sum()
    autograd.autograd_backward(loss, retain_graph=True)
    autograd.autograd_backward(loss)
    assert pydist.equal(x.grad, 4 * x)
    x.grad = None
    with autograd.context() as context_id:
        autograd.autograd_backward(remote(1, pydist.mul, x, x).sum())
        assert x.grad is None and pydist.equal(autograd.get_gradients(context_id)[x], 2 * x)
