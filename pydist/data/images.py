"""Images in strings of bytes as tensors uint8 [height, width, channels]: by simplejpeg where it is installed and the image is
a JPEG, else by Pillow."""

import functools
import importlib
import io

from pydist import _C
from pydist.data import spec
from pydist.data.strings import StringTensor

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_SPACES = {1: "GRAY", 3: "RGB"}


@functools.cache
def _simplejpeg():
    try:
        return importlib.import_module("simplejpeg")
    except ImportError:
        return None


@functools.cache
def _pillow():
    try:
        return importlib.import_module("PIL.Image")
    except ImportError:
        raise ImportError("pydist.data: images need Pillow (pip install 'pydist[vision]')") from None


def _bytes_of(contents, where):
    if not isinstance(contents, (StringTensor, bytes)):
        contents = spec.as_leaf(contents, where)
    if isinstance(contents, StringTensor):
        if contents.ndim:
            raise ValueError(f"{where}: contents has shape {contents.shape} (expected one string; map decodes each)")
        begin, end = contents._spans.tolist()
        return memoryview(contents._data)[begin:end]
    if not isinstance(contents, bytes):
        raise TypeError(f"{where}: contents is {type(contents).__name__} (expected a string of bytes)")
    return contents


def _decoded(contents, channels, kinds, where):
    content = _bytes_of(contents, where)
    if channels not in (0, None, *_MODES):
        raise ValueError(f"{where}: channels is {channels!r} (expected 0, 1, 3 or 4)")
    jpeg = bytes(content[:3]) == b"\xff\xd8\xff"
    if jpeg and "JPEG" in kinds and _simplejpeg() is not None and channels in _SPACES:
        try:
            return _C.from_numpy(_simplejpeg().decode_jpeg(content, _SPACES[channels]))
        except ValueError as error:
            raise _C.DataError(f"{where}: the JPEG is damaged: {error}") from None
    image = _pillow()
    try:
        with image.open(io.BytesIO(content), formats=kinds) as opened:
            mode = _MODES.get(channels) or (opened.mode if opened.mode in ("L", "RGB", "RGBA") else "RGB")
            made = opened.convert(mode) if opened.mode != mode else opened
            pixels = _C.frombuffer(bytearray(made.tobytes()), dtype=_C.uint8)
            return pixels.reshape(made.height, made.width, len(made.getbands()))
    except (OSError, SyntaxError, ValueError) as error:  # Pillow's errors for damaged files
        raise _C.DataError(f"{where}: not a {' or '.join(kinds)}, or a damaged one: {error}") from None


def decode_jpeg(contents, channels=0, name=None):
    """The image of a JPEG, uint8 [height, width, channels]. `channels`: 0: the image's own, 1: gray, 3: RGB. With simplejpeg
    (`pip install 'pydist[jpeg]'`) it takes a third of Pillow's time, for `channels` 1 and 3."""
    return _decoded(contents, channels, ("JPEG",), "decode_jpeg")


def decode_png(contents, channels=0, name=None):
    """The image of a PNG, uint8 [height, width, channels]. `channels`: 0: the image's own, 1: gray, 3: RGB, 4: RGBA."""
    return _decoded(contents, channels, ("PNG",), "decode_png")


def decode_image(contents, channels=0, name=None):
    """The image of a JPEG, PNG, BMP or GIF (its first frame), uint8 [height, width, channels]."""
    return _decoded(contents, channels, ("JPEG", "PNG", "BMP", "GIF"), "decode_image")
