"""Schedules: which share of a parameter's elements is pruned after which step. Steps are counted from 1."""

import numbers


class _Schedule:
    def __init__(self, begin_step, end_step, frequency):
        name = type(self).__name__
        for what, value, least in (("begin_step", begin_step, 0), ("frequency", frequency, 1)):
            if not isinstance(value, numbers.Integral) or value < least:
                raise ValueError(f"{name}: {what} is {value!r} (expected a number of {least} or more)")
        if not isinstance(end_step, numbers.Integral) or end_step != -1 and end_step < begin_step:
            raise ValueError(f"{name}: end_step is {end_step!r} (expected -1, or a number of {begin_step} or more)")
        self.begin_step, self.end_step, self.frequency = int(begin_step), int(end_step), int(frequency)

    def _check(self, what, share):
        if not isinstance(share, numbers.Real) or not 0 <= share < 1:
            raise ValueError(f"{type(self).__name__}: {what} is {share!r} (expected 0 or more, and less than 1)")
        return float(share)

    def is_due(self, step):
        """Whether masks change after this step: every `frequency` steps from begin_step on, and at end_step."""
        if step < self.begin_step or -1 < self.end_step < step:
            return False
        return step == self.end_step or (step - self.begin_step) % self.frequency == 0


class ConstantSparsity(_Schedule):
    """Prunes the share target_sparsity, every `frequency` steps from begin_step to end_step (-1: without end) anew.

    >>> from pydist.compress import ConstantSparsity
    >>> schedule = ConstantSparsity(0.5, begin_step=10, frequency=5)
    >>> [step for step in range(1, 25) if schedule.is_due(step)], schedule.sparsity(15)
    ([10, 15, 20], 0.5)
    """

    def __init__(self, target_sparsity, begin_step=0, end_step=-1, frequency=100):
        super().__init__(begin_step, end_step, frequency)
        self.target_sparsity = self._check("target_sparsity", target_sparsity)

    def sparsity(self, step):
        """target_sparsity."""
        return self.target_sparsity


class PolynomialDecay(_Schedule):
    """final + (initial - final) * (1 - t)^power, where t goes from 0 to 1 between begin_step and end_step: fast at first, when
    there is much to spare. M. Zhu, S. Gupta: To prune, or not to prune. 2017.

    >>> from pydist.compress import PolynomialDecay
    >>> schedule = PolynomialDecay(0.0, 0.8, begin_step=0, end_step=100, frequency=25)
    >>> [(step, round(schedule.sparsity(step), 4)) for step in range(1, 101) if schedule.is_due(step)]
    [(25, 0.4625), (50, 0.7), (75, 0.7875), (100, 0.8)]
    """

    def __init__(self, initial_sparsity, final_sparsity, begin_step, end_step, power=3, frequency=100):
        if end_step == -1:
            raise ValueError("PolynomialDecay: end_step is -1 (expected the step at which final_sparsity is reached)")
        super().__init__(begin_step, end_step, frequency)
        self.initial_sparsity = self._check("initial_sparsity", initial_sparsity)
        self.final_sparsity = self._check("final_sparsity", final_sparsity)
        if not isinstance(power, numbers.Real) or not 0 < power < float("inf"):
            raise ValueError(f"PolynomialDecay: power is {power!r} (expected a number above 0)")
        self.power = power

    def sparsity(self, step):
        """The share after this step."""
        length = max(1, self.end_step - self.begin_step)
        rest = 1 - min(1.0, max(0.0, (step - self.begin_step) / length))
        return self.final_sparsity + (self.initial_sparsity - self.final_sparsity) * rest**self.power
