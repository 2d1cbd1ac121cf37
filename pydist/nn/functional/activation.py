"""Activations."""

from warnings import warn

from pydist import _C

gelu = _C.gelu
softplus = _C.softplus
logsigmoid = _C.logsigmoid
sigmoid = _C.sigmoid
tanh = _C.tanh
elu_ = _C.elu_
leaky_relu_ = _C.leaky_relu_
hardtanh_ = _C.hardtanh_
relu_ = _C.relu_


def relu(input, inplace=False):
    """max(input, 0), elementwise; inplace writes it into input."""
    return _C.relu_(input) if inplace else _C.relu(input)


def leaky_relu(input, negative_slope=0.01, inplace=False):
    """input where it is positive, else negative_slope * input."""
    return _C.leaky_relu_(input, negative_slope) if inplace else _C.leaky_relu(input, negative_slope)


def elu(input, alpha=1.0, inplace=False):
    """input where it is positive, else alpha * (exp(input) - 1)."""
    return _C.elu_(input, alpha) if inplace else _C.elu(input, alpha)


def celu(input, alpha=1.0, inplace=False):
    """input where it is positive, else alpha * (exp(input / alpha) - 1)."""
    return (_C.elu_ if inplace else _C.elu)(input, alpha, 1.0, 1.0 / alpha)


def selu(input, inplace=False):
    """The elu whose outputs keep mean 0 and variance 1 (Klambauer et al., 2017)."""
    return (_C.elu_ if inplace else _C.elu)(input, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946)


def silu(input, inplace=False):
    """input * sigmoid(input)."""
    return _C.silu_(input) if inplace else _C.silu(input)


def mish(input, inplace=False):
    """input * tanh(softplus(input))."""
    return _C.mish_(input) if inplace else _C.mish(input)


def hardtanh(input, min_val=-1.0, max_val=1.0, inplace=False):
    """input, at least min_val and at most max_val."""
    if min_val > max_val:
        raise ValueError(f"hardtanh: min_val {min_val} is above max_val {max_val}")
    return _C.hardtanh_(input, min_val, max_val) if inplace else _C.hardtanh(input, min_val, max_val)


def relu6(input, inplace=False):
    """min(max(input, 0), 6)."""
    return hardtanh(input, 0.0, 6.0, inplace)


def hardsigmoid(input, inplace=False):
    """min(max(input + 3, 0), 6) / 6."""
    return _C.hardsigmoid_(input) if inplace else _C.hardsigmoid(input)


def hardswish(input, inplace=False):
    """input * min(max(input + 3, 0), 6) / 6."""
    return _C.hardswish_(input) if inplace else _C.hardswish(input)


def softsign(input):
    """input / (1 + |input|)."""
    return input / (input.abs() + 1)


def tanhshrink(input):
    """input - tanh(input)."""
    return input - input.tanh()


def prelu(input, weight):
    """input where it is positive, else weight * input; weight has one element, or one per channel (dimension 1)."""
    if weight.numel() != 1:
        channels = input.shape[1] if input.dim() > 1 else 1
        if weight.dim() != 1 or weight.numel() != channels:
            raise ValueError(f"prelu: weight has shape {tuple(weight.shape)} (expected one element, or {channels})")
        weight = weight.reshape(-1, *[1] * (input.dim() - 2))
    return _C.where(input > 0, input, weight * input)


def softmin(input, dim=None, _stacklevel=3, dtype=None):
    """softmax(-input, dim)."""
    return softmax(-input, dim, _stacklevel, dtype)


def _default_dim(name, dim, ndim):
    if dim is not None:
        return dim
    dim = 0 if ndim in (0, 1, 3) else 1
    warn(f"{name}: dim is not given; taking {dim} for {ndim} dims, as PyTorch does", stacklevel=3)
    return dim


def softmax(input, dim=None, _stacklevel=3, dtype=None):
    """exp(input) / sum(exp(input)) along dim, after a cast to dtype if given."""
    input = input if dtype is None else input.to(dtype)
    return _C.softmax(input, _default_dim("softmax", dim, input.dim()))


def log_softmax(input, dim=None, _stacklevel=3, dtype=None):
    """input - log(sum(exp(input))) along dim, after a cast to dtype if given."""
    input = input if dtype is None else input.to(dtype)
    return _C.log_softmax(input, _default_dim("log_softmax", dim, input.dim()))
