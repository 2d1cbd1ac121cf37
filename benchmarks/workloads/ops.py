"""Single ops at sizes from 1 Ki to 16 Mi elements, as expressions: OPS is what `python -m benchmarks ops` measures, and
tests/ops/test_ops.py compares its bits for several numbers of threads. tests/lib/op_samples.py has small calls of every op."""

import ast
from math import isqrt

SIZES = (1 << 10, 1 << 15, 1 << 20, 1 << 24)


def _flat(lib, n):
    return {name: lib.rand(n) * 1.9 + 0.1 for name in "xyz"} | {"mask": lib.rand(n) > 0.5}


def _rows(lib, n):
    width = min(1024, max(32, n // 32))
    count = n // width
    return {
        "x": lib.randn(count, width), "y": lib.randn(count, width), "w": lib.randn(width), "b": lib.randn(width), "width": width,
        "t": lib.randint(0, width, (count,)), "at": lib.randint(0, width, (count, width)), "rows": lib.randint(0, count, (count,)),
        "columns": lib.randint(0, width, (width,)),
    }  # fmt: skip


def _images(lib, n):
    side = 8 if n < 1 << 17 else 32
    x = lib.randn(n // (16 * side * side), 16, side, side)
    last = x.contiguous(memory_format=lib.channels_last)
    return {
        "x": x, "last": last, "k": lib.randn(16, 16, 3, 3), "w": lib.randn(16), "b": lib.randn(16),
        "m": lib.zeros(16), "v": lib.ones(16),
    }  # fmt: skip


def _square(lib, n):
    side = isqrt(n)
    return {"x": lib.randn(side, side), "y": lib.randn(side, side), "b": lib.randn(side)}


def _texts(lib, n):
    tokens = max(8, min(512, n // 256))
    q = [lib.randn(max(1, n // (4 * tokens * 64)), 4, tokens, 64) for _ in range(3)]
    return dict(zip("qkv", q))


_FLAT = {name: f"x.{name}()" for name in (
    "exp log tanh erf relu sigmoid sqrt rsqrt sin cos abs neg square expm1 log1p clone sum mean prod floor round sign".split())}  # fmt: skip
_FLAT |= {name: f"lib.{name}(x, y)" for name in "add sub mul div pow maximum lt remainder floor_divide atan2".split()}
_FLAT |= {f"F.{name}": f"F.{name}(x)" for name in "gelu silu softplus leaky_relu hardtanh elu".split()}
_FLAT |= {
    "add_": "x.add_(y)", "mul_": "x.mul_(1.0)", "add number": "x + 2.5", "where": "lib.where(mask, x, y)", "lerp": "lib.lerp(x, y, 0.3)",
    "addcdiv": "lib.addcdiv(x, y, z)", "addcmul": "lib.addcmul(x, y, z)", "clamp": "x.clamp(0.5, 1.5)", "cat": "lib.cat([x, y])",
    "stack": "lib.stack([x, y])", "flip": "x.flip(0)", "cumsum": "x.cumsum(0)", "F.dropout": "F.dropout(x, 0.5)", "F.mse_loss": "F.mse_loss(x, y)",
    "F.l1_loss": "F.l1_loss(x, y)", "F.smooth_l1_loss": "F.smooth_l1_loss(x, y)", "masked_fill": "x.masked_fill(mask, 0.0)", "to bfloat16": "x.to(lib.bfloat16)",
    "F.binary_cross_entropy_with_logits": "F.binary_cross_entropy_with_logits(x, y)", "total norm": "lib.nn.utils.get_total_norm([x, y, z])",
}  # fmt: skip
_ROWS = {
    "softmax": "x.softmax(-1)", "log_softmax": "x.log_softmax(-1)", "F.cross_entropy": "F.cross_entropy(x, t)", "sum:0": "x.sum(0)", "sum:1": "x.sum(1)",
    "amax": "x.amax(1)", "argmax": "x.argmax(1)", "max": "x.max(1)", "var": "x.var(1)", "F.layer_norm": "F.layer_norm(x, (width,), w, b)",
    "F.rms_norm": "F.rms_norm(x, (width,), w)", "add row": "x + w", "transposed": "x.t().contiguous()", "topk": "x.topk(10)", "sort": "x.sort(-1)",
    "gather": "x.gather(1, at)", "index": "x[rows]", "index_select": "x.index_select(0, rows)", "F.embedding": "F.embedding(rows, x)", "logsumexp": "x.logsumexp(1)",
    "cumsum:1": "x.cumsum(1)", "F.linear": "F.linear(x, y[:64], None)", "F.nll_loss": "F.nll_loss(x, t)", "index_put": "lib.index_put(x, (rows,), y, True)",
    "index_select:1": "x.index_select(1, columns)", "scatter_add": "x.scatter_add(1, at, y)", "permuted": "x.t() * 2.0",
}  # fmt: skip
_IMAGES = {
    "F.conv2d": "F.conv2d(x, k, w, padding=1)", "F.max_pool2d": "F.max_pool2d(x, 2)", "F.avg_pool2d": "F.avg_pool2d(x, 2)",
    "F.batch_norm": "F.batch_norm(x, m, v, w, b, True)", "F.group_norm": "F.group_norm(x, 4, w, b)", "F.pad (constant_pad_nd)": "F.pad(x, (1, 1, 1, 1))",
    "F.interpolate (resample)": "F.interpolate(x, scale_factor=2, mode='bilinear')", "F.adaptive_avg_pool2d": "F.adaptive_avg_pool2d(x, 1)",
    "F.adaptive_max_pool2d": "F.adaptive_max_pool2d(x, 1)", "F.conv_transpose2d": "F.conv_transpose2d(x, k, padding=1)",
    "F.max_pool2d:last": "F.max_pool2d(last, 2)", "F.adaptive_avg_pool2d:last": "F.adaptive_avg_pool2d(last, 1)",
    "F.group_norm:last": "F.group_norm(last, 4, w, b)", "F.batch_norm:last": "F.batch_norm(last, m, v, w, b, True)",
}  # fmt: skip
_SQUARE = {
    "bmm": "lib.bmm(x[None], y[None])",
    "matmul": "x @ y",
    "matmul:ta": "x.t() @ y",
    "matmul:tb": "x @ y.t()",
    "F.linear:square": "F.linear(x, y, b)",
}
_TEXTS = {
    "scaled_dot_product_attention": "F.scaled_dot_product_attention(q, k, v)",
    "scaled_dot_product_attention:causal": "F.scaled_dot_product_attention(q, k, v, is_causal=True)",
}

OPS = {
    name: (make, expression)
    for make, table in ((_flat, _FLAT), (_rows, _ROWS), (_images, _IMAGES), (_square, _SQUARE), (_texts, _TEXTS))
    for name, expression in table.items()
}


def prepared(lib, name, size):
    """(function without arguments, tensors that it uses) for one call of OPS[name] on about `size` elements."""
    make, expression = OPS[name]
    lib.manual_seed(0)
    scope = make(lib, size)
    call = eval(f"lambda: {expression}", {"lib": lib, "F": lib.nn.functional, **scope})
    names = {node.id for node in ast.walk(ast.parse(expression)) if isinstance(node, ast.Name)}
    return call, [value for name, value in scope.items() if name in names and hasattr(value, "numel")]


def _bytes(value):
    if isinstance(value, (tuple, list)):
        return sum(map(_bytes, value))
    return value.numel() * value.element_size()


class Op:
    """step() is one call, with `backward` and its gradients; bytes: of the tensors that one call reads and writes."""

    def __init__(self, lib, name, size, backward):
        call, used = prepared(lib, name, size)
        self.bytes = _bytes(used) + _bytes(call())
        self.step = _with_gradients(call, used) if backward else call


def _with_gradients(call, tensors):
    """The call and the gradients of its first result; None where it has none."""
    leaves = [t.requires_grad_() for t in tensors if t.is_floating_point()]

    def step():
        y = call()
        first = y if hasattr(y, "backward") else y[0]
        first.backward(g)
        for leaf in leaves:
            leaf.grad = None

    try:
        y = call()
        g = (y if hasattr(y, "backward") else y[0]).detach().clone()
        step()
    except RuntimeError:  # nothing to differentiate, or a leaf written in place
        return None
    return step
