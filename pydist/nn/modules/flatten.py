"""Merging several dims into one, and splitting one dim into several."""

from math import prod

from pydist.nn.modules.module import Module


class Flatten(Module):
    """Merges dims start_dim to end_dim into one.

    >>> import pydist
    >>> pydist.nn.Flatten()(pydist.ones(2, 3, 4)).shape
    pydist.Size([2, 12])
    """

    def __init__(self, start_dim=1, end_dim=-1):
        super().__init__()
        self.start_dim = start_dim
        self.end_dim = end_dim

    def forward(self, input):
        return input.flatten(self.start_dim, self.end_dim)

    def extra_repr(self):
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Unflatten(Module):
    """Splits `dim` into dims with the sizes `unflattened_size`, one of which may be -1. Raises RuntimeError if their
    product is not the dim's size, TypeError if unflattened_size is not a tuple or list of ints.

    >>> import pydist
    >>> pydist.nn.Unflatten(1, (3, -1))(pydist.ones(2, 12)).shape
    pydist.Size([2, 3, 4])
    """

    def __init__(self, dim, unflattened_size):
        super().__init__()
        if not isinstance(dim, int):
            raise TypeError(f"Unflatten: dim is {type(dim).__name__} (expected int)")
        if not isinstance(unflattened_size, (tuple, list)) or not all(isinstance(n, int) for n in unflattened_size):
            raise TypeError(f"Unflatten: unflattened_size is {unflattened_size!r} (expected a tuple of ints)")
        self.dim = dim
        self.unflattened_size = unflattened_size

    def forward(self, input):
        shape, sizes = list(input.shape), list(self.unflattened_size)
        if not -len(shape) <= self.dim < len(shape):
            raise IndexError(f"unflatten: dim {self.dim} is out of range (expected {-len(shape)} to {len(shape) - 1})")
        dim, known = self.dim % len(shape), prod(n for n in sizes if n != -1)
        if sizes.count(-1) == 1 and known and shape[dim] % known == 0:
            sizes[sizes.index(-1)] = shape[dim] // known
        if prod(sizes) != shape[dim] or -1 in sizes:
            raise RuntimeError(
                f"unflatten: sizes {self.unflattened_size} (expected sizes with the product {shape[dim]})"
            )
        return input.reshape(shape[:dim] + sizes + shape[dim + 1 :])

    def extra_repr(self):
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"
