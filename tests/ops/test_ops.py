"""Every op of the table by its samples (op_samples.py): an fp64 reference, finite differences of first and second order,
in-place and out= forms, integers, special values; the same bits for any number of threads. tests/gpu compares a GPU's kernels with the CPU's by the same samples."""

import itertools
import math
import os
import subprocess
import sys
import warnings
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import pydist
from lib.op_samples import (
    COMPLEX,
    HIDDEN,
    LARGE,
    RANDOM,
    SAMPLES,
    SPECIAL,
    T,
    arguments,
    arrays,
    build,
    call,
    cases,
    is_tensor,
    reference,
    specs_of,
)  # fmt: skip
from lib.package import COMPARED
from pydist import _C

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.workloads.ops import OPS, prepared

try:
    import torch

    warnings.filterwarnings("ignore", module="torch")
except ImportError:
    torch = None
needs_torch = pytest.mark.skipif(not torch, reason="needs torch")

FUNC, METHOD, NN, INPLACE, VIEW = (_C._OP_FLAGS[name] for name in ("FUNC", "METHOD", "NN", "INPLACE", "VIEW"))
TABLE = {name: (signature, flags, differentiable) for name, signature, _, flags, differentiable, _ in _C.op_table()}
SAMPLED = [name for name, samples in SAMPLES.items() if samples]
SMOOTH = [name for name in SAMPLED if TABLE[name][2]]
EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
FLOATS = tuple(EPS)
LONG = "FULL_LONG" in os.environ  # .ci/full
each_op = pytest.mark.parametrize("name", SAMPLED)
each_smooth_op = pytest.mark.parametrize("name", SMOOTH)


def as_list(result):
    return list(result) if isinstance(result, (tuple, list)) else [result]


def numbers(t):
    """The tensor in fp64 (integers and bool as they are); of either library."""
    t = t.detach()
    return (t.double() if t.is_floating_point() else t).numpy()


def word(dtype):
    return str(dtype).split(".")[-1]


def close(got, want, eps, c, size=None, what=""):
    """|got - want| <= 1e-6 |want| + c eps S; fp64 has no 1e-6."""
    assert got.shape == want.shape, (what, got.shape, want.shape)
    if not want.size:
        return
    size = np.abs(want[np.isfinite(want)]).max(initial=0) if size is None else size
    if got.dtype == bool:
        got, want = got.astype(int), want.astype(int)
    bound = (1e-6 if eps > 1e-10 else 0) * np.abs(want) + c * eps * size + 1e-300
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    with np.errstate(invalid="ignore", over="ignore"):
        bad = ~(same | (np.abs(got - want) <= bound))
    assert not bad.any(), (
        what,
        got[bad][:5],
        want[bad][:5],
        f"off by {np.nanmax(np.abs(got - want) / bound):.3g} bounds",
    )


def in_place(name):
    """The function that writes the op's result over its first argument."""
    return getattr(pydist.Tensor if TABLE[name][1] & METHOD else _C, name + "_")


def samples_of(name):
    for i, s in enumerate(SAMPLES[name]):
        yield f"{name}[{i}]", s, arrays(name, s)


# The table.


def test_every_public_op_has_samples():
    public = {name for name, (_, flags, _) in TABLE.items() if flags & (FUNC | METHOD | NN | INPLACE)} - {
        "where_same",
        *COMPLEX,
    }
    special = set(SPECIAL)
    assert public - set(SAMPLES) == set(), "ops without samples in tests/lib/op_samples.py"
    assert set(TABLE) - public - special - set(COMPLEX) == set(HIDDEN), (
        "hidden ops: name the public op that exercises them"
    )
    assert set(SAMPLES) - set(TABLE) == set() and set(HIDDEN.values()) <= set(SAMPLES)
    assert all(SAMPLES[name] or name in RANDOM for name in public)


def test_every_op_stands_where_its_flags_say():
    for name, (signature, flags, _) in TABLE.items():
        assert hasattr(pydist, name) or not flags & FUNC, name
        if flags & METHOD and not (name == "fill" or name in RANDOM):
            assert callable(getattr(pydist.Tensor, name)), name
        if flags & NN and not flags & METHOD or name == "relu":
            assert callable(getattr(pydist.nn.functional, name)), name
        if flags & INPLACE:
            assert callable(in_place(name)), name
        assert signature.startswith(name + "(")
        if flags & FUNC:
            assert getattr(pydist, name).__name__ == name and getattr(pydist, name).__doc__.startswith(name + "(")


# Forward.


def magnitude(name, sample, values):
    """S of the tolerance for a linear op: the op on absolute values."""
    kwargs = {k: abs(v) if k == "alpha" else v for k, v in sample.kwargs.items()}
    args = [
        abs(a) if isinstance(a, float) else a
        for a in arguments(sample, [np.abs(v) if v.dtype == float else v for v in values])
    ]
    return reference("add" if name == "sub" else name, *args, **kwargs)


@pytest.mark.parametrize("dtype", FLOATS)
@each_op
def test_forward(name, dtype):
    for what, sample, values in samples_of(name):
        if sample.dtypes == "wide" and dtype not in ("float64", "float32"):
            continue
        tensors = build(pydist, sample, values, dtype)
        exact = [numbers(t) for t in tensors]
        if name == "dropout":  # p is 0 or 1, or it is not training
            want = exact[0] * (sample.args[1] < 1 or sample.args[2:] == (False,))
        else:
            want = reference(name, *arguments(sample, exact), **sample.kwargs)
        got = as_list(call(pydist, name, *arguments(sample, tensors), **sample.kwargs))
        wants = [np.asarray(w) for w in (as_list(want) if isinstance(want, tuple) else [want])]
        assert len(got) == len(wants), what
        size = magnitude(name, sample, exact) if sample.linear else None
        for g, w in zip(got, wants):
            if g.is_floating_point():
                eps = EPS[word(g.dtype)] if name != "cast" else EPS[dtype]
                close(numbers(g), w, max(eps, EPS[dtype]) if name == "cast" else eps, sample.c, size, what)
            else:
                assert np.array_equal(numbers(g), w), (what, g, w)
        for t, v, position in zip(tensors, exact, range(99)):
            assert position in sample.writes or np.array_equal(numbers(t), v), f"{what} changed an input"


QUIRKS = {("square", "bool")}  # torch gives int64
QUIRKS |= {("recurrent", dtype) for dtype in ("float16", "bfloat16")}  # our layers run in steps of other ops then


@needs_torch
@pytest.mark.parametrize("dtype", (*FLOATS, "int64", "int32", "uint8", "int8", "bool"))
@each_op
def test_forward_as_torch(name, dtype):
    """Shapes, dtypes, views and strides as torch's; whole numbers exactly, broken ones in fp64."""
    for what, sample, values in samples_of(name):
        if dtype not in FLOATS and sample.dtypes != "all" or (name, dtype) in QUIRKS:
            continue
        if dtype in ("uint8", "bool"):
            values = [np.asarray(abs(v)) for v in values]
        ours, theirs = build(pydist, sample, values, dtype), build(torch, sample, values, dtype)
        try:
            want = as_list(call(torch, name, *arguments(sample, theirs), **sample.kwargs))
        except (RuntimeError, IndexError, NotImplementedError, ZeroDivisionError, TypeError):
            continue  # torch has no such kernel
        got = as_list(call(pydist, name, *arguments(sample, ours), **sample.kwargs))
        if name == "topk" and dtype != "float64":
            got, want = got[:1], want[:1]  # torch's order among equals is not defined
        for g, w in zip(got, want, strict=True):
            assert tuple(g.shape) == tuple(w.shape) and word(g.dtype) == word(w.dtype), (
                what,
                g.shape,
                w.shape,
                g.dtype,
                w.dtype,
            )
            if TABLE[name][1] & VIEW:
                assert g._base is not None and g.storage_offset() == w.storage_offset(), what
                assert not g.numel() or all(a == b for a, b, n in zip(g.stride(), w.stride(), g.shape) if n > 1), what
            COMPARED[f"op table next to torch, results in {dtype}"] += 1
            if not g.is_floating_point():
                assert np.array_equal(numbers(g), numbers(w)), (what, g, w)
            elif dtype == "float64" and name not in ("cast", "dropout"):
                close(
                    numbers(g), numbers(w), EPS["float64"], 4 * sample.c,
                    magnitude(name, sample, values) if sample.linear else None, what,
                )  # fmt: skip
            elif dtype not in FLOATS:
                close(numbers(g), numbers(w), EPS[word(g.dtype)], 4 * sample.c, None, what)


SPECIALS = [
    math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -2.0, 3.0, 1e-40, 1e-310, 3e38, -3e38, 88.8, -104.0,
    710.0, -746.0, 1e5, 1e-8,
]  # fmt: skip


@needs_torch
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "name",
    [
        n
        for n in SAMPLED
        if TABLE[n][0] in (f"{n}(Tensor input)", f"{n}(Operand input, Operand other)") and "bitwise" not in n
    ]
    + ["add", "sub"],
)
def test_special_values(name, dtype):
    if "other" not in TABLE[name][0]:
        # vmath.h: the range of sin
        columns = [[v for v in SPECIALS if name not in ("sin", "cos", "tan") or not 1e6 < abs(v) < math.inf]]
    else:
        pairs = itertools.product(SPECIALS, SPECIALS)
        # vmath.h: the range of quotients; torch is not exact in all of it
        if name in ("remainder", "fmod", "floor_divide"):
            pairs = [(x, y) for x, y in pairs if not y or not abs(x / y) > 2**20 or math.isinf(x)]
        columns = list(zip(*pairs))
    ours = [pydist.tensor(c, dtype=getattr(pydist, dtype)) for c in columns]
    theirs = [torch.tensor(c, dtype=getattr(torch, dtype)) for c in columns]
    got, want = (numbers(r) * 1.0 for r in (call(pydist, name, *ours), call(torch, name, *theirs)))
    tiny = np.finfo(dtype).tiny
    relative = 64 if name in ("pow", "sin", "cos", "tan") else 8
    with np.errstate(invalid="ignore", over="ignore"):
        ok = (
            (got == want)
            | (np.isnan(got) & np.isnan(want))
            | (np.abs(got - want) <= relative * EPS[dtype] * np.abs(want) + tiny)
        )
        ok &= (np.signbit(got) == np.signbit(want)) | np.isnan(want) | (name == "relu")  # torch: relu(-0.0) is -0.0
    bad = [(*(c[i] for c in columns), got[i], want[i]) for i in np.flatnonzero(~ok)]
    assert not bad, f"arguments, ours, torch's: {bad[:8]}, {len(bad)} in all"


@needs_torch
@pytest.mark.parametrize(
    "name",
    ["sum", "mean", "prod", "amax", "amin", "any", "all", "argmax", "argmin", "max", "min", "softmax", "log_softmax"],
)
def test_special_values_in_rows(name):
    rows = [[1.0, math.nan, 3.0], [math.nan, 9.0, math.nan], [math.inf, 1.0, 2.0], [-math.inf, -math.inf, 0.0], [math.inf, -math.inf, 1.0],
            [0.0, -0.0, 0.0], [-math.inf] * 3, [5.0, 5.0, 5.0]]  # fmt: skip
    for dtype, dim in itertools.product(["float32", "float64"], [0, 1]):
        got = as_list(getattr(pydist, name)(pydist.tensor(rows, dtype=getattr(pydist, dtype)), dim))
        want = as_list(getattr(torch, name)(torch.tensor(rows, dtype=getattr(torch, dtype)), dim))
        for g, w in zip(got, want, strict=True):
            close(numbers(g), numbers(w), EPS[dtype], 8, what=(name, dtype, dim))


# Gradients.


def leaves(sample, values, dtype="float64", lib=pydist):
    """The sample's tensors and those among them that want a gradient, with their layouts."""
    tensors = build(lib, sample, values, dtype)
    wanted = [(i, s.layout) for i, s in enumerate(specs_of(sample)) if isinstance(s, T) and s.grad]
    for i, _ in wanted:
        tensors[i].requires_grad_()
    return tensors, wanted


class Weighted:
    """The op as a scalar function of its inputs' values, for gradcheck: sum of output * fixed weights."""

    def __init__(self, name, sample, values):
        self.name, self.sample, self.values = name, sample, values
        self.rng = np.random.default_rng(7)
        self.weights, self.probes = {}, None

    def fixed(self, key, t):
        if key not in self.weights:
            self.weights[key] = pydist.tensor(self.rng.uniform(0.5, 1.5, tuple(t.shape)))
        return self.weights[key]

    def run(self, values):
        tensors, wanted = leaves(self.sample, values)
        out = as_list(call(pydist, self.name, *arguments(self.sample, tensors), **self.sample.kwargs))
        parts = [(o * self.fixed(("out", k), o)).sum() for k, o in enumerate(out) if o.requires_grad]
        return (sum(parts[1:], parts[0]) if parts else None), [tensors[i] for i, _ in wanted], wanted

    def value(self, values):
        return self.run(values)[0].item()

    def gradients(self, values, create_graph=False):
        f, inputs, wanted = self.run(values)
        return pydist.grad(f, inputs, create_graph=create_graph, allow_unused=True), inputs, wanted

    def slope(self, values, create_graph=False):
        """Sum of gradient * fixed weights: differentiating it gives the second order."""
        grads, inputs, _ = self.gradients(values, create_graph)
        parts = [(g * self.fixed(("grad", k), g)).sum() for k, g in enumerate(grads) if g is not None]
        return sum(parts, pydist.tensor(0.0, dtype=pydist.float64)), inputs

    def numeric(self, function, i, layout, h=1e-5):
        """Central differences by input i, one number per element (per row where elements share memory)."""
        v = self.values[i]
        out = np.zeros(v.shape[:-1] if layout == "E" else v.shape)
        for at in np.ndindex(out.shape):
            ends = []
            for step in (h, -h):
                moved = v.copy()
                moved[at] += step
                ends.append(function([moved if k == i else u for k, u in enumerate(self.values)]))
            out[at] = (ends[0] - ends[1]) / (2 * h)
        return out


def agree(got, want, what, rtol):
    want = np.asarray(want)
    scale = max(1.0, np.abs(want).max(initial=0))
    assert got.shape == want.shape, (what, got.shape, want.shape)
    assert np.all(np.abs(got - want) <= rtol * scale), (what, got, want)


def folded(g, shape, layout):
    g = np.zeros(shape) if g is None else numbers(g)
    return g.sum(-1) if layout == "E" else g


# Ops that may meet tensors with gradients, and whose results have none.
FLAT = (
    "bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift bitwise_not logical_not floor_divide argsort positions"
).split()


def smooth_samples_of(name):
    """(what, values, Weighted) of the samples that are small enough for differences and have gradients."""
    found = [(what, values, Weighted(name, sample, values)) for what, sample, values in samples_of(name) if sample.grad]
    found = [(what, values, w) for what, values, w in found if w.run(values)[0] is not None]
    assert bool(found) == (name not in FLAT), f"{len(found)} samples of {name} have gradients"
    return found


@each_smooth_op
def test_gradients(name):
    """Finite differences against backward, and backward against the one that can be differentiated again."""
    for what, values, w in smooth_samples_of(name):
        grads, _, wanted = w.gradients(values)
        again, _, _ = w.gradients(values, create_graph=True)
        for g, a, (i, layout) in zip(grads, again, wanted):
            assert (g is None) == (a is None), what
            if g is not None:
                assert tuple(g.shape) == values[i].shape and g.dtype == pydist.float64 and not g.requires_grad, what
                agree(numbers(g), numbers(a), (what, i, "create_graph"), 1e-13)
            agree(folded(g, values[i].shape, layout), w.numeric(w.value, i, layout), (what, i), 1e-6)


@each_smooth_op
def test_second_gradients(name):
    for what, values, w in smooth_samples_of(name):
        slope, inputs = w.slope(values, create_graph=True)
        grads = pydist.grad(slope, inputs, allow_unused=True) if slope.requires_grad else [None] * len(inputs)
        for g, (i, layout) in zip(grads, w.run(values)[2]):
            agree(
                folded(g, values[i].shape, layout),
                w.numeric(lambda v: w.slope(v)[0].item(), i, layout),
                (what, i),
                1e-5,
            )


@needs_torch
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@each_smooth_op
def test_gradients_as_torch(name, dtype):
    """All samples, also those too large for differences; torch computes in fp64."""
    for what, sample, values in samples_of(name):
        if name == "dropout" or (name, dtype) == ("hardsigmoid", "float64"):  # torch's 1/6 is a float32
            continue
        if dtype == "bfloat16":
            if sample.dtypes == "wide":
                continue
            values = [v if v.dtype != float else numbers(pydist.tensor(v).bfloat16()) for v in values]
        found = []
        for lib, kind in ((pydist, dtype), (torch, "float64")):
            tensors, wanted = leaves(sample, values, kind, lib)
            out = [o for o in as_list(call(lib, name, *arguments(sample, tensors), **sample.kwargs)) if o.requires_grad]
            if not out:
                break
            weights = [np.random.default_rng(3).uniform(0.5, 1.5, tuple(o.shape)).astype("float32") for o in out]
            grad = lib.grad if lib is pydist else lib.autograd.grad
            inputs = [tensors[i] for i, _ in wanted]
            found.append(
                grad(out, inputs, [lib.tensor(w).to(o.dtype) for w, o in zip(weights, out)], allow_unused=True)
            )
        for ours, theirs, (i, _) in zip(*found, wanted) if len(found) == 2 else ():
            COMPARED[f"op table next to torch, gradients in {dtype}"] += 1
            if theirs is None or ours is None:
                assert ours is None or not numbers(ours).any(), what
                assert theirs is None or not numbers(theirs).any(), what
                continue
            assert word(ours.dtype) == dtype
            scale = np.abs(numbers(theirs)).max(initial=0)
            terms = math.sqrt(max((v.size for v in values), default=1))
            close(numbers(ours), numbers(theirs), EPS[dtype], (4 + sample.c) * terms, scale, (what, i))


# In place, out=.


@pytest.mark.parametrize("name", [n for n in SAMPLED if TABLE[n][1] & INPLACE and n != "fill"])
def test_in_place_and_out(name):
    for what, sample, values in samples_of(name):
        tensors, wanted = leaves(sample, values)
        args = arguments(sample, tensors)
        want = call(pydist, name, *args, **sample.kwargs)
        weights = pydist.tensor(np.random.default_rng(5).uniform(0.5, 1.5, tuple(want.shape)))
        inputs = [t for t in tensors if t.requires_grad]
        with pydist.no_grad():
            for out in (pydist.empty_like(want), pydist.empty(*want.shape, 2, dtype=want.dtype)[..., 0]):
                version = out._version
                assert call(pydist, name, *args, **sample.kwargs, out=out) is out, what
                assert np.array_equal(numbers(out), numbers(want)) and out._version == version + 1, what
        if not is_tensor(sample.args[0]) or tuple(want.shape) != tuple(args[0].shape) or not inputs:
            continue
        if want.requires_grad:
            expected = pydist.grad((want * weights).sum(), inputs)
        y = args[0].clone() * 1  # not a leaf
        same, version = y, y._version
        y = in_place(name)(y, *args[1:], **sample.kwargs)
        assert y is same and y._version == version + 1 and np.array_equal(numbers(y), numbers(want)), what
        if want.requires_grad:
            got = pydist.grad((y * weights).sum(), inputs)
            for g, e in zip(got, expected):
                agree(numbers(g), numbers(e), what, 1e-13)


def test_out_refuses():
    x = pydist.ones(2, 3)
    for out, kind in [
        (pydist.empty(3, 2), RuntimeError),
        (pydist.empty(2, 3, dtype=pydist.int64), RuntimeError),
        (1, TypeError),
    ]:
        with pytest.raises(kind, match="exp|add|out"):
            pydist.exp(x, out=out)
    with pytest.raises(RuntimeError, match="grad"):
        pydist.add(x.requires_grad_(), 1, out=pydist.empty(2, 3))
    x = x.detach()
    with pytest.raises(TypeError, match="unexpected keyword argument 'out'"):
        x.exp_(out=x)
    for out in (
        pydist.empty(2),
        (pydist.empty(2), pydist.empty(2), pydist.empty(2)),
        (pydist.empty(3), pydist.empty(2).long()),
        (pydist.empty(2).long(), pydist.empty(2).long()),
    ):
        with pytest.raises((TypeError, RuntimeError), match="max.*out"):
            pydist.max(x, 1, out=out)


def test_out_of_ops_that_copy_into_it():
    x, y = pydist.arange(6.0).view(2, 3), pydist.empty(0)
    values, index = pydist.empty(2), pydist.empty(0, dtype=pydist.int64)
    assert pydist.max(x, 1, out=(values, index))[0] is values and values.tolist() == [2, 5] and index.tolist() == [2, 2]
    assert pydist.matmul(x, x.T, out=y) is y and y.tolist() == [[5, 14], [14, 50]]
    whole = pydist.zeros(3, 3, dtype=pydist.float64)
    assert (
        pydist.eye(3, out=whole) is whole
        and whole.sum().item() == 3
        and pydist.zeros(2, out=values) is values
        and values.tolist() == [0, 0]
    )


def test_writes_over_their_own_input():
    """An output that overlaps an input in another place gives what a copy would."""
    x = pydist.arange(6.0)
    pydist.add(x[:-1], 10, out=x[1:])
    assert x.tolist() == [0, 10, 11, 12, 13, 14]
    x = pydist.arange(9.0).reshape(3, 3)
    x.add_(x.T)
    assert x.tolist() == [[0, 4, 8], [4, 8, 12], [8, 12, 16]]
    x[1:].copy_(x[:-1].clone())
    x.mul_(x[0, 1])
    assert x[0].tolist() == [0, 16, 32]
    with pytest.raises(RuntimeError, match="expand|overlap|memory"):
        pydist.zeros(1, 3).expand(2, 3).add_(1)


def test_operators():
    x, y = pydist.tensor([3.0, -4.0]), pydist.tensor([2.0, 2.0])
    assert (
        (x + y).tolist() == [5, -2]
        and (1 + x).tolist() == [4, -3]
        and (x - 1).tolist() == [2, -5]
        and (1 - x).tolist() == [-2, 5]
    )
    assert (x * y).tolist() == [6, -8] and (x / y).tolist() == [1.5, -2] and (6 / x).tolist() == [2, -1.5]
    assert (
        (x**2).tolist() == [9, 16]
        and (2**y).tolist() == [4, 4]
        and (-x).tolist() == [-3, 4]
        and abs(x).tolist() == [3, 4]
    )
    assert (x @ y).item() == -2
    assert (
        (x > y).tolist() == [True, False] and (x == 3).tolist() == [True, False] and (1 >= x).tolist() == [False, True]
    )
    x += 1
    x *= y
    x -= y
    x /= 2
    assert x.tolist() == [3, -4]
    for broken in (lambda: x + "a", lambda: x @ 2, lambda: x + None, lambda: x < "a"):
        with pytest.raises(TypeError):
            broken()


# Random ops.


@pytest.mark.parametrize("name", RANDOM)
def test_random_ops(name):
    for args, mean, std in RANDOM[name]:
        for dtype in FLOATS:
            x = pydist.empty(100_000, dtype=getattr(pydist, dtype))
            pydist.manual_seed(5)
            v = numbers(getattr(x, name + "_")(*args)).copy()
            assert (
                abs(v.mean() - mean) <= 6 * std / 300 + EPS[dtype] * abs(mean)
                and abs(v.std() - std) < 0.02 * std + 1e-9
            ), (dtype, args)
            state = pydist.get_rng_state()
            other = numbers(getattr(x, name + "_")(*args)).copy()
            assert std == 0 or not np.array_equal(v, other)
            pydist.set_rng_state(state)
            assert np.array_equal(numbers(getattr(x, name + "_")(*args)), other)
            pydist.manual_seed(5)
            assert np.array_equal(numbers(getattr(x, name + "_")(*args)), v)
    x = pydist.ones(3, requires_grad=True)
    y = x * 1
    getattr(y, name + "_")()
    y.sum().backward()
    assert x.grad is None or x.grad.tolist() == [0, 0, 0]


def test_random_bounds():
    x = pydist.empty(1_000_000)
    x.uniform_(2, 3)
    assert 2 <= x.min().item() and x.max().item() < 3.0000001
    assert set(pydist.empty(999).bernoulli_(0.3).tolist()) == {0.0, 1.0}
    for broken in (
        lambda: x.uniform_(3, 2),
        lambda: x.normal_(0, -1),
        lambda: x.bernoulli_(1.5),
        lambda: x.bernoulli_(math.nan),
        lambda: pydist.dropout(x, -0.1),
    ):
        with pytest.raises((ValueError, RuntimeError), match="uniform|normal|bernoulli|dropout"):
            broken()


def test_dropout():
    x = pydist.full((200, 500), 3.0, requires_grad=True)
    y = pydist.dropout(x, 0.25)
    y.sum().backward()
    kept = numbers(y) != 0
    assert abs(kept.mean() - 0.75) < 0.01 and np.allclose(numbers(y)[kept], 4)
    assert np.array_equal(numbers(x.grad), np.where(kept, numbers(y) / 3, 0).astype("float32"))
    assert len(set(map(bytes, kept))) == 200  # no two rows alike
    other = numbers(pydist.dropout(x, 0.25)) != 0
    assert abs((kept & other).mean() - 0.75**2) < 0.01


def test_max_pool_picks_as_torch():
    """The first of equals, NaN above all, and windows of nothing but minus infinity."""
    x = np.round(np.random.default_rng(0).uniform(0, 3, (2, 3, 9, 20)))
    x[0, 0, 2, 3], x[0, 1], x[1, :, 4] = math.nan, -math.inf, math.inf
    for layout, kernel, dtype in itertools.product(
        ("contiguous", "channels last"), (2, 3, 17), (np.float32, np.float64)
    ):
        v = x.astype(dtype) if kernel < 17 else np.tile(x.astype(dtype), (1, 1, 2, 1))
        got = pydist.tensor(v if layout == "contiguous" else v.transpose(0, 2, 3, 1).copy())
        got = got if layout == "contiguous" else got.permute(0, 3, 1, 2)
        values, where = pydist.nn.functional.max_pool2d(got, kernel, 2, 1, return_indices=True)
        shape = (*v.shape[:2], *values.shape[2:])
        padded = np.full((*v.shape[:2], v.shape[2] + 2, v.shape[3] + 2), -math.inf)
        padded[:, :, 1:-1, 1:-1] = v
        for at in np.ndindex(shape):
            n, c, p, q = at
            window = padded[n, c, 2 * p : 2 * p + kernel, 2 * q : 2 * q + kernel]
            inside = [
                (h, w)
                for h in range(2 * p - 1, 2 * p - 1 + kernel)
                for w in range(2 * q - 1, 2 * q - 1 + kernel)
                if 0 <= h < v.shape[2] and 0 <= w < v.shape[3]
            ]
            best = next((i for i in inside if np.isnan(v[n, c][i])), None) or max(
                inside, key=lambda i: (v[n, c][i], [-j for j in i])
            )
            if np.isnan(window).any():
                assert math.isnan(values[at].item())
                continue
            assert values[at].item() == window.max() and where[at].item() == best[0] * v.shape[3] + best[1], (
                layout,
                kernel,
                at,
            )


@pytest.mark.parametrize("size, stride, padding", [(2, 2, 0), (3, 2, 1), (3, 1, 1), (2, 1, 0), ((1, 3), (3, 2), 0)])
def test_pool_of_rows(size, stride, padding):
    """Windows side by side in rows of any length, forward and back: the first of equals, the last NaN."""
    rng = np.random.default_rng(0)
    F = pydist.nn.functional
    (kh, kw), (sh, sw), pad = np.broadcast_to(size, 2), np.broadcast_to(stride, 2), padding
    for (h, w), ceil, dtype in itertools.product(
        ((4, 4), (5, 7), (6, 24), (7, 37), (9, 70)), (False, True), (np.float32, np.float64)
    ):
        x = np.round(rng.uniform(0, 5, (3, 7, h, w))).astype(dtype)
        x[0, 0, 1:3, 2:4] = x[1, 1, -1, -2:] = math.nan
        x[2, 2] = -math.inf
        mine = pydist.tensor(x).requires_grad_()
        y, where = F.max_pool2d(mine, size, stride, padding, ceil_mode=ceil, return_indices=True)
        mean = F.avg_pool2d(
            pydist.tensor(np.nan_to_num(x, neginf=0)), size, stride, padding, ceil, count_include_pad=False
        )
        want, at, means = np.empty(y.shape, dtype), np.empty(y.shape, np.int64), np.empty(y.shape)
        for p, q in np.ndindex(*y.shape[2:]):
            rows = range(max(p * sh - pad, 0), min(p * sh - pad + kh, h))
            cols = range(max(q * sw - pad, 0), min(q * sw - pad + kw, w))
            taps = [(i, j) for i in rows for j in cols]
            v = x[:, :, [i for i, _ in taps], [j for _, j in taps]]
            nans = np.isnan(v)
            tap = np.where(
                nans.any(2), len(taps) - 1 - nans[:, :, ::-1].argmax(2), np.nan_to_num(v, nan=-9, neginf=-9).argmax(2)
            )
            want[:, :, p, q] = np.take_along_axis(v, tap[:, :, None], 2)[:, :, 0]
            at[:, :, p, q] = np.array([i * w + j for i, j in taps])[tap]
            means[:, :, p, q] = np.nan_to_num(v, neginf=0).mean(2)
        assert np.array_equal(numbers(y), want, equal_nan=True) and np.array_equal(numbers(where), at), (
            h,
            w,
            ceil,
            dtype,
        )
        assert np.allclose(numbers(mean), means, rtol=1e-6), (h, w, ceil, dtype)
        g = np.round(rng.uniform(-9, 9, y.shape)).astype(dtype)
        y.backward(pydist.tensor(g))
        grad = np.zeros((21, h * w), dtype)
        np.add.at(grad, (np.arange(21)[:, None], at.reshape(21, -1)), g.reshape(21, -1))
        assert np.array_equal(numbers(mine.grad), grad.reshape(x.shape)), (h, w, ceil, dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.int32])
def test_sums_over_any_dims_of_any_layout(dtype):
    """Where they lie, in two runs, or packed."""
    rng = np.random.default_rng(0)
    for shape in ((4, 3, 5, 40), (2, 1, 3, 17), (3, 20, 1, 20), (2, 3, 0, 4)):
        base = rng.integers(-9, 9, shape).astype(dtype)
        base = base * (1 + 2j) if dtype is np.complex64 else base
        for order in itertools.permutations(range(4)):
            x, v = pydist.tensor(base).permute(*order), base.transpose(order)
            for dims in itertools.chain.from_iterable(itertools.combinations(range(4), k) for k in (1, 2, 3, 4)):
                assert np.array_equal(x.sum(dims).numpy(), v.sum(dims)), (shape, order, dims)
                if dtype is not np.int32 and 0 not in shape:
                    assert np.allclose(x.mean(dims).numpy(), v.mean(dims), rtol=1e-5), (shape, order, dims)


@pytest.mark.parametrize("ceil", [False, True])
def test_mean_of_pairs_gives_back_its_shares(ceil):
    rng = np.random.default_rng(0)
    for h, w in ((4, 4), (5, 7), (6, 24), (7, 37), (9, 70)):
        x = pydist.tensor(rng.normal(size=(2, 3, h, w)).astype(np.float32)).requires_grad_()
        y = pydist.nn.functional.avg_pool2d(x, 2, 2, 0, ceil)
        g = rng.normal(size=y.shape).astype(np.float32)
        y.backward(pydist.tensor(g))
        want = np.zeros(x.shape)
        for p, q in np.ndindex(*y.shape[2:]):
            part = want[:, :, 2 * p : 2 * p + 2, 2 * q : 2 * q + 2]
            part += (g[:, :, p, q] / (part.shape[2] * part.shape[3]))[:, :, None, None]
        assert np.allclose(numbers(x.grad), want, rtol=1e-6), (h, w)


def test_batch_norm_statistics():
    x = pydist.tensor(np.random.default_rng(0).normal(2, 3, (8, 3, 5)))
    mean, var = pydist.zeros(3, dtype=pydist.float64), pydist.ones(3, dtype=pydist.float64)
    pydist.nn.functional.batch_norm(x, mean, var, training=True, momentum=0.25)
    v = numbers(x)
    assert np.allclose(numbers(mean), 0.25 * v.mean((0, 2)), rtol=1e-12)
    assert np.allclose(numbers(var), 0.75 + 0.25 * v.var((0, 2), ddof=1), rtol=1e-12)
    before = numbers(mean).copy()
    pydist.nn.functional.batch_norm(x, mean, var, training=False)
    assert np.array_equal(numbers(mean), before)


@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
@pytest.mark.parametrize("params", ["16 bits", "float32"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_batch_norm_of_16_bits(dtype, params, layout):
    """Weights and running statistics are of the input's dtype, or float32, as autocast has them."""
    rng = np.random.default_rng(1)
    low = getattr(pydist, dtype)
    own = low if params == "16 bits" else pydist.float32
    shape, order = ((4, 3, 5), (0, 1, 2)) if layout == "contiguous" else ((4, 5, 2, 3), (0, 3, 1, 2))
    made = [
        pydist.tensor(rng.normal(1, 2, shape)).to(low).permute(*order),
        *(pydist.tensor(v).to(own) for v in rng.random((4, 3))),
    ]
    for training in (True, False):
        results = []
        for x, w, b, mean, var in (made, [t.double() for t in made]):
            x, w, b, mean, var = (t.clone() for t in (x, w, b, mean, var))
            for t in (x, w, b):
                t.requires_grad_()
            y = pydist.nn.functional.batch_norm(x, mean, var, w, b, training=training)
            y.backward(x.detach())
            results.append([y, mean, var, x.grad, w.grad, b.grad])
        for got, want, like in zip(*results, (made[0], made[3], made[4], *made[:3])):
            assert got.dtype is like.dtype
            assert (got.double() - want).abs().max().item() <= 8 * EPS[dtype] * max(want.abs().max().item(), 1)
    if params == "float32":
        with pytest.raises(RuntimeError, match="weight is float64.*expected contiguous"):
            pydist.nn.functional.batch_norm(made[0], made[3], made[4], made[1].double(), made[2])


# Threads.


@contextmanager
def settings(threads, dtype):
    before = pydist.get_num_threads(), pydist.get_default_dtype()
    pydist.set_num_threads(threads)
    pydist.set_default_dtype(getattr(pydist, dtype))
    try:
        yield
    finally:
        pydist.set_num_threads(before[0])
        pydist.set_default_dtype(before[1])


def benchmarked():
    """(name, function without arguments, tensors) as op_samples.cases(), for the list of benchmarks."""
    for name in OPS:
        run, tensors = prepared(pydist, name, 1 << 17)
        if not name.endswith("_") and "batch_norm" not in name:  # these write what they are given
            for t in tensors:
                t.requires_grad_(t.is_floating_point())
        yield f"benchmarks: {name}", run, tensors


@pytest.mark.parametrize("dtype", ["float32"] + ["float64"] * LONG)
@pytest.mark.slow
def test_same_bits_for_any_number_of_threads(dtype, counts=(1, 2, 3) if LONG else (1, 3)):
    def bits(t):
        return numbers(t).tobytes()

    results = []
    for n in counts:
        with settings(n, dtype):
            pydist.manual_seed(1)
            found = {}
            for name, run, tensors in itertools.chain(cases(pydist, dtype, grad=True), benchmarked()):
                out = as_list(run())
                found[name] = [bits(o) for o in out]
                if out[0].requires_grad:
                    inputs = [t for t in tensors if t.requires_grad]
                    g = pydist.ones_like(out[0]).detach() if out[0].numel() == 1 else (out[0] * 0.5).detach()
                    found[name + " backward"] = [bits(g) for g in pydist.grad(out[0], inputs, g)]
            results.append(found)
    differ = {name for other in results[1:] for name in other if other[name] != results[0][name]}
    assert not differ and len(results[0]) > 1.5 * (len(LARGE) + len(OPS))


@pytest.mark.skipif(not LONG, reason="takes long: .ci/full runs it")
def test_same_bits_without_onednn():
    """The same with the portable kernels, which float64 has anyway: PYDIST_ONEDNN is read once, so in a process of its
    own."""
    code = "import test_ops; test_ops.test_same_bits_for_any_number_of_threads('float32')"
    here = Path(__file__).resolve().parent
    path = os.pathsep.join(map(str, [Path(pydist.__file__).resolve().parents[1], here, here.parent]))
    env = {**os.environ, "PYDIST_ONEDNN": "0", "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr


# Errors: what is wrong, with the op's name, what was got and what is wanted.

x23, i2 = pydist.ones(2, 3), pydist.tensor([0, 1])
WRONG = [
    (lambda: x23 @ x23, pydist.ShapeError, r"matmul.*\[2, 3\].*\[2, 3\]"),
    (lambda: pydist.add(x23, pydist.ones(2, 2)), pydist.ShapeError, r"add.*\[2, 3\].*\[2, 2\]"),
    (lambda: pydist.matmul(x23, i2), pydist.DTypeError, "matmul.*float32.*int64|matmul.*int64.*float32"),
    (lambda: pydist.matmul(pydist.tensor(1.0), x23), RuntimeError, "matmul"),
    (lambda: pydist.bmm(x23, x23), pydist.ShapeError, "bmm"),
    (lambda: pydist.nn.functional.linear(x23, pydist.ones(4, 2)), pydist.ShapeError, r"linear.*\[2, 3\].*\[4, 2\]"),
    (lambda: pydist.nn.functional.linear(x23, pydist.ones(4, 3), pydist.ones(3)), pydist.ShapeError, "linear.*bias"),
    (lambda: pydist.cat([x23, pydist.ones(3, 2)]), pydist.ShapeError, "cat"),
    (lambda: pydist.cat([]), (RuntimeError, ValueError, TypeError), "cat"),
    (lambda: pydist.cat([x23], 2), pydist.DimError, "cat.*2"),
    (lambda: pydist.cat([x23, 1]), TypeError, "cat.*int"),
    (lambda: pydist.cat([x23, None]), TypeError, "cat"),
    (lambda: pydist.stack([x23, pydist.ones(3, 2)]), pydist.ShapeError, "stack"),
    (lambda: x23.sum(2), pydist.DimError, "sum.*2"),
    (lambda: x23.sum((0, 0)), (RuntimeError, IndexError), "sum.*0.*twice"),
    (lambda: pydist.ones(0).amax(), (RuntimeError, IndexError), "amax"),
    (lambda: pydist.ones(0, 3).argmax(0), (RuntimeError, IndexError), "argmax"),
    (lambda: i2.mean(), RuntimeError, "mean.*int64"),
    (lambda: x23.topk(4), (RuntimeError, IndexError), "topk.*4"),
    (lambda: x23.topk(-1), (RuntimeError, IndexError), "topk"),
    (lambda: x23.view(4), pydist.ShapeError, r"view.*\[4\]|view.*4"),
    (lambda: x23.view(-1, -1), (RuntimeError, ValueError), "view.*-1"),
    (lambda: x23.T.view(6), RuntimeError, "view.*reshape"),
    (lambda: x23.reshape(-2, 3), (RuntimeError, ValueError), "reshape"),
    (lambda: x23.permute(0, 0), (RuntimeError, IndexError), "permute"),
    (lambda: x23.expand(2, 4), pydist.ShapeError, "expand.*4"),
    (lambda: x23.expand(3), RuntimeError, "expand"),
    (lambda: x23.as_strided((9,), (1,)), (RuntimeError, ValueError, IndexError), "as_strided"),
    (lambda: x23.as_strided((2,), (-1,)), (RuntimeError, ValueError), "as_strided"),
    (lambda: x23.as_strided((2**62, 2**62), (0, 0)), (RuntimeError, ValueError, MemoryError), "as_strided"),
    (lambda: x23.squeeze(5), pydist.DimError, "squeeze.*5"),
    (lambda: x23.transpose(0, 2), pydist.DimError, "transpose.*2"),
    (lambda: x23[2], IndexError, "2"),
    (lambda: x23[0, 0, 0], IndexError, r"too many indices.*\[2, 3\]"),
    (lambda: x23[pydist.tensor([5])], IndexError, "5"),
    (lambda: x23[pydist.tensor([-3])], IndexError, "-3"),
    (lambda: x23[pydist.tensor([0.5])], (IndexError, TypeError), "float"),
    (lambda: x23[pydist.ones(3, 3) > 0], IndexError, "mask|shape"),
    (lambda: x23["a"], (TypeError, IndexError), "str"),
    (lambda: x23[::-1], ValueError, "step is -1"),
    (lambda: x23[i2, pydist.tensor([0, 1, 2])], (IndexError, pydist.ShapeError), "index"),
    (lambda: pydist.nn.functional.nll_loss(x23, pydist.tensor([0, 3])), (IndexError, ValueError), "nll_loss.*3"),
    (lambda: pydist.nn.functional.nll_loss(x23, pydist.tensor([0])), (RuntimeError, ValueError), "nll_loss"),
    (lambda: pydist.nn.functional.cross_entropy(x23, pydist.tensor([0, -7])), (IndexError, ValueError), "cross_entropy.*-7"),
    (lambda: pydist.nn.functional.cross_entropy(x23, i2.float()), (RuntimeError, TypeError), "cross_entropy"),
    (lambda: pydist.nn.functional.cross_entropy(x23, i2, pydist.ones(2)), (RuntimeError, ValueError), "cross_entropy.*weight"),
    (lambda: pydist.nn.functional.cross_entropy(x23, i2, reduction="max"), ValueError, "max"),
    (lambda: pydist.conv2d(pydist.ones(1, 2, 5, 5), pydist.ones(3, 1, 2, 2)), RuntimeError, "conv2d"),
    (lambda: pydist.conv2d(pydist.ones(1, 2, 2, 2), pydist.ones(3, 2, 3, 3)), RuntimeError, "conv2d"),
    (lambda: pydist.conv2d(pydist.ones(1, 2, 5, 5), pydist.ones(3, 2, 2, 2), stride=0), (RuntimeError, ValueError), "conv2d.*stride"),
    (lambda: pydist.conv2d(pydist.ones(1, 2, 5, 5), pydist.ones(3, 2, 2, 2), padding=-1), (RuntimeError, ValueError), "conv2d.*padding"),
    (lambda: pydist.conv2d(pydist.ones(1, 2, 5, 5), pydist.ones(3, 2, 2, 2), groups=0), (RuntimeError, ValueError), "conv2d.*groups"),
    (lambda: pydist.conv2d(pydist.ones(1, 2, 5, 5), pydist.ones(3, 2, 2, 2), stride=(1, 2, 3)), ValueError, "stride.*3.*2"),
    (lambda: pydist.conv2d(pydist.ones(1, 2, 5, 5), pydist.ones(3, 2, 2, 2), padding=2**62), (RuntimeError, ValueError, MemoryError), "conv2d"),
    (lambda: pydist.nn.functional.batch_norm(pydist.ones(1, 3), None, None, training=True), ValueError, "batch_norm|Expected more than 1 value"),
    (lambda: pydist.nn.functional.batch_norm(x23, pydist.ones(2), pydist.ones(3)), RuntimeError, "batch_norm.*running_mean"),
    (lambda: pydist.clamp(x23), ValueError, "clamp.*min.*max"),
    (lambda: pydist.floor_divide(i2, 0), RuntimeError, "floor_divide.*0"),
    (lambda: i2 % i2, RuntimeError, "remainder.*0"),
    (lambda: pydist.fmod(i2, pydist.tensor([1, 0])), RuntimeError, "fmod.*0"),
    (lambda: x23 & 1, RuntimeError, "bitwise_and.*float32"),
    (lambda: ~x23, RuntimeError, "bitwise_not.*float32"),
    (lambda: x23.gather(0, x23), RuntimeError, "gather.*float32"),
    (lambda: x23.gather(0, pydist.tensor([[2, 0, 0]])), IndexError, "gather.*2"),
    (lambda: x23.gather(1, pydist.zeros(3, 3, dtype=pydist.int64)), RuntimeError, r"gather.*\[2, 3\].*\[3, 3\]"),
    (lambda: x23.sort(2), pydist.DimError, "sort.*2"),
    (lambda: x23.cumsum(2), pydist.DimError, "cumsum.*2"),
    (lambda: x23.flip((0, 0)), (RuntimeError, IndexError), "flip.*twice"),
    (lambda: x23.lerp(x23, "a"), TypeError, "lerp.*weight.*str"),
    (lambda: pydist.lerp(i2, i2, 0), RuntimeError, "lerp.*int64"),
    (lambda: pydist.nn.functional.silu(i2), pydist.DTypeError, "silu.*int64"),
    (lambda: _C.mse_loss(x23, pydist.ones(2, 2)), pydist.ShapeError, "mse.*2, 3.*2, 2"),
    (lambda: _C.mse_loss(x23, x23, "max"), ValueError, "mse_loss.*max"),
    (lambda: pydist.nn.functional.smooth_l1_loss(x23, x23, beta=-1), ValueError, "smooth_l1_loss.*beta"),
    (lambda: pydist.nn.functional.huber_loss(x23, x23, delta=0), ValueError, "huber_loss.*delta"),
    (lambda: pydist.nn.functional.binary_cross_entropy(x23 * 2, x23), ValueError, "binary_cross_entropy.*2"),
    (lambda: pydist.nn.functional.binary_cross_entropy(x23 * math.nan, x23), ValueError, "binary_cross_entropy.*nan"),
    (lambda: pydist.nn.functional.binary_cross_entropy(x23, pydist.ones(3)), pydist.ShapeError, "binary_cross_entropy.*2, 3.*3"),
    (lambda: pydist.nn.functional.layer_norm(x23, (2,)), pydist.ShapeError, r"layer_norm.*2, 3.*\[2\]"),
    (lambda: pydist.nn.functional.layer_norm(x23, (3,), pydist.ones(2)), pydist.ShapeError, "layer_norm.*weight"),
    (lambda: pydist.nn.functional.rms_norm(i2, (2,)), pydist.DTypeError, "rms_norm.*int64"),
    (lambda: pydist.nn.functional.group_norm(x23, 2), pydist.ShapeError, "group_norm.*2, 3.*2"),
    (lambda: pydist.nn.functional.embedding(pydist.tensor([2]), x23), IndexError, "embedding.*2.*0 to 1"),
    (lambda: pydist.nn.functional.embedding(pydist.tensor([-1]), x23), IndexError, "embedding.*-1"),
    (lambda: pydist.nn.functional.embedding(x23, x23), pydist.DTypeError, "embedding.*float32"),
    (lambda: pydist.nn.functional.embedding(i2, x23, padding_idx=5), IndexError, "embedding.*padding_idx is 5"),
    (lambda: pydist.nn.functional.embedding(i2, pydist.ones(3)), pydist.ShapeError, "embedding.*weight"),
    (lambda: pydist.nn.functional.hardtanh(x23, 2, 1), ValueError, "hardtanh"),
    (lambda: pydist.max_pool2d(x23, 2), pydist.ShapeError, r"max_pool2d.*\[2, 3\].*C, H, W"),
    (lambda: pydist.max_pool2d(pydist.ones(1, 0, 4, 4), 2), pydist.ShapeError, "max_pool2d.*0"),
    (lambda: pydist.max_pool2d(pydist.ones(1, 1, 4, 4), 5), pydist.ShapeError, "max_pool2d.*5.*fit"),
    (lambda: pydist.max_pool2d(pydist.ones(1, 1, 4, 4), 2, padding=2), ValueError, "max_pool2d.*half of effective kernel size.*padding 2"),
    (lambda: pydist.max_pool2d(pydist.ones(1, 1, 4, 4), 0), ValueError, "max_pool2d.*kernel_size is 0"),
    (lambda: pydist.max_pool2d(pydist.ones(1, 1, 4, 4), 2, stride=-1), ValueError, "max_pool2d.*stride -1"),
    (lambda: pydist.max_pool2d(pydist.ones(1, 1, 4, 4), 2, stride=(1, 2, 3)), ValueError, "stride.*3.*2"),
    (lambda: pydist.max_pool2d(pydist.ones(1, 1, 4, 4), 2**62), (ValueError, RuntimeError), "max_pool2d"),
    (lambda: pydist.max_pool2d(pydist.ones(1, 1, 4, 4) > 0, 2), RuntimeError, "max_pool2d.*bool"),
    (lambda: pydist.max_pool1d(pydist.ones(4), 2), pydist.ShapeError, "max_pool1d.*C, L"),
    (lambda: pydist.nn.functional.avg_pool2d(pydist.ones(1, 1, 4, 4), 2, divisor_override=0), ValueError, "avg_pool2d.*divisor"),
    (lambda: pydist.nn.functional.avg_pool2d(pydist.ones(1, 1, 4, 4).long(), 2), RuntimeError, "avg_pool2d.*int64"),
    (lambda: pydist.nn.functional.adaptive_avg_pool2d(pydist.ones(1, 1, 4, 4), -1), ValueError, "adaptive_avg_pool2d.*-1"),
    (lambda: pydist.nn.functional.adaptive_avg_pool2d(pydist.ones(1, 1, 4, 4), (2**31, 2**31)), (RuntimeError, ValueError, MemoryError), "adaptive|memory"),
    (lambda: pydist.softmax(x23, 2), pydist.DimError, "softmax.*2"),
    (lambda: pydist.softmax(i2, 0), RuntimeError, "softmax.*int64"),
    (lambda: pydist.dropout(x23, 1.5), ValueError, "dropout.*1.5"),
    (lambda: pydist.add(x23), TypeError, "add.*other"),
    (lambda: pydist.add(x23, 1, 2, 3), TypeError, "add"),
    (lambda: pydist.add(x23, 1, input=x23), TypeError, "add.*multiple values.*input"),
    (lambda: pydist.exp("a"), TypeError, "exp.*str.*Tensor"),
    (lambda: pydist.sum(x23, dim="a"), TypeError, "sum.*dim.*str"),
    (lambda: pydist.sum(x23, dtype=3), TypeError, "sum.*dtype.*int"),
    (lambda: pydist.sum(x23, dim=2**70), (TypeError, ValueError, OverflowError, IndexError), "sum"),
    (lambda: pydist.where(x23, x23, x23), RuntimeError, "where.*bool"),
    (lambda: pydist.neg(pydist.tensor([True])), RuntimeError, "neg.*bool"),
    (lambda: pydist.tensor([True]) - pydist.tensor([True]), RuntimeError, "sub.*bool"),
    (lambda: i2.exp_(), RuntimeError, "exp.*int64"),
    (lambda: i2.add_(0.5), RuntimeError, "add.*int64"),
    (lambda: x23.add_(pydist.ones(2, 2, 3)), RuntimeError, "add"),
]  # fmt: skip


@pytest.mark.parametrize("case", WRONG, ids=range(len(WRONG)))
def test_errors(case):
    call, kind, text = case
    with pytest.raises(kind, match=text) as caught:
        call()
    assert isinstance(caught.value, (RuntimeError, IndexError, ValueError, TypeError, OverflowError, MemoryError))
