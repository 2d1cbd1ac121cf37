"""PyTorch's decorator that reports a worker's exception. Here exceptions are reported without it."""


def record(fn):
    """Returns `fn` itself: the launcher and the other ranks get every rank's traceback anyway."""
    if not callable(fn):
        raise TypeError(f"record: fn is {type(fn).__name__} (expected a function)")
    return fn
