"""What tf.io does with images beside pydist.data: the frames of GIFs, smaller JPEGs, and files of pixels. By Pillow."""

import io

from pydist import _C
from pydist.tensorflow import _tensors as t
from pydist.tensorflow import errors
from pydist.vision._pillow import pillow

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


def _opened(content, where):
    try:
        return pillow().open(io.BytesIO(content))
    except (OSError, SyntaxError, ValueError) as error:
        raise errors.InvalidArgumentError(
            f"io.{where}: not an image, or a damaged one (expected an image): {error}"
        ) from None


def _pixels(image):
    import numpy as np

    array = np.asarray(image)
    return _C.tensor(array[..., None] if array.ndim == 2 else array)


def frames(content, channels, where):
    """The frames of a GIF, uint8 [frames, height, width, channels]."""
    image, found = _opened(content, where), []
    if image.format != "GIF":
        raise errors.InvalidArgumentError(f"io.{where}: got a {image.format} file (expected a GIF)")
    for number in range(image.n_frames):
        image.seek(number)
        found.append(_pixels(image.convert("RGB").convert(_MODES[channels])))
    return _C.stack(found)


def smaller(content, channels, ratio):
    """A JPEG's pixels at 1 / ratio of its size, which libjpeg computes while it decodes."""
    image = _opened(content, "decode_jpeg")
    image.draft(image.mode, (image.width // ratio, image.height // ratio))
    return _pixels(image.convert(_MODES[channels]) if channels else image)


def as_dtype(image, dtype):
    """An image of uint8 in another dtype: floats are from 0 to 1."""
    dtype = t.as_dtype(dtype)
    if dtype is _C.uint8:
        return image
    if not dtype.is_floating_point:
        raise NotImplementedError(f"io.decode_image: dtype is {dtype} (expected uint8 or a floating dtype)")
    return image.to(dtype) / 255


def encoded(image, kind, where, **settings):
    """The bytes of a file of pixels uint8 [height, width, channels]."""
    if image.dtype is not _C.uint8 or image.ndim != 3 or image.shape[2] not in (1, 2, 3, 4):
        raise errors.InvalidArgumentError(
            f"io.{where}: got {image.dtype} of shape {tuple(image.shape)} (expected uint8 [height, width, channels])"
        )
    array = image.cpu().numpy()
    picture = pillow().fromarray(array[..., 0] if array.shape[2] == 1 else array)
    out = io.BytesIO()
    picture.save(out, kind, **settings)
    return out.getvalue()
