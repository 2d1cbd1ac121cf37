"""FullyShardedDataParallel (FSDP1): a wrapper whose parameters are shared out over the ranks, over the units of
fully_shard."""

import contextlib
import enum
import os
import weakref
from collections import namedtuple
from dataclasses import dataclass

from pydist import _C
from pydist._grad_mode import no_grad
from pydist.distributed._group.process_group import current, get_rank
from pydist.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from pydist.distributed.device_mesh import DeviceMesh, init_device_mesh
from pydist.nn.modules.module import Module
from pydist.nn.modules.transparent import Transparent
from pydist.nn.parallel.fsdp.fully_shard import FSDPModule, shard_modules
from pydist.nn.parallel.fsdp.policies import MixedPrecisionPolicy
from pydist.nn.parallel.fsdp.state import states_of
from pydist.nn.parallel.fsdp.wrap import auto_wrap
from pydist.nn.parameter import Parameter
from pydist.nn.utils.clip_grad import clip_grad_norm_

_OP = "FullyShardedDataParallel"


class ShardingStrategy(enum.Enum):
    """What the ranks share out. SHARD_GRAD_OP leaves wholes in the modules' places until backward has ended; NO_SHARD
    keeps replicas; HYBRID_*: the same inside of a host, with replicas on the others."""

    FULL_SHARD = enum.auto()
    SHARD_GRAD_OP = enum.auto()
    NO_SHARD = enum.auto()
    HYBRID_SHARD = enum.auto()
    _HYBRID_SHARD_ZERO2 = enum.auto()


class BackwardPrefetch(enum.Enum):
    """Accepted: on one host nothing is fetched."""

    BACKWARD_PRE = enum.auto()
    BACKWARD_POST = enum.auto()


class StateDictType(enum.Enum):
    """What state_dict() has: whole tensors, or DTensors (LOCAL as SHARDED)."""

    FULL_STATE_DICT = enum.auto()
    LOCAL_STATE_DICT = enum.auto()
    SHARDED_STATE_DICT = enum.auto()


@dataclass
class MixedPrecision:
    """As MixedPrecisionPolicy; `buffer_dtype` is the dtype of buffers, cast_root_forward_inputs as cast_forward_inputs for
    the outermost wrapper. keep_low_precision_grads and _module_classes_to_ignore are accepted."""

    param_dtype: _C.dtype | None = None
    reduce_dtype: _C.dtype | None = None
    buffer_dtype: _C.dtype | None = None
    keep_low_precision_grads: bool = False
    cast_forward_inputs: bool = False
    cast_root_forward_inputs: bool = True
    _module_classes_to_ignore: tuple = ()


@dataclass
class CPUOffload:
    """Accepted: on ranks that compute on CPUs parameters are in the host's memory anyway."""

    offload_params: bool = False


@dataclass
class StateDictConfig:
    """offload_to_cpu: tensors are copied to the host's memory."""

    offload_to_cpu: bool = False


@dataclass
class FullStateDictConfig(StateDictConfig):
    """rank0_only: the other ranks get an empty dictionary."""

    rank0_only: bool = False


@dataclass
class LocalStateDictConfig(StateDictConfig):
    """Of StateDictType.LOCAL_STATE_DICT."""


@dataclass
class ShardedStateDictConfig(StateDictConfig):
    """Of StateDictType.SHARDED_STATE_DICT."""

    _use_dtensor: bool = False


@dataclass
class OptimStateDictConfig:
    """offload_to_cpu: tensors are copied to the host's memory."""

    offload_to_cpu: bool = True


@dataclass
class FullOptimStateDictConfig(OptimStateDictConfig):
    """rank0_only: the other ranks get an empty dictionary."""

    rank0_only: bool = False


@dataclass
class LocalOptimStateDictConfig(OptimStateDictConfig):
    """Of StateDictType.LOCAL_STATE_DICT."""

    offload_to_cpu: bool = False


@dataclass
class ShardedOptimStateDictConfig(OptimStateDictConfig):
    """Of StateDictType.SHARDED_STATE_DICT."""

    _use_dtensor: bool = False


StateDictSettings = namedtuple("StateDictSettings", "state_dict_type state_dict_config optim_state_dict_config")
_CONFIGS = {
    StateDictType.FULL_STATE_DICT: (FullStateDictConfig, FullOptimStateDictConfig),
    StateDictType.LOCAL_STATE_DICT: (LocalStateDictConfig, LocalOptimStateDictConfig),
    StateDictType.SHARDED_STATE_DICT: (ShardedStateDictConfig, ShardedOptimStateDictConfig),
}


def _settings(kind, config=None, optim_config=None):
    if kind not in _CONFIGS:
        raise ValueError(f"state_dict_type is {kind!r} (expected a StateDictType)")
    configs = [given or cls() for given, cls in zip((config, optim_config), _CONFIGS[kind], strict=True)]
    for got, cls in zip(configs, _CONFIGS[kind], strict=True):
        if not isinstance(got, cls):
            raise RuntimeError(f"{kind}: got a {type(got).__name__} (expected a {cls.__name__})")
    return StateDictSettings(kind, *configs)


_grids = {}  # (epoch of the group, its ranks, this rank, ranks that share): their mesh, weakly


def _grid(group, local):
    """The mesh of replicas and shards whose lines of shards have `local` ranks; the same one for each wrapper."""
    key = group.epoch, tuple(group.ranks), group.rank, local
    known = _grids.get(key, lambda: None)()
    if known is None:
        known = init_device_mesh("cpu", (group.size // local, local), mesh_dim_names=("replicate", "shard"))
        _grids[key] = weakref.ref(known)
    return known


def _mesh_of(strategy, process_group, device_mesh):
    """The mesh for fully_shard: replicas in dimension 0 and shards in dimension 1, or shards only."""
    hybrid = strategy in (ShardingStrategy.HYBRID_SHARD, ShardingStrategy._HYBRID_SHARD_ZERO2)
    if device_mesh is not None:
        if process_group is not None:
            raise ValueError(f"{_OP}: got process_group and device_mesh (expected one of them)")
        if hybrid != (device_mesh.ndim == 2):
            raise ValueError(f"{_OP}: {strategy} with {device_mesh!r} (expected 2 dimensions for HYBRID_SHARD, else 1)")
        group = device_mesh.get_group() if device_mesh.ndim == 1 else None
    elif hybrid and isinstance(process_group, tuple):
        shards, replicas = process_group
        ranks = [list(range(k * shards.size, (k + 1) * shards.size)) for k in range(replicas.size)]
        ranks = _C.tensor(ranks, device="cpu")
        return DeviceMesh.from_group([replicas, shards], "cpu", ranks, mesh_dim_names=("replicate", "shard"))
    else:
        group = current(process_group)
        if hybrid:
            local = int(os.environ.get("LOCAL_WORLD_SIZE", group.size))
            return _grid(group, local if group.size % local == 0 else group.size)
    if strategy is ShardingStrategy.NO_SHARD:
        return _grid(group, 1)
    return device_mesh if device_mesh is not None else DeviceMesh.from_group(group, "cpu")


def _materialise(module, init, ignored):
    """Gives parameters on meta memory and values."""
    for below in module.modules():
        own = [*below._parameters.values(), *below._buffers.values()]
        if isinstance(below, FSDPModule) or below in ignored or not any(t is not None and t.is_meta for t in own):
            continue
        if init is not None:
            init(below)
        else:
            below.to_empty(device="cpu", recurse=False)
            if not hasattr(below, "reset_parameters"):
                raise ValueError(
                    f"{_OP}: {type(below).__name__} is on meta and has no reset_parameters() (expected that, or "
                    "param_init_fn)"
                )
            below.reset_parameters()


class FullyShardedDataParallel(FSDPModule, Transparent):
    """Wraps `module`: its parameters, gradients and optimizer states are shared out over the ranks, as by fully_shard.
    Parameters below that wrappers have already stay apart. Make the optimizer afterwards.

    `sharding_strategy`: ShardingStrategy; default FULL_SHARD. `auto_wrap_policy`: wraps modules below first (see
    distributed.fsdp.wrap). `mixed_precision`: MixedPrecision. `ignored_modules`, `ignored_states`: what stays as it is.
    `param_init_fn(module)`: for modules on meta. `sync_module_states`: all ranks begin with rank 0's values.
    `device_mesh`: 1-D, or 2-D for HYBRID_SHARD; else `process_group`, for HYBRID_SHARD a pair (shards, replicas).

    Parameters are the original ones, DTensors, whatever use_orig_params says: there is no flat parameter. Where they are
    gathered, the next unit is gathered while one computes; backward_prefetch=None: not in backward. cpu_offload, device_id,
    forward_prefetch and limit_all_gathers are accepted and change nothing on CPUs.
    state_dict() has whole tensors under the names that they have without wrappers; see state_dict_type. The forms of
    optimizer states other than optim_state_dict and optim_state_dict_to_load raise NotImplementedError.

    >>> import pydist
    >>> from pydist.distributed.fsdp import FullyShardedDataParallel as FSDP
    >>> model = FSDP(pydist.nn.Sequential(FSDP(pydist.nn.Linear(4, 8)), pydist.nn.Linear(8, 1)))
    >>> optimizer = pydist.optim.AdamW(model.parameters(), lr=0.1)
    >>> model(pydist.ones(2, 4)).sum().backward()
    >>> optimizer.step()
    >>> list(model.state_dict())
    ['0.weight', '0.bias', '1.weight', '1.bias']
    """

    _inside = "_fsdp_wrapped_module"

    def __init__(
        self,
        module,
        process_group=None,
        sharding_strategy=None,
        cpu_offload=None,
        auto_wrap_policy=None,
        backward_prefetch=BackwardPrefetch.BACKWARD_PRE,
        mixed_precision=None,
        ignored_modules=None,
        param_init_fn=None,
        device_id=None,
        sync_module_states=False,
        forward_prefetch=False,
        limit_all_gathers=True,
        use_orig_params=False,
        ignored_states=None,
        device_mesh=None,
    ):
        if not isinstance(module, Module):
            raise TypeError(f"{_OP}: module is {type(module).__name__} (expected a Module)")
        strategy = sharding_strategy or ShardingStrategy.FULL_SHARD
        if not isinstance(strategy, ShardingStrategy):
            raise ValueError(f"{_OP}: sharding_strategy is {strategy!r} (expected a ShardingStrategy)")
        ignored = set(ignored_modules or ())
        for top in list(ignored):
            ignored.update(top.modules())
        kept = [p for below in ignored for p in below._parameters.values() if p is not None]
        for state in ignored_states or ():
            kept += state.parameters() if isinstance(state, Module) else [state]
        mesh = _mesh_of(strategy, process_group, device_mesh)
        if auto_wrap_policy is not None:
            kwargs = dict(
                process_group=process_group, sharding_strategy=strategy, mixed_precision=mixed_precision,
                backward_prefetch=backward_prefetch,
                param_init_fn=param_init_fn, sync_module_states=sync_module_states, ignored_states=kept or None,
                device_mesh=device_mesh,
            )  # fmt: skip
            auto_wrap(module, auto_wrap_policy, ignored, kwargs, FullyShardedDataParallel)
        _materialise(module, param_init_fn, ignored)
        if sync_module_states:
            self._take_values(module, mesh, {id(p) for p in kept})
        super().__init__(module)
        self.sharding_strategy, self.mixed_precision = strategy, mixed_precision
        policy = MixedPrecisionPolicy(cast_forward_inputs=False)
        if mixed_precision is not None:
            casts = mixed_precision.cast_forward_inputs or mixed_precision.cast_root_forward_inputs
            policy = MixedPrecisionPolicy(mixed_precision.param_dtype, mixed_precision.reduce_dtype, None, casts)
            if mixed_precision.buffer_dtype is not None:
                for buffer in module.buffers():
                    if buffer.is_floating_point():
                        buffer.data = buffer.to(mixed_precision.buffer_dtype)
        keeps = strategy in (ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy._HYBRID_SHARD_ZERO2)
        shard_modules(_OP, [self], mesh, keeps, None, policy, kept)
        if backward_prefetch is None:
            self._fsdp.backward_ahead = []
        self.process_group, self._mesh = self._fsdp.group, mesh
        self.__dict__["_settings"] = _settings(StateDictType.FULL_STATE_DICT)

    @staticmethod
    @no_grad()
    def _take_values(module, mesh, kept):
        for tensor in (*module.parameters(), *module.buffers()):
            if id(tensor) not in kept and _C.spread_of(tensor) is None:
                for dim in reversed(range(mesh.ndim)):
                    if mesh.size(dim) > 1:
                        mesh.get_group(dim).broadcast(tensor.data, 0)

    @property
    def module(self):
        """The wrapped module."""
        return self._fsdp_wrapped_module

    def forward(self, *args, **kwargs):
        """Calls the wrapped module."""
        return self._fsdp_wrapped_module(*args, **kwargs)

    # ---- gradients

    @contextlib.contextmanager
    def no_sync(self):
        """In this block gradients only add up on their own rank, in memory for whole gradients."""
        self.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self.set_requires_gradient_sync(True)

    def clip_grad_norm_(self, max_norm, norm_type=2.0):
        """nn.utils.clip_grad_norm_ of all gradients of all ranks. Returns the norm, a plain tensor."""
        norm = clip_grad_norm_(self.parameters(), max_norm, norm_type)
        return norm.full_tensor() if _C.spread_of(norm) is not None else norm

    def register_comm_hook(self, state, hook):
        """Raises NotImplementedError: gradients are reduced in place."""
        raise NotImplementedError(
            "register_comm_hook: FullyShardedDataParallel reduces gradients itself (expected none)"
        )

    # ---- the tree of wrappers

    @staticmethod
    def fsdp_modules(module, root_only=False):
        """The wrappers at and below a module; root_only: without those below other wrappers."""
        found = []
        for below in module.modules():
            if isinstance(below, FullyShardedDataParallel) and below not in found:
                inner = any(below is not top and any(below is m for m in top.modules()) for top in found)
                if not (root_only and inner):
                    found.append(below)
        return found

    def check_is_root(self):
        """Whether this wrapper is the outermost one of its model. Known after the first forward."""
        model = self._fsdp.model
        return model is None or model.states[0] is self._fsdp

    def apply(self, fn):
        """Module.apply with whole parameters, which are written back to the shards."""
        with self.summon_full_params(self):
            super().apply(fn)
        return self

    # ---- whole parameters

    @staticmethod
    @contextlib.contextmanager
    def summon_full_params(
        module, recurse=True, writeback=True, rank0_only=False, offload_to_cpu=False, with_grads=False
    ):
        """In this block the parameters of the wrappers at and below `module` are whole. writeback: what is written to
        them goes to the shards at the end; without it they are read-only views where the ranks share memory. All ranks
        enter. rank0_only and with_grads raise what PyTorch raises, or NotImplementedError."""
        if writeback and rank0_only:
            raise NotImplementedError("summon_full_params: writeback with rank0_only (expected one of them)")
        if with_grads:
            raise NotImplementedError("summon_full_params: with_grads (expected full_tensor() of the gradients)")
        states = states_of(module.modules() if recurse else (module,))
        states = [state for state in states if state.unit is not None and not state.summoned]
        if any(state.unit.shown for state in states):
            raise AssertionError("summon_full_params: a forward or backward is under way (expected neither)")
        copies = [_summon(state, writeback) for state in states]
        try:
            yield
        finally:
            for state, copied in zip(states, copies, strict=True):
                _put_back(state, copied, writeback)
                state.summoned = False

    # ---- state dicts

    @staticmethod
    def set_state_dict_type(module, state_dict_type, state_dict_config=None, optim_state_dict_config=None):
        """Sets what state_dict() and optim_state_dict() return, for the wrappers at and below `module`. Returns the
        settings before."""
        settings = _settings(state_dict_type, state_dict_config, optim_state_dict_config)
        before = FullyShardedDataParallel.get_state_dict_type(module)
        for below in FullyShardedDataParallel.fsdp_modules(module):
            below.__dict__["_settings"] = settings
        return before

    @staticmethod
    def get_state_dict_type(module):
        """The settings of the wrappers at and below `module`. Raises AssertionError if they differ."""
        found = [below._settings for below in FullyShardedDataParallel.fsdp_modules(module)]
        if any(settings != found[0] for settings in found):
            raise AssertionError(
                f"get_state_dict_type: the wrappers have different settings {found} (expected equal ones)"
            )
        return found[0] if found else _settings(StateDictType.FULL_STATE_DICT)

    @staticmethod
    @contextlib.contextmanager
    def state_dict_type(module, state_dict_type, state_dict_config=None, optim_state_dict_config=None):
        """set_state_dict_type for a block."""
        before = FullyShardedDataParallel.set_state_dict_type(
            module, state_dict_type, state_dict_config, optim_state_dict_config
        )
        try:
            yield
        finally:
            FullyShardedDataParallel.set_state_dict_type(module, *before)

    def state_dict(self, *, destination=None, prefix="", keep_vars=False):
        """The module's state under the names that it has without wrappers: whole tensors, DTensors, or nothing, as
        set_state_dict_type says. All ranks call it."""
        found = super().state_dict(destination=destination, prefix=prefix, keep_vars=keep_vars)
        self._as_wanted(found, prefix)
        return found

    @no_grad()
    def _as_wanted(self, found, prefix):
        kind, config, _ = self._settings
        for key in [key for key in found if key.startswith(prefix)]:
            value = found[key]
            if not isinstance(value, _C.Tensor):
                continue
            if kind is StateDictType.FULL_STATE_DICT and _C.spread_of(value) is not None:
                value = value.detach().full_tensor()
            found[key] = value.to("cpu") if config.offload_to_cpu else value
            if getattr(config, "rank0_only", False) and get_rank() != 0:
                del found[key]

    @staticmethod
    def optim_state_dict(model, optim, optim_state_dict=None, group=None):
        """The optimizer's state by the parameters' names, as set_state_dict_type says: whole tensors (all ranks call
        it), or DTensors."""
        kind, _, config = FullyShardedDataParallel.get_state_dict_type(model)
        full = kind is StateDictType.FULL_STATE_DICT
        found = get_optimizer_state_dict(model, optim, options=StateDictOptions(full_state_dict=full))
        return {} if full and config.rank0_only and get_rank() != 0 else found

    @staticmethod
    def optim_state_dict_to_load(
        model, optim, optim_state_dict, is_named_optimizer=False, load_directly=False, group=None
    ):
        """What optim.load_state_dict takes, from what optim_state_dict returned. With load_directly it is loaded."""
        number_of = {id(p): i for i, p in enumerate(p for g in optim.param_groups for p in g["params"])}
        names = {name: number_of[id(p)] for name, p in model.named_parameters() if id(p) in number_of}
        if load_directly:
            set_optimizer_state_dict(model, optim, optim_state_dict, options=StateDictOptions(full_state_dict=True))
        state = {names[name]: value for name, value in optim_state_dict["state"].items() if name in names}
        groups = [{**g, "params": [names[n] for n in g["params"]]} for g in optim_state_dict["param_groups"]]
        return {"state": state, "param_groups": groups}


def _legacy(name):
    def method(*args, **kwargs):
        raise NotImplementedError(
            f"{name}: PyTorch has deprecated it (expected optim_state_dict, optim_state_dict_to_load)"
        )

    method.__name__ = name
    return staticmethod(method)


for _name in (
    "full_optim_state_dict sharded_optim_state_dict shard_full_optim_state_dict scatter_full_optim_state_dict "
    "flatten_sharded_optim_state_dict rekey_optim_state_dict"
).split():
    setattr(FullyShardedDataParallel, _name, _legacy(_name))


@no_grad()
def _summon(state, writeback):
    """Shows wholes in the places. Returns writable copies by number, if they are written back."""
    state.summoned = True
    if not writeback:
        state.unshard()
        return {}
    if not state.unit.intact():
        state.adopt()
    copies = {}
    for parameters, name, number in state.places:
        if number not in copies:
            shard = state.unit.shard(number)
            copies[number] = Parameter(shard.detach().full_tensor().clone(), shard.requires_grad)
        parameters[name] = copies[number]
    return copies


@no_grad()
def _put_back(state, copies, writeback):
    if not writeback:
        state.unit.reshard()
        return
    for parameters, name, number in state.places:
        parameters[name] = state.unit.shard(number)
    for number, copied in copies.items():
        state.unit.shard(number).copy_(copied.detach())
    _C.end_writes()
