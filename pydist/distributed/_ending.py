"""How this rank's end becomes known to the others: its traceback before it exits, or a goodbye."""

import atexit
import sys

from pydist import _C

_watching = False


def _tell(kind, error, trace):
    """Sends the traceback, unless this rank only ends because of another one or of Ctrl-C."""
    if issubclass(kind, (KeyboardInterrupt, _C.PeerFailed)):
        return
    import traceback

    _C.comm_raised("".join(traceback.format_exception(kind, error, trace)))


def watch(destroy):
    """Chains sys.excepthook and registers the goodbye, which first calls `destroy`. Once per process."""
    global _watching
    if _watching:
        return
    _watching = True
    before = sys.excepthook

    def excepthook(kind, error, trace):
        try:
            _tell(kind, error, trace)
        finally:
            before(kind, error, trace)

    sys.excepthook = excepthook
    atexit.register(_C.comm_leave)
    atexit.register(destroy)
