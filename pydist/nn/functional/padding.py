"""Padding, and rearrangements of pixels and windows."""

from itertools import islice

from pydist import _C
from pydist._C import pad_around
from pydist._autocast import as_given, in_float32
from pydist._functions._register import few_pieces
from pydist.nn.functional.conv import conv_transpose2d, sizes_of


def pad(input, pad, mode="constant", value=None):
    """input with pad[0] elements before and pad[1] elements after it along the last dimension, pad[2] and pad[3] along
    the dimension before that, and so on. Negative numbers remove elements.

    mode "constant": all new elements are `value` (0); "reflect": mirrored at the border element; "replicate": copies of
    the border element; "circular": taken from the other end. Raises ValueError for another mode, NotImplementedError
    for a pad that does not have two numbers for all dimensions except the leading one or two, RuntimeError if input is
    too short to be mirrored.

    >>> import pydist
    >>> pydist.nn.functional.pad(pydist.tensor([[1.0, 2.0, 3.0]]), (1, 2), "reflect").tolist()
    [[2.0, 1.0, 2.0, 3.0, 2.0, 1.0]]
    """
    pad = tuple(int(p) for p in islice(pad, 2 * input.dim() + 1))  # too many numbers raise an error below
    if mode == "constant":
        return _C.constant_pad_nd(input, pad, 0 if value is None else value)
    if mode not in ("reflect", "replicate", "circular"):
        raise ValueError(f"pad: mode is {mode!r} (expected constant, reflect, replicate or circular)")
    if value is not None and value != 0:
        raise ValueError(f"pad: value is {value} (expected no value for mode {mode!r})")
    if len(pad) % 2 or len(pad) > 6 or not 1 <= input.dim() - len(pad) // 2 <= 2:
        shape = tuple(input.shape)
        raise NotImplementedError(
            f"pad: {len(pad)} numbers for shape {shape} in mode {mode!r} (expected two numbers per dimension)"
        )
    sizes = [n + b + a for n, b, a in zip(reversed(input.shape), pad[::2], pad[1::2])]
    if min(sizes) < 1:
        raise RuntimeError(f"pad: {pad} leaves nothing of shape {tuple(input.shape)}")
    extend = _extended if mode == "circular" else in_float32(_extended)
    return extend(input, pad, mode)


def _extended(input, pad, mode):
    more, less = [max(p, 0) for p in pad], [min(p, 0) for p in pad]
    if mode == "circular" and any(less):  # constant: around what is left; the other modes continue the whole input
        input, less = _C.constant_pad_nd(input, less), []
    input = pad_around(input, more, mode) if any(more) else input
    return _C.constant_pad_nd(input, less) if any(less) else input


def pixel_shuffle(input, upscale_factor):
    """input[..., C r^2, H, W] as [..., C, H r, W r] (Shi et al., 2016)."""
    r = upscale_factor
    if input.dim() < 3 or r < 1 or input.shape[-3] % (r * r):
        shape = tuple(input.shape)
        raise RuntimeError(
            f"pixel_shuffle: shape {shape}, factor {r} (expected [..., C, H, W], C divisible by its square)"
        )
    *lead, c, h, w = input.shape
    parts = input.reshape(*lead, c // (r * r), r, r, h, w)
    n = len(lead)
    order = (*range(n + 1), n + 3, n + 1, n + 4, n + 2)
    return parts.permute(order).reshape(*lead, c // (r * r), h * r, w * r)


def pixel_unshuffle(input, downscale_factor):
    """input[..., C, H r, W r] as [..., C r^2, H, W]: the inverse of pixel_shuffle."""
    r = downscale_factor
    if input.dim() < 3 or r < 1 or input.shape[-1] % r or input.shape[-2] % r:
        shape = tuple(input.shape)
        raise RuntimeError(
            f"pixel_unshuffle: shape {shape}, factor {r} (expected [..., C, H, W], H and W divisible by it)"
        )
    *lead, c, h, w = input.shape
    parts = input.reshape(*lead, c, h // r, r, w // r, r)
    n = len(lead)
    order = (*range(n + 1), n + 2, n + 4, n + 1, n + 3)
    return parts.permute(order).reshape(*lead, c * r * r, h // r, w // r)


def channel_shuffle(input, groups):
    """The channels (dimension 1) of [N, C, ...], written in `groups` rows and read by columns (Zhang et al., 2018)."""
    if input.dim() < 3 or groups < 1 or input.shape[1] % groups:
        shape = tuple(input.shape)
        raise RuntimeError(
            f"channel_shuffle: shape {shape}, groups {groups} (expected [N, C, ...], C divisible by groups)"
        )
    parts = input.reshape(input.shape[0], groups, input.shape[1] // groups, *input.shape[2:])
    return parts.transpose(1, 2).reshape(input.shape)


def _window_counts(name, size, kernel, dilation, padding, stride):
    counts = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, d, p, s in zip(size, kernel, dilation, padding, stride)]
    if min(counts) < 1 or min(kernel) < 1:
        raise RuntimeError(
            f"{name}: windows {kernel} (dilation {dilation}) do not fit into {tuple(size)} with padding {padding}"
        )
    return counts


def _pairs(**named):
    pairs = [sizes_of(name, value, 2) for name, value in named.items()]
    for name, pair in zip(named, pairs):
        if min(pair) < (least := 0 if name == "padding" else 1):
            raise RuntimeError(f"{name} is {pair} (expected at least {least})")
    return pairs


def unfold(input, kernel_size, dilation=1, padding=0, stride=1):
    """The windows of input[N, C, H, W] (or [C, H, W]) as columns: [N, C * elements of the kernel, windows]."""
    if input.dim() not in (3, 4):
        raise RuntimeError(f"unfold: input has shape {tuple(input.shape)} (expected [N, C, H, W] or [C, H, W])")
    if input.dim() == 3:
        return unfold(input.unsqueeze(0), kernel_size, dilation, padding, stride).squeeze(0)
    kernel, dilation, padding, stride = _pairs(
        kernel_size=kernel_size, dilation=dilation, padding=padding, stride=stride
    )
    rows, columns = _window_counts("unfold", input.shape[2:], kernel, dilation, padding, stride)
    few_pieces("unfold", kernel[0] * kernel[1])
    if any(padding):
        input = _C.constant_pad_nd(input, (padding[1], padding[1], padding[0], padding[0]))
    taps = []
    for i in range(0, kernel[0] * dilation[0], dilation[0]):
        for j in range(0, kernel[1] * dilation[1], dilation[1]):
            bottom, right = i + (rows - 1) * stride[0] + 1, j + (columns - 1) * stride[1] + 1
            taps.append(input[:, :, i : bottom : stride[0], j : right : stride[1]])
    n, c = input.shape[:2]
    return _C.stack(taps, 2).reshape(n, c * len(taps), rows * columns)


@as_given
def fold(input, output_size, kernel_size, dilation=1, padding=0, stride=1):
    """The image [N, C, *output_size] (or without N). Each element is the sum of all its copies in the windows input[N,
    C * elements of the kernel, windows]. It is the transpose of unfold."""
    if input.dim() not in (2, 3):
        raise RuntimeError(f"fold: input has shape {tuple(input.shape)} (expected [N, C * kernel, windows])")
    if input.dim() == 2:
        return fold(input.unsqueeze(0), output_size, kernel_size, dilation, padding, stride).squeeze(0)
    kernel, dilation, padding, stride = _pairs(
        kernel_size=kernel_size, dilation=dilation, padding=padding, stride=stride
    )
    size = sizes_of("output_size", output_size, 2)
    counts, taps = _window_counts("fold", size, kernel, dilation, padding, stride), kernel[0] * kernel[1]
    n, rows, columns = input.shape
    if rows % taps or columns != counts[0] * counts[1]:
        want = f"[N, a multiple of {taps}, {counts[0] * counts[1]}]"
        raise RuntimeError(f"fold: input has shape {tuple(input.shape)} (expected {want})")
    channels = rows // taps
    # every window adds its own elements: a transposed convolution with the unit windows
    units = (
        _C.zeros(taps, taps, dtype=input.dtype, device=input.device)
        .fill_diagonal_(1)
        .reshape(taps, 1, *kernel)
        .repeat(channels, 1, 1, 1)
    )
    more = [
        full - ((count - 1) * s - 2 * p + d * (k - 1) + 1)
        for full, count, s, p, d, k in zip(size, counts, stride, padding, dilation, kernel)
    ]
    image = conv_transpose2d(input.reshape(n, rows, *counts), units, None, stride, padding, 0, channels, dilation)
    return _C.constant_pad_nd(image, (0, more[1], 0, more[0])) if any(more) else image
