"""What autograd keeps for backward: hooks for saved tensors, and the type of nodes.

>>> import pydist
>>> x = pydist.ones(2, requires_grad=True)
>>> node = (x * 2).grad_fn
>>> node, node.next_functions[0][0].variable is x
(<MulBackward0>, True)
"""

import threading

from pydist import _C
from pydist._C import Node

__all__ = ["Node", "disable_saved_tensors_hooks", "save_on_cpu", "saved_tensors_hooks"]


class _Here(threading.local):
    why = None  # the message of disable_saved_tensors_hooks


_here = _Here()


class saved_tensors_hooks:
    """Inside this context, pack_hook gets each tensor that an op saves for its gradient, and may return any object.
    When the gradient needs the tensor, unpack_hook gets that object and returns a tensor with the same values, shape
    and dtype. The innermost pair of hooks counts. Autograd records neither hook, and pack_hook runs without hooks.

    pack_hook must not write to its argument. Raises RuntimeError or TypeError if unpack_hook returns something else
    than such a tensor. In-place writes to a packed tensor are not noticed.

    >>> import pydist
    >>> x = pydist.tensor([2.0, 3.0], requires_grad=True)
    >>> with pydist.autograd.graph.saved_tensors_hooks(lambda t: t.tolist(), pydist.tensor):
    ...     y = (x * x).sum()
    >>> y.backward()
    >>> x.grad
    tensor([4., 6.])
    """

    def __init__(self, pack_hook, unpack_hook):
        for hook in (pack_hook, unpack_hook):
            if not callable(hook):
                raise TypeError(f"saved_tensors_hooks: a hook is {type(hook).__name__} (expected two functions)")
        self.pack_hook, self.unpack_hook = pack_hook, unpack_hook
        self._before = []

    def __enter__(self):
        if _here.why is not None:
            raise RuntimeError(_here.why)
        self._before.append(_C._set_saved_hooks((self.pack_hook, self.unpack_hook)))

    def __exit__(self, *error):
        _C._set_saved_hooks(self._before.pop())


class save_on_cpu(saved_tensors_hooks):
    """Saved tensors are moved to the CPU's memory until backward. Tensors that are there already are kept as they are,
    or copied with pin_memory."""

    def __init__(self, pin_memory=False, device_type="cuda"):
        def pack(t):
            there = t.cpu()
            return t.device, there.clone() if pin_memory and there.device == t.device else there

        def unpack(packed):
            device, t = packed
            return t.to(device)

        super().__init__(pack, unpack)


class disable_saved_tensors_hooks:
    """Inside this context, entering saved_tensors_hooks raises RuntimeError(error_message)."""

    def __init__(self, error_message):
        self.error_message = error_message

    def __enter__(self):
        self._before, _here.why = _here.why, self.error_message

    def __exit__(self, *error):
        _here.why = self._before
