"""Uneven inputs: ranks that have run out of data take part in the others' collectives until all ranks are done."""

from abc import ABC, abstractmethod
from typing import NamedTuple

import pydist

__all__ = ["Join", "JoinHook", "Joinable"]


class JoinHook:
    """What a rank without data does for one class of collectives."""

    def finish(self):
        """Called once when this rank leaves the context, before it takes part in the others' iterations."""

    def main_hook(self):
        """Takes part in one iteration of the others, in the same order of collectives."""

    def post_hook(self, is_last_joiner):
        """Called once on every rank when all ranks have run out of data. is_last_joiner: this rank was among the
        last."""


class _JoinConfig(NamedTuple):
    enable: bool
    throw_on_early_termination: bool
    is_first_joinable: bool


_OFF = _JoinConfig(False, False, False)


class Joinable(ABC):
    """An object with collectives in every iteration. It calls Join.notify_join_context(self) before the first of them,
    and its join_hook does the same collectives without data."""

    _join_config = _OFF

    @abstractmethod
    def join_hook(self, **kwargs):
        """The JoinHook for this object. Gets the keyword arguments of Join."""

    @property
    @abstractmethod
    def join_device(self):
        """The device on which it computes."""

    @property
    @abstractmethod
    def join_process_group(self):
        """Its process group."""


def _who_is_active(group, active):
    """The ranks that still have data. Costs an all_gather of 8 bytes."""
    everybody = pydist.empty(group.size, dtype=pydist.int64, device="cpu")
    group.all_gather(everybody, pydist.tensor([int(active)], device="cpu"))
    return [rank for rank, flag in enumerate(everybody.tolist()) if flag]


def _say_that_some_ran_out(group, active):
    gone = [rank for rank in range(group.size) if rank not in active]
    gone = ", ".join(map(str, gone))
    raise RuntimeError(f"Join: rank {gone} of {group.size} ran out of inputs before the others did")


class Join:
    """A context for a training loop in which ranks may have different numbers of batches. A rank that leaves the loop
    takes part in what the others still do, and no rank leaves the context before all are done.

    joinables: objects of one process group, such as DistributedDataParallel, in the order in which an iteration uses
    them. enable=False: the context does nothing. throw_on_early_termination: as soon as one rank runs out of data, all
    ranks raise RuntimeError, which names the ranks without data. Other keyword arguments go to the joinables. Raises
    ValueError without joinables, if they have several groups, and for a sharded model beside others.

    joinables may also be one module of fully_shard, or one FullyShardedDataParallel, whose wholes lie in common memory
    (the ranks of one host). Then a rank without data gives zeros to backwards, and makes clip_grad_norm_ and the steps of
    the optimizers that have the model's parameters, with the others' options; it zeroes gradients after each step, so
    all ranks do. Schedules stand still there. Gradients are divided by the number of all ranks, with
    divide_by_initial_world_size=False by that of ranks that still have data; they have the bits of
    DistributedDataParallel under Join.

    >>> import pydist
    >>> model = pydist.nn.parallel.DistributedDataParallel(pydist.nn.Linear(2, 1))
    >>> with Join([model]):
    ...     for batch in [pydist.ones(3, 2)] * (2 + pydist.distributed.get_rank()):
    ...         model(batch).sum().backward()
    """

    def __init__(self, joinables, enable=True, throw_on_early_termination=False, **kwargs):
        self._joinables = list(joinables)
        if not self._joinables:
            raise ValueError("Join: joinables is empty (expected at least one)")
        for joinable in self._joinables:
            if not isinstance(joinable, Joinable):
                raise TypeError(f"Join: {type(joinable).__name__} (expected a Joinable)")
        self._group = self._joinables[0].join_process_group
        if len(self._joinables) > 1 and any(getattr(one, "joins_alone", False) for one in self._joinables):
            raise ValueError("Join: a sharded model beside other joinables (expected it alone)")
        if any(joinable.join_process_group is not self._group for joinable in self._joinables):
            raise ValueError("Join: the joinables have several process groups (expected one)")
        self._enable, self._throw = enable and self._group.size > 1, throw_on_early_termination
        self._hooks = [joinable.join_hook(**kwargs) for joinable in self._joinables]

    def __enter__(self):
        for i, joinable in enumerate(self._joinables):
            joinable._join_config = _JoinConfig(self._enable, self._throw, i == 0)

    def __exit__(self, kind, value, trace):
        for joinable in self._joinables:
            joinable._join_config = _OFF
        if not self._enable or kind is not None:
            return
        for hook in self._hooks:
            hook.finish()
        last = True
        while active := _who_is_active(self._group, False):
            if self._throw:
                _say_that_some_ran_out(self._group, active)
            last = False
            for hook in self._hooks:
                hook.main_hook()
        for hook in self._hooks:
            hook.post_hook(last)

    @staticmethod
    def notify_join_context(joinable):
        """Called by `joinable` before the first collective of an iteration. Tells the ranks that have run out of data
        that there is one more iteration. Does nothing outside Join, and for joinables after the first one."""
        config = joinable._join_config
        if not (config.enable and config.is_first_joinable):
            return
        group = joinable.join_process_group
        active = _who_is_active(group, True)
        if config.throw_on_early_termination and len(active) < group.size:
            _say_that_some_ran_out(group, active)
