"""What a module of fully_shard has: its unit of parameters, its settings, and the model of the outermost module."""

import copy
import os
import weakref
from dataclasses import fields, is_dataclass

from pydist import _C
from pydist.distributed.tensor import DTensor
from pydist.nn.modules.module import _listed, _refuse_blank
from pydist.nn.parameter import Parameter
from pydist.utils._pytree import tree_map


def _each_tensor(fn, value):
    """The same containers, among them dataclasses, with fn(tensor) for each tensor."""

    def visit(item):
        if isinstance(item, _C.Tensor):
            return fn(item)
        if not is_dataclass(item) or isinstance(item, type):
            return item
        held = {field.name: getattr(item, field.name) for field in fields(item) if hasattr(item, field.name)}
        new = {name: _each_tensor(fn, child) for name, child in held.items()}
        if all(new[name] is child for name, child in held.items()):
            return item
        made = copy.copy(item)
        for name, child in new.items():
            object.__setattr__(made, name, child)  # also of frozen ones
        return made

    return tree_map(visit, value)


def cast_floats(value, dtype):
    """The same containers with floating tensors in this dtype."""
    return _each_tensor(lambda t: t.to(dtype) if t.is_floating_point() and t.dtype != dtype else t, value)


def is_private():
    """Whether PYDIST_FSDP says that each rank gathers wholes of its own."""
    wanted = os.environ.get("PYDIST_FSDP", "auto")
    if wanted not in ("auto", "private"):
        raise ValueError(f"PYDIST_FSDP is {wanted!r} (expected auto or private)")
    return wanted == "private"


def before_backward(result, fn):
    """fn() is called when a gradient of a tensor in `result` comes."""

    def watch(item):
        if item.requires_grad and not item.is_leaf:
            item.register_hook(lambda grad: fn())
        return item

    return watch(result) if type(result) is _C.Tensor else _each_tensor(watch, result)


def _check_values(module, error):
    """Raises RuntimeError with the names of parameters on meta, if any, when a forward has failed with `error`."""
    names = [name for name, param in module.named_parameters() if param.is_meta]
    if names:
        raise RuntimeError(
            f'{error}\nfully_shard: {_listed(names)} are on meta (expected to_empty(device="cpu"), and values, before forward)'
        ) from error


def states_of(modules):
    """The States of these modules, each once, in their order."""
    found = (module.__dict__.get("_fsdp") for module in modules)
    return list({id(state): state for state in found if state is not None}.values())


class Order:
    """Which unit came after which in the last pass: what to gather while a unit computes. All ranks run the same passes,
    and see the same units in them, so they gather ahead alike."""

    def __init__(self):
        self.after, self.last = {}, None

    def begin(self):
        """A pass begins."""
        self.last = None

    def came(self, state, given):
        """Notes that this state's unit is in use now, and begins to gather those of the states that a user has given, or the
        one that came next the last time."""
        if self.last is not None:
            self.after[self.last] = weakref.ref(state)
        self.last = state.unit
        if given is None:
            given = (self.after[state.unit](),) if state.unit in self.after else ()
        for later in given:
            if later is not None:
                later.unit.start(not later.keeps)


class Model:
    """The units below an outermost module: what runs their forwards and backwards (`_C.Sharded`)."""

    def __init__(self, states):
        self._states = [weakref.ref(state) for state in states]  # which have this model: no circle
        self.units = []
        self.begun = self.ended = None  # called when a backward begins, several times, and when it has ended (Join)
        for state in (*reversed(states[1:]), states[0]):  # about the order in which backward has their gradients
            if state.unit is not None and all(state.unit is not unit for unit in self.units):
                self.units.append(state.unit)
        self.gathered = bool(self.units) and self.units[0].kind == "gathered"  # as all of them
        self.engine = None
        self.forward, self.backward, self.in_forward = Order(), Order(), False
        if self.units:
            outer = states[0].unit is not None
            replicas = next(state.replicas for state in states if state.unit is not None)
            self.engine = _C.Sharded(self.units, outer, replicas)
            self.engine.set_end(_EndOfBackward(self))
        for state in states:
            state.model = self
            state.push()

    @property
    def states(self):
        """Those that are still there, the outermost module's first."""
        return [state for ref in self._states if (state := ref()) is not None]

    def begin_forward(self, state):
        """The outermost forward begins, that of this state's module. Only those of the whole model have an order: a module
        below may run by itself, and again in backward."""
        if self.gathered:
            self.in_forward = state is self._states[0]()
            self.forward.begin()
            self.backward.begin()

    def begin_backward(self):
        """Shows the wholes that are there in all places, for forwards that backward runs again (checkpoints)."""
        if self.begun is not None:
            self.begun()
        for unit in () if self.gathered else self.units:
            unit.unshard(False)

    def number_of(self, unit):
        """The unit's place among the units."""
        return next(i for i, known in enumerate(self.units) if known is unit)


class _EndOfBackward:
    """Shows shards again in the places where wholes have stayed."""

    def __init__(self, model):
        self.model = weakref.ref(model)

    def __call__(self):
        model = self.model()
        if model is None:
            return
        if model.ended is not None:
            model.ended()
        for unit in model.units:
            unit.end_backward()
        if model.gathered:
            model.backward.begin()
            for state in model.states:
                state.in_backward = False


class State:
    """Of one module, or of a list of modules that are one unit."""

    def __init__(self, unit, places, spec_of_param, group, replicas, policy, keeps, tied):
        self.unit = unit  # None: it has no parameters of its own
        self.gathered = unit is not None and unit.kind == "gathered"
        # The units whose wholes a forward shows; tied: those below that have parameters of this module.
        self.shown = tied if unit is None else (*tied, unit)
        self.places = places  # (parameters, name, number) of each place that shows a parameter
        self.spec_of_param = spec_of_param
        self.group, self.replicas = group, replicas
        self.policy = policy
        self.keeps = keeps  # wholes stay in their places after forward
        self.model = None
        self.syncs = self.sums_replicas = self.reshards_after_backward = True
        self.divisor = 0.0
        self.in_backward = False  # backward has gathered its wholes, and has not ended
        self.forward_ahead = self.backward_ahead = None  # States of units that a user wants to be gathered meanwhile
        self.reduced, self.watched = None, []  # a user's hook of reduced gradients; its handles
        self.logical, self.in_shard, self.sums = None, False, None  # of logical shards (shards.py)
        self.summoned = False  # its places show wholes for a user (summon_full_params)

    # ---- settings

    def push(self):
        """Tells the unit and the engine the settings."""
        if self.unit is None:
            return
        self.unit.stays = not self.reshards_after_backward
        if self.model is None or self.model.engine is None:
            return
        self.model.engine.set_options(
            self.model.number_of(self.unit),
            accumulates=self.in_shard or not self.syncs,
            apart=not self.sums_replicas,
            keeps=self.unit.stays,
            divisor=self.divisor,
            reduced=self.policy.reduce_dtype,
        )

    def watch(self, hook):
        """hook(part) gets the reduced gradients of the unit."""

        def see(grad):
            hook(_C.local_part(grad))

        for handle in self.watched:
            handle.remove()
        self.reduced = hook
        shards = self.shards() if self.unit is not None and hook is not None else ()
        self.watched = [shard.register_hook(see) for shard in shards if shard.requires_grad]

    # ---- the outermost module

    def begin(self, module):
        """Makes `module` the outermost one of all units below it."""
        states = states_of(module.modules())
        for state in states:
            state.model = None  # frees an engine that was made when a module below ran by itself
        return Model(states)

    # ---- forward

    def run(self, module, forward, args, kwargs):
        """Calls forward(*args, **kwargs) with the wholes in their places."""
        model = self.model or self.begin(module)
        if module._forward_pre_hooks and _refuse_blank in module._forward_pre_hooks.values():
            _refuse_blank(module, args)
        unit, engine = self.unit, model.engine
        if engine is None:
            return self._cast(forward, args, kwargs)
        if unit is not None and not unit.intact():
            self.adopt()
        if self.logical is not None and _C.is_grad_enabled():
            self.logical.check_forward()
        keeps = self.keeps and _C.is_grad_enabled()
        outermost = engine.enter(self.shown, keeps)
        if outermost:
            model.begin_forward(self)
        try:
            if self.gathered and model.in_forward:
                model.forward.came(self, self.forward_ahead)
            result = self._cast(forward, args, kwargs)
            if _C.is_grad_enabled():
                if outermost:
                    result = before_backward(result, model.begin_backward)
                if self.gathered:
                    result = before_backward(result, self._gather)
            return result
        except RuntimeError as error:
            if outermost:
                _check_values(module, error)
            raise
        finally:
            # a checkpoint that runs it again keeps wholes for backward
            engine.leave(self.shown, keeps or self.in_backward)
            if outermost:
                model.in_forward = False

    def _cast(self, forward, args, kwargs):
        policy = self.policy
        if policy.param_dtype is not None and policy.cast_forward_inputs:
            args, kwargs = cast_floats(args, policy.param_dtype), cast_floats(kwargs, policy.param_dtype)
        result = forward(*args, **kwargs)
        return result if policy.output_dtype is None else cast_floats(result, policy.output_dtype)

    def _gather(self):
        self.in_backward = True
        new = self.unit.state != "gathered"
        self.unit.unshard(not self.reshards_after_backward)
        if new and self.model is not None:
            self.model.backward.came(self, self.backward_ahead)

    # ---- shards that somebody has replaced

    def adopt(self):
        """Takes home parameters that were put into the places of shards, and memory that they were given: by
        Module._apply, load_state_dict(assign=True) or an assignment. All ranks do the same."""
        for parameters, name, number in self.places:
            now, shard = parameters[name], self.unit.shard(number)
            if now is shard or now is self.unit.whole(number):
                continue
            self._replace(number, self._as_shard(now, number, name))
        self.watch(self.reduced)
        self.unit.settle(False)

    def shards(self):
        """The parameters of the unit, this rank's parts."""
        return [self.unit.shard(number) for number in range(len(self.spec_of_param))]

    def _as_shard(self, tensor, number, name):
        spec = self.spec_of_param[number]
        if isinstance(tensor, DTensor) and tensor._spec is spec:
            return tensor
        if not isinstance(tensor, _C.Tensor) or tuple(tensor.shape) != tuple(spec.shape):
            got = "None" if tensor is None else f"of shape {list(tensor.shape)}"
            raise RuntimeError(
                f"fully_shard: parameter {name} was replaced by one that is {got} (expected a tensor of shape "
                f"{list(spec.shape)})"
            )
        part = spec.part_of(tensor.detach()).clone() if not isinstance(tensor, DTensor) else tensor.detach().redistribute(
            placements=spec.placements
        ).to_local()  # fmt: skip
        return sharded_parameter(part, spec, tensor.requires_grad)

    def _replace(self, number, shard):
        self.unit.set_shard(number, shard)
        for parameters, name, param in self.places:
            if param == number:
                parameters[name] = shard

    def unshard(self, later=False):
        """Shows the wholes in all places, when all ranks have ended their steps; `later`: only begins to gather them, where
        they have to be gathered. All ranks call it."""
        if not self.unit.intact():
            self.adopt()
        _C.await_writes(self.group)
        if later and self.gathered:
            self.unit.start(False)
        else:
            self.unit.unshard(True)

    def reshard(self):
        """Shows shards in all places."""
        self.in_backward = False
        if self.unit is not None and (self.unit.shown or self.unit.state == "under way"):
            self.unit.reshard()

    def settle(self):
        """Brings all memory home; the places show shards."""
        if self.unit is not None:
            self.reshard()
            if not self.unit.intact():
                self.adopt()


def sharded_parameter(local, spec, requires_grad):
    """A parameter that is this rank's part of what the spec describes, over the memory of `local`."""
    return Parameter(_C.as_part(local, spec), requires_grad)
