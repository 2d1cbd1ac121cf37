"""tf.Variable: a variable of Keras with TensorFlow's methods."""

import operator

from keras.src.backend import Variable as KerasVariable

import pydist
from pydist import _C
from pydist.distribute.variables import assigned
from pydist.nn import Parameter
from pydist.tensorflow import _arrays, _tape
from pydist.tensorflow._flow import scope_path
from pydist.tensorflow._readings import Ref, shown
from pydist.tensorflow._shapes import TensorShape
from pydist.tensorflow._tensors import DTYPES, as_dtype, of_variable, own, tensor


class _Value(Parameter):
    """The value of a tf.Variable. TensorFlow's programs call it: v.value()."""

    def __call__(self):
        return self.clone()


def _word(value, default):
    """Keras' word for a member of tf.VariableAggregation or tf.VariableSynchronization."""
    return default if value is None else getattr(value, "value", value).lower()


class Variable(KerasVariable):
    """A tensor whose value changes by assign, assign_add and assign_sub. Layers, modules and tapes know it; it is a
    keras.Variable too."""

    def __init__(self, initial_value=None, trainable=None, validate_shape=True, caching_device=None, name=None,
                 variable_def=None, dtype=None, import_scope=None, constraint=None, synchronization=None,
                 aggregation=None, shape=None, experimental_enable_variable_lifting=None):  # fmt: skip
        if initial_value is None:
            raise ValueError("tf.Variable: initial_value is missing (expected a tensor, a number or a list)")
        _tape.gradients_off()
        value = initial_value() if callable(initial_value) and not isinstance(initial_value, _Value) else initial_value
        with pydist.no_grad():
            value = own(value, None if dtype is None or hasattr(value, "dtype") else as_dtype(dtype))
            value = value if dtype is None or value.dtype is as_dtype(dtype) else value.to(as_dtype(dtype))
        if not isinstance(value, _C.Tensor):
            raise TypeError("tf.Variable: got strings (expected numbers)")
        self._tf_name = scope_path() + (name or "Variable")
        self._any_shape = (
            shape is not None and not TensorShape(shape).is_fully_defined() or getattr(shape, "_unknown", False)
        )
        super().__init__(
            value.detach(), trainable=trainable is None or trainable, autocast=False,
            aggregation=_word(aggregation, "none"), synchronization=_word(synchronization, "auto"),
            name=self._tf_name.replace("/", "_"),
        )  # fmt: skip
        if constraint is not None:
            self.constraint = constraint

    def _initialize(self, value):
        floating = value.is_floating_point() or value.is_complex()
        self._value = _Value(value.detach().clone(), requires_grad=self._trainable and floating)

    def _direct_assign(self, value):
        if assigned(self, value):
            return
        with pydist.no_grad():
            if self._any_shape and value.shape != self._value.shape or _tape.keeps(self, self._value):
                self._initialize(value.to(self.dtype))
                self._shape = tuple(value.shape)
            else:
                self._value.copy_(value)

    # What TensorFlow calls otherwise than Keras.

    @property
    def dtype(self):
        """The dtype."""
        return DTYPES[self._dtype]

    @property
    def shape(self):
        """The sizes."""
        return TensorShape(self._shape)

    def get_shape(self):
        """The sizes."""
        return self.shape

    @property
    def name(self):
        """The name, with TensorFlow's ":0" behind it."""
        return f"{self._tf_name}:0"

    @property
    def trainable(self):
        """Whether tapes watch it by themselves."""
        return self._trainable

    @trainable.setter
    def trainable(self, value):
        self._trainable = value
        self._value.requires_grad = value and (self._value.is_floating_point() or self._value.is_complex())

    @property
    def device(self):
        """Where its value lies."""
        return self._value.device

    def read_value(self):
        """The value, as a tensor that later assignments do not change."""
        return self.value.clone()

    def numpy(self):
        """The value as an array of its own."""
        return self.value.detach().clone().numpy()

    def ref(self):
        """Something hashable that stands for this variable."""
        return Ref(self)

    # Assignments.

    def assign(self, value, use_locking=False, name=None, read_value=True):
        """Sets the value. Returns the variable."""
        value = tensor(value, like=self.dtype).detach()
        if self._any_shape:
            self._direct_assign(value)
        else:
            if tuple(value.shape) != self._shape:
                raise ValueError(
                    f"Cannot assign value to variable '{self.name}': Shape mismatch. The variable shape "
                    f"{tuple(self._shape)}, and "
                    f"the assigned value shape {tuple(value.shape)} are incompatible (expected equal shapes)"
                )
            super().assign(value.to(self.dtype))
        return self

    def _changed(self, value):
        with pydist.no_grad():
            return self.assign(value())

    def assign_add(self, delta, use_locking=False, name=None, read_value=True):
        """Adds to the value. Returns the variable."""
        return self._changed(lambda: self.value + tensor(delta, like=self.dtype))

    def assign_sub(self, delta, use_locking=False, name=None, read_value=True):
        """Subtracts from the value. Returns the variable."""
        return self._changed(lambda: self.value - tensor(delta, like=self.dtype))

    def scatter_nd_update(self, indices, updates, name=None):
        """Sets the elements or slices at these places."""
        return self._changed(lambda: _arrays.tensor_scatter_nd_update(self, indices, updates))

    def scatter_nd_add(self, indices, updates, name=None):
        """Adds to the elements or slices at these places."""
        return self._changed(lambda: _arrays.tensor_scatter_nd_add(self, indices, updates))

    def scatter_nd_sub(self, indices, updates, name=None):
        """Subtracts from the elements or slices at these places."""
        return self._changed(lambda: _arrays.tensor_scatter_nd_sub(self, indices, updates))

    def sparse_read(self, indices, name=None):
        """The rows with these numbers."""
        return _arrays.gather(self, indices)

    def gather_nd(self, indices, name=None):
        """The elements or slices at these places."""
        return _arrays.gather_nd(self, indices)

    # As a tensor.

    __array_priority__ = 1000  # arrays leave operators to it

    def __array__(self, dtype=None, copy=None):
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __getitem__(self, index):
        return _arrays.picked(self.value, index).clone()

    def __iter__(self):
        return iter(self.read_value())

    def __len__(self):
        return len(self.value)

    def __index__(self):
        return operator.index(self.value)

    def __repr__(self):
        return (
            f"<tf.Variable '{self.name}' shape={tuple(self._shape)} dtype={self._dtype}, numpy={shown(self.numpy())}>"
        )

    __str__ = __repr__

    def __format__(self, spec):
        return format(self.numpy(), spec) if spec else str(self)

    __hash__ = KerasVariable.__hash__

    def __reduce__(self):
        return _made_again, (type(self), self.read_value(), self._trainable, self._tf_name)


def _made_again(kind, value, trainable, name):
    return kind(value, trainable=trainable, name=name)


def _plain(value):
    held = of_variable(value)
    return value if held is None else held


def _operator(function):
    return lambda self, other: function(self.value, _plain(other))


def _reflected(function):
    return lambda self, other: function(_plain(other), self.value)


for _name in "add sub mul truediv floordiv mod pow matmul and or xor".split():
    _function = getattr(operator, f"__{_name}__")
    setattr(Variable, f"__{_name}__", _operator(_function))
    setattr(Variable, f"__r{_name}__", _reflected(_function))
for _name in "lt le gt ge eq ne".split():
    setattr(Variable, f"__{_name}__", _operator(getattr(operator, f"__{_name}__")))
