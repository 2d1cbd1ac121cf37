"""Block and HybridBlock: layers and models with names, children and parameters."""

import re
import threading
import warnings

from pydist.compat.mxnet import ndarray as nd
from pydist.compat.mxnet._base import absent
from pydist.compat.mxnet.gluon.parameter import Parameter, ParameterDict, Pending, fill, whole


class _Names(threading.local):
    """Of a thread: the innermost name scope, and how often each hint was used outside of scopes."""

    def __init__(self):
        self.scope, self.counts = None, {}


_names = _Names()


class _NameScope:
    """`with block.name_scope():` prefixes of new blocks begin with the block's."""

    def __init__(self, block):
        self.block, self.counts, self.outer = block, {}, []

    def __enter__(self):
        self.outer.append(_names.scope)
        _names.scope = _names.scope if self.block._empty_prefix else self

    def __exit__(self, *error):
        _names.scope = self.outer.pop()


def _prefixes(prefix, params, hint):
    """(prefix, ParameterDict) of a new block."""
    scope = _names.scope
    counts = _names.counts if scope is None else scope.counts
    if prefix is None:
        prefix = f"{hint}{counts.get(hint, 0)}_"
        counts[hint] = counts.get(hint, 0) + 1
    parent = None if scope is None else scope.block._params
    if params is not None:
        found = ParameterDict(params.prefix, params)
    else:
        found = ParameterDict(prefix) if parent is None else ParameterDict(parent.prefix + prefix, parent._shared)
    return prefix if scope is None else scope.block.prefix + prefix, found


class _Hook:
    """detach() removes the hook."""

    def __init__(self, hooks, hook):
        self.detach = lambda: hooks.pop(id(self), None)
        hooks[id(self)] = hook


def _lost_blocks(value):
    """Whether a list, a tuple or a dict has Blocks in it, which nobody finds."""
    if isinstance(value, (list, tuple, dict)):
        return any(map(_lost_blocks, value.values() if isinstance(value, dict) else value))
    return isinstance(value, Block)


class Block:
    """A base class of layers and models. Attributes that are Blocks or Parameters are its children and parameters."""

    def __init__(self, prefix=None, params=None):
        self._empty_prefix = prefix == ""
        self._prefix, self._params = _prefixes(prefix, params, self._alias())
        self._scope, self._children, self._reg_params = _NameScope(self), {}, {}
        self._forward_hooks, self._forward_pre_hooks = {}, {}

    prefix = property(lambda self: self._prefix, doc="How its parameters' names begin.")
    name = property(lambda self: self._prefix.removesuffix("_"), doc="The prefix without its last underscore.")
    params = property(lambda self: self._params, doc="Its own parameters, without those of children.")

    def _alias(self):
        return type(self).__name__.lower()

    def __setattr__(self, name, value):
        old = getattr(self, name, None)
        if (
            isinstance(old, (Parameter, Block))
            and not isinstance(value, type(old))
            and not isinstance(old, type(value))
        ):
            got, was = type(value).__name__, type(old).__name__
            raise TypeError(f"{type(self).__name__}.{name}: got {got} (expected a {was}, which it was)")
        if isinstance(value, Block):
            self.register_child(value, name)
        elif isinstance(value, Parameter):
            self._reg_params[name] = value
        super().__setattr__(name, value)

    def __repr__(self):
        lines = [f"  ({key}): {child}".replace("\n", "\n  ") for key, child in self._children.items()]
        return "\n".join([f"{type(self).__name__}(", *lines, ")"])

    def name_scope(self):
        """`with self.name_scope():` names of new children begin with this block's."""
        return self._scope

    def collect_params(self, select=None):
        """All parameters, or those whose names a regular expression fits."""
        lost = [
            k for k, v in vars(self).items() if isinstance(v, (list, tuple, dict)) and k[0] != "_" and _lost_blocks(v)
        ]
        if lost:
            text = (
                f"{type(self).__name__}.{lost[0]}: Blocks in a list or a dict are no children (expected nn.Sequential)"
            )
            warnings.warn(text, stacklevel=2)
        found = ParameterDict(self._params.prefix)
        own = {**self._params, **{param.name: param for param in self._reg_params.values()}}
        found.update({name: param for name, param in own.items() if re.match(select or "", name)})
        for child in self._children.values():
            found.update(child.collect_params(select))
        return found

    def _collect_params_with_prefix(self, prefix=""):
        """{path of attributes: parameter}."""
        prefix = f"{prefix}." if prefix else ""
        found = {prefix + name: param for name, param in self._reg_params.items()}
        for name, child in self._children.items():
            found.update(child._collect_params_with_prefix(prefix + name))
        return found

    def save_parameters(self, filename, deduplicate=False):
        """Writes the values by the paths of attributes. deduplicate: a shared parameter once."""
        found, seen = {}, set()
        for name, param in self._collect_params_with_prefix().items():
            if not (deduplicate and id(param) in seen):
                found[name] = whole(param)
            seen.add(id(param))
        nd.save(filename, found)

    def load_parameters(self, filename, ctx=None, allow_missing=False, ignore_extra=False, **dtypes):
        """Reads what save_parameters(), or collect_params().save(), wrote. dtypes: cast_dtype, dtype_source."""
        found, params = nd.load(filename), self._collect_params_with_prefix()
        if found and not any("." in name or name in params for name in found):
            self.collect_params().load(filename, ctx, allow_missing, ignore_extra, self.prefix, **dtypes)
            return
        there = {id(params[name]): found[name] for name in found if name in params}
        found.update({name: there[id(param)] for name, param in params.items() if id(param) in there})
        fill(params, found, filename, ctx, allow_missing, ignore_extra, **dtypes)

    def register_child(self, block, name=None):
        self._children[str(len(self._children)) if name is None else name] = block

    def register_forward_pre_hook(self, hook):
        """hook(block, inputs) before each forward."""
        return _Hook(self._forward_pre_hooks, hook)

    def register_forward_hook(self, hook):
        """hook(block, inputs, output) after each forward."""
        return _Hook(self._forward_hooks, hook)

    def apply(self, fn):
        """Calls fn(block) for all children, then for itself."""
        for child in self._children.values():
            child.apply(fn)
        fn(self)
        return self

    def initialize(self, init="uniform", ctx=None, verbose=False, force_reinit=False):
        """Initializes all parameters."""
        self.collect_params().initialize(init, ctx, verbose, force_reinit)

    def hybridize(self, active=True, **kwargs):
        """Accepted: pydist always runs eagerly."""
        for child in self._children.values():
            child.hybridize(active, **kwargs)

    def cast(self, dtype):
        """All parameters in another dtype."""
        for child in self._children.values():
            child.cast(dtype)
        for param in self._params.values():
            param.cast(dtype)

    def summary(self, *inputs):
        """Not here."""
        raise absent("Block.summary", "print(block)")

    def __call__(self, *args, **kwargs):
        for hook in list(self._forward_pre_hooks.values()):
            hook(self, args)
        out = self.forward(*args, **kwargs)
        for hook in list(self._forward_hooks.values()):
            hook(self, args, out)
        return out


def _context_of(args):
    """That of the first array, or None."""
    for each in args:
        found = _context_of(each) if isinstance(each, (list, tuple)) else getattr(each, "context", None)
        if found is not None:
            return found
    return None


class HybridBlock(Block):
    """A Block with hybrid_forward(F, x, **parameters), where F is mx.nd, or with forward(x)."""

    def register_child(self, block, name=None):
        """Adds a child, which has to be a HybridBlock."""
        if not isinstance(block, HybridBlock):
            raise ValueError(
                f"{type(self).__name__}: child {type(block).__name__} (expected a HybridBlock, as all children)"
            )
        super().register_child(block, name)

    def infer_shape(self, *args):
        """Nothing: operations find the shapes of parameters. A subclass may set shapes here."""

    def export(self, path, epoch=0, remove_amp_cast=True):
        """There are no symbols."""
        raise absent("HybridBlock.export", "save_parameters()")

    def forward(self, x, *args):
        """Calls hybrid_forward with the parameters on the context of x."""
        ctx, params = _context_of((x, *args)), {}
        if ctx is None:
            raise ValueError(f"{type(self).__name__}: got no NDArray (expected one among the arguments)")
        for name, param in self._reg_params.items():
            if param._deferred_init:
                self.infer_shape(x, *args)
                if param._known():
                    param._finish_deferred_init()
            params[name] = Pending(param, ctx) if param._deferred_init else param.data(ctx)
        return self.hybrid_forward(nd, x, *args, **params)


class SymbolBlock:
    """There are no symbols."""

    def __init__(self, *args, **kwargs):
        raise absent("gluon.SymbolBlock", "a HybridBlock")
