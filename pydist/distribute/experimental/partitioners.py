"""Into how many shards a ParameterServerStrategy divides a variable: along its first dimension.

>>> import pydist
>>> from pydist.distribute.experimental import partitioners
>>> partitioners.MinSizePartitioner(min_shard_bytes=64, max_shards=4)((8, 4), pydist.float32)
[2, 1]
"""

from math import ceil, prod

import pydist

__all__ = ["FixedShardsPartitioner", "MaxSizePartitioner", "MinSizePartitioner", "Partitioner"]


class Partitioner:
    """A function of a variable's shape and dtype: the number of parts along each dimension."""

    def __call__(self, shape, dtype, axis=0):
        shape = [int(size) for size in shape]
        if axis != 0:
            raise NotImplementedError(f"{type(self).__name__}: axis={axis} (expected 0)")
        if not shape:
            raise ValueError(f"{type(self).__name__}: the variable has no dimensions (expected at least one)")
        size = pydist.empty(0, dtype=dtype).element_size() if isinstance(dtype, pydist.dtype) else dtype.size
        parts = self._parts(shape, prod(shape) * size)
        return [max(1, min(parts, shape[0])), *[1] * (len(shape) - 1)]

    def _parts(self, shape, size):
        raise NotImplementedError


def _at_least_1(name, **given):
    for argument, value in given.items():
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise ValueError(f"{name}: {argument} is {value!r} (expected a whole number, 1 or more)")


class FixedShardsPartitioner(Partitioner):
    """So many shards, if the variable has so many rows."""

    def __init__(self, num_shards):
        _at_least_1("FixedShardsPartitioner", num_shards=num_shards)
        self._count = num_shards

    def _parts(self, shape, size):
        return self._count


class MinSizePartitioner(Partitioner):
    """As many shards as have at least min_shard_bytes, up to max_shards."""

    def __init__(self, min_shard_bytes=256 << 10, max_shards=1, bytes_per_string=16):
        _at_least_1("MinSizePartitioner", min_shard_bytes=min_shard_bytes, max_shards=max_shards)
        self._least, self._most = min_shard_bytes, max_shards

    def _parts(self, shape, size):
        return min(self._most, ceil(size / self._least))


class MaxSizePartitioner(Partitioner):
    """So many shards that none has more than max_shard_bytes, up to max_shards. A shard has at least one row."""

    def __init__(self, max_shard_bytes, max_shards=None, bytes_per_string=16):
        _at_least_1("MaxSizePartitioner", max_shard_bytes=max_shard_bytes, max_shards=max_shards)
        self._bytes, self._most = max_shard_bytes, max_shards

    def _parts(self, shape, size):
        rows = max(1, self._bytes // max(1, size // max(1, shape[0])))
        parts = ceil(shape[0] / rows)
        return parts if self._most is None else min(parts, self._most)
