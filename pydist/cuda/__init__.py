"""CUDA devices, their memory, streams and events, with PyTorch's names. Nothing is opened before the first call.
There are no devices without a driver, without a GPU, or without `pydist/_cuda.so` in this build.

`python -m pydist.compat --cpu-as-cuda N` pretends N GPUs (see `pretend`): their names mean the CPU, and tensors stay
there, so that a script for several GPUs can be tried on a laptop.

>>> import pydist
>>> pydist.cuda.is_available(), pydist.cuda.device_count()
(False, 0)
"""

import os
import time
import warnings
from collections import namedtuple
from contextlib import nullcontext
from threading import local

from pydist import _C

_NAME = "CPU in the place of a GPU"
_here = local()
_STATS = {
    "allocated_bytes.all.current": "allocated", "allocated_bytes.all.peak": "most_allocated", "reserved_bytes.all.current": "reserved",
    "reserved_bytes.all.peak": "most_reserved", "segment.all.current": "segments", "num_alloc_retries": "retries", "num_ooms": "failures",
}  # fmt: skip
_Properties = namedtuple("_CudaDeviceProperties", "name major minor total_memory multi_processor_count")


def pretend(count):
    """From now on, in this process and in programs started from it, the devices cuda:0 to cuda:count-1 mean the CPU.
    Warns about it. Raises ValueError for a count outside 0 to 128."""
    _C.pretend_cuda(count)
    os.environ["PYDIST_CPU_AS_CUDA"] = str(count)
    if count:
        warnings.warn(f"pydist pretends {count} GPUs: code for cuda and nccl runs on the CPU", stacklevel=2)


OutOfMemoryError = _C.OutOfMemoryError


def device_count():
    """The number of GPUs, or of pretended ones."""
    return _C.pretended_cuda() or _C.cuda_count()


def is_available():
    """Whether there is a GPU, or a pretended one."""
    return device_count() > 0


def is_initialized():
    """Whether there is a GPU: there is nothing to initialize."""
    return is_available()


def is_bf16_supported(including_emulation=True):
    """Whether the device supports bfloat16: all GPUs that pydist's kernels run on do, and so do pretended ones."""
    return is_available()


def _real():
    """Whether the devices are GPUs and not pretended ones."""
    return not _C.pretended_cuda() and _C.cuda_count() > 0


def _current():
    return _C.cuda_current() if _real() else getattr(_here, "index", 0)


def _index(op, device=None):
    """The index of a CUDA device, or of the current one. Raises RuntimeError if there is no such device."""
    if not is_available():
        raise RuntimeError(f"cuda.{op}: there is no CUDA device ({_C.cuda_why()})")
    if device is None:
        return _current()
    device = _C.device(device)
    if device.type != "cuda":
        raise ValueError(f"cuda.{op}: device {device} (expected a CUDA device)")
    if device.index is None:
        return _current()
    if device.index >= device_count():
        raise RuntimeError(f"cuda.{op}: invalid device ordinal {device.index} (expected 0 to {device_count() - 1})")
    return device.index


def current_device():
    """The index of this thread's current device. Raises RuntimeError if there is none."""
    return _index("current_device")


def set_device(device):
    """Makes the device the current one of this thread. Raises RuntimeError if there is no such device."""
    index = _index("set_device", device)
    if _real():
        _C.cuda_set_current(index)
    else:
        _here.index = index


def get_device_name(device=None):
    """The device's name."""
    return get_device_properties(device).name


def get_device_properties(device=None):
    """(name, major, minor, total_memory, multi_processor_count) of the device."""
    index = _index("get_device_properties", device)
    if _real():
        return _Properties(*_C.cuda_properties(index))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return _Properties(_NAME, 0, 0, memory, os.cpu_count() or 1)


def get_device_capability(device=None):
    """(major, minor) of the device; (0, 0) for a pretended one, so that scripts do not switch on GPU features."""
    properties = get_device_properties(device)
    return properties.major, properties.minor


def synchronize(device=None):
    """Waits until the device has done all its work."""
    index = _index("synchronize", device)
    if _real():
        _C.cuda_synchronize(index)


def init():
    """Does nothing if there is a device; raises RuntimeError if there is none."""
    _index("init")


def manual_seed(seed):
    """Seeds the generator of the current device. As in PyTorch, does nothing without a device."""
    if is_available():
        _C.manual_seed(seed)


manual_seed_all = manual_seed


def initial_seed():
    """The seed of the current device's generator; for pretended GPUs that of the CPU."""
    _index("initial_seed")
    return _C.initial_seed()


def seed():
    """Seeds the current device with a number from the system. Does nothing without a device."""
    if is_available():
        from pydist.random import seed

        seed()


seed_all = seed


def get_rng_state(device="cuda"):
    """The state of the device's generator. Raises RuntimeError if there is no device."""
    _index("get_rng_state", device)
    return _C.get_rng_state()


def set_rng_state(new_state, device="cuda"):
    """Sets the state of the device's generator. Raises RuntimeError if there is no device."""
    _index("set_rng_state", device)
    _C.set_rng_state(new_state)


def get_rng_state_all():
    """A list with one state for each device."""
    return [get_rng_state(i) for i in range(device_count())]


def set_rng_state_all(new_states):
    """Sets the states of all devices, given as a list."""
    for i, state in enumerate(new_states):
        set_rng_state(state, i)


def empty_cache():
    """Returns cached memory to the system."""
    if is_available():
        _C.trim()


def ipc_collect():
    """Does nothing: pydist caches no memory of other processes."""


def memory_stats(device=None):
    """The bytes in tensors and in the cache of freed memory, with PyTorch's keys. allocated_bytes.all (tensors, each
    rounded up to 512) and reserved_bytes.all (with the cache) each have .current and .peak. segment.all.current counts
    pieces from the driver, num_alloc_retries counts allocations that succeeded after the cache was emptied, num_ooms
    counts those that failed."""
    if _real():
        held = _C.cuda_memory(_index("memory_stats", device))
    else:
        held = dict.fromkeys(_STATS.values(), 0)
        held.update(
            dict.fromkeys(
                held.keys() & {"allocated", "most_allocated", "reserved", "most_reserved"},
                _C.memory_allocated() if is_available() else 0,
            )
        )
    return {name: held[own] for name, own in _STATS.items()}


def memory_allocated(device=None):
    """Bytes of the tensors on the device, each rounded up to 512; for pretended GPUs the bytes of all tensors."""
    return memory_stats(device)["allocated_bytes.all.current"]


def max_memory_allocated(device=None):
    """The largest memory_allocated() since the start or since reset_peak_memory_stats()."""
    return memory_stats(device)["allocated_bytes.all.peak"]


def memory_reserved(device=None):
    """Bytes taken from the driver, for tensors and for the cache."""
    return memory_stats(device)["reserved_bytes.all.current"]


def max_memory_reserved(device=None):
    """The largest memory_reserved() since the start or since reset_peak_memory_stats()."""
    return memory_stats(device)["reserved_bytes.all.peak"]


memory_cached, max_memory_cached = memory_reserved, max_memory_reserved


def mem_get_info(device=None):
    """(free, total) bytes of the device, as the driver says."""
    index = _index("mem_get_info", device)
    if _real():
        return _C.cuda_free_memory(index)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES"), get_device_properties(device).total_memory


def memory_summary(device=None, abbreviated=False):
    """One line of text with the allocated bytes."""
    return f"{memory_allocated(device)} bytes allocated"


def get_arch_list():
    """The GPU architectures that the kernels were built for, such as ["sm_80", "sm_90a"]; [] if this build has no
    kernels for GPUs."""
    return [word for word in _C.cuda_built().split() if word.startswith("sm_")]


def is_current_stream_capturing():
    """Whether a CUDAGraph is being captured in the current stream."""
    return _real() and _C.cuda_capturing()


def can_device_access_peer(device, peer_device):
    """Whether a device can read the other one's memory. True for two pretended devices, which share their memory."""
    return _index("can_device_access_peer", device) != _index("can_device_access_peer", peer_device)


def reset_peak_memory_stats(device=None):
    """Makes the present bytes the largest ones."""
    if _real():
        _C.cuda_reset_most(_index("reset_peak_memory_stats", device))


reset_max_memory_allocated = reset_max_memory_cached = reset_peak_memory_stats


class device:
    """`with device(i):` makes device i the current one of this thread inside the block. None and -1 change nothing."""

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
    """A queue of device work, besides the default one. On pretended devices work is done when its call returns. Memory
    belongs to the stream in which it was allocated: a tensor that another stream uses has to live until that use is
    done. Raises RuntimeError without a device."""

    cuda_stream = 0  # CUDA's handle: 0 is the default stream

    def __init__(self, device=None, priority=0, **kwargs):
        self.device_index = _index(type(self).__name__, device)
        self._own = _real()
        if self._own:
            self.cuda_stream = _C.cuda_stream_new(self.device_index, priority)

    @classmethod
    def _of(cls, index, number):
        stream = cls.__new__(cls)
        stream.device_index, stream.cuda_stream, stream._own = index, number, False
        return stream

    @property
    def device(self):
        """The device of the stream."""
        return _C.device("cuda", self.device_index)

    def synchronize(self):
        """Waits until all work of the stream is done."""
        if _real():
            _C.cuda_stream_wait(self.device_index, self.cuda_stream)

    def query(self):
        """Whether all work of the stream is done."""
        return _C.cuda_stream_done(self.device_index, self.cuda_stream) if _real() else True

    def wait_stream(self, stream):
        """Later work of this stream runs after the work that `stream` has been given so far."""
        self.wait_event(stream.record_event())

    def wait_event(self, event):
        """Later work of this stream runs after the event."""
        if event._made is not None:
            _C.cuda_stream_after(event._made, self.device_index, self.cuda_stream)

    def __eq__(self, other):
        return isinstance(other, Stream) and (self.device_index, self.cuda_stream) == (
            other.device_index,
            other.cuda_stream,
        )

    def __hash__(self):
        return hash((self.device_index, self.cuda_stream))

    def __del__(self):
        if getattr(self, "_own", False):
            _C.cuda_stream_free(self.device_index, self.cuda_stream)  # the work of its next owner runs after its own

    def record_event(self, event=None):
        """Records an event (default: a new one) in this stream, and returns it."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def __enter__(self):
        if _real():
            self._before = getattr(self, "_before", []) + [_C.cuda_stream(self.device_index)]
            _C.cuda_set_stream(self.device_index, self.cuda_stream)
        return self

    def __exit__(self, *error):
        if _real():
            _C.cuda_set_stream(self.device_index, self._before.pop())


class Event:
    """A point in time in a stream. Raises RuntimeError without a device, and for the time between events that were not
    recorded."""

    _made = None

    def __init__(self, enable_timing=False, blocking=False, interprocess=False, external=False):
        _index("Event")
        self._time, self._timing = None, enable_timing

    def record(self, stream=None):
        """Records the event: it happens when all work that the stream (default: the current one) has been given so far
        is done. ValueError for a stream of another device than the first time."""
        stream = stream or current_stream()
        if _real():
            if self._made is None:
                self._index, self._made = stream.device_index, _C.cuda_event_new(stream.device_index, self._timing)
            if stream.device_index != self._index:
                raise ValueError(
                    f"Event.record: a stream of cuda:{stream.device_index} (expected one of cuda:{self._index}, as before)"
                )
            _C.cuda_event_record(self._made, stream.device_index, stream.cuda_stream)
        self._time = time.perf_counter()

    def __del__(self):
        if self._made is not None:
            _C.cuda_event_free(self._made)

    def elapsed_time(self, end_event):
        """Milliseconds from this event to another one."""
        if self._time is None or end_event._time is None:
            raise RuntimeError("Event.elapsed_time: an event was not recorded (expected record() of both first)")
        if _real():
            return _C.cuda_event_between(self._made, end_event._made)
        return (end_event._time - self._time) * 1e3

    def synchronize(self):
        """Waits until the event has happened."""
        if self._made is not None:
            _C.cuda_event_wait(self._made)

    def query(self):
        """Whether the event has happened."""
        return self._made is None or _C.cuda_event_done(self._made)

    def wait(self, stream=None):
        """Later work of the stream (default: the current one) runs after the event."""
        (stream or current_stream()).wait_event(self)


def stream(stream):
    """A context in which work goes to the stream."""
    return nullcontext() if stream is None else stream


def current_stream(device=None):
    """The stream to which this thread's work on the device goes."""
    index = _index("current_stream", device)
    return Stream._of(index, _C.cuda_stream(index) if _real() else 0)


def default_stream(device=None):
    """The device's default stream."""
    return Stream._of(_index("default_stream", device), 0)


def __getattr__(name):
    from importlib import import_module

    from pydist import _legacy

    if name in ("amp", "graphs", "nvtx", "tunable"):
        return import_module(f"pydist.cuda.{name}")
    if name in ("CUDAGraph", "graph", "graph_pool_handle", "make_graphed_callables"):
        return getattr(import_module("pydist.cuda.graphs"), name)
    if name in _legacy._DTYPES:
        made = globals()[name] = _legacy.on_cuda(name)
        return made
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
