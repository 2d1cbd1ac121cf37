"""Threads that compute elements before they are asked for."""

import logging
import os
import threading
import weakref
from time import monotonic, perf_counter

from pydist import _C
from pydist.data import spec

WORTH = (
    150e-6  # s; an element that takes less is computed where it is asked for, since handing it over would cost as much
)
TRIAL = 3  # elements that are timed before threads start
GRACE = 5.0  # s for threads to end their present element
_SHARE = 0.05  # of the time that the consumer may wait before another thread starts
_LOOK = 16  # elements between two looks at that
_GAIN = 0.95  # of the time for an element: what one thread more has to bring, or no further one starts
_MOST, _MOST_BYTES = 16, 256 << 20  # results that wait where a program leaves that to us

log = logging.getLogger("pydist.data")
_alive = weakref.WeakSet()


def _forget_threads():
    for ahead in list(_alive):
        ahead.forked = True


os.register_at_fork(after_in_child=_forget_threads)


class Failed:
    """A task that could not be made: its place in the order raises the error."""

    def __init__(self, error):
        self.error = error


class Ahead:
    """work(task) for each task that pull() makes, in their order, or as they are ready; pull raises StopIteration at the end.
    `threads` work at a time, with at most `ahead` results that nobody has taken yet. `grows` up to that many threads, and
    `deepens` to more results, while the consumer waits. One thread at a time pulls. `alone`: seconds of an element's work
    without threads; `named`: of what, for a line about threads that do not help."""

    def __init__(self, pull, work, threads, ahead, grows=0, deepens=False, ordered=True, alone=0.0, named=""):
        self.pull, self.work, self.ordered = pull, work, ordered
        self.ahead, self.most, self.deepens = max(1, ahead), max(threads, grows), deepens
        self.alone, self.named, self.pace = alone, named, 0.0
        self.pulling, self.changed = threading.Lock(), threading.Condition()
        self.tasks, self.results = {}, {}  # by their numbers: those that nobody has taken yet
        self.given, self.taken, self.ended = 0, 0, False
        self.closed = self.forked = False
        self.waited, self.begun, self.threads = 0.0, monotonic(), []
        _alive.add(self)
        for _ in range(threads):
            self._start()

    def _start(self):
        thread = threading.Thread(target=_run, args=(self,), name=f"pydist-data-{len(self.threads)}", daemon=True)
        self.threads.append(thread)
        thread.start()

    def _is_full(self):
        return not (self.closed or self.ended) and self.given - self.taken >= self.ahead

    def next_task(self):
        """(number, task), or None when there is nothing more to do."""
        while True:
            with self.changed:
                while self._is_full():
                    self.changed.wait()
            with self.pulling:
                if self._is_full():  # another thread was here first
                    continue
                if self.closed or self.ended:
                    return None
                try:
                    task = self.pull()
                except StopIteration:
                    task = None
                except BaseException as error:
                    task = Failed(error)
                with self.changed:
                    if task is None:
                        self.ended = True
                        self.changed.notify_all()
                        return None
                    self.tasks[self.given] = task
                    self.given += 1
                    return self.given - 1, task

    def done(self, number, result, error):
        """Keeps what a thread has found, unless nobody wants it any more."""
        with self.changed:
            if not self.closed:
                self.results[number] = (result, error)
            self.changed.notify_all()

    def take(self):
        """The next result. Raises what the work, or pulling its task, has raised: StopIteration at the end."""
        with self.changed:
            begin = monotonic()
            while (number := self._ready()) is None:
                if self.ended and self.taken == self.given:
                    raise StopIteration
                self.changed.wait(1.0)
            self.waited += monotonic() - begin
            result, error = self.results.pop(number)
            del self.tasks[number]
            self.taken += 1
            self.changed.notify_all()
        if self.taken % _LOOK == 0:
            self._look(result)
        if error is None:
            return result
        try:
            raise error
        finally:
            del error  # the traceback refers to this frame

    def _ready(self):
        """The number of a result that may be taken, or None."""
        if not self.ordered:
            return next(iter(self.results), None)
        return self.taken if self.taken in self.results else None

    def _look(self, result):
        """Begins a thread more, or keeps more results, where the consumer waits and it helps."""
        now = monotonic()
        passed = now - self.begun
        pace, waits = passed / _LOOK, self.waited > _SHARE * passed
        self.waited, self.begun = 0.0, now
        if not waits:
            return
        if len(self.threads) > 1 and pace > _GAIN * self.alone and self.named:
            log.info("%s: %d threads take as long as one: the function spends its time in Python (expected NumPy, "
                     "Pillow or pydist)", self.named, len(self.threads))  # fmt: skip
            self.named = ""
        if len(self.threads) < self.most and not (self.pace and pace > _GAIN * self.pace):
            self.pace = pace
            self.ahead = max(self.ahead, len(self.threads) + 2)
            self._start()
        elif self.deepens and self.ahead < _MOST and 2 * self.ahead * spec.bytes_of(result) <= _MOST_BYTES:
            with self.changed:
                self.ahead = min(_MOST, 2 * self.ahead)
                self.changed.notify_all()

    def held(self, save):
        """(the tasks whose results nobody has taken yet, save()), while no thread pulls."""
        with self.pulling, self.changed:
            return [self.tasks[number] for number in sorted(self.tasks)], save()

    def close(self):
        """Ends the threads after their present elements, and waits for that at most GRACE seconds."""
        if self.forked:
            return
        with self.changed:
            self.closed = True
            self.changed.notify_all()
        deadline = monotonic() + GRACE
        for thread in self.threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - monotonic()))
        self.results.clear()
        self.tasks.clear()
        self.pull = self.work = None


def _run(ahead):
    _C._thread_num_threads(1)  # the threads share the cores with the training
    _C._rng_own(True)
    while (job := ahead.next_task()) is not None:
        number, task = job
        work = ahead.work
        try:
            if isinstance(task, Failed):
                raise task.error
            outcome = (work(task), None)
        except BaseException as error:
            outcome = (None, error)
        ahead.done(number, *outcome)
        del job, task, outcome, work


def cores():
    """How many threads may work for this process."""
    return max(1, _C.get_num_threads())


class Flow:
    """work(task) for each task that pull() makes, here or ahead in threads, whichever is faster.

    `threads`: 0: here; AUTOTUNE (-1): from one thread on, as many as help. The first elements are computed here and
    timed; threads start if an element takes longer than handing it over. `ahead`: results that may wait, 0: as many as
    help. `run`: the pass, which limits threads and says whether results come in order. `named`: for messages."""

    def __init__(self, pull, work, threads, ahead, run, ordered=None, named=""):
        self.pull, self.work = pull, work
        self.threads, self.room, self.limit, self.named = threads, ahead, run.limit, named
        self.ordered = run.ordered if ordered is None else ordered
        self.trial, self.spent, self.pool = TRIAL if threads else -1, 0.0, None

    def __next__(self):
        if self.pool is not None:
            if self.forked:
                raise RuntimeError(
                    "pydist.data: this iterator's threads are in the process that has forked (expected a new iterator in "
                    "the child)"
                )
            return self.pool.take()
        if self.trial < 0:
            return self.work(self.pull())
        if self.trial == 0:
            self.trial = -1
            if self.spent > WORTH * TRIAL:
                self._begin()
                return self.pool.take()
        begin = perf_counter()
        result = self.work(self.pull())
        if self.trial > 0:
            self.spent += perf_counter() - begin
            self.trial -= 1
        return result

    @property
    def forked(self):
        """Whether its threads are in another process."""
        return self.pool is not None and self.pool.forked

    def _begin(self):
        tuned, most = self.threads < 0, self.limit or cores()
        threads = 1 if tuned else min(self.threads, self.limit or self.threads)
        ahead = max(self.room if self.room > 0 else 2 * threads, threads, 1)
        self.pool = Ahead(self.pull, self.work, threads, ahead, most if tuned else 0, not self.room, self.ordered,
                          self.spent / TRIAL, self.named)  # fmt: skip

    def held(self, save):
        """(the tasks that have been pulled and whose results nobody has taken yet, save()), while no thread pulls."""
        return self.pool.held(save) if self.pool is not None else ([], save())

    def close(self):
        """Ends the threads."""
        if self.pool is not None:
            self.pool.close()

    def __del__(self):
        pool = self.__dict__.get("pool")
        if pool is not None:
            pool.close()
