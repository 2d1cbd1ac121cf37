"""Finds the names of PyTorch, Keras and TensorFlow that a script uses and pydist does not have. It reads the script and runs
nothing."""

import ast
import importlib
import os
import types

from pydist.compat import _ROOTS, _exists, near

_CHECKED = {**_ROOTS, "keras": "pydist.keras"}


class _Uses(ast.NodeVisitor):
    """{dotted name of PyTorch, Keras or TensorFlow: first line}, through imports, aliases and attributes."""

    def __init__(self):
        self.names, self.aliases = {}, {}

    def use(self, name, line):
        self.names.setdefault(name, line)

    def visit_Import(self, node):
        for alias in node.names:
            if alias.name.partition(".")[0] in _CHECKED:
                self.use(alias.name, node.lineno)
                local = alias.asname or alias.name.partition(".")[0]
                self.aliases[local] = alias.name if alias.asname else local

    def visit_ImportFrom(self, node):
        if node.level or not node.module or node.module.partition(".")[0] not in _CHECKED:
            return
        for alias in node.names:
            if alias.name == "*":
                self.use(node.module, node.lineno)
            else:
                self.use(f"{node.module}.{alias.name}", node.lineno)
                self.aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"

    def visit_FunctionDef(self, node):
        """Inside a function, names that it binds are not imported names."""
        bound = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        bound |= {n.arg for n in ast.walk(node.args) if isinstance(n, ast.arg)}
        hidden = {name: self.aliases.pop(name) for name in bound if name in self.aliases}
        self.generic_visit(node)
        self.aliases.update(hidden)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Name(self, node):
        if isinstance(node.ctx, ast.Store):
            self.aliases.pop(node.id, None)

    def dotted(self, node):
        if isinstance(node, ast.Name):
            return self.aliases.get(node.id)
        if isinstance(node, ast.Attribute):
            value = self.dotted(node.value)
            return value and f"{value}.{node.attr}"
        return None

    def visit_Attribute(self, node):
        name = self.dotted(node)
        if name:
            self.use(name, node.lineno)
        else:
            self.generic_visit(node)


def _whole(root):
    """(the module in the place of torch, keras or tensorflow, None), or (None, why there is none)."""
    ours = _CHECKED[root]
    if root == "keras":
        try:
            return importlib.import_module(ours), None
        except (ImportError, RuntimeError) as error:
            return None, f"no keras: {error}"
    return (importlib.import_module(ours), None) if _exists(ours) else (None, f"no {root}")


def _member(obj, name):
    """An attribute or a submodule. Raises AttributeError."""
    try:
        return getattr(obj, name)
    except AttributeError:
        if not isinstance(obj, types.ModuleType) or not _exists(f"{obj.__name__}.{name}"):
            raise
    return importlib.import_module(f"{obj.__name__}.{name}")


def resolve(name):
    """None if pydist has the dotted name; otherwise the missing part, and similar names."""
    at, *parts = name.split(".")
    obj, lack = _whole(at)
    for part in parts if obj is not None else ():
        try:
            obj = _member(obj, part)
        except AttributeError as error:
            own = str(error).removeprefix("pydist has ")  # the facade's modules say more
            return own if own.startswith(f"no {at}.{part}") else f"no {at}.{part}{near(part, dir(obj))}"
        except (ImportError, RuntimeError) as error:
            return f"no {at}.{part}: {error}"
        at = f"{at}.{part}"
        if not isinstance(obj, types.ModuleType):
            break  # a class or a value: its attributes are not checked
    return lack


def missing(path):
    """[(line, the missing name)] of one script."""
    with open(path, encoding="utf-8") as file:
        uses = _Uses()
        uses.visit(ast.parse(file.read(), path))
    found = {}
    for name, line in sorted(uses.names.items(), key=lambda item: item[1]):
        lack = resolve(name)
        if lack:
            found.setdefault(lack, line)
    return [(line, lack) for lack, line in found.items()]


def report(paths):
    """Prints `file:line: the missing name` for every script and folder. Returns 1 if anything is missing,
    otherwise 0."""
    files = []
    for path in paths:
        if os.path.isdir(path):
            for folder, _, names in os.walk(path):
                files += [os.path.join(folder, name) for name in sorted(names) if name.endswith(".py")]
        else:
            files.append(path)
    lacking = 0
    for path in files:
        for line, lack in missing(path):
            print(f"{path}:{line}: {lack}")
            lacking += 1
    print(f"{len(files)} files, {lacking} names missing")
    return int(lacking > 0)
