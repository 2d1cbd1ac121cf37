"""Threads that compute elements before they are asked for; results are taken in order."""

import os
import threading
import weakref
from time import monotonic, perf_counter

from pydist import _C

WORTH = (
    150e-6  # s; an element that takes less is computed where it is asked for, since handing it over would cost as much
)
TRIAL = 3  # elements that are timed before threads start
GRACE = 5.0  # s for threads to end their present element
_SHARE = 0.05  # of the time that the consumer may wait before another thread starts
_LOOK = 16  # elements between two looks at that

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
    """work(task) for each task that pull() makes, in their order; pull raises StopIteration at the end. `threads` work at a
    time, with at most `ahead` results that nobody has taken yet. `grows` up to that many threads, while the consumer
    waits. One thread at a time pulls."""

    def __init__(self, pull, work, threads, ahead, grows=0):
        self.pull, self.work = pull, work
        self.ahead, self.most = max(1, ahead), max(threads, grows)
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
        """Keeps what a thread has found."""
        with self.changed:
            self.results[number] = (result, error)
            self.changed.notify_all()

    def take(self):
        """The next result. Raises what the work, or pulling its task, has raised: StopIteration at the end."""
        with self.changed:
            begin = monotonic()
            while self.taken not in self.results:
                if self.ended and self.taken == self.given:
                    raise StopIteration
                self.changed.wait(1.0)
            self.waited += monotonic() - begin
            result, error = self.results.pop(self.taken)
            del self.tasks[self.taken]
            self.taken += 1
            self.changed.notify_all()
        if self.taken % _LOOK == 0:
            self._grow()
        if error is None:
            return result
        try:
            raise error
        finally:
            del error  # the traceback refers to this frame

    def _grow(self):
        now = monotonic()
        if len(self.threads) < self.most and self.waited > _SHARE * (now - self.begun):
            self.ahead = max(self.ahead, len(self.threads) + 2)
            self._start()
        self.waited, self.begun = 0.0, now

    def held(self, save):
        """(the tasks whose results nobody has taken yet, save()), while no thread pulls."""
        with self.pulling, self.changed:
            return [self.tasks[number] for number in range(self.taken, self.given)], save()

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
    timed; threads start if an element takes longer than handing it over."""

    def __init__(self, pull, work, threads, ahead):
        self.pull, self.work = pull, work
        self.threads, self.room = threads, ahead
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
        tuned = self.threads < 0
        threads = 1 if tuned else self.threads
        ahead = self.room if self.room > 0 else max(2, 2 * threads)
        self.pool = Ahead(self.pull, self.work, threads, max(ahead, threads), cores() if tuned else 0)

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
