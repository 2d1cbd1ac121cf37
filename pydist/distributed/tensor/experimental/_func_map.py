"""local_map: a function of plain tensors, called with DTensors."""

import functools

from pydist import _C
from pydist.distributed.tensor._dtensor import DTensor
from pydist.distributed.tensor._spec import checked_placements, cuts
from pydist.utils._pytree import tree_flatten, tree_unflatten

_OP = "local_map"


def local_map(
    func=None,
    out_placements=None,
    in_placements=None,
    in_grad_placements=None,
    device_mesh=None,
    *,
    redistribute_inputs=False,
):
    """A function that takes DTensors and calls `func` with this rank's parts of them, plain tensors. What func returns is
    this rank's part of the results. Without func: a decorator.

    `out_placements`: placements for func's only result, or a tuple of these for the leaves of what it returns, with None
    for those that are no tensors. `in_placements`: the same for the positional arguments; DTensors that lie in another way
    raise ValueError, or are redistributed if `redistribute_inputs`. `in_grad_placements`: how the gradients lie that come
    out of func, as in to_local. `device_mesh`: of the results; default: that of the first DTensor. Calls without a DTensor
    are plain calls. Raises AssertionError where the number or kind of placements does not fit.

    If a DTensor among the arguments is cut unevenly, the ranks compare the sizes of results that are cut, in one small
    message for each; else parts of results are equal in size.

    >>> import pydist
    >>> from pydist.distributed.tensor import Shard, distribute_tensor, init_device_mesh
    >>> from pydist.distributed.tensor.experimental import local_map
    >>> mesh = init_device_mesh("cpu", (1,))
    >>> twice = local_map(lambda part: part * 2, out_placements=[Shard(0)], in_placements=([Shard(0)],))
    >>> twice(distribute_tensor(pydist.ones(3), mesh, [Shard(0)])).full_tensor()
    tensor([2., 2., 2.])
    """
    options = out_placements, in_placements, in_grad_placements, device_mesh, redistribute_inputs
    if func is None:
        return lambda func: local_map(func, *options[:4], redistribute_inputs=redistribute_inputs)
    return functools.partial(_call, func, options)


def _call(func, options, /, *args, **kwargs):
    outs, ins, grads, mesh, moves = options
    leaves, tree = tree_flatten(args)
    for name, given in (("in_placements", ins), ("in_grad_placements", grads)):
        if given is not None and len(given) != len(leaves):
            raise AssertionError(f"{_OP}: got {len(given)} {name} for {len(leaves)} arguments (expected one for each)")
    spread = [leaf for leaf in leaves if isinstance(leaf, DTensor)]
    if spread:
        mesh = spread[0].device_mesh if mesh is None else mesh
    uneven = any(_is_uneven(leaf._spec) for leaf in spread)
    parts = [_part(i, leaf, None if ins is None else (ins[i],), None if grads is None else (grads[i],), moves)
             for i, leaf in enumerate(leaves)]  # fmt: skip
    made = func(*tree_unflatten(parts, tree), **kwargs)
    return _joined(made, outs, mesh, uneven) if spread else made


def _part(i, leaf, wanted, grads, moves):
    """An argument as func gets it. wanted, grads: a tuple with the placements, or None."""
    if not isinstance(leaf, DTensor):
        if wanted is not None and wanted[0] is not None and not isinstance(leaf, _C.Tensor):
            raise AssertionError(f"{_OP}: argument {i} is no tensor, but has placements {wanted[0]} (expected None)")
        return leaf
    if wanted is not None:
        if wanted[0] is None:
            raise AssertionError(f"{_OP}: argument {i} is a DTensor, but its placements are None (expected some)")
        places = checked_placements(wanted[0], leaf.device_mesh, leaf.dim(), _OP)
        if leaf.placements != places:
            if not moves:
                raise ValueError(
                    f"{_OP}: argument {i} has placements {leaf.placements} (expected {places}, or redistribute_inputs=True)"
                )
            leaf = leaf.redistribute(placements=places)
    if grads is None:
        return leaf.to_local()
    if grads[0] is None:
        raise AssertionError(f"{_OP}: argument {i} is a DTensor, but its in_grad_placements are None (expected some)")
    return leaf.to_local(grad_placements=grads[0])


def _joined(made, outs, mesh, uneven):
    """What func returned, with DTensors in the place of tensors."""
    leaves, tree = tree_flatten(made)
    outs = outs if isinstance(outs, tuple) else (outs,)
    if len(outs) != len(leaves):
        raise AssertionError(f"{_OP}: got {len(outs)} out_placements for {len(leaves)} results (expected one for each)")
    results = []
    for leaf, places in zip(leaves, outs, strict=True):
        if not isinstance(leaf, _C.Tensor):
            if places is not None:
                raise AssertionError(
                    f"{_OP}: a result is {type(leaf).__name__} with placements {places} (expected None)"
                )
            results.append(leaf)
            continue
        if isinstance(leaf, DTensor):
            raise AssertionError(f"{_OP}: a result is a DTensor (expected a plain tensor, this rank's part)")
        places = checked_placements(places, mesh, leaf.dim(), _OP)
        shape = _whole_shape(leaf, mesh, places) if uneven and any(p.is_shard() for p in places) else None
        results.append(DTensor.from_local(leaf, mesh, places, shape=shape))
    return tree_unflatten(results, tree)


def _is_uneven(spec):
    """Whether some ranks have larger parts than others."""
    sizes = list(spec.shape)
    for ranks, place in zip(spec.mesh.shape, spec.placements, strict=True):
        if place.is_shard():
            if sizes[place.dim] % (ranks * place.block):
                return True
            sizes[place.dim] //= ranks
    return False


def _whole_shape(local, mesh, places):
    """The sizes of the whole, of which each rank has a part. Raises ValueError on all ranks for parts that are not as
    torch.chunk would cut."""
    shape = list(local.shape)
    for d in reversed(range(mesh.ndim)):
        place, group = places[d], mesh.get_group(d)
        if not place.is_shard() or mesh.size(d) == 1:
            continue
        own = _C.tensor([shape[place.dim]], device=local.device)
        sizes = _C.empty(group.size, dtype=own.dtype, device=local.device)
        group.all_gather(sizes, own)
        sizes = tuple(sizes.tolist())
        expected = cuts(sum(sizes), group.size, place.block)
        if sizes != expected:
            raise ValueError(
                f"{_OP}: the ranks' parts of a result have sizes {sizes} along {place} (expected {expected})"
            )
        shape[place.dim] = sum(sizes)
    return shape
