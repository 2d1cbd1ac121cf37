"""Many small collectives as one. The cost of a small collective is the wait for the other ranks, not its bytes."""

import contextlib

from pydist._C import Work
from pydist.distributed._group.process_group import for_call, outside

_open = {}  # by group: the calls inside its `with` block


class _CoalescingManager:
    """Holds the works of a block with async_ops=True."""

    def __init__(self):
        self.works = []

    def append(self, work=None):
        if work is not None:
            self.works.append(work)

    def wait(self):
        for work in self.works:
            work.wait()


class _NoWorkYet:
    """What a collective inside a block returns with async_op=True: it has not started yet."""

    def __getattr__(self, name):
        if not hasattr(Work, name):
            raise AttributeError(f"Work has no attribute '{name}'")
        raise ValueError(
            f"{name}: the collective starts only at the end of the with block (expected wait() of the coalescing manager)"
        )


def recorded(group, name, async_op, *call):
    """Records the call if `group` is inside a block. Returns (whether it is, what the collective then returns)."""
    calls = _open.get(for_call(group)) if _open else None
    if calls is None:
        return False, None
    calls.append((name, call))
    return True, _NoWorkYet() if async_op else None


def _parts(whole, part, group, names):
    """Splits a tensor with world size times as many elements as `part` into the ranks' parts."""
    if whole.numel() != part.numel() * group.size:
        raise ValueError(
            f"{names}: got tensors of {whole.numel()} and {part.numel()} elements "
            f"(expected the first to have {group.size} times as many elements)"
        )
    return whole.view((group.size, *part.shape)).unbind(0)


def _by_rank(pairs, group, names):
    parts = [_parts(whole, part, group, names) for whole, part in pairs]
    return [tensors[rank] for rank in range(group.size) for tensors in parts], [part for _, part in pairs]


def _run(group, calls):
    kinds = {name for name, _ in calls}
    if len(kinds) > 1:
        raise RuntimeError(f"_coalescing_manager: the block has {sorted(kinds)} (expected collectives of one kind)")
    ops = {call[-1] for _, call in calls}
    if len(ops) > 1:
        raise RuntimeError(f"_coalescing_manager: the block has reduce operations {sorted(ops)} (expected one)")
    name, op = kinds.pop(), ops.pop()
    if name == "all_reduce":
        return group.all_reduce([call[0] for _, call in calls], op, True)
    wholes, parts = _by_rank([call[:2] for _, call in calls], group, name)
    if name == "all_gather_into_tensor":
        return group.all_gather(wholes, parts, True, True)
    return group.reduce_scatter(parts, wholes, op, True, coalesced=True)


@contextlib.contextmanager
def _coalescing_manager(group=None, device=None, async_ops=False):
    """Runs the collectives of one kind inside the block (all_reduce, all_gather_into_tensor or reduce_scatter_tensor,
    with one dtype and reduce operation) as one collective at the end of the block. Other collectives run at once.

    With async_ops=True the manager's wait() waits for them. If the block raises, no collective runs. `device` is
    ignored. Raises RuntimeError if kinds or reduce operations differ, TypeError if dtypes differ. PyTorch:
    torch.distributed.distributed_c10d._coalescing_manager.

    >>> import pydist
    >>> from pydist import distributed as dist
    >>> from pydist.distributed.distributed_c10d import _coalescing_manager
    >>> tensors = [pydist.ones(2), pydist.zeros(3)]
    >>> with _coalescing_manager():
    ...     for tensor in tensors:
    ...         dist.all_reduce(tensor)
    >>> [tensor.tolist() for tensor in tensors]  # a world of one
    [[1.0, 1.0], [0.0, 0.0, 0.0]]
    """
    group = for_call(group)
    if group in _open:
        raise ValueError("_coalescing_manager: the group is already in such a block (expected one block at a time)")
    manager = _CoalescingManager()
    _open[group] = calls = []
    try:
        yield manager
    finally:
        del _open[group]
    if not calls:
        return
    if group.size < 0:
        outside("_coalescing_manager")
        return
    manager.append(_run(group, calls))
    if not async_ops:
        manager.wait()


def all_gather_coalesced(output_tensor_lists, input_tensor_list, group=None, async_op=False):
    """output_tensor_lists[r][i] = rank r's input_tensor_list[i], as one collective. All tensors have one dtype.

    >>> import pydist
    >>> out = [[pydist.zeros(2), pydist.zeros(1)]]
    >>> pydist.distributed.all_gather_coalesced(out, [pydist.ones(2), pydist.ones(1)])  # a world of one
    >>> [t.tolist() for t in out[0]]
    [[1.0, 1.0], [1.0]]
    """
    flat = [tensor for tensors in output_tensor_lists for tensor in tensors]
    return for_call(group).all_gather(flat, input_tensor_list, async_op, True)
