"""Cuts a module into stages that run one after the other. It is traced with the shapes of example inputs, so that control flow
may depend on them; what a stage needs of an earlier one goes through all stages between."""

import inspect
import os
import sys
from operator import getitem, setitem, truth

import pydist
from pydist import _C
from pydist.func import functional_call
from pydist.fx._symbolic_trace import Tracer, check_concrete, untraced
from pydist.fx.graph import Graph
from pydist.fx.graph_module import GraphModule
from pydist.fx.interpreter import Interpreter
from pydist.fx.node import Node, map_aggregate, map_arg
from pydist.fx.proxy import Proxy, TraceError
from pydist.nn import ModuleDict
from pydist.nn.modules.normalization import add_norm

__all__ = ["StageTracer", "cut", "trace"]

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_OURS = tuple(os.path.join(_ROOT, name) + os.sep for name in ("fx", "nn"))
_UNKNOWN = object()  # the value of a node that could not be run on shapes


def _line():
    """The program's line that is traced now: file:line."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


class _Shapes(Interpreter):
    """Runs nodes on meta tensors, which have shapes only."""

    def __init__(self, root, graph):
        super().__init__(root, False, graph)
        self._like = {}

    def like(self, value):
        """The value with meta tensors in the place of tensors."""
        if not isinstance(value, _C.Tensor):
            return value
        if id(value) not in self._like:
            made = pydist.empty_strided(tuple(value.shape), value.stride(), dtype=value.dtype, device="meta")
            self._like[id(value)] = made, value
        return self._like[id(value)][0]

    def value(self, node):
        """The node's value, or _UNKNOWN."""
        try:
            with untraced(), pydist.no_grad(), pydist.device("meta"):
                return self.run_node(node)
        except Exception:
            return _UNKNOWN

    def get_attr(self, target, args, kwargs):
        """An attribute, on meta."""
        return self.like(self.fetch_attr(target))

    def call_module(self, target, args, kwargs):
        """A module, with its parameters and buffers on meta."""
        module = self.fetch_attr(target)
        own = {name: self.like(t) for name, t in (*module.named_parameters(), *module.named_buffers())}
        return functional_call(module, own, args, kwargs)


_DRAWS = frozenset(
    "bernoulli multinomial normal poisson rand rand_like randint randint_like randn randn_like randperm".split()
)  # which draw anew each time


def _modes():
    """What `with` blocks switch, and nodes do not say."""
    autocast = [(pydist.is_autocast_enabled(kind), pydist.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")]
    return [_C.is_grad_enabled(), *autocast]


class _TensorProxy(Proxy):
    """A proxy that is a Tensor where the program asks isinstance."""

    __class__ = property(lambda self: _C.Tensor)


class StageTracer(Tracer):
    """A Tracer that knows the shapes of what it traces, from example inputs ({name: value}). Where a program asks whether
    something is true, how long it is or which number it is, and this follows from shapes, it gets the answer, and the traced
    program raises AssertionError where another input has another one. What depends on the values of tensors raises TraceError
    with the program's line.

    marks: {path of a submodule: (whether a stage begins before it, whether one begins behind it)}; modules without marks below
    stay calls. Without marks Tracer says which modules do. split: the function whose calls begin stages.
    """

    def __init__(self, examples, marks, split):
        super().__init__(autowrap_functions=(add_norm,))  # its norm may get hooks later
        self._examples, self._marks, self._split, self._shapes = examples, marks, split, None
        self._begun = _modes()

    def is_leaf_module(self, m, module_qualified_name):
        """Whether a module stays one call."""
        if not self._marks:
            return super().is_leaf_module(m, module_qualified_name)
        return not any(mark.startswith(f"{module_qualified_name}.") for mark in self._marks)

    def proxy(self, node):
        """A proxy for a node."""
        return (_TensorProxy if isinstance(node.meta.get("val"), _C.Tensor) else Proxy)(node, self)

    def records(self, target):
        """Random numbers are drawn when the stage runs."""
        return getattr(target, "__name__", "") in _DRAWS

    def call_module(self, m, forward, args, kwargs):
        """The call, with a new stage before or behind it where there is a mark."""
        before, behind = self._marks.get(self.path_of_module(m), (False, False))
        if before:
            self.create_node("call_function", self._split, (), {})
        result = super().call_module(m, forward, args, kwargs)
        if behind:
            self.create_node("call_function", self._split, (), {})
        return result

    def getattr(self, attr, attr_val, parameter_proxy_cache):
        """Parameters and buffers become nodes."""
        path = self._tensor_paths.get(id(attr_val)) if isinstance(attr_val, _C.Tensor) else None
        if path is None:
            return super().getattr(attr, attr_val, parameter_proxy_cache)
        if path not in parameter_proxy_cache:
            parameter_proxy_cache[path] = self.create_proxy("get_attr", path, (), {})
        return parameter_proxy_cache[path]

    def create_node(self, kind, target, args, kwargs, name=None, type_expr=None):
        """A node, with its value by shapes in node.meta["val"]."""
        if kind.startswith("call_") and _modes() != self._begun:
            raise TraceError(
                f"{_line()}: gradients or autocast are switched on or off in a forward that is cut (expected that inside of a "
                "module that is not cut)"
            )
        node = super().create_node(kind, target, args, kwargs, name, type_expr)
        if self._shapes is None:
            self._shapes = _Shapes(self.root, self.graph)
        if kind == "placeholder":
            value = self._examples.get(target, _UNKNOWN)
            value = map_aggregate(value, self._shapes.like)
        elif target is check_concrete or target is self._split or kind == "output":
            return node
        else:
            value = self._shapes.value(node)
        if value is not _UNKNOWN:
            node.meta["val"] = self._shapes.env[node] = value
        return node

    def _known(self, obj, what):
        """The value that a proxy has by shapes. Raises TraceError if it depends on more."""
        value = obj.node.meta.get("val", _UNKNOWN)
        if value is _UNKNOWN:
            hint = "example inputs from which it follows" if self._examples else "mb_args, from which it may follow"
            raise TraceError(f"{_line()}: {what} {obj.node.format_node()} is not known (expected {hint})")
        return value

    def _guarded(self, proxy, value):
        self.create_proxy("call_function", check_concrete, (proxy, value, f"what {_line()} asks for"), {})
        return value

    def to_bool(self, obj):
        """Whether it is true."""
        value = self._known(obj, "whether")
        if isinstance(value, _C.Tensor):
            raise TraceError(
                f"{_line()}: the program asks whether {obj.node.name} is true, a tensor (expected control flow that does not "
                "depend on the values of tensors)"
            )
        return self._guarded(self.create_proxy("call_function", truth, (obj,), {}), bool(value))

    def index(self, obj):
        """Which number it is."""
        value = self._known(obj, "which number")
        if isinstance(value, _C.Tensor) or not hasattr(value, "__index__"):
            raise TraceError(
                f"{_line()}: the program uses {obj.node.name}, a {type(value).__name__}, as a number (expected a number that "
                "does not depend on the values of tensors)"
            )
        return self._guarded(obj, value.__index__())

    def setitem(self, obj, index, value):
        """obj[index] = value."""
        self.create_proxy("call_function", setitem, (obj, index, value), {})

    def length(self, obj):
        """How long it is."""
        value = len(self._known(obj, "how long"))
        return self._guarded(self.create_proxy("call_function", len, (obj,), {}), value)

    def iter(self, obj):
        """Its elements."""
        value = obj.node.meta.get("val", _UNKNOWN)
        if value is _UNKNOWN:
            return super().iter(obj)
        grouped = isinstance(value, (tuple, list)) and not isinstance(value, _C.Size)  # as many for any shapes
        return (obj[i] for i in range(len(value) if grouped else self.length(obj)))


def _examples(module, args, kwargs):
    """({name: example} of the inputs that are given, {name: value} of the others, which are fixed)."""
    given = inspect.signature(module.forward)
    try:
        bound = given.bind_partial(*args, **kwargs)
    except TypeError as error:
        raise TypeError(
            f"pipeline: mb_args and mb_kwargs do not fit forward: {error} (expected arguments of it)"
        ) from None
    kinds, fixed = inspect.Parameter, {}
    for name, p in given.parameters.items():
        star = p.kind in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)
        if name in bound.arguments:
            found = []
            map_aggregate(bound.arguments[name], lambda x, found=found: found.append(x))
            if not star and not any(isinstance(x, _C.Tensor) for x in found):
                fixed[name] = bound.arguments[name]
        elif isinstance(p.default, _C.Tensor):
            bound.arguments[name] = p.default
        elif p.default is not kinds.empty:
            fixed[name] = p.default
    return {name: value for name, value in bound.arguments.items() if name not in fixed}, fixed


def trace(module, args, kwargs, marks, split):
    """The module as a GraphModule, with calls of `split` where stages begin."""
    examples, fixed = _examples(module, args, kwargs)
    before = set(vars(module)) | set(module._buffers)
    tracer = StageTracer(examples, marks, split)
    try:
        graph = tracer.trace(module, fixed)
        return GraphModule(module, graph, type(module).__name__)
    finally:
        for name in [
            n for n in (*vars(module), *module._buffers) if n.startswith("_tensor_constant") and n not in before
        ]:
            delattr(module, name)


def container(modules):
    """One module of the stages, by PyTorch's names."""
    return ModuleDict({f"submod_pp_{i}": module for i, module in enumerate(modules)})


# ---- cutting


def _stages_of(graph, split):
    """{node: its stage}, the number of stages."""
    stage, at = {}, 0
    for node in graph.nodes:
        at += node.target is split
        stage[node] = at
        if node.target is getitem and isinstance(node.args[0], Node) and len(node.all_input_nodes) == 1:
            if isinstance(node.args[0].meta.get("val"), (tuple, list, dict)):
                stage[node] = stage[node.args[0]]  # x, y = layer(z): the parts belong to the layer's stage
    for node in reversed(graph.nodes):  # what is read of a buffer is read where it is used
        read = node.target is getitem and isinstance(node.args[0], Node) and node.args[0].op == "get_attr"
        if read and node.users and not any(_is_tensor(n) for n in node.all_input_nodes[1:]):
            stage[node] = max(stage[node], min(stage[user] for user in node.users))
    return stage, at + 1


def _is_tensor(node):
    return isinstance(node.meta.get("val", _UNKNOWN), _C.Tensor) or "val" not in node.meta


def _crossing(graph, stage, count):
    """For each end of a stage the nodes whose values go on from there."""
    last = {node: max([stage[node], *(stage[user] for user in node.users)]) for node in graph.nodes}
    return [[n for n in graph.nodes if n.op != "get_attr" and stage[n] <= s < last[n]] for s in range(count - 1)]


_NUMBERS = {bool: _C.bool, int: _C.int64, float: _C.float64}


def as_tensor(number, dtype):
    """A number as a tensor, which goes to the next stage."""
    return _C.tensor(number, dtype=dtype)


def as_number(tensor):
    """The number that came as a tensor."""
    return tensor.item()


def _sent(graph, node, value):
    """Nodes of the tensors that stand for the value of a node, or of what `_received` made of one."""
    if isinstance(value, (tuple, list, dict)):
        found = []
        for key in value if isinstance(value, dict) else range(len(value)):
            part = graph.call_function(getitem, (node, key)) if isinstance(node, Node) else node[key]
            found += _sent(graph, part, value[key])
        return found
    if type(value) in _NUMBERS:
        return [graph.call_function(as_tensor, (node, _NUMBERS[type(value)]))]
    return [node] if isinstance(value, _C.Tensor) or value is _UNKNOWN else []


def _received(graph, name, value):
    """What a node's value is in the next stage: inputs, in tuples, lists and dicts as it was."""
    if isinstance(value, (tuple, list)):
        parts = [_received(graph, f"{name}_{i}", v) for i, v in enumerate(value)]
        if isinstance(value, _C.Size):
            return graph.call_function(_C.Size, (parts,))
        return parts if isinstance(value, list) else tuple(parts)
    if isinstance(value, dict):
        return {k: _received(graph, f"{name}_{k}", v) for k, v in value.items()}
    if type(value) in _NUMBERS:
        return graph.call_function(as_number, (graph.placeholder(name),))
    return graph.placeholder(name) if isinstance(value, _C.Tensor) or value is _UNKNOWN else value


def _inputs_first(graph):
    """Moves placeholders before all other nodes."""
    nodes = list(graph.nodes)
    first = next((n for n in nodes if n.op != "placeholder"), None)
    seen = False
    for node in nodes:
        seen = seen or node is first
        if seen and node.op == "placeholder":
            first.prepend(node)


def cut(traced, split):
    """The stages of a traced module, as GraphModules whose parts keep their paths."""
    stage, count = _stages_of(traced.graph, split)
    busy = {
        stage[n] for n in traced.graph.nodes if n.op.startswith("call_") and n.target not in (split, check_concrete)
    }
    count = min(count, 1 + max(busy, default=0))  # a mark behind all that the module does has no effect
    stage = {node: min(s, count - 1) for node, s in stage.items()}
    if idle := set(range(count)) - busy:
        raise ValueError(f"pipeline: stage {min(idle)} of {count} does nothing (expected a module or an op in each)")
    crossing = _crossing(traced.graph, stage, count)
    made = []
    for s in range(count):
        graph, here = Graph(), {}
        for node in crossing[s - 1] if s else ():
            here[node] = _received(graph, node.name, node.meta.get("val", _UNKNOWN))
        _inputs_first(graph)

        def value(node, graph=graph, here=here):
            if node not in here and node.op == "get_attr":
                here[node] = graph.node_copy(node)
            return here[node]

        for node in traced.graph.nodes:
            if stage[node] != s or node.op == "get_attr" or node.target is split:
                continue
            if node.op == "output":
                graph.output(map_arg(node.args[0], value))
            else:
                here[node] = graph.node_copy(node, value)
        if s < count - 1:
            sent = [t for n in crossing[s] for t in _sent(graph, here[n], n.meta.get("val", _UNKNOWN))]
            if not sent:
                raise ValueError(
                    f"pipeline: stage {s + 1} of {count} needs nothing that an earlier one makes (expected the stages one behind the other)"
                )
            graph.output(sent[0] if len(sent) == 1 else tuple(sent))
        made.append(GraphModule(traced, graph, f"{type(traced).__name__}_{s}"))
    return made
