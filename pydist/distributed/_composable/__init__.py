"""Distributed features that change a module in place, which stand in `pydist.nn.parallel.composable`: they are about modules.

`replicate` and `contract` are functions here, and `replicate.py` and `contract.py` are modules beside them, as in PyTorch."""

import sys
from types import ModuleType

from pydist._aliases import from_home

_NAMES = ("_get_registry", "checkpoint", "contract", "replicate")
__getattr__ = from_home(__name__, "pydist.nn.parallel.composable", _NAMES)


class _Package(ModuleType):
    def __setattr__(self, name, value):
        if name not in _NAMES:  # what the import of a module below sets
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
