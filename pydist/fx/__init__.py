"""Programs as graphs: trace a module or function, change the graph, run it again.

`symbolic_trace` runs a program with proxies and keeps what it does with them as a Graph of nodes. A GraphModule is a module
whose forward is a graph's Python. Nothing is compiled.
"""

from pydist.fx import node, proxy, subgraph_rewriter
from pydist.fx._symbolic_trace import PH, ProxyableClassMeta, Tracer, symbolic_trace, wrap
from pydist.fx.graph import Graph, PythonCode
from pydist.fx.graph_module import GraphModule
from pydist.fx.interpreter import Interpreter, Transformer
from pydist.fx.node import Node, has_side_effect, map_arg
from pydist.fx.proxy import Attribute, Proxy, TraceError
from pydist.fx.subgraph_rewriter import replace_pattern

__all__ = [
    "PH",
    "Attribute",
    "Graph",
    "GraphModule",
    "Interpreter",
    "Node",
    "Proxy",
    "ProxyableClassMeta",
    "PythonCode",
    "TraceError",
    "Tracer",
    "Transformer",
    "has_side_effect",
    "map_arg",
    "node",
    "proxy",
    "replace_pattern",
    "subgraph_rewriter",
    "symbolic_trace",
    "wrap",
]


def __getattr__(name):
    raise AttributeError(f"pydist has no fx.{name} (expected one of {', '.join(__all__)})", name=name)
