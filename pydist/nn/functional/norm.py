"""Normalisation."""

from pydist import _C

batch_norm = _C.batch_norm
group_norm = _C.group_norm


def _sizes(shape):
    return (shape,) if isinstance(shape, int) else tuple(shape)


def layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-05):
    """(input - mean) / sqrt(var + eps) * weight + bias over the last dimensions, of normalized_shape."""
    return _C.layer_norm(input, _sizes(normalized_shape), weight, bias, eps)


def rms_norm(input, normalized_shape, weight=None, eps=None):
    """input / sqrt(mean(input ** 2) + eps) * weight over the last dimensions, of normalized_shape; eps None: the
    machine epsilon."""
    return _C.rms_norm(input, _sizes(normalized_shape), weight, eps)


def normalize(input, p=2.0, dim=1, eps=1e-12, out=None):
    """input / max(norm_p(input), eps) along dim."""
    size = input.norm(p, dim, keepdim=True)
    result = input / _C.maximum(size, eps)
    return result if out is None else out.copy_(result)
