"""Dropout."""

from pydist import _C


def dropout(input, p=0.5, training=True, inplace=False):
    """input * keep / (1 - p), keep drawn Bernoulli(1 - p) per element; not training: input."""
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
    if not training or p == 0.0:
        return input
    out = _C.dropout(input, p, True)
    return input.copy_(out) if inplace else out
