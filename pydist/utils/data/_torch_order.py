"""PyTorch's permutations, for those who want its index lists (PYDIST_COMPAT_STRICT=1)."""

import os
from random import Random


def is_asked():
    return os.environ.get("PYDIST_COMPAT_STRICT") == "1"


def _twister(seed):
    """The Mersenne twister as its authors seed it from 32 bits (Matsumoto and Nishimura, 1998), which PyTorch does."""
    words = [seed & 0xFFFFFFFF]
    for i in range(1, 624):
        words.append((1812433253 * (words[-1] ^ words[-1] >> 30) + i) & 0xFFFFFFFF)
    random = Random()
    random.setstate((3, (*words, 624), None))
    return random


def permutation(size, seed):
    """The list that PyTorch's randperm gives for a generator seeded with `seed`: a Fisher-Yates shuffle from the front.

    >>> from pydist.utils.data._torch_order import permutation
    >>> permutation(5, 0)
    [4, 0, 1, 3, 2]
    """
    draw, order = _twister(seed).getrandbits, list(range(size))
    for i in range(size - 1):
        j = i + draw(32) % (size - i)
        order[i], order[j] = order[j], order[i]
    return order
