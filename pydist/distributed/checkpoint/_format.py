"""The files of a checkpoint. docs/guide/checkpoints.md describes them; any reader of safetensors opens them.

FOLDER/00000.safetensors ...   one or more for each rank that wrote
FOLDER/manifest.json           the list of files, written last: without it the folder is no checkpoint
FOLDER/index.bin               the headers of all files, in the manifest's order, if there are many files. It may be missing:
                               it saves a reader the opening of each file
"""

import io
import json
import os
import re
import stat
import struct
from math import prod

from pydist import _C
from pydist.distributed.checkpoint._tree import path_from_json, path_to_json
from pydist.distributed.checkpoint.api import CheckpointException
from pydist.distributed.checkpoint.layout import uncovered
from pydist.safetensors import DTYPE_NAMES, SafetensorError, parse_header

BLOCK = 4 << 20  # bytes of data under one checksum
PAGE = 4096  # data begins at a multiple of it
MANIFEST, HEADERS = "manifest.json", "index.bin"
VERSION = 1
MOST, MOST_HEADERS = 1 << 26, 1 << 28  # bytes of a manifest, and of index.bin
INDEXED = 64  # files of a checkpoint that has an index.bin
DIMS, MOST_ELEMENTS = 16, 1 << 59  # of a tensor


def blocks(nbytes):
    """How many checksums a tensor of that many bytes has."""
    return -(-nbytes // BLOCK)


class Boxes:
    """The boxes of one file, in the order in which they lie there: wide elements first, so that each is aligned."""

    def __init__(self, items):
        """items: [(name, offsets, tensor, shape of the whole)]."""
        order = sorted(items, key=lambda item: (-item[2].element_size(), item[0], item[1]))
        self.tensors, self.entries, self.sharding, at = [], {}, {}, 0
        for name, offsets, tensor, shape in order:
            key = f"{name}@{','.join(map(str, offsets))}" if name in self.entries else name
            if key == "__metadata__":
                raise CheckpointException(f"save: a tensor has the name {key!r}, which the format has for itself")
            if key in self.entries:
                raise CheckpointException(f"save: two tensors of the state have the name {key!r} in one file")
            nbytes = tensor.numel() * tensor.element_size()
            self.entries[key] = (tensor.dtype, list(tensor.shape), at, at + nbytes)
            self.sharding[key] = {"saved_offsets": list(offsets), "logical_fqn": name, "shape": list(shape)}
            self.tensors.append(tensor)
            at += nbytes
        self.nbytes = at

    def header(self, checksums, more):
        """The file's bytes up to the data. checksums: {key: [CRC-32 of each block]}, or None: the length is the same."""
        text = {key: "".join(f"{crc:08x}" for crc in checksums[key]) if checksums else "0" * 8 * blocks(end - begin)
                for key, (_, _, begin, end) in self.entries.items()}  # fmt: skip
        about = {
            "format": "pt",
            "pydist": str(VERSION),
            "DCP_SHARDING_INFO": _text(self.sharding),
            "crc32": _text(text),
        }
        header = {"__metadata__": {**about, **more}}
        for key, (dtype, shape, begin, end) in self.entries.items():
            if dtype not in DTYPE_NAMES:
                raise CheckpointException(f"save: {key!r} is {dtype}, which the format does not have")
            header[key] = {"dtype": DTYPE_NAMES[dtype], "shape": shape, "data_offsets": [begin, end]}
        data = _text(header).encode()
        data += b" " * (-(8 + len(data)) % PAGE)
        return struct.pack("<Q", len(data)) + data


def tree(leaves, paths):
    """What a header says of the state's values that are no tensors, and of where in the state each name belongs."""
    known = {name: path_to_json(path) for name, path in paths.items()}
    return {"tree": _text({"leaves": leaves, "paths": {name: path for name, path in known.items() if path}})}


def _text(value):
    return json.dumps(value, separators=(",", ":"))


class Stored:
    """A box in a file: `file`, `begin` and `nbytes` of its data, `offsets` and `sizes` in the whole, checksums or None."""

    __slots__ = ("file", "begin", "nbytes", "offsets", "sizes", "crcs")

    def __init__(self, file, begin, nbytes, offsets, sizes, crcs):
        self.file, self.begin, self.nbytes = file, begin, nbytes
        self.offsets, self.sizes, self.crcs = offsets, sizes, crcs

    @property
    def box(self):
        """(offsets, sizes)."""
        return self.offsets, self.sizes


class Whole:
    """A stored tensor: dtype, shape and boxes."""

    __slots__ = ("dtype", "shape", "boxes")

    def __init__(self, dtype, shape):
        self.dtype, self.shape, self.boxes = dtype, shape, []


class Index:
    """All that the headers of some files say: `tensors` {name: Whole}, `leaves` {name: JSON}, `paths` {name: path}."""

    def __init__(self):
        self.tensors, self.leaves, self.paths, self.nbytes = {}, {}, {}, 0
        self.save_ids = set()  # those that the files name; None for files of others

    def add(self, path, header_crc=None, known=None):
        """Reads the header of this file. Raises CheckpointException if it is damaged. known: (the header's bytes, the
        file's size), if they have been read."""
        with open(path, "rb") if known is None else io.BytesIO(known[0]) as file:
            size = os.fstat(file.fileno()).st_size if known is None else known[1]
            try:
                entries, metadata, head = parse_header(file, size)
            except SafetensorError as error:
                raise CheckpointException(f"{path}: {error}") from None
        if header_crc is not None and _C.io_crc32(head) != header_crc:
            raise CheckpointException(f"{path}: the checksum of the header is wrong: the file is damaged")
        self.nbytes += size
        try:
            self._add(path, entries, metadata or {})
        except CheckpointException as error:
            raise CheckpointException(f"{path}: {error}") from None
        except Exception as error:  # whatever hostile JSON makes these lines raise
            raise CheckpointException(f"{path}: its __metadata__ is damaged: {type(error).__name__}: {error}") from None

    def _add(self, path, entries, metadata):
        sharding = json.loads(metadata["DCP_SHARDING_INFO"]) if "DCP_SHARDING_INFO" in metadata else {}
        crcs = json.loads(metadata["crc32"]) if "crc32" in metadata else {}
        about = json.loads(metadata["tree"]) if "tree" in metadata else {}
        self.save_ids.add(metadata.get("save_id"))
        for key, (dtype, sizes, begin, end) in entries.items():
            info = sharding.get(key)
            name = info.get("logical_fqn", key) if info else key
            offsets = whole_numbers(info["saved_offsets"]) if info else (0,) * len(sizes)
            if not isinstance(name, str) or len(offsets) != len(sizes):
                raise CheckpointException(
                    f"{key!r} is a box of {str(name)[:50]!r} with {len(offsets)} offsets and {len(sizes)} sizes (expected a "
                    "name, and the same number)"
                )
            shape = whole_numbers(info["shape"]) if info and "shape" in info else None
            sums = None
            if key in crcs:
                text = crcs[key]
                if not re.fullmatch(f"(?:[0-9a-f]{{8}}){{{blocks(end - begin)}}}", text):
                    raise CheckpointException(f"{key!r}: its checksums are {text[:20]!r} (expected one for each block)")
                sums = [int(text[i : i + 8], 16) for i in range(0, len(text), 8)]
            whole = self.tensors.setdefault(name, Whole(dtype, shape))
            if (whole.dtype, whole.shape) != (dtype, shape):
                raise CheckpointException(
                    f"{name!r} is {whole.dtype} of {whole.shape} in one place, {dtype} of {shape} in another"
                )
            whole.boxes.append(Stored(path, begin, end - begin, offsets, tuple(sizes), sums))
        for name, value in about.get("leaves", {}).items():
            if not isinstance(value, str) or not value.isascii():
                raise CheckpointException(f"{name!r}: its value is damaged")
            self.leaves.setdefault(name, value)
        for name, keys in about.get("paths", {}).items():
            self.paths.setdefault(name, path_from_json(keys))

    def check(self):
        """Raises CheckpointException unless each tensor's boxes are the whole tensor."""
        for name, whole in self.tensors.items():
            if whole.shape is None:  # files of others say only where boxes begin
                ends = [[o + n for o, n in zip(*stored.box, strict=True)] for stored in whole.boxes]
                if len({len(end) for end in ends}) > 1:
                    raise CheckpointException(f"{name!r}: its boxes have different numbers of dimensions")
                whole.shape = tuple(map(max, zip(*ends, strict=True)))
            if len(whole.shape) > DIMS or prod(filter(None, whole.shape)) >= MOST_ELEMENTS:
                raise CheckpointException(
                    f"{name!r} has {len(whole.shape)} dimensions, of sizes {str(whole.shape)[:50]} (expected at most {DIMS}, and "
                    "sizes that a tensor can have)"
                )
            why = uncovered(whole.shape, [stored.box for stored in whole.boxes])
            if why:
                raise CheckpointException(f"{name!r}: {why}")


def whole_numbers(values):
    if not isinstance(values, list) or not all(type(n) is int and 0 <= n < 1 << 62 for n in values):
        raise CheckpointException(f"sizes are {str(values)[:50]} (expected a list of whole numbers)")
    return tuple(values)


def manifest(files, **more):
    """The bytes of a manifest. files: [{"name", "bytes", "header_crc"}]. Its own CRC-32 is over the text with zeros in the
    place of the CRC-32."""
    text = _text({"crc": "00000000", "format": "pydist.checkpoint", "version": VERSION, "files": files, **more})
    return text.replace("00000000", f"{_C.io_crc32(text.encode()):08x}", 1).encode()


def read_manifest(folder):
    """The manifest of a folder, checked. Raises FileNotFoundError if there is none, CheckpointException for others."""
    path = os.path.join(folder, MANIFEST)
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            data = file.read() if size <= MOST else b""  # read(MOST) would take that much memory at once
    except IsADirectoryError:
        raise CheckpointException(f"{path}: the manifest is a folder") from None
    try:
        if size > MOST:
            raise ValueError(f"it has {size} bytes (expected at most {MOST})")
        found = json.loads(data)
        crc = found["crc"]
        if not re.fullmatch("[0-9a-f]{8}", crc) or int(crc, 16) != _C.io_crc32(data.replace(crc.encode(), b"0" * 8, 1)):
            raise ValueError("its checksum is wrong (expected that of its text)")
        if found["format"] != "pydist.checkpoint":
            raise ValueError(f"its format is {found['format']!r} (expected 'pydist.checkpoint')")
        if type(found["version"]) is not int or not 1 <= found["version"] <= VERSION:
            raise ValueError(f"it has version {found['version']!r}, of a newer pydist (expected at most {VERSION})")
        if not isinstance(found["files"], list):
            raise ValueError(f"its files are {type(found['files']).__name__} (expected list)")
        names = set()
        for entry in found["files"]:
            name, size, crc = entry["name"], entry["bytes"], entry["header_crc"]
            if (
                not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,200}\.safetensors", name)
                or type(size) is not int
                or type(crc) is not int
                or name in names
            ):
                raise ValueError(f"its file {str(name)[:50]!r} (expected a name once, in the folder, and sizes)")
            names.add(name)
        return found
    except Exception as error:  # whatever hostile JSON makes these lines raise
        raise CheckpointException(f"{path}: the manifest is damaged: {type(error).__name__}: {error}") from None


def is_replaced(folder, manifest):
    """Whether this folder has the manifest of another save by now."""
    try:
        return read_manifest(folder).get("save_id") != manifest.get("save_id")
    except (OSError, CheckpointException):
        return False


def index_of(folder, all_headers=False):
    """(Index, manifest) of a checkpoint of ours. all_headers: those of the files are read, whatever index.bin has. Raises
    FileNotFoundError or CheckpointException."""
    found = read_manifest(folder)
    try:
        return _index(folder, found, {} if all_headers else known_headers(folder, found)[0]), found
    except (CheckpointException, OSError):
        if not is_replaced(folder, found):
            raise
    return index_of(folder, all_headers)


def headers(paths):
    """The headers of these files, one after the other."""
    found = []
    for path in paths:
        with open(path, "rb") as file:
            length = file.read(8)
            found += [length, file.read(*struct.unpack("<Q", length))]
    return b"".join(found)


def known_headers(folder, manifest):
    """{name: header} of those in index.bin whose checksums are the manifest's, and whether index.bin has these of all
    files and nothing else."""
    known, at, path = {}, 0, os.path.join(folder, HEADERS)
    try:
        with open(path, "rb") as file:
            data = file.read() if os.fstat(file.fileno()).st_size <= MOST_HEADERS else b""
    except OSError:
        return known, not os.path.lexists(path)
    for entry in manifest["files"]:
        end = at + 8 + int.from_bytes(data[at : at + 8], "little")
        head, at = data[at:end], end
        if _C.io_crc32(head) != entry["header_crc"]:
            return known, False
        known[entry["name"]] = head
    return known, at == len(data)


def _index(folder, found, known):
    index = Index()
    for entry in found["files"]:
        path = os.path.join(folder, entry["name"])
        try:
            about = os.stat(path)
        except FileNotFoundError:
            raise CheckpointException(f"{path}: the file is missing (the manifest has it)") from None
        size = about.st_size
        if not stat.S_ISREG(about.st_mode):
            raise CheckpointException(f"{path}: this is no file (expected one, as in the manifest)")
        if size != entry["bytes"]:
            raise CheckpointException(
                f"{path}: the file has {size} bytes (expected {entry['bytes']}, as in the manifest)"
            )
        head = known.get(entry["name"])
        index.add(path, entry["header_crc"], head and (head, size))
    index.check()
    for name, whole in index.tensors.items():
        if any(box.crcs is None for box in whole.boxes):
            raise CheckpointException(f"{folder}: {name!r} has no checksums")
    return index
