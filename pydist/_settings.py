"""Settings of PyTorch's that scripts write, and what they mean here."""

from pydist import _C

_matmul_precision = "highest"
_default_device = _C.device("cpu")


def set_float32_matmul_precision(precision):
    """ "highest": float32 products in float32. "high", "medium": on a GPU by tensor cores with TF32, as
    backends.cuda.matmul.allow_tf32; on the CPU nothing changes."""
    global _matmul_precision
    if precision not in ("highest", "high", "medium"):
        raise RuntimeError(f"set_float32_matmul_precision: {precision!r} (expected 'highest', 'high' or 'medium')")
    _matmul_precision = precision
    _C.gpu_settings(precision != "highest", *_C.gpu_settings()[1:])


def get_float32_matmul_precision():
    """What was set last, here or by backends.cuda.matmul.allow_tf32."""
    if _C.gpu_settings()[0]:
        return "high" if _matmul_precision == "highest" else _matmul_precision
    return "highest"


def use_deterministic_algorithms(mode, *, warn_only=False):
    """Accepted: the kernels are deterministic, for every number of threads."""
    if not isinstance(mode, bool):
        raise TypeError(f"use_deterministic_algorithms: mode: {type(mode).__name__} (expected a bool)")


def are_deterministic_algorithms_enabled():
    return True


def is_deterministic_algorithms_warn_only_enabled():
    return False


def set_default_device(device):
    """The device of tensors that are made without one: the CPU, None (the CPU), or a pretended GPU, which is the CPU.
    RuntimeError for one that is not there."""
    global _default_device
    _C.empty(0, device=device)
    _default_device = _C.device("cpu" if device is None else device)


def get_default_device():
    """The device of tensors that are made without one."""
    return _default_device


def set_num_interop_threads(num):
    """Accepted: ops run one after another, each on `get_num_threads()` threads."""
    if not isinstance(num, int) or num < 1:
        raise RuntimeError(f"set_num_interop_threads: {num!r} (expected a positive number)")


def get_num_interop_threads():
    return 1


def set_flush_denormal(mode):
    """False: denormal numbers are kept."""
    return False


def typename(obj):
    """The name of the type: "torch.FloatTensor" and the like for tensors, module and class for others."""
    if isinstance(obj, _C.Tensor):
        return obj.type()
    kind = obj if isinstance(obj, type) else type(obj)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


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
    """Whether the tensor's dtype is complex64 or complex128."""
    return input.dtype.is_complex


def _assert(condition, message):
    """Raises AssertionError with the message unless the condition holds."""
    assert condition, message
