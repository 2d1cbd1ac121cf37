"""Explicit gradients: `backward` and `grad`, functions with their own gradient, checks against finite differences."""

from pydist import _C
from pydist._grad_mode import enable_grad, inference_mode, no_grad, set_grad_enabled
from pydist._legacy import Variable
from pydist._names import also_named
from pydist.autograd import functional
from pydist.autograd.anomaly_mode import detect_anomaly, set_detect_anomaly
from pydist.autograd.function import Function
from pydist.autograd.gradcheck import gradcheck, gradgradcheck

also_named(__name__, grad_mode="pydist._grad_mode", variable="pydist._legacy")

__all__ = [
    "Function",
    "Variable",
    "backward",
    "detect_anomaly",
    "enable_grad",
    "functional",
    "grad",
    "gradcheck",
    "gradgradcheck",
    "inference_mode",
    "no_grad",
    "set_detect_anomaly",
    "set_grad_enabled",
]


def __getattr__(name):
    if name in ("graph", "profiler", "profiler_legacy"):
        from importlib import import_module

        return import_module(f"pydist.autograd.{name}")
    raise AttributeError(f"module 'pydist.autograd' has no attribute '{name}'")


def _tensors(value):
    return [value] if isinstance(value, _C.Tensor) else list(value)


def _grads(value, count):
    return [None] * count if value is None else [value] if isinstance(value, _C.Tensor) else list(value)


def backward(tensors, grad_tensors=None, retain_graph=None, create_graph=False, grad_variables=None, inputs=None):
    """Adds d(sum of tensors * grad_tensors) / d(leaf) to the .grad of every leaf; with `inputs`, only of these leaves.

    `grad_tensors` may be None for tensors of one element. `retain_graph` (default: create_graph) keeps the graph for
    another pass. `create_graph` records the computation of the gradients. Then x.grad holds a graph that holds x: set
    x.grad to None to free it. `grad_variables` is the deprecated name of grad_tensors.
    """
    tensors = _tensors(tensors)
    grad_tensors = grad_variables if grad_tensors is None else grad_tensors
    grads = _of_parts(tensors, _grads(grad_tensors, len(tensors)))
    _C.backward(tensors, grads, retain_graph, create_graph, inputs)


def _of_parts(tensors, grads):
    """The gradients of parts of DTensors, as the engine takes them: this rank's parts."""
    if not any(_C.spread_of(t) is not None for t in tensors if isinstance(t, _C.Tensor)):
        return grads
    found = []
    for t, g in zip(tensors, grads or [None] * len(tensors), strict=True):
        spec = _C.spread_of(t)
        if spec is not None and g is None and t.numel() == 1:
            g = spec.seeded(_C.ones(spec.gradient().local_shape(), dtype=t.dtype, device=t.device))
        elif spec is not None and g is not None and _C.spread_of(g) is not None:
            g = spec.seeded(_C.local_part(g.redistribute(placements=spec.gradient().placements)))
        found.append(g)
    return found


def _part(grad, of):
    """The gradient of a DTensor is one, too."""
    spec = None if grad is None else _C.spread_of(of)
    return grad if spec is None else spec.as_gradient(grad)


def grad(
    outputs,
    inputs,
    grad_outputs=None,
    retain_graph=None,
    create_graph=False,
    only_inputs=True,
    allow_unused=None,
    is_grads_batched=False,
    materialize_grads=False,
):
    """The gradients d(sum of outputs * grad_outputs) / d(inputs), as a tuple. No .grad changes.

    If the outputs do not depend on an input, grad raises RuntimeError, or returns None (allow_unused) or zeros
    (materialize_grads).

    >>> import pydist
    >>> x = pydist.tensor(3.0, requires_grad=True)
    >>> pydist.autograd.grad(x * x, x)
    (tensor(6.),)
    """
    if is_grads_batched:
        raise NotImplementedError("grad: is_grads_batched is not supported (expected one call for each gradient)")
    if not only_inputs:
        raise ValueError("grad: only_inputs=False (expected backward)")
    if materialize_grads and allow_unused is False:
        raise ValueError("grad: materialize_grads with allow_unused=False (expected True, or not given)")
    outputs, inputs = _tensors(outputs), _tensors(inputs)
    allow_unused = materialize_grads if allow_unused is None else allow_unused
    grads = _of_parts(outputs, _grads(grad_outputs, len(outputs)))
    found = _C.grad(outputs, inputs, grads, retain_graph, create_graph, allow_unused)
    found = [_part(g, x) for g, x in zip(found, inputs, strict=True)]
    if materialize_grads:
        found = [_C.zeros_like(x, requires_grad=create_graph) if g is None else g for g, x in zip(found, inputs)]
    return tuple(found)
