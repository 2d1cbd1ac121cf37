"""OpenMP: the threads of kernels."""


def is_available():
    """True: pydist's kernels use OpenMP."""
    return True
