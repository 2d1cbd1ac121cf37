"""Random arguments for test_fuzz_ops.py: what a hypothesis draw makes of a word of fuzz_recipes.py."""

import math
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from lib.op_samples import lay_out

FLOATS, INTS = ("float64", "float32", "bfloat16", "float16"), ("int64", "int32", "uint8", "int8", "int16")
COMPLEX = ("complex128", "complex64")
DTYPES = (*FLOATS, *INTS, "bool")


class Array(NamedTuple):
    """A tensor to be made in either library. Values are quarters in [-4, 4], which every floating dtype holds exactly."""

    shape: tuple
    dtype: str = "float64"
    layout: str = "C"  # as in op_samples
    seed: int = 0
    kind: str = "any"  # "positive", "special" (NaN and infinities among them), "sorted", "fraction" (0 to 1),
    # "signs" (1 and -1) or (lo, hi): whole numbers in between

    def values(self):
        rng = np.random.default_rng(self.seed)
        if isinstance(self.kind, tuple):
            v = rng.integers(*self.kind, self.shape)
        elif self.dtype == "bool":
            v = rng.random(self.shape) < 0.5
        elif self.dtype in INTS:
            v = rng.integers(0 if self.dtype == "uint8" else 1 if self.kind == "positive" else -4, 8, self.shape)
        else:
            v = rng.integers(1 if self.kind == "positive" else -16, 17, self.shape) / 4
            if self.kind == "special":
                v = np.where(
                    rng.random(self.shape) < 0.3, rng.choice([math.nan, math.inf, -math.inf, -0.0], self.shape), v
                )
            if self.dtype in COMPLEX:  # never 0, nor on the real axis, where angles jump
                v = v + 1j * (rng.integers(-6, 6, self.shape) / 4 + 0.125)
        v = abs(v) / 4 if self.kind == "fraction" else np.where(v > 0, 1, -1) if self.kind == "signs" else v
        v = np.sort(v, -1) if self.kind == "sorted" else np.asarray(v)
        return v[..., :1].repeat(v.shape[-1], -1) if self.layout == "E" and v.ndim and v.shape[-1] else v

    def build(self, lib, grad):
        v = self.values()
        v = v.astype("float32") if self.dtype in ("bfloat16", "float16") else v.astype(self.dtype)
        t = lay_out(lib, v, self.layout if v.ndim and v.size else "C").to(getattr(lib, self.dtype)).detach()
        return t.requires_grad_() if grad and self.dtype in ("float64", "float32", *COMPLEX) else t


class Name(str):
    """An attribute of the library, such as a dtype."""


class Call(NamedTuple):
    name: str
    args: list
    kwargs: dict
    in_place: bool = False
    grad: bool = False


class Arguments:
    def __init__(self, draw):
        self.draw, self.shape, self.dtype, self.axis = draw, (), "float64", 0

    # Draws. The first option is what hypothesis shrinks to.

    def pick(self, *options):
        return self.draw(st.sampled_from(options))

    def mostly(self, *rarely):
        """True nine times of ten."""
        return self.pick(*[True] * 9, False)

    def seed(self):
        return self.draw(st.integers(0, 999))

    # Tensors.

    def size(self):
        return self.pick(2, 3, 1, 4, 5, 0)

    def array(self, shape, dtypes=DTYPES, kind="any", first=False):
        """kind "plain": nothing special."""
        dtype = self.pick(*dtypes)
        layout = self.pick("C", "C", "T", "S", "E")
        if kind == "any":
            kind = self.pick("any", "any", "any", "positive", "special")
        a = Array(tuple(shape), dtype, layout, self.seed(), "any" if kind == "plain" else kind)
        if first:
            self.shape, self.dtype = a.shape, dtype
        return a

    def of_rank(self, *ranks, dtypes=DTYPES, kind="any"):
        rank = self.pick(*ranks) if self.mostly() else self.pick(0, 1, 2, 3, 4)
        return self.array([self.size() for _ in range(rank)], dtypes, kind, first=True)

    def filled(self, *ranks, dtypes):
        """Without sizes of 0."""
        return self.array([self.pick(2, 3, 1, 4, 5) for _ in range(self.pick(*ranks))], dtypes, first=True)

    def x(self):
        return self.of_rank(2, 1, 3, 0, 4)

    def f(self):
        return self.of_rank(2, 1, 3, 0, 4, dtypes=FLOATS * 3 + ("int64", "bool"))

    def z(self):
        return self.of_rank(2, 1, 3, 0, dtypes=COMPLEX, kind="plain")

    def zt(self):
        """Complex or real."""
        return self.array(self.near(), (*COMPLEX, "float64", "float32", "int64"), "plain")

    def zy(self):
        return self.zt() if self.mostly() else self.pick(1j, 2.0, 1 - 2j, 3)

    def z2(self):
        return self.array(self.near(), COMPLEX, "plain") if self.mostly() else self.pick(1j, 2.0, 1 - 2j)

    def znum(self):
        return self.pick(1j, 1 + 0.5j, 2.0, -3)

    def positive_x(self):
        return self.of_rank(2, 1, 0, kind="positive")

    def broken(self):
        return self.of_rank(2, 1, 3, 0, dtypes=FLOATS)

    def plain(self):
        return self.of_rank(2, 1, 3, 0, dtypes=FLOATS, kind="plain")

    def wide_positive(self):
        return self.of_rank(2, 1, 0, dtypes=("float64", "float32"), kind="positive")

    def wide(self):
        """For what is made for float32 and float64 alone."""
        return self.of_rank(2, 1, 0, dtypes=("float64", "float32"))

    def x1(self):
        return self.of_rank(1)

    def fraction_x(self):
        return self.of_rank(2, 1, 0, dtypes=FLOATS[:2], kind="fraction")

    def plane_x(self):
        return self.plane(2, FLOATS[:2])

    def signs(self):
        return self.array(self.shape, (self.dtype,), "signs")

    def positive_twin(self):
        return self.array(self.shape, (self.dtype,), "positive")

    def twin(self):
        """The first one's shape and dtype, always."""
        return self.array(self.shape, (self.dtype,))

    def twin_plain(self):
        return self.array(self.shape, (self.dtype,), "plain")

    def axes(self):
        """dims, but not none of them."""
        return self.dims() or 0

    def k(self):
        return self.of_rank(2, 1, 3, 0, dtypes=INTS * 3 + ("bool", "float32"))

    def x4(self):
        return self.of_rank(4)

    def counts(self):
        """Small numbers that are not negative, for bincount and one_hot."""
        return self.array(
            [self.size()], ("int64", "int64", "int32", "float32"), (0 if self.mostly() else -1, 6), first=True
        )

    def near(self):
        """A shape that broadcasts with the first tensor's."""
        shape = [n if self.pick(True, True, False) else 1 for n in self.shape]
        return shape[self.pick(0, 0, 0, 1, 2) :] if self.mostly() else [self.size(), *shape[1:]]

    def t(self):
        return self.array(self.near())

    def y(self):
        return self.t() if self.pick(True, True, False) else self.num()

    def like(self):
        """Broadcasts, of the first one's dtype."""
        return self.array(self.near(), (self.dtype,) * 8 + DTYPES)

    def same(self):
        """The first one's shape and dtype."""
        if self.mostly():
            return self.array(self.shape, (self.dtype,) * 8 + DTYPES)
        return self.array([self.size() for _ in self.shape], (self.dtype,))

    def mask(self):
        return self.array(self.near(), ("bool",) * 8 + ("uint8", "int64", "float32"))

    def probability(self):
        return self.array(
            self.shape if self.shape else [self.size(), self.size()],
            (self.dtype,),
            "fraction" if self.mostly() else "any",
            first=True,
        )

    def xs(self):
        """A list of tensors that differ in one dimension."""
        shape = [self.size() for _ in range(self.pick(2, 1, 3, 0))]
        axis = self.pick(*range(len(shape))) if shape else 0
        self.shape = tuple(shape)
        out = []
        dtypes = (self.pick(*DTYPES),) if self.pick(True, True, False) else DTYPES
        for _ in range(self.pick(2, 1, 3, 0)):
            mine = list(shape)
            if mine and self.pick(True, False):
                mine[axis if self.mostly() else 0] = self.size()
            out.append(self.array(mine, dtypes))
        return tuple(out)

    # Positions.

    def dim(self):
        n = len(self.shape)
        self.axis = self.pick(*range(-n, n)) if n and self.mostly() else self.pick(0, -1, n, -n - 1)
        return self.axis

    def dims(self):
        if self.pick(True, False):
            return self.dim()
        chosen = self.draw(st.lists(st.sampled_from(range(max(len(self.shape), 1))), max_size=3, unique=self.mostly()))
        return tuple(d - len(self.shape) if self.pick(False, True) else d for d in chosen)

    def order(self):
        """A permutation of the dimensions."""
        order = self.draw(st.permutations(range(len(self.shape))))
        return tuple(order) if self.mostly() else tuple(order[1:])

    def length(self):
        return self.shape[self.axis] if -len(self.shape) <= self.axis < len(self.shape) else 1

    def at(self):
        """An index along the dimension drawn before."""
        n = self.length()
        return self.draw(st.integers(-n, max(n - 1, 0))) if self.mostly() else self.pick(n, -n - 1, 9)

    def places(self):
        """Indices [k] along the dimension drawn before."""
        n = self.length()
        low, high = (0, max(n, 1)) if self.mostly() else (-2, n + 2)
        return self.array([self.size()] if self.mostly() else [], ("int64",) * 6 + ("int32", "float32"), (low, high))

    def index(self):
        """For gather and scatter: of the first tensor's rank, not longer but along the dimension."""
        shape = [min(n, self.pick(2, 3, 1)) if self.mostly() else self.size() for n in self.shape]
        if shape and -len(shape) <= self.axis < len(shape):
            shape[self.axis] = self.pick(2, 3, 1)
        n = self.length()
        low, high = (0, max(n, 1)) if self.mostly() else (-1, n + 1)
        self.indexed = shape
        return self.array(shape, ("int64",) * 8 + ("int32",), (low, high))

    def source(self):
        """What scatter takes: at least as long as the index."""
        shape = [n + self.pick(0, 0, 0, 1) for n in self.indexed] if self.mostly() else self.indexed[1:]
        return self.array(shape, (self.dtype,) * 8 + DTYPES)

    def key(self):
        """One or more things that stand between brackets."""
        parts, left = [], list(self.shape)
        while left and (not parts or self.pick(True, False)):
            kind = self.pick("int", "slice", "array", "mask", "none", "list", "ellipsis")
            n = left[0]
            if kind == "none":
                parts.append(None)
                if len(parts) > 3:
                    break
                continue
            if kind == "ellipsis":
                if ... not in parts:
                    parts.append(...)
                    left = left[self.pick(0, 1, 2) :]
                continue
            left = left[1:]
            low, high = -n, max(n, 1) if self.mostly() else n + 1
            if kind == "int":
                parts.append(self.draw(st.integers(low, high - 1)))
            elif kind == "slice":
                ends = [self.pick(None, 0, 1, 2, -1, -2, 9, -9) for _ in range(2)]
                parts.append(slice(*ends, self.pick(None, 1, 2, 3)))
            elif kind == "array":
                shape = self.pick((2,), (3,), (), (2, 1), (1, 3), (0,))
                parts.append(
                    Array(
                        shape,
                        self.pick("int64", "int64", "int32", "uint8"),
                        "C",
                        self.seed(),
                        (max(low, 0) if self.mostly() else low, high),
                    )
                )
            elif kind == "mask":
                both = bool(left) and self.pick(False, True)
                shape = (n, left.pop(0)) if both else (n,)
                parts.append(Array(shape if self.mostly() else (n + 1,), "bool", "C", self.seed()))
            else:
                parts.append([self.draw(st.integers(-n, max(n - 1, 0))) for _ in range(self.pick(2, 1, 0))])
        return tuple(parts)

    # Numbers and words.

    def num(self):
        return self.pick(2, 0, 1.5, -1, True, 0.0, -2.5, 3, math.inf, math.nan)

    def small(self):
        return self.pick(1, 2, 0, 3, -1, -2, 5)

    def real(self):
        return self.pick(1.0, 0.5, 2.0, 0.0, -1.0, 3)

    def bool(self):
        return self.pick(False, True)

    def ints(self):
        return self.small() if self.pick(True, False) else tuple(self.small() for _ in range(self.pick(1, 2, 3, 0)))

    def float_(self):
        return Name(self.pick(*FLOATS))

    def normp(self):
        return self.pick(2, 1, 0, 3, math.inf, -math.inf, 0.5)

    def fraction(self):
        return self.pick(0.5, 0.0, 1.0, 0.3) if self.mostly() else 1.5

    def half(self):
        return 0.5

    def normp2(self):
        return self.pick(2.0, 1.0, 3.0)

    def order_of(self):
        return self.pick(1, 2, 0, 3)

    def product(self):
        return self.pick("prod", "mean", "amax", "amin")

    def yes(self):
        return True

    def no(self):
        return False

    def dtype_(self):
        return Name(self.pick(*DTYPES))

    def shape_of(self):
        """A shape with as many elements: the dimensions joined, reordered, one of them -1; sometimes not."""
        sizes = list(self.draw(st.permutations(self.shape)))
        while len(sizes) > 1 and self.pick(False, True):
            sizes[:2] = [sizes[0] * sizes[1]]
        if self.pick(False, True):
            sizes.insert(self.pick(0, len(sizes)), 1)
        if sizes and self.pick(False, True):
            sizes[self.pick(*range(len(sizes)))] = -1
        if not self.mostly():
            sizes.append(self.pick(2, -1, -2))
        return tuple(sizes)

    def wider(self):
        """A shape that the first tensor expands to."""
        sizes = [self.pick(-1, n) if n != 1 else self.size() for n in self.shape]
        return (*[self.size() for _ in range(self.pick(0, 1, 2))], *sizes) if self.mostly() else (*sizes, 2)

    def strided(self):
        size = [self.pick(1, 2, 0, 3) for _ in range(self.pick(1, 2, 0))]
        return [size, [self.pick(1, 0, 2, 3) for _ in size], self.pick(0, 1, 2)]

    def reduction(self):
        return self.pick("mean", "sum", "none") if self.mostly() else "max"
