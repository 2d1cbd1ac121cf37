"""States of models and optimizers by their parameters' names, with the names of torch.distributed.checkpoint.state_dict.

    get_model_state_dict, get_optimizer_state_dict, get_state_dict    states that any number of ranks can load
    set_model_state_dict, set_optimizer_state_dict, set_state_dict    load them

A parameter's name is the one that it has in the model before DistributedDataParallel wraps it or a part of it: without
the wrapper's "module.". Optimizers have {"state": {name: {...}}, "param_groups": [{"params": [names], ...}]}, where
their own state_dict() has numbers; several optimizers of a model have one dictionary together. So a model and its
optimizers can be loaded with and without wrappers, and if the groups of parameters have another order.

Tensors are whole on every rank, or DTensors, of which each rank has a part. Only full_state_dict gathers these.
"""

import warnings
from collections import OrderedDict, namedtuple
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from inspect import Parameter, signature

from pydist import _C
from pydist._grad_mode import no_grad
from pydist.distributed._group.process_group import get_rank, is_initialized
from pydist.distributed._ops.collectives import broadcast
from pydist.distributed._ops.objects import broadcast_object_list
from pydist.distributed.algorithms.join import Joinable
from pydist.optim.optimizer import Optimizer

__all__ = [
    "StateDictOptions",
    "get_model_state_dict",
    "get_optimizer_state_dict",
    "get_state_dict",
    "set_model_state_dict",
    "set_optimizer_state_dict",
    "set_state_dict",
]

_NO_CLOSURE = Parameter("closure", Parameter.KEYWORD_ONLY, default=None)
_STATE, _GROUPS, _PARAMS, _NAMES = "state", "param_groups", "params", "param_names"

_IncompatibleKeys = namedtuple("IncompatibleKeys", ("missing_keys", "unexpected_keys"))


@dataclass
class StateDictOptions:
    """How get_state_dict and set_state_dict work.

    full_state_dict: get returns plain dictionaries with whole tensors; DTensors are gathered. set takes whole tensors for
    DTensors, too, and makes the parameters of a model on the meta device from the tensors that are loaded.
    cpu_offload: tensors that are on a GPU are copied to the CPU. With full_state_dict only rank 0 gets the state, and
    the others get {}.
    ignore_frozen_params: get leaves out parameters that do not require gradients.
    keep_submodule_prefixes: if get is called with `submodules`, whether names begin with the submodule's name. With
    False, the names of two submodules must not be the same.
    strict: set raises RuntimeError for names that are missing or, in a model, unexpected.
    broadcast_from_rank0: set loads the state that rank 0 passes on all ranks, whatever the others pass. Needs
    full_state_dict.
    flatten_optimizer_state_dict: get returns the optimizers' state as {"state.NAME.exp_avg": tensor,
    "param_groups.NAME.lr": number}. set takes both forms.
    dsd_fqn_modifiers: accepted and not used. A model's names are those of its state_dict().

    >>> from pydist.distributed.checkpoint.state_dict import StateDictOptions
    >>> StateDictOptions(strict=False).full_state_dict
    False
    """

    full_state_dict: bool = False
    cpu_offload: bool = False
    ignore_frozen_params: bool = False
    keep_submodule_prefixes: bool = True
    strict: bool = True
    broadcast_from_rank0: bool = False
    flatten_optimizer_state_dict: bool = False
    dsd_fqn_modifiers: str = "_fqn_modifiers"


# Arguments.


def _checked_options(op, options):
    options = StateDictOptions() if options is None else options
    if not isinstance(options, StateDictOptions):
        raise TypeError(f"{op}: options is {type(options).__name__} (expected StateDictOptions)")
    if options.broadcast_from_rank0 and not options.full_state_dict:
        raise ValueError(
            f"{op}: full_state_dict must be True when broadcast_from_rank0 is True: got {options.full_state_dict} "
            "(expected True)"
        )
    return options


def _check_model(op, model):
    if not _is_module(model):
        raise TypeError(f"{op}: model is {type(model).__name__} (expected a Module)")


def _is_module(value):  # nn stands on distributed, which does not know it
    return callable(getattr(value, "named_parameters", None)) and not isinstance(value, type)


def _checked_optimizers(op, optimizers, may_be_empty=False):
    if not isinstance(optimizers, (Optimizer, Iterable)):
        raise TypeError(f"{op}: optimizers is {type(optimizers).__name__} (expected optimizers)")
    optimizers = (optimizers,) if isinstance(optimizers, Optimizer) else tuple(optimizers)
    for i, optimizer in enumerate(optimizers):
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{op}: optimizer {i} is {type(optimizer).__name__} (expected an Optimizer)")
    if not optimizers and not may_be_empty:
        raise RuntimeError(f"{op}: Optimizers are not passed in: got none (expected at least one)")
    return optimizers


def _check_mapping(op, what, value):
    if not isinstance(value, Mapping):
        raise TypeError(f"{op}: {what} is {type(value).__name__} (expected a dictionary)")


def _check_not_empty(op, what, state, options, may_be_empty=False):
    is_elsewhere = options.full_state_dict and options.cpu_offload and not options.broadcast_from_rank0
    if not state and not is_elsewhere and not may_be_empty:
        raise RuntimeError(
            f"{op}: the options indicate that the {what} state_dict is required, but it is empty: got {state!r} on rank "
            f"{get_rank()} (expected at least one name)"
        )


# Names.


def _hidden(model):
    """The beginnings of keys whose last part is the "module." of a DistributedDataParallel, outer ones first."""
    paths = [(f"{path}." if path else "", module) for path, module in model.named_modules(remove_duplicate=False)]
    return [f"{path}module." for path, module in paths if isinstance(module, Joinable) and "module" in module._modules]


def _name(key, hidden):
    """The name for a key of the model's own state_dict()."""
    for prefix in reversed(hidden):
        if key.startswith(prefix):
            key = prefix.removesuffix("module.") + key[len(prefix) :]
    return key


def _key(name, hidden):
    """The inverse of _name."""
    for prefix in hidden:
        outer = prefix.removesuffix("module.")
        if name.startswith(outer):
            name = prefix + name[len(outer) :]
    return name


def _renamed(state, rename, hidden):
    """A copy of a state_dict under other keys, with the versions of its layers."""
    new = OrderedDict((rename(key, hidden), value) for key, value in state.items())
    metadata = getattr(state, "_metadata", None)
    if metadata is not None:
        paths = [(rename(f"{path}." if path else "", hidden), entry) for path, entry in metadata.items()]
        new._metadata = OrderedDict((path.removesuffix("."), entry) for path, entry in paths)
    return new


def _param_names(model):
    """{id(parameter): its names}; a parameter that is shared has several. An optimizer's state has the first one."""
    hidden, names = _hidden(model), {}
    for key, param in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(param), []).append(_name(key, hidden))
    return names


def _names_in(op, optimizer, names):
    """For each group of the optimizer, for each parameter: its names."""
    found = []
    for i, group in enumerate(optimizer.param_groups):
        for j, param in enumerate(group[_PARAMS]):
            if id(param) not in names:
                raise ValueError(
                    f"{op}: got parameter {j} of group {i} of {type(optimizer).__name__}, of shape "
                    f"{list(param.shape)}, which is not in the model (expected parameters of the model)"
                )
        found.append([names[id(param)] for param in group[_PARAMS]])
    return found


# Values.


def _mapped(fn, value):
    """A copy of nested dictionaries, lists and tuples, with fn(x) for everything else."""
    if isinstance(value, Mapping):
        return {key: _mapped(fn, item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)([_mapped(fn, item) for item in value]) if type(value) in (list, tuple) else fn(value)
    return fn(value)


def _whole(value):
    """A DTensor as the whole tensor, for which all ranks call it."""
    return value.detach().full_tensor() if isinstance(value, _C.Tensor) and _C.spread_of(value) is not None else value


def _placed(state, options):
    """What get returns: `state` where the options want it."""
    if options.full_state_dict:
        keeps = not options.cpu_offload or get_rank() == 0
        state = _mapped(lambda x: whole if (whole := _whole(x)) is x or keeps else None, state)
    if options.full_state_dict and options.cpu_offload and get_rank() != 0:
        return {}
    if not (options.full_state_dict or options.cpu_offload):
        return state
    offload = options.cpu_offload
    return _mapped(lambda x: x.to("cpu") if offload and isinstance(x, _C.Tensor) else x, state)


@dataclass
class _Sent:
    """Stands for a tensor that follows."""

    shape: tuple
    dtype: _C.dtype


def _from_rank0(op, what, state):
    """Rank 0's `state`, on all ranks, with tensors on the CPU."""
    if not is_initialized():
        _check_mapping(op, what, state)
        return state
    is_root, tensors, box = get_rank() == 0, [], [None]
    if is_root:

        def note(value):
            if not isinstance(value, _C.Tensor):
                return value
            tensors.append(value.detach().to("cpu"))
            return _Sent(tuple(value.shape), value.dtype)

        is_mapping = isinstance(state, Mapping)
        box = [(_mapped(note, state), getattr(state, "_metadata", None)) if is_mapping else type(state).__name__]
    broadcast_object_list(box, 0)
    if isinstance(box[0], str):  # all ranks raise, as the others wait for the tensors
        raise TypeError(f"{op}: {what} is {box[0]} on rank 0 (expected a dictionary)")
    tree, metadata = box[0]
    rest = iter(tensors)

    def receive(value):
        if not isinstance(value, _Sent):
            return value
        tensor = next(rest) if is_root else _C.empty(value.shape, dtype=value.dtype, device="cpu")
        broadcast(_C.view_as_real(tensor) if tensor.is_complex() else tensor, 0)
        return tensor

    received = OrderedDict(_mapped(receive, tree))
    received._metadata = metadata
    return state if is_root else received


def _own(thing, method):
    """The bound method state_dict or load_state_dict of a model or optimizer, also if it is patched."""
    call = getattr(thing, method)
    return getattr(type(thing), method).__get__(thing) if getattr(call, "_is_by_name", False) else call


# Models.


def _prefixes(op, model, submodules):
    """The beginnings of the names in the submodules, or None for all names."""
    if not submodules:
        return None
    warnings.warn(
        f"{op}: submodules is deprecated in PyTorch: select names of the dictionary instead",
        FutureWarning,
        stacklevel=3,
    )
    hidden, found = _hidden(model), {}
    for path, module in model.named_modules():
        found[id(module)] = _name(f"{path}.", hidden) if path else ""
    for module in submodules:
        if id(module) not in found:
            raise ValueError(f"{op}: got a {type(module).__name__} in submodules (expected modules in the model)")
    return [found[id(module)] for module in submodules]


def _selected(op, state, prefixes, keep):
    selected = {}
    for name, value in state.items():
        for prefix in prefixes:
            if name.startswith(prefix):
                short = name if keep else name[len(prefix) :]
                if not keep and short in selected:
                    raise ValueError(
                        f"{op}: got {short!r} in several submodules with keep_submodule_prefixes=False (expected one "
                        "submodule)"
                    )
                selected[short] = value
    return selected


@no_grad()
def _model_state(op, model, prefixes, options):
    hidden = _hidden(model)
    state = _renamed(_own(model, "state_dict")(), _name, hidden)
    if options.ignore_frozen_params:
        for key, param in model.named_parameters(remove_duplicate=False):
            if not param.requires_grad:
                state.pop(_name(key, hidden), None)
    if prefixes is not None:
        state = _selected(op, state, prefixes, options.keep_submodule_prefixes)
    _check_not_empty(op, "model", state, options, prefixes is not None or options.ignore_frozen_params)
    return _placed(state, options)


def _joined(op, model, state):
    """`state` with names, if its keys are submodules with dictionaries of their own."""
    if not any(map(_is_module, state)):
        return state
    warnings.warn(f"{op}: submodules as keys are deprecated in PyTorch: use names instead", FutureWarning, stacklevel=3)
    hidden, joined = _hidden(model), {}
    found = {id(module): _name(f"{path}.", hidden) if path else "" for path, module in model.named_modules()}
    for module, entries in state.items():
        if id(module) not in found:
            raise ValueError(f"{op}: got the key {type(module).__name__} (expected modules in the model)")
        joined.update((found[id(module)] + name, value) for name, value in entries.items())
    return joined


@no_grad()
def _load_model(model, state, options):
    if not state:
        return _IncompatibleKeys([], [])
    hidden, assign = _hidden(model), False
    state = _renamed(state, _key, hidden)
    if options.full_state_dict:
        own = [*model.parameters(), *model.buffers()]
        assign = any(tensor.is_meta for tensor in own)
        devices = {tensor.device for tensor in own if not tensor.is_meta}
        if assign and len(devices) == 1:
            device = devices.pop()
            for key, value in state.items():
                state[key] = value.detach().to(device) if isinstance(value, _C.Tensor) else value
    keys = _own(model, "load_state_dict")(state, strict=options.strict, assign=assign)
    return keys._replace(unexpected_keys=[_name(key, hidden) for key in keys.unexpected_keys])


# Optimizers.


def _init_optim_state(optimizer):
    """Gives a new optimizer its state, by a step with gradients of zeros and a rate of 0. Like PyTorch's, an optimizer
    that has state already, or gradients, stays as it is."""
    groups = optimizer.param_groups
    params = [param for group in groups for param in group[_PARAMS]]
    if optimizer.state or any(param.grad is not None for param in params):
        return
    rates = [(group, group["lr"]) for group in groups if "lr" in group]
    try:
        for param in params:
            if param.requires_grad:
                param.grad = _C.zeros_like(param)
        for group, rate in rates:
            group["lr"] = _C.zeros_like(rate) if isinstance(rate, _C.Tensor) else 0.0
        needs_loss = signature(optimizer.step).parameters.get("closure", _NO_CLOSURE).default is Parameter.empty
        optimizer.step(closure=(lambda: _C.zeros((), device=params[0].device)) if needs_loss else None)
    finally:
        for group, rate in rates:
            group["lr"] = rate
        optimizer.zero_grad(set_to_none=True)


def _flattened(state):
    flat = {}

    def put(prefix, value):
        if isinstance(value, Mapping):
            for key, item in value.items():
                put(f"{prefix}.{key}", item)
        else:
            flat[prefix] = value

    for name, entries in state[_STATE].items():
        put(f"{_STATE}.{name}", entries)
    for group in state[_GROUPS]:
        for name in group[_PARAMS]:
            flat.update((f"{_GROUPS}.{name}.{key}", value) for key, value in group.items() if key != _PARAMS)
    return flat


@no_grad()
def _optimizer_state(op, model, optimizers, options):
    states, groups, names, seen = {}, [], _param_names(model), set()
    for optimizer in optimizers:
        named = [[each[0] for each in group] for group in _names_in(op, optimizer, names)]
        flat = [name for group in named for name in group]
        twice = seen.intersection(flat)
        if twice:
            raise ValueError(f"{op}: got {sorted(twice)} in two optimizers (expected each parameter in one)")
        seen.update(flat)
        _init_optim_state(optimizer)
        own = _own(optimizer, "state_dict")()
        states.update((flat[key] if isinstance(key, int) else key, value) for key, value in own[_STATE].items())
        groups += [{**group, _PARAMS: [flat[i] for i in group[_PARAMS]]} for group in own[_GROUPS]]
    state = {_STATE: states, _GROUPS: groups}
    return _placed(_flattened(state) if options.flatten_optimizer_state_dict else state, options)


class _Saved:
    """An optimizers' state that is loaded: `states` and `options` by name, and the options of groups without
    parameters. `numbered`: it is as an optimizer's own state_dict()."""

    def __init__(self, op, state, names, strict):
        self.op, self.numbered, self.empty = op, False, None
        self.states, self.options = {}, {}
        if _STATE in state or _GROUPS in state:
            self._read_nested(state)
        else:
            self._read_flat(state, {name for each in names.values() for name in each}, strict)

    def _read_nested(self, state):
        for key, kind in ((_STATE, Mapping), (_GROUPS, (list, tuple))):
            if not isinstance(state.get(key), kind):
                raise ValueError(
                    f"{self.op}: {key!r} is {type(state.get(key)).__name__} (expected a "
                    f"{'dictionary' if kind is Mapping else 'list'})"
                )
        self.states, self.empty = state[_STATE], []
        for i, group in enumerate(state[_GROUPS]):
            if not isinstance(group, Mapping) or not isinstance(group.get(_PARAMS), (list, tuple)):
                raise ValueError(f"{self.op}: group {i} has no list {_PARAMS!r}: got {group!r} (expected their names)")
            options = {key: value for key, value in group.items() if key not in (_PARAMS, _NAMES)}
            self.options.update(dict.fromkeys(group[_PARAMS], options))
            if not group[_PARAMS]:
                self.empty.append(options)
        self.numbered = bool(self.options) and all(isinstance(name, int) for name in self.options)

    def _read_flat(self, state, names, strict):
        inner = []
        for key, value in state.items():
            kind, _, path = str(key).partition(".")
            name, _, option = path.rpartition(".")
            if kind == _GROUPS and name:
                if option != _NAMES:
                    self.options.setdefault(name, {})[option] = value
            elif kind == _STATE and name:
                inner.append((path.split("."), value))
            elif strict:
                raise RuntimeError(
                    f'{self.op}: got the key {key!r} (expected "state", or "state.NAME..." and "param_groups.NAME...")'
                )
        names = names | self.options.keys()
        for parts, value in inner:
            size = next((i for i in range(len(parts) - 1, 0, -1) if ".".join(parts[:i]) in names), 0)
            if size:
                at = self.states.setdefault(".".join(parts[:size]), {})
                for part in parts[size:-1]:
                    at = at.setdefault(part, {})
                at[parts[-1]] = value
            elif strict:
                raise RuntimeError(
                    f'{self.op}: got state for {".".join(parts)!r} (expected names of "param_groups" or of the model)'
                )

    def group(self, params, own, strict):
        """The saved options for the group `own`, whose parameters have these names."""
        options, first = {}, None
        for name in params:
            if name not in self.options:
                if strict:
                    raise RuntimeError(
                        f"{self.op}: Missing param group for parameter {name!r}: got groups of {len(self.options)} "
                        "other names (expected its name in one; StateDictOptions(strict=False) keeps the options that "
                        "it has)"
                    )
                continue
            saved = self.options[name]
            for key, value in saved.items():
                if key in options and not _is_same(options[key], value):
                    raise RuntimeError(
                        f"{self.op}: All the parameters in the same parameter group should have the same saved "
                        f"param_group value: got {key}={value!r} for {name!r} (expected {options[key]!r}, as for "
                        f"{first!r})"
                    )
            first, options = first or name, {**saved, **options}
        return {**{key: value for key, value in own.items() if key != _NAMES}, **options}

    def take_empty(self, own):
        if self.empty is None:  # a flat dictionary has nothing of such groups
            return {key: value for key, value in own.items() if key != _NAMES}
        if not self.empty:
            raise ValueError(f"{self.op}: got no further param group without parameters (expected one for each here)")
        return self.empty.pop(0)


def _is_same(a, b):
    if isinstance(a, _C.Tensor) and isinstance(b, _C.Tensor):
        return a.shape == b.shape and bool((a == b.to(a.device)).all())
    return bool(a == b)


def _part_of(saved, optimizer, names, strict):
    """The part of a saved state that belongs to this optimizer, as its load_state_dict takes it."""
    states, groups = {}, []
    has_state = len(optimizer.state) > 0
    for own, named in zip(optimizer.param_groups, _names_in(saved.op, optimizer, names)):
        params = [next((name for name in each if name in saved.options), each[0]) for each in named]
        options = saved.group(params, own, strict) if params else saved.take_empty(own)
        groups.append({**options, _PARAMS: params})
        for name, param in zip(params, own[_PARAMS]):
            if not param.requires_grad:
                continue
            if name in saved.states:
                states[name] = saved.states[name]
            elif strict and saved.states and (optimizer.state.get(param) or not has_state):
                raise RuntimeError(
                    f"{saved.op}: Missing optimizer state for parameter {name!r}: got the states of "
                    f"{len(saved.states)} other names (expected its own; StateDictOptions(strict=False) loads without)"
                )
    return {_STATE: states, _GROUPS: groups}


@no_grad()
def _load_optimizers(op, model, optimizers, state, options):
    for optimizer in optimizers:
        _init_optim_state(optimizer)
    if not state:
        return
    names = _param_names(model)
    saved = _Saved(op, state, names, options.strict)
    if saved.numbered and len(optimizers) != 1:
        raise ValueError(f"{op}: got numbers of parameters for {len(optimizers)} optimizers (expected their names)")
    parts = [state if saved.numbered else _part_of(saved, each, names, options.strict) for each in optimizers]
    for optimizer, part in zip(optimizers, parts):
        _own(optimizer, "load_state_dict")(part)


# The public functions.


def get_model_state_dict(model, *, submodules=None, options=None):
    """The model's state_dict() under the names that its parameters and buffers have without wrappers. Tensors share the
    model's memory. `submodules`: only the names in these modules.

    Raises RuntimeError if nothing is left.

    >>> import pydist
    >>> from pydist.distributed.checkpoint.state_dict import get_model_state_dict
    >>> model = pydist.nn.parallel.DistributedDataParallel(pydist.nn.Linear(2, 1))
    >>> list(model.state_dict())
    ['module.weight', 'module.bias']
    >>> list(get_model_state_dict(model))
    ['weight', 'bias']
    """
    op = "get_model_state_dict"
    _check_model(op, model)
    options = _checked_options(op, options)
    return _model_state(op, model, _prefixes(op, model, submodules), options)


def get_optimizer_state_dict(model, optimizers, *, submodules=None, options=None):
    """The state of an optimizer, or of several ones together, by the names of the model's parameters. Tensors share the
    optimizers' memory. `submodules` is accepted and, like in PyTorch, changes nothing here.

    An optimizer without state gets it first, so that a checkpoint can be loaded into its tensors: by a step with
    gradients of zeros and a rate of 0, after which gradients are None. It is left as it is if it has gradients. Raises
    ValueError for parameters that are not in the model, or in two optimizers.

    >>> import pydist
    >>> from pydist.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict
    >>> model = pydist.nn.Linear(2, 1)
    >>> state = get_optimizer_state_dict(model, pydist.optim.Adam(model.parameters(), lr=0.1))
    >>> state["param_groups"][0]["params"], state["state"]["bias"]["exp_avg"]
    (['weight', 'bias'], tensor([0.]))
    >>> options = StateDictOptions(flatten_optimizer_state_dict=True)
    >>> flat = get_optimizer_state_dict(model, pydist.optim.Adam(model.parameters(), lr=0.1), options=options)
    >>> flat["state.bias.exp_avg"], flat["param_groups.bias.lr"]
    (tensor([0.]), 0.1)
    """
    op = "get_optimizer_state_dict"
    _check_model(op, model)
    optimizers, options = _checked_optimizers(op, optimizers), _checked_options(op, options)
    _prefixes(op, model, submodules)
    return _optimizer_state(op, model, optimizers, options)


def get_state_dict(model, optimizers, *, submodules=None, options=None):
    """(get_model_state_dict, get_optimizer_state_dict) of a model and its optimizers. Without optimizers the second one
    is {}.

    >>> import pydist
    >>> from pydist.distributed.checkpoint.state_dict import get_state_dict
    >>> model = pydist.nn.Linear(2, 1)
    >>> of_model, of_optimizer = get_state_dict(model, pydist.optim.SGD(model.parameters(), momentum=0.9))
    >>> list(of_model), list(of_optimizer["state"])
    (['weight', 'bias'], ['weight', 'bias'])
    """
    op = "get_state_dict"
    _check_model(op, model)
    optimizers, options = _checked_optimizers(op, optimizers, may_be_empty=True), _checked_options(op, options)
    of_model = _model_state(op, model, _prefixes(op, model, submodules), options)
    return of_model, _optimizer_state(op, model, optimizers, options) if optimizers else {}


def set_model_state_dict(model, model_state_dict, *, options=None):
    """Loads a state that get_model_state_dict returned, into the model with or without wrappers. Returns (missing_keys,
    unexpected_keys): keys of the model's own state_dict(), and names that the model does not have.

    The dictionary stays as it is. Raises RuntimeError for missing and unexpected names (with `strict`), for tensors of
    other sizes, and for an empty dictionary.

    >>> import pydist
    >>> from pydist.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
    >>> saved = get_model_state_dict(pydist.nn.Linear(2, 1))
    >>> model = pydist.nn.parallel.DistributedDataParallel(pydist.nn.Linear(2, 1))
    >>> set_model_state_dict(model, saved)
    <All keys matched successfully>
    >>> pydist.equal(model.module.weight, saved["weight"])
    True
    """
    op = "set_model_state_dict"
    _check_model(op, model)
    options = _checked_options(op, options)
    state = _given(op, "model_state_dict", model_state_dict, options)
    state = _joined(op, model, state)
    _check_not_empty(op, "model", state, options, options.ignore_frozen_params or not options.strict)
    return _load_model(model, state, options)


def set_optimizer_state_dict(model, optimizers, optim_state_dict, *, options=None):
    """Loads a state that get_optimizer_state_dict returned, in either form, into one or several optimizers. It finds
    each parameter by its name, so parameters and groups may have another order than they had. Names of other parameters
    are ignored.

    Call it before backward, or after the optimizer's step. If it raises, no optimizer has loaded anything. RuntimeError:
    a name is missing (with `strict`), or parameters of one group were saved with different options.

    >>> import pydist
    >>> from pydist.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
    >>> model = pydist.nn.Linear(2, 1)
    >>> saved = get_optimizer_state_dict(model, pydist.optim.AdamW(model.parameters(), lr=0.1))
    >>> other = pydist.optim.AdamW([model.bias, model.weight])
    >>> set_optimizer_state_dict(model, other, saved)
    >>> other.param_groups[0]["lr"], other.state[model.bias]["exp_avg"]
    (0.1, tensor([0.]))
    """
    op = "set_optimizer_state_dict"
    _check_model(op, model)
    optimizers, options = _checked_optimizers(op, optimizers), _checked_options(op, options)
    state = _given(op, "optim_state_dict", optim_state_dict, options)
    _check_not_empty(op, "optimizer", state, options)
    _load_optimizers(op, model, optimizers, state, options)


def set_state_dict(model, optimizers, *, model_state_dict, optim_state_dict, options=None):
    """set_optimizer_state_dict, then set_model_state_dict, whose (missing_keys, unexpected_keys) it returns. An empty
    model_state_dict loads only the optimizers.

    >>> import pydist
    >>> from pydist.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    >>> def program():
    ...     model = pydist.nn.Linear(2, 1)
    ...     return model, pydist.optim.Adam(model.parameters())
    >>> of_model, of_optimizer = get_state_dict(*program())
    >>> set_state_dict(*program(), model_state_dict=of_model, optim_state_dict=of_optimizer)
    <All keys matched successfully>
    """
    op = "set_state_dict"
    _check_model(op, model)
    optimizers, options = _checked_optimizers(op, optimizers, may_be_empty=True), _checked_options(op, options)
    of_model = _given(op, "model_state_dict", model_state_dict, options)
    of_optimizers = _given(op, "optim_state_dict", optim_state_dict, options)
    of_model = _joined(op, model, of_model)
    if not optimizers and not of_model:
        _check_not_empty(op, "model", of_model, options)
    if optimizers:
        _check_not_empty(op, "optimizer", of_optimizers, options)
        _load_optimizers(op, model, optimizers, of_optimizers, options)
    return _load_model(model, of_model, options)


def _given(op, what, state, options):
    if options.broadcast_from_rank0:
        return _from_rank0(op, what, state)
    _check_mapping(op, what, state)
    return state


# Methods in the place of state_dict and load_state_dict.


def _patch(thing, state_dict, load_state_dict):
    state_dict._is_by_name = load_state_dict._is_by_name = True
    thing.state_dict, thing.load_state_dict = state_dict, load_state_dict


def _patch_model_state_dict(model, *, options=None):
    """From now on, model.state_dict() and model.load_state_dict(state) are get_model_state_dict and
    set_model_state_dict."""

    def state_dict():
        return get_model_state_dict(model, options=options)

    def load_state_dict(state_dict):
        return set_model_state_dict(model, state_dict, options=options)

    _patch(model, state_dict, load_state_dict)


def _patch_optimizer_state_dict(model, *, optimizers, options=None):
    """From now on, state_dict() and load_state_dict(state) of each optimizer are get_optimizer_state_dict and
    set_optimizer_state_dict of all of them."""
    optimizers = _checked_optimizers("_patch_optimizer_state_dict", optimizers)

    def state_dict():
        return get_optimizer_state_dict(model, optimizers, options=options)

    def load_state_dict(state_dict):
        set_optimizer_state_dict(model, optimizers, state_dict, options=options)

    for optimizer in optimizers:
        _patch(optimizer, state_dict, load_state_dict)
