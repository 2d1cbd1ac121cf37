"""Resilient backpropagation."""

from pydist import _C
from pydist.optim._fused import FusedOptimizer, check_options


class Rprop(FusedOptimizer):
    """p -= sign(g) * s, with a step size s for each element. s is multiplied by etas[1] while g keeps its sign, and by
    etas[0] when the sign changes; then the element makes no step (Riedmiller and Braun, 1993). s starts at lr and stays
    within `step_sizes`.

    Tensors are of any floating dtype. Raises ValueError for options out of range. `foreach` is accepted and ignored.
    With capturable=True the step count of parameters on a GPU is on the GPU.
    """

    def __init__(
        self,
        params,
        lr=1e-2,
        etas=(0.5, 1.2),
        step_sizes=(1e-6, 50),
        *,
        capturable=False,
        foreach=None,
        maximize=False,
        differentiable=False,
    ):
        check_options(("learning rate", lr))
        if not 0.0 < etas[0] < 1.0 < etas[1]:
            raise ValueError(f"Invalid eta values: {etas[0]}, {etas[1]} (expected 0 < etas[0] < 1 < etas[1])")
        defaults = dict(
            lr=lr,
            etas=etas,
            step_sizes=step_sizes,
            foreach=foreach,
            maximize=maximize,
            differentiable=differentiable,
            capturable=capturable,
        )
        super().__init__(params, defaults)

    def _state_names(self, group):
        return ("prev", "step_size")

    def _new_state(self, group, name, param):
        zeros = _C.zeros_like(param)
        rate = float(group["lr"])
        return zeros.fill_(complex(rate, rate) if zeros.is_complex() else rate) if name == "step_size" else zeros

    def _run(self, group, batch):
        (minus, plus), (low, high) = group["etas"], group["step_sizes"]
        _C.rprop_step(
            batch.params,
            *batch.columns,
            eta_minus=minus,
            eta_plus=plus,
            step_min=low,
            step_max=high,
            maximize=group["maximize"],
            on_device=batch.on_device,
        )
        batch.advance()
