"""From what programs give (numbers, lists, arrays, variables, tensors) to pydist's tensors, by TensorFlow's rules."""

import sys

from pydist import _C
from pydist.data.strings import StringTensor, string

Tensor = _C.Tensor

DTYPES = {
    name: getattr(_C, name)
    for name in "float16 bfloat16 float32 float64 int8 int16 int32 int64 uint8 bool complex64 complex128".split()
}
NAMES = {dtype: name for name, dtype in DTYPES.items()} | {string: "string"}

_ALSO = {
    "half": "float16", "float": "float32", "double": "float64", "int": "int32", "complex": "complex128",
    "str": "string", "bytes": "string", "object": "string", "object_": "string", "bool_": "bool",
}  # fmt: skip
_WIDER = {"uint16": "int32", "uint32": "int64"}  # NumPy's dtypes that tensors do not have, and where their values fit
_NUMBERS = (bool, int, float, complex)
_INT32 = -(1 << 31), (1 << 31) - 1


def as_dtype(value):
    """The dtype of a dtype, a name such as "float32", one of NumPy's dtypes or a Python type."""
    if isinstance(value, _C.dtype) or value is string:
        return value
    name = value if isinstance(value, str) else getattr(value, "name", None) or getattr(value, "__name__", None)
    name = _ALSO.get(name, name)
    if name == "string":
        return string
    if name in DTYPES:
        return DTYPES[name]
    raise TypeError(f"as_dtype: got {value!r} (expected a dtype, or a name such as 'float32')")


def dtype_or_none(value):
    """as_dtype, or None for None."""
    return None if value is None else as_dtype(value)


def is_integer(dtype):
    """Whether a dtype is one of integers; bool is not."""
    return NAMES[dtype].startswith(("int", "uint"))


def of_variable(value):
    """The tensor of a variable of Keras or of tf.Variable; None for anything else."""
    kinds = sys.modules.get("keras.src.backend")
    if kinds is not None and isinstance(value, kinds.Variable):
        return value.value
    return None


def tensor(value, dtype=None, like=None):
    """`value` as a tensor. A tensor or variable that is one already is not copied.

    `dtype`: the dtype that it must have. `like`: one that arrays and lists get if they can: the other operand's.
    """
    if isinstance(value, (Tensor, StringTensor)):
        return _checked(value, dtype)
    held = of_variable(value)
    if held is not None:
        return _checked(held, dtype)
    if type(value).__module__ == "numpy":
        return _of_array(value, dtype, like)
    if isinstance(value, (list, tuple, range)):
        return _of_list(value, dtype, like)
    if isinstance(value, (bool, int, float, complex, str, bytes, bytearray)):
        return _of_python(value, dtype, like)
    if hasattr(value, "__array__") and not _is_symbolic(value):
        import numpy as np

        return _of_array(np.asarray(value), dtype, like)
    raise _unknown(value)


def _unknown(value):
    if _is_symbolic(value):
        return ValueError(
            "A KerasTensor cannot be used as input to a TensorFlow function. A KerasTensor is a symbolic placeholder "
            "for a "
            "shape and dtype, used when constructing Keras Functional models (expected a tensor, or a call within a "
            "layer)"
        )
    return ValueError(
        f"Attempt to convert a value ({value!r}) with an unsupported type ({type(value)}) to a Tensor (expected "
        "numbers, "
        "strings, arrays, tensors, or lists of them)"
    )


def _is_symbolic(value):
    return type(value).__name__ == "KerasTensor"


def _checked(value, dtype):
    if dtype is not None and value.dtype is not dtype:
        raise ValueError(
            f"convert_to_tensor: got a tensor of {NAMES[value.dtype]} (expected {NAMES[dtype]}; tf.cast converts)"
        )
    return value


def _fits(category, like):
    """`like`, if values of this category of NumPy's ("b", "i", "f", "c") can have it without loss."""
    if like is None or like is string:
        return None
    ranks = "biufc"
    mine = "c" if like.is_complex else "f" if like.is_floating_point else "b" if like is _C.bool else "i"
    return like if mine != "b" and ranks.index(category.replace("u", "i")) <= ranks.index(mine) else None


def _of_array(value, dtype, like):
    import numpy as np

    kind = value.dtype.kind
    if kind in "OSU":
        return _of_strings(value.tolist(), dtype)
    if dtype is None and kind in "biufc":
        dtype = _fits(kind, like)
    if dtype is string:
        raise TypeError(f"convert_to_tensor: got an array of {value.dtype} (expected strings)")
    if value.dtype.name in _WIDER:
        value = value.astype(_WIDER[value.dtype.name])
    return _C.tensor(np.ascontiguousarray(value).reshape(value.shape), dtype=dtype)


def _of_strings(value, dtype):
    if dtype is not None and dtype is not string:
        raise ValueError(f"convert_to_tensor: got strings (expected {NAMES[dtype]})")
    return StringTensor(value)


def _of_list(value, dtype, like):
    kinds = _kinds(value, set())
    if any(issubclass(kind, (str, bytes, bytearray, StringTensor)) for kind in kinds):
        return _of_strings(value, dtype)
    if any(issubclass(kind, Tensor) or hasattr(kind, "assign") for kind in kinds):
        return _stacked(value, dtype)
    if any(kind.__module__ == "numpy" for kind in kinds):
        return _of_list_of_arrays(value, dtype, like)
    return _of_python(list(value) if isinstance(value, range) else value, dtype, like)


def _of_list_of_arrays(value, dtype, like):
    """Integers are int32 if all of them fit; the first element says which floating dtype it is."""
    import numpy as np

    array, first = np.array(value), value
    while isinstance(first, (list, tuple)):
        first = first[0]
    if dtype is None and _fits(array.dtype.kind, like) is None:
        if array.dtype.kind in "iu":
            return (whole := _of_array(array.astype("int64"), None, None)).to(_usual(whole))
        if array.dtype.kind == "f":
            dtype = as_dtype(getattr(first, "dtype", "float32"))
            dtype = dtype if dtype.is_floating_point else _C.float32
    return _of_array(array, dtype, like)


def _kinds(value, found):
    """The types of what nested lists hold."""
    here = set(map(type, value))
    for kind in here & {list, tuple}:
        for part in value:
            if type(part) is kind:
                _kinds(part, found)
    found |= here - {list, tuple}
    return found


def _stacked(value, dtype):
    """A list with tensors in it: they keep their gradients, and say the dtype of the numbers beside them."""
    like = dtype or next(t.dtype for t in _tensors_in(value))
    parts = [tensor(part, dtype, like) for part in value]
    try:
        return _C.stack([part if part.dtype is like else part.to(like) for part in parts])
    except RuntimeError as error:
        raise ValueError(f"convert_to_tensor: {error} (expected parts of one shape)") from None


def _tensors_in(value):
    for part in value:
        if isinstance(part, (list, tuple)):
            yield from _tensors_in(part)
        elif isinstance(part, Tensor):
            yield part
        elif hasattr(part, "assign"):
            yield part.value


def _of_python(value, dtype, like):
    """A number, a string, or nested lists of numbers. Integers are int32 if all of them fit."""
    if isinstance(value, (str, bytes, bytearray)):
        return _of_strings(value, dtype)
    if dtype is string and isinstance(value, list) and not value:
        return StringTensor([b""])[:0]
    if dtype is string:
        raise TypeError(f"convert_to_tensor: got {value!r} (expected strings)")
    try:
        plain = _C.tensor(value)
    except TypeError:
        raise _unknown(value) from None
    except ValueError:
        raise ValueError(
            f"Can't convert non-rectangular Python sequence to Tensor: got {value!r} (expected lists of one length)"
        ) from None
    category = (
        "c" if plain.is_complex() else "f" if plain.is_floating_point() else "b" if plain.dtype is _C.bool else "i"
    )
    if dtype is None:
        dtype = _fits(category, like) or _usual(plain)
    elif (
        dtype is not _C.bool
        and not dtype.is_floating_point
        and not dtype.is_complex
        and category in "fc"
        and plain.numel()
    ):
        raise TypeError(f"Cannot convert {value!r} to a tensor of {NAMES[dtype]} (expected integers)")
    result = plain if dtype is plain.dtype else _C.tensor(value, dtype=dtype)
    if category == "i" and result.element_size() < 8 and is_integer(dtype) and not (result == plain).all():
        raise ValueError(
            f"Cannot convert {value!r} to a tensor of {NAMES[dtype]}: a number does not fit (expected a wider dtype)"
        )
    return result


def _usual(plain):
    if plain.dtype is _C.complex64:
        return _C.complex128
    if plain.dtype is not _C.int64 or not plain.numel():
        return plain.dtype
    least, most = (plain.item(),) * 2 if plain.numel() == 1 else (plain.min().item(), plain.max().item())
    return _C.int32 if least >= _INT32[0] and most <= _INT32[1] else _C.int64


def pair(a, b):
    """Both operands of a function of two. A number beside a tensor stays a number, so that it takes the tensor's
    dtype."""
    a, b = (of_variable(v) if hasattr(v, "assign") else v for v in (a, b))
    if isinstance(b, Tensor) and not isinstance(a, Tensor):
        return (a if isinstance(a, _NUMBERS) else tensor(a, like=b.dtype)), b
    a = tensor(a)
    return a, b if isinstance(b, _NUMBERS) else tensor(b, like=a.dtype)


def own(value, dtype=None):
    """The value as a tensor that no later assignment to a variable changes."""
    held = of_variable(value)
    return tensor(value, dtype) if held is None else _checked(held, dtype).clone()


def ints(value):
    """Sizes or axes: a list of Python's ints of a number, a list (also with tensors in it), or a tensor."""
    if isinstance(value, Tensor) or type(value).__module__ == "numpy":
        value = value.tolist()
    held = of_variable(value)
    if held is not None:
        value = held.tolist()
    if isinstance(value, (list, tuple)):
        return [int(part) for part in value]
    return [int(value)]


def axes(value):
    """None, an int, or a tuple of ints, of what a program gives as `axis`."""
    if value is None or isinstance(value, int):
        return value
    found = ints(value)
    return found[0] if not isinstance(value, (list, tuple)) and getattr(value, "ndim", 1) == 0 else tuple(found)
