"""Loss scaling whose numbers stay on the GPU: the host queues a step without waiting for its gradients.

Whether a step was skipped is read one step later, on another stream, when the answer has long been there. The host
counts steps, and takes the count of a skipped step back before the next one.
"""

from pydist import _C, cuda
from pydist.optim._fused import FusedOptimizer


def belongs(grads):
    """Whether all gradients are on one GPU."""
    return bool(grads) and grads[0].is_cuda and len({g.device for g in grads}) == 1


def unscale(grads, scale):
    """Divides the gradients by the scale, a number or a tensor. Returns a tensor: 1.0 if one of them was not finite,
    otherwise 0.0."""
    device = grads[0].device
    found = _C.zeros(1, device=device)
    by = 1.0 / scale if isinstance(scale, _C.Tensor) else _C.full((1,), 1.0 / scale, device=device)
    _C.unscale(grads, by, found)
    return found


def update(scale, tracker, found, growth, backoff, interval):
    """Updates scale and growth tracker after a step that found `found`. Both are tensors of one element and are written
    in place, because graphs read them there."""
    broken, counted = found > 0, tracker + 1
    grows = (counted >= interval) & (scale * growth < 2.0**128) & ~broken
    scale.copy_(_C.where(broken, scale * backoff, _C.where(grows, scale * growth, scale)))
    tracker.copy_(_C.where(broken | (counted >= interval), _C.zeros_like(counted), counted))


def can_skip(optimizer):
    """Whether the GPU can skip the optimizer's step: the step is one fused call, and its count of steps can be taken
    back."""
    return isinstance(optimizer, FusedOptimizer) and all(
        optimizer._counts_there(group) or len(optimizer._numbers) < 2 for group in optimizer.param_groups
    )


class Steps:
    """Steps of which the host does not know yet whether they were skipped."""

    def __init__(self):
        self._open, self._side = [], None

    def make(self, optimizer, found, args, kwargs):
        """Calls optimizer.step, which changes nothing if `found` is not 0."""
        self.settle()
        optimizer.found_inf = found
        try:
            result = optimizer.step(*args, **kwargs)
        finally:
            del optimizer.found_inf
        counts_there = all(map(optimizer._counts_there, optimizer.param_groups))
        if not counts_there and not _C.cuda_capturing(found.device.index):
            self._open.append((optimizer, found, cuda.current_stream(found.device).record_event()))
        return result

    def settle(self):
        """Takes back the counts of skipped steps."""
        while self._open:
            optimizer, found, event = self._open.pop()
            if self._side is None or self._side.device != found.device:
                self._side = cuda.Stream(found.device)
            self._side.wait_event(event)
            with self._side:
                broken = found.item() != 0.0
            if broken:
                optimizer._take_back()
