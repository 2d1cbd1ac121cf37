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


class Ahead:
    """work(task) for each task of an iterator, in its order. `threads` work at a time, with at most `ahead` results that
    nobody has taken yet. `grows` up to that many threads, while the consumer waits. Tasks are taken by one thread at a
    time."""

    def __init__(self, tasks, work, threads, ahead, grows=0):
        self.tasks, self.work = tasks, work
        self.ahead, self.most = max(1, ahead), max(threads, grows)
        self.pulling, self.changed = threading.Lock(), threading.Condition()
        self.results, self.given, self.taken, self.ended = {}, 0, 0, None
        self.closed = self.forked = False
        self.waited, self.begun, self.threads = 0.0, monotonic(), []
        _alive.add(self)
        for _ in range(threads):
            self._start()

    def _start(self):
        thread = threading.Thread(target=_run, args=(self,), name=f"pydist-data-{len(self.threads)}", daemon=True)
        self.threads.append(thread)
        thread.start()

    def _next_task(self):
        """(number, task), or None when there is nothing more to do."""
        with self.pulling:
            with self.changed:
                while not self.closed and self.given - self.taken >= self.ahead:
                    self.changed.wait()
                if self.closed or self.ended is not None:
                    return None
                number = self.given
            try:
                task = next(self.tasks)
            except BaseException as error:
                with self.changed:
                    self.ended = number
                    self.results[number] = (None, error)
                    self.changed.notify_all()
                return None
            with self.changed:
                self.given += 1
            return number, task

    def take(self):
        """The next result. Raises what the work, or taking its task, has raised: StopIteration at the end."""
        with self.changed:
            begin = monotonic()
            while self.taken not in self.results:
                self.changed.wait(1.0)
            self.waited += monotonic() - begin
            if self.ended == self.taken:
                result, error = self.results[self.taken]
            else:
                result, error = self.results.pop(self.taken)
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
        self.tasks = iter(())
        self.work = None


def _run(ahead):
    _C._thread_num_threads(1)  # the threads share the cores with the training
    _C._rng_own(True)
    while (job := ahead._next_task()) is not None:
        number, task = job
        work = ahead.work
        try:
            outcome = (work(task), None)
        except BaseException as error:
            outcome = (None, error)
        with ahead.changed:
            ahead.results[number] = outcome
            ahead.changed.notify_all()
        del job, task, outcome, work


def cores():
    """How many threads may work for this process."""
    return max(1, _C.get_num_threads())


class Flow:
    """work(task) for each task, here or ahead in threads, whichever is faster.

    `threads`: 0: here; AUTOTUNE (-1): from one thread on, as many as help. The first elements are computed here and
    timed; threads start if an element takes longer than handing it over."""

    def __init__(self, tasks, work, threads, ahead):
        self.tasks, self.work = tasks, work
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
            return self.work(next(self.tasks))
        if self.trial == 0:
            self.trial = -1
            if self.spent > WORTH * TRIAL:
                self._begin()
                return self.pool.take()
        begin = perf_counter()
        result = self.work(next(self.tasks))
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
        self.pool = Ahead(self.tasks, self.work, threads, max(ahead, threads), cores() if tuned else 0)

    def close(self):
        """Ends the threads."""
        if self.pool is not None:
            self.pool.close()

    def __del__(self):
        pool = self.__dict__.get("pool")
        if pool is not None:
            pool.close()
