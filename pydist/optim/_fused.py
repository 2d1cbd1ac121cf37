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


def rounding_options(stochastic_rounding):
    """The option for a group, none where it is off: dictionaries of options are PyTorch's then."""
    if isinstance(stochastic_rounding, int) and stochastic_rounding >= 0:
        return {"stochastic_rounding": stochastic_rounding} if stochastic_rounding else {}
    raise ValueError(f"Invalid stochastic_rounding: {stochastic_rounding!r} (expected True, False or a seed above 0)")


def chance(group, count):
    """What the engine draws by in step `count`; 0: it rounds to nearest."""
    seed = int(group.get("stochastic_rounding", 0))
    return seed and ((seed * 0x9E3779B97F4A7C15 + count * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF or 1)


class Batch:
    """Parameters of one dtype with gradients and an equal step count, and their state tensors in parallel lists. `scalars`: the plain
    numbers of their states, which are equal too. `step`: the step count where it is a tensor of a GPU's (capturable), which the
    engine goes on with; `count` stays 0 then."""

    __slots__ = ("params", "states", "columns", "count", "scalars", "step")

    def __init__(self, count, columns, scalars):
        self.count, self.step = count, None
        self.scalars = scalars
        self.params, self.states = [], []
        self.columns = [[] for _ in range(columns)]

    def advance(self, *scalars, by=1):
        """One step more, here and in the states; `scalars` are the new plain numbers."""
        if self.step is not None:
            return
        self.count += by
        new = {"step": self.count, **dict(zip(self.scalars, scalars))}
        self.scalars.update(zip(self.scalars, scalars))
        for state in self.states:
            state.update(new)


def check_betas(betas):
    """Raises ValueError for the first beta outside [0, 1)."""
    for i, beta in enumerate(betas):
        if not 0.0 <= beta < 1.0:
            raise ValueError(f"Invalid beta parameter at index {i}: {beta}")


def check_adam_options(lr, betas, eps, weight_decay):
    """Raises ValueError for the first of the options that Adam and its kin share that is out of range."""
    check_options(("learning rate", lr), ("epsilon value", eps))
    check_betas(betas)
    check_options(("weight_decay value", weight_decay))


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


class SteppedOptimizer(Optimizer):
    """Subclasses define `_step_group(index, group)`."""

    def step(self, closure=None):
        """Updates the parameters that have a gradient. `closure` (optional) computes the loss again and returns it."""
        for hook in self._step_pre_hooks.values():
            hook(self, (closure,), {})
        loss = None if closure is None else self._evaluate(closure)
        for index, group in enumerate(self.param_groups):
            self._step_group(index, group)
        for hook in self._step_post_hooks.values():
            hook(self, (closure,), {})
        return loss


class FusedOptimizer(SteppedOptimizer):
    """Subclasses define `_state_names(group)`, the state tensors that they need, and `_run(group, batch)`, which calls
    the engine; if need be `_new_state(group, name, param)`, a state tensor before the first step, `_count(state)`, how
    many steps a parameter has made, `_new_scalars(group)`, the plain numbers in its state besides that, and
    `_why_not_captured(group)`, what a CUDA graph of the step would repeat wrongly, if anything.

    On a GPU a learning rate that is a tensor there is read by the kernel, in each replay of a graph, too; with
    capturable=True the step count lies there as well (`_counts_there`: all that the step needs of it is made by the kernel)."""

    _counts_there = False

    def _new_scalars(self, group):
        return {}

    def _new_state(self, group, name, param):
        return _C.zeros_like(param)

    def _count(self, state):
        return int(state.get("step", 0))

    def _why_not_captured(self, group):
        if not (self._counts_there and group["capturable"]):
            wanted = "capturable=True" if self._counts_there else "Adam, AdamW, Adadelta, Adamax, RMSprop or Rprop with capturable=True"
            return f"its steps are counted on the host (expected {wanted})"

    def _check_capture(self, group):
        """RuntimeError where a CUDA graph would repeat what changes from step to step. Nothing has been made by then."""
        why, names = self._why_not_captured(group), self._state_names(group)
        stepping = [self.state.get(p, {}) for p in group["params"] if p.grad is not None]
        if not why and any(state.get(name) is None for state in stepping for name in names):
            why = "the first step makes the state, and each replay would make it anew (expected a step before the capture)"
        if why:
            raise RuntimeError(f"{type(self).__name__}.step: cannot be captured in a CUDA graph: {why}")

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

    def _take_back(self):
        """The last step was none: one less is counted."""
        for plan in self._plans.values():
            for batch in plan.batches:
                batch.advance(by=-1)

    def _step_group(self, index, group):
        params = group["params"]
        if params and params[0].is_cuda and _C.cuda_capturing(params[0].device.index):
            self._check_capture(group)
        for batch in self._batches(index, group):
            if batch.params[0].is_cuda:
                self._run_on_gpu(group, batch)
            else:
                self._run(group, batch)

    def _run_on_gpu(self, group, batch):
        lr = group["lr"]
        if isinstance(lr, _C.Tensor) and lr.is_cuda:
            lr, group = lr.float(), {**group, "lr": 0.0}
        else:
            lr = None
        if lr is None and batch.step is None:
            return self._run(group, batch)
        _C.step_from(lr, batch.step)
        try:
            self._run(group, batch)
        finally:
            _C.step_from(None, None)

    def _batches(self, index, group):
        params, names = group["params"], self._state_names(group)
        missing = [p.grad is None for p in params]
        plan = self._plans.get(index)
        if plan is None or not plan.is_current(params, missing, names, self.state):
            plan = self._plans[index] = self._plan(group, missing, names)
        return plan.batches

    def _step_tensor(self, count, param, others):
        """The count as a tensor where the parameter lies: the one that it is, unless parameters without a gradient now share it."""
        if not isinstance(count, _C.Tensor):
            return _C.full((), float(count), device=param.device)
        return count.clone() if any(self.state[p].get("step") is count for p in others if p in self.state) else count

    def _plan(self, group, missing, names):
        params, first = group["params"], self._new_scalars(group)
        batches = {}
        for param, skip in zip(params, missing):
            if skip:
                continue
            state = self.state[param] if names else {}
            counts_there = self._counts_there and group["capturable"] and param.is_cuda
            count = state.get("step", 0) if counts_there else self._count(state)
            scalars = {name: float(state.setdefault(name, value)) for name, value in first.items()}
            key = (param.dtype, id(count) if isinstance(count, _C.Tensor) else count, *scalars.values())
            batch = batches.get(key)
            if batch is None:
                batch = batches[key] = Batch(0 if counts_there else count, len(names), scalars)
                if counts_there:
                    batch.step = self._step_tensor(count, param, [p for p, m in zip(params, missing) if m])
            if counts_there:
                state["step"] = batch.step
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
