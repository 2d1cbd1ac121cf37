"""Distributed features that change a module in place instead of wrapping it, so that names stay: replicate(), checkpoint(),
and contract() for own ones."""

from functools import wraps

from pydist._C import device as _Device
from pydist.nn.modules.module import Module
from pydist.nn.parallel.distributed import DistributedDataParallel
from pydist.nn.parallel.fsdp.fully_shard import FSDPModule
from pydist.utils.checkpoint import checkpoint as _checkpointed

__all__ = ["DDP", "checkpoint", "contract", "replicate"]

_STATES, _REGISTRY = "_composable_states", "_composable_registry"


class State:
    """What a feature keeps for a module."""


class RegistryItem:
    """That a feature was applied."""


def _roots(modules):
    """Those that are not below another one."""
    below = {id(child) for module in modules for child in module.modules() if child is not module}
    return [module for module in modules if id(module) not in below]


def _tops(modules):
    return [modules] if isinstance(modules, Module) else _roots(list(modules))


def _names(modules):
    kinds = ("named_parameters", "named_buffers", "named_modules")
    return [(kind, [name for name, _ in getattr(module, kind)()]) for module in modules for kind in kinds]


def contract(state_cls=State):
    """A decorator for a distributed feature: a function of a module, or of a sequence of modules, that changes it in place
    and returns it, or others in its place. `function.state(module)` is then what it keeps for the module, a `state_cls()`.

    Raises RuntimeError if the function has changed the names of parameters, buffers or modules, and AssertionError if it is
    applied to a module twice, or returns another number of modules.

    >>> import pydist
    >>> from pydist.distributed._composable import contract
    >>> @contract()
    ... def named(module, name):
    ...     named.state(module).name = name
    ...     return module
    >>> net = named(pydist.nn.Linear(2, 1), "head")
    >>> named.state(net).name
    'head'
    """

    def decorate(function):
        @wraps(function)
        def apply(module, *args, **kwargs):
            modules, state, item = _tops(module), state_cls(), RegistryItem()
            for one in modules:
                states = one.__dict__.setdefault(_STATES, {})
                registry = one.__dict__.setdefault(_REGISTRY, {})
                if function in states or function.__name__ in registry:
                    raise AssertionError(
                        f"{function.__name__} has been applied to this {type(one).__name__} already (expected once)"
                    )
                states[function], registry[function.__name__] = state, item
            before = _names(modules)
            changed = function(module, *args, **kwargs)
            changed = module if changed is None else changed
            after = _names(_tops(changed))
            if len(after) != len(before):
                raise AssertionError(
                    f"{function.__name__}: {len(modules)} modules became {len(_tops(changed))} (expected the same number)"
                )
            for (kind, old), (_, new) in zip(before, after, strict=True):
                if old != new:
                    differ = sorted(set(old).symmetric_difference(new)) or "their order"
                    raise RuntimeError(
                        f"{function.__name__}: it has changed {kind}: {differ} (expected the same names)"
                    )
            return changed

        apply.state = lambda module: module.__dict__.get(_STATES, {}).get(function)
        return apply

    return decorate


def _get_registry(module):
    """{name of a feature: what stands for it} of those that were applied to a module; None: none was."""
    return module.__dict__.get(_REGISTRY)


class _Replicated(State):
    """The DistributedDataParallel of a module, made at its first forward."""

    def __init__(self):
        self.ddp = None
        self.syncs, self.inside = True, False
        self.hooks = []  # arguments of register_comm_hook

    def make(self, module):
        ignored = {id(below) for top in self.ignored for below in top.modules()}
        kept = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
        for prefix, below in module.named_modules():
            if id(below) in ignored or isinstance(below, FSDPModule):
                tensors = (*below.named_parameters(), *below.named_buffers())
                kept.update(f"{prefix}.{name}" if prefix else name for name, _ in tensors)
        module._ddp_params_and_buffers_to_ignore = sorted(kept)
        self.ddp = DistributedDataParallel(module, **self.kwargs)
        for args, kwargs in self.hooks:
            self.ddp.register_comm_hook(*args, **kwargs)

    def run(self, module, call, args, kwargs):
        if self.inside:  # DistributedDataParallel calls its module
            return call(*args, **kwargs)
        if self.ddp is None:
            self.make(module)
        self.ddp.require_backward_grad_sync = self.syncs
        self.inside = True
        try:
            return self.ddp(*args, **kwargs)
        finally:
            self.inside = False


class DDP:
    """What the class of a module that was given to replicate() inherits from, besides its former class."""

    def __call__(self, *args, **kwargs):
        return replicate.state(self).run(self, super().__call__, args, kwargs)

    def set_requires_gradient_sync(self, requires_gradient_sync):
        """False: gradients add up on their own rank, as in DistributedDataParallel.no_sync."""
        replicate.state(self).syncs = bool(requires_gradient_sync)

    def replica_groups(self):
        """The groups over which gradients become means."""
        return replicate.state(self).ddp.replica_groups()

    def register_comm_hook(self, *args, **kwargs):
        """As DistributedDataParallel.register_comm_hook."""
        state = replicate.state(self)
        if state.ddp is None:
            state.hooks.append((args, kwargs))
        else:
            state.ddp.register_comm_hook(*args, **kwargs)

    def __deepcopy__(self, memo):
        raise AssertionError(f"{type(self).__name__} cannot be copied (expected state_dict())")


@contract(state_cls=_Replicated)
def replicate(module, ignored_modules=None, **kwargs):
    """Makes a module a replica, as DistributedDataParallel does, without a wrapper: names stay. Returns the module, whose
    class is now `DDP<name>`. Parameters are sent from rank 0 at the first forward, which all ranks make; modules below that
    fully_shard has sharded are left out.

    `ignored_modules`: their parameters and buffers stay this rank's own. `device_id`: an int or a device, accepted.
    `device_mesh`: a 1-D mesh, whose group is used. Other keyword arguments go to DistributedDataParallel. Raises
    RuntimeError for a module of fully_shard and for another device_id. Cost: that of DistributedDataParallel.

    >>> import pydist
    >>> from pydist.distributed._composable import replicate
    >>> net = replicate(pydist.nn.Linear(2, 1))
    >>> net(pydist.ones(3, 2)).sum().backward()
    >>> type(net).__name__, list(net.state_dict())
    ('DDPLinear', ['weight', 'bias'])
    """
    if isinstance(module, FSDPModule):
        raise RuntimeError("replicate: the module is managed by fully_shard already (expected one of them)")
    if "device_id" in kwargs and not isinstance(kwargs.pop("device_id"), (int, _Device)):
        raise RuntimeError("replicate: device_id is of another type (expected an int or a device)")
    mesh = kwargs.pop("device_mesh", None)
    if mesh is not None:
        kwargs["process_group"] = mesh.get_group()
    state = replicate.state(module)
    state.ignored, state.kwargs = list(ignored_modules or ()), kwargs
    module.__class__ = type(f"DDP{type(module).__name__}", (DDP, type(module)), {"__module__": type(module).__module__})
    return module


class _Checkpointed:
    """The forward of a module that checkpoint() was applied to."""

    def __init__(self, module, options):
        self.module, self.options = module, options

    def __call__(self, *args, **kwargs):
        if not checkpoint.state(self.module).enable_hook:
            return type(self.module).forward(self.module, *args, **kwargs)
        call = type(self.module).forward
        return _checkpointed(call, self.module, *args, use_reentrant=False, **self.options, **kwargs)


@contract()
def checkpoint(module, **kwargs):
    """Checkpoints the activations of a module in place: backward runs its forward again. Returns the module. Keyword
    arguments are those of utils.checkpoint.checkpoint without use_reentrant, which is False. Raises NotImplementedError for
    use_reentrant=True, ValueError for names that are not known.

    >>> import pydist
    >>> from pydist.distributed._composable import checkpoint
    >>> net = checkpoint(pydist.nn.Sequential(pydist.nn.Linear(2, 2), pydist.nn.Tanh()))
    >>> net(pydist.ones(1, 2)).sum().backward()
    >>> net[0].bias.grad.shape
    pydist.Size([2])
    """
    if kwargs.pop("use_reentrant", False):
        raise NotImplementedError("checkpoint: use_reentrant is True (expected False, or utils.checkpoint.checkpoint)")
    known = {"context_fn", "determinism_check", "debug", "early_stop", "preserve_rng_state"}
    if not known.issuperset(kwargs):
        raise ValueError(f"checkpoint: got {sorted(set(kwargs) - known)} (expected some of {sorted(known)})")
    checkpoint.state(module).enable_hook = True
    object.__setattr__(module, "forward", _Checkpointed(module, kwargs))
    return module
