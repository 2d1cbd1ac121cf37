"""OpenMP: the threads in kernels."""


def is_available():
    """True."""
    return True
