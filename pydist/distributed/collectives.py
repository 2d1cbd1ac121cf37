"""Collectives on the default or a given group. Each returns None, or with async_op a Work whose wait() ends it.

All ranks of the group must call the same collective with the same arguments: a difference in the operation, the dtype,
the number of elements, the reduce operation or the root raises CommMismatch on all of them, the death of a rank
PeerFailed on the others.
"""

from pydist import _C
from pydist.distributed.process_group import current


class ReduceOp:
    """How elements are combined."""

    SUM = "sum"
    AVG = "avg"
    PRODUCT = "product"
    MIN = "min"
    MAX = "max"
    BAND = "band"
    BOR = "bor"
    BXOR = "bxor"


def all_reduce(tensor, op=ReduceOp.SUM, group=None, async_op=False):
    """tensor = op over all ranks' tensors, in place, with the same bits everywhere.

    >>> import pydist
    >>> x = pydist.ones(3)
    >>> pydist.distributed.all_reduce(x)
    >>> x.tolist()  # a world of one
    [1.0, 1.0, 1.0]
    """
    return current(group).all_reduce(tensor, op, async_op)


def broadcast(tensor, src=None, group=None, async_op=False, group_src=None):
    """tensor = rank `src`'s tensor, in place."""
    if (src is None) == (group_src is None):
        raise ValueError("broadcast: exactly one of src and group_src has to be given")
    return current(group).broadcast(tensor, group_src if src is None else src, async_op)


def barrier(group=None, async_op=False, device_ids=None):
    """Returns when all ranks have called it."""
    return current(group).barrier(async_op)
