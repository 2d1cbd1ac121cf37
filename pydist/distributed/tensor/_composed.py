"""Ops on DTensors that are made of other ops: for some placements one op on the parts is not enough. Each function here
gets a Call, and returns the function that computes the results (_plan.py), or None where the op's rule will do."""

import math
import struct

from pydist import _C
from pydist.distributed.tensor._moves import move_to
from pydist.distributed.tensor.placement_types import Partial, Replicate, Shard


def _cut_dims(spec):
    """The dimensions of the tensor that are cut."""
    return {place.dim for d, place in enumerate(spec.placements) if isinstance(place, Shard) and spec.mesh.size(d) > 1}


def _along(spec, dim):
    """The dimensions of the mesh that cut dimension `dim`."""
    return [d for d, place in enumerate(spec.placements)
            if isinstance(place, Shard) and place.dim == dim and spec.mesh.size(d) > 1]  # fmt: skip


def _mean(call):
    """By the sum, where parts of different sizes have to count as what they are."""
    dims, spec = call.dims(), call.specs[0]
    if all(
        spec.shape[d] and spec.shape[d] % math.prod(map(spec.mesh.size, _along(spec, d))) == 0
        for d in _cut_dims(spec) & dims
    ):
        return None
    count = math.prod(call.shapes[0][d] for d in dims)

    def mean(name, inputs, attrs, raw, into, wants):
        total = _C.sum(inputs[0], attrs["dim"], attrs["keepdim"], dtype=attrs["dtype"])
        return total / count if count else total / 0.0

    return mean


def _fill(call):
    """Of summands: the value is there once."""
    if not call.specs[0].combined:
        return None

    def fill(name, inputs, attrs, raw, into, wants):
        spec = call.specs[0].everywhere
        return _C.as_part(_C.full(spec.local_shape(), attrs["value"], dtype=into.dtype, device=into.device), spec)

    return fill


def _dropout(call):
    """By the mask of the whole, so that each element is dropped that would be on one rank."""
    if not call.attrs["training"] or not 0 < call.attrs["p"] <= 1:
        return None

    shard = call.specs[0].mesh._first_rank  # all ranks of the mesh draw as its first one

    def dropout(name, inputs, attrs, raw, into, wants):
        x = inputs[0]
        spec = _C.spread_of(x).gradient()
        ones = _C.ones((), dtype=x.dtype, device=x.device).expand(spec.shape)
        key = struct.pack("d", attrs["p"]) + _C._rng_next(shard)
        (mask,) = _C.op_apply("dropout_mask", (ones,), key)
        return x * _C.as_part(spec.part_of(mask), spec)

    return dropout


# ---- attention


def _attention(call):
    """With dropout, of the scores."""
    if not call.attrs["dropout_p"] or len(call.shapes[0]) < 2:
        return None

    def attention(name, inputs, attrs, raw, into, wants):
        q, k, v, mask = inputs
        if attrs["enable_gqa"] and q.shape[-3] != k.shape[-3]:
            group = q.shape[-3] // k.shape[-3]
            k, v = (t.repeat_interleave(group, -3) for t in (k, v))
        scale = attrs["scale"] if attrs["scale"] is not None else 1 / math.sqrt(q.shape[-1])
        scores = _C.matmul(q, k.transpose(-1, -2)) * scale
        spec = _C.spread_of(scores).everywhere
        if attrs["is_causal"]:
            seen = _C.ones(scores.shape[-2:], dtype=_C.bool, device=q.device).tril()
            seen = _C.as_part(seen, spec.replaced(shape=tuple(seen.shape)))
            scores = scores.masked_fill(~seen, -math.inf)
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf) if mask.dtype is _C.bool else scores + mask
        return _C.matmul(_C.dropout(_C.softmax(scores, -1), attrs["dropout_p"], True), v)

    return attention


# ---- batch norm


def _batch_norm(call):
    """In training, by the mean and variance of the whole batch."""
    if not call.attrs["training"] or not _cut_dims(call.specs[0]) - {1}:
        return None

    def batch_norm(name, inputs, attrs, raw, into, wants):
        x, mean_so_far, var_so_far, weight, bias = inputs
        dims, n = [d for d in range(x.dim()) if d != 1], x.numel() // max(x.shape[1], 1)
        if n < 2:
            raise ValueError(f"batch_norm: got {n} values a channel of shape {list(x.shape)} (expected at least 2)")

        def wide(t):
            return t.view([1, -1, *[1] * (x.dim() - 2)])

        mean = x.mean(dims)
        apart = x - wide(mean)
        var = (apart * apart).mean(dims)
        if mean_so_far is not None:
            share = attrs["momentum"]
            for so_far, now in ((mean_so_far, mean), (var_so_far, var * (n / (n - 1)))):
                _update(so_far, now.detach(), share)
        y = apart * wide(_C.rsqrt(var + attrs["eps"]))
        y = y if weight is None else y * wide(weight)
        return y if bias is None else y + wide(bias)

    return batch_norm


def _update(so_far, now, share):
    if _C.spread_of(so_far) is None:
        now = now.full_tensor()
    so_far.detach().mul_(1 - share).add_(now.to(so_far.dtype), alpha=share)


# ---- embeddings and losses over a vocabulary that is cut


def _local(t, placements, shared=0):
    """This rank's part of a DTensor with these placements, plain; gradients flow back."""
    spec = _C.spread_of(t)
    return _C.spread_move(t, move_to(spec, tuple(placements), shared)[0], None)


def _whole_along(spec, dims):
    """The placements with Replicate() along these dimensions of the mesh, and where parts are summands."""
    return [Replicate() if d in dims or isinstance(p, Partial) else p for d, p in enumerate(spec.placements)]


def _embedding(call):
    """Each rank looks up what it has; the sum of the ranks' results is the whole."""
    weight, ids = call.specs
    along = _along(weight, 0)
    if len(along) != 1 or any(isinstance(p, Partial) for p in weight.placements):
        return None
    other = [d for d in range(weight.mesh.ndim) if d not in along]
    if any(not weight.placements[d].is_replicate() for d in other):
        return None

    def embedding(name, inputs, attrs, raw, into, wants):
        from pydist.distributed.tensor._vocab import vocab_embedding

        spec = _C.spread_of(inputs[0])
        places = _whole_along(ids, along)
        shared = sum(1 << d for d in other if not places[d].is_replicate())
        table = _local(inputs[0], weight.placements, shared)
        rows = _local(inputs[1], places) if _C.spread_of(inputs[1]) is not None else inputs[1]
        made = vocab_embedding(rows, table, spec.ranges()[0][0], spec.shape[0], attrs["padding_idx"])
        out = [Partial() if d in along else p for d, p in enumerate(places)]
        return _C.as_part(made, spec.replaced(tuple(out), (*call.shapes[1], spec.shape[1])))

    return embedding


def _class_loss(call):
    """The mean over rows that are cut; rows of classes that are cut."""
    logits, targets = call.specs[0], call.specs[1]
    n = len(call.shapes[0])
    classes = 0 if n == 1 else 1
    cut, along = _cut_dims(logits), _along(logits, classes)
    rows = (cut - {classes}) or _cut_dims(targets)
    spread = len(along) == 1 and call.name == "cross_entropy" and n == 2 and len(call.shapes[1]) == 1
    if not spread and not (rows and call.attrs["reduction"] == "mean"):
        return None
    return _spread_loss if spread else _mean_loss


def _mean_loss(name, inputs, attrs, raw, into, wants):
    loss = getattr(_C, name)
    x, target, weight = inputs
    more = {"label_smoothing": attrs["label_smoothing"]} if name == "cross_entropy" else {}
    total = loss(x, target, weight, ignore_index=attrs["ignore_index"], reduction="sum", **more)
    return total / _weights(target, weight, attrs["ignore_index"], x)


def _weights(target, weight, ignored, x):
    """What a mean is divided by."""
    if target.is_floating_point():
        return float(target.numel() // max(target.shape[0 if target.dim() == 1 else 1], 1))
    counted = target != ignored
    if weight is None:
        return counted.sum().to(x.dtype)
    return (weight.detach()[target.where(counted, 0)] * counted).sum()


def _spread_loss(name, inputs, attrs, raw, into, wants):
    """Each rank has some classes of each row: the ranks exchange a few numbers a row."""
    from pydist.distributed.tensor._vocab import vocab_cross_entropy

    x, target, weight = inputs
    spec = _C.spread_of(x)
    if _C.spread_of(target) is None:
        target = _C.as_part(target, spec.everywhere.replaced(shape=tuple(target.shape)))
    (along,) = _along(spec, 1)
    places = [p if d == along else Shard(0) if isinstance(p, Shard) and p.dim == 0 else Replicate()
              for d, p in enumerate(spec.placements)]  # fmt: skip
    moved = spec.replaced(tuple(places))
    rows = [Replicate() if d == along else p for d, p in enumerate(places)]
    made = vocab_cross_entropy(
        _local(x, places), _local(target, rows), moved.ranges()[1][0], spec.shape[1], spec.mesh.get_group(along),
        weight=None if weight is None else weight.full_tensor() if _C.spread_of(weight) is not None else weight,
        ignore_index=attrs["ignore_index"], reduction="none", label_smoothing=attrs["label_smoothing"],
    )  # fmt: skip
    losses = _C.as_part(made, spec.replaced(tuple(rows), (spec.shape[0],)))
    if attrs["reduction"] == "none":
        return losses
    total = losses.sum()
    return total if attrs["reduction"] == "sum" else total / _weights(target, weight, attrs["ignore_index"], x)


def _linear_loss(call):
    """By its parts: a product and a loss."""
    return _linear_then_loss


def _linear_then_loss(name, inputs, attrs, raw, into, wants):
    x, weight, target, bias, class_weight = inputs
    names = ("ignore_index", "reduction", "label_smoothing")
    return _C.cross_entropy(_C.linear(x, weight, bias), target, class_weight, **{n: attrs[n] for n in names})


COMPOSED = {
    "linear_cross_entropy": _linear_loss,
    "mean": _mean, "fill": _fill, "dropout": _dropout, "scaled_dot_product_attention": _attention,
    "batch_norm": _batch_norm, "embedding": _embedding, "cross_entropy": _class_loss, "nll_loss": _class_loss,
}  # fmt: skip
