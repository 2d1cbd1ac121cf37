"""What the package consists of, and what its tests have compared."""

import doctest
import importlib
import importlib.metadata
from collections import Counter

from pydist._docs.names import walk

COMPARED = Counter()  # what tests have compared with torch, said at the end


def installed(name):
    """Whether pip has installed a package of that name. A folder of that name does not count."""
    return any(importlib.metadata.distributions(name=name))


def modules():
    """All modules of the package."""
    return [name for name in walk() if name not in ("pydist._C", "pydist._mpi", "pydist._cuda")]


def doctests():
    """Every documented example, as (id, example)."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    for name in ["pydist", *modules()]:
        for example in finder.find(importlib.import_module(name), name):
            if example.examples:
                yield example
