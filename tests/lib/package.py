"""What the package consists of, and what its tests have compared."""

import doctest
import importlib
import pkgutil
from collections import Counter

import pydist

COMPARED = Counter()  # what tests have compared with torch, said at the end


def modules():
    """All modules of the package."""
    found = pkgutil.walk_packages(pydist.__path__, "pydist.")
    return [name for _, name, _ in found if name not in ("pydist._C", "pydist._mpi", "pydist._cuda")]


def doctests():
    """Every documented example, as (id, example)."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    for name in ["pydist", *modules()]:
        for example in finder.find(importlib.import_module(name), name):
            if example.examples:
                yield example
