"""Weights that two stages share: each has its own copy, whose gradients are summed at the end of a step."""

from pydist import _C

_FIRST_TAG = 1 << 27  # below those of messages


class Tie:
    """One pair of parameters. ends: [(rank, the parameter if it is on this rank, else None), ...], in the order of the sum."""

    def __init__(self, number, ends):
        self._tag, self._ends = _FIRST_TAG + number, ends
        self._before = None

    @property
    def copy(self):
        """The second end, if it is on this rank."""
        return self._ends[1][1]

    @property
    def aside(self):
        """[(a parameter that is here, its gradient before the step), ...]."""
        return [(p, before) for (_, p), before in zip(self._ends, self._before, strict=True) if p is not None]

    def begin(self):
        """Puts the gradients that are there aside."""
        self._before = []
        for _, p in self._ends:
            self._before.append(None if p is None or p.grad is None else p.grad.clone())
            if p is not None:
                p.grad = None

    def end(self, group):
        """Makes the sum of both ends' gradients the gradient of each, and adds what was there before."""
        own = [(rank, p, _C.zeros(tuple(p.shape), dtype=p.dtype, device=p.device) if p.grad is None else p.grad)
               for rank, p in self._ends if p is not None]  # fmt: skip
        if not own:
            return
        grads = [grad for _, _, grad in own]
        if len(own) == 1:
            (rank, p, grad), (first, _), (second, _) = own[0], *self._ends
            other = _C.empty(tuple(grad.shape), dtype=grad.dtype, device=grad.device)
            sent = group.send(grad.detach().contiguous(), second if rank == first else first, self._tag, True)
            group.recv(other, second if rank == first else first, self._tag)
            sent.wait()
            grads = [grad, other] if rank == first else [other, grad]
        total = grads[0].detach() + grads[1].detach()
        for (_, p), before in zip(self._ends, self._before, strict=True):
            if p is not None:
                found = total.clone() if before is None else before + total
                if p.grad is None:
                    p.grad = found
                else:
                    p.grad.copy_(found)
