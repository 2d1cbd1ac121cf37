"""Compressed files of records, which are read from their beginning: gzip and zlib."""

import gzip
import itertools
import os
import struct
import zlib

from pydist import _C
from pydist.data import state
from pydist.data.files import CSV, FIXED, RECORDS
from pydist.data.spec import TensorSpec, UNKNOWN, string
from pydist.data.step import Step
from pydist.data.streams import Stream
from pydist.data.strings import StringTensor

_BLOCK = 1 << 18
_KINDS = ("", "GZIP", "ZLIB")


def kind_of(compression_type, where):
    """A program's compression_type: "", "GZIP" or "ZLIB"."""
    kind = compression_type or ""
    kind = kind.numpy().decode() if isinstance(kind, StringTensor) else kind
    if kind not in _KINDS:
        raise ValueError(
            f"{where}: compression_type is {compression_type!r} (expected None, {', '.join(map(repr, _KINDS))})"
        )
    return kind


class _Inflated:
    """A file of a zlib stream, as readinto-like bytes: read(n) gives up to n of them."""

    def __init__(self, path):
        self.file, self.inflate, self.waiting = open(path, "rb"), zlib.decompressobj(), b""

    def read(self, count):
        """The next bytes, fewer only at the end."""
        while len(self.waiting) < count and not self.inflate.eof:
            block = self.file.read(_BLOCK)
            if not block:
                raise EOFError("the compressed stream is cut")
            self.waiting += self.inflate.decompress(block)
        found, self.waiting = self.waiting[:count], self.waiting[count:]
        return found

    def close(self):
        """Closes the file."""
        self.file.close()


def _opened(path, kind):
    return gzip.open(path, "rb") if kind == "GZIP" else _Inflated(path)


class Compressed(Step):
    """The records of compressed files, one file after another. `files`: as files.Files has them."""

    indexed = False
    tree = None

    def __init__(self, files, kind):
        self.files, self.kind = files, kind

    name = property(lambda self: self.files.op)

    def count(self):
        return UNKNOWN

    def specs(self):
        return [TensorSpec((), string)]

    def stream(self, run):
        return CompressedStream(self, run)

    def detail(self):
        return (self.kind, *self.files.detail())

    def records_of(self, i):
        """A generator of file i's records."""
        path, source = self.files.paths[i], _opened(self.files.here(i)[0], self.kind)
        try:
            records = _FRAMINGS.get(self.files.framing, _lines)(self.files, path, source)
            yield from itertools.islice(records, self.files.skip, None)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise _C.DataError(f"{self.name}: {path} is cut or damaged, or not of {self.kind}: {error}") from error
        finally:
            source.close()


def _records(files, path, source):
    number = 0

    def said(what, got, expected):
        return _C.DataError(f"{files.op}: {path}: record {number} has {what} {got} (expected {expected})")

    while head := source.read(12):
        if len(head) < 12:
            raise said("a head of bytes", len(head), 12)
        length, crc = struct.unpack("<QI", head)
        if _C._data_crc32c(head[:8]) != crc:
            raise said("a length whose checksum is", f"{_C._data_crc32c(head[:8]):#010x}", f"{crc:#010x}")
        content = _exactly(source, length + 4)
        if content is None:
            raise said("fewer bytes than", length, "all of them")
        crc = int.from_bytes(content[-4:], "little")
        if _C._data_crc32c(content[:-4]) != crc:
            raise said("data whose checksum is", f"{_C._data_crc32c(content[:-4]):#010x}", f"{crc:#010x}")
        yield content[:-4]
        number += 1


def _exactly(source, count):
    """So many bytes, or None. Asks for no more memory than has been read: a length may be damaged."""
    parts = []
    while count:
        part = source.read(min(count, _BLOCK))
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _fixed(files, path, source):
    source.read(files.head)
    waiting = b""
    while block := source.read(_BLOCK):
        waiting += block
        while len(waiting) >= files.each + files.foot:
            yield waiting[: files.each]
            waiting = waiting[files.each :]
    if len(waiting) != files.foot:
        raise _C.DataError(
            f"{files.op}: {path} ends with {len(waiting)} bytes (expected {files.foot} of a footer after records of "
            f"{files.each})"
        )


def _lines(files, path, source):
    waiting, quoted = [], False
    while block := source.read(_BLOCK):
        *ended, rest = block.split(b"\n")
        for part in ended:
            waiting.append(part)
            if files.framing == CSV and (quoted := quoted ^ (part.count(b'"') % 2 == 1)):
                waiting.append(b"\n")
                continue
            yield b"".join(waiting).removesuffix(b"\r")
            waiting = []
        waiting.append(rest)
        if files.framing == CSV:
            quoted ^= rest.count(b'"') % 2 == 1
    if last := b"".join(waiting):
        yield last.removesuffix(b"\r")


_FRAMINGS = {RECORDS: _records, FIXED: _fixed}


class CompressedStream(Stream):
    """Its place is a file and a number: the records before it are read again."""

    def __init__(self, step, run):
        super().__init__(step, run)
        self.file, self.number, self.records = 0, 0, None

    def _next(self):
        while self.file < len(self.step.files.paths):
            if self.records is None:
                self.records = self.step.records_of(self.file)
            record = next(self.records, None)
            if record is not None:
                self.number += 1
                return record
            self.file, self.number, self.records = self.file + 1, 0, None
        raise StopIteration

    def __next__(self):
        return [StringTensor(self._next())]

    def state(self):
        return [self.file, self.number]

    def set_state(self, saved):
        self.close()
        self.file, before = saved
        self.number, self.records = 0, None
        if before:
            path = self.step.files.paths[self.file]
            state.log.info(
                "%s: reads %d records of %s again, to go on behind them", self.step.name, before, os.fsdecode(path)
            )
        while self.number < before:
            self._next()

    def close(self):
        if self.records is not None:
            self.records.close()
            self.records = None
