"""Futures with PyTorch's names: values that come later, and functions that wait for them.

No thread works behind a future. A collective's future makes progress in the thread that waits for it. Functions given
to then() and add_done_callback() run in the thread that sets the value or waits, in the order in which they were added.
So collectives that such functions start have the same order on all ranks whose waits have the same order.
"""

import threading

__all__ = ["Future", "collect_all", "wait_all"]


class Future:
    """A value or an exception that is set once.

    >>> future = Future()
    >>> twice = future.then(lambda f: f.value() * 2)
    >>> future.set_result(21)
    >>> twice.wait(), twice.done()
    (42, True)
    """

    _comes = False  # whether it is completed without anybody waiting for it, though it can be driven

    def __init__(self, *, devices=None):
        """devices: accepted, and ignored on CPUs."""
        self._changed = threading.Condition(threading.RLock())
        self._done, self._value, self._error = False, None, None
        self._callbacks = []
        self._drive = self._ready = None  # what to wait for and to ask, if another object completes this future

    def done(self):
        """Whether a value or an exception is there. Never waits."""
        if not self._done and self._ready is not None and self._ready():
            self._drive()
        return self._done

    def wait(self):
        """Waits for the value and returns it. Raises the exception if one was set instead."""
        if not self._done and self._drive is not None:
            self._drive()
        with self._changed:
            while not self._done:
                self._changed.wait()
        return self.value()

    def value(self):
        """The value of a future that is done. Raises RuntimeError if it is not done."""
        if not self._done:
            raise RuntimeError("value: the future is not done (expected wait() first)")
        if self._error is not None:
            raise self._error
        return self._value

    def exception(self):
        """The exception that wait() would raise; None if there is none. Raises RuntimeError if the future is not
        done."""
        if not self._done:
            raise RuntimeError("exception: the future is not done (expected wait() first)")
        return self._error

    def set_result(self, result):
        """Sets the value. Raises RuntimeError if the future has a value or an exception already."""
        self._set(result, None)

    def set_exception(self, result):
        """Sets an exception, which wait() and value() will raise. Raises TypeError if `result` is not an exception,
        RuntimeError if the future has a value or an exception already."""
        if not isinstance(result, BaseException):
            raise TypeError(f"set_exception: {type(result).__name__} (expected an exception)")
        self._set(None, result)

    def _set(self, value, error):
        with self._changed:
            if self._done:
                raise RuntimeError(
                    "Future can only be marked completed once: the future is done already (expected a future without a "
                    "result)"
                )
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
        """Calls callback(self) when the future is done, or at once if it is. If the callback raises, the error is
        logged."""

        def guarded(future):
            try:
                callback(future)
            except Exception as error:
                import logging

                logging.getLogger("pydist.futures").error("a done callback raised", exc_info=error)

        self._when_done(guarded)

    def then(self, callback):
        """Returns a new future. When this one is done, callback(self) is called, and its result or exception completes
        the new future: the exception of this future and any RuntimeError as they are, others as the cause of a
        RuntimeError. Raises TypeError if `callback` is not callable."""
        if not callable(callback):
            raise TypeError(
                f"then: incompatible function arguments. callback is {type(callback).__name__} (expected a function of the "
                "future)"
            )
        following = Future()
        following._drive, following._ready, following._comes = self._settle, self.done, self._comes

        def run(future):
            try:
                result = callback(future)
            except Exception as error:
                following.set_exception(_of_callback(error, future))
            else:
                following.set_result(result)

        self._when_done(run)
        return following

    def __reduce_ex__(self, protocol):
        raise RuntimeError("Can not pickle torch.futures.Future (expected its value)")

    def __class_getitem__(cls, item):
        return cls  # Future[Tensor], as annotations write it

    def _settle(self):
        """Waits, but does not raise the exception that was set."""
        if not self._done and self._drive is not None:
            self._drive()
        with self._changed:
            while not self._done:
                self._changed.wait()


def _of_callback(error, future):
    """What a future gets whose callback has raised this error."""
    if isinstance(error, RuntimeError) or error is future._error:
        return error
    found = RuntimeError(
        f"Got the following error when running the callback: {type(error).__name__}: {error} (expected a result)"
    )
    found.__cause__ = error
    return found


def _of_work(work):
    """The future of a collective. It is done when the collective is, with the list of tensors that it wrote."""
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
    """A future whose value is the list of futures. It is done when all of them are.

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

    together._drive, together._ready = drive, lambda: all([future.done() for future in futures])  # noqa: C419 (calls done() of each)
    if not futures:
        together.set_result(futures)
    for future in futures:
        future._when_done(one_done)
    return together


def wait_all(futures):
    """The list of the values of all futures. Raises the exception of the first future, in list order, that has one; if
    all of them come by themselves, as those of rpc do, it raises the first one that comes, without waiting for others."""
    futures = list(futures)
    if all(future._drive is None or future._comes for future in futures):
        _wait_for_first_error(futures)
    return [future.wait() for future in collect_all(futures).wait()]


def _wait_for_first_error(futures):
    """Returns when all futures are done, and raises the first exception that one of them has."""
    left, changed, errors = [len(futures)], threading.Condition(), []

    def note(future):
        with changed:
            left[0] -= 1
            if future._error is not None:
                errors.append(future._error)
            changed.notify_all()

    for future in futures:
        future._when_done(note)
    with changed:
        while left[0] and not errors:
            changed.wait()
    if errors:
        raise errors[0]
