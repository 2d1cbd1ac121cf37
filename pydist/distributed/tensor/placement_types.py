"""Placements: how a tensor lies along one dimension of a mesh of ranks. Equal ones are one object."""

import weakref

__all__ = ["Partial", "Placement", "Replicate", "Shard", "_StridedShard"]

_made = weakref.WeakValueDictionary()


class Placement:
    """How a tensor lies along one dimension of a mesh."""

    def __new__(cls, *values, **named):
        key = cls, cls._values(*values, **named)
        made = _made.get(key)
        if made is None:
            made = object.__new__(cls)
            made._fill(*key[1])
            made = _made.setdefault(key, made)
        return made

    @staticmethod
    def _values():
        return ()

    def _fill(self):
        pass

    def __setattr__(self, name, value):
        raise AttributeError(
            f"{type(self).__name__}: {name} cannot be set: equal placements are one object (expected a new one)"
        )

    def __delattr__(self, name):
        raise AttributeError(f"{type(self).__name__}: {name} cannot be deleted (expected a new placement)")

    def is_shard(self, dim=None):
        """Whether each rank has a part, along `dim` if that is given."""
        return isinstance(self, Shard) and dim in (None, self.dim)

    def is_replicate(self):
        """Whether each rank has all of it."""
        return isinstance(self, Replicate)

    def is_partial(self, reduce_op=None):
        """Whether each rank has a summand."""
        return isinstance(self, Partial) and reduce_op in (None, self.reduce_op)

    def __reduce__(self):
        return type(self), tuple(vars(self).values())

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self

    def __repr__(self):
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


class Shard(Placement):
    """Each rank has a part along `dim`: ceil(n / W) of its n indices, the last ranks fewer or none, as torch.chunk cuts.
    `block`: cuts fall between blocks of so many indices, so that no block is cut (the rows of an attention head, say)."""

    @staticmethod
    def _values(dim, block=1):
        if not isinstance(dim, int) or not isinstance(block, int) or block < 1:
            raise TypeError(f"Shard: dim is {dim!r}, block {block!r} (expected ints, block at least 1)")
        return dim, block

    def _fill(self, dim, block):
        vars(self).update(dim=dim, block=block)

    def __repr__(self):
        return f"Shard(dim={self.dim})" if self.block == 1 else f"Shard(dim={self.dim}, block={self.block})"

    def __str__(self):
        return f"S({self.dim})" if self.block == 1 else f"S({self.dim}, {self.block})"


class Replicate(Placement):
    """Each rank has all of it."""

    def __str__(self):
        return "R"


class Partial(Placement):
    """Each rank has a summand of it; `reduce_op` "avg", "max", "min" or "product": what else makes the whole of the
    ranks' tensors."""

    @staticmethod
    def _values(reduce_op="sum"):
        if reduce_op not in ("sum", "avg", "max", "min", "product"):  # the names of ReduceOp, in small letters
            raise ValueError(f"Partial: reduce_op is {reduce_op!r} (expected sum, avg, max, min or product)")
        return (reduce_op,)

    def _fill(self, reduce_op):
        vars(self).update(reduce_op=reduce_op)

    def __str__(self):
        return f"P({self.reduce_op})"


class _StridedShard(Placement):
    """Refused: PyTorch's word for one dimension that two of the mesh cut, the later one first. Here the dimensions of the
    mesh cut in their order."""

    def __new__(cls, dim, *, split_factor):
        raise NotImplementedError(
            f"_StridedShard: got dim {dim}, split_factor {split_factor} (expected Shard, which cuts in the order of the mesh's "
            "dimensions)"
        )
