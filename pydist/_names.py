"""Modules that PyTorch has under other names."""

import sys


def also_named(package, **names):
    """Makes `import package.name` return the package's module `of` (with a dot: any module; empty: the package
    itself)."""
    for name, of in names.items():
        module = sys.modules[of if "." in of else f"{package}.{of}" if of else package]
        sys.modules[f"{package}.{name}"] = module
        vars(sys.modules[package]).setdefault(name, module)
