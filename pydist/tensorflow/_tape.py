"""GradientTape: gradients of what was computed inside it.

Autograd records only while a tape is open: the first tape, variable or layer of a program turns recording off outside
(`gradients_off`).
"""

import inspect
import logging
import threading
import weakref

import pydist
from pydist import _C
from pydist.autograd import Function, grad
from pydist.tensorflow import nest
from pydist.tensorflow._tensors import Tensor, of_variable, tensor

_log = logging.getLogger("pydist.tensorflow")


class _Here(threading.local):
    def __init__(self):
        self.tapes = []  # the open ones
        self.asked = weakref.WeakSet()  # those that may still be asked for gradients


_here = _Here()
_watched = {}  # id of a tensor that tapes watch: (the tensor, how many of them)


def gradients_off():
    """Autograd records nothing in this thread until a tape is opened."""
    if not _here.tapes:
        _C.set_grad_enabled(False)


def is_recording():
    """Whether a tape of this thread is open."""
    return bool(_here.tapes)


def keeps(variable, value):
    """Whether a tape of this thread may still need the value of a variable that is assigned to. The tape remembers
    it."""
    for tape in _here.asked:
        tape._former.setdefault(id(variable), []).append(value)
    return bool(_here.asked)


class UnconnectedGradients:
    """What `gradient` returns for a source that the target does not depend on."""

    NONE, ZERO = "none", "zero"


class GradientTape:
    """Records what is computed in its block, for `gradient`. Variables that can be trained are watched by themselves
    (unless watch_accessed_variables is False), tensors by `watch`. A persistent tape can be asked several times."""

    def __init__(self, persistent=False, watch_accessed_variables=True):
        self._persistent, self._automatic = persistent, watch_accessed_variables
        self._variables, self._tensors, self._former = {}, [], {}
        self._open = self._used = self._shared = False
        gradients_off()

    def __enter__(self):
        if self._open:
            raise ValueError("GradientTape: the tape is open already (expected one block at a time)")
        self._shared = self._shared or is_recording()
        for tape in _here.tapes:
            tape._shared = True
        self._open, self._used = True, False
        _here.tapes.append(self)
        _here.asked.add(self)
        _C.set_grad_enabled(True)
        return self

    def __exit__(self, *error):
        self._open = False
        _here.tapes.remove(self)
        _C.set_grad_enabled(is_recording())

    def __del__(self):
        self._forget()

    def watch(self, tensor):
        """Gradients can be taken for this tensor, or structure of tensors and variables."""
        for value in nest.flatten(tensor):
            held = of_variable(value)
            if held is not None:
                self._variables[id(value)] = value
                continue
            if not isinstance(value, Tensor):
                raise ValueError(f"GradientTape.watch: got {type(value).__name__} (expected a tensor or variable)")
            if not (value.is_floating_point() or value.is_complex()):
                _log.warning(
                    "GradientTape.watch: the dtype is %s, which has no gradient (expected a floating dtype)",
                    value.dtype,
                )
            elif value.is_leaf and (not value.requires_grad or id(value) in _watched):
                value.requires_grad_(True)
                _watched[id(value)] = value, _watched.get(id(value), (value, 0))[1] + 1
                self._tensors.append(value)

    def _forget(self):
        for value in self.__dict__.get("_tensors", ()):
            _, count = _watched[id(value)]
            if count == 1:
                del _watched[id(value)]
                value.requires_grad_(False)
            else:
                _watched[id(value)] = value, count - 1
        self._tensors = []

    def reset(self):
        """Forgets what was recorded and watched."""
        self._forget()
        self._variables, self._former, self._used = {}, {}, False

    def stop_recording(self):
        """A block whose operations this tape does not record."""
        if not self._open:
            raise ValueError("GradientTape.stop_recording: the tape is not open (expected a call within its block)")
        if len(_here.tapes) > 1:
            raise NotImplementedError("GradientTape.stop_recording: several tapes are open (expected one)")
        return pydist.no_grad()

    def watched_variables(self):
        """The variables that `watch` was called with."""
        if self._automatic:
            raise NotImplementedError(
                "GradientTape.watched_variables: variables are not listed as they are used (expected "
                "watch_accessed_variables=False and watch)"
            )
        return tuple(self._variables.values())

    def _source(self, value):
        """The tensors whose gradients a source wants: its own, and the former values of a variable. Empty: it was not
        watched."""
        held = of_variable(value)
        if held is not None:
            watched = id(value) in self._variables or self._automatic
            return [v for v in (held, *self._former.get(id(value), ())) if watched and v.requires_grad]
        if not isinstance(value, Tensor):
            raise TypeError(f"GradientTape: a source is {type(value).__name__} (expected tensors or variables)")
        return [value] if value.requires_grad else []

    def _begin(self, name):
        if self._used and not self._persistent:
            raise RuntimeError(
                f"GradientTape.{name}: a non-persistent GradientTape can only be used to compute one set of "
                "gradients (expected "
                "persistent=True)"
            )
        self._used = True

    def gradient(self, target, sources, output_gradients=None, unconnected_gradients=UnconnectedGradients.NONE):
        """The gradients of the sum of the target's elements (weighted by output_gradients), in the structure of the
        sources: None, or zeros, for those that the target does not depend on."""
        zero = _wants_zeros(unconnected_gradients)
        self._begin("gradient")
        targets, weights = self._targets(target, output_gradients)
        flat = nest.flatten(sources)
        found = self._grads(targets, weights, [self._source(value) for value in flat])
        if not (self._persistent or self._open):
            self._forget()
            _here.asked.discard(self)
        if zero:
            found = [pydist.zeros_like(tensor(v)) if g is None else g for g, v in zip(found, flat)]
        return nest.pack_sequence_as(sources, found)

    def _targets(self, target, output_gradients):
        flat = nest.flatten(target)
        given = [None] * len(flat) if output_gradients is None else nest.flatten(output_gradients)
        pairs = []
        for value, weight in zip(flat, given):
            value = of_variable(value) if of_variable(value) is not None else value
            if isinstance(value, Tensor) and value.requires_grad:
                pairs.append((value, pydist.ones_like(value) if weight is None else tensor(weight).to(value.dtype)))
        return [value for value, _ in pairs], [weight for _, weight in pairs]

    def _grads(self, targets, weights, sources, keep=False):
        """For each source (a list of tensors) the sum of their gradients, or None."""
        wanted = [value for source in sources for value in source]
        if not targets or not wanted:
            return [None] * len(sources)
        found = iter(grad(
            targets, wanted, weights, allow_unused=True, create_graph=is_recording(),
            retain_graph=keep or self._persistent or self._shared or is_recording(),
        ))  # fmt: skip
        gradients = [[g for g in (next(found) for _ in source) if g is not None] for source in sources]
        return [sum(parts[1:], parts[0]) if parts else None for parts in gradients]

    def jacobian(self, target, sources, unconnected_gradients=UnconnectedGradients.NONE, parallel_iterations=None,
                 experimental_use_pfor=True):  # fmt: skip
        """The derivatives of each element of the target: tensors of the target's shape, then the source's."""
        zero = _wants_zeros(unconnected_gradients)
        self._begin("jacobian")
        flat = nest.flatten(sources)
        held = [self._source(value) for value in flat]
        rows = (
            [self._grads([target], [w], held, keep=True) for w in _unit_weights(target)] if target.requires_grad else []
        )
        found = []
        for i, value in enumerate(flat):
            shape, parts = tensor(value).shape, [row[i] for row in rows]
            if not parts or all(part is None for part in parts):
                found.append(
                    pydist.zeros(*target.shape, *shape, dtype=target.dtype, device=target.device) if zero else None
                )
            else:
                found.append(_C.stack(parts).reshape(*target.shape, *shape))
        return nest.pack_sequence_as(sources, found)

    def batch_jacobian(self, target, source, unconnected_gradients=UnconnectedGradients.NONE, parallel_iterations=None,
                       experimental_use_pfor=True):  # fmt: skip
        """The jacobian of each row of the target with respect to the same row of the source."""
        if target.shape[:1] != source.shape[:1]:
            raise ValueError(
                f"GradientTape.batch_jacobian: the target has {tuple(target.shape[:1])} rows, the source "
                f"{tuple(source.shape[:1])} (expected equal numbers)"
            )
        self._begin("batch_jacobian")
        rows, inner = target.shape[0], target.shape[1:]
        found = []
        for weight in _unit_weights(target[0]):
            gradient = self._grads([target], [weight.expand(target.shape)], [self._source(source)], keep=True)[0]
            found.append(pydist.zeros_like(source) if gradient is None else gradient)
        if not found:
            return pydist.zeros(rows, *inner, *source.shape[1:], dtype=target.dtype)
        return _C.stack(found, 1).reshape(rows, *inner, *source.shape[1:])


def _wants_zeros(unconnected):
    value = getattr(unconnected, "value", unconnected)
    if value not in (UnconnectedGradients.NONE, UnconnectedGradients.ZERO):
        raise ValueError(f"GradientTape: unconnected_gradients is {unconnected!r} (expected 'none' or 'zero')")
    return value == UnconnectedGradients.ZERO


def _unit_weights(target):
    """For each element of the target, a tensor that is 1 there and 0 elsewhere."""
    return pydist.eye(target.numel(), dtype=target.dtype, device=target.device).reshape(-1, *target.shape)


class _Given(Function):
    """The identity, whose gradient a function of the program computes."""

    @staticmethod
    def forward(ctx, gradient, count, *values):
        ctx.gradient, ctx.count = gradient, count
        results = tuple(value.clone() for value in values[:count])
        return results if count > 1 else results[0]

    @staticmethod
    def backward(ctx, *grads):
        found = ctx.gradient(*grads)
        found = list(found) if isinstance(found, (list, tuple)) else [found]
        return (None, None, *[None] * ctx.count, *found)


def custom_gradient(f=None):
    """A decorator: `f` returns (result, function from the result's gradients to those of f's arguments)."""

    def wrapped(*args, **kwargs):
        result, gradient = f(*args, **kwargs)  # recorded, so that the gradient may have gradients
        if "variables" in inspect.signature(gradient).parameters:
            raise NotImplementedError(
                "custom_gradient: gradients of variables that f uses (expected variables as arguments of f)"
            )
        values = [tensor(v).detach() for v in nest.flatten(result)]
        inputs = [tensor(v) for v in nest.flatten(list(args))]
        made = _Given.apply(gradient, len(values), *values, *inputs)
        return nest.pack_sequence_as(result, list(made) if isinstance(made, tuple) else [made])

    return wrapped


def recompute_grad(f):
    """f, whose intermediate results are computed again in backward and not kept in memory."""
    from pydist.utils.checkpoint import checkpoint

    return lambda *args, **kwargs: checkpoint(f, *args, use_reentrant=False, **kwargs)
