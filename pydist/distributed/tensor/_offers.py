"""What a rule offers for a call on DTensors, and which offer is taken.

For each dimension of the mesh a rule (_rules.py) offers: all operands whole; one label cut; parts that are summands, where
the op is linear. The offer that moves the fewest bytes is taken, the first one of equals, so all ranks choose alike."""

from dataclasses import dataclass, field

from pydist.distributed.tensor._spec import cut, cuts
from pydist.distributed.tensor.placement_types import Partial, Replicate, Shard


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


def choose(call, rule, mesh):
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
