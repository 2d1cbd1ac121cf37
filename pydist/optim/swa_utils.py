"""Averages of a model's weights during training: stochastic weight averaging (Izmailov et al., arXiv 1803.05407) and
exponential moving averages."""

import math
from copy import deepcopy
from itertools import chain

from pydist import _C
from pydist._grad_mode import no_grad
from pydist._replay import in_python
from pydist.nn.modules.batchnorm import _BatchNorm
from pydist.nn.modules.module import Module
from pydist.optim.lr_scheduler import LRScheduler
from pydist.optim.lr_scheduler.base import per_group

__all__ = [
    "SWALR", "AveragedModel", "get_ema_avg_fn", "get_ema_multi_avg_fn", "get_swa_avg_fn", "get_swa_multi_avg_fn",
    "update_bn",
]  # fmt: skip


@no_grad()
def _approach(averages, values, share):
    """Moves each average towards its value by a share of the difference. Integers are copied."""
    for average, value in zip(averages, values):
        if average.is_floating_point():
            average.lerp_(value.to(average.dtype), share)
        else:
            average.copy_(value)


def _check(decay):
    if not 0.0 <= decay <= 1.0:
        raise ValueError(f"Invalid decay value {decay}. Please provide a value in [0,1] range.")


def get_ema_multi_avg_fn(decay=0.999):
    """A function of lists that sets each average to decay * average + (1 - decay) * value. Raises ValueError for a
    decay outside [0, 1]."""
    _check(decay)
    return lambda averages, values, num_averaged: _approach(averages, values, 1 - decay)


def get_swa_multi_avg_fn():
    """A function of lists that sets each average to the mean of num_averaged + 1 values."""
    return lambda averages, values, num_averaged: _approach(averages, values, 1 / (float(num_averaged) + 1))


def get_ema_avg_fn(decay=0.999):
    """A function that returns the average of one tensor: decay * average + (1 - decay) * value."""
    _check(decay)
    return no_grad()(lambda average, value, num_averaged: decay * average + (1 - decay) * value)


def get_swa_avg_fn():
    """A function that returns the average of one tensor: the mean of num_averaged + 1 values."""
    return no_grad()(lambda average, value, num_averaged: average + (value - average) / (num_averaged + 1))


class AveragedModel(Module):
    """A copy of `model` whose parameters are averages of the model's parameters at each call of
    `update_parameters(model)`. They are means (SWA), or what `avg_fn(average, value, num_averaged)` returns, or what
    `multi_avg_fn` does to lists of them.

    use_buffers: buffers are averaged, too; otherwise they are copied. Raises ValueError if both functions are given.

    >>> import pydist
    >>> model = pydist.nn.Linear(1, 1)
    >>> averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    >>> averaged.update_parameters(model)
    >>> averaged.n_averaged.item(), bool(averaged.module.weight == model.weight)
    (1, True)
    """

    def __init__(self, model, device=None, avg_fn=None, multi_avg_fn=None, use_buffers=False):
        super().__init__()
        if avg_fn is not None and multi_avg_fn is not None:
            raise ValueError("Only one of avg_fn and multi_avg_fn should be provided")
        self.module = deepcopy(model)
        if device is not None:
            self.module = self.module.to(device)
        self.register_buffer("n_averaged", _C.tensor(0, dtype=_C.int64, device=device))
        self.avg_fn = avg_fn
        self.multi_avg_fn = multi_avg_fn or (get_swa_multi_avg_fn() if avg_fn is None else None)
        self.use_buffers = use_buffers

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def _averaged(self, model):
        return [p.detach() for p in chain(model.parameters(), model.buffers() if self.use_buffers else ())]

    @in_python
    @no_grad()
    def update_parameters(self, model):
        """Adds the parameters of `model` to the averages."""
        averages, values = self._averaged(self.module), self._averaged(model)
        if self.n_averaged == 0:
            for average, value in zip(averages, values):
                average.copy_(value)
        elif self.multi_avg_fn is not None:
            self.multi_avg_fn(averages, values, self.n_averaged)
        else:
            for average, value in zip(averages, values):
                average.copy_(self.avg_fn(average, value, self.n_averaged))
        if not self.use_buffers:
            for average, value in zip(self.module.buffers(), model.buffers()):
                average.detach().copy_(value.detach())
        self.n_averaged += 1


@no_grad()
def update_bn(loader, model, device=None):
    """Sets the running means and variances of the model's batch norms to those over the batches of `loader`. If a batch
    is a list or tuple, the model gets its first element."""
    norms = {module: module.momentum for module in model.modules() if isinstance(module, _BatchNorm)}
    if not norms:
        return
    was_training = model.training
    model.train()
    for module in norms:
        module.reset_running_stats()
        module.momentum = None  # all batches count the same
    try:
        for batch in loader:
            inputs = batch[0] if isinstance(batch, (list, tuple)) else batch
            model(inputs if device is None else inputs.to(device))
    finally:
        for module, momentum in norms.items():
            module.momentum = momentum
        model.train(was_training)


def _cosine(t):
    return (1 - math.cos(math.pi * t)) / 2


def _linear(t):
    return t


class SWALR(LRScheduler):
    """Moves the optimizer's rates to `swa_lr` in `anneal_epochs` steps, along a cosine ("cos") or a line ("linear"),
    and keeps them there. Raises ValueError for another anneal_strategy."""

    def __init__(self, optimizer, swa_lr, anneal_epochs=10, anneal_strategy="cos", last_epoch=-1):
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}")
        if not isinstance(anneal_epochs, int) or anneal_epochs < 0:
            raise ValueError(f"anneal_epochs must be equal or greater than 0, got {anneal_epochs}")
        for lr, group in zip(per_group("swa_lr", optimizer, swa_lr), optimizer.param_groups):
            group["swa_lr"] = lr
        self.anneal_func = _cosine if anneal_strategy == "cos" else _linear
        self.anneal_epochs = anneal_epochs
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        step = self._step_count - 1
        if self.anneal_epochs == 0:
            step = max(1, step)
        before, now = (self.anneal_func(max(0, min(1, at / max(1, self.anneal_epochs)))) for at in (step - 1, step))
        rates = []
        for group in self.optimizer.param_groups:
            first = group["swa_lr"] if before == 1 else (group["lr"] - before * group["swa_lr"]) / (1 - before)
            rates.append(group["swa_lr"] * now + first * (1 - now))
        return rates

    def state_dict(self):
        return {key: value for key, value in super().state_dict().items() if key != "anneal_func"}
