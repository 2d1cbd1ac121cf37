"""How a call becomes bytes and tensors, for programs that serialize by themselves; and the names of calls in profiles."""

import enum
import typing

from pydist.distributed.rpc import _agent, _pickling, _spans
from pydist.distributed.rpc.rref import RRef

__all__ = ["PythonUDF", "RPCExecMode", "deserialize", "serialize"]


class RPCExecMode(enum.Enum):
    """The ways to call, as in the names of profiled calls."""

    SYNC = "sync"
    ASYNC = "async"
    ASYNC_JIT = "async_jit"
    REMOTE = "remote"


class PythonUDF(typing.NamedTuple):
    """A function and its arguments."""

    func: typing.Any
    args: typing.Any
    kwargs: typing.Any


class _InternalRPCPickler:
    """What calls use unless `rpc.api._use_rpc_pickler` names another one."""

    def serialize(self, obj):
        """(bytes, tensors): the pickle of an object without the tensors in it, and these."""
        data, tensors, references = _pickling.dumps(obj, RRef, lambda tensor: tensor.device)
        if references and not _agent.is_current():
            raise RuntimeError("Cannot call fork an UserRRef after deletion. (expected serialize before shutdown())")
        if references:
            raise RuntimeError("serialize: got an RRef (expected it in a call, where its copies are counted)")
        return data, tensors

    def deserialize(self, data, tensors):
        """The object of `serialize`. Raises RuntimeError if a function or class in it is not known here."""
        return _pickling.loads(data, tensors, [])


_internal_rpc_pickler = _InternalRPCPickler()


def serialize(obj):
    """(bytes, tensors) of an object: its pickle without the tensors in it, and these.

    >>> import pydist
    >>> from pydist.distributed.rpc import internal
    >>> data, tensors = internal.serialize({"x": pydist.ones(2), "n": 3})
    >>> len(tensors), internal.deserialize(data, tensors)["n"]
    (1, 3)
    """
    return _internal_rpc_pickler.serialize(obj)


def deserialize(data, tensors):
    """The object of `serialize`."""
    return _internal_rpc_pickler.deserialize(data, tensors)


def _build_rpc_profiling_key(exec_type, func_name, current_worker_name, dst_worker_name):
    """The name of a call in a profile: "rpc_sync#function(worker0 -> worker1)"."""
    return _spans.key_of(exec_type.value, func_name, current_worker_name, dst_worker_name)
