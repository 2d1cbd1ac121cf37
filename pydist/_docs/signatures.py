"""Functions of Python in the place of those of C, so that tools see arguments, types and documentation."""

import ast
import inspect
import re
from functools import cache
from pathlib import Path

from pydist import _C


class Words:
    """An annotation that is shown as it is written."""

    def __init__(self, text):
        self.text = text

    def __repr__(self):
        return self.text


@cache
def stubs():
    """{"relu": node, "Tensor.add": node} of _C.pyi: the first form of each function."""
    found = {}
    for node in ast.parse(Path(_C.__file__).with_name("_C.pyi").read_text()).body:
        prefix, inner = (f"{node.name}.", node.body) if isinstance(node, ast.ClassDef) else ("", [node])
        for part in inner:
            if isinstance(part, ast.FunctionDef):
                found.setdefault(prefix + part.name, part)
    return found


def _made(head):
    """The function with this `name(arguments) -> result`, its annotations as words, or None where that is not Python."""
    scope = {}
    try:
        exec(f"from __future__ import annotations\ndef {head}: ...", dict(vars(_C)), scope)
    except (SyntaxError, NameError):
        return None
    made = scope[head.partition("(")[0]]
    made.__annotations__ = {name: Words(_plain(text)) for name, text in made.__annotations__.items()}
    return made


def _plain(text):
    """A type of the stubs without their names for what functions hide: _int is int."""
    return re.sub(r"\b_(int|float|bool|dtype|device)\b", r"\1", text).replace("_Number", "int | float | bool")


def stand_in(qualname, thing, module):
    """A function of Python with a C function's arguments and documentation. `qualname`: relu, or Tensor.add."""
    name = qualname.rpartition(".")[2]
    first, _, rest = (inspect.getdoc(thing) or "").partition("\n")
    said = re.fullmatch(rf"(?:\w+\.)?{re.escape(name)}\((.*)\)( -> [^:]*)?(?:: (.*))?", first)
    node = stubs().get(qualname)
    made = node and _made(f"{name}({ast.unparse(node.args)}) -> {ast.unparse(node.returns)}")
    if not made and said:
        lead = "self, " if "." in qualname else ""
        made = _made(f"{name}({lead}{said[1]}){said[2] or ''}")
    if not made:
        made = _made(f"{name}(*args, **kwargs)")
    made.__doc__ = inspect.cleandoc(f"{said[3] or ''}\n{rest}" if said else f"{first}\n{rest}").strip()
    made.__qualname__, made.__module__ = qualname, module
    return made


def shown(thing, name, module):
    """What the module's page shows for what it offers under this name: the thing itself, or what stands for it."""
    if isinstance(thing, type):
        return _class(thing, name, module) if getattr(_C, thing.__name__, None) is thing else thing
    if not callable(thing) or inspect.isfunction(thing) or not (inspect.isroutine(thing) or _is_op(thing)):
        return thing
    return stand_in(name, thing, module)


def _is_op(thing):
    return type(thing) is type(_C.add)


def _class(cls, name, module):
    """A class of C as one of Python: the same bases and documentation, its functions by stand-ins."""
    members = {
        called: stand_in(f"{cls.__name__}.{called}", member, module)
        if inspect.ismethoddescriptor(member) or _is_op(member)
        else member
        for called, member in vars(cls).items()
        if not called.startswith("_")
    }
    bases = cls.__bases__ if issubclass(cls, BaseException) else (object,)
    return type(name, bases, {**members, "__doc__": cls.__doc__, "__module__": module})
