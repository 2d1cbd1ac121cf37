"""tf.config: devices, threads, and how functions run."""

import collections as _collections

from pydist import _C
from pydist.distribute.mirrored import set_logical_cpus as _set_logical_cpus
from pydist.tensorflow._function import functions_run_eagerly as functions_run_eagerly
from pydist.tensorflow._function import run_functions_eagerly as run_functions_eagerly
from pydist.tensorflow._names import lazy as _lazy

PhysicalDevice = _collections.namedtuple("PhysicalDevice", "name device_type")
LogicalDevice = _collections.namedtuple("LogicalDevice", "name device_type")

_state = {"cpus": 1, "visible": None, "growth": {}, "soft": True, "flags": {}}


class LogicalDeviceConfiguration:
    """A logical device of a CPU. A limit of memory is accepted for GPUs and has no effect."""

    def __init__(self, memory_limit=None, experimental_priority=None, experimental_device_ordinal=None):
        self.memory_limit = memory_limit

    def __repr__(self):
        return f"LogicalDeviceConfiguration(memory_limit={self.memory_limit})"


def _gpus():
    return 0 if _C.pretended_cuda() else _C.cuda_count()


def _kind(device_type):
    if device_type is not None and not isinstance(device_type, str):
        raise TypeError(f"config: device_type is {device_type!r} (expected 'CPU' or 'GPU')")
    return None if device_type is None else device_type.upper()


def list_physical_devices(device_type=None):
    """The CPU and the GPUs of this machine, or those of one type."""
    kind = _kind(device_type)
    found = [PhysicalDevice("/physical_device:CPU:0", "CPU")]
    found += [PhysicalDevice(f"/physical_device:GPU:{i}", "GPU") for i in range(_gpus())]
    return [device for device in found if kind in (None, device.device_type)]


def list_logical_devices(device_type=None):
    """What strategies see: the parts of the CPU, and the visible GPUs."""
    kind = _kind(device_type)
    visible = get_visible_devices()
    found = []
    if any(device.device_type == "CPU" for device in visible):
        found += [LogicalDevice(f"/device:CPU:{i}", "CPU") for i in range(_state["cpus"])]
    count = sum(device.device_type == "GPU" for device in visible)
    found += [LogicalDevice(f"/device:GPU:{i}", "GPU") for i in range(count)]
    return [device for device in found if kind in (None, device.device_type)]


def get_visible_devices(device_type=None):
    """The physical devices that are in use."""
    kind = _kind(device_type)
    visible = list_physical_devices() if _state["visible"] is None else _state["visible"]
    return [device for device in visible if kind in (None, device.device_type)]


def set_visible_devices(devices, device_type=None):
    """Says which physical devices are in use. Without GPUs, only what is there already can be said."""
    kind = _kind(device_type)
    devices = list(devices) if isinstance(devices, (list, tuple)) and not hasattr(devices, "device_type") else [devices]
    known = list_physical_devices()
    for device in devices:
        if device not in known:
            raise ValueError(f"config.set_visible_devices: {device!r} is not there (expected some of {known})")
        if kind not in (None, device.device_type):
            raise ValueError(f"config.set_visible_devices: {device!r} is no {kind} (expected devices of that type)")
    others = [device for device in get_visible_devices() if kind is not None and device.device_type != kind]
    chosen = [*others, *devices]
    hidden = [device for device in known if device.device_type == "GPU" and device not in chosen]
    if hidden:
        raise NotImplementedError(
            f"config.set_visible_devices: {hidden[0].name} cannot be hidden from a running process (expected "
            "CUDA_VISIBLE_DEVICES in "
            "its environment)"
        )
    _state["visible"] = chosen


def set_logical_device_configuration(device, logical_devices):
    """Divides the CPU into logical devices, so that MirroredStrategy() has as many replicas."""
    if device.device_type == "CPU":
        _set_logical_cpus(len(logical_devices))
        _state["cpus"] = len(logical_devices)
    elif len(logical_devices) > 1:
        raise NotImplementedError("config.set_logical_device_configuration: parts of a GPU (expected one for each GPU)")


def get_logical_device_configuration(device):
    """The logical devices of a physical one; None if it is not divided."""
    if device.device_type == "CPU" and _state["cpus"] > 1:
        return [LogicalDeviceConfiguration() for _ in range(_state["cpus"])]
    return None


def set_soft_device_placement(enabled):
    """Accepted: a device that is not there is an error in any case."""
    _state["soft"] = bool(enabled)


def get_soft_device_placement():
    """What set_soft_device_placement was called with."""
    return _state["soft"]


__getattr__, __dir__ = _lazy(__name__, {}, "experimental optimizer threading")
