"""The ranks as a grid whose dimensions have names. Each line of the grid along a dimension is a group.

A dimension is kept as offsets: where its places lie in the flat list of the grid's ranks, seen from the first one. So a
part of a mesh, several dimensions as one (`_flatten`) and one as several (`_unflatten`) are lists of offsets, too."""

import itertools
import math
import threading
import weakref

from pydist import _C
from pydist.distributed._group.groups import new_group
from pydist.distributed._group.process_group import GroupMember, get_process_group_ranks, get_rank, get_world_size


class _Env(threading.local):
    """What a thread knows of meshes. `mesh_stack`: those whose `with` blocks it is in."""

    def __init__(self):
        self.mesh_stack = []
        self.made = weakref.WeakValueDictionary()  # _key() -> a mesh with groups, for meshes that come from a pickle

    def get_current_mesh(self):
        """The mesh of the innermost `with` block. Raises RuntimeError outside of all."""
        if not self.mesh_stack:
            raise RuntimeError("get_current_mesh: no mesh is active (expected `with mesh:` around the call)")
        return self.mesh_stack[-1]

    def get_root_mesh(self, device_mesh):
        """The mesh that this one was taken from."""
        return device_mesh._root or device_mesh


_mesh_resources = _Env()


def _check_device_type(op, device_type):
    if isinstance(device_type, str) and ":" in device_type:
        raise RuntimeError(f"{op}: device_type is {device_type!r} (expected one without a number)")
    if device_type not in ("cpu", "cuda"):
        raise ValueError(f"{op}: device_type is {device_type!r} (expected 'cpu' or 'cuda')")
    if device_type == "cuda" and not (_C.pretended_cuda() or _C.cuda_count()):
        raise RuntimeError(f"{op}: device_type is 'cuda', but there is no GPU (expected 'cpu')")


def _checked_names(op, names, ndim):
    if not names:
        return None
    names = (names,) if isinstance(names, str) else tuple(names)
    if len(names) != ndim or len(set(names)) < ndim or not all(isinstance(name, str) for name in names):
        raise RuntimeError(f"{op}: mesh_dim_names {names} (expected {ndim} different names)")
    return names


def _checked_ranks(mesh):
    """(ranks in a row, shape)"""
    if mesh is None:
        raise TypeError("DeviceMesh: mesh is None (expected ranks: a tensor or nested lists)")
    mesh = _C.as_tensor(mesh, device="cpu")
    if mesh.is_floating_point() or mesh.is_complex() or mesh.dtype is _C.bool:
        raise TypeError(f"DeviceMesh: mesh is {mesh.dtype} (expected integers, which are ranks)")
    ranks, world = mesh.flatten().tolist(), get_world_size()
    if not mesh.dim() or not ranks:
        raise ValueError(
            f"DeviceMesh: mesh has shape {tuple(mesh.shape)} (expected at least one dimension and one rank)"
        )
    if len(ranks) > world:
        raise RuntimeError(
            f"DeviceMesh: the mesh has {len(ranks)} places (expected at most {world}, the number of ranks)"
        )
    if len(set(ranks)) < len(ranks) or min(ranks) < 0 or max(ranks) >= world:
        raise ValueError(f"DeviceMesh: mesh has the ranks {ranks} (expected each at most once, of 0 to {world - 1})")
    return tuple(ranks), tuple(mesh.shape)


def _together(dims):
    """The offsets of several dimensions as one, the last one running fastest."""
    return tuple(map(sum, itertools.product(*dims)))


def _where(ranks, dims):
    """(this rank's place along the dimensions, where the part that it is in begins in `ranks`); (None, None) if it is in
    none."""
    if get_rank() not in ranks:
        return None, None
    index, offsets, seen = ranks.index(get_rank()), _together(dims), set()
    for first in range(len(ranks)):
        part = [first + offset for offset in offsets]
        if first not in seen and index in part:
            place, at = [], part.index(index)
            for n in map(len, reversed(dims)):
                place.insert(0, at % n)
                at //= n
            return tuple(place), first
        seen.update(() if first in seen else part)


class DeviceMesh:
    """A grid of ranks; each line along a dimension is a process group. All ranks of the job make it together, also those
    that are not in it.

    `mesh` is a tensor or nested lists of ranks, each at most once. mesh_dim_names are for mesh["dp"], get_group("dp") and
    so on. device_type is "cpu", or "cuda" if there is a GPU. backend_override is accepted and ignored: all groups use
    the job's backend. As a context manager, a mesh is the current one of `_mesh_resources.get_current_mesh()`. Meshes of
    the same ranks, dimensions and names are equal. A mesh that comes from a pickle has the groups of an equal one that
    this rank has made.

    Raises ValueError for other device types and wrong ranks, TypeError for a mesh that is not of integers, RuntimeError
    for more places than ranks, for names that do not fit, and for "cuda" without a GPU.

    >>> import pydist
    >>> from pydist.distributed.device_mesh import DeviceMesh
    >>> mesh = DeviceMesh("cpu", [[0]], mesh_dim_names=("dp", "tp"))
    >>> mesh.shape, mesh.get_coordinate(), mesh["tp"].mesh.tolist()
    ((1, 1), (0, 0), [0])
    >>> def work(rank):
    ...     mesh = DeviceMesh("cpu", [[0, 1], [2, 3]], mesh_dim_names=("dp", "tp"))
    ...     return mesh["dp"].mesh.tolist(), mesh._flatten("all").get_local_rank()
    >>> pydist.testing.run_ranks(4, work)
    [([0, 2], 0), ([1, 3], 1), ([0, 2], 2), ([1, 3], 3)]
    """

    def __init__(self, device_type, mesh=None, *, mesh_dim_names=None, backend_override=None):
        _check_device_type("DeviceMesh", device_type)
        ranks, shape = _checked_ranks(mesh)
        names = _checked_names("DeviceMesh", mesh_dim_names, len(shape))
        if backend_override is not None and len(backend_override) != len(shape):
            raise ValueError(f"DeviceMesh: {len(backend_override)} values of backend_override (expected {len(shape)})")
        self._begin(device_type, ranks, shape, names)
        self._with([self._make(dim) for dim in range(self.ndim)])

    def _begin(self, device_type, ranks, shape, names):
        """A mesh of its own: not a part of another one."""
        steps = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
        dims = [tuple(range(0, n * step, step)) for n, step in zip(shape, steps, strict=True)]
        self._root, self._flattened = None, {}
        self._fill(device_type, ranks, dims, names)

    def _fill(self, device_type, ranks, dims, names):
        self.device_type, self.mesh_dim_names = device_type, names
        self._ranks, self._dims, self.shape = ranks, tuple(dims), tuple(map(len, dims))
        self._place, self._first = _where(ranks, self._dims)

    def _part(self, dims, names):
        """A mesh over the ranks of this one's root, with these dimensions, and without groups yet."""
        part = object.__new__(DeviceMesh)
        part._root = self._root or self
        part._fill(self.device_type, self._ranks, dims, names)
        return part

    def _with(self, groups):
        """Itself, with its groups."""
        self._groups = groups
        _mesh_resources.made[self._key()] = self
        return self

    def _line(self, dim):
        """The ranks of this rank's line along a dimension."""
        own = self._first + sum(d[i] for k, (d, i) in enumerate(zip(self._dims, self._place, strict=True)) if k != dim)
        return [self._ranks[own + offset] for offset in self._dims[dim]]

    def _make(self, dim):
        """The group of this rank's line along `dim`. All ranks make the groups of all lines, in the same order."""
        own = GroupMember.NON_GROUP_MEMBER
        others = [d if i != dim else (0,) for i, d in enumerate(self._dims)]
        for first in _together(others):
            line = [self._ranks[first + offset] for offset in self._dims[dim]]
            group = new_group(line)
            own = group if get_rank() in line else own
        return own

    def _make_own(self, dim):
        """The group of this rank's line along `dim`, which the ranks of the line make by themselves."""
        if self._place is None:
            return GroupMember.NON_GROUP_MEMBER
        return new_group(self._line(dim), use_local_synchronization=True)

    @property
    def ndim(self):
        """The number of dimensions."""
        return len(self.shape)

    @property
    def _first_rank(self):
        """The first rank of the part of the mesh that this rank is in."""
        return self._ranks[self._first or 0]

    @property
    def mesh(self):
        """The ranks, as an int32 tensor. Of a part of a mesh: those of the part that this rank is in; RuntimeError if it
        is in none."""
        offsets, first = _together(self._dims), self._first
        if first is None and len(offsets) == len(self._ranks):
            first = 0
        if first is None:
            raise RuntimeError(
                f"DeviceMesh: rank {get_rank()} is in no part {self.mesh_dim_names} of the mesh of ranks "
                f"{list(self._ranks)} (expected one of these ranks)"
            )
        ranks = [self._ranks[first + offset] for offset in offsets]
        return _C.tensor(ranks, dtype=_C.int32, device="cpu").view(self.shape)

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

    def _flat(self, name):
        """The flattened mesh of this name, or None. Only a mesh that is no part of another one knows names of these."""
        return self._flattened.get(name) if self._root is None and isinstance(name, str) else None

    def size(self, mesh_dim=None):
        """The number of ranks, or the number of ranks along one dimension."""
        return math.prod(self.shape) if mesh_dim is None else self.shape[self._dim(mesh_dim)]

    def get_group(self, mesh_dim=None):
        """The group of this rank's line along a dimension, which is given by number or name; the name may be one of
        `_flatten`. GroupMember.NON_GROUP_MEMBER if this rank is not in the mesh."""
        flat = self._flat(mesh_dim)
        return flat.get_group() if flat is not None else self._all_groups()[self._dim(mesh_dim)]

    def _all_groups(self):
        if self._groups is None:
            known = _mesh_resources.made.get(self._key())
            if known is None or known._groups is None:
                raise RuntimeError(
                    f"{self!r} comes from a pickle, and this rank has made no equal mesh (expected one, whose groups it "
                    "takes)"
                )
            self._groups = known._groups
        return self._groups

    def get_all_groups(self):
        """The groups of this rank's lines, one for each dimension."""
        return list(self._all_groups())

    def get_coordinate(self):
        """This rank's position, a number for each dimension; None if this rank is not in the mesh."""
        return self._place

    def get_local_rank(self, mesh_dim=None):
        """This rank's number along a dimension. Raises RuntimeError if it is not in the mesh."""
        dim = self._dim(mesh_dim)
        if self._place is None:
            raise RuntimeError(f"get_local_rank: rank {get_rank()} is not in the mesh (expected {list(self._ranks)})")
        return self._place[dim]

    def get_rank(self):
        """This rank's number in the job."""
        return get_rank()

    def __getitem__(self, mesh_dim_names):
        """The part with only these dimensions that this rank is in, in this order: mesh["dp"], mesh["dp", "tp"]. Names
        may be those of `_flatten`, unless this mesh is a part itself. It has the groups of this mesh: nothing is made.
        Raises KeyError for other names, RuntimeError for dimensions that overlap or a mesh without names."""
        if not self.mesh_dim_names:
            raise RuntimeError("DeviceMesh: the mesh has no names (expected mesh_dim_names, to take parts by name)")
        names = (mesh_dim_names,) if isinstance(mesh_dim_names, str) else tuple(mesh_dim_names)
        if names == self.mesh_dim_names:
            return self
        if len(set(names)) < len(names):
            raise KeyError(f"DeviceMesh: got dimensions {names} (expected each name once)")
        if len(names) == 1 and self._flat(names[0]) is not None:
            return self._flat(names[0])
        homes = [(self, self._dim(name)) if self._flat(name) is None else (self._flat(name), 0) for name in names]
        return self._joined(names, homes)

    def _joined(self, names, homes):
        """A part with the dimensions of other meshes of this root."""
        dims = [home._dims[dim] for home, dim in homes]
        if len(set(_together(dims))) < math.prod(map(len, dims)):
            raise RuntimeError(f"DeviceMesh: dimensions {names} overlap (expected different ones)")
        return self._part(dims, names)._with([home._all_groups()[dim] for home, dim in homes])

    def _flatten(self, mesh_dim_name=None, backend_override=None):
        """This mesh, or part of one, with all dimensions as one, the last one running fastest. The mesh that it is a part
        of then knows the dimension by its name, whose default is all names joined by "_": after
        mesh["dp", "cp"]._flatten(), mesh["dp_cp"] is the same. The ranks of a line make its group together; a second
        call returns the first one's mesh. Raises ValueError if the name stands for something else.

        >>> from pydist.distributed.device_mesh import init_device_mesh
        >>> mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "cp"))
        >>> mesh._flatten()
        DeviceMesh((dp_cp=1), 'cpu')
        """
        if not self.mesh_dim_names:
            raise RuntimeError("_flatten: the mesh has no names (expected mesh_dim_names)")
        root, name = self._root or self, mesh_dim_name or "_".join(self.mesh_dim_names)
        if self.mesh_dim_names == (name,):
            return self
        offsets, known = _together(self._dims), root._flattened.get(name)
        if known is not None and known._dims == (offsets,):
            return known
        if known is not None or name in (root.mesh_dim_names or ()):
            raise ValueError(f"_flatten: {name!r} is a dimension of {root!r} already (expected another name)")
        flat = self._part([offsets], (name,))
        root._flattened[name] = flat._with([flat._make_own(0)])
        return flat

    def _unflatten(self, dim, mesh_sizes, mesh_dim_names, backend_override=None):
        """This mesh with several dimensions in the place of one, the last of them running fastest. `dim` is a number or a
        name; the product of mesh_sizes is its size. The ranks of each new line make its group together. Raises
        ValueError for sizes and dimensions that do not fit, RuntimeError for names that do not.

        >>> from pydist.distributed.device_mesh import init_device_mesh
        >>> init_device_mesh("cpu", (1,), mesh_dim_names=("world",))._unflatten(0, (1, 1), ("dp", "tp"))
        DeviceMesh((dp=1, tp=1), 'cpu')
        """
        sizes, new = tuple(mesh_sizes), tuple(mesh_dim_names)
        if len(sizes) != len(new) or not self.mesh_dim_names:
            raise RuntimeError(
                f"_unflatten: {len(new)} names for {len(sizes)} sizes (expected a name each, in a mesh with names)"
            )
        try:
            dim = self._dim(dim)
        except LookupError as error:
            raise ValueError(f"_unflatten: dim is {dim!r} (expected a dimension of {self!r})") from error
        if (
            any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in sizes)
            or math.prod(sizes) != self.shape[dim]
        ):
            raise ValueError(f"_unflatten: sizes {sizes} (expected sizes whose product is {self.shape[dim]})")
        names = (*self.mesh_dim_names[:dim], *new, *self.mesh_dim_names[dim + 1 :])
        _checked_names("_unflatten", names, len(names))
        offsets, steps = self._dims[dim], [math.prod(sizes[d + 1 :]) for d in range(len(sizes))]
        dims = [tuple(offsets[i * step] for i in range(n)) for n, step in zip(sizes, steps, strict=True)]
        if _together(dims) != offsets:
            raise ValueError(
                f"_unflatten: sizes {sizes} do not cut {self!r} along its dimensions (expected other sizes)"
            )
        made = self._part([*self._dims[:dim], *dims, *self._dims[dim + 1 :]], names)
        groups = self.get_all_groups()
        groups[dim : dim + 1] = [made._make_own(k) for k in range(dim, dim + len(sizes))]
        return made._with(groups)

    @staticmethod
    def _concatenate(device_mesh_list):
        """The dimensions of several parts of one mesh as one part. Raises RuntimeError for parts of different meshes, and
        for dimensions that overlap."""
        first = device_mesh_list[0]
        if any((mesh._root or mesh) is not (first._root or first) for mesh in device_mesh_list):
            raise RuntimeError(f"_concatenate: got parts of different meshes {device_mesh_list} (expected one mesh's)")
        names = tuple(name for mesh in device_mesh_list for name in mesh.mesh_dim_names or ())
        homes = [(mesh, dim) for mesh in device_mesh_list for dim in range(mesh.ndim)]
        return first._joined(_checked_names("_concatenate", names, len(homes)), homes)

    @staticmethod
    def from_group(group, device_type, mesh=None, *, mesh_dim_names=None):
        """The mesh of a process group, or of a list with a group for each dimension. `mesh` has the ranks, and is needed
        with a list. Each group must have the ranks of this rank's line along its dimension. Nothing is made.

        >>> from pydist import distributed as dist
        >>> dist.DeviceMesh.from_group(dist.new_group([0]), "cpu", mesh_dim_names=("dp",))
        DeviceMesh((dp=1), 'cpu')
        """
        _check_device_type("from_group", device_type)
        alone = not isinstance(group, (list, tuple))
        groups = [group] if alone else list(group)
        if not groups:
            raise ValueError("from_group: got no group (expected at least one)")
        if not alone and (mesh is None or mesh_dim_names is None):
            raise ValueError("from_group: got a list of groups (expected mesh and mesh_dim_names, too)")
        ranks, shape = _checked_ranks(get_process_group_ranks(group) if mesh is None else mesh)
        if len(shape) != len(groups):
            raise ValueError(
                f"from_group: {len(groups)} groups for a mesh of shape {shape} (expected a group each dimension)"
            )
        made = object.__new__(DeviceMesh)
        made._begin(device_type, ranks, shape, _checked_names("from_group", mesh_dim_names, len(shape)))
        for dim, one in enumerate(groups):
            line = [] if made._place is None else made._line(dim)
            if sorted(line) != sorted(get_process_group_ranks(one)):
                raise ValueError(
                    f"from_group: the group of dimension {dim} has the ranks {get_process_group_ranks(one)} (expected "
                    f"{line}, this rank's line of the mesh)"
                )
        return made._with(groups)

    def __enter__(self):
        _mesh_resources.mesh_stack.append(self)
        return self

    def __exit__(self, *error):
        _mesh_resources.mesh_stack.pop()

    def _key(self):
        return self.device_type, self._ranks, self._dims, self.mesh_dim_names

    @staticmethod
    def _of_key(device_type, ranks, dims, names):
        """The mesh with this _key(), as one that comes from a pickle."""
        known = _mesh_resources.made.get((device_type, ranks, dims, names))
        if known is None:
            _check_device_type("DeviceMesh", device_type)
            known = object.__new__(DeviceMesh)
            known._root, known._flattened, known._groups = None, {}, None
            known._fill(device_type, ranks, dims, _checked_names("DeviceMesh", names, len(dims)))
        return known

    def __eq__(self, other):
        return self._key() == other._key() if isinstance(other, DeviceMesh) else NotImplemented

    def __hash__(self):
        return hash(self._key())

    def __getstate__(self):
        return {**vars(self), "_groups": None}

    def __setstate__(self, state):
        vars(self).update(state)
        self._place, self._first = _where(self._ranks, self._dims)  # the pickle may be another rank's

    def __repr__(self):
        shape = ", ".join(map("{}={}".format, self.mesh_dim_names, self.shape)) if self.mesh_dim_names else None
        return f"DeviceMesh({self.shape if shape is None else f'({shape})'}, {self.device_type!r})"


def init_device_mesh(device_type, mesh_shape, *, mesh_dim_names=None, backend_override=None):
    """Arranges the first ranks of the job in a grid of `mesh_shape`, row by row. mesh_dim_names are the names for
    mesh["dp"] and get_group("dp"). All ranks of the job call it. backend_override is accepted and ignored. Raises what
    DeviceMesh raises, and ValueError for sizes below 1.

    >>> from pydist.distributed.device_mesh import init_device_mesh
    >>> mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))
    >>> mesh["tp"].size(), mesh.get_local_rank("dp")
    (1, 0)
    """
    _check_device_type("init_device_mesh", device_type)
    shape = tuple(mesh_shape)
    if not shape or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in shape):
        raise ValueError(f"init_device_mesh: mesh_shape {shape} (expected sizes of at least 1)")
    places = math.prod(shape)
    if places > get_world_size():
        raise RuntimeError(
            f"init_device_mesh: mesh_shape {shape} has {places} places (expected at most {get_world_size()}, the number of "
            "ranks)"
        )
    names = _checked_names("init_device_mesh", mesh_dim_names, len(shape))
    for key in backend_override or ():
        if key not in (names or ()) and key not in range(len(shape)):
            raise RuntimeError(
                f"init_device_mesh: backend_override for {key!r} (expected a dimension's number or name)"
            )
    return DeviceMesh(device_type, _C.arange(places, device="cpu").view(shape), mesh_dim_names=names)
