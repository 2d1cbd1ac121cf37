"""Convolutions and linear maps."""

from pydist import _C

linear = _C.linear


def conv_padding(padding, kernel, stride, dilation):
    """(padding per side of each dim, elements to cut from the front of the result's dims). "same" needs stride 1; where
    dilation * (kernel - 1) is odd the front is padded by one too many, as PyTorch pads the back by one more."""
    count = len(kernel)
    if not isinstance(padding, str):
        return sizes_of("padding", padding, count), (0,) * count
    if padding == "valid":
        return (0,) * count, (0,) * count
    if padding != "same":
        raise ValueError(f"Invalid padding string {padding!r}, should be one of 'valid', 'same'")
    if any(s != 1 for s in sizes_of("stride", stride, count)):
        raise ValueError("padding='same' is not supported for strided convolutions")
    total = [d * (k - 1) for d, k in zip(sizes_of("dilation", dilation, count), kernel)]
    return tuple((t + 1) // 2 for t in total), tuple(t % 2 for t in total)


def sizes_of(name, value, count):
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
    (stride,), (dilation,) = sizes_of("stride", stride, 1), sizes_of("dilation", dilation, 1)
    x, w = input.unsqueeze(-2), weight.unsqueeze(2)
    y = conv2d(x, w, bias, (1, stride), (0, *padding), (1, dilation), groups).squeeze(-2)
    return y[..., cut[0] :] if cut[0] else y
