"""Jacobians, Hessians and their products with vectors, for functions of tensors."""

import itertools

from pydist import _C
from pydist._grad_mode import enable_grad

__all__ = ["hessian", "hvp", "jacobian", "jvp", "vhp", "vjp"]


def _leaves(op, inputs, create_graph):
    """(the inputs as a tuple of tensors that require gradients, whether they were a tuple)."""
    many = isinstance(inputs, (tuple, list))
    inputs = tuple(inputs) if many else (inputs,)
    for i, x in enumerate(inputs):
        if not isinstance(x, _C.Tensor):
            raise TypeError(f"{op}: input {i} is {type(x).__name__} (expected Tensor)")
    # with create_graph the result stays connected to the inputs through views, and the inputs get no .grad
    made = tuple(x.view(x.shape) if create_graph and x.requires_grad else x.detach().requires_grad_() for x in inputs)
    return made, many


def _outputs(op, func, inputs):
    outputs = func(*inputs)
    many = isinstance(outputs, (tuple, list))
    outputs = tuple(outputs) if many else (outputs,)
    for i, y in enumerate(outputs):
        if not isinstance(y, _C.Tensor):
            raise TypeError(f"{op}: output {i} of the function is {type(y).__name__} (expected Tensor)")
    return outputs, many


def _vector(op, v, like, many):
    """v as a tuple with the shapes of `like`; None means a one if there is one element."""
    if v is None:
        if len(like) != 1 or like[0].numel() != 1:
            raise RuntimeError(f"{op}: v is None, but the result has more than one element (expected v)")
        return (_C.ones_like(like[0].detach()),)
    v = tuple(v) if isinstance(v, (tuple, list)) else (v,)
    if [g.shape for g in v] != [x.shape for x in like]:
        raise RuntimeError(
            f"{op}: v has shapes {[tuple(g.shape) for g in v]} (expected {[tuple(x.shape) for x in like]})"
        )
    return v


def _grad(op, outputs, inputs, v, create_graph, strict):
    """Gradients of the outputs that autograd has recorded; zeros for inputs on which they do not depend."""
    pairs = [(y, g) for y, g in zip(outputs, v) if y.requires_grad]
    if strict and len(pairs) < len(outputs):
        raise RuntimeError(f"{op}: an output does not depend on the inputs (expected that it does, with strict=True)")
    if not pairs:
        return tuple(_C.zeros_like(x.detach()) for x in inputs)
    ys, gs = zip(*pairs)
    found = _C.grad(list(ys), list(inputs), list(gs), True, create_graph, True)
    if strict and any(g is None for g in found):
        raise RuntimeError(
            f"{op}: the outputs do not depend on input {[g is None for g in found].index(True)} (strict)"
        )
    return tuple(_C.zeros_like(x.detach()) if g is None else g for g, x in zip(found, inputs))


def _results(values, many, create_graph):
    values = tuple(v if create_graph else v.detach() for v in values)
    return values if many else values[0]


def vjp(func, inputs, v=None, create_graph=False, strict=False):
    """(func(inputs), v^T J). v has the shapes of the outputs, J is the Jacobian.

    >>> import pydist
    >>> pydist.autograd.functional.vjp(lambda x: x * x, pydist.tensor([1.0, 2.0]), pydist.ones(2))
    (tensor([1., 4.]), tensor([2., 4.]))
    """
    with enable_grad():
        inputs, many = _leaves("vjp", inputs, create_graph)
        outputs, several = _outputs("vjp", func, inputs)
        found = _grad("vjp", outputs, inputs, _vector("vjp", v, outputs, several), create_graph, strict)
    return _results(outputs, several, create_graph), _results(found, many, create_graph)


def jvp(func, inputs, v=None, create_graph=False, strict=False):
    """(func(inputs), J v), by two backward passes. v has the shapes of the inputs, J is the Jacobian.

    >>> import pydist
    >>> pydist.autograd.functional.jvp(lambda x: x * x, pydist.tensor([1.0, 2.0]), pydist.ones(2))
    (tensor([1., 4.]), tensor([2., 4.]))
    """
    with enable_grad():
        inputs, _ = _leaves("jvp", inputs, create_graph)
        outputs, several = _outputs("jvp", func, inputs)
        v = _vector("jvp", v, inputs, True)
        # J^T u is linear in u: its gradient is J v
        u = tuple(_C.zeros_like(y.detach()).requires_grad_() for y in outputs)
        turned = _grad("jvp", outputs, inputs, u, True, strict)
        found = _grad("jvp", turned, u, v, create_graph, False)
    return _results(outputs, several, create_graph), _results(found, several, create_graph)


def jacobian(func, inputs, create_graph=False, strict=False, vectorize=False, strategy="reverse-mode"):
    """All derivatives of func's outputs: a Tensor of shape (*output.shape, *input.shape) for each output and input.

    The result is a tuple for several inputs, and a tuple of tuples for several outputs as well. `strict` raises
    RuntimeError if an output does not depend on an input. `vectorize` is accepted; forward mode raises
    NotImplementedError.

    >>> import pydist
    >>> pydist.autograd.functional.jacobian(lambda x: x * x, pydist.tensor([1.0, 2.0]))
    tensor([[2., 0.],
            [0., 4.]])
    """
    if strategy != "reverse-mode":
        raise NotImplementedError(f"jacobian: strategy {strategy!r} (expected 'reverse-mode')")
    with enable_grad():
        inputs, many = _leaves("jacobian", inputs, create_graph)
        outputs, several = _outputs("jacobian", func, inputs)
        blocks = []
        for y in outputs:
            rows = []
            for place in itertools.product(*map(range, y.shape)):
                unit = _C.zeros_like(y.detach())
                unit[place] = 1
                rows.append(_grad("jacobian", (y,), inputs, (unit,), create_graph, strict))
            parts = (
                _C.stack([row[i] for row in rows]) if rows else _C.empty((0, *x.shape), device=x.device)
                for i, x in enumerate(inputs)
            )
            parts = (part.reshape((*y.shape, *x.shape)) for part, x in zip(parts, inputs))
            blocks.append(_results(parts, many, create_graph))
    return tuple(blocks) if several else blocks[0]


def hessian(func, inputs, create_graph=False, strict=False, vectorize=False, outer_jacobian_strategy="reverse-mode"):
    """The second derivatives of a function with one element, of shape (*input.shape, *input.shape); for several inputs
    a tuple of tuples.

    >>> import pydist
    >>> pydist.autograd.functional.hessian(lambda x: (x * x * x).sum(), pydist.tensor([1.0, 2.0]))
    tensor([[ 6.,  0.],
            [ 0., 12.]])
    """
    many = isinstance(inputs, (tuple, list))

    def gradient(*args):
        found = jacobian(func, args, create_graph=True, strict=strict)
        for g, x in zip(found, args):
            if g.shape != x.shape:
                raise RuntimeError(
                    f"hessian: the function's result has {g.numel() // max(x.numel(), 1)} elements (expected 1)"
                )
        return found if many else found[0]

    return jacobian(gradient, inputs, create_graph, strict, vectorize, outer_jacobian_strategy)


def vhp(func, inputs, v=None, create_graph=False, strict=False):
    """(func(inputs), v^T H) for a function with one element. v has the shapes of the inputs, H is the Hessian.

    >>> import pydist
    >>> pydist.autograd.functional.vhp(lambda x: (x * x).sum(), pydist.tensor([1.0, 2.0]), pydist.ones(2))
    (tensor(5.), tensor([2., 2.]))
    """
    with enable_grad():
        inputs, many = _leaves("vhp", inputs, create_graph)
        outputs, several = _outputs("vhp", func, inputs)
        if several or outputs[0].numel() != 1:
            raise RuntimeError(f"vhp: the function's result has shape {tuple(outputs[0].shape)} (expected one element)")
        first = _grad("vhp", outputs, inputs, (_C.ones_like(outputs[0].detach()),), True, strict)
        found = _grad("vhp", first, inputs, _vector("vhp", v, inputs, many), create_graph, strict)
    return _results(outputs, False, create_graph), _results(found, many, create_graph)


def hvp(func, inputs, v=None, create_graph=False, strict=False):
    """(func(inputs), H v): the same as vhp, because the Hessian is symmetric.

    >>> import pydist
    >>> pydist.autograd.functional.hvp(lambda x: (x * x).sum(), pydist.tensor([1.0, 2.0]), pydist.ones(2))
    (tensor(5.), tensor([2., 2.]))
    """
    return vhp(func, inputs, v, create_graph, strict)
