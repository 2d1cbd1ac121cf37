"""Neural-network modules, with PyTorch's names, initial values and state dictionaries."""

from pydist.nn import functional, init
from pydist.nn.modules import *
from pydist.nn.modules import __all__ as _modules
from pydist.nn.parameter import Buffer, Parameter, UninitializedParameter

__all__ = [*_modules, "Buffer", "DataParallel", "Parameter", "UninitializedParameter"]
__all__ += ["functional", "init", "parallel", "utils"]


def __getattr__(name):
    if name in ("parallel", "utils"):
        from importlib import import_module

        return import_module(f"pydist.nn.{name}")
    if name == "DataParallel":
        from pydist.nn.parallel import DataParallel

        return DataParallel
    raise AttributeError(f"module 'pydist.nn' has no attribute '{name}'")
