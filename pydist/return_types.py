"""The named tuples that functions with several results return: return_types.max is the type of max(input, dim).

>>> import pydist
>>> isinstance(pydist.ones(2, 3).max(0), pydist.return_types.max)
True
"""


def __getattr__(name):
    import pydist

    found = None if name.startswith("_") else getattr(getattr(pydist, name, None), "result", None)
    if found is None:
        raise AttributeError(f"pydist has no return_types.{name}", name=name)
    return found
