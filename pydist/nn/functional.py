"""Functions of nn with PyTorch's signatures, over the engine's operations."""

from warnings import warn

from pydist import _C

linear = _C.linear
batch_norm = _C.batch_norm
max_pool1d_with_indices = _C.max_pool1d_with_indices
max_pool2d_with_indices = _C.max_pool2d_with_indices
avg_pool1d = _C.avg_pool1d
avg_pool2d = _C.avg_pool2d
adaptive_avg_pool1d = _C.adaptive_avg_pool1d


def relu(input, inplace=False):
    """max(input, 0), elementwise; inplace writes it into input."""
    return _C.relu_(input) if inplace else _C.relu(input)


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


def conv_padding(padding, kernel, stride, dilation):
    """Padding per side as a pair. "same" needs stride 1 and an odd extent dilation * (kernel - 1) + 1."""
    if not isinstance(padding, str):
        return padding
    if padding == "valid":
        return (0, 0)
    if padding != "same":
        raise ValueError(f"Invalid padding string {padding!r}, should be one of 'valid', 'same'")
    if any(s != 1 for s in ((stride,) if isinstance(stride, int) else stride)):
        raise ValueError("padding='same' is not supported for strided convolutions")
    dilation = (dilation, dilation) if isinstance(dilation, int) else dilation
    total = [d * (k - 1) for d, k in zip(dilation, kernel)]
    if any(t % 2 for t in total):
        raise NotImplementedError(f"padding='same' with an even kernel: {tuple(kernel)} (pad the input by hand)")
    return tuple(t // 2 for t in total)


def conv2d(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    """Cross-correlation of input[N, C, H, W] with weight[K, C / groups, R, S]; see nn.Conv2d."""
    padding = conv_padding(padding, weight.shape[2:], stride, dilation)
    return _C.conv2d(input, weight, bias, stride, padding, dilation, groups)


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
    """The mean of input's window [floor(i n / m), ceil((i + 1) n / m)) for every i of output_size m (None: n), n being the
    size of input[N, C, H, W] or [C, H, W]."""
    return _C.adaptive_avg_pool2d(input, _output_size(input, output_size))


def adaptive_max_pool2d_with_indices(input, output_size, return_indices=False):
    """adaptive_max_pool2d, and the position of each result in the H * W plane."""
    return _C.adaptive_max_pool2d_with_indices(input, _output_size(input, output_size))


def adaptive_max_pool2d(input, output_size, return_indices=False):
    """The largest element of the windows of adaptive_avg_pool2d, and its position in the H * W plane if return_indices."""
    if return_indices:
        return adaptive_max_pool2d_with_indices(input, output_size)
    return _C.adaptive_max_pool2d(input, _output_size(input, output_size))


def adaptive_max_pool1d_with_indices(input, output_size, return_indices=False):
    """adaptive_max_pool1d, and the position of each result along L."""
    return tuple(_C.adaptive_max_pool1d(input, output_size))


def adaptive_max_pool1d(input, output_size, return_indices=False):
    """The largest element of input's window [floor(i n / m), ceil((i + 1) n / m)) for every i of output_size m along the last
    of the n elements of input[N, C, L] or [C, L], and its position if return_indices."""
    values, indices = _C.adaptive_max_pool1d(input, output_size)
    return (values, indices) if return_indices else values
