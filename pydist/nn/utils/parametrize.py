"""Parameters that are functions of other tensors: `register_parametrization(module, "weight", f)` makes module.weight
f(original)."""

from contextlib import contextmanager

from pydist import _C
from pydist._grad_mode import no_grad
from pydist.nn.modules.container import ModuleDict, ModuleList
from pydist.nn.parameter import Parameter

_cache, _cached = {}, 0


@contextmanager
def cached():
    """Inside this block a parametrized tensor is computed once and kept. Saves time for models that use one often."""
    global _cached
    _cached += 1
    try:
        yield
    finally:
        _cached -= 1
        if not _cached:
            _cache.clear()


class ParametrizationList(ModuleList):
    """The functions of one tensor, applied in order, and the tensor that they are applied to: `original`. If the first
    function's `right_inverse` returns several tensors, they are `original0`, `original1`, ..."""

    def __init__(self, modules, original, unsafe=False):
        super().__init__(modules)
        self.unsafe = unsafe
        new = original
        with no_grad():
            for module in reversed(self):
                new = module.right_inverse(new) if hasattr(module, "right_inverse") else new
        self.is_tensor = isinstance(new, _C.Tensor)
        if not self.is_tensor and not isinstance(new, (list, tuple)):
            raise ValueError(f"right_inverse must return a Tensor or a sequence of tensors, got {type(new).__name__}")
        self.ntensors = 1 if self.is_tensor else len(new)
        for name, tensor in zip(self._names(), [new] if self.is_tensor else new):
            self._hold(name, tensor, original)
        if not unsafe:
            self._check(original)

    def _names(self):
        return ["original"] if self.is_tensor else [f"original{i}" for i in range(self.ntensors)]

    def _hold(self, name, tensor, original):
        if tensor is original:  # the same object, because optimizers may hold it
            hold = self.register_parameter if isinstance(original, Parameter) else self.register_buffer
            hold(name, original)
        elif isinstance(original, Parameter):
            if name == "original" and tensor.shape == original.shape and tensor.dtype is original.dtype:
                with no_grad():
                    original.copy_(tensor)
                tensor = original
            self.register_parameter(name, tensor if tensor is original else Parameter(tensor, original.requires_grad))
        else:
            self.register_buffer(name, tensor)

    def _check(self, original):
        made = self()
        if not isinstance(made, _C.Tensor):
            raise ValueError(f"A parametrization must return a tensor. Got {type(made).__name__}.")
        if made.dtype is not original.dtype or made.shape != original.shape:
            raise ValueError(
                "Registering a parametrization may not change dtype or shape of the tensor: "
                f"{original.dtype} {tuple(original.shape)} became {made.dtype} {tuple(made.shape)} "
                "(expected the same dtype and shape, or unsafe=True)"
            )

    @no_grad()
    def right_inverse(self, value):
        """Sets the originals so that the tensor becomes `value`. Raises RuntimeError if a parametrization has no
        right_inverse."""
        for module in reversed(self):
            if not hasattr(module, "right_inverse"):
                raise RuntimeError(f"parametrization {type(module).__name__} does not implement right_inverse.")
            value = module.right_inverse(value)
        for name, tensor in zip(self._names(), [value] if self.is_tensor else value):
            getattr(self, name).copy_(tensor)

    def forward(self):
        value = self[0](*(getattr(self, name) for name in self._names()))
        for module in list(self)[1:]:
            value = module(value)
        return value


def _property(name):
    def get(self):
        if not _cached:
            return self.parametrizations[name]()
        key = id(self), name
        if key not in _cache:
            _cache[key] = self.parametrizations[name]()
        return _cache[key]

    def put(self, value):
        self.parametrizations[name].right_inverse(value)

    return property(get, put)


def is_parametrized(module, tensor_name=None):
    """Whether any tensor of the module, or the named one, is parametrized."""
    lists = module._modules.get("parametrizations")
    return bool(lists) and (tensor_name is None or tensor_name in lists)


def type_before_parametrizations(module):
    """The module's class as it was before register_parametrization."""
    return type(module).__bases__[0] if is_parametrized(module) else type(module)


def register_parametrization(module, tensor_name, parametrization, *, unsafe=False):
    """Makes module.tensor_name parametrization(original), computed at each read. `original`, in
    module.parametrizations.tensor_name, is trained and saved. Several parametrizations are applied in order. If the
    parametrization has `right_inverse`, assigning to module.tensor_name sets the original, and the tensor keeps its
    value now. Returns the module. Raises ValueError for an unknown name, or if dtype or shape would change.

    >>> import pydist
    >>> from pydist import nn
    >>> class Symmetric(nn.Module):
    ...     def forward(self, x):
    ...         return x.triu() + x.triu(1).t()
    >>> net = nn.utils.parametrize.register_parametrization(nn.Linear(3, 3), "weight", Symmetric())
    >>> bool((net.weight == net.weight.t()).all()), list(net.state_dict())
    (True, ['bias', 'parametrizations.weight.original'])
    """
    parametrization.train(module.training)
    if is_parametrized(module, tensor_name):
        chain = module.parametrizations[tensor_name]
        before = getattr(module, tensor_name)
        made = before if unsafe else parametrization(before)
        if made.dtype is not before.dtype or made.shape != before.shape:
            raise ValueError(
                "Registering a parametrization may not change dtype or shape of the tensor (expected equal ones, "
                "or unsafe=True)"
            )
        if hasattr(parametrization, "right_inverse"):
            with no_grad():
                chain.right_inverse(parametrization.right_inverse(before.detach()))
        chain.append(parametrization)
        return module
    original = module._parameters.get(tensor_name, module._buffers.get(tensor_name))
    if original is None:
        raise ValueError(
            f"Module '{type(module).__name__}' does not have a parameter or a buffer named '{tensor_name}'"
        )
    chain = ParametrizationList([parametrization], original, unsafe)
    if not is_parametrized(module):
        kind = type(module)
        module.__class__ = type(f"Parametrized{kind.__name__}", (kind,), {"__module__": kind.__module__})
        module.parametrizations = ModuleDict()
    delattr(module, tensor_name)
    module.parametrizations[tensor_name] = chain
    setattr(type(module), tensor_name, _property(tensor_name))
    return module


def remove_parametrizations(module, tensor_name, leave_parametrized=True):
    """Makes the tensor a plain parameter or buffer again, with its present value (leave_parametrized) or the
    original's. Returns the module. Raises ValueError if it is not parametrized, or if leave_parametrized is False and
    it has several originals."""
    if not is_parametrized(module, tensor_name):
        raise ValueError(f"Module {type(module).__name__} does not have a parametrization on {tensor_name}")
    chain = module.parametrizations[tensor_name]
    if not leave_parametrized and not chain.is_tensor:
        raise ValueError(
            "Cannot leave unparametrized a tensor parametrized in terms of a sequence of tensors (expected "
            "leave_parametrized=True)."
        )
    original = getattr(chain, chain._names()[0])
    if leave_parametrized:
        with no_grad():
            value = getattr(module, tensor_name).detach().clone()
        if chain.is_tensor and value.shape == original.shape and value.dtype is original.dtype:
            with no_grad():
                original.copy_(value)
        else:
            original = Parameter(value, original.requires_grad) if isinstance(original, Parameter) else value
    kind = type(module)
    delattr(kind, tensor_name)
    del module.parametrizations[tensor_name]
    if not len(module.parametrizations):
        del module._modules["parametrizations"]
        module.__class__ = kind.__bases__[0]
    if isinstance(original, Parameter):
        module.register_parameter(tensor_name, original)
    else:
        module.register_buffer(tensor_name, original)
    return module
