"""Steps whose functions return data sets, whose elements are data sets, or that take from several data sets."""

from pydist import _C
from pydist.data import spec, streams
from pydist.data.function import Function, function_name
from pydist.data.sources import Held
from pydist.data.spec import DatasetSpec, INFINITE, UNKNOWN
from pydist.data.step import NoElement, Run, Step, known_tree


class _Nested(Step):
    """A step whose elements are those of data sets that a function returns. `node`: the plan of one of these, of the first
    one that has given an element where there is one (`given`)."""

    indexed = False
    node, given = None, False

    def count_of(self, n):
        return n if not n else UNKNOWN

    def opened(self, dataset, number, run):
        """(the plan of a data set that the function has returned, a pass over it)."""
        node = getattr(dataset, "_node", None)
        if node is None:
            raise TypeError(
                f"{self.name}: function {function_name(self.function.fn)} returned {type(dataset).__name__} for element "
                f"{number} (expected a data set)"
            )
        if self.node is None:
            self.node = node
        return node, node.start(run.within(node, self.function.salt, number))

    def check(self, node, number):
        """Raises DataError where a data set has other elements than the first one. Called when it has given one."""
        if not self.given:
            self.node, self.given = node, True
        elif node is not self.node and node.tree != self.node.tree:
            raise _C.DataError(
                f"{self.name}: function {function_name(self.function.fn)} returned elements {spec.described(node.tree)} for "
                f"element {number} (expected {spec.described(self.node.tree)}, as before)"
            )

    def _first_node(self):
        if self.node is None:
            self._open_first(Run(0, 0, {}))
        if self.node is None:
            raise NoElement(self.name)
        return self.node

    @property
    def tree(self):
        return self._first_node().tree

    def specs(self):
        return self._first_node().specs()

    def detail(self):
        return self.function.detail()


class Interleave(_Nested):
    """`cycle` data sets at a time, `block` elements of each in turn."""

    def __init__(self, step, fn, cycle, block, threads=0, where="interleave"):
        self.inputs, self.cycle, self.block, self.threads = (step,), cycle, block, threads
        self.function = Function(fn, step, where, len(step.steps()))

    name = property(lambda self: self.function.where)

    def inner(self, leaves, i, run):
        """The data set that the function makes of an element: (its plan, a pass over it)."""
        return self.opened(self.function(leaves, i, run), i, run)

    def _open_first(self, run):
        leaves = self.input.first(run)
        if leaves is not None:
            self.inner(leaves, 0, run)[1].close()

    def stream(self, run):
        return streams.InterleaveStream(self, run)

    def detail(self):
        return (self.cycle, self.block, *super().detail())


class GroupByWindow(_Nested):
    """`size`: an int, or a function of the key."""

    name = "group_by_window"

    def __init__(self, step, key, reduce, size):
        self.inputs, self.size = (step,), size
        self.key, self.function = (Function(fn, step, self.name, len(step.steps())) for fn in (key, reduce))

    def key_of(self, leaves, i, run):
        """The key of an element, an int."""
        value = self.key(leaves, i, run)
        if hasattr(value, "item") and not getattr(value, "ndim", 0):
            value = value.item()
        if not isinstance(value, int):
            raise TypeError(
                f"{self.name}: function {function_name(self.key.fn)} returned {value!r} for element {i} (expected an int)"
            )
        return int(value)

    def size_of(self, key):
        """How many elements a window of this key has."""
        if isinstance(self.size, int):
            return self.size
        return spec.count_of(self.size(_C.tensor(key, dtype=_C.int64)), self.name, "the result of window_size_func", 1)

    def reduced(self, key, elements, number, run):
        """The data set that the function makes of a window: (its plan, a pass over it)."""
        from pydist.data.dataset import Dataset

        held = Dataset(Held(self.input.tree, elements, self.input))
        value = self.function.of((_C.tensor(key, dtype=_C.int64), held), number, run)
        return self.opened(value, number, run)

    def _open_first(self, run):
        leaves = self.input.first(run)
        if leaves is not None:
            self.reduced(self.key_of(leaves, 0, run), [leaves], 0, run)[1].close()

    def stream(self, run):
        return streams.GroupStream(self, run)

    def detail(self):
        size = self.size if isinstance(self.size, int) else getattr(self.size, "__qualname__", None)
        return (size, *self.key.detail(), *super().detail())


class Window(Step):
    """Data sets of `size` elements, each component one of its own; the next one begins `shift` elements later."""

    indexed = False

    def __init__(self, step, size, shift, stride, drop):
        self.inputs, self.size, self.shift, self.stride, self.drop = (step,), size, shift, stride, drop

    def count_of(self, n):
        if n == INFINITE:
            return n
        reach = (self.size - 1) * self.stride + 1
        return max(0, (n - reach) // self.shift + 1) if self.drop else -(-n // self.shift)

    def held(self, elements):
        """The leaves of an element: a data set for each component."""
        from pydist.data.dataset import Dataset

        return [Dataset(Held(None, [[leaf] for leaf in parts])) for parts in zip(*elements)]

    def specs(self):
        return [DatasetSpec(one) for one in self.input.specs()]

    def stream(self, run):
        return streams.WindowStream(self, run)

    def detail(self):
        return (self.size, self.shift, self.stride, self.drop)


class Choose(Step):
    """The elements of several data sets, in an order that weights or another data set of numbers decide. `stops`: at the end
    of any of them."""

    indexed = False

    def __init__(self, steps, stops, weights=None, choice=None, seed=None):
        self.inputs = tuple(steps) if choice is None else (*steps, choice)
        self.sources, self.stops, self.weights, self.chosen, self.seed = len(steps), stops, weights, choice, seed
        self.never = [place for place, weight in enumerate(weights or ()) if not weight]

    @property
    def tree(self):
        return known_tree(self.inputs[: self.sources])

    name = property(lambda self: "sample_from_datasets" if self.chosen is None else "choose_from_datasets")

    def count(self):
        counts = {step.count() for step in self.inputs}
        return INFINITE if counts == {INFINITE} else UNKNOWN

    def seed_and_epoch(self, run):
        """What the draws depend on."""
        return run.seeds.get(id(self), self.seed or 0), run.epoch

    def choice(self, stream):
        """The number of the data set that is next."""
        if self.chosen is None:
            weights = [0.0 if i in stream.over else weight for i, weight in enumerate(self.weights)]
            return _drawn(weights, stream.draws())
        (which,) = next(stream.inputs[-1])
        if not 0 <= which.item() < self.sources:
            raise _C.DataError(f"{self.name}: the choice is {which.tolist()} (expected 0 to {self.sources - 1})")
        return which.item()

    def stream(self, run):
        return streams.ChooseStream(self, run)

    def detail(self):
        return (self.sources, self.stops, self.weights)


def _drawn(weights, number):
    """The place that a number of [0, 1) falls on. Some weight is above 0."""
    total = sum(weights)
    last = 0
    for place, weight in enumerate(weights):
        if weight > 0:
            last = place
            number -= weight / total
            if number < 0:
                break
    return last
