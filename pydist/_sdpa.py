"""What computes scaled_dot_product_attention: the engine, or in some threads another function, such as context_parallel's,
for a block's time. Outside of all such blocks the engine is called directly."""

import threading
from contextlib import contextmanager

from pydist import _C

_engine = _C.scaled_dot_product_attention
_lock = threading.Lock()
_blocks = 0  # in all threads


class _Here(threading.local):
    forms = ()  # (what is called, who asked for it), the innermost last


_here = _Here()
attend = _engine


def _by_thread(*args):
    return _here.forms[-1][0](*args) if _here.forms else _engine(*args)


@contextmanager
def computed_by(form, name):
    """A block in which this thread calls `form`, with the op's eight arguments, in the op's place. name: for errors."""
    global attend, _blocks
    before = _here.forms
    with _lock:
        _blocks += 1
        attend = _by_thread
    _here.forms = (*before, (form, name))
    try:
        yield
    finally:
        _here.forms = before
        with _lock:
            _blocks -= 1
            if not _blocks:
                attend = _engine


def check_whole(op, what):
    """Raises RuntimeError inside such a block: `op` would compute `what` from this rank's part alone."""
    if _here.forms:
        raise RuntimeError(
            f"{op}: {what} inside {_here.forms[-1][1]} (expected scaled_dot_product_attention, which knows all ranks' keys)"
        )
