"""tf.train.Example: messages of named lists, as record files hold them. Python writes them; C reads them into columns."""

import struct
from collections.abc import Mapping
from math import prod
from typing import NamedTuple

from pydist import _C
from pydist.data import spec
from pydist.data.strings import StringTensor, string

# Writing: the wire format of Protocol Buffers.


def _varint(n):
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)


def _counted(number, content):
    """Field `number` of a message, which is bytes or a message itself."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _fields(data, where):
    """(number, content) of a message's fields: bytes, or an int. Fields of 8 bytes, which no message here has, go by."""
    at, end = 0, len(data)

    def varint():
        nonlocal at
        value = shift = 0
        while shift < 64 and at < end:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value & (1 << 64) - 1
            shift += 7
        raise _C.DataError(f"{where}: the message is damaged at byte {at} of {end}")

    while at < end:
        tag = varint()
        if tag & 7 == 0:
            yield tag >> 3, varint()
            continue
        size = varint() if tag & 7 == 2 else {1: 8, 5: 4}.get(tag & 7, end + 1)
        if size > end - at:
            raise _C.DataError(f"{where}: the message is damaged at byte {at} of {end}")
        if tag & 7 != 1:
            yield tag >> 3, data[at : at + size]
        at += size


class _Message:
    """What messages have in common: `SerializeToString`, `FromString`, `ParseFromString`, `==`."""

    def SerializeToString(self, deterministic=None):
        """The message's bytes. `deterministic`: the same for equal messages, whatever the order of their entries."""
        return self._bytes(bool(deterministic))

    @classmethod
    def FromString(cls, data):
        """The message that these bytes are. Raises DataError if they are none."""
        made = cls()
        made.ParseFromString(data)
        return made

    def ParseFromString(self, data):
        """Becomes the message that these bytes are."""
        self.__init__()
        self._read(bytes(data))
        return len(data)

    def CopyFrom(self, other):
        """Becomes a copy of another message."""
        self.ParseFromString(other.SerializeToString())

    def ByteSize(self):
        """The number of bytes of SerializeToString."""
        return len(self._bytes(False))

    def __eq__(self, other):
        return type(self) is type(other) and self._bytes(True) == other._bytes(True)

    __hash__ = None

    def __repr__(self):
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self._names)})"


def _items(value):
    """A program's values as a list: a list, an array, a tensor."""
    return value.tolist() if hasattr(value, "tolist") else list(value)


class _Values(list):
    """The values of a list, each of which is checked."""

    def __init__(self, owner):
        super().__init__()
        self._owner = owner

    def append(self, one):
        self.extend([one])

    def extend(self, many):
        super().extend(self._owner._checked(_items(many)))
        self._owner._filled()

    def insert(self, place, one):
        super().insert(place, *self._owner._checked([one]))

    def __setitem__(self, place, given):
        several = isinstance(place, slice)
        checked = self._owner._checked(_items(given) if several else [given])
        super().__setitem__(place, checked if several else checked[0])

    def __iadd__(self, many):
        self.extend(many)
        return self


class _List(_Message):
    _names = ("value",)
    _feature = None  # that has this list once it is filled

    def __init__(self, value=()):
        self._values = _Values(self)
        self._values.extend(value)

    @property
    def value(self):
        """The values, a list that can be changed."""
        return self._values

    def _filled(self):
        if self._feature is not None:
            self._feature._has = {self._name: self}


class BytesList(_List):
    """value: a list of bytes."""

    _name = "bytes_list"

    def _checked(self, many):
        for one in many:
            if not isinstance(one, (bytes, bytearray, memoryview)):
                raise TypeError(f"BytesList: value has {one!r} (expected bytes)")
        return [bytes(one) for one in many]

    def _bytes(self, ordered):
        return b"".join(_counted(1, one) for one in self.value)

    def _read(self, data):
        for number, content in _fields(data, "BytesList"):
            if number == 1:
                if isinstance(content, int):
                    raise _C.DataError("BytesList: the message is damaged")
                self.value.append(content)


class FloatList(_List):
    """value: a list of numbers, which become float32."""

    _name = "float_list"

    def _checked(self, many):
        try:
            return struct.unpack(f"<{len(many)}f", struct.pack(f"<{len(many)}f", *many))
        except (struct.error, OverflowError) as error:
            raise TypeError(f"FloatList: value is {many!r} (expected numbers of float32): {error}") from None

    def _bytes(self, ordered):
        return _counted(1, struct.pack(f"<{len(self.value)}f", *self.value)) if self.value else b""

    def _read(self, data):
        for number, content in _fields(data, "FloatList"):
            if number == 1:
                if isinstance(content, int) or len(content) % 4:
                    raise _C.DataError("FloatList: the message is damaged")
                self.value.extend(struct.unpack(f"<{len(content) // 4}f", content))


class Int64List(_List):
    """value: a list of ints."""

    _name = "int64_list"

    def _checked(self, many):
        return [spec.count_of(int(one) if isinstance(one, bool) else one, "Int64List", "value") for one in many]

    def _bytes(self, ordered):
        return _counted(1, b"".join(_varint(one & (1 << 64) - 1) for one in self.value)) if self.value else b""

    def _read(self, data):
        for number, content in _fields(data, "Int64List"):
            if number == 1:
                many = [content] if isinstance(content, int) else _varints(content)
                self.value.extend(one - (1 << 64) if one >> 63 else one for one in many)


def _varints(data):
    """The numbers of a packed field, read as fields of a message of their own."""
    found, value, shift = [], 0, 0
    for byte in data:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            found.append(value & (1 << 64) - 1)
            value = shift = 0
        elif shift > 63:
            break
    if shift:
        raise _C.DataError("Int64List: the message is damaged")
    return found


class _Parts(_Message):
    """A message of messages: _kinds maps names to (number, class). Those that were not given are made when asked for."""

    def __init__(self, **given):
        self._has = {}
        for name, value in given.items():
            if value is not None:
                kind = self._kinds[name][1]
                if not isinstance(value, kind):
                    raise TypeError(
                        f"{type(self).__name__}: {name} is {type(value).__name__} (expected {kind.__name__})"
                    )
                self._has[name] = value

    def __getattr__(self, name):
        if name.startswith("_") or name not in self._kinds:
            raise AttributeError(f"{type(self).__name__} has no field {name!r} (expected {', '.join(self._kinds)})")
        return self._has.setdefault(name, self._kinds[name][1]())

    def HasField(self, name):
        """Whether the message has this part."""
        if name not in self._kinds:
            raise ValueError(f"{type(self).__name__} has no field {name!r} (expected {', '.join(self._kinds)})")
        return name in self._has

    def _bytes(self, ordered):
        return b"".join(_counted(number, self._has[name]._bytes(ordered)) for name, (number, _) in self._kinds.items()
                        if name in self._has)  # fmt: skip

    def _read(self, data):
        for number, content in _fields(data, type(self).__name__):
            for name, (own, _) in self._kinds.items():
                if number == own and not isinstance(content, int):
                    self._keep(name)
                    getattr(self, name)._read(content)

    def _keep(self, name):
        """Called before a part is read."""

    @property
    def _names(self):
        return tuple(self._has)


class Feature(_Parts):
    """One of bytes_list, float_list and int64_list."""

    _kinds = {"bytes_list": (1, BytesList), "float_list": (2, FloatList), "int64_list": (3, Int64List)}

    def __init__(self, *, bytes_list=None, float_list=None, int64_list=None):
        super().__init__(bytes_list=bytes_list, float_list=float_list, int64_list=int64_list)
        if len(self._has) > 1:
            raise ValueError(f"Feature: got {' and '.join(self._has)} (expected one of them)")

    def __getattr__(self, name):
        if name in type(self)._kinds and name not in self._has:  # it becomes the feature's when it is filled
            made = type(self)._kinds[name][1]()
            made._feature = self
            return made
        return super().__getattr__(name)

    def WhichOneof(self, group="kind"):
        """The name of the list that the feature has, or None."""
        return next(iter(self._has), None)

    def _keep(self, name):
        self._has = {name: self._has.get(name) or self._kinds[name][1]()}


class _Named(_Message):
    """A message whose only field is a dictionary of messages."""

    def __init__(self, given=None):
        given = given or {}
        if not isinstance(given, Mapping):
            raise TypeError(
                f"{type(self).__name__}: {self._names[0]} is {type(given).__name__} (expected a dictionary)"
            )
        for key, value in given.items():
            if not isinstance(key, str) or not isinstance(value, self._kind):
                raise TypeError(
                    f"{type(self).__name__}: {key!r} is {type(value).__name__} (expected {self._kind.__name__} by name)"
                )
        setattr(self, self._names[0], _Entries(self._kind, given))

    def _bytes(self, ordered):
        entries = getattr(self, self._names[0]).items()
        return b"".join(_counted(1, _counted(1, key.encode()) + _counted(2, value._bytes(ordered)))
                        for key, value in (sorted(entries) if ordered else entries))  # fmt: skip

    def _read(self, data):
        entries = getattr(self, self._names[0])
        for number, content in _fields(data, type(self).__name__):
            if number != 1 or isinstance(content, int):
                continue
            parts = {number: part for number, part in _fields(content, type(self).__name__) if isinstance(part, bytes)}
            entries[parts.get(1, b"").decode("utf-8", "surrogateescape")] = self._kind.FromString(parts.get(2, b""))


class _Entries(dict):
    """A missing entry is made when it is asked for, as in Protocol Buffers."""

    def __init__(self, kind, given):
        super().__init__(given)
        self._kind = kind

    def __missing__(self, key):
        self[key] = made = self._kind()
        return made


class Features(_Named):
    """feature: a dictionary of Feature by name."""

    _names, _kind = ("feature",), Feature

    def __init__(self, feature=None):
        super().__init__(feature)


class FeatureList(_Message):
    """feature: a list of Feature, one for each step of a sequence."""

    _names = ("feature",)

    def __init__(self, feature=()):
        self.feature = list(feature)

    def _bytes(self, ordered):
        return b"".join(_counted(1, one._bytes(ordered)) for one in self.feature)

    def _read(self, data):
        self.feature += [Feature.FromString(content) for number, content in _fields(data, "FeatureList") if number == 1]


class FeatureLists(_Named):
    """feature_list: a dictionary of FeatureList by name."""

    _names, _kind = ("feature_list",), FeatureList

    def __init__(self, feature_list=None):
        super().__init__(feature_list)


class Example(_Parts):
    """A message of named features, tf.train.Example.

    >>> from pydist.data import Example, Feature, Features, Int64List
    >>> made = Example(features=Features(feature={"label": Feature(int64_list=Int64List(value=[7]))}))
    >>> Example.FromString(made.SerializeToString()).features.feature["label"].int64_list.value
    [7]
    """

    _kinds = {"features": (1, Features)}

    def __init__(self, *, features=None):
        super().__init__(features=features)


class SequenceExample(_Parts):
    """A message of features of the whole and lists of features for each step, tf.train.SequenceExample."""

    _kinds = {"context": (1, Features), "feature_lists": (2, FeatureLists)}

    def __init__(self, *, context=None, feature_lists=None):
        super().__init__(context=context, feature_lists=feature_lists)


# Reading into columns.


class FixedLenFeature(NamedTuple):
    """A feature with as many values in each row as `shape` has. Rows without it have the default, or are an error."""

    shape: object
    dtype: object
    default_value: object = None


class VarLenFeature(NamedTuple):
    """A feature with any number of values. Rows are filled up with 0 or b"" to the longest one."""

    dtype: object


class FixedLenSequenceFeature(NamedTuple):
    """A feature with any number of values of `shape`. Rows are filled up to the longest one with the default, or 0."""

    shape: object
    dtype: object
    allow_missing: bool = False
    default_value: object = None


def _kind_of(dtype, key, where):
    for kind, known in ((1, string), (2, _C.float32), (3, _C.int64)):
        if dtype is known or (known is string and dtype in (str, bytes)):
            return kind
    raise TypeError(f"{where}: feature {key!r} has dtype {dtype} (expected float32, int64 or string)")


class _Column:
    """How a feature is read and what becomes of it."""

    def __init__(self, key, feature, where):
        self.key, self.where = key, where
        self.shape, self.default, self.varying = (), None, not isinstance(feature, FixedLenFeature)
        if not isinstance(feature, (FixedLenFeature, VarLenFeature, FixedLenSequenceFeature)):
            raise TypeError(
                f"{where}: feature {key!r} is {type(feature).__name__} (expected FixedLenFeature, VarLenFeature or "
                "FixedLenSequenceFeature)"
            )
        self.kind = _kind_of(feature.dtype, key, where)
        if not isinstance(feature, VarLenFeature):
            shape = feature.shape if hasattr(feature.shape, "__iter__") else (feature.shape,)
            self.shape = tuple(spec.count_of(n, where, f"a size of feature {key!r}", 0) for n in shape)
            self.default = feature.default_value
        if isinstance(feature, FixedLenSequenceFeature) and not feature.allow_missing:
            raise ValueError(f"{where}: feature {key!r} has allow_missing=False (expected True)")
        self.each = prod(self.shape)
        if self.varying and not self.each:
            raise ValueError(f"{where}: feature {key!r} has shape {self.shape} (expected sizes of 1 or more)")
        required = not self.varying and self.default is None
        self.plain = required and self.kind != 1  # what C makes is the column
        counted = self.varying or self.default is not None
        self.said = (key.encode(), self.kind, -1 if self.varying else self.each, required, counted, self.shape)
        if self.default is not None:
            self.default = self._default_values()

    def _default_values(self):
        """The values of a row (of one step, where lengths vary) that has none."""
        leaf = spec.as_leaf(self.default, self.where)
        if (self.kind == 1) != isinstance(leaf, StringTensor) or prod(leaf.shape) not in (1, self.each):
            raise ValueError(f"{self.where}: feature {self.key!r} has default_value {self.default!r} (expected {self.each} "
                             "values of its dtype, or one)")  # fmt: skip
        items = leaf._items() if self.kind == 1 else leaf.reshape(-1).tolist()  # no tensor: plans outlive pipelines
        return items * self.each if len(items) < self.each else items

    def made(self, found, data, single):
        """The column of what C has read."""
        if not self.said[4]:
            return StringTensor._of(data, found)
        values, counts = found
        rows, two = counts.shape[0], (2,) if self.kind == 1 else ()
        size = prod(values.shape) // max(1, rows * prod(two))
        shape = (() if single else (rows,)) + ((self._steps(counts, size),) if self.varying else ()) + self.shape
        if self.default is not None:
            numbers = _C.arange(size, device="cpu")
            missing = numbers >= counts.reshape(-1, 1) if self.varying else (counts.reshape(-1, 1) + numbers * 0) < 0
            if missing.any():
                values, data = self._filled(values.reshape(rows, size, *two), missing, data)
        values = values.reshape((*shape, *two))
        return StringTensor._of(data, values) if two else values

    def _steps(self, counts, size):
        """How many values of the feature's shape the longest row has."""
        odd = [n for n in counts.tolist() if n > 0 and n % self.each]
        if odd:
            raise _C.DataError(
                f"{self.where}: feature {self.key!r} has {odd[0]} values in a row (expected a multiple of {self.each})"
            )
        return size // self.each

    def _filled(self, values, missing, data):
        """The values and the bytes that they refer to, with the default where it is missing."""
        times = missing.shape[1] // max(1, self.each)
        if self.kind != 1:
            default = _C.tensor(self.default * times, dtype=values.dtype, device="cpu")
            return _C.where(missing, default, values), data
        extra = StringTensor(self.default * times)
        spans = _C.where(missing.unsqueeze(-1), extra._spans + data.shape[0], values)
        return spans, _C.cat([data, extra._data])


_plans = {}  # the features that programs parse: id of their dictionary -> (it, a copy, columns)


def _columns(features, where):
    """The columns of a dictionary of features, kept between calls: a pipeline calls with the same one each time."""
    known = _plans.get(id(features))
    if known is not None and known[0] == features and known[1] == where:
        return known[2]
    if not isinstance(features, Mapping) or not features:
        raise ValueError(f"{where}: features is {features!r} (expected a dictionary with at least one feature)")
    columns = [_Column(key, feature, where) for key, feature in features.items()]
    if len(_plans) > 64:
        _plans.clear()
    found = tuple(features), columns, tuple(column.said for column in columns)
    _plans[id(features)] = dict(features), where, found
    return found


def _parsed(serialized, ndim, features, where):
    if type(serialized) is not StringTensor:
        serialized = spec.as_leaf(serialized, where)
        if not isinstance(serialized, StringTensor):
            raise TypeError(f"{where}: serialized is {type(serialized).__name__} (expected strings)")
    data, spans = serialized._data, serialized._spans
    if spans.ndim != ndim:
        shape, other = (
            serialized.shape,
            "parse_example takes a batch" if ndim == 1 else "parse_single_example takes one",
        )
        raise ValueError(f"{where}: serialized has shape {shape} (expected {ndim - 1} dims; {other})")
    keys, columns, said = _columns(features, where)
    found = _C._data_example(where, data, spans if spans.is_contiguous() else spans.contiguous(), said)
    for place, column in enumerate(columns):
        if not column.plain:
            found[place] = column.made(found[place], data, ndim == 1)
    return dict(zip(keys, found))


def parse_example(serialized, features, example_names=None, name=None):
    """The columns of a batch of messages of tf.train.Example, as a dictionary of tensors.

    `features` maps names to FixedLenFeature(shape, dtype, default_value), VarLenFeature(dtype) or
    FixedLenSequenceFeature. Rows of varying length are filled up: there are no sparse tensors. Raises DataError, which names
    row and feature, for messages that are damaged or have other values.

    >>> from pydist.data import Example, Feature, Features, FixedLenFeature, FloatList, parse_example
    >>> import pydist
    >>> row = Example(features=Features(feature={"x": Feature(float_list=FloatList(value=[1, 2]))})).SerializeToString()
    >>> parse_example([row, row], {"x": FixedLenFeature([2], pydist.float32)})["x"].tolist()
    [[1.0, 2.0], [1.0, 2.0]]
    """
    return _parsed(serialized, 2, features, "parse_example")


def parse_single_example(serialized, features, example_names=None, name=None):
    """The features of one message of tf.train.Example, as a dictionary of tensors: see parse_example."""
    return _parsed(serialized, 1, features, "parse_single_example")
