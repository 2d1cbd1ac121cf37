"""Learning rates by the number of updates."""

import math


def _check(what, value, good, expected):
    if not good:
        raise ValueError(f"LRScheduler: {what} is {value} (expected {expected})")


class LRScheduler:
    """A base class. For the first warmup_steps updates the rate grows from warmup_begin_lr to base_lr ("linear") or is
    warmup_begin_lr ("constant")."""

    def __init__(self, base_lr=0.01, warmup_steps=0, warmup_begin_lr=0, warmup_mode="linear"):
        _check("warmup_begin_lr", warmup_begin_lr, warmup_begin_lr <= base_lr, f"at most base_lr, {base_lr}")
        _check("warmup_steps", warmup_steps, warmup_steps >= 0, "at least 0")
        _check("warmup_mode", warmup_mode, warmup_mode in ("linear", "constant"), "linear or constant")
        self.base_lr = self.warmup_final_lr = base_lr
        self.warmup_steps, self.warmup_begin_lr, self.warmup_mode = warmup_steps, warmup_begin_lr, warmup_mode

    def get_warmup_lr(self, num_update):
        """The rate of an update of the first ones."""
        grown = (self.warmup_final_lr - self.warmup_begin_lr) * num_update / self.warmup_steps
        return self.warmup_begin_lr + (grown if self.warmup_mode == "linear" else 0)

    def __call__(self, num_update):
        if num_update < self.warmup_steps:
            return self.get_warmup_lr(num_update)
        self._advance(num_update)
        return self.base_lr


class FactorScheduler(LRScheduler):
    """Multiplies the rate by `factor` after each `step` updates, down to stop_factor_lr."""

    def __init__(self, step, factor=1, stop_factor_lr=1e-8, base_lr=0.01, **warmup):
        super().__init__(base_lr, **warmup)
        _check("step", step, step >= 1, "at least 1")
        _check("factor", factor, factor <= 1, "at most 1")
        self.step, self.factor, self.stop_factor_lr, self.count = step, factor, stop_factor_lr, 0

    def _advance(self, num_update):
        while num_update > self.count + self.step:
            self.count += self.step
            self.base_lr = max(self.base_lr * self.factor, self.stop_factor_lr)


class MultiFactorScheduler(LRScheduler):
    """Multiplies the rate by `factor` after each number of updates in the list `step`."""

    def __init__(self, step, factor=1, base_lr=0.01, **warmup):
        super().__init__(base_lr, **warmup)
        _check(
            "step", step, step and step[0] >= 1 and all(a < b for a, b in zip(step, step[1:])), "growing numbers from 1"
        )
        _check("factor", factor, factor <= 1, "at most 1")
        self.step, self.factor, self.cur_step_ind = step, factor, 0

    def _advance(self, num_update):
        while self.cur_step_ind < len(self.step) and num_update > self.step[self.cur_step_ind]:
            self.cur_step_ind += 1
            self.base_lr *= self.factor


class PolyScheduler(LRScheduler):
    """From base_lr to final_lr at max_update, by a power of what is left."""

    def __init__(self, max_update, base_lr=0.01, pwr=2, final_lr=0, **warmup):
        super().__init__(base_lr, **warmup)
        _check("max_update", max_update, max_update >= 1, "at least 1")
        self.power, self.base_lr_orig, self.final_lr, self.max_update = pwr, base_lr, final_lr, max_update

    def _left(self, done):
        return (1 - done) ** self.power

    def _advance(self, num_update):
        if num_update <= self.max_update:
            done = (num_update - self.warmup_steps) / (self.max_update - self.warmup_steps)
            self.base_lr = self.final_lr + (self.base_lr_orig - self.final_lr) * self._left(done)


class CosineScheduler(PolyScheduler):
    """From base_lr to final_lr at max_update, along half a cosine."""

    def __init__(self, max_update, base_lr=0.01, final_lr=0, **warmup):
        super().__init__(max_update, base_lr, final_lr=final_lr, **warmup)

    def _left(self, done):
        return (1 + math.cos(math.pi * done)) / 2
