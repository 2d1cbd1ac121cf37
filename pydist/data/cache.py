"""Steps that keep elements: in memory, or in a file that the next program finds."""

import os
import threading
import warnings

from pydist import _C
from pydist.data import state, store
from pydist.data.sources import Held
from pydist.data.spec import INFINITE
from pydist.data.step import NoElement, Step, each, tensor_of
from pydist.data.streams import Stream


def _copied(leaves):
    return [leaf.clone() if isinstance(leaf, _C.Tensor) else leaf for leaf in leaves]


class _Memory:
    """Elements by their numbers: rows of one tensor for each component while all have the same shapes, else lists."""

    def __init__(self, count):
        self.count, self.columns, self.have, self.lists = count, None, None, {}
        self.rows_fit = count != INFINITE

    def has(self, i):
        """Whether element i is here."""
        return i in self.lists or self.have is not None and bool(self.have[i])

    def add(self, number, leaves):
        """Keeps an element, for one thread at a time."""
        if self.rows_fit and self.columns is None:
            self._make_columns(leaves)
        if self.rows_fit and self._fits(leaves):
            for column, leaf in zip(self.columns, leaves):
                column[number] = leaf
            self.have[number] = 1
        else:
            self.lists[number] = _copied(leaves)

    def _make_columns(self, leaves):
        self.rows_fit = all(isinstance(leaf, _C.Tensor) for leaf in leaves)
        if self.rows_fit:
            self.columns = [_C.empty(self.count, *leaf.shape, dtype=leaf.dtype, device="cpu") for leaf in leaves]
            self.have = bytearray(self.count)

    def _fits(self, leaves):
        return all(
            isinstance(leaf, _C.Tensor) and leaf.dtype is column.dtype and leaf.shape == column.shape[1:]
            for column, leaf in zip(self.columns, leaves)
        )

    def get(self, i, run):
        """The leaves of an element that is here, in memory of their own."""
        leaves = self.lists.get(i)
        if leaves is None:
            return [column[i].clone() for column in self.columns]
        return _copied(leaves)

    def rows(self, numbers, run):
        """The leaves of elements that are here, stacked; None where they do not all lie in columns."""
        if self.columns is None or any(i in self.lists for i in each(numbers)):
            return None
        return [_C._data_gather(column, numbers) for column in self.columns]


class Cache(Step):
    """The elements of the first whole pass. `path`: of a file, None: in memory. The input is always asked for its pass 0, so
    elements are those of the first pass also where a program goes on from a state, without a cache."""

    def __init__(self, step, path=None, name="cache"):
        self.inputs, self.path, self.name = (step,), path, name
        self._lock, self._warned = threading.Lock(), False
        self._memory = self._stored = self._writer = self._kept = None
        self._looked = path is None  # for the file
        self.elements = None  # of a stream, once a pass was whole

    def onto(self, *inputs):
        return Cache(inputs[0], self.path, self.name)

    @property
    def tree(self):
        stored = self.stored()
        return self.input.tree if stored is None else stored.tree

    def specs(self):
        stored = self.stored()
        return self.input.specs() if stored is None else stored.specs()

    def stored(self):
        """The step that reads the file, or None while there is none. Raises DataError if it is of another plan."""
        if not self._looked:
            with self._lock:
                if os.path.exists(self.path):
                    found = store.Stored(self.path, self.name)
                    ours = state.fingerprint(self.input)
                    if found.plan != ours:
                        raise _C.DataError(
                            f"{self.name}: {self.path} has the elements of another plan: "
                            f"{state.difference(ours, found.plan)} (expected {ours}; remove it, or name another file)"
                        )
                    self._stored = found
                self._looked = True
        return self._stored

    def writer(self):
        """A writer of the file."""
        os.makedirs(os.path.dirname(os.path.abspath(self.path)), exist_ok=True)
        return store.Writer(self.path, self.name)

    def finish(self, writer):
        """The file has all elements."""
        try:
            tree = self.input.tree
        except NoElement:
            tree = None
        writer.done(state.fingerprint(self.input), tree)
        self._looked = False

    def warn(self):
        """Warns once if a function of the input has drawn random numbers. Called when there is an element."""
        if self._warned:
            return
        self._warned = True
        if any(getattr(getattr(step, "function", None), "draws", False) for step in self.input.steps()):
            warnings.warn(
                f"{self.name}: a function before it draws random numbers, and every pass gets those of the first one "
                f"(expected {self.name} before random functions)",
                stacklevel=2,
            )

    def _keep(self, number, leaves):
        """Called with each element that has been computed, in any order."""
        self.warn()
        with self._lock:
            if self.path is None:
                self._memory.add(number, leaves)
            elif self._kept is None or number not in self._kept:
                if self._writer is None:
                    self._writer, self._kept = self.writer(), set()
                self._kept.add(number)
                self._writer.add(number, leaves)
                if len(self._kept) == self.input.count():
                    self.finish(self._writer)

    def _here(self):
        """What has elements: the file, the memory, or None."""
        if self.path is not None:
            return self.stored()
        if self._memory is None:
            with self._lock:
                if self._memory is None:
                    self._memory = _Memory(self.input.count())
        return self._memory

    def get(self, i, run):
        here = self._here()
        if here is not None and here.has(i):
            return here.get(i, run)
        leaves = self.input.get(i, run.at(0))
        self._keep(i, leaves)
        return leaves

    def rows(self, numbers, run):
        here, wanted = self._here(), each(numbers)
        missing = [i for i in dict.fromkeys(wanted) if here is None or not here.has(i)]
        if not missing:
            found = here.rows(numbers, run)
            return super().rows(numbers, run) if found is None else found
        rows = self.input.rows(tensor_of(missing), run.at(0))
        for place, number in enumerate(missing):
            self._keep(number, [None if leaf is None else leaf[place] for leaf in rows])
        return rows if len(missing) == len(wanted) else self.rows(numbers, run)

    def stream(self, run):
        return CacheStream(self, run)

    def detail(self):
        return ()


class CacheStream(Stream):
    """A pass over a cache of a stream: from the cache, else from the input, whose elements become the cache at the end of a
    pass that was whole."""

    def begin(self):
        self.number, self.kept, self.writer = 0, [], None
        self.cached = self.step.elements if self.step.path is None else self.step.stored()
        return [] if self.cached is not None else [self.step.input.start(self.run.at(0))]

    def __next__(self):
        if self.cached is not None:
            if self.number >= self.cached.count():
                raise StopIteration
            self.number += 1
            return _copied(self.cached.get(self.number - 1, self.run))
        try:
            leaves = next(self.input)
        except StopIteration:
            self._complete()
            raise
        except BaseException:
            self.kept = None  # the pass is not whole
            raise
        if self.kept is not None:
            self._keep(leaves)
        self.number += 1
        return leaves

    def _keep(self, leaves):
        self.step.warn()
        if self.step.path is None:
            self.kept.append(_copied(leaves))
            return
        if self.writer is None:
            self.writer = self.step.writer()
        self.writer.add(self.number, leaves)

    def _complete(self):
        if self.kept is None:
            return
        if self.step.path is None:
            self.step.elements = Held(None, self.kept)
        else:
            self.step.finish(self.writer or self.step.writer())
        self.kept = None

    def skip(self, count):
        if self.cached is not None:
            self.number = min(self.number + count, self.cached.count())
        else:
            super().skip(count)

    def state(self):
        return self.number

    def load(self, saved):
        number, *before = saved
        self.close()
        self.inputs = self.begin()
        if self.cached is None:
            if before:
                self.input.load(before[0])
            else:
                self.input.skip(number)
        self.number, self.kept = number, None if number else []

    def close(self):
        super().close()
        if self.writer is not None:
            self.writer.drop()
            self.writer = None
