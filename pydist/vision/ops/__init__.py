"""torchvision.ops: boxes, blocks of models, stochastic depth, focal loss."""

from pydist import _C, nn
from pydist._functions.random import bernoulli
from pydist.nn import functional as F
from pydist.vision.ops import boxes, misc
from pydist.vision.ops.boxes import (
    batched_nms,
    box_area,
    box_convert,
    box_iou,
    clip_boxes_to_image,
    generalized_box_iou,
    nms,
)  # fmt: skip
from pydist.vision.ops.misc import Conv2dNormActivation, FrozenBatchNorm2d, MLP, Permute, SqueezeExcitation

__all__ = [*boxes.__all__, *misc.__all__, "StochasticDepth", "sigmoid_focal_loss", "stochastic_depth"]


def stochastic_depth(input, p, mode, training=True):
    """The input with rows set to zero ("row": each row with probability p; "batch": all rows together) and the rest
    divided by 1 - p (Huang et al., 2016)."""
    if not 0.0 <= p <= 1.0 or mode not in ("batch", "row"):
        raise ValueError(f"stochastic_depth: p is {p}, mode {mode!r} (expected 0 to 1, 'batch' or 'row')")
    if not training or p == 0.0:
        return input
    size = [input.shape[0] if mode == "row" else 1, *[1] * (input.dim() - 1)]
    kept = bernoulli(_C.full(size, 1.0 - p, dtype=input.dtype, device=input.device))
    return input * (kept / (1.0 - p) if p < 1.0 else kept)


class StochasticDepth(nn.Module):
    """stochastic_depth, in training only."""

    def __init__(self, p, mode):
        super().__init__()
        self.p, self.mode = p, mode

    def forward(self, input):
        return stochastic_depth(input, self.p, self.mode, self.training)

    def extra_repr(self):
        return f"p={self.p}, mode={self.mode}"


def sigmoid_focal_loss(inputs, targets, alpha=0.25, gamma=2, reduction="none"):
    """The binary cross entropy of logits, multiplied by (1 - p) ** gamma, so that correct predictions count less, and
    by alpha (targets of 0: 1 - alpha; negative alpha: 1) (Lin et al., 2017)."""
    p = inputs.sigmoid()
    loss = F.binary_cross_entropy_with_logits(inputs, targets, reduction="none")
    loss = loss * (1 - (p * targets + (1 - p) * (1 - targets))) ** gamma
    if alpha >= 0:
        loss = loss * (alpha * targets + (1 - alpha) * (1 - targets))
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"sigmoid_focal_loss: reduction is {reduction!r} (expected 'none', 'mean' or 'sum')")
    return loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()
