"""The choice of an attention kernel. pydist has only one, so choices are accepted and change nothing."""

from contextlib import contextmanager
from enum import Enum


class SDPBackend(Enum):
    """PyTorch's kinds of attention."""

    ERROR = -1
    MATH = 0
    FLASH_ATTENTION = 1
    EFFICIENT_ATTENTION = 2
    CUDNN_ATTENTION = 3
    OVERRIDEABLE = 4


@contextmanager
def sdpa_kernel(backends, set_priority=False):
    """A block in which `scaled_dot_product_attention` uses these kernels (an SDPBackend, or a list of them). Raises
    TypeError for other arguments. In pydist it changes nothing."""
    for backend in [backends] if isinstance(backends, SDPBackend) else backends:
        if not isinstance(backend, SDPBackend):
            raise TypeError(f"sdpa_kernel: got {backend!r} (expected an SDPBackend)")
    yield
