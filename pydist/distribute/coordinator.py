"""ClusterCoordinator: runs functions on the workers of a ParameterServerStrategy, without waiting for them.

>>> from pydist import distribute
>>> from pydist.distribute import runner
>>> cluster = runner.create_cluster_spec(workers=2, ps=1)
>>> servers = [distribute.Server(cluster, job, i) for job, i in (("worker", 0), ("worker", 1), ("ps", 0))]
>>> strategy = distribute.ParameterServerStrategy(distribute.cluster_resolver.SimpleClusterResolver(cluster))
>>> coordinator = distribute.coordinator.ClusterCoordinator(strategy)
>>> squares = [coordinator.schedule(lambda x: x * x, args=(i,)) for i in range(4)]
>>> coordinator.join()
>>> coordinator.fetch(squares)
[0, 1, 4, 9]
>>> for server in servers:
...     server.stop()
"""

import threading
import weakref
from collections import deque

from pydist import _C
from pydist.distribute.context import here
from pydist.distribute.replica import Inherited
from pydist.distribute.server import ParameterServerStrategy
from pydist.utils._pytree import tree_map

__all__ = ["ClusterCoordinator", "PerWorkerValues", "RemoteValue", "experimental_get_current_worker_index"]

_POLL = 0.05  # s between two looks of an idle worker at whether it has been stopped
closures = []  # each makes a context for a closure: (strategy) -> context manager (pydist.keras: variables' copies)


class RemoteValue:
    """The result of a scheduled function, when it is there."""

    def __init__(self):
        self._there, self._value, self._error = threading.Event(), None, None

    def _set(self, value=None, error=None):
        self._value, self._error = value, error
        self._there.set()

    def get(self):
        """Waits for the result and returns it. Raises the function's error."""
        self._there.wait()
        if self._error is not None:
            raise self._error
        return self._value

    def fetch(self):
        """The result with arrays in the place of tensors."""
        return tree_map(lambda leaf: leaf.detach().cpu().numpy() if isinstance(leaf, _C.Tensor) else leaf, self.get())


class PerWorkerValues:
    """A value for each worker, made there when a function first needs it."""

    def __init__(self, make):
        self._make, self._values = make, {}

    def on(self, worker):
        """That of a worker. Its own thread calls this."""
        if worker.index not in self._values:
            self._values[worker.index] = self._make()
        return self._values[worker.index]


class _PerWorkerDataset:
    """What create_per_worker_dataset returns: an iterable whose iterators are PerWorkerValues."""

    def __init__(self, make):
        self._make = make

    def __iter__(self):
        make = self._make
        return _PerWorkerIterator(lambda: iter(make()))


class _PerWorkerIterator(PerWorkerValues):
    def __iter__(self):
        return self

    def __next__(self):
        raise TypeError("per-worker iterator: next() outside a function of schedule (expected it as an argument there)")

    get_next = __next__


class _Closure:
    """A scheduled function."""

    def __init__(self, fn, args, kwargs, inherited):
        self.fn, self.args, self.kwargs, self.inherited, self.result = fn, args, kwargs, inherited, RemoteValue()
        self.worker = None

    def run(self, strategy, worker, number):
        self.worker = worker
        with self.inherited.entered(number, number), _entered(strategy, self, list(closures)):
            args, kwargs = tree_map(
                lambda leaf: leaf.on(worker) if isinstance(leaf, PerWorkerValues) else leaf, (self.args, self.kwargs)
            )
            return self.fn(*args, **kwargs)


class _entered:
    """A worker's thread within a closure."""

    def __init__(self, strategy, closure, makers):
        self._strategy, self._closure = strategy, closure
        self._contexts = [make(strategy) for make in makers]

    def __enter__(self):
        here.scopes, here.closure = [self._strategy], self._closure
        for context in self._contexts:
            context.__enter__()

    def __exit__(self, *error):
        for context in reversed(self._contexts):
            context.__exit__(*error)
        here.scopes, here.closure = [], None


class _Board:
    """What coordinator and workers share: closures that wait, how many run, and the first error."""

    def __init__(self, workers):
        self.changed = threading.Condition()
        self.waiting, self.running, self.error, self.closed = deque(), 0, None, False
        self.workers, self.count = workers, 0

    def take(self, worker):
        """The next closure for a worker, or None when it is to end."""
        with self.changed:
            while not self.closed and worker.runs:
                if self.waiting:
                    self.running += 1
                    self.count += 1
                    return self.waiting.popleft(), self.count
                self.changed.wait(_POLL)
            self.changed.notify_all()
            return None

    def put_back(self, closure):
        """The worker was lost: another one runs the closure."""
        with self.changed:
            self.running -= 1
            self.waiting.appendleft(closure)
            self.changed.notify_all()

    def ended(self, closure, value, error):
        """A closure has returned or raised. After an error those that wait are given up."""
        with self.changed:
            self.running -= 1
            closure.result._set(value, error)
            if error is not None:
                self.error = self.error or error
                while self.waiting:
                    self.waiting.popleft().result._set(error=error)
            self.changed.notify_all()

    def is_idle(self):
        """Whether nothing runs or waits."""
        return not self.waiting and not self.running

    def raise_error(self):
        """Raises the first error since the last call, or that nobody is left to run a closure."""
        error, self.error = self.error, None
        if error is not None:
            raise error
        if not any(worker.runs for worker in self.workers):
            raise _C.PeerFailed(f"schedule: no worker is left of {', '.join(map(str, self.workers))}")


def _work(worker, board, strategy_ref):
    """A worker's thread."""
    while (taken := board.take(worker)) is not None:
        closure, number = taken
        value = error = None
        try:
            value = closure.run(strategy_ref(), worker, number)
        except BaseException as raised:
            error = raised
        if worker.runs:
            board.ended(closure, value, error)
        else:
            board.put_back(closure)
        del closure, taken, value, error


class ClusterCoordinator:
    """Schedules functions on the workers of `strategy`, a ParameterServerStrategy.

    Workers take functions in their order and run them at the same time. A function runs again, on another worker, if its
    worker is lost. If one raises, those that have not begun are given up, and the next `schedule` or `join` raises its
    error.
    """

    def __init__(self, strategy):
        if not isinstance(strategy, ParameterServerStrategy):
            raise ValueError(
                f"ClusterCoordinator: strategy is {type(strategy).__name__} (expected a ParameterServerStrategy)"
            )
        self.strategy, self._board = strategy, _Board(strategy._workers)
        self._threads = [
            threading.Thread(
                target=_work, args=(worker, self._board, weakref.ref(strategy)), name=str(worker), daemon=True
            )
            for worker in strategy._workers
        ]
        for thread in self._threads:
            thread.start()

    def schedule(self, fn, args=None, kwargs=None):
        """Gives fn(*args, **kwargs) to the workers. Returns a RemoteValue at once. A PerWorkerValues in the arguments gives
        each worker its own value."""
        if not callable(fn):
            raise TypeError(f"schedule: fn is {type(fn).__name__} (expected a function)")
        closure = _Closure(fn, tuple(args or ()), dict(kwargs or {}), Inherited())
        with self._board.changed:
            self._board.raise_error()
            self._board.waiting.append(closure)
            self._board.changed.notify()
        return closure.result

    def join(self):
        """Waits until all scheduled functions have ended. Raises the first error."""
        board = self._board
        with board.changed:
            while not board.is_idle() and any(worker.runs for worker in board.workers):
                board.changed.wait(_POLL)
            board.raise_error()

    def done(self):
        """Whether all scheduled functions have ended. Raises the first error."""
        with self._board.changed:
            self._board.raise_error()
            return self._board.is_idle()

    def fetch(self, val):
        """The results of RemoteValues, and of lists, tuples and dictionaries of them."""
        return tree_map(lambda leaf: leaf.fetch() if isinstance(leaf, RemoteValue) else leaf, val)

    def create_per_worker_dataset(self, dataset_fn):
        """A data set for each worker: what dataset_fn() returns there, or passes of its own over a data set. iter() of it
        is an argument for schedule."""
        return _PerWorkerDataset(dataset_fn if callable(dataset_fn) else lambda: dataset_fn)

    def __del__(self):
        board = self.__dict__.get("_board")
        if board is not None:
            board.closed = True


def experimental_get_current_worker_index():
    """The number of the worker that runs this function."""
    if here.closure is None:
        raise RuntimeError("experimental_get_current_worker_index: called outside a function of schedule")
    return here.closure.worker.index
