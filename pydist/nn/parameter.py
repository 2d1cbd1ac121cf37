"""Parameter: a tensor that a Module registers when it is assigned to an attribute."""

from functools import cache

from pydist import _C


@cache
def _of_parts(cls, part):
    """The class of a parameter that is spread over ranks: a `cls`, and a `part` (DTensor)."""

    def reduce(self, protocol):
        return cls, (self.detach(), self.requires_grad)

    return type(part.__name__ + cls.__name__, (part, cls), {"__module__": cls.__module__, "__reduce_ex__": reduce})


class Parameter(_C.Tensor):
    """A leaf tensor over `data`'s storage that requires a gradient unless told otherwise.

    `data` (Tensor; default: an empty one), `requires_grad` (bool). Raises TypeError if data is not a tensor.

    >>> import pydist
    >>> w = pydist.nn.Parameter(pydist.zeros(2, 3))
    >>> w.requires_grad, w.is_leaf
    (True, True)
    """

    def __new__(cls, data=None, requires_grad=True):
        if data is None:
            data = _C.empty(0)
        elif not isinstance(data, _C.Tensor):
            raise TypeError(f"Parameter: data is {type(data).__name__} (expected a Tensor)")
        if _C.spread_of(data) is not None:
            part = next(base for base in type(data).__mro__ if not issubclass(base, Parameter))
            if not issubclass(cls, part):
                cls = _of_parts(cls, part)
        return _C.Tensor._make_subclass(cls, data.detach(), requires_grad)

    def __deepcopy__(self, memo):
        new = memo.get(id(self))
        if new is None:
            new = memo[id(self)] = type(self)(self.detach().clone(), self.requires_grad)
        return new

    def __repr__(self):
        return "Parameter containing:\n" + super().__repr__()


class Buffer(_C.Tensor):
    """A tensor that a Module registers as a buffer when it is assigned to an attribute, as `register_buffer` does.

    `data` (Tensor), `persistent` (bool): whether state_dict has it. Raises TypeError if data is not a tensor.

    >>> import pydist
    >>> m = pydist.nn.Module()
    >>> m.mean = pydist.nn.Buffer(pydist.zeros(2))
    >>> list(m.state_dict())
    ['mean']
    """

    def __new__(cls, data=None, *, persistent=True):
        if data is None:
            data = _C.empty(0)
        elif not isinstance(data, _C.Tensor):
            raise TypeError(f"Buffer: data is {type(data).__name__} (expected a Tensor)")
        made = _C.Tensor._make_subclass(cls, data.detach(), data.requires_grad)
        made.persistent = persistent
        return made


class UninitializedParameter(Parameter):
    """A parameter of a lazy module. It has no shape until `materialize(shape)` makes it a Parameter of that shape with
    uninitialised elements. Reading its shape before raises RuntimeError."""

    def __new__(cls, requires_grad=True, device=None, dtype=None):
        return super().__new__(cls, _C.empty(0, device=device, dtype=dtype), requires_grad)

    def materialize(self, shape, device=None, dtype=None):
        """Makes it a Parameter of this shape with uninitialised elements."""
        self.data = _C.empty(shape, device=device or self.device, dtype=dtype or self.dtype)
        self.__class__ = Parameter

    @property
    def shape(self):
        """Raises RuntimeError: it has no shape yet."""
        raise RuntimeError(
            "UninitializedParameter: it has no shape yet (expected a first call of its lazy module, or load_state_dict)"
        )

    def __deepcopy__(self, memo):
        new = memo[id(self)] = type(self)(self.requires_grad, self.device, self.dtype)
        return new

    def __reduce_ex__(self, protocol):
        return type(self), (self.requires_grad, self.device, self.dtype)

    def __repr__(self):
        return "<UninitializedParameter>"


def is_lazy(param):
    """Whether `param` is an UninitializedParameter."""
    return isinstance(param, UninitializedParameter)
