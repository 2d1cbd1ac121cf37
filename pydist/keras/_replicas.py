"""Keras' variables, losses and optimizers in the replicas of a strategy (pydist.distribute)."""

import functools
import inspect

import pydist
from pydist.distribute import replica as replicas
from pydist.distribute.context import caller, here
from pydist.distribute.strategy import reduce_grads, reduction_of
from pydist.distribute.variables import assigned
from pydist.keras._closures import apply as apply_in_closure

_SEEDS = "seed_generator_state"  # of Keras' random functions, which make it at their first use


def in_replica():
    """The ReplicaContext of this thread where there are several replicas, else None."""
    found = here.replica
    return None if found is None or found.num_replicas_in_sync == 1 else found


# Variables.


def _adopt_variables(module):
    plain_init, plain_assign = module.Variable.__init__, module.Variable._direct_assign

    @functools.wraps(plain_init)
    def init(self, *args, **kwargs):
        plain_init(self, *args, **kwargs)
        if in_replica() is not None and self.name != _SEEDS:
            raise RuntimeError(
                f"strategy.run: {self.path} was made in a replica, at {caller()} (expected in strategy.scope(), before: "
                "model.build makes a model's variables)"
            )
        if here.scopes:
            here.scopes[-1]._variables_made.add(self)

    @functools.wraps(plain_assign)
    def direct_assign(self, value):
        if not assigned(self, value):
            plain_assign(self, value)

    module.Variable.__init__, module.Variable._direct_assign = init, direct_assign


def _track_quietly(module):
    """Layers are modules of pydist, but their variables speak for themselves. The dictionary of variables stays as long as
    it is right: fit and train_on_batch ask for another one each time, and recorded steps depend on it."""
    plain = module.TorchLayer._track_variables

    @functools.wraps(plain)
    def track(self):
        known, now = vars(self).get("_modules", {}).get("_torch_params"), {v.path: v.value for v in self.variables}
        if known is not None and known.keys() == now.keys() and all(known[path] is now[path] for path in now):
            return
        scopes, here.scopes = here.scopes, []
        try:
            plain(self)
        finally:
            here.scopes = scopes

    module.TorchLayer._track_variables = track
    module.TorchLayer._has_variables = True


def _part_losses(module):
    """The losses that layers add during a call belong to the replica that calls."""
    for name, kind in (("_losses", list), ("_loss_ids", set)):
        setattr(module.Layer, name, _OfReplica(name, kind))


class _OfReplica:
    """An attribute of which each replica of a process has its own."""

    def __init__(self, name, kind):
        self._name, self._kind = name, kind

    def __get__(self, layer, owner=None):
        if layer is None:
            return self
        replica = here.replica
        if replica is None or replica._member is None:
            return vars(layer)[self._name]
        return replica._of_layers.setdefault((id(layer), self._name), self._kind())

    def __set__(self, layer, value):
        vars(layer)[self._name] = value


def _carry_state(module):
    """A replica's thread begins with its caller's Keras state: dtype policy, device, names, seeds."""

    def carry():
        from keras.src.random.seed_generator import global_seed_generator

        global_seed_generator()
        return functools.partial(_Carried, module, {**vars(module.GLOBAL_STATE_TRACKER)})

    replicas.carriers.append(carry)


class _Carried:
    def __init__(self, module, state):
        self._tracker, self._state = module.GLOBAL_STATE_TRACKER, state

    def __enter__(self):
        vars(self._tracker).update(self._state)

    def __exit__(self, *error):
        pass


# Losses.


def _mean_over_all(module):
    """In a step on a global batch, the mean over a replica's rows counts by their number (distribute.shares), and so these
    factors make of a sum a part of the sum over all rows, and of a mean over what a mask leaves one over all of it."""
    plain_values, plain_mask, plain_scale = (
        module.reduce_values, module.apply_mask, module.scale_loss_for_distribution,
    )  # fmt: skip

    def share_of(count):
        """What this replica's mean over `count` (a tensor) is to be multiplied by."""
        from keras.src import ops

        replica = in_replica()
        total = replica.all_reduce("SUM", count.detach() * bool(replica._weight))
        return ops.divide_no_nan(count, total) * _inverse(replica._weight) * replica.num_replicas_in_sync

    @functools.wraps(plain_values)
    def reduce_values(values, sample_weight=None, reduction="sum_over_batch_size"):
        loss, replica = plain_values(values, sample_weight, reduction), in_replica()
        if replica is None or replica._weight is None:
            return loss
        if reduction == "sum":
            return loss * (replica.num_replicas_in_sync * _inverse(replica._weight))
        if reduction == "mean_with_sample_weight" and sample_weight is not None:
            return loss * share_of(sample_weight.sum().to(loss.dtype))
        return loss

    @functools.wraps(plain_mask)
    def apply_mask(sample_weight, mask, dtype, reduction):
        weights, replica = plain_mask(sample_weight, mask, dtype, reduction), in_replica()
        if mask is None or replica is None or replica._weight is None or reduction not in _MEANS:
            return weights
        return weights * share_of(mask.sum().to(weights.dtype))

    @functools.wraps(plain_scale)
    def scale_loss_for_distribution(value):
        """In a loop of the program's own, gradients are summed over the replicas."""
        value, replica = plain_scale(value), in_replica()
        return value if replica is None or replica._weight is not None else value / replica.num_replicas_in_sync

    module.reduce_values, module.apply_mask = reduce_values, apply_mask
    module.scale_loss_for_distribution = scale_loss_for_distribution


_MEANS = ("mean", "sum_over_batch_size")


def _inverse(weight):
    return 1 / weight if weight else 0.0


# BatchNormalization(synchronized=True): statistics of the rows of all replicas.


def _synchronize_moments(module):
    plain = module.moments

    @functools.wraps(plain)
    def moments(x, axes, keepdims=False, synchronized=False):
        replica = in_replica()
        if not synchronized or replica is None:
            return plain(x, axes, keepdims)
        values = x.float() if x.dtype is pydist.float16 else x
        count = 1
        for axis in axes:
            count *= x.shape[axis]
        parts = pydist.stack([values.mean(axes, keepdim=keepdims), values.square().mean(axes, keepdim=keepdims)])
        rows = count * (replica._weight != 0)  # a replica without rows has one that does not count
        total = replica.all_reduce("SUM", pydist.tensor(float(rows), dtype=values.dtype))
        mean, square = replica.all_reduce("SUM", parts * (rows / total))
        return mean.to(x.dtype), (square - mean.square()).to(x.dtype)

    module.moments = moments


def _allow_synchronized(module):
    """Keras refuses it over PyTorch."""
    plain = module.BatchNormalization.__init__
    signature = inspect.signature(plain)

    @functools.wraps(plain)
    def init(self, *args, **kwargs):
        given = signature.bind(self, *args, **kwargs)
        synchronized = given.arguments.pop("synchronized", False)
        plain(*given.args, **given.kwargs)
        self.synchronized = synchronized

    init.__signature__ = signature  # Keras reads it
    module.BatchNormalization.__init__ = init


# Optimizers.


def _over_replicas(plain):
    """`apply` that first combines the gradients of all replicas. It makes the step once for all replicas of a process."""

    @functools.wraps(plain)
    def apply(self, grads, trainable_variables=None):
        replica = in_replica()
        if here.closure is not None:
            return apply_in_closure(self, plain, grads, trainable_variables)
        if replica is None:
            return plain(self, grads, trainable_variables)
        grads = list(grads)
        variables = self._trainable_variables if trainable_variables is None else list(trainable_variables)
        _check_scope(self, variables, replica.strategy)
        params = [v._value for v in variables]

        def merge(values):
            plain(self, _combined(params, values, replica, self), trainable_variables)
            return [None] * len(values)

        return replica.meet(f"{type(self).__name__}.apply", grads, merge)

    apply.combines_replicas = True
    return apply


def _combined(params, values, replica, optimizer):
    """The gradients of the step: those that backward has reduced already (trainer), and the others' sum or mean."""
    done, strategy = replica._reduced, replica.strategy
    if getattr(optimizer, "_skip_aggregation", False):
        return values[0]
    rest = [i for i, p in enumerate(params) if id(p) not in done]
    totals = list(values[0])
    found = reduce_grads([params[i] for i in rest], [[v[i] for i in rest] for v in values], strategy,
                         reduction_of(optimizer)) if rest else ()  # fmt: skip
    for i, total in zip(rest, found):
        totals[i] = total
    return totals


def _check_scope(optimizer, variables, strategy):
    known = getattr(optimizer, "_checked_in", None)
    if known is strategy:
        return
    mine = {id(v) for v in strategy._variables_made.with_values()}
    for v in (optimizer._iterations, *variables):
        if id(v) not in mine:
            raise ValueError(
                f"{type(optimizer).__name__}.apply: {v.path} was made outside strategy.scope() (expected the model and its "
                "optimizer inside)"
            )
    object.__setattr__(optimizer, "_checked_in", strategy)


def _combine_gradients(module):
    base = module.BaseOptimizer
    plain_init, plain_gradients = base.__init__, base.apply_gradients

    @functools.wraps(plain_init)
    def init(self, *args, **kwargs):
        plain_init(self, *args, **kwargs)
        if here.scopes:
            here.scopes[-1]._variables_made.add_optimizer(self)

    @functools.wraps(plain_gradients)
    def apply_gradients(self, grads_and_vars, name=None, skip_gradients_aggregation=False, **kwargs):
        """tf.keras had `experimental_aggregate_gradients`, too."""
        skip = skip_gradients_aggregation or not kwargs.get("experimental_aggregate_gradients", True)
        object.__setattr__(self, "_skip_aggregation", skip)
        try:
            return plain_gradients(self, grads_and_vars)
        finally:
            object.__setattr__(self, "_skip_aggregation", False)

    base.__init__, base.apply_gradients, base.apply = init, apply_gradients, _over_replicas(base.apply)


def _combine_before_scaling(module):
    module.LossScaleOptimizer.apply = _over_replicas(module.LossScaleOptimizer.apply)


SEAMS = {
    "keras.src.backend.common.global_state": _carry_state,
    "keras.src.backend.torch.core": _adopt_variables,
    "keras.src.backend.torch.layer": _track_quietly,
    "keras.src.backend.torch.nn": _synchronize_moments,
    "keras.src.layers.layer": _part_losses,
    "keras.src.layers.normalization.batch_normalization": _allow_synchronized,
    "keras.src.losses.loss": _mean_over_all,
    "keras.src.optimizers.base_optimizer": _combine_gradients,
    "keras.src.optimizers.loss_scale_optimizer": _combine_before_scaling,
}
