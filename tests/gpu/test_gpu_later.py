"""Sums whose launch waits for a norm of them (csrc/cuda/later.h), next to sums that were launched at once."""

from threading import Thread

import pytest

import pydist
from pydist import cuda
from pydist.nn import functional as F

if not cuda.is_available() or pydist._C.pretended_cuda():
    pytest.skip("no CUDA device", allow_module_level=True)

NORMS = {
    "layer": lambda s: F.layer_norm(s, s.shape[-1:]),
    "rms": lambda s: F.rms_norm(s, s.shape[-1:]),
}


def new(*shape, dtype=pydist.float32):
    return pydist.randn(*shape).to("cuda", dtype)


def apart(x, y):
    """The sum of copies of x and y, launched."""
    s = x.clone() + y.clone()
    cuda.synchronize()
    return s


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("low", [pydist.bfloat16, pydist.float16, None])
@pytest.mark.parametrize("shape", [(2, 50, 24), (7, 33), (3, 1032), (600, 8), (0, 24)])
def test_a_norm_of_a_sum(shape, low, norm):
    norm = NORMS[norm]
    dtypes = [(pydist.float32, pydist.float32)]
    if low:
        dtypes = [(pydist.float32, low), (low, pydist.float32), (low, low)]
    for one, other in dtypes:
        x, y = new(*shape, dtype=one), new(*shape, dtype=other)
        with pydist.autocast("cuda", dtype=low, enabled=low is not None):
            s = apart(x, y)
            want = [t.tolist() for t in (s, norm(s), norm(s).to(pydist.float16))]
            s = x + y
            h = norm(s)
        assert s.dtype == pydist.promote_types(one, other)
        assert [t.tolist() for t in (s, h, h.to(pydist.float16))] == want
        a, b = (t.clone().requires_grad_() for t in (x, y))
        found = pydist.grad(norm(a + b).sin().sum() + (a * b).sum(), (a, b))
        s = a + b
        s.register_hook(lambda g: None)
        s.tolist()
        for g, expected in zip(found, pydist.grad(norm(s).sin().sum() + (a * b).sum(), (a, b)), strict=True):
            assert g.tolist() == expected.tolist()


def test_inputs_that_are_freed():
    """What comes next may get their memory: the norm's result, uploads, anything."""
    for rows in (4, 100, 1000):
        x, y, z, others = new(rows, 24), new(rows, 24), pydist.randn(rows, 24), []
        s = apart(x, y)
        want, sums = F.layer_norm(s, (24,)).tolist(), s.tolist()
        for kept in (True, False):
            for low in (False, True):
                a, b = x.clone(), y.clone()
                s = a + b
                if not kept:
                    del a, b
                with pydist.autocast("cuda", dtype=pydist.bfloat16, enabled=low):
                    h = F.layer_norm(s, (24,))
                assert (h.tolist(), s.tolist()) == (want, sums)
        for after in (z.cuda, lambda: pydist.zeros(rows, 24, device="cuda"), lambda: (z.cuda(), z.cuda() * 2),
                      cuda.empty_cache):  # fmt: skip
            a, b = x.clone(), y.clone()
            s = a + b
            del a, b
            others.append(after())  # has the memory meanwhile
            assert F.layer_norm(s, (24,)).tolist() == want and s.tolist() == sums


def test_inputs_that_are_written():
    x, y, pinned = new(50, 24), new(50, 24), pydist.randn(50, 24).pin_memory()
    want = apart(x, y).tolist()
    writes = {
        "in place": lambda a: a.mul_(3),
        "zeros": lambda a: a.zero_(),
        "from the host": lambda a: a.copy_(pinned),
        "from the host, without waiting": lambda a: a.copy_(pinned, non_blocking=True),
        "a row": lambda a: a[3].fill_(1),
        "a product": lambda a: pydist.mm(a, new(24, 24), out=a.view(50, 24)),
        "a sum": lambda a: a.add_(y),
    }
    for name, write in writes.items():
        a = x.clone()
        s = a + y
        write(a)
        assert s.tolist() == want, name
        s = x + y
        write(s)
        t = apart(x, y)
        write(t)
        assert F.layer_norm(s, (24,)).tolist() == F.layer_norm(t, (24,)).tolist() or name == "a product"


def test_sums_that_others_read():
    x, y = new(50, 24), new(50, 24)
    want = apart(x, y)
    reads = {
        "the host": lambda s: s.tolist(),
        "a copy": lambda s: s.to("cpu").tolist(),
        "an op": lambda s: (s * 1).tolist(),
        "a sum": lambda s: (s + 0 * x).tolist(),
        "a view": lambda s: s.t().contiguous().t().tolist(),
        "a product": lambda s: pydist.mm(s, pydist.eye(24, device="cuda")).tolist(),
        "a norm of its rows": lambda s: F.layer_norm(s.view(25, 48), (48,)).tolist(),
        "a norm of its first rows": lambda s: F.layer_norm(s[:10], (24,)).tolist(),
        "a norm of another one": lambda s: (F.layer_norm(x, (24,)), s.tolist())[1],
        "a norm with its weight": lambda s: F.layer_norm(x, (24,), s[3], s[4]).tolist(),
        "a norm with its sum": lambda s: F.add_layer_norm(x, s, (24,))[0].tolist(),
    }
    for name, read in reads.items():
        assert read(x + y) == read(want), name


def test_other_streams_threads_and_devices():
    x, y, side = new(50, 24), new(50, 24), cuda.Stream()
    want, normed = apart(x, y).tolist(), F.layer_norm(apart(x, y), (24,)).tolist()
    s = x + y
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        assert F.layer_norm(s, (24,)).tolist() == normed
    with cuda.stream(side):
        t = x + y
    event = side.record_event()
    event.synchronize()
    assert t.tolist() == want
    s, found = x + y, []
    thread = Thread(target=lambda: found.extend([F.layer_norm(s, (24,)).tolist(), (x + y).tolist()]))
    thread.start()
    thread.join()
    assert found == [normed, want] and s.tolist() == want
    if cuda.device_count() > 1:
        s = x + y
        with cuda.device(1):
            other = pydist.ones(50, 24, device="cuda") + pydist.ones(50, 24, device="cuda")
            assert F.layer_norm(s, (24,)).tolist() == normed
            assert other.tolist() == [[2.0] * 24] * 50


def test_graphs():
    x, y, graph = new(50, 24), new(50, 24), cuda.CUDAGraph()
    before = x + y  # waits, and is no part of the graph
    with cuda.graph(graph):
        s = x + y
        h = F.layer_norm(s, (24,))
        last = x + h  # waits when the capture ends
    want = before.tolist()
    for _ in range(2):
        x.mul_(2)
        graph.replay()
        sums = apart(x, y)
        assert s.tolist() == sums.tolist() and h.tolist() == F.layer_norm(sums, (24,)).tolist()
        assert last.tolist() == apart(x, h).tolist()
    assert before.tolist() == want
    graph.reset()


def test_addresses():
    """A kernel of somebody else that knows an address finds the sum there, and may write what the sum reads."""
    x, y = new(50, 24), new(50, 24)
    assert (x + y).data_ptr() and x.data_ptr()
    want = F.layer_norm(apart(x, y), (24,)).tolist()
    assert F.layer_norm(x + y, (24,)).tolist() == want
