"""Helpers of PyTorch that multi-process scripts import and that its files and pickles name."""

from itertools import accumulate as _accumulate  # noqa: F401

from pydist import _C


def _flatten_dense_tensors(tensors):
    """One vector with the elements of all tensors."""
    return _C.cat([t.reshape(-1) for t in tensors])


def _unflatten_dense_tensors(flat, tensors):
    """Views of a vector with the shapes of `tensors`."""
    views, begin = [], 0
    for t in tensors:
        views.append(flat.narrow(0, begin, t.numel()).view(t.shape))
        begin += t.numel()
    return tuple(views)


def _rebuild_tensor(storage, storage_offset, size, stride):
    return storage.view(storage.dtype, storage_offset, size, stride)


def _rebuild_tensor_v2(storage, storage_offset, size, stride, requires_grad, backward_hooks, metadata=None):
    made = _rebuild_tensor(storage, storage_offset, size, stride)
    return made.requires_grad_() if requires_grad else made


def _rebuild_tensor_v3(storage, storage_offset, size, stride, requires_grad, backward_hooks, dtype, metadata=None):
    made = storage.view(dtype, storage_offset, size, stride)
    return made.requires_grad_() if requires_grad else made


def _rebuild_parameter(data, requires_grad, backward_hooks):
    from pydist.nn import Parameter

    return Parameter(data, requires_grad)


def _rebuild_parameter_with_state(data, requires_grad, backward_hooks, state):
    made = _rebuild_parameter(data, requires_grad, backward_hooks)
    if isinstance(state, dict):
        vars(made).update(state)
    return made
