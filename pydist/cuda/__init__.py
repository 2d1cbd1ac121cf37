"""CUDA's devices, their memory, streams and events, under PyTorch's names. Nothing is opened before the first question; where
there is no driver, no device or no `pydist/_cuda.so` in this build, the answer is that there are none.

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
    """From now on, here and in programs started from here, devices cuda:0 to cuda:count-1 mean the CPU. A warning says
    so. Raises ValueError for a count outside 0 to 128."""
    _C.pretend_cuda(count)
    os.environ["PYDIST_CPU_AS_CUDA"] = str(count)
    if count:
        warnings.warn(f"{count} GPUs are pretended: what runs on cuda and nccl runs on the CPU", stacklevel=2)


OutOfMemoryError = _C.OutOfMemoryError


def device_count():
    """How many GPUs there are, or are pretended."""
    return _C.pretended_cuda() or _C.cuda_count()


def is_available():
    """Whether there is a device, or one is pretended."""
    return device_count() > 0


def is_initialized():
    """Whether there is a device."""
    return is_available()


def is_bf16_supported(including_emulation=True):
    """Whether a device takes bfloat16: all that pydist's kernels run on, and pretended ones, do."""
    return is_available()


def _real():
    """Whether the devices are GPUs, not pretended ones."""
    return not _C.pretended_cuda() and _C.cuda_count() > 0


def _current():
    return _C.cuda_current() if _real() else getattr(_here, "index", 0)


def _index(op, device=None):
    """The index of a device of CUDA's, or of the current one. Raises RuntimeError where it is not there."""
    if not is_available():
        raise RuntimeError(f"cuda.{op}: no CUDA device ({_C.cuda_why()})")
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
    """The index of the current device. Raises RuntimeError where there is none."""
    return _index("current_device")


def set_device(device):
    """Makes it this thread's current device. Raises RuntimeError where it is not there."""
    index = _index("set_device", device)
    if _real():
        _C.cuda_set_current(index)
    else:
        _here.index = index


def get_device_name(device=None):
    """The name of a device."""
    return get_device_properties(device).name


def get_device_properties(device=None):
    """(name, major, minor, total_memory, multi_processor_count)"""
    index = _index("get_device_properties", device)
    if _real():
        return _Properties(*_C.cuda_properties(index))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return _Properties(_NAME, 0, 0, memory, os.cpu_count() or 1)


def get_device_capability(device=None):
    """(major, minor); (0, 0) where it is pretended: features that scripts switch on by it are not there."""
    properties = get_device_properties(device)
    return properties.major, properties.minor


def synchronize(device=None):
    """Waits until all work that the device was given is done."""
    index = _index("synchronize", device)
    if _real():
        _C.cuda_synchronize(index)


def init():
    """Checks that there is a device; nothing else has to be initialized."""
    _index("init")


def manual_seed(seed):
    """Seeds the generator of the current device: as in PyTorch, nothing where there is none."""
    if is_available():
        _C.manual_seed(seed)


manual_seed_all = manual_seed


def initial_seed():
    """The seed of the current device's generator, which is the CPU's where GPUs are pretended."""
    _index("initial_seed")
    return _C.initial_seed()


def seed():
    """A seed from the system for the current device: nothing where there is none."""
    if is_available():
        from pydist.random import seed

        seed()


seed_all = seed


def get_rng_state(device="cuda"):
    """The state of the device's generator. Raises RuntimeError where there is no device."""
    _index("get_rng_state", device)
    return _C.get_rng_state()


def set_rng_state(new_state, device="cuda"):
    """Sets the state of the random generator that get_rng_state returned. RuntimeError if there is no device."""
    _index("set_rng_state", device)
    _C.set_rng_state(new_state)


def get_rng_state_all():
    """One state for each device."""
    return [get_rng_state(i) for i in range(device_count())]


def set_rng_state_all(new_states):
    """Sets one state for each device."""
    for i, state in enumerate(new_states):
        set_rng_state(state, i)


def empty_cache():
    """Gives cached memory back to the system."""
    if is_available():
        _C.trim()


def ipc_collect():
    """Does nothing: no memory is shared with other processes."""


def memory_stats(device=None):
    """What tensors and the cache of freed memory hold, under PyTorch's names: allocated_bytes.all (tensors, each rounded up to
    512) and reserved_bytes.all (with the cache), each .current and .peak; segment.all.current (pieces taken from the driver),
    num_alloc_retries (after giving cached memory back) and num_ooms."""
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
    """Bytes of the tensors on the device, each rounded up to 512; of all tensors where GPUs are pretended."""
    return memory_stats(device)["allocated_bytes.all.current"]


def max_memory_allocated(device=None):
    """The largest memory_allocated() since the start, or reset_peak_memory_stats()."""
    return memory_stats(device)["allocated_bytes.all.peak"]


def memory_reserved(device=None):
    """Bytes taken from the driver, for tensors and for the cache."""
    return memory_stats(device)["reserved_bytes.all.current"]


def max_memory_reserved(device=None):
    """The most bytes that tensors and the cache held together, since the last reset_peak_memory_stats."""
    return memory_stats(device)["reserved_bytes.all.peak"]


memory_cached, max_memory_cached = memory_reserved, max_memory_reserved


def mem_get_info(device=None):
    """(free, total) bytes of the device, by its driver."""
    index = _index("mem_get_info", device)
    if _real():
        return _C.cuda_free_memory(index)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES"), get_device_properties(device).total_memory


def memory_summary(device=None, abbreviated=False):
    """A line of text."""
    return f"{memory_allocated(device)} bytes allocated"


def get_arch_list():
    """The GPUs that the kernels were built for, such as ["sm_80", "sm_90a"]; [] where there are none in this build."""
    return [word for word in _C.cuda_built().split() if word.startswith("sm_")]


def is_current_stream_capturing():
    """Whether a CUDAGraph is being captured in the current stream."""
    return _real() and _C.cuda_capturing()


def can_device_access_peer(device, peer_device):
    """True for two pretended devices: they are the same memory."""
    return _index("can_device_access_peer", device) != _index("can_device_access_peer", peer_device)


def reset_peak_memory_stats(device=None):
    """Lets the peaks in memory_stats begin anew."""
    if _real():
        _C.cuda_reset_most(_index("reset_peak_memory_stats", device))


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
    """A queue of device work, beside the default one; on pretended devices work is done when its call returns. Memory belongs
    to the stream that it was allocated in: a tensor used in another one must live until that use is done. RuntimeError
    without a device."""

    cuda_stream = 0  # CUDA's own number: 0 is the default stream

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
        return _C.device("cuda", self.device_index)

    def synchronize(self):
        """Waits for its work."""
        if _real():
            _C.cuda_stream_wait(self.cuda_stream)

    def query(self):
        """Whether its work is done."""
        return _C.cuda_stream_done(self.cuda_stream) if _real() else True

    def wait_stream(self, stream):
        """Later work here comes after what `stream` has been given so far."""
        self.wait_event(stream.record_event())

    def wait_event(self, event):
        """Later work here comes after the event."""
        if _real():
            _C.cuda_stream_after(self.cuda_stream, event._number())

    def __eq__(self, other):
        return isinstance(other, Stream) and (self.device_index, self.cuda_stream) == (
            other.device_index,
            other.cuda_stream,
        )

    def __hash__(self):
        return hash((self.device_index, self.cuda_stream))

    def __del__(self):
        if getattr(self, "_own", False):
            _C.cuda_stream_free(self.device_index, self.cuda_stream)  # CUDA lets its work finish first

    def record_event(self, event=None):
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
    """A point in time of a stream. RuntimeError without a device, and for the time between events not recorded."""

    _made = None

    def __init__(self, enable_timing=False, blocking=False, interprocess=False, external=False):
        _index("Event")
        self._time, self._timing = None, enable_timing

    def _number(self):
        if self._made is None:
            self._made = _C.cuda_event_new(_index("Event"), self._timing)
        return self._made

    def record(self, stream=None):
        """It happens when all that the stream (the current one) has been given so far is done."""
        self._time = time.perf_counter()
        if _real():
            _C.cuda_event_record(self._number(), (stream or current_stream()).cuda_stream)

    def __del__(self):
        if self._made is not None:
            _C.cuda_event_free(self._made)

    def elapsed_time(self, end_event):
        """Milliseconds from this event to another one."""
        if self._time is None or end_event._time is None:
            raise RuntimeError("Event.elapsed_time: both events must be recorded before")
        if _real():
            return _C.cuda_event_between(self._number(), end_event._number())
        return (end_event._time - self._time) * 1e3

    def synchronize(self):
        """Waits for it."""
        if self._made is not None:
            _C.cuda_event_wait(self._made)

    def query(self):
        """Whether it has happened."""
        return self._made is None or _C.cuda_event_done(self._made)

    def wait(self, stream=None):
        """Later work of the stream (the current one) comes after it."""
        (stream or current_stream()).wait_event(self)


def stream(stream):
    """A context in which work goes to the stream."""
    return nullcontext() if stream is None else stream


def current_stream(device=None):
    """The stream that this thread's work on the device goes to."""
    index = _index("current_stream", device)
    return Stream._of(index, _C.cuda_stream(index) if _real() else 0)


def default_stream(device=None):
    """The stream on which a device works if the program chooses none."""
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
