"""CUDA matrix products: settings that mean nothing on the CPU."""

from types import SimpleNamespace

matmul = SimpleNamespace(allow_tf32=False, allow_fp16_reduced_precision_reduction=True)


def is_built():
    return False
