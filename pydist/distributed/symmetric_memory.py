"""Tensors in memory that all ranks of a group can address: collectives on them copy nothing."""

from pydist import _C
from pydist.distributed._group.process_group import current


def empty(*size, dtype=None, device=None, group=None):
    """A tensor of zeros in symmetric memory of the group (default: the process's group), of the same size on every
    rank.

    Collective: all ranks of the group call it. all_reduce, broadcast and reduce_scatter of such a tensor, or of a part
    of it, read and write the ranks' tensors in place, if it is at the same offset on all of them; so does an all_gather
    of tensors of different sizes. all_to_all of parts of such a tensor reads them in place at any offset. The results have the same bits as those of any other tensor. Between hosts it is ordinary memory. The tensor may outlive the group.
    Raises OutOfMemoryError on all ranks if one of them has too little memory. PyTorch:
    torch.distributed._symmetric_memory.empty.

    >>> import pydist
    >>> from pydist.distributed import symmetric_memory
    >>> x = symmetric_memory.empty(2, 3)
    >>> pydist.distributed.all_reduce(x)
    >>> x.shape
    pydist.Size([2, 3])
    """
    _C.empty(0, device=device)  # raises if there is no such device
    shape = _C.Size(size if len(size) != 1 or isinstance(size[0], int) else size[0])
    dtype = dtype or _C.get_default_dtype()
    count = shape.numel()
    segment = current(group).segment(count * dtype.itemsize)  # also for 0 bytes: the ranks compare their sizes
    return _C.frombuffer(segment, dtype=dtype, count=count).reshape(shape).detach()
