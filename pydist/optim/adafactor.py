"""Adafactor."""

from pydist import _C
from pydist._dtypes import finfo
from pydist._grad_mode import no_grad
from pydist.optim._fused import SteppedOptimizer, count_more, number


class Adafactor(SteppedOptimizer):
    """p -= a / max(1, rms(u) / d) * u with u = g / sqrt(v) and a = max(eps[1], rms(p)) * min(lr, 1 / sqrt(t)) (Shazeer
    and Stern, 2018). v is the running mean of g^2; for matrices it is the product of the running means of its rows and
    columns, divided by the mean of its rows. The rate of the running means is t^beta2_decay. weight_decay also
    subtracts lr * weight_decay * p.

    State: one number for each row and column of the last two dimensions instead of each element. eps[0] None means the
    dtype's eps. Raises ValueError for options out of range. `foreach` is accepted and ignored.

    >>> import pydist
    >>> p = pydist.ones(2, 2, requires_grad=True)
    >>> (3 * p).sum().backward()
    >>> pydist.optim.Adafactor([p], lr=0.5).step()
    >>> p.tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """

    def __init__(
        self,
        params,
        lr=1e-2,
        beta2_decay=-0.8,
        eps=(None, 1e-3),
        d=1.0,
        weight_decay=0.0,
        *,
        foreach=None,
        maximize=False,
    ):
        for name, value, good in (
            ("Learning rate should be >= 0", lr, 0.0 <= lr),
            ("beta2_decay should be <= 0", beta2_decay, beta2_decay <= 0.0),
            ("epsilon1 should be >= 0", eps[0], eps[0] is None or 0.0 <= eps[0]),
            ("epsilon2 should be >= 0", eps[1], 0.0 <= eps[1]),
            ("Clipping threshold d should be >= 1", d, 1.0 <= d),
            ("weight_decay should be >= 0", weight_decay, 0.0 <= weight_decay),
        ):
            if not good:
                raise ValueError(f"{name} but is: {value}")
        defaults = dict(
            lr=lr,
            beta2_decay=beta2_decay,
            eps=eps,
            d=d,
            weight_decay=weight_decay,
            foreach=foreach,
            maximize=maximize,
        )
        super().__init__(params, defaults)

    @no_grad()
    def _step_group(self, index, group):
        for param in group["params"]:
            if param.grad is not None:
                self._update(group, param, -param.grad if group["maximize"] else param.grad)

    def _update(self, group, param, grad):
        state, lr, (eps1, eps2) = self.state[param], float(group["lr"]), group["eps"]
        if not state:
            state["step"] = number(0)
            if grad.dim() > 1:
                state["row_var"] = grad.new_zeros((*grad.shape[:-1], 1))
                state["col_var"] = grad.new_zeros((*grad.shape[:-2], 1, grad.shape[-1]))
            else:
                state["variance"] = _C.zeros_like(grad)
        count = count_more(state)
        rate = count ** group["beta2_decay"]
        eps1 = finfo(param.dtype).eps if eps1 is None else eps1
        size = max(eps2, param.norm().item() / param.numel() ** 0.5)
        if group["weight_decay"]:
            param.mul_(1 - lr * group["weight_decay"])
        squares = grad * grad
        if grad.dim() > 1:
            row, column = state["row_var"], state["col_var"]
            row.lerp_(squares.mean(-1, keepdim=True), rate)
            column.lerp_(squares.mean(-2, keepdim=True), rate)
            variance = row @ column / row.mean(-2, keepdim=True).clamp(min=eps1)
        else:
            variance = state["variance"].lerp_(squares, rate)
        update = variance.clamp(min=eps1 * eps1).rsqrt().mul_(grad)
        clip = max(1.0, update.norm().item() / (update.numel() ** 0.5 * group["d"]))
        param.add_(update, alpha=-size * min(lr, count**-0.5) / clip)
