"""Redistribution: the steps that change placements, as the engine runs them (_C.Move)."""

from pydist import _C
from pydist.distributed.tensor._spec import cuts, spec_of
from pydist.distributed.tensor.placement_types import Partial, Replicate, Shard


def _sizes(spec, before, dim, group, block):
    """How many indices of `dim` each rank of the group has, where `before` says what is cut already."""
    a, b = spec.ranges(before)[dim]
    return cuts(b - a, group.size, block)


def _narrow(spec, before, place, group):
    sizes = _sizes(spec, before, place.dim, group, place.block)
    return "narrow", place.dim, sum(sizes[: group.rank]), sizes[group.rank]


def _undo(spec, before, place, group):
    """The steps from a placement along one dimension of the mesh to Replicate()."""
    if isinstance(place, Shard):
        return [("gather", group, place.dim, _sizes(spec, before, place.dim, group, place.block))]
    return [("reduce", group, place.reduce_op)] if isinstance(place, Partial) else []


def _redo(spec, before, place, group):
    """The steps from Replicate() to a placement."""
    if isinstance(place, Shard):
        return [_narrow(spec, before, place, group)]
    if isinstance(place, Partial) and group.rank and place.reduce_op in ("sum", "product"):  # one rank has it all
        return [("fill", 0.0 if place.reduce_op == "sum" else 1.0)]
    return []


def _direct(spec, placements, place, wanted, group):
    """The steps from one placement to another, where nothing else cuts their dimensions further. `placements`: all."""
    if isinstance(place, Shard) and isinstance(wanted, Shard):
        whole = [Replicate() if p is place else p for p in placements]
        return [("exchange", group, place.dim, _sizes(spec, whole, place.dim, group, place.block), wanted.dim,
                 _sizes(spec, whole, wanted.dim, group, wanted.block))]  # fmt: skip
    if isinstance(place, Partial) and isinstance(wanted, Shard):
        sizes = _sizes(spec, placements, wanted.dim, group, wanted.block)
        return [("scatter", group, wanted.dim, sizes, place.reduce_op)]
    whole = [Replicate() if p is place else p for p in placements]
    return _undo(spec, whole, place, group) + _redo(spec, whole, wanted, group)


def _cuts_alike(spec, now, wanted, d):
    """Whether two Shards along dimension d of the mesh leave each rank the same part, though their blocks differ."""
    a, b = now[d], wanted[d]
    if not isinstance(a, Shard) or not isinstance(b, Shard) or a.dim != b.dim or list(now[:d]) != list(wanted[:d]):
        return False
    group = spec.mesh.get_group(d)
    return _sizes(spec, now[:d], a.dim, group, a.block) == _sizes(spec, now[:d], b.dim, group, b.block)


def _steps(spec, now, wanted):
    """The steps from placements to others; a dimension of the tensor may be cut by several of the mesh, in their order.
    A rank outside the mesh has none."""
    now, mesh = list(now), spec.mesh
    if spec.outside:
        return []
    changed = [d for d in range(mesh.ndim)
               if now[d] is not wanted[d] and mesh.size(d) > 1 and not _cuts_alike(spec, now, wanted, d)]  # fmt: skip
    if not changed:
        return []
    dims = [place.dim for d in changed for place in {now[d], wanted[d]} if isinstance(place, Shard)]
    kept = {now[e].dim for e in range(mesh.ndim) if e not in changed and isinstance(now[e], Shard) and mesh.size(e) > 1}
    steps = []
    if len(set(dims)) == len(dims) and not kept & set(dims):
        # first what makes the tensor smaller
        for d in sorted(changed, key=lambda d: not (now[d].is_replicate() and wanted[d].is_shard())):
            steps += _direct(spec, now, now[d], wanted[d], mesh.get_group(d))
            now[d] = wanted[d]
        return steps
    first = changed[0]
    undone = [d for d in range(first, mesh.ndim) if mesh.size(d) > 1
              and (d in changed or (isinstance(now[d], Shard) and now[d].dim in dims))]  # fmt: skip
    for d in reversed(undone):
        steps += _undo(spec, now[:d], now[d], mesh.get_group(d))
        now[d] = Replicate()
    for d in undone:
        steps += _redo(spec, now[:d], wanted[d], mesh.get_group(d))
        now[d] = wanted[d]
    return steps


def _of_gradient(place, shared):
    """How the gradient lies: where ranks have summands, each has the whole; where they share a copy, each has a summand
    of the gradient."""
    return Replicate() if isinstance(place, Partial) else Partial() if shared and place.is_replicate() else place


def move_to(spec, placements, shared=0):
    """(Move, Spec): how to bring a tensor with this Spec to other placements. Bit d of `shared`: along dimension d of the
    mesh the ranks will use their copies for different parts of the result, so each gets a summand of the gradient."""
    key = placements, shared
    found = spec.moves.get(key)
    if found is None:
        mesh, target = spec.mesh, spec.replaced(placements)
        if target.combined and (key, "there") in spec.moves:
            return spec.moves[key, "there"], target
        there = tuple(_steps(spec, spec.placements, target.placements))
        back = [_of_gradient(place, shared >> d & 1 and mesh.size(d) > 1) for d, place in enumerate(target.placements)]
        to = [_of_gradient(place, spec.shared >> d & 1) for d, place in enumerate(spec.placements)]
        back = _steps(spec, back, to)
        for d in range(mesh.ndim):
            was, will = spec.placements[d], target.placements[d]
            if was is will or mesh.size(d) == 1:
                continue
            if was.is_partial("avg"):
                back.append(("scale", 1 / mesh.size(d)))
            if will.is_partial("avg"):
                back.append(("scale", float(mesh.size(d))))
            if any(isinstance(p, Partial) and p.reduce_op in ("max", "min", "product") for p in (was, will)):
                back.append(("refuse",))
        found = _C.Move(there, tuple(back)), target
        if target.combined:  # it keeps the Spec of its gradient in C: a circle that Python's collector would not see
            spec.moves[key, "there"] = found[0]
        else:
            spec.moves[key] = found
    return found


def convert(spec, given, wanted, shared=0, seeds=False):
    """The Move that does nothing, but brings the gradient from the placements in which it is `given` to those in which the
    gradient of a tensor with the placements `wanted`, and with `shared` as in a Spec, lies. seeds: it is the gradient of
    the whole, see Spec.seeded."""
    key = "gradient", given, wanted, shared, seeds
    if key not in spec.moves:
        to = [_of_gradient(place, shared >> d & 1) for d, place in enumerate(wanted)]
        steps = _steps(spec, given, to)
        if seeds:
            pairs = zip(spec.mesh.shape, wanted, strict=True)
            steps += [("scale", 1 / n) for n, place in pairs if place.is_partial("avg")]
        spec.moves[key] = _C.Move((), tuple(steps))
    return spec.moves[key]


def gather_shared(tensor):
    """A copy on each rank of a DTensor over a mesh of one dimension, for layers that will use it for different parts of
    their results: each rank has a summand of its gradient, which is reduced and scattered in one step."""
    spec = _C.spread_of(tensor)
    if all(place.is_replicate() for place in spec.placements):
        return tensor
    if spec.mesh.ndim != 1 or spec.mesh.size() == 1 or not isinstance(spec.placements[0], Shard):
        return tensor.redistribute(placements=spec.everywhere.placements)
    move, target = move_to(spec, spec.everywhere.placements, 1)
    return _C.spread_move(tensor, move, spec_of(target.mesh, target.placements, target.shape, 1))


def as_part_once(tensor, spec):
    """A plain tensor as this rank's part of what the Spec describes; the same DTensor as last time, if there is one."""
    if "part" not in spec.moves:
        spec.moves["part"] = _C.Move((), ())
    return _C.spread_move(tensor, spec.moves["part"], spec, True)


def once(spec, placements):
    """The Move that does nothing; of its gradient, which all ranks have, one rank keeps it where `placements` are
    Partial."""
    return _C.Move((), tuple(_steps(spec, spec.placements, placements)))
