"""Steps that choose, order and join elements."""

from collections import defaultdict

from pydist import _C
from pydist.data import spec, streams
from pydist.data.spec import ENDLESS, INFINITE, UNKNOWN
from pydist.data.step import Step, each, known_tree, known_trees, moved, tensor_of

_FAR = 40  # bits of the numbers of passes within an endless repeat


class Shuffle(Step):
    def __init__(self, step, window, seed, reshuffle):
        self.inputs, self.window, self.seed, self.reshuffle = (step,), window, seed, reshuffle

    def seed_and_epoch(self, run):
        """What the order of a pass depends on."""
        return run.seeds.get(id(self), self.seed or 0), run.epoch if self.reshuffle else 0

    def places(self, numbers, run):
        """The numbers of the elements that stand at these places."""
        n = self.input.count()
        seed, epoch = self.seed_and_epoch(run)
        return _C._data_order(ENDLESS if n == INFINITE else n, self.window, seed, epoch, numbers)

    def get(self, i, run):
        return self.input.get(self.places(range(i, i + 1), run).item(), run)

    def rows(self, numbers, run):
        return self.input.rows(self.places(numbers, run), run)

    def elements(self, numbers, run):
        return self.input.elements(self.places(numbers, run), run)

    def stream(self, run):
        return streams.ShuffleStream(self, run)

    def first(self, run):
        return self.input.first(run)  # fills no buffer

    def detail(self):
        return (self.window, self.reshuffle)


class Repeat(Step):
    def __init__(self, step, times):
        self.inputs, self.times = (step,), times

    def count_of(self, n):
        if n == 0 or self.times == 0:
            return 0
        return INFINITE if n == INFINITE or self.times < 0 else n * self.times

    def stream(self, run):
        return streams.RepeatStream(self, run)

    def epoch_of(self, run, turn):
        """The pass over the steps before that is number `turn` of this one."""
        return run.at(((run.epoch << _FAR) if self.times < 0 else run.epoch * self.times) + turn)

    def get(self, i, run):
        n = self.input.count()
        if n == INFINITE:
            return self.input.get(i, run)
        turn, i = divmod(i, n)
        return self.input.get(i, self.epoch_of(run, turn))

    def rows(self, numbers, run):
        n = self.input.count()
        if n == INFINITE or not len(numbers):
            return self.input.rows(numbers, run)
        if isinstance(numbers, range) and numbers.step > 0 and numbers[0] // n == numbers[-1] // n:
            turn = numbers[0] // n
            return self.input.rows(moved(numbers, 1, -turn * n), self.epoch_of(run, turn))
        groups = defaultdict(list)
        for place, i in enumerate(each(numbers)):
            groups[i // n].append((place, i % n))
        return spec.merge(
            [([place for place, _ in group],
              self.input.rows(tensor_of(i for _, i in group), self.epoch_of(run, turn))) for turn, group in groups.items()],
            len(numbers),
        )  # fmt: skip

    def detail(self):
        return (self.times,)


class Take(Step):
    def __init__(self, step, most):
        self.inputs, self.most = (step,), most

    def count_of(self, n):
        if self.most < 0:
            return n
        return self.most if n == INFINITE else min(n, self.most)

    def stream(self, run):
        return streams.TakeStream(self, run, self.most)

    def get(self, i, run):
        return self.input.get(i, run)

    def rows(self, numbers, run):
        return self.input.rows(numbers, run)

    def elements(self, numbers, run):
        return self.input.elements(numbers, run)

    def detail(self):
        return (self.most,)


class Skip(Step):
    def __init__(self, step, first):
        self.inputs, self.first = (step,), first

    def count_of(self, n):
        if self.first < 0:
            return 0
        return n if n == INFINITE else max(0, n - self.first)

    def stream(self, run):
        return streams.SkipStream(self, run, self.first) if self.first >= 0 else streams.TakeStream(self, run, 0)

    def get(self, i, run):
        return self.input.get(i + self.first, run)

    def rows(self, numbers, run):
        return self.input.rows(moved(numbers, 1, self.first), run)

    def elements(self, numbers, run):
        return self.input.elements(moved(numbers, 1, self.first), run)

    def detail(self):
        return (self.first,)


class Shard(Step):
    def __init__(self, step, shards, index):
        self.inputs, self.shards, self.index = (step,), shards, index

    def count_of(self, n):
        return n if n == INFINITE else max(0, -((self.index - n) // self.shards))

    def stream(self, run):
        return streams.SkipStream(self, run, self.index, self.shards - 1)

    def get(self, i, run):
        return self.input.get(i * self.shards + self.index, run)

    def rows(self, numbers, run):
        return self.input.rows(moved(numbers, self.shards, self.index), run)

    def elements(self, numbers, run):
        return self.input.elements(moved(numbers, self.shards, self.index), run)

    def detail(self):
        return (self.shards, self.index)


class Prefetch(Step):
    def __init__(self, step, room):
        self.inputs, self.room = (step,), room

    def stream(self, run):
        return streams.PrefetchStream(self, run)

    def get(self, i, run):
        return self.input.get(i, run)

    def rows(self, numbers, run):
        return self.input.rows(numbers, run)

    def elements(self, numbers, run):
        return self.input.elements(numbers, run)


class Zip(Step):
    """`outer`: the tree whose leaves are the inputs."""

    def __init__(self, outer, steps):
        self.outer, self.inputs = outer, tuple(steps)

    @property
    def tree(self):
        return _grafted(self.outer, iter(self.inputs))

    def count(self):
        counts = [step.count() for step in self.inputs]
        if UNKNOWN in counts:
            return UNKNOWN
        known = [n for n in counts if n >= 0]
        return min(known) if known else INFINITE

    def stream(self, run):
        return streams.ZipStream(self, run)

    def get(self, i, run):
        return [leaf for step in self.inputs for leaf in step.get(i, run)]

    def rows(self, numbers, run):
        return [leaf for step in self.inputs for leaf in step.rows(numbers, run)]

    def elements(self, numbers, run):
        return [sum(parts, []) for parts in zip(*(step.elements(numbers, run) for step in self.inputs))]

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
        return INFINITE if INFINITE in counts else UNKNOWN if UNKNOWN in counts else sum(counts)

    def stream(self, run):
        return streams.ConcatenateStream(self, run)

    def same_tree(self):
        """Raises DataError where the elements of the data sets differ in their trees."""
        trees = known_trees(self.inputs)
        if any(tree != trees[0] for tree in trees):
            raise _C.DataError(
                f"{self.name}: the data sets have elements {', '.join(map(spec.described, trees))} "
                "(expected equal structures)"
            )

    @property
    def tree(self):
        return known_tree(self.inputs)

    def _of(self, i):
        n = self.inputs[0].count()
        return (0, i) if n == INFINITE or i < n else (1, i - n)

    def get(self, i, run):
        which, i = self._of(i)
        leaves = self.inputs[which].get(i, run)
        if which:
            self.same_tree()
        return leaves

    def rows(self, numbers, run):
        if not len(numbers):
            return self.inputs[0].rows(numbers, run)
        groups = defaultdict(list)
        for place, i in enumerate(each(numbers)):
            which, i = self._of(i)
            groups[which].append((place, i))
        parts = [
            ([place for place, _ in group], self.inputs[which].rows(tensor_of(i for _, i in group), run))
            for which, group in groups.items()
        ]
        if len(parts) > 1:
            self.same_tree()
            for one in zip(*(leaves for _, leaves in parts)):
                spec.stack_leaf([leaf[0] for leaf in one], 0, "concatenate")  # raises where they differ
        return spec.merge(parts, len(numbers))

    def specs(self):
        return [spec.common(a, b) for a, b in zip(*(step.specs() for step in self.inputs))]
