"""PyTorch's module of this name, with the names that scripts import from it."""

from pydist.distributed import *
from pydist.distributed._group.process_group import current
from pydist.distributed._ops.coalescing import _CoalescingManager, _coalescing_manager  # noqa: F401
from pydist.distributed._ops.collectives import _make_nccl_premul_sum  # noqa: F401


def _get_default_store():
    """The store that the ranks of the default process group share."""
    return current().store


def _get_default_group():
    """The default process group, which is made now if there is none."""
    return current()
