"""Timing the algorithms of products on a GPU: `enable()`, or PYDIST_CUDA_TUNE=1 for a whole program.

By default a product takes the first algorithm that cuBLASLt proposes, so that a program gives the same bits in every run and
on every rank. With timing, the third use of a shape tries all proposed algorithms (eight at most, four runs each, on the
current stream), and the fastest one serves from then on; other runs and other ranks may choose others. Nothing is timed
while a CUDA graph is captured."""

from pydist import _C


def enable(val=True):
    """Switches timing on or off for this process.

    >>> import pydist
    >>> pydist.cuda.tunable.enable()
    >>> pydist.cuda.tunable.is_enabled()
    True
    >>> pydist.cuda.tunable.enable(False)
    """
    if not isinstance(val, bool):
        raise TypeError(f"tunable.enable: val is a {type(val).__name__} (expected a bool)")
    _C.gpu_settings(*_C.gpu_settings()[:4], val)


def is_enabled():
    """Whether timing is on."""
    return _C.gpu_settings()[4]
