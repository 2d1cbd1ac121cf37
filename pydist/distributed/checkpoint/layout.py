"""Which boxes of which tensors a rank holds, and which of them it writes. All ranks compute it; where they have different plain
tensors, they have told each other before.

A box is a part of a tensor with sides along its dimensions: offsets and sizes. A plain tensor in a state is the same on all
ranks, which share the writing. A TensorPart says that this rank holds only a part of a tensor.
"""

import zlib
from math import prod

from pydist import _C

SHARED_FROM = 1 << 16  # bytes: ranks share the rows of a tensor of this size; one rank writes a smaller one


class TensorPart:
    """The part of a tensor that this rank holds, as a value of a state that is saved or loaded.

    local:     a tensor with the part's values
    shape:     the shape of the whole tensor
    offsets:   where the part begins along each dimension
    replica, replicas: this rank is number `replica` of the `replicas` ranks that hold the same part and share its writing

    Rows 4 to 7 of 8, as the second of two ranks holds them:

    >>> import pydist
    >>> from pydist.distributed.checkpoint import TensorPart
    >>> TensorPart(pydist.ones(4, 3), (8, 3), (4, 0))
    TensorPart(4 x 3 at (4, 0) of 8 x 3)

    `TensorPart.flat` is a part of the tensor's elements in the order of memory, as optimizers that shard their state hold
    it: at most 2 d - 1 boxes for d dimensions.

    >>> part = TensorPart.flat(pydist.arange(5.0), (4, 3), 2)
    >>> [(offsets, list(tensor.shape)) for offsets, tensor in part.boxes()]
    [((0, 2), [1, 1]), ((1, 0), [1, 3]), ((2, 0), [1, 1])]

    Raises TypeError and ValueError for parts that lie outside of the whole.
    """

    def __init__(self, local, shape, offsets, *, replica=0, replicas=1):
        self._check(local, shape, replica, replicas)
        self.offsets = tuple(int(offset) for offset in offsets)
        if len(self.offsets) != len(self.shape) or local.dim() != len(self.shape):
            raise ValueError(
                f"TensorPart: local has {local.dim()} dimensions and offsets {len(self.offsets)} (expected "
                f"{len(self.shape)}, as shape)"
            )
        for offset, size, whole in zip(self.offsets, local.shape, self.shape, strict=True):
            if offset < 0 or offset + size > whole:
                raise ValueError(f"TensorPart: {self!r} (expected a part inside of the whole)")

    @classmethod
    def flat(cls, local, shape, begin, *, replica=0, replicas=1):
        """The elements from number `begin` on, as many as `local`, a tensor of one dimension, has."""
        self = cls.__new__(cls)
        self._check(local, shape, replica, replicas)
        self.begin = int(begin)
        if local.dim() != 1 or self.begin < 0 or self.begin + local.numel() > prod(self.shape):
            raise ValueError(
                f"TensorPart.flat: {local.dim()} dimensions, elements {begin} to {begin + local.numel()} of "
                f"{prod(self.shape)} (expected one dimension, and elements of the whole)"
            )
        return self

    begin = None  # of a flat part: the number of its first element

    def _check(self, local, shape, replica, replicas):
        if not isinstance(local, _C.Tensor):
            raise TypeError(f"TensorPart: local is {type(local).__name__} (expected a tensor)")
        if not 0 <= replica < replicas:
            raise ValueError(f"TensorPart: replica {replica} of {replicas} (expected 0 to {replicas - 1})")
        self.local, self.shape = local, tuple(int(size) for size in shape)
        self.replica, self.replicas = replica, replicas
        if any(size < 0 for size in self.shape):
            raise ValueError(f"TensorPart: the shape {self.shape} (expected sizes of 0 or more)")

    def boxes(self):
        """[(offsets, tensor)]: the boxes of the whole that this part is made of, as views of `local`."""
        local = self.local.detach()
        if self.begin is None:
            return [(self.offsets, local)]
        if not prod(self.shape):  # its name is saved, too
            return [((0,) * len(self.shape), local.view(self.shape))]
        found, at = [], 0
        for offsets, sizes in flat_boxes(self.shape, self.begin, self.begin + local.numel()):
            count = prod(sizes)
            found.append((offsets, local[at : at + count].view(sizes)))
            at += count
        return found

    def __repr__(self):
        local, whole = (" x ".join(map(str, shape)) for shape in (self.local.shape, self.shape))
        return f"TensorPart({local} at {self.offsets if self.begin is None else self.begin} of {whole})"


def as_part(value):
    """A DTensor as the part that this rank holds; other values as they are."""
    spec = _C.spread_of(value) if isinstance(value, _C.Tensor) else None
    if spec is None:
        return value
    replica, replicas = 0, 1
    for place, ranks, rank in zip(spec.placements, spec.mesh.shape, spec.mesh.get_coordinate(), strict=True):
        if place.is_partial():
            raise ValueError(
                f"checkpoint: a DTensor with the placements {spec.placements} (expected Shard and Replicate)"
            )
        if place.is_replicate():
            replica, replicas = replica * ranks + rank, replicas * ranks
    offsets = [begin for begin, _ in spec.ranges()]
    return TensorPart(_C.local_part(value.detach()), spec.shape, offsets, replica=replica, replicas=replicas)


def flat_boxes(shape, begin, end):
    """[(offsets, sizes)] of the elements number begin to end - 1 of a tensor, in the order of memory."""
    if begin >= end:
        return []
    if not shape:
        return [((), ())]
    inner = prod(shape[1:])
    first, rest = divmod(begin, inner)
    last, tail = divmod(end, inner)

    def within(row, begin, end):
        return [((row, *offsets), (1, *sizes)) for offsets, sizes in flat_boxes(shape[1:], begin, end)]

    if first == last:
        return within(first, rest, tail)
    boxes = within(first, rest, inner) if rest else []
    full = first + bool(rest)
    if full < last:
        boxes.append(((full, *[0] * (len(shape) - 1)), (last - full, *shape[1:])))
    return boxes + within(last, 0, tail)


def _rows(offsets, tensor, number, count):
    """Part `number` of `count` of a box, by its rows; None if that is empty."""
    rows = tensor.shape[0]
    begin, end = rows * number // count, rows * (number + 1) // count
    return ((offsets[0] + begin, *offsets[1:]), tensor[begin:end]) if begin < end else None


def _is_split(tensor, count):
    """Whether `count` ranks share the rows of this tensor."""
    nbytes = tensor.numel() * tensor.element_size()
    return tensor.dim() > 0 and tensor.shape[0] >= count and nbytes >= SHARED_FROM


def _shared(offsets, tensor, number, count, owner):
    """What rank `number` of the `count` that hold this box writes of it: (offsets, tensor) or None."""
    if count == 1:
        return offsets, tensor
    if _is_split(tensor, count):
        return _rows(offsets, tensor, number, count)
    return (offsets, tensor) if number == owner else None


def _number_of(name):
    """A number that all ranks make of a name, also of one that is no valid Unicode."""
    return zlib.crc32(name.encode("utf-8", "surrogatepass"))


def written(state, rank, ranks, holders=None):
    """[(name, offsets, tensor, shape of the whole)]: what rank `rank` of `ranks` writes of the tensors and parts in
    `state`. Small tensors go to the rank that has the fewest bytes of small tensors so far; all ranks see them in one
    order. holders: {name: the ranks that have it} of plain tensors, where ranks have different ones."""
    found, loads = [], [0] * ranks
    for number, name in enumerate(sorted(state)):
        value = as_part(state[name])
        if isinstance(value, TensorPart):
            for offsets, tensor in value.boxes():
                part = _shared(offsets, tensor, value.replica, value.replicas, number % value.replicas)
                if part:
                    found.append((name, *part, value.shape))
        elif holders is not None:
            value, own = value.detach(), holders[name]
            part = _shared((0,) * value.dim(), value, own.index(rank), len(own), _number_of(name) % len(own))
            if part:
                found.append((name, *part, tuple(value.shape)))
        else:
            value = value.detach()
            owner = loads.index(min(loads))
            part = _shared((0,) * value.dim(), value, rank, ranks, owner)
            if not _is_split(value, ranks):
                loads[owner] += value.numel() * value.element_size()
            if part:
                found.append((name, *part, tuple(value.shape)))
    return found


def wanted(value):
    """([(offsets, tensor)], shape of the whole): what a rank wants of a tensor that it loads."""
    value = as_part(value)
    if isinstance(value, TensorPart):
        return value.boxes(), value.shape
    return [((0,) * value.dim(), value.detach())], tuple(value.shape)


def meet(a, b):
    """(offsets, sizes) of the elements that two boxes (offsets, sizes) share; None if there are none."""
    offsets, sizes = [], []
    for p, n, q, m in zip(*a, *b, strict=True):
        begin, end = max(p, q), min(p + n, q + m)
        if begin >= end:
            return None
        offsets.append(begin)
        sizes.append(end - begin)
    return tuple(offsets), tuple(sizes)


def _overlapping(boxes, dim, dims):
    """Two boxes that share elements, or None. All given boxes have the same place along the dimensions before `dim`. In a
    grid of boxes, such as ranks make, each box is looked at once for each dimension."""
    if len(boxes) < 2:
        return None
    if dim == dims:
        return boxes[:2]
    groups = {}
    for box in boxes:
        groups.setdefault((box[0][dim], box[1][dim]), []).append(box)
    spans = sorted(groups)
    if all(a + n <= b for (a, n), (b, _) in zip(spans, spans[1:])):
        return next(filter(None, (_overlapping(group, dim + 1, dims) for group in groups.values())), None)
    boxes = sorted(boxes, key=lambda box: box[0][dim])
    for i, a in enumerate(boxes):
        for j in range(i + 1, len(boxes)):
            b = boxes[j]
            if b[0][dim] >= a[0][dim] + a[1][dim]:
                break
            if meet(a, b):
                return a, b
    return None


def uncovered(shape, boxes):
    """Why these boxes (offsets, sizes) are not the whole tensor, each element once; "" if they are."""
    for offsets, sizes in boxes:
        if (
            len(offsets) != len(shape)
            or len(sizes) != len(shape)
            or any(o < 0 or n < 0 or o + n > whole for o, n, whole in zip(offsets, sizes, shape, strict=True))
        ):
            return f"a box {sizes} at {offsets} lies outside of {tuple(shape)}"
    boxes = [box for box in boxes if prod(box[1])]
    if pair := _overlapping(boxes, 0, len(shape)):
        a, b = sorted(pair)
        return f"two boxes overlap: {a[1]} at {a[0]} and {b[1]} at {b[0]}"
    missing = prod(shape) - sum(prod(sizes) for _, sizes in boxes)
    return f"{missing} of {prod(shape)} elements are missing" if missing else ""
