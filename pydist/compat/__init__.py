"""Runs scripts that import torch, keras, tensorflow or mxnet: `python -m pydist.compat train.py args`,
`-m module args`, `--check train.py`.

`install()` makes `torch`, `torchvision` and their submodules pydist's modules of the same names. They stay the same
objects: `torch.nn is pydist.nn`. A name that pydist does not have fails when it is used; the error has the name and
similar names. `keras` runs over pydist (`pydist.keras`), and `tensorflow` is `pydist.tensorflow`. `mxnet` is
`pydist.compat.mxnet`, and `tensorboardX` our SummaryWriter, if those packages are not installed. Child processes
inherit this (`environment()`). For pytest use `-p pydist.compat`; a notebook calls `install()`.
"""

import difflib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types

_ROOTS = {"torch": "pydist", "torchvision": "pydist.vision", "tensorflow": "pydist.tensorflow",
          "mxnet": "pydist.compat.mxnet"}  # fmt: skip
_VERSIONS = {"torch": "2.13.0+pydist", "torchvision": "0.28.0+pydist", "tensorflow": "2.21.0+pydist",
             "mxnet": "1.9.1+pydist"}  # fmt: skip

# modules that a root has in other places
_ELSEWHERE = {
    "tensorflow.keras": "keras._tf_keras.keras",
    "tensorflow.data": "pydist.data",
    "tensorflow.distribute": "pydist.distribute",
}

# what the first import of a root calls
_READY = {"tensorflow": "pydist.tensorflow._readings"}

# roots that the installed package answers, if there is one
_IF_MISSING = {"mxnet"}

# packages that scripts use with torch: ours if not installed
_STAND_INS = {"tensorboardX": "pydist.compat.tensorboardx"}

# installed packages that one of our modules imports, and changes, when a program first imports them
_PREPARED = {"keras": "pydist.keras"}

_PATH = os.path.join(os.path.dirname(__file__), "path")  # the files there call install()


def _ours(name):
    """pydist's name for a dotted name of PyTorch or TensorFlow; None for other names."""
    root, dot, rest = name.partition(".")
    for theirs, ours in _ELSEWHERE.items():
        if f"{name}.".startswith(f"{theirs}."):
            return ours + name.removeprefix(theirs)
    return _ROOTS[root] + dot + rest if root in _ROOTS else None


def _exists(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # a parent is missing, or is not a package
        return False


def near(name, names):
    """ ", near: a, b" with the names most similar to `name`, or ""."""
    found = difflib.get_close_matches(name, [n for n in names if not n.startswith("_")], 3, 0.7)
    return f", near: {', '.join(found)}" if found else ""


class _Root(types.ModuleType):
    """`torch`: pydist, with PyTorch's version. Names are looked up in pydist once and then kept here."""

    def __init__(self, name):
        super().__init__(name, f"pydist in the place of {name}.")
        self.__path__ = []
        self.__version__ = _VERSIONS[name]

    def __getattr__(self, name):
        module = importlib.import_module(_ROOTS[self.__name__])
        try:
            found = getattr(module, name)
        except AttributeError as error:
            if _exists(f"{module.__name__}.{name}"):
                found = importlib.import_module(f"{module.__name__}.{name}")
            else:
                text = f"pydist has no {self.__name__}.{name}{near(name, dir(module))}"
                own = str(error) if str(error).startswith("pydist has no") else text  # the module may say more
                raise AttributeError(own, name=name, obj=self) from None
        vars(self)[name] = found
        return found

    def __dir__(self):
        return dir(importlib.import_module(_ROOTS[self.__name__]))


class _Loader(importlib.abc.Loader):
    """Returns a module that exists already, and keeps its own spec."""

    def __init__(self, ours):
        self.ours = ours

    def create_module(self, spec):
        if self.ours in _ROOTS.values():
            return _Root(spec.name)
        module = importlib.import_module(self.ours)
        self.spec = module.__spec__
        return module

    def get_code(self, name):
        """For `python -m torch.distributed.run`."""
        return importlib.util.find_spec(self.ours).loader.get_code(self.ours)

    def exec_module(self, module):
        if not isinstance(module, _Root):
            module.__spec__ = self.spec
        elif module.__name__ in _READY:
            importlib.import_module(_READY[module.__name__]).install()


def _installed(name):
    """The spec of an installed top-level package, or None. Our own files and bare folders of that name do not count."""
    spec = importlib.machinery.PathFinder.find_spec(name, [part for part in sys.path if part != _PATH])
    return spec if spec and spec.loader else None


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in _PREPARED:
            if _PREPARED[name] in sys.modules:  # our module imports it now
                return _installed(name)
            return importlib.machinery.ModuleSpec(name, _Loader(_PREPARED[name]), is_package=True)
        if name in _STAND_INS:
            theirs = _installed(name)
            return theirs or importlib.machinery.ModuleSpec(name, _Loader(_STAND_INS[name]))
        ours = _ours(name)
        root = name.partition(".")[0]
        if ours is None:
            return None
        if root in _IF_MISSING and not isinstance(sys.modules.get(root), _Root) and (theirs := _installed(root)):
            return theirs if name == root else None  # None: Python finds the parts of that package
        if ours.startswith("keras."):
            importlib.import_module("pydist.keras")  # which says so if Keras is missing
        if not _exists(ours):
            parent, _, last = ours.rpartition(".")
            if root == "mxnet":
                getattr(importlib.import_module(_ROOTS[root]), name.split(".")[1], None)  # which may say more
            names = dir(importlib.import_module(parent)) if _exists(parent) else ()
            raise ModuleNotFoundError(f"pydist has no module {name}{near(last, names)}", name=name)
        is_package = importlib.util.find_spec(ours).submodule_search_locations is not None
        return importlib.machinery.ModuleSpec(name, _Loader(ours), is_package=is_package)


_finder = _Finder()


def install():
    """Makes `import torch`, `torchvision`, `tensorflow` and `mxnet` return pydist from now on. Raises RuntimeError if
    PyTorch or TensorFlow itself is imported already. It may be called twice."""
    for name in _ROOTS.keys() - _IF_MISSING:
        if name in sys.modules and not isinstance(sys.modules[name], _Root):
            raise RuntimeError(f"compat: {name} is already imported (expected install() before that)")
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
        sys.path.insert(0, _PATH)  # multiprocessing passes it on to children


def uninstall():
    """Undoes `install()` for later imports."""
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
        sys.path.remove(_PATH)
    real = {name for name in _IF_MISSING if not isinstance(sys.modules.get(name), _Root)}
    ours = [name for name, stand_in in _STAND_INS.items() if sys.modules.get(name, "") is sys.modules.get(stand_in)]
    for name in [*ours, *(name for name in sys.modules if _ours(name) and name.partition(".")[0] not in real)]:
        del sys.modules[name]


def environment(environ=None):
    """A copy of `environ` (default: this process's) in which Python programs find pydist as `torch`."""
    new = dict(os.environ if environ is None else environ)
    here = [_PATH, os.path.dirname(os.path.dirname(os.path.dirname(__file__)))]
    rest = [part for part in new.get("PYTHONPATH", "").split(os.pathsep) if part and part not in here]
    new["PYTHONPATH"] = os.pathsep.join([*here, *rest])
    new["PYDIST_COMPAT"] = "1"
    return new


def pytest_addoption(parser):  # `pytest -p pydist.compat`: before any conftest.py is imported
    """pytest calls this for `-p pydist.compat`: installs, before any conftest.py is imported."""
    install()
