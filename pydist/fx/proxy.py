"""Proxy: what a program that is traced has instead of a tensor. What it does with proxies becomes nodes."""

import dis
import enum
import inspect
import operator

from pydist import _C
from pydist.fx.node import Node, map_aggregate

__all__ = ["Attribute", "Proxy", "TraceError", "TracerBase"]

_CONSTANTS = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    range,
    type(None),
    type(...),
    enum.Enum,
    _C.dtype,
    _C.device,
    type(_C.contiguous_format),
)


class TraceError(ValueError):
    """The program does something that depends on values, which tracing does not know."""


class TracerBase:
    """Makes nodes and proxies for them."""

    graph = None

    def create_node(self, kind, target, args, kwargs, name=None, type_expr=None):
        """A node of the graph."""
        return self.graph.create_node(kind, target, args, kwargs, name, type_expr)

    def proxy(self, node):
        """A proxy for a node."""
        return Proxy(node, self)

    def create_proxy(self, kind, target, args, kwargs, name=None, type_expr=None, proxy_factory_fn=None):
        """A node for these arguments, in which proxies may be, and a proxy for it."""
        args, kwargs = self.create_arg(tuple(args)), self.create_arg(dict(kwargs))
        node = self.create_node(kind, target, args, kwargs, name, type_expr)
        return (proxy_factory_fn or self.proxy)(node)

    def create_arg(self, a):
        """An argument as nodes have it: with nodes in the place of proxies."""
        return map_aggregate(a, self._leaf)

    def _leaf(self, a):
        if isinstance(a, Proxy):
            return a.node
        if isinstance(a, (Node, *_CONSTANTS)) or isinstance(a, type):
            return a
        if callable(a) and hasattr(a, "__name__"):
            return a
        raise NotImplementedError(
            f"argument of type: {type(a)} (expected tensors, numbers, text and containers of them)"
        )

    def to_bool(self, obj):
        """Called where the program asks whether a proxy is true."""
        raise TraceError(
            "symbolically traced variables cannot be used as inputs to control flow (expected a program whose way does not "
            f"depend on the values of tensors; the value is {obj.node.format_node() or obj.node.name})"
        )

    def iter(self, obj):
        """Called where the program iterates over a proxy. `a, b = proxy` works."""
        count = _unpacks()
        if count is not None:
            return (obj[i] for i in range(count))
        raise TraceError(
            "Proxy object cannot be iterated. This can be attempted when the Proxy is used in a loop or as a *args or **kwargs "
            "function argument (expected a program that knows how many elements there are)"
        )

    def index(self, obj):
        """Called where the program uses a proxy as a number."""
        raise TraceError("a traced value was used as an index (expected a number that is known)")

    def length(self, obj):
        """Called where the program asks for a proxy's length."""
        raise RuntimeError(
            "'len' is not supported in symbolic tracing by default (expected fx.wrap('len') at module level)"
        )

    def setitem(self, obj, index, value):
        """Called for proxy[index] = value."""
        raise TypeError("'Proxy' object does not support item assignment (expected an op that returns a new tensor)")

    def keys(self, obj):
        """Called for **proxy."""
        return Attribute(obj, "keys")()


class GraphAppendingTracer(TracerBase):
    """Adds nodes to a graph that is there."""

    def __init__(self, graph):
        self.graph = graph


def _unpacks():
    """For `a, b = x`: 2. It is read from the instruction at which the nearest frame outside of this package is."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith("pydist.fx"):
        frame = frame.f_back
    if frame is None:
        return None
    for instruction in dis.get_instructions(frame.f_code):
        if instruction.offset == frame.f_lasti:
            return instruction.argval if instruction.opname == "UNPACK_SEQUENCE" else None
    return None


class Proxy:
    """Stands for the result of `node`. Operators, attributes, methods and functions of pydist make further nodes.

    >>> from pydist import fx
    >>> graph = fx.Graph()
    >>> x = fx.Proxy(graph.placeholder("x"))
    >>> y = (x + 1).sum()
    >>> [node.name for node in graph.nodes]
    ['x', 'add', 'sum_1']
    """

    def __init__(self, node, tracer=None):
        self.node, self.tracer = node, GraphAppendingTracer(node.graph) if tracer is None else tracer

    def __repr__(self):
        return f"Proxy({self.node.name})"

    def __getattr__(self, name):
        if name.startswith("__") and name.endswith("__"):  # what Python looks for by itself
            raise AttributeError(f"Proxy has no {name}")
        return Attribute(self, name)

    def __call__(self, *args, **kwargs):
        return self.tracer.create_proxy("call_method", "__call__", (self, *args), kwargs)

    def __iter__(self):
        return self.tracer.iter(self)

    def __bool__(self):
        return self.tracer.to_bool(self)

    def __len__(self):
        return self.tracer.length(self)

    def __index__(self):
        return self.tracer.index(self)

    def __setitem__(self, index, value):
        self.tracer.setitem(self, index, value)

    def __abs__(self):
        return self.tracer.create_proxy("call_function", operator.abs, (self,), {})

    def keys(self):
        """For **proxy."""
        return self.tracer.keys(self)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        found = find_proxy((args, kwargs or {}))
        if isinstance(func, _METHODS):
            return found.tracer.create_proxy("call_method", func.__name__, args, kwargs or {})
        return found.tracer.create_proxy("call_function", func, args, kwargs or {})


_METHODS = (type(_C.Tensor.item), type(str.join))


class Attribute(Proxy):
    """An attribute of a proxy: a node if it is used, a method call if it is called."""

    def __init__(self, root, attr):
        self.root, self.attr, self.tracer, self._node = root, attr, root.tracer, None

    @property
    def node(self):
        """The node of getattr."""
        if self._node is None:
            self._node = self.tracer.create_proxy("call_function", getattr, (self.root, self.attr), {}).node
        return self._node

    def __call__(self, *args, **kwargs):
        return self.tracer.create_proxy("call_method", self.attr, (self.root, *args), kwargs)


def find_proxy(values):
    """A proxy in these arguments, or None."""
    found = []

    def look(x):
        if isinstance(x, Proxy):
            found.append(x)
        return x

    map_aggregate(values, look)
    return found[0] if found else None


def _operators():
    plain = "add sub mul floordiv truediv mod pow matmul lshift rshift and or xor".split()
    for name in (*plain, "lt", "le", "gt", "ge", "eq", "ne", "neg", "pos", "invert", "getitem"):
        function = getattr(operator, f"{name}_" if name in ("and", "or") else name)

        def forward(self, *args, function=function):
            return self.tracer.create_proxy("call_function", function, (self, *args), {})

        setattr(Proxy, f"__{name}__", forward)
        if name in plain:

            def reflected(self, other, function=function):
                return self.tracer.create_proxy("call_function", function, (other, self), {})

            setattr(Proxy, f"__r{name}__", reflected)
    Proxy.__hash__ = object.__hash__  # __eq__ makes a node


_operators()
