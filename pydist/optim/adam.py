"""Adam and AdamW."""

from pydist import _C
from pydist.optim._fused import FusedOptimizer, adam_options, chance, rounding_options


class Adam(FusedOptimizer):
    """p -= lr * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps), where m and v are running means of g and g^2
    (Kingma and Ba, 2015). weight_decay adds weight_decay * p to g. amsgrad uses the largest v so far (Reddi et al.,
    2018).

    float16 and bfloat16 tensors are computed in float32 and rounded to nearest. With stochastic_rounding (True, or a
    seed of at least 1) bfloat16 is rounded up or down at random, so that steps smaller than its precision are not lost.
    The draw depends only on the seed, the step and the element's position, not on threads or ranks.

    capturable: the step count of parameters on a GPU is on the GPU, so that a CUDA graph can hold the step. If lr is a
    tensor on the GPU, each replay reads it.

    Raises ValueError for options out of range. `foreach` and `fused` are accepted and ignored: every step is one fused
    call.

    >>> import pydist
    >>> p = pydist.ones(2, requires_grad=True)
    >>> (3 * p).sum().backward()
    >>> pydist.optim.Adam([p], lr=0.5).step()
    >>> [round(x, 4) for x in p.tolist()]
    [0.5, 0.5]
    """

    def __init__(
        self,
        params,
        lr=1e-3,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay=0,
        amsgrad=False,
        *,
        foreach=None,
        maximize=False,
        capturable=False,
        differentiable=False,
        fused=None,
        decoupled_weight_decay=False,
        stochastic_rounding=False,
    ):
        options = adam_options(
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            amsgrad=amsgrad,
            maximize=maximize,
            foreach=foreach,
            capturable=capturable,
            differentiable=differentiable,
            fused=fused,
            decoupled_weight_decay=decoupled_weight_decay,
            **rounding_options(stochastic_rounding),
        )
        super().__init__(params, options)

    def _state_names(self, group):
        return ("exp_avg", "exp_avg_sq", "max_exp_avg_sq") if group["amsgrad"] else ("exp_avg", "exp_avg_sq")

    def _run(self, group, batch):
        beta1, beta2 = group["betas"]
        columns = batch.columns
        _C.adam_step(
            batch.params,
            columns[0],
            columns[1],
            columns[2] if group["amsgrad"] else None,
            lr=float(group["lr"]),
            beta1=beta1,
            beta2=beta2,
            eps=group["eps"],
            weight_decay=group["weight_decay"],
            step=batch.count + 1,
            amsgrad=group["amsgrad"],
            decoupled=group["decoupled_weight_decay"],
            maximize=group["maximize"],
            chance=chance(group, batch.count + 1),
            numbers=batch.elements,
            on_device=batch.on_device,
        )
        batch.advance()


class AdamW(Adam):
    """Adam that subtracts lr * weight_decay * p from p instead of adding weight decay to the gradient (Loshchilov and
    Hutter, 2019)."""

    def __init__(
        self,
        params,
        lr=1e-3,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay=1e-2,
        amsgrad=False,
        *,
        maximize=False,
        foreach=None,
        capturable=False,
        differentiable=False,
        fused=None,
        stochastic_rounding=False,
    ):
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            foreach=foreach,
            maximize=maximize,
            capturable=capturable,
            differentiable=differentiable,
            fused=fused,
            decoupled_weight_decay=True,
            stochastic_rounding=stochastic_rounding,
        )
