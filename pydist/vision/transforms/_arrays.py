"""Transforms of images as NumPy arrays [..., C, H, W]: the implementation of functional for tensors.

Results have torchvision's values: integers are computed in float32 and rounded to nearest, colours are truncated.
"""

import numpy as np


def bound_of(dtype):
    """The largest value of a channel: 1 for floating dtypes, otherwise the dtype's largest value."""
    return 1.0 if dtype.kind == "f" else 1 if dtype.kind == "b" else int(np.iinfo(dtype).max)


def _in_float(image):
    return image if image.dtype in (np.float32, np.float64) else image.astype(np.float32)


def _as_before(out, dtype):
    """`out` in the image's dtype. Integers are rounded (half to even) and limited to the dtype's range."""
    if out.dtype == dtype:
        return out
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        out = np.clip(np.rint(out), info.min, info.max)
    return out.astype(dtype)


# Resizing: one axis after the other. An output pixel is a weighted sum of a few input pixels.


def _triangle(x):
    return np.maximum(1.0 - np.abs(x), 0.0)


def _cubic(a):
    """Keys' cubic convolution kernel."""

    def kernel(x):
        x = np.abs(x)
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = (((x - 5) * x + 8) * x - 4) * a
        return np.where(x < 1, near, np.where(x < 2, far, 0.0))

    return kernel


# a is -0.5 in Pillow's cubic and in antialiasing here, and -0.75 in plain interpolation, as in PyTorch.
_FILTERS = {"bilinear": (_triangle, _triangle, 1), "bicubic": (_cubic(-0.5), _cubic(-0.75), 2)}


def _antialiased(old, new, kernel, reach):
    """(positions, weights), each [new, taps], for a kernel that is as wide as an output pixel."""
    scale = old / new
    width = max(scale, 1.0)
    centre = (np.arange(new)[:, None] + 0.5) * scale
    first, last = np.floor(centre - reach * width + 0.5), np.floor(centre + reach * width + 0.5)
    places = first + np.arange(np.ceil(2 * reach * width) + 1)
    is_in = (places >= 0) & (places < np.minimum(last, old))
    weights = np.where(is_in, kernel((places - centre + 0.5) / width), 0.0)
    return places, weights / weights.sum(1, keepdims=True)


def _interpolated(old, new, kernel, reach):
    """(positions, weights), each [new, 2 * reach], for the kernel over the nearest pixels. Beyond the edges, edge
    pixels are repeated."""
    centre = (np.arange(new)[:, None] + 0.5) * (old / new) - 0.5
    if reach == 1:
        centre = np.maximum(centre, 0.0)
    places = np.floor(centre) + np.arange(1 - reach, reach + 1)
    return places, kernel(centre - places)


def _weighted(data, axis, places, weights):
    """The sums of weights[:, k] * data at positions[:, k] along the axis, -1 or -2."""
    places = np.clip(places, 0, data.shape[axis] - 1).astype(np.intp)
    weights = weights.astype(data.dtype)
    out = None
    for place, weight in zip(places.T, weights.T):
        part = data.take(place, axis)
        part *= weight if axis == -1 else weight[:, None]
        out = part if out is None else np.add(out, part, out=out)
    return out


def _nearest(old, new, exact):
    scale = np.float32(old / new)
    x = (np.arange(new, dtype=np.float32) + np.float32(0.5 if exact else 0.0)) * scale
    return np.minimum(x.astype(int), old - 1)


def resize(image, size, mode, antialias):
    """`image` resized to height and width `size`. mode: "nearest", "nearest-exact", "bilinear" or "bicubic"."""
    height, width = image.shape[-2:]
    if mode.startswith("nearest"):
        rows, columns = (_nearest(old, new, mode == "nearest-exact") for old, new in zip((height, width), size))
        return image[..., rows[:, None], columns]
    smooth, plain, reach = _FILTERS[mode]
    make, kernel = (_antialiased, smooth) if antialias else (_interpolated, plain)
    data = _in_float(image)
    for axis, new in zip((-2, -1), size):
        data = _weighted(data, axis, *make(data.shape[axis], new, kernel, reach))
    return _as_before(data, image.dtype)


# Geometry.


def crop(image, top, left, height, width):
    """The part that starts at (top, left); zeros outside the image."""
    h, w = image.shape[-2:]
    if top >= 0 and left >= 0 and top + height <= h and left + width <= w:
        return image[..., top : top + height, left : left + width]
    inside = image[..., max(top, 0) : max(top + height, 0), max(left, 0) : max(left + width, 0)]
    out = np.zeros((*image.shape[:-2], height, width), image.dtype)
    y, x = max(-top, 0), max(-left, 0)
    out[..., y : y + inside.shape[-2], x : x + inside.shape[-1]] = inside
    return out


def pad(image, left, top, right, bottom, fill=0, mode="constant"):
    """np.pad of the last two axes; negative amounts crop."""
    height, width = image.shape[-2:]
    image = image[..., max(-top, 0) : height - max(-bottom, 0), max(-left, 0) : width - max(-right, 0)]
    amounts = [(0, 0)] * (image.ndim - 2) + [(max(top, 0), max(bottom, 0)), (max(left, 0), max(right, 0))]
    options = {"constant_values": fill} if mode == "constant" else {}
    return np.pad(image, amounts, mode, **options)


def _fill_of(fill, image):
    """`fill`, a number or one number for each channel, with the shape [C, 1, 1]."""
    fill = [float(value) for value in fill] if isinstance(fill, (tuple, list)) else [float(fill)]
    channels = image.shape[-3] if image.ndim > 2 else 1
    if len(fill) not in (1, channels):
        raise ValueError(
            "The number of elements in 'fill' cannot broadcast to match the number of channels of the image "
            f"({len(fill)} != {channels})"
        )
    return np.array(fill, np.float32).reshape(-1, 1, 1)


def _gather(image, y, x):
    """(image[..., y, x], whether (y, x) is inside the image). Values outside are 0."""
    height, width = image.shape[-2:]
    inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
    picked = image[..., np.clip(y, 0, height - 1).astype(int), np.clip(x, 0, width - 1).astype(int)]
    return picked * inside, inside


def _sampled(image, y, x, mode):
    """(the image at the positions (y, x), how much of each position is inside the image, 0 to 1)."""
    if mode == "nearest":
        return _gather(image, np.rint(y), np.rint(x))
    top, left = np.floor(y), np.floor(x)
    out = covered = 0.0
    for row in (0, 1):
        for column in (0, 1):
            weight = (1 - np.abs(y - top - row)) * (1 - np.abs(x - left - column))
            picked, inside = _gather(image, top + row, left + column)
            out, covered = out + picked * weight, covered + inside * weight
    return out, covered


def _filled(image, y, x, mode, fill):
    data = _in_float(image)
    out, covered = _sampled(data, y.astype(data.dtype), x.astype(data.dtype), mode)
    if fill is not None:
        colour = _fill_of(fill, image)
        out = np.where(covered < 0.5, colour, out) if mode == "nearest" else out * covered + (1 - covered) * colour
    return _as_before(out.astype(data.dtype), image.dtype)


def _output_size(matrix, width, height):
    """(width, height) that hold the rotated image."""
    corners = np.array([(x, y, 1.0) for x in (-0.5 * width, 0.5 * width) for y in (-0.5 * height, 0.5 * height)])
    # float32 drops the rounding error in the sine of a right angle
    turned = (corners @ np.array(matrix).reshape(2, 3).T).astype(np.float32) + np.float32([0.5 * width, 0.5 * height])
    step = np.float32(1e-4)  # smaller differences are rounding errors
    high = np.ceil(np.trunc(turned.max(0) / step) * step)
    low = np.floor(np.trunc(turned.min(0) / step) * step)
    return tuple(int(n) for n in high - low)


def affine(image, matrix, mode, fill, expand=False):
    """The image at matrix (a b c; d e f) @ (x, y, 1), for the position (x, y) of every output pixel, relative to the
    centre."""
    height, width = image.shape[-2:]
    new_width, new_height = _output_size(matrix, width, height) if expand else (width, height)
    a, b, c, d, e, f = matrix
    x = np.arange(new_width) + 0.5 - 0.5 * new_width
    y = (np.arange(new_height) + 0.5 - 0.5 * new_height)[:, None]
    return _filled(image, d * x + e * y + f + 0.5 * height - 0.5, a * x + b * y + c + 0.5 * width - 0.5, mode, fill)


def perspective(image, coefficients, mode, fill):
    """The image at ((a x + b y + c) / (g x + h y + 1), (d x + e y + f) / (g x + h y + 1)), for the centre (x, y) of
    every output pixel."""
    height, width = image.shape[-2:]
    a, b, c, d, e, f, g, h = coefficients
    x, y = np.arange(width) + 0.5, (np.arange(height) + 0.5)[:, None]
    below = g * x + h * y + 1.0
    return _filled(image, (d * x + e * y + f) / below - 0.5, (a * x + b * y + c) / below - 0.5, mode, fill)


# Colours.


def blend(first, second, ratio):
    """ratio * first + (1 - ratio) * second, limited to the range, in first's dtype."""
    ratio = float(ratio)
    return np.clip(ratio * _in_float(first) + (1.0 - ratio) * second, 0, bound_of(first.dtype)).astype(first.dtype)


def grayscale(image):
    """The luma of an RGB image, [..., 1, H, W], in the same dtype."""
    red, green, blue = np.moveaxis(image, -3, 0)
    return (0.2989 * _in_float(red) + 0.587 * green + 0.114 * blue).astype(image.dtype)[..., None, :, :]


def contrast(image, factor):
    gray = grayscale(image) if image.shape[-3] == 3 else image
    return blend(image, _in_float(gray).mean((-3, -2, -1), keepdims=True), factor)


def hue(image, factor):
    """Rotates every hue by `factor` of a full turn. image: floating, in [0, 1]."""
    red, green, blue = np.moveaxis(image, -3, 0)
    value, low = image.max(-3), image.min(-3)
    chroma = value - low
    is_gray = chroma == 0
    divisor = np.where(is_gray, 1, chroma)
    from_red, from_green, from_blue = ((value - channel) / divisor for channel in (red, green, blue))
    sector = np.where(
        value == red,
        from_blue - from_green,
        np.where(value == green, 2 + from_red - from_blue, 4 + from_green - from_red),
    )
    turned = np.mod(np.mod(sector / 6.0 + 1.0, 1.0) + factor, 1.0) * 6.0
    # a channel falls from value to low while the hue's distance from the channel's own hue grows from 1/6 to 2/6
    away = (np.abs(np.mod(turned - own + 3, 6.0) - 3) for own in (0.0, 2.0, 4.0))
    out = [value - chroma * np.clip(distance - 1, 0, 1) for distance in away]
    return np.stack(out, -3).astype(image.dtype)


def gamma(image, exponent, gain):
    return np.clip(gain * image**exponent, 0, 1)


# Filters.


def gaussian_weights(size, sigma):
    x = np.arange(size) - (size - 1) / 2
    weights = np.exp(-0.5 * (x / sigma) ** 2)
    return weights / weights.sum()


def gaussian_blur(image, sizes, sigmas):
    """Convolution with a Gaussian with `sizes` (x, y) and standard deviations `sigmas`. The edges are mirrored."""
    out = _in_float(image)
    for axis, size, sigma in zip((-1, -2), sizes, sigmas):
        half = size // 2
        amounts = [(0, 0)] * out.ndim
        amounts[axis] = (half, half)
        wide = np.lib.stride_tricks.sliding_window_view(np.pad(out, amounts, "reflect"), size, axis)
        out = wide @ gaussian_weights(size, sigma).astype(out.dtype)
    return _as_before(out, image.dtype)


def sharpness(image, factor):
    """A blend of the image with its smoothed version. The outermost pixels stay as they are."""
    if min(image.shape[-2:]) <= 2:
        return image
    kernel = np.ones((3, 3), np.float32)
    kernel[1, 1] = 5.0
    data = _in_float(image)
    windows = np.lib.stride_tricks.sliding_window_view(data, (3, 3), (-2, -1))
    smooth = data.copy()
    smooth[..., 1:-1, 1:-1] = _as_before((windows * (kernel / kernel.sum())).sum((-2, -1)), image.dtype)
    return blend(image, smooth, factor)


def autocontrast(image):
    """Stretches each channel to the whole range. A channel with only one value stays as it is."""
    bound = bound_of(image.dtype)
    data = _in_float(image)
    low, high = data.min((-2, -1), keepdims=True), data.max((-2, -1), keepdims=True)
    is_flat = high == low
    scale = np.where(is_flat, 1, bound / np.where(is_flat, 1, high - low))
    return np.clip((data - np.where(is_flat, 0, low)) * scale, 0, bound).astype(image.dtype)


def equalize(image):
    """Gives each uint8 channel a flat histogram."""
    flat = image.reshape(-1, image.shape[-2] * image.shape[-1])
    out = np.empty_like(flat)
    for channel, row in zip(flat, out):
        counts = np.bincount(channel, minlength=256)
        step = (len(channel) - counts[counts.nonzero()[0][-1]]) // 255
        if step == 0:
            row[:] = channel
        else:
            before = (np.cumsum(counts) + step // 2) // step
            row[:] = np.clip(np.concatenate(([0], before[:-1])), 0, 255)[channel]
    return out.reshape(image.shape)
