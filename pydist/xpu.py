"""Intel's GPUs, of which there are none here.

>>> import pydist
>>> pydist.xpu.is_available(), pydist.xpu.device_count()
(False, 0)
"""


def is_available():
    return False


def device_count():
    return 0
