"""x[key] of DTensors, by ops that have rules."""

from pydist import _C
from pydist._grad_mode import no_grad


def _is_tensor(key):
    return isinstance(key, _C.Tensor)


def _spelt(x, key):
    """The key as a list with an entry for each dimension that it names; `...` is spelt out."""
    keys = list(key) if isinstance(key, tuple) else [key]
    named = sum((k.dim() if _is_tensor(k) and k.dtype is _C.bool else 1) for k in keys if k is not None and k is not Ellipsis
                and not isinstance(k, bool))  # fmt: skip
    if any(k is Ellipsis for k in keys):
        at = next(i for i, k in enumerate(keys) if k is Ellipsis)
        keys[at : at + 1] = [slice(None)] * (x.dim() - named)
    if named > x.dim():
        raise IndexError(f"too many indices: got {named} for a DTensor (expected at most {x.dim()})")
    return keys


def _simple(keys):
    return all(k is None or isinstance(k, (int, slice)) and not isinstance(k, bool) for k in keys)


def indexed(x, key):
    """x[key]: integers, slices and None are views; tensors and lists are looked up."""
    keys, dim, tensors = _spelt(x, key), 0, []
    for k in keys:
        if k is None:
            x, dim = x.unsqueeze(dim), dim + 1
        elif isinstance(k, slice):
            x, dim = _sliced(x, dim, k), dim + 1
        elif isinstance(k, int) and not isinstance(k, bool):
            if not -x.shape[dim] <= k < x.shape[dim]:
                raise IndexError(
                    f"index {k} is out of range for dimension {dim} (expected {-x.shape[dim]} to {x.shape[dim] - 1})"
                )
            x = x.select(dim, k)
        else:
            tensors.append((dim, k if _is_tensor(k) else _C.tensor(k, device=x.device)))
            dim += tensors[-1][1].dim() if tensors[-1][1].dtype is _C.bool else 1
    if not tensors:
        return x if any(k is not Ellipsis for k in (keys or [0])) else x.view(x.shape)
    return _looked_up(x, tensors)


def _sliced(x, dim, k):
    start, stop, step = k.indices(x.shape[dim])
    if step < 1:
        raise ValueError(f"slice step is {step} (expected at least 1)")
    if (start, stop, step) == (0, x.shape[dim], 1):
        return x
    return _C.slice(x, dim, start, max(stop, start), step)


def _looked_up(x, tensors):
    from pydist.distributed.tensor._dtensor import DTensor
    from pydist.distributed.tensor._plan import modes

    indices = [None] * x.dim()
    for dim, k in tensors:
        indices[dim] = k
    while indices and indices[-1] is None:
        indices.pop()
    plain = any(not isinstance(k, DTensor) for _, k in tensors)
    was, modes.implicit = modes.implicit, modes.implicit or plain
    try:
        return _C.op_apply("index", (x, *indices), b"")[0]
    finally:
        modes.implicit = was


def put(x, indices, values, accumulate):
    """index_put, not in place; plain tensors are taken to be the same on all ranks."""
    from pydist.distributed.tensor._plan import modes

    indices = [k if k is None or _is_tensor(k) else _C.tensor(k, device=x.device) for k in indices]
    values = values if _is_tensor(values) else _C.tensor(values, dtype=x.dtype, device=x.device)
    was, modes.implicit = modes.implicit, True
    try:
        raw = (b"\1" if accumulate else b"\0") + bytes(7)
        return _C.op_apply("index_put", (x, *indices, values), raw)[0]
    finally:
        modes.implicit = was


def _whole(value):
    return value.full_tensor() if _is_tensor(value) and _C.spread_of(value) is not None else value


def set_indexed(x, key, value):
    """x[key] = value. Where the key cuts through a dimension that is sharded, the whole is gathered, written and cut
    again."""
    with no_grad():
        if _simple(_spelt(x, key)) and all(place.is_replicate() for place in x.placements):
            _C.local_part(x)[key] = _whole(value)
            return
    if x.requires_grad:
        raise RuntimeError("DTensor: x[key] = value of a sharded tensor that requires grad (expected pydist.where)")
    with no_grad():
        whole = x.full_tensor()
        whole[tuple(_whole(k) for k in key) if isinstance(key, tuple) else _whole(key)] = _whole(value)
        x.copy_(whole)
