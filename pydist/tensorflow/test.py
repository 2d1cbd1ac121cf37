"""tf.test: whether there are GPUs."""

from pydist.tensorflow._names import lacking as _lacking


def is_gpu_available(cuda_only=False, min_cuda_compute_capability=None):
    """Whether there is a GPU."""
    return bool(gpu_device_name())


def gpu_device_name():
    """The name of the first GPU; "" without one."""
    from pydist.tensorflow import config

    return "/device:GPU:0" if config.list_physical_devices("GPU") else ""


__getattr__ = _lacking(__name__)
