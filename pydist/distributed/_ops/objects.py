"""Collectives on picklable objects.

Ranks exchange sizes first, so their objects may have different sizes. Loading a pickle runs code; these pickles come
only from ranks of the group, whose connections are authenticated. If an object cannot be pickled, its rank raises that
error and the others raise RuntimeError.
"""

import pickle
from array import array

from pydist.distributed._group.process_group import for_call, outside
from pydist.distributed._ops.collectives import rank_of

_FAILED = -1  # stands in the place of a size


def _dumped(objects):
    """(the pickles, None), or (as many empty ones, the error)."""
    try:
        return [pickle.dumps(item) for item in objects], None
    except Exception as error:
        return [b""] * len(objects), error


def _sizes_of(data, error):
    return array("q", [len(item) for item in data] if error is None else [_FAILED] * len(data))


def _raise_failure(op, error, rank):
    if error is not None:
        raise error
    raise RuntimeError(f"{op}: rank {rank} could not pickle its object")


def _agreed_sizes(op, group, obj):
    """(the pickle of obj, padded to the longest one; the sizes on all ranks)."""
    (data,), error = _dumped([obj])
    sizes = array("q", bytes(8 * group.size))
    group.all_gather(sizes, _sizes_of([data], error))
    if _FAILED in sizes:
        _raise_failure(op, error, sizes.index(_FAILED))
    return data.ljust(max(sizes), b"\0"), sizes


def _loaded(buffer, sizes, stride):
    return [pickle.loads(memoryview(buffer)[i * stride : i * stride + size]) for i, size in enumerate(sizes)]


def _check_list(op, name, value, size):
    if not isinstance(value, list) or len(value) != size:
        got = f"{len(value)} entries" if isinstance(value, list) else type(value).__name__
        raise ValueError(f"{op}: {name} has {got} (expected a list with {size} entries, one per rank)")


def all_gather_object(object_list, obj, group=None):
    """object_list[r] = rank r's obj.

    >>> from pydist import distributed as dist
    >>> objects = [None]
    >>> dist.all_gather_object(objects, {"a": 1})
    >>> objects
    [{'a': 1}]
    """
    op, group = "all_gather_object", for_call(group)
    if group.size < 0:
        return outside(op)
    _check_list(op, "object_list", object_list, group.size)
    data, sizes = _agreed_sizes(op, group, obj)
    buffer = bytearray(len(data) * group.size)
    group.all_gather(buffer, data)
    object_list[:] = _loaded(buffer, sizes, len(data))


def gather_object(obj, object_gather_list=None, dst=None, group=None, group_dst=None):
    """On rank `dst` (default 0): object_gather_list[r] = rank r's obj. On other ranks the list is None or []."""
    op, group = "gather_object", for_call(group)
    if group.size < 0:
        return outside(op)
    dst = 0 if dst is None and group_dst is None else rank_of(op, group, "dst", dst, group_dst)
    if group.rank == dst:
        _check_list(op, "object_gather_list", object_gather_list, group.size)
    elif object_gather_list:
        raise ValueError(
            f"{op}: got an object_gather_list on rank {group.rank} (expected None, as it is not rank {dst})"
        )
    data, sizes = _agreed_sizes(op, group, obj)
    buffer = bytearray(len(data) * group.size) if group.rank == dst else None
    group.gather(buffer, data, dst)
    if buffer is not None:
        object_gather_list[:] = _loaded(buffer, sizes, len(data))


def broadcast_object_list(object_list, src=None, group=None, device=None, group_src=None):
    """object_list[i] = object_list[i] of rank `src` (default 0). The lists have the same length on all ranks. device is
    ignored."""
    op, group = "broadcast_object_list", for_call(group)
    if group.size < 0:
        return outside(op)
    src = 0 if src is None and group_src is None else rank_of(op, group, "src", src, group_src)
    if not isinstance(object_list, list) or not object_list:
        raise ValueError(f"{op}: object_list is {object_list!r} (expected a list with at least one entry)")
    is_root = group.rank == src
    data, error = _dumped(object_list) if is_root else ([b""] * len(object_list), None)
    sizes = _sizes_of(data, error)
    group.broadcast(sizes, src)
    if _FAILED in sizes:
        _raise_failure(op, error, src)
    buffer = bytearray(b"".join(data)) if is_root else bytearray(sum(sizes))
    group.broadcast(buffer, src)
    if not is_root:
        at = 0
        for i, size in enumerate(sizes):
            object_list[i] = pickle.loads(memoryview(buffer)[at : at + size])
            at += size


def scatter_object_list(
    scatter_object_output_list, scatter_object_input_list=None, src=None, group=None, group_src=None
):
    """scatter_object_output_list[0] = scatter_object_input_list[this rank] of rank `src` (default 0)."""
    op, group = "scatter_object_list", for_call(group)
    if group.size < 0:
        return outside(op)
    src = 0 if src is None and group_src is None else rank_of(op, group, "src", src, group_src)
    if not isinstance(scatter_object_output_list, list) or not scatter_object_output_list:
        got = repr(scatter_object_output_list)
        raise ValueError(f"{op}: scatter_object_output_list is {got} (expected a list with at least one entry)")
    data, error = [b""] * group.size, None
    if group.rank == src:
        _check_list(op, "scatter_object_input_list", scatter_object_input_list, group.size)
        data, error = _dumped(scatter_object_input_list)
    sizes = _sizes_of(data, error)
    group.broadcast(sizes, src)
    if _FAILED in sizes:
        _raise_failure(op, error, src)
    stride = max(sizes)
    whole = bytearray(b"".join(item.ljust(stride, b"\0") for item in data)) if group.rank == src else None
    part = bytearray(stride)
    group.scatter(part, whole, src)
    scatter_object_output_list[0] = pickle.loads(memoryview(part)[: sizes[group.rank]])
