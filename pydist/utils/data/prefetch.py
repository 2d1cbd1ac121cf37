"""Threads that work ahead; their results are taken in order.

They are threads, not processes: the engine never forks, and loading is mostly the engine's own copies, decoding and
I/O, which release the interpreter lock.
"""

import threading
from collections import deque, namedtuple
from contextlib import suppress
from itertools import islice
from queue import Empty, SimpleQueue
from time import monotonic

GRACE = 5.0  # seconds for all workers of a loader together to end their tasks

WorkerInfo = namedtuple("WorkerInfo", ("id", "num_workers", "seed", "dataset"))


class _Here(threading.local):
    info = None


_here = _Here()


def get_worker_info():
    """In a loader's worker its (id, num_workers, seed, dataset), elsewhere None. The seed is the epoch's seed plus
    id."""
    return _here.info


class _Job:
    __slots__ = ("task", "result", "error", "done")

    def __init__(self, task):
        self.task = task
        self.result = self.error = None
        self.done = threading.Event()


class _Worker(threading.Thread):
    """Takes jobs from a queue until it gets None. If `start` raises, all its jobs raise that error."""

    def __init__(self, jobs, work, start, info):
        super().__init__(name=f"pydist-loader-{info.id}", daemon=True)
        self.jobs, self.work, self.begin, self.info = jobs, work, start, info

    def run(self):
        _here.info = self.info
        failed = None
        try:
            self.begin(self.info.id)
        except BaseException as error:
            failed = error
        while (job := self.jobs.get()) is not None:
            try:
                if failed is not None:
                    raise failed
                job.result = self.work(job.task)
            except BaseException as error:
                job.error = error
            job.done.set()


def _take(job, timeout):
    """The job's result. Raises its error with the worker's traceback."""
    if not job.done.wait(timeout):
        raise TimeoutError
    if job.error is None:
        return job.result
    error, job.error = job.error, None
    try:
        raise error
    finally:
        del error  # the traceback refers to this frame


def prefetch(tasks, work, start, workers, ahead, timeout, seed, dataset):
    """Yields work(task) for each task, in order. `workers` threads compute the results, up to `ahead` tasks before they
    are needed. Each thread calls `start(its number)` first. An error is raised in the place of its result, and ends the
    rest.

    When the generator ends, is closed or is deleted, the threads finish their present tasks and are joined, which may
    take GRACE seconds in all. If a result does not come within `timeout` seconds (RuntimeError), or Ctrl-C ends the
    program, they are left to end by themselves.
    """
    jobs, pending, tasks = SimpleQueue(), deque(), iter(tasks)
    threads = [_Worker(jobs, work, start, WorkerInfo(i, workers, seed + i, dataset)) for i in range(workers)]

    def submit(count):
        for task in islice(tasks, count):
            pending.append(_Job(task))
            jobs.put(pending[-1])

    grace = GRACE
    try:
        for thread in threads:
            thread.start()
        submit(ahead)
        while pending:
            try:
                result = _take(pending.popleft(), timeout)
            except TimeoutError:
                grace = 0.0
                raise RuntimeError(f"DataLoader timed out after {timeout} seconds") from None
            submit(1)
            yield result
    except (KeyboardInterrupt, SystemExit):
        grace = 0.0
        raise
    finally:
        with suppress(Empty):
            while True:
                jobs.get_nowait()
        for _ in threads:
            jobs.put(None)
        deadline = monotonic() + grace
        for thread in threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - monotonic()))
