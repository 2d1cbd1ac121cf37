"""OpenMP: the threads in kernels."""


def is_available():
    return True
