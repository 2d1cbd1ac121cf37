"""Cross entropy and embedding where each rank of a group has some of the classes, or rows: one op each, on plain
tensors."""

from pydist import _C
from pydist.autograd.function import Function, once_differentiable
from pydist.distributed._group.process_group import for_call

__all__ = ["vocab_cross_entropy", "vocab_embedding"]


class _Loss(Function):
    @staticmethod
    def forward(ctx, group, options, logits, target, weight):
        loss, stats, total = _C.vocab_cross_entropy(group, (logits, target, weight, *options))
        ctx.save_for_backward(logits, target, weight, stats)
        ctx.rest = group, options, total
        return loss

    @staticmethod
    def backward(ctx, grad):
        logits, target, weight, stats = ctx.saved_tensors
        return None, None, _Gradient.apply(*ctx.rest, logits, target, weight, stats, grad), None, None


class _Gradient(Function):
    """The gradient of the logits, which can be differentiated once more."""

    @staticmethod
    def forward(ctx, group, options, total, logits, target, weight, stats, grad):
        ctx.save_for_backward(logits, target, weight, stats, grad)
        ctx.rest = group, options, total
        return _C.vocab_cross_entropy_grad((logits, target, weight, *options), stats, total, grad)

    @staticmethod
    @once_differentiable
    def backward(ctx, v):
        """With p the probabilities, Q the weights of -log p in a row's loss and S their sum over all classes, the
        gradient is g (S p - Q) for a row. p and S p - Q depend on all columns, so two sums over them are exchanged."""
        group, (first, classes, ignored, reduction, smoothing), total = ctx.rest
        logits, target, weight, stats, grad = ctx.saved_tensors
        wide = stats.dtype
        v, g = v.to(wide), (grad.to(wide) / total if reduction == "mean" else grad.to(wide))
        weight = _C.ones(classes, dtype=wide, device=v.device) if weight is None else weight.to(wide)
        counts = target != ignored
        hit = _C.where(counts, target, 0)
        own = counts & (hit >= first) & (hit < first + v.size(1))
        keep = _C.where(counts, weight[hit], 0) * (1 - smoothing)
        share = counts.to(wide) * (smoothing / classes)
        p = (logits.to(wide) - stats[:, :1]).exp() * stats[:, 1:]
        if v.size(1):
            at = _C.where(own, hit - first, 0)
            hits = _C.where(own, v.gather(1, at.unsqueeze(1)).squeeze(1), 0) * keep
        else:
            hits = keep * 0
        weighted = (weight[first : first + v.size(1)] * v).sum(1) * share
        sums = _C.stack([(p * v).sum(1), hits + weighted])
        group.all_reduce(sums)
        whole = keep + share * weight.sum()
        rows = whole * sums[0] - sums[1]  # the derivative by g
        by = rows if reduction == "none" else rows.sum()
        of_logits = (g * whole).unsqueeze(1) * p * (v - sums[0].unsqueeze(1))
        by = (by / total if reduction == "mean" else by).to(grad.dtype)
        return None, None, None, of_logits.to(logits.dtype), None, None, None, by


def vocab_cross_entropy(
    logits, target, first, size, group=None, weight=None, ignore_index=-100, reduction="mean", label_smoothing=0.0
):
    """nn.functional.cross_entropy of logits [N, size], of which this rank has columns [first, first + logits.size(1)).

    The ranks of `group` have the columns between them, in their order; a rank may have none. target [N] (int64, classes
    of the whole) and weight [size] are the same on all ranks, and so is the result, bit for bit. The result counts once:
    all ranks call backward with the same gradient, which needs no message. It can be differentiated twice.

    A target that is out of range raises IndexError, targets, weights or options that differ between ranks, and columns
    that do not follow each other raise ValueError, all on all ranks. Other numbers of rows raise CommMismatch. Tensors on
    a GPU raise NotImplementedError.

    Cost: one all_gather of 3 numbers for each row, 4 with label smoothing.

    >>> import pydist
    >>> from pydist.distributed.tensor._vocab import vocab_cross_entropy
    >>> vocab_cross_entropy(pydist.zeros(2, 4), pydist.tensor([0, 3]), 0, 4)  # a world of one
    tensor(1.3863)
    """
    options = int(first), int(size), int(ignore_index), reduction, float(label_smoothing)
    return _Loss.apply(for_call(group), options, logits, target, weight)


def vocab_embedding(ids, weight, first, size, padding_idx=None):
    """nn.functional.embedding(ids, whole, padding_idx) of a table of `size` rows, of which `weight` has those from `first`
    on: zeros at ids of other rows, so the embedding is the sum over the ranks. The gradient of the whole's embedding is
    that of each rank's summand. An id outside of the whole raises IndexError.

    >>> import pydist
    >>> from pydist.distributed.tensor._vocab import vocab_embedding
    >>> vocab_embedding(pydist.tensor([1, 4]), pydist.ones(2, 3), 3, 5)
    tensor([[0., 0., 0.],
            [1., 1., 1.]])
    """
    return _C.embedding_part(weight, ids, int(first), int(size), padding_idx)
