"""Schedules made of other schedules."""

from bisect import bisect_right

from pydist.optim.lr_scheduler.base import LRScheduler, set_rate
from pydist.optim.lr_scheduler.plateau import ReduceLROnPlateau


class _Composed(LRScheduler):
    def _take(self, optimizer, schedulers):
        name = type(self).__name__
        if not schedulers:
            raise ValueError(f"{name} expects at least one scheduler, but got no scheduler.")
        self.optimizer = schedulers[0].optimizer if optimizer is None else optimizer
        for i, scheduler in enumerate(schedulers):
            if not hasattr(scheduler, "optimizer"):
                raise TypeError(f"{name} at index {i} should have `optimizer` as its attribute (expected a scheduler).")
            if isinstance(scheduler, ReduceLROnPlateau):
                raise ValueError(f"{name} does not support `ReduceLROnPlateau`, which needs a metric, at index {i}")
            if scheduler.optimizer is not self.optimizer:
                raise ValueError(f"{name} expects all schedulers to belong to the same optimizer (index {i} does not)")
        self._schedulers = list(schedulers)

    def state_dict(self):
        return {**super().state_dict(), "_schedulers": [scheduler.state_dict() for scheduler in self._schedulers]}

    def load_state_dict(self, state_dict):
        rest = dict(state_dict)
        for scheduler, state in zip(self._schedulers, rest.pop("_schedulers")):
            scheduler.load_state_dict(state)
        super().load_state_dict(rest)


class SequentialLR(_Composed):
    """One scheduler after another: scheduler i + 1 begins, at its own epoch 0, at epoch milestones[i].

    Raises ValueError unless there is one milestone fewer than schedulers and all schedulers belong to `optimizer`.

    >>> import pydist
    >>> from pydist.optim.lr_scheduler import ConstantLR, ExponentialLR, SequentialLR
    >>> optimizer = pydist.optim.SGD([pydist.zeros(1, requires_grad=True)], lr=1.0)
    >>> parts = [ConstantLR(optimizer, factor=0.5), ExponentialLR(optimizer, gamma=0.1)]
    >>> schedule, rates = SequentialLR(optimizer, parts, milestones=[2]), []
    >>> for epoch in range(4):
    ...     rates += schedule.get_last_lr()
    ...     schedule.step()
    >>> rates
    [0.5, 0.5, 1.0, 0.1]
    """

    def __init__(self, optimizer, schedulers, milestones, last_epoch=-1):
        self._take(optimizer, schedulers)
        if len(milestones) != len(schedulers) - 1:
            raise ValueError(
                "Sequential Schedulers expects number of schedulers provided to be one more than the number of "
                f"milestone points, but got {len(schedulers)} schedulers and {len(milestones)} milestones"
            )
        self._milestones = milestones
        self.last_epoch = last_epoch + 1
        for group in optimizer.param_groups:
            set_rate(group, group["initial_lr"])
        _take_back(self)
        first = self._schedulers[bisect_right(milestones, 0)]
        first._initial_step()
        self._last_lr = first.get_last_lr()

    def step(self):
        self.last_epoch += 1
        index = bisect_right(self._milestones, self.last_epoch)
        scheduler = self._schedulers[index]
        if index > 0 and self._milestones[index - 1] == self.last_epoch:
            scheduler._update_lr(0)
        else:
            scheduler.step()
        self._last_lr = scheduler.get_last_lr()


def _take_back(scheduler):
    """Undoes the steps that schedulers made in their constructors."""
    for inner in scheduler._schedulers:
        if hasattr(inner, "_schedulers"):
            _take_back(inner)
        else:
            inner.last_epoch -= 1


class ChainedScheduler(_Composed):
    """Applies all schedulers at each step, in order."""

    def __init__(self, schedulers, optimizer=None):
        self._take(optimizer, schedulers)
        self._last_lr = self._scaled(1.0)

    def step(self):
        for scheduler in self._schedulers:
            scheduler.step()
        self._last_lr = self._scaled(1.0)
