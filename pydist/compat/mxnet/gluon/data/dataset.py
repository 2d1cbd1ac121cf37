"""Datasets: things with a length and numbered samples."""

import numpy as np

from pydist.compat.mxnet.ndarray import ndarray as nd


class Dataset:
    """A base class: subclasses have __getitem__ and __len__."""

    def filter(self, fn):
        """The samples for which fn(sample) is true."""
        return _Chosen(self, [i for i in range(len(self)) if fn(self[i])])

    def take(self, count):
        """The first `count` samples; None: all."""
        return _Chosen(self, range(len(self))[:count])

    def shard(self, num_shards, index):
        """Part `index` of num_shards; the first ones have one sample more if the length is no multiple."""
        assert 0 <= index < num_shards, f"shard: index is {index} of {num_shards} (expected 0 to num_shards - 1)"
        return _Chosen(self, np.array_split(np.arange(len(self)), num_shards)[index].tolist())

    def transform(self, fn, lazy=True):
        """fn(*sample) of each sample, when it is asked for, or, not lazy, now."""
        made = _Transformed(self, fn)
        return made if lazy else SimpleDataset([made[i] for i in range(len(made))])

    def transform_first(self, fn, lazy=True):
        """fn of the first element of each sample."""
        return self.transform(_First(fn), lazy)


class _First:
    def __init__(self, fn):
        self._fn = fn

    def __call__(self, x, *rest):
        return (self._fn(x), *rest) if rest else self._fn(x)


class SimpleDataset(Dataset):
    """A list as a dataset."""

    def __init__(self, data):
        self._data = data

    def __len__(self):
        return len(self._data)

    def __getitem__(self, idx):
        return self._data[idx]


class _Transformed(SimpleDataset):
    def __init__(self, data, fn):
        super().__init__(data)
        self._fn = fn

    def __getitem__(self, idx):
        item = self._data[idx]
        return self._fn(*item) if isinstance(item, tuple) else self._fn(item)


class _Chosen(SimpleDataset):
    def __init__(self, data, places):
        super().__init__(places)
        self._all = data

    def __getitem__(self, idx):
        return self._all[self._data[idx]]


class ArrayDataset(Dataset):
    """Samples that are tuples of the rows of arrays, lists or datasets of one length."""

    def __init__(self, *args):
        lengths = {len(each) for each in args}
        assert len(lengths) == 1, f"ArrayDataset: lengths are {sorted(lengths)} (expected arrays of one length)"
        self._data = [each.asnumpy() if isinstance(each, nd.NDArray) and each.ndim == 1 else each for each in args]

    def __len__(self):
        return len(self._data[0])

    def __getitem__(self, idx):
        found = tuple(each[idx] for each in self._data)
        return found if len(found) > 1 else found[0]
