"""Modules that checkpoint or offload the activations of another module. PyTorch's name for this file is
`distributed.algorithms._checkpoint.checkpoint_wrapper`."""

import enum

from pydist.autograd.graph import save_on_cpu
from pydist.nn.modules.module import Module
from pydist.nn.modules.transparent import Transparent
from pydist.utils.checkpoint import checkpoint


class CheckpointImpl(enum.Enum):
    """The form of `utils.checkpoint.checkpoint`: use_reentrant=True or False."""

    REENTRANT = enum.auto()
    NO_REENTRANT = enum.auto()


class ActivationWrapper(Transparent):
    """The base of both wrappers: a module in the place of `module`, whose attributes, items and names of entries it has.
    Subclasses define forward()."""

    _inside = "_checkpoint_wrapped_module"

    def __init__(self, module):
        if not isinstance(module, Module):
            raise TypeError(f"{type(self).__name__}: got {type(module).__name__} (expected a Module)")
        super().__init__(module)

    def forward(self, *args, **kwargs):
        """Calls the wrapped module."""
        raise NotImplementedError(f"{type(self).__name__} has no forward() (expected a subclass that defines it)")


class CheckpointWrapper(ActivationWrapper):
    """What checkpoint_wrapper returns."""

    def __init__(self, module, checkpoint_impl=CheckpointImpl.NO_REENTRANT, checkpoint_fn=None, **checkpoint_fn_kwargs):
        if not isinstance(checkpoint_impl, CheckpointImpl):
            raise TypeError(f"checkpoint_wrapper: checkpoint_impl is {checkpoint_impl!r} (expected a CheckpointImpl)")
        super().__init__(module)
        self.checkpoint_impl, self._checkpoint_fn, self._kwargs = checkpoint_impl, checkpoint_fn, checkpoint_fn_kwargs

    def checkpoint_fn(self, function, *args, **kwargs):
        """Calls function(*args, **kwargs) by the wrapper's checkpoint function."""
        if self._checkpoint_fn is not None:
            return self._checkpoint_fn(function, *args, **self._kwargs, **kwargs)
        reentrant = self.checkpoint_impl is CheckpointImpl.REENTRANT
        return checkpoint(function, *args, use_reentrant=reentrant, **self._kwargs, **kwargs)

    def forward(self, *args, **kwargs):
        """Calls the wrapped module by the checkpoint function."""
        module, names, count = self._checkpoint_wrapped_module, list(kwargs), len(args)
        if not names or self.checkpoint_impl is CheckpointImpl.NO_REENTRANT:
            return self.checkpoint_fn(module, *args, **kwargs)
        # this form of checkpoint takes no keyword arguments
        return self.checkpoint_fn(
            lambda *all_args: module(*all_args[:count], **dict(zip(names, all_args[count:], strict=True))),
            *args,
            *kwargs.values(),
        )


class OffloadWrapper(ActivationWrapper):
    """What offload_wrapper returns."""

    def forward(self, *args, **kwargs):
        """Calls the wrapped module; what autograd saves in it goes to the CPU's memory."""
        if not any(p.device.type != "cpu" for p in self.parameters()):
            return self._checkpoint_wrapped_module(*args, **kwargs)
        with save_on_cpu(pin_memory=True):
            return self._checkpoint_wrapped_module(*args, **kwargs)


def checkpoint_wrapper(module, checkpoint_impl=CheckpointImpl.NO_REENTRANT, checkpoint_fn=None, **checkpoint_fn_kwargs):
    """A module that does what `module` does, and keeps none of its activations: backward runs it again.

    Each call goes through utils.checkpoint.checkpoint, in the form that checkpoint_impl says, or through
    checkpoint_fn(module, *args, **kwargs); checkpoint_fn_kwargs are more arguments of that function, for example
    preserve_rng_state, or context_fn for a selective checkpoint. state_dict() has the names that it has without the
    wrapper, and load_state_dict() takes these and PyTorch's (`_checkpoint_wrapped_module.`). Raises TypeError if
    `module` is no module.

    >>> import pydist
    >>> from pydist import nn
    >>> from pydist.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    >>> block = checkpoint_wrapper(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)))
    >>> block(pydist.ones(2, 4)).sum().backward()
    >>> list(block.state_dict())
    ['0.weight', '0.bias', '2.weight', '2.bias']
    >>> block[0].weight.grad.shape
    pydist.Size([8, 4])
    """
    return CheckpointWrapper(module, checkpoint_impl, checkpoint_fn, **checkpoint_fn_kwargs)


def offload_wrapper(module):
    """A module that does what `module` does; what its gradients need is in the CPU's memory until backward, if the
    parameters are on a GPU. On a CPU it changes nothing. Raises TypeError if `module` is no module."""
    return OffloadWrapper(module)


def apply_activation_checkpointing(
    model, checkpoint_wrapper_fn=checkpoint_wrapper, check_fn=lambda module: True, auto_wrap_policy=None
):
    """Replaces, in place, each module below `model` for which check_fn(module) is true by
    checkpoint_wrapper_fn(module). `model` itself is not wrapped, a module that stands in several places gets one
    wrapper, and what is wrapped already is left alone.

    auto_wrap_policy(module=, recurse=, nonwrapped_numel=) decides instead of check_fn: with recurse=True whether to look
    below a module, and then, with recurse=False and the number of elements of parameters that no wrapper below has,
    whether to wrap it. Raises TypeError for a policy that is no function.

    >>> from pydist import nn
    >>> from pydist.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
    >>> model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    >>> apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, nn.Linear))
    >>> model
    Sequential(
      (0): CheckpointWrapper(
        (_checkpoint_wrapped_module): Linear(in_features=4, out_features=4, bias=True)
      )
      (1): ReLU()
    )
    """
    policy = auto_wrap_policy or (lambda module, recurse, nonwrapped_numel: recurse or check_fn(module))
    if not callable(policy):
        raise TypeError(
            f"apply_activation_checkpointing: auto_wrap_policy is {type(policy).__name__} (expected a function)"
        )
    made = {}

    def visit(module):
        """(what stands for the module from now on, how many elements of its parameters are wrapped)"""
        if module in made:
            return made[module]
        made[module] = module, 0
        outer, wrapped = module, 0
        while isinstance(module, ActivationWrapper):
            module = module._checkpoint_wrapped_module
        numel = sum(p.numel() for p in module.parameters())
        new = outer
        if policy(module=module, recurse=True, nonwrapped_numel=numel):
            for name, child in list(module._modules.items()):
                if child is not None:
                    module._modules[name], inside = visit(child)
                    wrapped += inside
            if module is outer is not model and policy(module=module, recurse=False, nonwrapped_numel=numel - wrapped):
                new = checkpoint_wrapper_fn(module)
        made[outer] = new, wrapped if new is module else numel
        return made[outer]

    visit(model)
