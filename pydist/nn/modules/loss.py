"""Classification losses."""

from pydist.nn import functional as F
from pydist.nn.modules.module import Module


class _ClassLoss(Module):
    """`weight` is a buffer [C] or None; reduction is "mean" (over the weights of the targets), "sum" or "none"."""

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
