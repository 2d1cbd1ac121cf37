"""Ranks as threads of one process: the same collectives and algorithms without a launcher, for tests and
experiments."""

import threading
import traceback
from time import monotonic

from pydist import _C
from pydist.distributed._group.process_group import _here, destroy_process_group


class Together:
    """Runs body(rank) in `world` threads. `results` by rank; `errors` {rank: exception} in the order in which they
    came."""

    def __init__(self, world, body):
        self.results, self.errors, self._body = [None] * world, {}, body
        self.threads = [
            threading.Thread(target=self._run, args=(rank,), name=f"rank {rank}", daemon=True) for rank in range(world)
        ]
        for thread in self.threads:
            thread.start()

    def _run(self, rank):
        try:
            self.results[rank] = self._body(rank)
        except BaseException as error:
            self.errors[rank] = error

    def join(self, timeout=None):
        """Waits for all threads, at most `timeout` seconds. Returns the ranks that have not ended."""
        deadline = None if timeout is None else monotonic() + timeout
        for thread in self.threads:
            thread.join(None if deadline is None else max(0.0, deadline - monotonic()))
        return [rank for rank, thread in enumerate(self.threads) if thread.is_alive()]


class Ranks(Together):
    """Runs fn(rank, *args) in threads that form a process group."""

    def __init__(self, world, fn, args=()):
        self._hub, self._fn, self._args, self._groups = _C.Hub(world), fn, args, {}
        super().__init__(world, self._as_rank)

    def _as_rank(self, rank):
        _C._rng_own(True)  # its own random generator, as in a process
        _C._rng_shard(rank)
        try:
            _here.group = self._groups[rank] = _C.comm_init_hub(self._hub, rank)
            return self._fn(rank, *self._args)
        except BaseException as error:
            self.end(rank, "".join(traceback.format_exception(error)))
            raise
        finally:
            self._groups.pop(rank, None)
            destroy_process_group()

    def end(self, rank, why):
        """Tells the other ranks that this one has ended: their collectives raise PeerFailed with this text."""
        if (group := self._groups.get(rank)) is not None:
            group.raised(why)


def run(fn, world, *args):
    """Calls fn(rank, *args) in `world` threads that form a process group. Returns the results by rank.

    In each thread get_rank(), collectives and DistributedDataParallel mean that thread's rank, and it has its own
    random numbers. If a rank raises, the others' collectives raise PeerFailed, and run() raises the first error that is
    not such a consequence. `pydist.testing.run_ranks` also has a time limit and can run processes.

    >>> import pydist
    >>> def work(rank):
    ...     x = pydist.full((2,), float(rank + 1))
    ...     pydist.distributed.all_reduce(x)
    ...     return x.tolist()
    >>> pydist.distributed.threads.run(work, 2)
    [[3.0, 3.0], [3.0, 3.0]]
    """
    ranks = Ranks(world, fn, args)
    ranks.join()
    errors = list(ranks.errors.values())
    if errors:
        raise next((error for error in errors if not isinstance(error, _C.PeerFailed)), errors[0])
    return ranks.results
