"""Helpers of PyTorch's that scripts for several processes import."""

from itertools import accumulate as _accumulate  # noqa: F401

from pydist import _C


def _flatten_dense_tensors(tensors):
    """One vector of all elements."""
    return _C.cat([t.reshape(-1) for t in tensors])


def _unflatten_dense_tensors(flat, tensors):
    """Views of a vector in the shapes of `tensors`."""
    views, begin = [], 0
    for t in tensors:
        views.append(flat.narrow(0, begin, t.numel()).view(t.shape))
        begin += t.numel()
    return tuple(views)
