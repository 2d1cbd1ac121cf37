"""Modules that hold modules in order."""

from itertools import islice

from pydist.nn.modules.module import Module, _indent


class _Ordered(Module):
    """Children named "0", "1", ...: indexing, slicing, length and iteration as a list's."""

    def _name_of(self, index):
        size = len(self._modules)
        if not -size <= index < size:
            raise IndexError(f"index {index} is out of range for {size} modules")
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
        modules = list(self)
        modules.insert(index, module)
        self._renumber(modules)
        return self


class Sequential(_Ordered):
    """y = last(...(second(first(x)))); made of modules, or of one dictionary from names to modules.

    >>> import pydist
    >>> net = pydist.nn.Sequential(pydist.nn.Linear(4, 3), pydist.nn.ReLU())
    >>> net
    Sequential(
      (0): Linear(in_features=4, out_features=3, bias=True)
      (1): ReLU()
    )
    """

    def __init__(self, *modules):
        super().__init__()
        named = modules[0].items() if len(modules) == 1 and isinstance(modules[0], dict) else enumerate(modules)
        for name, module in named:
            self.add_module(str(name), module)

    def _slice(self, items):
        return type(self)(dict(items))

    def forward(self, input):
        for module in self._modules.values():
            input = module(input)
        return input


class ModuleList(_Ordered):
    """A list of modules whose parameters are found; it has no forward.

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

    def __iadd__(self, modules):
        return self.extend(modules)

    def __add__(self, other):
        return type(self)([*self, *other])

    def __repr__(self):
        """Like Module's, with runs of children of the same text written once."""
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
