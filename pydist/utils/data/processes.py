"""A loader's workers as processes of Python's multiprocessing.

One socket to each worker carries tasks there, and back results, whose tensors are shared memory: their descriptors follow
the message. A thread in the worker reads the tasks, so that neither side can wait for the other to read; it also sees
the socket close, however the parent ends, and ends the worker.
"""

import io
import multiprocessing
import os
import pickle
import random
import socket
import sys
import threading
import traceback
from collections import deque
from contextlib import suppress
from multiprocessing.reduction import ForkingPickler, recvfds, sendfds
from queue import SimpleQueue
from time import monotonic

from pydist import _C
from pydist.multiprocessing.reductions import reduce_tensor, sendable
from pydist.utils.data import prefetch

_FDS = 200  # in one message; the kernel takes 253
_KILLED = 1.0  # seconds for the kernel to end killed workers

_open = set()  # the parent's ends, which children by fork must not hold


def _close_inherited():
    for fd in _open:
        with suppress(OSError):
            os.close(fd)
    _open.clear()


os.register_at_fork(after_in_child=_close_inherited)


class _Descriptor:
    """A file descriptor by its number in a message."""

    def __init__(self, at):
        self.at = at


class _Packer(ForkingPickler):
    def __init__(self, file):
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.fds, self.kept = [], []

    def _pass(self, fd):
        self.fds.append(fd)
        return _Descriptor(len(self.fds) - 1)

    def reducer_override(self, obj):
        if isinstance(obj, _C.Tensor):
            self.kept.append(sendable(obj))
            return reduce_tensor(self.kept[-1], self._pass)
        return NotImplemented

    def persistent_id(self, obj):
        return obj.at if isinstance(obj, _Descriptor) else None


class _Received:
    def __init__(self, fds, at):
        self.fds, self.at = fds, at

    def detach(self):
        fd, self.fds[self.at] = self.fds[self.at], -1
        return fd


class _Unpacker(pickle.Unpickler):
    def __init__(self, data, fds):
        super().__init__(io.BytesIO(data))
        self.fds = fds

    def persistent_load(self, at):
        return _Received(self.fds, at)


def _send(connection, message):
    file = io.BytesIO()
    packer = _Packer(file)
    packer.dump(message)
    connection.send_bytes(len(packer.fds).to_bytes(8, "little") + file.getvalue())
    if packer.fds:
        with socket.socket(fileno=os.dup(connection.fileno())) as sock:
            for i in range(0, len(packer.fds), _FDS):
                sendfds(sock, packer.fds[i : i + _FDS])


def _receive(connection):
    data = connection.recv_bytes()
    count, fds = int.from_bytes(data[:8], "little"), []
    try:
        if count:
            with socket.socket(fileno=os.dup(connection.fileno())) as sock:
                while len(fds) < count:
                    fds += recvfds(sock, min(_FDS, count - len(fds)))
        return _Unpacker(data[8:], fds).load()
    finally:
        for fd in fds:
            if fd >= 0:
                os.close(fd)


# In the worker.


def _read_tasks(connection, tasks, ended):
    try:
        while True:
            if (task := connection.recv()) is None:
                ended.set()  # what is still in the queue is not wanted
            tasks.put(task)
    except (EOFError, OSError):
        os._exit(1)  # the parent is gone, or wants no more


def _failure(error):
    """(the exception, or None where it cannot be sent; its traceback as text)"""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = None
    return error, text


def _main(connection, number, workers, dataset, make, start, rank):
    """make(): a new fetch function; start: worker_init_fn or None."""
    tasks, ended = SimpleQueue(), threading.Event()
    threading.Thread(target=_read_tasks, args=(connection, tasks, ended), daemon=True).start()
    _C._thread_num_threads(1)  # the workers share the cores with the training
    epoch = failed = fetch = None
    while (task := tasks.get()) is not None and not ended.is_set():
        now, seed, count, what = task
        try:
            if now != epoch:
                epoch, fetch = now, make()
                prefetch._here.info = prefetch.WorkerInfo(number, workers, seed + number, dataset)
                if now == 0:
                    failed = _begin(number, seed, start)
            if failed is not None:
                raise failed
            _C.set_rng_state((seed + count, 0, rank))
            result = ("done", fetch(what))
        except BaseException as error:
            result = ("failed", _failure(error))
        try:
            _send(connection, result)
        except (BrokenPipeError, ConnectionResetError):
            os._exit(1)
        except Exception as error:  # a result that cannot be pickled
            _send(connection, ("failed", _failure(error)))


def _begin(number, seed, start):
    """Seeds the libraries' generators and calls worker_init_fn; its error, which is that of all batches."""
    try:
        random.seed(seed + number)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed((seed + number) % (1 << 32))
        if start is not None:
            start(number)
    except BaseException as error:
        return error
    return None


# In the parent.


class _WorkerTraceback(Exception):
    def __init__(self, text):
        super().__init__(text)
        self.text = text

    def __str__(self):
        return f"\n{self.text}"


class Pool:
    """`workers` processes by a multiprocessing context, each with `make()`, a picklable maker of its fetch function."""

    def __init__(self, context, workers, dataset, make, start, rank):
        self.connections, self.processes, self.waiting = [], [], []
        if not hasattr(context, "Process"):
            context = multiprocessing.get_context(context)
        self.epoch, self.grace = -1, prefetch.GRACE
        try:
            for number in range(workers):
                ours, theirs = context.Pipe()
                _open.add(ours.fileno())
                self.connections.append(ours)
                self.waiting.append(0)
                arguments = (theirs, number, workers, dataset, make, start, rank)
                process = context.Process(target=_main, args=arguments, daemon=True, name=f"pydist-loader-{number}")
                process.start()
                theirs.close()
                self.processes.append(process)
        except BaseException:
            self.close()
            raise

    def submit(self, number, task):
        self.waiting[number] += 1
        try:
            self.connections[number].send(task)
        except (BrokenPipeError, ConnectionResetError):
            self._raise_death(number)

    def _raise_death(self, number):
        process, self.grace = self.processes[number], 0.0
        process.join(prefetch.GRACE)
        raise RuntimeError(
            f"DataLoader worker {number} (pid {process.pid}) exited unexpectedly with code {process.exitcode}"
        ) from None

    def take(self, number, timeout):
        """What a worker says next: ("done", its result) or ("failed", its error). Raises RuntimeError after `timeout`
        seconds or where it died."""
        connection = self.connections[number]
        try:
            if not connection.poll(timeout):
                self.grace = 0.0
                raise RuntimeError(f"DataLoader timed out after {timeout} seconds")
            self.waiting[number] -= 1
            return _receive(connection)
        except (EOFError, ConnectionResetError):
            self._raise_death(number)

    def result(self, number, timeout):
        """The next result of a worker; as `take`, and raises its error."""
        kind, value = self.take(number, timeout)
        if kind == "done":
            return value
        error, text = value
        if error is None:
            raise RuntimeError(f"DataLoader worker {number} failed:\n{text}")
        raise error from _WorkerTraceback(text)

    def drop_waiting(self, timeout):
        """Takes what an epoch that was left early still has under way; RuntimeError as `take`."""
        for number in range(len(self.processes)):
            while self.waiting[number]:
                try:
                    self.take(number, timeout)
                except Exception:
                    if not self.grace:  # it has died, or hangs
                        raise

    def close(self):
        """Ends the workers after their task; those that are not done within `grace` seconds, one deadline for all, are
        killed."""
        deadline = monotonic() + self.grace

        def left():
            return max(0.0, deadline - monotonic())

        for connection in self.connections:
            with suppress(OSError):
                connection.send(None)
        for connection in self.connections:
            with suppress(EOFError, OSError):
                while connection.poll(left()):
                    _receive(connection)
        for connection in self.connections:
            _open.discard(connection.fileno())
            connection.close()
        for process in self.processes:
            process.join(left())
        late = [process for process in self.processes if process.is_alive()]
        for process in late:
            process.kill()
        deadline = monotonic() + _KILLED  # one that hangs in the kernel, on a dead disk, is left to it
        for process in late:
            process.join(left())
        self.connections, self.processes = [], []

    def __del__(self):
        if self.connections:
            self.close()


def results(pool, tasks, seed, ahead, timeout, end, keep):
    """Yields the results of the tasks in order, `ahead` of them under way for each worker. Task i is for worker i modulo
    their number, without those whose stream has ended (`end`). The pool is closed at the end unless `keep`."""
    pool.epoch += 1
    queue, tasks, turn = deque(), enumerate(tasks), deque(range(len(pool.processes)))

    def submit():
        if turn and (task := next(tasks, None)) is not None:
            number = turn[0]
            turn.rotate(-1)
            pool.submit(number, (pool.epoch, seed, *task))
            queue.append(number)

    try:
        pool.drop_waiting(timeout)
        for _ in range(ahead * len(pool.processes)):
            submit()
        while queue:
            number = queue.popleft()
            result = pool.result(number, timeout)
            if isinstance(result, str) and result == end:
                if number in turn:
                    turn.remove(number)
                continue
            submit()
            yield result
    except (KeyboardInterrupt, SystemExit):
        pool.grace = 0.0
        raise
    finally:
        if not keep or not pool.grace:
            pool.close()
