"""Who wants to know of calls to other workers (pydist.distributed.rpc): profilers of this process or of one thread.

A profiler that records calls puts a Listener up while it runs. Who makes a call asks `listeners()`, and gives each of
them the rows of what it finds: the call itself, and what the other worker has done for it.
"""

import threading

__all__ = ["Listener", "listeners"]

listening = 0  # how many listeners there are in this process; who makes a call looks here first
_everywhere = []  # those of the process
_lock = threading.Lock()


class _Here(threading.local):
    mine = ()  # those of this thread


_here = _Here()


class Listener:
    """Collects rows of events, as `_C._profile_stop` gives them, each with two more items: what stands before the name,
    and the id of the worker where it was; `dropped`: how many there were for which there was no room. `shapes`, `memory`:
    what it wants to know of ops. Listens to the whole process or
    to the thread that starts it."""

    __slots__ = ("dropped", "memory", "rows", "shapes", "this_thread")

    def __init__(self, shapes, memory, this_thread):
        self.shapes, self.memory, self.this_thread = shapes, memory, this_thread
        self.rows, self.dropped = [], 0

    def start(self):
        """Listens from now on."""
        global listening
        if self.this_thread:
            _here.mine = (*_here.mine, self)
        with _lock:
            listening += 1
            if not self.this_thread:
                _everywhere.append(self)

    def stop(self):
        """Listens no more. A call that is under way is not recorded."""
        global listening
        if self.this_thread:
            _here.mine = tuple(one for one in _here.mine if one is not self)
        with _lock:
            listening -= 1
            if not self.this_thread:
                _everywhere.remove(self)


def listeners():
    """The listeners of this thread and of the process."""
    return [*_everywhere, *_here.mine] if listening else []
