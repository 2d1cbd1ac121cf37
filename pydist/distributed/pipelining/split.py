"""A Sequential cut into stages."""

from collections import OrderedDict
from enum import Enum

from pydist.distributed.pipelining.stage import PipelineStage

__all__ = ["Pipe", "SplitPoint", "pipeline"]


class SplitPoint(Enum):
    """Where a stage begins: before the named submodule, or behind it."""

    BEGINNING = 1
    END = 2


class Pipe:
    """The stages of a model, whose parameters keep the names that they have in the model."""

    def __init__(self, modules):
        self._modules = modules

    @property
    def num_stages(self):
        """How many stages there are."""
        return len(self._modules)

    def get_stage_module(self, stage_idx):
        """The module of a stage."""
        if not isinstance(stage_idx, int) or not 0 <= stage_idx < len(self._modules):
            raise ValueError(f"get_stage_module: stage_idx is {stage_idx!r} (expected 0 to {len(self._modules) - 1})")
        return self._modules[stage_idx]

    def build_stage(self, stage_index, device, group=None):
        """The PipelineStage with this number."""
        return PipelineStage(self.get_stage_module(stage_index), stage_index, self.num_stages, device, group=group)

    def __repr__(self):
        return f"Pipe({len(self._modules)} stages)"


def _sequential(what, module):
    """The class Sequential, if the module's forward is its own one."""
    for cls in type(module).__mro__:
        if cls.__name__ == "Sequential" and cls.__module__.split(".")[:2] == ["pydist", "nn"]:
            if type(module).forward is cls.forward:
                return cls
            break
    raise NotImplementedError(
        f"pipeline: {what} is {type(module).__name__}, whose forward is its own (expected a Sequential; make the stages of "
        "other modules by hand, with PipelineStage)"
    )


def _pieces(module, path, marks):
    """[{name: child}, ...] of the module's stages. Children with marks below are cut, too."""
    cls, pieces = _sequential(repr(path) if path else "module", module), [OrderedDict()]
    for name, child in module._modules.items():
        full = f"{path}.{name}" if path else name
        if marks.get(full) is SplitPoint.BEGINNING:
            pieces.append(OrderedDict())
        if any(mark.startswith(f"{full}.") for mark in marks):
            first, *more = _pieces(child, full, marks)
            pieces[-1][name] = first
            pieces += [OrderedDict({name: piece}) for piece in more]
        else:
            pieces[-1][name] = child
        if marks.get(full) is SplitPoint.END:
            pieces.append(OrderedDict())
    if path and not all(pieces):
        raise ValueError(f"pipeline: split_spec leaves a part of {path!r} without modules (expected at least one)")
    return [cls(piece) for piece in pieces] if path else (cls, pieces)


def _check_apart(modules):
    """No parameter, buffer or module belongs to two stages."""
    owner = {}
    for stage, module in enumerate(modules):
        named = [*module.named_parameters(), *module.named_buffers(), *((n, m) for n, m in module.named_modules() if n)]
        for name, thing in named:
            before, where = owner.setdefault(id(thing), (stage, name))
            if before != stage:
                raise ValueError(
                    f"pipeline: {name} of stage {stage} is {where} of stage {before} (expected no sharing)"
                )


def pipeline(module, mb_args, mb_kwargs=None, split_spec=None, split_policy=None):
    """Cuts a Sequential, and Sequentials in it, into stages. split_spec: {path of a submodule: SplitPoint}. Returns a `Pipe`.

    mb_args and mb_kwargs are accepted, as in PyTorch; no shapes are needed. Other modules than Sequential, and split_policy,
    raise NotImplementedError.

    >>> from pydist import nn
    >>> from pydist.distributed.pipelining import SplitPoint, pipeline
    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> pipe = pipeline(model, (), split_spec={"2": SplitPoint.BEGINNING})
    >>> [sorted(pipe.get_stage_module(i).state_dict()) for i in range(pipe.num_stages)]
    [['0.bias', '0.weight'], ['2.bias', '2.weight']]
    """
    if split_policy is not None:
        raise NotImplementedError("pipeline: split_policy (expected split_spec)")
    marks = dict(split_spec or {})
    names = {name for name, _ in module.named_modules() if name}
    for name, point in marks.items():
        if name not in names:
            raise ValueError(f"pipeline: split_spec names {name!r} (expected a submodule: one of {sorted(names)})")
        if not isinstance(point, SplitPoint):
            raise TypeError(f"pipeline: split_spec has {point!r} for {name!r} (expected a SplitPoint)")
    cls, pieces = _pieces(module, "", marks)
    if not all(pieces):
        raise ValueError(
            f"pipeline: split_spec {marks} leaves stage {pieces.index({})} without modules (expected at least one)"
        )
    modules = [cls(piece) for piece in pieces]
    _check_apart(modules)
    return Pipe(modules)
