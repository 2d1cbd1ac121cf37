"""tf.io: files, images, records, CSV and raw bytes."""

import base64 as _base64
import glob as _glob
import os as _os

from pydist import _C
from pydist._files import replacing as _replacing
from pydist._replay import in_python as _in_python
from pydist.data import FixedLenFeature as FixedLenFeature
from pydist.data import FixedLenSequenceFeature as FixedLenSequenceFeature
from pydist.data import TFRecordOptions as TFRecordOptions
from pydist.data import TFRecordWriter as TFRecordWriter
from pydist.data import VarLenFeature as VarLenFeature
from pydist.data import decode_csv as decode_csv
from pydist.data import decode_raw as _decode_raw
from pydist.data import parse_example as parse_example
from pydist.data import parse_single_example as parse_single_example
from pydist.data.example import _counted, _fields, _varint
from pydist.data.images import _decoded
from pydist.data.strings import StringTensor as _StringTensor
from pydist.tensorflow import _tensors as _t
from pydist.tensorflow import errors as _errors
from pydist.tensorflow._arrays import reshape as _reshape
from pydist.tensorflow._images import as_dtype as _as_dtype
from pydist.tensorflow._images import encoded as _encoded
from pydist.tensorflow._images import frames as _frames
from pydist.tensorflow._images import smaller as _smaller
from pydist.tensorflow._names import lazy as _lazy

__getattr__, __dir__ = _lazy(__name__, {}, "gfile")

_KINDS = ("JPEG", "PNG", "BMP", "GIF")  # TensorFlow's functions of one kind take the others, too


def _bytes_of(value, where):
    value = _t.tensor(value)
    if not isinstance(value, _StringTensor) or value.ndim:
        raise TypeError(f"io.{where}: got {value!r} (expected one string)")
    return value.numpy()


def _path(value, where):
    return _os.fspath(value) if hasattr(value, "__fspath__") else _bytes_of(value, where).decode()


# Files.


def read_file(filename, name=None):
    """A file's bytes. Raises NotFoundError if there is no such file."""
    path = _path(filename, "read_file")
    try:
        with open(path, "rb") as file:
            return _StringTensor(file.read())
    except FileNotFoundError:
        raise _errors.NotFoundError(f"{path}; No such file or directory (expected a file)") from None


@_in_python
def write_file(filename, contents, name=None):
    """Writes a file, which appears whole. Folders are made."""
    path = _path(filename, "write_file")
    _os.makedirs(_os.path.dirname(path) or ".", exist_ok=True)
    with _replacing(path) as file:
        file.write(_bytes_of(contents, "write_file"))


def matching_files(pattern, name=None):
    """The paths that match patterns such as "a/*.png", sorted."""
    value = _t.tensor(pattern)
    patterns = [value.numpy()] if not value.ndim else value.tolist()
    found = sorted({path for one in patterns for path in _glob.glob(one.decode())})
    return _StringTensor(found) if found else _StringTensor([b""])[:0]


# Images.


def decode_image(contents, channels=None, dtype="uint8", name=None, expand_animations=True):
    """The pixels of a BMP, GIF, JPEG or PNG file: [height, width, channels], of a GIF [frames, height, width, 3]."""
    content = _bytes_of(contents, "decode_image")
    if expand_animations and content[:4] == b"GIF8":
        return _as_dtype(_frames(content, channels or 3, "decode_image"), dtype)
    return _as_dtype(_decoded(content, channels or 0, _KINDS, "decode_image"), dtype)


def decode_jpeg(contents, channels=0, ratio=1, fancy_upscaling=True, try_recover_truncated=False, acceptable_fraction=1,
                dct_method="", name=None):  # fmt: skip
    """The pixels of a JPEG file (or of another one), as uint8 [height, width, channels]; channels 0: as in the file."""
    content = _bytes_of(contents, "decode_jpeg")
    if ratio not in (1, 2, 4, 8):
        raise ValueError(f"io.decode_jpeg: ratio is {ratio} (expected 1, 2, 4 or 8)")
    return _decoded(content, channels, _KINDS, "decode_jpeg") if ratio == 1 else _smaller(content, channels, ratio)


def decode_png(contents, channels=0, dtype="uint8", name=None):
    """The pixels of a PNG file (or of another one), as uint8 [height, width, channels]; channels 0: as in the file."""
    if _t.as_dtype(dtype) is not _C.uint8:
        raise NotImplementedError(f"io.decode_png: dtype is {dtype} (expected uint8)")
    return _decoded(_bytes_of(contents, "decode_png"), channels, _KINDS, "decode_png")


def decode_bmp(contents, channels=0, name=None):
    """The pixels of a BMP file, as uint8 [height, width, channels]; channels 0: as in the file."""
    return _decoded(_bytes_of(contents, "decode_bmp"), channels, ("BMP",), "decode_bmp")


def decode_gif(contents, name=None):
    """The frames of a GIF file, as uint8 [frames, height, width, 3]."""
    return _frames(_bytes_of(contents, "decode_gif"), 3, "decode_gif")


def encode_jpeg(image, format="", quality=95, progressive=False, optimize_size=False, chroma_downsampling=True,
                name=None, **others):  # fmt: skip
    """The bytes of a JPEG file of uint8 pixels [height, width, 1 or 3]."""
    settings = {"quality": int(quality), "progressive": bool(progressive), "optimize": bool(optimize_size)}
    settings["subsampling"] = 2 if chroma_downsampling else 0
    return _StringTensor(_encoded(_t.tensor(image), "JPEG", "encode_jpeg", **settings))


def encode_png(image, compression=-1, name=None):
    """The bytes of a PNG file of uint8 pixels [height, width, 1 to 4]."""
    settings = {} if compression < 0 else {"compress_level": int(compression)}
    return _StringTensor(_encoded(_t.tensor(image), "PNG", "encode_png", **settings))


def is_jpeg(contents, name=None):
    """Whether bytes begin as a JPEG file does."""
    return _C.tensor(_bytes_of(contents, "is_jpeg")[:3] == b"\xff\xd8\xff")


# Bytes and numbers.


def decode_raw(input_bytes, out_type, little_endian=True, fixed_length=None, name=None):
    """The numbers whose bytes strings are, along a new last axis."""
    return _decode_raw(_t.tensor(input_bytes), _t.as_dtype(out_type), little_endian, fixed_length)


def encode_base64(input, pad=False, name=None):
    """Strings in URL-safe base64."""

    def text(item):
        found = _base64.urlsafe_b64encode(item)
        return found if pad else found.rstrip(b"=")

    value = _t.tensor(input)
    return _reshape(_StringTensor([text(item) for item in value._items()]), list(value.shape))


def decode_base64(input, name=None):
    """Strings that URL-safe base64 stands for."""
    value = _t.tensor(input)
    items = [_base64.urlsafe_b64decode(item + b"=" * (-len(item) % 4)) for item in value._items()]
    return _reshape(_StringTensor(items), list(value.shape))


# TensorProto, as serialize_tensor writes it: 1 dtype, 2 shape (2 sizes (1 size)), 4 the elements' bytes, 8 strings.

_NUMBERS = {
    "float32": 1, "float64": 2, "int32": 3, "uint8": 4, "int16": 5, "int8": 6, "string": 7, "complex64": 8, "int64": 9,
    "bool": 10, "bfloat16": 14, "complex128": 18, "float16": 19,
}  # fmt: skip


def serialize_tensor(tensor, name=None):
    """A tensor as bytes (TensorFlow's TensorProto)."""
    value = _t.tensor(tensor)
    sizes = b"".join(_counted(2, _varint(1 << 3) + _varint(n)) for n in value.shape)
    head = _varint(1 << 3) + _varint(_NUMBERS[_t.NAMES[value.dtype]]) + _counted(2, sizes)
    if isinstance(value, _StringTensor):
        return _StringTensor(head + b"".join(_counted(8, item) for item in value._items()))
    plain = value.detach().cpu().contiguous()
    content = bytes(_C.storage_bytes(plain.clone()).numpy()) if plain.numel() else b""
    return _StringTensor(head + (_counted(4, content) if content else b""))


def parse_tensor(serialized, out_type, name=None):
    """The tensor of bytes that serialize_tensor wrote."""
    dtype, data = _t.as_dtype(out_type), _bytes_of(serialized, "parse_tensor")
    number, sizes, content, strings = None, [], b"", []
    for field, part in _fields(data, "io.parse_tensor"):
        if field == 1:
            number = part
        elif field == 2:
            for inner, size in _fields(part, "io.parse_tensor"):
                if inner == 2:
                    sizes.append(next((n for f, n in _fields(size, "io.parse_tensor") if f == 1), 0))
        elif field == 4:
            content = part
        elif field == 8:
            strings.append(bytes(part))
        else:
            content, strings = _listed(field, part, content, strings)
    if number != _NUMBERS[_t.NAMES[dtype]]:
        names = {n: name for name, n in _NUMBERS.items()}
        raise _errors.InvalidArgumentError(
            f"io.parse_tensor: the tensor has {names.get(number, number)} (expected {_t.NAMES[dtype]})"
        )
    if dtype is _t.string:
        return _reshape(_StringTensor(strings), sizes) if strings else _reshape(_StringTensor([b""])[:0], sizes)
    if len(content) != dtype.itemsize * _product(sizes):
        raise _C.DataError(
            f"io.parse_tensor: {len(content)} bytes for sizes {sizes} (expected {dtype.itemsize * _product(sizes)})"
        )
    return _C.frombuffer(bytearray(content), dtype=dtype).reshape(sizes) if content else _C.empty(*sizes, dtype=dtype)


def _product(sizes):
    count = 1
    for n in sizes:
        count *= n
    return count


def _listed(field, part, content, strings):
    """What TensorFlow writes for small tensors: lists of floats (5), doubles (6), ints (7) or int64s (10)."""
    if isinstance(part, bytes) and field in (5, 6):
        return content + part, strings
    raise NotImplementedError(f"io.parse_tensor: field {field} of the message (expected the bytes of the elements)")
