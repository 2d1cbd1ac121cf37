"""How a worker's exception becomes known, which here needs no decorator."""


def record(fn):
    """`fn` itself: every rank's traceback reaches the launcher and the other ranks anyway."""
    if not callable(fn):
        raise TypeError(f"record: {type(fn).__name__} (expected a function)")
    return fn
