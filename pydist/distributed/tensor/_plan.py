"""Plans of ops on DTensors: how each operand is to lie, and how the results will.

For each dimension of the mesh, the op's rule (_rules.py) offers: all operands whole; one label cut; parts that are
summands, where the op is linear. The offer that moves the fewest bytes is taken, the first one of equals, so all ranks
choose alike. The engine keeps plans by op, attributes and Specs."""

import inspect
import os
import sys
import threading
import warnings
from dataclasses import dataclass, field

from pydist import _C
from pydist.distributed.tensor._composed import COMPOSED
from pydist.distributed.tensor._moves import move_to
from pydist.distributed.tensor._rule import Call, each
from pydist.distributed.tensor._rules import RULES
from pydist.distributed.tensor._spec import cut, cuts, spec_of
from pydist.distributed.tensor.placement_types import Partial, Replicate, Shard

_PACKAGE = os.path.dirname(_C.__file__) + os.sep
_warned = set()
custom = {}  # what register_sharding has added: name -> function(call), which returns a Rule with `offers`


class _Modes(threading.local):
    implicit = False  # plain tensors among DTensors are the same on all ranks
    losses = False  # so are those of losses


modes = _Modes()


# ---- offers


@dataclass
class _Offer:
    """Placements along one dimension of the mesh. `label`: the one that is cut, or None."""

    ins: list
    outs: list
    label: object = None


@dataclass
class _Label:
    """Where a label stands: [(tensor, dimension, size, indices of the label in one of that dimension)]."""

    ins: list = field(default_factory=list)
    outs: list = field(default_factory=list)

    @property
    def places(self):
        return self.ins + self.outs

    def total(self):
        """How many indices it has; None if that is not the same everywhere."""
        totals = {size * unit for *_, size, unit in self.places}
        return totals.pop() if len(totals) == 1 else None


def _labels(call, rule):
    found = {}
    for i, labels in enumerate(rule.ins):
        for d, label in enumerate(labels or ()):
            if label is not None:
                place = i, d, call.shapes[i][d], rule.units.get((i, d), 1)
                found.setdefault(label, _Label()).ins.append(place)
    for i, labels in enumerate(rule.outs):
        for d, label in enumerate(labels or ()):
            if label in found:
                found[label].outs.append((i, d, call.outs[i].shape[d], rule.units.get(("out", d), 1)))
    return found


def _shard(dim, size, unit, total, ranks, width, now):
    """The Shard of a dimension of `size` that cuts a label of `total` indices between blocks of `width`: with blocks of
    `now`, if that is the same. None: there is none."""
    share = cut(total, ranks, 0, width)[1] if total else 0
    if share % unit:
        return None
    for block in (now, 1, width // unit if width % unit == 0 else 1, max(share // unit, 1)):
        if all(cut(size, ranks, r, block)[1] * unit == cut(total, ranks, r, width)[1] for r in range(ranks)):
            return Shard(dim, block)
    return None


def _may_be_cut(rule, label, total, kind, ranks, pieces):
    """Whether a label of `total` indices, which is in `pieces` already, may be cut for `ranks` ranks."""
    even = total and total % (ranks * pieces) == 0
    if kind == "avg" and not even:  # parts of different sizes would count as equals
        return False
    if label in rule.filled and not even:
        return pieces == 1 and total > cut(total, ranks, ranks - 1)[0]
    return True


def _block(call, i, dim, m):
    """The blocks between which operand i is cut now."""
    place = call.specs[i].placements[m]
    return place.block if isinstance(place, Shard) and place.dim == dim else 1


def _widths(call, at, m):
    """Where the label may be cut: between blocks of so many of its indices. As operands are cut now, too."""
    widths = {max(unit for *_, unit in at.places)}
    for i, d, _, unit in at.ins:
        place = call.specs[i].placements[m]
        if isinstance(place, Shard) and place.dim == d:
            widths.add(place.block * unit)
    return sorted(widths)


def _cut_offers(call, rule, m, ranks, before):
    """Offers that cut one label. `before`: in how many pieces each label is along earlier dimensions of the mesh."""
    for label, at in _labels(call, rule).items():
        total, pieces = at.total(), before.get(label, 1)
        reduced = any(label not in labels for labels in rule.outs if labels is not None)
        kind = rule.reduces.get(label) if reduced else None
        scaled = pieces if any(unit != 1 for *_, unit in at.places) else 1
        if total is None or (reduced and not kind) or total % scaled:
            continue
        if not _may_be_cut(rule, label, total, kind, ranks, pieces):
            continue
        for width in _widths(call, at, m):
            offer = _Offer(
                [Replicate()] * len(rule.ins), [Partial(kind) if kind else Replicate()] * len(rule.outs), label
            )
            for placements, places, stay in ((offer.ins, at.ins, True), (offer.outs, at.outs, call.into is not None)):
                for i, d, size, unit in places:
                    now = _block(call, i, d, m) if stay else 1
                    placements[i] = _shard(d, size // scaled, unit, total // scaled, ranks, width, now)
            for i in rule.added if kind else ():
                offer.ins[i] = Partial()
            if None not in offer.ins + offer.outs:
                yield offer


def _part_offers(call, rule, m):
    """Offers that keep summands."""
    now = [spec and spec.placements[m] for spec in call.specs]
    there = [i for i, shape in enumerate(call.shapes) if shape is not None]
    parts = [i for i in there if isinstance(now[i], Partial)]
    if not parts or not rule.linear:
        return
    place, outs = now[parts[0]], len(rule.outs)
    numbers = [name for name in ("input", "other", "end", "weight") if call.attrs.get(name) is not None]
    if rule.linear == 1 or (rule.linear == 2 and place.reduce_op in ("sum", "avg") and not numbers):
        yield _Offer([place] * len(rule.ins), [place] * outs)
    elif (
        rule.linear in (3, 4)
        and place.reduce_op in ("sum", "avg")
        and len(parts) == 1
        and (rule.linear == 3 or parts == [0])
    ):
        yield _Offer([place if i == parts[0] else Replicate() for i in range(len(rule.ins))], [place] * outs)


def _cost(call, i, now, wanted, ranks):
    """The bytes that a rank sends to bring operand i from one placement to another. Parts of a sum that are cut count as
    if they were made whole: what comes next would have to gather them."""
    if now is wanted or wanted is None or now is None or isinstance(now, Replicate):
        return 0
    whole = call.dtypes[i].itemsize
    for n in call.shapes[i]:
        whole *= n
    if isinstance(wanted, Shard) and isinstance(now, Shard):
        if now.dim == wanted.dim:
            size = call.shapes[i][now.dim]
            if cuts(size, ranks, now.block) == cuts(size, ranks, wanted.block):
                return 0
        return whole * (ranks - 1) / ranks / ranks
    return whole * (ranks - 1) / ranks * (2 if isinstance(now, Partial) else 1)


def _choose(call, rule, mesh):
    """For each dimension of the mesh, the placements of inputs and of results."""
    chosen, before = [], {}
    for m in range(mesh.ndim):
        ranks = mesh.size(m)
        if rule.offers is None:
            offers = [_Offer([Replicate()] * len(rule.ins), [Replicate()] * len(rule.outs))]
            offers += _cut_offers(call, rule, m, ranks, before)
            offers += _part_offers(call, rule, m)
        else:
            offers = [_Offer(*offer) for offer in rule.offers]
        now = [spec and spec.placements[m] for spec in call.specs]
        if call.into is not None:
            offers = [o for o in offers if o.ins[0] is now[0] and o.outs[0] is now[0]]
        if not offers:
            raise RuntimeError(
                f"{call.name}_: this rank's part of a DTensor with {call.specs[0].placements} would have to move, and an "
                "in-place op keeps placements (expected redistribute() before, or the op that is not in place)"
            )
        best = min(offers, key=lambda o: sum(_cost(call, i, now[i], p, ranks) for i, p in enumerate(o.ins)))
        if best.label is not None:
            before[best.label] = before.get(best.label, 1) * ranks
        chosen.append(best)
    return chosen


# ---- plans


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


def _results(call, metas):
    """The whole results, on meta; () if their shapes depend on values."""
    try:
        return _C.op_apply(call.name, metas, call.raw)
    except NotImplementedError:
        return ()


def plan(name, inputs, attrs, raw, into, wants):
    """The plan of a call, as _C.set_spread_planner says."""
    if into is not None and (not inputs or into is not inputs[0]):
        return _out_of_place, (), (), None, None, False
    mesh = _mesh_of(name, inputs)
    specs, taken = _specs_of(name, inputs, mesh)
    if into is not None and _C.spread_of(into) is None:
        raise RuntimeError(
            f"{name}_: got mixed torch.Tensor and DTensor: a plain tensor cannot take the result of DTensors"
        )
    call = Call(name, inputs, attrs, raw, into, wants, specs, tuple(s and s.shape for s in specs),
                tuple(t if t is None else t.dtype for t in inputs))  # fmt: skip
    composed = None if name in custom else COMPOSED.get(name)
    function = composed and composed(call)
    if function:
        return function, (), (), None, None, not taken
    metas = tuple(
        t if t is None else _C.empty(s.shape, dtype=t.dtype, device="meta") for t, s in zip(inputs, specs, strict=True)
    )
    if name in custom or name in RULES or _C.op_is_each(name, metas, raw):
        call.outs = (metas[0],) if into is not None else _results(call, metas)
    rule = (custom.get(name) or RULES.get(name, each))(call) if call.outs else None
    if rule is None:
        _warn(name)
        return _gathered, (), (), None, None, not taken
    chosen = _choose(call, rule, mesh)
    moves, outs = _moves(call, chosen, mesh)
    changed = None
    if rule.local:
        shapes = [spec.local_shape() for spec in outs]
        changed = _C.op_attrs(name, raw, rule.local(shapes))
    return None, moves, outs, changed, rule.runs, not taken
