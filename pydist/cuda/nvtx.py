"""Ranges and marks that NVIDIA's profilers show on their time lines (NVTX). Without a profiler they cost next to nothing;
in a build without CUDA they do nothing."""

from contextlib import contextmanager
from threading import local

from pydist import _C

_here = local()


def range_push(msg):
    """Begins a range named `msg`; returns how many were open in this thread."""
    _C.cuda_range(str(msg))
    _here.depth = getattr(_here, "depth", 0) + 1
    return _here.depth - 1


def range_pop():
    """Ends the range begun last; returns how many are open still. RuntimeError where none is."""
    if not getattr(_here, "depth", 0):
        raise RuntimeError("nvtx.range_pop: no range is open in this thread (expected range_push before)")
    _C.cuda_range(None)
    _here.depth -= 1
    return _here.depth


def mark(msg):
    """A point in time named `msg`."""
    _C.cuda_range(str(msg), True)


@contextmanager
def range(msg, *args, **kwargs):
    """`with range("forward"):`, also as a decorator; args and kwargs are put into `msg` by str.format."""
    range_push(msg.format(*args, **kwargs))
    try:
        yield
    finally:
        range_pop()
