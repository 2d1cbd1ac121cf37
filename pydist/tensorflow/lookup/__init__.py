"""tf.lookup: tables from strings or integers to values."""

from pydist import _C
from pydist.data.strings import StringTensor as _StringTensor
from pydist.tensorflow import _arrays as _a
from pydist.tensorflow import _ragged as _r
from pydist.tensorflow import _tensors as _t
from pydist.tensorflow import errors as _errors
from pydist.tensorflow._names import lazy as _lazy

__getattr__, __dir__ = _lazy(__name__, {}, "experimental")


def _listed(tensor):
    return tensor._items() if isinstance(tensor, _StringTensor) else tensor.reshape(-1).tolist()


def _made(values, dtype, shape):
    """A tensor of Python's values."""
    if dtype is _t.string:
        flat = _StringTensor(values) if values else _StringTensor([b""])[:0]
    else:
        flat = _C.tensor(values, dtype=dtype)
    return _a.reshape(flat, list(shape))


class KeyValueTensorInitializer:
    """The keys and values of a table, as two tensors."""

    def __init__(self, keys, values, key_dtype=None, value_dtype=None, name=None):
        self._keys = _t.tensor(keys, _t.dtype_or_none(key_dtype))
        self._values = _t.tensor(values, _t.dtype_or_none(value_dtype))
        if self._keys.shape != self._values.shape:
            raise ValueError(
                f"KeyValueTensorInitializer: keys and values have shapes {tuple(self._keys.shape)} and "
                f"{tuple(self._values.shape)} (expected equal shapes)"
            )
        self.key_dtype, self.value_dtype = self._keys.dtype, self._values.dtype

    def _pairs(self):
        return zip(_listed(self._keys), _listed(self._values))


class TextFileIndex:
    """What of a line of a file is a key or value: a column's number, or one of these."""

    WHOLE_LINE, LINE_NUMBER = -2, -1


class TextFileInitializer:
    """The keys and values of a table, from the lines of a file."""

    def __init__(self, filename, key_dtype, key_index, value_dtype, value_index, vocab_size=None, delimiter="\t",
                 name=None, value_index_offset=0):  # fmt: skip
        self._path = _t.tensor(filename).numpy().decode() if not hasattr(filename, "__fspath__") else filename
        self.key_dtype, self.value_dtype = _t.as_dtype(key_dtype), _t.as_dtype(value_dtype)
        self._places, self._most, self._delimiter = (key_index, value_index), vocab_size, delimiter
        self._offset = value_index_offset

    def _pairs(self):
        with open(self._path, "rb") as file:
            for number, line in enumerate(file):
                if self._most is not None and number >= self._most:
                    break
                line = line.rstrip(b"\r\n")
                parts = [self._part(line, number, place) for place in self._places]
                yield tuple(_converted(p, d) for p, d in zip(parts, (self.key_dtype, self.value_dtype)))

    def _part(self, line, number, place):
        if place == TextFileIndex.WHOLE_LINE:
            return line
        if place == TextFileIndex.LINE_NUMBER:
            return number + self._offset
        columns = line.split(self._delimiter.encode())
        if place >= len(columns):
            raise _errors.InvalidArgumentError(
                f"TextFileInitializer: line {number} of {self._path} has {len(columns)} columns (expected at least "
                f"{place + 1})"
            )
        return columns[place]


def _converted(value, dtype):
    if dtype is _t.string:
        return value if isinstance(value, bytes) else str(value).encode()
    return (int if _t.is_integer(dtype) else float)(value)


class _Table:
    """What tables have in common: keys and values in a dictionary."""

    def __init__(self, key_dtype, value_dtype, default_value):
        self.key_dtype, self.value_dtype = _t.as_dtype(key_dtype), _t.as_dtype(value_dtype)
        self._dict = {}
        self._default = _t.tensor(default_value, like=self.value_dtype)
        if self._default.dtype is not self.value_dtype:
            self._default = _a.cast(self._default, self.value_dtype)

    @property
    def default_value(self):
        """What a key that is not there leads to."""
        return self._default

    def _default_item(self):
        return self._default.numpy() if isinstance(self._default, _StringTensor) else self._default.tolist()

    def _keys_of(self, keys):
        keys = _t.tensor(keys, like=self.key_dtype)
        if keys.dtype is not self.key_dtype:
            raise TypeError(f"lookup: the keys are {_t.NAMES[keys.dtype]} (expected {_t.NAMES[self.key_dtype]})")
        return keys

    def lookup(self, keys, name=None):
        """The values of the keys, and default_value for those that are not there."""
        if isinstance(keys, _r.RaggedTensor):
            return keys.with_values(self.lookup(keys.values))
        keys, default = self._keys_of(keys), self._default_item()
        inner = list(self._default.shape)
        return _made([self._dict.get(key, default) for key in _listed(keys)], self.value_dtype, [*keys.shape, *inner])

    def __getitem__(self, keys):
        return self.lookup(keys)

    def size(self, name=None):
        """How many keys, as int64."""
        return _C.tensor(len(self._dict), dtype=_C.int64)

    def export(self, name=None):
        """(all keys, all values)"""
        inner = list(self._default.shape)
        keys = _made(list(self._dict), self.key_dtype, [len(self._dict)])
        return keys, _made(list(self._dict.values()), self.value_dtype, [len(self._dict), *inner])


class StaticHashTable(_Table):
    """A table that does not change."""

    def __init__(self, initializer, default_value, name=None, experimental_is_anonymous=False):
        super().__init__(initializer.key_dtype, initializer.value_dtype, default_value)
        for key, value in initializer._pairs():
            if self._dict.setdefault(key, value) != value:
                raise _errors.FailedPreconditionError(f"StaticHashTable: key {key!r} has two values (expected one)")


class StaticVocabularyTable:
    """The numbers of a vocabulary's words; other words are in num_oov_buckets buckets behind them."""

    def __init__(self, initializer, num_oov_buckets, lookup_key_dtype=None, name=None, experimental_is_anonymous=False):
        if num_oov_buckets < 1:
            raise ValueError(f"StaticVocabularyTable: num_oov_buckets is {num_oov_buckets} (expected 1 or more)")
        self._buckets = int(num_oov_buckets)
        self._dict = dict(initializer._pairs()) if initializer is not None else {}
        self.key_dtype = _t.as_dtype(
            lookup_key_dtype or (initializer.key_dtype if initializer is not None else _t.string)
        )
        self.value_dtype = _C.int64

    def lookup(self, keys, name=None):
        """The number of each word, or that of its bucket."""
        from pydist.tensorflow._hashing import fingerprint

        if isinstance(keys, _r.RaggedTensor):
            return keys.with_values(self.lookup(keys.values))
        keys, count = _t.tensor(keys, like=self.key_dtype), len(self._dict)

        def number(key):
            if key in self._dict:
                return self._dict[key]
            return count + fingerprint(key if isinstance(key, bytes) else str(key).encode()) % self._buckets

        return _made([number(key) for key in _listed(keys)], _C.int64, keys.shape)

    def __getitem__(self, keys):
        return self.lookup(keys)

    def size(self, name=None):
        """How many numbers: those of words and of buckets, as int64."""
        return _C.tensor(len(self._dict) + self._buckets, dtype=_C.int64)
