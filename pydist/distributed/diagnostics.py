"""Information for waiting ranks: announcements of long tasks, and the flight record."""

import threading
from contextlib import contextmanager
from time import monotonic

from pydist.distributed._group.process_group import current

_here = threading.local()  # .tasks: this thread's open tasks, as (group, name, when it should end)


@contextmanager
def long_task(name, minutes=30, group=None):
    """Tells the other ranks that this rank does something long, so that they do not take it for a hang.

    While the block runs, for at most `minutes`, no wait for this rank ends with CommTimeout, and the warnings of
    waiting ranks show the task's `name` (its first 63 bytes). Blocks may be nested: after the inner block the outer
    block's time counts again. This rank's own waits get no more time. Raises TypeError or ValueError if name is not a
    str or minutes is not a number >= 0.

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
    """The last PYDIST_FLIGHT (64) collectives of this rank as text, one line each, oldest first.

    A line has the operation with dtype, count and reduce operation, the caller's file and line, the collective's
    number, its state (waits, done, failed), how long it took, which ranks it waited for, and when it began. The text is
    "" in a world of one. SIGUSR1 writes the same text to stderr, from a thread of its own, so it also works while
    Python hangs; a SIGUSR1 handler that the user has set is kept. After a CommTimeout the last eight lines are written
    anyway; with PYDIST_LOG=2 all lines are written after every failure.
    """
    return current(group).flight()
