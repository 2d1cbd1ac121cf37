"""Where an iterator is, as a small dictionary that JSON can hold, and the fingerprint of the plan that it belongs to."""

import hashlib

_MOST = 600  # characters of a fingerprint; a longer one becomes its hash


def function_detail(fn):
    """What identifies a function in another process that runs the same program: its name, and the names and constants that
    its code uses."""
    inner = getattr(fn, "func", fn)  # functools.partial
    code = getattr(inner, "__code__", None)
    return (getattr(inner, "__qualname__", type(inner).__qualname__), *(_code(code) if code is not None else ()))


def _code(code):
    constants = [_code(one) if hasattr(one, "co_code") else repr(one) for one in code.co_consts if one is not None]
    return (code.co_names, code.co_varnames, constants)


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
