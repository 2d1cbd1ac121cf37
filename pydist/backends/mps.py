"""Apple's GPUs, which pydist does not support."""


def is_available():
    """False: pydist does not support Apple's GPUs."""
    return False


def is_built():
    """False: pydist does not support Apple's GPUs."""
    return False
