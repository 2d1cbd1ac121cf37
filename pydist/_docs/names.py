"""Which names are public, and where each is documented. Needs nothing but pydist."""

import importlib
import os
import pkgutil
import types

import pydist


def walk(folders=None, prefix="pydist."):
    """The names of the package's modules. pydist.keras is left out, which is Keras with pydist in the place of torch, and
    what imports it."""
    for finder, name, is_package in pkgutil.iter_modules(folders or pydist.__path__, prefix):
        if name != "pydist.keras" and not name.endswith("._over_keras"):
            yield name
            if is_package:
                yield from walk([os.path.join(finder.path, name.rpartition(".")[2])], f"{name}.")


def modules():
    """({name: module} of all public modules, {name: error} of those that cannot be imported here).

    A module is public where no part of its name begins with an underscore.
    """
    found, missing = {}, {}
    for name in ["pydist", *sorted(name for name in walk() if "._" not in name)]:
        try:
            found[name] = importlib.import_module(name)
        except ImportError as error:  # of an extra that is not installed
            missing[name] = error
    return found, missing


def public(module):
    """{name: object} of what the module offers.

    That is `__all__`. Without one, a package offers all of pydist's that it has, and a module what it defines.
    """
    listed = getattr(module, "__all__", None)
    found = {}
    for name in dir(module) if listed is None else listed:
        if not name.startswith("_"):
            thing = getattr(module, name)
            if not isinstance(thing, types.ModuleType) and (listed is not None or _belongs(thing, module)):
                found[name] = thing
    return found


def origin(thing):
    """The module that defines a thing; pydist for what C defines, None for what does not say."""
    found = getattr(thing, "__module__", None)
    return found if found is None or isinstance(found, str) else "pydist"  # a class of C has a property there


def _belongs(thing, module):
    if hasattr(module, "__path__"):
        return (origin(thing) or "pydist").split(".")[0] == "pydist"
    return origin(thing) == module.__name__ and callable(thing)


def homes(offered):
    """{id of a function or class: (module, name)}: where it is documented. `offered`: public() of each module.

    That is where it bears its own name, in a package around the file that defines it, as near the top as there is.
    """
    found = {}
    for module, things in offered.items():
        for called, thing in things.items():
            if callable(thing):
                own = called == getattr(thing, "__name__", called)
                near = f"{origin(thing)}.".startswith(f"{module}.")
                found.setdefault(id(thing), []).append((not own, not near, module.count("."), module, called))
    return {thing: min(places)[3:] for thing, places in found.items()}
