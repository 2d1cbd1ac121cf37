"""Stochastic gradient descent."""

from pydist import _C
from pydist.optim._fused import FusedOptimizer, chance, check_options, rounding_options


class SGD(FusedOptimizer):
    """p -= lr * d with d = g + weight_decay * p. With momentum, b = momentum * b + (1 - dampening) * d (first step: b =
    d), and the step uses b, or d + momentum * b with nesterov, instead of d (Sutskever et al., 2013).

    float16 and bfloat16 tensors are computed in float32 and rounded to nearest. With stochastic_rounding (True, or a
    seed of at least 1) bfloat16 is rounded up or down at random, so that steps smaller than its precision are not lost.
    The draw depends only on the seed, the step and the element's position, not on threads or ranks.

    Raises ValueError for options out of range. `foreach` and `fused` are accepted and ignored: every step is one fused
    call.

    >>> import pydist
    >>> p = pydist.ones(2, requires_grad=True)
    >>> (3 * p).sum().backward()
    >>> pydist.optim.SGD([p], lr=0.5).step()
    >>> p.tolist()
    [-0.5, -0.5]
    """

    def __init__(
        self,
        params,
        lr=1e-3,
        momentum=0,
        dampening=0,
        weight_decay=0,
        nesterov=False,
        *,
        maximize=False,
        foreach=None,
        differentiable=False,
        fused=None,
        stochastic_rounding=False,
    ):
        check_options(("learning rate", lr), ("momentum value", momentum), ("weight_decay value", weight_decay))
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError(
                f"Nesterov momentum requires a momentum and zero dampening, got {momentum} and {dampening}"
            )
        defaults = dict(
            lr=lr,
            momentum=momentum,
            dampening=dampening,
            weight_decay=weight_decay,
            nesterov=nesterov,
            maximize=maximize,
            foreach=foreach,
            differentiable=differentiable,
            fused=fused,
            **rounding_options(stochastic_rounding),
        )
        super().__init__(params, defaults)

    _numbers = ()

    def _state_names(self, group):
        return ("momentum_buffer",) if group["momentum"] else ()

    def _count(self, state):
        return 0 if state.get("momentum_buffer") is None else 1

    def _why_not_captured(self, group):
        if "stochastic_rounding" in group:
            return "stochastic_rounding draws from a step count on the host"

    def _make_private(self):
        super()._make_private()
        self._begun = []  # states that the last step made

    def _take_back(self):
        for state in self._begun:
            state["momentum_buffer"] = None
        if self._begun:
            self._plans.clear()
        for group in self.param_groups:
            if "rounding_step" in group:
                group["rounding_step"] -= 1

    def _begin_step(self, args, kwargs):
        self._begun = []
        return super()._begin_step(args, kwargs)

    def _step_group(self, index, group):
        super()._step_group(index, group)
        if "stochastic_rounding" in group:  # the parameters' states do not count steps
            group["rounding_step"] = group.get("rounding_step", 0) + 1

    def _run(self, group, batch):
        momentum = group["momentum"]
        _C.sgd_step(
            batch.params,
            batch.columns[0] if momentum else None,
            lr=float(group["lr"]),
            momentum=momentum,
            dampening=group["dampening"],
            weight_decay=group["weight_decay"],
            nesterov=group["nesterov"],
            maximize=group["maximize"],
            first=batch.count == 0,
            chance=chance(group, group.get("rounding_step", 0)),
            numbers=batch.elements,
            on_device=batch.on_device,
        )
        if momentum and batch.count == 0:
            self._begun += batch.states
            self._plans.clear()  # from now on they are in one batch with those that have buffers
