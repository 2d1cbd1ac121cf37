"""Autocast for functions that are made of several operations: PyTorch's lists name each as a whole."""

from functools import wraps

from pydist import _C


def cast(value, dtype):
    """Casts floating tensors, except float64, to dtype; also tensors in dictionaries, lists and tuples."""
    if isinstance(value, _C.Tensor):
        return value.to(dtype) if value.is_floating_point() and value.dtype is not _C.float64 else value
    if isinstance(value, dict):
        return {cast(k, dtype): cast(v, dtype) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(cast(v, dtype) for v in value)
    return value


def _decorator(dtype_of):
    def decorate(f):
        @wraps(f)
        def run(*args, **kwargs):
            state = _C.autocast_state()
            if state is None:
                return f(*args, **kwargs)
            dtype = dtype_of(*state)
            if dtype is not None:
                args, kwargs = cast(args, dtype), cast(kwargs, dtype)
            _C.set_autocast(None, False)
            try:
                return f(*args, **kwargs)
            finally:
                _C.set_autocast(*state)

        return run

    return decorate


in_low = _decorator(lambda low, cuda: low)
"""f computes in autocast's dtype."""
in_float32 = _decorator(lambda low, cuda: _C.float32)
"""f computes in float32."""
in_low_of_cuda = _decorator(lambda low, cuda: low if cuda else None)
"""f computes in autocast's dtype by CUDA's list, in that of its inputs by the CPU's."""
as_given = _decorator(lambda low, cuda: None)
"""f computes in the dtype of its inputs."""
