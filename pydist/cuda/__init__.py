"""What there is of CUDA: no device on this build, said honestly, so scripts that ask first run on the CPU.

`python -m pydist.compat --cpu-as-cuda N` pretends N GPUs (`pretend`): their names mean the CPU, whose tensors stay what
they are, so that a script for several GPUs can be tried on a laptop.

>>> import pydist
>>> pydist.cuda.is_available(), pydist.cuda.device_count()
(False, 0)
"""

import os
import time
import warnings
from collections import namedtuple
from threading import local

from pydist import _C

_NAME = "CPU in the place of a GPU"
_here = local()
_Properties = namedtuple("_CudaDeviceProperties", "name major minor total_memory multi_processor_count")


def pretend(count):
    """From now on, here and in programs started from here, devices cuda:0 to cuda:count-1 mean the CPU. A warning says
    so. Raises ValueError for a count outside 0 to 128."""
    _C.pretend_cuda(count)
    os.environ["PYDIST_CPU_AS_CUDA"] = str(count)
    if count:
        warnings.warn(f"{count} GPUs are pretended: what runs on cuda and nccl runs on the CPU", stacklevel=2)


def device_count():
    """How many GPUs are pretended; there are no others."""
    return _C.pretended_cuda()


def is_available():
    """Whether there is a device: False, unless some are pretended."""
    return device_count() > 0


def is_initialized():
    return is_available()


def is_bf16_supported(including_emulation=True):
    """Whether a device takes bfloat16: pretended ones do."""
    return is_available()


def _index(op, device=None):
    """The index of a device of CUDA's, or of the current one. Raises RuntimeError where it is not there."""
    if not is_available():
        raise RuntimeError(f"cuda.{op}: no CUDA device (pydist was built for the CPU)")
    if device is None:
        return getattr(_here, "index", 0)
    device = _C.device(device)
    if device.type != "cuda":
        raise ValueError(f"cuda.{op}: device {device} (expected a CUDA device)")
    if device.index is None:
        return getattr(_here, "index", 0)
    if device.index >= device_count():
        raise RuntimeError(f"cuda.{op}: invalid device ordinal {device.index} (expected 0 to {device_count() - 1})")
    return device.index


def current_device():
    """The index of the current device. Raises RuntimeError where there is none."""
    return _index("current_device")


def set_device(device):
    """Makes it this thread's current device. Raises RuntimeError where it is not there."""
    _here.index = _index("set_device", device)


def get_device_name(device=None):
    _index("get_device_name", device)
    return _NAME


def get_device_properties(device=None):
    """(name, major, minor, total_memory, multi_processor_count)"""
    _index("get_device_properties", device)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return _Properties(_NAME, 0, 0, memory, os.cpu_count() or 1)


def get_device_capability(device=None):
    """(0, 0): features that scripts switch on by it are not there."""
    _index("get_device_capability", device)
    return 0, 0


def synchronize(device=None):
    _index("synchronize", device)


def init():
    _index("init")


def manual_seed(seed):
    """Seeds the generator of the current device: as in PyTorch, nothing where there is none."""
    if is_available():
        _C.manual_seed(seed)


manual_seed_all = manual_seed


def empty_cache():
    """Gives cached memory back to the system."""
    if is_available():
        _C.trim()


def ipc_collect():
    pass


def memory_allocated(device=None):
    """Bytes of all tensors where GPUs are pretended, else 0."""
    return _C.memory_allocated() if is_available() else 0


max_memory_allocated = memory_reserved = max_memory_reserved = memory_cached = max_memory_cached = memory_allocated


def reset_peak_memory_stats(device=None):
    pass


reset_max_memory_allocated = reset_max_memory_cached = reset_peak_memory_stats


class device:
    """`with device(i):` makes it this thread's current device inside; None and -1 change nothing."""

    def __init__(self, device):
        self.idx = -1 if device is None or device == -1 else _index("device", device)

    def __enter__(self):
        if self.idx >= 0:
            self._before = current_device()
            set_device(self.idx)

    def __exit__(self, *error):
        if self.idx >= 0:
            set_device(self._before)


class Stream:
    """A queue of device work; on pretended devices work is done when its call returns. RuntimeError without a device."""

    def __init__(self, device=None, priority=0, **kwargs):
        self.device_index = _index(type(self).__name__, device)

    def synchronize(self):
        pass

    def query(self):
        return True

    def wait_stream(self, stream):
        pass

    def wait_event(self, event):
        pass

    def record_event(self, event=None):
        event = Event() if event is None else event
        event.record(self)
        return event

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


class Event:
    """A point in time of a stream. RuntimeError without a device, and for the time between events not recorded."""

    def __init__(self, enable_timing=False, blocking=False, interprocess=False):
        _index("Event")
        self._time = None

    def record(self, stream=None):
        self._time = time.perf_counter()

    def elapsed_time(self, end_event):
        """Milliseconds from this event to another one."""
        if self._time is None or end_event._time is None:
            raise RuntimeError("Event.elapsed_time: both events must be recorded before")
        return (end_event._time - self._time) * 1e3

    def synchronize(self):
        pass

    def query(self):
        return True

    def wait(self, stream=None):
        pass


def stream(stream):
    """A context in which work goes to the stream."""
    return Stream() if stream is None else stream


def current_stream(device=None):
    return Stream(device)


default_stream = current_stream


def __getattr__(name):
    from importlib import import_module

    from pydist import _legacy

    if name == "amp":
        return import_module("pydist.cuda.amp")
    if name in _legacy._DTYPES:
        made = globals()[name] = _legacy.on_cuda(name)
        return made
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
