"""Averaged stochastic gradient descent."""

from pydist import _C
from pydist.optim._fused import FusedOptimizer, check_options


class ASGD(FusedOptimizer):
    """p = (1 - lambd * eta) * p - eta * g with eta = lr / (1 + lambd * lr * t)^alpha. State "ax" is p's mean since step
    t0 (Polyak and Juditsky, 1992). weight_decay adds weight_decay * p to g.

    Tensors are of any floating dtype. Raises ValueError for options out of range. `foreach` is accepted and ignored.
    With capturable=True step count, eta and mu of parameters on a GPU are on the GPU, as float32.

    >>> import pydist
    >>> p = pydist.ones(1, requires_grad=True)
    >>> (3 * p).sum().backward()
    >>> pydist.optim.ASGD([p], lr=0.1, lambd=0).step()
    >>> round(p.item(), 4)
    0.7
    """

    _numbers = ("step", "eta", "mu")

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

    def _new_scalar(self, group, name):
        return float(group["lr"]) if name == "eta" else 1.0

    def _run_on_gpu(self, group, batch):
        if batch.step is None:  # the host computes eta of the next step, so it waits for the rate
            group = {**group, "lr": float(group["lr"])}
        super()._run_on_gpu(group, batch)

    def _run(self, group, batch):
        following = _C.asgd_step(
            batch.params,
            *batch.columns,
            **(batch.scalars if batch.step is None else {}),
            lambd=group["lambd"],
            weight_decay=group["weight_decay"],
            lr=float(group["lr"]),
            alpha=group["alpha"],
            t0=group["t0"],
            step=batch.count + 1,
            maximize=group["maximize"],
            on_device=batch.on_device,
        )
        batch.advance(*following)
