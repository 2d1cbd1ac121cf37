"""The accelerator of this machine, with PyTorch's names: none, or GPUs, perhaps pretended ones (see `pydist.cuda`)."""

from pydist import _C, cuda


def is_available():
    """Whether there is an accelerator."""
    return cuda.is_available()


def device_count():
    """The number of accelerators; 0 if there is none."""
    return cuda.device_count()


def current_accelerator(check_available=False):
    """The device of the accelerator; None if there is none."""
    return _C.device("cuda") if is_available() else None


def _need(op):
    if not is_available():
        raise RuntimeError(f"accelerator.{op}: there is no accelerator (expected a CUDA device)")


def current_device_index():
    """The index of this thread's current accelerator. Raises RuntimeError if there is none."""
    _need("current_device_index")
    return cuda.current_device()


current_device_idx = current_device_index


def set_device_index(device):
    """Makes the accelerator with this index the current one of this thread. Raises RuntimeError if there is none."""
    _need("set_device_index")
    cuda.set_device(device)


set_device_idx = set_device_index


def device_index(device):
    """`with device_index(i):` makes accelerator i the current one inside the block. None changes nothing."""
    return cuda.device(device)


def synchronize(device=None):
    """Waits until all work on the accelerator is done. Raises RuntimeError if there is none."""
    _need("synchronize")
