"""Passes over steps whose elements come one after another. Their place is what their sources say of theirs, and what
they hold themselves: counts, and elements that have been read and not yet given away."""

import contextlib
from collections import deque

from pydist import _C
from pydist.data import pool, spec, state

_DRAWS = 256  # random numbers that are drawn at once


class Stream:
    """The leaves of a step's elements, one after another. Subclasses have __next__, and if they hold anything between two
    elements, state() and set_state()."""

    def __init__(self, step, run):
        self.step, self.run = step, run
        self.inputs = self.begin()

    def begin(self):
        """The streams of the steps before."""
        return [one.start(self.run) for one in self.step.inputs]

    @property
    def input(self):
        return self.inputs[0]

    def __iter__(self):
        return self

    def skip(self, count):
        """Goes on without the next elements."""
        for _ in range(count):
            if next(self, None) is None:
                break

    def state(self):
        """What it holds, as numbers, strings, tensors, lists and dictionaries."""
        return None

    def set_state(self, saved):
        """Holds that again."""

    def save(self):
        """Where it is."""
        return [self.state(), *(one.save() for one in self.inputs)]

    def load(self, saved):
        """Goes there, before its first element."""
        own, *before = saved
        for one, theirs in zip(self.inputs, before):
            one.load(theirs)
        self.set_state(own)

    def close(self):
        """Ends the threads."""
        for one in self.inputs:
            one.close()


# Choosing and ordering


class TakeStream(Stream):
    def __init__(self, step, run, most):
        super().__init__(step, run)
        self.left = most  # below 0: all

    def __next__(self):
        if not self.left:
            raise StopIteration
        leaves = next(self.input)
        self.left -= 1
        return leaves

    def state(self):
        return self.left

    def set_state(self, saved):
        self.left = saved


class SkipStream(Stream):
    """Also a shard: first `before` elements are left out, then `between` of them after each."""

    def __init__(self, step, run, before, between=0):
        super().__init__(step, run)
        self.due, self.between = before, between

    def __next__(self):
        if self.due:
            self.input.skip(self.due)
            self.due = 0
        leaves = next(self.input)
        self.due = self.between
        return leaves

    def state(self):
        return self.due

    def set_state(self, saved):
        self.due = saved


class ZipStream(Stream):
    def __next__(self):
        return [leaf for one in self.inputs for leaf in next(one)]


class ConcatenateStream(Stream):
    def __init__(self, step, run):
        super().__init__(step, run)
        self.which = 0

    def __next__(self):
        while self.which < len(self.inputs):
            leaves = next(self.inputs[self.which], None)
            if leaves is not None:
                if self.which:
                    self.step.same_tree()
                return leaves
            self.which += 1
        raise StopIteration

    def state(self):
        return self.which

    def set_state(self, saved):
        self.which = saved


class RepeatStream(Stream):
    """Each turn is a pass of its own over the steps before; it ends with a turn that has no elements."""

    def __init__(self, step, run):
        super().__init__(step, run)
        self.turn, self.any = 0, False

    def begin(self):
        return []

    def __next__(self):
        while self.turn != self.step.times:
            if not self.inputs:
                self.inputs, self.any = [self._start()], False
            leaves = next(self.input, None)
            if leaves is not None:
                self.any = True
                return leaves
            self.close()
            self.inputs = []
            self.turn = self.turn + 1 if self.any else self.step.times
        raise StopIteration

    def _start(self):
        return self.step.input.start(self.step.epoch_of(self.run, self.turn))

    def state(self):
        return [self.turn, self.any, bool(self.inputs)]

    def load(self, saved):
        (self.turn, self.any, begun), *before = saved
        self.inputs = [self._start()] if begun else []
        for one, theirs in zip(self.inputs, before):
            one.load(theirs)


class Draws:
    """Random numbers in [0, 1), a function of seed, epoch and place."""

    def __init__(self, seed, epoch, place=0):
        self.seed, self.epoch, self.place, self.drawn = seed, epoch, place, []

    def __call__(self):
        if not self.drawn:
            numbers = range(self.place, self.place + _DRAWS)
            drawn = _C._data_order(1 << 32, 1 << 32, self.seed, self.epoch, numbers).tolist()
            self.drawn = [number / (1 << 32) for number in reversed(drawn)]
        self.place += 1
        return self.drawn.pop()


class ShuffleStream(Stream):
    """A buffer of `window` elements, from which one after another is drawn."""

    def __init__(self, step, run):
        super().__init__(step, run)
        self.buffer, self.ended, self.draws = [], False, Draws(*step.seed_and_epoch(run))

    def __next__(self):
        while not self.ended and len(self.buffer) < self.step.window:
            leaves = next(self.input, None)
            if leaves is None:
                self.ended = True
            else:
                self.buffer.append(leaves)
        if not self.buffer:
            raise StopIteration
        place = int(self.draws() * len(self.buffer))
        leaves = self.buffer[place]
        self.buffer[place] = self.buffer[-1]
        self.buffer.pop()
        return leaves

    def state(self):
        return [self.draws.place, self.ended, state.encoded_all(self.buffer)]

    def set_state(self, saved):
        place, self.ended, elements = saved
        self.draws = Draws(self.draws.seed, self.draws.epoch, place)
        self.buffer = state.decoded_all(elements)


# Batches


class BatchStream(Stream):
    """Rows that were read before an error stay for the batch after it."""

    def __init__(self, step, run):
        super().__init__(step, run)
        self.rows = []

    def __next__(self):
        while len(self.rows) < self.step.size:
            leaves = next(self.input, None)
            if leaves is None:
                break
            self.rows.append(leaves)
        rows, self.rows = self.rows, []
        if not rows or self.step.drop and len(rows) < self.step.size:
            raise StopIteration
        return self.step.stacked(rows)

    def state(self):
        return state.encoded_all(self.rows)

    def set_state(self, saved):
        self.rows = state.decoded_all(saved)


class UnbatchStream(Stream):
    def __init__(self, step, run):
        super().__init__(step, run)
        self.batch, self.place = None, 0

    def __next__(self):
        while self.batch is None or self.place == len(self.batch[0]):
            self.batch = None
            self.batch, self.place = self.step.checked(next(self.input)), 0
        self.place += 1
        return [leaf[self.place - 1] for leaf in self.batch]

    def state(self):
        rest = None if self.batch is None else [leaf[self.place :] for leaf in self.batch]
        return state.encoded(rest)

    def set_state(self, saved):
        self.batch, self.place = state.decoded(saved), 0


class RebatchStream(Stream):
    """Batches of other sizes, in turn."""

    def __init__(self, step, run):
        super().__init__(step, run)
        self.parts, self.rows, self.turn, self.ended = [], 0, 0, False

    def __next__(self):
        want = self.step.sizes[self.turn % len(self.step.sizes)]
        while self.rows < want and not self.ended:
            leaves = next(self.input, None)
            if leaves is None:
                self.ended = True
            else:
                self.parts.append(self.step.checked(leaves))
                self.rows += len(leaves[0])
        if not self.rows or self.rows < want and self.step.drop:
            raise StopIteration
        whole = [spec.join(list(parts)) for parts in zip(*self.parts)] if len(self.parts) > 1 else self.parts[0]
        taken, rest = [leaf[:want] for leaf in whole], [leaf[want:] for leaf in whole]
        self.turn += 1
        self.rows = len(rest[0])
        self.parts = [rest] if self.rows else []
        return taken

    def state(self):
        return [self.turn, self.ended, state.encoded_all(self.parts)]

    def set_state(self, saved):
        self.turn, self.ended, parts = saved
        self.parts = state.decoded_all(parts)
        self.rows = sum(len(part[0]) for part in self.parts)


# Functions


class _Tasks:
    """(number, leaves) of a stream's elements, after those that are pending. Flows hold this and not the stream: a circle
    would live until Python's collector finds it."""

    def __init__(self, source):
        self.source, self.pending, self.number = source, deque(), 0

    def pull(self):
        """The next one."""
        if self.pending:
            return self.pending.popleft()
        leaves = next(self.source)
        self.number += 1
        return self.number - 1, leaves

    def save(self):
        """(pending ones, the number of the next element, where the source is)."""
        return list(self.pending), self.number, self.source.save()


class MapStream(Stream):
    """The results of a function of each element, made ahead in threads where that helps. A place is that of the source and
    the tasks that have been pulled from it and whose results nobody has taken: they are done again."""

    def __init__(self, step, run):
        super().__init__(step, run)
        self.tasks = _Tasks(self.input)
        self.flow = self.new_flow()

    def new_flow(self):
        """A flow of tasks."""
        step, run = self.step, self.run

        def work(task):
            return step.apply(_leaves(task), task[0], run)

        named = step.function.said() if hasattr(step, "function") else ""
        return pool.Flow(self.tasks.pull, work, step.threads, step.room, run, step.ordered, named)

    def __next__(self):
        return next(self.flow)

    def skip(self, count):
        """Functions are not called for what is left out, unless threads have done it already."""
        for _ in range(count):
            try:
                if self.flow.pool is None:
                    self.tasks.pull()
                else:
                    next(self.flow)
            except StopIteration:
                break
            except Exception:  # of an element that nobody wants
                continue

    def save(self):
        tasks, (pending, number, before) = self.flow.held(self.tasks.save)
        return [[number, [_saved_task(task) for task in [*tasks, *pending]]], before]

    def set_state(self, saved):
        self.tasks.number, tasks = saved
        self.flow.close()
        self.tasks.pending, self.flow = deque(map(_loaded_task, tasks)), self.new_flow()

    def close(self):
        self.flow.close()
        super().close()


def _leaves(task):
    _, leaves = task
    if isinstance(leaves, Exception):
        raise leaves
    return leaves


def _saved_task(task):
    if isinstance(task, pool.Failed):
        return [0, {"error": f"{type(task.error).__name__}: {task.error}"}]
    number, leaves = task
    if isinstance(leaves, Exception):
        return [0, {"error": str(leaves)}]
    return [number, state.encoded(leaves)]


def _loaded_task(saved):
    number, leaves = saved
    if isinstance(leaves, dict):
        return number, _C.DataError(f"before this pass was saved: {leaves['error']}")
    return number, state.decoded(leaves)


class PrefetchStream(MapStream):
    def new_flow(self):
        return pool.Flow(self.tasks.pull, _leaves, 1 if self.step.room else 0, max(0, self.step.room), self.run, True)


class FilterStream(Stream):
    """The elements for which step.keeps(leaves, number, run)."""

    def __init__(self, step, run):
        super().__init__(step, run)
        self.number = 0

    def __next__(self):
        while True:
            leaves = next(self.input)
            self.number += 1
            if self.step.keeps(leaves, self.number - 1, self.run):
                return leaves

    def state(self):
        return self.number

    def set_state(self, saved):
        self.number = saved


class TakeWhileStream(FilterStream):
    def __next__(self):
        if self.number < 0:
            raise StopIteration
        leaves = next(self.input)
        self.number += 1
        if self.step.keeps(leaves, self.number - 1, self.run):
            return leaves
        self.number = -1
        raise StopIteration


class ScanStream(Stream):
    """A function of a state and an element gives the next state and an element."""

    def __init__(self, step, run):
        super().__init__(step, run)
        self.number, self.kept = 0, step.initial

    def __next__(self):
        leaves = next(self.input)
        self.number += 1
        self.kept, out = self.step.apply_state(self.kept, leaves, self.number - 1, self.run)
        return out

    def state(self):
        return [self.number, state.encoded(self.kept)]

    def set_state(self, saved):
        self.number, kept = saved
        self.kept = state.decoded(kept)


class UniqueStream(Stream):
    def __init__(self, step, run):
        super().__init__(step, run)
        self.seen = {}

    def __next__(self):
        while True:
            leaves = next(self.input)
            key = self.step.key(leaves)
            if key not in self.seen:
                self.seen[key] = None
                return leaves

    def state(self):
        return state.encoded_strings(list(self.seen))

    def set_state(self, saved):
        self.seen = dict.fromkeys(state.decoded_strings(saved))


class ResampleStream(Stream):
    """Elements whose class is drawn with the target's probability, others left out."""

    def __init__(self, step, run):
        super().__init__(step, run)
        self.number, self.counts = 0, [0] * len(step.target)
        self.draws = Draws(*step.seed_and_epoch(run))

    def __next__(self):
        while True:
            leaves = next(self.input)
            self.number += 1
            kind = self.step.class_of(leaves, self.number - 1, self.run)
            self.counts[kind.item()] += 1
            if self.draws() < self.step.chance(kind.item(), self.counts):
                return [kind, *leaves]

    def state(self):
        return [self.number, self.draws.place, self.counts]

    def set_state(self, saved):
        self.number, place, counts = saved
        self.counts = list(counts)
        self.draws = Draws(self.draws.seed, self.draws.epoch, place)


class IgnoreErrorsStream(Stream):
    def __next__(self):
        while True:
            try:
                return next(self.input)
            except StopIteration:
                raise
            except Exception as error:
                self.step.ignored(error)


# Data sets within data sets


class _Inner:
    """A pass over a data set that a function has made: of element `number`, whose leaves are `outer`, or of a window of
    elements with the key `outer`."""

    def __init__(self, step, number, outer, node, stream):
        self.step, self.number, self.outer, self.node, self.stream = step, number, outer, node, stream
        self.checked = False

    def __next__(self):
        leaves = next(self.stream)
        if not self.checked:
            self.step.check(self.node, self.number)
            self.checked = True
        return leaves


class InterleaveStream(Stream):
    """`cycle` inner data sets are read in turn, `block` elements of each: an inner one that has ended lets its turn pass,
    and in the next turn another one follows. cycle 1: flat_map."""

    def __init__(self, step, run):
        super().__init__(step, run)
        self.slots, self.place, self.taken = [None] * step.cycle, 0, 0
        self.number, self.ended = 0, False

    def _open(self, number, outer):
        node, stream = self.step.inner(outer, number, self.run)
        if self.step.threads and hasattr(stream, "threads"):
            stream.threads = stream.threads or 1
        return _Inner(self.step, number, outer, node, stream)

    def _advance(self):
        self.place, self.taken = (self.place + 1) % len(self.slots), 0

    def __next__(self):
        while True:
            inner = self.slots[self.place]
            if inner is None and not self.ended:
                outer = next(self.input, None)
                if outer is None:
                    self.ended = True
                else:
                    self.number += 1
                    inner = self.slots[self.place] = self._open(self.number - 1, outer)
            if inner is None:
                if not any(self.slots):
                    raise StopIteration
                self._advance()
                continue
            leaves = next(inner, None)
            if leaves is None:
                inner.stream.close()
                self.slots[self.place] = None
                self._advance()
                continue
            self.taken += 1
            if self.taken == self.step.block:
                self._advance()
            return leaves

    def _saved(self, inner):
        if inner is None:
            return None
        outer = None if self.step.input.indexed else state.encoded(inner.outer)
        return [inner.number, outer, inner.stream.save()]

    def state(self):
        return [self.place, self.taken, self.number, self.ended, [self._saved(inner) for inner in self.slots]]

    def _loaded(self, saved):
        if saved is None:
            return None
        number, outer, stream = saved
        indexed = self.step.input.indexed
        inner = self._open(number, self.step.input.get(number, self.run) if indexed else state.decoded(outer))
        inner.stream.load(stream)
        return inner

    def set_state(self, saved):
        self.place, self.taken, self.number, self.ended, slots = saved
        self.slots = [self._loaded(one) for one in slots]

    def close(self):
        for inner in self.slots:
            if inner is not None:
                inner.stream.close()
        super().close()


class GroupStream(Stream):
    """Elements are gathered by keys; a function makes a data set of each window of elements with one key."""

    def __init__(self, step, run):
        super().__init__(step, run)
        self.groups, self.ended, self.number, self.windows = {}, False, 0, 0
        self.current = self.elements = None  # the window whose data set is read

    def _open(self, key, elements):
        node, stream = self.step.reduced(key, elements, self.windows, self.run)
        self.current, self.elements = _Inner(self.step, self.windows, key, node, stream), elements
        self.windows += 1

    def _fill(self):
        """Goes on until a window is full. False at the end."""
        while not self.ended:
            leaves = next(self.input, None)
            if leaves is None:
                self.ended = True
                break
            self.number += 1
            key = self.step.key_of(leaves, self.number - 1, self.run)
            group = self.groups.setdefault(key, [])
            group.append(leaves)
            if len(group) >= self.step.size_of(key):
                self._open(key, self.groups.pop(key))
                return True
        for key in sorted(self.groups):
            self._open(key, self.groups.pop(key))
            return True
        return False

    def __next__(self):
        while True:
            if self.current is not None:
                leaves = next(self.current, None)
                if leaves is not None:
                    return leaves
                self.current.stream.close()
                self.current = self.elements = None
            if not self._fill():
                raise StopIteration

    def state(self):
        groups = [[key, state.encoded_all(group)] for key, group in self.groups.items()]
        current = None
        if self.current is not None:
            inner = self.current
            current = [inner.outer, state.encoded_all(self.elements), inner.number, inner.stream.save()]
        return [self.ended, self.number, self.windows, groups, current]

    def set_state(self, saved):
        self.ended, self.number, windows, groups, current = saved
        self.groups = {key: state.decoded_all(group) for key, group in groups}
        self.current = self.elements = None
        if current is not None:
            key, elements, self.windows, stream = current
            self._open(key, state.decoded_all(elements))
            self.current.stream.load(stream)
        self.windows = windows

    def close(self):
        if self.current is not None:
            self.current.stream.close()
        super().close()


class WindowStream(Stream):
    """Data sets of elements that follow each other."""

    def __init__(self, step, run):
        super().__init__(step, run)
        self.buffer, self.due, self.ended = deque(), 0, False  # due: elements to leave out before the next window

    def __next__(self):
        size, shift, stride, drop = self.step.size, self.step.shift, self.step.stride, self.step.drop
        if self.due:
            self.input.skip(self.due)
            self.due = 0
        reach = (size - 1) * stride + 1
        while not self.ended and len(self.buffer) < reach:
            leaves = next(self.input, None)
            if leaves is None:
                self.ended = True
            else:
                self.buffer.append(leaves)
        elements = [self.buffer[i] for i in range(0, min(reach, len(self.buffer)), stride)]
        if not elements or drop and len(elements) < size:
            raise StopIteration
        gone = min(shift, len(self.buffer))
        for _ in range(gone):
            self.buffer.popleft()
        self.due = shift - gone
        return self.step.held(elements)

    def state(self):
        return [self.due, self.ended, state.encoded_all(self.buffer)]

    def set_state(self, saved):
        self.due, self.ended, elements = saved
        self.buffer = deque(state.decoded_all(elements))


class ChooseStream(Stream):
    """Of several data sets, the element of the one that step.choice(self) names."""

    def __init__(self, step, run):
        super().__init__(step, run)
        self.over, self.draws = list(step.never), Draws(*step.seed_and_epoch(run))

    def __next__(self):
        sources = self.step.sources
        while len(self.over) < sources:
            which = self.step.choice(self)
            if which in self.over:
                continue
            leaves = next(self.inputs[which], None)
            if leaves is not None:
                return leaves
            if self.step.stops:
                self.over = list(range(sources))
            else:
                self.over.append(which)
        raise StopIteration

    def state(self):
        return [self.over, self.draws.place]

    def set_state(self, saved):
        over, place = saved
        self.over = list(over)
        self.draws = Draws(self.draws.seed, self.draws.epoch, place)


class GeneratorStream(Stream):
    """What a generator yields. Its place is a count: a new generator makes those elements again."""

    def __init__(self, step, run):
        super().__init__(step, run)
        self.generator, self.number = None, 0

    def _next(self):
        if self.generator is None:
            self.generator = self.step.begun()
        return next(self.generator)

    def __next__(self):
        value = self._next()
        self.number += 1
        return self.step.leaves_of(value, self.number - 1)

    def skip(self, count):
        for _ in range(count):
            try:
                self._next()
            except StopIteration:
                break
            self.number += 1

    def state(self):
        return self.number

    def set_state(self, saved):
        self.close()
        self.generator, self.number = None, 0
        if saved:
            state.log.info("from_generator: the generator makes %d elements again, to go on behind them", saved)
        self.skip(saved)

    def close(self):
        close = getattr(self.generator, "close", None)
        if close is not None:
            with contextlib.suppress(ValueError):  # a thread that does not end is in the generator
                close()
