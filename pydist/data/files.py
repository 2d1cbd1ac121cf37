"""Files of records that are read by number: where their records begin is found once, and kept beside large files."""

import contextlib
import hashlib
import os
import shutil
import struct
import threading
from concurrent.futures import ThreadPoolExecutor

from pydist import _C
from pydist._files import alone, replacing
from pydist.data import pool
from pydist.data.spec import StringTensor

RECORDS, LINES, FIXED, CSV = range(4)  # csrc/data/files.h

_MAGIC = b"pydist index 1\n\0"
_HEAD = struct.Struct("<16sqqqqI4x")  # magic, size and time of change of the file, framing, starts, their checksum
_LARGE = 64 << 20  # bytes; the records of a smaller file are found in some milliseconds


def paths_of(filenames, where):
    """The paths that a program gave: one, or a list, array or tensor of strings."""
    if isinstance(filenames, (str, bytes, os.PathLike)):
        filenames = [filenames]
    elif isinstance(filenames, StringTensor):
        filenames = [filenames.numpy()] if not filenames.ndim else filenames.tolist()
    elif hasattr(filenames, "tolist"):  # an array
        filenames = filenames.tolist()
    try:
        return [os.fsdecode(path) for path in filenames]
    except TypeError:
        raise TypeError(f"{where}: filenames is {filenames!r} (expected paths as strings)") from None


class Files:
    """The records of files, numbered through. Files are looked at when that is first needed, not when a plan is made.

    `op`: what messages begin with. FIXED: records of `each` bytes after `head` bytes and before `foot` bytes. `skip`: the
    first records of each file that are left out. `local`: a folder of this host, for copies of the files."""

    def __init__(self, op, framing, paths, head=0, each=0, foot=0, skip=0, local=None):
        self.op, self.framing, self.paths, self.local = op, framing, paths, local
        self.head, self.each, self.foot, self.skip = head, each, foot, skip
        self._lock, self._ready, self._counts, self._stats = threading.Lock(), None, None, None

    def stats(self):
        """(path, bytes, time of the last change in ns) of each file."""
        if self._stats is None:
            found = []
            for path in self.paths:
                at = os.stat(path)
                found.append((os.fsencode(path), at.st_size, at.st_mtime_ns))
            self._stats = found
        return self._stats

    def here(self, i):
        """(path, bytes, time of the last change) of file i, or of its copy on this host."""
        found = self.stats()[i]
        return found if self.local is None else local_copy(self.local, *found)

    def over(self, paths):
        """The same of other files."""
        return Files(self.op, self.framing, paths, self.head, self.each, self.foot, self.skip, self.local)

    def ready(self):
        """The engine's object, with all records counted."""
        if self._ready is None:
            with self._lock:
                if self._ready is None:
                    self._ready = self._opened()
        return self._ready

    def _opened(self):
        count = len(self.stats())
        files = _each(self.here, count)
        made = _C._data_files(self.op, self.framing, files, self.head, self.each)
        if self.framing == FIXED:
            found = [self._fixed_count(path, size) for path, size, _ in files]
        else:
            found = _each(lambda i: self._starts(made, i, *files[i]), count)
        totals = [0] + [_C._data_files_index(made, i, starts) for i, starts in enumerate(found)]
        self._counts = [b - a for a, b in zip(totals, totals[1:])]
        return made

    def _fixed_count(self, path, size):
        bytes_of_records = size - self.head - self.foot
        if bytes_of_records < 0 or bytes_of_records % self.each:
            raise _C.DataError(
                f"{self.op}: {os.fsdecode(path)} has {size} bytes (expected {self.head} of a header, {self.foot} of a footer "
                f"and a multiple of {self.each})"
            )
        return bytes_of_records // self.each

    def _starts(self, made, i, path, size, changed):
        starts = self._all_starts(made, i, path, size, changed)
        return starts[min(self.skip, len(starts) - 1) :]

    def _all_starts(self, made, i, path, size, changed):
        if size < _LARGE:
            return _C._data_files_scan(made, i)
        beside = _index_path(os.fsdecode(path))
        starts = _loaded(beside, size, changed, self.framing)
        if starts is None:
            starts = _C._data_files_scan(made, i)
            with contextlib.suppress(OSError):  # a folder that cannot be written to
                _save(beside, size, changed, self.framing, starts)
        return starts

    def counts(self):
        """How many records each file has."""
        self.ready()
        return self._counts

    def rows(self, numbers):
        """The records with these numbers."""
        return StringTensor._of(*_C._data_files_rows(self._ready or self.ready(), numbers))

    def detail(self):
        """What identifies the records in another process: the files' names and sizes."""
        return (self.head, self.each, self.skip, [(os.path.basename(path), size) for path, size, _ in self.stats()])


def _each(function, count):
    """[function(0), ..., function(count - 1)], in threads: most of the time is the disk's."""
    if count < 2:
        return [function(i) for i in range(count)]
    with ThreadPoolExecutor(min(count, 2 * pool.cores())) as threads:
        return list(threads.map(function, range(count)))


def local_copy(folder, path, size, changed):
    """(path, bytes, time of the last change) of a file's copy in a folder of this host. The first process that asks makes the
    copy, and others on the host wait for it."""
    mark = hashlib.sha256(repr((os.path.abspath(path), size, changed)).encode()).hexdigest()[:16]
    copy = os.path.join(folder, f"{mark}-{os.path.basename(os.fsdecode(path))}")
    os.makedirs(folder, exist_ok=True)
    if not os.path.exists(copy):
        with alone(os.path.join(folder, f".{mark}.lock")):
            if not os.path.exists(copy):
                with open(path, "rb") as source, replacing(copy) as to:
                    shutil.copyfileobj(source, to, 1 << 20)
    at = os.stat(copy)
    if at.st_size != size:
        raise _C.DataError(
            f"local_cache: {copy} has {at.st_size} bytes (expected {size}, as {os.fsdecode(path)}: it has changed while it was "
            "copied; remove the copy)"
        )
    return os.fsencode(copy), at.st_size, at.st_mtime_ns


def _index_path(path):
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.index")


def _save(path, size, changed, framing, starts):
    content = memoryview(starts).cast("B")
    with replacing(path) as file:
        file.write(_HEAD.pack(_MAGIC, size, changed, framing, starts.shape[0], _C._data_crc32c(content)))
        file.write(content)


def _loaded(path, size, changed, framing):
    """The starts that a file beside the records has, or None if it is missing, damaged or of older records."""
    try:
        with open(path, "rb") as file:
            head, content = file.read(_HEAD.size), bytearray(file.read())
    except OSError:
        return None
    if len(head) < _HEAD.size:
        return None
    *said, count, crc = _HEAD.unpack(head)
    if said != [_MAGIC, size, changed, framing] or len(content) != 8 * count or _C._data_crc32c(content) != crc:
        return None
    return _C.frombuffer(content, dtype=_C.int64)
