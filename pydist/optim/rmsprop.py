"""RMSprop."""

from pydist import _C
from pydist.optim._fused import FusedOptimizer, check_options


class RMSprop(FusedOptimizer):
    """p -= lr * d with d = g / (sqrt(v) + eps), where v is a running mean (factor alpha) of g^2 (Hinton, 2012).

    centered: v minus the square of g's running mean is used (Graves, 2013). momentum: the step is b = momentum * b + d.
    weight_decay adds weight_decay * p to g. Tensors are of any floating dtype. Raises ValueError for options out of
    range. `foreach` is accepted and ignored. With capturable=True the step count of parameters on a GPU is on the GPU.

    >>> import pydist
    >>> p = pydist.ones(1, requires_grad=True)
    >>> (3 * p).sum().backward()
    >>> pydist.optim.RMSprop([p], lr=0.01, alpha=0.75).step()
    >>> round(p.item(), 4)
    0.98
    """

    def __init__(
        self,
        params,
        lr=1e-2,
        alpha=0.99,
        eps=1e-8,
        weight_decay=0,
        momentum=0,
        centered=False,
        capturable=False,
        foreach=None,
        maximize=False,
        differentiable=False,
    ):
        check_options(("learning rate", lr), ("epsilon value", eps), ("momentum value", momentum))
        check_options(("weight_decay value", weight_decay), ("alpha value", alpha))
        defaults = dict(
            lr=lr,
            momentum=momentum,
            alpha=alpha,
            eps=eps,
            centered=centered,
            weight_decay=weight_decay,
            capturable=capturable,
            foreach=foreach,
            maximize=maximize,
            differentiable=differentiable,
        )
        super().__init__(params, defaults)

    def _state_names(self, group):
        momentum = ("momentum_buffer",) if group["momentum"] else ()
        return ("square_avg", *momentum, *(("grad_avg",) if group["centered"] else ()))

    def _run(self, group, batch):
        columns = iter(batch.columns)
        _C.rmsprop_step(
            batch.params,
            next(columns),
            next(columns) if group["momentum"] else None,
            next(columns) if group["centered"] else None,
            lr=float(group["lr"]),
            alpha=group["alpha"],
            eps=group["eps"],
            weight_decay=group["weight_decay"],
            momentum=group["momentum"],
            centered=group["centered"],
            maximize=group["maximize"],
            on_device=batch.on_device,
        )
        batch.advance()
