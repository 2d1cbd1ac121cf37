"""What any number of ranks saved in any layout, any other number of ranks loads in any other layout, bit for bit."""

import os
import random
from itertools import product
from math import prod

import pytest

import pydist
from pydist.distributed import checkpoint
from pydist.distributed.checkpoint import TensorPart, _format
from pydist.testing import run_ranks

LONG = "FULL_LONG" in os.environ
TENSORS = {
    "large": ((131, 137), pydist.float32),  # above 64 KiB: replicas share its rows
    "large.d3": ((7, 19, 83), pydist.float64),
    "wide": ((3, 29), pydist.bfloat16),
    "tall": ((17, 2), pydist.int16),
    "d3": ((5, 3, 7), pydist.float16),
    "d4": ((2, 1, 3, 5), pydist.int32),
    "line": ((23,), pydist.int64),
    "short": ((2,), pydist.complex64),
    "one": ((1, 1), pydist.int8),
    "point": ((), pydist.float64),
    "point.bool": ((), pydist.bool),
    "flags": ((9, 11), pydist.bool),
    "bytes": ((13, 5), pydist.uint8),
    "empty": ((0,), pydist.float32),
    "empty.rows": ((0, 4), pydist.int64),
    "empty.columns": ((6, 0), pydist.float32),
}
LAYOUTS = [
    *product(("replicated", "rows", "columns", "flat", "stages"), (1, 2, 3, 4)),
    ("mesh", 4),
]
PAIRS = list(product(LAYOUTS, LAYOUTS))


def values():
    """The whole tensors: any bits, NaNs of all kinds, too."""
    pydist.manual_seed(1)
    found = {}
    for name, (shape, dtype) in TENSORS.items():
        width = pydist.empty((), dtype=dtype).element_size()
        data = pydist.randint(0, 2 if dtype is pydist.bool else 256, (prod(shape) * width,), dtype=pydist.uint8)
        found[name] = data.view(dtype).reshape(shape)
    return found


def bits(tensor):
    """The bytes of a tensor."""
    return tensor.detach().contiguous().reshape(-1).view(pydist.uint8).tolist() if tensor.numel() else []


def span(count, part, parts):
    """(begin, end) of an even share."""
    return count * part // parts, count * (part + 1) // parts


def cut(whole, dims, replica=0, replicas=1):
    """A TensorPart of this share {dim: (part, parts)}."""
    offsets = [0] * whole.dim()
    for dim, (part, parts) in dims.items():
        begin, end = span(whole.shape[dim], part, parts)
        offsets[dim], whole = begin, whole.narrow(dim, begin, end - begin)
    return whole, offsets, replica, replicas


def held(layout, world, rank, whole, number):
    """What a rank holds of a tensor, as a value of its state; None for nothing."""
    shape = tuple(whole.shape)
    if layout == "flat":
        begin, end = span(whole.numel(), rank, world)
        return TensorPart.flat(whole.reshape(-1)[begin:end].clone(), shape, begin)
    if layout == "stages":
        stage = [r for r in range(world) if r * 2 // max(world, 2) == number % 2] if world > 1 else [0]
        if rank not in stage:
            return None
        return TensorPart(whole.clone(), shape, (0,) * len(shape), replica=stage.index(rank), replicas=len(stage))
    dims, replica, replicas = {}, 0, 1
    if layout == "mesh":
        row, column = divmod(rank, 2)
        if len(shape) > 1:
            dims = {0: (row, 2), 1: (column, 2)}
        elif shape:
            dims, replica, replicas = {0: (row, 2)}, column, 2
    dim = {"rows": 0, "columns": 1}.get(layout)
    if dim is not None and len(shape) > dim:
        dims = {dim: (rank, world)}
    if not dims:
        return whole.clone()  # the same on all ranks
    local, offsets, *more = cut(whole, dims, replica, replicas)
    return TensorPart(local.clone(), shape, offsets, replica=more[0], replicas=more[1])


def state_of(layout, world, rank, whole):
    """The tensors of a rank's state."""
    found = {name: held(layout, world, rank, tensor, i) for i, (name, tensor) in enumerate(whole.items())}
    return {name: value for name, value in found.items() if value is not None}


def local(value):
    return value.local if isinstance(value, TensorPart) else value


def save(layout, world, whole, path):
    def work(rank):
        writer = checkpoint.FileSystemWriter(path, sync_files=False)
        checkpoint.save({"t": state_of(layout, world, rank, whole), "step": 7}, storage_writer=writer)

    run_ranks(world, work)


def load(layout, world, whole, path):
    def work(rank):
        wanted = state_of(layout, world, rank, whole)
        zeros = {name: tensor.new_zeros(tensor.shape) for name, tensor in whole.items()}
        state = {"t": state_of(layout, world, rank, zeros), "step": 0}
        checkpoint.load(state, checkpoint_id=path)
        assert state["step"] == 7 and list(state["t"]) == list(wanted)
        return [name for name in wanted if bits(local(state["t"][name])) != bits(local(wanted[name]))]

    return run_ranks(world, work)


def test_any_layout_loads_what_any_other_saved(tmp_path):
    """FULL_LONG: all pairs."""
    assert len(PAIRS) >= 400
    chance = random.Random(1)
    pairs = PAIRS if LONG else [(source, target) for source in LAYOUTS for target in chance.sample(LAYOUTS, 2)]
    whole, wrong = values(), []
    for source in LAYOUTS:
        targets = [to for come, to in pairs if come == source]
        path = str(tmp_path / f"{source[0]}-{source[1]}")
        if targets:
            save(*source, whole, path)
        for target in targets:
            found = load(*target, whole, path)
            if any(found):
                wrong.append((source, target, found))
    assert not wrong


@pytest.mark.parametrize("layout, world", [("rows", 4), ("flat", 3), ("mesh", 4), ("stages", 3), ("replicated", 4)])
def test_no_element_is_written_twice(layout, world, tmp_path):
    """The files have the bytes of the whole tensors, whoever holds how many replicas."""
    whole, path = values(), tmp_path / "x"
    save(layout, world, whole, str(path))
    index, _ = _format.index_of(path)
    stored = sum(box.nbytes for tensor in index.tensors.values() for box in tensor.boxes)
    assert stored == sum(tensor.numel() * tensor.element_size() for tensor in whole.values())
    assert set(index.tensors) == {f"t.{name}" for name in whole}
