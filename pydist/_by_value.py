"""Sends functions that a fresh interpreter cannot import, by their parts.

A function of a script's `__main__`, or of any module, is sent by name: the child imports the module. That is impossible
for a notebook's cells, `python -c`, standard input, and for lambdas and nested functions. Those are sent as code,
defaults and closure; if their module cannot be imported either, also as the globals that they name. Classes are sent as
their dictionaries. The child puts them into its own `__main__`.
"""

import io
import marshal
import os
import pickle
import sys
from importlib import import_module
from types import CellType, CodeType, FunctionType, ModuleType

_files = {}  # path of a `__main__` -> whether it is a file
_NOT_COPIED = ("__dict__", "__weakref__", "__module__", "__doc__", "__qualname__")


def main_is_lost():
    """Whether a fresh interpreter cannot import this process's `__main__`."""
    main = sys.modules["__main__"]
    if getattr(main, "__spec__", None) is not None:
        return False
    path = getattr(main, "__file__", None) or ""
    if path not in _files:
        _files[path] = os.path.isfile(path)
    return not _files[path]


def _is_importable(obj):
    module = getattr(obj, "__module__", None)
    if module == "__main__" and main_is_lost():
        return False
    found = sys.modules.get(module)
    for name in obj.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is obj


def _named_globals(code):
    names = set(code.co_names)
    for const in code.co_consts:
        if isinstance(const, CodeType):
            names |= _named_globals(const)
    return names


def _make_function(code, name, module, cells):
    space = sys.modules["__main__"] if module == "__main__" else import_module(module)
    return FunctionType(marshal.loads(code), space.__dict__, name, None, tuple(CellType() for _ in range(cells)))


def _fill_function(function, state):
    for cell, content in zip(function.__closure__ or (), state.pop("closure")):
        if content:  # an empty cell: not assigned yet
            cell.cell_contents = content[0]
    for name, value in state.pop("globals").items():
        function.__globals__.setdefault(name, value)
    for name, value in state.items():
        setattr(function, name, value)


def _make_class(kind, name, bases, module):
    return kind(name, bases, {"__module__": module})


def _fill_class(cls, state):
    for name, value in state.items():
        setattr(cls, name, value)


def _contents(cell):
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj):
        if isinstance(obj, ModuleType):
            return import_module, (obj.__name__,)
        if isinstance(obj, FunctionType) and not _is_importable(obj):
            return self._function(obj)
        if isinstance(obj, type) and obj.__module__ == "__main__" and not _is_importable(obj):
            attributes = {name: value for name, value in obj.__dict__.items() if name not in _NOT_COPIED}
            made = (type(obj), obj.__qualname__, obj.__bases__, obj.__module__)
            return _make_class, made, {"__doc__": obj.__doc__, **attributes}, None, None, _fill_class
        return NotImplemented

    @staticmethod
    def _function(obj):
        lost = obj.__module__ == "__main__" and main_is_lost()
        names = sorted(_named_globals(obj.__code__) & obj.__globals__.keys())
        names = [name for name in names if lost or name[0] == "@"]  # @: names that pytest adds for asserts
        state = {
            "closure": [_contents(cell) for cell in obj.__closure__ or ()],
            "globals": {name: obj.__globals__[name] for name in names},
            "__defaults__": obj.__defaults__,
            "__kwdefaults__": obj.__kwdefaults__,
            "__dict__": obj.__dict__,
            "__doc__": obj.__doc__,
            "__qualname__": obj.__qualname__,
            "__module__": obj.__module__,
        }
        made = (marshal.dumps(obj.__code__), obj.__name__, obj.__module__, len(obj.__closure__ or ()))
        return _make_function, made, state, None, None, _fill_function


class Carried:
    """A callable on its way to a child."""

    def __init__(self, fn):
        self.fn = fn

    def __reduce__(self):
        buffer = io.BytesIO()
        _Pickler(buffer).dump(self.fn)
        return _unpack, (buffer.getvalue(),)


def _unpack(data):
    return Carried(pickle.loads(data))
