"""tf.function: marks a function that is called often. After some calls it is replayed (pydist/_replay.py)."""

import functools
import inspect

from pydist._replay import Recorded
from pydist.tensorflow import nest
from pydist.tensorflow._tensors import Tensor, of_variable, tensor

_eager = {"always": False}


def run_functions_eagerly(run_eagerly):
    """Whether tf.function is to change nothing at all."""
    _eager["always"] = bool(run_eagerly)


def functions_run_eagerly():
    """What run_functions_eagerly was called with."""
    return _eager["always"]


def _spec_key(value):
    """What makes a call of TensorFlow's functions trace anew."""
    if isinstance(value, Tensor):
        return tuple(value.shape), value.dtype
    return value if isinstance(value, (bool, int, float, str, type(None))) else id(value)


def _as_result(value):
    return tensor(value) if isinstance(value, (bool, int, float, str)) or type(value).__module__ == "numpy" else value


class ConcreteFunction:
    """A function with the specs of its arguments."""

    def __init__(self, function, args, kwargs):
        self._function, self.structured_input_signature = function, (args, kwargs)
        self.name = getattr(function._python_function, "__name__", "function")

    def __call__(self, *args, **kwargs):
        return self._function(*args, **kwargs)

    def __repr__(self):
        return f"<ConcreteFunction {self.name} at {id(self):#x}>"


class PolymorphicFunction:
    """What tf.function returns: a call runs the Python function or, from the fourth one with such arguments on, replays what
    it does with tensors. Arrays among the arguments become tensors, numbers among the results too."""

    def __init__(self, python_function, input_signature=None, name=None, **settings):
        self._python_function = self.python_function = python_function
        self.input_signature = self._signature = None if input_signature is None else tuple(input_signature)
        self._settings, self._owner, self._keys = settings, None, set()
        functools.update_wrapper(self, python_function)
        self._recorded = Recorded(
            python_function, name=f"tf.function {getattr(python_function, '__name__', '')}".strip()
        )

    def __get__(self, instance, owner=None):
        if instance is None:
            return self
        bound = vars(instance).get(f"_tf_function_{self.__name__}") if hasattr(instance, "__dict__") else None
        if bound is None:
            bound = type(self)(self._python_function.__get__(instance, owner), self._signature, **self._settings)
            bound._keys = self._keys
            try:
                object.__setattr__(instance, f"_tf_function_{self.__name__}", bound)
            except AttributeError:
                pass
        return bound

    def __call__(self, *args, **kwargs):
        if self._signature is not None:
            args, kwargs = self._by_signature(args, kwargs), {}
        elif any(type(v).__module__ == "numpy" for v in args):
            args = [tensor(v) if type(v).__module__ == "numpy" else v for v in args]
        self._count(args, kwargs)
        result = (self._python_function if _eager["always"] else self._recorded)(*args, **kwargs)
        return result if isinstance(result, Tensor) or result is None else nest.map_structure(_as_result, result)

    def _count(self, args, kwargs):
        if len(self._keys) < 1000:
            leaves = nest.flatten([list(args), kwargs])
            self._keys.add(tuple(map(_spec_key, leaves)))

    def _by_signature(self, args, kwargs):
        """The arguments as tensors. Raises TypeError if they do not fit the signature."""
        name, wanted = self.__name__, self._signature
        bound = inspect.signature(self._python_function).bind(*args, **kwargs)
        given = [*bound.args, *bound.kwargs.values()]
        if len(given) != len(wanted):
            raise TypeError(f"{name}: got {len(given)} arguments (expected the {len(wanted)} of input_signature)")
        return [_fitting(spec, value, name) for spec, value in zip(wanted, given)]

    def get_concrete_function(self, *args, **kwargs):
        """The function for arguments of these specs."""
        self._count(args, kwargs)
        return ConcreteFunction(self, args or self._signature or (), kwargs)

    def experimental_get_tracing_count(self):
        """How many kinds of arguments (shapes, dtypes, Python values) there were."""
        return len(self._keys)

    def __repr__(self):
        return f"<tensorflow.function {self.__name__} at {id(self):#x}>"


def _fitting(spec, value, name):
    if nest.is_nested(spec):
        leaves = [_fitting(s, v, name) for s, v in zip(nest.flatten(spec), nest.flatten(value))]
        return nest.pack_sequence_as(spec, leaves)
    if not hasattr(spec, "is_compatible_with"):
        return value
    held = of_variable(value)
    given = tensor(value if held is None else held, like=spec.dtype)
    if not spec.is_compatible_with(given):
        raise TypeError(f"{name}: got a tensor of shape {tuple(given.shape)}, {given.dtype} (expected {spec})")
    return given


def function(func=None, input_signature=None, autograph=True, jit_compile=None, reduce_retracing=False,
             experimental_implements=None, experimental_autograph_options=None, experimental_attributes=None,
             experimental_relax_shapes=None, experimental_compile=None,
             experimental_follow_type_hints=None):  # fmt: skip
    """Marks a function that is called often. Some calls run as Python; later ones repeat what it does with tensors, and
    nothing else: no `print` (but tf.print), no counting in Python. What cannot be repeated, such as a function that reads
    values of tensors, runs as Python for ever. With an input_signature, arguments that do not fit it raise TypeError."""
    if func is None:
        return lambda f: function(f, input_signature)
    return PolymorphicFunction(func, input_signature)
