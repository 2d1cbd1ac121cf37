"""Normalisation."""

import math

from pydist import _C

batch_norm = _C.batch_norm
group_norm = _C.group_norm


def _sizes(shape):
    return (shape,) if isinstance(shape, int) else tuple(shape)


def layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-05):
    """(input - mean) / sqrt(var + eps) * weight + bias. Mean and variance are over the last dimensions, which have
    normalized_shape."""
    return _C.layer_norm(input, _sizes(normalized_shape), weight, bias, eps)


def rms_norm(input, normalized_shape, weight=None, eps=None):
    """input / sqrt(mean(input ** 2) + eps) * weight. The mean is over the last dimensions, which have normalized_shape.
    eps None: the machine epsilon."""
    return _C.rms_norm(input, _sizes(normalized_shape), weight, eps)


def add_layer_norm(input, other, normalized_shape, weight=None, bias=None, eps=1e-05, low_precision=False):
    """(s, n) with s = input + other and n = (s - mean) / sqrt(var + eps) * weight + bias, as layer_norm(s): a residual
    stream after a block, and its norm before the next one, in one pass over memory. So is the gradient.

    input and other have one shape. s has their common dtype, n that of layer_norm(s); low_precision: under autocast n
    has autocast's dtype, which saves a cast where a linear layer follows.

    >>> import pydist
    >>> s, n = pydist.nn.functional.add_layer_norm(pydist.tensor([[1.0, 2.0]]), pydist.tensor([[0.0, 1.0]]), (2,), eps=0)
    >>> s, n
    (tensor([[1., 3.]]), tensor([[-1.,  1.]]))
    """
    return _C.add_layer_norm(input, other, _sizes(normalized_shape), weight, bias, eps, low_precision)


def add_rms_norm(input, other, normalized_shape, weight=None, eps=None, low_precision=False):
    """(s, n) with s = input + other and n = s / sqrt(mean(s ** 2) + eps) * weight, as rms_norm(s): see
    add_layer_norm."""
    return _C.add_rms_norm(input, other, _sizes(normalized_shape), weight, eps, low_precision)


def normalize(input, p=2.0, dim=1, eps=1e-12, out=None):
    """input / max(norm_p(input), eps) along dim."""
    size = input.norm(p, dim, keepdim=True)
    result = input / _C.maximum(size, eps)
    return result if out is None else out.copy_(result)


def instance_norm(
    input, running_mean=None, running_var=None, weight=None, bias=None, use_input_stats=True, momentum=0.1, eps=1e-05
):
    """batch_norm of each sample of input[N, C, ...] by itself (Ulyanov et al., 2016). The running statistics are
    updated with the mean over the samples."""
    if input.dim() < 3:
        raise ValueError(f"instance_norm: input has shape {tuple(input.shape)} (expected [N, C, ...])")
    n, c = input.shape[:2]
    if use_input_stats and math.prod(input.shape[2:]) == 1:
        raise ValueError(f"Expected more than 1 spatial element when training, got input size {input.shape}")
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    means, variances = (None if t is None else t.repeat(n) for t in (running_mean, running_var))
    y = batch_norm(input.reshape(1, n * c, *input.shape[2:]), means, variances, None, None, True, momentum, eps)
    for running, each in ((running_mean, means), (running_var, variances)):
        if running is not None:
            running.copy_(each.reshape(n, c).mean(0))
    y, shape = y.reshape(input.shape), (c, *[1] * (input.dim() - 2))
    y = y if weight is None else y * weight.reshape(shape)
    return y if bias is None else y + bias.reshape(shape)


def local_response_norm(input, size, alpha=0.0001, beta=0.75, k=1.0):
    """input / (k + alpha * mean) ** beta for input[N, C, ...], where mean is the mean of the squares over `size`
    neighbouring channels (Krizhevsky et al., 2012)."""
    if input.dim() < 3:
        raise ValueError(f"Expected 3D or higher dimensionality input (got {input.dim()} dimensions)")
    if not input.numel():
        return input
    n, c = input.shape[:2]
    squares = (input * input).reshape(n, 1, c, -1)
    squares = _C.constant_pad_nd(squares, (0, 0, size // 2, (size - 1) // 2))
    means = _C.avg_pool2d(squares, (size, 1), 1).reshape(input.shape)
    return input / (means * alpha + k) ** beta
