"""Initial values. Each function fills its tensor in place, unrecorded, and returns it."""

import math

from pydist import _C
from pydist._grad_mode import no_grad

_GAINS = {
    **dict.fromkeys(("linear", "conv1d", "conv2d", "conv3d", "sigmoid"), 1.0),
    "tanh": 5.0 / 3,
    "relu": math.sqrt(2.0),
    "selu": 3.0 / 4,
}


def calculate_gain(nonlinearity, param=None):
    """The factor that keeps the variance through `nonlinearity`; `param` is leaky_relu's slope (default 0.01)."""
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else param
        if isinstance(slope, bool) or not isinstance(slope, (int, float)):
            raise ValueError(f"negative_slope {param} not a valid number")
        return math.sqrt(2.0 / (1 + slope**2))
    if nonlinearity not in _GAINS:
        raise ValueError(f"Unsupported nonlinearity {nonlinearity}")
    return _GAINS[nonlinearity]


def _fill(method, tensor, *args, generator=None):
    with no_grad():
        if generator is None:
            return getattr(tensor, method)(*args)
        return getattr(tensor, method)(*args, generator=generator)


def uniform_(tensor, a=0.0, b=1.0, generator=None):
    """U(a, b)."""
    return _fill("uniform_", tensor, a, b, generator=generator)


def normal_(tensor, mean=0.0, std=1.0, generator=None):
    """N(mean, std^2)."""
    return _fill("normal_", tensor, mean, std, generator=generator)


def constant_(tensor, val):
    return _fill("fill_", tensor, val)


def zeros_(tensor):
    return _fill("zero_", tensor)


def ones_(tensor):
    return _fill("fill_", tensor, 1.0)


def _calculate_fan_in_and_fan_out(tensor):
    """(inputs per output, outputs per input) of a weight [out, in, ...]."""
    if tensor.dim() < 2:
        raise ValueError("Fan in and fan out can not be computed for tensor with fewer than 2 dimensions")
    field = math.prod(tensor.shape[2:])
    return tensor.shape[1] * field, tensor.shape[0] * field


def _calculate_correct_fan(tensor, mode):
    fans = dict(zip(("fan_in", "fan_out"), _calculate_fan_in_and_fan_out(tensor)))
    if mode.lower() not in fans:
        raise ValueError(f"Mode {mode} not supported, please use one of {list(fans)}")
    return fans[mode.lower()]


def _xavier_std(tensor, gain):
    return gain * math.sqrt(2.0 / sum(_calculate_fan_in_and_fan_out(tensor)))


def _kaiming_std(tensor, a, mode, nonlinearity):
    return calculate_gain(nonlinearity, a) / math.sqrt(_calculate_correct_fan(tensor, mode))


def xavier_uniform_(tensor, gain=1.0, generator=None):
    """U(-b, b), b = gain * sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio, 2010)."""
    bound = math.sqrt(3.0) * _xavier_std(tensor, gain)
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor, gain=1.0, generator=None):
    """N(0, 2 gain^2 / (fan_in + fan_out)) (Glorot and Bengio, 2010)."""
    return normal_(tensor, 0.0, _xavier_std(tensor, gain), generator)


def kaiming_uniform_(tensor, a=0, mode="fan_in", nonlinearity="leaky_relu", generator=None):
    """U(-b, b), b = gain * sqrt(3 / fan) (He et al., 2015); tensors without elements stay as they are."""
    if tensor.numel() == 0:
        return tensor
    bound = math.sqrt(3.0) * _kaiming_std(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(tensor, a=0, mode="fan_in", nonlinearity="leaky_relu", generator=None):
    """N(0, gain^2 / fan) (He et al., 2015); tensors without elements stay as they are."""
    if tensor.numel() == 0:
        return tensor
    return normal_(tensor, 0.0, _kaiming_std(tensor, a, mode, nonlinearity), generator)
