"""Functions of nn with PyTorch's signatures, over the engine's operations."""

from warnings import warn

from pydist import _C

linear = _C.linear
batch_norm = _C.batch_norm
group_norm = _C.group_norm
gelu = _C.gelu
softplus = _C.softplus
logsigmoid = _C.logsigmoid
sigmoid = _C.sigmoid
tanh = _C.tanh
elu_ = _C.elu_
leaky_relu_ = _C.leaky_relu_
hardtanh_ = _C.hardtanh_
relu_ = _C.relu_
max_pool1d_with_indices = _C.max_pool1d_with_indices
max_pool2d_with_indices = _C.max_pool2d_with_indices
avg_pool1d = _C.avg_pool1d
avg_pool2d = _C.avg_pool2d
adaptive_avg_pool1d = _C.adaptive_avg_pool1d


def relu(input, inplace=False):
    """max(input, 0), elementwise; inplace writes it into input."""
    return _C.relu_(input) if inplace else _C.relu(input)


def leaky_relu(input, negative_slope=0.01, inplace=False):
    """input where it is positive, else negative_slope * input."""
    return _C.leaky_relu_(input, negative_slope) if inplace else _C.leaky_relu(input, negative_slope)


def elu(input, alpha=1.0, inplace=False):
    """input where it is positive, else alpha * (exp(input) - 1)."""
    return _C.elu_(input, alpha) if inplace else _C.elu(input, alpha)


def celu(input, alpha=1.0, inplace=False):
    """input where it is positive, else alpha * (exp(input / alpha) - 1)."""
    return (_C.elu_ if inplace else _C.elu)(input, alpha, 1.0, 1.0 / alpha)


def selu(input, inplace=False):
    """The elu whose outputs keep mean 0 and variance 1 (Klambauer et al., 2017)."""
    return (_C.elu_ if inplace else _C.elu)(input, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946)


def silu(input, inplace=False):
    """input * sigmoid(input)."""
    return _C.silu_(input) if inplace else _C.silu(input)


def mish(input, inplace=False):
    """input * tanh(softplus(input))."""
    return _C.mish_(input) if inplace else _C.mish(input)


def hardtanh(input, min_val=-1.0, max_val=1.0, inplace=False):
    """input, at least min_val and at most max_val."""
    if min_val > max_val:
        raise ValueError(f"hardtanh: min_val {min_val} is above max_val {max_val}")
    return _C.hardtanh_(input, min_val, max_val) if inplace else _C.hardtanh(input, min_val, max_val)


def relu6(input, inplace=False):
    """min(max(input, 0), 6)."""
    return hardtanh(input, 0.0, 6.0, inplace)


def hardsigmoid(input, inplace=False):
    """min(max(input + 3, 0), 6) / 6."""
    return _C.hardsigmoid_(input) if inplace else _C.hardsigmoid(input)


def hardswish(input, inplace=False):
    """input * min(max(input + 3, 0), 6) / 6."""
    return _C.hardswish_(input) if inplace else _C.hardswish(input)


def softsign(input):
    """input / (1 + |input|)."""
    return input / (input.abs() + 1)


def tanhshrink(input):
    """input - tanh(input)."""
    return input - input.tanh()


def prelu(input, weight):
    """input where it is positive, else weight * input; weight has one element, or one per channel (dimension 1)."""
    if weight.numel() != 1:
        channels = input.shape[1] if input.dim() > 1 else 1
        if weight.dim() != 1 or weight.numel() != channels:
            raise ValueError(f"prelu: weight has shape {tuple(weight.shape)} (expected one element, or {channels})")
        weight = weight.reshape(-1, *[1] * (input.dim() - 2))
    return _C.where(input > 0, input, weight * input)


def softmin(input, dim=None, _stacklevel=3, dtype=None):
    """softmax(-input, dim)."""
    return softmax(-input, dim, _stacklevel, dtype)


def _default_dim(name, dim, ndim):
    if dim is not None:
        return dim
    dim = 0 if ndim in (0, 1, 3) else 1
    warn(f"{name}: dim is not given; taking {dim} for {ndim} dims, as PyTorch does", stacklevel=3)
    return dim


def softmax(input, dim=None, _stacklevel=3, dtype=None):
    """exp(input) / sum(exp(input)) along dim, after a cast to dtype if given."""
    input = input if dtype is None else input.to(dtype)
    return _C.softmax(input, _default_dim("softmax", dim, input.dim()))


def log_softmax(input, dim=None, _stacklevel=3, dtype=None):
    """input - log(sum(exp(input))) along dim, after a cast to dtype if given."""
    input = input if dtype is None else input.to(dtype)
    return _C.log_softmax(input, _default_dim("log_softmax", dim, input.dim()))


def dropout(input, p=0.5, training=True, inplace=False):
    """input * keep / (1 - p), keep drawn Bernoulli(1 - p) per element; not training: input."""
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
    if not training or p == 0.0:
        return input
    out = _C.dropout(input, p, True)
    return input.copy_(out) if inplace else out


def reduction_of(size_average, reduce, reduction):
    """The reduction that the two old arguments of the losses stand for, else `reduction`."""
    if size_average is not None or reduce is not None:
        reduction = "none" if reduce is False else "sum" if size_average is False else "mean"
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not a valid value for reduction")
    return reduction


def nll_loss(input, target, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean"):
    """-weight[target] * input[target] for log-probabilities input[N, C, ...]; see nn.NLLLoss."""
    return _C.nll_loss(input, target, weight, ignore_index, reduction_of(size_average, reduce, reduction))


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
    """nll_loss(log_softmax(input, 1), target), in one pass; see nn.CrossEntropyLoss."""
    reduction = reduction_of(size_average, reduce, reduction)
    return _C.cross_entropy(input, target, weight, ignore_index, reduction, label_smoothing)


def _pairwise(name, input, target):
    if input.shape != target.shape:
        text = f"{name}: input has shape {tuple(input.shape)}, target {tuple(target.shape)}; they are broadcast"
        warn(f"{text}, which is rarely meant", stacklevel=3)


def _weighted(each, weight, reduction):
    """The reduction of terms that have weights: a mean is divided by the sum of the weights."""
    if weight is None or reduction == "none":
        return each if weight is None else each * weight
    total = (each * weight).sum()
    return total if reduction == "sum" else total / weight.expand(*each.shape).sum()


def mse_loss(input, target, size_average=None, reduce=None, reduction="mean", weight=None):
    """(input - target) ** 2: each, their mean or sum."""
    reduction = reduction_of(size_average, reduce, reduction)
    _pairwise("mse_loss", input, target)
    if weight is not None:
        return _weighted(_C.mse_loss(input, target, "none"), weight, reduction)
    return _C.mse_loss(input, target, reduction)


def l1_loss(input, target, size_average=None, reduce=None, reduction="mean", weight=None):
    """|input - target|: each, their mean or sum."""
    reduction = reduction_of(size_average, reduce, reduction)
    _pairwise("l1_loss", input, target)
    if weight is not None:
        return _weighted(_C.l1_loss(input, target, "none"), weight, reduction)
    return _C.l1_loss(input, target, reduction)


def smooth_l1_loss(input, target, size_average=None, reduce=None, reduction="mean", beta=1.0):
    """d ** 2 / (2 beta) where d = |input - target| < beta, else d - beta / 2: each, their mean or sum."""
    reduction = reduction_of(size_average, reduce, reduction)
    _pairwise("smooth_l1_loss", input, target)
    return _C.smooth_l1_loss(input, target, reduction, beta)


def huber_loss(input, target, reduction="mean", delta=1.0, weight=None):
    """d ** 2 / 2 where d = |input - target| <= delta, else delta (d - delta / 2): each, their mean or sum."""
    _pairwise("huber_loss", input, target)
    if weight is not None:
        return _weighted(_C.huber_loss(input, target, "none", delta), weight, reduction)
    return _C.huber_loss(input, target, reduction, delta)


def kl_div(input, target, size_average=None, reduce=None, reduction="mean", log_target=False):
    """target (log(target) - input) for log-probabilities input: each, their mean or sum; "batchmean": the sum over the
    size of dimension 0."""
    if reduction == "batchmean":
        total = _C.kl_div(input, target, "sum", log_target)
        return total / input.shape[0] if input.dim() else total
    return _C.kl_div(input, target, reduction_of(size_average, reduce, reduction), log_target)


def binary_cross_entropy(input, target, weight=None, size_average=None, reduce=None, reduction="mean"):
    """-weight (target log(input) + (1 - target) log(1 - input)) for probabilities input: each, their mean or sum."""
    return _C.binary_cross_entropy(input, target, weight, reduction_of(size_average, reduce, reduction))


def binary_cross_entropy_with_logits(
    input, target, weight=None, size_average=None, reduce=None, reduction="mean", pos_weight=None
):
    """binary_cross_entropy of sigmoid(input), computed without overflow; pos_weight is a factor of target's part."""
    reduction = reduction_of(size_average, reduce, reduction)
    return _C.binary_cross_entropy_with_logits(input, target, weight, pos_weight, reduction)


def _sizes(shape):
    return (shape,) if isinstance(shape, int) else tuple(shape)


def layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-05):
    """(input - mean) / sqrt(var + eps) * weight + bias over the last dimensions, of normalized_shape."""
    return _C.layer_norm(input, _sizes(normalized_shape), weight, bias, eps)


def rms_norm(input, normalized_shape, weight=None, eps=None):
    """input / sqrt(mean(input ** 2) + eps) * weight over the last dimensions, of normalized_shape; eps None: the
    machine epsilon."""
    shape = _sizes(normalized_shape)
    return _C.rms_norm(input, shape, weight) if eps is None else _C.rms_norm(input, shape, weight, eps)


def embedding(
    input, weight, padding_idx=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=False, sparse=False
):
    """The rows of weight[rows, columns] at the indices input (int64 or int32, any shape); the row padding_idx gets no
    gradient. Raises NotImplementedError for max_norm, scale_grad_by_freq and sparse."""
    for name, value in (("max_norm", max_norm), ("scale_grad_by_freq", scale_grad_by_freq), ("sparse", sparse)):
        if value:
            raise NotImplementedError(f"embedding: {name}={value} is not supported")
    return _C.embedding(weight, input, padding_idx)


def one_hot(tensor, num_classes=-1):
    """int64 zeros [..., num_classes] with a 1 at each index of tensor [...]; -1: one more than the largest index."""
    if tensor.dtype != _C.int64:
        raise TypeError(f"one_hot: tensor is {tensor.dtype} (expected int64)")
    if tensor.numel() and tensor.min().item() < 0:
        raise ValueError(f"one_hot: index {tensor.min().item()} is negative")
    if num_classes < 0:
        if not tensor.numel():
            raise ValueError("one_hot: num_classes of an empty tensor is not known")
        num_classes = tensor.max().item() + 1
    elif tensor.numel() and tensor.max().item() >= num_classes:
        raise ValueError(f"one_hot: index {tensor.max().item()} is out of range (expected 0 to {num_classes - 1})")
    return (tensor.unsqueeze(-1) == _C.arange(num_classes)).long()


def normalize(input, p=2.0, dim=1, eps=1e-12, out=None):
    """input / max(norm_p(input), eps) along dim."""
    size = input.norm(p, dim, keepdim=True)
    result = input / _C.maximum(size, eps)
    return result if out is None else out.copy_(result)


def conv_padding(padding, kernel, stride, dilation):
    """(padding per side of each dim, elements to cut from the front of the result's dims). "same" needs stride 1; where
    dilation * (kernel - 1) is odd the front is padded by one too many, as PyTorch pads the back by one more."""
    count = len(kernel)
    if not isinstance(padding, str):
        return _sizes_of("padding", padding, count), (0,) * count
    if padding == "valid":
        return (0,) * count, (0,) * count
    if padding != "same":
        raise ValueError(f"Invalid padding string {padding!r}, should be one of 'valid', 'same'")
    if any(s != 1 for s in _sizes_of("stride", stride, count)):
        raise ValueError("padding='same' is not supported for strided convolutions")
    total = [d * (k - 1) for d, k in zip(_sizes_of("dilation", dilation, count), kernel)]
    return tuple((t + 1) // 2 for t in total), tuple(t % 2 for t in total)


def _sizes_of(name, value, count):
    """`value` for each of `count` dims."""
    value = (value,) * count if isinstance(value, int) else tuple(value)
    if len(value) == 1:
        value *= count
    if len(value) != count:
        raise ValueError(f"{name} has {len(value)} values (expected {count})")
    return value


def conv2d(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    """Cross-correlation of input[N, C, H, W] or [C, H, W] with weight[K, C / groups, R, S]; see nn.Conv2d."""
    padding, cut = conv_padding(padding, weight.shape[2:], stride, dilation)
    batched = input.dim() != 3
    y = _C.conv2d(input if batched else input.unsqueeze(0), weight, bias, stride, padding, dilation, groups)
    if any(cut):
        y = y[:, :, cut[0] :, cut[1] :]
    return y if batched else y.squeeze(0)


def conv1d(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    """Cross-correlation of input[N, C, L] or [C, L] with weight[K, C / groups, R]; see nn.Conv1d."""
    if input.dim() not in (2, 3) or weight.dim() != 3:
        shapes = f"{tuple(input.shape)}, {tuple(weight.shape)}"
        raise _C.ShapeError(f"conv1d: shapes {shapes} (expected [N, C, L] or [C, L], and [K, C / groups, R])")
    padding, cut = conv_padding(padding, weight.shape[2:], stride, dilation)
    (stride,), (dilation,) = _sizes_of("stride", stride, 1), _sizes_of("dilation", dilation, 1)
    x, w = input.unsqueeze(-2), weight.unsqueeze(2)
    y = conv2d(x, w, bias, (1, stride), (0, *padding), (1, dilation), groups).squeeze(-2)
    return y[..., cut[0] :] if cut[0] else y


def max_pool1d(input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
    """The largest element of each window of input[N, C, L] or [C, L], and their positions along L if return_indices."""
    pool = _C.max_pool1d_with_indices if return_indices else _C.max_pool1d
    return pool(input, kernel_size, stride, padding, dilation, ceil_mode)


def max_pool2d(input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
    """The largest element of each window of input[N, C, H, W] or [C, H, W], and their positions in the H * W plane if
    return_indices; see nn.MaxPool2d."""
    pool = _C.max_pool2d_with_indices if return_indices else _C.max_pool2d
    return pool(input, kernel_size, stride, padding, dilation, ceil_mode)


def _output_size(input, size):
    """A pair of sizes, None standing for the input's own."""
    size = (size, size) if size is None or isinstance(size, int) else tuple(size)
    return tuple(input.shape[i - len(size)] if n is None else n for i, n in enumerate(size))


def adaptive_avg_pool2d(input, output_size):
    """The mean of input's window [floor(i n / m), ceil((i + 1) n / m)) for every i of output_size m (None: n), n being
    the size of input[N, C, H, W] or [C, H, W]."""
    return _C.adaptive_avg_pool2d(input, _output_size(input, output_size))


def adaptive_max_pool2d_with_indices(input, output_size, return_indices=False):
    """adaptive_max_pool2d, and the position of each result in the H * W plane."""
    return _C.adaptive_max_pool2d_with_indices(input, _output_size(input, output_size))


def adaptive_max_pool2d(input, output_size, return_indices=False):
    """The largest element of adaptive_avg_pool2d's windows, and its position in the H * W plane if return_indices."""
    if return_indices:
        return adaptive_max_pool2d_with_indices(input, output_size)
    return _C.adaptive_max_pool2d(input, _output_size(input, output_size))


def adaptive_max_pool1d_with_indices(input, output_size, return_indices=False):
    """adaptive_max_pool1d, and the position of each result along L."""
    return tuple(_C.adaptive_max_pool1d(input, output_size))


def adaptive_max_pool1d(input, output_size, return_indices=False):
    """The largest element of input's window [floor(i n / m), ceil((i + 1) n / m)) for every i of output_size m along the
    last of the n elements of input[N, C, L] or [C, L], and its position if return_indices."""
    values, indices = _C.adaptive_max_pool1d(input, output_size)
    return (values, indices) if return_indices else values
