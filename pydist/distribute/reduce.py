"""How values of replicas are combined: one tree over all replicas of all processes, so that all get the same bits."""

from enum import Enum

from pydist import _C
from pydist._grad_mode import no_grad

__all__ = ["CrossDeviceOps", "HierarchicalCopyAllReduce", "NcclAllReduce", "ReduceOp", "ReductionToOneDevice"]


class ReduceOp(Enum):
    """SUM, or MEAN over the replicas."""

    SUM = "SUM"
    MEAN = "MEAN"

    @classmethod
    def from_name(cls, op):
        """The ReduceOp of a name such as "sum" or "MEAN". Raises ValueError for others."""
        if isinstance(op, cls):
            return op
        name = getattr(op, "name", op)  # also of another library's enumeration
        if isinstance(name, str) and name.upper() in cls.__members__:
            return cls[name.upper()]
        raise ValueError(f"reduce_op is {op!r} (expected ReduceOp.SUM or ReduceOp.MEAN)")


def tree_sum(parts):
    """The sum of tensors in the order ((0 1) (2 3)) ..., as a new tensor."""
    if len(parts) == 1:
        return parts[0].clone()
    half = 1 << (len(parts) - 1).bit_length() - 1
    return _tree(parts[:half]) + _tree(parts[half:])


def _tree(parts):
    return parts[0] if len(parts) == 1 else tree_sum(parts)


def packs(tensors, most=0):
    """The positions of tensors, by their dtype and device, in packs of at most `most` bytes, or of one tensor. 0: no limit."""
    found, last = [], {}  # of each kind: its last pack, and the bytes of it
    for i, tensor in enumerate(tensors):
        kind, size = (tensor.dtype, tensor.device), tensor.numel() * tensor.dtype.itemsize
        pack, used = last.get(kind, (None, 0))
        if pack is None or most and used + size > most:
            pack, used = [], 0
            found.append(pack)
        pack.append(i)
        last[kind] = pack, used + size
    return found


def all_reduce(group, tensors, scale=1.0, most=0):
    """Sums tensors over the ranks of `group` in place, one collective for each of the packs. None: no other rank."""
    for positions in packs(tensors, most) if group is not None else ():
        group.all_reduce([tensors[i] for i in positions], "sum", False)
    if scale != 1.0:
        for i, tensor in enumerate(tensors):
            tensors[i] = tensor * scale
    return tensors


def add(parts_of, group, blocks=None, most=0):
    """[the sum over all replicas] of tensors that are given as one list for each: its parts on the local replicas.
    `blocks`: the replicas are logical shards, dealt out like this. `most`: bytes of a pack, 0: no limit."""
    with no_grad():
        parts_of = [[part.detach() for part in parts] for parts in parts_of]
        if blocks is None:
            return all_reduce(group, [_local_sum(parts) for parts in parts_of], most=most)
        return _over_blocks(parts_of, group, blocks, most)


def _local_sum(parts):
    """The tree_sum, rounded once, as the engine does it over ranks."""
    dtype = parts[0].dtype
    if len(parts) == 1 or not dtype.is_floating_point or dtype.itemsize > 2:
        return tree_sum(parts)
    return tree_sum([part.float() for part in parts]).to(dtype)


def _over_blocks(parts_of, group, blocks, most):
    """The sums in the order of the tree over all shards, whoever has them."""
    found = [None] * len(parts_of)
    for positions in packs([parts[0] for parts in parts_of], most):
        kind = parts_of[positions[0]][0]
        if not kind.is_floating_point():  # sums of integers have no order
            totals = all_reduce(group, [tree_sum(parts_of[i]) for i in positions])
        else:
            totals = _floats_over_blocks([parts_of[i] for i in positions], group, blocks, kind.dtype)
        for i, total in zip(positions, totals):
            found[i] = total
    return found


def _floats_over_blocks(parts_of, group, blocks, dtype):
    wide = dtype if dtype is _C.float64 else _C.float32
    sums, first = [], 0
    for _, size, rank, _ in blocks.table:
        if rank == group.rank:
            own = [tree_sum([part.to(wide) for part in parts[first : first + size]]) for parts in parts_of]
            sums.append(_C.cat([total.flatten() for total in own]))
            first += size
    sums += [_C.zeros_like(sums[0])] * (blocks.parts - len(sums))
    total = _C.cat(sums)
    group.all_reduce(total, "sum", False, blocks=blocks)
    shapes = [parts[0].shape for parts in parts_of]
    each = total[: len(total) // blocks.parts].split([shape.numel() for shape in shapes])
    return [flat.reshape(shape).to(dtype) for flat, shape in zip(each, shapes)]


def gather_rows(group, part, rows):
    """The tensors of all ranks, one behind the other; rank r's has rows[r] rows."""
    found = [part.new_empty((n, *part.shape[1:])) for n in rows]
    group.all_gather(found, part.detach().contiguous(), False)
    return _C.cat(found)


class CrossDeviceOps:
    """How replicas of one process are combined. All kinds add in the same order and differ in name only."""

    def __init__(self, num_packs=1):
        self.num_packs = num_packs

    def reduce(self, reduce_op, per_replica_value, destinations=None, options=None):
        """The sum or mean of a PerReplica."""
        from pydist.distribute.values import as_tensor

        parts = [as_tensor(value, "reduce") for value in getattr(per_replica_value, "values", [per_replica_value])]
        total = tree_sum(parts)
        return total / len(parts) if ReduceOp.from_name(reduce_op) is ReduceOp.MEAN else total

    def batch_reduce(self, reduce_op, value_destination_pairs, options=None):
        """`reduce` of each (value, destination)."""
        return [self.reduce(reduce_op, value, where) for value, where in value_destination_pairs]


class NcclAllReduce(CrossDeviceOps):
    """Accepted; the engine chooses NCCL itself for tensors on GPUs."""


class HierarchicalCopyAllReduce(CrossDeviceOps):
    """Accepted; the engine chooses by topology itself."""


class ReductionToOneDevice(CrossDeviceOps):
    """Accepted; `reduce_to_device` and `accumulation_fn` may only be None."""

    def __init__(self, reduce_to_device=None, accumulation_fn=None):
        super().__init__()
        if accumulation_fn is not None:
            raise NotImplementedError("ReductionToOneDevice: accumulation_fn (expected None: sums are tree sums)")
