"""Optimizers whose step is one engine call for all parameters of a group.

The lists that the call takes are kept between steps. They are made again when they would differ: another set of
parameters has gradients, the list of parameters or the state was changed, or the options need other state.
"""

from array import array
from itertools import product
from operator import is_

from pydist import _C
from pydist.optim.optimizer import Optimizer


def check_options(*options):
    """Raises ValueError for the first (name, value) with value < 0, or (name, value, top) with value outside [0,
    top]."""
    for name, value, *top in options:
        if not (0.0 <= value and all(value <= limit for limit in top)):
            wanted = f"0 to {top[0]}" if top else "0 or more"
            raise ValueError(f"Invalid {name}: {value} (expected {wanted})")


def rounding_options(stochastic_rounding):
    """The option for a group, or no option if it is off: then the dictionaries of options are the same as PyTorch's."""
    if isinstance(stochastic_rounding, int) and stochastic_rounding >= 0:
        return {"stochastic_rounding": stochastic_rounding} if stochastic_rounding else {}
    raise ValueError(
        f"Invalid stochastic_rounding: {stochastic_rounding!r} (expected True, False or a seed of at least 1)"
    )


def chance(group, count):
    """The number from which the engine draws in step `count`; 0: the engine rounds to nearest."""
    seed = int(group.get("stochastic_rounding", 0))
    return seed and ((seed * 0x9E3779B97F4A7C15 + count * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF or 1)


def _numbering(params, whole):
    """For stochastic rounding: bytes of (first, run, row) of each parameter, by which the engine numbers its elements:
    those of all parameters in `whole`, one after the other, each as it is without sharding. So the draws do not depend on
    how parameters are dealt out to ranks. None: `params` are these, none of them sharded."""
    firsts, first = {}, 0
    for param in whole:
        firsts[id(param)] = first
        first += param.numel()
    if len(params) == len(whole) and all(map(is_, params, whole)) and not any(map(_C.spread_of, params)):
        return None
    numbers = array("q")
    for param in params:
        spec, run, row = _C.spread_of(param), 0, 0
        first = firsts[id(param)]
        if spec is not None:
            ranges, strides = spec.ranges(), spec.stride
            first += sum(a * stride for (a, _), stride in zip(ranges, strides))
            cuts = [dim for dim, (a, b) in enumerate(ranges) if b - a != spec.shape[dim]]
            if cuts and cuts[-1] > 0:  # rows of the part are parts of the whole's rows
                a, b = ranges[cuts[-1]]
                run, row = (b - a) * strides[cuts[-1]], spec.shape[cuts[-1]] * strides[cuts[-1]]
        numbers.extend((first, run, row))
    return numbers.tobytes()


def number(value, fused=False):
    """A number in a parameter's state as PyTorch has it: a tensor without dimensions on the CPU, of float64 if that is
    the default dtype and the option `fused` is not set, otherwise of float32."""
    wide = not fused and _C.get_default_dtype() == _C.float64
    return _C.full((), float(value), dtype=_C.float64 if wide else _C.float32, device="cpu")


def count_more(state):
    """Adds 1 to a state's step count. Returns it as an int."""
    before = state["step"]
    count = int(before) + 1
    if isinstance(before, _C.Tensor) and before.is_cpu:
        _C.set_numbers(before, count)
    else:  # a user has set it
        state["step"] = number(count)
    return count


class _Numbers:
    """One number, such as the step count, in each state of a batch. All are equal. The states have them as PyTorch has,
    as tensors that a user may read and change; here they are views of one tensor, so that a step writes all at once."""

    __slots__ = ("states", "name", "whole", "views", "version")

    def __init__(self, name, value, states, fused):
        self.states, self.name = states, name
        self.whole = number(value, fused).repeat(len(states))
        self.views = list(self.whole.unbind())
        for state, view in zip(states, self.views):
            state[name] = view
        self.set(value)

    def are_kept(self):
        """Whether nobody else has written one of the tensors, or put another in its place."""
        return _C.numbers_kept(self.states, self.name, self.views, self.whole, self.version)

    def set(self, value):
        """Writes all."""
        self.version = _C.set_numbers(self.whole, value)


class Batch:
    """Parameters of one dtype with gradients and an equal step count, and their state tensors in parallel lists.

    `count` and `scalars`: the step count and the other numbers in their states, which are equal, too; `numbers` writes
    them there. `step`: the step count, if it is a tensor on a GPU (capturable). The engine then updates it and the
    scalars, which are tensors there as well, and `count` stays 0. `on_device`: what the kernel of this step reads on
    the GPU, (skip, lr, step, *scalars), each a tensor there or None. `elements`: how the engine numbers elements for
    stochastic rounding, see _numbering.
    """

    __slots__ = ("params", "states", "columns", "count", "scalars", "numbers", "step", "on_device", "elements")

    def __init__(self, count, columns, scalars, step=None):
        self.count, self.step = count, step
        self.scalars, self.numbers, self.on_device, self.elements = scalars, {}, None, None
        self.params, self.states = [], []
        self.columns = [[] for _ in range(columns)]

    def make_numbers(self, fused):
        """Puts the numbers into the states."""
        for name, value in {"step": self.count, **self.scalars}.items():
            self.numbers[name] = _Numbers(name, value, self.states, fused)

    def advance(self, *scalars, by=1):
        """Counts one more step, here and in the states. `scalars` are the new plain numbers."""
        if self.step is not None:
            return
        self.count += by
        self.numbers["step"].set(self.count)
        for name, value in zip(self.scalars, scalars):
            self.numbers[name].set(value)
            self.scalars[name] = self.numbers[name].views[0].item()  # as it was rounded


def check_betas(betas):
    """Raises ValueError for the first beta outside [0, 1)."""
    for i, beta in enumerate(betas):
        if not 0.0 <= beta < 1.0:
            raise ValueError(f"Invalid beta parameter at index {i}: {beta} (expected 0 to less than 1)")


def adam_options(*, lr, betas, eps, weight_decay, **others):
    """The options of a group of Adam and similar optimizers, in the order of PyTorch's dictionaries. Raises ValueError
    for the first shared option that is out of range."""
    check_options(("learning rate", lr), ("epsilon value", eps))
    check_betas(betas)
    check_options(("weight_decay value", weight_decay))
    return dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, **others)


def _is_there(value):
    """Whether a number of a state is a tensor on a GPU."""
    return isinstance(value, _C.Tensor) and value.is_cuda


class _Plan:
    """The batches of one group, and what they were made from."""

    __slots__ = ("source", "missing", "names", "there", "state", "state_size", "batches", "numbers")

    def is_current(self, params, missing, names, there, state):
        return (
            self.missing == missing
            and self.names == names
            and self.there == there
            and self.state is state
            and self.state_size == len(state)
            and all(map(is_, self.source, params))
            and all(map(_Numbers.are_kept, self.numbers))
        )


class SteppedOptimizer(Optimizer):
    """Subclasses define `_step_group(index, group)`. If a CUDA graph may hold their step, they also define
    `_why_not_captured(group)`, the reason why a replay would be wrong, if any, and `_makes_state(group)`, whether a
    step now would make state tensors."""

    def _why_not_captured(self, group):
        return "the host counts its steps"

    def _makes_state(self, group):
        return False

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        self._make_numbers()

    def __setstate__(self, state):
        super().__setstate__(state)
        self._make_numbers()

    def _make_numbers(self):
        """Makes the tensors of number() of what was saved in another form, such as the ints of earlier versions."""
        states = [state for state in self.state.values() if isinstance(state, dict)]
        for state, name in product(states, self._numbers):
            value = state.get(name)
            if value is not None and not (
                isinstance(value, _C.Tensor) and value.shape == () and value.is_floating_point()
            ):
                state[name] = number(value)

    def _check_capture(self, group):
        """Raises RuntimeError if a CUDA graph would repeat something that has to change from step to step. No state has
        been made by then."""
        params = group["params"]
        if not (params and params[0].is_cuda and _C.cuda_capturing(params[0].device.index)):
            return
        why = self._why_not_captured(group)
        if not why and self._makes_state(group):
            why = (
                "the first step makes the state, and each replay would make it again (expected a step before the "
                "capture)"
            )
        if why:
            raise RuntimeError(f"{type(self).__name__}.step: a CUDA graph cannot capture it: {why}")

    def step(self, closure=None):
        """Updates the parameters that have a gradient. `closure` (optional) computes the loss again and returns it."""
        loss = None if closure is None else self._evaluate(closure)
        for index, group in enumerate(self.param_groups):
            self._check_capture(group)
            self._step_group(index, group)
        return loss


class FusedOptimizer(SteppedOptimizer):
    """Subclasses define `_state_names(group)`, the state tensors that they need, and `_run(group, batch)`, which calls
    the engine. They may define `_new_state(group, name, param)`, a state tensor before the first step; `_count(state)`,
    how many steps a parameter has made; `_numbers`, the names of the numbers in its state, of which the step count is
    the first; and `_new_scalar(group, name)`, one of the others before the first step.

    If the learning rate is a tensor on a GPU, the kernel reads it there, also in each replay of a graph. With
    capturable=True (the option that `_there` names) the step count and the scalars are there as well, and the kernel
    computes from them all that the step needs. If `found_inf` (the name that PyTorch's scaler uses) is a tensor on the
    GPU, steps there change nothing while it is not 0.
    """

    found_inf = None
    _there = "capturable"
    _counted = None  # the groups by whose parameters elements are numbered; None: param_groups

    def _counts_there(self, group):
        """Whether the numbers of parameters on a GPU are on the GPU, too."""
        return bool(group.get(self._there))

    def _new_state(self, group, name, param):
        return _C.zeros_like(param)

    def _new_scalar(self, group, name):
        return 1.0

    def _count(self, state):
        count = state.get("step")
        return 0 if count is None else int(count)

    def _why_not_captured(self, group):
        if not self._counts_there(group):
            return f"the host counts its steps (expected {self._there}=True)"

    def _makes_state(self, group):
        """Whether the step would make state that is missing, or copies of numbers that parameters without a gradient
        share."""
        names = self._state_names(group)
        numbers = self._numbers if self._counts_there(group) else ()
        states = [(self.state.get(p, {}), p.grad is None) for p in group["params"]]
        shared = {id(state.get(n)) for state, rests in states if rests for n in numbers}
        return any(
            any(state.get(n) is None for n in names)
            or any(not _is_there(state.get(n)) or id(state[n]) in shared for n in numbers)
            for state, rests in states
            if not rests
        )

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
        """Counts one step less: the last step changed nothing."""
        for plan in self._plans.values():
            for batch in plan.batches:
                batch.advance(by=-1)

    def _step_group(self, index, group):
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
        numbers = () if batch.step is None else batch.scalars.values()
        batch.on_device = self.found_inf, lr, batch.step, *numbers
        self._run(group, batch)

    def _batches(self, index, group):
        params, names, there = group["params"], self._state_names(group), self._counts_there(group)
        missing = [p.grad is None for p in params]
        plan = self._plans.get(index)
        if plan is None or not plan.is_current(params, missing, names, there, self.state):
            plan = self._plans[index] = self._plan(group, missing, names, there)
            if "stochastic_rounding" in group:
                whole = params if self._counted is None else self._counted[index]["params"]
                for batch in plan.batches:
                    batch.elements = _numbering(batch.params, whole)
        return plan.batches

    def _number_there(self, name, number, param, others):
        """The number as a tensor on the parameter's device. It is the existing tensor, unless parameters without a
        gradient share that one."""
        if not _is_there(number):
            return _C.full((), float(number), dtype=_C.float32, device=param.device)
        return number.clone() if any(self.state[p].get(name) is number for p in others if p in self.state) else number

    def _plan(self, group, missing, names, counts_there):
        params = group["params"]
        others = [p for p, skip in zip(params, missing) if skip]
        batches = {}
        for param, skip in zip(params, missing):
            if skip:
                continue
            state = self.state[param] if names else {}
            there = counts_there and param.is_cuda
            count = state["step"] if there and _is_there(state.get("step")) else self._count(state)
            scalars = {n: self._new_scalar(group, n) if state.get(n) is None else state[n] for n in self._numbers[1:]}
            scalars = {n: v if there and _is_there(v) else float(v) for n, v in scalars.items()}
            key = (param.dtype, *(id(n) if isinstance(n, _C.Tensor) else n for n in (count, *scalars.values())))
            batch = batches.get(key)
            if batch is None and there:
                count, *numbers = (
                    self._number_there(n, v, param, others) for n, v in {"step": count, **scalars}.items()
                )
                batch = batches[key] = Batch(0, len(names), dict(zip(scalars, numbers)), count)
            elif batch is None:
                batch = batches[key] = Batch(count, len(names), scalars)
            for name in self._numbers:  # the first ones in the dictionary, as in PyTorch
                state.setdefault(name, None)
            if there:
                state.update(batch.scalars, step=batch.step)
            batch.params.append(param)
            batch.states.append(state)
            for name, column in zip(names, batch.columns):
                if state.get(name) is None:
                    state[name] = self._new_state(group, name, param)
                column.append(state[name])
        for batch in batches.values() if self._numbers else ():
            if batch.step is None:
                batch.make_numbers(bool(group.get("fused")))
        plan = _Plan()
        plan.source, plan.missing, plan.names, plan.there = list(params), missing, names, counts_there
        plan.state, plan.state_size, plan.batches = self.state, len(self.state), list(batches.values())
        plan.numbers = [numbers for batch in plan.batches for numbers in batch.numbers.values()]
        return plan
