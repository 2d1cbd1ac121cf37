"""Learning-rate schedules: each `step()` sets the `lr` of the optimizer's groups."""

import math
from collections import Counter

from pydist.optim.optimizer import Optimizer


class LRScheduler:
    """Base: subclasses define `get_lr()`, the rates at `self.last_epoch`. The first step is taken at construction.

    `last_epoch` is -1 for a new run; to go on from another epoch the groups must have their `initial_lr`.
    """

    def __init__(self, optimizer, last_epoch=-1):
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{type(optimizer).__name__} is not an Optimizer")
        self.optimizer = optimizer
        for i, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", group["lr"])
            elif "initial_lr" not in group:
                raise KeyError(
                    f"param 'initial_lr' is not specified in param_groups[{i}] when resuming an optimizer"
                )
        self.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        self.step()

    def get_lr(self):
        raise NotImplementedError

    def _scaled(self, factor):
        """The groups' rates times a factor."""
        return [group["lr"] * factor for group in self.optimizer.param_groups]

    def get_last_lr(self):
        """The rates set by the last step, one per group."""
        return self._last_lr

    def step(self):
        self.last_epoch += 1
        self._last_lr = self.get_lr()
        for group, lr in zip(self.optimizer.param_groups, self._last_lr):
            group["lr"] = lr

    def state_dict(self):
        return {key: value for key, value in self.__dict__.items() if key != "optimizer"}

    def load_state_dict(self, state_dict):
        self.__dict__.update(state_dict)


class MultiStepLR(LRScheduler):
    """lr *= gamma at each of `milestones`; one that is named twice counts twice."""

    def __init__(self, optimizer, milestones, gamma=0.1, last_epoch=-1):
        self.milestones = Counter(milestones)
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        return self._scaled(self.gamma ** self.milestones[self.last_epoch])


class ExponentialLR(LRScheduler):
    """lr *= gamma every epoch."""

    def __init__(self, optimizer, gamma, last_epoch=-1):
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        return self._scaled(self.gamma if self.last_epoch > 0 else 1)


class ConstantLR(LRScheduler):
    """lr = initial lr * factor for `total_iters` epochs, then the initial lr. Raises ValueError for a factor outside
    [0, 1]."""

    def __init__(self, optimizer, factor=1.0 / 3, total_iters=5, last_epoch=-1):
        if not 0.0 <= factor <= 1.0:
            raise ValueError("Constant multiplicative factor expected to be between 0 and 1.")
        self.factor = factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        if self.last_epoch == 0:
            return self._scaled(self.factor)
        return self._scaled(1.0 / self.factor if self.last_epoch == self.total_iters else 1.0)


class LinearLR(LRScheduler):
    """lr = initial lr * a factor that goes from start_factor to end_factor in `total_iters` equal steps and stays.

    Raises ValueError for factors outside (0, 1] and [0, 1].
    """

    def __init__(self, optimizer, start_factor=1.0 / 3, end_factor=1.0, total_iters=5, last_epoch=-1):
        if not 0.0 < start_factor <= 1.0:
            raise ValueError("Starting multiplicative factor expected to be greater than 0 and less or equal to 1.")
        if not 0.0 <= end_factor <= 1.0:
            raise ValueError("Ending multiplicative factor expected to be between 0 and 1.")
        self.start_factor = start_factor
        self.end_factor = end_factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def _factor(self, epoch):
        return self.start_factor + (self.end_factor - self.start_factor) * epoch / self.total_iters

    def get_lr(self):
        if self.last_epoch == 0:
            return self._scaled(self.start_factor)
        if self.last_epoch > self.total_iters:
            return self._scaled(1.0)
        return self._scaled(self._factor(self.last_epoch) / self._factor(self.last_epoch - 1))


class CosineAnnealingLR(LRScheduler):
    """lr = eta_min + (initial lr - eta_min) * (1 + cos(pi * epoch / T_max)) / 2 (Loshchilov and Hutter, 2017, without
    restarts), computed from the last rate, so that it goes together with other schedules."""

    def __init__(self, optimizer, T_max, eta_min=0.0, last_epoch=-1):
        self.T_max = T_max
        self.eta_min = eta_min
        super().__init__(optimizer, last_epoch)

    def _height(self, epoch):
        return 1 + math.cos(math.pi * epoch / self.T_max)

    def get_lr(self):
        rates = self._scaled(1.0)
        if self.last_epoch == 0:
            return rates
        if (self.last_epoch - 1 - self.T_max) % (2 * self.T_max) == 0:  # up from eta_min, where the ratio is 1 / 0
            step = self._height(self.T_max + 1) / 2
            return [rate + (base - self.eta_min) * step for rate, base in zip(rates, self.base_lrs)]
        ratio = self._height(self.last_epoch) / self._height(self.last_epoch - 1)
        return [ratio * (rate - self.eta_min) + self.eta_min for rate in rates]


class ReduceLROnPlateau(LRScheduler):
    """lr *= factor after more than `patience` epochs in which the metric given to `step` was not better than the best.

    Better: below best * (1 - threshold) (mode "min", threshold_mode "rel"), below best - threshold ("abs"), or with
    mode "max" above best * (1 + threshold) or best + threshold. `cooldown`: epochs after a reduction that do not count.
    `min_lr`: lower bound, one or one per group; `eps`: smaller changes are not made.
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
            raise ValueError("Factor should be < 1.0.")
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{type(optimizer).__name__} is not an Optimizer")
        if mode not in ("min", "max"):
            raise ValueError(f"mode {mode} is unknown!")
        if threshold_mode not in ("rel", "abs"):
            raise ValueError(f"threshold mode {threshold_mode} is unknown!")
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
        return self.cooldown_counter > 0

    def _is_better(self, metric):
        sign = 1 if self.mode == "max" else -1
        relative = self.threshold_mode == "rel"
        limit = self.best * (1 + sign * self.threshold) if relative else self.best + sign * self.threshold
        return metric > limit if self.mode == "max" else metric < limit

    def step(self, metrics):
        metric = float(metrics)
        self.last_epoch += 1
        if self._is_better(metric):
            self.best, self.num_bad_epochs = metric, 0
        else:
            self.num_bad_epochs += 1
        if self.in_cooldown:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            for group, least in zip(self.optimizer.param_groups, self.min_lrs):
                lr = max(group["lr"] * self.factor, least)
                if group["lr"] - lr > self.eps:
                    group["lr"] = lr
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
        self._last_lr = self._scaled(1.0)


class StepLR(LRScheduler):
    """lr *= gamma every `step_size` epochs.

    >>> import pydist
    >>> optimizer = pydist.optim.SGD([pydist.zeros(1, requires_grad=True)], lr=1.0)
    >>> schedule = pydist.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    >>> rates = []
    >>> for epoch in range(4):
    ...     rates += schedule.get_last_lr()
    ...     schedule.step()
    >>> rates
    [1.0, 1.0, 0.5, 0.5]
    """

    def __init__(self, optimizer, step_size, gamma=0.1, last_epoch=-1):
        self.step_size = step_size
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        return self._scaled(self.gamma if self.last_epoch > 0 and self.last_epoch % self.step_size == 0 else 1)


class LambdaLR(LRScheduler):
    """lr = initial lr * lr_lambda(epoch); one function, or one per group."""

    def __init__(self, optimizer, lr_lambda, last_epoch=-1):
        groups = len(optimizer.param_groups)
        self.lr_lambdas = list(lr_lambda) if isinstance(lr_lambda, (list, tuple)) else [lr_lambda] * groups
        if len(self.lr_lambdas) != groups:
            raise ValueError(f"Expected {groups} lr_lambdas, but got {len(self.lr_lambdas)}")
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        return [base * function(self.last_epoch) for base, function in zip(self.base_lrs, self.lr_lambdas)]

    def state_dict(self):
        """Without the functions, which the next scheduler is given anew."""
        state = super().state_dict()
        del state["lr_lambdas"]
        return state
