"""Muon."""

import math

from pydist import _C
from pydist._grad_mode import no_grad
from pydist.optim._fused import SteppedOptimizer, check_options


def orthogonal(matrix, coefficients, steps, eps):
    """The nearest matrix with singular values near 1, in bfloat16, by a Newton-Schulz iteration of odd polynomials."""
    a, b, c = coefficients
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.to(_C.bfloat16)
    x = x.t() if tall else x
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.t()
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x.t() if tall else x


class Muon(SteppedOptimizer):
    """p = (1 - lr * weight_decay) * p - r * lr * O, for matrices. O is the orthogonalised momentum m + (1 - momentum) *
    (g - m); with nesterov it is g + momentum * (m - g), orthogonalised (Jordan et al., 2024).

    Sharded matrices (DTensors, as of fully_shard) get the bits that whole ones get: all ranks of their mesh gather each
    matrix's momentum and orthogonalise it. Cost: one all_gather of a matrix, for each of them.

    adjust_lr_fn: r = sqrt(max(1, rows / columns)) ("original", the default) or 0.2 * sqrt(max(rows, columns))
    ("match_rms_adamw"). Raises ValueError for parameters that are not matrices and for options out of range.
    """

    def __init__(
        self,
        params,
        lr=1e-3,
        weight_decay=0.1,
        momentum=0.95,
        nesterov=True,
        ns_coefficients=(3.4445, -4.775, 2.0315),
        eps=1e-7,
        ns_steps=5,
        adjust_lr_fn=None,
    ):
        check_options(("learning rate", lr), ("momentum value", momentum), ("weight_decay value", weight_decay))
        if adjust_lr_fn not in (None, "original", "match_rms_adamw"):
            raise ValueError(
                f"Adjust learning rate function {adjust_lr_fn} is not supported (expected 'original' or "
                "'match_rms_adamw')"
            )
        if len(ns_coefficients) != 3 or not 0 <= ns_steps < 100:
            raise ValueError(
                f"Muon: got {len(ns_coefficients)} ns_coefficients and ns_steps {ns_steps} (expected 3, and fewer "
                "than 100)"
            )
        defaults = dict(
            lr=lr,
            weight_decay=weight_decay,
            momentum=momentum,
            nesterov=nesterov,
            ns_coefficients=ns_coefficients,
            eps=eps,
            ns_steps=ns_steps,
            adjust_lr_fn=adjust_lr_fn,
        )
        super().__init__(params, defaults)

    def _check_params(self, param_group):
        super()._check_params(param_group)
        for param in param_group["params"]:
            if param.dim() != 2:
                raise ValueError(
                    f"Muon only supports 2D parameters whereas we found a parameter with size: {param.size()}"
                )

    def _why_not_captured(self, group):
        return None  # no formula depends on the step count

    def _makes_state(self, group):
        return any(p.grad is not None and self.state.get(p, {}).get("momentum_buffer") is None for p in group["params"])

    @no_grad()
    def _step_group(self, index, group):
        lr, keep = float(group["lr"]), group["momentum"]
        for param in group["params"]:
            grad = param.grad
            if grad is None:
                continue
            mean = self.state[param].setdefault("momentum_buffer", None)
            if mean is None:
                mean = self.state[param]["momentum_buffer"] = _C.zeros_like(grad)
            mean.lerp_(grad, 1 - keep)
            update = grad.lerp(mean, keep) if group["nesterov"] else mean
            rows, columns = param.shape
            scale = 0.2 * math.sqrt(max(rows, columns))
            if group["adjust_lr_fn"] != "match_rms_adamw":
                scale = math.sqrt(max(1, rows / columns))
            spec = _C.spread_of(update)
            matrix = update if spec is None else update.full_tensor()
            step = orthogonal(matrix, group["ns_coefficients"], group["ns_steps"], group["eps"]).to(param.dtype)
            if spec is not None:
                step = _C.empty_like(param).copy_(step)  # this rank's part of it
            param.mul_(1 - lr * group["weight_decay"]).add_(step, alpha=-lr * scale)
