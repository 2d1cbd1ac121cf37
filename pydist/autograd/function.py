"""Functions with their own gradient: `Function`, and `once_differentiable` for gradients that cannot be
differentiated."""

from functools import wraps

from pydist import _C
from pydist._grad_mode import no_grad

__all__ = ["Function", "FunctionCtx", "once_differentiable"]

FunctionCtx = _C.FunctionCtx


class Function:
    """Base class: derive from it, write `forward` and `backward` as static methods, and call the class's `apply`.

    Autograd does not record `forward(ctx, *args)`. What backward needs goes into `ctx.save_for_backward(*tensors)`
    (arguments, results, others) or into attributes of ctx. `backward(ctx, *grads)` gets a gradient for each result of
    forward and returns one for each argument: a Tensor, or None. With create_graph autograd records
    it, too. Instead of one forward there may be two parts, `forward(*args)` and `setup_context(ctx, inputs, output)`.

    Raises RuntimeError, which names the Function, if the number or shapes of the gradients are wrong, or if a saved
    tensor, or a result that shares memory with an argument, was written in place.

    >>> import pydist
    >>> class Cube(pydist.autograd.Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         ctx.save_for_backward(x)
    ...         return x**3
    ...     @staticmethod
    ...     def backward(ctx, grad):
    ...         (x,) = ctx.saved_tensors
    ...         return 3 * x**2 * grad
    >>> x = pydist.tensor(2.0, requires_grad=True)
    >>> Cube.apply(x)
    tensor(8., grad_fn=<CubeBackward>)
    >>> pydist.autograd.grad(Cube.apply(x), x)
    (tensor(12.),)
    """

    @staticmethod
    def forward(*args, **kwargs):
        """The computation: (ctx, *args), or (*args) together with a setup_context."""
        raise NotImplementedError("Function: forward is not defined (expected a static method)")

    @staticmethod
    def setup_context(ctx, inputs, output):
        """The second part of a forward without ctx: `inputs` is the tuple of forward's arguments, `output` its
        result."""
        raise NotImplementedError("Function: setup_context is not defined")

    @staticmethod
    def backward(ctx, *grad_outputs):
        """The gradients of forward's arguments, from those of its results."""
        raise NotImplementedError("Function: backward is not defined (expected a static method)")

    @classmethod
    def apply(cls, *args, **kwargs):
        """Runs forward on args and records it. Returns forward's result."""
        split = cls.setup_context is not Function.setup_context
        if split:
            args = _bound(cls.forward, args, kwargs)
        elif kwargs:
            raise TypeError(
                f"{cls.__name__}.apply takes no keyword arguments (expected a setup_context, which allows them)"
            )
        return _C._function_apply(cls, split, args)


def _bound(forward, args, kwargs):
    """All arguments of forward by position, with defaults: the inputs for setup_context."""
    code = getattr(forward, "__code__", None)
    if not kwargs and code is not None and code.co_argcount == len(args) and not code.co_kwonlyargcount:
        return args
    from inspect import signature

    bound = signature(forward).bind(*args, **kwargs)
    bound.apply_defaults()
    if bound.kwargs:
        raise TypeError(f"forward: keyword-only arguments are not supported: {', '.join(bound.kwargs)}")
    return bound.args


class _Ends(Function):
    """The identity, whose gradient raises an error."""

    @staticmethod
    def forward(ctx, *tensors):
        return tensors

    @staticmethod
    def backward(ctx, *grads):
        raise RuntimeError("a gradient that is marked once_differentiable cannot be differentiated again")


def once_differentiable(backward):
    """Decorates a `backward` whose own operations have no gradient. Differentiating its result again raises
    RuntimeError."""

    @wraps(backward)
    def run(ctx, *grads):
        with no_grad():
            found = backward(ctx, *grads)
        wanted = any(isinstance(g, _C.Tensor) and g.requires_grad for g in (*grads, *ctx.saved_tensors))
        if not (wanted and _C.is_grad_enabled()):
            return found
        many = found if isinstance(found, tuple) else (found,)
        # _Ends makes a second differentiation of the result raise an error; it needs a tensor that requires a gradient.
        many = tuple(
            g if g is None else _Ends.apply(g.detach().requires_grad_())[0] if g.dtype.is_floating_point else g
            for g in many
        )
        return many if isinstance(found, tuple) else many[0]

    return run
