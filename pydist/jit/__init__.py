"""PyTorch's compiler of scripts. Its functions are accepted and change nothing: everything runs in Python."""

from typing import Final

from pydist.jit import annotations
from pydist.nn import Module as ScriptModule


class TracerWarning(Warning):
    """What PyTorch warns of while it traces. pydist never traces, so it never warns."""


class ScriptFunction:
    """PyTorch's class of compiled functions. pydist compiles none, so no object is one."""


class Error(RuntimeError):
    """What PyTorch's compiled functions raise. Functions of pydist raise their own errors."""


def script(obj, *args, **kwargs):
    """Returns `obj`."""
    return obj


def trace(func, example_inputs=None, *args, **kwargs):
    """Returns `func`."""
    return func


def _same(fn):
    """Returns `fn`."""
    return fn


script_method = export = interface = _same


def ignore(drop=False, **kwargs):
    """Returns the function: `@ignore` and `@ignore(drop=True)`."""
    return drop if callable(drop) else _same


unused = _same


def is_scripting():
    """False: pydist never compiles scripts."""
    return False


def is_tracing():
    """False: pydist never traces."""
    return False


def annotate(the_type, the_value):
    """Returns the value."""
    return the_value
