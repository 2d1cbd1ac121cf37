"""Which modules of Keras this package changes, and how Keras is imported.

SEAMS maps a module of Keras to functions. Python calls them with the module right after it has run the module's own
code, so that other modules of Keras import what the functions put there.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import os
import sys

from pydist import compat
from pydist.keras import _lazy

OLDEST, NEWEST = (3, 12), (3, 17)  # tested: OLDEST <= version < NEWEST

FILES = """
    _adapters
    _archives
    _callbacks
    _closures
    _convolutions
    _datasets
    _dtypes
    _facade
    _layouts
    _lazy
    _modules
    _optimizers
    _random
    _recurrent
    _replay
    _replicas
    _shortcuts
    _tensorboard
    _trainer
    _tree
""".split()

SEAMS = {}
for _file in FILES:
    for _name, _change in importlib.import_module(f"pydist.keras.{_file}").SEAMS.items():
        SEAMS.setdefault(_name, []).append(_change)


class _Changed(importlib.abc.Loader):
    """Keras' own loader, and the changes after it."""

    def __init__(self, loader, changes):
        self.loader, self.changes = loader, changes

    def __getattr__(self, name):  # get_source, get_data, ...
        return getattr(self.loader, name)

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        self.loader.exec_module(module)
        module.__spec__.loader = module.__loader__ = self.loader
        for change in self.changes:
            change(module)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.startswith("pydist.keras."):
            return _ours(name)
        if name in _lazy.LATER:
            return _lazy.later(importlib.machinery.PathFinder.find_spec(name, path))
        changes = SEAMS.get(name)
        spec = changes and importlib.machinery.PathFinder.find_spec(name, path)
        if spec:
            spec.loader = _Changed(spec.loader, changes)
        return spec


def _ours(name):
    """The spec of pydist.keras.NAME: our file for names with an underscore, otherwise Keras' module. The parent is Keras
    by then, and its path is Keras'."""
    last = name.removeprefix("pydist.keras.")
    if last.startswith("_"):
        return importlib.machinery.PathFinder.find_spec(name, [os.path.dirname(__file__)])
    return importlib.machinery.ModuleSpec(name, compat._Loader(f"keras.{last}"))


def _check_version():
    try:
        version = importlib.metadata.version("keras")
    except importlib.metadata.PackageNotFoundError:
        raise ModuleNotFoundError(
            "pydist.keras: Keras is not installed (expected pip install 'pydist[keras]')", name="keras"
        ) from None
    if not OLDEST <= tuple(int(part) for part in version.split(".")[:2]) < NEWEST:
        wanted = f"keras>={OLDEST[0]}.{OLDEST[1]},<{NEWEST[0]}.{NEWEST[1]}"
        raise ImportError(f"pydist.keras: got Keras {version} (expected {wanted})", name="keras")


def _check_modules():
    for name in ("keras", "torch", "tensorflow"):
        module = sys.modules.get(name)
        if module is not None and not isinstance(module, compat._Root):
            raise RuntimeError(
                f"pydist.keras: {name} is already imported (expected `from pydist import keras`, or the program to run "
                "by python -m pydist.compat, before that)"
            )


def _check_backend():
    """Keras' PyTorch backend is ours. A program that asks for another one that has the same results gets it too."""
    asked = os.environ.get("KERAS_BACKEND")
    if asked in ("tensorflow", "jax", "torch"):
        if os.environ.get("RANK", "0") == "0":
            print(f"pydist.keras: KERAS_BACKEND={asked}: Keras runs over pydist", file=sys.stderr)
    elif asked:
        raise ValueError(f"pydist.keras: KERAS_BACKEND is {asked} (expected it to be unset, tensorflow, jax or torch)")
    return asked


def load():
    """Imports Keras over pydist and returns it."""
    _check_version()
    _check_modules()
    asked = _check_backend()
    compat.install()
    sys.meta_path.insert(0, _Finder())
    os.environ["KERAS_BACKEND"] = "torch"
    try:
        with _lazy.Hidden("pandas", "matplotlib", "IPython"):
            return importlib.import_module("keras")
    finally:
        if asked is None:
            del os.environ["KERAS_BACKEND"]
        else:
            os.environ["KERAS_BACKEND"] = asked
