"""The accelerator of this machine, under PyTorch's names: none, or the GPUs that are pretended (`pydist.cuda`)."""

from pydist import _C, cuda


def is_available():
    return cuda.is_available()


def device_count():
    return cuda.device_count()


def current_accelerator(check_available=False):
    """The device of the accelerator, or None where there is none."""
    return _C.device("cuda") if is_available() else None


def _need(op):
    if not is_available():
        raise RuntimeError(f"accelerator.{op}: no accelerator (pydist was built for the CPU)")


def current_device_index():
    _need("current_device_index")
    return cuda.current_device()


current_device_idx = current_device_index


def set_device_index(device):
    _need("set_device_index")
    cuda.set_device(device)


set_device_idx = set_device_index


def device_index(device):
    """`with device_index(i):` makes it the current device inside; None changes nothing."""
    return cuda.device(device)


def synchronize(device=None):
    _need("synchronize")
