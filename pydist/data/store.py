"""Elements in files: one TFRecord for each element, and a last one that says what they are.

An element is its leaves, each with dtype, sizes and bytes. The last record is JSON: the fingerprint of the plan, the tree, and
the records of the elements in their order, where that is another one than that of the file.
"""

import contextlib
import json
import os
import struct
from math import prod

from pydist import _C
from pydist._files import replacing
from pydist.data import spec
from pydist.data.files import Files, RECORDS
from pydist.data.spec import TensorSpec
from pydist.data.step import Step, each, tensor_of
from pydist.data.strings import StringTensor, decode_raw, string

_FORMAT = "pydist elements 1"
_NAMES = "string bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex64 complex128".split()
_DTYPES = {name: string if name == "string" else getattr(_C, name) for name in _NAMES}
_BY_CODE = list(_DTYPES.values())  # new dtypes come at the end
_CODES = {dtype: code for code, dtype in enumerate(_BY_CODE)}
_HEAD = struct.Struct("<BB6x")  # dtype, number of dims; then the sizes


# Elements as bytes


def packed(leaves, where):
    """An element's bytes."""
    parts = []
    for leaf in leaves:
        if not isinstance(leaf, (StringTensor, _C.Tensor)):
            raise TypeError(f"{where}: elements have {type(leaf).__name__} (expected tensors)")
        parts.append(_HEAD.pack(_CODES[leaf.dtype], leaf.ndim) + struct.pack(f"<{leaf.ndim}q", *leaf.shape))
        if isinstance(leaf, StringTensor):
            items = leaf._items()
            parts.append(struct.pack(f"<{len(items)}q", *map(len, items)))
            parts += items
            parts.append(bytes(-sum(map(len, items)) % 8))
        elif leaf.numel():
            content = memoryview(leaf.detach().contiguous().reshape(-1).view(_C.uint8))
            parts += [content, bytes(-len(content) % 8)]
    return b"".join(parts)


def _head(data, at):
    """(dtype, shape, where the content begins) of the leaf at a place."""
    code, ndim = _HEAD.unpack_from(data, at)
    shape = struct.unpack_from(f"<{ndim}q", data, at + _HEAD.size)
    if shape and min(shape) < 0 or prod(shape) > len(data):
        raise ValueError(f"a tensor has shape {shape} (expected sizes of 0 or more, within {len(data)} bytes)")
    return _BY_CODE[code], shape, at + _HEAD.size + 8 * ndim


def _end(dtype, shape, at):
    return at + (prod(shape) * dtype.itemsize + 7) // 8 * 8


def unpacked(record):
    """The leaves of an element: a string."""
    data, leaves, at = record.numpy(), [], 0
    while at < len(data):
        dtype, shape, at = _head(data, at)
        if dtype is string:
            lengths = struct.unpack_from(f"<{prod(shape)}q", data, at)
            at += 8 * len(lengths)
            items = []
            for length in lengths:
                items.append(data[at : at + length])
                at += length
            at += -sum(lengths) % 8
            leaves.append(StringTensor(items).reshape(shape))
            continue
        content = bytearray(data[at : at + prod(shape) * dtype.itemsize])
        leaves.append((_C.frombuffer(content, dtype=dtype) if content else _C.empty(0, dtype=dtype)).reshape(shape))
        at = _end(dtype, shape, at)
    return leaves


def unpacked_rows(records, where):
    """The leaves of several elements, stacked."""
    spans = records._spans
    lengths = spans[:, 1] - spans[:, 0]
    if len(records) and (lengths == lengths[0]).all():
        first = records[0].numpy()
        table, leaves, heads, at = decode_raw(records, _C.uint8), [], [], 0
        while at < len(first):
            dtype, shape, begin = _head(first, at)
            if dtype is string:
                break
            heads.append(table[:, at:begin])
            content = table[:, begin : begin + prod(shape) * dtype.itemsize].contiguous()
            leaves.append((content if dtype is _C.uint8 else content.view(dtype)).reshape(len(records), *shape))
            at = _end(dtype, shape, begin)
        else:
            if all((head == head[:1]).all() for head in heads):  # all elements have these dtypes and shapes
                return leaves
    return spec.stack([unpacked(record) for record in records], where)


# Files


class _Dropped(Exception):
    pass


class Writer:
    """Writes elements to a file in any order. It appears under its name when `done` is called, and never otherwise."""

    def __init__(self, path, where):
        self.where, self.records, self.leaves = where, [], None
        self._context = replacing(os.fspath(path))
        self._file = self._context.__enter__()

    def add(self, number, leaves):
        """Adds element `number`."""
        record = packed(leaves, self.where)
        self._write(record)
        self.records.append(number)
        if self.leaves is None:
            self.leaves = [spec.spec_of(leaf) for leaf in leaves]
        else:
            self.leaves = [spec.common(one, spec.spec_of(leaf)) for one, leaf in zip(self.leaves, leaves)]

    def _write(self, record):
        length = struct.pack("<Q", len(record))
        self._file.write(length + struct.pack("<I", _C._data_crc32c(length)))
        self._file.write(record)
        self._file.write(struct.pack("<I", _C._data_crc32c(record)))

    def done(self, plan, tree):
        """The file is complete."""
        ordered = self.records == list(range(len(self.records)))
        said = {
            "format": _FORMAT,
            "plan": plan,
            "tree": _plain_tree(tree),
            "specs": [[one.shape, _name_of(one.dtype)] for one in self.leaves or ()],
            "order": None if ordered else self.records,
        }
        self._write(json.dumps(said).encode())
        context, self._context = self._context, None
        context.__exit__(None, None, None)

    def drop(self):
        """Nothing is left of it."""
        context, self._context = self._context, None
        if context is not None:
            with contextlib.suppress(_Dropped):
                context.__exit__(_Dropped, _Dropped(), None)

    def __del__(self):
        if self.__dict__.get("_context") is not None:
            self.drop()


def _name_of(dtype):
    return next(name for name, known in _DTYPES.items() if known is dtype)


def _plain_tree(tree):
    if tree is None:
        return None
    kind, what, trees = tree
    return [kind, list(what) if kind == "dict" else None, [_plain_tree(part) for part in trees]]


def _tree_of(plain):
    if plain is None:
        return None
    kind, keys, trees = plain
    return (kind, tuple(keys) if kind == "dict" else tuple, tuple(map(_tree_of, trees)))


def _inverse(order, count):
    """The records of the elements, as a tensor; None: they lie in their order."""
    if order is None:
        return None
    if sorted(order) != list(range(count)):
        raise ValueError
    records = tensor_of(range(count))
    records[tensor_of(order)] = tensor_of(range(count))
    return records


class Stored(Step):
    """The elements of a file that a Writer has made."""

    def __init__(self, path, where):
        self.files, self.where = Files(where, RECORDS, [os.fspath(path)]), where
        count = self.files.counts()[0]
        try:
            said = json.loads(self.files.rows(range(count - 1, count))[0].numpy()) if count else {}
            if said.get("format") != _FORMAT:
                raise ValueError
            self.plan, self._tree, self._count = said["plan"], _tree_of(said["tree"]), count - 1
            self._specs = [TensorSpec(shape, _DTYPES[name]) for shape, name in said["specs"]]
            self._order = _inverse(said["order"], self._count)
        except (ValueError, AttributeError, KeyError, TypeError):
            raise _C.DataError(
                f"{where}: {path} is no file of elements (expected one that {where} has written)"
            ) from None

    name = property(lambda self: self.where)
    tree = property(lambda self: self._tree)

    def count(self):
        return self._count

    def has(self, i):
        """Whether element i is here: all are."""
        return True

    def _records(self, numbers):
        return self.files.rows(numbers if self._order is None else _C._data_gather(self._order, numbers))

    def _read(self, numbers, read):
        records = self._records(numbers)
        try:
            return read(records)
        except (struct.error, IndexError, RuntimeError, ValueError, OverflowError) as error:
            raise _C.DataError(
                f"{self.where}: an element of {self.files.paths[0]} is damaged: {error} (expected what {self.where} has written)"
            ) from None

    def get(self, i, run):
        return self._read(range(i, i + 1), lambda records: unpacked(records[0]))

    def rows(self, numbers, run):
        if not len(each(numbers)):
            return [leaf[:0] for leaf in self.rows(range(1), run)]
        return self._read(numbers, lambda records: unpacked_rows(records, self.where))

    def specs(self):
        return self._specs

    def detail(self):
        return (self.plan, self._count)
