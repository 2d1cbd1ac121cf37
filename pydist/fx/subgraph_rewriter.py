"""replace_pattern: finds parts of a graph and puts others in their places."""

from collections import namedtuple

from pydist.fx._symbolic_trace import symbolic_trace
from pydist.fx.graph import Graph
from pydist.fx.graph_module import GraphModule, _at, _put
from pydist.fx.node import Node
from pydist.nn import Module

__all__ = ["Match", "ReplacedPatterns", "replace_pattern", "replace_pattern_with_filters"]

Match = namedtuple("Match", ("anchor", "nodes_map"))
ReplacedPatterns = namedtuple("ReplacedPatterns", ("anchor", "nodes_map", "replacements"))


def _graph_of(what):
    if isinstance(what, Graph):
        return what
    return what.graph if isinstance(what, GraphModule) else symbolic_trace(what).graph


def _results(graph):
    """The nodes that a pattern returns."""
    value = graph.output_node().args[0]
    found = list(value) if isinstance(value, (tuple, list)) else [value]
    if not found or not all(isinstance(n, Node) and n.op != "placeholder" for n in found):
        raise ValueError("replace_pattern: the pattern returns an input or a constant (expected results of its steps)")
    return found


def _same(pattern, value, found, graph_module, pattern_module):
    """Whether `value`, an argument or node, is what the pattern has there. found: {node of the pattern: node}, added to."""
    if isinstance(pattern, Node):
        if pattern in found:
            return found[pattern] is value or (not isinstance(value, Node) and found[pattern] == value)
        if pattern.op == "placeholder":
            found[pattern] = value
            return True
        if not isinstance(value, Node) or pattern.op != value.op or len(pattern.args) != len(value.args):
            return False
        if pattern.target != value.target and not _same_module(pattern, value, graph_module, pattern_module):
            return False
        if pattern.kwargs.keys() != value.kwargs.keys():
            return False
        found[pattern] = value
        pairs = [
            *zip(pattern.args, value.args, strict=True),
            *((pattern.kwargs[k], value.kwargs[k]) for k in pattern.kwargs),
        ]
        return all(_same(p, v, found, graph_module, pattern_module) for p, v in pairs)
    if isinstance(value, Node):
        return False
    if isinstance(pattern, (tuple, list)):
        return (
            type(pattern) is type(value)
            and len(pattern) == len(value)
            and all(_same(p, v, found, graph_module, pattern_module) for p, v in zip(pattern, value, strict=True))
        )
    if isinstance(pattern, dict):
        return (
            isinstance(value, dict)
            and pattern.keys() == value.keys()
            and all(_same(pattern[k], value[k], found, graph_module, pattern_module) for k in pattern)
        )
    if isinstance(pattern, slice):
        return isinstance(value, slice) and _same(
            (pattern.start, pattern.stop, pattern.step),
            (value.start, value.stop, value.step),
            found,
            graph_module,
            pattern_module,
        )
    return type(pattern) is type(value) and pattern == value


def _same_module(pattern, value, graph_module, pattern_module):
    """Modules at other paths are the same if they are of one class."""
    if pattern.op != "call_module" or pattern_module is None:
        return False
    return type(_at(pattern_module, pattern.target)) is type(_at(graph_module, value.target))


def _matches(module, pattern, pattern_module):
    """[{node of the pattern: node or value}] of the places that have nothing in common, in the order of the graph."""
    results, taken, all_found = _results(pattern), set(), []
    last = results[-1]
    nodes = list(module.graph.nodes)
    for node in nodes:
        if node.op in ("placeholder", "output"):
            continue
        found = {}
        if not _same(last, node, found, module, pattern_module):
            continue
        if not all(r in found or any(_try(r, n, found, module, pattern_module) for n in nodes) for r in results):
            continue
        inner = {n for p, n in found.items() if p.op != "placeholder"}
        kept = {found[r] for r in results}
        alone = all(user in inner for n in inner - kept for user in n.users)
        if alone and not inner & taken:
            taken |= inner
            all_found.append(found)
    return all_found


def _try(pattern, node, found, module, pattern_module):
    attempt = dict(found)
    if _same(pattern, node, attempt, module, pattern_module):
        found.update(attempt)
        return True
    return False


def replace_pattern(gm, pattern, replacement):
    """Replaces each part of a GraphModule that is like `pattern` by `replacement`: functions, modules, GraphModules or
    Graphs with the same inputs, in this order. Recompiles. Returns a list of Match(anchor, nodes_map).

    A part is replaced only if nobody else uses its inner results. Attributes and modules that a replacement module
    refers to are copied into gm.

    >>> import pydist
    >>> from pydist import fx
    >>> traced = fx.symbolic_trace(lambda x, w: pydist.relu(x + w).sum())
    >>> _ = fx.replace_pattern(traced, lambda a, b: pydist.relu(a + b), lambda a, b: (a * b).abs())
    >>> [node.name for node in traced.graph.nodes]
    ['x', 'w', 'mul', 'abs_1', 'sum_1', 'output']
    """
    return [Match(m.anchor, m.nodes_map) for m in replace_pattern_with_filters(gm, pattern, replacement)]


def replace_pattern_with_filters(gm, pattern, replacement, match_filters=None, ignore_literals=False):
    """replace_pattern for the parts for which all match_filters(match, graph, pattern graph) are true. Returns a list of
    ReplacedPatterns(anchor, nodes_map, replacements)."""
    pattern_graph, new = _graph_of(pattern), _graph_of(replacement)
    pattern_module = pattern if isinstance(pattern, Module) else None
    inputs = [n for n in pattern_graph.nodes if n.op == "placeholder"]
    new_inputs = [n for n in new.nodes if n.op == "placeholder"]
    if len(inputs) != len(new_inputs):
        raise AssertionError(
            f"replace_pattern: the pattern has {len(inputs)} inputs, the replacement {len(new_inputs)} (expected the same number)"
        )
    done, replaced_by = [], {}
    for found in _matches(gm, pattern_graph, pattern_module):
        match = Match(found[_results(pattern_graph)[-1]], found)
        if match_filters and not all(f(match, gm.graph, pattern_graph) for f in match_filters):
            continue
        done.append(_replaced(gm, pattern_graph, new, match, inputs, new_inputs, replaced_by))
    if isinstance(replacement, Module):
        _bring(gm, replacement, new)
    gm.recompile()
    return done


def _replaced(gm, pattern_graph, new, match, inputs, new_inputs, replaced_by):
    found, results = match.nodes_map, _results(pattern_graph)
    old = [found[r] for r in results]
    values = {
        n: replaced_by.get(v, v) if isinstance(v := found.get(i), Node) else v
        for i, n in zip(inputs, new_inputs, strict=True)
    }
    before = set(gm.graph.nodes)
    inner = [n for p, n in found.items() if p.op != "placeholder"]
    after_all = max(inner, key=list(gm.graph.nodes).index)
    with gm.graph.inserting_after(after_all):
        made = gm.graph.graph_copy(new, values)
    made = list(made) if isinstance(made, (tuple, list)) else [made]
    if len(made) != len(old):
        raise AssertionError(
            f"replace_pattern: the replacement returns {len(made)} values, the pattern {len(old)} (expected the same number)"
        )
    for was, now in zip(old, made, strict=True):
        was.replace_all_uses_with(now)
        replaced_by[was] = now
    for _ in inner:  # users first, whatever their order in the match is
        for node in inner:
            if not node.users and not node._erased:
                gm.graph.erase_node(node)
    return ReplacedPatterns(match.anchor, found, [n for n in gm.graph.nodes if n not in before])


def _bring(gm, module, graph):
    """Copies what a replacement refers to into gm, unless it is there."""
    for node in graph.nodes:
        if node.op in ("call_module", "get_attr"):
            try:
                _at(gm, node.target)
            except AttributeError:
                _put(gm, node.target, _at(module, node.target))
