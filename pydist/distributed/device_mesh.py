"""The ranks as a grid whose dimensions have names. Each line of the grid along a dimension is a group."""

import itertools
import math

from pydist._C import arange, as_tensor, int64
from pydist.distributed._group.groups import new_group
from pydist.distributed._group.process_group import GroupMember, get_rank, get_world_size


class DeviceMesh:
    """A grid of ranks. `mesh` is a tensor or nested lists of rank numbers. All ranks make it together."""

    def __init__(self, device_type, mesh, *, mesh_dim_names=None, groups=None):
        mesh = as_tensor(mesh, dtype=int64, device="cpu")
        self.device_type, self.shape = device_type, tuple(mesh.shape)
        self.mesh_dim_names = None if mesh_dim_names is None else tuple(mesh_dim_names)
        self._ranks = mesh.flatten().tolist()
        self._groups = [self._make(dim) for dim in range(self.ndim)] if groups is None else groups

    @property
    def ndim(self):
        """The number of dimensions."""
        return len(self.shape)

    def _at(self, place):
        index = 0
        for n, i in zip(self.shape, place, strict=True):
            index = index * n + i
        return self._ranks[index]

    def _make(self, dim):
        """The group of this rank's line along `dim`. All ranks make the groups of all lines, in the same order."""
        own = GroupMember.NON_GROUP_MEMBER
        others = [range(n) if i != dim else (0,) for i, n in enumerate(self.shape)]
        for place in itertools.product(*others):
            line = [self._at((*place[:dim], i, *place[dim + 1 :])) for i in range(self.shape[dim])]
            group = new_group(line)
            own = group if get_rank() in line else own
        return own

    def _dim(self, mesh_dim):
        if mesh_dim is None:
            if self.ndim > 1:
                raise RuntimeError(
                    f"DeviceMesh: mesh_dim is None, but the mesh has {self.ndim} dimensions (expected one of them)"
                )
            return 0
        if isinstance(mesh_dim, str):
            if mesh_dim not in (self.mesh_dim_names or ()):
                raise KeyError(f"DeviceMesh: no dimension {mesh_dim!r} (expected one of {self.mesh_dim_names})")
            return self.mesh_dim_names.index(mesh_dim)
        if not -self.ndim <= mesh_dim < self.ndim:
            raise IndexError(f"DeviceMesh: dimension {mesh_dim} (expected 0 to {self.ndim - 1})")
        return mesh_dim % self.ndim

    def size(self, mesh_dim=None):
        """The number of ranks, or the number of ranks along one dimension."""
        return math.prod(self.shape) if mesh_dim is None else self.shape[self._dim(mesh_dim)]

    def get_group(self, mesh_dim=None):
        """The group of this rank's line along a dimension, which is given by number or name."""
        return self._groups[self._dim(mesh_dim)]

    def get_all_groups(self):
        """The groups of this rank's lines, one for each dimension."""
        return list(self._groups)

    def get_coordinate(self):
        """This rank's position, a number for each dimension; None if this rank is not in the mesh."""
        if get_rank() not in self._ranks:
            return None
        index, place = self._ranks.index(get_rank()), []
        for n in reversed(self.shape):
            place.insert(0, index % n)
            index //= n
        return place

    def get_local_rank(self, mesh_dim=None):
        """This rank's number along a dimension."""
        return self.get_coordinate()[self._dim(mesh_dim)]

    def get_rank(self):
        """This rank's number in the job."""
        return get_rank()

    def __getitem__(self, names):
        """The submesh with only these dimensions that this rank is in: mesh["dp"], mesh["dp", "tp"]."""
        names = (names,) if isinstance(names, str) else tuple(names)
        dims = [self._dim(name) for name in names]
        if len(set(dims)) < len(dims):
            raise KeyError(f"DeviceMesh: got dimensions {names} (expected each name once)")
        here = self.get_coordinate()
        ranks = []
        for place in itertools.product(*(range(self.shape[dim]) for dim in dims)):
            whole = list(here)
            for dim, i in zip(dims, place, strict=True):
                whole[dim] = i
            ranks.append(self._at(whole))
        shape = [self.shape[dim] for dim in dims]
        groups = [self._groups[dim] for dim in dims]
        return DeviceMesh(
            self.device_type, as_tensor(ranks, device="cpu").view(shape), mesh_dim_names=names, groups=groups
        )

    def __repr__(self):
        names = self.mesh_dim_names or range(self.ndim)
        return f"DeviceMesh({', '.join(f'{name}={n}' for name, n in zip(names, self.shape, strict=True))})"


def init_device_mesh(device_type, mesh_shape, *, mesh_dim_names=None, backend_override=None):
    """Arranges all ranks of the job in a grid of `mesh_shape`, row by row. mesh_dim_names are the names for mesh["dp"]
    and get_group("dp").

    >>> from pydist.distributed.device_mesh import init_device_mesh
    >>> mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))
    >>> mesh["tp"].size(), mesh.get_local_rank("dp")
    (1, 0)
    """
    if device_type != "cpu":
        raise ValueError(f"init_device_mesh: device_type {device_type!r} (expected 'cpu')")
    shape = tuple(mesh_shape)
    if not shape or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in shape):
        raise ValueError(f"init_device_mesh: mesh_shape {shape} (expected sizes of at least 1)")
    if math.prod(shape) != get_world_size():
        raise RuntimeError(
            f"init_device_mesh: mesh_shape {shape} has {math.prod(shape)} places (expected {get_world_size()}, the number of ranks)"
        )
    names = mesh_dim_names
    if names is not None and (len(names) != len(shape) or len(set(names)) < len(names)):
        raise RuntimeError(f"init_device_mesh: mesh_dim_names {tuple(names)} (expected {len(shape)} different names)")
    return DeviceMesh(device_type, arange(math.prod(shape), device="cpu").view(shape), mesh_dim_names=names)
