"""Modules that have PyTorch's names for what stands elsewhere, and load that only when they are asked for it."""

from importlib import import_module


def from_home(module, home, names):
    """The __getattr__ of `module`: it finds these names in the module `home`."""

    def __getattr__(name):
        if name in names:
            return getattr(import_module(home), name)
        expected = f"{'one of ' if len(names) > 1 else ''}{', '.join(names)}"
        raise AttributeError(f"module {module!r} has no attribute {name!r} (expected {expected})")

    return __getattr__
