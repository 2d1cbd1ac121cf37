"""What TensorFlow's programs read from tensors, shapes and dtypes, put on pydist's: `install()`, which `import
tensorflow` calls.

It holds for the whole process: tensors print as TensorFlow's do, `x += y` makes a new tensor (of a Parameter: changes
it, as before), and operators take arrays and lists.
"""

from pydist import _C, _functions
from pydist.data import spec
from pydist.data.spec import TensorSpec
from pydist.data.strings import StringTensor, string
from pydist.tensorflow import errors
from pydist.tensorflow._arrays import picked
from pydist.tensorflow._shapes import ShapeReadings, TensorShape
from pydist.tensorflow._tensors import NAMES, Tensor, as_dtype, is_integer, tensor

Size, DType = _C.Size, _C.dtype
_before = {}  # what install() has replaced


class Ref:
    """A tensor or variable as a key of dictionaries and sets."""

    def __init__(self, thing):
        self._thing = thing

    def deref(self):
        """The tensor or variable."""
        return self._thing

    def __hash__(self):
        return id(self._thing)

    def __eq__(self, other):
        return isinstance(other, Ref) and self._thing is other._thing


class _TensorReadings:
    """Attributes of tensors."""

    def numpy(self, *, force=False):
        """The elements as an array that shares their memory; of a tensor without axes, one of NumPy's numbers."""
        array = _before[Tensor, "numpy"](self.detach().cpu())
        return array if array.ndim else array[()]

    def __array__(self, dtype=None, copy=None):
        array = _before[Tensor, "numpy"](self.detach().cpu())
        return array if dtype is None or array.dtype == dtype else array.astype(dtype)

    def get_shape(self):
        """The sizes."""
        return self.shape

    def set_shape(self, shape):
        """Raises ValueError if the tensor does not have this shape."""
        self.shape.assert_is_compatible_with(shape)

    def ref(self):
        """Something hashable that stands for this tensor."""
        return Ref(self)

    def __repr__(self):
        if self.is_meta:
            return f"<tf.Tensor: shape={tuple(self.shape)}, dtype={NAMES[self.dtype]}>"
        return _described(self)

    def __str__(self):
        return repr(self) if self.is_meta else _printed(self)

    def __format__(self, spec):
        return str(self) if self.is_meta else format(self.numpy(), spec)

    def __truediv__(self, other):
        return _divided(self, other, False)

    def __rtruediv__(self, other):
        return _divided(self, other, True)

    def __getitem__(self, index):
        try:
            return _before[Tensor, "__getitem__"](self, index)
        except (ValueError, TypeError):
            parts = index if isinstance(index, tuple) else (index,)
            if not any(isinstance(part, slice) and part.step is not None for part in parts):
                raise
        return picked(self, index)


def _on_lines(text):
    return f"\n{text}" if "\n" in text else text


def shown(value):
    """NumPy's text of an array (several lines begin on one of their own), or of a number without its type."""
    return _on_lines(repr(value) if getattr(value, "ndim", 0) or isinstance(value, bytes) else str(value))


def _described(x):
    return f"<tf.Tensor: shape={tuple(x.shape)}, dtype={NAMES[x.dtype]}, numpy={shown(x.numpy())}>"


def _printed(x):
    return f"tf.Tensor({_on_lines(str(x.numpy()))}, shape={tuple(x.shape)}, dtype={NAMES[x.dtype]})"


def _divided(a, b, swapped):
    """a / b, or b / a. Integers give float64."""
    divide = _before[Tensor, "__rtruediv__" if swapped else "__truediv__"]
    if a.is_floating_point() or a.is_complex() or isinstance(b, (float, complex)):
        return divide(a, b)
    if isinstance(b, Tensor) and (b.is_floating_point() or b.is_complex()):
        return divide(a, b)
    if isinstance(b, (Tensor, int)):
        return divide(a.to(_C.float64), b.to(_C.float64) if isinstance(b, Tensor) else b)
    return divide(a, b)


def _foreign(op, a, b):
    """An operator of a tensor and an array or a list."""
    for value in (a, b):
        if not isinstance(value, (Tensor, list, tuple, bool, int, float)) and type(value).__module__ != "numpy":
            return NotImplemented
    a, b = (tensor(v, like=w.dtype) if not isinstance(v, Tensor) else v for v, w in ((a, b), (b, a)))
    if op == "div":
        return a / b
    return getattr(_C, op, None)(a, b) if hasattr(_C, op) else getattr(_functions, op)(a, b)


def _in_place(name):
    from pydist.nn import Parameter

    original = vars(Tensor)[name]

    def operator(self, other):
        return original(self, other) if isinstance(self, Parameter) else NotImplemented

    return operator


class _SizeReadings(ShapeReadings):
    """Attributes of the shapes of tensors."""

    def __repr__(self):
        return f"TensorShape({list(self)})"

    def __str__(self):
        return str(tuple(self))

    def __eq__(self, other):
        return tuple(self) == tuple(other) if isinstance(other, (tuple, list)) else NotImplemented

    def __ne__(self, other):
        return tuple(self) != tuple(other) if isinstance(other, (tuple, list)) else NotImplemented


class _DTypeReadings:
    """Attributes of dtypes."""

    @property
    def name(self):
        """The name: "float32"."""
        return NAMES.get(self) or repr(self).rpartition(".")[2]

    @property
    def as_numpy_dtype(self):
        """NumPy's type."""
        import numpy as np

        if self is _C.bfloat16:
            import ml_dtypes

            return ml_dtypes.bfloat16
        return np.dtype(self.name).type

    @property
    def base_dtype(self):
        """The dtype itself."""
        return self

    @property
    def real_dtype(self):
        """The dtype of the parts of a complex number."""
        return self.to_real()

    @property
    def is_floating(self):
        """Whether its numbers are real and not integers."""
        return self.is_floating_point

    @property
    def is_integer(self):
        """Whether its numbers are integers."""
        return is_integer(self)

    @property
    def is_bool(self):
        """Whether it is bool."""
        return self is _C.bool

    @property
    def is_unsigned(self):
        """Whether it has no negative numbers."""
        return self is _C.uint8

    @property
    def size(self):
        """Bytes of a number."""
        return self.itemsize

    @property
    def min(self):
        """The least number."""
        return _limits(self)[0]

    @property
    def max(self):
        """The greatest number."""
        return _limits(self)[1]

    @property
    def limits(self):
        """(least, greatest)."""
        return _limits(self)

    def is_compatible_with(self, other):
        """Whether both are the same dtype."""
        return self is as_dtype(other)

    def __eq__(self, other):
        if self is other:
            return True
        if isinstance(other, DType):
            return False
        try:
            return self is as_dtype(other) if other is not None else False
        except TypeError:
            return NotImplemented

    def __ne__(self, other):
        equal = self == other
        return equal if equal is NotImplemented else not equal

    def __str__(self):
        return f"<dtype: '{self.name}'>"


def _limits(dtype):
    from pydist._dtypes import finfo, iinfo

    if dtype is _C.bool:
        return False, True
    found = iinfo(dtype) if is_integer(dtype) else finfo(dtype)
    return found.min, found.max


class _StringReadings:
    """Attributes of tensors of strings."""

    @property
    def shape(self):
        """The sizes."""
        return TensorShape(self._spans.shape[:-1])

    def get_shape(self):
        """The sizes."""
        return self.shape

    def ref(self):
        """Something hashable that stands for this tensor."""
        return Ref(self)

    def __add__(self, other):
        from pydist.tensorflow import strings

        return strings.join([self, other])

    def __radd__(self, other):
        from pydist.tensorflow import strings

        return strings.join([other, self])

    def __repr__(self):
        return _described(self)

    def __str__(self):
        return _printed(self)


class _StringDTypeReadings:
    """Attributes of tf.string."""

    name, size = "string", 1
    is_floating = is_integer = is_bool = is_complex = is_unsigned = is_floating_point = False
    base_dtype = property(lambda self: self)

    @property
    def as_numpy_dtype(self):
        """object: NumPy's type of arrays of bytes."""
        return object

    def __eq__(self, other):
        return self is other or other in ("string", str, bytes)

    __hash__ = object.__hash__

    def __repr__(self):
        return "tf.string"

    def __str__(self):
        return "<dtype: 'string'>"


class _SpecReadings:
    """Attributes of TensorSpec."""

    def __init__(self, shape, dtype=_C.float32, name=None):
        _before[TensorSpec, "__init__"](self, None if shape is None else TensorShape(shape), as_dtype(dtype), name)
        self.shape = None if shape is None else TensorShape(shape)

    @classmethod
    def from_tensor(cls, tensor, name=None):
        """The spec of a tensor."""
        return TensorSpec(tensor.shape, tensor.dtype, name)

    def __repr__(self):
        return f"TensorSpec(shape={TensorShape(self.shape)}, dtype={'tf.' + NAMES[self.dtype]}, name={self.name!r})"


_ON = {
    Tensor: _TensorReadings,
    Size: _SizeReadings,
    DType: _DTypeReadings,
    StringTensor: _StringReadings,
    type(string): _StringDTypeReadings,
    TensorSpec: _SpecReadings,
}
_IN_PLACE = "add sub mul truediv floordiv mod pow and or xor lshift rshift".split()
_OWN = {"__module__", "__dict__", "__weakref__", "__doc__", "__slots__", "__annotations__", "__hash__"}


def install():
    """Gives tensors, shapes, dtypes and errors what TensorFlow's programs expect of them."""
    if _before:
        return
    for kind, readings in _ON.items():
        for base in reversed(readings.__mro__[:-1]):
            for name, value in vars(base).items():
                if name not in _OWN:
                    _replace(kind, name, value)
    for name in _IN_PLACE:
        _replace(Tensor, f"__i{name}__", _in_place(f"__i{name}__"))
    _C._set_foreign_operands(_foreign)
    spec.of_python = tensor
    errors._install()


def _replace(kind, name, value):
    _before[kind, name] = getattr(kind, name, None)
    setattr(kind, name, value)
