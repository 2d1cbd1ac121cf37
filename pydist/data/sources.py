"""Sources: tensors, numbers, items, generators."""

from functools import reduce

from pydist import _C
from pydist._dtypes import can_cast
from pydist.data import spec, state, streams
from pydist.data.spec import INFINITE, TensorSpec, UNKNOWN
from pydist.data.step import NoElement, Step, apart, each, moved
from pydist.data.strings import StringTensor, string


class Slices(Step):
    """The rows of tensors of equal first size."""

    name = "from_tensor_slices"

    def __init__(self, tree, leaves):
        self._tree, self.leaves = tree, [leaf if _plain(leaf) else leaf.contiguous() for leaf in leaves]
        self.n = len(leaves[0])

    tree = property(lambda self: self._tree)

    def count(self):
        return self.n

    def get(self, i, run):
        return [leaf[i] if isinstance(leaf, StringTensor) else leaf[i].clone() for leaf in self.leaves]

    def rows(self, numbers, run):
        return [spec.take_rows(leaf, numbers) for leaf in self.leaves]

    def elements(self, numbers, run):
        return apart(self.rows(numbers, run), len(numbers))

    def specs(self):
        return [TensorSpec(leaf.shape[1:], leaf.dtype) for leaf in self.leaves]

    def detail(self):
        return [(tuple(leaf.shape), str(leaf.dtype)) for leaf in self.leaves]


def _plain(leaf):
    return isinstance(leaf, StringTensor) or leaf.is_contiguous()


class Whole(Step):
    """One element."""

    name = "from_tensors"

    def __init__(self, tree, leaves):
        self._tree, self.leaves = tree, leaves

    tree = property(lambda self: self._tree)

    def count(self):
        return 1

    def get(self, i, run):
        return [leaf.clone() if isinstance(leaf, _C.Tensor) else leaf for leaf in self.leaves]

    def specs(self):
        return [spec.spec_of(leaf) for leaf in self.leaves]

    def detail(self):
        return [(None if leaf is None else tuple(leaf.shape)) for leaf in self.leaves]


class Range(Step):
    """start, start + step, ... as numbers of a dtype; stop None: without end."""

    tree = None

    def __init__(self, start, stop, step, dtype):
        self.begin, self.step, self.dtype = start, step, dtype
        self.numbers = None if stop is None else range(start, stop, step)

    def count(self):
        return INFINITE if self.numbers is None else len(self.numbers)

    def get(self, i, run):
        return [_C.tensor(self.begin + i * self.step, dtype=self.dtype, device="cpu")]

    def rows(self, numbers, run):
        values = moved(numbers, self.step, self.begin)
        if isinstance(values, range):
            values = _C.arange(values.start, values.stop, values.step, dtype=_C.int64, device="cpu")
        return [values.to(self.dtype)]

    def elements(self, numbers, run):
        return apart(self.rows(numbers, run), len(numbers))

    def specs(self):
        return [TensorSpec((), self.dtype)]

    def detail(self):
        return (self.begin, self.step, None if self.numbers is None else len(self.numbers), str(self.dtype))


class Random(Step):
    """Numbers in [0, 2**32), int64."""

    tree = None

    def __init__(self, seed, reshuffle):
        self.seed, self.reshuffle = seed, reshuffle

    def count(self):
        return INFINITE

    def get(self, i, run):
        return [leaf[0] for leaf in self.rows(range(i, i + 1), run)]

    def rows(self, numbers, run):
        seed, epoch = run.seeds.get(id(self), self.seed or 0), run.epoch if self.reshuffle else 0
        return [_C._data_order(1 << 32, 1 << 32, seed, epoch, numbers)]

    def specs(self):
        return [TensorSpec((), _C.int64)]

    def detail(self):
        return (self.reshuffle,)


class Items(Step):
    """The items of a map-style data set of utils.data."""

    name = "from_torch"

    def __init__(self, dataset):
        self.dataset, self._tree, self.known = dataset, None, False

    tree = property(lambda self: self._tree)

    def count(self):
        return len(self.dataset)

    def _leaves(self, value, i):
        tree, leaves = spec.leaves_of(tuple(value) if isinstance(value, list) else value, "from_torch")
        if not self.known:
            self._tree, self.known = tree, True
        elif tree != self._tree:
            raise _C.DataError(
                f"from_torch: item {i} is {spec.described(tree)} (expected {spec.described(self._tree)}, as the first one)"
            )
        return leaves

    def get(self, i, run):
        return self._leaves(self.dataset[i], i)

    def rows(self, numbers, run):
        many = getattr(self.dataset, "rows", None)
        if many is None:
            return super().rows(numbers, run)
        return self._leaves(many(list(each(numbers))), 0)

    def specs(self):
        return [spec.spec_of(leaf) for leaf in self.get(0, None)]

    def detail(self):
        return (type(self.dataset).__qualname__, len(self.dataset))


class Held(Step):
    """Elements that are there. `like`: a step that has such elements."""

    def __init__(self, tree, held, like=None):
        self._tree, self.held, self.like = tree, held, like

    tree = property(lambda self: self._tree)

    def count(self):
        return len(self.held)

    def get(self, i, run):
        return self.held[i]

    def specs(self):
        if not self.held:
            return self.like.specs()
        return [reduce(spec.common, map(spec.spec_of, leaves)) for leaves in zip(*self.held)]

    def detail(self):
        return (len(self.held),)


class Generator(Step):
    """What the iterator yields that function(*arguments) returns. `known`: the specs of elements, or None."""

    indexed = False
    name = "from_generator"

    def __init__(self, function, arguments, tree, known):
        self.function, self.arguments = function, arguments
        self._tree, self._specs, self.known = tree, known, known is not None

    @property
    def tree(self):
        if not self.known:
            self.specs()
        return self._tree

    def count(self):
        return UNKNOWN

    def begun(self):
        """A new iterator."""
        made = self.function(*self.arguments)
        if not hasattr(made, "__iter__"):
            raise TypeError(f"from_generator: the generator returned {type(made).__name__} (expected an iterable)")
        return iter(made)

    def leaves_of(self, value, i):
        """The leaves of what was yielded, which have to fit the specs."""
        if isinstance(value, list) and self._tree is not None:
            value = tuple(value)
        leaves = []
        tree = spec.flatten(value, leaves)
        if not self.known:
            leaves = [spec.as_leaf(leaf, self.name) for leaf in leaves]
            self._tree, self._specs, self.known = tree, [_same_rank(leaf) for leaf in leaves], True
            return leaves
        if tree != self._tree:
            raise _C.DataError(
                f"from_generator: element {i} is {spec.described(tree)} (expected {spec.described(self._tree)})"
            )
        return [_as_said(leaf, one, i, which) for which, (leaf, one) in enumerate(zip(leaves, self._specs))]

    def specs(self):
        if self._specs is None and self.first(None) is None:
            raise NoElement(self.name)
        return self._specs

    def stream(self, run):
        return streams.GeneratorStream(self, run)

    def detail(self):
        return (state.function_detail(self.function), spec.described(self._tree))


def _same_rank(leaf):
    """What is expected of elements after the first one, where a program has said nothing: its dtype and number of dims."""
    return TensorSpec((None,) * len(leaf.shape), leaf.dtype)


def _as_said(value, one, i, which):
    """A leaf with the dtype of its spec. Raises DataError where it does not fit."""
    leaf = spec.as_leaf(value, "from_generator")
    if not hasattr(leaf, "dtype"):
        raise TypeError(f"from_generator: element {i} has {type(value).__name__} in component {which} (expected {one})")
    if leaf.dtype is not one.dtype and string not in (leaf.dtype, one.dtype) and can_cast(leaf.dtype, one.dtype):
        leaf = leaf.to(one.dtype) if hasattr(value, "dtype") else _C.tensor(value, dtype=one.dtype, device="cpu")
    if not one.is_compatible_with(leaf):
        raise _C.DataError(
            f"from_generator: element {i} has {spec.spec_of(leaf)} in component {which} (expected {one})"
        )
    return leaf
