"""How the other ranks learn that this one ends: it sends its traceback before it exits, or a goodbye."""

import atexit
import os
import sys

from pydist import _C

_watching = None  # the process in which watch() was called


def _tell(kind, error, trace):
    """Sends the traceback, unless this rank ends only because another rank failed or because of Ctrl-C. An error without
    a traceback ends nothing: C code has printed it and went on (CPython does when it frees certain objects)."""
    if trace is None or issubclass(kind, (KeyboardInterrupt, _C.PeerFailed)):
        return
    import traceback

    _C.comm_raised("".join(traceback.format_exception(kind, error, trace)))


def _at_exit(leave):
    """Runs `leave` when the process exits. Children of multiprocessing end without atexit; they get a hook of
    multiprocessing's."""
    util = sys.modules.get("multiprocessing.util")
    if util is not None and sys.modules["multiprocessing.process"].parent_process() is not None:
        util.Finalize(None, leave, exitpriority=0)
    else:
        atexit.register(leave)


def watch(destroy):
    """Chains sys.excepthook and registers the goodbye, which first calls `destroy`. Takes effect once per process."""
    global _watching
    if _watching == os.getpid():
        return
    chained, _watching = _watching, os.getpid()

    def leave():
        destroy()
        _C.comm_leave()

    _at_exit(leave)
    if chained:  # this process inherited the chained hook by fork
        return
    before = sys.excepthook

    def excepthook(kind, error, trace):
        try:
            _tell(kind, error, trace)
        finally:
            before(kind, error, trace)

    sys.excepthook = excepthook
