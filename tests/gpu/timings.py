"""Bandwidth of the kernels that memory bounds, also as a share of the copy's, and of products and attention, by events: the best
of several runs, on random numbers (a GPU is faster on constants). With torch beside it where it is installed.
`python tests/gpu/timings.py [millions of elements [beginning of a name [sides of matrices ...]]]`."""

import sys

import pydist

try:
    import torch
except ImportError:
    torch = None


def seconds(lib, call, repeat=10):
    call()
    best = float("inf")
    for _ in range(repeat):
        start, end = lib.cuda.Event(enable_timing=True), lib.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        end.synchronize()
        best = min(best, start.elapsed_time(end) / 1e3)
    return best


def both_ways(forward, grad, *leaves):
    """Forward and backward, gradients forgotten."""

    def run():
        forward().backward(grad)
        for leaf in leaves:
            leaf.grad = None

    return run


def cases(lib, n, sides=(1024, 4096)):
    """(name, bytes moved at least, floating operations, call)"""
    F = lib.nn.functional
    rows = max(n // 1024, 1)
    x, g = (lib.randn(rows, 1024, device="cuda") for _ in range(2))
    half, weight = x.to(lib.bfloat16), lib.ones(1024, device="cuda")
    size = rows * 1024
    yield "copy float32", 8 * size, 0, x.clone
    yield "add float32", 12 * size, 0, lambda: x + g
    yield "gelu bfloat16", 4 * size, 0, lambda: F.gelu(half)
    yield "to bfloat16", 6 * size, 0, lambda: x.to(lib.bfloat16)
    yield "transposed copy", 8 * size, 0, lambda: x.t().contiguous()
    yield "sum of rows", 4 * size, 0, lambda: x.sum(1)
    yield "sum of columns", 4 * size, 0, lambda: x.sum(0)
    drawn, each = lib.randn(size, device="cuda"), min(size, 1 << 16)
    yield (
        "topk 50 of rows of 65536",
        4 * size // each * each,
        0,
        lambda: drawn[: size // each * each].view(-1, each).topk(50),
    )
    yield "topk 100 of all", 4 * size, 0, lambda: drawn.topk(100)
    yield "sort of rows of 1024", 12 * size, 0, lambda: drawn.view(-1, 1024).sort()
    yield "randperm", 8 * size, 0, lambda: lib.randperm(size, device="cuda")
    yield "softmax", 8 * size, 0, lambda: x.softmax(1)
    yield "layer_norm", 8 * size, 0, lambda: F.layer_norm(x, (1024,), weight, weight)
    scores, g16 = (
        lib.randn(rows, 1024, device="cuda").to(lib.bfloat16).requires_grad_(),
        lib.randn(rows, 1024, device="cuda").to(lib.bfloat16),
    )
    w16 = weight.to(lib.bfloat16).requires_grad_()
    norm = both_ways(lambda: F.layer_norm(scores, (1024,), w16, w16), g16, scores, w16)
    yield "layer_norm, both ways, bfloat16", 10 * size, 0, norm
    labels = lib.randint(0, 1024, (rows,), device="cuda")
    yield (
        "cross_entropy, both ways, bfloat16",
        6 * size,
        0,
        both_ways(lambda: F.cross_entropy(scores, labels), None, scores),
    )
    p = lib.nn.Parameter(lib.randn(size, device="cuda"))
    p.grad = lib.randn(size, device="cuda")
    yield "AdamW", 28 * size, 0, lib.optim.AdamW([p], **({"fused": True} if lib is torch else {})).step
    tokens = min(1024, rows)
    batch = max(size // (12 * 64 * tokens), 1)
    q, k, v = (lib.randn(batch, 12, tokens, 64, device="cuda").to(lib.bfloat16).requires_grad_() for _ in range(3))
    g4 = lib.randn(batch, 12, tokens, 64, device="cuda").to(lib.bfloat16)
    flops = 4 * batch * 12 * tokens * tokens * 64 // 2  # the causal half of two products
    attention = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)
    yield "attention bfloat16, forward", 0, flops, lambda: attention().detach()
    yield "attention bfloat16, both ways", 0, 7 * flops // 2, both_ways(attention, g4, q, k, v)
    for m in sides:
        for dtype in (lib.float32, lib.bfloat16):
            a = lib.randn(m, m, device="cuda").to(dtype)
            yield f"matmul {m} {str(dtype).split('.')[-1]}", 0, 2 * m**3, lambda a=a: a @ a


def measured(lib, n, beginning="", **options):
    copy = None
    for name, moved, flops, call in cases(lib, n, **options):
        if not name.startswith(beginning):
            continue
        took = seconds(lib, call)
        copy = copy or moved / took
        yield (
            name,
            f"{moved / took / 1e9:8.0f} GB/s {moved / took / copy:5.0%}"
            if moved
            else f"{flops / took / 1e12:8.1f} TFLOP/s   ",
        )


def main():
    n = int(float(sys.argv[1]) * 1e6) if len(sys.argv) > 1 else 64_000_000
    options = {"beginning": sys.argv[2] if len(sys.argv) > 2 else ""}
    if len(sys.argv) > 3:
        options["sides"] = [int(side) for side in sys.argv[3:]]
    print(pydist.cuda.get_device_name(), pydist._C.cuda_built())
    theirs = dict(measured(torch, n, **options)) if torch and torch.cuda.is_available() else {}
    for name, value in measured(pydist, n, **options):
        print(f"{name:36} pydist {value}   torch {theirs.get(name, '-')}")


if __name__ == "__main__":
    main()
