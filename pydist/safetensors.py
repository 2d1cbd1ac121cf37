"""Files in the safetensors format: tensors by name and nothing else. Files are mapped into memory, not read.

    8 bytes    length of the header, little-endian
    header     JSON: {name: {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, "__metadata__": {...}}
    data       the tensors, contiguous, without gaps

Format: the safetensors specification (huggingface/safetensors, README).
"""

import io
import json
import mmap
import os
import struct
import sys

from pydist import _C
from pydist._files import replacing

_DTYPES = {
    "F64": _C.float64,
    "C64": _C.complex64,
    "F32": _C.float32,
    "F16": _C.float16,
    "BF16": _C.bfloat16,
    "I64": _C.int64,
    "I32": _C.int32,
    "I16": _C.int16,
    "I8": _C.int8,
    "U8": _C.uint8,
    "BOOL": _C.bool,
}
DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_HEADER_MOST = 100_000_000  # bytes, as in the reference implementation


class SafetensorError(RuntimeError, ValueError):
    """The file is not in this format, or the format cannot hold the tensors."""


def _layout(tensors, metadata):
    """(the header's bytes, the contiguous tensors in their order)."""
    header, data, at, owners = {}, [], 0, {}
    if metadata is not None:
        if not all(isinstance(key, str) and isinstance(value, str) for key, value in metadata.items()):
            raise SafetensorError("save: metadata is not a dict from str to str (expected a dict from str to str)")
        header["__metadata__"] = metadata
    # wide elements first, so that each tensor is aligned to the size of its elements
    for name, tensor in sorted(tensors.items(), key=lambda item: (-_width(*item), item[0])):
        tensor = tensor.detach()
        if tensor.numel():
            storage = _C.storage_bytes(tensor).data_ptr()
            if storage in owners:
                raise SafetensorError(
                    f"save: {owners[storage]!r} and {name!r} share memory, which the format cannot express (expected a clone of one of them)"
                )
            owners[storage] = name
        end = at + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPE_NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, end]}
        data.append(tensor.contiguous())
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, data


def _width(name, tensor):
    if not isinstance(tensor, _C.Tensor):
        raise SafetensorError(f"save: {name!r}: {type(tensor).__name__} (expected a tensor)")
    if not isinstance(name, str):
        raise SafetensorError(f"save: the name {name!r}: {type(name).__name__} (expected str)")
    if name == "__metadata__":
        raise SafetensorError(
            f"save: a tensor has the name {name!r}, which the format has for itself (expected another one)"
        )
    if tensor.is_meta:
        raise SafetensorError(f"save: {name!r} is on meta, which has no data (expected a tensor with memory)")
    return tensor.element_size()


def _bytes(tensor):
    whole = _C.storage_bytes(tensor)
    begin = tensor.storage_offset() * tensor.element_size()
    return memoryview(whole[begin : begin + tensor.numel() * tensor.element_size()].cpu())


def save(tensors, metadata=None):
    """The file's bytes. `tensors`: a dict from names to tensors; `metadata`: a dict from str to str.

    Raises SafetensorError if two tensors share memory or a value is not a tensor.
    """
    head, data = _layout(tensors, metadata)
    return b"".join([head, *(_bytes(tensor) for tensor in data if tensor.numel())])


def save_file(tensors, filename, metadata=None):
    """Writes `tensors` to the path `filename`. The file gets its new content all at once at the end, as with
    `pydist.save`.

    >>> import os, pydist, tempfile
    >>> from pydist.safetensors import load_file, save_file
    >>> path = os.path.join(tempfile.mkdtemp(), "model.safetensors")
    >>> save_file({"w": pydist.ones(2, 2)}, path)
    >>> load_file(path)
    {'w': tensor([[1., 1.],
            [1., 1.]])}
    """
    head, data = _layout(tensors, metadata)
    with replacing(filename) as file:
        file.write(head)
        for tensor in data:
            if tensor.numel():
                file.write(_bytes(tensor))


def _pairs(pairs):
    names = dict(pairs)
    if len(names) != len(pairs):
        raise SafetensorError("load: the header has a name twice (expected each name once)")
    return names


def parse_header(file, size):
    """({name: (dtype, shape, begin, end)}, metadata, the header's bytes with its length before them) of an open file of
    `size` bytes. Offsets count from the beginning of the file. All of it is checked."""
    head = file.read(8)
    if len(head) < 8:
        raise SafetensorError(f"load: the file has {size} bytes (expected at least 8)")
    (length,) = struct.unpack("<Q", head)
    if length > _HEADER_MOST or 8 + length > size:
        raise SafetensorError(f"load: got a header of {length} bytes in a file of {size} bytes")
    text = file.read(length)
    try:
        header = json.loads(str(text, "utf-8"), object_pairs_hook=_pairs)
    except SafetensorError:
        raise
    except (ValueError, RecursionError) as error:
        raise SafetensorError(f"load: the header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise SafetensorError("load: the header is not a JSON object")
    metadata = header.pop("__metadata__", None)
    is_text = isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())
    if metadata is not None and not is_text:
        raise SafetensorError("load: __metadata__ is not a dict of text (expected a dict from str to str)")
    return _entries(header, length, size), metadata, head + text


def _entries(header, length, size):
    found, spans = {}, []
    for name, entry in header.items():
        try:
            dtype, shape, (begin, end) = _DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
            whole = isinstance(shape, list)  # not text or a dict, of which * takes something, too
            whole &= all(type(number) is int and 0 <= number < 1 << 63 for number in (*shape, begin, end))
        except (KeyError, TypeError, ValueError):
            raise SafetensorError(
                f"load: {name!r}: its entry is incomplete (expected dtype, shape and data_offsets)"
            ) from None
        width = dtype.itemsize
        if not whole or _count(shape) * width != end - begin or 8 + length + end > size:
            raise SafetensorError(
                f"load: {name!r}: shape and offsets of {width}-byte elements do not fit a file of {size} bytes"
            )
        found[name] = dtype, shape, 8 + length + begin, 8 + length + end
        spans.append((begin, end))
    at = 0
    for begin, end in sorted(spans):
        if begin != at:
            raise SafetensorError(f"load: the data has a gap or an overlap at byte {at}")
        at = end
    if 8 + length + at != size:
        raise SafetensorError(f"load: {size - 8 - length - at} bytes follow the last tensor (expected none)")
    return found


def _count(shape):
    """The number of elements; for a shape that no file can hold, some large number."""
    count = 1
    for size in shape if 0 not in shape else (0,):
        count = min(count * size, 1 << 64)
    return count


def _tensor(data, dtype, shape, begin, end):
    try:
        return _over(data, dtype, shape, begin, end)
    except (ValueError, OverflowError, RuntimeError) as error:  # for example, more dimensions than a tensor may have
        raise SafetensorError(f"load: cannot make a tensor of {len(shape)} dimensions: {error}") from None


def _over(data, dtype, shape, begin, end):
    if begin == end:
        return _C.empty(shape, dtype=dtype, device="cpu")
    if begin % dtype.itemsize:  # files of other writers need not be aligned
        data, begin, end = bytearray(data[begin:end]), 0, end - begin
    return _C.frombuffer(memoryview(data)[begin:end], dtype=dtype).reshape(shape).detach()


def load(data):
    """The tensors, by name, in the bytes of a file."""
    _little()
    data = bytearray(data)
    entries, _, _ = parse_header(io.BytesIO(data), len(data))
    return {name: _tensor(data, *entry) for name, entry in entries.items()}


def load_file(filename, device="cpu"):
    """The tensors, by name, in the file at this path. The file is mapped into memory: only the parts that are used are
    read, and writes stay in memory. With another device the tensors are copied to it. Raises SafetensorError or OSError."""
    with safe_open(filename, device=device) as file:
        return {name: file.get_tensor(name) for name in file.keys()}


class safe_open:
    """A file from which tensors are taken one by one: `with safe_open(path, framework="pt") as f:
    f.get_tensor("w")`."""

    def __init__(self, filename, framework="pt", device="cpu"):
        _little()
        self._device = _C.device(device)
        with open(filename, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) if size else b""
            self._entries, self._metadata, _ = parse_header(file, size)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._data = None  # the file is unmapped when its last tensor is deleted

    def keys(self):
        """The names of the tensors."""
        return list(self._entries)

    def metadata(self):
        """The metadata, a dict from str to str; None if the file has none."""
        return self._metadata

    def get_tensor(self, name):
        """The tensor of this name. Raises SafetensorError if the file does not have it."""
        if name not in self._entries:
            raise SafetensorError(f"get_tensor: the file has no tensor {name!r}")
        return _tensor(self._data, *self._entries[name]).to(self._device)


def _little():
    if sys.byteorder != "little":
        raise SafetensorError("load: this machine is big-endian (expected a little-endian one)")
