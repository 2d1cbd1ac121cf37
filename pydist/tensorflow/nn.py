"""tf.nn: activations, losses, convolutions, pooling, normalization. Images have their channels last unless data_format
says otherwise."""

import math as _math

import pydist as _pydist
from pydist import _C, _functions
from pydist.distribute.losses import compute_average_loss as _average
from pydist.distribute.losses import scale_regularization_loss as _scaled
from pydist.nn import functional as _functional
from pydist.tensorflow import _tensors as _t
from pydist.tensorflow._names import lacking as _lacking
from pydist.tensorflow.math import in_top_k as in_top_k
from pydist.tensorflow.math import l2_normalize as l2_normalize
from pydist.tensorflow.math import sigmoid as sigmoid
from pydist.tensorflow.math import softplus as softplus
from pydist.tensorflow.math import softsign as softsign
from pydist.tensorflow.math import tanh as tanh
from pydist.tensorflow.math import top_k as top_k
from pydist.tensorflow.math import zero_fraction as zero_fraction

# Activations.


def relu(features, name=None):
    """max(x, 0)."""
    return _C.relu(_t.tensor(features))


def relu6(features, name=None):
    """min(max(x, 0), 6)."""
    return _C.clamp(_t.tensor(features), 0, 6)


def crelu(features, axis=-1, name=None):
    """relu(x) and relu(-x), one behind the other."""
    x = _t.tensor(features)
    return _C.relu(_C.cat([x, -x], axis))


def leaky_relu(features, alpha=0.2, name=None):
    """x where it is positive, else alpha * x."""
    return _functional.leaky_relu(_t.tensor(features), float(alpha))


def elu(features, name=None):
    """x where it is positive, else exp(x) - 1."""
    return _functional.elu(_t.tensor(features))


def selu(features, name=None):
    """elu, scaled so that mean 0 and variance 1 are kept."""
    return _functional.selu(_t.tensor(features))


def gelu(features, approximate=False, name=None):
    """x times the normal distribution's cumulative function at x."""
    return _functional.gelu(_t.tensor(features), approximate="tanh" if approximate else "none")


def silu(features, beta=1.0):
    """x * sigmoid(beta * x)."""
    x = _t.tensor(features)
    return _functional.silu(x) if beta == 1.0 else x * _C.sigmoid(beta * x)


swish = silu


def softmax(logits, axis=None, name=None):
    """exp(x) divided by its sum along an axis (the last)."""
    return _C.softmax(_t.tensor(logits), -1 if axis is None else _t.ints(axis)[0])


def log_softmax(logits, axis=None, name=None):
    """The logarithm of the softmax."""
    return _C.log_softmax(_t.tensor(logits), -1 if axis is None else _t.ints(axis)[0])


# Losses.


def softmax_cross_entropy_with_logits(labels, logits, axis=-1, name=None):
    """The cross entropy of rows of probabilities and of logits: one number for each row."""
    logits = _t.tensor(logits)
    return -_C.sum(_t.tensor(labels, like=logits.dtype).to(logits.dtype) * _C.log_softmax(logits, axis), axis)


def sparse_softmax_cross_entropy_with_logits(labels, logits, name=None):
    """The cross entropy of the numbers of classes and rows of logits: one number for each row."""
    logits, labels = _t.tensor(logits), _t.tensor(labels)
    rows = logits.reshape(-1, logits.shape[-1])
    if labels.numel() != rows.shape[0]:
        raise ValueError(
            f"sparse_softmax_cross_entropy_with_logits: labels have shape {tuple(labels.shape)}, logits "
            f"{tuple(logits.shape)} (expected "
            "a label for each row)"
        )
    found = _functional.cross_entropy(rows, labels.reshape(-1).to(_C.int64), reduction="none", ignore_index=-(1 << 40))
    return found.reshape(labels.shape)


def sigmoid_cross_entropy_with_logits(labels=None, logits=None, name=None):
    """The cross entropy of probabilities and logits, element by element."""
    logits = _t.tensor(logits)
    labels = _t.tensor(labels, like=logits.dtype)
    return _functional.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="none")


def weighted_cross_entropy_with_logits(labels, logits, pos_weight, name=None):
    """sigmoid_cross_entropy_with_logits in which positive labels weigh pos_weight."""
    logits = _t.tensor(logits)
    labels = _t.tensor(labels, like=logits.dtype).to(logits.dtype)
    return (1 - labels) * logits + (1 + (_t.tensor(pos_weight) - 1) * labels) * _functional.softplus(-logits)


def log_poisson_loss(targets, log_input, compute_full_loss=False, name=None):
    """exp(log_input) - log_input * targets; with compute_full_loss Stirling's approximation for targets above 1 is
    added."""
    log_input = _t.tensor(log_input)
    z = _t.tensor(targets, like=log_input.dtype)
    loss = _C.exp(log_input) - log_input * z
    if not compute_full_loss:
        return loss
    safe = _C.where(z > 1, z, _C.ones_like(z))
    return loss + _C.where(z > 1, z * _C.log(safe) - z + 0.5 * _C.log(2 * _math.pi * safe), _C.zeros_like(z))


def l2_loss(t, name=None):
    """Half of the sum of squares."""
    return _C.sum(_C.square(_t.tensor(t))) / 2


def compute_average_loss(per_example_loss, sample_weight=None, global_batch_size=None):
    """The sum of the losses divided by the rows of all replicas (global_batch_size)."""
    loss = _t.tensor(per_example_loss)
    if sample_weight is not None:
        loss = loss * _t.tensor(sample_weight, like=loss.dtype)
    return _average(loss, global_batch_size=global_batch_size)


def scale_regularization_loss(regularization_loss):
    """The sum of the losses divided by the number of replicas."""
    return _scaled(_t.tensor(regularization_loss))


# Convolutions.


def _spread(value, n, channels_last):
    """A number for each of n axes of space, of a number, of n of them, or of one for every axis."""
    found = [1] if value is None else _t.ints(value)
    if len(found) == n + 2:
        found = found[1:-1] if channels_last else found[2:]
    return found * n if len(found) == 1 else found


def _is_last(data_format, where):
    if data_format is None or data_format.startswith("N") and data_format.endswith("C"):
        return True
    if data_format.startswith("NC"):
        return False
    raise ValueError(f"{where}: data_format is {data_format!r} (expected 'NHWC' or 'NCHW', or their like)")


def _first(x):
    return x.movedim(-1, 1)


def _last(x):
    return x.movedim(1, -1)


def _pads(padding, sizes, windows, strides, channels_last, where):
    """[(before, after)] of each axis of space."""
    if isinstance(padding, (list, tuple)):
        pairs = [tuple(_t.ints(p)) for p in padding]
        return (pairs[1:-1] if channels_last else pairs[2:]) if len(pairs) == len(sizes) + 2 else pairs
    if padding.upper() == "VALID":
        return [(0, 0)] * len(sizes)
    if padding.upper() != "SAME":
        raise ValueError(f"{where}: padding is {padding!r} (expected 'SAME', 'VALID' or pairs of numbers)")
    total = [max((-(-n // s) - 1) * s + w - n, 0) for n, w, s in zip(sizes, windows, strides)]
    return [(t // 2, t - t // 2) for t in total]


def _padded(x, pads, value=0.0):
    flat = [n for pair in reversed(pads) for n in pair]
    return _C.constant_pad_nd(x, flat, value) if any(flat) else x


def _convolved(x, weight, strides, pads, dilations, groups):
    n = len(strides)
    function = (_functional.conv1d, _functional.conv2d, _functional.conv3d)[n - 1]
    if all(a == b for a, b in pads):
        return function(x, weight, None, tuple(strides), tuple(a for a, _ in pads), tuple(dilations), groups)
    return function(_padded(x, pads), weight, None, tuple(strides), 0, tuple(dilations), groups)


def _conv(where, input, filters, strides, padding, data_format, dilations, n):
    x, w = _t.tensor(input), _t.tensor(filters)
    batch = x.shape[: x.ndim - n - 1]  # TensorFlow takes several axes of batches
    x = x.reshape(-1, *x.shape[-n - 1 :]) if len(batch) != 1 else x
    last = _is_last(data_format, where)
    strides, dilations = _spread(strides, n, last), _spread(dilations, n, last)
    x = _first(x) if last else x
    windows = [(k - 1) * d + 1 for k, d in zip(w.shape[:n], dilations)]
    pads = _pads(padding, x.shape[2:], windows, strides, last, where)
    groups = x.shape[1] // w.shape[-2] if w.shape[-2] else 1
    y = _convolved(x, w.permute(n + 1, n, *range(n)), strides, pads, dilations, groups)
    y = _last(y) if last else y
    return y.reshape(*batch, *y.shape[1:]) if len(batch) != 1 else y


def conv1d(input, filters, stride, padding, data_format="NWC", dilations=None, name=None):
    """A convolution of rows; filters are [width, in channels, out channels]."""
    return _conv("conv1d", input, filters, stride, padding, data_format, dilations, 1)


def conv2d(input, filters, strides, padding, data_format="NHWC", dilations=None, name=None):
    """A convolution of images; filters are [height, width, in channels, out channels]."""
    return _conv("conv2d", input, filters, strides, padding, data_format, dilations, 2)


def conv3d(input, filters, strides, padding, data_format="NDHWC", dilations=None, name=None):
    """A convolution of volumes; filters are [depth, height, width, in channels, out channels]."""
    return _conv("conv3d", input, filters, strides, padding, data_format, dilations, 3)


def convolution(input, filters, strides=None, padding="VALID", data_format=None, dilations=None, name=None):
    """A convolution of as many axes as the filters have."""
    return _conv("convolution", input, filters, strides, padding, data_format, dilations, _t.tensor(filters).ndim - 2)


def depthwise_conv2d(input, filter, strides, padding, data_format=None, dilations=None, name=None):
    """A convolution of each channel by itself; filter is [height, width, channels, results of a channel]."""
    x, w, last = _t.tensor(input), _t.tensor(filter), _is_last(data_format, "depthwise_conv2d")
    strides, dilations = _spread(strides, 2, last), _spread(dilations, 2, last)
    x = _first(x) if last else x
    windows = [(k - 1) * d + 1 for k, d in zip(w.shape[:2], dilations)]
    pads = _pads(padding, x.shape[2:], windows, strides, last, "depthwise_conv2d")
    weight = w.permute(2, 3, 0, 1).reshape(-1, 1, *w.shape[:2])
    y = _convolved(x, weight, strides, pads, dilations, w.shape[2])
    return _last(y) if last else y


def separable_conv2d(
    input, depthwise_filter, pointwise_filter, strides, padding, data_format=None, dilations=None, name=None
):
    """depthwise_conv2d, then a convolution by 1 x 1 filters."""
    inner = depthwise_conv2d(input, depthwise_filter, strides, padding, data_format, dilations)
    return conv2d(inner, pointwise_filter, 1, "VALID", data_format or "NHWC")


def _conv_transposed(where, input, filters, output_shape, strides, padding, data_format, dilations, n):
    x, w, last = _t.tensor(input), _t.tensor(filters), _is_last(data_format, where)
    strides, dilations = _spread(strides, n, last), _spread(dilations, n, last)
    x = _first(x) if last else x
    out = _t.ints(output_shape)
    out = out if len(out) == n else out[1:-1] if last else out[2:]
    windows = [(k - 1) * d + 1 for k, d in zip(w.shape[:n], dilations)]
    pads = _pads(padding, out, windows, strides, last, where)
    function = (_functional.conv_transpose1d, _functional.conv_transpose2d, _functional.conv_transpose3d)[n - 1]
    y = function(x, w.permute(n + 1, n, *range(n)), None, tuple(strides), 0, 0, 1, tuple(dilations))
    for axis, (size, (before, _)) in enumerate(zip(out, pads)):
        have = y.shape[axis + 2]
        if before + size > have:
            extra = [0, 0] * (n - 1 - axis) + [0, before + size - have] + [0, 0] * axis
            y = _C.constant_pad_nd(y, extra, 0.0)
        y = _functions.narrow(y, axis + 2, before, size)
    return _last(y) if last else y


def conv1d_transpose(
    input, filters, output_shape, strides, padding="SAME", data_format="NWC", dilations=None, name=None
):
    """The gradient of conv1d as a function; filters are [width, out channels, in channels]."""
    return _conv_transposed(
        "conv1d_transpose", input, filters, output_shape, strides, padding, data_format, dilations, 1
    )


def conv2d_transpose(
    input, filters, output_shape, strides, padding="SAME", data_format="NHWC", dilations=None, name=None
):
    """The gradient of conv2d as a function; filters are [height, width, out channels, in channels]."""
    return _conv_transposed(
        "conv2d_transpose", input, filters, output_shape, strides, padding, data_format, dilations, 2
    )


def conv3d_transpose(
    input, filters, output_shape, strides, padding="SAME", data_format="NDHWC", dilations=None, name=None
):
    """The gradient of conv3d as a function; filters are [depth, height, width, out channels, in channels]."""
    return _conv_transposed(
        "conv3d_transpose", input, filters, output_shape, strides, padding, data_format, dilations, 3
    )


# Pooling.


def _pooled(where, input, ksize, strides, padding, data_format, n, biggest):
    x, last = _t.tensor(input), _is_last(data_format, where)
    windows, strides = _spread(ksize, n, last), _spread(strides, n, last)
    x = _first(x) if last else x
    pads = _pads(padding, x.shape[2:], windows, strides, last, where)
    whole = any(map(any, pads))
    if biggest:
        least = float("-inf") if x.is_floating_point() else _pydist.iinfo(x.dtype).min
        function = (_functional.max_pool1d, _functional.max_pool2d, _functional.max_pool3d)[n - 1]
        y = function(_padded(x, pads, least), tuple(windows), tuple(strides))
    else:
        function = (_functional.avg_pool1d, _functional.avg_pool2d, _functional.avg_pool3d)[n - 1]
        y = function(_padded(x, pads), tuple(windows), tuple(strides))
        if whole:  # a mean of what is there
            ones = _padded(_pydist.ones(1, 1, *x.shape[2:], dtype=x.dtype, device=x.device), pads)
            y = y / function(ones, tuple(windows), tuple(strides))
    return _last(y) if last else y


def _pool(name, n, biggest):
    def pool(input, ksize, strides, padding, data_format=None, name=None):
        return _pooled(pool.__name__, input, ksize, strides, padding, data_format, n, biggest)

    what = "greatest element" if biggest else "mean"
    pool.__name__ = pool.__qualname__ = name
    pool.__doc__ = f"The {what} of each window of {('rows', 'images', 'volumes')[n - 1]}."
    return pool


avg_pool1d, avg_pool2d, avg_pool3d = (_pool(f"avg_pool{n}d", n, False) for n in (1, 2, 3))
max_pool1d, max_pool2d, max_pool3d = (_pool(f"max_pool{n}d", n, True) for n in (1, 2, 3))


def avg_pool(input, ksize, strides, padding, data_format=None, name=None):
    """The mean of each window, of as many axes as the input has beside rows and channels."""
    return _pooled("avg_pool", input, ksize, strides, padding, data_format, _t.tensor(input).ndim - 2, False)


def max_pool(input, ksize, strides, padding, data_format=None, name=None):
    """The greatest element of each window, of as many axes as the input has beside rows and channels."""
    return _pooled("max_pool", input, ksize, strides, padding, data_format, _t.tensor(input).ndim - 2, True)


def pool(input, window_shape, pooling_type, strides=None, padding="VALID", data_format=None, dilations=None, name=None):
    """max_pool or avg_pool, by pooling_type "MAX" or "AVG"."""
    if pooling_type not in ("MAX", "AVG"):
        raise ValueError(f"pool: pooling_type is {pooling_type!r} (expected 'MAX' or 'AVG')")
    if any(d != 1 for d in _t.ints(dilations or 1)):
        raise NotImplementedError(f"pool: dilations={dilations} (expected 1)")
    n = _t.tensor(input).ndim - 2
    return _pooled("pool", input, window_shape, strides, padding, data_format, n, pooling_type == "MAX")


# Normalization and the rest.


def bias_add(value, bias, data_format=None, name=None):
    """A number for each channel is added."""
    value, bias = _t.tensor(value), _t.tensor(bias)
    last = _is_last(data_format, "bias_add") or value.ndim < 3
    return value + (bias if last else bias.reshape(-1, *[1] * (value.ndim - 2)))


def dropout(x, rate, noise_shape=None, seed=None, name=None):
    """Elements become 0 with probability `rate`; the others are divided by 1 - rate."""
    from pydist.tensorflow import random

    x = _t.tensor(x)
    return _dropped(x, rate, random.uniform(x.shape if noise_shape is None else noise_shape, dtype=x.dtype, seed=seed))


def _dropped(x, rate, numbers):
    rate = float(rate)
    if not 0 <= rate < 1:
        raise ValueError(f"dropout: rate is {rate} (expected 0 to less than 1)")
    return x if rate == 0 else _C.where(numbers >= rate, x / (1 - rate), _C.zeros_like(x))


def batch_normalization(x, mean, variance, offset, scale, variance_epsilon, name=None):
    """(x - mean) / sqrt(variance + variance_epsilon) * scale + offset."""
    x = _t.tensor(x)
    factor = _C.rsqrt(_t.tensor(variance) + variance_epsilon)
    factor = factor if scale is None else factor * _t.tensor(scale)
    shift = -_t.tensor(mean) * factor
    return x * factor.to(x.dtype) + (shift if offset is None else shift + _t.tensor(offset)).to(x.dtype)


def moments(x, axes, shift=None, keepdims=False, name=None):
    """(mean, variance) along these axes."""
    x, over = _t.tensor(x), tuple(_t.ints(axes))
    mean = _C.mean(x, over, True)
    variance = _C.mean(_C.square(x - mean.detach()), over, keepdims)
    return (mean if keepdims else mean.reshape(variance.shape)), variance


def weighted_moments(x, axes, frequency_weights, keepdims=False, name=None):
    """(mean, variance) along these axes, in which elements have weights."""
    x, over = _t.tensor(x), tuple(_t.ints(axes))
    weights = (_t.tensor(frequency_weights, like=x.dtype) + _C.zeros_like(x)).to(x.dtype)
    total = _C.sum(weights, over, True)
    mean = _C.sum(x * weights, over, True) / total
    variance = _C.sum(_C.square(x - mean) * weights, over, True) / total
    if keepdims:
        return mean, variance
    rest = [n for i, n in enumerate(x.shape) if i not in {a % x.ndim for a in over}]
    return mean.reshape(rest), variance.reshape(rest)


def local_response_normalization(input, depth_radius=5, bias=1, alpha=1, beta=0.5, name=None):
    """x / (bias + alpha * the sum of squares of the channels around)^beta."""
    x = _t.tensor(input)
    radius = int(depth_radius)
    squares = _C.constant_pad_nd(_C.square(x), [radius, radius], 0.0)
    total = sum(_functions.narrow(squares, -1, i, x.shape[-1]) for i in range(2 * radius + 1))
    return x / (bias + alpha * total) ** beta


lrn = local_response_normalization


def embedding_lookup(params, ids, max_norm=None, name=None):
    """The rows of a matrix with these numbers; with max_norm scaled down to that norm."""
    rows = _functional.embedding(_t.tensor(ids).to(_C.int64), _t.tensor(params))
    if max_norm is None:
        return rows
    from pydist.tensorflow._arrays import clip_by_norm

    ids = _t.tensor(ids)
    return clip_by_norm(rows, max_norm, list(range(ids.ndim, rows.ndim)))


def space_to_depth(input, block_size, data_format="NHWC", name=None):
    """Blocks of an image become channels."""
    x, last, b = _t.own(input), _is_last(data_format, "space_to_depth"), int(block_size)
    x = x if last else _last(x)
    n, h, w, c = x.shape
    x = x.reshape(n, h // b, b, w // b, b, c).permute(0, 1, 3, 2, 4, 5).reshape(n, h // b, w // b, b * b * c)
    return x if last else _first(x)


def depth_to_space(input, block_size, data_format="NHWC", name=None):
    """Channels become blocks of an image."""
    x, last, b = _t.own(input), _is_last(data_format, "depth_to_space"), int(block_size)
    x = x if last else _last(x)
    n, h, w, c = x.shape
    x = x.reshape(n, h, w, b, b, c // (b * b)).permute(0, 1, 3, 2, 4, 5).reshape(n, h * b, w * b, c // (b * b))
    return x if last else _first(x)


def nce_loss(weights, biases, labels, inputs, num_sampled, num_classes, num_true=1, sampled_values=None,
             remove_accidental_hits=False, name="nce_loss"):  # fmt: skip
    """The noise contrastive loss of each row: its own class against num_sampled classes that are drawn for all rows,
    smaller numbers more often (log-uniform)."""
    if sampled_values is not None or remove_accidental_hits:
        raise NotImplementedError("nce_loss: sampled_values or remove_accidental_hits (expected None and False)")
    weights, biases, inputs = _t.tensor(weights), _t.tensor(biases), _t.tensor(inputs)
    classes, count = int(num_classes), int(num_sampled)
    labels = _t.tensor(labels).to(_C.int64).reshape(-1, int(num_true))
    drawn = _log_uniform(classes, count, inputs.device)

    def expected(ids):
        chance = _C.log((ids + 2.0) / (ids + 1.0)) / _math.log(classes + 1)
        return -_C.expm1(drawn.tries * _C.log1p(-chance))

    true = (inputs[:, None, :] * weights[labels]).sum(-1) + biases[labels] - _C.log(expected(labels))
    noise = inputs @ weights[drawn.ids].T + biases[drawn.ids] - _C.log(expected(drawn.ids))
    return _functional.softplus(-true).sum(1) / int(num_true) + _functional.softplus(noise).sum(1)


class _log_uniform:
    """`ids`: so many different classes, drawn log-uniformly; `tries`: how many draws that took."""

    def __init__(self, classes, count, device):
        if count > classes:
            raise ValueError(f"nce_loss: num_sampled is {count} (expected at most {classes}, the number of classes)")
        found, self.tries = {}, 0
        while len(found) < count:
            numbers = _C.exp(_C.rand(count, dtype=_C.float64) * _math.log(classes + 1)).to(_C.int64) - 1
            for n in numbers.tolist():
                self.tries += 1
                found.setdefault(min(n, classes - 1))
                if len(found) == count:
                    break
        self.ids = _C.tensor(list(found), dtype=_C.int64, device=device)


__getattr__ = _lacking(__name__)
