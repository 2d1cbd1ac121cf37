"""fully_shard: parameters, gradients and optimizer states are shared out over the ranks (ZeRO-3)."""

import warnings
from functools import cache, wraps

from pydist import _C
from pydist.distributed._group.process_group import current
from pydist.distributed._ops.agreement import check_agreement
from pydist.distributed.device_mesh import DeviceMesh
from pydist.distributed.tensor import DTensor, Replicate, Shard
from pydist.distributed.tensor._spec import checked_placements, spec_of
from pydist.nn.modules.container import ModuleDict, ModuleList
from pydist.nn.modules.module import Module
from pydist.nn.parallel._join import JoinsSharded
from pydist.nn.parallel.fsdp.policies import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy
from pydist.nn.parallel.fsdp.shards import run_shards
from pydist.nn.parallel.fsdp.state import State, is_private, sharded_parameter, states_of

_OP = "fully_shard"


class UnshardHandle:
    """What `unshard(async_op=True)` returns."""

    def __init__(self, unit):
        self._unit = unit

    def wait(self):
        """Waits until the whole parameters are there, and shows them in their places. Does nothing if a forward that came
        in between has ended, or after the first call."""
        unit, self._unit = self._unit, None
        if unit is not None and unit.state:
            unit.unshard(True)


class FSDPModule(JoinsSharded):
    """A module that fully_shard has sharded: what its class inherits from, besides its former class.

    Its parameters are DTensors; while forward runs they are the plain whole parameters."""

    def __call__(self, *args, **kwargs):
        return self._fsdp.run(self, super().__call__, args, kwargs)

    def _states(self, recurse):
        return states_of(self.modules() if recurse else (self,))

    def _set(self, name, value, recurse):
        for state in self._states(recurse):
            setattr(state, name, value)
            state.push()

    def replica_groups(self):
        """The groups over which gradients become means."""
        return [group for group in (self._fsdp.group, self._fsdp.replicas) if group is not None]

    # ---- memory

    def unshard(self, async_op=False):
        """Shows the whole parameters of this module's own unit until `reshard()`, or the end of the next forward or
        backward. All ranks call it. Returns None. With async_op the parameters may still be on their way, where they are
        gathered: a handle is returned, whose wait() shows them; a forward waits by itself."""
        if self._fsdp.unit is not None:
            self._fsdp.unshard(later=async_op)
        return UnshardHandle(self._fsdp.unit) if async_op else None

    def reshard(self):
        """Shows the shards of this module's own unit again."""
        self._fsdp.reshard()

    def set_reshard_after_forward(self, reshard_after_forward, recurse=True):
        """Whether the places show shards again after forward (True), or not until backward has ended (False)."""
        self._set("keeps", not reshard_after_forward, recurse)

    def set_reshard_after_backward(self, reshard_after_backward, *, recurse=True):
        """Whether the places show shards again after backward; False keeps wholes for the next micro-batch."""
        self._set("reshards_after_backward", bool(reshard_after_backward), recurse)

    # ---- gradients

    def set_requires_gradient_sync(self, requires_gradient_sync, *, recurse=True):
        """False: backward adds up whole gradients on this rank only, which takes the memory of whole gradients; the first
        backward after True reduces the sum. To reduce every micro-batch, which adds up in the shards' .grad, takes less
        memory, and costs a reduction each."""
        self._set("syncs", bool(requires_gradient_sync), recurse)

    def set_requires_all_reduce(self, requires_all_reduce, *, recurse=True):
        """Of a 2-D mesh. False: sums of the shard groups are kept, and added over the replicas by the first backward
        after True."""
        self._set("sums_replicas", bool(requires_all_reduce), recurse)

    def set_all_reduce_hook(self, hook, *, stream=None):
        """hook(part) gets this rank's part of each reduced gradient of this module's own unit, a plain tensor, which it may
        change in place, before hooks of the parameters and .grad get it. In PyTorch it gets those of a unit as one flat
        tensor. None: no hook any more. `stream` is accepted: CPUs have none."""
        if hook is not None and not callable(hook):
            raise TypeError(f"set_all_reduce_hook: hook is {type(hook).__name__} (expected a callable, or None)")
        self._fsdp.watch(hook)

    def set_is_last_backward(self, is_last_backward):
        """Accepted: each backward is complete when it ends."""

    def set_gradient_divide_factor(self, factor):
        """The number by which sums of gradients are divided, in this module and those below; at first that of ranks."""
        if not factor > 0:
            raise ValueError(f"set_gradient_divide_factor: factor is {factor} (expected a number above 0)")
        self._set("divisor", float(factor), True)

    set_reduce_scatter_divide_factor = set_gradient_divide_factor

    def set_force_sum_reduction_for_comms(self, enable):
        """Accepted: sums are divided once, at the end, by one multiplication."""

    def set_reduce_scatter_unused_params(self, enable, *, recurse=True):
        """Accepted: a parameter that some ranks have not used counts as zero there."""

    def set_unshard_in_backward(self, unshard_in_backward):
        """Accepted: a unit whose wholes are gathered has memory for their gradients only while they are there."""

    # ---- what is gathered ahead

    def set_modules_to_forward_prefetch(self, modules):
        """While this module's forward computes, the parameters of these FSDPModules are gathered, as far as windows are free:
        there are three. Without this call it is the module that came next in the last forward. On one host nothing is
        gathered. All ranks call it alike."""
        self._fsdp.forward_ahead = _states_of("set_modules_to_forward_prefetch", modules)

    def set_modules_to_backward_prefetch(self, modules):
        """The same in backward. Without this call it is the module that came next in the last backward."""
        self._fsdp.backward_ahead = _states_of("set_modules_to_backward_prefetch", modules)

    # ---- what changes nothing here

    def set_post_optim_event(self, event):
        """Accepted: forwards wait for steps by themselves."""

    def reset_iter_state(self):
        """Accepted: a forward or backward that fails leaves nothing behind."""

    # ---- what moves or copies parameters

    def _apply(self, fn, recurse=True):
        self._fsdp.reshard()
        super()._apply(fn, recurse)
        for state in self._states(recurse):
            state.settle()
        return self

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        self._fsdp.reshard()
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(self, *args):
        self._fsdp.reshard()
        super()._load_from_state_dict(*args)

    def load_state_dict(self, state_dict, strict=True, assign=False):
        """As Module.load_state_dict. Values may be DTensors, or whole plain tensors, which are the same on all ranks."""
        keys = super().load_state_dict(state_dict, strict, assign)
        for state in self._states(True):
            state.settle()
        return keys

    def __deepcopy__(self, memo):
        raise TypeError(f"{type(self).__name__} cannot be copied (expected state_dict(), or a copy before fully_shard)")

    def __reduce_ex__(self, protocol):
        raise TypeError(f"{type(self).__name__} cannot be pickled (expected state_dict())")


def _check_modules(op, modules):
    for module in modules:
        if not isinstance(module, FSDPModule):
            raise ValueError(f"{op}: got {type(module).__name__} (expected FSDPModules)")


def _states_of(op, modules):
    _check_modules(op, modules)
    return [state for state in states_of(modules) if state.unit is not None]


@cache
def _sharded_class(cls):
    return type(f"FSDP{cls.__name__}", (FSDPModule, cls), {"__module__": cls.__module__})


# ---- parameters ----


def _own_modules(modules):
    """These modules and those below, without modules that are sharded already."""
    seen = {}

    def visit(module):
        if module not in seen:
            seen[module] = True
            for below in module.children():
                if not isinstance(below, FSDPModule):
                    visit(below)

    for module in modules:
        visit(module)
    return list(seen)


def _places_of(modules, ignored):
    """(module, name, parameter) of each place of a parameter."""
    ignored = {id(param) for param in ignored}
    return [
        (module, name, param)
        for module in _own_modules(modules)
        for name, param in module._parameters.items()
        if param is not None and id(param) not in ignored
    ]


def _tie_to_units_below(modules, places):
    """Parameters that a unit below has as wholes: their places here show the same shards. Returns the other places, and those units."""
    known, tied = {}, {}
    for state in states_of(below for module in modules for below in module.modules()):
        for number in range(len(state.spec_of_param)):
            known[id(state.unit.whole(number))] = state, number
    rest = []
    for module, name, param in places:
        if id(param) not in known:
            rest.append((module, name, param))
            continue
        state, number = known[id(param)]
        if state.unit.kind == "gathered":
            raise NotImplementedError(
                f"{_OP}: parameter {name} belongs to a unit below, too (expected both modules in one unit: wholes that are "
                "gathered are there for one unit only)"
            )
        module._parameters[name] = state.unit.shard(number)
        state.unit.add_place(number, module._parameters, name)
        state.places.append((module._parameters, name, number))
        tied[state.unit] = True
    return rest, tuple(tied)


def _names(modules, params):
    """The names of parameters below the first module that has them."""
    found = {}
    for k, module in enumerate(modules):
        for name, param in module.named_parameters(remove_duplicate=False):
            found.setdefault(id(param), name if len(modules) == 1 else f"{k}.{name}")
    return [found[id(param)] for param in params]


def _placement(fn, param, name):
    place = fn(param) if fn is not None else None
    if place is None:
        return Shard(0)
    if not isinstance(place, Shard):
        raise ValueError(f"{_OP}: shard_placement_fn returned {place!r} for {name} (expected a Shard or None)")
    return checked_placements([place], _OneDim, max(param.dim(), 1), _OP)[0]


class _OneDim:
    ndim = 1


def _units_below(modules):
    """A line for each unit below these modules: its number, and the first module that has it."""
    found = {}
    for k, module in enumerate(modules):
        for name, below in module.named_modules():
            state = below.__dict__.get("_fsdp")
            if state is not None and state.unit is not None:
                found.setdefault(state.unit.number, name if len(modules) == 1 else f"{k}.{name}")
    return [f"unit {number} in module {found[number]}" for number in sorted(found)]


def _check_params(params, names, mesh):
    for name, param in zip(names, params, strict=True):
        if getattr(param, "_is_whole", False):
            raise ValueError(
                f"{_OP}: parameter {name} belongs to another unit already (expected the modules that share it in one unit: "
                "fully_shard([a, b]), or fully_shard of a module above both)"
            )
        if isinstance(param, DTensor):
            _check_spread(param, name, mesh)


def _check_spread(param, name, mesh):
    """A DTensor, of tensor parallel layers, has to lie over other dimensions of the same mesh."""
    tp, root = param.device_mesh, mesh._root
    if root is None or tp._root is not root or set(tp._dims) & set(mesh._dims):
        raise ValueError(
            f"{_OP}: parameter {name} is a DTensor already, over {tp!r}, beside {mesh!r} (expected plain parameters, or "
            "DTensors over other dimensions of the same mesh; shard modules below before those above them)"
        )
    if any(place.is_partial() for place in param.placements):
        raise ValueError(
            f"{_OP}: parameter {name} has the placements {param.placements} (expected Shard and Replicate)"
        )


def _shard_spec(mesh, places, param):
    """The Spec of a parameter's shard. Of a DTensor the part that a rank has is cut further, so its mesh comes first."""
    if not isinstance(param, DTensor):
        return spec_of(mesh, places, param.shape)
    tp = param.device_mesh
    key = "fully_shard", tp._dims
    both = mesh.__dict__.setdefault("_joined", {}).get(key)
    if both is None:
        names = (*tp.mesh_dim_names, *mesh.mesh_dim_names)
        both = mesh._root._part((*tp._dims, *mesh._dims), names)._with([*tp.get_all_groups(), *mesh.get_all_groups()])
        mesh._joined[key] = both
    return spec_of(both, (*param.placements, *places), param.shape)


def _checked_modules(module):
    modules = list(module) if isinstance(module, (list, tuple)) else [module]
    if not modules:
        raise ValueError(f"{_OP}: got an empty list (expected modules)")
    for one in modules:
        if not isinstance(one, Module):
            raise ValueError(f"{_OP}: got {type(one).__name__} (expected a Module, or a list of Modules)")
        if isinstance(one, (ModuleList, ModuleDict)) and type(one).forward is Module.forward:
            raise ValueError(
                f"{_OP} does not support containers that do not implement forward: got {type(one).__name__} (expected the "
                "modules in it)"
            )
        if isinstance(one, FSDPModule):
            raise ValueError(f"{_OP}: {type(one).__name__} is sharded already (expected one call for each module)")
    return modules


def groups_of(op, mesh):
    """(mesh, the shard group, the group of replicas or None, the number of the mesh's dimension that shards)."""
    if mesh.ndim not in (1, 2):
        raise ValueError(f"{op}: {mesh!r} has {mesh.ndim} dimensions (expected 1, or 2: replicas and shards)")
    if mesh.get_coordinate() is None:
        raise RuntimeError(f"{op}: this rank is not in {mesh!r} (expected a mesh with this rank)")
    if mesh.ndim == 1:
        return mesh, mesh.get_group(), None, 0
    replicas = mesh.get_group(0)
    return mesh, mesh.get_group(1), replicas if replicas.size > 1 else None, 1


def fully_shard(
    module,
    *,
    mesh=None,
    reshard_after_forward=None,
    shard_placement_fn=None,
    mp_policy=MixedPrecisionPolicy(),
    offload_policy=OffloadPolicy(),
    ignored_params=None,
    dp_mesh_dims=None,
):
    """Shards the parameters of `module` over the ranks; of a list of modules together. Those of modules below that are
    sharded already stay apart, so call it for each block first and for the whole model at the end. Returns the module,
    whose class is now `FSDP<name>`, an FSDPModule. All ranks call it, with equal parameters.

    Each parameter becomes a DTensor: this rank's rows, cut along dimension 0 as torch.chunk does. Make the optimizer
    afterwards. A DTensor of tensor parallel layers becomes one over both meshes, which are parts of one mesh: the part
    that a rank has is cut further, and in forward it is the tensor parallel DTensor again. While forward runs the parameters are whole. After backward each shard's .grad is its part of the mean
    over all ranks, with the bits of DistributedDataParallel. A parameter that no rank has used keeps its .grad.

    On one host the wholes exist once, in memory that all ranks map; a forward computes with them in place, so nothing is
    gathered, and a rank may run forwards alone: evaluation, generation. A forward waits for ranks that have not ended
    their step, a step for ranks that still compute with the old values. In-place writes to a whole raise RuntimeError.
    Over hosts, and with PYDIST_FSDP=private, a unit's wholes are gathered before forward and backward.

    `mesh`: 1-D (default: all ranks), or 2-D: replicas in dimension 0, shards in dimension 1 (HSDP).
    `reshard_after_forward`: False leaves wholes in the modules' places until backward has ended; None and a number are
    accepted, as True. (In PyTorch None is False for the outermost module, so that backward does not gather its wholes
    again. Here they keep their memory in any case, and only the places show shards.) `shard_placement_fn(param)`:
    Shard(dim) or None; dimensions other than 0 must be divisible by the number of ranks. `mp_policy`:
    MixedPrecisionPolicy. `offload_policy`: on CPUs everything is in the host's memory. `ignored_params`: a set of
    parameters that stay as they are. `dp_mesh_dims`: DataParallelMeshDims of a mesh with names. Parameters may be on
    meta: `to_empty(device="cpu")` then gives them memory, and init functions fill them with the values that they would
    have without sharding.

    Raises ValueError for modules that are sharded already, parameters that cannot be cut, containers without forward,
    RuntimeError on all ranks if their parameters differ, and on ranks outside the mesh. Cost: a backward reads each
    gradient once on the rank that owns it, n(W-1)/W bytes; a forward sends nothing on one host.

    >>> import pydist
    >>> from pydist.distributed.fsdp import fully_shard
    >>> model = pydist.nn.Sequential(pydist.nn.Linear(4, 8), pydist.nn.ReLU(), pydist.nn.Linear(8, 1))
    >>> for layer in (model[0], model[2]):
    ...     _ = fully_shard(layer)
    >>> model = fully_shard(model)
    >>> optimizer = pydist.optim.AdamW(model.parameters(), lr=0.1)
    >>> model(pydist.ones(2, 4)).sum().backward()
    >>> optimizer.step()
    >>> type(model[0].weight).__name__, model[0].weight.shape
    ('DTensorParameter', pydist.Size([8, 4]))
    """
    modules = _checked_modules(module)
    mesh = DeviceMesh.from_group(current(), "cpu") if mesh is None else mesh
    if dp_mesh_dims is not None and mesh.mesh_dim_names:
        dims = [name for name in (dp_mesh_dims.replicate, dp_mesh_dims.shard) if name is not None]
        mesh = mesh[tuple(dims) if len(dims) > 1 else dims[0]]
    if isinstance(reshard_after_forward, int) and not isinstance(reshard_after_forward, bool):
        if reshard_after_forward < 1 or mesh.shape[-1] % reshard_after_forward:
            raise ValueError(
                f"{_OP}: reshard_after_forward is {reshard_after_forward} (expected True, False or a divisor of the "
                f"{mesh.shape[-1]} ranks)"
            )
    if isinstance(offload_policy, CPUOffloadPolicy) and mesh.device_type == "cuda" and not _C.pretended_cuda():
        raise NotImplementedError(f"{_OP}: CPUOffloadPolicy on a GPU (expected OffloadPolicy())")
    keeps = reshard_after_forward is False
    shard_modules(_OP, modules, mesh, keeps, shard_placement_fn, mp_policy, ignored_params)
    for one in modules:
        one.__class__ = _sharded_class(type(one))
    return module


def shard_modules(op, modules, mesh, keeps, placement_fn, policy, ignored):
    """Makes one unit of the parameters of `modules`, and the State that each of them has from now on."""
    mesh, group, replicas, dim = groups_of(op, mesh)
    places, tied = _tie_to_units_below(modules, _places_of(modules, ignored or ()))
    params = list({id(param): param for *_, param in places}.values())
    names = _names(modules, params)
    _check_params(params, names, mesh)
    cuts = [_placement(placement_fn, param, name) for name, param in zip(names, params, strict=True)]
    lines = [
        f"{name} {p.dtype} {list(p.shape)} {place}{'' if p.requires_grad else ' frozen'}"
        for name, p, place in zip(names, params, cuts, strict=True)
    ]
    check_agreement(f"{op}: parameter", [f"{len(lines)} parameters", *lines], group)
    check_agreement(f"{op}: unit", _units_below(modules), group)
    unit, specs, shown = _make_unit(mesh, group, dim, params, names, cuts, places, policy)
    state = State(unit, shown, specs, group, replicas, policy, keeps, tied)
    for one in modules:
        one.__dict__["_fsdp"] = state
    run_shards(modules, state, policy, params)


def _make_unit(mesh, group, dim, params, names, cuts, places, policy):
    """The unit of these parameters, the Spec of each, and (parameters, name, number) of each place."""
    if not params:
        return None, [], []
    low = policy.param_dtype
    on_gpu = mesh.device_type == "cuda" and not _C.pretended_cuda()  # parameters may still be on meta
    unit = _C.ShardUnit(group, params, names, [place.dim for place in cuts], low, is_private() or on_gpu)
    specs, number_of = [], {}
    for number, (param, place) in enumerate(zip(params, cuts, strict=True)):
        spec = _shard_spec(mesh, (place,) if dim == 0 else (Replicate(), place), param)
        shard = sharded_parameter(unit.empty_shard(number), spec, param.requires_grad)
        shard.__dict__.update(vars(param))
        unit.set_shard(number, shard)
        specs.append(spec)
        number_of[id(param)] = number
    unit.settle(True)
    for param in params:
        param._is_whole = True
    shown = []
    for module, name, param in places:
        number = number_of[id(param)]
        unit.add_place(number, module._parameters, name)
        module._parameters[name] = unit.shard(number)
        shown.append((module._parameters, name, number))
    return unit, specs, shown


def register_fsdp_forward_method(module, method_name):
    """From now on `module.method_name(...)` runs like forward: with the whole parameters in their places. A module that
    is not sharded is left as it is."""
    if not isinstance(module, FSDPModule):
        return
    if not hasattr(module, method_name):
        raise ValueError(
            f"register_fsdp_forward_method: {type(module).__name__} has no {method_name} (expected a method)"
        )
    method = getattr(module, method_name)

    @wraps(method)
    def run(*args, **kwargs):
        return module._fsdp.run(module, method, args, kwargs)

    object.__setattr__(module, method_name, run)


def share_comm_ctx(modules):
    """Accepted for FSDPModules: reductions of all of them have one order anyway."""
    _check_modules("share_comm_ctx", modules)
    if len({id(module._fsdp.group) for module in modules}) > 1:
        warnings.warn("share_comm_ctx: the modules are sharded over different groups", stacklevel=2)
