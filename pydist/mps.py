"""Apple's GPUs, of which there are none here: every call raises RuntimeError.

>>> import pydist
>>> pydist.mps.device_count()
0
"""


def device_count():
    return 0


def _none(op):
    raise RuntimeError(f"mps.{op}: no MPS device (pydist was built for the CPU)")


def synchronize():
    _none("synchronize")


def empty_cache():
    _none("empty_cache")


def manual_seed(seed):
    _none("manual_seed")
