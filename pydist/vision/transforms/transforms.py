"""Transforms as objects. They draw from pydist's generator, so `pydist.manual_seed` seeds them."""

import math
import numbers
from collections.abc import Sequence
from warnings import warn

import pydist
from pydist import nn
from pydist.vision.transforms import functional as F
from pydist.vision.transforms.functional import InterpolationMode, interpolation_of, size_pair

__all__ = [
    "CenterCrop",
    "ColorJitter",
    "Compose",
    "ConvertImageDtype",
    "FiveCrop",
    "GaussianBlur",
    "Grayscale",
    "Lambda",
    "LinearTransformation",
    "Normalize",
    "PILToTensor",
    "Pad",
    "RandomAdjustSharpness",
    "RandomAffine",
    "RandomApply",
    "RandomAutocontrast",
    "RandomChoice",
    "RandomCrop",
    "RandomEqualize",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomInvert",
    "RandomOrder",
    "RandomPerspective",
    "RandomPosterize",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomSolarize",
    "RandomVerticalFlip",
    "Resize",
    "TenCrop",
    "ToPILImage",
    "ToTensor",
]


# Random draws.


def _uniform(low=0.0, high=1.0):
    return low + (high - low) * pydist.rand((), dtype=pydist.float64).item()


def _below(high, low=0):
    """An integer in [low, high)."""
    return pydist.randint(low, high, ()).item()


def _repr(transform, *names):
    """Class(name=value, ...)."""

    def text(value):
        return value.value if isinstance(value, InterpolationMode) else str(value)

    return f"{type(transform).__name__}({', '.join(f'{name}={text(getattr(transform, name))}' for name in names)})"


# Kinds of images.


class ToTensor:
    """A Pillow image or array [H, W, C] as a tensor [C, H, W]; uint8 becomes float32 in [0, 1]. See
    functional.to_tensor."""

    def __call__(self, pic):
        return F.to_tensor(pic)

    def __repr__(self):
        return _repr(self)


class PILToTensor:
    """A Pillow image as a tensor [C, H, W] with the same values."""

    def __call__(self, pic):
        return F.pil_to_tensor(pic)

    def __repr__(self):
        return _repr(self)


class ToPILImage:
    """A tensor [C, H, W] or array [H, W, C] as a Pillow image. See functional.to_pil_image."""

    def __init__(self, mode=None):
        self.mode = mode

    def __call__(self, pic):
        return F.to_pil_image(pic, self.mode)

    def __repr__(self):
        return _repr(self) if self.mode is None else _repr(self, "mode")


class ConvertImageDtype(nn.Module):
    """A tensor in another dtype, with its range scaled. See functional.convert_image_dtype."""

    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype

    def forward(self, image):
        return F.convert_image_dtype(image, self.dtype)

    def __repr__(self):
        return _repr(self)


class Normalize(nn.Module):
    """(tensor - mean) / std for each channel of a floating tensor [..., C, H, W].

    >>> Normalize(mean=[0.5], std=[0.25])(pydist.ones(1, 1, 2)).tolist()
    [[[2.0, 2.0]]]
    """

    def __init__(self, mean, std, inplace=False):
        super().__init__()
        self.mean = mean
        self.std = std
        self.inplace = inplace

    def forward(self, tensor):
        return F.normalize(tensor, self.mean, self.std, self.inplace)

    def __repr__(self):
        return _repr(self, "mean", "std")


class LinearTransformation(nn.Module):
    """(the flattened tensor - mean_vector) @ transformation_matrix, with the tensor's shape. For whitening.

    transformation_matrix [D, D], mean_vector [D], D = C * H * W. Raises ValueError for other shapes.
    """

    def __init__(self, transformation_matrix, mean_vector):
        super().__init__()
        rows, columns = transformation_matrix.shape
        if rows != columns:
            raise ValueError(f"transformation_matrix should be square. Got {(rows, columns)} rectangular matrix.")
        if len(mean_vector) != rows:
            raise ValueError(
                f"mean_vector should have the same length {len(mean_vector)} as any one of the dimensions of the "
                f"transformation_matrix [{(rows, columns)}]"
            )
        self.transformation_matrix = transformation_matrix
        self.mean_vector = mean_vector

    def forward(self, tensor):
        size = math.prod(tensor.shape[-3:])
        if size != len(self.mean_vector):
            raise ValueError(
                "Input tensor and transformation matrix have incompatible shape. "
                f"{tuple(tensor.shape)} (expected {len(self.mean_vector)} elements)"
            )
        flat = tensor.reshape(-1, size) - self.mean_vector
        return flat.matmul(self.transformation_matrix.to(flat.dtype)).reshape(tensor.shape)

    def __repr__(self):
        matrix, mean = self.transformation_matrix.tolist(), self.mean_vector.tolist()
        return f"{type(self).__name__}(transformation_matrix={matrix}, mean_vector={mean})"


# Several transforms.


class Compose:
    """Applies one transform after the other."""

    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, img):
        for transform in self.transforms:
            img = transform(img)
        return img

    def __repr__(self):
        return "\n".join([f"{type(self).__name__}(", *(f"    {transform}" for transform in self.transforms), ")"])


class Lambda:
    """A function as a transform. Raises TypeError for an object that is not callable."""

    def __init__(self, lambd):
        if not callable(lambd):
            raise TypeError(f"Argument lambd should be callable, got {type(lambd).__name__!r}")
        self.lambd = lambd

    def __call__(self, img):
        return self.lambd(img)

    def __repr__(self):
        return _repr(self)


class _RandomTransforms:
    def __init__(self, transforms):
        if not isinstance(transforms, Sequence):
            raise TypeError("Argument transforms should be a sequence")
        self.transforms = transforms

    __repr__ = Compose.__repr__


class RandomApply(nn.Module):
    """Applies all `transforms`, one after the other, with probability p."""

    def __init__(self, transforms, p=0.5):
        super().__init__()
        self.transforms = transforms
        self.p = p

    def forward(self, img):
        if self.p < _uniform():
            return img
        for transform in self.transforms:
            img = transform(img)
        return img

    def __repr__(self):
        lines = [
            f"{type(self).__name__}(",
            f"    p={self.p}",
            *(f"    {transform}" for transform in self.transforms),
            ")",
        ]
        return "\n".join(lines)


class RandomOrder(_RandomTransforms):
    """Applies all `transforms` in an order that is drawn each time."""

    def __call__(self, img):
        for i in pydist.randperm(len(self.transforms)).tolist():
            img = self.transforms[i](img)
        return img


class RandomChoice(_RandomTransforms):
    """Applies one of `transforms`, drawn with the weights p (default: equal weights)."""

    def __init__(self, transforms, p=None):
        super().__init__(transforms)
        if p is not None and not isinstance(p, Sequence):
            raise TypeError("Argument p should be a sequence")
        if p is not None and len(p) != len(transforms):
            raise ValueError(f"p: {len(p)} weights (expected {len(transforms)}, one for each transform)")
        self.p = p

    def __call__(self, img):
        weights = self.p or [1.0] * len(self.transforms)
        rest = _uniform(0.0, sum(weights))
        for transform, weight in zip(self.transforms, weights):
            rest -= weight
            if rest < 0:
                break
        return transform(img)

    def __repr__(self):
        return f"{super().__repr__()}(p={self.p})"


# Geometry.


class Resize(nn.Module):
    """Resizes the image to (height, width), or its shorter edge to `size`. See functional.resize."""

    def __init__(self, size, interpolation=InterpolationMode.BILINEAR, max_size=None, antialias=True):
        super().__init__()
        if size is not None:
            size_pair(size, "If size is a sequence, it should have 1 or 2 values")
        self.size = size
        self.max_size = max_size
        self.interpolation = interpolation_of(interpolation)
        self.antialias = antialias

    def forward(self, img):
        return F.resize(img, self.size, self.interpolation, self.max_size, self.antialias)

    def __repr__(self):
        return _repr(self, "size", "interpolation", "max_size", "antialias")


class CenterCrop(nn.Module):
    """The centre with `size`. A smaller image gets borders of 0."""

    def __init__(self, size):
        super().__init__()
        self.size = size_pair(size)

    def forward(self, img):
        return F.center_crop(img, self.size)

    def __repr__(self):
        return _repr(self, "size")


class Pad(nn.Module):
    """Adds borders to the image. See functional.pad."""

    def __init__(self, padding, fill=0, padding_mode="constant"):
        super().__init__()
        if not isinstance(padding, (numbers.Number, tuple, list)):
            raise TypeError("Got inappropriate padding arg")
        if not isinstance(fill, (numbers.Number, tuple, list)):
            raise TypeError("Got inappropriate fill arg")
        if padding_mode not in ("constant", "edge", "reflect", "symmetric"):
            raise ValueError("Padding mode should be either constant, edge, reflect or symmetric")
        if isinstance(padding, Sequence) and len(padding) not in (1, 2, 4):
            raise ValueError(
                f"Padding must be an int or a 1, 2, or 4 element tuple, not a {len(padding)} element tuple"
            )
        self.padding = padding
        self.fill = fill
        self.padding_mode = padding_mode

    def forward(self, img):
        return F.pad(img, self.padding, self.fill, self.padding_mode)

    def __repr__(self):
        return _repr(self, "padding", "fill", "padding_mode")


class RandomCrop(nn.Module):
    """A part with `size` at a random position of the image, after `padding` (see functional.pad).

    pad_if_needed: a smaller image is padded on both sides first; otherwise it raises ValueError.
    """

    def __init__(self, size, padding=None, pad_if_needed=False, fill=0, padding_mode="constant"):
        super().__init__()
        self.size = size_pair(size)
        self.padding = padding
        self.pad_if_needed = pad_if_needed
        self.fill = fill
        self.padding_mode = padding_mode

    @staticmethod
    def get_params(img, output_size):
        """(top, left, height, width) of a random part."""
        _, height, width = F.get_dimensions(img)
        new_height, new_width = output_size
        if height < new_height or width < new_width:
            raise ValueError(
                f"Required crop size {(new_height, new_width)} is larger than input image size {(height, width)}"
            )
        if (height, width) == (new_height, new_width):
            return 0, 0, height, width
        return _below(height - new_height + 1), _below(width - new_width + 1), new_height, new_width

    def forward(self, img):
        if self.padding is not None:
            img = F.pad(img, self.padding, self.fill, self.padding_mode)
        if self.pad_if_needed:
            _, height, width = F.get_dimensions(img)
            lacking = [max(self.size[1] - width, 0), max(self.size[0] - height, 0)]
            if any(lacking):
                img = F.pad(img, lacking, self.fill, self.padding_mode)
        return F.crop(img, *self.get_params(img, self.size))

    def __repr__(self):
        return _repr(self, "size", "padding")


class RandomResizedCrop(nn.Module):
    """A part of random area (a share of the image's area in `scale`) and ratio of width to height (in `ratio`), resized
    to `size`."""

    def __init__(
        self,
        size,
        scale=(0.08, 1.0),
        ratio=(3.0 / 4.0, 4.0 / 3.0),
        interpolation=InterpolationMode.BILINEAR,
        antialias=True,
    ):
        super().__init__()
        self.size = size_pair(size)
        if not isinstance(scale, Sequence):
            raise TypeError("Scale should be a sequence")
        if not isinstance(ratio, Sequence):
            raise TypeError("Ratio should be a sequence")
        if scale[0] > scale[1] or ratio[0] > ratio[1]:
            warn("Scale and ratio should be of kind (min, max)", stacklevel=2)
        self.interpolation = interpolation_of(interpolation)
        self.antialias = antialias
        self.scale = scale
        self.ratio = ratio

    @staticmethod
    def get_params(img, scale, ratio):
        """(top, left, height, width) of a random part. After ten parts that do not fit, the centre."""
        _, height, width = F.get_dimensions(img)
        logs = [math.log(value) for value in ratio]
        for _ in range(10):
            area = height * width * _uniform(*scale)
            aspect = math.exp(_uniform(*logs))
            w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < w <= width and 0 < h <= height:
                return _below(height - h + 1), _below(width - w + 1), h, w
        w, h = width, height
        if width / height < min(ratio):
            h = round(width / min(ratio))
        elif width / height > max(ratio):
            w = round(height * max(ratio))
        return (height - h) // 2, (width - w) // 2, h, w

    def forward(self, img):
        part = self.get_params(img, self.scale, self.ratio)
        return F.resized_crop(img, *part, self.size, self.interpolation, antialias=self.antialias)

    def __repr__(self):
        scale, ratio = (tuple(round(value, 4) for value in pair) for pair in (self.scale, self.ratio))
        return (
            f"{type(self).__name__}(size={self.size}, scale={scale}, ratio={ratio}, "
            f"interpolation={self.interpolation.value}, antialias={self.antialias})"
        )


class FiveCrop(nn.Module):
    """A tuple of the corners and the centre. See functional.five_crop."""

    def __init__(self, size):
        super().__init__()
        self.size = size_pair(size)

    def forward(self, img):
        return F.five_crop(img, self.size)

    def __repr__(self):
        return _repr(self, "size")


class TenCrop(nn.Module):
    """FiveCrop of the image and of its mirror image (vertically mirrored if vertical_flip)."""

    def __init__(self, size, vertical_flip=False):
        super().__init__()
        self.size = size_pair(size)
        self.vertical_flip = vertical_flip

    def forward(self, img):
        return F.ten_crop(img, self.size, self.vertical_flip)

    def __repr__(self):
        return _repr(self, "size", "vertical_flip")


def _angles(value, name, lengths=(2,)):
    """[low, high, ...] from one number (-value, value) or a sequence."""
    if isinstance(value, numbers.Number):
        if value < 0:
            raise ValueError(f"If {name} is a single number, it must be positive.")
        value = (-value, value)
    _sequence(value, name, lengths)
    return [float(angle) for angle in value]


def _sequence(value, name, lengths):
    wanted = " or ".join(map(str, lengths))
    if not isinstance(value, Sequence):
        raise TypeError(f"{name} should be a sequence of length {wanted}.")
    if len(value) not in lengths:
        raise ValueError(f"{name} should be a sequence of length {wanted}.")


class _Turned(nn.Module):
    """The common part of rotations and affine maps: angles, interpolation, fill, centre."""

    def __init__(self, degrees, interpolation, fill, center):
        super().__init__()
        self.degrees = _angles(degrees, "degrees")
        self.interpolation = interpolation_of(interpolation)
        if center is not None:
            _sequence(center, "center", (2,))
        self.center = center
        if fill is not None and not isinstance(fill, (Sequence, numbers.Number)):
            raise TypeError("Fill should be either a sequence or a number.")
        self.fill = 0 if fill is None else fill


class RandomRotation(_Turned):
    """Rotates the image by an angle from `degrees` (low, high), or (-degrees, degrees). See functional.rotate."""

    def __init__(self, degrees, interpolation=InterpolationMode.NEAREST, expand=False, center=None, fill=0):
        super().__init__(degrees, interpolation, fill, center)
        self.expand = expand

    @staticmethod
    def get_params(degrees):
        """A random angle."""
        return _uniform(*degrees)

    def forward(self, img):
        return F.rotate(img, self.get_params(self.degrees), self.interpolation, self.expand, self.center, self.fill)

    def __repr__(self):
        return _repr(self, "degrees", "interpolation", "expand", *_given(self, "center", "fill"))


def _given(transform, *names):
    """The attributes that are not None."""
    return [name for name in names if getattr(transform, name) is not None]


class RandomAffine(_Turned):
    """Rotates, moves (by up to `translate`, shares of width and height), scales and shears the image at random, about
    `center`.

    degrees: an angle, or (low, high). scale: (low, high). shear: degrees along x, (low, high) along x, or four numbers
    that include y's. See functional.affine.
    """

    def __init__(
        self,
        degrees,
        translate=None,
        scale=None,
        shear=None,
        interpolation=InterpolationMode.NEAREST,
        fill=0,
        center=None,
    ):
        super().__init__(degrees, interpolation, fill, center)
        if translate is not None:
            _sequence(translate, "translate", (2,))
            if not all(0.0 <= part <= 1.0 for part in translate):
                raise ValueError("translation values should be between 0 and 1")
        if scale is not None:
            _sequence(scale, "scale", (2,))
            if min(scale) <= 0:
                raise ValueError("scale values should be positive")
        self.translate = translate
        self.scale = scale
        self.shear = None if shear is None else _angles(shear, "shear", (2, 4))

    @staticmethod
    def get_params(degrees, translate, scale_ranges, shears, img_size):
        """(angle, (x, y) in pixels, scale, (x, y) of the shear)."""
        angle = _uniform(*degrees)
        reach = [0.0, 0.0] if translate is None else [part * size for part, size in zip(translate, img_size)]
        move = tuple(int(round(_uniform(-r, r))) if r else 0 for r in reach)
        scale = 1.0 if scale_ranges is None else _uniform(*scale_ranges)
        shears = shears or []
        shear = [_uniform(*shears[i : i + 2]) if len(shears) > i else 0.0 for i in (0, 2)]
        return angle, move, scale, tuple(shear)

    def forward(self, img):
        size = F.get_image_size(img)
        drawn = self.get_params(self.degrees, self.translate, self.scale, self.shear, size)
        return F.affine(img, *drawn, interpolation=self.interpolation, fill=self.fill, center=self.center)

    def __repr__(self):
        names = _given(self, "translate", "scale", "shear")
        names += ["interpolation"] * (self.interpolation != InterpolationMode.NEAREST)
        names += ["fill"] * (self.fill != 0)
        return _repr(self, "degrees", *names, *_given(self, "center"))


# Transforms that are applied with a probability.


class _Sometimes(nn.Module):
    """`_change(img)` with probability p, otherwise the image."""

    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, img):
        return self._change(img) if _uniform() < self.p else img

    def __repr__(self):
        return _repr(self, "p")


class RandomHorizontalFlip(_Sometimes):
    """Mirrors the image horizontally with probability p."""

    def __init__(self, p=0.5):
        super().__init__(p)

    _change = staticmethod(F.hflip)


class RandomVerticalFlip(_Sometimes):
    """Mirrors the image vertically with probability p."""

    def __init__(self, p=0.5):
        super().__init__(p)

    _change = staticmethod(F.vflip)


class RandomInvert(_Sometimes):
    """The negative of the image with probability p."""

    def __init__(self, p=0.5):
        super().__init__(p)

    _change = staticmethod(F.invert)


class RandomAutocontrast(_Sometimes):
    """functional.autocontrast with probability p."""

    def __init__(self, p=0.5):
        super().__init__(p)

    _change = staticmethod(F.autocontrast)


class RandomEqualize(_Sometimes):
    """functional.equalize with probability p."""

    def __init__(self, p=0.5):
        super().__init__(p)

    _change = staticmethod(F.equalize)


class _SometimesBy(_Sometimes):
    """A function of the image and one option. The option's name is the first parameter of the subclass."""

    def __init__(self, name, value, p):
        super().__init__(p)
        self._option = name
        setattr(self, name, value)

    def _change(self, img):
        return self._function(img, getattr(self, self._option))

    def __repr__(self):
        return _repr(self, self._option, "p")


class RandomPosterize(_SometimesBy):
    """functional.posterize to `bits` with probability p."""

    _function = staticmethod(F.posterize)

    def __init__(self, bits, p=0.5):
        super().__init__("bits", bits, p)


class RandomSolarize(_SometimesBy):
    """functional.solarize at `threshold` with probability p."""

    _function = staticmethod(F.solarize)

    def __init__(self, threshold, p=0.5):
        super().__init__("threshold", threshold, p)


class RandomAdjustSharpness(_SometimesBy):
    """functional.adjust_sharpness by `sharpness_factor` with probability p."""

    _function = staticmethod(F.adjust_sharpness)

    def __init__(self, sharpness_factor, p=0.5):
        super().__init__("sharpness_factor", sharpness_factor, p)


class RandomGrayscale(_Sometimes):
    """The gray image, with as many channels as before, with probability p."""

    def __init__(self, p=0.1):
        super().__init__(p)

    def _change(self, img):
        return F.rgb_to_grayscale(img, F.get_image_num_channels(img))


class RandomPerspective(_Sometimes):
    """Moves the image's corners inwards by up to distortion_scale / 2 of width and height, with probability p."""

    def __init__(self, distortion_scale=0.5, p=0.5, interpolation=InterpolationMode.BILINEAR, fill=0):
        super().__init__(p)
        self.interpolation = interpolation_of(interpolation)
        self.distortion_scale = distortion_scale
        if fill is not None and not isinstance(fill, (Sequence, numbers.Number)):
            raise TypeError("Fill should be either a sequence or a number.")
        self.fill = 0 if fill is None else fill

    @staticmethod
    def get_params(width, height, distortion_scale):
        """(the four corners, the points to which they move), clockwise from the top left, each [x, y]."""
        dx, dy = (int(distortion_scale * (size // 2)) for size in (width, height))
        start = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
        end = []
        for x, y in start:
            inwards_x, inwards_y = _below(dx + 1), _below(dy + 1)
            end.append([x - inwards_x if x else inwards_x, y - inwards_y if y else inwards_y])
        return start, end

    def _change(self, img):
        _, height, width = F.get_dimensions(img)
        start, end = self.get_params(width, height, self.distortion_scale)
        return F.perspective(img, start, end, self.interpolation, self.fill)


class RandomErasing(_Sometimes):
    """Sets a rectangle of a tensor to `value`, with probability p. Its area (a share of the image's area in `scale`),
    ratio of height to width (in `ratio`) and position are random.

    value: one number, one for each channel, or "random" (normal noise). Raises ValueError for another count.
    """

    def __init__(self, p=0.5, scale=(0.02, 0.33), ratio=(0.3, 3.3), value=0, inplace=False):
        super().__init__(p)
        if not isinstance(value, (numbers.Number, str, tuple, list)):
            raise TypeError("Argument value should be either a number or str or a sequence")
        if isinstance(value, str) and value != "random":
            raise ValueError("If value is str, it should be 'random'")
        if not isinstance(scale, Sequence):
            raise TypeError("Scale should be a sequence")
        if not isinstance(ratio, Sequence):
            raise TypeError("Ratio should be a sequence")
        if scale[0] > scale[1] or ratio[0] > ratio[1]:
            warn("Scale and ratio should be of kind (min, max)", stacklevel=2)
        if scale[0] < 0 or scale[1] > 1:
            raise ValueError("Scale should be between 0 and 1")
        if p < 0 or p > 1:
            raise ValueError("Random erasing probability should be between 0 and 1")
        self.scale = scale
        self.ratio = ratio
        self.value = value
        self.inplace = inplace

    @staticmethod
    def get_params(img, scale, ratio, value=None):
        """(top, left, height, width, values) of a random rectangle. After ten that do not fit, the image itself."""
        channels, height, width = img.shape[-3:]
        logs = [math.log(bound) for bound in ratio]
        for _ in range(10):
            area = height * width * _uniform(*scale)
            aspect = math.exp(_uniform(*logs))
            h, w = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if h < height and w < width:
                if value is None:
                    values = pydist.randn(channels, h, w, device=img.device)
                else:
                    values = pydist.tensor(value, device=img.device).view(-1, 1, 1)
                return _below(height - h + 1), _below(width - w + 1), h, w, values
        return 0, 0, height, width, img

    def _change(self, img):
        if self.value == "random":
            value = None
        else:
            value = [float(v) for v in ([self.value] if isinstance(self.value, numbers.Number) else self.value)]
        if value is not None and len(value) not in (1, img.shape[-3]):
            raise ValueError(
                "If value is a sequence, it should have either a single value or "
                f"{img.shape[-3]} (number of input channels)"
            )
        return F.erase(img, *self.get_params(img, self.scale, self.ratio, value), self.inplace)

    def __repr__(self):
        return _repr(self, "p", "scale", "ratio", "value", "inplace")


# Colours.


class ColorJitter(nn.Module):
    """Changes brightness, contrast, saturation and hue at random, in a random order.

    Each is None or 0 (no change), a number x for a factor from [max(0, 1 - x), 1 + x] (hue: [-x, x], x at most 0.5), or
    the range (low, high).
    """

    def __init__(self, brightness=0, contrast=0, saturation=0, hue=0):
        super().__init__()
        self.brightness = self._range("brightness", brightness)
        self.contrast = self._range("contrast", contrast)
        self.saturation = self._range("saturation", saturation)
        self.hue = self._range("hue", hue, 0, (-0.5, 0.5), False)

    @staticmethod
    def _range(name, value, middle=1, bound=(0, float("inf")), cut=True):
        """The range of a factor; None if it would change nothing."""
        if value is None:
            return None
        if isinstance(value, numbers.Number):
            if value < 0:
                raise ValueError(f"If {name} is a single number, it must be non negative.")
            value = (max(middle - float(value), 0.0) if cut else middle - float(value), middle + float(value))
        elif not isinstance(value, (tuple, list)) or len(value) != 2:
            raise TypeError(f"{name} should be a single number or a list/tuple with length 2.")
        if not bound[0] <= value[0] <= value[1] <= bound[1]:
            raise ValueError(f"{name} values should be between {bound}, but got {list(value)}.")
        return None if value[0] == value[1] == middle else tuple(map(float, value))

    @staticmethod
    def get_params(brightness, contrast, saturation, hue):
        """(the order of the four as a tensor, the four factors; None for no change)."""
        order = pydist.randperm(4)
        return (
            order,
            *(None if bounds is None else _uniform(*bounds) for bounds in (brightness, contrast, saturation, hue)),
        )

    def forward(self, img):
        order, *factors = self.get_params(self.brightness, self.contrast, self.saturation, self.hue)
        changes = (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue)
        for i in order.tolist():
            if factors[i] is not None:
                img = changes[i](img, factors[i])
        return img

    def __repr__(self):
        return _repr(self, "brightness", "contrast", "saturation", "hue")


class Grayscale(nn.Module):
    """The luma of the image, in 1 or 3 channels."""

    def __init__(self, num_output_channels=1):
        super().__init__()
        self.num_output_channels = num_output_channels

    def forward(self, img):
        return F.rgb_to_grayscale(img, self.num_output_channels)

    def __repr__(self):
        return _repr(self, "num_output_channels")


class GaussianBlur(nn.Module):
    """Convolution with a Gaussian with kernel_size (odd; one number or x and y) and a standard deviation from `sigma`
    (low, high)."""

    def __init__(self, kernel_size, sigma=(0.1, 2.0)):
        super().__init__()
        self.kernel_size = size_pair(kernel_size, "Kernel size should be a tuple/list of two integers")
        if any(size <= 0 or size % 2 == 0 for size in self.kernel_size):
            raise ValueError("Kernel size value should be an odd and positive number.")
        if isinstance(sigma, numbers.Number):
            if sigma <= 0:
                raise ValueError("If sigma is a single number, it must be positive.")
            sigma = (sigma, sigma)
        elif not isinstance(sigma, Sequence) or len(sigma) != 2:
            raise ValueError("sigma should be a single number or a list/tuple with length 2.")
        if not 0.0 < sigma[0] <= sigma[1]:
            raise ValueError("sigma values should be positive and of the form (min, max).")
        self.sigma = sigma

    @staticmethod
    def get_params(sigma_min, sigma_max):
        """A random standard deviation."""
        return _uniform(sigma_min, sigma_max)

    def forward(self, img):
        return F.gaussian_blur(img, self.kernel_size, [self.get_params(*self.sigma)] * 2)

    def __repr__(self):
        return _repr(self, "kernel_size", "sigma")
