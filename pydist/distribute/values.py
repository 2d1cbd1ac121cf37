"""Values that differ between the replicas of a process."""

from pydist import _C
from pydist.utils._pytree import tree_flatten, tree_map

__all__ = ["DistributedValues", "PerReplica"]


class DistributedValues:
    """One value for each replica of this process: `values`.

    >>> from pydist.distribute import PerReplica
    >>> PerReplica([1, 2])
    PerReplica(1, 2)
    """

    def __init__(self, values):
        self._values = tuple(values)
        if not self._values:
            raise ValueError(f"{type(self).__name__}: got no values (expected one for each replica)")

    @property
    def values(self):
        """The values, as a tuple."""
        return self._values

    def __repr__(self):
        return f"{type(self).__name__}({', '.join(map(repr, self._values))})"


class PerReplica(DistributedValues):
    """The result of `run`, or a part of a distributed batch, where a process has several replicas."""


def select(tree, index):
    """The tree with the value of local replica `index` in the place of each PerReplica."""
    return tree_map(lambda leaf: leaf.values[index] if isinstance(leaf, DistributedValues) else leaf, tree)


def regroup(trees):
    """One tree of PerReplica from a tree for each local replica; a single one stays as it is. Trees of different
    structure become one PerReplica."""
    if len(trees) == 1:
        return trees[0]
    flat = [tree_flatten(tree) for tree in trees]
    if any(spec != flat[0][1] for _, spec in flat):
        return PerReplica(trees)
    leaves = [
        PerReplica(values) if any(v is not None for v in values) else None
        for values in zip(*(leaves for leaves, _ in flat))
    ]
    return flat[0][1].unflatten(leaves)


def as_tensor(value, op):
    """A value of a reduction as a tensor: Python's numbers keep their full precision."""
    if isinstance(value, _C.Tensor):
        return value.detach()
    if isinstance(value, bool):
        value = int(value)
    if isinstance(value, (int, float)):
        return _C.tensor(value, dtype=_C.int64 if isinstance(value, int) else _C.float64)
    if hasattr(value, "__array__"):
        return _C.as_tensor(value)
    raise TypeError(f"{op}: value is {type(value).__name__} (expected tensors, arrays or numbers)")
