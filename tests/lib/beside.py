"""16-bit copies that norms write beside their results (autograd/beside.h), next to casts, on any device."""

import pydist
from pydist.nn import functional as F
from pydist.profiler import profile

NORMS = {
    "layer_norm": lambda x, y, w, b: F.layer_norm(x, w.shape, w, b),
    "rms_norm": lambda x, y, w, b: F.rms_norm(x, w.shape, w),
    "add_layer_norm": lambda x, y, w, b: F.add_layer_norm(x, y, w.shape, w, b)[1],
    "add_rms_norm": lambda x, y, w, b: F.add_rms_norm(x, y, w.shape, w)[1],
}
# Each writes h, whose copy is then another one's.
WRITES = {
    "in place": lambda h, x: h.mul_(2),
    "a row": lambda h, x: h[1].zero_(),
    "a view": lambda h, x: h.view(-1)[3:5].fill_(7),
    "a copy": lambda h, x: h.copy_(x),
    "out=": lambda h, x: pydist.add(x, 1, out=h),
    ".data": lambda h, x: h.data.add_(1),
    "new .data": lambda h, x: setattr(h, "data", x.clone()),
    "a mask": lambda h, x: h.masked_fill_(h > 0, 1),
    "an index": lambda h, x: h.index_add_(0, pydist.tensor([1, 1], device=h.device), x[:2]),
    "numbers drawn": lambda h, x: h.normal_(),
    "in place, twice": lambda h, x: h.add_(1).sub_(3),
}


def inputs(device, n=24, rows=5):
    x, w, b, product = (pydist.randn(*shape).to(device) for shape in ((rows, n), (n,), (n,), (7, n)))
    return x, x.to(pydist.bfloat16) * 0.5, w, b, product


def check_copies_are_casts(device, dtype):
    """A product reads the norm's copy: the same bits as a cast of the norm's result."""
    for n in (24, 33, 1032):
        x, y, w, b, product = inputs(device, n)
        for name, norm in NORMS.items():
            with pydist.autocast(device, dtype=dtype):
                h = norm(x, y, w, b)
                assert h.dtype == pydist.float32
                low = product.to(dtype)
                with profile() as prof:
                    found, again = F.linear(h, low), F.linear(h, low)
                assert {event.key for event in prof.key_averages()} == {"linear"}  # and no cast
                want = F.linear(h.clone(), low)
            assert found.dtype == dtype and found.tolist() == want.tolist() == again.tolist(), (name, n)
            with pydist.autocast(device, dtype=pydist.float16 if dtype == pydist.bfloat16 else pydist.bfloat16):
                assert F.linear(h, product).tolist() == F.linear(h.clone(), product).tolist()
            assert F.linear(h, product).dtype == pydist.float32


def check_stale_copies_are_not_read(device):
    x, y, w, b, product = inputs(device)
    for name, norm in NORMS.items():
        for how, write in WRITES.items():
            with pydist.autocast(device, dtype=pydist.bfloat16), pydist.no_grad():
                h = norm(x, y, w, b)
                before = F.linear(h, product).tolist()
                write(h, x)
                found, want = F.linear(h, product).tolist(), F.linear(h.clone(), product).tolist()
            assert found == want != before, (name, how)


def check_gradients(device):
    """Of a norm whose result a product reads, and something else, and written in place with a gradient."""
    x, y, w, b, product = inputs(device)

    def gradients(apart, use):
        leaves = [t.detach().clone().requires_grad_() for t in (x, w, b)]
        with pydist.autocast(device, dtype=pydist.bfloat16):
            h = F.layer_norm(leaves[0], (24,), *leaves[1:])
            use(h, lambda h: F.linear(h.clone() if apart else h, product)).float().square().sum().backward()
        return [leaf.grad.tolist() for leaf in leaves]

    uses = {
        "twice": lambda h, linear: linear(h) + linear(h),
        "and as it is": lambda h, linear: linear(h) + h.sum(1, keepdim=True),
        "written": lambda h, linear: linear(h.mul_(3)),
        "read and then written": lambda h, linear: linear(h) + linear(h.mul_(3)),
    }
    for name, use in uses.items():
        assert gradients(False, use) == gradients(True, use), name
