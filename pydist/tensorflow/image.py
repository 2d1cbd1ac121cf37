"""tf.image: images [height, width, channels], or batches of them."""

import enum as _enum
import math as _math

import pydist as _pydist
from pydist import _C, _functions
from pydist.tensorflow import _arrays as _a
from pydist.tensorflow import _tensors as _t
from pydist.tensorflow import io as _io
from pydist.tensorflow import random as _random
from pydist.tensorflow._names import lacking as _lacking
from pydist.tensorflow.io import decode_bmp as decode_bmp
from pydist.tensorflow.io import decode_gif as decode_gif
from pydist.tensorflow.io import decode_image as decode_image
from pydist.tensorflow.io import decode_jpeg as decode_jpeg
from pydist.tensorflow.io import decode_png as decode_png
from pydist.tensorflow.io import encode_jpeg as encode_jpeg
from pydist.tensorflow.io import encode_png as encode_png
from pydist.tensorflow.io import is_jpeg as is_jpeg

# Dtypes.


def _most(dtype):
    return 1.0 if dtype.is_floating_point else _pydist.iinfo(dtype).max


def convert_image_dtype(image, dtype, saturate=False, name=None):
    """The image in another dtype, whose range its values fill: floats are from 0 to 1."""
    image, dtype = _t.tensor(image), _t.as_dtype(dtype)
    if image.dtype is dtype:
        return image
    if image.dtype.is_floating_point and dtype.is_floating_point:
        return image.to(dtype)
    if dtype.is_floating_point:
        return image.to(dtype) * (1.0 / _most(image.dtype))
    if image.dtype.is_floating_point:
        scaled = image * (_most(dtype) + 0.5)
        return _a.saturate_cast(scaled, dtype) if saturate else scaled.to(dtype)
    old, new = _most(image.dtype), _most(dtype)
    if old > new:
        small = _C.floor_divide(image, (old + 1) // (new + 1))
        return _a.saturate_cast(small, dtype) if saturate else small.to(dtype)
    return image.to(dtype) * ((new + 1) // (old + 1))


def _in_float(function, image, limit=True):
    """function(the image as floats), in the image's dtype."""
    image = _t.tensor(image)
    if image.dtype.is_floating_point:
        return function(image)
    return convert_image_dtype(function(convert_image_dtype(image, _C.float32)), image.dtype, saturate=limit)


def per_image_standardization(image):
    """(x - mean) / deviation of each image; the deviation is at least 1 / sqrt(elements)."""
    x = _t.tensor(image)
    x = x if x.is_floating_point() else x.to(_C.float32)
    axes, count = (-3, -2, -1), _math.prod(x.shape[-3:])
    mean = _C.mean(x, axes, True)
    deviation = _C.sqrt(_C.mean(_C.square(x - mean), axes, True))
    return (x - mean) / _C.clamp(deviation, count**-0.5)


# Sizes.


class ResizeMethod(str, _enum.Enum):
    """How pixels between pixels are computed."""

    BILINEAR, NEAREST_NEIGHBOR, BICUBIC, AREA = "bilinear", "nearest", "bicubic", "area"
    LANCZOS3, LANCZOS5, GAUSSIAN, MITCHELLCUBIC = "lanczos3", "lanczos5", "gaussian", "mitchellcubic"


def _lanczos(a):
    def kernel(x):
        inside = _C.where(x.abs() < 1e-3, _C.ones_like(x), x * _math.pi)
        value = a * _C.sin(inside) * _C.sin(inside / a) / (inside * inside)
        return _C.where(x.abs() < 1e-3, _C.ones_like(x), _C.where(x.abs() < a, value, _C.zeros_like(x)))

    return kernel


def _cubic(b, c):
    """The cubic kernels of Mitchell and Netravali."""

    def kernel(x):
        x = x.abs()
        near = ((12 - 9 * b - 6 * c) * x + (-18 + 12 * b + 6 * c)) * x * x + (6 - 2 * b)
        far = (((-b - 6 * c) * x + (6 * b + 30 * c)) * x + (-12 * b - 48 * c)) * x + (8 * b + 24 * c)
        return _C.where(x < 1, near, _C.where(x < 2, far, _C.zeros_like(x))) / 6

    return kernel


_KERNELS = {  # and how far each reaches
    "bilinear": (lambda x: _C.clamp(1 - x.abs(), 0), 1),
    "bicubic": (_cubic(0, 0.5), 2),
    "mitchellcubic": (_cubic(1 / 3, 1 / 3), 2),
    "lanczos3": (_lanczos(3), 3),
    "lanczos5": (_lanczos(5), 5),
    "gaussian": (lambda x: _C.where(x.abs() < 1.5, _C.exp(-x * x / (2 * 0.5**2)), _C.zeros_like(x)), 1.5),
}


def _weights(old, new, method, antialias):
    """[new, old]: how much of each old pixel is in a new one."""
    places, scale = _C.arange(old, dtype=_C.float64), old / new
    if method == "area":
        begin = _C.arange(new, dtype=_C.float64)[:, None] * scale
        shared = _C.clamp(_C.minimum(begin + scale, places + 1) - _C.maximum(begin, places), 0)
        return shared / _C.sum(shared, 1, True)
    kernel, _ = _KERNELS[method]
    width = max(scale, 1.0) if antialias else 1.0
    centre = (_C.arange(new, dtype=_C.float64)[:, None] + 0.5) * scale
    if method == "bicubic" and not antialias:  # TensorFlow looks its weights up in a table of 1024 rows
        whole = _C.floor(centre - 0.5)
        centre = whole + _C.round((centre - 0.5 - whole) * 1024) / 1024 + 0.5
    found = kernel((places + 0.5 - centre) / width)
    return found / _C.sum(found, 1, True)


def _sized(size, where):
    numbers = _t.ints(size)
    if len(numbers) != 2 or min(numbers) < 0:
        raise ValueError(f"image.{where}: size is {numbers} (expected height and width)")
    return numbers


def resize(images, size, method="bilinear", preserve_aspect_ratio=False, antialias=False, name=None):
    """Images of another size, as float32; "nearest" keeps the dtype. With preserve_aspect_ratio the size is the
    most."""
    x, (height, width) = _t.tensor(images), _sized(size, "resize")
    method = getattr(method, "value", method)
    if x.ndim not in (3, 4):
        raise ValueError(f"image.resize: got a tensor of {x.ndim} axes (expected [height, width, channels] or a batch)")
    old_height, old_width = x.shape[-3:-1]
    if preserve_aspect_ratio:
        scale = min(height / old_height, width / old_width)
        height, width = round(old_height * scale), round(old_width * scale)
    if (height, width) == (old_height, old_width):
        return x if method == "nearest" else x.to(_C.float32)
    if method == "nearest":
        for axis, new, old in ((-3, height, old_height), (-2, width, old_width)):
            places = _C.clamp(_C.floor((_C.arange(new, dtype=_C.float64) + 0.5) * (old / new)).to(_C.int64), 0, old - 1)
            x = _C.index_select(x, axis, places)
        return x
    if method != "area" and method not in _KERNELS:
        raise ValueError(f"image.resize: method is {method!r} (expected one of {[m.value for m in ResizeMethod]})")
    soft = antialias or method in ("lanczos3", "lanczos5", "gaussian", "mitchellcubic")
    x = x.to(_C.float32)
    rows = _weights(old_height, height, method, antialias if soft else False).to(_C.float32)
    columns = _weights(old_width, width, method, antialias if soft else False).to(_C.float32)
    y = _C.matmul(rows, x.reshape(*x.shape[:-2], -1)).reshape(*x.shape[:-3], height, old_width, x.shape[-1])
    return _C.matmul(columns, y)


def crop_to_bounding_box(image, offset_height, offset_width, target_height, target_width):
    """The part of this size that begins at an offset."""
    x = _a.identity(image)
    top, left, height, width = (_t.ints(n)[0] for n in (offset_height, offset_width, target_height, target_width))
    if min(top, left) < 0 or min(height, width) < 1 or top + height > x.shape[-3] or left + width > x.shape[-2]:
        raise ValueError(
            f"image.crop_to_bounding_box: {height} x {width} at ({top}, {left}) of an image of {x.shape[-3]} x "
            f"{x.shape[-2]} (expected a "
            "part of it)"
        )
    return x[..., top : top + height, left : left + width, :]


def pad_to_bounding_box(image, offset_height, offset_width, target_height, target_width):
    """The image within zeros, at an offset of an image of this size."""
    x = _t.tensor(image)
    top, left, height, width = (_t.ints(n)[0] for n in (offset_height, offset_width, target_height, target_width))
    below, right = height - top - x.shape[-3], width - left - x.shape[-2]
    if min(top, left, below, right) < 0:
        raise ValueError(
            f"image.pad_to_bounding_box: an image of {x.shape[-3]} x {x.shape[-2]} at ({top}, {left}) of {height} x "
            f"{width} (expected "
            "room for it)"
        )
    return _C.constant_pad_nd(x, [0, 0, left, right, top, below], 0)


def resize_with_crop_or_pad(image, target_height, target_width):
    """The middle of the image, or the image in the middle of zeros."""
    x, height, width = _t.tensor(image), _t.ints(target_height)[0], _t.ints(target_width)[0]
    top, left = max((x.shape[-3] - height) // 2, 0), max((x.shape[-2] - width) // 2, 0)
    x = crop_to_bounding_box(x, top, left, min(height, x.shape[-3]), min(width, x.shape[-2]))
    above, before = max((height - x.shape[-3]) // 2, 0), max((width - x.shape[-2]) // 2, 0)
    return pad_to_bounding_box(x, above, before, height, width)


def resize_with_pad(image, target_height, target_width, method="bilinear", antialias=False):
    """The image resized to fit, in the middle of zeros."""
    x, height, width = _t.tensor(image), _t.ints(target_height)[0], _t.ints(target_width)[0]
    ratio = max(x.shape[-2] / width, x.shape[-3] / height)
    inner_height, inner_width = _math.floor(x.shape[-3] / ratio), _math.floor(x.shape[-2] / ratio)
    above = max(0, _math.floor((height - x.shape[-3] / ratio) / 2))
    before = max(0, _math.floor((width - x.shape[-2] / ratio) / 2))
    return pad_to_bounding_box(
        resize(x, [inner_height, inner_width], method, antialias=antialias), above, before, height, width
    )


def central_crop(image, central_fraction):
    """The middle part of the image, this fraction of its height and width."""
    x, fraction = _t.tensor(image), float(central_fraction)
    if not 0 < fraction <= 1:
        raise ValueError(f"image.central_crop: central_fraction is {fraction} (expected above 0, at most 1)")
    top, left = (int((n - n * fraction) / 2) for n in x.shape[-3:-1])
    return crop_to_bounding_box(x, top, left, x.shape[-3] - 2 * top, x.shape[-2] - 2 * left)


def extract_patches(images, sizes, strides, rates, padding, name=None):
    """[batch, rows, columns, patch]: the pixels of windows, in one axis."""
    x = _t.tensor(images)
    (_, kh, kw, _), (_, sh, sw, _), (_, rh, rw, _) = (_t.ints(v) for v in (sizes, strides, rates))
    channels = x.shape[-1]
    eye = _pydist.eye(kh * kw * channels, dtype=_C.float32).reshape(kh, kw, channels, kh * kw * channels)
    from pydist.tensorflow import nn

    found = nn.conv2d(x.to(_C.float32), eye, [sh, sw], padding, dilations=[rh, rw])
    return found.to(x.dtype)


def crop_and_resize(image, boxes, box_indices, crop_size, method="bilinear", extrapolation_value=0.0, name=None):
    """Parts of images, resized: boxes are [y1, x1, y2, x2] from 0 to 1, box_indices the number of the image of each."""
    x, boxes = _t.tensor(image).to(_C.float32), _t.tensor(boxes).to(_C.float32)
    numbers, (height, width) = _t.ints(box_indices), _sized(crop_size, "crop_and_resize")
    if method not in ("bilinear", "nearest"):
        raise ValueError(f"image.crop_and_resize: method is {method!r} (expected 'bilinear' or 'nearest')")
    crops = [_cropped(x[n], box, height, width, method, extrapolation_value) for n, box in zip(numbers, boxes.tolist())]
    return _C.stack(crops) if crops else _C.empty(0, height, width, x.shape[-1])


def _cropped(image, box, height, width, method, outside):
    def places(begin, end, new, old):
        if new > 1:
            return begin * (old - 1) + _C.arange(new, dtype=_C.float32) * ((end - begin) * (old - 1) / (new - 1))
        return _C.tensor([0.5 * (begin + end) * (old - 1)])

    y1, x1, y2, x2 = box
    rows, columns = places(y1, y2, height, image.shape[0]), places(x1, x2, width, image.shape[1])
    inside = ((rows >= 0) & (rows <= image.shape[0] - 1))[:, None] & (columns >= 0) & (columns <= image.shape[1] - 1)
    if method == "nearest":
        at = [
            _C.clamp(_C.round(p).to(_C.int64), 0, n - 1) for p, n in ((rows, image.shape[0]), (columns, image.shape[1]))
        ]
        found = image[at[0]][:, at[1]]
    else:
        found = _between(_between(image, rows, 0), columns, 1)
    return _C.where(inside[..., None], found, outside)


def _between(image, places, axis):
    low = _C.clamp(_C.floor(places), 0, image.shape[axis] - 1)
    high = _C.clamp(_C.ceil(places), 0, image.shape[axis] - 1)
    part = (places - low).reshape([-1, 1, 1] if axis == 0 else [1, -1, 1])
    first, last = (_C.index_select(image, axis, p.to(_C.int64)) for p in (low, high))
    return first + (last - first) * part


# Turned.


def flip_left_right(image):
    """The image, mirrored."""
    return _C.flip(_t.tensor(image), [-2])


def flip_up_down(image):
    """The image, upside down."""
    return _C.flip(_t.tensor(image), [-3])


def transpose(image, name=None):
    """The image with rows and columns exchanged."""
    return _functions.swapaxes(_a.identity(image), -3, -2)


def rot90(image, k=1, name=None):
    """The image, turned by 90 degrees against the clock, k times."""
    return _functions.rot90(_t.tensor(image), _t.ints(k)[0], (-3, -2))


# Colours.


def rgb_to_grayscale(images, name=None):
    """One channel of the three."""

    def gray(x):
        return _C.sum(x * _C.tensor([0.2989, 0.5870, 0.1140], dtype=x.dtype), -1, True)

    return _in_float(gray, images, limit=False)


def grayscale_to_rgb(images, name=None):
    """Three equal channels of the one."""
    x = _t.tensor(images)
    return x.expand(*x.shape[:-1], 3).clone()


def rgb_to_hsv(images, name=None):
    """Hue, saturation and value, from 0 to 1."""
    x = _t.tensor(images)
    r, g, b = _functions.unbind(x, -1)
    value, least = _C.amax(x, -1), _C.amin(x, -1)
    span = value - least
    safe = _C.where(span > 0, span, _C.ones_like(span))
    hue = _C.where(value == r, (g - b) / safe, _C.where(value == g, (b - r) / safe + 2, (r - g) / safe + 4)) / 6
    hue = _C.where(span > 0, _C.remainder(hue, 1.0), _C.zeros_like(hue))
    saturation = _C.where(value > 0, span / _C.where(value > 0, value, _C.ones_like(value)), _C.zeros_like(value))
    return _C.stack([hue, saturation, value], -1)


def hsv_to_rgb(images, name=None):
    """Red, green and blue of hue, saturation and value."""
    h, s, v = _functions.unbind(_t.tensor(images), -1)
    h6 = h * 6
    channels = [
        _C.clamp(_C.abs(h6 - 3) - 1, 0, 1),
        _C.clamp(2 - _C.abs(h6 - 2), 0, 1),
        _C.clamp(2 - _C.abs(h6 - 4), 0, 1),
    ]
    return _C.stack([v * (1 - s + s * c) for c in channels], -1)


def adjust_brightness(image, delta):
    """The image with delta added; integers as parts of their range."""
    return _in_float(lambda x: x + float(delta), image)


def adjust_contrast(images, contrast_factor):
    """The distance of each pixel from its channel's mean, times a factor."""

    def changed(x):
        mean = _C.mean(x, (-3, -2), True)
        return (x - mean) * float(contrast_factor) + mean

    return _in_float(changed, images)


def adjust_hue(image, delta, name=None):
    """The hue turned by delta, from -1 to 1."""
    if not -1 <= float(delta) <= 1:
        raise ValueError(f"image.adjust_hue: delta is {float(delta)} (expected -1 to 1)")

    def changed(x):
        hsv = rgb_to_hsv(x)
        return hsv_to_rgb(_C.cat([_C.remainder(hsv[..., :1] + float(delta), 1.0), hsv[..., 1:]], -1))

    return _in_float(changed, image)


def adjust_saturation(image, saturation_factor, name=None):
    """The saturation times a factor, at most 1."""

    def changed(x):
        hsv = rgb_to_hsv(x)
        saturation = _C.clamp(hsv[..., 1:2] * float(saturation_factor), 0, 1)
        return hsv_to_rgb(_C.cat([hsv[..., :1], saturation, hsv[..., 2:]], -1))

    return _in_float(changed, image)


def adjust_gamma(image, gamma=1, gain=1):
    """gain * x ** gamma, of values from 0 to 1."""
    if float(gamma) < 0:
        raise ValueError(f"image.adjust_gamma: gamma is {float(gamma)} (expected 0 or more)")
    return _in_float(lambda x: float(gain) * x ** float(gamma), image)


def adjust_jpeg_quality(image, jpeg_quality, name=None):
    """The image after it was a JPEG file of this quality."""
    x = _t.tensor(image)
    packed = _io.encode_jpeg(convert_image_dtype(x, _C.uint8, saturate=True), quality=_t.ints(jpeg_quality)[0])
    return convert_image_dtype(decode_jpeg(packed, channels=x.shape[-1]), x.dtype, saturate=True)


# By chance: `seed` as in tf.random; the stateless forms take two numbers.


def _number(low, high, seed, stateless, dtype="float32"):
    if stateless:
        return _random.stateless_uniform([], seed, low, high, dtype).item()
    return _random.uniform([], low, high, dtype, seed).item()


def _flipped(image, flip, seed, stateless):
    x = _t.tensor(image)
    if x.ndim == 3:
        return flip(x) if _number(0.0, 1.0, seed, stateless) < 0.5 else x
    numbers = _random.stateless_uniform([len(x)], seed) if stateless else _random.uniform([len(x)], seed=seed)
    return _C.where((numbers < 0.5).reshape(-1, 1, 1, 1), flip(x), x)


def _cropped_by_chance(value, size, seed, stateless):
    x, sizes = _a.identity(value), _t.ints(size)
    if len(sizes) != x.ndim or any(n > have for n, have in zip(sizes, x.shape)):
        raise ValueError(
            f"image.random_crop: size is {sizes} for a tensor of shape {tuple(x.shape)} (expected a part of it)"
        )
    limits = [have - n + 1 for n, have in zip(sizes, x.shape)]
    most = 1 << 30
    numbers = _random.stateless_uniform([x.ndim], seed, 0, most, "int32") if stateless else (
        _random.uniform([x.ndim], 0, most, "int32", seed))  # fmt: skip
    begins = [n % limit for n, limit in zip(numbers.tolist(), limits)]
    return x[tuple(slice(b, b + n) for b, n in zip(begins, sizes))]


def _span(lower, upper, name, least=0):
    if not least <= lower < upper:
        raise ValueError(f"image.{name}: lower and upper are {lower} and {upper} (expected {least} <= lower < upper)")
    return lower, upper


def random_flip_left_right(image, seed=None):
    """The image, mirrored with a chance of one half."""
    return _flipped(image, flip_left_right, seed, False)


def stateless_random_flip_left_right(image, seed):
    """random_flip_left_right, by a seed of two numbers alone."""
    return _flipped(image, flip_left_right, seed, True)


def random_flip_up_down(image, seed=None):
    """The image, upside down with a chance of one half."""
    return _flipped(image, flip_up_down, seed, False)


def stateless_random_flip_up_down(image, seed):
    """random_flip_up_down, by a seed of two numbers alone."""
    return _flipped(image, flip_up_down, seed, True)


def random_crop(value, size, seed=None, name=None):
    """A part of this size, at a random place."""
    return _cropped_by_chance(value, size, seed, False)


def stateless_random_crop(value, size, seed, name=None):
    """random_crop, by a seed of two numbers alone."""
    return _cropped_by_chance(value, size, seed, True)


def random_brightness(image, max_delta, seed=None):
    """adjust_brightness by a random number from -max_delta to max_delta."""
    _span(-max_delta, max_delta, "random_brightness", -max_delta)
    return adjust_brightness(image, _number(-max_delta, max_delta, seed, False))


def stateless_random_brightness(image, max_delta, seed):
    """random_brightness, by a seed of two numbers alone."""
    _span(-max_delta, max_delta, "stateless_random_brightness", -max_delta)
    return adjust_brightness(image, _number(-max_delta, max_delta, seed, True))


def random_contrast(image, lower, upper, seed=None):
    """adjust_contrast by a random factor."""
    return adjust_contrast(image, _number(*_span(lower, upper, "random_contrast"), seed, False))


def stateless_random_contrast(image, lower, upper, seed):
    """random_contrast, by a seed of two numbers alone."""
    return adjust_contrast(image, _number(*_span(lower, upper, "stateless_random_contrast"), seed, True))


def random_hue(image, max_delta, seed=None):
    """adjust_hue by a random number from -max_delta to max_delta."""
    return adjust_hue(image, _number(*_span(-max_delta, max_delta, "random_hue", -0.5), seed, False))


def stateless_random_hue(image, max_delta, seed):
    """random_hue, by a seed of two numbers alone."""
    return adjust_hue(image, _number(*_span(-max_delta, max_delta, "stateless_random_hue", -0.5), seed, True))


def random_saturation(image, lower, upper, seed=None):
    """adjust_saturation by a random factor."""
    return adjust_saturation(image, _number(*_span(lower, upper, "random_saturation"), seed, False))


def stateless_random_saturation(image, lower, upper, seed=None):
    """random_saturation, by a seed of two numbers alone."""
    return adjust_saturation(image, _number(*_span(lower, upper, "stateless_random_saturation"), seed, True))


def random_jpeg_quality(image, min_jpeg_quality, max_jpeg_quality, seed=None):
    """adjust_jpeg_quality by a random quality."""
    return adjust_jpeg_quality(image, _number(min_jpeg_quality, max_jpeg_quality, seed, False, "int32"))


def stateless_random_jpeg_quality(image, min_jpeg_quality, max_jpeg_quality, seed):
    """random_jpeg_quality, by a seed of two numbers alone."""
    return adjust_jpeg_quality(image, _number(min_jpeg_quality, max_jpeg_quality, seed, True, "int32"))


# Measured.


def total_variation(images, name=None):
    """The sum of the absolute differences of neighbouring pixels, for each image."""
    x = _t.tensor(images)
    rows, columns = _C.abs(x[..., 1:, :, :] - x[..., :-1, :, :]), _C.abs(x[..., :, 1:, :] - x[..., :, :-1, :])
    return _C.sum(rows, (-3, -2, -1), False, x.dtype) + _C.sum(columns, (-3, -2, -1), False, x.dtype)


def image_gradients(image):
    """(differences of rows, differences of columns) of a batch; the last ones are 0."""
    x = _t.tensor(image)
    dy = _C.constant_pad_nd(x[:, 1:] - x[:, :-1], [0, 0, 0, 0, 0, 1], 0)
    dx = _C.constant_pad_nd(x[:, :, 1:] - x[:, :, :-1], [0, 0, 0, 1], 0)
    return dy, dx


def sobel_edges(image):
    """[..., channels, 2]: how much a batch changes along rows and along columns."""
    x = _t.tensor(image)
    filters = [[[-1, -2, -1], [0, 0, 0], [1, 2, 1]], [[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]]]
    weight = _C.tensor(filters, dtype=_C.float32).permute(1, 2, 0)[:, :, None, :].expand(3, 3, x.shape[-1], 2)
    from pydist.tensorflow import nn

    padded = _a.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]], "REFLECT")
    return nn.depthwise_conv2d(padded, weight, [1, 1, 1, 1], "VALID").reshape(*x.shape, 2)


def psnr(a, b, max_val, name=None):
    """The peak signal-to-noise ratio of pairs of images."""
    a, b = (convert_image_dtype(v, _C.float32) for v in (a, b))
    most = float(max_val)
    a_dtype = _t.tensor(max_val)
    most = most if a_dtype.dtype.is_floating_point or most <= 1 else most / 255
    error = _C.mean(_C.square(a - b), (-3, -2, -1))
    return 20 * _math.log10(most) - 10 * _C.log10(error)


def ssim(img1, img2, max_val, filter_size=11, filter_sigma=1.5, k1=0.01, k2=0.03, return_index_map=False):
    """The structural similarity of pairs of images."""
    x, y = _t.tensor(img1), _t.tensor(img2)
    most = convert_image_dtype(_t.tensor(max_val).to(x.dtype), _C.float32).item()
    x, y = (convert_image_dtype(v, _C.float32) for v in (x, y))
    places = _C.arange(filter_size, dtype=_C.float32) - (filter_size - 1) / 2
    line = _C.exp(-places * places / (2 * filter_sigma**2))
    window = line[:, None] * line
    weight = (window / window.sum())[:, :, None, None].expand(filter_size, filter_size, x.shape[-1], 1)
    from pydist.tensorflow import nn

    def mean(v):
        flat = nn.depthwise_conv2d(v.reshape(-1, *v.shape[-3:]), weight, [1, 1, 1, 1], "VALID")
        return flat.reshape(*v.shape[:-3], *flat.shape[1:])

    mx, my = mean(x), mean(y)
    c1, c2 = (k1 * most) ** 2, (k2 * most) ** 2
    luminance = (2 * mx * my + c1) / (mx * mx + my * my + c1)
    structure = (2 * (mean(x * y) - mx * my) + c2) / (mean(x * x + y * y) - mx * mx - my * my + c2)
    found = luminance * structure
    return found if return_index_map else _C.mean(found, (-3, -2, -1))


def non_max_suppression(boxes, scores, max_output_size, iou_threshold=0.5, score_threshold=float("-inf"), name=None):
    """The numbers of the boxes with the best scores, without those that overlap a better one by more than
    iou_threshold."""
    from pydist.vision.ops import nms

    boxes, scores = _t.tensor(boxes).to(_C.float32), _t.tensor(scores).to(_C.float32)
    y1, x1, y2, x2 = _functions.unbind(boxes, -1)
    corners = _C.stack([_C.minimum(x1, x2), _C.minimum(y1, y2), _C.maximum(x1, x2), _C.maximum(y1, y2)], -1)
    there = _functions.nonzero(scores > float(score_threshold)).reshape(-1)
    kept = nms(corners[there], scores[there], float(iou_threshold))
    return there[kept][: _t.ints(max_output_size)[0]].to(_C.int32)


__getattr__ = _lacking(__name__)
