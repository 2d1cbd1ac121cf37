"""Redistribution: the collectives that change placements, one dimension of the mesh after the other."""

from pydist import _C
from pydist.autograd import Function
from pydist.distributed._ops.collectives import ReduceOp
from pydist.distributed.tensor._spec import cut
from pydist.distributed.tensor.placement_types import Partial, Replicate, Shard


def _gathered(local, dim, size, group):
    """All ranks' parts along `dim`, whose sum of sizes is `size`, one after the other."""
    if not size or not all(n for d, n in enumerate(local.shape) if d != dim):
        return local.new_empty([*local.shape[:dim], size, *local.shape[dim + 1 :]])
    shapes = [list(local.shape) for _ in range(group.size)]
    for rank, shape in enumerate(shapes):
        a, b = cut(size, group.size, rank)
        shape[dim] = b - a
    parts = [_C.empty(shape, dtype=local.dtype, device=local.device) for shape in shapes]
    group.all_gather(parts, local.contiguous())
    return _C.cat(parts, dim)


def _sum(local, place, group):
    whole = local.clone()
    group.all_reduce(whole, getattr(ReduceOp, place.reduce_op.upper()))
    return whole


def moved(local, spec, target):
    """This rank's part, a plain tensor, of the tensor with the placements of the Spec `target`. All ranks call it."""
    now, wanted, mesh = list(spec.placements), target.placements, spec.mesh
    first = next((d for d in range(mesh.ndim) if now[d] != wanted[d]), mesh.ndim)
    # A dimension of the tensor may be cut by several of the mesh, in their order: what comes after a change is undone.
    cut_again = {place.dim for d in range(first, mesh.ndim) for place in (now[d], wanted[d])
                 if isinstance(place, Shard) and now[d] != wanted[d]}  # fmt: skip
    undone = [d for d in range(first, mesh.ndim)
              if now[d] != wanted[d] or (isinstance(now[d], Shard) and now[d].dim in cut_again)]  # fmt: skip
    for d in reversed(undone):
        place, group = now[d], mesh.get_group(d)
        if isinstance(place, Shard):
            begin, end = spec.ranges(now[:d])[place.dim]
            local = _gathered(local, place.dim, end - begin, group)
        elif isinstance(place, Partial):
            local = _sum(local, place, group)
        now[d] = Replicate()
    for d in undone:
        place, group = wanted[d], mesh.get_group(d)
        if isinstance(place, Shard):
            a, b = cut(local.size(place.dim), group.size, group.rank)
            local = local.narrow(place.dim, a, b - a)
        elif isinstance(place, Partial) and group.rank and place.reduce_op in ("sum", "product"):  # one rank has it all
            local = _C.zeros_like(local) if place.reduce_op == "sum" else _C.ones_like(local)
    return local


def _of_gradient(spec):
    """The Spec of the gradient of a tensor with this one: the gradient of a sum is the same on all ranks."""
    others = [p for p in spec.placements if isinstance(p, Partial) and p.reduce_op != "sum"]
    if others:
        raise NotImplementedError(f"DTensor: the gradient of {others[0]!r} is not there (expected Partial of a sum)")
    return spec.replaced([Replicate() if isinstance(p, Partial) else p for p in spec.placements])


class Redistribute(Function):
    """`moved`, with a gradient."""

    @staticmethod
    def forward(ctx, local, spec, target):
        ctx.specs = spec, target
        made = moved(local, spec, target)
        return made.view_as(made) if made is local else made

    @staticmethod
    def backward(ctx, grad):
        spec, target = ctx.specs
        return moved(grad, _of_gradient(target), _of_gradient(spec)).contiguous(), None, None


class Convert(Function):
    """The tensor itself; its gradient comes with the Spec `given` and is brought to that of `wanted`."""

    @staticmethod
    def forward(ctx, local, given, wanted):
        ctx.specs = given, wanted
        return local.view_as(local)

    @staticmethod
    def backward(ctx, grad):
        given, wanted = ctx.specs
        return moved(grad, given, _of_gradient(wanted)).contiguous(), None, None
