"""Apple's GPUs, which pydist does not support: device_count() is 0, and every other call raises RuntimeError.

>>> import pydist
>>> pydist.mps.device_count()
0
"""


def device_count():
    """0: pydist does not support Apple's GPUs."""
    return 0


def _none(op):
    raise RuntimeError(f"mps.{op}: there is no MPS device (pydist does not support Apple's GPUs)")


def synchronize():
    """Raises RuntimeError: there is no MPS device."""
    _none("synchronize")


def empty_cache():
    """Raises RuntimeError: there is no MPS device."""
    _none("empty_cache")


def manual_seed(seed):
    """Raises RuntimeError: there is no MPS device."""
    _none("manual_seed")
