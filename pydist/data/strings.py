"""Tensors of strings: bytes in one buffer, and for each string where it begins and ends in it.

Rows, slices and batches of strings share the buffer: what is read from a file is copied once.
"""

from math import prod

from pydist import _C


class _String:
    """The dtype of strings."""

    def __repr__(self):
        return "pydist.data.string"

    def __reduce__(self):
        return "string"


string = _String()


def _encoded(value):
    return value.encode() if isinstance(value, str) else bytes(value)


def _shape_and_items(value, items):
    """The shape of nested sequences of strings, whose members are added to `items`."""
    if isinstance(value, (str, bytes, bytearray)):
        items.append(_encoded(value))
        return ()
    if isinstance(value, StringTensor):
        items += value._items()
        return tuple(value.shape)
    shapes = {_shape_and_items(part, items) for part in value}
    if len(shapes) > 1:
        raise ValueError(f"StringTensor: parts have shapes {sorted(shapes)} (expected equal shapes)")
    return (len(value), *(shapes.pop() if shapes else ()))


class StringTensor:
    """Strings (bytes) in a shape. Indexing, comparison and `numpy()` are as for tensors; there is no arithmetic.

    >>> from pydist.data import StringTensor
    >>> names = StringTensor(["a", "bc"])
    >>> names.shape, names[1].numpy(), (names == "a").tolist()
    ((2,), b'bc', [True, False])
    """

    __slots__ = ("_data", "_spans")
    __hash__ = None
    dtype = string

    def __init__(self, value):
        items = []
        shape = _shape_and_items(value, items)
        ends, at = [], 0
        for item in items:
            ends.append((at, at + len(item)))
            at += len(item)
        self._data = buffer(b"".join(items))
        self._spans = _C.tensor(ends, dtype=_C.int64, device="cpu").reshape(*shape, 2)

    @classmethod
    def _of(cls, data, spans):
        """A tensor over this buffer: spans [..., 2] say where each string begins and ends."""
        made = cls.__new__(cls)
        made._data, made._spans = data, spans
        return made

    @property
    def shape(self):
        return tuple(self._spans.shape[:-1])

    @property
    def ndim(self):
        return self._spans.ndim - 1

    def _items(self):
        view = memoryview(self._data)
        return [bytes(view[begin:end]) for begin, end in self._spans.reshape(-1, 2).tolist()]

    def tolist(self):
        """The strings as nested lists of bytes."""
        items = self._items()
        for size in reversed(self.shape[1:]):
            items = [items[i : i + size] for i in range(0, len(items), size)] if size else [[]] * prod(self.shape[:-1])
        return items if self.ndim else items[0]

    def numpy(self):
        """An array of bytes objects, or one of them."""
        if not self.ndim:
            return self._items()[0]
        import numpy as np

        array = np.empty(prod(self.shape), dtype=object)
        array[:] = self._items()
        return array.reshape(self.shape)

    def __getitem__(self, index):
        return self._of(self._data, self._spans[index])

    def reshape(self, *shape):
        """The same strings in another shape."""
        sizes = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        return self._of(self._data, self._spans.reshape(*sizes, 2))

    def __len__(self):
        if not self.ndim:
            raise TypeError("len() of a string without dims (expected a tensor of strings)")
        return self.shape[0]

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def __bytes__(self):
        if self.ndim:
            raise TypeError(f"bytes: the tensor has shape {self.shape} (expected one string)")
        return self._items()[0]

    def __eq__(self, other):
        """Which strings are equal, as a tensor of bools; a string is compared with all."""
        if not isinstance(other, (str, bytes, bytearray, list, tuple, StringTensor)):
            return NotImplemented
        other = other if isinstance(other, StringTensor) else StringTensor(other)
        items, others = self._items(), other._items()
        if not other.ndim:
            others *= len(items)
        elif other.shape != self.shape:
            raise ValueError(f"StringTensor: {self.shape} == {other.shape} (expected equal shapes, or one string)")
        return _C.tensor([a == b for a, b in zip(items, others)], dtype=_C.bool, device="cpu").reshape(self.shape)

    def __ne__(self, other):
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else ~equal

    def __repr__(self):
        return f"StringTensor({self.tolist()!r})"

    def __reduce__(self):
        return StringTensor, (self.tolist(),)


def buffer(data):
    """A uint8 tensor that owns these bytes."""
    return _C.frombuffer(bytearray(data), dtype=_C.uint8) if data else _C.empty(0, dtype=_C.uint8, device="cpu")


def stacked(parts):
    """The strings of equal shapes along a new first dim. Strings of one buffer keep it."""
    first = parts[0]._data
    if all(part._data is first for part in parts):
        return StringTensor._of(first, _C.stack([part._spans for part in parts]))
    moved, data = [], []
    at = 0
    for part in parts:
        moved.append(part._spans + at)
        data.append(part._data)
        at += part._data.shape[0]
    return StringTensor._of(_C.cat(data), _C.stack(moved))


def joined(parts):
    """The strings along their first dim."""
    moved, at = [], 0
    for part in parts:
        moved.append(part._spans + at)
        at += part._data.shape[0]
    return StringTensor._of(_C.cat([part._data for part in parts]), _C.cat(moved))


def decode_raw(input_bytes, out_type, little_endian=True, fixed_length=None, name=None):
    """The bytes of strings of equal length as numbers of a dtype, along a new last dim.

    >>> import pydist
    >>> from pydist.data import StringTensor, decode_raw
    >>> decode_raw(StringTensor([b"\\1\\2", b"\\3\\4"]), pydist.uint8).tolist()
    [[1, 2], [3, 4]]
    """
    where = "decode_raw"
    strings = input_bytes if isinstance(input_bytes, StringTensor) else StringTensor(input_bytes)
    if fixed_length is not None:  # longer strings are cut, shorter ones end with zeros
        strings = StringTensor([item[:fixed_length].ljust(fixed_length, b"\0") for item in strings._items()]).reshape(
            strings.shape
        )
    spans = strings._spans.reshape(-1, 2)
    found = _C._data_strings(where, strings._data, spans if spans.is_contiguous() else spans.contiguous())
    size = out_type.itemsize
    if found.shape[1] % size:
        raise ValueError(
            f"{where}: strings have {found.shape[1]} bytes (expected a multiple of {size}, for {out_type})"
        )
    found = found.reshape(*strings.shape, found.shape[1])
    if not little_endian and size > 1:
        found = found.reshape(*strings.shape, -1, size).flip(-1).reshape(found.shape).contiguous()
    return found if out_type is _C.uint8 else found.view(out_type)
