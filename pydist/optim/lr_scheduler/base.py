"""What all schedules share."""

from pydist import _C
from pydist._replay import in_python
from pydist.optim.optimizer import Optimizer


def rate_of(group):
    """The group's learning rate as a number."""
    return float(group["lr"]) if isinstance(group["lr"], _C.Tensor) else group["lr"]


def set_rate(group, lr):
    """Sets the group's learning rate. A tensor is written in place, because a captured step reads it."""
    if isinstance(group["lr"], _C.Tensor):
        group["lr"].fill_(float(lr))
    else:
        group["lr"] = lr


class LRScheduler:
    """Base class: subclasses define `get_lr()`, the rates at `self.last_epoch`. The constructor makes the first step.

    `last_epoch` is -1 for a new run. To go on from another epoch, the groups must have their `initial_lr`. Subclasses
    may define `_get_closed_form_lr()` for `step(epoch)`: the rates at `last_epoch`, whatever they were before.
    """

    _is_initial = False  # True while the constructor makes the first step

    def __init__(self, optimizer, last_epoch=-1):
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{type(optimizer).__name__} is not an Optimizer (expected one)")
        self.optimizer = optimizer
        for i, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", rate_of(group))
            elif "initial_lr" not in group:
                raise KeyError(f"param 'initial_lr' is not specified in param_groups[{i}] when resuming an optimizer")
        self.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        self._initial_step()

    def _initial_step(self):
        self._step_count = 0
        self._is_initial = True
        try:
            self.step()
        finally:
            self._is_initial = False

    def get_lr(self):
        """The rates of the groups at `self.last_epoch`."""
        raise NotImplementedError

    def _scaled(self, factor):
        """The groups' rates, multiplied by a factor."""
        return [rate_of(group) * factor for group in self.optimizer.param_groups]

    def get_last_lr(self):
        """The rates set by the last step, one per group."""
        return self._last_lr

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if "step" in cls.__dict__:
            cls.step = in_python(cls.step)

    @in_python
    def step(self, epoch=None):
        """Sets the rates of the next epoch, or of the given one."""
        self._step_count += 1
        self._update_lr(epoch)

    def _update_lr(self, epoch=None):
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        closed = None if epoch is None else getattr(self, "_get_closed_form_lr", None)
        self._set((closed or self.get_lr)())

    def _set(self, rates):
        for group, lr in zip(self.optimizer.param_groups, rates):
            set_rate(group, lr)
        self._last_lr = self._scaled(1.0)

    def state_dict(self):
        """The schedule's state, without the optimizer."""
        return {key: value for key, value in self.__dict__.items() if key != "optimizer"}

    def load_state_dict(self, state_dict):
        """Takes the state that state_dict() returned."""
        self.__dict__.update(state_dict)


_LRScheduler = LRScheduler  # its name before PyTorch 2.0


def per_group(name, optimizer, value):
    """A list with one value per group. Raises ValueError for a list of another length."""
    groups = len(optimizer.param_groups)
    if not isinstance(value, (list, tuple)):
        return [value] * groups
    if len(value) != groups:
        raise ValueError(
            f"{name} must have the same length as optimizer.param_groups. "
            f"{name} has {len(value)} values, param_groups has {groups}."
        )
    return list(value)


def function_states(functions):
    """The state of functions for a state dictionary: the attributes of callable objects, None for plain functions."""
    return [dict(vars(f)) if hasattr(f, "__dict__") and not hasattr(f, "__code__") else None for f in functions]


def load_function_states(functions, states):
    """Gives callable objects the attributes that function_states() returned."""
    for function, state in zip(functions, states):
        if state is not None:
            vars(function).update(state)
