"""Samples of every public op: one list, used by test_ops.py (fp64 reference, finite differences) and by tests/gpu.

A sample is the arguments of one call. Tensors are described by T (floating, in the dtype under test), I (int64) and B (bool),
so that any library with PyTorch's names can be given the same ones: `build` makes them, `call` runs the op.
Calls of a useful size are those of benchmarks/workloads/ops.py; LARGE has the sizes and layouts that those lack, for the
comparison of bits between numbers of threads.
"""

import math
import zlib
from dataclasses import dataclass, field
from functools import partial

import numpy as np

# What a tensor argument looks like. Layouts: C; T (dimensions stored in reverse order); S (every second element); E (last
# dimension expanded, stride 0); N (channels last).


@dataclass(frozen=True)
class T:
    shape: tuple
    lo: float = -2
    hi: float = 2
    layout: str = "C"
    grad: bool = True

    def values(self, seed):
        """fp64, all different and away from the middle of [lo, hi]: no ties, no kinks."""
        rng = np.random.default_rng(seed)
        shape = (*self.shape[:-1], 1) if self.layout == "E" else self.shape
        n = math.prod(shape)
        v = self.lo + (self.hi - self.lo) * (rng.permutation(n) + rng.uniform(0.2, 0.4)) / max(n, 1)
        return np.broadcast_to(v.reshape(shape), self.shape).copy()


@dataclass(frozen=True)
class I:  # noqa: E742
    shape: tuple
    lo: int = 0
    hi: int = 4
    layout: str = "C"

    def values(self, seed):
        return np.asarray(np.random.default_rng(seed).integers(self.lo, self.hi, self.shape))


@dataclass(frozen=True)
class B:
    shape: tuple
    layout: str = "C"

    def values(self, seed):
        return np.asarray(np.random.default_rng(seed).random(self.shape) < 0.5)


@dataclass
class Sample:
    args: tuple
    kwargs: dict = field(default_factory=dict)
    c: float = 4  # of the tolerance 1e-6 |ref| + c eps S
    linear: bool = False  # S is the op on absolute values
    grad: bool = True  # small enough for finite differences, and smooth
    dtypes: str = "all"  # "float": no integers; "wide": no float16 and bfloat16 either
    writes: tuple = ()  # positions of tensors that the op writes (batch_norm's running statistics)


def S(*args, c=4, linear=False, grad=True, dtypes="all", writes=(), **kwargs):
    return Sample(args, kwargs, c, linear, grad, dtypes, writes)


def is_tensor(spec):
    return isinstance(spec, (T, I, B))


def specs_of(sample):
    """The tensor descriptions among the arguments, one level into lists."""
    for arg in sample.args:
        yield from filter(is_tensor, arg if isinstance(arg, (list, tuple)) else [arg])


def arrays(name, sample):
    """One NumPy array per tensor of the sample, the same in every run."""
    return [s.values(zlib.crc32(f"{name}{i}".encode())) for i, s in enumerate(specs_of(sample))]


def lay_out(lib, values, layout):
    make, n = lib.tensor, values.ndim
    if layout == "T" and n:
        return make(values.T.copy()).permute(*reversed(range(n)))
    if layout == "N":
        return make(values.transpose(0, 2, 3, 1).copy()).permute(0, 3, 1, 2)
    if layout == "S" and n:
        return make(np.repeat(values, 2, axis=-1))[..., ::2]
    if layout == "E":
        return make(values[..., :1].copy()).expand(*values.shape)
    return make(values)


def build(lib, sample, values, dtype="float64"):
    """The sample's tensors in library `lib`, from arrays; `dtype` is for those described by T."""
    out = []
    for spec, v in zip(specs_of(sample), values):
        t = lay_out(lib, v, spec.layout)
        if isinstance(spec, T) and dtype != "float64":
            t = lay_out(lib, v.astype("float32"), spec.layout).to(getattr(lib, dtype))
        out.append(t.detach())
    return out


def arguments(sample, tensors):
    """The sample's positional arguments with its tensors put in."""
    rest = iter(tensors)

    def fill(a):
        if isinstance(a, (list, tuple)):
            return type(a)(map(fill, a))
        return next(rest) if is_tensor(a) else a

    return [fill(a) for a in sample.args]


# Ops that are no function of the same name in both libraries.
COMPLEX = "complex polar view_as_complex view_as_real view_dtype".split()  # public ops that test_complex.py compares
SPECIAL = {
    "index": lambda lib, x, *key: x[tuple(slice(None) if k is None else k for k in key)],
    "cast": lambda lib, x, dtype: x.to(getattr(lib, dtype)),
    "copy": lambda lib, x, src: x.clone().copy_(src),
    "fill": lambda lib, x, value: x.clone().fill_(value),
}


def _weighted(rows, weight):
    return rows if weight is None else rows * weight[..., None]


def _dispatch_rows_by_torch(torch, x, place, rows, weight=None):
    copies = _weighted(x.unsqueeze(1).expand(*place.shape, x.size(1)), weight).flatten(0, 1)
    return x.new_zeros(rows + 1, x.size(1)).index_add(0, (place % (rows + 1)).flatten(), copies)[:rows]


def _combine_rows_by_torch(torch, x, place, weight=None):
    return _weighted(torch.cat([x, x.new_zeros(1, x.size(1))])[place % (len(x) + 1)], weight).sum(1)


def _dispatch_rows(x, place, rows, weight=None):
    out = np.zeros((rows + 1, x.shape[1]))
    np.add.at(out, place, _weighted(np.broadcast_to(x[:, None], (*place.shape, x.shape[1])), weight))
    return out[:rows]


def _combine_rows(x, place, weight=None):
    return _weighted(np.concatenate([x, np.zeros((1, x.shape[1]))])[place], weight).sum(1)


def _resample_by_torch(torch, x, dim, size, mode="linear", align_corners=False, scale=0):
    rows = x.movedim(dim, -1)
    flat = rows.reshape(-1, 1, 1, rows.shape[-1])
    mode, smooth = mode.removesuffix("_aa"), mode.endswith("_aa")
    way = {"linear": "bilinear", "cubic": "bicubic", "exact": "nearest-exact"}.get(mode, mode)
    align = {} if "nearest" in way else {"align_corners": align_corners}
    size = {"scale_factor": (1.0, 1 / scale), "recompute_scale_factor": False} if scale else {"size": (1, size)}
    out = torch.nn.functional.interpolate(flat, mode=way, antialias=smooth, **size, **align)
    return out.reshape(*rows.shape[:-1], -1).movedim(-1, dim)


def _recurrent_by_torch(torch, x, h, c, w, b, kind, reverse=False, mask=None):
    """Its input weight is the unit matrix. A mask makes each step a call of its own."""
    if mask is not None:
        out = [None] * len(x)
        for t in reversed(range(len(x))) if reverse else range(len(x)):
            (now,), new = _recurrent_by_torch(torch, x[t : t + 1], h, c, w, b, kind)
            h = out[t] = torch.where(mask[t][:, None], now, h)
            c = torch.where(mask[t][:, None], new, c) if kind == "lstm" else c
        return torch.stack(out), c if kind == "lstm" else h[:0]
    turn = (lambda t: t.flip(0)) if reverse else lambda t: t
    none = x.new_zeros(x.shape[2])
    weights = [torch.eye(x.shape[2], dtype=x.dtype), w, none, none if b is None else b]
    states = (h[None], c[None]) if kind == "lstm" else h[None]
    out, *last = getattr(torch, kind)(turn(x), states, weights, True, 1, 0.0, False, False, False)
    return turn(out), last[1][0] if kind == "lstm" else h[:0]


TORCH = {
    "recurrent": _recurrent_by_torch,
    "slice": lambda torch, *a: torch.ops.aten.slice(*a),
    "index_put": lambda torch, x, i, v, *a: torch.index_put(
        x, [torch.arange(x.shape[0])[:, None] if k is None else k for k in i], v, *a
    ),
    **{
        name: lambda torch, x, y, name=name: getattr(torch, name)(torch.as_tensor(x), torch.as_tensor(y))
        for name in ("maximum", "minimum", "remainder", "fmod", "atan2", "logaddexp")
    },
    "pad_around": lambda torch, *a: torch.nn.functional.pad(*a),
    "batch_norm": lambda torch, *a, **kw: torch.nn.functional.batch_norm(*a, **kw),
    "resample": _resample_by_torch,
    "gelu": lambda torch, x, approximate="none": torch.nn.functional.gelu(x, approximate=approximate),
    "elu": lambda torch, *a, **kw: torch.ops.aten.elu(*a, **kw),
    "kl_div": lambda torch, x, y, reduction="mean", **kw: torch.nn.functional.kl_div(x, y, reduction=reduction, **kw),
    "positions": lambda torch, mask: mask.nonzero(),
    "square_sum": lambda torch, x, *a, **kw: (x * x).sum(*a, **kw),
    "embedding": lambda torch, w, i, padding_idx=None: torch.nn.functional.embedding(i, w, padding_idx),
    "dispatch_rows": _dispatch_rows_by_torch,
    "combine_rows": _combine_rows_by_torch,
    "embedding_part": lambda torch, w, i, first, rows, padding_idx=None: torch.nn.functional.embedding(
        i, torch.nn.functional.pad(w, (0, 0, first, rows - first - len(w))), padding_idx
    ),
    "layer_norm": lambda torch, *a, **kw: torch.nn.functional.layer_norm(*a, **kw),
    "add_layer_norm": lambda torch, x, y, *a: (x + y, torch.nn.functional.layer_norm(x + y, *a)),
    "add_rms_norm": lambda torch, x, y, *a, **kw: (x + y, torch.nn.functional.rms_norm(x + y, *a, **kw)),
    "scaled_dot_product_attention": lambda torch, *a, **kw: torch.nn.functional.scaled_dot_product_attention(*a, **kw),
    "binary_cross_entropy_with_logits": lambda torch, x, y, w=None, p=None, reduction="mean": (
        torch.nn.functional.binary_cross_entropy_with_logits(x, y, w, pos_weight=p, reduction=reduction)
    ),
    "sort": lambda torch, x, dim=-1, descending=False, stable=False: torch.sort(
        x, dim=dim, descending=descending, stable=stable
    ),
    "argsort": lambda torch, x, dim=-1, descending=False, stable=False: torch.argsort(
        x, dim=dim, descending=descending, stable=stable
    ),
    "amax": lambda torch, x, dim=(), keepdim=False: torch.amax(x, dim, keepdim),
    "amin": lambda torch, x, dim=(), keepdim=False: torch.amin(x, dim, keepdim),
    "softmax": lambda torch, x, dim=-1, dtype=None: torch.softmax(x, dim, dtype=dtype),
    "log_softmax": lambda torch, x, dim=-1, dtype=None: torch.log_softmax(x, dim, dtype=dtype),
}


def call(lib, name, *args, **kwargs):
    """Op `name` of pydist or torch."""
    if name in SPECIAL:
        return SPECIAL[name](lib, *args, **kwargs)
    if name in TORCH and lib.__name__ == "torch":
        return TORCH[name](lib, *args, **kwargs)
    for place in (lib, lib.nn.functional):
        if hasattr(place, name):
            return getattr(place, name)(*args, **kwargs)
    return getattr(args[0], name)(*args[1:], **kwargs)


# References in NumPy, for where torch is not installed; other ops go by NumPy's own function of the same name.


def _attention(q, k, v, mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    k, v = (np.repeat(x, q.shape[-3] // x.shape[-3], -3) if enable_gqa else x for x in (k, v))
    s = q @ k.swapaxes(-1, -2) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if is_causal:
        mask = np.tri(*s.shape[-2:], dtype=bool)
    if mask is not None:
        s = np.where(mask, s, -np.inf) if mask.dtype == bool else s + mask
    p = np.exp(s - np.maximum(s.max(-1, keepdims=True), -1e300))
    return p / np.maximum(p.sum(-1, keepdims=True), 1e-300) @ v


def _softmax(x, dim=-1):
    e = np.exp(x - x.max(dim, keepdims=True)) if x.size else x
    return e / e.sum(dim, keepdims=True)


def _log_softmax(x, dim=-1):
    m = x - x.max(dim, keepdims=True) if x.size else x
    return m - np.log(np.exp(m).sum(dim, keepdims=True))


def _nll(x, target, weight=None, ignore_index=-100, reduction="mean"):
    rows, t = np.moveaxis(x, 1, -1).reshape(-1, x.shape[1]), target.reshape(-1)
    keep = t != ignore_index
    safe = np.where(keep, t, 0)
    w = keep * (1.0 if weight is None else weight[safe])
    losses = -w * rows[np.arange(len(t)), safe]
    return {"none": lambda: losses.reshape(target.shape), "sum": losses.sum, "mean": lambda: losses.sum() / w.sum()}[
        reduction
    ]()


def _cross_entropy(x, target, weight=None, ignore_index=-100, reduction="mean", label_smoothing=0.0):
    logp = _log_softmax(x, 1)
    hard = _nll(logp, target, weight, ignore_index, reduction)
    if not label_smoothing:
        return hard
    w = np.ones(x.shape[1]) if weight is None else weight
    keep = target != ignore_index
    soft = -np.tensordot(logp, w, (1, 0)) * keep / x.shape[1]
    total = (keep * w[np.where(keep, target, 0)]).sum()
    soft = {"none": soft, "sum": soft.sum(), "mean": soft.sum() / total}[reduction]
    return (1 - label_smoothing) * hard + label_smoothing * soft


def _conv2d(x, w, b=None, stride=1, padding=0, dilation=1, groups=1):
    (sh, sw), (ph, pw), (dh, dw) = (v if isinstance(v, tuple) else (v, v) for v in (stride, padding, dilation))
    x = np.pad(x, ((0, 0), (0, 0), (ph, ph), (pw, pw)))
    kh, kw = w.shape[2:]
    windows = np.lib.stride_tricks.sliding_window_view(x, ((kh - 1) * dh + 1, (kw - 1) * dw + 1), (2, 3))
    windows = windows[:, :, ::sh, ::sw, ::dh, ::dw]
    xs, ws = np.split(windows, groups, 1), np.split(w, groups)
    y = np.concatenate([np.einsum("bchwij,ocij->bohw", x, w) for x, w in zip(xs, ws)], 1)
    return y if b is None else y + b[:, None, None]


def _conv_transpose2d(x, w, b=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
    stride, padding, more, dilation = (
        v if isinstance(v, tuple) else (v, v) for v in (stride, padding, output_padding, dilation)
    )
    (n, _, *size), (_, k, *kernel) = x.shape, w.shape
    full = [(s - 1) * t + d * (r - 1) + 1 + m for s, t, d, r, m in zip(size, stride, dilation, kernel, more)]
    y = np.zeros((n, k * groups, *full))
    for r, s in np.ndindex(*kernel):
        at = [slice(i * d, i * d + (length - 1) * t + 1, t) for i, d, t, length in zip((r, s), dilation, stride, size)]
        parts = [
            np.einsum("nchw,ck->nkhw", xs, ws)
            for xs, ws in zip(np.split(x, groups, 1), np.split(w[:, :, r, s], groups))
        ]
        y[:, :, at[0], at[1]] += np.concatenate(parts, 1)
    y = y[:, :, padding[0] : full[0] - padding[0], padding[1] : full[1] - padding[1]]
    return y if b is None else y + b[:, None, None]


def _resample(x, dim, size, mode="linear", align_corners=False, scale=0, transposed=False):
    n, m = (size, x.shape[dim]) if transposed else (x.shape[dim], size)
    scale = (n - 1) / max(m - 1, 1) if align_corners else scale or n / m
    half = 0 if mode == "nearest" or align_corners else 0.5
    matrix = np.zeros((m, n))
    if mode.endswith("_aa"):
        d = np.abs(np.arange(n) + 0.5 - (np.arange(m)[:, None] + 0.5) * scale) / max(scale, 1)
        cubic = np.where(d < 1, 1.5 * d**3 - 2.5 * d**2 + 1, np.where(d < 2, -0.5 * d**3 + 2.5 * d**2 - 4 * d + 2, 0))
        matrix = np.maximum(1 - d, 0) if mode == "linear_aa" else cubic
        matrix /= matrix.sum(1, keepdims=True)
    for j in range(0 if mode.endswith("_aa") else m):
        at = (j + half) * scale - (half if mode in ("linear", "cubic") else 0)
        at = max(at, 0) if mode == "linear" else at
        for i in range(math.floor(at) - 1, math.floor(at) + 3):
            d = abs(at - i)
            near = -0.75 * (d**3 - 5 * d**2 + 8 * d - 4) if d > 1 else 1.25 * d**3 - 2.25 * d**2 + 1
            w = (
                max(0, 1 - d)
                if mode == "linear"
                else (near if d <= 2 else 0)
                if mode == "cubic"
                else i == math.floor(at)
            )
            matrix[j, min(max(i, 0), n - 1)] += w
    return np.moveaxis(np.moveaxis(x, dim, -1) @ (matrix if transposed else matrix.T), -1, dim)


def _constant_pad(x, pad, value=0):
    cut = [slice(max(-pad[i], 0), n - max(-pad[i + 1], 0)) for i, n in zip(range(0, len(pad), 2), x.shape[::-1])][::-1]
    more = [(max(pad[i], 0), max(pad[i + 1], 0)) for i in range(0, len(pad), 2)][::-1]
    return np.pad(x[(..., *cut)], [(0, 0)] * (x.ndim - len(more)) + more, constant_values=value)


def _pad_around(x, pad, mode):
    widths = [(0, 0)] * (x.ndim - len(pad) // 2) + [(pad[k], pad[k + 1]) for k in range(len(pad) - 2, -1, -2)]
    return np.pad(x, widths, {"replicate": "edge", "circular": "wrap"}.get(mode, mode))


def _batch_norm(x, mean, var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
    axes, shape = (0, *range(2, x.ndim)), (1, -1, *[1] * (x.ndim - 2))
    if training or mean is None:
        mean, var = x.mean(axes), x.var(axes)
    y = (x - mean.reshape(shape)) / np.sqrt(var.reshape(shape) + eps)
    return y * (1 if weight is None else weight.reshape(shape)) + (0 if bias is None else bias.reshape(shape))


def _per_axis(v, dims):
    return tuple(v) if isinstance(v, (tuple, list)) else (v,) * dims


def _windows(x, dims, kernel, stride=None, padding=0, dilation=1, ceil_mode=False):
    """Of each axis a list of (positions inside, size with padding) per window."""
    arguments = (_per_axis(v, dims) for v in (kernel, stride or kernel, padding, dilation))
    for n, k, s, p, d in zip(x.shape[-dims:], *arguments):
        room = n + 2 * p - d * (k - 1) - 1
        count = -(-room // s) + 1 if ceil_mode else room // s + 1
        count -= ceil_mode and (count - 1) * s >= n + p
        starts = [i * s - p for i in range(count)]
        yield [([j for j in range(a, a + d * k, d) if 0 <= j < n], min(a + k, n + p) - a) for a in starts]


def _adaptive_windows(x, dims, size):
    for n, m in zip(x.shape[-dims:], _per_axis(size, dims)):
        yield [(list(range(i * n // m, -(-(i + 1) * n // m))), 0) for i in range(m)]


def _over_windows(x, dims, axes, function):
    """function(window [..., elements], positions in the plane, size with padding) for every window, stacked."""
    plane = np.arange(math.prod(x.shape[-dims:])).reshape(x.shape[-dims:])
    axes = list(axes)
    results = []
    for choice in np.ndindex(*map(len, axes)):
        chosen = [axis[i] for axis, i in zip(axes, choice)]
        grid = np.ix_(*(inside for inside, _ in chosen))
        where = plane[grid].reshape(-1)
        window = x.reshape(*x.shape[:-dims], plane.size)[..., where]
        results.append(function(window, where, math.prod(padded for _, padded in chosen)))
    lead = x.shape[:-dims]
    return np.stack(results, -1).reshape(*lead, *map(len, axes)) if results else np.zeros((*lead, *map(len, axes)))


def _max_over(dims, windows, both):
    def pool(x, *args, **kwargs):
        axes = list(windows(x, dims, *args, **kwargs))
        values = _over_windows(x, dims, axes, lambda window, where, _: window.max(-1))
        if not both:
            return values
        return values, _over_windows(x, dims, axes, lambda window, where, _: where[window.argmax(-1)])

    return pool


def _avg_pool(dims):
    def pool(x, kernel, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None):
        def mean(window, _, padded):
            return window.sum(-1) / (divisor_override or (padded if count_include_pad else window.shape[-1]))

        return _over_windows(x, dims, _windows(x, dims, kernel, stride, padding, 1, ceil_mode), mean)

    return pool


def _adaptive_avg_pool(dims):
    return lambda x, size: _over_windows(x, dims, _adaptive_windows(x, dims, size), lambda window, *_: window.mean(-1))


_sigmoid = lambda x: 1 / (1 + np.exp(-x))
_erf = np.vectorize(math.erf, otypes=[float])
ACTIVATIONS = {
    "silu": lambda x: x * _sigmoid(x),
    "mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    "gelu": lambda x, approximate="none": (
        x
        / 2
        * (1 + (np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)) if approximate == "tanh" else _erf(x / 2**0.5)))
    ),
    "logsigmoid": lambda x: np.log(_sigmoid(x)),
    "hardsigmoid": lambda x: np.clip(x + 3, 0, 6) / 6,
    "hardswish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "leaky_relu": lambda x, negative_slope=0.01: np.where(x > 0, x, negative_slope * x),
    "elu": lambda x, alpha=1.0, scale=1.0, input_scale=1.0: (
        scale * np.where(x > 0, x, alpha * np.expm1(input_scale * x))
    ),
    "softplus": lambda x, beta=1.0, threshold=20.0: np.where(
        x * beta > threshold, x, np.log1p(np.exp(np.minimum(x * beta, threshold))) / beta
    ),
    "hardtanh": lambda x, min_val=-1.0, max_val=1.0: np.clip(x, min_val, max_val),
}


def _reduced(terms):
    def loss(x, y, *args, reduction="mean", **kwargs):
        each = terms(x, y, *args, **kwargs)
        return each if reduction == "none" else getattr(each, reduction)()

    return loss


def _huber(x, y, delta=1.0):
    d = np.abs(x - y)
    return np.where(d <= delta, d * d / 2, delta * (d - delta / 2))


def _bce(x, y, weight=None):
    clipped = [np.maximum(np.log(p), -100) for p in (x, 1 - x)]
    return -(y * clipped[0] + (1 - y) * clipped[1]) * (1 if weight is None else weight)


def _bce_logits(x, y, weight=None, pos_weight=1.0):
    return ((1 - y) * x + (1 + (pos_weight - 1) * y) * np.log1p(np.exp(-x))) * (1 if weight is None else weight)


LOSSES = {
    "mse_loss": lambda x, y: (x - y) ** 2,
    "l1_loss": lambda x, y: np.abs(x - y),
    "smooth_l1_loss": lambda x, y, beta=1.0: _huber(x, y, beta) / beta if beta else np.abs(x - y),
    "huber_loss": _huber,
    "kl_div": lambda x, y, log_target=False: np.exp(y) * (y - x) if log_target else y * (np.log(y) - x),
    "binary_cross_entropy": _bce,
    "binary_cross_entropy_with_logits": _bce_logits,
}


def _normed(x, axes, eps, rms=False):
    mean = 0 if rms else x.mean(axes, keepdims=True)
    return (x - mean) / np.sqrt(((x - mean) ** 2).mean(axes, keepdims=True) + eps)


def _layer_norm(x, shape, weight=None, bias=None, eps=1e-5):
    y = _normed(x, tuple(range(-len(shape), 0)), eps) if x.size else x
    return y * (1 if weight is None else weight) + (0 if bias is None else bias)


def _rms_norm(x, shape, weight=None, eps=1e-7):
    return (_normed(x, tuple(range(-len(shape), 0)), eps, True) if x.size else x) * (1 if weight is None else weight)


def _group_norm(x, groups, weight=None, bias=None, eps=1e-5):
    y = _normed(x.reshape(x.shape[0], groups, -1), -1, eps).reshape(x.shape) if x.size else x
    per_channel = (-1, *[1] * (x.ndim - 2))
    return y * (1 if weight is None else weight.reshape(per_channel)) + (
        0 if bias is None else bias.reshape(per_channel)
    )


def _topk(x, k, dim=-1, largest=True, sorted=True):
    order = np.argsort(-x if largest else x, dim, kind="stable")
    index = np.take(order, np.arange(k), dim) if x.ndim else np.zeros((), int)
    return (np.take_along_axis(x, index, dim) if x.ndim else x), index


def _scatter_reduce(x, dim, index, src, reduce="sum", include_self=True):
    at = [np.arange(n).reshape([-1 if d == k else 1 for k in range(index.ndim)]) for d, n in enumerate(index.shape)]
    at[dim] = index
    out, src = x.copy(), src[tuple(slice(0, n) for n in index.shape)]
    fold, neutral = {
        "sum": (np.add, 0),
        "mean": (np.add, 0),
        "prod": (np.multiply, 1),
        "amax": (np.maximum, -np.inf),
        "amin": (np.minimum, np.inf),
    }[reduce]
    if not include_self:
        out[tuple(at)] = neutral
    fold.at(out, tuple(at), src)
    count = np.full(x.shape, int(include_self))
    np.add.at(count, tuple(at), 1)
    return out / np.maximum(count, 1) if reduce == "mean" else out


def _recurrent(x, h, c, w, b, kind, reverse=False, mask=None):
    def sigmoid(a):
        return 1 / (1 + np.exp(-a))

    out = np.empty((*x.shape[:2], w.shape[1]))
    for t in reversed(range(len(x))) if reverse else range(len(x)):
        u, n, before = h @ w.T + (0 if b is None else b), w.shape[1], (h, c)
        gx, gu = (np.split(a, a.shape[1] // n, 1) for a in (x[t], u))
        if kind == "lstm":
            i, f, g, o = (p + q for p, q in zip(gx, gu))
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
        elif kind == "gru":
            r, z = (sigmoid(p + q) for p, q in zip(gx[:2], gu))
            h = (1 - z) * np.tanh(gx[2] + r * gu[2]) + z * h
        else:
            h = np.tanh(x[t] + u) if kind == "rnn_tanh" else np.maximum(x[t] + u, 0)
        if mask is not None:
            h, c = (now if now is None else np.where(mask[t][:, None], now, was) for now, was in zip((h, c), before))
        out[t] = h
    return out, c if kind == "lstm" else np.empty((0, w.shape[1]))


def _extreme(name):
    def both(x, dim=None, keepdim=False):
        if dim is None:
            return getattr(x, name)()
        return getattr(x, name)(dim, keepdims=keepdim), getattr(x, "arg" + name)(dim, keepdims=keepdim)

    return both


def _fold(fn):
    return lambda x, dim=None, keepdim=False, dtype=None: fn(
        x, axis=dim if dim is None else tuple(np.atleast_1d(dim)), keepdims=keepdim
    )


def _index_put(x, index, values, accumulate=False):
    x = x.copy()
    key = tuple(slice(None) if i is None else i for i in index)
    (np.add.at if accumulate else np.ndarray.__setitem__)(x, key, values)
    return x


def _flatten(x, start=0, end=-1):
    end = end % max(x.ndim, 1)
    return x.reshape(*x.shape[:start], -1, *x.shape[end + 1 :])


NUMPY = {
    **{"a" + name: getattr(np, "arc" + name) for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "tan2")},
    "neg": np.negative,
    "angle": np.angle,
    "conj": np.conj,
    "conj_physical": np.conj,
    "relu": lambda x: np.maximum(x, 0),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "erf": np.vectorize(math.erf, otypes=[float]),
    "add": lambda x, y, alpha=1: x + alpha * y,
    "sub": lambda x, y, alpha=1: x - alpha * y,
    "mul": np.multiply,
    "div": np.divide,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "clone": np.copy,
    "fill": np.full_like,
    "copy": lambda x, src: np.broadcast_to(src, x.shape).astype(x.dtype),
    "cast": lambda x, dtype: x.astype(dtype),
    "view": np.reshape,
    "reshape": np.reshape,
    "permute": lambda x, dims: x.transpose([d % x.ndim for d in dims]),
    "transpose": np.swapaxes,
    "expand": lambda x, size: np.broadcast_to(
        x, [n if s == -1 else s for s, n in zip(size, (1,) * (len(size) - x.ndim) + x.shape)]
    ),
    "select": lambda x, dim, i: np.take(x, i, dim),
    "slice": lambda x, dim, a, b, step=1: np.moveaxis(np.moveaxis(x, dim, 0)[a:b:step], 0, dim),
    "squeeze": lambda x, dim=None: np.squeeze(
        x, dim if dim is None else tuple(d for d in np.atleast_1d(dim).astype(int) if x.shape[d] == 1)
    ),
    "unsqueeze": np.expand_dims,
    "flatten": _flatten,
    "as_strided": lambda x, size, stride, offset=0: np.lib.stride_tricks.as_strided(
        x.reshape(-1)[offset:], size, [8 * s for s in stride]
    ),
    "cat": lambda xs, dim=0: np.concatenate(xs, dim),
    "stack": lambda xs, dim=0: np.stack(xs, dim),
    "index": lambda x, *key: x[tuple(slice(None) if k is None else k for k in key)],
    "index_put": _index_put,
    "square_sum": _fold(lambda x, *a, **k: np.sum(x * x, *a, **k)),
    **{name: _fold(getattr(np, name)) for name in ("sum", "mean", "prod", "amax", "amin", "any", "all")},
    **{
        name: lambda x, dim=None, keepdim=False, f=getattr(np, name): f(x, dim, keepdims=keepdim)
        for name in ("argmax", "argmin")
    },
    "max": _extreme("max"),
    "min": _extreme("min"),
    "topk": _topk,
    "bmm": np.matmul,
    "linear": lambda x, w, b=None: x @ w.T + (0 if b is None else b),
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "nll_loss": _nll,
    "cross_entropy": _cross_entropy,
    "linear_cross_entropy": lambda x, w, *args, **kwargs: _cross_entropy(x @ w.T, *args, **kwargs),
    "conv2d": _conv2d,
    "conv_transpose2d": _conv_transpose2d,
    "resample": _resample,
    "constant_pad_nd": _constant_pad,
    "pad_around": _pad_around,
    "batch_norm": _batch_norm,
    "recurrent": _recurrent,
    **ACTIVATIONS,
    **{name: _reduced(terms) for name, terms in LOSSES.items()},
    "layer_norm": _layer_norm,
    "add_layer_norm": lambda x, y, *a: (x + y, _layer_norm(x + y, *a)),
    "add_rms_norm": lambda x, y, *a, **kw: (x + y, _rms_norm(x + y, *a, **kw)),
    "scaled_dot_product_attention": _attention,
    "rms_norm": _rms_norm,
    "group_norm": _group_norm,
    "embedding": lambda weight, index, padding_idx=None: weight[index],
    "dispatch_rows": _dispatch_rows,
    "combine_rows": _combine_rows,
    "embedding_part": lambda w, index, first, rows, padding_idx=None: np.pad(
        w, ((first, rows - first - len(w)), (0, 0))
    )[index],
    "index_select": lambda x, dim, index: np.take(x, index, dim) if x.ndim else x,
    "positions": np.argwhere,
    "scatter_add": _scatter_reduce,
    "scatter_reduce": _scatter_reduce,
    "round": np.round,
    "clamp": lambda x, lo=None, hi=None: np.minimum(
        np.maximum(x, -np.inf if lo is None else lo), np.inf if hi is None else hi
    ),
    "lerp": lambda x, y, w: x + w * (y - x),
    "addcmul": lambda x, y, z, value=1: x + value * y * z,
    "addcdiv": lambda x, y, z, value=1: x + value * y / z,
    "bitwise_left_shift": np.left_shift,
    "bitwise_right_shift": np.right_shift,
    "bitwise_not": lambda x: ~x,
    "argsort": lambda x, dim=-1, descending=False, stable=False: (
        np.argsort(-x if descending else x, dim, kind="stable") if x.ndim else np.zeros((), int)
    ),
    "sort": lambda x, dim=-1, descending=False, stable=False: (
        (np.take_along_axis(x, i, dim), i) if (i := NUMPY["argsort"](x, dim, descending)).ndim else (x, i)
    ),
    "gather": lambda x, dim, index: np.take_along_axis(
        x[tuple(slice(None) if d == dim % x.ndim else slice(0, n) for d, n in enumerate(index.shape))], index, dim
    ),
    "cumsum": lambda x, dim, dtype=None: np.cumsum(x, dim if x.ndim else None).reshape(x.shape),
    "flip": np.flip,
    **{f"max_pool{d}d{both}": _max_over(d, _windows, bool(both)) for d in (1, 2) for both in ("", "_with_indices")},
    **{f"avg_pool{d}d": _avg_pool(d) for d in (1, 2)},
    **{f"adaptive_avg_pool{d}d": _adaptive_avg_pool(d) for d in (1, 2)},
    "adaptive_max_pool1d": _max_over(1, _adaptive_windows, True),
    "adaptive_max_pool2d": _max_over(2, _adaptive_windows, False),
    "adaptive_max_pool2d_with_indices": _max_over(2, _adaptive_windows, True),
}


def reference(name, *args, **kwargs):
    """Op `name` by NumPy."""
    return NUMPY.get(name, getattr(np, name, None))(*args, **kwargs)


# The samples. `wide` is long enough for every vector loop and its tail.


def unary(lo=-2, hi=2, **kw):
    at = partial(T, lo=lo, hi=hi)
    shapes = [
        at((3, 4)), at((3, 4), layout="T"), at((2, 3), layout="S"), at((2, 3), layout="E"), at(()), at((0, 3)),
        at((1,)),
    ]  # fmt: skip
    return [S(t, **kw) for t in shapes] + [
        S(at((1037,)), grad=False, **kw),
        S(at((17, 9), layout="S"), grad=False, **kw),
    ]


def binary(lo=-2, hi=2, numbers=(1.5, 3), **kw):
    at = partial(T, lo=lo, hi=hi)
    pairs = [
        (at((3, 4)), at((3, 4))), (at((3, 1)), at((4,))), (at(()), at((2, 3))), (at((2, 3)), at(())), (at(()), at(())),
        (at((3, 4), layout="T"), at((3, 4))), (at((2, 3), layout="S"), at((2, 3), layout="E")),
        (at((2, 1, 3)), at((2, 1))), (at((0, 3)), at((1, 3))), (at((3, 1)), at((1, 0))),
        *[(at((2, 3)), n) for n in numbers], *[(n, at((2, 3))) for n in numbers],
    ]  # fmt: skip
    wide = [(at((1037,)), at((1037,))), (at((33, 31)), at((33, 1))), (at((33, 31)), at((31,)))]
    return [S(*p, **kw) for p in pairs] + [S(*p, grad=False, **kw) for p in wide]


def fold(lo=-2, hi=2, empty=True, dims=True, **kw):
    x = T((2, 3, 4), lo, hi)
    out = [
        S(x, **kw),
        S(x, 1, **kw),
        S(x, -1, True, **kw),
        S(T((2, 3), lo, hi, "T"), 0, **kw),
        S(T((2, 3), lo, hi, "S"), 1, **kw),
    ]
    out += [
        S(T((), lo, hi), **kw),
        S(T((5, 0), lo, hi), 0, **kw),
        S(T((777,), lo, hi), grad=False, **kw),
        S(T((65, 33), lo, hi), 0, grad=False, **kw),
    ]
    out += [S(T((65, 130), lo, hi), 1, grad=False, **kw)]
    if dims:
        out += [S(x, (0, 2), **kw), S(x, (0, 1), True, **kw), S(T((2, 3, 4), lo, hi, "T"), (0, 2), **kw)]
    if empty:
        out += [S(T((0, 3), lo, hi), 0, **kw), S(T((0,), lo, hi), **kw)]
    return out


def pool2d(**kw):
    """Windows of two dimensions: overlapping, apart, padded; rows of any length and layout."""
    at, large = partial(S, **kw), partial(S, grad=False, **kw)
    last = T((2, 3, 5, 6), layout="N")
    out = [
        at(T((1, 2, 4, 4)), 2),
        at(T((2, 1, 5, 7)), 3, 2, 1),
        at(T((3, 5, 4)), (2, 3), 1),
        at(T((1, 2, 5, 4)), 2, (3, 1), ceil_mode=True),
    ]
    out += [
        at(last, 2),
        at(last, 3, 2, 1, ceil_mode=True),
        at(T((1, 2, 4, 4), layout="T"), 2),
        at(T((1, 1, 3, 12), layout="S"), 2, 1),
    ]
    out += [at(T((0, 2, 4, 4)), 2), at(T((1, 1, 2, 20)), 2, 2, 1), at(T((1, 1, 4, 24)), 3, (1, 3), (0, 1))]
    out += [
        large(T((3, 4, 33, 34)), 2),
        large(T((2, 3, 40, 37)), 3, 2, 1),
        large(T((1, 2, 35, 70)), (2, 5), (2, 3)),
        large(T((2, 3, 30, 600)), 3, 1, 1),
    ]
    out += [
        large(T((2, 2, 40, 41)), 17, 5, 8),
        large(T((2, 20, 13, 14), layout="N"), 3, 2, 1),
        large(T((2, 2, 40, 700)), (2, 1), (2, 600)),
    ]
    return out + [large(T((2, 2, 50, 49)), 7), large(T((2, 600, 3, 3), layout="N"), 2, 1)]


def pool1d(**kw):
    at = partial(S, **kw)
    return [at(T((2, 3, 8)), 2), at(T((3, 9)), 3, 1, 1), at(T((1, 2, 10)), 3, 2, ceil_mode=True), at(T((0, 2, 4)), 2), at(T((1, 2, 9), layout="T"), 2),
            at(T((2, 3, 200)), 5, 2, 2, grad=False)]  # fmt: skip


def adaptive_pool2d(**kw):
    sizes = [
        ((2, 3, 5, 7), (2, 3)), ((1, 2, 4, 6), (2, 3)), ((2, 3, 4, 4), 1), ((2, 4, 5), 3), ((1, 2, 2, 3), (4, 5)),
        ((0, 2, 4, 4), 2),
    ]  # fmt: skip
    out = (
        [S(T(shape), size, **kw) for shape, size in sizes]
        + [S(T((1, 2, 3, 3), grad=False), (0, 2), **kw)]
        + [S(T((2, 3, 5, 4), layout="N"), size, **kw) for size in (1, (3, 2), (5, 4))]
    )
    return out + [
        S(T((3, 2, 40, 50)), (7, 9), grad=False, **kw),
        S(T((2, 20, 17, 18), layout="N"), (4, 5), grad=False, **kw),
    ]


def pointwise(*tails, **kw):
    """Of an activation: all layouts, then with each tail of arguments."""
    far = T((400,), -40, 40)
    return [
        *unary(-4, 4, dtypes="float", **kw),
        S(far, grad=False, dtypes="float", **kw),
        *[S(t, *tail, grad=t is not far, dtypes="float", **kw) for tail in tails for t in (T((3, 4), -4, 4), far)],
    ]


def loss(x=(-2, 2), y=(-2, 2), tails=({},), **kw):
    shapes = [((3, 4), (3, 4)), ((2, 3), (2, 3)), ((), ())]
    pairs = [(T(a, *x), T(b, *y)) for a, b in shapes] + [
        (T((3, 4), *x, "T"), T((3, 4), *y)),
        (T((2, 3), *x, "S"), T((2, 3), *y, "E")),
    ]
    ways = [{"reduction": r, **tail} for r in ("none", "mean", "sum") for tail in tails]
    out = [S(*pair, dtypes="float", **way, **kw) for way in ways for pair in pairs] + [
        S(T((0, 3), *x), T((0, 3), *y), reduction=r, dtypes="float") for r in ("none", "sum")
    ]
    return out + [S(T((61, 33), *x), T((61, 33), *y), grad=False, dtypes="float", **way, **kw) for way in ways]


x34, x234, t34 = T((3, 4)), T((2, 3, 4)), T((3, 4), layout="T")
rows, image = T((4, 5)), T((2, 4, 5, 5))
running = (T((4,), -1, 1, grad=False), T((4,), 0.5, 2, grad=False))
scale = (T((4,), 0.5, 2), T((4,)))

SAMPLES = {
    **{name: unary(lo, hi, c=8) for name, lo, hi in (("tan", -1.2, 1.2), ("asin", -0.95, 0.95), ("acos", -0.95, 0.95), ("atan", -4, 4), ("sinh", -2, 2), ("cosh", -2, 2),
                                                     ("asinh", -4, 4), ("acosh", 1.2, 5), ("atanh", -0.9, 0.9))},
    "atan2": binary(c=64), "logaddexp": binary(c=8),
    **{name: unary() for name in ("neg", "abs", "sign", "square", "relu", "angle", "conj", "conj_physical", "sin", "cos", "tanh", "sigmoid", "erf")},
    "exp": unary(-4, 4),
    "expm1": [*unary(-4, 4), S(T((400,), -1e-3, 1e-3), grad=False)],
    "log1p": [*unary(-0.9, 4), S(T((400,), -1e-3, 1e-3), grad=False)],
    **{name: unary(0.1, 9) for name in ("log2", "log10")},
    **{name: [*unary(-4, 4), S(T((9,), -1e9, 1e9), grad=False)] for name in ("floor", "ceil", "trunc", "round")},
    **{name: unary(0.1, 9) for name in ("log", "sqrt", "rsqrt", "reciprocal")},
    **{name: [*binary(linear=True), S(x34, T((4,)), alpha=-0.5, linear=True), S(I((3,)), I((3,)), alpha=2)] for name in ("add", "sub")},
    "mul": binary(),
    "div": [*binary(0.5, 3), S(I((3,), 1), I((3,), 1, 9))],
    "pow": [*binary(0.3, 2.5, c=8), S(T((2, 3)), 2), S(T((2, 3)), 3.0), S(T((2, 3), 0.2), -1.5), S(I((3,)), 2)],
    "maximum": binary(),
    "minimum": binary(),
    **{name: [*binary(), S(I((40,)), I((40,))), S(I((40,)), 2), S(B((9,)), B((9,)))] for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{name: [S(B((9,)), B((9,))), S(I((4, 3), 0, 2), I((3,), 0, 2)), S(x34, B((4,)))] for name in ("logical_and", "logical_or", "logical_xor")},
    **{name: [S(I((40,), -9, 9), I((40,), -9, 9)), S(I((3, 4), -9, 9), I((4,), -9, 9)), S(I((9,), -9, 9), 5), S(3, I((9,), -9, 9)), S(I((0, 3)), I((3,)))]
       for name in ("bitwise_and", "bitwise_or", "bitwise_xor")},
    **{name: [S(I((40,), -9, 99), I((40,), 0, 8)), S(I((3, 4), -9, 9), 2)] for name in ("bitwise_left_shift", "bitwise_right_shift")},
    "bitwise_not": [S(I((40,), -9, 9)), S(I((3, 4), -9, 9)), S(I((0,)))],
    "logical_not": [S(B((9,))), S(I((9,), 0, 2)), S(x34), S(T((0, 3)))],
    **{name: [S(T((3, 4), -5, 5, grad=g), T((3, 4), 0.7, 3, grad=g)), S(T((40,), -9, 9, grad=g), T((40,), -3, -0.5, grad=g)), S(T((3, 1), -5, 5, grad=g), T((4,), 0.7, 3, grad=g)), S(T((9,), -5, 5, grad=g), 1.5), S(5.0, T((9,), 1.1, 3, grad=g)),
              S(I((50,), -20, 20), I((50,), 1, 7)), S(I((50,), -20, 20), -3), S(T((0, 3), grad=g), T((3,), grad=g))] for name, g in {"remainder": True, "fmod": True, "floor_divide": False}.items()},
    "clamp": [S(x34, -0.5, 1.0), S(t34, 0.3), S(x34, None, 0.3), S(x34, T((4,), -2, 0), T((3, 1), 0, 2)), S(T(()), -1, 1), S(T((0, 3)), 0), S(I((40,), -9, 9), -3, 4),
              S(I((40,), -9, 9), None, 2), S(T((2, 3), layout="S"), T((2, 3), layout="E")), S(T((1037,)), -1.0, 0.5, grad=False)],
    "lerp": [S(x34, t34, 0.3, dtypes="float"), S(x34, T((4,)), T((3, 1)), dtypes="float"), S(T(()), T(()), 0.9, dtypes="float"), S(T((0, 3)), T((3,)), 0.5, dtypes="float")],
    "addcmul": [S(x34, t34, T((4,))), S(x34, x34, T((3, 1)), value=-0.5), S(T((0, 3)), T((3,)), T(())), S(I((9,)), I((9,)), I((9,)), value=2)],
    "addcdiv": [S(x34, t34, T((4,), 0.5, 2), dtypes="float"), S(x34, x34, T((3, 1), 0.5, 2), value=-0.5, dtypes="float"), S(T((0, 3)), T((3,)), T(()), dtypes="float")],
    **{name: [S(rows, stable=True), S(rows, 0, stable=True), S(rows, -1, True, stable=True), S(x234, 1, True, stable=True), S(t34, 0, stable=True), S(T(()), stable=True), S(T((0, 3)), stable=True), S(T((3, 0)), stable=True), S(I((50,), 0, 9), stable=True), S(I((4, 60), -9, 9), 1, True, stable=True),
              S(T((6, 700)), grad=False, stable=True), S(T((300, 5)), 0, grad=False, stable=True)] for name in ("sort", "argsort")},
    "gather": [S(x34, 1, I((3, 2), 0, 4)), S(x34, 0, I((2, 4), 0, 3)), S(t34, -1, I((2, 6), 0, 4)), S(x234, 1, I((2, 5, 3), 0, 3)), S(T((5,)), 0, I((9,), 0, 5)), S(x34, 0, I((0, 4)))],
    "cumsum": [S(x34, 0, linear=True), S(x234, 1, linear=True), S(t34, -1, linear=True), S(T(()), 0, linear=True), S(T((0, 3)), 1, linear=True), S(T((3, 0)), 1, linear=True),
               S(T((70, 300)), 1, linear=True, grad=False), S(T((70, 300)), 0, linear=True, grad=False)],
    "flip": [S(x234, (0,)), S(x234, (1, -1)), S(t34, (0, 1)), S(T((2, 3), layout="S"), (1,)), S(T((2, 3), layout="E"), (0, 1)), S(x34, ()), S(T((0, 3)), (0,)), S(I((5, 6), 0, 99), (1,))],
    "where": [S(B((3, 4)), x34, t34), S(B((4,)), x34, T((3, 1))), S(B((3, 4)), x34, 0.5), S(B((3, 4)), 2.0, x34), S(B(()), x34, x34),
              S(B((0, 4)), T((0, 4)), T((4,))), S(B((33, 70)), T((33, 70)), T((70,)), grad=False)],
    "clone": [S(x34), S(t34), S(T((2, 3), layout="S")), S(T((2, 3), layout="E")), S(T(())), S(T((0, 2)))],
    "copy": [S(x34, x34), S(x34, T((4,))), S(t34, T((3, 1))), S(T((0, 4)), T((4,))), S(x34, I((3, 4)))],
    "fill": [S(x34, 2), S(t34, -1.5), S(T(()), 3), S(T((0,)), 1)],
    "cast": [S(x34, "float32", grad=False), S(t34, "float64"), S(x34, "int64"), S(x34, "bool"), S(I((5,), -9, 9), "float32"), S(T((0,)), "float16")],
    "view": [S(x234, (6, 4)), S(x234, (-1,)), S(T((6, 4), layout="S"), (2, 3, 4)), S(T(()), (1, 1)), S(T((0, 3)), (3, 0))],
    "reshape": [S(x234, (4, 6)), S(t34, (2, 6)), S(x234, (-1, 2)), S(T((2, 3), layout="E"), (6,)), S(T((1,)), ()), S(T((0, 4)), (2, 0))],
    "permute": [S(x234, (2, 0, 1)), S(x234, (-1, 0, -2)), S(T(()), ()), S(T((0, 2)), (1, 0))],
    "transpose": [S(x234, 0, 2), S(t34, -1, 0), S(T((0, 2)), 0, 1)],
    "expand": [S(T((3, 1)), (3, 4)), S(T((3,)), (2, -1)), S(T(()), (2, 2)), S(T((1, 3)), (0, 3)), S(x34, (2, -1, 4))],
    "select": [S(x234, 1, 2), S(t34, 0, -1), S(T((3,)), 0, 1)],
    "slice": [S(x234, 1, 1, 3), S(x34, 0, -2, 99), S(t34, 1, 0, 4, 2), S(x34, 0, 2, 1), S(x34, -1, 1, -1)],
    "squeeze": [S(T((1, 3, 1))), S(T((1, 3, 1)), 0), S(T((1, 3, 1)), -1), S(T((1, 3)), 1), S(T((1, 1))), S(T((1, 3, 1, 1)), (0, -1)), S(T((1, 3)), ())],
    "unsqueeze": [S(x34, 0), S(t34, 1), S(x34, -1), S(T(()), 0)],
    "flatten": [S(x234), S(x234, 1), S(T((2, 3, 4), layout="T"), 0, 1), S(T(())), S(T((2, 0, 3)), 1)],
    "as_strided": [S(T((12,)), (3, 2), (4, 1)), S(T((12,)), (4, 3), (2, 1), 1), S(T((5,)), (3,), (0,), 2)],
    "cat": [S([x34, T((2, 4))]), S([x34, t34, T((3, 1))], 1), S([x34, T((3, 2))], -1), S([x34]), S([T((0, 4)), x34]),
            S([T((2, 3), layout="S"), T((2, 3), layout="E")]), S([T((70, 33)), T((5, 33))], grad=False)],
    "stack": [S([x34, x34]), S([x34, t34], -1), S([T(()), T(())]), S([T((0,)), T((0,))], 1)],
    "index": [S(x34, I((5,), -3, 3)), S(x34, I((2, 1), 0, 3), I((3,), -4, 4)), S(x34, None, I((2, 2))), S(x234, I((3,), 0, 2), None, I((3,))),
              S(x34, B((3, 4))), S(x34, B((3,))), S(x234, None, B((3, 4))), S(t34, I((2,), 0, 3)), S(x34, I((0,))), S(T((0, 4)), None, I((3,)))],
    "index_put": [S(x34, [I((5,), 0, 3)], T((5, 4)), True), S(x34, [I((2, 1), 0, 3), I((3,), 0, 4)], T(()), True), S(t34, [None, I((6,))], T((3, 1)), True),
                  S(T((9, 4)), [I((1,), 0, 9)], T((4,))), S(x34, [B((3, 4))], T(())), S(x34, [B((3,))], T((4,))), S(x34, [I((0,))], T((0, 4)))],
    "sum": fold(linear=True),
    "square_sum": fold(empty=False, dtypes="float"),
    "mean": fold(empty=False, linear=True, dtypes="float"),
    "prod": fold(0.7, 1.35, dims=False, c=64, dtypes="float"),
    "amax": fold(empty=False),
    "amin": fold(empty=False),
    **{name: [*fold(), S(B((4, 5)), 1), S(B((300,))), S(I((4, 5), 0, 2), 0, True)] for name in ("any", "all")},
    **{name: [*fold(empty=False, dims=False), S(I((40,), 0, 5)), S(I((4, 9), 0, 3), 1)] for name in ("argmax", "argmin", "max", "min")},
    "topk": [S(rows, 2), S(rows, 3, 0), S(rows, 2, 1, False), S(T((3, 5), layout="T"), 5), S(T((7,)), 0), S(T(()), 1), S(T((0, 3)), 2),
             S(T((6, 700)), 20, grad=False), S(T((33, 40)), 33, 0, False, grad=False)],
    "matmul": [S(a, b, linear=True, dtypes="float") for a, b in [
        (T((3, 4)), T((4, 5))), (T((4,)), T((4,))), (T((3, 4)), T((4,))), (T((4,)), T((4, 2))), (T((2, 3, 4)), T((4, 2))), (T((2, 3, 4)), T((2, 4, 2))),
        (T((2, 1, 2, 3)), T((3, 3, 2))), (t34, T((4, 3), layout="T")), (T((3, 4), layout="S"), T((4, 2), layout="E")), (T((2, 3, 4)), T((4,))),
        (T((4,)), T((2, 4, 3))), (T((0, 4)), T((4, 3))), (T((3, 0)), T((0, 2))), (T((2, 0, 3)), T((3, 4)))]]
        + [S(T((129, 257)), T((257, 65)), linear=True, grad=False, dtypes="float"), S(T((65, 70), layout="T"), T((70, 33), layout="T"), linear=True, grad=False, dtypes="float"),
           S(T((3, 40, 50)), T((3, 50, 20)), linear=True, grad=False, dtypes="float")],
    "bmm": [S(a, b, linear=True, dtypes="float") for a, b in [(T((2, 3, 4)), T((2, 4, 2))), (T((2, 3, 4), layout="T"), T((2, 4, 2), layout="S")), (T((0, 3, 4)), T((0, 4, 2))), (T((2, 3, 0)), T((2, 0, 2))), (T((3, 3, 1)), T((3, 1, 3), layout="T"))]]
        + [S(I((2, 3, 4), -9, 9), I((2, 4, 2), -9, 9)), S(I((70, 33), 0, 99), I((33, 50), 0, 99))],
    "linear": [S(*a, linear=True, dtypes="float") for a in [
        (x34, T((5, 4)), T((5,))), (x34, T((5, 4))), (T((4,)), T((2, 4)), T((2,))), (x234, T((2, 4)), T((2,))), (t34, T((2, 4), layout="T"), T((2,))),
        (T((0, 4)), T((5, 4)), T((5,))), (T((3, 0)), T((2, 0)), T((2,)))]] + [S(T((65, 130)), T((70, 130)), T((70,)), linear=True, grad=False, dtypes="float")],
    **{name: [S(x34, -1, c=8, dtypes="float"), S(x234, 1, c=8, dtypes="float"), S(t34, 0, c=8, dtypes="float"), S(T((2, 3), layout="S"), -1, c=8, dtypes="float"),
              S(T(()), 0, dtypes="float"), S(T((0, 3)), -1, dtypes="float"), S(T((20, 300), -30, 30), -1, c=8, grad=False, dtypes="float"),
              S(T((30, 40, 3)), 1, c=8, grad=False, dtypes="float")] for name in ("softmax", "log_softmax")},
    **{name: [S(rows, I((4,)), dtypes="float"), S(rows, I((4,)), reduction="none", dtypes="float"), S(rows, I((4,)), T((5,), 0.2, 2, grad=False), reduction="sum", dtypes="float"),
              S(rows, I((4,)), T((5,), 0.2, 2, grad=False), ignore_index=2, dtypes="float"), S(T((4, 5), layout="T"), I((4,)), dtypes="float"),
              S(T((2, 5, 3)), I((2, 3)), dtypes="float"), S(T((2, 5, 2, 2)), I((2, 2, 2)), reduction="none", dtypes="float"),
              S(T((130, 33)), I((130,), 0, 33), grad=False, c=8, dtypes="float")] for name in ("nll_loss", "cross_entropy")},
    "dropout": [S(x34, 0.0), S(x34, 0.3, False), S(x34, 1.0, dtypes="float"), S(T((0, 3)), 0.5, dtypes="float")],
    "uniform": [], "normal": [], "bernoulli": [],  # RANDOM
    "conv2d": [S(*a, linear=True, dtypes="float", **kw) for a, kw in [
        ((image, T((3, 4, 3, 3)), T((3,))), {}), ((image, T((3, 4, 2, 3))), {"stride": 2, "padding": 1}), ((image, T((4, 2, 3, 3)), T((4,))), {"groups": 2}),
        ((T((1, 2, 6, 6)), T((2, 2, 2, 2))), {"dilation": 2, "padding": (2, 1)}), ((T((1, 3, 5, 4)), T((3, 1, 3, 3))), {"groups": 3, "stride": (1, 2)}),
        ((T((2, 4, 4, 4), layout="N"), T((2, 4, 1, 1)), T((2,))), {}), ((T((1, 2, 5, 5), layout="T"), T((2, 2, 3, 3), layout="N")), {"padding": 1}),
        ((T((0, 2, 4, 4)), T((3, 2, 3, 3)), T((3,))), {})]]
        + [S(T((2, 16, 17, 17)), T((24, 16, 3, 3)), T((24,)), padding=1, linear=True, grad=False, dtypes="float"),
           S(T((3, 8, 16, 15)), T((16, 8, 5, 5)), None, 2, 2, linear=True, grad=False, dtypes="float")],
    "conv_transpose2d": [S(*a, linear=True, dtypes="float", **kw) for a, kw in [
        ((image, T((4, 3, 3, 3)), T((3,))), {}), ((image, T((4, 3, 2, 3))), {"stride": 2, "padding": 1, "output_padding": 1}), ((image, T((4, 2, 3, 3)), T((4,))), {"groups": 2}),
        ((T((1, 2, 3, 3)), T((2, 2, 2, 2))), {"dilation": 2, "padding": (2, 1)}), ((T((1, 2, 3, 4)), T((2, 1, 2, 2))), {"dilation": 2, "output_padding": 1}), ((T((2, 4, 4, 4), layout="N"), T((4, 2, 1, 1)), T((2,))), {}), ((T((0, 2, 4, 4)), T((2, 3, 3, 3)), T((3,))), {})]]
        + [S(T((2, 16, 9, 9)), T((16, 8, 4, 4)), T((8,)), 2, 1, linear=True, grad=False, dtypes="float")],
    "constant_pad_nd": [S(x34, (1, 2)), S(x234, (1, 0, 0, 2), 1.5), S(t34, (-1, 2, 1, -1)), S(T((2, 3), layout="S"), (0, 0, -1, -1), 3), S(T((0, 3)), (1, 1, 2, 0), 2), S(I((3,)), (2, 1), 7),
                        S(T((2, 3, 4, 4), layout="N"), (1, 1, 1, 1)), S(x34, ()), S(T((33, 70)), (5, 3, 1, 0), -1, grad=False)],
    "resample": [S(T(shape), dim, size, mode, align, dtypes="wide", c=200) for mode, aligns in (("nearest", [False]), ("exact", [False]), ("linear", [False, True]), ("cubic", [False, True]), ("linear_aa", [False]), ("cubic_aa", [False]))
                 for align in aligns for shape, dim, size in (((2, 4), 1, 7), ((5, 2), 0, 3), ((1, 9), 1, 2), ((2, 3, 2), 1, 6), ((1, 3), 1, 1))]
        + [S(T((2, 5)), 1, 8, "linear", False, 1 / 1.7, dtypes="wide", c=200), S(T((2, 5)), 1, 8, "nearest", False, 1 / 1.7, dtypes="wide"), S(t34, -1, 6, dtypes="wide", c=200),
           S(T((2, 7), grad=False), 1, 4, "linear", True, 0, True, dtypes="wide", c=200), S(T((9, 33, 20)), 1, 70, "cubic", grad=False, dtypes="wide", c=200)],
    "pad_around": [S(T(shape, layout=layout), pad, mode, dtypes="float") for mode in ("reflect", "replicate", "circular") for shape, pad, layout in (
        ((2, 3, 4), (1, 2), "C"), ((1, 2, 3, 4), (2, 3, 1, 0), "T"), ((2, 4), (3, 0), "S"), ((1, 3, 4, 5), (0, 1, 2, 1), "N"), ((2, 1, 3, 2, 3), (1, 0, 0, 1, 2, 1), "C"))],
    "batch_norm": [S(*a, c=16, dtypes="wide", writes=(1, 2), **kw) for a, kw in [
        ((T((5, 4)), *running, *scale, True), {}), ((T((5, 4)), *running, *scale), {}), ((image, *running, *scale, True), {"momentum": 0.5, "eps": 1e-3}),
        ((image, *running), {}), ((image, None, None, *scale, True), {}), ((T((2, 4, 3)), *running, *scale, True), {}), ((T((2, 4, 3, 3), layout="N"), *running, *scale, True), {}),
        ((T((0, 4)), *running, *scale), {})]]
        + [S(T((32, 4, 9, 9)), *running, *scale, True, c=16, grad=False, dtypes="wide", writes=(1, 2))],
    **{name: pointwise(c=8) for name in ("silu", "mish", "logsigmoid", "hardsigmoid", "hardswish")},
    "gelu": pointwise(("tanh",), c=64),  # 1 + erf(x), or what is like it, cancels where x < 0
    "leaky_relu": pointwise((0.3,), (0.0,)),
    "elu": pointwise((0.7,), (1.7, 1.05), (0.5, 1.0, 2.0), c=8),
    "softplus": pointwise((2.0,), (0.5, 1.0), c=8),
    "hardtanh": pointwise((-0.5, 2.0), (0, 6)),
    "mse_loss": loss(), "l1_loss": loss(),
    "smooth_l1_loss": loss(tails=({}, {"beta": 0.4}, {"beta": 0.0})),
    "huber_loss": loss(tails=({}, {"delta": 0.4})),
    "kl_div": loss((-4, -0.1), (0.05, 1)) + loss((-4, -0.1), (-3, -0.1), ({"log_target": True},)),
    "binary_cross_entropy": [*loss((0.05, 0.95), (0.05, 0.95), c=8), S(T((3, 4), 0.1, 0.9), T((3, 4), 0, 1), T((4,), 0.5, 2, grad=False), c=8, dtypes="float")],
    "binary_cross_entropy_with_logits": [*loss((-4, 4), (0.05, 0.95), c=8), S(x34, T((3, 4), 0, 1), T((4,), 0.5, 2, grad=False), c=8, dtypes="float"),
        S(x34, T((3, 4), 0, 1), None, T((4,), 0.5, 2, grad=False), c=8, dtypes="float"), S(x34, T((3, 4), 0, 1), T((3, 1), grad=False), T((4,), 0.5, 2, grad=False), reduction="sum", c=8, dtypes="float")],
    "scaled_dot_product_attention": [
        S(*(T(shape, layout=layout) for shape in shapes), *more, c=32, dtypes="float", **kw) for shapes, layout, more, kw in [
            (((2, 2, 5, 3), (2, 2, 4, 3), (2, 2, 4, 3)), "C", (), {}), (((1, 2, 5, 3), (1, 2, 5, 3), (1, 2, 5, 2)), "T", (), {"is_causal": True}),
            (((2, 4, 3, 2), (2, 2, 6, 2), (2, 2, 6, 2)), "S", (), {"enable_gqa": True, "scale": 0.3}), (((3, 4), (5, 4), (5, 2)), "C", (B((3, 5)),), {}),
            (((2, 3, 4), (2, 5, 4), (2, 5, 4)), "C", (T((3, 5)),), {}), (((1, 2, 70, 3), (1, 2, 140, 3), (1, 2, 140, 3)), "C", (), {"is_causal": True}),
            (((1, 1, 1, 2, 3, 4), (1, 1, 1, 2, 3, 4), (1, 1, 1, 2, 3, 4)), "C", (B((1, 3)),), {}), (((0, 2, 3, 4), (0, 2, 3, 4), (0, 2, 3, 4)), "C", (), {})]],
    "layer_norm": [S(*a, c=16, dtypes="float") for a in [(x34, (4,), T((4,)), T((4,))), (x34, (4,)), (x234, (3, 4), T((3, 4)), T((3, 4))), (t34, (4,), T((4,)), None),
                   (T((5,)), (5,), None, T((5,))), (T((0, 4)), (4,), T((4,)), T((4,))), (T((2, 3), layout="S"), (3,), T((3,), layout="S"), T((3,)), 1e-3)]]
        + [S(T((70, 700), -1, 5), (700,), T((700,)), T((700,)), c=16, grad=False, dtypes="float"), S(T((300, 33)), (33,), T((33,)), T((33,)), c=16, grad=False, dtypes="float")],
    "rms_norm": [S(*a, c=16, dtypes="float", **kw) for a, kw in [((x34, (4,), T((4,))), {"eps": 1e-5}), ((x34, (4,)), {"eps": 1e-3}), ((x234, (3, 4), T((3, 4))), {"eps": 1e-6}),
                 ((T((0, 4)), (4,), T((4,))), {}), ((t34, (4,)), {"eps": 1e-5})]] + [S(T((70, 700), 1, 5), (700,), T((700,)), c=16, grad=False, eps=1e-5, dtypes="float")],
    "add_layer_norm": [S(*a, c=32, dtypes="float") for a in [(x34, x34, (4,), T((4,)), T((4,))), (x234, x234, (3, 4), T((3, 4))), (t34, x34, (4,), None, T((4,)), 1e-3), (T((0, 4)), T((0, 4)), (4,), T((4,)))]]
        + [S(T((70, 700), -1, 5), T((70, 700)), (700,), T((700,)), T((700,)), c=32, grad=False, dtypes="float")],
    "add_rms_norm": [S(x34, x34, (4,), T((4,)), eps=1e-3, c=32, dtypes="float"), S(t34, x34, (4,), eps=1e-3, c=32, dtypes="float")],
    "group_norm": [S(*a, c=16, dtypes="float") for a in [(image, 2, *scale), (image, 1), (image, 4, *scale, 1e-3), (T((3, 8)), 2, T((8,)), T((8,))), (T((2, 4, 3, 3), layout="N"), 2, *scale)]],
    "index_select": [S(x34, 1, I((5,), 0, 4)), S(x234, 1, I((4,), 0, 3)), S(x234, 0, I((3,), 0, 2)), S(t34, -1, I((2,), 0, 4)), S(T((5,)), 0, I((9,), 0, 5)), S(x34, 1, I((0,))), S(T(()), 0, I((1,), 0, 1))],
    "positions": [S(B((3, 4))), S(B((2, 3, 4), layout="T")), S(B((9,))), S(B(())), S(B((0, 3)))],
    "scatter_reduce": [
        *[S(x34, 1, I((3, 6), 0, 4), T((3, 6)), how, include_self=own) for how in ("sum", "prod", "mean", "amax", "amin") for own in (True, False)],
        *[S(T((5,)), 0, I((9,), 0, 4), T((9,)), how) for how in ("prod", "mean", "amax", "amin")], S(x234, 1, I((2, 5, 3), 0, 3), T((2, 5, 3)), "prod"),
        S(t34, -1, I((3, 4), 0, 4), T((3, 4), layout="T"), "amax", include_self=False), S(x34, 0, I((0, 4)), T((0, 4)), "mean"),
    ],
    "scatter_add": [S(x34, 1, I((3, 2), 0, 4), T((3, 2))), S(x34, 0, I((5, 4), 0, 3), T((5, 4))), S(x234, 1, I((2, 5, 3), 0, 3), T((2, 5, 3))), S(t34, -1, I((2, 6), 0, 4), T((2, 6), layout="T")), S(T((5,)), 0, I((9,), 0, 5), T((9,))), S(x34, 0, I((0, 4)), T((0, 4)))],
    "dispatch_rows": [S(T((4, 3)), I((4, 2), -1, 9), 9, dtypes="float"), S(T((4, 3), layout="T"), I((4, 2), -1, 9), 9, T((4, 2)), dtypes="float"), S(T((4, 3)), I((4, 2), -1, 2), 2, T((4, 2), layout="T"), dtypes="float"), S(T((1, 3)), I((1, 1), 1, 2), 3, T((1, 1)), dtypes="float")],
    "combine_rows": [S(T((9, 3)), I((4, 2), -1, 9), dtypes="float"), S(T((9, 3), layout="T"), I((4, 2), -1, 9), T((4, 2)), dtypes="float"), S(T((2, 3)), I((4, 2), -1, 2), T((4, 2), layout="T"), dtypes="float")],
    "embedding_part": [S(T((3, 2)), I((4, 2), 0, 7), 2, 7), S(T((3, 2)), I((9,), 0, 7), 4, 7, 5, grad=False)],
    "embedding": [S(T((5, 3)), I((4,), 0, 5)), S(T((5, 3)), I((2, 3), 0, 5), 2, grad=False), S(T((5, 3)), I((6,), 0, 5), -1, grad=False), S(T((5, 3), layout="T"), I((), 0, 5)), S(T((5, 3)), I((0, 2))),
                  S(T((40, 70)), I((300,), 0, 40), 7, grad=False)],
    **{name: [*pool2d(), S(T((1, 2, 7, 8)), 2, 1, 0, 2), S(T((1, 2, 9, 30)), 3, 2, 1, (2, 3)), S(T((1, 1, 20, 20)), 16, 4), S(I((2, 3, 6, 6), -9, 9), 2)]
       for name in ("max_pool2d", "max_pool2d_with_indices")},
    **{name: [*pool1d(), S(T((2, 2, 9)), 2, 1, 1, 2)] for name in ("max_pool1d", "max_pool1d_with_indices")},
    "avg_pool2d": [S(*s.args, linear=True, dtypes="float", grad=s.grad, **s.kwargs, **kw) for s in pool2d() for kw in ({}, {"count_include_pad": False}) if s.grad or not kw]
        + [S(T((1, 2, 5, 5)), 2, 2, 1, divisor_override=3, linear=True, dtypes="float")],
    "avg_pool1d": [S(*s.args, linear=True, dtypes="float", grad=s.grad, **s.kwargs, **kw) for s in pool1d() for kw in ({}, {"count_include_pad": False})],
    **{name: adaptive_pool2d(dtypes="float") for name in ("adaptive_max_pool2d", "adaptive_max_pool2d_with_indices")},
    "adaptive_avg_pool2d": adaptive_pool2d(linear=True, dtypes="float"),
    **{name: [S(T((2, 3, 7)), 3, dtypes="float"), S(T((3, 8)), 2, dtypes="float"), S(T((0, 2, 5)), 2, dtypes="float"), S(T((1, 2, 3)), 5, dtypes="float")]
       for name in ("adaptive_avg_pool1d", "adaptive_max_pool1d")},
}  # fmt: skip
SAMPLES["linear_cross_entropy"] = [
    S(T((6, 4)), T((5, 4)), I((6,), 0, 5), c=16, dtypes="float", **kw)
    for kw in ({}, {"reduction": "sum", "ignore_index": 2}, {"label_smoothing": 0.2})
]
SAMPLES["recurrent"] = [
    S(
        T((3, 2, gates * 4)), T((2, 4)), T((2, 4)) if kind == "lstm" else None, T((gates * 4, 4)), bias, kind,
        reverse, c=64, dtypes="wide",
    )
    for kind, gates in (("lstm", 4), ("gru", 3), ("rnn_tanh", 1), ("rnn_relu", 1))
    for reverse, bias in ((False, T((gates * 4,))), (True, None))
] + [
    S(
        T((3, 2, gates * 4)), T((2, 4)), T((2, 4)) if kind == "lstm" else None, T((gates * 4, 4)), T((gates * 4,)), kind,
        reverse, B((3, 2)), c=64, dtypes="wide",
    )
    for kind, gates, reverse in (("lstm", 4, False), ("gru", 3, True), ("rnn_tanh", 1, False), ("rnn_relu", 1, True))
] + [S(T((1, 0, 12)), T((0, 3)), T((0, 3)), T((12, 3)), None, "lstm", dtypes="wide")]  # fmt: skip
SAMPLES["cross_entropy"] += [
    S(rows, I((4,)), label_smoothing=0.1, dtypes="float"),
    S(rows, I((4,)), T((5,), 0.2, 2, grad=False), ignore_index=2, label_smoothing=0.2, dtypes="float"),
]

# Random ops: arguments, mean and standard deviation of what they draw.
RANDOM = {
    "uniform": [((), 0.5, 12**-0.5), ((-1.0, 3.0), 1.0, 4 * 12**-0.5)],
    "normal": [((), 0, 1), ((2.0, 0.5), 2, 0.5)],
    "bernoulli": [((), 0.5, 0.5), ((0.2,), 0.2, 0.4), ((0.0,), 0, 0), ((1.0,), 1, 0)],
}

# Ops that users reach through another one only: their samples are that one's.
HIDDEN = {
    "conjugate": "conj", "complex_angle": "angle",
    "where_same": "where", "to_device": "clone", "as_strided_scatter_add": "as_strided", "index_front": "index", "index_put_front": "index_put", "extreme": "max",
    "topk_last": "topk", "nll_rows": "nll_loss", "cross_entropy_rows": "cross_entropy", "dropout_mask": "dropout",
    "conv2d_grad_input": "conv2d", "conv2d_grad_weight": "conv2d", "pool_max": "max_pool2d", "pool_max_grad": "max_pool2d",
    "pool_max_take": "max_pool2d", "pool_max_index": "max_pool2d_with_indices", "pool_avg": "avg_pool2d", "pool_avg_grad": "avg_pool2d",
    "mse_terms": "mse_loss", "l1_terms": "l1_loss", "smooth_l1_terms": "smooth_l1_loss", "huber_terms": "huber_loss", "bce_terms": "binary_cross_entropy",
    "bce_logits_terms": "binary_cross_entropy_with_logits", "kl_terms": "kl_div", "kl_log_terms": "kl_div", "gelu_erf": "gelu", "gelu_tanh": "gelu",
    "attend": "scaled_dot_product_attention", "norm_rows": "layer_norm", "add_norm_rows": "add_layer_norm", "norm_groups": "group_norm", "embedding_lookup": "embedding", "embedding_grad": "embedding", "row_products": "combine_rows",
    "argsort_last": "argsort", "gather_grad": "gather", "scatter_sum": "scatter_add", "scatter_fold": "scatter_reduce", "index_spread": "index_select", "bmm_wide": "linear", "running_sum": "cumsum",
}  # fmt: skip

# Odd sizes, broadcasting and layouts at a useful size, beside benchmarks/workloads/ops.py: test_ops.py compares the bits of
# both for several numbers of threads.
_square, _image = T((512, 512), 0.1, 2), T((8, 32, 28, 28))
LARGE = {
    **{name: S(_square, T((512,), 0.1, 2)) for name in ("add", "pow")},
    **{f"sum:{dim}": S(T((96, 1000, 9)), dim) for dim in (0, 1, 2)},
    "sum:all": S(T((1_000_003,))),
    "prod": S(T((500_000,), 0.999, 1.001)),
    "index": S(T((5000, 64)), I((20000,), 0, 5000)),
    "index_put": S(T((500, 64)), [I((20000,), 0, 500)], T((20000, 64)), True),
    "matmul": S(T((300, 500)), T((500, 260))),
    "matmul:ta": S(T((260, 4000), layout="T"), T((4000, 100))),
    "matmul:tb": S(T((300, 500)), T((500, 260), layout="T")),
    "bmm": S(T((6, 90, 110)), T((6, 110, 70))),
    "scaled_dot_product_attention": S(T((2, 3, 150, 32)), T((2, 3, 150, 32)), T((2, 3, 150, 32)), is_causal=True),
    "linear": S(T((64, 784)), T((128, 784)), T((128,))),
    "log_softmax": S(T((64, 1000, 9)), 1),
    "cross_entropy": S(T((4000, 100)), I((4000,), 0, 100)),
    "conv2d": S(_image, T((48, 32, 3, 3)), T((48,)), padding=1),
    "conv_transpose2d": S(_image, T((32, 16, 4, 4)), T((16,)), 2, 1),
    "pad_around": S(_image, (4, 4, 4, 4), "reflect"),
    "resample": S(_image, 2, 56),
    "batch_norm": S(_image, None, None, T((32,)), T((32,)), True),
    "recurrent": S(
        T((20, 40, 400), -1, 1), T((40, 100), -1, 1), T((40, 100), -1, 1), T((400, 100), -0.1, 0.1), T((400,), -1, 1),
        "lstm",
    ),
    "where": S(B((512, 512)), _square, T((512,))),
    "nll_loss": S(T((4000, 100)), I((4000,), 0, 100)),
    "lerp": S(_square, T((512,)), 0.3),
    "addcdiv": S(_square, T((512,)), T((512, 1), 0.5, 2)),
    "sort": S(T((512, 300))),
    "scatter_reduce": S(_square, 1, I((512, 200), 0, 512), T((512, 200)), "prod"),
    "layer_norm": S(T((512, 768)), (768,), T((768,)), T((768,))),
    "embedding": S(T((1000, 128)), I((5000,), 0, 1000)),
    **{
        f"{name}:{layout}{size}": S(T((8, 32, size, size), layout=layout), 3, 2, 1)
        for name in ("max_pool2d", "avg_pool2d")
        for layout in "CN"
        for size in (14, 56)
    },
    **{
        f"{name}:{layout}": S(T((8, 32, 30, 31), layout=layout), (7, 8))
        for name in ("adaptive_max_pool2d", "adaptive_avg_pool2d")
        for layout in "CN"
    },
}  # fmt: skip


def cases(lib, dtype="float32", grad=False):
    """(name, function without arguments, tensors) for every sample of LARGE in library `lib`."""
    for name, sample in LARGE.items():
        tensors = build(lib, sample, arrays(name, sample), dtype)
        if grad:
            for spec, t in zip(specs_of(sample), tensors):
                if isinstance(spec, T) and spec.grad:
                    t.requires_grad_()
        yield name, partial(call, lib, name.split(":")[0], *arguments(sample, tensors), **sample.kwargs), tensors
