"""The accelerator of this machine, under PyTorch's names: there is none on this build."""


def is_available():
    return False


def device_count():
    return 0


def current_accelerator(check_available=False):
    """The device of the accelerator, or None: there is none."""
    return None


def _none(op):
    raise RuntimeError(f"accelerator.{op}: no accelerator (pydist was built for the CPU)")


def current_device_index():
    _none("current_device_index")


def set_device_index(device):
    _none("set_device_index")


def synchronize(device=None):
    _none("synchronize")
