"""Numbers as tuples, for code of convolutions: _single, _pair, _triple, _quadruple."""

from collections.abc import Iterable
from itertools import repeat


def _ntuple(n, name="parse"):
    def parse(x):
        return tuple(x) if isinstance(x, Iterable) else tuple(repeat(x, n))

    parse.__name__ = name
    return parse


_single, _pair, _triple, _quadruple = (
    _ntuple(n + 1, name) for n, name in enumerate("_single _pair _triple _quadruple".split())
)


def _reverse_repeat_tuple(t, n):
    """Each entry n times, last entry first: the form in which F.pad takes paddings by dimension."""
    return tuple(x for x in reversed(t) for _ in range(n))
