"""Many small collectives as one: what costs a small collective is its gate, not its bytes."""

import contextlib

from pydist._C import Work
from pydist.distributed._group.process_group import current, outside

_open = {}  # by group: what is called in its `with` block


class _CoalescingManager:
    """The works of a block with async_ops=True."""

    def __init__(self):
        self.works = []

    def append(self, work=None):
        if work is not None:
            self.works.append(work)

    def wait(self):
        for work in self.works:
            work.wait()


class _NoWorkYet:
    """What a collective that waits for the end of its block returns with async_op=True."""

    def __getattr__(self, name):
        if not hasattr(Work, name):
            raise AttributeError(f"Work has no attribute '{name}'")
        raise ValueError(f"{name}: the collective begins at the end of the with block (expected the manager's wait())")


def recorded(group, name, async_op, *call):
    """Whether `group` is in a block, which now has this call; and what the collective then returns."""
    calls = _open.get(current(group)) if _open else None
    if calls is None:
        return False, None
    calls.append((name, call))
    return True, _NoWorkYet() if async_op else None


def _parts(whole, part, group, names):
    """The ranks' parts of a tensor that has world size times the elements of `part`."""
    if whole.numel() != part.numel() * group.size:
        raise ValueError(
            f"{names}: a tensor of {whole.numel()} elements with one of {part.numel()} "
            f"(expected {group.size} times as many)"
        )
    return whole.view((group.size, *part.shape)).unbind(0)


def _by_rank(pairs, group, names):
    parts = [_parts(whole, part, group, names) for whole, part in pairs]
    return [tensors[rank] for rank in range(group.size) for tensors in parts], [part for _, part in pairs]


def _run(group, calls):
    kinds = {name for name, _ in calls}
    if len(kinds) > 1:
        raise RuntimeError(f"_coalescing_manager: a block with {sorted(kinds)} (expected collectives of one kind)")
    ops = {call[-1] for _, call in calls}
    if len(ops) > 1:
        raise RuntimeError(f"_coalescing_manager: a block with reduce operations {sorted(ops)} (expected one)")
    name, op = kinds.pop(), ops.pop()
    if name == "all_reduce":
        return group.all_reduce([call[0] for _, call in calls], op, True)
    wholes, parts = _by_rank([call[:2] for _, call in calls], group, name)
    if name == "all_gather_into_tensor":
        return group.all_gather(wholes, parts, True, True)
    return group.reduce_scatter(parts, wholes, op, True, coalesced=True)


@contextlib.contextmanager
def _coalescing_manager(group=None, device=None, async_ops=False):
    """Collectives of one kind within the block (all_reduce, all_gather_into_tensor or reduce_scatter_tensor, with one
    dtype and reduce operation) run as one collective at its end. Others run where they stand.

    async_ops=True: the manager's wait() ends them. Where the block raises, nothing runs. `device` means nothing here.
    RuntimeError: kinds or reduce operations differ; TypeError: dtypes differ. PyTorch:
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
    group = current(group)
    if group in _open:
        raise ValueError("_coalescing_manager: the group is in such a block already")
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
    """output_tensor_lists[r][i] = rank r's input_tensor_list[i], all of one dtype, as one collective.

    >>> import pydist
    >>> out = [[pydist.zeros(2), pydist.zeros(1)]]
    >>> pydist.distributed.all_gather_coalesced(out, [pydist.ones(2), pydist.ones(1)])  # a world of one
    >>> [t.tolist() for t in out[0]]
    [[1.0, 1.0], [1.0]]
    """
    flat = [tensor for tensors in output_tensor_lists for tensor in tensors]
    return current(group).all_gather(flat, input_tensor_list, async_op, True)
