"""Which modules FullyShardedDataParallel wraps by itself. PyTorch's name for this file is `distributed.fsdp.wrap`."""

import contextlib
import threading

from pydist.nn.modules.container import ModuleDict, ModuleList

_MANY = int(1e8)  # parameters


def always_wrap_policy(*args, **kwargs):
    """Wraps every module."""
    return True


class _Policy:
    """Base of policies that see the whole tree: `chosen` maps modules to the arguments of their wrappers."""


class ModuleWrapPolicy(_Policy):
    """Wraps the modules of these classes."""

    def __init__(self, module_classes):
        self._classes = tuple(module_classes)

    def chosen(self, root, ignored, kwargs):
        """{module: arguments}."""
        return {m: kwargs for m in root.modules() if m not in ignored and isinstance(m, self._classes)}

    def __call__(self, module, recurse, *args, **kwargs):
        return recurse or isinstance(module, self._classes)

    def __repr__(self):
        return f"ModuleWrapPolicy({set(self._classes)})"


class CustomPolicy(_Policy):
    """`lambda_fn(module)` returns whether the module is wrapped, or the arguments of its wrapper that differ from those
    of the outermost one."""

    def __init__(self, lambda_fn):
        self._fn = lambda_fn

    def chosen(self, root, ignored, kwargs):
        """{module: arguments}."""
        found = {}
        for module in root.modules():
            said = False if module in ignored else self._fn(module)
            if not isinstance(said, (dict, bool)):
                raise ValueError(f"CustomPolicy: lambda_fn returned {said!r} (expected bool or a dict of arguments)")
            if said or isinstance(said, dict):
                found[module] = {**kwargs, **said} if isinstance(said, dict) else kwargs
        return found


def lambda_auto_wrap_policy(module, recurse, nonwrapped_numel, lambda_fn):
    """Wraps modules for which lambda_fn(module) is true; used with functools.partial."""
    return recurse or lambda_fn(module)


def transformer_auto_wrap_policy(module, recurse, nonwrapped_numel, transformer_layer_cls):
    """Wraps the modules of these classes; used with functools.partial."""
    return recurse or isinstance(module, tuple(transformer_layer_cls))


def size_based_auto_wrap_policy(
    module, recurse, nonwrapped_numel, min_num_params=_MANY, force_leaf_modules=None, exclude_wrap_modules=None
):
    """Wraps modules with at least min_num_params parameters that are not wrapped below them."""
    leaves = size_based_auto_wrap_policy.FORCE_LEAF_MODULES if force_leaf_modules is None else force_leaf_modules
    excluded = (
        size_based_auto_wrap_policy.EXCLUDE_WRAP_MODULES if exclude_wrap_modules is None else exclude_wrap_modules
    )
    large = nonwrapped_numel >= min_num_params
    if recurse:
        return large and not isinstance(module, tuple(leaves))
    return large and not isinstance(module, tuple(excluded))


size_based_auto_wrap_policy.EXCLUDE_WRAP_MODULES = {ModuleList, ModuleDict}
size_based_auto_wrap_policy.FORCE_LEAF_MODULES = set()

_here = threading.local()


@contextlib.contextmanager
def enable_wrap(*, wrapper_cls, **wrapper_kwargs):
    """In this block `wrap(module)` wraps.

    >>> import pydist
    >>> from pydist.distributed.fsdp import FullyShardedDataParallel
    >>> from pydist.distributed.fsdp.wrap import enable_wrap, wrap
    >>> with enable_wrap(wrapper_cls=FullyShardedDataParallel):
    ...     layer = wrap(pydist.nn.Linear(2, 2))
    >>> type(layer).__name__
    'FullyShardedDataParallel'
    """
    before = getattr(_here, "wrapping", None)
    _here.wrapping = wrapper_cls, wrapper_kwargs
    try:
        yield
    finally:
        _here.wrapping = before


def wrap(module, **wrap_overrides):
    """The module, wrapped if this is inside of enable_wrap."""
    wrapping = getattr(_here, "wrapping", None)
    if wrapping is None:
        return module
    cls, kwargs = wrapping
    return cls(module, **{**kwargs, **wrap_overrides})


def _replace(root, chosen, cls):
    """Wraps the chosen modules below root, inner ones first; one that stands in several places has one wrapper."""
    made = {}

    def visit(module):
        for name, below in list(module._modules.items()):
            if below is None:
                continue
            if below in made:
                setattr(module, name, made[below])
                continue
            visit(below)
            if below in chosen and below is not root:
                made[below] = cls(below, **chosen[below])
                setattr(module, name, made[below])

    visit(root)


def _by_size(module, policy, ignored, kwargs, cls, is_root):
    """Wraps by a function policy(module=, recurse=, nonwrapped_numel=). Returns (the module or its wrapper, how many of
    its parameters are wrapped)."""
    numel = sum(p.numel() for p in module.parameters())
    if not policy(module=module, recurse=True, nonwrapped_numel=numel):
        return module, 0
    wrapped = 0
    for name, below in list(module._modules.items()):
        if below is None or below in ignored or isinstance(below, cls):
            continue
        made, count = _by_size(below, policy, ignored, kwargs, cls, False)
        setattr(module, name, made)
        wrapped += count
    if not is_root and policy(module=module, recurse=False, nonwrapped_numel=numel - wrapped):
        return cls(module, **kwargs), numel
    return module, wrapped


def auto_wrap(root, policy, ignored, kwargs, cls):
    """Wraps modules below root as a policy says."""
    if isinstance(policy, _Policy):
        _replace(root, policy.chosen(root, ignored, kwargs), cls)
    elif callable(policy):
        _by_size(root, policy, ignored, kwargs, cls, True)
    else:
        raise ValueError(f"auto_wrap_policy is {policy!r} (expected a policy of distributed.fsdp.wrap, or a function)")


def _or_policy(module, recurse, nonwrapped_numel, policies):
    """Wraps what any of the policies wraps."""
    return any(policy(module=module, recurse=recurse, nonwrapped_numel=nonwrapped_numel) for policy in policies)
