"""Datasets: items by index, or one after another."""

import math
from bisect import bisect_right
from itertools import accumulate

from pydist import _C
from pydist.utils.data._order import permutation


class Dataset:
    """Items by index. Subclasses define `__getitem__`, and `__len__` for the default samplers."""

    def __class_getitem__(cls, item):
        return cls

    def __getitem__(self, index):
        raise NotImplementedError("Subclasses of Dataset should implement __getitem__.")

    def __add__(self, other):
        return ConcatDataset([self, other])


class IterableDataset(Dataset):
    """Items one after another. Subclasses define `__iter__`."""

    def __iter__(self):
        raise NotImplementedError("Subclasses of IterableDataset should implement __iter__.")

    def __add__(self, other):
        return ChainDataset([self, other])


class ConcatDataset(Dataset):
    """The items of several datasets, one dataset after the other. Raises ValueError without datasets, TypeError for an
    IterableDataset, IndexError for an index out of range.

    >>> both = ConcatDataset([range(3), "ab"])
    >>> len(both), both[2], both[3], both[-1]
    (5, 2, 'a', 'b')
    """

    def __init__(self, datasets):
        self.datasets = list(datasets)
        if not self.datasets:
            raise ValueError("datasets should not be an empty iterable")
        if any(isinstance(dataset, IterableDataset) for dataset in self.datasets):
            raise TypeError("ConcatDataset does not support IterableDataset")
        self.cumulative_sizes = list(accumulate(map(len, self.datasets)))

    def __len__(self):
        return self.cumulative_sizes[-1]

    def __getitem__(self, index):
        if not -len(self) <= index < len(self):
            raise IndexError(f"ConcatDataset: index {index} is out of range (expected {-len(self)} to {len(self) - 1})")
        index %= len(self)
        which = bisect_right(self.cumulative_sizes, index)
        return self.datasets[which][index - self.cumulative_sizes[which] + len(self.datasets[which])]


class ChainDataset(IterableDataset):
    """The items of several IterableDatasets, one dataset after the other. Raises TypeError for any other dataset."""

    def __init__(self, datasets):
        self.datasets = list(datasets)

    def _checked(self):
        for dataset in self.datasets:
            if not isinstance(dataset, IterableDataset):
                raise TypeError("ChainDataset only supports IterableDataset")
            yield dataset

    def __iter__(self):
        for dataset in self._checked():
            yield from dataset

    def __len__(self):
        return sum(map(len, self._checked()))


class StackDataset(Dataset):
    """Item i is the tuple of the datasets' items i, or the dictionary for keyword arguments. Raises ValueError if their
    lengths differ."""

    def __init__(self, *args, **kwargs):
        if bool(args) == bool(kwargs):
            raise ValueError("StackDataset: expected either datasets or named datasets")
        self.datasets = dict(kwargs) if kwargs else args
        sizes = [len(dataset) for dataset in (args or kwargs.values())]
        if len(set(sizes)) > 1:
            raise ValueError(f"StackDataset: size mismatch between datasets: {sizes} (expected equal sizes)")
        self._length = sizes[0]

    def __getitem__(self, index):
        if isinstance(self.datasets, dict):
            return {name: dataset[index] for name, dataset in self.datasets.items()}
        return tuple(dataset[index] for dataset in self.datasets)

    def __len__(self):
        return self._length


class TensorDataset(Dataset):
    """Item i is the tuple of the tensors' i-th rows. Raises ValueError if their first sizes differ.

    >>> import pydist
    >>> rows = pydist.utils.data.TensorDataset(pydist.arange(3), pydist.ones(3, 2))
    >>> len(rows), rows[1]
    (3, (tensor(1), tensor([1., 1.])))
    """

    def __init__(self, *tensors):
        sizes = [tensor.shape[0] for tensor in tensors]
        if len(set(sizes)) > 1:
            raise ValueError(
                f"TensorDataset: size mismatch between tensors: first sizes {sizes} (expected equal sizes)"
            )
        self.tensors = tensors

    def __getitem__(self, index):
        return tuple(tensor[index] for tensor in self.tensors)

    def __len__(self):
        return self.tensors[0].shape[0]

    def rows(self, indices):
        """The batch that default_collate would make of these items, with one index operation per tensor."""
        index = _C.tensor(indices, dtype=_C.int64, device="cpu")
        return [tensor[index] for tensor in self.tensors]


class Subset(Dataset):
    """Item i is item `indices[i]` of `dataset`."""

    def __init__(self, dataset, indices):
        self.dataset = dataset
        self.indices = indices

    def __getitem__(self, index):
        if isinstance(index, list):
            return self.dataset[[self.indices[i] for i in index]]
        return self.dataset[self.indices[index]]

    def __getitems__(self, indices):
        inner = [self.indices[i] for i in indices]
        many = getattr(self.dataset, "__getitems__", None)
        return many(inner) if many else [self.dataset[i] for i in inner]

    def __len__(self):
        return len(self.indices)


def row_getter(dataset):
    """For a TensorDataset or subsets of one: a function from indices to the collated batch. Otherwise None."""
    if type(dataset) is TensorDataset:
        return dataset.rows
    inner = row_getter(dataset.dataset) if type(dataset) is Subset else None
    return inner and (lambda indices: inner([dataset.indices[i] for i in indices]))


def _lengths_of(fractions, size):
    """Integer lengths for fractions that add up to 1. The first ones get what rounding leaves."""
    lengths = [math.floor(size * fraction) for fraction in fractions]
    for i in range(size - sum(lengths)):
        lengths[i % len(lengths)] += 1
    return lengths


def random_split(dataset, lengths, generator=None):
    """Subsets of `dataset` of the given lengths (or fractions that add up to 1), drawn without replacement. With
    PYDIST_COMPAT_STRICT=1 in the environment the parts of a seed are PyTorch's.

    >>> import pydist
    >>> data = pydist.utils.data.TensorDataset(pydist.arange(10))
    >>> [len(part) for part in pydist.utils.data.random_split(data, [0.7, 0.3])]
    [7, 3]
    """
    if math.isclose(sum(lengths), 1) and sum(lengths) <= 1:
        if any(not 0 <= fraction <= 1 for fraction in lengths):
            raise ValueError(f"random_split: fractions must be between 0 and 1: {list(lengths)}")
        lengths = _lengths_of(lengths, len(dataset))
    if sum(lengths) != len(dataset):
        raise ValueError("Sum of input lengths does not equal the length of the input dataset!")
    order = permutation(sum(lengths), generator)
    parts, begin = [], 0
    for length in lengths:
        parts.append(Subset(dataset, order[begin : begin + length]))
        begin += length
    return parts
