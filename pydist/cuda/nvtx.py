"""Ranges and marks that NVIDIA's profilers show on their time lines (NVTX). Without a profiler they cost next to
nothing. In a build without CUDA they do nothing."""

from contextlib import contextmanager
from threading import local

from pydist import _C

_here = local()


def range_push(msg):
    """Begins a range named `msg`. Returns how many ranges were open in this thread."""
    _C.cuda_range(str(msg))
    _here.depth = getattr(_here, "depth", 0) + 1
    return _here.depth - 1


def range_pop():
    """Ends the range that was begun last. Returns how many ranges are still open. Raises RuntimeError if none is
    open."""
    if not getattr(_here, "depth", 0):
        raise RuntimeError("nvtx.range_pop: no range is open in this thread (expected range_push first)")
    _C.cuda_range(None)
    _here.depth -= 1
    return _here.depth


def mark(msg):
    """Marks a point in time with the name `msg`."""
    _C.cuda_range(str(msg), True)


@contextmanager
def range(msg, *args, **kwargs):
    """`with range("forward"):`, also a decorator. str.format puts args and kwargs into `msg`."""
    range_push(msg.format(*args, **kwargs))
    try:
        yield
    finally:
        range_pop()
