"""Errors for names that a module does not have."""

from pydist.compat import near


def missing_name(module, name, names):
    """The AttributeError for `name`, with the names that are near to it."""
    return AttributeError(f"module '{module}' has no attribute '{name}'{near(name, sorted(names))}")
