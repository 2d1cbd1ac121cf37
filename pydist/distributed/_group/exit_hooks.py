"""How this rank's end becomes known to the others: its traceback before it exits, or a goodbye."""

import atexit
import os
import sys

from pydist import _C

_watching = None  # the process that is watched


def _tell(kind, error, trace):
    """Sends the traceback, unless this rank only ends because of another one or of Ctrl-C."""
    if issubclass(kind, (KeyboardInterrupt, _C.PeerFailed)):
        return
    import traceback

    _C.comm_raised("".join(traceback.format_exception(kind, error, trace)))


def _at_exit(leave):
    """multiprocessing ends its children without atexit."""
    util = sys.modules.get("multiprocessing.util")
    if util is not None and sys.modules["multiprocessing.process"].parent_process() is not None:
        util.Finalize(None, leave, exitpriority=0)
    else:
        atexit.register(leave)


def watch(destroy):
    """Chains sys.excepthook and registers the goodbye, which first calls `destroy`. Once per process."""
    global _watching
    if _watching == os.getpid():
        return
    chained, _watching = _watching, os.getpid()

    def leave():
        destroy()
        _C.comm_leave()

    _at_exit(leave)
    if chained:  # inherited by fork
        return
    before = sys.excepthook

    def excepthook(kind, error, trace):
        try:
            _tell(kind, error, trace)
        finally:
            before(kind, error, trace)

    sys.excepthook = excepthook
