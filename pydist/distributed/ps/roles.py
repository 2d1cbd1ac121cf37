"""Jobs that are started as ps-lite's and MXNet's: one process for each role, told by DMLC_* variables.

DMLC_ROLE is worker, server or scheduler; DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT say where the scheduler listens, DMLC_NUM_WORKER
and DMLC_NUM_SERVER how many others there are. Workers come in any order and get their ranks from the scheduler, or from
DMLC_WORKER_ID. The values lie in the workers' memory (see the package), so scheduler and servers only wait until all workers have
ended, and then end.
"""

import atexit
import os
import sys
import time
from datetime import timedelta

from pydist._C import DistError
from pydist.distributed._group.process_group import init_process_group, is_initialized
from pydist.distributed.tcp_store import TCPStore

_NAMES = ("DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT", "DMLC_NUM_WORKER", "DMLC_NUM_SERVER")
_ROLES = ("worker", "server", "scheduler")
_LONG = timedelta(days=365)


def _number(name, least, most):
    text = os.environ[name]
    if not text.isdigit() or not least <= int(text) <= most:
        raise ValueError(f"{name} is {text!r} (expected a number from {least} to {most})")
    return int(text)


def _place():
    """(host, port, workers, servers). Raises RuntimeError that names the variable that is missing."""
    for name in _NAMES:
        if not os.environ.get(name):
            there = [n for n in ("DMLC_ROLE", *_NAMES) if os.environ.get(n)]
            raise RuntimeError(
                f"{name} is not set, but {', '.join(there)} are (expected all of DMLC_ROLE, {', '.join(_NAMES)})"
            )
    workers, servers = _number("DMLC_NUM_WORKER", 1, 256), _number("DMLC_NUM_SERVER", 0, 256)
    return os.environ["DMLC_PS_ROOT_URI"], _number("DMLC_PS_ROOT_PORT", 1, 65535), workers, servers


def take_part():
    """Joins the job that DMLC_ROLE speaks of, unless this process is in one. A server or scheduler waits here until all workers
    have ended, and then ends the process with code 0."""
    role = os.environ.get("DMLC_ROLE")
    if not role or is_initialized() or "RANK" in os.environ:
        return
    if role not in _ROLES:
        raise ValueError(f"DMLC_ROLE is {role!r} (expected one of {', '.join(_ROLES)})")
    host, port, workers, servers = _place()
    if role == "worker":
        _work(host, port, workers)
    else:
        _serve(role, host, port, workers, servers)
        sys.exit(0)


def _work(host, port, workers):
    store = TCPStore(host, port, wait_for_workers=False)
    own = os.environ.get("DMLC_WORKER_ID")
    rank = _number("DMLC_WORKER_ID", 0, workers - 1) if own else store.add("dmlc/rank", 1) - 1
    if rank >= workers:
        raise DistError(f"DMLC_NUM_WORKER is {workers}, and this is worker number {rank + 1}")

    def end():
        try:
            store.add("dmlc/ended", 1)
        except Exception:  # the scheduler has been ended by hand
            pass

    atexit.register(end)
    init_process_group(store=store, rank=rank, world_size=workers)


def _serve(role, host, port, workers, servers):
    """The scheduler has the store. It ends last, so that the others hear of the end."""
    master = role == "scheduler"
    store = TCPStore(host, port, is_master=master, timeout=_LONG, wait_for_workers=False)
    if master:
        _wait_for(store, "dmlc/ended", workers)
        store.set("dmlc/over", "1")
        _wait_for(store, "dmlc/servers", servers)
    else:
        store.get("dmlc/over")
        store.add("dmlc/servers", 1)


def _wait_for(store, key, count):
    while store.add(key, 0) < count:
        time.sleep(0.02)
