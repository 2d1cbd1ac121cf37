"""Losses."""

from warnings import warn

from pydist import _C


def reduction_of(size_average, reduce, reduction):
    """The reduction that the losses' two deprecated arguments mean; without them `reduction`."""
    if size_average is not None or reduce is not None:
        reduction = "none" if reduce is False else "sum" if size_average is False else "mean"
    if reduction not in ("none", "mean", "sum"):
        raise _C.ArgumentError(f"{reduction} is not a valid value for reduction (expected 'none', 'mean' or 'sum')")
    return reduction


def _indices(target):
    """Class indices as the kernels take them. PyTorch takes bytes, too."""
    return target.to(_C.int64) if target.dtype is _C.uint8 else target


def nll_loss(input, target, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean"):
    """-weight[target] * input[target] for log-probabilities input[N, C, ...]; see nn.NLLLoss."""
    return _C.nll_loss(input, _indices(target), weight, ignore_index, reduction_of(size_average, reduce, reduction))


def cross_entropy(
    input,
    target,
    weight=None,
    size_average=None,
    ignore_index=-100,
    reduce=None,
    reduction="mean",
    label_smoothing=0.0,
):
    """nll_loss(log_softmax(input, 1), target), in one pass. See nn.CrossEntropyLoss. A floating target has input's
    shape and holds the probability of each class."""
    reduction = reduction_of(size_average, reduce, reduction)
    if target.is_floating_point():
        return _cross_entropy_of_probabilities(input, target, weight, ignore_index, reduction, label_smoothing)
    return _C.cross_entropy(input, _indices(target), weight, ignore_index, reduction, label_smoothing)


def linear_cross_entropy(
    input,
    linear_weight,
    target,
    *,
    linear_bias=None,
    weight=None,
    reduction="mean",
    ignore_index=None,
    label_smoothing=0.0,
    options=None,
):
    """cross_entropy(linear(input, linear_weight, linear_bias), target, weight, ...) for input [N, D], linear_weight [C,
    D] and target [N] of classes, without all N x C logits in memory.

    Rows go through in chunks. Each chunk computes its part of all gradients and overwrites its logits with them. So the
    time is that of the two functions, and the memory that of one chunk (at most 64 MiB, or options.batch_chunk_size
    rows). For reduction="none", for probabilities as target and for linear_weight with more dimensions the two
    functions run instead. Under autocast the products use its dtype; the loss and the gradient of a float32
    linear_weight are in float32.

    >>> import pydist
    >>> x, w, t = pydist.eye(2), pydist.tensor([[2.0, 0.0], [0.0, 2.0]], requires_grad=True), pydist.tensor([0, 1])
    >>> loss = pydist.nn.functional.linear_cross_entropy(x, w, t)
    >>> loss.backward()
    >>> round(loss.item(), 4), [round(v, 4) for v in w.grad[0].tolist()]
    (0.1269, [-0.0596, 0.0596])
    """
    classes, out_features = linear_weight.shape[0] if linear_weight.dim() else 0, tuple(linear_weight.shape[1:-1])
    if input.dim() not in (1, 2) or linear_weight.dim() < 2 or (out_features and input.dim() == 1):
        got = f"input {tuple(input.shape)}, linear_weight {tuple(linear_weight.shape)}"
        raise _C.ShapeError(f"linear_cross_entropy: {got} (expected [N, D] and [C, ..., D])")
    of_classes = target.shape != (*input.shape[:-1], classes, *out_features)
    if not of_classes and ignore_index is not None:
        raise RuntimeError("ignore_index cannot be specified when target contains probabilities")
    ignored = -100 if ignore_index is None else ignore_index
    if of_classes and not out_features and input.dim() == 2 and reduction != "none":
        chunk = getattr(options, "batch_chunk_size", None) or 0
        autocast = _C.autocast_state()
        dtype = autocast[0] if autocast else None
        return _C.linear_cross_entropy(
            input, linear_weight, target, linear_bias, weight, ignored, reduction, label_smoothing, chunk, dtype
        )
    bias = None if linear_bias is None else linear_bias.flatten()
    logits = _C.linear(input, linear_weight.flatten(0, -2), bias)
    logits = logits.reshape(*input.shape[:-1], classes, *out_features)
    return cross_entropy(logits, target, weight, None, ignored, None, reduction, label_smoothing)


def _cross_entropy_of_probabilities(input, target, weight, ignore_index, reduction, label_smoothing):
    if input.shape != target.shape or input.dim() < 1:
        shapes = f"input {tuple(input.shape)}, target {tuple(target.shape)}"
        raise _C.ShapeError(f"cross_entropy: {shapes} (expected equal shapes, or labels in int64)")
    if ignore_index >= 0:
        raise RuntimeError("ignore_index is not supported for floating point target")
    dim = 0 if input.dim() == 1 else 1
    count = input.shape[dim]
    if label_smoothing:
        target = target * (1 - label_smoothing) + label_smoothing / count
    each = _C.log_softmax(input, dim) * target
    if weight is not None:
        each = each * weight.reshape([-1 if d == dim else 1 for d in range(input.dim())])
    each = -each.sum(dim)
    return each.sum() / (input.numel() // max(count, 1)) if reduction == "mean" else reduced(each, reduction)


def _pairwise(name, input, target):
    if input.shape != target.shape:
        text = f"{name}: input has shape {tuple(input.shape)}, target {tuple(target.shape)}; pydist broadcasts them"
        warn(f"{text}, which is rarely intended (expected equal shapes)", stacklevel=3)


def _weighted(each, weight, reduction):
    """The reduction of terms that have weights: "mean" divides by the sum of the weights."""
    if weight is None or reduction == "none":
        return each if weight is None else each * weight
    total = (each * weight).sum()
    return total if reduction == "sum" else total / weight.expand(*each.shape).sum()


def mse_loss(input, target, size_average=None, reduce=None, reduction="mean", weight=None):
    """(input - target) ** 2: all terms, their mean or their sum."""
    reduction = reduction_of(size_average, reduce, reduction)
    _pairwise("mse_loss", input, target)
    if weight is not None:
        return _weighted(_C.mse_loss(input, target, "none"), weight, reduction)
    return _C.mse_loss(input, target, reduction)


def l1_loss(input, target, size_average=None, reduce=None, reduction="mean", weight=None):
    """|input - target|: all terms, their mean or their sum."""
    reduction = reduction_of(size_average, reduce, reduction)
    _pairwise("l1_loss", input, target)
    if not (input.is_floating_point() or target.is_floating_point()):
        return reduced((input - target).abs(), reduction)
    if weight is not None:
        return _weighted(_C.l1_loss(input, target, "none"), weight, reduction)
    return _C.l1_loss(input, target, reduction)


def smooth_l1_loss(input, target, size_average=None, reduce=None, reduction="mean", beta=1.0):
    """d ** 2 / (2 beta) if d = |input - target| < beta, otherwise d - beta / 2: all terms, their mean or their sum."""
    reduction = reduction_of(size_average, reduce, reduction)
    _pairwise("smooth_l1_loss", input, target)
    return _C.smooth_l1_loss(input, target, reduction, beta)


def huber_loss(input, target, reduction="mean", delta=1.0, weight=None):
    """d ** 2 / 2 if d = |input - target| <= delta, otherwise delta (d - delta / 2): all terms, their mean or their
    sum."""
    _pairwise("huber_loss", input, target)
    if weight is not None:
        return _weighted(_C.huber_loss(input, target, "none", delta), weight, reduction)
    loss = _C.huber_loss(input, target, reduction, delta)
    return loss if target.dtype is input.dtype else loss.to(input.dtype)  # unlike the other losses, as in PyTorch


def kl_div(input, target, size_average=None, reduce=None, reduction="mean", log_target=False):
    """target (log(target) - input) for log-probabilities input: all terms, their mean or their sum. "batchmean": the
    sum divided by the size of dimension 0."""
    if reduction == "batchmean":
        total = _C.kl_div(input, target, "sum", log_target)
        return total / input.shape[0] if input.dim() else total
    return _C.kl_div(input, target, reduction_of(size_average, reduce, reduction), log_target)


def binary_cross_entropy(input, target, weight=None, size_average=None, reduce=None, reduction="mean"):
    """-weight (target log(input) + (1 - target) log(1 - input)) for probabilities input: all terms, their mean or their
    sum."""
    return _C.binary_cross_entropy(input, target, weight, reduction_of(size_average, reduce, reduction))


def binary_cross_entropy_with_logits(
    input, target, weight=None, size_average=None, reduce=None, reduction="mean", pos_weight=None
):
    """binary_cross_entropy of sigmoid(input), computed without overflow. pos_weight multiplies the part with target."""
    reduction = reduction_of(size_average, reduce, reduction)
    return _C.binary_cross_entropy_with_logits(input, target, weight, pos_weight, reduction)


def reduced(each, reduction):
    """The terms of a loss: all of them, their mean or their sum."""
    return each if reduction == "none" else each.mean() if reduction == "mean" else each.sum()
