"""tf.lookup.experimental: tables that change."""

from pydist.tensorflow import _tensors as _t
from pydist.tensorflow import lookup as _lookup
from pydist.tensorflow._names import lacking as _lacking


class MutableHashTable(_lookup._Table):
    """A table that `insert` and `remove` change."""

    def __init__(self, key_dtype, value_dtype, default_value, name="MutableHashTable", checkpoint=True,
                 experimental_is_anonymous=False):  # fmt: skip
        super().__init__(key_dtype, value_dtype, default_value)

    def insert(self, keys, values, name=None):
        """Sets the values of keys."""
        keys, values = self._keys_of(keys), _t.tensor(values, like=self.value_dtype)
        items = _lookup._listed(values) if not self._default.shape else values.tolist()
        self._dict.update(zip(_lookup._listed(keys), items))

    def remove(self, keys, name=None):
        """Removes keys; one that is not there is no error."""
        for key in _lookup._listed(self._keys_of(keys)):
            self._dict.pop(key, None)


class DenseHashTable(MutableHashTable):
    """MutableHashTable. The keys that TensorFlow's table may not hold are accepted."""

    def __init__(self, key_dtype, value_dtype, default_value, empty_key, deleted_key, initial_num_buckets=None,
                 name="DenseHashTable", checkpoint=True, experimental_is_anonymous=False):  # fmt: skip
        super().__init__(key_dtype, value_dtype, default_value)


__getattr__ = _lacking(__name__)
