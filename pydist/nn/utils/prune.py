"""Pruning by masks: `weight` becomes weight_mask * weight_orig, computed before each forward.

`weight_orig` is the parameter that trains, `weight_mask` a buffer, `weight` a plain attribute. Gradients of masked elements
are 0. Masks of several prunings are combined. `remove` makes the zeros permanent; that shrinks nothing by itself.
"""

import numbers
from abc import ABC, abstractmethod
from collections.abc import Iterable

import pydist
from pydist import _C
from pydist.nn.utils import parameters_to_vector

__all__ = [
    "BasePruningMethod",
    "CustomFromMask",
    "Identity",
    "L1Unstructured",
    "LnStructured",
    "PruningContainer",
    "RandomStructured",
    "RandomUnstructured",
    "custom_from_mask",
    "global_unstructured",
    "identity",
    "is_pruned",
    "l1_unstructured",
    "ln_structured",
    "random_structured",
    "random_unstructured",
    "remove",
]


# ---- amounts ----------------------------------------------------------------------------------------------------------


def _validate_pruning_amount_init(amount):
    """Raises unless it is a share of 0 to 1 or a count."""
    if not isinstance(amount, numbers.Real) or isinstance(amount, bool):
        raise TypeError(f"Invalid type for amount: {amount}. Must be int or float (expected one of these).")
    is_count = isinstance(amount, numbers.Integral)
    if amount < 0 or not is_count and not amount <= 1:
        raise ValueError(
            f"amount={amount} should either be a float in the range [0, 1] or a non-negative integer (expected one of these)"
        )


def _validate_pruning_amount(amount, tensor_size):
    """Raises for a count of more units than there are."""
    if isinstance(amount, numbers.Integral) and amount > tensor_size:
        raise ValueError(
            f"amount={amount} should be smaller than the number of parameters to prune={tensor_size} (expected at most that)"
        )


def _compute_nparams_toprune(amount, tensor_size):
    """How many of so many units an amount is."""
    return int(amount) if isinstance(amount, numbers.Integral) else round(amount * tensor_size)


def _count(amount, size):
    count = _compute_nparams_toprune(amount, size)
    _validate_pruning_amount(count, size)
    return count


def _validate_structured_pruning(t):
    """Raises for a tensor without channels."""
    if t.dim() <= 1:
        raise ValueError(
            "Structured pruning can only be applied to multidimensional tensors. Found tensor of shape "
            f"{t.shape} with {t.dim()} dims (expected 2 or more)"
        )


def _validate_pruning_dim(t, dim):
    """Raises for a dim that the tensor does not have."""
    if not -t.dim() <= dim < t.dim():
        raise IndexError(f"Invalid index {dim} for tensor of size {t.shape} (expected one of its {t.dim()} dims)")


def _other_dims(t, dim):
    return [d for d in range(t.dim()) if d != dim % t.dim()]


def _compute_norm(t, n, dim):
    """The n-norm of each channel along `dim`."""
    return pydist.norm(t, p=n, dim=_other_dims(t, dim))


def _only(mask, dim, channels):
    """The mask with zeros in all channels but these."""
    kept = pydist.zeros(mask.shape[dim], dtype=mask.dtype, device=mask.device)
    kept[channels] = 1
    shape = [1] * mask.dim()
    shape[dim] = -1
    return mask * kept.view(shape)


# ---- methods ----------------------------------------------------------------------------------------------------------


def _hook_of(module, name):
    """(key, hook) of what prunes this tensor; (None, None)."""
    found = [
        (key, hook)
        for key, hook in module._forward_pre_hooks.items()
        if isinstance(hook, BasePruningMethod) and hook._tensor_name == name
    ]
    if len(found) > 1:
        raise AssertionError(
            f"Avoid adding multiple pruning hooks to the same tensor {name} of module {module}. Use a PruningContainer."
        )
    return found[0] if found else (None, None)


class BasePruningMethod(ABC):
    """Base class of pruning methods: they define compute_mask(t, default_mask) and PRUNING_TYPE: "unstructured" (single
    elements), "structured" (channels along self.dim) or "global" (all at once)."""

    _tensor_name = None
    makes = property(lambda self: self._tensor_name, doc="The attribute that each forward makes anew.")

    def __call__(self, module, inputs):
        """The hook before each forward."""
        setattr(module, self._tensor_name, self.apply_mask(module))

    @abstractmethod
    def compute_mask(self, t, default_mask):
        """A mask of t's shape: default_mask, with zeros where this method prunes. t has the importance of elements."""

    def apply_mask(self, module):
        """mask * original."""
        if self._tensor_name is None:
            raise AssertionError(f"Module {module} has to be pruned")
        original = getattr(module, self._tensor_name + "_orig")
        return getattr(module, self._tensor_name + "_mask").to(dtype=original.dtype) * original

    @classmethod
    def apply(cls, module, name, *args, importance_scores=None, **kwargs):
        """Prunes the parameter `name` of a module by cls(*args, **kwargs), on top of earlier prunings. Returns the
        method, a PruningContainer if there are several. importance_scores: a tensor of the same shape that says what
        to keep; default: the parameter. After an error the module is as before."""
        key, before = _hook_of(module, name)
        if before is None and not isinstance(module._parameters.get(name), _C.Tensor):
            raise AttributeError(f"{type(module).__name__} has no parameter {name!r} (expected the name of one)")
        method = cls(*args, **kwargs)
        method._tensor_name = name
        if isinstance(before, PruningContainer):
            combined = PruningContainer(*before)
        elif before is not None:
            combined = PruningContainer(before)
        if before is not None:
            combined.add_pruning_method(method)
            method = combined
        current = getattr(module, name)
        scores = current if importance_scores is None else importance_scores
        if scores.shape != current.shape:
            raise AssertionError(
                f"importance_scores should have the same shape as parameter {name} of {module}, got {scores.shape} vs "
                f"{current.shape}"
            )
        mask = pydist.ones_like(current) if before is None else getattr(module, name + "_mask").detach().clone()
        with pydist.no_grad():
            mask = method.compute_mask(scores.detach(), default_mask=mask)
        if before is None:
            for taken in (f"{name}_orig", f"{name}_mask"):
                module._check_not_taken(taken, {})
            module.register_parameter(name + "_orig", module._parameters.pop(name))
        else:
            del module._forward_pre_hooks[key]
        module.register_buffer(name + "_mask", mask)
        setattr(module, name, method.apply_mask(module))
        module.register_forward_pre_hook(method)
        return method

    def prune(self, t, default_mask=None, importance_scores=None):
        """A pruned copy of a tensor."""
        scores = t if importance_scores is None else importance_scores
        if scores.shape != t.shape:
            raise AssertionError(
                f"importance_scores should have the same shape as tensor t, got {scores.shape} vs {t.shape}"
            )
        mask = pydist.ones_like(t) if default_mask is None else default_mask
        return t * self.compute_mask(scores, default_mask=mask)

    def remove(self, module):
        """Makes the parameter one again, with the zeros in it."""
        if self._tensor_name is None:
            raise AssertionError(
                f"Module {module} has to be pruned before pruning can be removed (expected a pruned one)"
            )
        name = self._tensor_name
        with pydist.no_grad():
            weight = self.apply_mask(module)
        module.__dict__.pop(name, None)
        original = module._parameters.pop(name + "_orig")
        original.data = weight
        del module._buffers[name + "_mask"]
        module.register_parameter(name, original)


class PruningContainer(BasePruningMethod):
    """Several methods for one tensor. compute_mask applies the last one to what the others have left."""

    def __init__(self, *args):
        self._pruning_methods = ()
        if len(args) == 1:
            self._tensor_name = args[0]._tensor_name
        elif args and isinstance(args[0], BasePruningMethod):
            self._tensor_name = args[0]._tensor_name
        for method in args:
            self.add_pruning_method(method)

    def add_pruning_method(self, method):
        """Adds a method for the same tensor."""
        if not isinstance(method, BasePruningMethod) and method is not None:
            raise TypeError(f"{type(method)} is not a BasePruningMethod subclass (expected an object of one)")
        if method is not None and self._tensor_name != method._tensor_name:
            raise ValueError(
                f"Can only add pruning methods acting on the parameter named '{self._tensor_name}' to PruningContainer {self}. "
                f"Found '{method._tensor_name}' (expected the same name)"
            )
        self._pruning_methods += (method,)

    def __len__(self):
        return len(self._pruning_methods)

    def __iter__(self):
        return iter(self._pruning_methods)

    def __getitem__(self, idx):
        return self._pruning_methods[idx]

    def compute_mask(self, t, default_mask):
        """The mask of the last method, within what default_mask leaves: single elements that are left, or channels in which
        any element is."""
        method, mask = self._pruning_methods[-1], default_mask.to(dtype=t.dtype).clone()
        if method.PRUNING_TYPE == "unstructured":
            place = default_mask == 1
        elif method.PRUNING_TYPE == "structured":
            if not hasattr(method, "dim"):
                raise AttributeError(
                    'Pruning methods of PRUNING_TYPE "structured" need to have the attribute `dim` defined.'
                )
            _validate_structured_pruning(t)
            _validate_pruning_dim(t, method.dim)
            left = default_mask.sum(dim=_other_dims(t, method.dim)) != 0
            place = tuple(left if d == method.dim % t.dim() else slice(None) for d in range(t.dim()))
        elif method.PRUNING_TYPE == "global":
            place = ...
        else:
            raise ValueError(
                f"Unrecognized PRUNING_TYPE {method.PRUNING_TYPE} (expected unstructured, structured or global)"
            )
        mask[place] = method.compute_mask(t[place], default_mask=default_mask[place]).to(dtype=mask.dtype)
        return mask


class Identity(BasePruningMethod):
    """Prunes nothing: the parameter gets a mask of ones."""

    PRUNING_TYPE = "unstructured"

    def compute_mask(self, t, default_mask):
        """default_mask."""
        return default_mask

    @classmethod
    def apply(cls, module, name):
        """See BasePruningMethod.apply."""
        return super().apply(module, name)


class _Unstructured(BasePruningMethod):
    PRUNING_TYPE = "unstructured"

    def __init__(self, amount):
        _validate_pruning_amount_init(amount)
        self.amount = amount

    def compute_mask(self, t, default_mask):
        """default_mask, with zeros at the `amount` least important elements."""
        count, mask = _count(self.amount, t.numel()), default_mask.clone(memory_format=pydist.contiguous_format)
        if count:
            mask.view(-1)[self._importance(t).reshape(-1).topk(count, largest=False).indices] = 0
        return mask


class RandomUnstructured(_Unstructured):
    """Prunes `amount` (a count or a share) random elements."""

    def _importance(self, t):
        return pydist.rand_like(t)

    @classmethod
    def apply(cls, module, name, amount):
        """See BasePruningMethod.apply."""
        return super().apply(module, name, amount=amount)


class L1Unstructured(_Unstructured):
    """Prunes the `amount` (a count or a share) elements of the smallest absolute value."""

    def _importance(self, t):
        return t.abs()

    @classmethod
    def apply(cls, module, name, amount, importance_scores=None):
        """See BasePruningMethod.apply."""
        return super().apply(module, name, amount=amount, importance_scores=importance_scores)


class _Structured(BasePruningMethod):
    PRUNING_TYPE = "structured"

    def __init__(self, amount, dim=-1):
        _validate_pruning_amount_init(amount)
        self.amount, self.dim = amount, dim

    def compute_mask(self, t, default_mask):
        """default_mask, with zeros in the `amount` least important channels."""
        _validate_structured_pruning(t)
        _validate_pruning_dim(t, self.dim)
        size = t.shape[self.dim]
        count = _count(self.amount, size)
        if not count:
            return default_mask
        return _only(default_mask.to(dtype=t.dtype), self.dim, self._importance(t).topk(size - count).indices)


class RandomStructured(_Structured):
    """Prunes `amount` (a count or a share) random channels along `dim`."""

    def _importance(self, t):
        return pydist.rand(t.shape[self.dim], device=t.device)

    @classmethod
    def apply(cls, module, name, amount, dim=-1):
        """See BasePruningMethod.apply."""
        return super().apply(module, name, amount=amount, dim=dim)


class LnStructured(_Structured):
    """Prunes the `amount` (a count or a share) channels along `dim` of the smallest n-norm. n: what pydist.norm takes as p."""

    def __init__(self, amount, n, dim=-1):
        super().__init__(amount, dim)
        self.n = n

    def _importance(self, t):
        return _compute_norm(t, self.n, self.dim)

    @classmethod
    def apply(cls, module, name, amount, n, dim, importance_scores=None):
        """See BasePruningMethod.apply."""
        return super().apply(module, name, amount=amount, n=n, dim=dim, importance_scores=importance_scores)


class CustomFromMask(BasePruningMethod):
    """Prunes where `mask` is 0."""

    PRUNING_TYPE = "global"

    def __init__(self, mask):
        self.mask = mask

    def compute_mask(self, t, default_mask):
        """default_mask * mask."""
        if default_mask.shape != self.mask.shape:
            raise AssertionError(
                f"default_mask shape {default_mask.shape} must match self.mask shape {self.mask.shape}"
            )
        return default_mask * self.mask.to(dtype=default_mask.dtype)

    @classmethod
    def apply(cls, module, name, mask):
        """See BasePruningMethod.apply."""
        return super().apply(module, name, mask=mask)


# ---- functions --------------------------------------------------------------------------------------------------------


def identity(module, name):
    """Gives a parameter a mask of ones. Returns the module."""
    Identity.apply(module, name)
    return module


def random_unstructured(module, name, amount):
    """Prunes random elements of a parameter: `amount` of them, or that share (a float of 0 to 1). Returns the module.

    >>> import pydist
    >>> from pydist.nn.utils import prune
    >>> layer = prune.random_unstructured(pydist.nn.Linear(4, 3), "weight", amount=5)
    >>> int((layer.weight_mask == 0).sum()), [name for name, _ in layer.named_parameters()]
    (5, ['bias', 'weight_orig'])
    """
    RandomUnstructured.apply(module, name, amount)
    return module


def l1_unstructured(module, name, amount, importance_scores=None):
    """Prunes the elements of a parameter with the smallest absolute values. Returns the module.

    >>> import pydist
    >>> from pydist.nn.utils import prune
    >>> layer = pydist.nn.Linear(4, 1)
    >>> layer.weight.data = pydist.tensor([[3.0, -1.0, 2.0, 0.5]])
    >>> prune.l1_unstructured(layer, "weight", amount=0.5).weight.tolist()
    [[3.0, -0.0, 2.0, 0.0]]
    """
    L1Unstructured.apply(module, name, amount=amount, importance_scores=importance_scores)
    return module


def random_structured(module, name, amount, dim):
    """Prunes random channels along `dim`. Returns the module."""
    RandomStructured.apply(module, name, amount, dim)
    return module


def ln_structured(module, name, amount, n, dim, importance_scores=None):
    """Prunes the channels along `dim` with the smallest n-norms. Returns the module."""
    LnStructured.apply(module, name, amount, n, dim, importance_scores=importance_scores)
    return module


def custom_from_mask(module, name, mask):
    """Prunes a parameter where `mask` is 0. Returns the module."""
    CustomFromMask.apply(module, name, mask)
    return module


def global_unstructured(parameters, pruning_method, importance_scores=None, **kwargs):
    """Prunes all these parameters as if they were one: [(module, name), ...]. pruning_method: an unstructured one, such as
    L1Unstructured; kwargs are its arguments. importance_scores: {(module, name): tensor}."""
    if not isinstance(parameters, Iterable):
        raise TypeError("global_unstructured(): parameters is not an Iterable (expected pairs of a module and a name)")
    parameters = list(parameters)
    scores = importance_scores if importance_scores is not None else {}
    if not isinstance(scores, dict):
        raise TypeError("global_unstructured(): importance_scores must be of type dict (expected one)")
    method = pruning_method(**kwargs)
    if method.PRUNING_TYPE != "unstructured":
        raise TypeError(
            f'Only "unstructured" PRUNING_TYPE supported for the `pruning_method`. Found method {pruning_method} of type '
            f"{method.PRUNING_TYPE} (expected one of L1Unstructured's kind)"
        )
    masks = []
    with pydist.no_grad():
        for module, name in parameters:
            value = getattr(module, name)
            masks.append(getattr(module, name + "_mask", pydist.ones_like(value)))
        importance = parameters_to_vector([scores.get(place, getattr(*place)) for place in parameters])
        mask = PruningContainer(method).compute_mask(importance, parameters_to_vector(masks))
    begin = 0
    for module, name in parameters:
        value = getattr(module, name)
        custom_from_mask(module, name, mask[begin : begin + value.numel()].view(value.shape))
        begin += value.numel()


def remove(module, name):
    """Makes the pruning of a parameter permanent: it is a plain parameter again, with zeros. Returns the module. Raises
    ValueError if it is not pruned."""
    key, hook = _hook_of(module, name)
    if hook is None:
        raise ValueError(
            f"Parameter '{name}' of module {module} has to be pruned before pruning can be removed (expected a pruned one)"
        )
    hook.remove(module)
    del module._forward_pre_hooks[key]
    return module


def is_pruned(module):
    """Whether a parameter of the module, or of one inside it, is pruned."""
    return any(
        isinstance(hook, BasePruningMethod) for part in module.modules() for hook in part._forward_pre_hooks.values()
    )
