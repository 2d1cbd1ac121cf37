"""Names of older PyTorch scripts: `FloatTensor(2, 3)`, `Variable(x)`, `x.type("torch.LongTensor")`, `x.new(3)`,
`x.random_(10)`. They are thin names over today's functions. Importing this module adds the methods to Tensor."""

from pydist import _C
from pydist._C import Tensor

_DTYPES = {
    "FloatTensor": _C.float32,
    "DoubleTensor": _C.float64,
    "HalfTensor": _C.float16,
    "BFloat16Tensor": _C.bfloat16,
    "LongTensor": _C.int64,
    "IntTensor": _C.int32,
    "ShortTensor": _C.int16,
    "CharTensor": _C.int8,
    "ByteTensor": _C.uint8,
    "BoolTensor": _C.bool,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def _made(dtype, args, device=None):
    """Sizes give an uninitialised tensor; any other argument gives a tensor of its elements, as `Tensor(...)` does."""
    if not args or all(isinstance(arg, int) for arg in args) or len(args) == 1 and isinstance(args[0], _C.Size):
        return _C.empty(*args if args else (0,), dtype=dtype, device=device)
    if len(args) > 1:
        raise TypeError(f"{_NAMES[dtype]}: got {len(args)} arguments (expected sizes, or one sequence or array)")
    if not isinstance(args[0], Tensor):
        return _C.tensor(args[0], dtype=dtype, device=device)
    return args[0].detach().to(device or args[0].device, dtype)


class _TypedTensor(type):
    """FloatTensor and the like: calls make tensors, isinstance checks the dtype."""

    def __call__(cls, *args, device=None):
        return _made(cls.dtype, args, device or cls.device or "cpu")

    def __instancecheck__(cls, obj):
        return isinstance(obj, Tensor) and obj.dtype is cls.dtype and (cls.device is None or _C.pretended_cuda() > 0)


def __getattr__(name):
    if name not in _DTYPES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    doc = f"{name}(*sizes) or {name}(data): a tensor of {_DTYPES[name]}. Today: pydist.empty, pydist.tensor."
    made = globals()[name] = _typed(name, doc, "pydist", None)
    return made


def _typed(name, doc, module, device):
    return _TypedTensor(name, (), {"dtype": _DTYPES[name], "device": device, "__doc__": doc, "__module__": module})


def on_cuda(name):
    """cuda.FloatTensor and the like. Calls raise RuntimeError if there is no CUDA device."""
    return _typed(name, f"cuda.{name}(*sizes) or (data): {name} on the current GPU.", "pydist.cuda", "cuda")


def set_default_tensor_type(t):
    """set_default_dtype, with "torch.DoubleTensor" or pydist.DoubleTensor as the argument. Raises TypeError for integer
    types, RuntimeError for types of a GPU if there is no GPU."""
    name = t if isinstance(t, str) else f"{t.__module__}.{t.__name__}"
    dtype = _DTYPES.get(name.rpartition(".")[2])
    if dtype is None or not dtype.is_floating_point:
        raise TypeError(f"set_default_tensor_type: {name} (expected a floating tensor type, such as FloatTensor)")
    if ".cuda." in name:
        _C.empty(0, device="cuda")
    _C.set_default_dtype(dtype)


class _VariableType(type):
    def __call__(cls, data, requires_grad=False, volatile=False):
        if not isinstance(data, Tensor):
            raise TypeError(f"Variable: data is {type(data).__name__} (expected a Tensor)")
        made = data.detach() if not data.requires_grad else data
        return made.requires_grad_() if requires_grad else made

    def __instancecheck__(cls, obj):
        return isinstance(obj, Tensor)


class Variable(metaclass=_VariableType):
    """Variable(data, requires_grad=False): the tensor itself, over the same memory. In PyTorch, tensors have been
    variables since 2018.

    >>> import pydist
    >>> x = pydist.autograd.Variable(pydist.ones(2), requires_grad=True)
    >>> x.requires_grad, isinstance(x, pydist.autograd.Variable)
    (True, True)
    """


def _method(f):
    setattr(Tensor, f.__name__, f)
    return f


def _type(self, dtype=None, non_blocking=False):
    """Without an argument the name, such as "torch.FloatTensor"; otherwise the tensor in another dtype, given as a
    dtype or by such a name."""
    if dtype is None:
        return f"torch.{_NAMES[self.dtype]}"
    if isinstance(dtype, str):
        name = dtype.rpartition(".")[2]
        if name not in _DTYPES or (".cuda." in dtype and not _C.pretended_cuda()):
            raise ValueError(f"type: {dtype!r} (expected a name such as 'torch.FloatTensor')")
        dtype = _DTYPES[name]
    return self.to(getattr(dtype, "dtype", dtype))


Tensor.type = _type


# NumPy's numbers and arrays leave operators to tensors (np.float64(2) * x is a tensor with its history), and NumPy's
# functions of a tensor return tensors.
Tensor.__array_priority__ = 1000


@_method
def __array_wrap__(self, array, context=None, return_scalar=False):
    """The result of a NumPy function as a tensor; the array itself if tensors do not have its dtype."""
    try:
        return _C.from_numpy(array)
    except (TypeError, ValueError):
        return array


@_method
def new(self, *args):
    """A tensor of the same dtype on the same device: uninitialised with these sizes, or with these elements."""
    return _made(self.dtype, args, self.device)


@_method
def cuda(self, device=None, non_blocking=False, memory_format=_C.preserve_format):
    """The tensor on a CUDA device (default: the current one). Raises RuntimeError if there is none. Pretended GPUs (see
    `pydist.cuda`) are the CPU."""
    return self.to("cuda" if device is None else device, non_blocking=non_blocking, memory_format=memory_format)


@_method
def pin_memory(self, device=None):
    """A copy in page-locked host memory, which GPUs read by themselves, so that `to("cuda", non_blocking=True)` need
    not wait. Returns the tensor itself if it is pinned already or if there is no GPU."""
    from pydist import cuda

    return _C.cuda_pin(self) if cuda._real() else self


@_method
def is_pinned(self, device=None):
    """Whether the tensor is in memory that pin_memory() made."""
    return _C.cuda_is_pinned(self)


@_method
def record_stream(self, s):
    """Says that the stream s uses the tensor, too. When the tensor is deleted, its memory is reused only after the work
    queued on s so far."""
    _C.cuda_record(self, s.cuda_stream)


@_method
def random_(self, low=0, high=None, *, generator=None, to=None, **bounds):
    """Fills the tensor, in place, with integers drawn uniformly from [low, high); `random_(n)`: from [0, n). As keyword
    arguments the bounds are named `from` and `to`."""
    low, high = bounds.pop("from", low), high if to is None else to
    if bounds:
        raise TypeError(f"random_: unexpected keyword arguments {sorted(bounds)} (expected from, to, generator)")
    if high is None and low:
        low, high = 0, low
    if high is None:
        exact = {_C.float32: 24, _C.float64: 53, _C.float16: 11, _C.bfloat16: 8, _C.bool: 1}
        high = 1 << exact.get(self.dtype, 8 * self.element_size() - (self.dtype is not _C.uint8))
        high = min(high, (1 << 63) - 1)
    drawn = _C.randint(low, high, tuple(self.shape), generator=generator, device=self.device)
    return self.copy_(drawn)
