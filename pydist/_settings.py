"""PyTorch's settings that scripts set, and what they mean here."""

from threading import local

from pydist import _C

_matmul_precision = "highest"


class _Default(local):
    """This thread's default device (None: the CPU), and those before it."""

    device, before = None, ()


_default = _Default()


def set_float32_matmul_precision(precision):
    """ "highest": float32 products are computed in float32. "high" and "medium": on a GPU tensor cores compute them with
    TF32, as with backends.cuda.matmul.allow_tf32. On the CPU nothing changes."""
    global _matmul_precision
    if precision not in ("highest", "high", "medium"):
        raise RuntimeError(f"set_float32_matmul_precision: got {precision!r} (expected 'highest', 'high' or 'medium')")
    _matmul_precision = precision
    _C.gpu_settings(precision != "highest", *_C.gpu_settings()[1:])


def get_float32_matmul_precision():
    """The value that was set last, here or through backends.cuda.matmul.allow_tf32."""
    if _C.gpu_settings()[0]:
        return "high" if _matmul_precision == "highest" else _matmul_precision
    return "highest"


def use_deterministic_algorithms(mode, *, warn_only=False):
    """Accepted: the kernels are deterministic anyway, for every number of threads."""
    if not isinstance(mode, bool):
        raise TypeError(f"use_deterministic_algorithms: mode is {type(mode).__name__} (expected a bool)")


def are_deterministic_algorithms_enabled():
    """True: the kernels are always deterministic."""
    return True


def is_deterministic_algorithms_warn_only_enabled():
    """False: there is nothing to warn about, as the kernels are always deterministic."""
    return False


def set_default_device(device):
    """Sets the device of tensors that this thread makes without a device; None: the CPU. `with device:` sets it for a
    block. Raises RuntimeError if there is no such device.

    >>> import pydist
    >>> with pydist.device("cpu"):
    ...     pydist.zeros(2).device
    device(type='cpu')
    """
    _C._place_by_default(device)
    _default.device = None if device is None else _C.device(device)


def get_default_device():
    """The device of tensors that this thread makes without a device."""
    return _C.device("cpu") if _default.device is None else _default.device


def _enter(device):
    """For `with device:`: sets the default device."""
    before = _default.device
    set_default_device(device)
    _default.before = (*_default.before, before)


def _leave():
    """For the end of `with device:`: sets the default device of before."""
    *before, device = _default.before
    _default.before = tuple(before)
    set_default_device(device)


def set_num_interop_threads(num):
    """Accepted: ops run one after another, each on `get_num_threads()` threads."""
    if not isinstance(num, int) or num < 1:
        raise RuntimeError(f"set_num_interop_threads: num is {num!r} (expected a positive int)")


def get_num_interop_threads():
    """1: ops run one after another."""
    return 1


def set_flush_denormal(mode):
    """Returns False: denormal numbers are kept."""
    return False


def typename(obj):
    """The name of the type: for tensors "torch.FloatTensor" and the like, for other objects module and class."""
    if isinstance(obj, _C.Tensor):
        return obj.type()
    kind = obj if isinstance(obj, type) else type(obj)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def is_tensor(obj):
    """Whether `obj` is a tensor."""
    return isinstance(obj, _C.Tensor)


def is_storage(obj):
    """False: storages are not Python objects in pydist."""
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
