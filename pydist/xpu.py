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


def current_device():
    """Raises RuntimeError: there is no XPU device."""
    raise RuntimeError("xpu.current_device: there is no XPU device (pydist does not support Intel's GPUs)")


def set_device(device):
    """Raises RuntimeError: there is no XPU device."""
    raise RuntimeError(f"xpu.set_device: device is {device!r} (pydist does not support Intel's GPUs)")
