"""Checkpoints whose files say something else than save wrote, with checksums that are right for what they say."""

import json
import os
import struct
import zlib

from pydist.distributed.checkpoint import _format

INNER = ("DCP_SHARDING_INFO", "crc32", "tree")  # JSON within the JSON of a header


def read(path):
    """A file's bytes."""
    with open(path, "rb") as file:
        return file.read()


def write(path, data):
    """Gives a file these bytes."""
    with open(path, "wb") as file:
        file.write(data)


def file_names(folder):
    """The files that hold the tensors of a checkpoint."""
    return sorted(name for name in os.listdir(folder) if name.endswith(".safetensors"))


def taken_apart(data):
    """(header, data) of a file of tensors; JSON within the header's __metadata__ is read, too."""
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    about = header.get("__metadata__", {})
    for key in set(INNER) & set(about):
        about[key] = json.loads(about[key])
    return header, data[8 + length :]


def put_together(header, data):
    """taken_apart's inverse. What is text already stays."""
    header = dict(header)
    if isinstance(header.get("__metadata__"), dict):
        header["__metadata__"] = {
            key: json.dumps(value) if key in INNER and not isinstance(value, str) else value
            for key, value in header["__metadata__"].items()
        }
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % _format.PAGE)
    return struct.pack("<Q", len(text)) + text + data


def sealed(folder):
    """Makes the manifest right for the files as they are."""
    found = json.loads(read(os.path.join(folder, _format.MANIFEST)))
    for entry in found["files"]:
        data = read(os.path.join(folder, entry["name"]))
        head = data[: 8 + min(struct.unpack("<Q", data[:8].ljust(8, b"\0"))[0], len(data))]
        entry["bytes"], entry["header_crc"] = len(data), zlib.crc32(head)
    write_manifest(folder, found)


def write_manifest(folder, found):
    """Writes a manifest with the checksum that is right for it."""
    found = {"crc": "00000000", **{key: value for key, value in found.items() if key != "crc"}}
    text = json.dumps(found)
    write(
        os.path.join(folder, _format.MANIFEST), text.replace("00000000", f"{zlib.crc32(text.encode()):08x}", 1).encode()
    )
