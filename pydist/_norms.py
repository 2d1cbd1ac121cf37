"""2-norms of all elements of tensors, whose bits do not depend on how they are cut into tensors, threads or ranks. For
gradients as one vector (nn.utils.clip_grad_norm_), and for single parameters (optim.LAMB)."""

from pydist import _C


def by_device(tensors):
    """The tensors as lists with one device each."""
    parts = {}
    for t in tensors:
        parts.setdefault(t.device, []).append(t)
    return parts.values()


def over_ranks(group, value, op="SUM"):
    """The value of all ranks of the group together: a tensor, in place, or a number. Without a group the value itself."""
    if group is None:
        return value
    from pydist import distributed as dist

    here = value if isinstance(value, _C.Tensor) else _C.tensor(value, dtype=_C.float64, device="cpu")
    dist.all_reduce(here, getattr(dist.ReduceOp, op), group=group)
    return here if isinstance(value, _C.Tensor) else here.item()


class _Spread:
    """The groups over which the parts of DTensors make one vector: one for each dimension of their mesh that shards."""

    def __init__(self, spec):
        for place in spec.placements:
            if place.is_partial():
                raise ValueError(
                    f"get_total_norm: a gradient has the placements {spec.placements} (expected Shard and Replicate)"
                )
        self.groups = [spec.mesh.get_group(d) for d, place in enumerate(spec.placements) if place.is_shard()]

    def __eq__(self, other):
        return self.groups == other.groups


def _put(found, over, item):
    """Adds the item to the list of its set of groups."""
    known = next((items for groups, items in found if groups == over), None)
    if known is None:
        found.append((over, [item]))
    else:
        known.append(item)


def parts_of(tensors):
    """The plain tensors, and for each set of groups the local parts of the DTensors over it."""
    plain, spread = [], []
    for t in tensors:
        spec = _C.spread_of(t)
        if spec is None:
            plain.append(t)
        else:
            _put(spread, _Spread(spec), _C.local_part(t.detach()))
    return plain, spread


def two_norm(tensors, group=None):
    """The 2-norm of all elements, as a float."""
    plain, spread = parts_of(tensors)
    if spread:
        sums = [_squares(plain)] if plain else []
        for over, parts in spread:
            sums.append(_squares([t for t in parts if t.numel()]))
            for one in over.groups:
                over_ranks(one, sums[-1])
        return _C.exact_norm(over_ranks(group, _C.stack(sums).sum(0)))
    return _C.exact_norm(over_ranks(group, _squares(tensors)))


def _squares(tensors):
    """The exact sum of squares on this rank, as an int64 tensor."""
    gpus = by_device([t for t in tensors if t.is_cuda])
    squares = sum(_C.sums_of_squares(some).sum().item() for some in gpus)
    return _C.exact_squares([t for t in tensors if not t.is_cuda], squares)


def squares_of(tensors):
    """The sum of the squares of each tensor's elements, as a float, exact on a CPU until it is rounded; of a DTensor that
    of all its parts, so all ranks of its mesh call it. `tensors` may be a generator: each is needed only until the next
    one.

    Cost: for each set of groups that the DTensors are sharded over, one all_reduce of 1,088 bytes for each of them.
    """
    sums, spread = [], []
    for i, t in enumerate(tensors):
        spec = _C.spread_of(t)
        part = t if spec is None else _C.local_part(t.detach())
        sums.append(_squares([part] if part.numel() else []))
        if spec is not None:
            _put(spread, _Spread(spec), i)
    for over, rows in spread:
        total = _C.stack([sums[i] for i in rows])
        for one in over.groups:
            over_ranks(one, total)
        for i, row in zip(rows, total.unbind()):
            sums[i] = row
    return [_C.exact_value(one) for one in sums]
