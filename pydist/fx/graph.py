"""Graph: a list of nodes, and the Python that they mean."""

import keyword
import math
import operator
import re
from contextlib import contextmanager

import pydist
from pydist import _C
from pydist.fx.node import BUILTINS, Node, container, map_aggregate, map_arg, qualified, target_name

__all__ = ["Graph", "PythonCode"]

_INFIX = {
    operator.add: "+", operator.sub: "-", operator.mul: "*", operator.truediv: "/", operator.floordiv: "//",
    operator.mod: "%", operator.pow: "**", operator.matmul: "@", operator.and_: "&", operator.or_: "|",
    operator.xor: "^", operator.lshift: "<<", operator.rshift: ">>", operator.eq: "==", operator.ne: "!=",
    operator.lt: "<", operator.le: "<=", operator.gt: ">", operator.ge: ">=",
}  # fmt: skip
_PREFIX = {operator.neg: "-", operator.pos: "+", operator.invert: "~"}
_IN_PLACE = {
    operator.iadd: "+=", operator.isub: "-=", operator.imul: "*=", operator.itruediv: "/=", operator.ifloordiv: "//=",
    operator.imod: "%=", operator.ipow: "**=", operator.imatmul: "@=", operator.iand: "&=", operator.ior: "|=",
    operator.ixor: "^=", operator.ilshift: "<<=", operator.irshift: ">>=",
}  # fmt: skip


class PythonCode:
    """`src`, the text of a function forward, and `globals` that it needs."""

    def __init__(self, src, globals):
        self.src, self.globals = src, globals


class _Names:
    """Names that are used already."""

    def __init__(self):
        self.used, self._last = set(), {}

    def new(self, wanted):
        """A name like `wanted` that nobody has."""
        name = re.sub(r"[^0-9a-zA-Z_]+", "_", wanted) or "_unnamed"
        if name[0].isdigit():
            name = f"_{name}"
        base, number = re.fullmatch(r"(.*?)(?:_(\d+))?", name).groups()
        if name in self.used or keyword.iskeyword(name) or name in BUILTINS or name == "self":
            base = base or name
            count = max(int(number or 0), self._last.get(base, 0))
            while (name := f"{base}_{(count := count + 1)}") in self.used:
                pass
            self._last[base] = count
        self.used.add(name)
        return name


class _Globals:
    """The names by which generated code reaches functions and objects."""

    def __init__(self, taken):
        self.values, self._taken = {"pydist": pydist, "device": _C.device, "inf": math.inf, "nan": math.nan}, taken

    def function(self, function):
        """The text that means this function."""
        name, module = qualified(function)
        if module is not None:
            root = module.partition(".")[0]
            self.values[root] = __import__(module)
            return name
        if name in BUILTINS and getattr(__import__("builtins"), name) is function:
            return name
        return self.object(name, function)

    def object(self, name, thing):
        """A name of this object."""
        base, count = re.sub(r"\W", "_", name), 0
        while self.values.get(name := base + f"_{count}" * bool(count), thing) is not thing or name in self._taken:
            count += 1
        self.values[name] = thing
        return name


class Graph:
    """Nodes in the order in which they run. Nodes are made by placeholder, call_function and so on, behind the last one, or
    within `inserting_before` and `inserting_after`.

    >>> import pydist
    >>> from pydist.fx import Graph, GraphModule
    >>> graph = Graph()
    >>> x = graph.placeholder("x")
    >>> graph.output(graph.call_method("sum", (graph.call_function(pydist.relu, (x,)),)))
    output
    >>> GraphModule({}, graph)(pydist.tensor([-1.0, 2.0])).item()
    2.0
    """

    def __init__(self, owning_module=None, tracer_cls=None, tracer_extras=None):
        self._root = _Root(self)
        self._insert, self._names, self.owning_module = self._root.prepend, _Names(), owning_module
        self._tracer_cls = tracer_cls

    @property
    def nodes(self):
        """The nodes in their order; nodes may be added and erased meanwhile."""
        return _NodeList(self._root)

    def find_nodes(self, *, op, target=None, sort=True):
        """The nodes with this op, and for call_function and others this target."""
        return [n for n in self.nodes if n.op == op and (target is None or n.target == target)]

    def output_node(self):
        """The output."""
        return next(n for n in reversed(self.nodes) if n.op == "output")

    def _is_before(self, a, b):
        order = {node: i for i, node in enumerate(self.nodes)}
        return order[a] < order[b]

    # Making nodes.

    def create_node(self, op, target, args=None, kwargs=None, name=None, type_expr=None):
        """A new node at the place where nodes are inserted."""
        args, kwargs = () if args is None else args, {} if kwargs is None else kwargs
        if not isinstance(args, tuple) or not isinstance(kwargs, dict):
            raise AssertionError(
                f"create_node: args is {type(args).__name__}, kwargs {type(kwargs).__name__} (expected tuple, dict)"
            )
        map_arg((args, kwargs), self._check_mine)
        node = Node(self, self._names.new(name or self._name_for(op, target)), op, target, args, kwargs, type_expr)
        self._insert(node)
        return node

    def _check_mine(self, node):
        if node.graph is not self or node._erased:
            raise RuntimeError(f"node {node} does not belong to this Graph (expected one of its nodes)")

    @staticmethod
    def _name_for(op, target):
        name = target if isinstance(target, str) else getattr(target, "__name__", type(target).__name__)
        name = name.replace(".", "_") if op != "placeholder" else name.lstrip("*")
        if op in ("call_function", "call_method") and name.startswith("__") and name.endswith("__"):
            name = name[2:-2]
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower() if op == "call_function" else name

    def placeholder(self, name, type_expr=None, default_value=...):
        """An input; "*args" and "**kwargs" are what they are in Python."""
        args = () if default_value is ... else (default_value,)
        return self.create_node("placeholder", name, args, type_expr=type_expr)

    def get_attr(self, qualified_name, type_expr=None):
        """An attribute of the root module, by its path."""
        return self.create_node("get_attr", qualified_name, type_expr=type_expr)

    def call_module(self, module_name, args=None, kwargs=None, type_expr=None):
        """A call of a module inside the root, by its path."""
        owner = self.owning_module
        if owner is not None and module_name not in dict(owner.named_modules()):
            raise ValueError(f"call_module: the root has no module {module_name!r} (expected add_submodule before)")
        return self.create_node("call_module", module_name, args, kwargs, type_expr=type_expr)

    def call_method(self, method_name, args=None, kwargs=None, type_expr=None):
        """A call of args[0].method_name(*args[1:], **kwargs)."""
        return self.create_node("call_method", method_name, args, kwargs, type_expr=type_expr)

    def call_function(self, the_function, args=None, kwargs=None, type_expr=None, name=None):
        """A call of a function."""
        return self.create_node("call_function", the_function, args, kwargs, name, type_expr)

    def output(self, result, type_expr=None):
        """The result: a node, or tuples, lists and dicts of nodes and constants."""
        return self.create_node("output", "output", (result,), type_expr=type_expr)

    @contextmanager
    def _inserting(self, insert):
        before, self._insert = self._insert, insert
        try:
            yield
        finally:
            self._insert = before

    def inserting_before(self, n=None):
        """A context: new nodes come before node n (None: at the beginning)."""
        if n is None:
            return self.inserting_after(self._root)
        self._check_place(n)
        return self._inserting(n.prepend)

    def inserting_after(self, n=None):
        """A context: new nodes come behind node n (None: at the end), the next one behind the one before."""
        if n is None:
            return self.inserting_before(self._root)
        self._check_place(n)
        last = [n]

        def insert(node):
            last[0].append(node)
            last[0] = node

        return self._inserting(insert)

    def _check_place(self, n):
        if n.graph is not self:
            raise AssertionError("Node to insert before is not in graph.")

    def erase_node(self, to_erase):
        """Removes a node that nobody uses."""
        if to_erase.users:
            raise RuntimeError(
                f"Tried to erase Node {to_erase} but it still had {len(to_erase.users)} users in the graph: {to_erase.users}!"
            )
        if to_erase.graph is not self:
            raise RuntimeError(f"Attempting to remove {to_erase} from wrong graph!")
        if to_erase._erased:
            return
        to_erase._take_out()
        to_erase._set((), {})
        to_erase._erased = True

    def node_copy(self, node, arg_transform=lambda x: x):
        """A copy of another graph's node, with arguments by arg_transform(their node)."""
        args, kwargs = map_arg((node.args, node.kwargs), arg_transform)
        copied = self.create_node(node.op, node.target, args, kwargs, node.name, node.type)
        copied.meta = dict(node.meta)
        return copied

    def graph_copy(self, g, val_map, return_output_node=False):
        """Copies all nodes of graph g but its output. val_map: {node of g: node here}; gets what is copied. Returns the
        arguments of g's output as nodes here; None if it has none."""
        for node in g.nodes:
            if node.op == "output":
                result = map_arg(node.args[0], lambda n: val_map[n])
                return (result, node) if return_output_node else result
            if node not in val_map:
                val_map[node] = self.node_copy(node, lambda n: val_map[n])
        return None

    def __deepcopy__(self, memo=None):
        made, val_map = Graph(tracer_cls=self._tracer_cls), {}
        out = made.graph_copy(self, val_map, return_output_node=True)
        if out is not None:
            made.output(out[0], out[1].type).meta = dict(out[1].meta)
        return made

    def __getstate__(self):
        """Nodes by their numbers, for pickles."""
        order = {node: i for i, node in enumerate(self.nodes)}
        rows = [
            (n.op, n.target, *map_arg((n.args, n.kwargs), lambda node: _Number(order[node])), n.name, n.type)
            for n in self.nodes
        ]
        return {"rows": rows, "tracer": self._tracer_cls}

    def __setstate__(self, state):
        self.__init__(tracer_cls=state["tracer"])
        made = []
        for op, target, args, kwargs, name, of_type in state["rows"]:
            args, kwargs = map_aggregate((args, kwargs), lambda x: made[x.number] if isinstance(x, _Number) else x)
            made.append(self.create_node(op, target, args, kwargs, name, of_type))

    # Checks and clean-up.

    def lint(self):
        """Raises RuntimeError for a graph that cannot run: a use before the definition, two outputs, names twice, targets that
        the root does not have."""
        seen, names = set(), set()
        for node in self.nodes:
            if node.graph is not self:
                raise RuntimeError(f"Node '{node}' does not belong to this Graph!")
            for used in node._inputs:
                if used not in seen:
                    raise RuntimeError(f"Argument '{used}' of Node '{node}' was used before it has been defined!")
            if node.name in names:
                raise RuntimeError(f"Node redefined name {node.name}!")
            seen.add(node)
            names.add(node.name)
            if node.op in ("call_module", "get_attr") and self.owning_module is not None:
                self._lint_target(node)
        if sum(node.op == "output" for node in seen) > 1:
            raise RuntimeError("lint: the graph has two outputs (expected one)")

    def _lint_target(self, node):
        at = self.owning_module
        for part in node.target.split("."):
            if not hasattr(at, part):
                raise RuntimeError(
                    f"Node {node} target {node.target} references nonexistent attribute {part} of {type(at).__name__}"
                )
            at = getattr(at, part)
        if node.op == "call_module" and not isinstance(at, pydist.nn.Module):
            raise RuntimeError(f"Node {node} target {node.target} is no Module (expected one)")

    def eliminate_dead_code(self, is_impure_node=None):
        """Removes nodes that nobody uses and that change nothing. Returns whether there were any."""
        self.lint()
        impure, changed = is_impure_node or Node.is_impure, False
        for node in reversed(self.nodes):
            if not node.users and not impure(node):
                self.erase_node(node)
                changed = True
        return changed

    # Python.

    def python_code(self, root_module="self", *, verbose=False, **options):
        """The Python of this graph: a function forward(self, ...). A variable is set to None after its last use, so that
        its memory is free."""
        found = _Globals({node.name for node in self.nodes})
        parameters, body, last = [], [], {}
        for node in self.nodes:
            for used in node._inputs:
                last[used] = node
        for node in self.nodes:
            line = self._line(node, root_module, found, parameters)
            if node.op == "output":
                body.append(line)
                continue
            done = [used.name for used in node._inputs if last[used] is node]
            if not node.users and node.op != "placeholder":
                done.append(node.name)
            if line:
                body.append(f"{line};  {' = '.join(done)} = None" if done else line)
            elif done:
                body.append(f"{' = '.join(done)} = None")
        text = "\n".join(f"    {line}" for line in body) or "    pass"
        return PythonCode(f"\ndef forward({', '.join([root_module, *parameters])}):\n{text}\n", found.values)

    def _line(self, node, root, found, parameters):
        def text(a):
            return _text(a, found)

        if node.op == "placeholder":
            default = f" = {text(node.args[0])}" if node.args else ""
            parameters.append(f"{node.target}{default}")
            plain = node.target.lstrip("*")
            return f"{node.name} = {plain}" if plain != node.name else ""
        if node.op == "output":
            return f"return {text(node.args[0])}"
        if node.op == "get_attr":
            return f"{node.name} = {_path(root, node.target)}"
        args, kwargs = [text(a) for a in node.args], [f"{k} = {text(v)}" for k, v in node.kwargs.items()]
        if node.op == "call_module":
            return f"{node.name} = {_path(root, node.target)}({', '.join(args + kwargs)})"
        if node.op == "call_method":
            return f"{node.name} = {args[0]}.{node.target}({', '.join(args[1:] + kwargs)})"
        target = node.target
        if target in _INFIX and len(args) == 2 and not kwargs:
            return f"{node.name} = {args[0]} {_INFIX[target]} {args[1]}"
        if target in _PREFIX and len(args) == 1 and not kwargs:
            return f"{node.name} = {_PREFIX[target]}{args[0]}"
        if target in _IN_PLACE and len(args) == 2 and not kwargs:
            return f"{args[0]} {_IN_PLACE[target]} {args[1]};  {node.name} = {args[0]}"
        if target is operator.getitem and len(args) == 2:
            return f"{node.name} = {args[0]}[{_index(node.args[1], found)}]"
        if target is operator.setitem and len(args) == 3:
            return f"{args[0]}[{_index(node.args[1], found)}] = {args[2]};  {node.name} = None"
        if target is getattr and len(args) == 2 and isinstance(node.args[1], str) and node.args[1].isidentifier():
            return f"{node.name} = {args[0]}.{node.args[1]}"
        return f"{node.name} = {found.function(target)}({', '.join(args + kwargs)})"

    def __str__(self):
        return "graph():\n" + "\n".join(f"    {node.format_node()}" for node in self.nodes)

    def print_tabular(self):
        """Prints a table of all nodes."""
        rows = [("opcode", "name", "target", "args", "kwargs")]
        rows += [(n.op, n.name, target_name(n.target), str(n.args), str(n.kwargs)) for n in self.nodes]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        rows.insert(1, tuple("-" * width for width in widths))
        for row in rows:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


class _Number:
    """A node in a pickle."""

    def __init__(self, number):
        self.number = number


class _Root(Node):
    """The end of the ring of nodes."""

    def __init__(self, graph):
        self.graph, self.op, self.name, self.users = graph, "root", "", {}
        self._prev = self._next = self


class _NodeList:
    def __init__(self, root, forward=True):
        self._root, self._forward = root, forward

    def __iter__(self):
        at = self._root
        while True:
            at = at._next if self._forward else at._prev
            if at is self._root:
                return
            if not at._erased:
                yield at

    def __reversed__(self):
        return iter(_NodeList(self._root, not self._forward))

    def __len__(self):
        return sum(1 for _ in self)


def _path(root, path):
    """self.a.b, and self.layers["0"] by getattr for what is no name."""
    text = root
    for part in path.split("."):
        text = f"{text}.{part}" if part.isidentifier() and not keyword.iskeyword(part) else f'getattr({text}, "{part}")'
    return text


def _index(a, found):
    if isinstance(a, tuple) and a:
        return ", ".join(_index(x, found) for x in a) + "," * (len(a) == 1)
    if isinstance(a, slice):
        parts = ["" if x is None else _text(x, found) for x in (a.start, a.stop, a.step)]
        return f"{parts[0]}:{parts[1]}" + (f":{parts[2]}" if parts[2] else "")
    return _text(a, found)


def _text(a, found):
    """Python that means this argument."""
    if isinstance(a, Node):
        return a.name
    if isinstance(a, tuple) and hasattr(a, "_fields"):
        return f"{found.function(type(a))}({', '.join(_text(x, found) for x in a)})"
    inner = container(a, lambda x: _text(x, found))
    if inner is not None:
        return inner
    if isinstance(a, slice):
        return f"slice({', '.join(_text(x, found) for x in (a.start, a.stop, a.step))})"
    if (
        a is None
        or a is ...
        or isinstance(a, (bool, int, float, complex, str, bytes, range))
        and type(a).__module__ == "builtins"
    ):
        return repr(a)
    if isinstance(a, (_C.dtype, _C.device)):
        return repr(a)
    if isinstance(a, type) or callable(a) and hasattr(a, "__name__"):
        return found.function(a)
    return found.object(type(a).__name__.lower(), a)
