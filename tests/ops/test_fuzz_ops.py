"""Random calls of every op of the table and of the functions made of them, by hypothesis, next to torch's: values,
dtypes, views, gradients, in-place and out= forms; where torch raises, an error of its class.

FULL_FUZZ is the number of calls (.ci/full: 20,000) and, after a colon, the seed that they are drawn from."""

import os
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, seed, settings

import pydist
from lib.fuzz_calls import Array, Name
from lib.fuzz_recipes import FUNC, METHOD, NN, TABLE, calls, recipes
from pydist import _C

torch = pytest.importorskip("torch", reason="needs torch")

COUNT, _, SEED = os.environ.get("FULL_FUZZ", "600:0").partition(":")
KNOWN = list(recipes())
LOOSE = {"float64": 1e-8, "complex128": 1e-8, "float32": 1e-4, "complex64": 1e-4, "float16": 0.02, "bfloat16": 0.1}
RAISES = (
    RuntimeError, ValueError, TypeError, IndexError, NotImplementedError, OverflowError, AssertionError,
    ZeroDivisionError,
)  # fmt: skip
# torch has no kernel for the dtype, or no such gradient: pydist may have one.
LACKS = re.compile(
    r"not (yet )?implemented|not (yet |currently )?support|unsupported|does(n't| not) support|no longer supported|"
    r"cannot be applied|must have a last dimension with stride 1|not differentiable|view size is not compatible|invalid gradient|does not have a device|INTERNAL ASSERT", re.I)  # fmt: skip
# It wants a tensor where pydist takes a number too, and the same dtype where pydist promotes.
NARROW = re.compile(
    r"Expected a long tensor|must be (Tensor|tuple of ints), not|positional argument|dtype|did not match|scalar type|"
    r"invalid combination of arguments|without overflow")  # fmt: skip
# Of an expanded tensor torch's answer is memory that nobody wrote (2.13).
UNSET = {"median", "nanmedian"}
RANDOM = {"bernoulli", "normal_", "uniform_"}
# Of equals, torch's order is not defined: the values only.
TIES = {"topk", "kthvalue", "mode", "median", "nanmedian"}


def function(lib, name, in_place):
    if name in BRACKETS:
        return BRACKETS[name]
    if in_place and hasattr(torch.Tensor, name + "_"):
        return getattr(lib.Tensor, name + "_")
    if name.startswith("F."):
        return getattr(lib.nn.functional, name[2:])
    return getattr(lib, name) if hasattr(lib, name) else getattr(lib.Tensor, name)


def setitem(x, key, values):
    x = x.clone()
    x[key] = values
    return x


# In place these have no gradient: views of itself, and bool written into numbers.
NO_GRADIENT_IN_PLACE = {"t", "transpose", "swapaxes", "squeeze", "unsqueeze", "logical_and", "logical_or", "logical_xor", "logical_not"} | set(
    "eq ne lt le gt ge greater less_equal not_equal".split())  # fmt: skip
BRACKETS = {"getitem": lambda x, key: x[key], "setitem": setitem}


def built(lib, a, grad, made):
    if isinstance(a, Array):
        made.append((a, a.build(lib, grad)))
        return made[-1][1]
    if isinstance(a, Name):
        return getattr(lib, a)
    return type(a)(built(lib, b, grad, made) for b in a) if isinstance(a, (list, tuple)) else a


def flat(result):
    """The tensors and numbers of a result."""
    if isinstance(result, (list, tuple)):
        return [r for part in result for r in flat(part)]
    return [result]


def run(lib, call):
    """(results, gradients, arguments after the call), or the exception."""
    made = []
    try:
        args = built(lib, call.args, call.grad, made)
        kwargs = {k: built(lib, v, call.grad, made) for k, v in call.kwargs.items()}
        f = function(
            lib,
            call.name,
            call.in_place and isinstance(call.args[0], Array) and not (call.grad and call.name in NO_GRADIENT_IN_PLACE),
        )
        if (call.in_place or call.name.endswith("_")) and made[0][1].requires_grad:
            args[0] = args[0] * 1  # not a leaf, which must not be written
        if lib is torch and call.name in UNSET:
            args[0] = args[0].contiguous()
        results = flat(f(*args, **kwargs))
        grads = []
        floats = [r for r in results if isinstance(r, lib.Tensor) and r.requires_grad]
        if floats and call.name not in RANDOM:
            inputs = [t for _, t in made if t.requires_grad]
            weights = [
                lib.tensor(np.random.default_rng(1).uniform(0.5, 1.5, tuple(r.shape))).to(r.dtype) for r in floats
            ]
            grads = list(lib.autograd.grad(floats, inputs, weights, allow_unused=True))
        return results, grads, [t for _, t in made]
    except RAISES as error:
        return error


def word(dtype):
    return str(dtype).split(".")[-1]


def numbers(t):
    t = t.detach().resolve_conj().resolve_neg()
    t = t.clone() if isinstance(t, torch.Tensor) and t._is_zerotensor() else t
    return (t.double() if t.is_floating_point() else t).numpy()


def arrays(a):
    """The tensors among the arguments."""
    if isinstance(a, Array):
        return [a]
    return (
        [b for part in (a.values() if isinstance(a, dict) else a) for b in arrays(part)]
        if isinstance(a, (list, tuple, dict))
        else []
    )


def differ(got, want, loose):
    """Whether two arrays are further apart than rounding explains."""
    if got.shape != want.shape:
        return True
    if got.dtype.kind not in "fc":
        return not np.array_equal(got, want)
    with np.errstate(invalid="ignore", over="ignore"):
        scale = np.abs(want[np.isfinite(want)]).max(initial=1)
        return not ((got == want) | (np.isnan(got) & np.isnan(want)) | (np.abs(got - want) <= loose * scale)).all()


def wrong_error(call, ours, theirs):
    """What is wrong with what pydist raised or did where torch raised, or None."""
    text = str(theirs)
    if call.grad and any(0 in a.shape for a in arrays([call.args, call.kwargs])):
        return None  # torch's gradients of nothing look at shapes that do not fit
    if (
        LACKS.search(text)
        or NARROW.search(text)
        or (call.grad or not call.in_place)
        and "can't be cast to the desired output" in text
    ):
        return None
    if not isinstance(ours, Exception):
        return f"raises nothing, torch {type(theirs).__name__}: {text[:200]}"
    same = isinstance(ours, type(theirs)) or isinstance(theirs, (AssertionError, ZeroDivisionError))
    same = same or isinstance(ours, RuntimeError) and "Dimension out of range" in text
    return None if same else f"raises {ours!r}, torch {theirs!r}"


def is_stricter(call, error):
    """Whether pydist raises where torch looks at fewer arguments: nothing to compute, indices of take_along_dim, writes
    through expanded memory; and for complex numbers of 16-bit parts."""
    text, kinds = str(error), (_C.ArgumentError, _C.PositionError, _C.DimError, _C.DTypeError, _C.ShapeError)
    empty = any(0 in a.shape for a in arrays([call.args, call.kwargs])) and isinstance(error, kinds)
    unchecked = call.name == "take_along_dim" and isinstance(error, _C.PositionError)
    return (
        empty
        or unchecked
        or "pad_around: pad is" in text
        or "which removes more of" in text
        or "gives an empty output" in text
        or "leaves nothing of shape" in text
        or "share memory" in text
        or "expected float32 or float64" in text
    )


def is_singular(call):
    """Whether the call is logdet of a matrix whose determinant is rounding, or 0."""
    if call.name != "logdet":
        return False
    values = np.asarray(call.args[0].values(), dtype=np.float64)
    return bool((abs(np.linalg.det(values)) <= 1e-6 * abs(values).max(initial=0) ** values.shape[-1]).any())


def is_free(call, k):
    """Whether result k is not said: the sign of a NaN, which NaN a pool finds, exponentials that torch makes in 16 bits, the
    logarithm of rounding, gelu of infinity (NaN in some of torch's kernels)."""
    text = repr(call)
    special, halves = "special" in text, "float16" in text
    return (
        special
        and (call.name in ("copysign", "F.gelu") or "max_pool" in call.name and k > 0)
        or halves
        and call.name == "F.soft_margin_loss"
        or is_singular(call)
    )


def wrong_results(call, ours, theirs, loose, empty):
    if len(ours) != len(theirs):
        return f"{len(ours)} results, torch {len(theirs)}"
    for k, (o, t) in enumerate(zip(ours, theirs)):
        if not isinstance(t, torch.Tensor):
            if o != t and not (o != o and t != t):
                return f"result {k} is {o}, torch's {t}"
            continue
        if empty and call.name == "F.pixel_unshuffle":  # torch gives back what it got
            continue
        if word(o.dtype) != word(t.dtype) or tuple(o.shape) != tuple(t.shape):
            return f"result {k} is {word(o.dtype)} {tuple(o.shape)}, torch's {word(t.dtype)} {tuple(t.shape)}"
        if call.name in RANDOM or call.name in TIES and (k or empty) or is_free(call, k):
            continue
        if differ(numbers(o), numbers(t), loose):
            return f"result {k} is {numbers(o).tolist()}, torch's {numbers(t).tolist()}"
        if o.requires_grad != t.requires_grad:
            return f"result {k} requires_grad {o.requires_grad}, torch's {t.requires_grad}"
    return None


def has_free_gradient(call):
    """At infinity (of which sign, for a determinant of 0); of xlogy at 0 and powers of negative numbers, where torch divides by
    0 or takes the logarithm; among equals; where torch squares or scales integers in their own dtype; where elements of a
    diagonal are one in memory and share the gradient."""
    text = repr(call)
    shared = call.name in ("einsum", "diagonal", "trace", "as_strided", "unfold") and "layout='E'" in text
    return (
        re.search("special|inf|nan", text)
        or shared
        or is_singular(call)
        or call.name == "addcmul"
        and re.search("dtype='u?int", text)
        or call.name in {*TIES, "quantile", "nanquantile", "nextafter", "atan2", "arctan2", "xlogy", "float_power"}
    )


def wrong_tensors(what, ours, theirs, loose):
    for k, (o, t) in enumerate(zip(ours, theirs)):
        if o is None or t is None:
            if not all(g is None or not numbers(g).any() for g in (o, t)):
                return f"{what} {k} is {o}, torch's {t}"
        elif differ(numbers(o), numbers(t), loose):
            return f"{what} {k} is {numbers(o).tolist()}, torch's {numbers(t).tolist()}"
    return None


def compare(call):
    """What is wrong with pydist's answer, or None."""
    theirs, ours = run(torch, call), run(pydist, call)
    if isinstance(theirs, Exception):
        return wrong_error(call, ours, theirs)
    if isinstance(ours, Exception):
        return None if is_stricter(call, ours) else f"raises {ours!r}"
    dtypes = [*(a.dtype for a in arrays([call.args, call.kwargs])), *map(str, call.kwargs.values())]
    loose = max([LOOSE[d] for d in dtypes if d in LOOSE], default=1e-4)
    wrong = wrong_results(call, ours[0], theirs[0], loose, not all(a.numel() for a in theirs[2]))
    if not wrong and not has_free_gradient(call):
        wrong = wrong_tensors("gradient", ours[1], theirs[1], loose)
    if not wrong and call.name not in RANDOM and not is_free(call, 0):
        wrong = wrong_tensors("written argument", ours[2], theirs[2], loose)
    return wrong


# Ops of the table that another name calls, or that fill with random numbers.
OTHERWISE = {
    "fill": "fill_", "slice": "getitem", "index_put": "setitem", "resample": "interpolate", "constant_pad_nd": "pad", "pad_around": "pad",
    **{f"{pool}_with_indices": pool for pool in ("max_pool1d", "max_pool2d", "adaptive_max_pool2d")},
    "uniform": "uniform_", "normal": "normal_", "linear_cross_entropy": "test_linear_cross_entropy.py", "embedding_part": "test_ops.py",
    "dispatch_rows": "test_ops.py", "combine_rows": "test_ops.py", "recurrent": "test_ops.py", "positions": "nonzero", "square_sum": "norm",
    "view_dtype": "test_complex.py", "add_layer_norm": "test_add_norm.py", "add_rms_norm": "test_add_norm.py",
}  # fmt: skip


def test_every_op_of_the_table_is_called():
    public = {name for name, (_, flags) in TABLE.items() if flags & (FUNC | METHOD | NN)} - OTHERWISE.keys()
    assert public - {name.removeprefix("F.") for name, _ in KNOWN} == set()
    others = set(OTHERWISE.values()) - {name.removeprefix("F.") for name, _ in KNOWN}
    assert all((Path(__file__).parent / name).exists() for name in others)


@seed(int(SEED or 0))
@settings(
    max_examples=int(COUNT), deadline=None, database=None, suppress_health_check=list(HealthCheck), print_blob=False
)
@given(calls(KNOWN))
def test_as_torch(call):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrong = compare(call)
    assert not wrong, wrong
