"""Activations."""

from warnings import warn

from pydist import _C
from pydist._autocast import in_low
from pydist._functions._register import with_out

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
    """max(input, 0), elementwise. inplace writes the result into input."""
    return _C.relu_(input) if inplace else _C.relu(input)


def leaky_relu(input, negative_slope=0.01, inplace=False):
    """input if it is positive, otherwise negative_slope * input, elementwise."""
    return _C.leaky_relu_(input, negative_slope) if inplace else _C.leaky_relu(input, negative_slope)


def elu(input, alpha=1.0, inplace=False):
    """input if it is positive, otherwise alpha * (exp(input) - 1), elementwise."""
    return _C.elu_(input, alpha) if inplace else _C.elu(input, alpha)


def celu(input, alpha=1.0, inplace=False):
    """input if it is positive, otherwise alpha * (exp(input / alpha) - 1), elementwise."""
    if alpha == 0:
        raise RuntimeError("celu: alpha is 0 (expected a nonzero number)")
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
    """input, limited to min_val below and max_val above."""
    if min_val > max_val:
        raise ValueError(f"hardtanh: min_val {min_val} is greater than max_val {max_val} (expected min_val <= max_val)")
    if not input.is_floating_point():
        return input.clamp_(int(min_val), int(max_val)) if inplace else input.clamp(int(min_val), int(max_val))
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


@in_low
def prelu(input, weight):
    """input if it is positive, otherwise weight * input. weight has one element, or one per channel (dimension 1)."""
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
    warn(f"{name}: dim is not given; pydist takes dim {dim} for a tensor of {ndim} dims, as PyTorch does", stacklevel=3)
    return dim


def softmax(input, dim=None, _stacklevel=3, dtype=None):
    """exp(input) / sum(exp(input)) along dim. dtype: cast input to it first."""
    input = input if dtype is None else input.to(dtype)
    return _C.softmax(input, _default_dim("softmax", dim, input.dim()))


def log_softmax(input, dim=None, _stacklevel=3, dtype=None):
    """input - log(sum(exp(input))) along dim. dtype: cast input to it first."""
    input = input if dtype is None else input.to(dtype)
    return _C.log_softmax(input, _default_dim("log_softmax", dim, input.dim()))


def glu(input, dim=-1):
    """a * sigmoid(b), where a and b are the halves of input along dim (Dauphin et al., 2017)."""
    if input.dim() == 0 or input.shape[dim] % 2:
        shape = tuple(input.shape)
        raise RuntimeError(f"glu: shape {shape}, dimension {dim} (expected an even size)")
    a, b = input.chunk(2, dim)
    return a * b.sigmoid()


def _or_written(input, result, inplace):
    return input.copy_(result) if inplace else result


def threshold(input, threshold, value, inplace=False):
    """input if it is greater than threshold, otherwise value."""
    kept = input.clone() if inplace else input
    return _or_written(input, kept.masked_fill(kept <= threshold, value), inplace)


def threshold_(input, threshold, value):
    """threshold, in place."""
    return _threshold(input, threshold, value, True)


_threshold = threshold


def hardshrink(input, lambd=0.5):
    """input if |input| > lambd, otherwise 0."""
    return input.masked_fill(input.abs() <= lambd, 0.0)


hardshrink = with_out(hardshrink)


def softshrink(input, lambd=0.5):
    """input moved towards 0 by lambd; 0 if |input| <= lambd."""
    if lambd < 0:
        raise RuntimeError(f"softshrink: lambd is {lambd} (expected at least 0)")
    return _C.sign(input) * _C.relu(input.abs() - lambd)


def rrelu(input, lower=1.0 / 8, upper=1.0 / 3, training=False, inplace=False, generator=None):
    """input if it is positive, otherwise input times a slope, drawn for each element between lower and upper (not
    training: their mean) (Xu et al., 2015)."""
    if lower > upper:
        raise RuntimeError(f"rrelu: lower {lower} is greater than upper {upper} (expected lower <= upper)")
    if not training:
        return leaky_relu(input, (lower + upper) / 2, inplace)
    kept = input.clone() if inplace else input
    slopes = _C.empty(*input.shape, dtype=input.dtype, device=input.device).uniform_(lower, upper, generator=generator)
    return _or_written(input, _C.where(kept > 0, kept, kept * slopes), inplace)


def rrelu_(input, lower=1.0 / 8, upper=1.0 / 3, training=False, generator=None):
    """rrelu, in place."""
    return rrelu(input, lower, upper, training, True, generator)


def celu_(input, alpha=1.0):
    """celu, in place."""
    return celu(input, alpha, True)


def selu_(input):
    """selu, in place."""
    return selu(input, True)


def gumbel_softmax(logits, tau=1, hard=False, eps=1e-10, dim=-1):
    """softmax((logits + Gumbel noise) / tau) along dim. hard: the result is one-hot, but has the gradient of the
    softmax (Jang et al., 2017)."""
    noise = -_C.empty(*logits.shape, dtype=logits.dtype, device=logits.device).exponential_().log()
    soft = _C.softmax((logits + noise) / tau, dim)
    if not hard:
        return soft
    one = _C.zeros(*logits.shape, dtype=logits.dtype, device=logits.device).scatter_(
        dim, soft.argmax(dim, keepdim=True), 1.0
    )
    return one - soft.detach() + soft
