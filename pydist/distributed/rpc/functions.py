"""Functions that answer later."""

import functools

__all__ = ["async_execution"]


def async_execution(fn):
    """Marks a function that returns a Future: a call of it by RPC is answered when that future is done, with its value,
    and until then no thread is kept. Works for functions, static methods, class methods and methods, in any order of
    decorators.

    >>> from pydist.distributed import rpc
    >>> @rpc.functions.async_execution
    ... def later(worker, x):
    ...     return rpc.rpc_async(worker, pow, (x, 2)).then(lambda future: future.wait() + 1)
    """
    if isinstance(fn, (staticmethod, classmethod)):
        return type(fn)(async_execution(fn.__func__))

    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        return fn(*args, **kwargs)

    wrapper._wrapped_async_rpc_function = fn
    return wrapper
