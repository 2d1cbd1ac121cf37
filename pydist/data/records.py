"""Record files: TFRecords and records of equal length, read by number, and a writer of TFRecords."""

import os
import struct

from pydist import _C
from pydist.data import spec
from pydist.data.dataset import Dataset
from pydist.data.files import FIXED, Files, RECORDS, paths_of
from pydist.data.spec import AUTOTUNE, TensorSpec, string
from pydist.data.step import Step, tensor_of

_TURNS = 16  # files that are read in turn for num_parallel_reads=AUTOTUNE: a number that every machine has


class Records(Step):
    """The records of files, one file after another, or of `cycle` files in turn."""

    tree = None

    def __init__(self, files, cycle=1):
        self.files, self.cycle, self._order = files, cycle, None

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
        return [self.files.rows(self._places(range(i, i + 1)))[0]]

    def rows(self, numbers, run):
        return [self.files.rows(self._places(numbers))]

    def specs(self):
        return [TensorSpec((), string)]

    def detail(self):
        return (self.cycle, *self.files.detail())


def cycle_of(num_parallel_reads, files, where):
    """How many files are read in turn."""
    if num_parallel_reads is None:
        return 1
    reads = spec.count_of(num_parallel_reads, where, "num_parallel_reads")
    if reads != AUTOTUNE and reads < 1:
        raise ValueError(f"{where}: num_parallel_reads is {reads} (expected 1 or more, AUTOTUNE or None)")
    return min(files, _TURNS if reads == AUTOTUNE else reads)


class TFRecordDataset(Dataset):
    """The records of TFRecord files, as strings. Checksums are compared.

    Records are read by number, so `shuffle` and `shard` choose among all of them. The first pass looks at the lengths of
    all records; those of files from 64 MiB on are kept in a hidden file beside them (`.NAME.index`). A file that is cut or
    damaged raises DataError. `num_parallel_reads`: so many files are read in turn, a record of each.

    >>> import os, tempfile
    >>> from pydist.data import TFRecordDataset, TFRecordWriter
    >>> path = os.path.join(tempfile.mkdtemp(), "data.tfrecord")
    >>> with TFRecordWriter(path) as writer:
    ...     writer.write(b"one")
    ...     writer.write(b"two")
    >>> [record.numpy() for record in TFRecordDataset(path)]
    [b'one', b'two']
    """

    def __init__(self, filenames, compression_type=None, buffer_size=None, num_parallel_reads=None, name=None):
        where = type(self).__name__
        paths = paths_of(filenames, where)
        super().__init__(Records(Files(where, RECORDS, paths), cycle_of(num_parallel_reads, len(paths), where)))


class FixedLengthRecordDataset(Dataset):
    """The records of files in which each has `record_bytes` bytes, between a header and a footer, as strings."""

    def __init__(self, filenames, record_bytes, header_bytes=None, footer_bytes=None, buffer_size=None,
                 compression_type=None, num_parallel_reads=None, name=None):  # fmt: skip
        where = type(self).__name__
        paths = paths_of(filenames, where)
        each = spec.count_of(record_bytes, where, "record_bytes", 1)
        head, foot = (
            0 if n is None else spec.count_of(n, where, what, 0)
            for n, what in ((header_bytes, "header_bytes"), (footer_bytes, "footer_bytes"))
        )
        files = Files(where, FIXED, paths, head, each, foot)
        super().__init__(Records(files, cycle_of(num_parallel_reads, len(paths), where)))


class TFRecordWriter:
    """Writes records to a TFRecord file. `close()`, or the end of a `with` block, writes what waits."""

    def __init__(self, path, options=None):
        self._file = open(os.fspath(path), "wb")

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
