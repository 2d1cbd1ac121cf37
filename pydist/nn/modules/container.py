"""Modules that hold modules or parameters, in order or by name."""

from collections.abc import Iterable, Mapping
from itertools import islice

from pydist import _C
from pydist.nn.modules.module import Module, _indent
from pydist.nn.parameter import Parameter


class _Ordered(Module):
    """Children named "0", "1", ..., with a list's indexing, slicing, length and iteration."""

    def _name_of(self, index):
        size = len(self._modules)
        if not -size <= index < size:
            raise IndexError(f"index {index} is out of range for {size} modules (expected {-size} to {size - 1})")
        return next(islice(self._modules, index % size, None))

    def _renumber(self, modules):
        self._modules = {str(i): module for i, module in enumerate(modules)}

    def __getitem__(self, index):
        if isinstance(index, slice):
            return self._slice(list(self._modules.items())[index])
        return self._modules[self._name_of(index)]

    def __setitem__(self, index, module):
        setattr(self, self._name_of(index), module)

    def __delitem__(self, index):
        doomed = set(list(self._modules)[index]) if isinstance(index, slice) else {self._name_of(index)}
        self._renumber([module for name, module in self._modules.items() if name not in doomed])

    def __len__(self):
        return len(self._modules)

    def __iter__(self):
        return iter(self._modules.values())

    def append(self, module):
        self.add_module(str(len(self)), module)
        return self

    def extend(self, modules):
        for module in modules:
            self.append(module)
        return self

    def insert(self, index, module):
        if not isinstance(module, Module):
            raise TypeError(f"{type(module).__name__} is not a Module subclass")
        if not -len(self) <= index <= len(self):
            raise IndexError(f"Index out of range: {index}")
        modules = list(self)
        modules.insert(index, module)
        self._renumber(modules)
        return self

    def pop(self, index):
        module = self[index]
        del self[index]
        return module

    def __iadd__(self, modules):
        return self.extend(modules)


class Sequential(_Ordered):
    """y = last(...(second(first(x)))). Made of modules, or of one dictionary from names to modules.

    >>> import pydist
    >>> net = pydist.nn.Sequential(pydist.nn.Linear(4, 3), pydist.nn.ReLU())
    >>> net
    Sequential(
      (0): Linear(in_features=4, out_features=3, bias=True)
      (1): ReLU()
    )
    """

    def extend(self, sequential):
        """Appends all modules of an iterable. Returns self."""
        return super().extend(sequential)

    def pop(self, key):
        """Removes and returns the module at this index."""
        return super().pop(key)

    def __init__(self, *modules):
        super().__init__()
        named = modules[0].items() if len(modules) == 1 and isinstance(modules[0], dict) else enumerate(modules)
        for name, module in named:
            self.add_module(str(name), module)

    def _slice(self, items):
        return type(self)(dict(items))

    def __add__(self, other):
        if not isinstance(other, Sequential):
            return NotImplemented
        return Sequential(*self, *other)

    def __mul__(self, times):
        """The same modules, repeated `times` times."""
        if not isinstance(times, int):
            return NotImplemented
        if times <= 0:
            raise ValueError(f"Non-positive multiplication factor {times} for {type(self)} (expected at least 1)")
        return Sequential(*list(self) * times)

    __rmul__ = __mul__

    def __imul__(self, times):
        self._renumber(self * times)
        return self

    def forward(self, input):
        for module in self._modules.values():
            input = module(input)
        return input


class ModuleList(_Ordered):
    """A list of modules; their parameters are parameters of the list. It has no forward.

    >>> import pydist
    >>> pydist.nn.ModuleList(pydist.nn.ReLU() for _ in range(3))
    ModuleList(
      (0-2): 3 x ReLU()
    )
    """

    def __init__(self, modules=()):
        super().__init__()
        self.extend(modules or ())

    def _slice(self, items):
        return type(self)(module for _, module in items)

    def __add__(self, other):
        return type(self)([*self, *other])

    def __repr__(self):
        """As Module's, but equal neighbouring children are written once."""
        runs = []
        for i, text in enumerate(map(repr, self)):
            if runs and runs[-1][2] == text:
                runs[-1][1] = i
            else:
                runs.append([i, i, text])
        lines = [
            (f"({first}): " if first == last else f"({first}-{last}): {last - first + 1} x ") + _indent(text)
            for first, last, text in runs
        ]
        name = self._get_name()
        return f"{name}(\n  " + "\n  ".join(lines) + "\n)" if lines else f"{name}()"


def _pairs(kind, source):
    """The (key, value) pairs of a mapping or of an iterable of pairs."""
    if not isinstance(source, Iterable):
        raise TypeError(
            f"{kind}.update should be called with an iterable of key/value pairs, but got {type(source).__name__}"
        )
    if isinstance(source, (Mapping, _Named)):
        yield from source.items()
        return
    for i, pair in enumerate(source):
        if not isinstance(pair, Iterable):
            raise TypeError(f"{kind} update sequence element #{i} should be Iterable; is {type(pair).__name__}")
        if len(pair) != 2:
            raise ValueError(f"{kind} update sequence element #{i} has length {len(pair)}; 2 is required")
        yield pair


class _Named(Module):
    """The methods of a dictionary over `_entries`, the keys in order. Values are attributes."""

    def __getitem__(self, key):
        return self._entries[key]

    def __len__(self):
        return len(self._entries)

    def __iter__(self):
        return iter(self._entries)

    def __contains__(self, key):
        return key in self._entries

    def clear(self):
        for key in list(self):
            del self[key]

    def pop(self, key):
        value = self[key]
        del self[key]
        return value

    def get(self, key, default=None):
        return self[key] if key in self else default

    def keys(self):
        return self._entries.keys()

    def items(self):
        return self._entries.items()

    def values(self):
        return self._entries.values()

    def update(self, modules):
        """Sets the entries of a mapping, or of an iterable of pairs, in their order."""
        for key, value in _pairs(type(self).__name__, modules):
            self[key] = value


class ModuleDict(_Named):
    """A dictionary of modules; their parameters are parameters of the dictionary. It has no forward.

    >>> import pydist
    >>> pydist.nn.ModuleDict({"act": pydist.nn.ReLU()})
    ModuleDict(
      (act): ReLU()
    )
    """

    def __init__(self, modules=None):
        super().__init__()
        if modules is not None:
            self.update(modules)

    @property
    def _entries(self):
        return self._modules

    def __setitem__(self, key, module):
        self.add_module(key, module)

    def __delitem__(self, key):
        del self._modules[key]


_TYPE_NAMES = {
    _C.float32: "Float",
    _C.float64: "Double",
    _C.float16: "Half",
    _C.bfloat16: "BFloat16",
    _C.int64: "Long",
    _C.int32: "Int",
    _C.int16: "Short",
    _C.int8: "Char",
    _C.uint8: "Byte",
    _C.bool: "Bool",
}


def _entry_text(value, type_of):
    if not isinstance(value, _C.Tensor):
        return f"Object of type: {type(value).__name__}"
    kind = "Parameter" if isinstance(value, Parameter) else "Tensor"
    return f"{kind} containing: [{type_of(value)} of size {'x'.join(map(str, value.shape))}]"


def _as_parameter(value):
    return Parameter(value) if isinstance(value, _C.Tensor) and not isinstance(value, Parameter) else value


class ParameterList(Module):
    """A list of parameters, which belong to the module. Assigned tensors become Parameters; other objects stay as they
    are.

    >>> import pydist
    >>> pydist.nn.ParameterList([pydist.zeros(2, 3), pydist.ones(1)])
    ParameterList(
        (0): Parameter containing: [pydist.float32 of size 2x3]
        (1): Parameter containing: [pydist.float32 of size 1]
    )
    """

    def __init__(self, values=None):
        super().__init__()
        self._size = 0
        if values is not None:
            self.extend(values)

    def _name_of(self, index):
        if not -self._size <= index < self._size:
            raise IndexError(f"index {index} is out of range")
        return str(index % self._size)

    def __getitem__(self, index):
        if isinstance(index, slice):
            return type(self)(self[i] for i in range(*index.indices(self._size)))
        return getattr(self, self._name_of(index))

    def __setitem__(self, index, value):
        setattr(self, self._name_of(index), _as_parameter(value))

    def __len__(self):
        return self._size

    def __iter__(self):
        return (self[i] for i in range(self._size))

    def __iadd__(self, values):
        return self.extend(values)

    def append(self, value):
        """Adds a value at the end. Returns self."""
        self._size += 1
        self[self._size - 1] = value
        return self

    def extend(self, values):
        """Adds all values of an iterable at the end. Returns self."""
        if not isinstance(values, Iterable) or isinstance(values, _C.Tensor):
            raise TypeError(f"ParameterList.extend should be called with an iterable, but got {type(values).__name__}")
        for value in values:
            self.append(value)
        return self

    def extra_repr(self):
        return "\n".join(f"  ({i}): {_entry_text(value, lambda p: p.dtype)}" for i, value in enumerate(self))

    def __call__(self, *args, **kwargs):
        raise RuntimeError("ParameterList should not be called.")


class ParameterDict(_Named):
    """A dictionary of parameters, which belong to the module. Assigned tensors become Parameters; other objects stay as
    they are.

    >>> import pydist
    >>> pydist.nn.ParameterDict({"scale": pydist.ones(3)})
    ParameterDict(  (scale): Parameter containing: [pydist.FloatTensor of size 3])
    """

    def __init__(self, parameters=None):
        super().__init__()
        self._keys = {}
        if parameters is not None:
            self.update(parameters)

    def update(self, parameters):
        super().update(parameters)

    @property
    def _entries(self):
        return {key: getattr(self, key) for key in self._keys}

    def __getitem__(self, key):
        if key not in self._keys:
            raise KeyError(key)
        return getattr(self, key)

    def __setitem__(self, key, value):
        if not isinstance(key, str):
            raise TypeError(
                f"Index given to ParameterDict cannot be used as a key as it is not a string (type is '{type(key)}')."
            )
        setattr(self, key, _as_parameter(value))
        self._keys[key] = None

    def __delitem__(self, key):
        del self._keys[key]
        delattr(self, key)

    def __len__(self):
        return len(self._keys)

    def __reversed__(self):
        return reversed(self._keys)

    def copy(self):
        """A new ParameterDict with the same values."""
        return ParameterDict(self.items())

    def setdefault(self, key, default=None):
        """The value of `key`, which is set to `default` first if it is missing."""
        if key not in self:
            self[key] = default
        return self[key]

    def popitem(self):
        """Removes and returns the last (key, value)."""
        key = next(reversed(self._keys))
        return key, self.pop(key)

    def fromkeys(self, keys, default=None):
        """A new ParameterDict with these keys, each with the value `default`."""
        return ParameterDict((key, default) for key in keys)

    def __or__(self, other):
        new = self.copy()
        new.update(other)
        return new

    def __ror__(self, other):
        new = other.copy()
        new.update(self)
        return new

    def __ior__(self, other):
        self.update(other)
        return self

    def extra_repr(self):
        def type_of(p):
            return f"pydist.{_TYPE_NAMES[p.dtype]}Tensor"

        return "\n".join(f"  ({key}): {_entry_text(value, type_of)}" for key, value in self.items())

    def __call__(self, *args, **kwargs):
        raise RuntimeError("ParameterDict should not be called.")
