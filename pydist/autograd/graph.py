"""What the tape keeps: hooks for saved tensors, and the nodes' type."""

import threading

from pydist import _C
from pydist._C import Node

__all__ = ["Node", "disable_saved_tensors_hooks", "save_on_cpu", "saved_tensors_hooks"]

_here = threading.local()  # .why: the message of disable_saved_tensors_hooks


class saved_tensors_hooks:
    """Within the context, each tensor that an op saves for its gradient is given to pack_hook, which returns anything; when
    the gradient needs it, unpack_hook turns that into a tensor of the same values, shape and dtype. The innermost pair
    holds; both are called without recording, pack_hook within no hooks.

    pack_hook must not write its argument. RuntimeError or TypeError where an unpacked value is no such tensor; in-place
    writes to what was saved are not noticed.

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
                raise TypeError(f"saved_tensors_hooks: {type(hook).__name__} (expected two functions)")
        self.pack_hook, self.unpack_hook = pack_hook, unpack_hook
        self._before = []

    def __enter__(self):
        if getattr(_here, "why", None) is not None:
            raise RuntimeError(_here.why)
        self._before.append(_C._set_saved_hooks((self.pack_hook, self.unpack_hook)))

    def __exit__(self, *error):
        _C._set_saved_hooks(self._before.pop())


class save_on_cpu(saved_tensors_hooks):
    """Saved tensors wait in the CPU's memory until backward; those that are there already stay what they are, or with
    pin_memory are copied."""

    def __init__(self, pin_memory=False, device_type="cuda"):
        def pack(t):
            there = t.cpu()
            return t.device, there.clone() if pin_memory and there.device == t.device else there

        def unpack(packed):
            device, t = packed
            return t.to(device)

        super().__init__(pack, unpack)


class disable_saved_tensors_hooks:
    """Within the context, entering saved_tensors_hooks raises RuntimeError(error_message)."""

    def __init__(self, error_message):
        self.error_message = error_message

    def __enter__(self):
        self._before, _here.why = getattr(_here, "why", None), self.error_message

    def __exit__(self, *error):
        _here.why = self._before
