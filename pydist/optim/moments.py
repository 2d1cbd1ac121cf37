"""NAdam, RAdam and Adamax: steps from running means of the gradient and of its size."""

from pydist import _C
from pydist.optim._fused import FusedOptimizer, adam_options, check_options


class _Moments(FusedOptimizer):
    """The common part of the three."""

    def _state_names(self, group):
        return ("exp_avg", "exp_avg_sq")

    def _moments(self, group, batch, **more):
        return _C.moments_step(
            batch.params,
            *batch.columns,
            lr=float(group["lr"]),
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            eps=group["eps"],
            weight_decay=group["weight_decay"],
            decoupled=group["decoupled_weight_decay"],
            step=batch.count + 1,
            maximize=group["maximize"],
            on_device=batch.on_device,
            **more,
        )


class NAdam(_Moments):
    """Adam with Nesterov's momentum (Dozat, 2016): p -= lr * ((1 - u) / (1 - U) * g + u' / (1 - U u') * m) / (sqrt(v')
    + eps). Here u = beta1 * (1 - 0.96^(t * momentum_decay) / 2), u' is the next u, U is the product of all u so far,
    and v' = v / (1 - beta2^t). Weight decay, dtypes, errors and accepted options are those of Adam. With
    capturable=True U of parameters on a GPU is also on the GPU, as float32.

    >>> import pydist
    >>> p = pydist.ones(1, requires_grad=True)
    >>> (3 * p).sum().backward()
    >>> pydist.optim.NAdam([p], lr=0.5).step()
    >>> round(p.item(), 2)
    0.47
    """

    _numbers = ("step", "mu_product")

    def __init__(
        self,
        params,
        lr=2e-3,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay=0,
        momentum_decay=4e-3,
        decoupled_weight_decay=False,
        *,
        foreach=None,
        maximize=False,
        capturable=False,
        differentiable=False,
    ):
        options = adam_options(
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            momentum_decay=momentum_decay,
            decoupled_weight_decay=decoupled_weight_decay,
            maximize=maximize,
            foreach=foreach,
            capturable=capturable,
            differentiable=differentiable,
        )
        check_options(("momentum_decay value", momentum_decay))
        super().__init__(params, options)

    def _run(self, group, batch):
        numbers = batch.scalars if batch.step is None else {}
        batch.advance(self._moments(group, batch, momentum_decay=group["momentum_decay"], nesterov=True, **numbers))


class RAdam(_Moments):
    """Adam whose step is rectified while v is based on few gradients (Liu et al., 2020). Adam's step is multiplied by
    sqrt((r - 4) (r - 2) R / ((R - 4) (R - 2) r)) with R = 2 / (1 - beta2) - 1 and r = R - 2 t beta2^t / (1 - beta2^t).
    If r <= 5, the step is lr * m / (1 - beta1^t). Weight decay, dtypes, errors and accepted options are those of Adam.
    """

    def __init__(
        self,
        params,
        lr=1e-3,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay=0,
        decoupled_weight_decay=False,
        *,
        foreach=None,
        maximize=False,
        capturable=False,
        differentiable=False,
    ):
        options = adam_options(
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            maximize=maximize,
            foreach=foreach,
            capturable=capturable,
            decoupled_weight_decay=decoupled_weight_decay,
            differentiable=differentiable,
        )
        super().__init__(params, options)

    def _run(self, group, batch):
        self._moments(group, batch)
        batch.advance()


class Adamax(_Moments):
    """p -= lr / (1 - beta1^t) * m / u, where m is the running mean of g and u = max(beta2 * u, |g| + eps) (Kingma and
    Ba, 2015). weight_decay adds weight_decay * p to g. Dtypes, errors and accepted options are those of Adam."""

    def __init__(
        self,
        params,
        lr=2e-3,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay=0,
        foreach=None,
        *,
        maximize=False,
        differentiable=False,
        capturable=False,
    ):
        options = adam_options(
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            foreach=foreach,
            maximize=maximize,
            differentiable=differentiable,
            capturable=capturable,
        )
        super().__init__(params, options)

    def _state_names(self, group):
        return ("exp_avg", "exp_inf")

    def _run(self, group, batch):
        beta1, beta2 = group["betas"]
        _C.adamax_step(
            batch.params,
            *batch.columns,
            lr=float(group["lr"]),
            beta1=beta1,
            beta2=beta2,
            eps=group["eps"],
            weight_decay=group["weight_decay"],
            step=batch.count + 1,
            maximize=group["maximize"],
            on_device=batch.on_device,
        )
        batch.advance()
