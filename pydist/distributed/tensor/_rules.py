"""The rules of ops on DTensors, one row each. What a row means is said in _rule.py; _plan.py makes plans of them.

Elementwise ops need no row. An op without one has its operands gathered, with a warning."""

import math

from pydist.distributed.tensor._rule import Rule, aligned, along, each, reduced

# ---- shapes


def _groups(old, new):
    """How a view maps dimensions: (dimensions of old, dimensions of new) of equal numbers of elements, the smallest such."""
    i = j = 0
    while i < len(old) or j < len(new):
        a, b, left, right = [], [], 1, 1
        if i < len(old):
            a, left, i = [i], old[i], i + 1
        if j < len(new):
            b, right, j = [j], new[j], j + 1
        while left != right or not left:
            if left < right or (not right and i < len(old)):
                if i == len(old):
                    break
                a.append(i)
                left, i = left * old[i], i + 1
            else:
                if j == len(new):
                    break
                b.append(j)
                right, j = right * new[j], j + 1
        yield a, b


def _view(call):
    old, new = call.shapes[0], tuple(call.outs[0].shape)
    ins, outs, units = [None] * len(old), [None] * len(new), {}
    if math.prod(old):
        for label, (a, b) in enumerate(_groups(old, new)):
            a, b = [d for d in a if old[d] != 1], [d for d in b if new[d] != 1]
            if a and b:  # only the first dimension of a group can be cut: the others lie apart
                ins[a[0]] = outs[b[0]] = label
                units[0, a[0]] = math.prod(old[d] for d in a[1:])
                units["out", b[0]] = math.prod(new[d] for d in b[1:])
    local = None if call.name == "flatten" else lambda shapes: {"shape": shapes[0]}
    runs = "reshape" if call.name == "view" else None
    return Rule((tuple(ins),), (tuple(outs),), linear=1, units=units, local=local, runs=runs)


def _permute(call):
    n = len(call.shapes[0])
    return Rule((tuple(range(n)),), (tuple(d % n for d in call.attrs["dims"]),), linear=1)


def _transpose(call):
    n = len(call.shapes[0])
    out = list(range(n))
    if n:
        a, b = call.dim("dim0"), call.dim("dim1")
        out[a], out[b] = out[b], out[a]
    return Rule((tuple(range(n)),), (tuple(out),), linear=1)


def _expand(call):
    out = tuple(call.outs[0].shape)
    ins = aligned(call.shapes[0], out)
    return Rule((ins,), (tuple(d if d in ins else None for d in range(len(out))),), linear=1,
                local=lambda shapes: {"size": shapes[0]})  # fmt: skip


def _squeeze(call):
    shape, dims = call.shapes[0], call.dims() if call.attrs["dim"] != () else set()
    gone = [d for d in dims if shape[d] == 1]
    kept = tuple(d for d in range(len(shape)) if d not in gone)
    return Rule((tuple(None if d in gone else d for d in range(len(shape))),), (kept,), linear=1,
                local=lambda shapes: {"dim": gone})  # fmt: skip


def _unsqueeze(call):
    n = len(call.shapes[0])
    at = call.attrs["dim"] % (n + 1)
    return Rule((tuple(range(n)),), ((*range(at), None, *range(at, n)),), linear=1)


def _select(call):
    n, dim = len(call.shapes[0]), call.dim()
    return Rule(
        (tuple(None if d == dim else d for d in range(n)),), (tuple(d for d in range(n) if d != dim),), linear=1
    )


def _slice(call):
    n, dim = len(call.shapes[0]), call.dim()
    whole = tuple(call.outs[0].shape) == call.shapes[0] and call.attrs["step"] == 1
    labels = tuple(None if d == dim and not whole else d for d in range(n))
    return Rule((labels,), (labels,), linear=1)


def _cat(call):
    n = call.outs[0].dim()
    dim = call.attrs["dim"] % n
    labels = tuple(None if d == dim else d for d in range(n))
    ins = tuple((None,) * len(shape) if len(shape) != n else labels for shape in call.shapes)  # an empty one of 1-D
    return Rule(ins, (labels,), linear=1)


def _stack(call):
    n = len(call.shapes[0])
    dim = call.attrs["dim"] % (n + 1)
    return Rule((tuple(range(n)),) * len(call.shapes), ((*range(dim), None, *range(dim, n)),), linear=1)


def _pad(call):
    n, pad = len(call.shapes[0]), call.attrs["pad"]
    padded = {n - 1 - d for d in range(len(pad) // 2) if pad[2 * d] or pad[2 * d + 1]}
    labels = tuple(None if d in padded else d for d in range(n))
    return Rule((labels,), (labels,), linear=0 if call.attrs.get("value") else 1)


def _view_parts(call):
    n = min(len(call.shapes[0]), call.outs[0].dim())
    labels = tuple(range(n))
    return Rule(
        ((*labels, *[None] * (len(call.shapes[0]) - n)),), ((*labels, *[None] * (call.outs[0].dim() - n)),), linear=3
    )


# ---- products


def _matmul(call):
    a, b = (list(shape) for shape in call.shapes)
    batch = list(call.outs[0].shape)
    left, right = len(a) > 1, len(b) > 1
    tail = ["m"] * left + ["n"] * right
    batch = batch[: len(batch) - len(tail)]

    def labels(shape, matrix, last):
        lead = shape[:-2] if matrix else []
        return (*aligned(lead, batch), *last)

    first = labels(a, left, ["m", "k"] if left else ["k"])
    second = labels(b, right, ["k", "n"] if right else ["k"])
    return Rule((first, second), ((*range(len(batch)), *tail),), {"k": "sum"}, linear=3)


def _linear(call):
    lead = tuple(range(len(call.shapes[0]) - 1))
    bias = None if call.shapes[2] is None else ("n",)
    if len(call.shapes[1]) != 2:
        return None
    return Rule(
        ((*lead, "k"), ("n", "k"), bias), ((*lead, "n"),), {"k": "sum"}, linear=3 if bias is None else 0, added=(2,)
    )


def _conv(channels_first):
    def rule(call):
        x, w = call.shapes[0], call.shapes[1]
        batch = ("b",) if len(x) == len(w) else ()
        space = (None,) * (len(w) - 2)
        one = call.attrs["groups"] == 1
        inputs, outputs = ("c" if one else None), ("o" if one else None)
        bias = None if call.shapes[2] is None else (outputs,)
        weight = (outputs, inputs, *space) if channels_first else (inputs, outputs, *space)
        return Rule(((*batch, inputs, *space), weight, bias), ((*batch, outputs, *space),), {"c": "sum"} if one else {},
                    linear=3 if bias is None else 0, added=(2,))  # fmt: skip

    return rule


def _attention(call):
    q, k, v, mask = call.shapes
    lead = tuple(range(len(q) - 2))
    heads, group = len(q) - 3, 1
    if call.attrs["dropout_p"] or any(len(s) != len(q) for s in (k, v)):
        return None
    units = {}
    if call.attrs["enable_gqa"] and heads >= 0 and k[heads]:
        group = q[heads] // k[heads]
        units = {(1, heads): group, (2, heads): group}
    keys = tuple(d if n == q[d] or (d == heads and group > 1) else None for d, n in enumerate(k[:-2]))
    rows = None if call.attrs["is_causal"] else "t"
    places = (*lead, rows, None)
    given = None
    if mask is not None:
        out = (*q[:-1], k[-2])
        given = tuple(places[d] if d is not None else None for d in aligned(mask, out))
    return Rule(
        ((*lead, rows, None), (*keys, None, None), (*keys, None, None), given), ((*lead, rows, None),), units=units
    )


# ---- norms


def _norm(call):
    n, tail = len(call.shapes[0]), len(call.attrs["normalized_shape"])
    labels = (*range(n - tail), *[None] * tail)
    ins = tuple(None if s is None else labels if len(s) == n and i < 2 and i in _wide(call) else (None,) * len(s)
                for i, s in enumerate(call.shapes))  # fmt: skip
    return Rule(ins, tuple(labels[: out.dim()] for out in call.outs))


def _wide(call):
    return (0, 1) if call.name.startswith("add_") else (0,)


def _group_norm(call):
    n = len(call.shapes[0])
    labels = (0, *[None] * (n - 1))
    ins = (labels, *[None if s is None else (None,) for s in call.shapes[1:]])
    return Rule(ins, (labels,) * len(call.outs))


def _batch_norm(call):
    n = len(call.shapes[0])
    stats = tuple(None if s is None else ("c",) for s in call.shapes[1:])
    lead = None if call.attrs["training"] else "b"
    labels = (lead, "c", *[None] * (n - 2))
    return Rule((labels, *stats), tuple(labels if out.dim() == n else ("c",) for out in call.outs))


def _planes(call):
    """Works on each channel of each picture by itself; the last dimensions are the picture's."""
    space = 1 if call.name.endswith("1d") or "1d_" in call.name else 2
    n = len(call.shapes[0]) - space
    labels = (*range(n), *[None] * space)
    return Rule((labels,), (labels,) * len(call.outs), filled=labels[n - 1 :] if n else ())


# ---- indices


def _embedding(call):
    ids = len(call.shapes[1])
    return Rule(((None, "d"), tuple(range(ids))), ((*range(ids), "d"),))


def _index_select(call):
    n, dim = len(call.shapes[0]), call.dim()
    labels = tuple(None if d == dim else d for d in range(n))
    return Rule(
        (labels, ("i",) if call.shapes[1] else ()), (tuple("i" if d == dim else d for d in range(n)),), linear=4
    )


def _gather(call):
    n, dim = len(call.shapes[0]), call.dim()
    same = [d != dim and call.shapes[0][d] == call.shapes[1][d] for d in range(n)]
    if not n:
        return None
    index = tuple(d if same[d] else "i" if d == dim else None for d in range(n))
    return Rule((tuple(d if same[d] else None for d in range(n)), index), (index,), linear=4)


def _scatter(call):
    n, dim = len(call.shapes[0]), call.dim()
    labels = tuple(d if d != dim and len({s[d] for s in call.shapes if len(s) == n}) == 1 else None for d in range(n))
    ins = tuple(labels if len(s) == n else (None,) * len(s) for s in call.shapes)
    return Rule(ins, (labels,), filled=labels)  # without indices src would have no gradient on some ranks


def _index(call):
    """One tensor of integers; masks and several tensors are gathered."""
    given = [d for d, shape in enumerate(call.shapes[1:]) if shape is not None]
    if len(given) != 1 or call.dtypes[1 + given[0]].is_floating_point or call.outs[0].dtype is None:
        return None
    dim, shape = given[0], call.shapes[1 + given[0]]
    if str(call.dtypes[1 + dim]).rpartition(".")[2] in ("bool", "uint8"):
        return None
    n = len(call.shapes[0])
    ids = tuple(("i", d) for d in range(len(shape)))
    labels = tuple(None if d == dim else d for d in range(n))
    ins = (labels, *[ids if d == dim else None for d in range(len(call.shapes) - 1)])
    return Rule(ins, ((*range(dim), *ids, *range(dim + 1, n)),), linear=4)


# ---- losses


def _loss(call):
    """Elementwise, then reduced."""
    kind = call.attrs["reduction"]
    full = tuple(max(sizes) for sizes in _columns(call.shapes))
    ins = tuple(None if shape is None else aligned(shape, full) for shape in call.shapes)
    labels = tuple(range(len(full)))
    if kind == "none":
        return Rule(ins, (labels,) * len(call.outs))
    return Rule(ins, ((),) * len(call.outs), dict.fromkeys(labels, "sum" if kind == "sum" else "avg"))


def _columns(shapes):
    given = [shape for shape in shapes if shape is not None]
    n = max(map(len, given))
    return [[s[d - n] for s in given if len(s) >= n - d] for d in range(n)]


def _class_loss(call):
    """nll_loss, cross_entropy: of classes, which are whole here; what else is cut is summed."""
    n, targets = len(call.shapes[0]), len(call.shapes[1])
    classes = 0 if n == 1 else 1
    labels = tuple(None if d == classes else d for d in range(n))
    rest = tuple(d for d in range(n) if d != classes)
    target = labels if targets == n and n > 1 else rest[:targets]
    weight = None if call.shapes[2] is None else (None,)
    kind = call.attrs["reduction"]
    if kind == "mean":
        return Rule(((None,) * n, (None,) * targets, weight), ((),))
    return Rule(
        (labels, target, weight), (rest if kind == "none" else (),), dict.fromkeys(rest, "sum") if kind == "sum" else {}
    )


RULES = {
    **dict.fromkeys("view reshape flatten".split(), _view),
    "permute": _permute, "transpose": _transpose, "expand": _expand, "squeeze": _squeeze, "unsqueeze": _unsqueeze,
    "select": _select, "slice": _slice, "cat": _cat, "stack": _stack, "constant_pad_nd": _pad, "pad_around": _pad,
    "view_as_real": _view_parts, "view_as_complex": _view_parts,
    "sum": reduced("sum", linear=3), "mean": reduced("avg", linear=3), "square_sum": reduced("sum"), "prod": reduced("product", exact=False),
    "amax": reduced("max", exact=False), "amin": reduced("min", exact=False),
    "any": reduced("max"), "all": reduced("min"),
    **dict.fromkeys("argmax argmin max min topk softmax log_softmax argsort sort cumsum running_sum".split(), along("dim")),
    "flip": along("dims", linear=1), "resample": along("dim"),
    "matmul": _matmul, "bmm": _matmul,
    "linear": _linear, "conv2d": _conv(True), "conv_transpose2d": _conv(False),
    "scaled_dot_product_attention": _attention,
    **dict.fromkeys("layer_norm rms_norm add_layer_norm add_rms_norm".split(), _norm),
    "group_norm": _group_norm, "batch_norm": _batch_norm,
    **dict.fromkeys("max_pool2d max_pool2d_with_indices max_pool1d max_pool1d_with_indices avg_pool2d avg_pool1d "
                    "adaptive_avg_pool2d adaptive_avg_pool1d adaptive_max_pool2d adaptive_max_pool2d_with_indices "
                    "adaptive_max_pool1d".split(), _planes),
    "embedding": _embedding, "index_select": _index_select, "gather": _gather, "index": _index,
    "scatter_add": _scatter, "scatter_reduce": _scatter,
    **dict.fromkeys("mse_loss l1_loss smooth_l1_loss huber_loss kl_div binary_cross_entropy "
                    "binary_cross_entropy_with_logits".split(), _loss),
    "nll_loss": _class_loss, "cross_entropy": _class_loss,
    **dict.fromkeys("gelu where copy fill clone cast angle conj conj_physical bitwise_not logical_not dropout polar complex".split(), each),
}  # fmt: skip
