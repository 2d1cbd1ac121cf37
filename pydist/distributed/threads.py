"""Ranks as threads of one process: the same collectives and algorithms without a launcher, for tests and
experiments."""

import threading
import traceback

from pydist import _C
from pydist.distributed._group.process_group import _here, destroy_process_group


def run(fn, world, *args):
    """Calls fn(rank, *args) in `world` threads that form a process group. Returns the results by rank.

    In each thread get_rank(), collectives and DistributedDataParallel mean that thread's rank, and random numbers are
    its own. Where a rank raises, the others' collectives raise PeerFailed, and the first error that is not such a
    consequence is raised here.

    >>> import pydist
    >>> def work(rank):
    ...     x = pydist.full((2,), float(rank + 1))
    ...     pydist.distributed.all_reduce(x)
    ...     return x.tolist()
    >>> pydist.distributed.threads.run(work, 2)
    [[3.0, 3.0], [3.0, 3.0]]
    """
    hub = _C.Hub(world)
    results, errors = [None] * world, []

    def body(rank):
        _C._rng_own(True)  # as in a process: a generator of its own
        _C._rng_shard(rank)
        try:
            _here.group = _C.comm_init_hub(hub, rank)
            results[rank] = fn(rank, *args)
        except BaseException as error:
            errors.append(error)
            if getattr(_here, "group", None) is not None:
                _here.group.raised("".join(traceback.format_exception(error)))
        finally:
            destroy_process_group()

    threads = [threading.Thread(target=body, args=(rank,), name=f"rank {rank}", daemon=True) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise next((error for error in errors if not isinstance(error, _C.PeerFailed)), errors[0])
    return results
