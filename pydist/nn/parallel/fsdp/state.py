"""What a module of fully_shard has: its unit of parameters, its settings, and the model of the outermost module."""

import os
import weakref

from pydist import _C
from pydist.distributed.tensor import DTensor
from pydist.nn.modules.module import _refuse_blank
from pydist.nn.parameter import Parameter
from pydist.utils._pytree import tree_map


def cast_floats(value, dtype):
    """The same containers with floating tensors in this dtype."""

    def cast(item):
        if isinstance(item, _C.Tensor) and item.is_floating_point() and item.dtype != dtype:
            return item.to(dtype)
        return item

    return tree_map(cast, value)


def is_private():
    """Whether PYDIST_FSDP says that each rank gathers wholes of its own."""
    wanted = os.environ.get("PYDIST_FSDP", "auto")
    if wanted not in ("auto", "private"):
        raise ValueError(f"PYDIST_FSDP is {wanted!r} (expected auto or private)")
    return wanted == "private"


def before_backward(result, fn):
    """fn() is called when a gradient of a tensor in `result` comes."""

    def hook(grad):
        fn()

    def watch(item):
        if isinstance(item, _C.Tensor) and item.requires_grad and not item.is_leaf:
            item.register_hook(hook)
        return item

    return tree_map(watch, result)


def states_of(modules):
    """The States of these modules, each once, in their order."""
    found = (module.__dict__.get("_fsdp") for module in modules)
    return list({id(state): state for state in found if state is not None}.values())


class Model:
    """The units below an outermost module: what runs their forwards and backwards (`_C.Sharded`)."""

    def __init__(self, states):
        self._states = [weakref.ref(state) for state in states]  # which have this model: no circle
        self.units = []
        for state in (*reversed(states[1:]), states[0]):  # about the order in which backward has their gradients
            if state.unit is not None and all(state.unit is not unit for unit in self.units):
                self.units.append(state.unit)
        self.engine = None
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

    def show(self):
        """Shows the wholes that are there in all places, for forwards that backward runs again (checkpoints)."""
        for unit in self.units:
            if unit.kind != "gathered":
                unit.unshard()

    def number_of(self, unit):
        """The unit's place among the units."""
        return next(i for i, known in enumerate(self.units) if known is unit)


class _EndOfBackward:
    """Shows shards again in the places where wholes have stayed."""

    def __init__(self, model):
        self.model = weakref.ref(model)

    def __call__(self):
        model = self.model()
        for state in model.states if model is not None else ():
            if state.unit is not None and state.unit.shown and state.reshards_after_backward:
                state.unit.reshard()


class State:
    """Of one module, or of a list of modules that are one unit."""

    def __init__(self, unit, places, spec_of_param, group, replicas, policy, keeps):
        self.unit = unit  # None: it has no parameters of its own
        self.places = places  # (parameters, name, number) of each place that shows a parameter
        self.spec_of_param = spec_of_param
        self.group, self.replicas = group, replicas
        self.policy = policy
        self.keeps = keeps  # wholes stay in their places after forward
        self.model = None
        self.syncs = self.sums_replicas = self.reshards_after_backward = True
        self.divisor = 0.0
        self.backward_unshards = True
        self.summoned = False  # its places show wholes for a user (summon_full_params)

    # ---- settings

    def push(self):
        """Tells the engine the settings."""
        if self.model is None or self.model.engine is None or self.unit is None:
            return
        self.model.engine.set_options(
            self.model.number_of(self.unit),
            accumulates=not self.syncs,
            apart=not self.sums_replicas,
            keeps=not self.reshards_after_backward,
            divisor=self.divisor,
            reduced=self.policy.reduce_dtype,
        )

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
        outermost = engine.enter()
        try:
            if unit is None:
                result = self._cast(forward, args, kwargs)
            else:
                result = self._with_wholes(forward, args, kwargs)
            if _C.is_grad_enabled():
                if outermost:
                    result = before_backward(result, model.show)
                if unit is not None and unit.kind == "gathered":
                    result = before_backward(result, self._gather)
            return result
        finally:
            engine.leave()

    def _with_wholes(self, forward, args, kwargs):
        self.unit.enter()
        try:
            return self._cast(forward, args, kwargs)
        finally:
            self.unit.leave(self.keeps and _C.is_grad_enabled())

    def _cast(self, forward, args, kwargs):
        policy = self.policy
        if policy.param_dtype is not None and policy.cast_forward_inputs:
            args, kwargs = cast_floats(args, policy.param_dtype), cast_floats(kwargs, policy.param_dtype)
        result = forward(*args, **kwargs)
        return result if policy.output_dtype is None else cast_floats(result, policy.output_dtype)

    def _gather(self):
        if self.backward_unshards:
            self.unit.unshard()

    # ---- shards that somebody has replaced

    def adopt(self):
        """Takes home parameters that were put into the places of shards, and memory that they were given: by
        Module._apply, load_state_dict(assign=True) or an assignment. All ranks do the same."""
        for parameters, name, number in self.places:
            now, shard = parameters[name], self.unit.shard(number)
            if now is shard or now is self.unit.whole(number):
                continue
            self._replace(number, self._as_shard(now, number, name))
        self.unit.settle(False)

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

    def unshard(self):
        """Shows the wholes in all places, when all ranks have ended their steps. All ranks call it."""
        if not self.unit.intact():
            self.adopt()
        _C.await_writes(self.group)
        self.unit.unshard()

    def reshard(self):
        """Shows shards in all places."""
        if self.unit is not None and self.unit.shown:
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
