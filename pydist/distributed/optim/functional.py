"""Optimizers that are given their gradients: `as_functional_optim`, and the table of what it knows."""

from functools import partial

from pydist import optim

__all__ = ["as_functional_optim", "functional_optim_map", "register_functional_optim"]


class _Functional:
    """An optimizer of pydist whose steps take gradients in the place of reading `.grad`, which stays as it is."""

    def __init__(self, optimizer_class, params, *args, _allow_empty_param_list=False, **kwargs):
        self._make = lambda param: optimizer_class([param], *args, **kwargs)
        self._optimizers = {}  # by parameter, since a parameter may come with its first step
        self.params = list(params)
        if not self.params and not _allow_empty_param_list:
            raise ValueError("optimizer got an empty parameter list (expected at least one parameter)")
        for param in self.params:
            self._of(param)

    def _of(self, param):
        if param not in self._optimizers:
            self._optimizers[param] = self._make(param)
        return self._optimizers[param]

    @property
    def state(self):
        """The state of each parameter that has made a step."""
        return {param: state for made in self._optimizers.values() for param, state in made.state.items()}

    def step(self, gradients):
        """A step with a gradient, or None, for each parameter that the constructor was given."""
        gradients = list(gradients)
        if len(gradients) != len(self.params):
            raise ValueError(
                "the gradients passed in does not equal to the size of the parameters!"
                f"Params length: {len(self.params)}. Gradients length: {len(gradients)} (expected one for each)"
            )
        for param, grad in zip(self.params, gradients):
            self.step_param(param, grad)

    def step_param(self, param, grad):
        """A step of one parameter with this gradient; None: no step."""
        made = self._of(param)
        if grad is None:
            return
        kept = param.grad
        param.grad = grad
        try:
            made.step()
        finally:
            param.grad = kept


functional_optim_map = {
    made: partial(_Functional, made)
    for made in (
        optim.Adagrad,
        optim.Adam,
        optim.AdamW,
        optim.SGD,
        optim.Adadelta,
        optim.RMSprop,
        optim.Rprop,
        optim.Adamax,
    )
}
_OWN = dict(functional_optim_map)


def registered(key):
    """The functional optimizer that register_functional_optim was given for this key, or None."""
    made = functional_optim_map.get(key)
    return None if made is _OWN.get(key) else made


def register_functional_optim(key, optim):
    """Makes as_functional_optim and DistributedOptimizer use `optim` where they are given `key`, unless there is one for
    it already. `optim(params, *args, **kwargs)` is called for the parameters of one worker, and its `step(gradients)`
    gets a gradient, or None, for each of them. The key need not be an optimizer.

    >>> import pydist
    >>> class Sign:
    ...     def __init__(self, params, lr=0.5, _allow_empty_param_list=False):
    ...         self.lr = lr
    ...     def step_param(self, param, grad):
    ...         param.data.sub_(grad.sign() * self.lr)
    >>> register_functional_optim("sign", Sign)
    >>> weight = pydist.ones(2)
    >>> as_functional_optim("sign").step_param(weight, pydist.tensor([3.0, -3.0]))
    >>> weight
    tensor([0.5000, 1.5000])
    """
    functional_optim_map.setdefault(key, optim)


def as_functional_optim(optim_cls, *args, **kwargs):
    """An optimizer without parameters of its own: `step_param(param, grad)` makes the step of `optim_cls` for one
    parameter with this gradient, and keeps that parameter's state. `.grad` is not used.

    optim_cls: SGD, Adam, AdamW, Adagrad, Adadelta, Adamax, RMSprop or Rprop, or what register_functional_optim was
    given; args and kwargs are its options. Raises ValueError for others.

    >>> import pydist
    >>> sgd = as_functional_optim(pydist.optim.SGD, lr=0.1)
    >>> weight = pydist.ones(2)
    >>> sgd.step_param(weight, pydist.tensor([1.0, 2.0]))
    >>> weight
    tensor([0.9000, 0.8000])
    """
    if optim_cls not in functional_optim_map:
        known = ", ".join(sorted(getattr(key, "__name__", str(key)) for key in functional_optim_map))
        raise ValueError(f"Optimizer {optim_cls} does not have a functional counterpart! (expected one of {known})")
    return functional_optim_map[optim_cls]([], *args, **kwargs, _allow_empty_param_list=True)
