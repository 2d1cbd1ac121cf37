"""DTensors in files of `pydist.save`: this rank's part, and numbers and words that say what it is a part of. Nothing in a
file is called."""

from pydist import _C
from pydist.distributed.device_mesh import DeviceMesh
from pydist.distributed.tensor._dtensor import make
from pydist.distributed.tensor._spec import checked_placements, spec_of
from pydist.distributed.tensor.placement_types import Partial, Replicate, Shard

_PLACES = {kind.__name__: kind for kind in (Shard, Replicate, Partial)}


def described(tensor):
    """The arguments of `rebuild` for a DTensor."""
    spec = _C.spread_of(tensor)
    places = tuple((type(place).__name__, *vars(place).values()) for place in spec.placements)
    local, shape = _C.local_part(tensor.detach()), tuple(spec.shape)
    return local, spec.mesh._key(), places, shape, tensor.requires_grad, spec.shared


def _are_ints(values):
    return type(values) is tuple and all(type(n) is int and n >= 0 for n in values)


def rebuild(local, mesh, placements, shape, requires_grad, shared=0):
    """The DTensor of which a file has this rank's part. Raises ValueError for a description that does not fit the part,
    RuntimeError if this rank has made no such mesh."""
    fits = type(mesh) is tuple and len(mesh) == 4 and isinstance(local, _C.Tensor) and _are_ints(shape)
    fits = fits and _are_ints(mesh[1]) and type(mesh[2]) is tuple and all(map(_are_ints, mesh[2]))
    fits = fits and all(mesh[2]) and sum(map(max, mesh[2])) < len(mesh[1])
    fits = fits and all(type(place) is tuple and place and place[0] in _PLACES for place in placements)
    if not fits or type(shared) is not int or not 0 <= shared < 1 << len(placements):
        raise ValueError("load: the description of a DTensor is wrong (expected what save writes)")
    mesh = DeviceMesh._of_key(*mesh)
    places = checked_placements([_PLACES[name](*values) for name, *values in placements], mesh, len(shape), "load")
    spec = spec_of(mesh, places, shape, shared)
    if tuple(local.shape) != spec.local_shape():
        raise ValueError(f"load: a part has shape {list(local.shape)} (expected {list(spec.local_shape())})")
    return make(local, spec, bool(requires_grad))
