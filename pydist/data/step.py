"""Steps of a pipeline: what they know, and how a pass over them begins.

A step that is `indexed` gives element i by get(i, run), and many at once, stacked, by rows(numbers, run): numbers are a
range or an int64 tensor, and the result is the list of the elements' leaves. `run` is one pass over the data: its epoch and
seeds. So a shuffled batch of slices is one random order of 64 numbers and one gather, whatever stands between. The other
steps have streams (streams.py): their elements come one after another.
"""

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
    """One pass: `epoch` counts passes, `base` is the seed of random ops in functions, `seeds` those of random steps."""

    __slots__ = ("epoch", "base", "seeds")

    def __init__(self, epoch, base, seeds):
        self.epoch, self.base, self.seeds = epoch, base, seeds

    def at(self, epoch):
        """The same pass in another epoch of the steps before."""
        return self if epoch == self.epoch else Run(epoch & MASK, self.base, self.seeds)

    def within(self, step, *numbers):
        """The pass over a data set that a function has made for an element; `numbers` say which function and element."""
        base = mixed(self.base, *numbers)
        seeds = {
            id(one): mixed(base, place) if one.seed is None else one.seed
            for place, one in enumerate(step.steps())
            if hasattr(one, "seed")
        }
        return Run(self.epoch, base, seeds)


class Step:
    """A step of a pipeline. `inputs` are the steps before it."""

    inputs = ()
    threads = 0  # of this step: 0: none asked for, AUTOTUNE: as many as help
    room = 0  # results that may wait

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


def tensor_of(numbers):
    """Numbers as an int64 tensor."""
    return _C.tensor(list(numbers), dtype=_C.int64, device="cpu")


class Numbered:
    """Iterates over a step by numbers, in threads where they help."""

    def __init__(self, step, run):
        self.step, self.run, self.next = step, run, 0
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
        elif self.flow.forked:
            self._begin()
        if self.next >= self.stop:
            raise StopIteration
        self.next += 1  # also where the element raises: the next call goes on behind it
        return next(self.flow)

    def _begin(self):
        step, run = self.step, self.run
        pull = iter(range(self.next, self.stop)).__next__
        self.flow = pool.Flow(pull, lambda i: step.get(i, run), self.threads, self.room)

    def skip(self, count):
        """Goes on without the next elements."""
        self.load(min(self.next + count, self.stop))

    def save(self):
        """The number of the next element."""
        return self.next

    def load(self, saved):
        """Goes on with that element."""
        self.close()
        self.next = saved

    def close(self):
        """Ends the threads."""
        if self.flow is not None:
            self.flow.close()
            self.flow = None
