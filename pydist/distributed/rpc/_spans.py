"""Spans of calls for the profiler: how long a call took at its caller, and what its callee did for it.

A caller whose thread or process is profiled asks the callee to record the call, too. The callee records the thread that
runs it, and the calls that this thread makes, and sends the rows along with the answer. Times travel as times of the
clock that all workers of a host share; between hosts they are as exact as the hosts' clocks agree.
"""

import time

from pydist import _C
from pydist.profiler.calls import Listener, listeners
from pydist.profiler.session import epoch

REMOTE_OP = "#remote_op: "
_MOST = 100_000  # events of one call at most

_Op = type(_C.add)  # the class of the engine's functions


def key_of(how, func, caller, callee):
    """The name of a call's span: "rpc_sync#aten::add(worker0 -> worker1)". func: a function or its name."""
    if isinstance(func, _Op):
        func = f"aten::{func.__name__}"
    elif not isinstance(func, str):
        func = getattr(func, "__qualname__", None) or type(func).__qualname__
    return f"rpc_{how}#{func}({caller} -> {callee})"


class Span:
    """A call under way, seen by its caller. how: sync, async or remote."""

    __slots__ = ("_begin", "_key", "_rank", "_to", "_who")

    def __init__(self, how, func, caller, callee):
        self._key = key_of(how, func, caller.name, callee.name)
        self._rank, self._to, self._who = caller.id, callee.id, listeners()
        self._begin = time.monotonic_ns()

    def asked(self):
        """What the callee is asked to record: (shapes, memory)."""
        return any(one.shapes for one in self._who), any(one.memory for one in self._who)

    def end(self, value):
        """The call has ended, with this value or without one. Returns the value without what came along."""
        now = time.monotonic_ns()
        dropped = 0
        rows = [(self._key, "rpc", self._to, self._begin, now, 0, 0, 0, None, None, "", self._rank)]
        if isinstance(value, Reported):
            shift = value.epoch - epoch()
            prefix = self._key + REMOTE_OP
            for name, kind, lane, begin, end, moved, held, _, shapes, _, before, rank in value.rows:
                rows.append((name, kind, lane, begin + shift, end + shift, moved, held, 0, shapes, None, prefix + before, rank))  # fmt: skip
            dropped, value = value.dropped, value.value
        for one in self._who:
            one.rows.extend(rows)
            one.dropped += dropped
        return value


class Reported:
    """A call's value, and the rows that its callee has recorded. epoch: of the callee, see pydist.profiler.session."""

    def __init__(self, value, rows, dropped):
        self.value, self.rows, self.dropped, self.epoch = value, rows, dropped, epoch()


class Record:
    """What a callee records of a call: `with` it, in the thread that runs the call. Calls that the function has made may
    end later."""

    def __init__(self, rank, shapes, memory):
        self._rank, self._listener = rank, Listener(shapes, memory, True)

    def __enter__(self):
        most = _MOST, self._listener.shapes, self._listener.memory, False, False, False, True
        self._recording = _C._profile_start(*most)
        self._listener.start()

    def __exit__(self, *_):
        self._listener.stop()
        rows, dropped, _ = _C._profile_stop(self._recording, False)
        self._listener.dropped += dropped
        self._listener.rows.extend((*row[:7], 0, row[8], None, "", self._rank) for row in rows)

    def report(self, value):
        """What is answered in place of the value."""
        return Reported(value, self._listener.rows, self._listener.dropped)
