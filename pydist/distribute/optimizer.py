"""CrossReplicaOptimizer: gradients of all replicas are combined before the step."""

from pydist._grad_mode import no_grad
from pydist.distribute.context import here
from pydist.distribute.reduce import ReduceOp, add, all_reduce
from pydist.distribute.strategy import joined_group, reduce_grads
from pydist.optim.optimizer import Optimizer

__all__ = ["CrossReplicaOptimizer"]


class CrossReplicaOptimizer:
    """An optimizer whose gradients are combined over all replicas before its step: `reduction` is MEAN or SUM.

    `opt`: an optimizer of pydist, whose `step` is wrapped, or one of Keras, whose `apply`, `apply_gradients` and
    `minimize` are. In a replica of a strategy all its replicas take part; outside, the ranks of the default process
    group do. What it does not define itself is that of `opt`.

    >>> from pydist import distribute, nn, optim
    >>> model = nn.Linear(2, 1)
    >>> optimizer = distribute.CrossReplicaOptimizer(optim.SGD(model.parameters(), lr=0.1))
    >>> model(nn.functional.one_hot(model.weight.argmax(), 2).float()).sum().backward()
    >>> optimizer.step()
    """

    def __init__(self, opt, reduction=ReduceOp.MEAN, group_assignment=None):
        if group_assignment is not None:
            raise NotImplementedError(f"CrossReplicaOptimizer: group_assignment={group_assignment!r} (expected None)")
        if not isinstance(opt, Optimizer) and not callable(getattr(opt, "apply", None)):
            raise TypeError(
                f"CrossReplicaOptimizer: opt is {type(opt).__name__} (expected an optimizer of pydist or Keras)"
            )
        name = getattr(reduction, "name", reduction)  # TensorFlow 1 has names such as "weighted_mean" for the mean
        self._op = ReduceOp.MEAN if name == "weighted_mean" else ReduceOp.from_name(reduction)
        self._opt = opt
        self._combines = getattr(type(opt).apply, "combines_replicas", False) if hasattr(opt, "apply") else True
        if self._combines:  # pydist's optimizers, and Keras' over pydist
            object.__setattr__(opt, "_replica_reduction", self._op)

    def __getattr__(self, name):
        if name == "_opt":
            raise AttributeError(name)
        return getattr(self._opt, name)

    def step(self, closure=None):
        """Combines the gradients and makes the step of a pydist optimizer."""
        if closure is not None:
            raise ValueError("CrossReplicaOptimizer.step: got a closure (expected none)")
        if here.replica is None:
            params = [p for group in self._opt.param_groups for p in group["params"]]
            for p, grad in zip(params, self._over_ranks(params, [p.grad for p in params])):
                p.grad = grad
        return self._opt.step()

    def _over_ranks(self, params, grads):
        group = joined_group()
        if group is None:
            return grads
        return reduce_grads(params, [grads], _Ranks(group), self._op)

    def apply(self, grads, trainable_variables=None):
        """Keras: combines the gradients and applies them."""
        return self._opt.apply(self._combined(list(grads)), trainable_variables)

    def apply_gradients(self, grads_and_vars, **kwargs):
        """Keras: combines the gradients and applies them."""
        grads, variables = zip(*grads_and_vars)
        return self._opt.apply_gradients(list(zip(self._combined(list(grads)), variables)), **kwargs)

    def _combined(self, grads):
        if self._combines and here.replica is not None:
            return grads
        there = [i for i, grad in enumerate(grads) if grad is not None]
        values = [grads[i] for i in there]
        if here.replica is not None:
            values = here.replica.all_reduce(self._op, [value.detach() for value in values])
        else:
            group = joined_group()
            with no_grad():
                scale = 1.0 if self._op is ReduceOp.SUM or group is None else 1.0 / group.size
                values = all_reduce(group, [value.detach().clone() for value in values], scale)
        for i, value in zip(there, values):
            grads[i] = value
        return grads


class _Ranks:
    """What reduce_grads asks of a strategy, for the ranks of a group."""

    def __init__(self, group):
        self._group, self._count = group, group.size

    def _sums(self, parts_of):
        return add(parts_of, self._group)
