"""Random orders: pydist's own, or PyTorch's for programs that need its index lists (PYDIST_COMPAT_STRICT=1).

A generator counts its calls. For PyTorch's lists these are the 32-bit words that PyTorch would have drawn from its own
generator with the same seed. So the lists are PyTorch's as long as only samplers, loaders and splits draw from the
generator.
"""

import os
from random import Random

from pydist import _C

_SKIPPED_AT_ONCE = 1 << 16
_PIECE = 1 << 16


def is_asked():
    """Whether PYDIST_COMPAT_STRICT=1 asks for PyTorch's lists."""
    return os.environ.get("PYDIST_COMPAT_STRICT") == "1"


def _twister(seed):
    """The Mersenne twister, seeded from 32 bits as its authors do (Matsumoto and Nishimura, 1998), and as PyTorch
    does."""
    words = [seed & 0xFFFFFFFF]
    for i in range(1, 624):
        words.append((1812433253 * (words[-1] ^ words[-1] >> 30) + i) & 0xFFFFFFFF)
    random = Random()
    random.setstate((3, (*words, 624), None))
    return random


class _Words:
    """The next words of a generator (None: the default one): `with _Words(generator) as draw: draw()`."""

    def __init__(self, generator):
        if generator is None:
            self._get, self._set = _C._rng_key, _C.set_rng_state
        else:
            self._get, self._set = generator._key, generator.set_state

    def __enter__(self):
        seed, self._used, _ = self._get()
        self._draw = _twister(seed).getrandbits
        for _ in range(self._used // _SKIPPED_AT_ONCE):
            self._draw(32 * _SKIPPED_AT_ONCE)
        if rest := self._used % _SKIPPED_AT_ONCE:
            self._draw(32 * rest)
        return self._next

    def _next(self):
        self._used += 1
        return self._draw(32)

    def __exit__(self, *error):
        seed, _, stream = self._get()
        self._set((seed, self._used, stream))


def _long(draw):
    return draw() << 32 | draw()


def seed(generator=None):
    """An integer from 0 to 2**62 - 1, or PyTorch's `empty((), dtype=int64).random_(generator=generator)`."""
    if not is_asked():
        return _C.randint(0, 1 << 62, (), generator=generator, device="cpu").item()
    with _Words(generator) as draw:
        return _long(draw) % (1 << 63)


def own(generator=None):
    """A generator for one epoch that draws its numbers little by little. Nothing else draws from it, so its numbers
    depend only on `generator`'s state when the epoch began."""
    return _C.Generator().manual_seed(seed(generator))


def pieces(count):
    """The lengths of the lists to draw one after another for `count` numbers, which may be more than memory holds."""
    while count > 0:
        yield min(count, _PIECE)
        count -= _PIECE


def permutation(size, generator=None):
    """The numbers below `size` in random order. PyTorch's is a Fisher-Yates shuffle from the front."""
    if not is_asked():
        return _C.randperm(size, generator=generator, device="cpu").tolist()
    order = list(range(size))
    with _Words(generator) as draw:
        for i in range(size - 1):
            j = i + draw() % (size - i)
            order[i], order[j] = order[j], order[i]
    return order


def integers(high, count, generator=None):
    """`count` integers below `high`."""
    if not is_asked():
        return _C.randint(0, high, (count,), generator=generator, device="cpu").tolist()
    with _Words(generator) as draw:
        return [(draw() if high < 1 << 32 else _long(draw)) % high for _ in range(count)]


def uniform(count, generator=None):
    """`count` numbers in [0, 1) with 53 bits."""
    if not is_asked():
        return _C.rand(count, dtype=_C.float64, generator=generator, device="cpu").tolist()
    with _Words(generator) as draw:
        return [(_long(draw) & (1 << 53) - 1) * 2.0**-53 for _ in range(count)]
