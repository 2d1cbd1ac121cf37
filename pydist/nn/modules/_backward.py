"""Full backward hooks of a module: its inputs and outputs pass through two autograd functions that call the hooks."""

from warnings import warn

from pydist import _C


def _function():
    """The identity whose backward calls the hooks. It is made at first use, because pydist.autograd is loaded then."""
    from pydist.autograd import Function

    class Watch(Function):
        @staticmethod
        def forward(ctx, call, fill, *tensors):
            ctx.call = call
            ctx.set_materialize_grads(fill)
            views = tuple(t.view(t.shape) for t in tensors)
            ctx.mark_non_differentiable(*(view for view, t in zip(views, tensors) if not t.requires_grad))
            return views

        @staticmethod
        def backward(ctx, *grads):
            return None, None, *ctx.call(grads)

    globals()["_function"] = lambda: Watch
    return Watch


def _watch(values, call, fill):
    """(`values`, a tuple, with its tensors as views whose gradients pass through `call(grads)`; which ones are such
    views). Missing gradients are None, or zeros with fill. If no tensor needs a gradient: the values themselves and
    None."""
    at = [i for i, value in enumerate(values) if isinstance(value, _C.Tensor)]
    if not _C.is_grad_enabled() or not any(values[i].requires_grad for i in at):
        return values, None
    watched = _function().apply(call, fill, *(values[i] for i in at))
    values = list(values)
    for i, view in zip(at, watched):
        values[i] = view
    return tuple(values), at


class BackwardHooks:
    """One call of a module with backward hooks.

    In one backward pass the gradients of the outputs come first (pre hooks) and those of the inputs last (hooks). If no
    input needs a gradient, the hooks run with (None, ...) as soon as the gradients of the outputs are there, as in
    PyTorch.
    """

    def __init__(self, module, hooks, pre_hooks):
        self.module, self.hooks, self.pre_hooks = module, hooks, pre_hooks
        self.grad_output = self.inputs = None

    @staticmethod
    def _spread(grads, at, size):
        full = [None] * size
        for i, grad in zip(at, grads):
            full[i] = grad
        return tuple(full)

    def _changed(self, hook, args, current):
        """The gradients `current`, or those that a hook returns instead, a tuple of the same length."""
        new = hook(self.module, *args)
        if new is None:
            return current
        new = new if isinstance(new, tuple) else (new,)
        if len(new) != len(current):
            raise RuntimeError(
                f"Backward hook returned an invalid number of grad, got {len(new)}, but expected {len(current)}"
            )
        return new

    def watch_inputs(self, args):
        """The inputs as views whose gradients the hooks see."""
        self.size = len(args)
        args, self.inputs = _watch(args, self._inputs_done, True)
        return args

    def _inputs_done(self, grads):
        if self.grad_output is None:
            raise RuntimeError(
                "Module backward hook for grad_input is called before the grad_output one. This happens because the "
                "gradient in your nn.Module flows to the Module's input without passing through the Module's output. "
                "Make sure that the output depends on the input and that the loss is computed based on the output."
            )
        grad_input = self._spread(grads, self.inputs, self.size)
        for hook in self.hooks:
            grad_input = self._changed(hook, (grad_input, self.grad_output), grad_input)
        self.grad_output = None
        return [grad_input[i] for i in self.inputs]

    def watch_outputs(self, result):
        """The outputs as views whose gradients the hooks see."""
        single = isinstance(result, _C.Tensor)
        if not single and not isinstance(result, tuple):
            warn(
                "For backward hooks to be called, module output should be a Tensor or a tuple of Tensors but received "
                f"{type(result)}",
                stacklevel=4,
            )
            return result
        values = (result,) if single else result
        size, at = len(values), None

        def done(grads):
            grad_output = self._spread(grads, at, size)
            for hook in self.pre_hooks:
                grad_output = self._changed(hook, (grad_output,), grad_output)
            if self.inputs is None:
                for hook in self.hooks:
                    if hook(self.module, self._spread((), (), self.size), grad_output) is not None:
                        raise RuntimeError(
                            "backward hook for Modules where no input requires gradient should always return None or "
                            "None for all gradients."
                        )
            else:
                self.grad_output = grad_output
            return [grad_output[i] for i in at]

        watched, at = _watch(values, done, False)
        if at is None or single:
            return watched[0] if single else result
        return type(result)(*watched) if hasattr(result, "_fields") else watched
