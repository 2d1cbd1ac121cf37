"""Steps that call functions of the program."""

import copy
import threading

from pydist import _C, _replay
from pydist._notes import note
from pydist.data import spec, state, streams
from pydist.data.spec import DatasetSpec, TensorSpec, UNKNOWN
from pydist.data.step import GOLDEN, MASK, NoElement, Run, Step, each


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


class Function:
    """A program's function of elements. Random ops in it draw by the number of the element: their results do not depend on
    threads. Raises what the function raises, with a note that names function and element. `recorded`: what it does with
    tensors is recorded once, and then runs without Python."""

    def __init__(self, fn, step, where, salt=0, recorded=False):
        if not callable(fn):
            raise TypeError(f"{where}: the function is {type(fn).__name__} (expected a callable)")
        self.fn, self.step, self.where, self.salt = fn, step, where, salt * GOLDEN
        self.called = _replay.Recorded(fn, name=f"{where}: {function_name(fn)}") if recorded else fn
        self.draws = False  # whether a call has drawn random numbers

    def __call__(self, leaves, i, run):
        return self.of(arguments(self.step.tree, leaves), i, run)

    def of(self, given, i, run):
        """The function's result for these arguments, of element i."""
        before = _C._rng_key()
        _C.set_rng_state(((run.base + self.salt + run.epoch * GOLDEN + i) & MASK, 0, 0))
        try:
            return self.called(*given)
        except StopIteration as error:  # it would look like the end of the data
            raise RuntimeError(f"{self.where}: {function_name(self.fn)} raised StopIteration at element {i}") from error
        except Exception as error:
            note(error, f"in {self.where}: function {function_name(self.fn)}, element {i}")
            raise
        finally:
            self.draws = self.draws or _C._rng_key()[1] > 0
            _C.set_rng_state(before)

    def behind(self, step):
        """The same function of another step's elements."""
        made = copy.copy(self)
        made.step = step
        return made

    def said(self):
        """What messages call it."""
        return f"{self.where}: function {function_name(self.fn)}"

    def detail(self):
        """What identifies the function in another process that runs the same program."""
        return state.function_detail(self.fn)


class Results:
    """The results of a function, whose structure has to stay that of the first one."""

    def __init__(self, function):
        self.function, self.tree, self.known, self._lock = function, None, False, threading.Lock()

    def behind(self, step):
        """Those of the function of another step's elements."""
        return Results(self.function.behind(step))

    def leaves(self, value, i):
        """The leaves of the result for element i."""
        out = []
        tree = spec.flatten(value, out)
        if not self.known or tree != self.tree:
            self._check(tree, i)
        return [leaf if type(leaf) is _C.Tensor else spec.as_leaf(leaf, self.function.where) for leaf in out]

    def _check(self, tree, i):
        with self._lock:
            if not self.known:
                self.tree, self.known = tree, True
            elif tree != self.tree:
                raise _C.DataError(
                    f"{self.function.where}: function {function_name(self.function.fn)} returned {spec.described(tree)} "
                    f"for element {i} (expected {spec.described(self.tree)}, as for the elements before)"
                )


class _OfFunction(Step):
    """A step whose elements are results of a function. `results` are theirs."""

    _specs = None

    @property
    def tree(self):
        if not self.results.known:
            self.specs()
        return self.results.tree

    def made_of(self, leaves):
        """The element for the first element of the input."""
        raise NotImplementedError

    def specs(self):
        if self._specs is None:
            before = self.input.first(Run(0, 0, {}))
            if before is None:
                raise NoElement(self.name)
            first = [leaf.shape[0] for leaf, one in zip(before, self.input.specs())
                     if isinstance(one, TensorSpec) and one.shape and one.shape[0] is None and leaf.shape]  # fmt: skip
            self._specs = [_freed(spec.spec_of(leaf), first) for leaf in self.made_of(before)]
        return self._specs


class Map(_OfFunction):
    """`whole`: the function gets batches. `recorded`: see Function."""

    def __init__(self, step, fn, threads=0, whole=False, ordered=None, recorded=False):
        self.inputs, self.threads, self.whole, self.ordered = (step,), threads, whole, ordered
        self.function = Function(fn, step, "map", len(step.steps()), recorded)
        self.results = Results(self.function)

    def apply(self, leaves, i, run):
        """The leaves of the function's result for an element."""
        if self.whole:
            rows = self._applied(spec.stack([leaves], "map"), i, run)
            return [leaf[0] for leaf in rows]
        return self._applied(leaves, i, run)

    def _applied(self, leaves, i, run):
        return self.results.leaves(self.function(leaves, i, run), i)

    def made_of(self, leaves):
        return self.apply(leaves, 0, Run(0, 0, {}))

    def get(self, i, run):
        return self.apply(self.input.get(i, run), i, run)

    def rows(self, numbers, run):
        if self.whole:
            return self._applied(self.input.rows(numbers, run), numbers[0] if len(numbers) else 0, run)
        made = self.elements(numbers, run)
        return spec.stack(made, "batch") if made else [leaf[:0] for leaf in self.rows(range(1), run)]

    def elements(self, numbers, run):
        if self.whole:
            return super().elements(numbers, run)
        before = self.input.elements(numbers, run)
        return [self._applied(leaves, i, run) for leaves, i in zip(before, each(numbers))]

    def stream(self, run):
        return streams.MapStream(self, run)

    def detail(self):
        return (self.whole, *self.function.detail())


def _freed(one, first):
    """The spec with None as its first size, if that was the size of a batch."""
    if isinstance(one, DatasetSpec) or one is None or not one.shape or one.shape[0] not in first:
        return one
    return TensorSpec((None, *one.shape[1:]), one.dtype)


class Scan(_OfFunction):
    """A function of (state, element) gives (state, element)."""

    indexed = False

    def __init__(self, step, fn, state_tree, initial):
        self.inputs, self.state_tree, self.initial = (step,), state_tree, initial
        self.function = Function(fn, step, "scan", len(step.steps()))
        self.results = Results(self.function)

    def apply_state(self, kept, leaves, i, run):
        """The leaves of the next state, and of an element."""
        value = self.function.of((spec.pack(self.state_tree, kept), spec.pack(self.input.tree, leaves)), i, run)
        if not isinstance(value, tuple) or len(value) != 2:
            raise TypeError(
                f"scan: function {function_name(self.function.fn)} returned {type(value).__name__} for element {i} "
                "(expected (state, element))"
            )
        tree, after = spec.leaves_of(value[0], "scan")
        same_state(self.function, tree, after, self.state_tree, kept, i)
        return after, self.results.leaves(value[1], i)

    def made_of(self, leaves):
        return self.apply_state(self.initial, leaves, 0, Run(0, 0, {}))[1]

    def stream(self, run):
        return streams.ScanStream(self, run)

    def detail(self):
        return self.function.detail()


def same_state(function, tree, leaves, before_tree, before, i):
    """Raises DataError where a function returns a state of another structure or dtype than the one that it got."""
    if tree == before_tree and all(
        getattr(a, "dtype", None) is getattr(b, "dtype", None) for a, b in zip(leaves, before)
    ):
        return
    raise _C.DataError(
        f"{function.where}: function {function_name(function.fn)} returned a state {spec.described(tree)} of "
        f"{[str(leaf.dtype) for leaf in leaves]} for element {i} (expected {spec.described(before_tree)} of "
        f"{[str(leaf.dtype) for leaf in before]})"
    )


class Filter(Step):
    indexed = False

    def __init__(self, step, fn, where="filter"):
        self.inputs, self.function = (step,), Function(fn, step, where, len(step.steps()))

    name = property(lambda self: self.function.where)

    def count_of(self, n):
        return n if not n else UNKNOWN

    def keeps(self, leaves, i, run):
        """Whether the function is true of an element."""
        value = self.function(leaves, i, run)
        if hasattr(value, "item") and not getattr(value, "ndim", 0):
            value = value.item()
        if not isinstance(value, (bool, int)):
            raise TypeError(
                f"{self.name}: function {function_name(self.function.fn)} returned {value!r} for element {i} (expected a bool)"
            )
        return bool(value)

    def stream(self, run):
        return streams.FilterStream(self, run)

    def detail(self):
        return self.function.detail()


class TakeWhile(Filter):
    def __init__(self, step, fn):
        super().__init__(step, fn, "take_while")

    def stream(self, run):
        return streams.TakeWhileStream(self, run)


class IgnoreErrors(Step):
    """Leaves out the elements that raise. With a log, each is a warning."""

    indexed = False
    name = "ignore_errors"

    def __init__(self, step, says):
        self.inputs, self.says = (step,), says

    def count_of(self, n):
        return n if not n else UNKNOWN

    def ignored(self, error):
        """Called for an element that raised."""
        if self.says:
            state.log.warning("ignore_errors: left out an element that raised %s: %s", type(error).__name__, str(error))

    def stream(self, run):
        return streams.IgnoreErrorsStream(self, run)


class Unique(Step):
    """The elements that differ from all before."""

    indexed = False

    def __init__(self, step):
        self.inputs = (step,)

    def count_of(self, n):
        return n if n in (0, 1) else UNKNOWN

    def key(self, leaves):
        """Bytes that are equal for equal elements."""
        if len(leaves) != 1 or not hasattr(leaves[0], "shape"):
            raise TypeError(f"unique: elements have {len(leaves)} components (expected one tensor)")
        leaf = leaves[0]
        if not isinstance(leaf, _C.Tensor):
            return repr(leaf.tolist()).encode()
        return bytes(memoryview(leaf.contiguous().reshape(-1).view(_C.uint8))) if leaf.numel() else b""

    def stream(self, run):
        return streams.UniqueStream(self, run)


class Resample(Step):
    """(class, element) of elements whose classes are drawn with the probabilities of `target`. `initial`: those of the
    data, None: as they have been so far."""

    indexed = False
    name = "rejection_resample"

    def __init__(self, step, fn, target, initial, seed):
        self.inputs, self.target, self.initial, self.seed = (step,), target, initial, seed
        self.function = Function(fn, step, self.name, len(step.steps()))

    @property
    def tree(self):
        return ("tuple", tuple, (None, self.input.tree))

    def count_of(self, n):
        return n if not n else UNKNOWN

    def seed_and_epoch(self, run):
        """What the draws depend on."""
        return run.seeds.get(id(self), self.seed or 0), run.epoch

    def class_of(self, leaves, i, run):
        """The class of an element, as a tensor."""
        kind = spec.as_leaf(self.function(leaves, i, run), self.name)
        if kind.numel() != 1 or kind.dtype.is_floating_point or not 0 <= kind.item() < len(self.target):
            raise _C.DataError(
                f"{self.name}: function {function_name(self.function.fn)} returned {kind.tolist()} for element {i} "
                f"(expected a class, 0 to {len(self.target) - 1})"
            )
        return kind

    def chance(self, kind, counts):
        """The probability with which an element of a class is kept."""
        known = self.initial or counts
        wanted = [aim / have if have else 0.0 for aim, have in zip(self.target, known)]
        return wanted[kind] / max(wanted) if max(wanted) else 0.0

    def specs(self):
        return [TensorSpec((), _C.int64), *self.input.specs()]

    def stream(self, run):
        return streams.ResampleStream(self, run)

    def detail(self):
        return (self.target, self.initial, *self.function.detail())
