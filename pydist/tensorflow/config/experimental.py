"""tf.config.experimental: the older names of tf.config, memory, and determinism."""

import pydist as _pydist
from pydist.tensorflow._names import lacking as _lacking
from pydist.tensorflow.config import (
    LogicalDeviceConfiguration,
    _state,
    get_logical_device_configuration,
    list_physical_devices,
    set_logical_device_configuration,
)

VirtualDeviceConfiguration = LogicalDeviceConfiguration
set_virtual_device_configuration = set_logical_device_configuration
get_virtual_device_configuration = get_logical_device_configuration


def set_memory_growth(device, enable):
    """Accepted: memory of a GPU grows as it is needed in any case."""
    if device not in list_physical_devices():
        raise ValueError(f"config.experimental.set_memory_growth: {device!r} is not there (expected a physical device)")
    _state["growth"][device.name] = bool(enable)


def get_memory_growth(device):
    """What set_memory_growth was called with."""
    return _state["growth"].get(device.name, False)


def _gpu(device):
    from pydist.distribute.strategy import device_of

    kind = device_of(device, "config.experimental")
    if not kind.startswith("cuda"):
        raise ValueError(
            f"config.experimental: device is {device!r} (expected a GPU: memory of the CPU is not counted)"
        )
    return int(kind.partition(":")[2] or 0)


def get_memory_info(device):
    """{"current": bytes in use on a GPU, "peak": the most so far}."""
    index = _gpu(device)
    return {"current": _pydist.cuda.memory_allocated(index), "peak": _pydist.cuda.max_memory_allocated(index)}


def reset_memory_stats(device):
    """Counts the peak of memory anew."""
    _pydist.cuda.reset_peak_memory_stats(_gpu(device))


def get_device_details(device):
    """What is known of a device: the name of a GPU."""
    if device.device_type != "GPU":
        return {}
    index = int(device.name.rpartition(":")[2])
    return {
        "device_name": _pydist.cuda.get_device_name(index),
        "compute_capability": _pydist.cuda.get_device_capability(index),
    }


def enable_op_determinism():
    """Nothing: results of pydist are deterministic in any case."""


def enable_tensor_float_32_execution(enabled):
    """Whether products on GPUs may round their inputs to 19 bits."""
    _pydist.set_float32_matmul_precision("high" if enabled else "highest")


def tensor_float_32_execution_enabled():
    """Whether products on GPUs may round their inputs to 19 bits."""
    return _pydist.get_float32_matmul_precision() != "highest"


__getattr__ = _lacking(__name__)
