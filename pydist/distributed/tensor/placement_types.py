"""Placements: how a tensor lies along one dimension of a mesh of ranks."""


class Placement:
    """How a tensor lies along one dimension of a mesh."""

    def is_shard(self, dim=None):
        """Whether each rank has a part, along `dim` if that is given."""
        return isinstance(self, Shard) and dim in (None, self.dim)

    def is_replicate(self):
        """Whether each rank has all of it."""
        return isinstance(self, Replicate)

    def is_partial(self, reduce_op=None):
        """Whether each rank has a summand."""
        return isinstance(self, Partial) and reduce_op in (None, self.reduce_op)

    def __eq__(self, other):
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self):
        return hash((type(self), *vars(self).values()))

    def __repr__(self):
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


class Shard(Placement):
    """Each rank has a part along `dim`: ceil(n / W) of its n indices, the last ranks fewer or none, as torch.chunk
    cuts."""

    def __init__(self, dim):
        self.dim = dim

    def __str__(self):
        return f"S({self.dim})"


class Replicate(Placement):
    """Each rank has all of it."""

    def __str__(self):
        return "R"


class Partial(Placement):
    """Each rank has a summand of it; `reduce_op` "avg", "max", "min" or "product": what else makes the whole of the
    ranks' tensors."""

    def __init__(self, reduce_op="sum"):
        if reduce_op not in ("sum", "avg", "max", "min", "product"):  # the names of ReduceOp, in small letters
            raise ValueError(f"Partial: reduce_op is {reduce_op!r} (expected sum, avg, max, min or product)")
        self.reduce_op = reduce_op

    def __str__(self):
        return f"P({self.reduce_op})"
