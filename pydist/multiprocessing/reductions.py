"""How tensors are sent to another process: their memory becomes shared, its descriptor is sent, and views say where
they are in it. A receiver maps the same memory once, however many views arrive."""

import copy
import os
import weakref
from multiprocessing.reduction import DupFd, ForkingPickler

from pydist import _C, _tensor

_mapped = weakref.WeakValueDictionary()  # (device, inode, dtype) of shared memory -> a 1-d tensor over all of it


def _identity(fd, dtype):
    status = os.fstat(fd)
    return status.st_dev, status.st_ino, dtype


def reduce_tensor(tensor, pass_fd=DupFd):
    """(function, arguments) that make the tensor in another process. pass_fd turns the memory's descriptor into an
    object whose detach() returns a descriptor there. Raises RuntimeError for a tensor with a history."""
    if tensor.requires_grad and not tensor.is_leaf:
        raise RuntimeError("multiprocessing: the tensor is part of a graph (expected a leaf; use detach())")
    if tensor.is_meta:
        return _tensor.reduce(tensor)
    data = tensor.detach().share_memory_()
    whole = _C.storage_bytes(data)
    geometry = data.storage_offset(), tuple(data.shape), tuple(data.stride())
    shared = pass_fd(_C.shared_fd(data)), whole.numel(), data.dtype
    return rebuild_tensor, (type(tensor), *shared, *geometry, tensor.requires_grad, tensor.__dict__ or None)


def sendable(tensor):
    """The tensor; or a copy if its memory cannot become shared, because it is lent (numpy()) or read-only."""
    try:
        tensor.detach().share_memory_()
    except (RuntimeError, ValueError):
        return copy.deepcopy(tensor)
    return tensor


def rebuild_tensor(kind, descriptor, size, dtype, offset, shape, stride, requires_grad, attributes):
    """The tensor in the receiving process."""
    fd = descriptor.detach()
    try:
        key = _identity(fd, dtype)
        whole = _mapped.get(key)
        if whole is None:
            whole = _mapped[key] = _C.shared_open(fd, size, dtype)
    finally:
        os.close(fd)
    tensor = whole.as_strided(shape, stride, offset)
    if kind is not _C.Tensor:
        tensor = _C.Tensor._make_subclass(kind, tensor.detach(), requires_grad)
    elif requires_grad:
        tensor = tensor.detach().requires_grad_()
    if attributes:
        tensor.__dict__.update(attributes)
    return tensor


def init_reductions():
    """Teaches multiprocessing's pickler to send tensors."""
    from pydist.nn import Parameter

    for kind in (_C.Tensor, Parameter):
        ForkingPickler.register(kind, reduce_tensor)
