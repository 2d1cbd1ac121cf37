"""Autocast: matrix products and convolutions run in bfloat16 or float16, ops that need range in float32."""

import threading
import warnings
from functools import wraps

from pydist import _C, cuda
from pydist._autocast import cast

_DEFAULTS = {"cpu": _C.bfloat16, "cuda": _C.float16}
_LOW = (_C.bfloat16, _C.float16)


class _State(threading.local):
    """One thread's state: for each device type whether autocast is on, and its dtype."""

    def __init__(self):
        self.enabled = dict.fromkeys(_DEFAULTS, False)
        self.dtype = dict(_DEFAULTS)
        self.cache = True
        self.depth = 0  # number of regions that were entered and not left yet


_state = _State()


def _apply():
    """Passes the state to the engine, which has autocast for one device type at a time: CUDA's if both are on."""
    for kind in ("cuda", "cpu"):
        if _state.enabled[kind]:
            _C.set_autocast(_state.dtype[kind], kind == "cuda", _state.cache)
            return
    _C.set_autocast(None, False)


def _known(op, device_type):
    if device_type not in _DEFAULTS:
        raise RuntimeError(f"{op}: unsupported autocast device_type {device_type!r} (expected 'cpu' or 'cuda')")
    return device_type


def is_autocast_available(device_type):
    """Whether autocast knows the device type: "cpu" and "cuda"."""
    if not isinstance(device_type, str):
        raise TypeError(f"is_autocast_available: device_type is {type(device_type).__name__} (expected str)")
    return device_type in _DEFAULTS


def is_autocast_enabled(device_type="cuda"):
    """Whether autocast is on in this thread for a device type."""
    return _state.enabled[_known("is_autocast_enabled", device_type)]


def set_autocast_enabled(device_type, enabled=None):
    """`set_autocast_enabled(device_type, enabled)`, or the older `set_autocast_enabled(enabled)` for CUDA."""
    if enabled is None:
        device_type, enabled = "cuda", device_type
    _state.enabled[_known("set_autocast_enabled", device_type)] = bool(enabled)
    _apply()


def get_autocast_dtype(device_type):
    """The dtype to which ops are cast: bfloat16 for "cpu" and float16 for "cuda", unless set_autocast_dtype
    changed it."""
    return _state.dtype[_known("get_autocast_dtype", device_type)]


def set_autocast_dtype(device_type, dtype):
    """Sets, in this thread, the dtype that autocast uses for a device type."""
    _state.dtype[_known("set_autocast_dtype", device_type)] = dtype
    _apply()


def is_autocast_cpu_enabled():
    """Whether autocast is on for the CPU in this thread."""
    return is_autocast_enabled("cpu")


def get_autocast_cpu_dtype():
    """The dtype that autocast uses on the CPU."""
    return get_autocast_dtype("cpu")


def get_autocast_gpu_dtype():
    """The dtype that autocast uses on GPUs."""
    return get_autocast_dtype("cuda")


def is_autocast_cache_enabled():
    """Whether a parameter is cast only once in a region."""
    return _state.cache


def set_autocast_cache_enabled(enabled):
    """Sets, in this thread, whether a parameter is cast only once in a region."""
    _state.cache = bool(enabled)
    _apply()


def clear_autocast_cache():
    """Drops the casts of parameters that this thread has kept, as leaving the outermost region does."""
    _C.clear_autocast_cache()


class autocast:
    """`with autocast("cpu"):` computes linear, matmul, convolutions and similar ops in `dtype`, losses and similar ops
    in float32, and all others in the dtypes of their inputs. float64 is never cast. PyTorch's lists for the device type
    decide. It is also a decorator; `enabled=False` switches autocast off inside.

    dtype: bfloat16 (default for "cpu") or float16 (default for "cuda"). For "cuda" without a GPU, and for other dtypes,
    autocast warns and is off. Call backward() outside: it computes in the dtypes that forward chose.

    A parameter is cast once in a region, unless cache_enabled is False. The fused steps of pydist.optim write the
    16-bit copy together with the float32 parameter, so the next region casts nothing.

    >>> import pydist
    >>> net, x = pydist.nn.Linear(4, 2), pydist.ones(3, 4)
    >>> with pydist.autocast("cpu"):
    ...     y = net(x)
    ...     loss = pydist.nn.functional.mse_loss(y, pydist.zeros(3, 2))
    >>> y.dtype, loss.dtype
    (pydist.bfloat16, pydist.float32)
    """

    def __init__(self, device_type, dtype=None, enabled=True, cache_enabled=None):
        if not isinstance(device_type, str):
            raise ValueError(f"Expected `device_type` of type `str`, got: `{type(device_type)}`")
        self.device = _known("autocast", device_type)
        self.fast_dtype = get_autocast_dtype(device_type) if dtype is None else dtype
        self._cache_enabled = _state.cache if cache_enabled is None else cache_enabled
        self._enabled = bool(enabled)
        if self._enabled and device_type == "cuda" and not cuda.is_available():
            warnings.warn(
                "autocast: device_type is 'cuda', but there is no CUDA device; autocast is disabled", stacklevel=2
            )
            self._enabled = False
        if self._enabled and self.fast_dtype not in _LOW:
            warnings.warn(
                f"autocast: {self.fast_dtype} is not supported (expected bfloat16 or float16); autocast is disabled",
                stacklevel=2,
            )
            self._enabled = False
        self._before = []

    def __enter__(self):
        kind = self.device
        self._before.append((_state.enabled[kind], _state.dtype[kind], _state.cache))
        _state.enabled[kind], _state.dtype[kind], _state.cache = self._enabled, self.fast_dtype, self._cache_enabled
        _state.depth += 1
        _apply()
        return self

    def __exit__(self, *error):
        _state.enabled[self.device], _state.dtype[self.device], _state.cache = self._before.pop()
        _state.depth -= 1
        if _state.depth == 0:
            _C.clear_autocast_cache()
        _apply()
        return False

    def __call__(self, function):
        @wraps(function)
        def run(*args, **kwargs):
            with self:
                return function(*args, **kwargs)

        return run


def custom_fwd(fwd=None, *, device_type, cast_inputs=None):
    """Decorates `forward` of an autograd.Function. With cast_inputs, under autocast, its floating arguments get that
    dtype and its body runs without autocast. Otherwise it runs unchanged."""
    if fwd is None:
        return lambda fwd: custom_fwd(fwd, device_type=device_type, cast_inputs=cast_inputs)

    @wraps(fwd)
    def run(*args, **kwargs):
        args[0]._dtype = get_autocast_dtype(device_type)
        on = args[0]._fwd_used_autocast = is_autocast_enabled(device_type)
        if cast_inputs is None or not on:
            args[0]._fwd_used_autocast = on and cast_inputs is None
            return fwd(*args, **kwargs)
        args[0]._fwd_used_autocast = False
        with autocast(device_type, enabled=False):
            return fwd(*cast(args, cast_inputs), **cast(kwargs, cast_inputs))

    return run


def custom_bwd(bwd=None, *, device_type):
    """Decorates `backward` of an autograd.Function whose forward has custom_fwd: it runs under forward's autocast."""
    if bwd is None:
        return lambda bwd: custom_bwd(bwd, device_type=device_type)

    @wraps(bwd)
    def run(*args, **kwargs):
        with autocast(device_type, enabled=args[0]._fwd_used_autocast, dtype=args[0]._dtype):
            return bwd(*args, **kwargs)

    return run
