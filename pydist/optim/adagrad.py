"""Adagrad."""

from pydist import _C
from pydist.optim._fused import FusedOptimizer, check_options, number


class Adagrad(FusedOptimizer):
    """p -= lr / (1 + (t - 1) * lr_decay) * g / (sqrt(s) + eps), where s is initial_accumulator_value plus the sum of
    g^2 (Duchi et al., 2011). weight_decay adds weight_decay * p to g.

    Tensors are of any floating dtype. Raises ValueError for options out of range. `foreach` is accepted and ignored:
    every step is one fused call. With fused=True the step count of parameters on a GPU is on the GPU, as in PyTorch, so
    that a CUDA graph can hold the step; Adagrad has no `capturable`.

    >>> import pydist
    >>> p = pydist.ones(1, requires_grad=True)
    >>> (3 * p).sum().backward()
    >>> pydist.optim.Adagrad([p], lr=0.25).step()
    >>> p.item()
    0.75
    """

    _there = "fused"

    def __init__(
        self,
        params,
        lr=1e-2,
        lr_decay=0,
        weight_decay=0,
        initial_accumulator_value=0,
        eps=1e-10,
        foreach=None,
        *,
        maximize=False,
        differentiable=False,
        fused=None,
    ):
        check_options(("learning rate", lr), ("lr_decay value", lr_decay), ("weight_decay value", weight_decay))
        check_options(("initial_accumulator_value value", initial_accumulator_value), ("epsilon value", eps))
        defaults = dict(
            lr=lr,
            lr_decay=lr_decay,
            eps=eps,
            weight_decay=weight_decay,
            initial_accumulator_value=initial_accumulator_value,
            foreach=foreach,
            maximize=maximize,
            differentiable=differentiable,
            fused=fused,
        )
        super().__init__(params, defaults)

    def add_param_group(self, param_group):
        """As in PyTorch, this optimizer makes its state at once, not in the first step."""
        super().add_param_group(param_group)
        for param in param_group["params"]:
            self.state[param] = {
                "step": number(0, param_group["fused"]),
                "sum": self._new_state(param_group, "sum", param),
            }

    def _state_names(self, group):
        return ("sum",)

    def _new_state(self, group, name, param):
        first = group["initial_accumulator_value"]
        return _C.zeros_like(param).fill_(complex(first, first) if param.is_complex() else first)

    def _run(self, group, batch):
        _C.adagrad_step(
            batch.params,
            *batch.columns,
            lr=float(group["lr"]),
            lr_decay=group["lr_decay"],
            eps=group["eps"],
            weight_decay=group["weight_decay"],
            step=batch.count + 1,
            maximize=group["maximize"],
            on_device=batch.on_device,
        )
        batch.advance()
