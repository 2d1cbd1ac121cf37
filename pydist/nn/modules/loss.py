"""Losses. Their `reduction` is "mean", "sum" or "none"."""

from pydist.nn import functional as F
from pydist.nn.modules.module import Module


class _ClassLoss(Module):
    """`weight` is a buffer [C] or None. reduction is "mean" (weighted by the targets' weights), "sum" or "none"."""

    def __init__(self, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean"):
        super().__init__()
        self.register_buffer("weight", weight)
        self.ignore_index = ignore_index
        self.reduction = F.reduction_of(size_average, reduce, reduction)


class NLLLoss(_ClassLoss):
    """loss = -w[t] * x[t] for log-probabilities x[N, C, ...] and labels t[N, ...] (int64)."""

    def forward(self, input, target):
        return F.nll_loss(input, target, self.weight, ignore_index=self.ignore_index, reduction=self.reduction)


class CrossEntropyLoss(_ClassLoss):
    """loss = -w[t] * log_softmax(x)[t] for scores x[N, C, ...] and labels t[N, ...] (int64).

    >>> import pydist
    >>> loss = pydist.nn.CrossEntropyLoss()(pydist.zeros(2, 4), pydist.tensor([1, 3]))
    >>> round(loss.item(), 4)  # log(4)
    1.3863
    """

    def __init__(
        self, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean", label_smoothing=0.0
    ):
        super().__init__(weight, size_average, ignore_index, reduce, reduction)
        self.label_smoothing = label_smoothing

    def forward(self, input, target):
        return F.cross_entropy(
            input,
            target,
            self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )


class _Loss(Module):
    def __init__(self, size_average=None, reduce=None, reduction="mean"):
        super().__init__()
        self.reduction = F.reduction_of(size_average, reduce, reduction)


class MSELoss(_Loss):
    """loss = (x - t)^2, elementwise."""

    def forward(self, input, target):
        return F.mse_loss(input, target, reduction=self.reduction)


class L1Loss(_Loss):
    """loss = |x - t|, elementwise."""

    def forward(self, input, target):
        return F.l1_loss(input, target, reduction=self.reduction)


class SmoothL1Loss(_Loss):
    """loss = d^2 / (2 beta) if d = |x - t| < beta, otherwise d - beta / 2, elementwise (Girshick, 2015)."""

    def __init__(self, size_average=None, reduce=None, reduction="mean", beta=1.0):
        super().__init__(size_average, reduce, reduction)
        self.beta = beta

    def forward(self, input, target):
        return F.smooth_l1_loss(input, target, reduction=self.reduction, beta=self.beta)


class HuberLoss(_Loss):
    """loss = d^2 / 2 if d = |x - t| <= delta, otherwise delta * (d - delta / 2), elementwise (Huber, 1964)."""

    def __init__(self, reduction="mean", delta=1.0):
        super().__init__(reduction=reduction)
        self.delta = delta

    def forward(self, input, target):
        return F.huber_loss(input, target, reduction=self.reduction, delta=self.delta)


class KLDivLoss(Module):
    """loss = t * (log(t) - x), elementwise, for log-probabilities x and probabilities t (log_target: their logarithms).
    reduction "batchmean": the sum divided by the number of samples."""

    def __init__(self, size_average=None, reduce=None, reduction="mean", log_target=False):
        super().__init__()
        self.reduction = reduction if reduction == "batchmean" else F.reduction_of(size_average, reduce, reduction)
        self.log_target = log_target

    def forward(self, input, target):
        return F.kl_div(input, target, reduction=self.reduction, log_target=self.log_target)


class BCELoss(_Loss):
    """loss = -w * (t * log(x) + (1 - t) * log(1 - x)), elementwise, for probabilities x. The weight w, a buffer, is
    broadcast. Logarithms are at least -100, as in PyTorch."""

    def __init__(self, weight=None, size_average=None, reduce=None, reduction="mean"):
        super().__init__(size_average, reduce, reduction)
        self.register_buffer("weight", weight)

    def forward(self, input, target):
        return F.binary_cross_entropy(input, target, self.weight, reduction=self.reduction)


class BCEWithLogitsLoss(_Loss):
    """loss = -w * (pos_weight * t * log(sigmoid(x)) + (1 - t) * log(1 - sigmoid(x))), elementwise, for scores x. w and
    pos_weight are buffers and are broadcast."""

    def __init__(self, weight=None, size_average=None, reduce=None, reduction="mean", pos_weight=None):
        super().__init__(size_average, reduce, reduction)
        self.register_buffer("weight", weight)
        self.register_buffer("pos_weight", pos_weight)

    def forward(self, input, target):
        return F.binary_cross_entropy_with_logits(
            input, target, self.weight, reduction=self.reduction, pos_weight=self.pos_weight
        )
