"""Lion and LAMB, which PyTorch does not have."""

import math

from pydist import _C
from pydist._grad_mode import no_grad
from pydist._norms import squares_of
from pydist.optim._fused import FusedOptimizer, SteppedOptimizer, check_betas, check_options, count_more, number


class Lion(FusedOptimizer):
    """p = (1 - lr * weight_decay) * p - lr * sign(beta1 * m + (1 - beta1) * g), then m = beta2 * m + (1 - beta2) * g
    (Chen et al., 2023). It has one state tensor per parameter. Tensors are of any floating dtype. Raises ValueError for
    options out of range.

    >>> import pydist
    >>> p = pydist.ones(2, requires_grad=True)
    >>> (3 * p).sum().backward()
    >>> pydist.optim.Lion([p], lr=0.25).step()
    >>> p.tolist()
    [0.75, 0.75]
    """

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0, *, maximize=False):
        check_options(("learning rate", lr), ("weight_decay value", weight_decay))
        check_betas(betas)
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay, maximize=maximize))

    def _state_names(self, group):
        return ("exp_avg",)

    def _why_not_captured(self, group):
        return None  # no formula depends on the step count

    def _run(self, group, batch):
        beta1, beta2 = group["betas"]
        _C.lion_step(
            batch.params,
            *batch.columns,
            lr=float(group["lr"]),
            beta1=beta1,
            beta2=beta2,
            weight_decay=group["weight_decay"],
            maximize=group["maximize"],
            on_device=batch.on_device,
        )
        batch.advance()


class LAMB(SteppedOptimizer):
    """p -= lr * |p| / |d| * d per tensor with d = m' / (sqrt(v') + eps) + weight_decay * p, where m' and v' are Adam's
    bias-corrected running means of g and g^2 (You et al., 2020). The ratio |p| / |d| is 1 if a norm is 0. Tensors are
    of any floating dtype. Raises ValueError for options out of range.

    On a CPU sums of squares are exact until they are rounded to float64. Norms of sharded parameters (DTensors, as of
    fully_shard) are those of the whole parameters, so the step has the bits that whole ones get. All ranks of their mesh
    make it. Cost: one all_reduce of 2,176 bytes for each parameter, all in one message.
    """

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.0, *, maximize=False):
        check_options(("learning rate", lr), ("epsilon value", eps), ("weight_decay value", weight_decay))
        check_betas(betas)
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, maximize=maximize))

    @no_grad()
    def _step_group(self, index, group):
        if index == 0:
            self._step_shards()
        lr = float(group["lr"])
        for param in group["params"]:
            if param.grad is None or _C.spread_of(param) is not None:
                continue
            step = _direction(group, param, *self._advance(group, param))
            norms = _C.sums_of_squares([param, step]).sqrt_()  # on the tensors' device: nothing is copied from a GPU
            if param.is_cuda:
                ratio = _C.where((norms > 0).all(), norms[0] / norms[1], 1.0)
                param.sub_((step * ratio).to(param.dtype), alpha=lr)
            else:
                param.sub_(step, alpha=lr * _ratio(*norms.tolist()))

    def _step_shards(self):
        """Steps the sharded parameters of all groups. Directions are made twice, so that none has to be kept."""
        own = [
            (group, param, *self._advance(group, param))
            for group in self.param_groups
            for param in group["params"]
            if param.grad is not None and _C.spread_of(param) is not None
        ]
        norms = map(math.sqrt, squares_of(t for row in own for t in (row[1], _direction(*row))))
        for group, param, state, count in own:
            step = _direction(group, param, state, count)
            param.sub_(step, alpha=float(group["lr"]) * _ratio(next(norms), next(norms)))

    def _advance(self, group, param):
        """Updates the running means with the gradient. Returns the state and how many steps it has now."""
        (beta1, beta2), state = group["betas"], self.state[param]
        if not state:
            state.update(step=number(0), exp_avg=_C.zeros_like(param), exp_avg_sq=_C.zeros_like(param))
        grad = -param.grad if group["maximize"] else param.grad
        state["exp_avg"].mul_(beta1).add_(grad, alpha=1 - beta1)
        state["exp_avg_sq"].mul_(beta2).add_(grad * grad, alpha=1 - beta2)
        return state, count_more(state)


def _direction(group, param, state, count):
    beta1, beta2 = group["betas"]
    root = (state["exp_avg_sq"] / (1 - beta2**count)).sqrt_().add_(group["eps"])
    return (state["exp_avg"] / (1 - beta1**count)).div_(root).add_(param, alpha=group["weight_decay"])


def _ratio(size, length):
    return size / length if size and length else 1.0
