"""Steps of a pipeline: what they know, and how a pass over them begins.

A step that is `indexed` gives element i by get(i, run), and many at once, stacked, by rows(numbers, run): numbers are a
range or an int64 tensor, and the result is the list of the elements' leaves. `run` is one pass over the data: its epoch and
seeds. So a shuffled batch of slices is one random order of 64 numbers and one gather, whatever stands between. The other
steps have streams (streams.py): their elements come one after another.
"""

import contextlib
import copy

from pydist import _C
from pydist.data import pool, spec
from pydist.data.spec import ENDLESS, INFINITE, UNKNOWN

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mixed(*numbers):
    """A seed of other numbers."""
    seed = 0
    for number in numbers:
        seed = ((seed ^ number) * GOLDEN + 1) & MASK
        seed ^= seed >> 29
    return seed


class NoElement(ValueError):
    """Nothing is known of elements, since there is none to look at."""

    def __init__(self, name):
        super().__init__(
            f"element_spec: the data set is empty, so {name} has no result to look at (expected an element)"
        )


class Run:
    """One pass: `epoch` counts passes, `base` is the seed of random ops in functions, `seeds` those of random steps. `limit`:
    the most threads of a step, 0: the cores. `ordered`: whether results of threads come in their order."""

    __slots__ = ("epoch", "base", "seeds", "limit", "ordered")

    def __init__(self, epoch, base, seeds, limit=0, ordered=True):
        self.epoch, self.base, self.seeds, self.limit, self.ordered = epoch, base, seeds, limit, ordered

    def at(self, epoch):
        """The same pass in another epoch of the steps before."""
        return self if epoch == self.epoch else Run(epoch & MASK, self.base, self.seeds, self.limit, self.ordered)

    def within(self, step, *numbers):
        """The pass over a data set that a function has made for an element; `numbers` say which function and element."""
        base = mixed(self.base, *numbers)
        seeds = {
            id(one): mixed(base, place) if one.seed is None else one.seed
            for place, one in enumerate(step.steps())
            if hasattr(one, "seed")
        }
        return Run(self.epoch, base, seeds, self.limit, self.ordered)


class _Name:
    """The class's name, unless a step has one of its own."""

    def __get__(self, step, kind):
        return kind.__name__.lower()


class Step:
    """A step of a pipeline. `inputs` are the steps before it."""

    inputs = ()
    threads = 0  # of this step: 0: none asked for, AUTOTUNE: as many as help
    room = 0  # results that may wait
    ordered = None  # whether results of threads come in their order; None: as the pass says

    @property
    def indexed(self):
        """Whether elements can be had by number."""
        return all(step.indexed for step in self.inputs)

    @property
    def input(self):
        return self.inputs[0]

    @property
    def tree(self):
        """The tree of an element, None also where it is not known yet."""
        return self.input.tree

    def onto(self, *inputs):
        """The same step behind other ones, whose elements have the same structure."""
        made = copy.copy(self)
        made.inputs = inputs
        for name, value in vars(made).items():
            if hasattr(value, "behind"):
                setattr(made, name, value.behind(inputs[0]))
        return made

    def count(self):
        """How many elements, INFINITE or UNKNOWN."""
        n = self.input.count()
        return n if n == UNKNOWN else self.count_of(n)

    def count_of(self, n):
        """How many elements, or INFINITE, if the input has n."""
        return n

    def get(self, i, run):
        """The leaves of element i."""
        return [leaf[0] for leaf in self.rows(range(i, i + 1), run)]

    def rows(self, numbers, run):
        """The leaves of these elements, stacked."""
        return spec.stack([self.get(i, run) for i in each(numbers)], self.name)

    def elements(self, numbers, run):
        """The leaves of each of these elements, whose shapes may differ."""
        return [self.get(i, run) for i in each(numbers)]

    def specs(self):
        """What the leaves are: a list of TensorSpec."""
        return self.input.specs()

    def start(self, run):
        """An iterator over the leaves of all elements, with skip(n), save(), load(saved) and close()."""
        return Numbered(self, run) if self.indexed else self.stream(run)

    def first(self, run):
        """The leaves of an element, to see what they are; None if there is none."""
        stream = self.start(run)
        try:
            return next(stream, None)
        finally:
            stream.close()

    def stream(self, run):
        """The iterator of a step whose elements come one after another."""
        raise NotImplementedError(self.name)

    name = _Name()

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


def known_trees(steps):
    """The trees of those that have elements."""
    found = []
    for step in steps:
        with contextlib.suppress(NoElement):
            found.append(step.tree)
    return found


def known_tree(steps):
    """The tree of the first one that has elements."""
    return next(iter(known_trees(steps)), None)


def apart(rows, count):
    """The elements of rows."""
    parts = [[None] * count if leaf is None else list(leaf) for leaf in rows]
    return list(map(list, zip(*parts))) if parts else [[] for _ in range(count)]


def each(numbers):
    """The numbers as Python's."""
    return numbers if isinstance(numbers, range) else numbers.tolist()


def moved(numbers, times, plus):
    """numbers * times + plus"""
    if isinstance(numbers, range):
        return range(numbers.start * times + plus, numbers.stop * times + plus, numbers.step * times)
    return numbers * times + plus if times != 1 else numbers + plus


def tensor_of(numbers):
    """Numbers as an int64 tensor."""
    return _C.tensor(list(numbers), dtype=_C.int64, device="cpu")


class _Numbers:
    """Numbers up to `stop`, after those that are pending."""

    def __init__(self, next_one, stop, pending=()):
        self.next, self.stop, self.pending = next_one, stop, list(pending)

    def pull(self):
        """The next number."""
        if self.pending:
            return self.pending.pop(0)
        if self.next >= self.stop:
            raise StopIteration
        self.next += 1
        return self.next - 1

    def save(self):
        """The next number, and those that are pending."""
        return [self.next, *self.pending]


class Numbered:
    """Iterates over a step by numbers, in threads where they help. Its place is the number of the next element; or, where
    results come as they are ready, [the next one to compute, *those that nobody has taken]."""

    def __init__(self, step, run):
        self.step, self.run, self.next = step, run, 0
        count, steps = step.count(), step.steps()
        self.numbers = _Numbers(0, ENDLESS if count == INFINITE else count)
        asked = [s.threads for s in steps if s.threads]
        rooms = [s.room for s in steps if s.room]
        self.threads = max(asked) if asked and min(asked) > 0 else (-1 if asked else int(bool(rooms)))
        self.room = 0 if not rooms or -1 in rooms else max(rooms)
        self.ordered = all(run.ordered if s.ordered is None else s.ordered for s in steps if s.threads)
        self.named = ", ".join(s.function.said() for s in steps if s.threads and hasattr(s, "function"))
        self.flow = None

    def __next__(self):
        if self.flow is None:
            if not self.threads:
                i = self.numbers.pull()
                self.next = i + 1
                return self.step.get(i, self.run)
            self._begin()
        elif self.flow.forked:
            self.load(self.next)
            self._begin()
        try:
            result = next(self.flow)
        except StopIteration:
            raise
        except BaseException:
            self.next += 1  # the next call goes on behind the element that raised
            raise
        self.next += 1
        return result

    def _begin(self):
        step, run = self.step, self.run
        self.flow = pool.Flow(
            self.numbers.pull, lambda i: step.get(i, run), self.threads, self.room, run, self.ordered, self.named
        )

    def skip(self, count):
        """Goes on without the next elements."""
        self.load(min(self.next + count, self.numbers.stop))

    def save(self):
        """Where it is."""
        if self.ordered or self.flow is None:
            return self.next
        tasks, (following, *pending) = self.flow.held(self.numbers.save)
        return [following, *tasks, *pending]

    def load(self, saved):
        """Goes there."""
        self.close()
        following, *pending = saved if isinstance(saved, list) else [saved]
        self.numbers = _Numbers(following, self.numbers.stop, pending)
        self.next = following - len(pending)

    def close(self):
        """Ends the threads."""
        if self.flow is not None:
            self.flow.close()
            self.flow = None
