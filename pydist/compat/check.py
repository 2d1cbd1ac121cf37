"""Finds the names of PyTorch that a script uses and pydist does not have. It reads the script and runs nothing."""

import ast
import importlib
import os

from pydist.compat import _ROOTS, _exists, _ours, near


class _Uses(ast.NodeVisitor):
    """{dotted name of PyTorch: first line}, through imports, aliases and attributes."""

    def __init__(self):
        self.names, self.aliases = {}, {}

    def use(self, name, line):
        self.names.setdefault(name, line)

    def visit_Import(self, node):
        for alias in node.names:
            if alias.name.partition(".")[0] in _ROOTS:
                self.use(alias.name, node.lineno)
                local = alias.asname or alias.name.partition(".")[0]
                self.aliases[local] = alias.name if alias.asname else local

    def visit_ImportFrom(self, node):
        if node.level or not node.module or node.module.partition(".")[0] not in _ROOTS:
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


def resolve(name):
    """None if pydist has the dotted name; otherwise the missing part, and similar names."""
    ours = _ours(name)
    root = _ROOTS[name.partition(".")[0]]
    if not _exists(root):
        return f"no {name.partition('.')[0]}"
    obj, at = importlib.import_module(root), root
    for part in ours[len(root) + 1 :].split(".") if ours != root else ():
        inner = f"{at}.{part}"
        try:
            obj = getattr(obj, part)
        except AttributeError:
            if not _exists(inner):
                theirs = name[: len(name) - len(ours) + len(inner)]
                return f"no {theirs}{near(part, dir(obj))}"
            obj = importlib.import_module(inner)
        if isinstance(obj, type) or not hasattr(obj, "__path__") and not hasattr(obj, "__file__"):
            break  # a class or a value: its attributes are not checked
        at = inner
    return None


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
