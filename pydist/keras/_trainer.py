"""S4: fit, evaluate and predict on all replicas of the strategy in whose scope a model was made.

Keras' loop, callbacks and metrics stay as they are. What it calls for a batch, `train_function`, divides the batch among the
replicas (_adapters.py may have done so), runs `train_step` on each, and combines what they have made: gradients in the
optimizer's step (_replicas.py) or while backward still runs (the reducer), then metrics and logs.
"""

import contextlib
import functools
import inspect
import warnings

import pydist
from pydist import _C
from pydist.distribute.context import default_strategy, get_strategy, here
from pydist.distribute.reduce import gather_rows
from pydist.distribute.server import ParameterServerStrategy
from pydist.distribute.shares import counted_share
from pydist.distribute.survival import event
from pydist.distribute.values import regroup
from pydist.distributed._group import process_group
from pydist.keras._adapters import Part, divided
from pydist.keras._replay import Recorded, as_tensors, recorded
from pydist.utils._pytree import tree_map

_BUCKETS = 25 << 20, 1 << 20  # bytes of a bucket and of the first one, where the strategy does not say


class Steps:
    """What one model does with a batch on the replicas of its strategy."""

    def __init__(self, strategy):
        self.strategy, self.due = strategy, True
        self._reducer, self._params = None, frozenset()
        strategy._followers.add(self)

    def begin(self, model):
        """Before the first batch: all ranks take rank 0's variables."""
        if not self.due:
            return
        self.due, made = False, self.strategy._variables_made
        if model.optimizer is not None and hasattr(model.optimizer, "variables"):
            made.add_missing(model.optimizer.variables, model.optimizer)
        made.add_missing([*model.variables, *model.metrics_variables])
        self.strategy._synchronize(again=True)
        if self._params != _ids(model.trainable_variables):
            self.rejoin()

    def rejoin(self):
        """The next step makes a new reducer."""
        self._reducer, self._params = None, frozenset()  # frees the gradients' places in the old buckets

    def run(self, step, part):
        """The results of `step` on each replica's rows."""
        share = part.share
        if isinstance(step, Recorded):  # it is the only one of this process, and what it does depends on its share
            numbers = share.replicas, share.total, share.rows[0]
            return self.strategy._run([functools.partial(step, as_tensors(part.values[0]), numbers)], share)
        return self.strategy._run([functools.partial(step, data) for data in part.values], share)

    def _part(self, batch):
        part = batch if isinstance(batch, Part) else divided(batch, self.strategy)
        if self.strategy._survival is not None and self.strategy._survival.has_lost:
            return Part(part.values, counted_share(part.share.rows, self.strategy._group))
        return part

    def test(self, model, step, batch):
        """The logs of a test_step."""
        self.begin(model)

        def act():
            part = self._part(batch)
            return _detached(self.logs(model, self.run(step, part), part))

        return event(self.strategy, act)

    def train(self, model, step, batch, plain):
        """The logs of a train_step. plain: it is Keras' own, which takes one backward and one step."""
        self.begin(model)
        variables, versions = model.trainable_variables, []

        def act():
            versions[:] = [v._value._version for v in variables]
            part = self._part(batch)
            with self._reducing(variables, part) if plain else contextlib.nullcontext():
                results = self.run(step, part)
            return _detached(self.logs(model, results, part))

        def is_done():
            return versions != [v._value._version for v in variables]

        logs = event(self.strategy, act, is_done)
        return model.get_metrics_result() if logs is None else logs

    @contextlib.contextmanager
    def _reducing(self, variables, part):
        """In this block a backward on a rank sums gradients over all ranks, while it runs."""
        if self.strategy._group is None or not self.strategy._is_single or not variables:
            yield
            return
        if self._reducer is None:
            params, names = [v._value for v in variables], [v.path for v in variables]
            most = self.strategy._bytes_per_pack
            buckets = (most, most) if most else _BUCKETS
            self._reducer, self._params = _C.Reducer(params, names, self.strategy._group, *buckets), _ids(variables)
        context, reducer = self.strategy._context, self._reducer
        reducer.prepare()
        reducer.set_weight(part.share.weight(0))
        context._reduced, reducer.sync = self._params, True
        try:
            yield
        finally:
            context._reduced, reducer.sync = frozenset(), False

    def logs(self, model, results, part):
        """One dictionary for all replicas. What a step has returned of a metric becomes the metric's result over all
        replicas, and any other number the mean over the rows."""
        combined, first = model.get_metrics_result(), results[0]
        if not isinstance(first, dict) or not first or set(first) == set(combined):
            return combined
        keys = [key for key, value in first.items() if isinstance(value, (int, float, _C.Tensor))]
        with pydist.no_grad():
            parts = [[_counted(result[key], part.share, i) for i, result in enumerate(results)] for key in keys]
            parts += [[_C.tensor(float(key in result.of_metrics)) for result in results] for key in keys]
            totals = self.strategy._sums(parts)
        means, votes = totals[: len(keys)], totals[len(keys) :]
        replicas = self.strategy.num_replicas_in_sync
        found = {k: combined[k] if vote.item() == replicas else mean for k, mean, vote in zip(keys, means, votes)}
        return {**first, **found}

    def predict(self, model, step, batch):
        """The outputs for all rows of the batch, in their order."""
        self.begin(model)
        part = self._part(batch)
        results = self.run(step, part)
        found = [tree_map(lambda y, n=n: y[:n], result) for result, n in zip(results, part.share.rows)]
        if self.strategy._group is None or part.share.by_rank is None:
            return self.strategy.gather(regroup(found), axis=0)
        return tree_map(lambda *parts: gather_rows(self.strategy._group, _C.cat(parts), part.share.by_rank), *found)


def _ids(variables):
    return frozenset(id(v._value) for v in variables)


def _counted(value, share, local):
    """A replica's part of the mean over the rows."""
    value = _C.as_tensor(value).detach().float()
    return value * (share.rows[local] / share.total) if share.rows[local] else _C.zeros_like(value)


class _Logs(dict):
    """The logs of one replica's step, and the names of those that are results of metrics: `of_metrics`."""

    def __init__(self, logs, metrics):
        super().__init__(logs)
        self.of_metrics = {key for key in logs if key in metrics and logs[key] is not None and
                           pydist.equal(_C.as_tensor(logs[key]), _C.as_tensor(metrics[key]))}  # fmt: skip


def _step(model, step, plain):
    """The step, whose logs say what they are. plain: they are the metrics' results, which are not asked for before all
    replicas' metrics are combined."""
    if plain:
        return step

    def logged(data):
        logs = step(data)
        return _Logs(logs, model.get_metrics_result()) if isinstance(logs, dict) else logs

    return logged


def steps_of(model):
    """The Steps of a model with several replicas, else None."""
    strategy = model._distribute_strategy
    if strategy is None or strategy.num_replicas_in_sync == 1:
        return None
    if model._replica_steps is None:
        object.__setattr__(model, "_replica_steps", Steps(strategy))
    return model._replica_steps


def _detached(logs):
    """Logs without what would keep the batch's graph alive."""
    return tree_map(lambda value: value.detach() if isinstance(value, _C.Tensor) else value, logs)


def _keep_strategy(trainer):
    plain = trainer.__init__

    @functools.wraps(plain)
    def init(self):
        plain(self)
        strategy = get_strategy()
        object.__setattr__(self, "_distribute_strategy", None if strategy is default_strategy() else strategy)
        object.__setattr__(self, "_replica_steps", None)

    trainer.__init__ = init
    trainer._distribute_strategy = trainer._replica_steps = None
    trainer.distribute_strategy = property(
        lambda self: self._distribute_strategy or get_strategy(), doc="The strategy in whose scope the model was made."
    )


def _make_functions(trainer):
    """train_function, test_function and predict_function: of a list of steps_per_execution batches."""
    train_step, test_step, predict_step = trainer.train_step, trainer.test_step, trainer.predict_step
    metrics_result, compute_metrics = trainer.get_metrics_result, trainer.compute_metrics

    def is_plain(model, name, step):
        return getattr(type(model), name) is step and type(model).compute_metrics is compute_metrics

    def one_of(self, name, theirs, run):
        """The model's method `name` as it is called with a batch, and recorded (_replay.py): (recorded, function). run(steps,
        step, batch, plain): with several replicas."""
        steps, plain = steps_of(self), is_plain(self, name, theirs)
        step = recorded(self, getattr(self, name), steps, plain)
        if steps is None:
            return step, (lambda data: step(as_tensors(data))) if plain else step
        return step, lambda data: run(steps, step, data, plain)

    def train_one(self):
        def run(steps, step, data, plain):
            return steps.train(self, _step(self, step, plain), data, plain)

        step, one = one_of(self, "train_step", train_step, run)
        return step, pydist.enable_grad()(one)  # beside `import tensorflow` it is off outside tapes

    def test_one(self):
        def run(steps, step, data, plain):
            return steps.test(self, _step(self, step, plain), data)

        step, one = one_of(self, "test_step", test_step, run)
        return step, pydist.no_grad()(one)

    def predict_one(self):
        step, one = one_of(
            self, "predict_step", predict_step, lambda steps, step, data, _: steps.predict(self, step, data)
        )
        return step, pydist.no_grad()(one)

    def over_batches(one):
        def function(batches):
            for data in batches:
                logs = one(data)
            return _detached(logs)

        return function

    def all_outputs(one):
        def function(batches):
            found = [one(data) for data in batches]
            return found[0] if len(found) == 1 else tree_map(lambda *ys: _C.cat(ys), *found)

        return function

    def maker(name, one, wrap):
        def make(self, force=False):
            if getattr(self, name) is None or force:
                step, function = one(self)
                function = wrap(function)
                function.step = step
                setattr(self, name, function)
            return getattr(self, name)

        return make

    trainer.make_train_function = maker("train_function", train_one, over_batches)
    trainer.make_test_function = maker("test_function", test_one, over_batches)
    trainer.make_predict_function = maker("predict_function", predict_one, all_outputs)

    def get_metrics_result(self):
        """In a replica, nobody looks at the results of Keras' own steps before all replicas' metrics are combined."""
        if here.replica is not None and steps_of(self) is not None and is_plain(self, "train_step", train_step) \
                and is_plain(self, "test_step", test_step):  # fmt: skip
            return {}
        return metrics_result(self)

    trainer.get_metrics_result = get_metrics_result


def _build_from_parts(trainer):
    plain = trainer._symbolic_build

    @functools.wraps(plain)
    def symbolic_build(self, iterator=None, data_batch=None):
        if steps_of(self) is not None and data_batch is None:
            iterator = ((begin, end, [batches[0].values[0]]) for begin, end, batches in iterator)
        return plain(self, iterator, data_batch)

    trainer._symbolic_build = symbolic_build


def _on_replicas(trainer, name):
    """The method in the model's strategy's scope. Ranks other than 0 print nothing."""
    plain = getattr(trainer, name)
    signature = inspect.signature(plain)

    @functools.wraps(plain)
    def method(self, *args, **kwargs):
        _check_scope(self, name)
        steps = steps_of(self)
        if steps is None:
            return plain(self, *args, **kwargs)
        group = steps.strategy._group
        if group is not None and group.rank and "verbose" in signature.parameters:
            bound = signature.bind(self, *args, **kwargs)
            bound.arguments["verbose"] = 0
            args, kwargs = bound.args[1:], bound.kwargs
        steps.due |= name == "fit"
        with steps.strategy.scope():
            return plain(self, *args, **kwargs)

    setattr(trainer, name, method)


def _check_scope(model, name):
    strategy = model._distribute_strategy
    if name in ("fit", "train_on_batch") and isinstance(strategy, ParameterServerStrategy):
        raise NotImplementedError(
            f"{name}: {type(strategy).__name__} has no steps that all workers make together (expected a loop that gives a "
            "step to distribute.coordinator.ClusterCoordinator.schedule)"
        )
    if here.scopes and here.scopes[-1] is not strategy and here.scopes[-1].num_replicas_in_sync > 1:
        raise ValueError(
            f"{name}: {type(model).__name__} {model.name} was made outside the scope of {here.scopes[-1]} (expected the "
            "model in `with strategy.scope():`)"
        )
    if strategy is None and name == "fit" and not here.scopes and process_group.get_world_size() > 1 and not _warned:
        _warned.append(True)
        warnings.warn(
            f"fit: each of {process_group.get_world_size()} ranks trains a model of its own (expected the model in `with "
            "pydist.distribute.MirroredStrategy().scope():` if they are to train one)",
            stacklevel=3,
        )


_warned = []


def _change(module):
    trainer = module.TorchTrainer
    _keep_strategy(trainer)
    _make_functions(trainer)
    _build_from_parts(trainer)
    _on_replicas(module.base_trainer.Trainer, "compile")  # Keras looks whether a subclass has another one
    for name in ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch"):
        _on_replicas(trainer, name)


SEAMS = {"keras.src.backend.torch.trainer": _change}
