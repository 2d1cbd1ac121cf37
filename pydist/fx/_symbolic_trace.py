"""Tracer: runs a function or module on proxies and keeps what it does as a Graph."""

import builtins
import functools
import inspect
import math
import sys
import threading
import types
from contextlib import contextmanager

import pydist
from pydist import _C
from pydist.fx.graph import Graph
from pydist.fx.graph_module import GraphModule
from pydist.fx.node import has_side_effect
from pydist.fx.proxy import Proxy, TracerBase, find_proxy
from pydist.nn import Module, Parameter, Sequential, functional

__all__ = ["PH", "PHBase", "ProxyableClassMeta", "Tracer", "symbolic_trace", "wrap"]

_wrapped = []  # (globals of a module, name) by wrap
_here = threading.local()  # .tracer: the one that traces in this thread
_lock = threading.RLock()  # one trace at a time: it replaces functions


def current_tracer():
    """The tracer that traces in this thread, or None."""
    return getattr(_here, "tracer", None)


@contextmanager
def untraced():
    """What runs in this context is not traced."""
    tracer, _here.tracer = current_tracer(), None
    try:
        yield
    finally:
        _here.tracer = tracer


class PHBase:
    """In concrete_args: an input that stays one."""

    def __repr__(self):
        return "PH"


PH = PHBase()


def _called(function, target, args, kwargs):
    """The function's result; with proxies among its arguments, while this thread traces, a proxy for a call of target."""
    tracer = current_tracer()
    found = find_proxy((args, kwargs)) if tracer is not None else None
    if found is None and (tracer is None or not tracer.records(target)):
        return function(*args, **kwargs)
    return (found.tracer if found is not None else tracer).create_proxy("call_function", target, args, kwargs)


def wrap(fn_or_name):
    """Says that calls of a function, in the module of the caller, become nodes and are not looked into: `wrap("name")` at
    module level, or the decorator `@wrap`.

    >>> from pydist import fx
    >>> @fx.wrap
    ... def scaled(x, by):
    ...     return x * by if by > 1 else x
    >>> fx.symbolic_trace(lambda x: scaled(x, 3)).code.split("return")[0].split("(x")[-1]
    ', 3);  x = None\\n    '
    """
    if not callable(fn_or_name) and not isinstance(fn_or_name, str):
        raise RuntimeError("Unsupported type for global function! Must be either a callable or string name")
    if callable(fn_or_name):
        if isinstance(fn_or_name, Proxy):
            raise RuntimeError("wrap: got a Proxy (expected a function)")

        @functools.wraps(fn_or_name)
        def wrapped(*args, **kwargs):
            return _called(fn_or_name, wrapped, args, kwargs)

        return wrapped
    frame = inspect.currentframe().f_back
    if frame.f_code.co_name != "<module>":
        raise NotImplementedError("wrap must be called at the top level of a module")
    if not any(known is frame.f_globals and name == fn_or_name for known, name in _wrapped):
        _wrapped.append((frame.f_globals, fn_or_name))
    return fn_or_name


class ProxyableClassMeta(type):
    """A metaclass: making an object of the class with proxies becomes a node."""

    def __call__(cls, *args, **kwargs):
        return _called(super().__call__, cls, args, kwargs)


def _recorded(function):
    """The function, of which calls with proxies become nodes."""

    @functools.wraps(function)
    def recorded(*args, **kwargs):
        return _called(function, function, args, kwargs)

    return recorded


@has_side_effect
def check_concrete(value, expected, name):
    """Raises AssertionError unless an input has the value for which the program was traced."""
    if value != expected:
        raise AssertionError(f"{name} has been specialized to have value {expected!r} but got another value: {value!r}")


def _is_function(thing):
    """Functions of pydist that are no ops, which ask the proxies themselves: written in Python, and those that make tensors."""
    kinds = types.FunctionType, types.BuiltinFunctionType
    return isinstance(thing, kinds) and (thing.__module__ or "").split(".")[0] in ("pydist", "_C")


def _places(tracer, root, fn):
    """[(dict, name, function)] of what is replaced while a program is traced."""
    found, known = [], {id(thing): thing for thing in tracer._autowrap_functions}
    spaces = [vars(module) for module in (functional, pydist, pydist.linalg, pydist.fft, pydist.special)]
    for space in spaces:
        for name, thing in list(space.items()):
            if _is_function(thing) and not name.startswith("_"):
                known[id(thing)] = thing
                found.append((space, name, thing))
    for module in tracer._autowrap:
        found += [
            (vars(module), name, thing)
            for name, thing in vars(module).items()
            if callable(thing) and not name.startswith("_")
        ]
        known |= {id(thing): thing for thing in vars(module).values() if callable(thing)}
    own = {id(fn.__globals__): fn.__globals__} if hasattr(fn, "__globals__") else {}
    for part in root.modules() if isinstance(root, Module) else ():
        space = vars(sys.modules.get(type(part).__module__, math))
        if not type(part).__module__.startswith("pydist.nn"):
            own[id(space)] = space
    for space in own.values():  # from pydist.nn.functional import relu
        found += [(space, name, thing) for name, thing in list(space.items()) if known.get(id(thing)) is thing]
    for space, name in _wrapped:
        if name in space or hasattr(builtins, name):
            found.append((space, name, space.get(name, getattr(builtins, name, None))))
    return found


@contextmanager
def _patched(tracer, root, fn):
    """While a program is traced in this thread: calls of functions and modules, and parameters of modules, go to the
    tracer if proxies are among their arguments. Other threads that trace wait."""
    with _lock:
        call, get, missing = Module.__call__, Module.__getattr__, object()

        @functools.wraps(call)
        def module_call(self, *args, **kwargs):
            at = current_tracer()
            if at is None:
                return call(self, *args, **kwargs)
            return at.call_module(self, lambda *a, **k: call(self, *a, **k), args, kwargs)

        @functools.wraps(get)
        def module_get(self, name):
            value, at = get(self, name), current_tracer()
            return value if at is None else at.getattr(name, value, at._parameter_proxies)

        before = []
        outer, _here.tracer = current_tracer(), tracer
        try:
            for space, name, thing in _places(tracer, root, fn):
                before.append((space, name, space.get(name, missing)))
                space[name] = _recorded(thing)
            Module.__call__, Module.__getattr__ = module_call, module_get
            yield
        finally:
            Module.__call__, Module.__getattr__ = call, get
            for space, name, thing in reversed(before):
                if thing is missing:
                    del space[name]
                else:
                    space[name] = thing
            _here.tracer = outer


class Tracer(TracerBase):
    """Traces programs. Subclasses say which modules stay calls (is_leaf_module), and may change the other methods.

    autowrap_modules: modules whose functions become nodes. autowrap_functions: functions that do.
    """

    def __init__(self, autowrap_modules=(math,), autowrap_functions=(), param_shapes_constant=False):
        self._autowrap, self._autowrap_functions = tuple(autowrap_modules), tuple(autowrap_functions)
        self._parameter_proxies, self._paths, self.root, self.traced_func_name = {}, {}, None, "forward"

    def is_leaf_module(self, m, module_qualified_name):
        """Whether a module stays one call: those of pydist.nn do, but Sequential."""
        return type(m).__module__.startswith("pydist.nn") and not isinstance(m, Sequential)

    def records(self, target):
        """Whether calls of this function become nodes, also those without proxies among their arguments."""
        return False

    def path_of_module(self, mod):
        """The path of a module in the root."""
        if id(mod) not in self._paths:
            raise NameError(
                f"module is not installed as a submodule: {type(mod).__name__} (expected one of the root's)"
            )
        return self._paths[id(mod)]

    def call_module(self, m, forward, args, kwargs):
        """Called where a module is called."""
        path = self.path_of_module(m)
        if not self.is_leaf_module(m, path):
            return forward(*args, **kwargs)
        return self.create_proxy("call_module", path, args, kwargs)

    def getattr(self, attr, attr_val, parameter_proxy_cache):
        """Called for what a module's __getattr__ finds: its parameters become nodes."""
        if isinstance(attr_val, Parameter):
            path = self._tensor_paths.get(id(attr_val))
            if path is not None:
                if path not in parameter_proxy_cache:
                    parameter_proxy_cache[path] = self.create_proxy("get_attr", path, (), {})
                return parameter_proxy_cache[path]
        return attr_val

    def _leaf(self, a):
        if isinstance(a, _C.Tensor) and not isinstance(a, Proxy):
            path = self._tensor_paths.get(id(a))
            if path is None:
                number = 0
                while hasattr(self.root, path := f"_tensor_constant{number}"):
                    number += 1
                setattr(self.root, path, a)
                self._tensor_paths[id(a)] = path
            return self.create_node("get_attr", path, (), {})
        if isinstance(a, Module):
            return self.create_node("get_attr", self.path_of_module(a), (), {})
        return super()._leaf(a)

    def create_args_for_root(self, root_fn, is_module, concrete_args=None):
        """The function with its inputs as proxies: (function, arguments, arguments by name)."""
        given, values, star = dict(concrete_args or {}), {}, False
        parameters = list(inspect.signature(root_fn).parameters.values())
        kinds = inspect.Parameter
        if is_module:
            values[parameters.pop(0).name] = self.root
        unknown = given.keys() - {p.name for p in parameters}
        if unknown:
            raise ValueError(f"concrete_args: the function has no {sorted(unknown)} (expected names of its arguments)")
        for p in parameters:
            stars = {kinds.VAR_POSITIONAL: "*", kinds.VAR_KEYWORD: "**"}.get(p.kind, "")
            star = star or bool(stars)
            default = () if p.default is kinds.empty else (p.default,)
            of_tensor = isinstance(p.default, _C.Tensor)  # it stays itself: an input is no attribute
            values[p.name] = self.create_proxy(
                "placeholder", stars + p.name, () if of_tensor else default, {}, name=p.name
            )
            if of_tensor:
                values[p.name].node.args = default
            if p.name in given and not isinstance(given[p.name], PHBase):
                self.create_proxy("call_function", check_concrete, (values[p.name], given[p.name], p.name), {})
                values[p.name] = given[p.name]
        if star:  # one proxy stands for all arguments of a star: it is bound to that name in the function's code
            code = root_fn.__code__
            flags = code.co_flags & ~(inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
            code = code.replace(co_argcount=len(values), co_kwonlyargcount=0, co_flags=flags)
            root_fn = types.FunctionType(code, root_fn.__globals__, root_fn.__name__, None, root_fn.__closure__)
            return root_fn, [values[name] for name in code.co_varnames[: len(values)]], {}
        by_name = {p.name: values.pop(p.name) for p in parameters if p.kind is kinds.KEYWORD_ONLY}
        return root_fn, list(values.values()), by_name

    def trace(self, root, concrete_args=None):
        """The graph of a module or function. concrete_args: {name: value} of inputs that are fixed."""
        if isinstance(root, Module):
            self.root, fn = root, getattr(type(root), self.traced_func_name)
        else:
            self.root, fn = Module(), root
        self.graph, self._parameter_proxies = Graph(tracer_cls=type(self)), {}
        self._paths = {id(m): name for name, m in self.root.named_modules(remove_duplicate=False)}
        buffers = dict(self.root.named_buffers())
        self._tensor_paths = {id(t): name for name, t in {**buffers, **dict(self.root.named_parameters())}.items()}
        for path, module in self.root.named_modules():
            for name, value in vars(module).items():
                if isinstance(value, _C.Tensor):
                    self._tensor_paths.setdefault(id(value), f"{path}.{name}" if path else name)
        fn, args, kwargs = self.create_args_for_root(inspect.unwrap(fn), isinstance(root, Module), concrete_args)
        with _patched(self, self.root, fn):
            result = fn(*args, **kwargs)
        self.create_node("output", "output", (self.create_arg(result),), {})
        return self.graph


def symbolic_trace(root, concrete_args=None):
    """A GraphModule that does what a module or function does: it is run once with proxies, and what it does with them is
    kept. A program whose way depends on values of tensors raises TraceError.

    >>> import pydist
    >>> from pydist import fx, nn
    >>> traced = fx.symbolic_trace(nn.Sequential(nn.Linear(3, 2), nn.ReLU()))
    >>> [(node.op, node.target) for node in traced.graph.nodes]
    [('placeholder', 'input'), ('call_module', '0'), ('call_module', '1'), ('output', 'output')]
    """
    tracer = Tracer()
    graph = tracer.trace(root, concrete_args)
    name = type(root).__name__ if isinstance(root, Module) else root.__name__
    return GraphModule(tracer.root, graph, name)
