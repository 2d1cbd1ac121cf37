"""Image files as tensors uint8 [C, H, W], by Pillow."""

import io
import os
from enum import Enum

import numpy as np

import pydist
from pydist.vision._pillow import pillow
from pydist.vision.transforms.functional import pil_to_tensor, to_pil_image


class ImageReadMode(Enum):
    """The channels of the result: as in the file, or converted."""

    UNCHANGED = 0
    GRAY = 1
    GRAY_ALPHA = 2
    RGB = 3
    RGB_ALPHA = 4


_MODES = {"GRAY": "L", "GRAY_ALPHA": "LA", "RGB": "RGB", "RGB_ALPHA": "RGBA"}


def read_file(path):
    """A file's bytes as a tensor uint8 [N]."""
    with open(path, "rb") as file:
        return pydist.from_numpy(np.frombuffer(file.read(), np.uint8).copy())


def write_file(filename, data):
    """Writes a tensor uint8 [N] as a file's bytes."""
    with open(filename, "wb") as file:
        file.write(data.contiguous().numpy().tobytes())


def _decoded(content, mode, turn, name):
    mode = ImageReadMode[mode] if isinstance(mode, str) else mode
    try:
        image = pillow().open(content)
        if turn:
            image = pillow("ImageOps").exif_transpose(image)
        if mode.name in _MODES:
            image = image.convert(_MODES[mode.name])
        elif image.mode in ("P", "1", "CMYK"):
            image = image.convert("L" if image.mode == "1" else "RGB")
        return pil_to_tensor(image)
    except (OSError, SyntaxError) as error:  # Pillow's errors for damaged files
        if isinstance(error, FileNotFoundError):
            raise
        raise RuntimeError(f"{name}: not an image, or a damaged one: {error}") from error


def decode_image(input, mode=ImageReadMode.UNCHANGED, apply_exif_orientation=False):
    """The image in a tensor of a file's bytes (or in the file at this path). Raises RuntimeError if it is not an
    image."""
    if not isinstance(input, pydist.Tensor):
        return read_image(input, mode, apply_exif_orientation)
    return _decoded(io.BytesIO(input.contiguous().numpy().tobytes()), mode, apply_exif_orientation, "decode_image")


def read_image(path, mode=ImageReadMode.UNCHANGED, apply_exif_orientation=False):
    """The image in a file. Raises RuntimeError if it is not an image."""
    return _decoded(path, mode, apply_exif_orientation, os.fspath(path))


def _encoded(image, **options):
    if image.dtype != pydist.uint8 or image.dim() != 3 or image.shape[0] not in (1, 3):
        raise RuntimeError(
            f"{options['format']}: got {image.dtype} {tuple(image.shape)} (expected uint8 [1 or 3, H, W])"
        )
    content = io.BytesIO()
    to_pil_image(image).save(content, **options)
    return pydist.from_numpy(np.frombuffer(content.getvalue(), np.uint8).copy())


def encode_png(input, compression_level=6):
    """A tensor uint8 [1 or 3, H, W] as the bytes of a PNG file."""
    return _encoded(input, format="PNG", compress_level=compression_level)


def encode_jpeg(input, quality=75):
    """A tensor uint8 [1 or 3, H, W] as the bytes of a JPEG file with quality 1 to 100."""
    if not 1 <= quality <= 100:
        raise ValueError(f"Image quality should be a positive number between 1 and 100, got {quality}")
    return _encoded(input, format="JPEG", quality=quality)


def write_png(input, filename, compression_level=6):
    """Writes encode_png(image) to a file."""
    write_file(filename, encode_png(input, compression_level))


def write_jpeg(input, filename, quality=75):
    """Writes encode_jpeg(image) to a file."""
    write_file(filename, encode_jpeg(input, quality))


decode_png = decode_jpeg = decode_image
