"""GraphModule: a module whose forward is a Graph."""

import copy
import itertools
import linecache
import os

from pydist import _C
from pydist.fx.graph import Graph
from pydist.nn import Module, Parameter

__all__ = ["GraphModule"]

_numbers = itertools.count()


def _compiled(code):
    """The function of generated code. Its text is where tracebacks and inspect.getsource look for it."""
    file = f"<pydist.fx {next(_numbers)}>"
    linecache.cache[file] = (len(code.src), None, code.src.splitlines(True), file)
    space = dict(code.globals)
    exec(compile(code.src, file, "exec"), space)
    return space["forward"]


def _put(root, path, value, persistent=True):
    """Sets root.a.b = value, with empty modules on the way where there are none. persistent: of a buffer."""
    *way, name = path.split(".")
    for part in way:
        if not hasattr(root, part):
            root.add_module(part, Module())
        root = getattr(root, part)
    if isinstance(value, _C.Tensor) and not isinstance(value, Parameter):
        if name not in root._buffers:
            root.register_buffer(name, value, persistent)
        else:
            setattr(root, name, value)
    else:
        setattr(root, name, value)


def _is_persistent(root, path):
    """Whether a tensor of the root is in its state dict."""
    way, _, name = path.rpartition(".")
    owner = _at(root, way) if way else root
    return name in owner._buffers and name not in owner._non_persistent_buffers_set


def _at(root, path):
    for part in path.split("."):
        root = getattr(root, part)
    return root


class GraphModule(Module):
    """A module made of a graph and what the graph refers to in `root`: a module, or a dict of paths. After the graph has been
    changed, `recompile()` makes forward anew. `code` is forward's Python.

    >>> import pydist
    >>> from pydist import fx
    >>> traced = fx.symbolic_trace(lambda x, y: (x + y).relu())
    >>> for node in traced.graph.nodes:
    ...     if node.op == "call_method" and node.target == "relu":
    ...         node.target = "tanh"
    >>> _ = traced.recompile()
    >>> print(traced.code.strip())
    def forward(self, x, y):
        add = x + y;  x = y = None
        relu = add.tanh();  add = None
        return relu
    >>> traced(pydist.zeros(2), pydist.zeros(2)).tolist()
    [0.0, 0.0]
    """

    def __new__(cls, *args, **kwargs):
        # each object has a class of its own, so that each has its own forward
        own = type(
            "GraphModuleImpl",
            (next(c for c in cls.__mro__ if c.__name__ != "GraphModuleImpl"),),
            {"__module__": __name__},
        )
        return super().__new__(own)

    def __init__(self, root, graph, class_name="GraphModule"):
        super().__init__()
        type(self).__name__ = class_name
        if isinstance(root, Module):
            self.training = root.training
        for node in graph.nodes:
            if node.op in ("get_attr", "call_module"):
                try:
                    value = root[node.target] if isinstance(root, dict) else _at(root, node.target)
                except (KeyError, AttributeError):
                    raise RuntimeError(
                        f"Node {node} referenced target {node.target} but that target was not provided in `root`! (expected it there)"
                    ) from None
                _put(self, node.target, value, isinstance(root, dict) or _is_persistent(root, node.target))
        self.meta = dict(getattr(root, "meta", {}) or {}) if isinstance(root, Module) else {}
        self.graph = graph

    @property
    def graph(self):
        """The graph."""
        return self._graph

    @graph.setter
    def graph(self, graph):
        if not isinstance(graph, Graph):
            raise AssertionError(f"Expected a Graph instance, but got {type(graph).__name__}")
        self._graph = graph
        graph.owning_module = self
        self.recompile()

    @property
    def code(self):
        """The Python of forward."""
        return self._code

    def recompile(self):
        """Makes forward from the graph as it is now. Returns its PythonCode."""
        code = self._graph.python_code("self")
        self._code = code.src
        type(self).forward = _compiled(code)
        return code

    def print_readable(self, print_output=True, **options):
        """Prints the module's Python, and returns it."""
        text = f"class {type(self).__name__}(pydist.nn.Module):\n" + "\n".join(
            f"    {line}" if line else "" for line in self._code.strip("\n").split("\n")
        )
        if print_output:
            print(text)
        return text

    def to_folder(self, folder, module_name="FxModule"):
        """Writes the module as a package: `from FOLDER import MODULE_NAME; module = MODULE_NAME()`. It is in module.pt, which
        is a pickle."""
        from pydist import save

        os.makedirs(folder, exist_ok=True)
        save(self, os.path.join(folder, "module.pt"))
        with open(os.path.join(folder, "__init__.py"), "w") as file:
            file.write(
                f"import os\n\nimport pydist\n\n\ndef {module_name}():\n"
                '    """The module that GraphModule.to_folder wrote."""\n'
                "    path = os.path.join(os.path.dirname(__file__), 'module.pt')\n"
                "    return pydist.load(path, weights_only=False)\n"
            )

    def add_submodule(self, target, m):
        """Adds a module at a path. Returns whether that was possible."""
        *way, name = target.split(".")
        at = self
        for part in way:
            if not hasattr(at, part):
                at.add_module(part, Module())
            at = getattr(at, part)
            if not isinstance(at, Module):
                return False
        at.add_module(name, m)
        return True

    def delete_submodule(self, target):
        """Removes the module at a path. Returns whether there was one."""
        way, _, name = target.rpartition(".")
        try:
            at = _at(self, way) if way else self
        except AttributeError:
            return False
        if not isinstance(at, Module) or name not in at._modules:
            return False
        del at._modules[name]
        return True

    def delete_all_unused_submodules(self):
        """Removes modules that the graph does not use."""
        used = set()
        for node in self._graph.nodes:
            if node.op in ("call_module", "get_attr"):
                parts = node.target.split(".")
                used |= {".".join(parts[: i + 1]) for i in range(len(parts))}
                if node.op == "call_module":
                    used |= {f"{node.target}.{name}" for name, _ in _at(self, node.target).named_modules() if name}
        for name, _ in list(self.named_modules()):
            if name and name not in used:
                self.delete_submodule(name)

    def __deepcopy__(self, memo):
        state = {k: v for k, v in self.__dict__.items() if k not in ("_graph", "_code")}
        made = _remade(type(self), copy.deepcopy(state, memo), copy.deepcopy(self._graph, memo))
        memo[id(self)] = made
        return made

    def __reduce_ex__(self, protocol):
        state = {k: v for k, v in self.__getstate__().items() if k not in ("_graph", "_code")}
        return _from_pickle, (type(self).__name__, state, self._graph)

    def __str__(self):
        return f"{super().__repr__()}\n\n{self._code}\n\n# To see more debug info, please use `graph_module.print_readable()`"


def _remade(like, state, graph):
    made = GraphModule.__new__(GraphModule)
    Module.__init__(made)
    type(made).__name__ = like.__name__
    made.__dict__.update(state)
    made.graph = graph
    return made


def _from_pickle(name, state, graph):
    return _remade(type(name, (), {}), state, graph)
