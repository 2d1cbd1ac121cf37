"""Record files: TFRecords, lines, records of equal length, read by number, and a writer of TFRecords."""

import gzip
import os
import struct
import zlib

from pydist import _C
from pydist.data import nested, spec
from pydist.data.compressed import Compressed, kind_of
from pydist.data.dataset import CYCLE, Dataset
from pydist.data.files import FIXED, Files, LINES, RECORDS, paths_of
from pydist.data.spec import AUTOTUNE, TensorSpec, string
from pydist.data.step import Step, apart, tensor_of

_AHEAD, _AHEAD_BYTES = 64, 1 << 18  # records that are read at once where elements are asked for one after another


class Records(Step):
    """The records of files, one file after another, or of `cycle` files in turn."""

    tree = None

    def __init__(self, files, cycle=1):
        self.files, self.cycle, self._order = files, cycle, None
        self._block, self._next = (0, ()), 0  # the records that were read last, and the number after the last one

    name = property(lambda self: self.files.op)

    def count(self):
        return sum(self.files.counts())

    def _places(self, numbers):
        """The numbers of the records that stand at these places."""
        if self.cycle < 2:
            return numbers
        if self._order is None:
            self._order = _C._data_interleave(tensor_of(self.files.counts()), self.cycle)
        return _C._data_gather(self._order, numbers)

    def get(self, i, run):
        first, rows = self._block
        if not first <= i < first + len(rows):
            follows = i == self._next  # reads ahead, since elements are asked for in their order
            first, rows = i, self.files.rows(self._places(range(i, i + (self._ahead() if follows else 1))))
            self._block = (first, rows)
        self._next = i + 1
        return [rows[i - first]]

    def _ahead(self):
        """How many records a block has, all of them within the data."""
        count = self.count()
        each = sum(size for _, size, _ in self.files.stats()) // max(1, count)
        return max(1, min(_AHEAD, _AHEAD_BYTES // max(1, each), count - self._next))

    def rows(self, numbers, run):
        return [self.files.rows(self._places(numbers))]

    def elements(self, numbers, run):
        return apart(self.rows(numbers, run), len(numbers))

    def specs(self):
        return [TensorSpec((), string)]

    def detail(self):
        return (self.cycle, *self.files.detail())


def cycle_of(num_parallel_reads, where):
    """How many files are read in turn."""
    if num_parallel_reads is None:
        return 1
    reads = spec.count_of(num_parallel_reads, where, "num_parallel_reads")
    if reads != AUTOTUNE and reads < 1:
        raise ValueError(f"{where}: num_parallel_reads is {reads} (expected 1 or more, AUTOTUNE or None)")
    return CYCLE if reads == AUTOTUNE else reads


def of_files(filenames, where, framing, compression_type, num_parallel_reads, local_cache=None, **layout):
    """The plan of a data set of files: paths, or a data set of paths."""
    kind, cycle = kind_of(compression_type, where), cycle_of(num_parallel_reads, where)

    layout["local"] = None if local_cache is None else os.fspath(local_cache)

    def of_paths(paths):
        files = Files(where, framing, paths, **layout)
        return Records(files, min(cycle, len(paths))) if not kind else Compressed(files, kind)

    if not isinstance(filenames, Dataset):
        paths = paths_of(filenames, where)
        if not kind or cycle < 2:
            return of_paths(paths)
        filenames = Dataset.from_tensor_slices([os.fsencode(path) for path in paths])
    return nested.Interleave(
        filenames._node, lambda path: Dataset(of_paths(paths_of(path, where))), cycle, 1, where=where
    )


class TFRecordDataset(Dataset):
    """The records of TFRecord files, as strings. Checksums are compared.

    `filenames`: paths, or a data set of paths. Records are read by number, so `shuffle` and `shard` choose among all of
    them. The first pass looks at the lengths of all records; those of files from 64 MiB on are kept in a hidden file beside
    them (`.NAME.index`). A file that is cut or damaged raises DataError. `num_parallel_reads`: so many files are read in
    turn, a record of each. `compression_type` "GZIP" or "ZLIB": the files are read from their beginnings, as streams.
    `local_cache`: a folder of this host, to which each file is copied once before it is read.

    >>> import os, tempfile
    >>> from pydist.data import TFRecordDataset, TFRecordWriter
    >>> path = os.path.join(tempfile.mkdtemp(), "data.tfrecord")
    >>> with TFRecordWriter(path) as writer:
    ...     writer.write(b"one")
    ...     writer.write(b"two")
    >>> [record.numpy() for record in TFRecordDataset(path)]
    [b'one', b'two']
    """

    def __init__(self, filenames, compression_type=None, buffer_size=None, num_parallel_reads=None, name=None,
                 local_cache=None):  # fmt: skip
        where = type(self).__name__
        super().__init__(of_files(filenames, where, RECORDS, compression_type, num_parallel_reads, local_cache))


class FixedLengthRecordDataset(Dataset):
    """The records of files in which each has `record_bytes` bytes, between a header and a footer, as strings."""

    def __init__(self, filenames, record_bytes, header_bytes=None, footer_bytes=None, buffer_size=None,
                 compression_type=None, num_parallel_reads=None, name=None, local_cache=None):  # fmt: skip
        where = type(self).__name__
        head, foot = (
            0 if n is None else spec.count_of(n, where, what, 0)
            for n, what in ((header_bytes, "header_bytes"), (footer_bytes, "footer_bytes"))
        )
        layout = {"head": head, "each": spec.count_of(record_bytes, where, "record_bytes", 1), "foot": foot}
        super().__init__(of_files(filenames, where, FIXED, compression_type, num_parallel_reads, local_cache, **layout))


class TextLineDataset(Dataset):
    """The lines of text files, without their ends, as strings: read as TFRecordDataset reads records.

    >>> import os, tempfile
    >>> from pydist.data import TextLineDataset
    >>> path = os.path.join(tempfile.mkdtemp(), "text")
    >>> with open(path, "w") as file:
    ...     _ = file.write("one\\ntwo\\n")
    >>> [line.numpy() for line in TextLineDataset(path)]
    [b'one', b'two']
    """

    def __init__(self, filenames, compression_type=None, buffer_size=None, num_parallel_reads=None, name=None,
                 local_cache=None):  # fmt: skip
        where = type(self).__name__
        super().__init__(of_files(filenames, where, LINES, compression_type, num_parallel_reads, local_cache))


class TFRecordOptions:
    """How TFRecordWriter compresses: compression_type None, "GZIP" or "ZLIB". The other arguments are zlib's."""

    def __init__(self, compression_type=None, flush_mode=None, input_buffer_size=None, output_buffer_size=None,
                 window_bits=None, compression_level=None, compression_method=None, mem_level=None,
                 compression_strategy=None):  # fmt: skip
        self.compression_type = kind_of(compression_type, "TFRecordOptions")
        self.compression_level = -1 if compression_level is None else compression_level


class _Deflated:
    """A file that is written as a zlib stream."""

    def __init__(self, path, level):
        self.file, self.deflate = open(path, "wb"), zlib.compressobj(level)

    closed = property(lambda self: self.file.closed)

    def write(self, content):
        self.file.write(self.deflate.compress(content))

    def flush(self):
        self.file.write(self.deflate.flush(zlib.Z_SYNC_FLUSH))
        self.file.flush()

    def close(self):
        if not self.closed:
            self.file.write(self.deflate.flush())
            self.file.close()


class TFRecordWriter:
    """Writes records to a TFRecord file. `close()`, or the end of a `with` block, writes what waits. `options`: "GZIP",
    "ZLIB" or TFRecordOptions."""

    def __init__(self, path, options=None):
        options = options if isinstance(options, TFRecordOptions) else TFRecordOptions(options)
        path, level = os.fspath(path), options.compression_level
        if options.compression_type == "GZIP":
            self._file = gzip.open(path, "wb", 9 if level < 0 else level)
        elif options.compression_type == "ZLIB":
            self._file = _Deflated(path, level)
        else:
            self._file = open(path, "wb")

    def write(self, record):
        """Adds a record: bytes, or a string as UTF-8."""
        if isinstance(record, str):
            record = record.encode()
        if self._file.closed:
            raise ValueError("TFRecordWriter: write after close (expected an open writer)")
        length = struct.pack("<Q", len(record))
        self._file.write(length + struct.pack("<I", _C._data_crc32c(length)))
        self._file.write(record)
        self._file.write(struct.pack("<I", _C._data_crc32c(record)))

    def flush(self):
        """Hands what was written to the system."""
        self._file.flush()

    def close(self):
        """Writes what waits and closes the file."""
        self._file.close()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()
