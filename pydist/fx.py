"""Where PyTorch traces programs. Nothing is traced here: `wrap` lets modules that mark functions for it be imported."""


class Proxy:
    """What a traced program has in the place of a tensor: never made here."""


def wrap(fn_or_name):
    """Returns the function: `@wrap` and `wrap("name")`."""
    return fn_or_name


def __getattr__(name):
    raise AttributeError(f"pydist has no fx.{name}: programs are not traced", name=name)
