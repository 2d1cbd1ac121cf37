"""A model cut into stages, where submodules are named or where `pipe_split` is called."""

import copy
import sys
from enum import Enum
from typing import NamedTuple

from pydist.distributed.pipelining.stage import build_stage

__all__ = ["Pipe", "PipeInfo", "SplitPoint", "pipe_split", "pipeline"]


class SplitPoint(Enum):
    """Where a stage begins: before the named submodule, or behind it."""

    BEGINNING = 1
    END = 2


def pipe_split():
    """In a model's forward: here a stage begins, if `pipeline` cuts the model. Else it does nothing.

    >>> import pydist
    >>> from pydist import nn
    >>> from pydist.distributed.pipelining import pipe_split, pipeline
    >>> class Net(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)
    ...     def forward(self, x):
    ...         y = self.first(x).relu()
    ...         pipe_split()
    ...         return self.second(y) + x
    >>> pipe = pipeline(Net(), (pydist.ones(1, 2),))
    >>> [sorted(pipe.get_stage_module(i).state_dict()) for i in range(pipe.num_stages)]
    [['first.bias', 'first.weight'], ['second.bias', 'second.weight']]
    """
    fx = sys.modules.get("pydist.fx._symbolic_trace")  # not imported: without it nobody traces
    tracer = None if fx is None else fx.current_tracer()
    if tracer is not None:
        tracer.create_node("call_function", pipe_split, (), {})


class PipeInfo(NamedTuple):
    """What `Pipe.info` says: the whole model's fx.Graph, the number of stages, and the weights that stages share:
    [(stage, name, other stage, other name), ...]."""

    graph: object
    num_stages: int
    has_loss_and_backward: bool = False
    ties: tuple = ()


class Pipe:
    """The stages of a model, whose parameters keep the names that they have in the model. Called with the model's arguments,
    it runs all of them here, and returns a tuple of results. `split_gm`: a module with the stages as submod_pp_0,
    submod_pp_1, ..."""

    has_loss_and_backward = False

    def __init__(self, graph, modules, split_gm, ties=()):
        self._graph, self._modules, self.split_gm, self._ties = graph, modules, split_gm, tuple(ties)

    @property
    def num_stages(self):
        """How many stages there are."""
        return len(self._modules)

    def __call__(self, *args, **kwargs):
        result = self._modules[0](*args, **kwargs)
        for module in self._modules[1:]:
            result = module(*result) if isinstance(result, tuple) else module(result)
        return result if isinstance(result, tuple) else (result,)

    def get_stage_module(self, stage_idx):
        """The module of a stage."""
        if not isinstance(stage_idx, int) or not 0 <= stage_idx < len(self._modules):
            raise ValueError(f"get_stage_module: stage_idx is {stage_idx!r} (expected 0 to {len(self._modules) - 1})")
        return self._modules[stage_idx]

    def build_stage(self, stage_index, device, group=None):
        """The PipelineStage with this number."""
        return build_stage(self.get_stage_module(stage_index), stage_index, self.info(), device, group)

    def info(self):
        """A PipeInfo, for build_stage."""
        return PipeInfo(self._graph, self.num_stages, ties=self._ties)

    def parameters(self):
        """The parameters of all stages."""
        return self.split_gm.parameters()

    def named_parameters(self):
        """The parameters of all stages, by the model's names."""
        return [pair for module in self._modules for pair in module.named_parameters()]

    def state_dict(self):
        """Parameters and buffers of all stages, by the model's names."""
        return {name: value for module in self._modules for name, value in module.state_dict().items()}

    def to(self, *args, **kwargs):
        """Moves or casts all stages, as Module.to. Returns this Pipe."""
        self.split_gm.to(*args, **kwargs)
        return self

    def train(self, mode=True):
        """Puts all stages into training mode. Returns this Pipe."""
        self.split_gm.train(mode)
        return self

    def eval(self):
        """Puts all stages into evaluation mode. Returns this Pipe."""
        return self.train(False)

    def __repr__(self):
        return "\n".join(f"stage {i}: {module!r}\n{module.code.strip()}" for i, module in enumerate(self._modules))


def _marks(module, split_spec):
    """{path: (whether a stage begins before it, whether one begins behind it)}."""
    spec, names = dict(split_spec or {}), {name for name, _ in module.named_modules() if name}
    for name, point in spec.items():
        if name not in names:
            raise ValueError(f"pipeline: split_spec names {name!r} (expected a submodule: one of {sorted(names)})")
        if not isinstance(point, SplitPoint):
            raise TypeError(f"pipeline: split_spec has {point!r} for {name!r} (expected a SplitPoint)")
    return {name: (point is SplitPoint.BEGINNING, point is SplitPoint.END) for name, point in spec.items()}


def _own_copy(module, path):
    """Gives a stage its own copy of a parameter. The model keeps the modules that have it as they are."""
    *way, name = path.split(".")
    for part in way:
        own = copy.copy(module._modules[part])
        own._modules, own._parameters = dict(own._modules), dict(own._parameters)
        module._modules[part] = own
        module = own
    p = module._parameters[name]
    module._parameters[name] = type(p)(p.detach().clone(), p.requires_grad)


def _separate(modules):
    """Gives each stage its own copy of a parameter that several have. Returns the ties between them. Raises ValueError for
    a buffer of two stages, unless they only read it."""
    owner, ties, nodes = {}, [], [node for module in modules for node in module.graph.nodes]
    in_place = [node.args[0] for node in nodes if node.op == "call_method" and node.target.endswith("_")]
    written = {node.target for node in in_place if node.op == "get_attr"}
    for stage, module in enumerate(modules):
        read = {node.target for node in module.graph.nodes if node.op == "get_attr"} - written
        for name, buffer in module.named_buffers():
            before, where = (stage, name) if name in read else owner.setdefault(id(buffer), (stage, name))
            if before != stage:
                raise ValueError(
                    f"pipeline: {name} of stage {stage} is {where} of stage {before} (expected no sharing)"
                )
        for name, p in list(module.named_parameters()):
            before, where = owner.setdefault(id(p), (stage, name))
            if before != stage:
                if (before, where) in [tie[:2] for tie in ties]:
                    raise ValueError(
                        f"pipeline: {name} of stage {stage} belongs to three stages (expected at most two)"
                    )
                ties.append((before, where, stage, name))
                _own_copy(module, name)
    return ties


def pipeline(module, mb_args, mb_kwargs=None, split_spec=None, split_policy=None):
    """Cuts a model into stages. Returns a `Pipe`.

    split_spec: {path of a submodule: SplitPoint}: stages begin before or behind it. Without it they begin where forward calls
    `pipe_split()`. split_policy: a function that gets the model as a `fx.GraphModule`, puts calls of pipe_split into its
    graph, and returns it.

    mb_args, mb_kwargs: arguments for one microbatch. The model is traced with their shapes. It is not run, and needs no
    memory: it may stand on the device meta. Lengths may change later. Where forward branches or loops by a shape or by an
    argument that is no tensor, another microbatch has to go the same way, or the stage raises AssertionError. Arguments that
    are not given have their defaults. Without mb_args (None or ()) no control flow may depend on inputs. What depends on
    values of tensors raises `fx.TraceError` with the line. Modules that are not cut are not looked into.

    What a stage needs of an earlier one goes through all between: skip connections, numbers such as lengths, too. A parameter
    of two stages is tied: each has its own copy, and `step` gives both the sum of their gradients, as with tie_weights of a
    schedule. A module with buffers that two stages call raises ValueError; so does a stage that does nothing, but marks behind
    the last module have no effect. Gradients and autocast may be switched in modules that are not cut only.

    >>> import pydist
    >>> from pydist import nn
    >>> from pydist.distributed.pipelining import SplitPoint, pipeline
    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> pipe = pipeline(model, (pydist.ones(1, 2),), split_spec={"2": SplitPoint.BEGINNING})
    >>> [sorted(pipe.get_stage_module(i).state_dict()) for i in range(pipe.num_stages)]
    [['0.bias', '0.weight'], ['2.bias', '2.weight']]
    """
    from pydist.fx import GraphModule
    from pydist.fx.passes import stages

    if not hasattr(module, "named_modules"):
        raise TypeError(f"pipeline: module is {type(module).__name__} (expected a Module)")
    if split_policy is not None and split_spec:
        raise ValueError("pipeline: split_spec and split_policy were given (expected one of them)")
    marks = _marks(module, split_spec)
    args = mb_args if isinstance(mb_args, (tuple, list)) else () if mb_args is None else (mb_args,)
    traced = stages.trace(module, args, dict(mb_kwargs or {}), marks, pipe_split)
    if split_policy is not None:
        traced = split_policy(traced)
        if not isinstance(traced, GraphModule):
            raise TypeError(f"pipeline: split_policy returned {type(traced).__name__} (expected a GraphModule)")
    modules = stages.cut(traced, pipe_split)
    ties = _separate(modules)
    return Pipe(traced.graph, modules, stages.container(modules), ties)
