"""Transforms of one image, a Pillow image or a tensor [..., C, H, W], with explicit parameters.

NumPy computes tensors on the CPU, and results have no gradient (except normalize's). Raises TypeError if the image is
neither, and if a function for one kind gets the other.
"""

import math
import numbers
import sys
from collections.abc import Sequence
from enum import Enum

import numpy as np

import pydist
from pydist.vision._pillow import is_pil, pillow
from pydist.vision.transforms import _arrays


class InterpolationMode(Enum):
    """How values between pixels are computed. Tensors support the first four modes."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


_FOR_PIL = {"nearest": 0, "nearest-exact": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}
_FROM_PIL = {number: InterpolationMode(name) for name, number in _FOR_PIL.items() if name != "nearest-exact"}


def interpolation_of(value):
    """The InterpolationMode for `value` (a mode, or Pillow's number of one). Raises TypeError for any other object."""
    if isinstance(value, int):
        if value not in _FROM_PIL:
            raise ValueError(f"interpolation is {value} (expected one of Pillow's numbers, 0 to 5)")
        return _FROM_PIL[value]
    if not isinstance(value, InterpolationMode):
        raise TypeError(
            "Argument interpolation should be a InterpolationMode or a corresponding Pillow integer constant"
        )
    return value


def _for_tensors(mode, known):
    if mode.value not in known:
        raise ValueError(
            f"Interpolation mode '{mode.value}' is unsupported with Tensor input (expected one of {', '.join(known)})"
        )
    return mode.value


_SAMPLING = ("nearest", "bilinear")
_RESIZING = ("nearest", "nearest-exact", "bilinear", "bicubic")


def _is_tensor(img, name="img"):
    """True for a tensor, False for a Pillow image. Raises TypeError for any other object."""
    if isinstance(img, pydist.Tensor):
        if img.dim() < 2:
            raise TypeError(f"{name}: Tensor is not a torch image: {img.dim()} dims (expected [..., H, W])")
        return True
    if is_pil(img):
        return False
    raise TypeError(f"{name} should be PIL Image or Tensor. Got {type(img)}")


def _with_arrays(img, function, *args):
    """The tensor that `function` makes of the image as an array. bfloat16, which NumPy does not have, goes through
    float32."""
    if img.dtype == pydist.bfloat16:
        return _with_arrays(img.float(), function, *args).to(img.dtype)
    data = img.detach().cpu()
    out = function(data.numpy(), *args)
    if not out.flags.c_contiguous or not out.flags.writeable or np.may_share_memory(out, data.numpy()):
        out = out.copy(order="C")
    return pydist.from_numpy(out)


def _colours(img, known=(1, 3)):
    """Checks and returns the number of a tensor's channels."""
    channels = get_dimensions(img)[0]
    if channels not in known:
        raise TypeError(f"Input image tensor permitted channel values are {list(known)}, but found {channels}")
    if img.numel() == 0:
        raise ValueError(f"the image has shape {tuple(img.shape)} (expected at least one pixel)")
    return channels


# Sizes.


def get_dimensions(img):
    """[channels, height, width]."""
    if _is_tensor(img):
        return [1 if img.dim() == 2 else img.shape[-3], *img.shape[-2:]]
    return [len(img.getbands()), img.height, img.width]


def get_image_size(img):
    """[width, height]."""
    _, height, width = get_dimensions(img)
    return [width, height]


def get_image_num_channels(img):
    """The number of channels."""
    return get_dimensions(img)[0]


# Kinds of images.

_WIDE = "I;16" if sys.byteorder == "little" else "I;16B"
_TYPES = {"I": np.int32, _WIDE: np.int16, "F": np.float32}


def _from_array(array, divide):
    """A new tensor [C, H, W] from [H, W] or [H, W, C]. divide: uint8 becomes floating, in [0, 1]."""
    array = array[None] if array.ndim == 2 else array.transpose(2, 0, 1)
    if divide and array.dtype == np.uint8:
        return pydist.from_numpy(np.divide(array, np.float32(255), dtype=np.float32, order="C"))
    return pydist.from_numpy(np.array(array, order="C"))


def array_to_tensor(pic, divide=False):
    """An array [H, W] or [H, W, C] as a tensor [C, H, W]. divide: uint8 becomes float32, in [0, 1]."""
    if not isinstance(pic, np.ndarray):
        raise TypeError(f"pic should be PIL Image or ndarray. Got {type(pic)}")
    if pic.ndim not in (2, 3):
        raise ValueError(f"pic should be 2/3 dimensional. Got {pic.ndim} dimensions.")
    return _from_array(pic, divide)


def to_tensor(pic):
    """A Pillow image or an array [H, W] or [H, W, C] as a tensor [C, H, W]. uint8 becomes float32 in [0, 1]; other
    dtypes stay.

    Raises TypeError for other objects, ValueError for an array with other dims.
    """
    if isinstance(pic, np.ndarray):
        return array_to_tensor(pic, True)
    if not is_pil(pic):
        raise TypeError(f"pic should be PIL Image or ndarray. Got {type(pic)}")
    array = np.asarray(pic, _TYPES.get(pic.mode, np.uint8))
    return _from_array(255 * array if pic.mode == "1" else array, True)


def pil_to_tensor(pic):
    """A Pillow image as a tensor [C, H, W] with the same values. Raises TypeError for any other object."""
    if not is_pil(pic):
        raise TypeError(f"pic should be PIL Image. Got {type(pic)}")
    return _from_array(np.asarray(pic), False)


_MODES = {1: (), 2: ("LA",), 3: ("RGB", "YCbCr", "HSV"), 4: ("RGBA", "CMYK", "RGBX")}
_GRAY = {np.dtype(np.uint8): "L", np.dtype(np.int16): _WIDE, np.dtype(np.int32): "I", np.dtype(np.float32): "F"}


def to_pil_image(pic, mode=None):
    """A tensor [H, W] or [C, H, W], or an array [H, W] or [H, W, C], as a Pillow image.

    Floating values are multiplied by 255 and truncated to uint8, unless mode is "F". mode: Pillow's mode, if the
    channels allow several. Raises TypeError for other dtypes, ValueError for other dims, more than 4 channels and a
    mode that does not fit.
    """
    if isinstance(pic, pydist.Tensor):
        array = pic.detach().cpu().numpy()
        array = array.transpose(1, 2, 0) if array.ndim == 3 else array
    elif isinstance(pic, np.ndarray):
        array = pic
    else:
        raise TypeError(f"pic should be Tensor or ndarray. Got {type(pic)}.")
    if array.ndim not in (2, 3):
        raise ValueError(f"pic should be 2/3 dimensional. Got {array.ndim} dimensions.")
    array = array[:, :, None] if array.ndim == 2 else array
    channels = array.shape[2]
    if channels not in _MODES:
        raise ValueError(f"pic should not have > 4 channels. Got {channels} channels.")
    if array.dtype.kind == "f" and mode != "F":
        array = (array * 255).astype(np.int64).astype(np.uint8)  # to integers first: values beyond 255 wrap
    default = _GRAY.get(array.dtype) if channels == 1 else _MODES[channels][0] if array.dtype == np.uint8 else None
    allowed = (default,) if channels == 1 else _MODES[channels]
    if mode is not None and mode not in allowed:
        raise ValueError(
            f"Incorrect mode ({mode}) supplied for {channels} channels of {array.dtype} (expected {allowed})"
        )
    mode = mode or default
    if mode is None:
        raise TypeError(f"Input type {array.dtype} is not supported")
    return pillow().frombytes(mode, (array.shape[1], array.shape[0]), np.ascontiguousarray(array).tobytes())


def _bound(dtype):
    """The largest value of a channel of this dtype."""
    return (
        1.0 if dtype.is_floating_point else _arrays.bound_of(pydist.empty(0, dtype=dtype, device="cpu").numpy().dtype)
    )


def convert_image_dtype(image, dtype=pydist.float32):
    """A tensor's values in another dtype. Its range is scaled to the other one: [0, 1] for floating dtypes, otherwise
    [0, largest].

    Raises RuntimeError from float32 to int32 or int64 and from float64 to int64, which cannot hold every value.

    >>> convert_image_dtype(pydist.tensor([0, 51, 255], dtype=pydist.uint8)).tolist()
    [0.0, 0.20000000298023224, 1.0]
    """
    if not isinstance(image, pydist.Tensor):
        raise TypeError("Input img should be Tensor Image")
    if image.dtype == dtype:
        return image
    old, new = _bound(image.dtype), _bound(dtype)
    if image.dtype.is_floating_point:
        if dtype.is_floating_point:
            return image.to(dtype)
        if dtype == pydist.int64 or (dtype == pydist.int32 and image.dtype != pydist.float64):
            raise RuntimeError(f"The cast from {image.dtype} to {dtype} cannot be performed safely.")
        return (image * (new + 1.0 - 1e-3)).to(dtype)
    if dtype.is_floating_point:
        return image.to(dtype) / old
    if old > new:
        factor = (old + 1) // (new + 1)
        return _with_arrays(image, lambda array: array // array.dtype.type(factor)).to(dtype)
    return image.to(dtype) * ((new + 1) // (old + 1))


def normalize(tensor, mean, std, inplace=False):
    """(tensor - mean) / std for each channel of a floating tensor [..., C, H, W].

    Raises TypeError for another object or dtype, ValueError for fewer dims and for a std of 0.
    """
    if not isinstance(tensor, pydist.Tensor):
        raise TypeError(f"img should be Tensor Image. Got {type(tensor)}")
    if not tensor.is_floating_point():
        raise TypeError(f"Input tensor should be a float tensor. Got {tensor.dtype}.")
    if tensor.dim() < 3:
        raise ValueError(
            f"Expected tensor to be a tensor image of size (..., C, H, W). Got tensor.size() = {tuple(tensor.shape)}"
        )
    mean, std = (pydist.as_tensor(values, dtype=tensor.dtype, device=tensor.device) for values in (mean, std))
    if (std == 0).any():
        raise ValueError(f"std evaluated to zero after conversion to {tensor.dtype}, leading to division by zero.")
    mean, std = (values.view(-1, 1, 1) if values.dim() == 1 else values for values in (mean, std))
    if inplace:
        return tensor.sub_(mean).div_(std)
    return (tensor - mean) / std


# Geometry.


def _compute_resized_output_size(image_size, size, max_size=None):
    """[height, width] of an image of (height, width) after resize."""
    if size is not None and len(size) == 2:
        return list(size)
    height, width = image_size
    short, long = min(height, width), max(height, width)
    if size is None:
        new_short, new_long = int(max_size * short / long), max_size
    else:
        new_short, new_long = size[0], int(size[0] * long / short)
        if max_size is not None:
            if max_size <= new_short:
                raise ValueError(
                    f"max_size = {max_size} must be strictly greater than the requested size for the smaller edge "
                    f"size = {size[0]}"
                )
            if new_long > max_size:
                new_short, new_long = int(max_size * new_short / new_long), max_size
    return [new_long, new_short] if width <= height else [new_short, new_long]


def resize(img, size, interpolation=InterpolationMode.BILINEAR, max_size=None, antialias=True):
    """Resizes the image to (height, width), or its shorter edge to one number with the same ratio of edges.

    max_size: limit of the longer edge, if `size` is one number or None. antialias: for tensors with bilinear and
    bicubic; Pillow always smooths. Raises ValueError for other sizes.
    """
    mode = interpolation_of(interpolation)
    if isinstance(size, (list, tuple)):
        if len(size) not in (1, 2):
            raise ValueError(
                f"Size must be an int or a 1 or 2 element tuple/list, not a {len(size)} element tuple/list"
            )
        if max_size is not None and len(size) != 1:
            raise ValueError(
                "max_size should only be passed if size specifies the length of the smaller edge, "
                "i.e. size should be an int"
            )
    elif size is None and max_size is None:
        raise ValueError("max_size must be an integer when size is None.")
    else:
        size = None if size is None else [int(size)]
    _, height, width = get_dimensions(img)
    new = _compute_resized_output_size((height, width), size, max_size)
    if min(new) < 1 or min(height, width) < 1:
        raise ValueError(f"resize: from {(height, width)} to {tuple(new)} (expected sizes of at least 1)")
    if [height, width] == new:
        return img
    if not _is_tensor(img):
        return img.resize((new[1], new[0]), _FOR_PIL[mode.value])
    return _with_arrays(img, _arrays.resize, new, _for_tensors(mode, _RESIZING), bool(antialias))


def _sides(padding):
    """(left, top, right, bottom) from a number, (all,), (left and right, top and bottom) or all four."""
    if isinstance(padding, numbers.Number):
        return (int(padding),) * 4
    if not isinstance(padding, (tuple, list)):
        raise TypeError("Got inappropriate padding arg")
    if len(padding) not in (1, 2, 4):
        raise ValueError(f"Padding must be an int or a 1, 2, or 4 element tuple, not a {len(padding)} element tuple")
    return tuple(padding) * (4 // len(padding))


def _pil_fill(fill, img):
    """`fill` as Pillow takes it: a number, or a tuple with one number for each band."""
    bands = len(img.getbands())
    if fill is None:
        fill = 0
    if isinstance(fill, (tuple, list)):
        fill = tuple(fill) * (bands if len(fill) == 1 else 1)
        if len(fill) != bands:
            raise ValueError(
                "The number of elements in 'fill' does not match the number of channels of the image "
                f"({len(fill)} != {bands})"
            )
    elif isinstance(fill, numbers.Number):
        fill = (fill,) * bands
    else:
        raise TypeError("Got inappropriate fill arg")
    if img.mode != "F":
        fill = tuple(int(value) for value in fill)
    return fill if bands > 1 else fill[0]


def _pil_pad(img, sides, fill, padding_mode):
    left, top, right, bottom = sides
    palette = img.getpalette() if img.mode == "P" else None
    if padding_mode == "constant":
        out = pillow("ImageOps").expand(img, border=sides, fill=_pil_fill(fill, img))
    else:
        array = np.asarray(img)
        array = array[None] if array.ndim == 2 else np.moveaxis(array, -1, 0)
        array = _arrays.pad(array, left, top, right, bottom, mode=padding_mode)
        array = array[0] if len(array) == 1 else np.moveaxis(array, 0, -1)
        out = pillow().fromarray(np.ascontiguousarray(array))
    if palette is not None:
        out.putpalette(palette)
    return out


def pad(img, padding, fill=0, padding_mode="constant"):
    """Adds borders to the image. padding is one number, (left and right, top and bottom) or (left, top, right, bottom);
    negative numbers crop. padding_mode: "constant" (`fill`), "edge", "reflect" (without the edge itself) or "symmetric"
    (with the edge)."""
    if padding_mode not in ("constant", "edge", "reflect", "symmetric"):
        raise ValueError("Padding mode should be either constant, edge, reflect or symmetric")
    sides = _sides(padding)
    if not _is_tensor(img):
        return _pil_pad(img, sides, fill, padding_mode)
    if fill is not None and not isinstance(fill, numbers.Number):
        if not isinstance(fill, (tuple, list)):
            raise TypeError("Got inappropriate fill arg")
        if len(fill) != 1:
            raise ValueError(f"fill: {len(fill)} numbers (expected one number for a tensor)")
        fill = fill[0]
    return _with_arrays(img, _arrays.pad, *sides, 0 if fill is None else fill, padding_mode)


def crop(img, top, left, height, width):
    """The part of `height` x `width` that starts at (top, left). Pixels outside the image are 0."""
    if not _is_tensor(img):
        return img.crop((left, top, left + width, top + height))
    return _with_arrays(img, _arrays.crop, top, left, height, width)


def size_pair(size, message="Please provide only two dimensions (h, w) for size."):
    """(height, width) from one number or a sequence of one or two. Raises ValueError with `message` for more."""
    if isinstance(size, numbers.Number):
        return int(size), int(size)
    if not isinstance(size, Sequence):
        raise TypeError(f"Size should be int or sequence. Got {type(size)}")
    if len(size) not in (1, 2):
        raise ValueError(message)
    return (size[0], size[-1])


def center_crop(img, output_size):
    """The centre with `output_size` (one number or (height, width)). A smaller image gets borders of 0."""
    new_height, new_width = size_pair(output_size)
    _, height, width = get_dimensions(img)
    across, down = max(new_width - width, 0), max(new_height - height, 0)
    if across or down:
        img = pad(img, (across // 2, down // 2, (across + 1) // 2, (down + 1) // 2))
        _, height, width = get_dimensions(img)
    if (height, width) == (new_height, new_width):
        return img
    top, left = (int(round((old - new) / 2.0)) for old, new in ((height, new_height), (width, new_width)))
    return crop(img, top, left, new_height, new_width)


def resized_crop(img, top, left, height, width, size, interpolation=InterpolationMode.BILINEAR, antialias=True):
    """crop, then resize."""
    return resize(crop(img, top, left, height, width), size, interpolation, antialias=antialias)


def hflip(img):
    """The image mirrored horizontally."""
    if not _is_tensor(img):
        return img.transpose(0)  # FLIP_LEFT_RIGHT
    return _with_arrays(img, lambda array: array[..., ::-1])


def vflip(img):
    """The image mirrored vertically."""
    if not _is_tensor(img):
        return img.transpose(1)  # FLIP_TOP_BOTTOM
    return _with_arrays(img, lambda array: array[..., ::-1, :])


def five_crop(img, size):
    """The four corners (top left, top right, bottom left, bottom right) and the centre, each with `size`. Raises
    ValueError if the image is smaller."""
    new_height, new_width = size_pair(size)
    _, height, width = get_dimensions(img)
    if new_width > width or new_height > height:
        raise ValueError(f"Requested crop size {(new_height, new_width)} is bigger than input size {(height, width)}")
    corners = [crop(img, y, x, new_height, new_width) for y in (0, height - new_height) for x in (0, width - new_width)]
    return (*corners, center_crop(img, (new_height, new_width)))


def ten_crop(img, size, vertical_flip=False):
    """five_crop of the image and of its mirror image (vertically mirrored if vertical_flip)."""
    return five_crop(img, size) + five_crop(vflip(img) if vertical_flip else hflip(img), size)


def _get_inverse_affine_matrix(center, angle, translate, scale, shear, inverted=True):
    """[a, b, c, d, e, f] of C R(angle) Shear(shear) Scale(scale) C^-1 T(translate), or of its inverse. Angles are in
    degrees.

    C moves the origin to `center`. inverted: the matrix from an output position to the input position.
    """
    turn, shear_x, shear_y = (math.radians(value) for value in (angle, *shear))
    a = math.cos(turn - shear_y) / math.cos(shear_y)
    b = -math.cos(turn - shear_y) * math.tan(shear_x) / math.cos(shear_y) - math.sin(turn)
    c = math.sin(turn - shear_y) / math.cos(shear_y)
    d = -math.sin(turn - shear_y) * math.tan(shear_x) / math.cos(shear_y) + math.cos(turn)
    (centre_x, centre_y), (move_x, move_y) = center, translate
    if inverted:  # rotation and shear have determinant 1
        a, b, c, d = (value / scale for value in (d, -b, -c, a))
        x, y = -centre_x - move_x, -centre_y - move_y
        return [a, b, a * x + b * y + centre_x, c, d, c * x + d * y + centre_y]
    a, b, c, d = (value * scale for value in (a, b, c, d))
    x = centre_x + move_x - a * centre_x - b * centre_y
    y = centre_y + move_y - c * centre_x - d * centre_y
    return [a, b, x, c, d, y]


def _from_middle(center, img):
    """`center` (x, y), or the image's centre, relative to the image's centre."""
    if center is None:
        return [0.0, 0.0]
    if len(center) != 2:
        raise ValueError("Argument center should be a sequence of length 2")
    return [c - 0.5 * s for c, s in zip(center, get_image_size(img))]


def rotate(img, angle, interpolation=InterpolationMode.NEAREST, expand=False, center=None, fill=None):
    """The image rotated counter-clockwise by `angle` degrees about `center` (x, y) (default: the image's centre).

    expand: the output holds the whole rotated image. fill: the colour outside (default 0).
    """
    mode = interpolation_of(interpolation)
    if not isinstance(angle, numbers.Number):
        raise TypeError("Argument angle should be int or float")
    if not _is_tensor(img):
        return img.rotate(angle, _FOR_PIL[mode.value], expand, center, fillcolor=_pil_fill(fill, img))
    matrix = _get_inverse_affine_matrix(_from_middle(center, img), -angle, [0.0, 0.0], 1.0, [0.0, 0.0])
    return _with_arrays(img, _arrays.affine, matrix, _for_tensors(mode, _SAMPLING), fill, expand)


def affine(img, angle, translate, scale, shear, interpolation=InterpolationMode.NEAREST, fill=None, center=None):
    """The image rotated clockwise by `angle` degrees, moved by `translate` (x, y) pixels, scaled, and sheared by
    `shear` degrees (x, or x and y), about `center` (default: the image's centre). fill: the colour outside (default 0).
    """
    mode = interpolation_of(interpolation)
    if not isinstance(angle, numbers.Number):
        raise TypeError("Argument angle should be int or float")
    if not isinstance(translate, (list, tuple)):
        raise TypeError("Argument translate should be a sequence")
    if len(translate) != 2:
        raise ValueError("Argument translate should be a sequence of length 2")
    if scale <= 0.0:
        raise ValueError("Argument scale should be positive")
    if isinstance(shear, numbers.Number):
        shear = [shear, 0.0]
    if not isinstance(shear, (list, tuple)):
        raise TypeError("Shear should be either a single value or a sequence of two values")
    shear = [shear[0], shear[0]] if len(shear) == 1 else list(shear)
    if len(shear) != 2:
        raise ValueError(f"Shear should be a sequence containing two values. Got {shear}")
    if _is_tensor(img):
        matrix = _get_inverse_affine_matrix(_from_middle(center, img), angle, translate, scale, shear)
        return _with_arrays(img, _arrays.affine, matrix, _for_tensors(mode, _SAMPLING), fill)
    if center is None:
        center = [0.5 * size for size in img.size]
    matrix = _get_inverse_affine_matrix(center, angle, translate, scale, shear)
    transform = pillow().Transform.AFFINE
    return img.transform(img.size, transform, matrix, _FOR_PIL[mode.value], fillcolor=_pil_fill(fill, img))


def _get_perspective_coeffs(startpoints, endpoints):
    """The numbers a ... h such that output position (x, y) is taken from ((a x + b y + c) / (g x + h y + 1), (d x + e y
    + f) / ...)."""
    if len(startpoints) != 4 or len(endpoints) != 4:
        raise ValueError(
            f"Please provide exactly four corners, got {len(startpoints)} startpoints and {len(endpoints)} endpoints."
        )
    rows = []
    for (x, y), (from_x, from_y) in zip(endpoints, startpoints):
        rows.append([x, y, 1, 0, 0, 0, -from_x * x, -from_x * y])
        rows.append([0, 0, 0, x, y, 1, -from_y * x, -from_y * y])
    target = np.array(startpoints, np.float64).reshape(8)
    return np.linalg.lstsq(np.array(rows, np.float64), target, rcond=None)[0].astype(np.float32).tolist()


def perspective(img, startpoints, endpoints, interpolation=InterpolationMode.BILINEAR, fill=None):
    """The image in a perspective that moves the four corners `startpoints` (top left, top right, bottom right, bottom
    left, each (x, y)) to `endpoints`. fill: the colour outside (default 0)."""
    mode = interpolation_of(interpolation)
    coefficients = _get_perspective_coeffs(startpoints, endpoints)
    if _is_tensor(img):
        return _with_arrays(img, _arrays.perspective, coefficients, _for_tensors(mode, _SAMPLING), fill)
    transform = pillow().Transform.PERSPECTIVE
    return img.transform(img.size, transform, coefficients, _FOR_PIL[mode.value], fillcolor=_pil_fill(fill, img))


# Colours.


def _enhanced(img, kind, factor):
    return getattr(pillow("ImageEnhance"), kind)(img).enhance(factor)


def _at_least_0(name, factor):
    if factor < 0:
        raise ValueError(f"{name} ({factor}) is not non-negative.")


def adjust_brightness(img, brightness_factor):
    """factor * image. 0 gives black, 1 the image itself."""
    _at_least_0("brightness_factor", brightness_factor)
    if not _is_tensor(img):
        return _enhanced(img, "Brightness", brightness_factor)
    _colours(img)
    return _with_arrays(img, _arrays.blend, 0.0, brightness_factor)


def adjust_contrast(img, contrast_factor):
    """factor * image + (1 - factor) * its mean gray. 0 gives flat gray, 1 the image itself."""
    _at_least_0("contrast_factor", contrast_factor)
    if not _is_tensor(img):
        return _enhanced(img, "Contrast", contrast_factor)
    _colours(img)
    return _with_arrays(img, _arrays.contrast, contrast_factor)


def adjust_saturation(img, saturation_factor):
    """factor * image + (1 - factor) * its gray image. 0 gives gray, 1 the image itself."""
    _at_least_0("saturation_factor", saturation_factor)
    if not _is_tensor(img):
        return _enhanced(img, "Color", saturation_factor)
    if _colours(img) == 1:
        return img
    return _with_arrays(img, lambda array: _arrays.blend(array, _arrays.grayscale(array), saturation_factor))


def _pil_hue(img, factor):
    if img.mode in ("L", "1", "I", "F"):
        return img
    hue, saturation, value = img.convert("HSV").split()
    turned = (np.asarray(hue, np.int32) + int(factor * 255)).astype(np.uint8)
    hue = pillow().frombytes("L", img.size, turned.tobytes())
    return pillow().merge("HSV", (hue, saturation, value)).convert(img.mode)


def adjust_hue(img, hue_factor):
    """Rotates all hues by hue_factor of a full turn, between -0.5 and 0.5. Gray images stay as they are."""
    if not -0.5 <= hue_factor <= 0.5:
        raise ValueError(f"hue_factor ({hue_factor}) is not in [-0.5, 0.5].")
    if not _is_tensor(img):
        return _pil_hue(img, hue_factor)
    if _colours(img) == 1:
        return img
    image = img if img.dtype in (pydist.float32, pydist.float64) else convert_image_dtype(img, pydist.float32)
    return convert_image_dtype(_with_arrays(image, _arrays.hue, hue_factor), img.dtype)


def adjust_gamma(img, gamma, gain=1):
    """255 * gain * (image / 255) ^ gamma. A gamma below 1 makes dark parts lighter."""
    _at_least_0("gamma", gamma)
    if not _is_tensor(img):
        mode = img.mode
        table = [int((255 + 1 - 1e-3) * gain * (value / 255.0) ** gamma) for value in range(256)]
        return img.convert("RGB").point(table * 3).convert(mode)
    image = img if img.is_floating_point() else convert_image_dtype(img, pydist.float32)
    return convert_image_dtype(_with_arrays(image, _arrays.gamma, gamma, gain), img.dtype)


def rgb_to_grayscale(img, num_output_channels=1):
    """The luma 0.2989 R + 0.587 G + 0.114 B, once, or three times with num_output_channels=3."""
    if num_output_channels not in (1, 3):
        raise ValueError("num_output_channels should be either 1 or 3")
    if not _is_tensor(img):
        gray = img.convert("L")
        return gray if num_output_channels == 1 else pillow().merge("RGB", (gray,) * 3)
    if img.dim() < 3:
        raise TypeError(f"Input image tensor should have at least 3 dimensions, but found {img.dim()}")

    def luma(array):
        gray = _arrays.grayscale(array) if array.shape[-3] == 3 else array
        return np.repeat(gray, num_output_channels, -3)

    _colours(img)
    return _with_arrays(img, luma)


def to_grayscale(img, num_output_channels=1):
    """rgb_to_grayscale of a Pillow image. Raises TypeError for a tensor."""
    if not is_pil(img):
        raise TypeError("Input should be PIL Image")
    return rgb_to_grayscale(img, num_output_channels)


def invert(img):
    """The negative: the largest value minus the image."""
    if not _is_tensor(img):
        return pillow("ImageOps").invert(img)
    return _with_arrays(img, lambda array: (_arrays.bound_of(array.dtype) - array).astype(array.dtype))


def posterize(img, bits):
    """Keeps only the first `bits` (0 to 8) of each uint8 value."""
    if not 0 <= bits <= 8:
        raise ValueError(f"The number if bits should be between 0 and 8. Got {bits}")
    if not _is_tensor(img):
        return pillow("ImageOps").posterize(img, bits)
    if img.dtype != pydist.uint8:
        raise TypeError(f"Only torch.uint8 image tensors are supported, but found {img.dtype}")
    return _with_arrays(img, lambda array: array & np.uint8(256 - 2 ** (8 - bits) & 255))


def solarize(img, threshold):
    """Inverts values of at least `threshold`."""
    if not _is_tensor(img):
        return pillow("ImageOps").solarize(img, threshold)
    bound = _bound(img.dtype)
    if threshold > bound:
        raise TypeError("Threshold should be less than bound of img.")
    return _with_arrays(img, lambda array: np.where(array >= threshold, bound - array, array).astype(array.dtype))


def adjust_sharpness(img, sharpness_factor):
    """factor * image + (1 - factor) * the smoothed image. 0 gives a blurred image, 1 the image itself, 2 a sharper
    one."""
    _at_least_0("sharpness_factor", sharpness_factor)
    if not _is_tensor(img):
        return _enhanced(img, "Sharpness", sharpness_factor)
    _colours(img)
    return _with_arrays(img, _arrays.sharpness, sharpness_factor)


def autocontrast(img):
    """Stretches each channel's values to the whole range."""
    if not _is_tensor(img):
        return pillow("ImageOps").autocontrast(img)
    _colours(img)
    return _with_arrays(img, _arrays.autocontrast)


def equalize(img):
    """Gives each uint8 channel a flat histogram."""
    if not _is_tensor(img):
        return pillow("ImageOps").equalize(img)
    if img.dtype != pydist.uint8:
        raise TypeError(f"Only torch.uint8 image tensors are supported, but found {img.dtype}")
    _colours(img)
    return _with_arrays(img, _arrays.equalize)


# The rest.


def erase(img, i, j, h, w, v, inplace=False):
    """A tensor with [..., i:i+h, j:j+w] set to v. Raises TypeError for other images."""
    if not isinstance(img, pydist.Tensor):
        raise TypeError(f"img should be Tensor Image. Got {type(img)}")
    img = img if inplace else img.clone()
    img[..., i : i + h, j : j + w] = v
    return img


def _pair(value, name):
    if isinstance(value, numbers.Number):
        value = [value]
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{name} should be a number or a sequence. Got {type(value)}")
    if len(value) not in (1, 2):
        raise ValueError(f"If {name} is a sequence its length should be 2. Got {len(value)}")
    return [value[0], value[-1]]


def gaussian_blur(img, kernel_size, sigma=None):
    """Convolution with a Gaussian with kernel_size (odd; one number or x and y) and standard deviation sigma (default:
    0.15 * kernel_size + 0.35). The edges are mirrored."""
    sizes = _pair(kernel_size, "kernel_size")
    if any(size % 2 == 0 or size < 0 for size in sizes):
        raise ValueError(f"kernel_size should have odd and positive integers. Got {sizes}")
    sigmas = [size * 0.15 + 0.35 for size in sizes] if sigma is None else _pair(sigma, "sigma")
    if any(value <= 0.0 for value in sigmas):
        raise ValueError(f"sigma should have positive values. Got {sigmas}")
    _, height, width = get_dimensions(img)
    if sizes[0] // 2 >= width or sizes[1] // 2 >= height:
        raise ValueError(
            f"kernel_size: {sizes} (expected less than twice the image's width and height, {width} and {height})"
        )
    if not _is_tensor(img):
        return to_pil_image(gaussian_blur(pil_to_tensor(img), sizes, sigmas), img.mode)
    return _with_arrays(img, _arrays.gaussian_blur, sizes, sigmas)
