"""TensorShape: the sizes of a tensor, of which some may be unknown."""

import math


class ShapeReadings:
    """What TensorFlow's shapes have and tuples have not; tensors' own shapes get it too (_readings.py)."""

    __slots__ = ()

    def as_list(self):
        """The sizes as a list."""
        return list(self)

    @property
    def rank(self):
        """How many axes."""
        return len(self)

    @property
    def ndims(self):
        """How many axes."""
        return len(self)

    @property
    def dims(self):
        """The sizes as a list."""
        return list(self)

    def num_elements(self):
        """The product of the sizes; None if one is unknown."""
        return None if None in tuple(self) else math.prod(self)

    def is_fully_defined(self):
        """Whether all sizes are known."""
        return None not in tuple(self)

    def is_compatible_with(self, other):
        """Whether a tensor may have both shapes."""
        other = TensorShape(other)
        if self._unknown or other._unknown:
            return True
        return len(self) == len(other) and all(a is None or b is None or a == b for a, b in zip(self, other))

    def assert_is_compatible_with(self, other):
        """Raises ValueError if no tensor has both shapes."""
        if not self.is_compatible_with(other):
            raise ValueError(f"Shapes {self} and {TensorShape(other)} are incompatible (expected equal sizes)")

    def assert_has_rank(self, rank):
        """Raises ValueError if the number of axes is another one."""
        if len(self) != rank:
            raise ValueError(f"Shape {self} must have rank {rank} (expected so many axes)")

    def with_rank(self, rank):
        """The shape, if it has so many axes; else ValueError."""
        self.assert_has_rank(rank)
        return self

    def concatenate(self, other):
        """This shape, then the other one."""
        return TensorShape([*self, *TensorShape(other)])

    def merge_with(self, other):
        """The shape with what the other one knows of it."""
        self.assert_is_compatible_with(other)
        other = TensorShape(other)
        if self._unknown or other._unknown:
            return other if self._unknown else TensorShape(self)
        return TensorShape([b if a is None else a for a, b in zip(self, other)])

    _unknown = False


class TensorShape(ShapeReadings, tuple):
    """Sizes, of which None is unknown. TensorShape(None): not even their number is known."""

    def __new__(cls, dims=None):
        sizes = () if dims is None else (dims,) if isinstance(dims, int) or hasattr(dims, "item") else dims
        made = super().__new__(cls, (None if n is None else int(n) for n in sizes))
        made._unknown = dims is None or getattr(dims, "_unknown", False)
        return made

    @property
    def rank(self):
        """How many axes; None if that is unknown."""
        return None if self._unknown else len(self)

    ndims = rank

    def __getitem__(self, key):
        found = super().__getitem__(key)
        return TensorShape(found) if isinstance(key, slice) else found

    def __add__(self, other):
        return self.concatenate(other)

    def __radd__(self, other):
        return TensorShape(other).concatenate(self)

    def __eq__(self, other):
        return tuple(self) == tuple(other) if isinstance(other, (tuple, list)) else NotImplemented

    def __ne__(self, other):
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    __hash__ = tuple.__hash__

    def __repr__(self):
        return f"TensorShape({None if self._unknown else list(self)})"

    def __str__(self):
        return "<unknown>" if self._unknown else str(tuple(self))
