"""Intel's GPUs, which pydist does not support.

>>> import pydist
>>> pydist.xpu.is_available(), pydist.xpu.device_count()
(False, 0)
"""


def is_available():
    """False: pydist does not support Intel's GPUs."""
    return False


def device_count():
    """0: pydist does not support Intel's GPUs."""
    return 0
