"""What all parts of the facade share: errors, contexts, dtypes and the state of a thread."""

import threading

import numpy as np

import pydist


class MXNetError(RuntimeError):
    """What an operation raises for arguments that do not fit."""


def absent(name, instead=None):
    """The error of a part of MXNet that pydist does not have."""
    return NotImplementedError(f"{name} is not part of pydist" + (f" (expected {instead})" if instead else ""))


def lacking(module, names, instead=None):
    """A module's `__getattr__`, which explains what is not there."""

    def lookup(name):
        if name in names:
            raise absent(f"{module}.{name}", instead)
        raise AttributeError(f"pydist has no {'mxnet' + module.removeprefix('mx')}.{name}")

    return lookup


class State(threading.local):
    """Of one thread: whether autograd records, whether layers train, and the context of the innermost `with`."""

    recording = training = False
    context = None


state = State()


class Context:
    """A device: mx.cpu(i) is the CPU for each i, mx.gpu(i) is pydist's cuda:i. `with ctx:` makes it the default."""

    devtype2str = {1: "cpu", 2: "gpu", 3: "cpu_pinned", 5: "cpu_shared"}
    devstr2type = {name: number for number, name in devtype2str.items()}

    def __init__(self, device_type, device_id=0):
        if isinstance(device_type, Context):
            device_type, device_id = device_type.device_type, device_type.device_id
        if device_type not in self.devstr2type:
            raise KeyError(f"Context: got {device_type!r} (expected one of {', '.join(self.devstr2type)})")
        self.device_type, self.device_id, self._outer = device_type, int(device_id), []
        self.device_typeid = self.devstr2type[device_type]

    @property
    def device(self):
        """pydist's device. Raises MXNetError for a GPU that is not there."""
        if self.device_type != "gpu":
            return pydist.device("cpu")
        if self.device_id >= pydist.cuda.device_count():
            raise MXNetError(f"{self}: got {pydist.cuda.device_count()} GPUs (expected more than {self.device_id})")
        return pydist.device("cuda", self.device_id)

    def __eq__(self, other):
        return isinstance(other, Context) and (self.device_type, self.device_id) == (other.device_type, other.device_id)

    def __hash__(self):
        return hash((self.device_type, self.device_id))

    def __repr__(self):
        return f"{self.device_type}({self.device_id})"

    def __enter__(self):
        self._outer.append(state.context)
        state.context = self
        return self

    def __exit__(self, *error):
        state.context = self._outer.pop()

    def __deepcopy__(self, memo):
        return self


_CPU = Context("cpu")


def current_context():
    """That of the innermost `with ctx:`, otherwise mx.cpu(0)."""
    return state.context or _CPU


_NAMES = "float16 float32 float64 uint8 int8 int32 int64 bool uint16 uint32 uint64 int16".split()
_TO_OURS = {np.dtype(name): getattr(pydist, name) for name in _NAMES if hasattr(pydist, name)}
TO_NUMPY = {ours: theirs.type for theirs, ours in _TO_OURS.items()}


def dtype_of(dtype, default=pydist.float32):
    """pydist's dtype for NumPy's, a name or None."""
    if dtype is None or isinstance(dtype, pydist.dtype):
        return default if dtype is None else dtype
    try:
        return _TO_OURS[np.dtype(dtype)]
    except (KeyError, TypeError):
        raise TypeError(f"dtype: got {dtype!r} (expected one of {', '.join(map(str, _TO_OURS))})") from None


def shape_of(shape):
    """A tuple of ints for an int, or for a sequence of numbers."""
    return (int(shape),) if isinstance(shape, (int, float, np.integer)) else tuple(int(n) for n in shape)
