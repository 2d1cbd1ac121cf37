"""Steps of a pipeline whose elements are functions of their numbers.

A step gives element i by get(i, run), and many at once, stacked, by rows(numbers, run): numbers are a range or an int64
tensor, and the result is the list of the elements' leaves. `run` is one pass over the data: its epoch and seeds. So a
shuffled batch of slices is one random order of 64 numbers and one gather, whatever stands between.
"""

import threading
from collections import defaultdict

from pydist import _C
from pydist.data import pool, spec, state
from pydist.data.spec import DatasetSpec, ENDLESS, INFINITE, TensorSpec, UNKNOWN
from pydist.data.strings import StringTensor

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FAR = 40  # bits of the numbers of passes within an endless repeat


class Run:
    """One pass: `epoch` counts passes, `base` is the seed of random ops in functions, `seeds` those of random steps."""

    __slots__ = ("epoch", "base", "seeds")

    def __init__(self, epoch, base, seeds):
        self.epoch, self.base, self.seeds = epoch, base, seeds

    def at(self, epoch):
        """The same pass in another epoch of the steps before."""
        return self if epoch == self.epoch else Run(epoch & _MASK, self.base, self.seeds)


class Step:
    """A step of a pipeline. `inputs` are the steps before it."""

    indexed = True
    inputs = ()
    threads = 0  # of this step: 0: none asked for, AUTOTUNE: as many as help
    room = 0  # results that may wait

    @property
    def input(self):
        return self.inputs[0]

    @property
    def tree(self):
        """The tree of an element, None also where it is not known yet."""
        return self.input.tree

    def count(self):
        """How many elements, INFINITE or UNKNOWN."""
        return self.input.count()

    def get(self, i, run):
        """The leaves of element i."""
        return [leaf[0] for leaf in self.rows(range(i, i + 1), run)]

    def rows(self, numbers, run):
        """The leaves of these elements, stacked."""
        return spec.stack([self.get(i, run) for i in each(numbers)], self.name)

    def specs(self):
        """What the leaves are: a list of TensorSpec."""
        return self.input.specs()

    def start(self, run):
        """An iterator over the leaves of all elements, with skip(n) and close()."""
        return Numbered(self, run)

    @property
    def name(self):
        return type(self).__name__.lower()

    def detail(self):
        """What else of this step the fingerprint holds."""
        return ()

    def steps(self, seen=None):
        """This step and all before it, each once."""
        seen = {} if seen is None else seen
        if id(self) not in seen:
            seen[id(self)] = self
            for before in self.inputs:
                before.steps(seen)
        return list(seen.values())


def each(numbers):
    """The numbers as Python's."""
    return numbers if isinstance(numbers, range) else numbers.tolist()


def moved(numbers, times, plus):
    """numbers * times + plus"""
    if isinstance(numbers, range):
        return range(numbers.start * times + plus, numbers.stop * times + plus, numbers.step * times)
    return numbers * times + plus if times != 1 else numbers + plus


class Numbered:
    """Iterates over a step by numbers, in threads where they help."""

    def __init__(self, step, run, begin=0):
        self.step, self.run, self.next = step, run, begin
        count = step.count()
        self.stop = ENDLESS if count == INFINITE else count
        asked = [s.threads for s in step.steps() if s.threads]
        rooms = [s.room for s in step.steps() if s.room]
        self.threads = max(asked) if asked and min(asked) > 0 else (-1 if asked else int(bool(rooms)))
        self.room = 0 if not rooms or -1 in rooms else max(rooms)
        self.flow = None

    def __next__(self):
        if self.flow is None:
            if not self.threads:
                if self.next >= self.stop:
                    raise StopIteration
                self.next += 1
                return self.step.get(self.next - 1, self.run)
            self._begin()
        elif self.flow.pool is not None and self.flow.pool.forked:
            self._begin()
        result = next(self.flow)
        self.next += 1
        return result

    def _begin(self):
        step, run = self.step, self.run
        numbers = iter(range(self.next, self.stop))
        self.flow = pool.Flow(numbers, lambda i: step.get(i, run), self.threads, self.room)

    def skip(self, count):
        """Goes on without the next elements."""
        self.close()
        self.next = min(self.next + count, self.stop)

    def close(self):
        """Ends the threads."""
        if self.flow is not None:
            self.flow.close()
            self.flow = None


# Sources


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


# Steps that choose and order


class Shuffle(Step):
    def __init__(self, step, window, seed, reshuffle):
        self.inputs, self.window, self.seed, self.reshuffle = (step,), window, seed, reshuffle

    def places(self, numbers, run):
        """The numbers of the elements that stand at these places."""
        n = self.input.count()
        seed, epoch = run.seeds.get(id(self), self.seed or 0), run.epoch if self.reshuffle else 0
        return _C._data_order(ENDLESS if n == INFINITE else n, self.window, seed, epoch, numbers)

    def get(self, i, run):
        return self.input.get(self.places(range(i, i + 1), run).item(), run)

    def rows(self, numbers, run):
        return self.input.rows(self.places(numbers, run), run)

    def detail(self):
        return (self.window, self.reshuffle)


class Repeat(Step):
    def __init__(self, step, times):
        self.inputs, self.times = (step,), times

    def count(self):
        n = self.input.count()
        if n == 0 or self.times == 0:
            return 0
        return INFINITE if n == INFINITE or self.times < 0 else n * self.times

    def _epoch(self, run, turn):
        return run.at(((run.epoch << _FAR) if self.times < 0 else run.epoch * self.times) + turn)

    def get(self, i, run):
        n = self.input.count()
        if n == INFINITE:
            return self.input.get(i, run)
        turn, i = divmod(i, n)
        return self.input.get(i, self._epoch(run, turn))

    def rows(self, numbers, run):
        n = self.input.count()
        if n == INFINITE or not len(numbers):
            return self.input.rows(numbers, run)
        if isinstance(numbers, range) and numbers.step > 0 and numbers[0] // n == numbers[-1] // n:
            turn = numbers[0] // n
            return self.input.rows(moved(numbers, 1, -turn * n), self._epoch(run, turn))
        groups = defaultdict(list)
        for place, i in enumerate(each(numbers)):
            groups[i // n].append((place, i % n))
        return spec.merge(
            [([place for place, _ in group],
              self.input.rows(_numbers(i for _, i in group), self._epoch(run, turn))) for turn, group in groups.items()],
            len(numbers),
        )  # fmt: skip

    def detail(self):
        return (self.times,)


def _numbers(items):
    return _C.tensor(list(items), dtype=_C.int64, device="cpu")


class Take(Step):
    def __init__(self, step, most):
        self.inputs, self.most = (step,), most

    def count(self):
        n = self.input.count()
        if self.most < 0:
            return n
        return self.most if n == INFINITE else min(n, self.most)

    def get(self, i, run):
        return self.input.get(i, run)

    def rows(self, numbers, run):
        return self.input.rows(numbers, run)

    def detail(self):
        return (self.most,)


class Skip(Step):
    def __init__(self, step, first):
        self.inputs, self.first = (step,), first

    def count(self):
        n = self.input.count()
        if self.first < 0:
            return 0
        return n if n == INFINITE else max(0, n - self.first)

    def get(self, i, run):
        return self.input.get(i + self.first, run)

    def rows(self, numbers, run):
        return self.input.rows(moved(numbers, 1, self.first), run)

    def detail(self):
        return (self.first,)


class Shard(Step):
    def __init__(self, step, shards, index):
        self.inputs, self.shards, self.index = (step,), shards, index

    def count(self):
        n = self.input.count()
        return n if n == INFINITE else max(0, -((self.index - n) // self.shards))

    def get(self, i, run):
        return self.input.get(i * self.shards + self.index, run)

    def rows(self, numbers, run):
        return self.input.rows(moved(numbers, self.shards, self.index), run)

    def detail(self):
        return (self.shards, self.index)


class Prefetch(Step):
    def __init__(self, step, room):
        self.inputs, self.room = (step,), room

    def get(self, i, run):
        return self.input.get(i, run)

    def rows(self, numbers, run):
        return self.input.rows(numbers, run)


class Zip(Step):
    """`outer`: the tree whose leaves are the inputs."""

    def __init__(self, outer, steps):
        self.outer, self.inputs = outer, tuple(steps)

    @property
    def tree(self):
        return _grafted(self.outer, iter(self.inputs))

    def count(self):
        counts = [step.count() for step in self.inputs]
        known = [n for n in counts if n >= 0]
        return min(known) if known else INFINITE

    def get(self, i, run):
        return [leaf for step in self.inputs for leaf in step.get(i, run)]

    def rows(self, numbers, run):
        return [leaf for step in self.inputs for leaf in step.rows(numbers, run)]

    def specs(self):
        return [one for step in self.inputs for one in step.specs()]

    def detail(self):
        return (spec.described(self.outer),)


def _grafted(tree, steps):
    if tree is None:
        return next(steps).tree
    kind, what, trees = tree
    return (kind, what, tuple(_grafted(part, steps) for part in trees))


class Concatenate(Step):
    def __init__(self, first, second):
        self.inputs = (first, second)

    def count(self):
        counts = [step.count() for step in self.inputs]
        return INFINITE if INFINITE in counts else sum(counts)

    def _of(self, i):
        n = self.inputs[0].count()
        return (0, i) if n == INFINITE or i < n else (1, i - n)

    def get(self, i, run):
        which, i = self._of(i)
        leaves = self.inputs[which].get(i, run)
        if which:
            same_tree(self, self.inputs)
        return leaves

    def rows(self, numbers, run):
        if not len(numbers):
            return self.inputs[0].rows(numbers, run)
        groups = defaultdict(list)
        for place, i in enumerate(each(numbers)):
            which, i = self._of(i)
            groups[which].append((place, i))
        parts = [
            ([place for place, _ in group], self.inputs[which].rows(_numbers(i for _, i in group), run))
            for which, group in groups.items()
        ]
        if len(parts) > 1:
            same_tree(self, self.inputs)
            for one in zip(*(leaves for _, leaves in parts)):
                spec.stack_leaf([leaf[0] for leaf in one], 0, "concatenate")  # raises where they differ
        return spec.merge(parts, len(numbers))

    def specs(self):
        return [common(a, b) for a, b in zip(*(step.specs() for step in self.inputs))]


def same_tree(step, inputs):
    """Raises DataError where the elements of data sets that follow each other differ in their trees."""
    first, *others = (one.tree for one in inputs)
    if any(tree != first for tree in others):
        raise _C.DataError(
            f"{step.name}: the data sets have elements {', '.join(spec.described(one.tree) for one in inputs)} "
            "(expected equal structures)"
        )


def common(a, b):
    """The spec that both fit."""
    if not isinstance(a, TensorSpec) or not isinstance(b, TensorSpec) or a == b:
        return a
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return TensorSpec(None, a.dtype)
    return TensorSpec([x if x == y else None for x, y in zip(a.shape, b.shape)], a.dtype)


# Batches


class Batch(Step):
    """Batches of `size` elements. `part`: (rank, ranks): of each batch the rows of this rank only; the plan is the same."""

    def __init__(self, step, size, drop, part=None):
        self.inputs, self.size, self.drop, self.part = (step,), size, drop, part

    def count(self):
        n = self.input.count()
        return n if n == INFINITE else n // self.size if self.drop else -(-n // self.size)

    def members(self, i):
        """The numbers of the elements of batch i."""
        n, begin = self.input.count(), i * self.size
        end = begin + self.size if n == INFINITE else min(n, begin + self.size)
        if self.part is None:
            return range(begin, end)
        rank, ranks = self.part
        rows = end - begin
        return range(begin + rows * rank // ranks, begin + rows * (rank + 1) // ranks)

    def get(self, i, run):
        members = self.members(i)
        if members:
            return self.input.rows(members, run)
        begin = i * self.size  # a part without rows has their shapes
        return [leaf[:0] for leaf in self.input.rows(range(begin, begin + 1), run)]

    def specs(self):
        size = self.size if self.drop and self.part is None else None
        return batched(self.input.specs(), size)

    def detail(self):
        return (self.size, self.drop)


def batched(specs, size):
    """The specs of batches."""
    return [one if one is None or one.shape is None else TensorSpec((size, *one.shape), one.dtype) for one in specs]


class PaddedBatch(Batch):
    """Batches of elements that are filled up to equal shapes."""

    name = "padded_batch"

    def __init__(self, step, size, padding, drop):
        super().__init__(step, size, drop)
        self.padding = padding

    def get(self, i, run):
        return self.padding.stack([self.input.get(k, run) for k in self.members(i)])

    def specs(self):
        return self.padding.specs(self.input.specs(), self.size if self.drop else None)

    def detail(self):
        return (self.size, self.drop, *self.padding.detail())


# Functions


def arguments(tree, leaves):
    """What a function is called with for an element: the members of a tuple, else the element."""
    if tree is None:
        return leaves
    if tree[0] == "tuple" and not any(tree[2]):
        return leaves
    value = spec.pack(tree, leaves)
    return value if isinstance(value, tuple) else (value,)


def function_name(fn):
    """What messages call a function."""
    return getattr(fn, "__qualname__", None) or type(fn).__qualname__


def note(error, where):
    """Adds a line to an exception: where it was raised."""
    if hasattr(error, "add_note"):
        if where not in getattr(error, "__notes__", ()):
            error.add_note(where)
    elif len(error.args) == 1 and isinstance(error.args[0], str):  # Python 3.10
        error.args = (f"{error.args[0]}\n{where}",)


class Function:
    """A program's function of elements. Random ops in it draw by the number of the element: their results do not depend on
    threads. Raises what the function raises, with a note that names function and element."""

    def __init__(self, fn, step, where, salt=0):
        if not callable(fn):
            raise TypeError(f"{where}: the function is {type(fn).__name__} (expected a callable)")
        self.fn, self.step, self.where, self.salt = fn, step, where, salt * _GOLDEN

    def __call__(self, leaves, i, run):
        return self.of(arguments(self.step.tree, leaves), i, run)

    def of(self, given, i, run):
        """The function's result for these arguments, of element i."""
        before = _C._rng_key()
        _C.set_rng_state(((run.base + self.salt + run.epoch * _GOLDEN + i) & _MASK, 0, 0))
        try:
            return self.fn(*given)
        except StopIteration as error:  # it would look like the end of the data
            raise RuntimeError(f"{self.where}: {function_name(self.fn)} raised StopIteration at element {i}") from error
        except Exception as error:
            note(error, f"in {self.where}: function {function_name(self.fn)}, element {i}")
            raise
        finally:
            _C.set_rng_state(before)

    def detail(self):
        """What identifies the function in another process that runs the same program."""
        return state.function_detail(self.fn)


class Map(Step):
    def __init__(self, step, fn, threads=0, whole=False):
        self.inputs, self.threads, self.whole = (step,), threads, whole
        self.function = Function(fn, step, "map", len(step.steps()))
        self.known, self._tree, self._specs, self.kinds = False, None, None, None
        self.lock = threading.Lock()

    @property
    def tree(self):
        if not self.known:
            self.specs()
        return self._tree

    def apply(self, leaves, i, run):
        """The leaves of the function's result for an element."""
        value = self.function(leaves, i, run)
        out = []
        tree = spec.flatten(value, out)
        if not self.known or tree != self._tree:
            self._check_tree(tree, i)
        return [leaf if type(leaf) is _C.Tensor else spec.as_leaf(leaf, "map") for leaf in out]

    def _check_tree(self, tree, i):
        with self.lock:
            if not self.known:
                self._tree, self.known = tree, True
            elif tree != self._tree:
                raise _C.DataError(
                    f"map: function {function_name(self.function.fn)} returned {spec.described(tree)} for element {i} "
                    f"(expected {spec.described(self._tree)}, as for the elements before)"
                )

    def get(self, i, run):
        if self.whole:
            return [leaf[0] for leaf in self.rows(range(i, i + 1), run)]
        return self.apply(self.input.get(i, run), i, run)

    def rows(self, numbers, run):
        rows = self.input.rows(numbers, run)
        if self.whole:
            return self.apply(rows, numbers[0] if len(numbers) else 0, run)
        parts = [leaf if leaf is None else list(leaf) for leaf in rows]
        made = [
            self.apply([None if part is None else part[k] for part in parts], i, run)
            for k, i in enumerate(each(numbers))
        ]
        return spec.stack(made) if made else [one_row[:0] for one_row in self.rows(range(1), run)]

    def _first(self):
        """The leaves before and after the function for the first element; None if there is none."""
        run = Run(0, 0, {})
        stream = self.input.start(run)
        try:
            before = next(stream)
        except StopIteration:
            return None
        finally:
            stream.close()
        return before, self.apply(before, 0, run)

    def specs(self):
        if self._specs is None:
            found = self._first()
            if found is None:
                raise ValueError(
                    "element_spec: the data set is empty, so map has no result to look at (expected an element)"
                )
            before, after = found
            first = [leaf.shape[0] for leaf, one in zip(before, self.input.specs())
                     if isinstance(one, TensorSpec) and one.shape and one.shape[0] is None and leaf.shape]  # fmt: skip
            self._specs = [_freed(spec.spec_of(leaf), first) for leaf in after]
        return self._specs

    def detail(self):
        return (self.whole, *self.function.detail())


def _freed(one, first):
    """The spec with None as its first size, if that was the size of a batch."""
    if isinstance(one, DatasetSpec) or one is None or not one.shape or one.shape[0] not in first:
        return one
    return TensorSpec((None, *one.shape[1:]), one.dtype)


__all__ = ["UNKNOWN", "Step"]
