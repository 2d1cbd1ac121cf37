"""Interpreter: runs a graph node by node. Transformer: makes a graph of another one."""

from pydist._notes import note
from pydist.fx.graph import Graph
from pydist.fx.graph_module import GraphModule
from pydist.fx.node import map_aggregate, map_arg
from pydist.fx.proxy import Proxy

__all__ = ["Interpreter", "Transformer"]


class Interpreter:
    """Runs a GraphModule, or another graph over a module's attributes. Subclasses change what a kind of node does.

    garbage_collect_values: a value goes after its last use.

    >>> import operator, pydist
    >>> from pydist import fx
    >>> class Minus(fx.Interpreter):
    ...     def call_function(self, target, args, kwargs):
    ...         return super().call_function(operator.sub if target is operator.add else target, args, kwargs)
    >>> traced = fx.symbolic_trace(lambda x, y: x + y)
    >>> Minus(traced).run(pydist.ones(1), pydist.ones(1)).item()
    0.0
    """

    def __init__(self, module, garbage_collect_values=True, graph=None):
        self.module, self.graph = module, module.graph if graph is None else graph
        self.env, self.garbage_collect_values = {}, garbage_collect_values
        self._last = {}
        for node in self.graph.nodes:
            for used in node.all_input_nodes:
                self._last[used] = node
        self.user_to_last_uses = {}
        for used, node in self._last.items():
            self.user_to_last_uses.setdefault(node, []).append(used)

    def run(self, *args, initial_env=None, enable_io_processing=True):
        """The result for these inputs. initial_env: {node: value} of nodes that are known."""
        self.env, self.args_iter = dict(initial_env or {}), iter(args)
        for node in self.graph.nodes:
            if node in self.env:
                continue
            try:
                self.env[node] = self.run_node(node)
            except Exception as error:
                note(error, f"While executing {node.format_node()}")
                raise
            if self.garbage_collect_values:
                for used in self.user_to_last_uses.get(node, ()):
                    self.env.pop(used, None)
            if node.op == "output":
                return self.env[node]
        return None

    def run_node(self, n):
        """The value of a node, whose inputs are in self.env."""
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        return getattr(self, n.op)(n.target, args, kwargs)

    def fetch_args_kwargs_from_env(self, n):
        """The arguments of a node, with values in the place of nodes."""
        return map_arg((n.args, n.kwargs), lambda used: self.env[used])

    def map_nodes_to_values(self, args, n):
        """args with values in the place of nodes."""
        return map_arg(args, lambda used: self.env[used])

    def fetch_attr(self, target):
        """An attribute of the module, by its path."""
        at = self.module
        for i, part in enumerate(target.split(".")):
            if not hasattr(at, part):
                raise RuntimeError(f"Node referenced nonexistent target {'.'.join(target.split('.')[: i + 1])}")
            at = getattr(at, part)
        return at

    def placeholder(self, target, args, kwargs):
        """The next input, or its default."""
        if target.startswith("**"):
            return {}
        if target.startswith("*"):
            return tuple(self.args_iter)
        missing = object()
        value = next(self.args_iter, missing)
        if value is missing:
            if not args:
                raise RuntimeError(f"Expected positional argument for parameter {target}, but one was not passed in!")
            return args[0]
        return value

    def get_attr(self, target, args, kwargs):
        """An attribute."""
        return self.fetch_attr(target)

    def call_function(self, target, args, kwargs):
        """A function's result."""
        return target(*args, **kwargs)

    def call_method(self, target, args, kwargs):
        """A method's result."""
        return getattr(args[0], target)(*args[1:], **kwargs)

    def call_module(self, target, args, kwargs):
        """A module's result."""
        return self.fetch_attr(target)(*args, **kwargs)

    def output(self, target, args, kwargs):
        """The result of all."""
        return args[0]


class Transformer(Interpreter):
    """Runs a graph with proxies, so that what its methods do becomes a new graph: transform().

    >>> import pydist
    >>> from pydist import fx
    >>> class Swap(fx.Transformer):
    ...     def call_function(self, target, args, kwargs):
    ...         return super().call_function(pydist.sigmoid if target is pydist.tanh else target, args, kwargs)
    >>> Swap(fx.symbolic_trace(lambda x: pydist.tanh(x))).transform()(pydist.zeros(1)).item()
    0.5
    """

    def __init__(self, module):
        from pydist.fx._symbolic_trace import Tracer

        super().__init__(module)
        self.new_graph = Graph(tracer_cls=module.graph._tracer_cls)

        class _Tracer(Tracer):
            def is_leaf_module(self, m, module_qualified_name):
                return True

        self.tracer = _Tracer()
        self.tracer.graph, self.tracer.root, self.tracer._tensor_paths = self.new_graph, module, {}

    def placeholder(self, target, args, kwargs):
        """A new input."""
        default = () if not args else (args[0],)
        return Proxy(self.new_graph.placeholder(target, default_value=default[0] if default else ...), self.tracer)

    def get_attr(self, target, args, kwargs):
        """A new node for the attribute."""
        return self.tracer.create_proxy("get_attr", target, args, kwargs)

    def call_module(self, target, args, kwargs):
        """A new node for the module's call."""
        return self.tracer.create_proxy("call_module", target, args, kwargs)

    def call_function(self, target, args, kwargs):
        """A new node for the function's call."""
        return self.tracer.create_proxy("call_function", target, args, kwargs)

    def call_method(self, target, args, kwargs):
        """A new node for the method's call."""
        return self.tracer.create_proxy("call_method", target, args, kwargs)

    def transform(self):
        """The new GraphModule."""
        result = super().run()
        if result is not None:
            self.new_graph.output(map_aggregate(result, lambda x: x.node if isinstance(x, Proxy) else x))
        return GraphModule(self.module, self.new_graph, type(self.module).__name__)
