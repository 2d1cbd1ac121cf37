"""SparseAdam."""

from pydist import _C
from pydist._grad_mode import no_grad
from pydist.optim._fused import SteppedOptimizer, check_betas


class SparseAdam(SteppedOptimizer):
    """Adam that leaves untouched rows unchanged: a row (along dimension 0) whose gradient is all zero keeps its
    parameters and both running means, such as the row of an embedding that no token looked up.

    Gradients are dense here, also those of nn.Embedding(sparse=True), so a row counts as touched if an element of its
    gradient is not 0. Raises ValueError for options out of range.

    >>> import pydist
    >>> p = pydist.ones(3, 1, requires_grad=True)
    >>> p[1].sum().backward()
    >>> pydist.optim.SparseAdam([p], lr=0.5).step()
    >>> [round(x, 4) for x in p.flatten().tolist()]
    [1.0, 0.5, 1.0]
    """

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, maximize=False):
        for name, value in (("learning rate", lr), ("epsilon value", eps)):
            if not 0.0 < value:
                raise ValueError(f"Invalid {name}: {value} (expected more than 0)")
        check_betas(betas)
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, maximize=maximize))

    _numbers = ()

    @no_grad()
    def _step_group(self, index, group):
        (beta1, beta2), lr = group["betas"], float(group["lr"])
        for param in group["params"]:
            grad = param.grad
            if grad is None:
                continue
            state = self.state[param]
            if not state:
                state.update(step=0, exp_avg=_C.zeros_like(param), exp_avg_sq=_C.zeros_like(param))
            count = state["step"] = int(state["step"]) + 1  # an int, as in PyTorch
            wholes = [t.reshape(1) if t.dim() == 0 else t for t in (grad, state["exp_avg"], state["exp_avg_sq"], param)]
            rows = (wholes[0] != 0).reshape(wholes[0].shape[0], -1).any(1).nonzero().flatten()
            if not rows.numel():
                continue
            g, mean, square, old = (whole[rows] for whole in wholes)
            g = -g if group["maximize"] else g
            mean, square = mean.lerp(g, 1 - beta1), square.lerp(g * g, 1 - beta2)
            root = (1 - beta2**count) ** 0.5
            step = mean / (square.sqrt() + group["eps"]) * (-lr * root / (1 - beta1**count))
            for whole, new in zip(wholes[1:], (mean, square, old + step)):
                whole[rows] = new
