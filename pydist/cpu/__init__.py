"""What PyTorch says of the CPU as a device.

>>> import pydist
>>> pydist.cpu.is_available(), pydist.cpu.device_count(), pydist.cpu.current_device()
(True, 1, 'cpu')
"""

from pydist.cpu import amp

__all__ = ["amp", "current_device", "device_count", "is_available", "synchronize"]


def is_available():
    return True


def device_count():
    return 1


def current_device():
    return "cpu"


def synchronize(device=None):
    """Nothing: calls return when their work is done."""
