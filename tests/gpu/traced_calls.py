"""Calls whose bytes test_gpu_count.py compares with those that kernels touch: prints {call: kinds} as JSON, on the emulator that
`tests/emulator/build.py --traced` makes."""

import json

import pydist
from benchmarks import count, cuda
from benchmarks.workloads import gpt
from pydist import nn
from pydist.nn import functional as F

HALF = pydist.bfloat16


def new(*shape, dtype=pydist.float32):
    return pydist.randn(*shape).to("cuda", dtype).requires_grad_()


def both(function, *inputs):
    """The call, and its gradient."""

    def run():
        y = function(*inputs)
        y.backward(pydist.ones_like(y))

    return run


def residual(width, x):
    """Norms that write 16-bit copies of results and gradients, and sums of columns."""
    norm, first, second = nn.LayerNorm(width).cuda(), nn.Linear(width, 8).cuda(), nn.Linear(8, width).cuda()

    def run():
        with pydist.autocast("cuda", dtype=HALF):
            y = x + second(F.relu(F.gelu(first(norm(x)))))
            norm(norm(y) + y.detach()).sum().backward()

    return run


def heads(width, dtype, rows):
    """Attention whose gradient sums columns for the bias of the layer before."""
    layer, x = nn.Linear(8, 6 * width).cuda().to(dtype), new(3, rows, 8, dtype=dtype)

    def run():
        q, k, v = (part.view(3, rows, 2, width).transpose(1, 2) for part in layer(x).chunk(3, 2))
        F.scaled_dot_product_attention(q, k, v).sum().backward()

    return run


def optimizer(cls, **options):
    parameters = [new(300) for _ in range(3)]
    for p in parameters:
        p.grad = new(300).detach()
    made = cls(parameters, **options)
    made.step()
    return made.step


def calls():
    x, y, row = (new(*shape).detach() for shape in ((30, 40), (30, 40), (40,)))
    rows, labels = pydist.arange(20, device="cuda"), (pydist.arange(30) % 7).cuda()
    image, weight = new(2, 4, 10, 10), new(7).detach().abs()
    norm, still, optim = nn.BatchNorm2d(4).cuda(), nn.BatchNorm2d(4).cuda().eval(), pydist.optim
    yield (
        "elementwise",
        lambda: [x.exp(), x > y, pydist.where(x > 0, x, y), pydist.clamp(x, row, y), x / row, x.half(), x + y.half()],
    )
    yield "copies", lambda: [x.clone(), x.t().contiguous(), x.to(pydist.int64), pydist.full((30,), 2.0, device="cuda")]
    yield "products of elements", both(lambda p, q: p * q, new(30, 40), new(30, 40))
    yield "activations", both(lambda p: F.silu(F.gelu(F.relu(p))), new(30, 40, dtype=HALF))
    yield "complex", lambda: pydist.complex(x, y).abs()
    yield "softmax", both(lambda p: F.softmax(p, -1) + F.log_softmax(p, 0), new(30, 40))
    yield "rms_norm", both(lambda p, w: F.rms_norm(p, (40,), w), new(70, 40), new(40))
    for width, length in ((40, 300), (33, 70), (1064, 20)):
        yield f"a residual block of {width}", residual(width, new(length, width))
    args = new(70, 40, dtype=HALF), new(40, dtype=HALF), new(40, dtype=HALF)
    yield "layer_norm", both(lambda p, w, b: F.layer_norm(p, (40,), w, b), *args)
    yield "layer_norm without weights", both(lambda p: F.layer_norm(p, (40,)), new(70, 40))
    yield "folds", lambda: [x.sum(0), x.sum(1), x.mean(), x.amax(0), (x > 0).any(), x.argmax(1), x.cumsum(1), x.sort(1)]
    yield "cross_entropy", both(lambda p: F.cross_entropy(p, labels), new(30, 7))
    yield "cross_entropy of rows", both(lambda p: F.cross_entropy(p, labels, reduction="none"), new(30, 7, dtype=HALF))
    options = {"label_smoothing": 0.1, "weight": weight}
    yield "cross_entropy, smoothed", both(lambda p: F.cross_entropy(p, labels, **options), new(30, 7))
    yield "nll_loss", both(lambda p: F.nll_loss(p, labels), new(30, 7))
    yield "random numbers", lambda: [F.dropout(x), x.clone().uniform_(), x.clone().normal_(), x.clone().bernoulli_(0.5)]
    yield "indices", lambda: [x[rows], x.index_put((rows,), y[:20]), x.index_add(0, rows, y[:20])]
    yield "embedding", both(lambda w: F.embedding(pydist.arange(70, device="cuda"), w), new(90, 8))
    yield "batch_norm", both(norm, image)
    yield "batch_norm, evaluating", both(still, image)
    yield "pooling", both(lambda p: F.max_pool2d(p, 2) + F.avg_pool2d(p, 2), image)
    attention = F.scaled_dot_product_attention
    yield "attention", both(attention, *(new(2, 3, 20, 16) for _ in range(3)))
    args = [new(2, 3, 150, 16, dtype=HALF) for _ in range(3)]
    yield "causal attention", both(lambda q, k, v: attention(q, k, v, is_causal=True), *args)
    for width, dtype, rows in ((16, HALF, 150), (136, HALF, 40), (16, pydist.float32, 150), (16, HALF, 1)):
        yield f"attention after a layer, {width}, {dtype}, {rows}", heads(width, dtype, rows)
    for name in ("AdamW", "Adamax", "Adagrad", "Adadelta", "ASGD", "NAdam", "RMSprop", "Rprop"):
        yield name, optimizer(getattr(optim, name))
    yield "SGD", optimizer(optim.SGD, momentum=0.9)
    yield "Adam", optimizer(optim.Adam, amsgrad=True)
    yield "Adam, capturable", optimizer(optim.Adam, capturable=True)


def main():
    gpt.SIZES["tiny"] = (1, 2, 32, 40, 2, 80)
    cuda.ON_CUDA["tiny"] = ("gpt", {"size": "tiny"})
    found = {"GPT": count.counted("tiny")["kinds"]}
    for name, call in calls():
        call()
        with count.Counter() as counter:
            call()
        found[name] = counter.kinds
    print(json.dumps(found))


if __name__ == "__main__":
    main()
