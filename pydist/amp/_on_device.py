"""Loss scaling whose numbers stay on the GPU: the host queues a step without waiting for what its gradients were.

Whether a step was left out is read one step later, by a stream of its own, when the answer has long been there: the host
counts steps, and takes the one back that was none before the next is made."""

from pydist import _C, cuda
from pydist.optim._fused import FusedOptimizer


def belongs(grads):
    """Whether the gradients are a GPU's, and all of one."""
    return bool(grads) and grads[0].is_cuda and len({g.device for g in grads}) == 1


def unscale(grads, scale):
    """Divides them by the scale, a number or a tensor; a tensor, 1.0 where one was not finite, else 0.0."""
    device = grads[0].device
    found = _C.zeros(1, device=device)
    by = 1.0 / scale if isinstance(scale, _C.Tensor) else _C.full((1,), 1.0 / scale, device=device)
    _C.unscale(grads, by, found)
    return found


def update(scale, tracker, found, growth, backoff, interval):
    """Moves both after a step that found `found`; tensors of one element, which stay where they are: graphs read them there."""
    broken, counted = found > 0, tracker + 1
    grows = (counted >= interval) & (scale * growth < 2.0**128) & ~broken
    scale.copy_(_C.where(broken, scale * backoff, _C.where(grows, scale * growth, scale)))
    tracker.copy_(_C.where(broken | (counted >= interval), _C.zeros_like(counted), counted))


def can_skip(optimizer):
    """Whether the optimizer's step can be left out on the GPU: one fused call, whose count of steps can be taken back."""
    return isinstance(optimizer, FusedOptimizer) and all(
        optimizer._counts_there(group) or not optimizer._scalars for group in optimizer.param_groups
    )


class Steps:
    """Steps of which the host does not know yet whether they were made."""

    def __init__(self):
        self._open, self._side = [], None

    def make(self, optimizer, found, args, kwargs):
        """optimizer.step, of which nothing is done where `found` is not 0."""
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
        """Takes the counts of steps back that were none."""
        while self._open:
            optimizer, found, event = self._open.pop()
            if self._side is None or self._side.device != found.device:
                self._side = cuda.Stream(found.device)
            self._side.wait_event(event)
            with self._side:
                broken = found.item() != 0.0
            if broken:
                optimizer._take_back()
