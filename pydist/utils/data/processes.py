"""A loader's workers as processes of Python's multiprocessing.

One socket to each worker carries tasks to it and results back. The tensors of results are shared memory; their
descriptors follow the message. A thread in the worker reads the tasks, so that no side waits for the other one to read.
It also sees the socket close, however the parent ends, and ends the worker.
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
from pydist.utils.data.fetch import seed_libraries

_FDS = 200  # most descriptors in one message; the kernel allows 253
_KILLED = 1.0  # s for the kernel to end killed workers

_open = set()  # the parent's ends; forked children must not keep them open


def _close_inherited():
    for fd in _open:
        with suppress(OSError):
            os.close(fd)
    _open.clear()


os.register_at_fork(after_in_child=_close_inherited)


class _Descriptor:
    """A file descriptor, as its number in a message."""

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


# The worker's side.


def _read_tasks(connection, tasks, ended):
    try:
        while True:
            if (task := connection.recv()) is None:
                ended.set()  # the parent no longer needs the tasks in the queue
            tasks.put(task)
    except (EOFError, OSError):
        os._exit(1)  # the parent has ended, or needs no more results


def _failure(error):
    """(the exception, or None if it cannot be sent; its traceback as text)."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = None
    return error, text


def _main(connection, number, workers, dataset, make, start):
    """Runs a worker. make() returns a new fetch function; start: worker_init_fn or None."""
    tasks, ended = SimpleQueue(), threading.Event()
    threading.Thread(target=_read_tasks, args=(connection, tasks, ended), daemon=True).start()
    _C._thread_num_threads(1)  # the workers share the cores with the training
    epoch = failed = fetch = None
    while (task := tasks.get()) is not None and not ended.is_set():
        now, seed, libraries, (state, what) = task
        try:
            if now != epoch:
                epoch, fetch = now, make()
                prefetch._here.info = prefetch.WorkerInfo(number, workers, seed + number, dataset)
                if now == 0:
                    failed = _begin(number, seed, start)
            if failed is not None:
                raise failed
            _C.set_rng_state(state)
            if libraries:
                seed_libraries(state)
            result = ("done", fetch(what))
        except BaseException as error:
            result = ("failed", _failure(error))
        try:
            _send(connection, result)
        except (BrokenPipeError, ConnectionResetError):
            os._exit(1)
        except Exception as error:  # the result cannot be pickled
            _send(connection, ("failed", _failure(error)))


def _begin(number, seed, start):
    """Seeds the libraries' generators and calls worker_init_fn. Returns its error, which all batches then raise."""
    try:
        random.seed(seed + number)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed((seed + number) % (1 << 32))
        if start is not None:
            start(number)
    except BaseException as error:
        return error
    return None


# The parent's side.


class _WorkerTraceback(Exception):
    def __init__(self, text):
        super().__init__(text)
        self.text = text

    def __str__(self):
        return f"\n{self.text}"


class Pool:
    """`workers` processes from a multiprocessing context. Each has `make()`, a picklable function that makes its fetch
    function."""

    def __init__(self, context, workers, dataset, make, start):
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
                arguments = (theirs, number, workers, dataset, make, start)
                process = context.Process(target=_main, args=arguments, daemon=True, name=f"pydist-loader-{number}")
                process.start()
                theirs.close()
                self.processes.append(process)
        except BaseException:
            self.close()
            raise

    def submit(self, number, task):
        """Sends a task to a worker."""
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
        """The next message of a worker: ("done", its result) or ("failed", its error). Raises RuntimeError after
        `timeout` seconds, or if the worker has died."""
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
        """The next result of a worker. Raises its error, and as `take`."""
        kind, value = self.take(number, timeout)
        if kind == "done":
            return value
        error, text = value
        if error is None:
            raise RuntimeError(f"DataLoader worker {number} failed:\n{text}")
        raise error from _WorkerTraceback(text)

    def drop_waiting(self, timeout):
        """Takes and drops the results that are still under way after an epoch was left early. Raises RuntimeError as
        `take`."""
        for number in range(len(self.processes)):
            while self.waiting[number]:
                try:
                    self.take(number, timeout)
                except Exception:
                    if not self.grace:  # the worker has died, or hangs
                        raise

    def close(self):
        """Ends the workers after their present task. Workers that are not done within `grace` seconds, one deadline for
        all, are killed."""
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
        deadline = monotonic() + _KILLED  # a worker that hangs in the kernel, such as on a dead disk, is left alone
        for process in late:
            process.join(left())
        self.connections, self.processes = [], []

    def __del__(self):
        if self.connections:
            self.close()


def results(pool, jobs, seed, libraries, ahead, timeout, end, keep):
    """Yields the results of the jobs in order, with `ahead` of them under way for each worker. Job i goes to worker i
    modulo the number of workers, without those whose stream has ended (`end`). The pool is closed at the end unless
    `keep`."""
    pool.epoch += 1
    queue, jobs, turn = deque(), iter(jobs), deque(range(len(pool.processes)))

    def submit():
        if turn and (job := next(jobs, None)) is not None:
            number = turn[0]
            turn.rotate(-1)
            pool.submit(number, (pool.epoch, seed, libraries, job))
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
