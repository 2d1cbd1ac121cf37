"""Convolutions and linear maps."""

from itertools import islice

from pydist import _C

linear = _C.linear
resample = _C.resample


def conv_padding(padding, kernel, stride, dilation):
    """(padding on each side of each dim, elements to cut from the front of the result's dims). "same" needs stride 1.
    If dilation * (kernel - 1) is odd, PyTorch pads one more element at the back; here the front is padded by one more
    and then cut."""
    count = len(kernel)
    if not isinstance(padding, str):
        return sizes_of("padding", padding, count), (0,) * count
    if padding == "valid":
        return (0,) * count, (0,) * count
    if padding != "same":
        raise ValueError(f"Invalid padding string {padding!r}, should be one of 'valid', 'same'")
    if any(s != 1 for s in sizes_of("stride", stride, count)):
        raise ValueError("padding='same' is not supported for strided convolutions (expected stride 1)")
    total = [d * (k - 1) for d, k in zip(sizes_of("dilation", dilation, count), kernel)]
    return tuple((t + 1) // 2 for t in total), tuple(t % 2 for t in total)


def sizes_of(name, value, count):
    """`value` as a list with one entry for each of `count` dims."""
    if isinstance(value, int):
        value = (value,) * count
    elif not isinstance(value, (tuple, list)):
        value = tuple(islice(value, count + 1))  # an iterator may be endless
    if len(value) == 1:
        value *= count
    if len(value) != count:
        raise _C.ArgumentError(f"{name} has {len(value)} values (expected {count})")
    return tuple(value)


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
    (stride,), (dilation,) = sizes_of("stride", stride, 1), sizes_of("dilation", dilation, 1)
    x, w = input.unsqueeze(-2), weight.unsqueeze(2)
    y = conv2d(x, w, bias, (1, stride), (0, *padding), (1, dilation), groups).squeeze(-2)
    return y[..., cut[0] :] if cut[0] else y


def _batched(name, input, weight, dims):
    """(input with a batch dimension, whether it had one)."""
    if input.dim() not in (dims + 1, dims + 2) or weight.dim() != dims + 2:
        shapes = f"{tuple(input.shape)}, {tuple(weight.shape)}"
        raise _C.ShapeError(
            f"{name}: shapes {shapes} (expected [N, C, {dims} sizes] or without N, and {dims + 2} dimensions)"
        )
    return (input, True) if input.dim() == dims + 2 else (input.unsqueeze(0), False)


def conv3d(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    """Cross-correlation of input[N, C, D, H, W] or [C, D, H, W] with weight[K, C / groups, T, R, S]; see nn.Conv3d."""
    x, batched = _batched("conv3d", input, weight, 3)
    padding, cut = conv_padding(padding, weight.shape[2:], stride, dilation)
    stride, dilation = sizes_of("stride", stride, 3), sizes_of("dilation", dilation, 3)
    if min(stride) < 1 or min(dilation) < 1 or min(padding) < 0:
        raise ValueError(
            f"conv3d: stride {stride}, padding {padding}, dilation {dilation} (expected more than 0, padding at "
            "least 0)"
        )
    x = _C.constant_pad_nd(x, (0, 0, 0, 0, padding[0], padding[0])) if padding[0] else x
    taps = weight.shape[2]
    depth = (x.shape[2] - dilation[0] * (taps - 1) - 1) // stride[0] + 1
    if depth < 1 or taps < 1:
        shapes = f"{tuple(input.shape)} and {tuple(weight.shape)}"
        raise _C.ShapeError(
            f"conv3d: the kernel does not fit into the input: {shapes} (expected an input at least as large)"
        )
    y = None
    for t in range(taps):  # a sum of 2-D convolutions, with all planes as one batch
        start = t * dilation[0]
        planes = x[:, :, start : start + (depth - 1) * stride[0] + 1 : stride[0]].transpose(1, 2)
        flat = planes.reshape(-1, x.shape[1], *x.shape[3:])
        part = _C.conv2d(flat, weight[:, :, t], None if t else bias, stride[1:], padding[1:], dilation[1:], groups)
        y = part if y is None else y + part
    y = y.reshape(x.shape[0], depth, *y.shape[1:]).transpose(1, 2)
    if any(cut):
        y = y[:, :, cut[0] :, cut[1] :, cut[2] :]
    return y if batched else y.squeeze(0)


def conv_transpose1d(input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
    """The gradient of conv1d with respect to its input, as a function of input[N, C, L] or [C, L] and weight[C, K /
    groups, R]; see nn.ConvTranspose1d."""
    x, batched = _batched("conv_transpose1d", input, weight, 1)
    stride, padding, more, dilation = (
        sizes_of(name, value, 1)
        for name, value in (
            ("stride", stride),
            ("padding", padding),
            ("output_padding", output_padding),
            ("dilation", dilation),
        )
    )
    y = _C.conv_transpose2d(
        x.unsqueeze(2), weight.unsqueeze(2), bias, (1, *stride), (0, *padding), (0, *more), groups, (1, *dilation)
    ).squeeze(2)
    return y if batched else y.squeeze(0)


def conv_transpose2d(input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
    """The gradient of conv2d with respect to its input, as a function of input[N, C, H, W] or [C, H, W] and weight[C,
    K / groups, R, S]; see nn.ConvTranspose2d."""
    x, batched = _batched("conv_transpose2d", input, weight, 2)
    y = _C.conv_transpose2d(x, weight, bias, stride, padding, output_padding, groups, dilation)
    return y if batched else y.squeeze(0)


def conv_transpose3d(input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
    """The gradient of conv3d with respect to its input, as a function of input[N, C, D, H, W] or [C, D, H, W] and
    weight[C, K / groups, T, R, S]; see nn.ConvTranspose3d."""
    x, batched = _batched("conv_transpose3d", input, weight, 3)
    stride, padding, more, dilation = (
        sizes_of(name, value, 3)
        for name, value in (
            ("stride", stride),
            ("padding", padding),
            ("output_padding", output_padding),
            ("dilation", dilation),
        )
    )
    if (
        min(stride) < 1
        or min(dilation) < 1
        or min(padding) < 0
        or any(m < 0 or m >= max(s, d) for m, s, d in zip(more, stride, dilation))
    ):
        raise ValueError(
            f"conv_transpose3d: stride {stride}, padding {padding}, output_padding {more}, dilation {dilation} "
            "(expected stride and dilation of at least 1, padding of at least 0, output_padding below stride or "
            "dilation)"
        )
    n, depth, taps = x.shape[0], x.shape[2], weight.shape[2]
    full = (depth - 1) * stride[0] + dilation[0] * (taps - 1) + more[0] + 1
    if full - 2 * padding[0] < 1:
        raise _C.ShapeError(
            f"conv_transpose3d: input {tuple(input.shape)} with padding {padding} leaves nothing (expected an "
            "output of at least 1)"
        )
    flat, y = x.transpose(1, 2).reshape(n * depth, x.shape[1], *x.shape[3:]), None
    for t in range(taps):
        part = _C.conv_transpose2d(flat, weight[:, :, t], None, stride[1:], padding[1:], more[1:], groups, dilation[1:])
        part = part.reshape(n, depth, *part.shape[1:]).unsqueeze(2)
        # planes that are stride apart
        spread = _C.constant_pad_nd(part, (0, 0, 0, 0, 0, 0, 0, stride[0] - 1)).flatten(1, 2)
        start = t * dilation[0]
        spread = _C.constant_pad_nd(
            spread, (0, 0, 0, 0, 0, 0, start - padding[0], full - padding[0] - start - spread.shape[1])
        )
        y = spread if y is None else y + spread
    y = y.transpose(1, 2)
    if bias is not None:
        y = y + bias.reshape(-1, 1, 1, 1)
    return y if batched else y.squeeze(0)


def bilinear(input1, input2, weight, bias=None):
    """y[..., k] = input1[..., i] weight[k, i, j] input2[..., j] + bias[k]."""
    if input1.shape[:-1] != input2.shape[:-1] or (input1.shape[-1], input2.shape[-1]) != tuple(weight.shape[1:]):
        shapes = ", ".join(str(tuple(t.shape)) for t in (input1, input2, weight))
        raise _C.ShapeError(f"bilinear: shapes {shapes} (expected [..., I], [..., J], [K, I, J])")
    k, i, j = weight.shape
    rows = _C.matmul(input1, weight.permute(1, 0, 2).reshape(i, k * j)).reshape(*input1.shape[:-1], k, j)
    y = (rows * input2.unsqueeze(-2)).sum(-1)
    return y if bias is None else y + bias
