"""Samplers: the order in which a loader asks for items."""

import math
from bisect import bisect_left, bisect_right
from itertools import accumulate, islice

from pydist import _C
from pydist.utils.data import _order


class Sampler:
    """Base class: subclasses define `__iter__` over indices, and `__len__`."""

    def __init__(self, data_source=None):
        pass

    def __class_getitem__(cls, item):
        return cls

    def __iter__(self):
        raise NotImplementedError


class SequentialSampler(Sampler):
    """0, 1, ..., len(data_source) - 1."""

    def __init__(self, data_source):
        self.data_source = data_source

    def __iter__(self):
        return iter(range(len(self.data_source)))

    def __len__(self):
        return len(self.data_source)


class RandomSampler(Sampler):
    """Permutations of all indices, one after another, up to `num_samples` (default: one permutation). With
    `replacement`: independent draws. With PYDIST_COMPAT_STRICT=1 in the environment the lists for a seed are PyTorch's.
    """

    def __init__(self, data_source, replacement=False, num_samples=None, generator=None):
        if not isinstance(replacement, bool):
            raise TypeError(f"replacement should be a boolean value, but got replacement={replacement}")
        if num_samples is not None and (not isinstance(num_samples, int) or num_samples <= 0):
            raise ValueError(f"num_samples should be a positive integer value, but got num_samples={num_samples}")
        self.data_source = data_source
        self.replacement = replacement
        self._num_samples = num_samples
        self.generator = generator

    @property
    def num_samples(self):
        """The number of indices that an epoch gives."""
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def __iter__(self):
        size, left, generator = len(self.data_source), self.num_samples, self.generator
        strict = _order.is_asked()
        if generator is None or not strict:
            generator = _order.own(generator)
        if self.replacement:
            for count in _order.pieces(left):
                yield from _order.integers(size, count, generator)
            return
        while left > 0:
            yield from _order.permutation(size, generator)[:left]
            left -= size
        if strict and left == 0:
            _order.permutation(size, generator)  # PyTorch draws one more number, and the next epoch goes on from there

    def __len__(self):
        return self.num_samples


class SubsetRandomSampler(Sampler):
    """The given indices in random order."""

    def __init__(self, indices, generator=None):
        self.indices = indices
        self.generator = generator

    def __iter__(self):
        for i in _order.permutation(len(self.indices), self.generator):
            yield self.indices[i]

    def __len__(self):
        return len(self.indices)


class WeightedRandomSampler(Sampler):
    """`num_samples` indices; the probability of index i is proportional to weights[i]. Without `replacement` each index
    comes at most once (Efraimidis and Spirakis, 2006).

    Raises ValueError if weights are negative, not finite, all 0 or not one-dimensional, or if num_samples without
    replacement is larger than the number of positive weights.
    """

    def __init__(self, weights, num_samples, replacement=True, generator=None):
        if not isinstance(num_samples, int) or isinstance(num_samples, bool) or num_samples <= 0:
            raise ValueError(f"num_samples should be a positive integer value, but got num_samples={num_samples}")
        if not isinstance(replacement, bool):
            raise ValueError(f"replacement should be a boolean value, but got replacement={replacement}")
        self.weights = _C.as_tensor(weights, dtype=_C.float64, device="cpu")
        if self.weights.dim() != 1:
            raise ValueError(
                f"weights should be a 1d sequence but given weights have shape {tuple(self.weights.shape)}"
            )
        listed = self.weights.tolist()
        if not all(0.0 <= w < math.inf for w in listed):
            raise ValueError(
                "WeightedRandomSampler: a weight is negative, inf or NaN (expected finite weights of at least 0)"
            )
        positive, needed = sum(w > 0.0 for w in listed), 1 if replacement else num_samples
        if positive < needed:
            raise ValueError(f"WeightedRandomSampler: got {positive} positive weights (expected at least {needed})")
        self.num_samples = num_samples
        self.replacement = replacement
        self.generator = generator

    def __iter__(self):
        weights, generator = self.weights.tolist(), self.generator
        if self.replacement:
            if not _order.is_asked():
                generator = _order.own(generator)
            sums = list(accumulate(weights))
            top = bisect_left(sums, sums[-1])  # a draw that rounding moves to the very end belongs
            for count in _order.pieces(self.num_samples):
                yield from (min(bisect_right(sums, u * sums[-1]), top) for u in _order.uniform(count, generator))
            return
        drawn = _order.uniform(len(weights), generator)
        keys = [(math.log1p(-u) / w, i) for i, (u, w) in enumerate(zip(drawn, weights)) if w > 0.0]
        yield from (i for _, i in sorted(keys, reverse=True)[: self.num_samples])

    def __len__(self):
        return self.num_samples


class BatchSampler(Sampler):
    """Lists of `batch_size` indices of `sampler`; the last one may be shorter unless `drop_last`.

    >>> import pydist
    >>> list(pydist.utils.data.BatchSampler(range(5), batch_size=2, drop_last=False))
    [[0, 1], [2, 3], [4]]
    """

    def __init__(self, sampler, batch_size, drop_last):
        if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size <= 0:
            raise ValueError(f"batch_size should be a positive integer value, but got batch_size={batch_size}")
        if not isinstance(drop_last, bool):
            raise ValueError(f"drop_last should be a boolean value, but got drop_last={drop_last}")
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last

    def __iter__(self):
        indices = iter(self.sampler)
        while batch := list(islice(indices, self.batch_size)):
            if self.drop_last and len(batch) < self.batch_size:
                return
            yield batch

    def __len__(self):
        rest = 0 if self.drop_last else self.batch_size - 1
        return (len(self.sampler) + rest) // self.batch_size
