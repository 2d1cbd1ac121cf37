"""What reductions have to give, bit for bit, computed here with NumPy: the tree of csrc/comm in every dtype and op."""

import hashlib

import numpy as np

import pydist
from lib.ranks import LONG

OPS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor")
FLOATS = ("float16", "bfloat16", "float32", "float64")
INTS = ("uint8", "int8", "int16", "int32", "int64", "bool")


def tree(items, op):
    if len(items) == 1:
        return items[0]
    half = 1
    while half * 2 < len(items):
        half *= 2
    return op(tree(items[:half], op), tree(items[half:], op))


def to_bf16(x):
    bits = x.astype(np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(x), (bits >> 16) | 0x40, rounded).astype(np.uint16)


def from_bf16(x):
    return (x.astype(np.uint32) << 16).view(np.float32)


def sample(dtype, n, seed):
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 2, n).astype(bool)
    if dtype == "bfloat16":
        return to_bf16(rng.standard_normal(n).astype(np.float32) * 3)
    if dtype in FLOATS:
        return (rng.standard_normal(n) * 3).astype(dtype)
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, n, dtype=dtype, endpoint=True)


FUNCTIONS = {
    "sum": np.add, "avg": np.add, "product": np.multiply, "min": np.minimum, "max": np.maximum,
    "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor,
}  # fmt: skip
ON_BOOL = {
    "sum": np.logical_or, "max": np.logical_or, "bor": np.logical_or, "product": np.logical_and,
    "min": np.logical_and, "band": np.logical_and, "bxor": np.logical_xor,
}  # fmt: skip


def expected(inputs, dtype, op, scale=1.0):
    fn = (ON_BOOL if dtype == "bool" else FUNCTIONS)[op]
    wide = {"float16": lambda x: x.astype(np.float32), "bfloat16": from_bf16}.get(dtype, lambda x: x)
    with np.errstate(all="ignore"):
        total = tree([wide(x) for x in inputs], fn)
        if op == "avg":
            scale /= len(inputs)
        if scale != 1:
            total = total * total.dtype.type(scale)
        if dtype == "bfloat16":
            return to_bf16(total)
        return total.astype(dtype)


def defined(dtype, op):
    if dtype in FLOATS:
        return op in ("sum", "avg", "product", "min", "max")
    return op != "avg"


def reduce_everything(group, sizes=(0, 1, 3, 64, 1000, 5000)):
    """all_reduce of every dtype and op, and what came out, as bytes."""
    out = []
    for dtype in FLOATS + INTS:
        for op in OPS:
            if not defined(dtype, op):
                continue
            for n in sizes:
                x = sample(dtype, n, hash_of(dtype, op, n, group.rank))
                group.all_reduce(x, op, dtype=dtype if dtype == "bfloat16" else None)
                out.append((dtype, op, n, x))
    return out


def hash_of(dtype, op, n, rank):
    return [(FLOATS + INTS).index(dtype), OPS.index(op), n, rank]


def as_bfloat16(bits):
    """Python has no format for it: a tensor."""
    return pydist.from_numpy(from_bf16(bits)).to(pydist.bfloat16)


def raw(x):
    return x.tobytes() if isinstance(x, np.ndarray) else x.float().numpy().tobytes()


def every_collective(group, sizes=(1, 5, 3001) if not LONG else (1, 5, 1000, 30011)):
    """All collectives, dtypes and ops; a hash of all that came out."""
    h, world, rank = hashlib.sha256(), group.size, group.rank
    for dtype in FLOATS + INTS:
        wrap = as_bfloat16 if dtype == "bfloat16" else np.copy
        for n in sizes:
            inputs = [sample(dtype, n * world, hash_of(dtype, "sum", n, r)) for r in range(world)]
            x, mine = inputs[rank], slice(rank * n, (rank + 1) * n)
            whole, part = wrap(np.zeros_like(x)), wrap(np.zeros_like(x[:n]))
            group.all_gather(whole, wrap(x[:n]))
            assert raw(whole) == raw(wrap(np.concatenate([y[:n] for y in inputs])))
            group.all_to_all(whole, wrap(x))
            assert raw(whole) == raw(wrap(np.concatenate([y[mine] for y in inputs])))
            for root in {0, world - 1}:
                group.gather(whole if rank == root else None, wrap(x[:n]), root)
                assert rank != root or raw(whole) == raw(wrap(np.concatenate([y[:n] for y in inputs])))
                group.scatter(part, wrap(x) if rank == root else None, root)
                assert raw(part) == raw(wrap(inputs[root][mine]))
                y = wrap(x)
                group.broadcast(y, root)
                assert raw(y) == raw(wrap(inputs[root]))
            for op in OPS:
                if not defined(dtype, op):
                    continue
                total = wrap(x)
                group.all_reduce(total, op)
                h.update(raw(total))
                group.reduce_scatter(part, wrap(x), op)
                assert raw(part) == raw(total[mine])
                y = wrap(x)
                group.reduce(y, world - 1, op)
                assert raw(y) == raw(total if rank == world - 1 else wrap(x))
    return h.hexdigest()
