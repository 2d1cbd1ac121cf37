"""What keeps waiting ranks informed: long tasks that announce themselves, and the flight record."""

import threading
from contextlib import contextmanager
from time import monotonic

from pydist.distributed._group.process_group import current

_here = threading.local()  # .tasks: those of this thread that are under way, as (group, name, when it should end)


@contextmanager
def long_task(name, minutes=30, group=None):
    """Tells the other ranks that this one does something long, which they then do not take for a hang.

    While the block runs, for `minutes` at most, no wait for this rank ends with CommTimeout, and the warnings of those
    who wait give the task's `name` (63 bytes of it). Blocks may be nested: after the inner one the outer one's time
    counts again. Its own waits are not longer. Raises TypeError or ValueError for other than text and minutes >= 0.

    >>> from pydist import distributed as dist
    >>> with dist.long_task("tokenise", minutes=30):
    ...     pass  # what only this rank does
    """
    if not isinstance(name, str):
        raise TypeError(f"long_task: name is {type(name).__name__} (expected a str)")
    group, seconds = current(group), float(minutes) * 60
    group.task(name, seconds)  # raises where it is negative or NaN
    tasks = _here.__dict__.setdefault("tasks", [])
    tasks.append((group, name, monotonic() + seconds))
    try:
        yield
    finally:
        tasks.pop()
        outer = next((task for task in reversed(tasks) if task[0] is group), None)
        if outer:
            group.task(outer[1], max(0.0, outer[2] - monotonic()))
        else:
            group.task("", 0)


def flight_record(group=None):
    """The last PYDIST_FLIGHT (64) collectives of this rank as text, a line each, oldest first.

    A line: operation with dtype, count and reduce operation, the caller's file and line, its number, how it stands
    (waits, done, failed), how long it took, for whom it waited, and when it began. "" in a world of one. SIGUSR1 writes
    the same to stderr, from a thread of its own, so also where Python hangs; a handler of the user's is left alone.
    After a CommTimeout the last eight lines are written anyway, with PYDIST_LOG=2 all of them after every failure.
    """
    return current(group).flight()
