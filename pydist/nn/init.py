"""Initial values. Each function fills its tensor in place, without a record in autograd, and returns it."""

import functools
import math
import warnings

from pydist import _C
from pydist._grad_mode import no_grad

_GAINS = {
    **dict.fromkeys(("linear", "conv1d", "conv2d", "conv3d", "sigmoid"), 1.0),
    "tanh": 5.0 / 3,
    "relu": math.sqrt(2.0),
    "selu": 3.0 / 4,
}


def calculate_gain(nonlinearity, param=None):
    """The factor that keeps the variance constant through `nonlinearity`. `param` is leaky_relu's slope (default
    0.01)."""
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else param
        if isinstance(slope, bool) or not isinstance(slope, (int, float)):
            raise ValueError(f"negative_slope {param} not a valid number (expected an int or float)")
        return math.sqrt(2.0 / (1 + slope**2))
    if nonlinearity not in _GAINS:
        raise ValueError(
            f"Unsupported nonlinearity {nonlinearity} (expected a name such as 'relu', 'tanh' or 'leaky_relu')"
        )
    return _GAINS[nonlinearity]


def _fill(method, tensor, *args, generator=None):
    with no_grad():
        if generator is None:
            return getattr(tensor, method)(*args)
        return getattr(tensor, method)(*args, generator=generator)


def _on_wholes(init):
    """Of a DTensor the whole is filled, and each rank takes its part."""

    @functools.wraps(init)
    def fill(tensor, *args, **kwargs):
        if _C.spread_of(tensor) is None:
            return init(tensor, *args, **kwargs)
        whole = init(_C.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device), *args, **kwargs)
        with no_grad():
            return tensor.copy_(whole)

    return fill


def uniform_(tensor, a=0.0, b=1.0, generator=None):
    """Fills the tensor from the uniform distribution U(a, b)."""
    return _fill("uniform_", tensor, a, b, generator=generator)


def normal_(tensor, mean=0.0, std=1.0, generator=None):
    """Fills the tensor from the normal distribution N(mean, std^2)."""
    return _fill("normal_", tensor, mean, std, generator=generator)


def constant_(tensor, val):
    """Fills the tensor with `val`."""
    return _fill("fill_", tensor, val)


def zeros_(tensor):
    """Fills the tensor with zeros."""
    return _fill("zero_", tensor)


def ones_(tensor):
    """Fills the tensor with ones."""
    return _fill("fill_", tensor, 1.0)


def _calculate_fan_in_and_fan_out(tensor):
    """(inputs per output, outputs per input) of a weight [out, in, ...]."""
    if tensor.dim() < 2:
        raise ValueError(
            f"Fan in and fan out can not be computed for tensor with fewer than 2 dimensions, got {tensor.dim()}"
        )
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
    """Fills the tensor from U(-b, b) with b = gain * sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio, 2010)."""
    bound = math.sqrt(3.0) * _xavier_std(tensor, gain)
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor, gain=1.0, generator=None):
    """Fills the tensor from N(0, 2 gain^2 / (fan_in + fan_out)) (Glorot and Bengio, 2010)."""
    return normal_(tensor, 0.0, _xavier_std(tensor, gain), generator)


def kaiming_uniform_(tensor, a=0, mode="fan_in", nonlinearity="leaky_relu", generator=None):
    """Fills the tensor from U(-b, b) with b = gain * sqrt(3 / fan) (He et al., 2015). An empty tensor stays as it
    is."""
    if tensor.numel() == 0:
        return tensor
    bound = math.sqrt(3.0) * _kaiming_std(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(tensor, a=0, mode="fan_in", nonlinearity="leaky_relu", generator=None):
    """Fills the tensor from N(0, gain^2 / fan) (He et al., 2015). An empty tensor stays as it is."""
    if tensor.numel() == 0:
        return tensor
    return normal_(tensor, 0.0, _kaiming_std(tensor, a, mode, nonlinearity), generator)


@_on_wholes
def trunc_normal_(tensor, mean=0.0, std=1.0, a=-2.0, b=2.0, generator=None):
    """Fills the tensor from N(mean, std^2); values outside [a, b] are drawn again. Raises ValueError if [a, b] holds
    less than 1e-3 of the distribution."""

    def below(x):
        return 0.5 * (1.0 + math.erf((x - mean) / (std * math.sqrt(2.0))))

    if not std > 0.0 or not below(b) - below(a) >= 1e-3:
        raise ValueError(
            f"trunc_normal_: N({mean}, {std}^2) has hardly any values in [{a}, {b}] (expected at least 1e-3 of the "
            "distribution there)"
        )
    with no_grad():
        normal_(tensor, mean, std, generator)
        while not tensor.is_meta and (outside := (tensor < a).logical_or(tensor > b)).any().item():
            tensor.copy_(_C.where(outside, normal_(_C.empty_like(tensor), mean, std, generator), tensor))
    return tensor


@_on_wholes
def eye_(tensor):
    """Fills a 2-dim tensor with the identity matrix, cut or padded with zeros. Raises ValueError for other tensors."""
    if tensor.dim() != 2:
        raise ValueError(f"Only tensors with 2 dimensions are supported, got {tensor.dim()}")
    with no_grad():
        rows, columns = tensor.shape
        return tensor.copy_(
            _C.arange(rows, device=tensor.device).unsqueeze(1) == _C.arange(columns, device=tensor.device)
        )


@_on_wholes
def dirac_(tensor, groups=1):
    """Fills the weight of a convolution so that it passes as many channels of each group unchanged as there are. Raises
    ValueError unless the tensor has 3 to 5 dims and groups divides the first size."""
    if tensor.dim() not in (3, 4, 5):
        raise ValueError(f"Only tensors with 3, 4, or 5 dimensions are supported, got {tensor.dim()}")
    if tensor.shape[0] % groups:
        raise ValueError(f"dim 0 must be divisible by groups, got {tensor.shape[0]} and {groups}")
    each = tensor.shape[0] // groups
    middle = tuple(size // 2 for size in tensor.shape[2:])
    with no_grad():
        tensor.zero_()
        for group in range(groups):
            for i in range(min(each, tensor.shape[1])):
                tensor[(group * each + i, i, *middle)] = 1
    return tensor


@_on_wholes
def orthogonal_(tensor, gain=1, generator=None):
    """Fills the tensor with gain times a random (semi-)orthogonal matrix [first size, all others] (Saxe et al., 2014).
    Raises ValueError for fewer than 2 dims."""
    if tensor.dim() < 2:
        raise ValueError(f"Only tensors with 2 or more dimensions are supported, got {tensor.dim()}")
    if tensor.numel() == 0:
        return tensor
    import numpy as np

    rows = tensor.shape[0]
    columns = tensor.numel() // rows
    drawn = normal_(
        _C.empty(max(rows, columns), min(rows, columns), dtype=_C.float64, device="cpu"), generator=generator
    )
    q, r = np.linalg.qr(drawn.numpy())
    q = q * np.sign(np.diag(r))  # without the signs the distribution would depend on the QR algorithm
    q = q.T if rows < columns else q
    with no_grad():
        return tensor.copy_(_C.from_numpy(np.ascontiguousarray(q)).reshape(tensor.shape) * gain)


@_on_wholes
def sparse_(tensor, sparsity, std=0.01, generator=None):
    """Fills [rows, columns] from N(0, std^2) and sets the share `sparsity` of each column, rounded up, to 0 (Martens,
    2010). Raises ValueError unless the tensor has 2 dims."""
    if tensor.dim() != 2:
        raise ValueError(f"Only tensors with 2 dimensions are supported, got {tensor.dim()}")
    rows, columns = tensor.shape
    zeros = math.ceil(sparsity * rows)
    with no_grad():
        normal_(tensor, 0, std, generator=generator)
        for column in range(columns):
            tensor[_C.randperm(rows, generator=generator, device=tensor.device)[:zeros], column] = 0
    return tensor


def _old(name):
    """The deprecated name without "_", as before PyTorch 0.4. It warns."""
    new = globals()[name + "_"]

    def call(*args, **kwargs):
        warnings.warn(f"`nn.init.{name}` is now deprecated in favor of `nn.init.{name}_`.", FutureWarning, stacklevel=2)
        return new(*args, **kwargs)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"The old name of {name}_."
    return call


uniform, normal, constant, eye, dirac, sparse = map(_old, ("uniform", "normal", "constant", "eye", "dirac", "sparse"))
xavier_uniform, xavier_normal, orthogonal = map(_old, ("xavier_uniform", "xavier_normal", "orthogonal"))
kaiming_uniform, kaiming_normal = map(_old, ("kaiming_uniform", "kaiming_normal"))
