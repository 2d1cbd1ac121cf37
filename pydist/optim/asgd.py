"""Averaged stochastic gradient descent."""

from pydist import _C
from pydist.optim._fused import FusedOptimizer, check_options


class ASGD(FusedOptimizer):
    """p = (1 - lambd * eta) * p - eta * g, where eta = lr / (1 + lambd * lr * t)^alpha; state "ax" is p's mean since step t0
    (Polyak and Juditsky, 1992). weight_decay adds weight_decay * p to g.

    Tensors are of any floating dtype. Raises ValueError for options out of range. `foreach` and `capturable` are accepted
    and mean nothing here: its steps cannot be captured in a CUDA graph.

    >>> import pydist
    >>> p = pydist.ones(1, requires_grad=True)
    >>> (3 * p).sum().backward()
    >>> pydist.optim.ASGD([p], lr=0.1, lambd=0).step()
    >>> round(p.item(), 4)
    0.7
    """

    def __init__(
        self,
        params,
        lr=1e-2,
        lambd=1e-4,
        alpha=0.75,
        t0=1e6,
        weight_decay=0,
        foreach=None,
        maximize=False,
        differentiable=False,
        capturable=False,
    ):
        check_options(("learning rate", lr), ("weight_decay value", weight_decay))
        defaults = dict(
            lr=lr,
            lambd=lambd,
            alpha=alpha,
            t0=t0,
            weight_decay=weight_decay,
            foreach=foreach,
            maximize=maximize,
            differentiable=differentiable,
            capturable=capturable,
        )
        super().__init__(params, defaults)

    def _state_names(self, group):
        return ("ax",)

    def _new_scalars(self, group):
        return {"eta": float(group["lr"]), "mu": 1.0}

    def _run(self, group, batch):
        lr, lambd, count = float(group["lr"]), group["lambd"], batch.count + 1
        _C.asgd_step(
            batch.params,
            *batch.columns,
            **batch.scalars,
            lambd=lambd,
            weight_decay=group["weight_decay"],
            maximize=group["maximize"],
        )
        batch.advance(lr / (1 + lambd * lr * count) ** group["alpha"], 1 / max(1, count - group["t0"]))
