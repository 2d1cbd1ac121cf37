"""Where an iterator is, as numbers, strings and tensors, and the fingerprint of the plan that it belongs to."""

import hashlib
import logging

from pydist import _C
from pydist.data.strings import StringTensor, buffer

_MOST = 600  # characters of a fingerprint; a longer one becomes its hash
log = logging.getLogger("pydist.data")


def function_detail(fn, depth=3):
    """What identifies a function in another process that runs the same program: its name, the names and constants that its
    code uses, and plain values that it has from outside."""
    inner = getattr(fn, "func", fn)  # functools.partial
    code = getattr(inner, "__code__", None)
    name = getattr(inner, "__qualname__", type(inner).__qualname__)
    if code is None or not depth:
        return (name,)
    cells = [getattr(cell, "cell_contents", None) for cell in getattr(inner, "__closure__", None) or ()]
    return (name, *_code(code), [_plain(value, depth - 1) for value in cells])


def _code(code):
    constants = [_code(one) if hasattr(one, "co_code") else repr(one) for one in code.co_consts if one is not None]
    return (code.co_names, code.co_varnames, constants)


def _plain(value, depth):
    """A number, a string, a list or tuple of them, or a function; of other values nothing is known."""
    if value is None or isinstance(value, (int, float, str, bytes)):
        return repr(value)
    if isinstance(value, (list, tuple)) and len(value) < 100 and depth:
        return [_plain(one, depth - 1) for one in value]
    return function_detail(value, depth) if hasattr(value, "__code__") else type(value).__qualname__


def fingerprint(step):
    """The plan's steps with a few digits of the hash of each: from_tensor_slices:1f/shuffle:2e/batch:33."""
    parts = []
    for one in reversed(step.steps()):
        if one.name == "prefetch":  # changes no element
            continue
        digest = hashlib.sha256(repr((one.name, one.detail())).encode()).hexdigest()
        parts.append(f"{one.name}:{digest[:6]}")
    text = "/".join(parts)
    return text if len(text) <= _MOST else f"{len(parts)} steps:{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def difference(ours, theirs):
    """Where two fingerprints differ, for people."""
    pairs = list(zip(ours.split("/"), theirs.split("/")))
    for number, (a, b) in enumerate(pairs):
        if a != b:
            names = a.partition(":")[0], b.partition(":")[0]
            if names[0] == names[1]:
                return f"step {number} ({names[0]}) has other arguments"
            return f"step {number} is {names[0]} here and {names[1]} in the state"
    return f"{ours.count('/') + 1} steps here and {theirs.count('/') + 1} in the state"


# Elements that a pass holds.


class CannotBeSaved(Exception):
    """An element that no state can hold: a data set of a function."""


def encoded(leaves):
    """Leaves as values that `pydist.save` takes."""
    return None if leaves is None else [_encoded(leaf) for leaf in leaves]


def _encoded(leaf):
    if leaf is None:
        return None
    if isinstance(leaf, StringTensor):
        return {"shape": list(leaf.shape), **encoded_strings(leaf._items())}
    if isinstance(leaf, _C.Tensor):
        return leaf.detach().clone()
    held = getattr(leaf._node, "held", None)
    if held is None:
        raise CannotBeSaved
    return {"elements": encoded_all(held)}


def decoded(saved):
    """The leaves again."""
    return None if saved is None else [_decoded(leaf) for leaf in saved]


def _decoded(leaf):
    if not isinstance(leaf, dict):
        return leaf
    if "elements" in leaf:
        from pydist.data.dataset import Dataset
        from pydist.data.sources import Held

        return Dataset(Held(None, decoded_all(leaf["elements"])))
    spans = _spans(leaf["ends"])
    return StringTensor._of(leaf["bytes"], spans.reshape(*leaf["shape"], 2))


def _spans(ends):
    begins = _C.cat([ends.new_zeros(1), ends[:-1]]) if len(ends) else ends
    return _C.stack([begins, ends], -1)


def encoded_all(elements):
    """Several elements."""
    return [encoded(leaves) for leaves in elements]


def decoded_all(saved):
    """The elements again."""
    return [decoded(leaves) for leaves in saved]


def encoded_strings(items):
    """A list of bytes."""
    ends = _C.tensor([len(item) for item in items], dtype=_C.int64, device="cpu").cumsum(0)
    return {"bytes": buffer(b"".join(items)), "ends": ends}


def decoded_strings(saved):
    """The list again."""
    return StringTensor._of(saved["bytes"], _spans(saved["ends"])).tolist()
