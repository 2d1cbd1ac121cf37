"""Errors that cross from one worker to another."""

import pickle
import traceback

from pydist import _C
from pydist.distributed.rpc import _pickling

__all__ = ["RemoteError", "RpcTimeout"]


class RpcTimeout(_C.CommTimeout):
    """A call was not answered in time. The other worker may still run it."""


class RemoteError(RuntimeError):
    """A call raised an exception whose class this process cannot make."""


def pack_error(me, error):
    """The bytes of an exception: its class and attributes if they can be pickled, and its text."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    parts = str(me), repr(error), text
    for made in ((type(error), error.args, error.__dict__), (type(error), (), {}), (None, (), {})):
        try:
            data = pickle.dumps((parts, pickle.dumps(made)))
            pickle.loads(pickle.loads(data)[1])
            return data
        except Exception:
            continue
    return pickle.dumps((parts, pickle.dumps((None, (), {}))))


def unpack_error(parts, made):
    """The exception of `pack_error`: of its class, with PyTorch's text."""
    where, shown, trace = parts
    text = f"On {where}:\n{shown}\n{trace}"
    try:
        kind, args, attributes = _pickling.loads(made, (), ())
    except Exception:  # the class is not here, or its pickle raises
        kind, args, attributes = None, (), {}
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        return RemoteError(text)
    try:
        error = kind(text)
        if str(error) != text and str(error) != repr(text):
            raise TypeError
    except Exception:
        try:
            error = kind(*args)
            if hasattr(error, "add_note"):  # from Python 3.11 on
                error.add_note(text)
        except Exception:
            return RemoteError(text)
    try:
        error.__dict__.update(attributes)
    except Exception:
        return RemoteError(text)
    return error
