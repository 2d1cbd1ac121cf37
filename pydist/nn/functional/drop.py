"""Dropout."""

from warnings import warn

from pydist import _C


def _check(p):
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")


def dropout(input, p=0.5, training=True, inplace=False):
    """input * keep / (1 - p), where keep is drawn from Bernoulli(1 - p) for each element. Without training: input."""
    _check(p)
    if not training or p == 0.0:
        return input
    out = _C.dropout(input, p, True)
    return input.copy_(out) if inplace else out


def _by_channel(name, input, p, training, inplace, dims):
    _check(p)
    if input.dim() not in (dims, dims + 1):
        wanted = f"{dims + 1}, or {dims} without a batch"
        if name == "dropout1d" or input.dim() < 2:
            raise ValueError(f"{name}: input has {input.dim()} dims (expected {wanted})")
        warn(
            f"{name}: input has {input.dim()} dims (expected {wanted}); pydist takes them as [N, C, ...]", stacklevel=3
        )
    if not training or p == 0:
        return input
    lead = 1 if input.dim() == dims else 2
    keep = dropout(_C.ones(*input.shape[:lead], *[1] * (input.dim() - lead), dtype=input.dtype, device=input.device), p)
    return input.mul_(keep) if inplace else input * keep


def dropout1d(input, p=0.5, training=True, inplace=False):
    """dropout of whole channels of input[N, C, L] or [C, L]."""
    return _by_channel("dropout1d", input, p, training, inplace, 2)


def dropout2d(input, p=0.5, training=True, inplace=False):
    """dropout of whole channels of input[N, C, H, W] or [C, H, W]."""
    return _by_channel("dropout2d", input, p, training, inplace, 3)


def dropout3d(input, p=0.5, training=True, inplace=False):
    """dropout of whole channels of input[N, C, D, H, W] or [C, D, H, W]."""
    return _by_channel("dropout3d", input, p, training, inplace, 4)


def _alpha(input, p, training, inplace, shape):
    """Replaces dropped elements by selu's limit and scales everything so that mean 0 and variance 1 stay (Klambauer et
    al., 2017)."""
    _check(p)
    if not training or p == 0:
        return input
    if p == 1:
        return input.zero_() if inplace else input * 0
    limit = -1.7580993408473766
    scale = ((1 - p) * (1 + p * limit * limit)) ** -0.5
    keep = _C.empty(*shape, dtype=input.dtype, device=input.device).bernoulli_(1 - p)
    out = (input * keep + limit * (1 - keep)) * scale - scale * limit * p
    return input.copy_(out) if inplace else out


def alpha_dropout(input, p=0.5, training=False, inplace=False):
    """Dropout that keeps mean 0 and variance 1, for selu networks."""
    return _alpha(input, p, training, inplace, input.shape)


def feature_alpha_dropout(input, p=0.5, training=False, inplace=False):
    """alpha_dropout of whole channels of input[N, C, ...]."""
    if input.dim() < 2:
        raise RuntimeError(f"feature_alpha_dropout: input has shape {tuple(input.shape)} (expected [N, C, ...])")
    return _alpha(input, p, training, inplace, [*input.shape[:2], *[1] * (input.dim() - 2)])
