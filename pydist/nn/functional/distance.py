"""Distances, and losses made of distances."""

import math

from pydist import _C
from pydist._autocast import in_float32
from pydist._functions._register import as_floats, holds
from pydist._functions.shape import broadcast_tensors
from pydist.nn.functional.loss import reduced, reduction_of


def cosine_similarity(x1, x2, dim=1, eps=1e-8):
    """The sum of products over dim, divided by max(norm of x1, eps) * max(norm of x2, eps)."""
    x1, x2 = broadcast_tensors(*as_floats(x1, x2))
    sizes = [_C.maximum(x.norm(2, dim, keepdim=True), eps) for x in (x1, x2)]
    return ((x1 / sizes[0]) * (x2 / sizes[1])).sum(dim)


def pairwise_distance(x1, x2, p=2.0, eps=1e-6, keepdim=False):
    """The p-norm of x1 - x2 + eps over the last dimension."""
    return (x1 - x2 + eps).norm(p, -1, keepdim)


def pdist(input, p=2.0):
    """The p-norms of the differences between all pairs of rows of input[N, M], in the order (0, 1), (0, 2), ..., (1,
    2), ..."""
    if input.dim() != 2:
        raise RuntimeError(f"pdist: input has shape {tuple(input.shape)} (expected [N, M])")
    rows = _C.arange(input.shape[0], device=input.device)
    first, second = (rows.unsqueeze(1) < rows).nonzero(as_tuple=True)
    return (input[first] - input[second]).norm(p, -1)


@in_float32
def cosine_embedding_loss(input1, input2, target, margin=0, size_average=None, reduce=None, reduction="mean"):
    """1 - cosine if target is 1, max(cosine - margin, 0) if it is -1."""
    if input1.dim() != target.dim() + 1 or input2.dim() != target.dim() + 1:
        shapes = ", ".join(str(tuple(t.shape)) for t in (input1, input2, target))
        raise RuntimeError(f"cosine_embedding_loss: shapes {shapes} (expected [N, D], [N, D], [N] or [D], [D], [])")
    eps = 1e-12
    products = (input1 * input2).sum(-1)
    cosine = products / (((input1 * input1).sum(-1) + eps) * ((input2 * input2).sum(-1) + eps)).sqrt()
    each = _C.where(target == 1, 1 - cosine, _C.where(target == -1, (cosine - margin).clamp(0), 0.0))
    return reduced(each, reduction_of(size_average, reduce, reduction))


@in_float32
def hinge_embedding_loss(input, target, margin=1.0, size_average=None, reduce=None, reduction="mean"):
    """input if target is 1, max(margin - input, 0) if it is -1."""
    each = _C.where(target == -1, (margin - input).clamp(0), 0.0) + _C.where(target == 1, input, 0.0)
    return reduced(each, reduction_of(size_average, reduce, reduction))


@in_float32
def margin_ranking_loss(input1, input2, target, margin=0, size_average=None, reduce=None, reduction="mean"):
    """max(-target * (input1 - input2) + margin, 0)."""
    if not input1.dim() == input2.dim() == target.dim():
        shapes = ", ".join(str(tuple(t.shape)) for t in (input1, input2, target))
        raise RuntimeError(f"margin_ranking_loss: shapes {shapes} (expected the same number of dimensions)")
    each = (-target * (input1 - input2) + margin).clamp(0)
    return reduced(each, reduction_of(size_average, reduce, reduction))


@in_float32
def triplet_margin_loss(
    anchor, positive, negative, margin=1.0, p=2, eps=1e-6, swap=False, size_average=None, reduce=None, reduction="mean"
):
    """max(d(anchor, positive) - d(anchor, negative) + margin, 0), where d is pairwise_distance. swap: use the smaller
    of d(anchor, negative) and d(positive, negative)."""
    reduction = reduction_of(size_average, reduce, reduction)

    def distance(a, b):
        return pairwise_distance(a, b, p, eps)

    return triplet_margin_with_distance_loss(
        anchor, positive, negative, distance_function=distance, margin=margin, swap=swap, reduction=reduction
    )


def triplet_margin_with_distance_loss(
    anchor, positive, negative, *, distance_function=None, margin=1.0, swap=False, reduction="mean"
):
    """triplet_margin_loss with the distance `distance_function(a, b)`; None: pairwise_distance."""
    if margin <= 0:
        raise ValueError(f"triplet_margin_with_distance_loss: margin must be greater than 0, got {margin}")
    reduction = reduction_of(None, None, reduction)
    distance = pairwise_distance if distance_function is None else distance_function
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = _C.minimum(far, distance(positive, negative))
    return reduced((near - far + margin).clamp(0), reduction)


@in_float32
def soft_margin_loss(input, target, size_average=None, reduce=None, reduction="mean"):
    """log(1 + exp(-target * input)) for targets 1 and -1."""
    return reduced(_C.softplus(-target * input, 1.0, math.inf), reduction_of(size_average, reduce, reduction))


def multilabel_soft_margin_loss(input, target, weight=None, size_average=None, reduce=None, reduction="mean"):
    """The mean over the classes (last dimension) of the binary cross entropies of sigmoid(input)."""
    each = -(target * _C.logsigmoid(input) + (1 - target) * _C.logsigmoid(-input))
    each = each if weight is None else each * weight
    return reduced(each.sum(-1) / input.shape[-1], reduction_of(size_average, reduce, reduction))


@in_float32
def multi_margin_loss(input, target, p=1, margin=1.0, weight=None, size_average=None, reduce=None, reduction="mean"):
    """The mean over all classes i except the target t of max(margin - input[t] + input[i], 0) ** p, times weight[t]."""
    if p not in (1, 2):
        raise ValueError("multi_margin_loss: only p == 1 and p == 2 supported, got {p}")
    scores, labels = input.reshape(-1, input.shape[-1]), target.reshape(-1, 1)
    each = _C.relu(margin - scores.gather(1, labels) + scores) ** p
    each = each if weight is None else each * weight[labels]
    each = each.masked_fill(_C.arange(scores.shape[1], device=scores.device) == labels, 0.0).sum(1) / scores.shape[1]
    return reduced(each.reshape(target.shape), reduction_of(size_average, reduce, reduction))


@in_float32
def multilabel_margin_loss(input, target, size_average=None, reduce=None, reduction="mean"):
    """The mean over pairs of a target t (those of target[..., C] before the first -1) and a class i that is not a
    target of max(1 - (input[t] - input[i]), 0)."""
    if input.shape != target.shape or input.dim() not in (1, 2):
        raise RuntimeError(
            f"multilabel_margin_loss: shapes {tuple(input.shape)}, {tuple(target.shape)} (expected equal, [C] or [N, C])"
        )
    scores, labels = input.reshape(-1, input.shape[-1]), target.reshape(-1, input.shape[-1])
    given = (labels < 0).long().cumsum(1) == 0
    places = labels.clamp(0)
    chosen = _C.zeros(*scores.shape, dtype=_C.int64, device=scores.device).scatter_add_(1, places, given.long()) > 0
    pairs = _C.relu(1 - (scores.gather(1, places).unsqueeze(2) - scores.unsqueeze(1)))
    pairs = pairs.masked_fill(~(given.unsqueeze(2) & ~chosen.unsqueeze(1)), 0.0)
    each = pairs.sum((1, 2)) / scores.shape[1]
    return reduced(each.reshape(input.shape[:-1]), reduction_of(size_average, reduce, reduction))


@in_float32
def poisson_nll_loss(
    input, target, log_input=True, full=False, size_average=None, eps=1e-8, reduce=None, reduction="mean"
):
    """exp(input) - target * input; with log_input=False: input - target * log(input + eps). full adds Stirling's
    approximation of log(target!) for targets > 1."""
    reduction = reduction_of(size_average, reduce, reduction)
    each = input.exp() - target * input if log_input else input - target * (input + eps).log()
    if full:
        safe = target.clamp(1)
        rest = safe * safe.log() - safe + 0.5 * (2 * math.pi * safe).log()
        each = each + _C.where(target > 1, rest, 0.0)
    return reduced(each, reduction)


def gaussian_nll_loss(input, target, var, full=False, eps=1e-6, reduction="mean"):
    """(log(v) + (input - target) ** 2 / v) / 2 with v = max(var, eps); full adds log(2 pi) / 2."""
    reduction = reduction_of(None, None, reduction)
    if not isinstance(var, _C.Tensor):
        var = _C.full((), float(var), dtype=input.dtype, device=input.device).expand(*input.shape)
    if var.shape != input.shape:
        if input.shape[:-1] == var.shape:
            var = var.unsqueeze(-1)
        elif input.shape[:-1] != var.shape[:-1] or var.shape[-1] != 1:
            raise ValueError(
                "gaussian_nll_loss: var is of incorrect size (expected input's shape, one size 1 at the end, or no "
                "last dim)"
            )
    if not holds((var < 0).logical_not()):
        raise ValueError("gaussian_nll_loss: var has negative entry/entries (expected 0 or more)")
    var = (
        _C.where(var.detach() < eps, eps, var)
        if not var.requires_grad
        else var + (var.detach().clamp(eps) - var.detach())
    )
    each = 0.5 * (var.log() + (input - target) ** 2 / var)
    return reduced(each + 0.5 * math.log(2 * math.pi) if full else each, reduction)
