"""Classes that decide when models are averaged."""

from pydist.distributed.algorithms.model_averaging.utils import average_parameters_or_parameter_groups

__all__ = ["ModelAverager", "PeriodicModelAverager"]


class ModelAverager:
    """Base class. `step` counts the calls of average_parameters; process_group: None for the default group."""

    def __init__(self, process_group=None):
        self.process_group, self.step = process_group, 0

    def average_parameters(self, params):
        """Averages if it is time. Call it after each optimizer step."""
        raise NotImplementedError


class PeriodicModelAverager(ModelAverager):
    """From step `warmup_steps` on, every `period` steps, the parameters that have a gradient become their mean over the
    ranks. Raises ValueError if warmup_steps is negative or period is less than 1.

    >>> import pydist
    >>> averager = PeriodicModelAverager(period=4, warmup_steps=100)
    >>> averager.average_parameters(pydist.nn.Linear(2, 1).parameters())
    >>> averager.step
    1
    """

    def __init__(self, period, warmup_steps=0, process_group=None):
        super().__init__(process_group)
        if warmup_steps < 0:
            raise ValueError(f"PeriodicModelAverager: warmup_steps is {warmup_steps} (expected 0 or more)")
        if period < 1:
            raise ValueError(f"PeriodicModelAverager: period is {period} (expected 1 or more)")
        self.period, self.warmup_steps = period, warmup_steps

    def average_parameters(self, params):
        """Averages if it is time, and counts the step."""
        if self.step >= self.warmup_steps and (self.step - self.warmup_steps) % self.period == 0:
            average_parameters_or_parameter_groups(params, self.process_group)
        self.step += 1
