"""all_to_all: every rank has a part for every other. Equal parts are one collective; parts of different sizes are a table
of the sizes, which all ranks compare before any data moves, and messages."""

import os
import sys
from array import array
from zlib import crc32

import pydist
from pydist._C import CommMismatch
from pydist.distributed._group.process_group import current, outside
from pydist.distributed._ops.objects import all_gather_object

_TAG = -0x616132  # of the messages; users' tags are their own


class _Works:
    """Several works as one."""

    def __init__(self, works):
        self._works = works

    def wait(self, timeout=None):
        for work in self._works:
            work.wait(timeout)
        return True

    def is_completed(self):
        return all(work.is_completed() for work in self._works)


def _called_at():
    """The user's place, as collectives in C name it."""
    frame, package = sys._getframe(), os.path.dirname(pydist.__file__) + os.sep
    while frame.f_back is not None and frame.f_code.co_filename.startswith(package):
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def _mismatch(group, what):
    """Raised by all ranks, which have all found it in the same table."""
    places = [None] * group.size
    all_gather_object(places, _called_at(), group)
    calls = "".join(f"\n  rank {rank}: at {place}" for rank, place in zip(group.ranks, places))
    raise CommMismatch(f"all_to_all: {what}{calls}")


def _check_table(group, inputs, outputs, dtype):
    """Compares what each rank has for each with what that expects; the same error on all ranks."""
    mine = array("q", [*(t.numel() for t in inputs), *(t.numel() for t in outputs), dtype])
    size, width = group.size, len(mine)
    table = array("q", bytes(8 * width * size))
    group.all_gather(table, mine)
    rows = [table[r * width : (r + 1) * width] for r in range(size)]
    for src in range(size):
        for dst in range(size):
            gives, wants = rows[src][dst], rows[dst][size + src]
            names = f"rank {group.ranks[src]}", f"rank {group.ranks[dst]}"
            if gives != wants:
                _mismatch(group, f"{names[0]} has {gives} elements for {names[1]}, which expects {wants} of it")
            if rows[src][-1] != rows[dst][-1]:
                _mismatch(group, f"{names[0]} and {names[1]} have tensors of different dtypes")


def _exchange(group, outputs, inputs, async_op):
    for name, tensors in (("outputs", outputs), ("inputs", inputs)):
        if len(tensors) != group.size:
            raise ValueError(f"all_to_all: {len(tensors)} {name} (expected {group.size}, one a rank)")
    if len({str(t.dtype) for t in [*outputs, *inputs]}) > 1:
        raise TypeError("all_to_all: tensors of different dtypes (expected one dtype)")
    _check_table(group, inputs, outputs, crc32(str(inputs[0].dtype).encode()))
    works = []
    for d in range(1, group.size):
        dst, src = (group.rank + d) % group.size, (group.rank - d) % group.size
        if outputs[src].numel():
            works.append(group.recv(outputs[src], src, _TAG, True))
        if inputs[dst].numel():
            works.append(group.send(inputs[dst], dst, _TAG, True))
    outputs[group.rank].copy_(inputs[group.rank].reshape(outputs[group.rank].shape))
    works = _Works(works)
    if async_op:
        return works
    works.wait()
    return None


def all_to_all(output_tensor_list, input_tensor_list, group=None, async_op=False):
    """output_tensor_list[r] = rank r's input_tensor_list[this rank]; sizes may differ, as long as both ends agree.

    >>> import pydist
    >>> out = [pydist.zeros(2)]
    >>> pydist.distributed.all_to_all(out, [pydist.ones(2)])  # a world of one
    >>> out[0].tolist()
    [1.0, 1.0]
    """
    group = current(group)
    if group.size < 0:
        return outside("all_to_all")
    return _exchange(group, list(output_tensor_list), list(input_tensor_list), async_op)


def _cut(name, tensor, sizes, size):
    """The parts of the first dimension; None: equal ones."""
    rows = tensor.shape[0] if tensor.dim() else 0
    if not sizes:
        if rows % size:
            raise ValueError(f"all_to_all_single: {name} has {rows} rows (expected a multiple of {size})")
        sizes = [rows // size] * size
    if len(sizes) != size or sum(sizes) != rows or min(sizes) < 0:
        raise ValueError(
            f"all_to_all_single: {name} of {rows} rows is split into {list(sizes)} (expected {size} parts)"
        )
    ends = [sum(sizes[:i]) for i in range(size + 1)]
    return [tensor[ends[i] : ends[i + 1]] for i in range(size)]


def all_to_all_single(output, input, output_split_sizes=None, input_split_sizes=None, group=None, async_op=False):
    """Part r of output = rank r's part of input for this rank: equal parts of the first dimension, or of these sizes.
    Either all ranks give sizes or none does."""
    group = current(group)
    if group.size < 0:
        return outside("all_to_all_single")
    if not output_split_sizes and not input_split_sizes:
        return group.all_to_all(output, input, async_op)
    outputs = _cut("output", output, output_split_sizes, group.size)
    return _exchange(group, outputs, _cut("input", input, input_split_sizes, group.size), async_op)
