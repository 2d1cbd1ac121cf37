"""Optimizers whose step is one engine call for all parameters of a group.

The lists that the call takes are kept between steps. They are made anew where they would differ: another set of
parameters has gradients, the list of parameters or the state was changed, or the options ask for other state.
"""

from operator import is_

from pydist import _C
from pydist.optim.optimizer import Optimizer


def check_options(*options):
    """Raises ValueError for the first (name, value) below 0, or (name, value, top) outside [0, top]."""
    for name, value, *top in options:
        if not (0.0 <= value and all(value <= limit for limit in top)):
            raise ValueError(f"Invalid {name}: {value}")


class Batch:
    """Parameters with gradients and an equal step count, and their state tensors in parallel lists."""

    __slots__ = ("params", "states", "columns", "count")

    def __init__(self, count, columns):
        self.count = count
        self.params, self.states = [], []
        self.columns = [[] for _ in range(columns)]

    def advance(self):
        """One step more, here and in the states."""
        self.count += 1
        for state in self.states:
            state["step"] = self.count


class _Plan:
    """The batches of one group and what they were made from."""

    __slots__ = ("source", "missing", "names", "state", "state_size", "batches")

    def is_current(self, params, missing, names, state):
        return (
            self.missing == missing
            and self.names == names
            and self.state is state
            and self.state_size == len(state)
            and all(map(is_, self.source, params))
        )


class FusedOptimizer(Optimizer):
    """Subclasses define `_state_names(group)`, the state tensors that they need, and `_run(group, batch)`, which calls
    the engine; if need be `_new_state(group, name, param)`, a state tensor before the first step, and `_count(state)`,
    how many steps a parameter has made."""

    def _new_state(self, group, name, param):
        return _C.zeros_like(param)

    def _count(self, state):
        return int(state.get("step", 0))

    def _make_private(self):
        super()._make_private()
        self._plans = {}

    def add_param_group(self, param_group):
        super().add_param_group(param_group)
        if param_group.get("differentiable"):
            raise NotImplementedError(f"{type(self).__name__}: differentiable=True")

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        self._plans.clear()

    def step(self, closure=None):
        """Updates the parameters that have a gradient. `closure` (optional) computes the loss again and returns it."""
        for hook in self._step_pre_hooks.values():
            hook(self, (closure,), {})
        loss = None if closure is None else self._evaluate(closure)
        for index, group in enumerate(self.param_groups):
            for batch in self._batches(index, group):
                self._run(group, batch)
        for hook in self._step_post_hooks.values():
            hook(self, (closure,), {})
        return loss

    def _batches(self, index, group):
        params, names = group["params"], self._state_names(group)
        missing = [p.grad is None for p in params]
        plan = self._plans.get(index)
        if plan is None or not plan.is_current(params, missing, names, self.state):
            plan = self._plans[index] = self._plan(group, missing, names)
        return plan.batches

    def _plan(self, group, missing, names):
        params = group["params"]
        batches = {}
        for param, skip in zip(params, missing):
            if skip:
                continue
            state = self.state[param] if names else {}
            count = self._count(state)
            batch = batches.get(count)
            if batch is None:
                batch = batches[count] = Batch(count, len(names))
            batch.params.append(param)
            batch.states.append(state)
            for name, column in zip(names, batch.columns):
                if state.get(name) is None:
                    state[name] = self._new_state(group, name, param)
                column.append(state[name])
        plan = _Plan()
        plan.source, plan.missing, plan.names = list(params), missing, names
        plan.state, plan.state_size, plan.batches = self.state, len(self.state), list(batches.values())
        return plan
