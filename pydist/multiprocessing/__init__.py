"""Python's multiprocessing, with tensors that travel through queues, pipes and arguments of processes without a copy.

pydist sends the descriptor of the memory: sender and receiver see the same elements, as with PyTorch. The sender has
to live until the receiver has taken the tensor.

>>> from pydist import multiprocessing as mp
>>> mp.get_sharing_strategy()
'file_descriptor'
"""

import multiprocessing as _multiprocessing
from multiprocessing import *

from pydist.multiprocessing.reductions import init_reductions
from pydist.multiprocessing.spawn import (
    ProcessContext,
    ProcessException,
    ProcessExitedException,
    ProcessRaisedException,
    SpawnContext,
    spawn,
    start_processes,
)

__all__ = [
    *_multiprocessing.__all__,
    "ProcessContext",
    "ProcessException",
    "ProcessExitedException",
    "ProcessRaisedException",
    "SpawnContext",
    "get_all_sharing_strategies",
    "get_sharing_strategy",
    "set_sharing_strategy",
    "spawn",
    "start_processes",
]

_supports_context = True  # from Python 2's time: old data loaders check it
init_reductions()


def get_all_sharing_strategies():
    """{'file_descriptor'}: memory has no name, so nothing is left behind when processes die."""
    return {"file_descriptor"}


def get_sharing_strategy():
    """ "file_descriptor", the only strategy."""
    return "file_descriptor"


def set_sharing_strategy(new_strategy):
    """Accepts "file_descriptor". Also accepts "file_system", because scripts ask for it; "file_descriptor" serves
    it."""
    if new_strategy not in ("file_descriptor", "file_system"):
        raise ValueError(f"set_sharing_strategy: got {new_strategy!r} (expected 'file_descriptor')")
