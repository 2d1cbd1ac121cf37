"""Futures with PyTorch's names: values that come later, and functions that wait for them.

There is no thread behind a future. The future of a collective is moved on by whoever waits for it, and functions given
to then() and add_done_callback() run in the thread that sets the value or waits, in the order in which they were added;
so collectives that such functions start have the same order on every rank whose waits have.
"""

import threading

__all__ = ["Future", "collect_all", "wait_all"]


class Future:
    """A value or an exception, set once.

    >>> future = Future()
    >>> twice = future.then(lambda f: f.value() * 2)
    >>> future.set_result(21)
    >>> twice.wait(), twice.done()
    (42, True)
    """

    def __init__(self, *, devices=None):
        """devices: accepted, and means nothing on CPUs."""
        self._changed = threading.Condition(threading.RLock())
        self._done, self._value, self._error = False, None, None
        self._callbacks = []
        self._drive = self._ready = None  # what to wait for, and ask, where this future is made of something else

    def done(self):
        """Whether a value or an exception is there. Never waits."""
        if not self._done and self._ready is not None and self._ready():
            self._drive()
        return self._done

    def wait(self):
        """The value, once it is there; raises the exception that was set instead."""
        if not self._done and self._drive is not None:
            self._drive()
        with self._changed:
            while not self._done:
                self._changed.wait()
        return self.value()

    def value(self):
        """The value of a future that is done. RuntimeError: it is not."""
        if not self._done:
            raise RuntimeError("value: the future is not done (expected wait() before)")
        if self._error is not None:
            raise self._error
        return self._value

    def exception(self):
        """The exception that wait() would raise, None where there is none. RuntimeError: it is not done."""
        if not self._done:
            raise RuntimeError("exception: the future is not done (expected wait() before)")
        return self._error

    def set_result(self, result):
        """RuntimeError: it has a value or an exception already."""
        self._set(result, None)

    def set_exception(self, result):
        """wait() and value() will raise `result`. TypeError: it is no exception. RuntimeError: as set_result."""
        if not isinstance(result, BaseException):
            raise TypeError(f"set_exception: {type(result).__name__} (expected an exception)")
        self._set(None, result)

    def _set(self, value, error):
        with self._changed:
            if self._done:
                raise RuntimeError("set_result: the future is done already (expected one result)")
            self._value, self._error, self._done = value, error, True
            self._drive = self._ready = None
            callbacks, self._callbacks = self._callbacks, []
            self._changed.notify_all()
        for callback in callbacks:
            callback(self)

    def _when_done(self, callback):
        with self._changed:
            if not self._done:
                self._callbacks.append(callback)
                return
        callback(self)

    def add_done_callback(self, callback):
        """callback(self) once it is done, or now where it is. What it raises is logged, not raised."""

        def guarded(future):
            try:
                callback(future)
            except Exception as error:
                import logging

                logging.getLogger("pydist.futures").error("a done callback raised", exc_info=error)

        self._when_done(guarded)

    def then(self, callback):
        """A new future of what callback(self) returns, or raises, once this one is done."""
        following = Future()
        following._drive, following._ready = self._settle, self.done

        def run(future):
            try:
                result = callback(future)
            except Exception as error:
                following.set_exception(error)
            else:
                following.set_result(result)

        self._when_done(run)
        return following

    def _settle(self):
        """Waits without raising the value's own exception."""
        if not self._done and self._drive is not None:
            self._drive()
        with self._changed:
            while not self._done:
                self._changed.wait()


def _of_work(work):
    """The future of a collective: done when it is, with the list of tensors that it wrote."""
    future = Future()
    ending = threading.Lock()

    def drive():
        with ending:
            if future._done:
                return
            try:
                work.wait()
                result = work.result()
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(result)

    future._drive, future._ready = drive, work.is_completed
    return future


def collect_all(futures):
    """A future of the list of futures, done when all of them are.

    >>> first, second = Future(), Future()
    >>> both = collect_all([first, second])
    >>> first.set_result(1), second.set_result(2)
    (None, None)
    >>> [f.value() for f in both.wait()]
    [1, 2]
    """
    futures = list(futures)
    together, left, lock = Future(), [len(futures)], threading.Lock()

    def drive():
        for future in futures:
            future._settle()

    def one_done(_):
        with lock:
            left[0] -= 1
            last = left[0] == 0
        if last:
            together.set_result(futures)

    together._drive, together._ready = drive, lambda: all([future.done() for future in futures])  # noqa: C419 (asks each of them)
    if not futures:
        together.set_result(futures)
    for future in futures:
        future._when_done(one_done)
    return together


def wait_all(futures):
    """The list of values of all futures; raises the first one's exception in their order."""
    return [future.wait() for future in collect_all(futures).wait()]
