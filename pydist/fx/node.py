"""Node: one step of a Graph, and functions over the arguments of nodes."""

import builtins
import math
import operator
import types

from pydist import _C

__all__ = ["Node", "has_side_effect", "map_aggregate", "map_arg"]

Argument = Target = object  # PyTorch's names in annotations
OPS = ("placeholder", "get_attr", "call_function", "call_method", "call_module", "output")
_effects = {operator.setitem, operator.delitem, print}


def has_side_effect(fn):
    """Says that calls of fn must stay, although nobody uses their results. Returns fn."""
    _effects.add(fn)
    return fn


def map_aggregate(a, fn):
    """a with fn applied to all that is inside of its tuples, lists, dicts and slices."""
    if isinstance(a, tuple):
        mapped = [map_aggregate(x, fn) for x in a]
        return type(a)(*mapped) if hasattr(a, "_fields") else tuple(mapped)
    if isinstance(a, list):
        return [map_aggregate(x, fn) for x in a]
    if isinstance(a, dict):
        return {key: map_aggregate(value, fn) for key, value in a.items()}
    if isinstance(a, slice):
        return slice(*(map_aggregate(x, fn) for x in (a.start, a.stop, a.step)))
    return fn(a)


def map_arg(a, fn):
    """a with fn applied to all nodes in it."""
    return map_aggregate(a, lambda x: fn(x) if isinstance(x, Node) else x)


def target_name(target):
    """How a target is printed: a path, or the name of a function in its module."""
    return target if isinstance(target, str) else qualified(target)[0]


def qualified(function):
    """(name with dots, the module to import for it). The module is None for what has no importable name."""
    if not _names:
        _fill_names()
    found = _names.get(id(function))
    if found is not None and found[2] is function:
        return found[:2]
    module, name = (
        getattr(function, "__module__", None),
        getattr(function, "__qualname__", getattr(function, "__name__", None)),
    )
    if module is not None and name is not None and "<" not in name and _is_at(module, name, function):
        return (name, None) if module == "builtins" else (f"{module}.{name}", module)
    return (name or type(function).__name__).replace("<", "_").replace(">", "_").replace(".", "_"), None


_names = {}  # {id: (name, module, object)} of functions that are known by another name than their own


def _fill_names():
    import pydist
    from pydist import fft, linalg, special
    from pydist.nn import functional

    for module in (functional, fft, linalg, special, pydist):
        for name, thing in vars(module).items():
            if isinstance(thing, (types.FunctionType, type(_C.relu))) and not name.startswith("_"):
                _names[id(thing)] = f"{module.__name__}.{name}", module.__name__, thing
    for name, thing in vars(operator).items():
        if callable(thing) and not name.startswith("_"):
            _names.setdefault(id(thing), (f"operator.{name}", "operator", thing))
    for name, thing in vars(math).items():
        if callable(thing):
            _names[id(thing)] = f"math.{name}", "math", thing


def _is_at(module, name, function):
    import sys

    at = sys.modules.get(module)
    for part in name.split("."):
        at = getattr(at, part, None)
    return at is function


class Node:
    """A step: `op` says what it does with `target`, `args` and `kwargs`, in which other nodes stand for their results.

    placeholder: an input, named target. get_attr: an attribute of the root, by its path. call_function: a function.
    call_method: the method of that name of args[0]. call_module: a module of the root, by its path. output: args[0] is
    the result. `users`: {node: None} of those that use this one. `meta`: a dict for whoever wants to note something.
    """

    def __init__(self, graph, name, op, target, args, kwargs, return_type=None):
        if op not in OPS:
            raise AssertionError(f"Node: the op {op!r} (expected one of {', '.join(OPS)})")
        if op == "call_function" and not callable(target):
            raise ValueError(
                f"Node [graph = {graph}, name = '{name}'] target {target} has type {type(target).__name__} (expected a callable)"
            )
        if op != "call_function" and not isinstance(target, str):
            raise ValueError(
                f"Node [graph = {graph}, name = '{name}'] target {target} has type {type(target).__name__} (expected a str)"
            )
        self.graph, self.name, self.op, self.target, self.type = graph, name, op, target, return_type
        self.users, self.meta, self._inputs, self._erased = {}, {}, {}, False
        self._prev = self._next = self
        self._set(tuple(args), dict(kwargs))

    def _set(self, args, kwargs):
        for node in self._inputs:
            node.users.pop(self, None)
        self._args, self._kwargs, self._inputs = (
            map_aggregate(args, lambda x: x),
            map_aggregate(kwargs, lambda x: x),
            {},
        )
        map_arg((args, kwargs), lambda node: self._inputs.setdefault(node))
        for node in self._inputs:
            node.users.setdefault(self)

    next = property(lambda self: self._next, doc="The node after this one.")
    prev = property(lambda self: self._prev, doc="The node before this one.")

    @property
    def args(self):
        """The positional arguments."""
        return self._args

    @args.setter
    def args(self, args):
        self._set(tuple(args), self._kwargs)

    @property
    def kwargs(self):
        """The arguments by name."""
        return self._kwargs

    @kwargs.setter
    def kwargs(self, kwargs):
        self._set(self._args, dict(kwargs))

    @property
    def all_input_nodes(self):
        """The nodes among the arguments, each once."""
        return list(self._inputs)

    def update_arg(self, idx, arg):
        """Replaces one positional argument."""
        args = list(self._args)
        args[idx] = arg
        self.args = args

    def insert_arg(self, idx, arg):
        """Adds a positional argument before number idx."""
        if not 0 <= idx <= len(self._args):
            raise AssertionError("insert_args index must be between 0 and len(self.args)")
        self.args = (*self._args[:idx], arg, *self._args[idx:])

    def update_kwarg(self, key, arg):
        """Replaces or adds one argument by name."""
        self.kwargs = {**self._kwargs, key: arg}

    def _take_out(self):
        self._prev._next, self._next._prev = self._next, self._prev

    def prepend(self, x):
        """Moves node x before this one."""
        if x.graph is not self.graph:
            raise AssertionError("prepend: a node of another graph (expected one of the same)")
        if x is self:
            return
        x._take_out()
        x._prev, x._next = self._prev, self
        self._prev._next = self._prev = x

    def append(self, x):
        """Moves node x behind this one."""
        self._next.prepend(x)

    def replace_all_uses_with(self, replace_with, delete_user_cb=lambda user: True, *, propagate_meta=False):
        """All users of this node use another one. delete_user_cb(user) may say which. Returns the users."""
        if propagate_meta:
            replace_with.meta.update({k: v for k, v in self.meta.items() if k not in replace_with.meta})
        changed = [user for user in list(self.users) if delete_user_cb(user)]
        for user in changed:
            user.replace_input_with(self, replace_with)
        return changed

    def replace_input_with(self, old_input, new_input):
        """Replaces a node among the arguments of this one."""
        args, kwargs = map_arg((self._args, self._kwargs), lambda node: new_input if node is old_input else node)
        self._set(args, kwargs)

    def is_impure(self):
        """Whether it has to stay although nobody uses it: inputs, the output, and what changes something."""
        if self.op in ("placeholder", "output"):
            return True
        if self.op == "call_module":
            module = self.graph.owning_module and self.graph.owning_module.get_submodule(self.target)
            return bool(getattr(module, "_is_impure", False))
        name = self.target if self.op == "call_method" else getattr(self.target, "__name__", "")
        in_place = name.endswith("_") and not name.endswith("__") or name == "__setitem__"
        return in_place or self.op == "call_function" and self.target in _effects or bool(self._kwargs.get("inplace"))

    def format_node(self):
        """One line about the node."""
        if self.op == "placeholder":
            return f"%{self.name} : [num_users={len(self.users)}] = placeholder[target={self.target}]"
        if self.op == "get_attr":
            return f"%{self.name} : [num_users={len(self.users)}] = get_attr[target={self.target}]"
        if self.op == "output":
            return f"return {self._args[0]}"
        text = f"(args = {_shown(self._args)}, kwargs = {_shown(self._kwargs)})"
        return f"%{self.name} : [num_users={len(self.users)}] = {self.op}[target={target_name(self.target)}]{text}"

    def __repr__(self):
        return self.name

    def __lt__(self, other):
        return self.graph._is_before(self, other)

    def __gt__(self, other):
        return other < self


def container(a, text):
    """A tuple, list or dict with its items by text(item); None for all else."""
    if isinstance(a, tuple):
        return f"({', '.join(map(text, a))}{',' * (len(a) == 1)})"
    if isinstance(a, list):
        return f"[{', '.join(map(text, a))}]"
    if isinstance(a, dict):
        return f"{{{', '.join(f'{text(key)}: {text(value)}' for key, value in a.items())}}}"
    return None


def _shown(a):
    found = container(a, _shown)
    if found is None:
        found = f"%{a.name}" if isinstance(a, Node) else str(a)
    return found


BUILTINS = frozenset(dir(builtins))
