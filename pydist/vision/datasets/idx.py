"""Reads MNIST's idx files, gzipped or not, into NumPy arrays.

Format: two zero bytes, a type (8: unsigned byte), the number of dims, each size as a big-endian int32, the data.
"""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np

_UBYTE = 8


def read(path):
    """The array in `path`. Raises ValueError, which names the file, if it is not an idx file of bytes or is cut
    short."""
    opener = gzip.open if Path(path).suffix == ".gz" else open
    try:
        with opener(path, "rb") as file:
            content = file.read()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path}: damaged or cut short: {error}") from None
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != _UBYTE:
        raise ValueError(f"{path}: not an idx file of unsigned bytes")
    dims = content[3]
    begin = 4 + 4 * dims
    if len(content) < begin:
        raise ValueError(f"{path}: cut short in its header")
    shape = struct.unpack(f">{dims}I", content[4:begin])
    if len(content) - begin != math.prod(shape):
        raise ValueError(f"{path}: {len(content) - begin} bytes of data (expected {math.prod(shape)} for {shape})")
    return np.frombuffer(content, np.uint8, offset=begin).reshape(shape)


def find(folder, name):
    """The path of `name` or `name`.gz in `folder`. Raises FileNotFoundError with the folder and the file."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"no such data folder: {folder}")
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise FileNotFoundError(f"no {name} or {name}.gz in {folder}")


def read_pair(folder, prefix):
    """(images, labels) of MNIST's "train" or "t10k" part. Raises ValueError if their numbers differ."""
    images = read(find(folder, f"{prefix}-images-idx3-ubyte"))
    labels = read(find(folder, f"{prefix}-labels-idx1-ubyte"))
    if len(images) != len(labels):
        raise ValueError(
            f"{folder}: {len(images)} {prefix} images and {len(labels)} labels (expected as many labels as images)"
        )
    return images, labels
