"""The CPU as a device, with PyTorch's names.

>>> import pydist
>>> pydist.cpu.is_available(), pydist.cpu.device_count(), pydist.cpu.current_device()
(True, 1, 'cpu')
"""

from pydist.cpu import amp

__all__ = ["amp", "current_device", "device_count", "is_available", "synchronize"]


def is_available():
    """True."""
    return True


def device_count():
    """1: all processors together are one device."""
    return 1


def current_device():
    """ "cpu"."""
    return "cpu"


def synchronize(device=None):
    """Does nothing: on the CPU, calls return when their work is done."""
