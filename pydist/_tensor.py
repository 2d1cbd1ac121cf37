"""The parts of Tensor that are written in Python: its text (as PyTorch prints it), copies and pickles. The extension
calls them."""

import copy
import math
from weakref import WeakValueDictionary

from pydist import _C

_PROFILES = {
    "default": {"precision": 4, "threshold": 1000, "edgeitems": 3, "linewidth": 80},
    "short": {"precision": 2, "threshold": 1000, "edgeitems": 2, "linewidth": 80},
    "full": {"precision": 4, "threshold": math.inf, "edgeitems": 3, "linewidth": 80},
}
_options = {**_PROFILES["default"], "sci_mode": None}


# Text.


def set_printoptions(precision=None, threshold=None, edgeitems=None, linewidth=None, profile=None, sci_mode=None):
    """Sets how tensors are printed: digits after the point (4), the number of elements above which only the edges are
    shown (1000), how many elements an edge has (3), characters per line (80), a profile that sets all four ("default",
    "short", "full"), and whether numbers have exponents (None: if their sizes differ much).

    >>> import pydist
    >>> pydist.set_printoptions(precision=2)
    >>> pydist.tensor([1 / 3])
    tensor([0.33])
    >>> pydist.set_printoptions(profile="default")
    """
    if profile is not None:
        if profile not in _PROFILES:
            raise ValueError(f"set_printoptions: profile {profile!r} (expected one of {', '.join(_PROFILES)})")
        _options.update(_PROFILES[profile])
    given = {"precision": precision, "threshold": threshold, "edgeitems": edgeitems, "linewidth": linewidth}
    _options.update({name: value for name, value in given.items() if value is not None})
    _options["sci_mode"] = sci_mode


def _edges(data, shape):
    """Nested lists of the elements to show: all, or (above the threshold) the edges of each dimension with None between
    them."""
    if not shape or math.prod(shape) <= _options["threshold"]:
        return data.tolist()

    edge = _options["edgeitems"]

    def shown(part, sizes):
        if not sizes:
            return part.item()
        if sizes[0] <= 2 * edge:
            return [shown(part[i], sizes[1:]) for i in range(sizes[0])]
        head = [shown(part[i], sizes[1:]) for i in range(edge)]
        return [*head, None, *(shown(part[i], sizes[1:]) for i in range(sizes[0] - edge, sizes[0]))]

    return shown(data, tuple(shape))


def _flat(nested):
    if isinstance(nested, list):
        for item in nested:
            yield from _flat(item)
    elif nested is not None:
        yield nested


def _number_style(values):
    """A function from a number to its text, with the same style for all of them."""
    if any(isinstance(value, complex) for value in values):
        return _complex_style(values)
    if not any(isinstance(value, float) for value in values):
        return str
    sizes = [abs(value) for value in values if math.isfinite(value) and value != 0]
    whole = all(size == math.ceil(size) for size in sizes)
    precision, spread = _options["precision"], _options["sci_mode"]
    if not sizes:
        spread = False
    elif spread is None:
        spread = max(sizes) / min(sizes) > 1000 or max(sizes) > 1e8 or (not whole and min(sizes) < 1e-4)
    if spread:
        return f"{{:.{precision}e}}".format
    if whole:
        return lambda value: f"{value:.0f}." if math.isfinite(value) else str(value)
    return f"{{:.{precision}f}}".format


def _width(values, text_of):
    """The width of the longest text. As in PyTorch, only finite numbers other than 0 count."""
    return max(
        (len(text_of(v)) for v in values if not isinstance(v, float) or (math.isfinite(v) and v != 0)), default=0
    )


def _complex_style(values):
    """`1.0000+2.0000j`: each part has its own style and width."""
    real, imag = [v.real for v in values], [v.imag for v in values]
    real_text, imag_text = _number_style(real), _number_style(imag)
    width = _width(real, real_text)

    def text_of(value):
        parts = real_text(value.real).rjust(width), imag_text(value.imag)
        return f"{parts[0]}{'' if parts[1][0] == '-' else '+'}{parts[1]}j"

    text_of.room = width + _width(imag, imag_text) + 3
    return text_of


def _lay_out(nested, text_of, width, indent, depth):
    if depth == 0:
        return text_of(nested).rjust(width)
    if depth == 1:
        items = [" ..." if item is None else text_of(item).rjust(width) for item in nested]
        each = max(1, (_options["linewidth"] - indent) // getattr(text_of, "room", width + 2))
        lines = [", ".join(items[i : i + each]) for i in range(0, len(items), each)]
        return "[" + (",\n" + " " * (indent + 1)).join(lines) + "]"
    parts = ["..." if p is None else _lay_out(p, text_of, width, indent + 1, depth - 1) for p in nested]
    return "[" + ("," + "\n" * (depth - 1) + " " * (indent + 1)).join(parts) + "]"


def tensor_repr(tensor):
    """`tensor([[1., 2.]], dtype=..., grad_fn=<...>)`."""
    data, indent, notes = tensor.detach(), len("tensor("), []
    if tensor.is_meta:
        body, usual = "...", (_C.get_default_dtype(),)
        notes += ["device='meta'", f"size={tuple(tensor.shape)}"]
    elif tensor.numel() == 0:
        body = "[]"
        if tensor.dim() != 1:
            notes.append(f"size={tuple(tensor.shape)}")
        usual = (_C.float32,)
    else:
        nested = _edges(data, data.shape)
        values = list(_flat(nested))
        text_of = _number_style(values)
        width = _width(values, text_of) if tensor.dim() and not data.is_complex() else 0
        body = _lay_out(nested, text_of, width, indent, tensor.dim())
        usual = (_C.float32, _C.complex64, _C.int64, _C.bool)
    if tensor.is_cuda:
        notes.append(f"device='{tensor.device}'")
    if tensor.dtype not in usual:
        notes.append(f"dtype={tensor.dtype}")
    if tensor.grad_fn is not None:
        notes.append(f"grad_fn=<{tensor.grad_fn.name()}>")
    elif tensor.requires_grad:
        notes.append("requires_grad=True")
    text, used = f"tensor({body}", len(body) - body.rfind("\n") + (indent if "\n" not in body else 0)
    for note in notes:
        if used + len(note) + 2 > _options["linewidth"]:
            text, used = f"{text},\n{' ' * indent}{note}", indent + len(note)
        else:
            text, used = f"{text}, {note}", used + len(note) + 2
    return text + ")"


# Copies and pickles.


def _dressed(tensor, kind, requires_grad, attributes):
    """`tensor` as a leaf of type `kind` with these attributes."""
    if kind is not _C.Tensor:
        tensor = _C.Tensor._make_subclass(kind, tensor, requires_grad)
    elif requires_grad:
        tensor.requires_grad_()
    if attributes:
        tensor.__dict__.update(attributes)
    return tensor


def _meta(kind, dtype, size, stride, requires_grad, attributes):
    """A tensor of a device without memory: what a pickle or deep copy of such a tensor makes."""
    from pydist._make import empty_strided

    return _dressed(empty_strided(size, stride, dtype=dtype, device="meta"), kind, requires_grad, attributes)


def _meta_parts(tensor):
    """Everything of a tensor on meta, as `_meta` takes it."""
    return type(tensor), tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.requires_grad


def shallow_copy(tensor):
    """A leaf over the same memory, with the same attributes."""
    if not tensor.is_leaf:
        raise RuntimeError("copy: the tensor is part of a graph (expected a leaf; use detach())")
    return _dressed(tensor.detach(), type(tensor), tensor.requires_grad, tensor.__dict__)


class Storage:
    """The bytes that views share. There is one object for each storage as long as it is referenced: pickle and deepcopy
    use it to see which tensors share memory."""

    __slots__ = ("bytes", "__weakref__")

    def __init__(self, data):
        self.bytes = data

    def __deepcopy__(self, memo):
        new = memo[id(self)] = Storage(self.bytes.clone())
        return new

    def __reduce__(self):
        data = memoryview(self.bytes.cpu()).tobytes() if self.bytes.numel() else b""
        return _load_storage, (data, *([str(self.bytes.device)] if self.bytes.is_cuda else []))


_storages = WeakValueDictionary()  # by address


def _storage_of(tensor):
    data = _C.storage_bytes(tensor)
    found = _storages.get(data.data_ptr()) if data.numel() else None
    if found is None or found.bytes.data_ptr() != data.data_ptr() or found.bytes.numel() != data.numel():
        found = _storages[data.data_ptr()] = Storage(data)
    return found


def _load_storage(data, device="cpu"):
    there = _C.frombuffer(data, dtype=_C.uint8).to(device, copy=True) if data else None
    return Storage(_C.empty(0, dtype=_C.uint8, device=device) if there is None else there)


def _parts(tensor):
    """Everything of the tensor except its storage, as `rebuild` takes it."""
    return tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.requires_grad


def deepcopy(tensor, memo):
    """A leaf with its own memory, gradient and attributes. Tensors that share memory also share it in the copy. Raises
    RuntimeError for a tensor with a history."""
    if id(tensor) in memo:
        return memo[id(tensor)]
    if not tensor.is_leaf:
        raise RuntimeError("deepcopy: the tensor is part of a graph (expected a leaf; use detach().clone())")
    attributes = copy.deepcopy(tensor.__dict__, memo)
    if tensor.is_meta:
        new = _meta(*_meta_parts(tensor), attributes)
    else:
        new = rebuild(type(tensor), copy.deepcopy(_storage_of(tensor), memo), *_parts(tensor), attributes)
    memo[id(tensor)] = new
    if tensor.grad is not None:
        new.grad = copy.deepcopy(tensor.grad, memo)
    return new


def reduce(tensor):
    """For pickle: (function, arguments). The storage is written once, whole, for all tensors of one pickle that share
    it."""
    if not tensor.is_leaf:
        raise RuntimeError("pickle: the tensor is part of a graph (expected a leaf; use detach())")
    if tensor.is_meta:
        return _meta, (*_meta_parts(tensor), tensor.__dict__ or None)
    return rebuild, (type(tensor), _storage_of(tensor), *_parts(tensor), tensor.__dict__ or None)


def _rebuild_from_type_v2(func, new_type, args, state):
    """The name by which PyTorch's pickles make tensors of a subclass, or tensors with attributes."""
    tensor = func(*args)
    if type(tensor) is not new_type:
        tensor = tensor.as_subclass(new_type)
    if hasattr(new_type, "__setstate__"):
        tensor.__setstate__(state)
        return tensor
    attributes, slots = state if isinstance(state, tuple) else (state, None)
    for name, value in {**(attributes or {}), **(slots or {})}.items():
        setattr(tensor, name, value)
    return tensor


def rebuild(kind, storage, dtype, size, stride, offset, requires_grad, attributes):
    """Makes the tensor that `reduce` took apart."""
    return _dressed(_C.storage_view(storage.bytes, dtype, size, stride, offset), kind, requires_grad, attributes)
