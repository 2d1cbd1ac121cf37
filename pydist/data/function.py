"""Steps that call functions of the program."""

import threading

from pydist import _C
from pydist.data import spec, state
from pydist.data.spec import DatasetSpec, TensorSpec
from pydist.data.step import GOLDEN, MASK, Run, Step, each


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
        self.fn, self.step, self.where, self.salt = fn, step, where, salt * GOLDEN

    def __call__(self, leaves, i, run):
        return self.of(arguments(self.step.tree, leaves), i, run)

    def of(self, given, i, run):
        """The function's result for these arguments, of element i."""
        before = _C._rng_key()
        _C.set_rng_state(((run.base + self.salt + run.epoch * GOLDEN + i) & MASK, 0, 0))
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
