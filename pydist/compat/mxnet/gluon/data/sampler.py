"""Samplers: iterables of sample numbers."""

import numpy as np


class Sampler:
    """A base class: subclasses have __iter__ and __len__."""


class SequentialSampler(Sampler):
    """start, start + 1, ..."""

    def __init__(self, length, start=0):
        self._range = range(start, start + length)

    def __iter__(self):
        return iter(self._range)

    def __len__(self):
        return len(self._range)


class RandomSampler(SequentialSampler):
    """All numbers in a random order, from NumPy's generator."""

    def __iter__(self):
        return iter(np.random.permutation(len(self)).tolist())


class FilterSampler(SequentialSampler):
    """The numbers of the samples for which fn(sample) is true."""

    def __init__(self, fn, dataset):
        self._range = [i for i in range(len(dataset)) if fn(dataset[i])]


class BatchSampler(Sampler):
    """Lists of batch_size numbers. The last, smaller one: "keep", "discard", or "rollover" to the next epoch."""

    def __init__(self, sampler, batch_size, last_batch="keep"):
        if last_batch not in ("keep", "discard", "rollover"):
            raise ValueError(f"BatchSampler: last_batch is {last_batch!r} (expected keep, discard or rollover)")
        self._sampler, self._batch_size, self._last_batch, self._kept = sampler, batch_size, last_batch, []

    def __iter__(self):
        batch, self._kept = self._kept, []
        for each in self._sampler:
            batch.append(each)
            if len(batch) == self._batch_size:
                yield batch
                batch = []
        if batch and self._last_batch == "keep":
            yield batch
        self._kept = batch if self._last_batch == "rollover" else []

    def __len__(self):
        count = len(self._sampler) + len(self._kept)
        return -(-count // self._batch_size) if self._last_batch == "keep" else count // self._batch_size
