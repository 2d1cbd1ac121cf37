"""Adadelta."""

from pydist import _C
from pydist.optim._fused import FusedOptimizer, check_options


class Adadelta(FusedOptimizer):
    """p -= lr * d with d = sqrt(u + eps) / sqrt(v + eps) * g, where v and u are running means (factor rho) of g^2 and
    of d^2 (Zeiler, 2012). weight_decay adds weight_decay * p to g.

    Tensors are of any floating dtype. Raises ValueError for options out of range. `foreach` is accepted and ignored.
    With capturable=True the step count of parameters on a GPU is on the GPU.

    >>> import pydist
    >>> p = pydist.ones(1, requires_grad=True)
    >>> (3 * p).sum().backward()
    >>> pydist.optim.Adadelta([p], lr=1.0).step()
    >>> round(p.item(), 5)
    0.99684
    """

    def __init__(
        self,
        params,
        lr=1.0,
        rho=0.9,
        eps=1e-6,
        weight_decay=0,
        foreach=None,
        *,
        capturable=False,
        maximize=False,
        differentiable=False,
    ):
        check_options(("learning rate", lr), ("rho value", rho, 1.0), ("epsilon value", eps))
        check_options(("weight_decay value", weight_decay))
        defaults = dict(
            lr=lr,
            rho=rho,
            eps=eps,
            weight_decay=weight_decay,
            maximize=maximize,
            capturable=capturable,
            foreach=foreach,
            differentiable=differentiable,
        )
        super().__init__(params, defaults)

    def _state_names(self, group):
        return ("square_avg", "acc_delta")

    def _run(self, group, batch):
        _C.adadelta_step(
            batch.params,
            *batch.columns,
            lr=float(group["lr"]),
            rho=group["rho"],
            eps=group["eps"],
            weight_decay=group["weight_decay"],
            maximize=group["maximize"],
            on_device=batch.on_device,
        )
        batch.advance()
