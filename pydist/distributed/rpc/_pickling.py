"""How the arguments and results of calls become bytes, tensors and references.

Tensors are taken out of the pickle and travel beside it, so their data are not copied into it. References (RRef) are
taken out, too, since each copy of one has to be counted (references.py). A function that the other process cannot
import, such as a lambda or a notebook's, travels by its code.
"""

import copyreg
import io
import pickle
import sys
import threading

from pydist import _C, _by_value

_reading = (
    threading.local()
)  # .tensors, .references: of the message that this thread unpickles; .writes: it pickles one
_of_calls = None  # a pickler in place of this module's for calls, or None
_allowed = None  # None, or the names "module.name" that may be unpickled and called; "module.Class.*" ends with a dot


def is_writing():
    """Whether this thread pickles for a call; for objects that travel in no other way."""
    return getattr(_reading, "writes", False)


def _tensor(index, device):
    tensor = _reading.tensors[index]
    return tensor if device is None else tensor.to(device)


def _subclass(kind, index, device, requires_grad, attributes):
    made = _C.Tensor._make_subclass(kind, _tensor(index, device).detach(), requires_grad)
    if attributes:
        made.__dict__.update(attributes)
    return made


def _reference(index):
    return _reading.references[index]


class _Table(dict):
    """A pickler's dispatch_table: what takes the objects of a class out of the pickle."""

    def __missing__(self, kind):
        if issubclass(kind, _C.Tensor):
            return self[_C.Tensor]
        return copyreg.dispatch_table[kind]


class _Taken:
    """The tensors and references that were taken out of one pickle."""

    def __init__(self, device_of):
        self.tensors, self.references = [], []
        self._numbers, self._device_of = {}, device_of

    def reference(self, rref):
        self.references.append(rref)
        return _reference, (len(self.references) - 1,)

    def tensor(self, tensor):
        if tensor.is_meta:
            return tensor.__reduce_ex__(5)
        device = None if tensor.device.type == "cpu" else self._device_of(tensor)
        index = self._numbers.get(id(tensor))
        if index is None:
            index = self._numbers[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)
        if type(tensor) is _C.Tensor:
            return _tensor, (index, device)
        leaf_grad = tensor.requires_grad and tensor.is_leaf
        return _subclass, (type(tensor), index, device, leaf_grad, tensor.__dict__ or None)


def _pickled(kind, obj, reference_type, device_of):
    buffer, taken = io.BytesIO(), _Taken(device_of)
    pickler = kind(buffer, 5)
    pickler.dispatch_table = _Table({_C.Tensor: taken.tensor, reference_type: taken.reference})
    before, _reading.writes = is_writing(), True
    try:
        pickler.dump(obj)
    finally:
        _reading.writes = before
    return buffer.getvalue(), taken.tensors, taken.references


def set_pickler(pickler):
    """Lets pickler.serialize(PythonUDF) -> (bytes, tensors) write the calls of this process. None: as usual."""
    global _of_calls
    _of_calls = pickler


def dumps_call(call, reference_type, device_of):
    """The same as dumps() for a call, (function, args, kwargs, ...). Another pickler leaves out what stands after these."""
    if _of_calls is None:
        return dumps(call, reference_type, device_of)
    from pydist.distributed.rpc.internal import PythonUDF

    data, tensors = _of_calls.serialize(PythonUDF(*call[:3]))
    return data, list(tensors), []


def dumps(obj, reference_type, device_of):
    """(bytes, tensors, references) of an object. device_of(tensor): the device on which the receiver wants a tensor
    that is on a GPU."""
    if type(obj) is _C.Tensor and obj.device.type == "cpu":
        return b"", [obj], []
    if _allowed is not None or not _by_value.main_is_lost():
        try:
            return _pickled(pickle.Pickler, obj, reference_type, device_of)
        except (pickle.PicklingError, AttributeError):  # perhaps a function that cannot be imported
            if _allowed is not None:
                raise
    return _pickled(_by_value._Pickler, obj, reference_type, device_of)


_PLAIN = {  # classes and functions that do nothing but hold what they are given, and the package's own
    "collections.OrderedDict", "builtins.set", "builtins.frozenset", "builtins.complex", "builtins.slice", "builtins.range",
    "builtins.bytearray", "pydist.Size", "pydist._C.dtype", "pydist._C.device",
    "pydist.sparse._rebuilt",
    "pydist.distributed.rpc._agent.WorkerInfo", "pydist.distributed.optim.optimizer._make",
    "pydist.distributed.optim.optimizer._step",
    "pydist.distributed.rpc.rref._backward", "pydist.distributed.rpc.rref._call_method", "pydist.distributed.rpc.rref._check_method",
    "pydist.distributed.rpc.rref._fetch", "pydist.distributed.rpc.rref._rref_typeof_on_owner",
    "pydist.distributed.rpc._spans.Reported",
}  # fmt: skip
_OWN = {__name__, "pydist.distributed.autograd._contexts", "pydist.distributed.autograd._passes"}


def _is_plain(module, name):
    if module in _OWN or f"{module}.{name}" in _PLAIN:
        return True
    if module in ("pydist", "pydist._C") and isinstance(getattr(_C, name, None), type(_C.add)):
        return True  # an op, which takes and gives tensors and numbers
    found = getattr(sys.modules.get(module), name, None)
    errors = module in ("builtins", "_pickle", "pydist", "pydist.distributed.rpc._errors")
    return errors and isinstance(found, type) and issubclass(found, Exception)


def check(full):
    """Raises UnpicklingError unless other workers may call this function or class, "module.name"."""
    if _allowed is None or full in _allowed or any(entry[-1] == "." and full.startswith(entry) for entry in _allowed):
        return
    raise pickle.UnpicklingError(
        f"rpc: {full} is not in the list of what may be called (expected PYDIST_RPC_ALLOW or rpc.allow() to name it)"
    )


class _Restricted(pickle.Unpickler):
    def find_class(self, module, name):
        if not _is_plain(module, name):
            from pydist.serialization import get_safe_globals

            full = f"{module}.{name}"
            found = next((e for e in get_safe_globals() if f"{e.__module__}.{e.__qualname__}" == full), None)
            if found is not None:
                return found
            check(full)
        return super().find_class(module, name)


def loads(data, tensors, references):
    """The object of `dumps`."""
    if not data:
        return tensors[0]
    before = getattr(_reading, "tensors", None), getattr(_reading, "references", None)
    _reading.tensors, _reading.references = tensors, references
    try:
        return pickle.loads(data) if _allowed is None else _Restricted(io.BytesIO(data)).load()
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{error}, which a message of another worker names (expected it in this worker's sys.path, which begins with "
            f"{', '.join(sys.path[:3])})",
            name=error.name,
        ) from None
    finally:
        _reading.tensors, _reading.references = before


def allow(names):
    """Lets other workers call only these functions and make only these classes, beside the engine's own ops: names such
    as "module.function" and "module.Class.*". None: everything. Call it before init_rpc."""
    global _allowed
    if names is None:
        _allowed = None
        return
    names = list(names)
    for name in names:
        if not isinstance(name, str) or "." not in name:
            raise ValueError(f"rpc.allow: {name!r} (expected 'module.function' or 'module.Class.*')")
    _allowed = {name[:-1] if name.endswith(".*") else name for name in names}
