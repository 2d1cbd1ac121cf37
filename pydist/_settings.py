"""Settings of PyTorch's that scripts write, and what they mean here."""

from pydist import _C

_matmul_precision = "highest"


def set_float32_matmul_precision(precision):
    """"highest", "high" or "medium". float32 products are computed in float32 here whatever is said."""
    global _matmul_precision
    if precision not in ("highest", "high", "medium"):
        raise RuntimeError(f"set_float32_matmul_precision: {precision!r} (expected 'highest', 'high' or 'medium')")
    _matmul_precision = precision


def get_float32_matmul_precision():
    return _matmul_precision


def use_deterministic_algorithms(mode, *, warn_only=False):
    """Accepted: the kernels are deterministic, for every number of threads."""
    if not isinstance(mode, bool):
        raise TypeError(f"use_deterministic_algorithms: mode: {type(mode).__name__} (expected a bool)")


def are_deterministic_algorithms_enabled():
    return True


def is_deterministic_algorithms_warn_only_enabled():
    return False


def is_tensor(obj):
    """Whether `obj` is a tensor."""
    return isinstance(obj, _C.Tensor)


def is_storage(obj):
    """False: storages are not Python objects here."""
    return False


def is_floating_point(input):
    """Whether the tensor's dtype is float16, bfloat16, float32 or float64."""
    return input.dtype.is_floating_point


def is_complex(input):
    """Whether the tensor's dtype is complex: there are none yet."""
    return False
