"""Sources whose elements can be read by number."""

from pydist import _C
from pydist.data import spec
from pydist.data.spec import INFINITE, TensorSpec
from pydist.data.step import Step, each, moved
from pydist.data.strings import StringTensor


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
