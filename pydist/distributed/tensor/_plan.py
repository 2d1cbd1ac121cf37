"""Plans of ops on DTensors: how each operand is to lie, and how the results will. The engine asks for a plan once for each
op, attributes and Specs, and keeps it (csrc/parallel/spread.h)."""

import inspect
import os
import sys
import threading
import warnings

from pydist import _C
from pydist.distributed.tensor._composed import COMPOSED
from pydist.distributed.tensor._moves import move_to
from pydist.distributed.tensor._offers import choose
from pydist.distributed.tensor._rule import Call, each
from pydist.distributed.tensor._rules import RULES
from pydist.distributed.tensor._spec import spec_of
from pydist.distributed.tensor.placement_types import Replicate

_PACKAGE = os.path.dirname(_C.__file__) + os.sep
_warned = set()
custom = {}  # what register_sharding has added: name -> function(call), which returns a Rule with `offers`


class _Modes(threading.local):
    implicit = False  # plain tensors among DTensors are the same on all ranks
    losses = False  # so are those of losses


modes = _Modes()


def _is_own(code):
    """Whether code is the package's, examples aside."""
    name = code.co_filename
    return name.startswith(_PACKAGE) and os.sep + "examples" + os.sep not in name


def _user_line():
    """The user's line."""
    frame = sys._getframe(1)
    while frame is not None and _is_own(frame.f_code):
        frame = frame.f_back
    return "?" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _has(values, t):
    return any(v is t or (isinstance(v, (list, tuple)) and any(u is t for u in v)) for v in values)


def _is_users(t):
    """Whether a plain tensor comes from the program: it is an argument of the function of the package that the program
    called, or of a layer, or belongs to a layer. Other ones the package has made, alike on all ranks."""
    frame, given = sys._getframe(1), None
    while frame is not None and _is_own(frame.f_code):
        if not frame.f_code.co_filename.startswith(os.path.dirname(__file__) + os.sep):
            names, more, named, values = inspect.getargvalues(frame)
            given = [values.get(name) for name in names]
            given += [*values.get(more, ()), *values.get(named, {}).values()]
            layer = getattr(given[0], "_parameters", None) if given else None
            if layer is not None and (_has(given, t) or _has([*layer.values(), *given[0]._buffers.values()], t)):
                return True
        frame = frame.f_back
    return given is None or _has(given, t)


def _mesh_of(name, inputs):
    specs = [spec for t in inputs if t is not None and (spec := _C.spread_of(t)) is not None]
    for spec in specs[1:]:
        if spec.mesh != specs[0].mesh:
            raise RuntimeError(
                f"{name}: got DTensors on two meshes, {specs[0].mesh!r} and {spec.mesh!r} (expected one; redistribute "
                "does not change the mesh)"
            )
    return specs[0].mesh


def _specs_of(name, inputs, mesh):
    """The Spec of each input; a plain tensor without dimensions counts as the same on all ranks. And whether others were
    taken so."""
    specs, taken = [], False
    for i, t in enumerate(inputs):
        spec = None if t is None else _C.spread_of(t)
        if t is not None and spec is None:
            same = modes.implicit or (modes.losses and name in ("cross_entropy", "nll_loss"))
            if t.dim() and not same and (t.requires_grad or _is_users(t)):
                raise RuntimeError(
                    f"{name}: got mixed torch.Tensor and DTensor: input {i} is a plain tensor of shape {list(t.shape)} "
                    "(expected DTensors, or `with implicit_replication():` if it is the same on all ranks)"
                )
            taken = taken or t.dim() > 0
            spec = spec_of(mesh, (Replicate(),) * mesh.ndim, tuple(t.shape))
        specs.append(spec)
    return tuple(specs), taken


def _gathered(name, inputs, attrs, raw, into, wants):
    """An op without a rule: on whole operands, on each rank."""
    mesh = _mesh_of(name, inputs)
    whole = tuple(t if t is None or _C.spread_of(t) is None else t.full_tensor() for t in inputs)
    made = _C.op_apply(name, whole, raw)
    for t in made:  # they are new
        _C.set_spread(t, spec_of(mesh, (Replicate(),) * mesh.ndim, tuple(t.shape)))
    return made


def _outside(name, inputs, attrs, raw, into, wants):
    """What a rank outside the mesh has of the results: no elements."""
    if into is not None:
        return (into,)
    mesh = _mesh_of(name, inputs)
    shapes = [None if t is None else t.shape if _C.spread_of(t) is None else _C.spread_of(t).shape for t in inputs]
    metas = tuple(t if t is None else _C.empty(tuple(s), dtype=t.dtype, device="meta")
                  for t, s in zip(inputs, shapes, strict=True))  # fmt: skip
    made, device = [], next(t.device for t in inputs if t is not None)
    for t in _results(name, metas, raw):
        spec = spec_of(mesh, (Replicate(),) * mesh.ndim, tuple(t.shape))
        made.append(_C.empty(spec.local_shape(), dtype=t.dtype, device=device))
        _C.set_spread(made[-1], spec)
    return tuple(made)


def _out_of_place(name, inputs, attrs, raw, into, wants):
    return _C.op_apply(name, inputs, raw)


def _warn(name):
    if os.environ.get("PYDIST_DTENSOR") == "strict":
        raise NotImplementedError(f"{name}: there is no rule for DTensors, and PYDIST_DTENSOR is strict (expected an op "
                                  "with a rule, or full_tensor() before)")  # fmt: skip
    if name not in _warned:
        _warned.add(name)
        warnings.warn(
            f"{name} has no rule for DTensors: its operands are gathered on each rank, at {_user_line()}", stacklevel=4
        )


def _moves(call, chosen, mesh):
    """A Move for each input, and the Specs of the results."""
    moves = []
    outs = [tuple(offer.outs[k] for offer in chosen) for k in range(len(call.outs))]
    for i, spec in enumerate(call.specs):
        if spec is None:
            moves.append(None)
            continue
        target = tuple(offer.ins[i] for offer in chosen)
        shared = sum(1 << m for m in range(mesh.ndim) if mesh.size(m) > 1 and target[m].is_replicate()
                     and any(not placements[m].is_replicate() for placements in outs))  # fmt: skip
        stays = target == spec.placements and (not (shared or spec.shared) or (i == 0 and call.into is not None))
        moves.append(None if stays else move_to(spec, target, shared)[0])
    return tuple(moves), tuple(spec_of(mesh, p, tuple(t.shape)) for p, t in zip(outs, call.outs, strict=True))


def _results(name, metas, raw):
    """The whole results, on meta; () if their shapes depend on values."""
    try:
        return _C.op_apply(name, metas, raw)
    except NotImplementedError:
        return ()


def plan(name, inputs, attrs, raw, into, wants):
    """The plan of a call, as _C.set_spread_planner says."""
    if into is not None and (not inputs or into is not inputs[0]):
        return _out_of_place, (), (), None, None, False
    mesh = _mesh_of(name, inputs)
    if mesh.get_coordinate() is None:
        return _outside, (), (), None, None, True
    specs, taken = _specs_of(name, inputs, mesh)
    if into is not None and _C.spread_of(into) is None:
        raise RuntimeError(
            f"{name}_: got mixed torch.Tensor and DTensor: a plain tensor cannot take the result of DTensors"
        )
    call = Call(name, inputs, attrs, raw, into, wants, specs, tuple(s and s.shape for s in specs),
                tuple(t if t is None else t.dtype for t in inputs))  # fmt: skip
    composed = None if name in custom else COMPOSED.get(name)
    function = composed and composed(call)
    call.inputs = ()  # the engine keeps what is made of the call
    if function:
        return function, (), (), None, None, not taken
    metas = tuple(
        t if t is None else _C.empty(s.shape, dtype=t.dtype, device="meta") for t, s in zip(inputs, specs, strict=True)
    )
    if name in custom or name in RULES or _C.op_is_each(name, metas, raw):
        call.outs = (metas[0],) if into is not None else _results(name, metas, raw)
    rule = (custom.get(name) or RULES.get(name, each))(call) if call.outs else None
    if rule is None:
        _warn(name)
        return _gathered, (), (), None, None, not taken
    chosen = choose(call, rule, mesh)
    moves, outs = _moves(call, chosen, mesh)
    changed = None
    if rule.local:
        shapes = [spec.local_shape() for spec in outs]
        changed = _C.op_attrs(name, raw, rule.local(shapes))
    return None, moves, outs, changed, rule.runs, not taken
