"""Optimizer: groups of parameters with their options, and state per parameter."""

import functools
import warnings
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from copy import deepcopy
from typing import Any

from pydist import _C, _replicas
from pydist._grad_mode import enable_grad
from pydist.utils.hooks import RemovableHandle

ParamsT = Iterable[_C.Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, _C.Tensor]]


class _RequiredParameter:
    def __repr__(self):
        return "<required parameter>"


required = _RequiredParameter()  # the default of an option that each group must set itself


def _whole(step):
    """`step` with the beginning and the end that all steps have. If a step calls its base class's step, they run
    once."""

    def plain(self, *args, **kwargs):
        args, kwargs = self._begin_step(args, kwargs)
        self._is_stepping = True
        try:
            result = step(self, *args, **kwargs)
        finally:
            self._is_stepping = False
            _C.end_writes()
        if self._step_post_hooks:
            self._end_step(args, kwargs)
        return result

    @functools.wraps(step)
    def wrapper(self, *args, **kwargs):
        if self._is_stepping:
            return step(self, *args, **kwargs)
        if _C._program_recording():  # the rate and other numbers are Python's, so a replay calls this again
            return _C._each_time(stepped, self, args, kwargs)
        return stepped(self, args, kwargs)

    def stepped(self, args, kwargs):
        if _replicas.step is not None:
            return _replicas.step(self, plain, args, kwargs)
        return plain(self, *args, **kwargs)

    return wrapper


_known = weakref.WeakValueDictionary()  # id: each optimizer that is there, in the order in which they were made


def optimizers_of(params):
    """The optimizers that have any of these parameters, in the order in which they were made."""
    wanted = {id(param) for param in params}
    found = [optimizer for ref in _known.valuerefs() if (optimizer := ref()) is not None]
    return [one for one in found if any(id(p) in wanted for group in one.param_groups for p in group["params"])]


def options_of(group):
    """The options of a parameter group."""
    return {name: value for name, value in group.items() if name not in ("params", "param_names")}


class Optimizer:
    """Base class of all optimizers. Subclasses define `step`.

    Every step, also of a user's subclass, begins and ends in the same way. It begins with the pre hooks. Then it checks
    all memory that it will write, so that a step which may not write one of the parameters changes none of them. If
    nothing was raised, it ends with the post hooks. A step inside a step (`super().step()`) belongs to the outer one.

    `params` is an iterable of tensors, of (name, tensor) pairs, or of dictionaries {"params": ..., option: value}.
    `defaults` holds the options of groups that do not set their own. `state[p]` is a dictionary per parameter. Raises
    ValueError for an empty list, for tensors that are not leaves, and for parameters that are in two groups.
    """

    def __init__(self, params, defaults):
        if isinstance(params, _C.Tensor):
            raise TypeError(
                "params argument given to the optimizer should be an iterable of Tensors or dicts, "
                f"but got {type(params).__name__}"
            )
        self.defaults = defaults
        self.state = defaultdict(dict)
        self.param_groups = []
        self._make_private()
        if _replicas.made is not None:
            _replicas.made(self)
        groups = list(params)
        if not groups:
            raise ValueError("optimizer got an empty parameter list (expected at least one parameter)")
        for group in groups if isinstance(groups[0], dict) else [{"params": groups}]:
            self.add_param_group(group)

    _is_stepping = False
    _numbers = ("step",)  # what a parameter's state has beside tensors like the parameter

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if "step" in cls.__dict__:
            cls.step = _whole(cls.step)

    def _begin_step(self, args, kwargs):
        """The arguments for the step. A pre hook may replace them."""
        for hook in list(self._step_pre_hooks.values()) if self._step_pre_hooks else ():
            given = hook(self, (self, *args), kwargs)
            if given is None:
                continue
            if not (isinstance(given, tuple) and len(given) == 2):
                raise RuntimeError(f"a step pre hook returned {given!r} (expected None or (args, kwargs))")
            (_, *args), kwargs = given
        if _replicas.stepping is not None:
            _replicas.stepping(args, kwargs)
        _C.ask_to_write(self, self.param_groups)
        return args, kwargs

    def _end_step(self, args, kwargs):
        for hook in list(self._step_post_hooks.values()):
            hook(self, (self, *args), kwargs)

    def _make_private(self):
        """Makes the attributes that are neither saved nor copied."""
        self._step_pre_hooks, self._step_post_hooks = OrderedDict(), OrderedDict()
        _known[id(self)] = self

    def __getstate__(self):
        return {"defaults": self.defaults, "state": self.state, "param_groups": self.param_groups}

    def __setstate__(self, state):
        self.__dict__.update(state)
        self._make_private()

    def __repr__(self):
        text = ""
        for i, group in enumerate(self.param_groups):
            text += f"\nParameter Group {i}\n"
            text += "".join(f"    {key}: {group[key]}\n" for key in sorted(group) if key != "params")
        return f"{type(self).__name__} ({text})"

    def add_param_group(self, param_group):
        """Adds a dictionary {"params": tensors, option: value}. Missing options get their defaults."""
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, but got {type(param_group)}")
        params = param_group["params"]
        if isinstance(params, set):
            raise TypeError(
                "optimizer parameters need to be organized in ordered collections, but the ordering of tensors in "
                "sets will change between runs. Please use a list instead."
            )
        params = [params] if isinstance(params, _C.Tensor) else list(params)
        names = [p[0] for p in params if isinstance(p, tuple)]
        if names:
            if len(names) != len(params):
                raise ValueError("all optimizer params should be with/without names. Some param names are missing")
            param_group["param_names"] = names
            params = [p for _, p in params]
        param_group["params"] = params
        self._check_params(param_group)
        for name, default in self.defaults.items():
            if default is required and name not in param_group:
                raise ValueError(f"parameter group didn't specify a value of required optimization parameter {name}")
            param_group.setdefault(name, default)
        self.param_groups.append(param_group)

    def _check_params(self, param_group):
        params = param_group["params"]
        for param in params:
            if not isinstance(param, _C.Tensor) or param.is_sparse:
                raise TypeError(f"optimizer can only optimize Tensors, but one of the params is {type(param).__name__}")
            if not param.is_leaf:
                raise ValueError("can't optimize a non-leaf Tensor (expected a leaf, such as a Parameter)")
        own = {id(p) for p in params}
        if len(own) != len(params):
            warnings.warn("optimizer contains a parameter group with duplicate parameters", stacklevel=4)
        for group in self.param_groups:
            if ("param_names" in param_group) != ("param_names" in group):
                raise ValueError("all optimizer param groups should be with/without names")
            if not own.isdisjoint(id(p) for p in group["params"]):
                raise ValueError("some parameters appear in more than one parameter group (expected each in one group)")

    def zero_grad(self, set_to_none=True):
        """Sets all gradients to None, or to zeros with set_to_none=False."""
        for group in self.param_groups:
            _C.zero_grads(group["params"], set_to_none)

    def step(self, closure=None):
        """Updates the parameters that have a gradient. Subclasses define it."""
        raise NotImplementedError

    def _evaluate(self, closure):
        with enable_grad():
            loss = closure()
        _C.ask_to_write(self, self.param_groups)  # now the gradients are complete
        return loss

    def register_step_pre_hook(self, hook):
        """`hook(optimizer, args, kwargs)` runs before each step. `args` begins with the optimizer, as in PyTorch. The
        hook may return (args, kwargs) to replace the step's arguments. Returns a handle with `remove()`."""
        return RemovableHandle(self._step_pre_hooks, hook)

    def register_step_post_hook(self, hook):
        """`hook(optimizer, args, kwargs)` runs after each step. Returns a handle with `remove()`."""
        return RemovableHandle(self._step_post_hooks, hook)

    def state_dict(self):
        """{"state": {index: ...}, "param_groups": [{..., "params": [indices]}]}. Parameters are numbered over all
        groups."""
        index = {id(p): i for i, p in enumerate(p for group in self.param_groups for p in group["params"])}
        groups = [{**group, "params": [index[id(p)] for p in group["params"]]} for group in self.param_groups]
        for group in groups:  # in PyTorch's dictionaries the parameters come last
            group["params"] = group.pop("params")
        state = {index[id(k)] if isinstance(k, _C.Tensor) else k: v for k, v in self.state.items()}
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict):
        """Takes the options and the state. The state is copied to its parameters' devices; floating tensors are cast
        to their dtype, but not step counts, which stay on the CPU.

        Raises ValueError if the number of groups, or the number of parameters in a group, differs.
        """
        saved = deepcopy(state_dict["param_groups"])
        if len(saved) != len(self.param_groups):
            raise ValueError(
                "loaded state dict has a different number of parameter groups (expected the optimizer's number)"
            )
        if any(len(new["params"]) != len(old["params"]) for new, old in zip(saved, self.param_groups)):
            raise ValueError(
                "loaded state dict contains a parameter group that doesn't match the size of optimizer's group"
            )
        param_of = {}
        for new, old in zip(saved, self.param_groups):
            param_of.update(zip(new["params"], old["params"]))
            new["params"] = old["params"]
            if "param_names" in old:
                new.setdefault("param_names", old["param_names"])
        state = defaultdict(dict)
        for key, value in state_dict["state"].items():
            if key in param_of:
                state[param_of[key]] = _copied(value, param_of[key], self._numbers)
            else:
                state[key] = value
        self.__dict__.update(state=state, param_groups=saved)


def _copied(value, param, numbers, key=None):
    """A copy of one parameter's saved state. `numbers`: the keys of those, such as the step count."""
    if isinstance(value, _C.Tensor):
        if key in numbers:
            return value.to("cpu", copy=True)
        dtype = param.dtype if value.is_floating_point() else value.dtype
        if _C.spread_of(param) is not None and _C.spread_of(value) is None and value.shape == param.shape:
            return _C.empty_like(param, dtype=dtype).copy_(value)  # this rank's part of it
        return value.to(param.device, dtype, copy=True)
    if isinstance(value, dict):
        return {k: _copied(v, param, numbers, k) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_copied(v, param, numbers) for v in value)
    return value
