"""Rates that go up and down, with momenta that go the other way."""

import math
from functools import partial

from pydist.optim.lr_scheduler.base import LRScheduler, function_states, load_function_states, per_group, set_rate


class _WithMomentum(LRScheduler):
    """Sets the groups' momentum, or the first of their betas, together with the rate."""

    def _begin_momentum(self, optimizer, base, top, last_epoch):
        if "momentum" not in optimizer.defaults and "betas" not in optimizer.defaults:
            raise ValueError("optimizer must support momentum or beta1 with `cycle_momentum` option enabled")
        self.use_beta1 = "betas" in optimizer.defaults
        lows, tops = per_group("base_momentum", optimizer, base), per_group("max_momentum", optimizer, top)
        if last_epoch == -1:
            for group, low, high in zip(optimizer.param_groups, lows, tops):
                self._set_momentum(group, high)
                group.update(max_momentum=high, base_momentum=low)
        return lows, tops

    def _set_momentum(self, group, value):
        if self.use_beta1:
            group["betas"] = (value, *group["betas"][1:])
        else:
            group["momentum"] = value


def _exponential(gamma, iteration):
    return gamma**iteration


class CyclicLR(_WithMomentum):
    """Triangles between base_lr and max_lr, with `step_size_up` steps up and `step_size_down` steps down (default: the
    same number) (Smith, 2017). The momentum goes from max_momentum to base_momentum and back.

    The height of a triangle is multiplied by 1 ("triangular"), 1 / 2^(cycle - 1) ("triangular2"), gamma^iteration
    ("exp_range"), or scale_fn(x), where scale_mode says whether x is the cycle or the iteration.
    """

    def __init__(
        self,
        optimizer,
        base_lr,
        max_lr,
        step_size_up=2000,
        step_size_down=None,
        mode="triangular",
        gamma=1.0,
        scale_fn=None,
        scale_mode="cycle",
        cycle_momentum=True,
        base_momentum=0.8,
        max_momentum=0.9,
        last_epoch=-1,
    ):
        base_lrs = per_group("base_lr", optimizer, base_lr)
        if last_epoch == -1:
            for group, lr in zip(optimizer.param_groups, base_lrs):
                set_rate(group, lr)
        self.max_lrs = per_group("max_lr", optimizer, max_lr)
        down = step_size_up if step_size_down is None else step_size_down
        self.total_size = float(step_size_up + down)
        self.step_ratio = step_size_up / self.total_size
        if mode not in ("triangular", "triangular2", "exp_range") and scale_fn is None:
            raise ValueError(
                "mode is invalid and scale_fn is None (expected 'triangular', 'triangular2', 'exp_range', or scale_fn)"
            )
        self.mode, self.gamma, self._scale_fn_custom, self.scale_mode = mode, gamma, scale_fn, scale_mode
        if scale_fn is None:
            self.scale_mode = "iterations" if mode == "exp_range" else "cycle"
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            momenta = self._begin_momentum(optimizer, base_momentum, max_momentum, last_epoch)
            self.base_momentums, self.max_momentums = momenta
        super().__init__(optimizer, last_epoch)
        self.base_lrs = base_lrs

    def scale_fn(self, x):
        """The factor of a triangle's height at x, a cycle or an iteration."""
        if self._scale_fn_custom is not None:
            return self._scale_fn_custom(x)
        return {"triangular": lambda x: 1.0, "triangular2": lambda x: 2.0 ** (1 - x)}.get(
            self.mode, partial(_exponential, self.gamma)
        )(x)

    def get_lr(self):
        cycle = math.floor(1 + self.last_epoch / self.total_size)
        x = 1.0 + self.last_epoch / self.total_size - cycle
        height = x / self.step_ratio if x <= self.step_ratio else (x - 1) / (self.step_ratio - 1)
        height *= self.scale_fn(cycle if self.scale_mode == "cycle" else self.last_epoch)
        if self.cycle_momentum:
            for group, low, high in zip(self.optimizer.param_groups, self.base_momentums, self.max_momentums):
                self._set_momentum(group, high - (high - low) * height)
        return [low + (high - low) * height for low, high in zip(self.base_lrs, self.max_lrs)]

    def state_dict(self):
        return {**super().state_dict(), "_scale_fn_custom": function_states([self._scale_fn_custom])[0]}

    def load_state_dict(self, state_dict):
        rest = dict(state_dict)
        load_function_states([self._scale_fn_custom], [rest.pop("_scale_fn_custom", None)])
        super().load_state_dict(rest)


class CosineAnnealingWarmRestarts(LRScheduler):
    """lr = eta_min + (initial lr - eta_min) * (1 + cos(pi * t / T)) / 2, t epochs after the last restart (Loshchilov
    and Hutter, 2017). T is T_0 first and T_mult times longer after each restart. `step(epoch)` takes fractions of
    epochs."""

    def __init__(self, optimizer, T_0, T_mult=1, eta_min=0.0, last_epoch=-1):
        if not isinstance(T_0, int) or T_0 <= 0:
            raise ValueError(f"Expected positive integer T_0, but got {T_0}")
        if not isinstance(T_mult, int) or T_mult < 1:
            raise ValueError(f"Expected integer T_mult >= 1, but got {T_mult}")
        self.T_0, self.T_i, self.T_mult, self.eta_min, self.T_cur = T_0, T_0, T_mult, eta_min, last_epoch
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        height = (1 + math.cos(math.pi * self.T_cur / self.T_i)) / 2
        return [self.eta_min + (base - self.eta_min) * height for base in self.base_lrs]

    def step(self, epoch=None):
        if epoch is None and self.last_epoch < 0:
            epoch = 0
        if epoch is None:
            epoch = self.last_epoch + 1
            self.T_cur += 1
            if self.T_cur >= self.T_i:
                self.T_cur %= self.T_i
                self.T_i *= self.T_mult
        elif epoch < 0:
            raise ValueError(f"Expected non-negative epoch, but got {epoch}")
        else:
            self._go_to(epoch)
        self.last_epoch = math.floor(epoch)
        self._set(self.get_lr())

    def _go_to(self, epoch):
        restarts, begin = 0, 0
        if epoch >= self.T_0 and self.T_mult == 1:
            restarts = epoch // self.T_0
            begin = restarts * self.T_0
        elif epoch >= self.T_0:
            restarts = int(math.log(epoch / self.T_0 * (self.T_mult - 1) + 1, self.T_mult))
            begin = self.T_0 * (self.T_mult**restarts - 1) / (self.T_mult - 1)
        self.T_i = self.T_0 * self.T_mult**restarts
        self.T_cur = epoch - begin


class OneCycleLR(_WithMomentum):
    """lr goes from max_lr / div_factor up to max_lr in the first pct_start of the steps, then down to its first value /
    final_div_factor. The momentum goes from max_momentum to base_momentum and back (Smith and Topin, 2019).

    three_phase: lr goes down to its first value in as many steps as up, and then to the last value. anneal_strategy:
    "cos" or "linear". The number of steps is `total_steps`, or epochs * steps_per_epoch. A step after the last one
    raises ValueError.
    """

    def __init__(
        self,
        optimizer,
        max_lr,
        total_steps=None,
        epochs=None,
        steps_per_epoch=None,
        pct_start=0.3,
        anneal_strategy="cos",
        cycle_momentum=True,
        base_momentum=0.85,
        max_momentum=0.95,
        div_factor=25.0,
        final_div_factor=1e4,
        three_phase=False,
        last_epoch=-1,
    ):
        counts = {"total_steps": total_steps}
        if total_steps is None:
            if epochs is None or steps_per_epoch is None:
                raise ValueError("You must define either total_steps OR (epochs AND steps_per_epoch)")
            counts = {"epochs": epochs, "steps_per_epoch": steps_per_epoch}
        for name, value in counts.items():
            if not isinstance(value, int) or value <= 0:
                raise ValueError(f"Expected positive integer {name}, but got {value}")
        self.total_steps = math.prod(counts.values())
        if not isinstance(pct_start, float) or not 0 <= pct_start <= 1:
            raise ValueError(f"Expected float between 0 and 1 pct_start, but got {pct_start}")
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}")
        self._anneal_func_type = anneal_strategy
        self._set_phases(pct_start, three_phase)
        max_lrs = per_group("max_lr", optimizer, max_lr)
        if last_epoch == -1:
            for group, top in zip(optimizer.param_groups, max_lrs):
                first = top / div_factor
                group.update(initial_lr=first, max_lr=top, min_lr=first / final_div_factor)
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            self._begin_momentum(optimizer, base_momentum, max_momentum, last_epoch)
        super().__init__(optimizer, last_epoch)

    def _set_phases(self, pct_start, three_phase):
        def phase(end, *names):
            keys = ("end_step", "start_lr", "end_lr", "start_momentum", "end_momentum")
            return dict(zip(keys, (end, *names)))

        up, last = pct_start * self.total_steps, self.total_steps - 1
        self._schedule_phases = [phase(up - 1, "initial_lr", "max_lr", "max_momentum", "base_momentum")]
        if three_phase:
            self._schedule_phases += [
                phase(2 * up - 2, "max_lr", "initial_lr", "base_momentum", "max_momentum"),
                phase(last, "initial_lr", "min_lr", "max_momentum", "max_momentum"),
            ]
        else:
            self._schedule_phases.append(phase(last, "max_lr", "min_lr", "base_momentum", "max_momentum"))

    def _between(self, start, end, part):
        if self._anneal_func_type == "linear":
            return start + (end - start) * part
        return end + (start - end) / 2 * (math.cos(math.pi * part) + 1)

    def get_lr(self):
        step = self.last_epoch
        if step > self.total_steps:
            raise ValueError(f"Tried to step {step} times. The specified number of total steps is {self.total_steps}")
        begin = 0.0
        for phase in self._schedule_phases:
            end = phase["end_step"]
            if step <= end:
                break
            begin = end if phase is not self._schedule_phases[-1] else begin
        part, groups = (step - begin) / (end - begin), self.optimizer.param_groups
        if self.cycle_momentum:
            for group in groups:
                ends = group[phase["start_momentum"]], group[phase["end_momentum"]]
                self._set_momentum(group, self._between(*ends, part))
        return [self._between(group[phase["start_lr"]], group[phase["end_lr"]], part) for group in groups]
