"""Errors that cross from one worker to another."""

import contextlib
import pickle
import traceback

from pydist import _C
from pydist._notes import note
from pydist.distributed.rpc import _pickling

__all__ = ["RemoteError", "RpcTimeout"]


class RpcTimeout(_C.CommTimeout):
    """A call was not answered in time. The other worker may still run it."""


class RemoteError(RuntimeError):
    """A call raised an exception whose class this process cannot make."""


def shown(error):
    """repr(error), which user code may have made one that raises."""
    try:
        return repr(error)
    except Exception as failure:
        return f"{type(error).__name__}, whose repr raises {type(failure).__name__}"


_HOPS = 8  # callers of callers whose tracebacks an error carries, at each end of the chain
_TEXT = 32_000  # characters of one worker's text


def _cut(text):
    """The ends of a long text, since one that repeats its cause's would double with each caller."""
    return text if len(text) <= _TEXT else f"{text[: _TEXT // 2]}\n[...]\n{text[-_TEXT // 2 :]}"


def _told(me, error):
    """(what the error says where it was raised, [what each worker adds through which it has come])."""
    origin, hops = getattr(error, "_rpc_told", (None, []))
    if origin is None:
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        lines = shown(error).replace("\\n", "\n")  # a text of several lines stays one
        return _cut(f"On {me}:\n{lines}\n{trace}"), []
    hop = _cut(f"\nOn {me}, which waited for that:\n{''.join(traceback.format_tb(error.__traceback__))}")
    if len(hops) == 2 * _HOPS:
        hops = hops[:_HOPS] + hops[_HOPS + 1 :]
    return origin, [*hops, hop]


def pack_error(me, error):
    """The bytes of an exception: its class and attributes if they can be pickled, and its text."""
    parts = _told(me, error)
    attributes = {name: value for name, value in error.__dict__.items() if name != "_rpc_told"}
    for made in ((type(error), error.args, attributes), (type(error), (), {}), (None, (), {})):
        try:
            data = pickle.dumps((parts, pickle.dumps(made)))
            pickle.loads(pickle.loads(data)[1])
            return data
        except Exception:
            continue
    return pickle.dumps((parts, pickle.dumps((None, (), {}))))


def unpack_error(parts, made):
    """The exception of `pack_error`: of its class, with PyTorch's text."""
    origin, hops = parts
    between = "\n(more workers between)\n" if len(hops) == 2 * _HOPS else ""
    error = _made("".join([origin, *hops[:_HOPS], between, *hops[_HOPS:]]), made)
    with contextlib.suppress(Exception):  # a class that takes no attributes
        error._rpc_told = parts
    return error


def _made(text, made):
    """The exception with this text."""
    lost = RemoteError(
        "rpc: the exception cannot be made here (expected its class to be known, and to take its args). Original exception "
        f"on remote side was: {text}"
    )
    try:
        kind, args, attributes = _pickling.loads(made, (), ())
    except Exception:  # the class is not here, or its pickle raises
        kind, args, attributes = None, (), {}
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        return lost
    try:
        error = kind(text)
        if str(error) != text and str(error) != repr(text):
            raise TypeError
    except Exception:
        try:
            error = kind(*args)
            note(error, text)
        except Exception:
            return lost
    try:
        error.__dict__.update(attributes)
    except Exception:
        return lost
    return error
