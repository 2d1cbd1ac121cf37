"""A rate that depends on a metric."""

import math

from pydist.optim.lr_scheduler.base import LRScheduler, rate_of, set_rate
from pydist.optim.optimizer import Optimizer


class ReduceLROnPlateau(LRScheduler):
    """lr *= factor when the metric given to `step` has not improved for more than `patience` epochs.

    Improved means: less than best * (1 - threshold) (mode "min", threshold_mode "rel") or best - threshold ("abs");
    with mode "max" greater than best * (1 + threshold) or best + threshold. `cooldown`: epochs after a reduction that
    do not count. `min_lr`: lower bound, one or one per group. `eps`: smaller changes are not made.
    """

    def __init__(
        self,
        optimizer,
        mode="min",
        factor=0.1,
        patience=10,
        threshold=1e-4,
        threshold_mode="rel",
        cooldown=0,
        min_lr=0,
        eps=1e-8,
    ):
        if factor >= 1.0:
            raise ValueError(f"Factor should be < 1.0, got {factor}.")
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{type(optimizer).__name__} is not an Optimizer (expected one)")
        if mode not in ("min", "max"):
            raise ValueError(f"mode {mode} is unknown! (expected 'min' or 'max')")
        if threshold_mode not in ("rel", "abs"):
            raise ValueError(f"threshold mode {threshold_mode} is unknown! (expected 'rel' or 'abs')")
        groups = len(optimizer.param_groups)
        if isinstance(min_lr, (list, tuple)) and len(min_lr) != groups:
            raise ValueError(f"expected {groups} min_lrs, got {len(min_lr)}")
        self.optimizer = optimizer
        self.mode, self.factor, self.patience = mode, factor, patience
        self.threshold, self.threshold_mode = threshold, threshold_mode
        self.cooldown, self.eps = cooldown, eps
        self.min_lrs = list(min_lr) if isinstance(min_lr, (list, tuple)) else [min_lr] * groups
        self.best = math.inf if mode == "min" else -math.inf
        self.cooldown_counter = self.num_bad_epochs = self.last_epoch = 0
        self._last_lr = self._scaled(1.0)

    @property
    def in_cooldown(self):
        """Whether this epoch does not count because of a recent reduction."""
        return self.cooldown_counter > 0

    def _is_better(self, metric):
        sign = 1 if self.mode == "max" else -1
        relative = self.threshold_mode == "rel"
        limit = self.best * (1 + sign * self.threshold) if relative else self.best + sign * self.threshold
        return metric > limit if self.mode == "max" else metric < limit

    def step(self, metrics, epoch=None):
        """Counts an epoch with this metric, and reduces the rates if it is time."""
        metric = float(metrics)
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        if self._is_better(metric):
            self.best, self.num_bad_epochs = metric, 0
        else:
            self.num_bad_epochs += 1
        if self.in_cooldown:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            for group, least in zip(self.optimizer.param_groups, self.min_lrs):
                lr = max(rate_of(group) * self.factor, least)
                if rate_of(group) - lr > self.eps:
                    set_rate(group, lr)
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
        self._last_lr = self._scaled(1.0)
