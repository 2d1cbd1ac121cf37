"""What a DTensor is a part of: mesh, placements and sizes, one object for equal ones."""

import math
import threading
import weakref
from typing import NamedTuple

from pydist import _C
from pydist.distributed.device_mesh import DeviceMesh
from pydist.distributed.tensor.placement_types import Partial, Placement, Replicate, Shard

_made = weakref.WeakValueDictionary()
_lock = threading.Lock()


def cut(size, ranks, rank, block=1):
    """The indices [from, to) of a dimension of `size` that belong to a rank, as torch.chunk cuts a row of blocks."""
    blocks = -(-size // block)
    each = -(-blocks // ranks) * block
    return min(size, each * rank), min(size, each * (rank + 1))


def cuts(size, ranks, block=1):
    """How many indices each rank has."""
    ends = [cut(size, ranks, rank, block) for rank in range(ranks)]
    return tuple(b - a for a, b in ends)


class TensorMeta(NamedTuple):
    """Sizes, strides and dtype of a whole tensor; dtype None: not known here."""

    shape: _C.Size
    stride: tuple
    dtype: object


def contiguous(shape):
    """The strides of a contiguous tensor."""
    return tuple(math.prod(shape[d + 1 :]) for d in range(len(shape)))


class Spec(_C.Spread):
    """`mesh`, `placements` (one for each of its dimensions), `shape` of the whole tensor. Equal ones are one object, so
    that the engine compares their addresses. Bit d of `shared`: the ranks along dimension d of the mesh have copies, and
    each has a summand of the gradient, as of an input that layers will use for different parts of their results."""

    def __init__(self, mesh, placements, shape, shared=0):
        self.mesh, self.placements, self.shape, self.shared = mesh, placements, shape, shared
        self.combined = any(isinstance(place, Partial) for place in placements)  # see _C.Spread.combined
        means = (n for n, place in zip(mesh.shape, placements, strict=True) if place.is_partial("avg"))
        self.shares = math.prod(means)  # how many ranks' parts make a mean; 1: none
        self.size, self.outside = _C.Size(shape), mesh.get_coordinate() is None  # this rank is not in the mesh
        self._gradient = self._everywhere = None
        self.moves = {}  # (placements, shared) -> (Move, the Spec that it leads to)

    @property
    def stride(self):
        """The strides of the whole tensor: it is contiguous."""
        return contiguous(self.shape)

    @property
    def device_mesh(self):
        """The mesh, as PyTorch's DTensorSpec has it; so are ndim, tensor_meta, dim_map, num_shards and sums."""
        return self.mesh

    @property
    def ndim(self):
        """The number of dimensions of the tensor."""
        return len(self.shape)

    @property
    def tensor_meta(self):
        """The whole tensor's sizes and strides. The dtype is the tensor's: it does not belong to how it lies."""
        return TensorMeta(self.size, self.stride, None)

    @property
    def dim_map(self):
        """For each dimension of the tensor, the dimension of the mesh that cuts it, the last one of several; -1: none."""
        found = [-1] * len(self.shape)
        for d, place in enumerate(self.placements):
            if isinstance(place, Shard):
                found[place.dim] = d
        return found

    @property
    def num_shards(self):
        """How many parts there are."""
        pairs = zip(self.mesh.shape, self.placements, strict=True)
        return math.prod(n for n, place in pairs if isinstance(place, Shard))

    @property
    def sums(self):
        """The dimensions of the mesh along which ranks have summands."""
        return [d for d, place in enumerate(self.placements) if isinstance(place, Partial)]

    @property
    def everywhere(self):
        """The Spec of the same tensor with a copy on each rank."""
        if self._everywhere is None:
            spec = self.replaced((Replicate(),) * self.mesh.ndim)
            if spec is self:
                return self
            self._everywhere = spec
        return self._everywhere

    def gradient(self):
        """The Spec of the tensor's gradient: where ranks have summands, each has the whole gradient."""
        return self._gradient or self

    def seeded(self, local):
        """A gradient of the whole, of which this rank has `local`, as backward through this rank's part begins with it: of
        a mean over ranks, each rank's part has a share."""
        return local / self.shares if self.shares > 1 else local

    def as_gradient(self, local):
        """A plain tensor, the gradient of this rank's part, as a part of the whole's gradient."""
        spec = self.gradient()
        local = local * self.shares if self.shares > 1 else local
        if not self.combined or not local.requires_grad:
            return _C.as_part(local, spec)
        from pydist.distributed.tensor._moves import once

        wanted = [p if isinstance(p, Partial) else q for p, q in zip(self.placements, spec.placements, strict=True)]
        return _C.spread_move(local, once(spec, tuple(wanted)), spec)

    def replaced(self, placements=None, shape=None):
        """The same with other placements or another shape."""
        return spec_of(
            self.mesh, self.placements if placements is None else placements, self.shape if shape is None else shape
        )

    def ranges(self, placements=None):
        """For each dimension the indices (from, to) of this rank's part; with `placements`, which may be the first ones
        only, of what these leave on it."""
        placements = self.placements if placements is None else placements
        found = [(0, n) for n in self.shape]
        for place, ranks, rank in zip(placements, self.mesh.shape, self.mesh.get_coordinate() or (), strict=False):
            if isinstance(place, Shard):
                first, last = found[place.dim]
                a, b = cut(last - first, ranks, rank, place.block)
                found[place.dim] = first + a, first + b
        return found

    def local_shape(self):
        """The sizes of this rank's part; of a rank outside the mesh: no elements."""
        if self.outside:
            return (0,) * max(1, len(self.shape))
        return tuple(b - a for a, b in self.ranges())

    def part_of(self, whole):
        """This rank's part of a plain tensor, a view."""
        for dim, (a, b) in enumerate(self.ranges()):
            if (a, b) != (0, whole.size(dim)):
                whole = whole.narrow(dim, a, b - a)
        return whole

    def __reduce__(self):
        return spec_of, (self.mesh, self.placements, self.shape, self.shared)


def spec_of(mesh, placements, shape, shared=0):
    """The Spec of these."""
    key = mesh, tuple(placements), tuple(shape), shared
    groups = tuple(map(id, mesh.get_all_groups()))  # of this rank: other ranks may be threads, with equal meshes
    with _lock:
        spec = _made.get((*key, groups))
        if spec is None:
            spec = _made[(*key, groups)] = Spec(*key)
    if (spec.combined or shared) and not spec._gradient:
        spec._gradient = spec.replaced(
            [
                Replicate() if isinstance(p, Partial) else Partial() if shared >> d & 1 else p
                for d, p in enumerate(placements)
            ]
        )
        spec.set_gradient(spec._gradient)
    return spec


def checked_mesh(mesh, op):
    """The mesh, or the one of the innermost `with mesh:`."""
    if mesh is None:
        from pydist.distributed.device_mesh import _mesh_resources

        mesh = _mesh_resources.get_current_mesh()
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(f"{op}: device_mesh is {type(mesh).__name__} (expected a DeviceMesh)")
    return mesh


def checked_placements(placements, mesh, ndim, op):
    """One placement for each dimension of the mesh (None: Replicate()), with dimensions that count from 0."""
    if placements is None:
        return (Replicate(),) * mesh.ndim
    if isinstance(placements, Placement) or len(placements) != mesh.ndim:
        raise ValueError(
            f"{op}: placements are {placements} (expected {mesh.ndim}, one for each dimension of {mesh!r})"
        )
    checked = []
    for place in placements:
        if not isinstance(place, (Shard, Replicate, Partial)):
            raise TypeError(f"{op}: a placement is {place!r} (expected Shard, Replicate or Partial)")
        if isinstance(place, Shard):
            if not -ndim <= place.dim < ndim:
                raise IndexError(f"{op}: {place} of a tensor with {ndim} dimensions (expected {-ndim} to {ndim - 1})")
            place = Shard(place.dim % ndim, place.block)
        checked.append(place)
    kinds = {place.reduce_op for place in checked if isinstance(place, Partial)}
    if len(kinds) > 1 and kinds != {"sum", "avg"}:
        raise ValueError(
            f"{op}: placements are {placements} (expected one kind of Partial: the result would depend on their order)"
        )
    return tuple(checked)
