"""What there is of CUDA: nothing yet on this build, said honestly. Scripts that ask first run on the CPU.

>>> import pydist
>>> pydist.cuda.is_available(), pydist.cuda.device_count()
(False, 0)
"""


def is_available():
    """False: this build has no CUDA device."""
    return False


def is_initialized():
    return False


def is_bf16_supported(including_emulation=True):
    return False


def device_count():
    return 0


def _none(op):
    raise RuntimeError(f"cuda.{op}: no CUDA device (pydist was built for the CPU)")


def current_device():
    """The index of the current device. Raises RuntimeError: there is none."""
    _none("current_device")


def set_device(device):
    """Raises RuntimeError: there is no device."""
    _none("set_device")


def get_device_name(device=None):
    _none("get_device_name")


def get_device_properties(device=None):
    _none("get_device_properties")


def get_device_capability(device=None):
    _none("get_device_capability")


def synchronize(device=None):
    _none("synchronize")


def init():
    _none("init")


def manual_seed(seed):
    """Seeds the generator of the current device: as in PyTorch, nothing where there is none."""


manual_seed_all = manual_seed


def empty_cache():
    """Gives cached device memory back: nothing where there is none."""


def ipc_collect():
    pass


def _no_bytes(device=None):
    """0 bytes: there is no device."""
    return 0


memory_allocated = max_memory_allocated = memory_reserved = max_memory_reserved = _no_bytes
memory_cached = max_memory_cached = _no_bytes


def reset_peak_memory_stats(device=None):
    pass


reset_max_memory_allocated = reset_max_memory_cached = reset_peak_memory_stats


class Stream:
    """A queue of device work. Raises RuntimeError: there is no device."""

    def __init__(self, *args, **kwargs):
        _none(type(self).__name__)


class Event(Stream):
    """A point in a stream. Raises RuntimeError: there is no device."""


def current_stream(device=None):
    _none("current_stream")
