"""PyTorch's tracing of programs. pydist traces nothing; `wrap` exists so that modules which mark functions can be
imported."""


class Proxy:
    """What a traced program has instead of a tensor. pydist never makes one."""


def wrap(fn_or_name):
    """Returns the function: `@wrap` and `wrap("name")`."""
    return fn_or_name


def __getattr__(name):
    raise AttributeError(f"pydist has no fx.{name}: programs are not traced", name=name)
