"""fit, evaluate and predict on several replicas do what they do on one. test_fit.py runs this file in a process of its own."""

import contextlib

import numpy as np
import pytest

import pydist
from pydist import distribute, keras
from pydist.data import Dataset
from pydist.distribute import MirroredStrategy, runner
from pydist.distribute.cluster_resolver import SimpleClusterResolver
from pydist.distribute.experimental import partitioners
from pydist.distributed.diagnostics import flight_record
from pydist.testing import run_ranks as ranks
from pydist.utils.data import DataLoader, DistributedSampler, TensorDataset

ROWS, BATCH = 1003, 64
layers, losses, metrics = keras.layers, keras.losses, keras.metrics
keras.random.uniform((1,))  # makes Keras' own seed, which stays


def cpus(count):
    return [f"CPU:{i}" for i in range(count)]


def seed(number):
    return keras.initializers.GlorotUniform(number)  # ranks in threads share Python's random numbers


def data(rows=ROWS, dtype="float32"):
    numbers = np.random.default_rng(0)
    x = numbers.standard_normal((rows, 12)).astype(dtype)
    return x, np.argmax(x[:, :4] + 0.3 * numbers.standard_normal((rows, 4)), 1)


def mlp(**more):
    dense = layers.Dense(16, "relu", kernel_initializer=seed(1)), layers.Dense(4, kernel_initializer=seed(2))
    return compiled(keras.Sequential([keras.Input((12,)), *dense]), **more)


def convnet(synchronized=True, **more):
    # without a bias, whose gradient before a norm is nothing but rounding, which Adam would make as large as a step
    parts = [
        layers.Reshape((3, 4, 1)),
        layers.Conv2D(4, 3, use_bias=False, kernel_initializer=seed(1)),
        layers.BatchNormalization(synchronized=synchronized),
        layers.ReLU(),
        layers.Flatten(),
        layers.Dense(4, kernel_initializer=seed(2)),
    ]
    return compiled(keras.Sequential([keras.Input((12,)), *parts]), **more)


def compiled(model, optimizer=None, **more):
    more.setdefault("loss", losses.SparseCategoricalCrossentropy(from_logits=True))
    more.setdefault("metrics", ["accuracy"])
    model.compile(optimizer or keras.optimizers.Adam(1e-2), **more)
    return model


def scope(strategy):
    return contextlib.nullcontext() if strategy is None else strategy.scope()


def everywhere(work, counts=(2, 3, 4)):
    """{name: work(strategy)} for one replica, for threads and for ranks. All ranks have to give the same."""
    found = {"alone": work(None)}
    for count in counts:
        found[f"{count} threads"] = work(MirroredStrategy(cpus(count)))
        by_rank = ranks(count, lambda rank: work(MirroredStrategy()), timeout=120)
        assert all(same(result, by_rank[0]) for result in by_rank), by_rank
        found[f"{count} ranks"] = by_rank[0]
    return found


def flat(tree):
    return [np.asarray(leaf) for leaf in keras.tree.flatten(tree)]


def same(a, b):
    return all(x.tobytes() == y.tobytes() for x, y in zip(flat(a), flat(b), strict=True))


def near(found, rtol, atol=0.0):
    for name, result in found.items():
        for mine, expected in zip(flat(result), flat(found["alone"]), strict=True):
            np.testing.assert_allclose(mine, expected, rtol, atol, err_msg=name)


@pytest.fixture
def floatx(request):
    def use(name):
        keras.config.set_floatx(name)
        keras.config.set_dtype_policy(name)

    use(request.param)
    yield request.param
    use("float32")


# Training.


def test_buckets_have_bytes_per_pack():
    def work(rank, most):
        options = distribute.experimental.CommunicationOptions(bytes_per_pack=most)
        with distribute.MultiWorkerMirroredStrategy(communication_options=options).scope():
            model = mlp()
        x, y = data(BATCH)
        model.fit(x, y, batch_size=BATCH, verbose=0)
        return flight_record().count("all_reduce(float32"), [v.numpy().tobytes() for v in model.variables]

    (few, bits), (more, same) = (ranks(2, work, most)[0] for most in (0, 64))
    assert more == few + 3 and bits == same  # a bucket for each of four variables


@pytest.mark.parametrize("make, floatx", [
    (mlp, "float32"), (convnet, "float64"),
    pytest.param(mlp, "float64", marks=pytest.mark.slow), pytest.param(convnet, "float32", marks=pytest.mark.slow),
], indirect=["floatx"])  # fmt: skip
def test_training_is_that_of_one_replica(make, floatx):
    """50 steps of Adam on 1,000 rows in batches of 64, of which the last one of an epoch has 40."""

    def work(strategy):
        pydist.manual_seed(5)
        x, y = data(1000, floatx)
        with scope(strategy):
            model = make()
        fitted = model.fit(x, y, batch_size=BATCH, epochs=3, verbose=0)
        model.fit(x[:128], y[:128], batch_size=BATCH, verbose=0, shuffle=False)
        return model.get_weights(), fitted.history

    found = everywhere(work)
    near(found, *(1e-5, 1e-5) if floatx == "float32" else (1e-12, 1e-12))
    assert same(found["2 threads"], found["2 ranks"]) and same(found["3 threads"], found["3 ranks"])
    assert same(work(MirroredStrategy(cpus(2))), found["2 threads"])


# Each row once.


def binary(strategy):
    x, y = data()
    with scope(strategy):
        model = keras.Sequential([keras.Input((12,)), layers.Dense(8, "relu", kernel_initializer=seed(1)),
                                  layers.Dense(1, "sigmoid", kernel_initializer=seed(2))])  # fmt: skip
        found = ["accuracy", metrics.AUC(num_thresholds=50), metrics.BinaryIoU(), metrics.TruePositives(name="hits")]
        compiled(model, loss="binary_crossentropy", metrics=found, weighted_metrics=["mse"])
    return model, x, (y > 1).astype("float32")[:, None]


def test_evaluate_and_predict_count_each_row_once():
    class Steps(keras.callbacks.Callback):
        steps = 0

        def on_test_batch_end(self, batch, logs=None):
            self.steps += 1

    def work(strategy):
        model, x, y = binary(strategy)
        counted = Steps()
        weights = np.linspace(0, 2, ROWS).astype("float32")
        exact = model.evaluate(x, y, BATCH, 0, weights, callbacks=[counted], return_dict=True)
        counts = {name: exact.pop(name) for name in ("hits", "accuracy")}
        assert counted.steps == 16
        predicted = model.predict(x, BATCH, verbose=0)
        assert predicted.shape == (ROWS, 1)
        return exact, predicted, {"exact": counts}

    found = everywhere(work)
    near(found, 1e-6, 1e-6)
    assert all(result[2] == found["alone"][2] for result in found.values())  # counts have no rounding


def test_metrics_of_keras_and_of_the_program():
    """Confusion, a custom mean, and the program of keras-team/keras#19891, whose loss depended on the replicas."""

    class MeanOfRows(metrics.Metric):
        def __init__(self):
            super().__init__(name="mean_of_rows")
            self.total, self.rows = (self.add_weight(name=name, initializer="zeros") for name in ("total", "rows"))

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.total.assign_add(keras.ops.sum(keras.ops.max(y_pred, -1)))
            self.rows.assign_add(keras.ops.cast(keras.ops.shape(y_pred)[0], "float32"))

        def result(self):
            return self.total / self.rows

    def work(strategy):
        x, y = data()
        with scope(strategy):
            model = mlp(metrics=[metrics.MeanIoU(4, sparse_y_pred=False), MeanOfRows(),
                                 metrics.SparseTopKCategoricalAccuracy(2)])  # fmt: skip
        logs = model.fit(x, y, BATCH, epochs=2, verbose=0, shuffle=False, validation_split=0.1).history
        return logs, model.evaluate(x, y, batch_size=50, verbose=0)

    near(everywhere(work, (2, 3)), 1e-5, 1e-6)


# Losses.


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "sum", "mean_with_sample_weight"])
def test_reductions_regularizers_and_weights(reduction):
    def work(strategy):
        x, y = data(200)
        with scope(strategy):
            model = keras.Sequential([
                keras.Input((12,)),
                layers.Dense(16, "relu", kernel_initializer=seed(1), kernel_regularizer="l2", activity_regularizer="l2"),
                layers.Dense(4, kernel_initializer=seed(2)),
            ])  # fmt: skip
            loss = losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)
            compiled(
                model,
                keras.optimizers.SGD(1e-2 if reduction != "sum" else 1e-4),
                loss=loss,
                weighted_metrics=["accuracy"],
            )
        logs = [model.fit(x, y, 64, verbose=0, shuffle=False, class_weight={0: 1.0, 1: 2.0, 2: 0.5, 3: 1.0}).history]
        logs.append(model.fit(x, y, 64, verbose=0, shuffle=False, sample_weight=np.arange(200.0)).history)
        return logs, model.get_weights(), model.evaluate(x, y, verbose=0, sample_weight=np.arange(200.0))

    near(everywhere(work, (2, 3)), 1e-5, 1e-6)


def test_masks_count_over_all_rows():
    """Rows have different numbers of steps that count; the last batch has fewer rows than replicas."""

    def work(strategy):
        numbers = np.random.default_rng(1)
        x = numbers.integers(1, 9, (65, 6)) * (np.arange(6) < numbers.integers(1, 7, (65, 1)))
        with scope(strategy):
            table = layers.Embedding(9, 4, mask_zero=True, embeddings_initializer=seed(1))
            model = keras.Sequential(
                [keras.Input((6,), dtype="int32"), table, layers.Dense(9, kernel_initializer=seed(2))]
            )
            compiled(model, keras.optimizers.SGD(0.1), weighted_metrics=["accuracy"], metrics=None)
        return model.fit(x, x, 32, epochs=2, verbose=0, shuffle=False).history, model.get_weights()

    near(everywhere(work, (2, 3)), 1e-5, 1e-6)


def test_two_outputs_loss_weights_and_loss_scaling():
    def work(strategy):
        x, y = data(100)
        with scope(strategy):
            entry = keras.Input((12,))
            hidden = layers.Dense(8, "relu", kernel_initializer=seed(1))(entry)
            heads = [layers.Dense(4, name="a", kernel_initializer=seed(2))(hidden),
                     layers.Dense(1, name="b", kernel_initializer=seed(3))(hidden)]  # fmt: skip
            model = keras.Model(entry, heads)
            optimizer = keras.optimizers.LossScaleOptimizer(
                keras.optimizers.Adam(1e-2, clipnorm=0.5), dynamic_growth_steps=9
            )
            loss = {"a": losses.SparseCategoricalCrossentropy(from_logits=True), "b": "mse"}
            compiled(model, optimizer, loss=loss, loss_weights={"a": 1.0, "b": 0.3}, metrics={"a": "accuracy"})
        fitted = model.fit(x, {"a": y, "b": x[:, :1]}, 32, epochs=3, verbose=0, shuffle=False).history
        before, scale = model.get_weights(), optimizer.dynamic_scale.numpy()
        x[31] = np.inf  # the last replica's gradients are not finite: nobody makes the step
        model.fit(x[:32], {"a": y[:32], "b": x[:32, 1:2]}, 32, verbose=0, shuffle=False)
        assert same(before, model.get_weights()) and optimizer.dynamic_scale.numpy() == scale / 2
        return fitted, before, scale

    near(everywhere(work, (2, 3)), 1e-4, 1e-5)


def test_a_train_step_of_the_program():
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(4, kernel_initializer=seed(1))
            self.mean = metrics.Mean(name="mean")

        def call(self, x):
            return self.dense(x)

        def train_step(self, data):
            x, y = data
            self.zero_grad()
            logits = self(x, training=True)
            loss = pydist.nn.functional.cross_entropy(logits, y.long())
            loss.backward()
            variables = self.trainable_variables
            with pydist.no_grad():
                self.optimizer.apply([v.value.grad for v in variables], variables)
            self.mean.update_state(keras.ops.max(logits, -1))
            return {"own": loss, "mean": self.mean.result()}

    def work(strategy):
        x, y = data(200)
        with scope(strategy):
            model = Own()
            model.compile(keras.optimizers.SGD(0.1, momentum=0.9))
        return model.fit(x, y, 64, epochs=2, verbose=0, shuffle=False).history, model.get_weights()

    near(everywhere(work, (2, 3)), 1e-5, 1e-6)


# Loops of the program's own.


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_loop_of_the_program(wrapped):
    """strategy.run, with the optimizer, metrics and variables of Keras in the replicas."""

    def work(strategy):
        x, y = data(200)
        with scope(strategy):
            parts = [layers.Dense(16, "relu", kernel_initializer=seed(1)), layers.BatchNormalization(synchronized=True)]
            model = keras.Sequential([keras.Input((12,)), *parts, layers.Dense(4, kernel_initializer=seed(2))])
            each_loss = losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
            optimizer = keras.optimizers.Adam(1e-2)
            seen, first = metrics.SparseCategoricalAccuracy(), keras.Variable(0.0, aggregation="only_first_replica")
        if wrapped:
            optimizer = distribute.CrossReplicaOptimizer(optimizer, "sum")
        strategy = strategy or distribute.get_strategy()

        def step(rows, labels):
            model.zero_grad()
            logits = model(rows, training=True)
            loss = distribute.compute_average_loss(each_loss(labels, logits))
            loss.backward()
            with pydist.no_grad():
                optimizer.apply_gradients([(v.value.grad, v) for v in model.trainable_variables])
            seen.update_state(labels, logits)
            first.assign(rows[0, 0])
            return loss.detach()

        found = []
        batches = [(pydist.tensor(x[i : i + 64]), pydist.tensor(y[i : i + 64])) for i in range(0, 200, 64)]
        for _ in range(2):
            for part in strategy.experimental_distribute_dataset(batches):
                found.append(strategy.reduce("SUM", strategy.run(step, part), axis=None))
            found += [seen.result(), first.numpy()]
            seen.reset_state()
        return found, model.get_weights(), optimizer.iterations.numpy()

    near(everywhere(work, (2, 3)), 1e-5, 1e-5)


def test_a_replica_that_skips_a_step():
    with MirroredStrategy(cpus(2)).scope() as strategy:
        model, optimizer = mlp(), keras.optimizers.SGD(0.1)

    def step():
        if distribute.get_replica_context().replica_id_in_sync_group == 0:
            optimizer.apply([v.value * 0 for v in model.trainable_variables], model.trainable_variables)

    with pytest.raises(
        RuntimeError, match=r"replica 0 waits in SGD.apply at .*fit_replicas.py:\d+, replica 1 has returned"
    ):
        strategy.run(step)
    outside = keras.optimizers.SGD(0.1)
    with pytest.raises(ValueError, match="SGD.apply: .* was made outside strategy.scope"):
        strategy.run(lambda: outside.apply([v.value for v in model.trainable_variables], model.trainable_variables))


# Sources of batches.


def _arrays(x, y):
    return {"x": x, "y": y, "batch_size": BATCH, "shuffle": False}


def _tensors(x, y):
    return {"x": pydist.tensor(x), "y": pydist.tensor(y), "batch_size": BATCH, "shuffle": False}


def _loader(x, y):
    return {"x": DataLoader(TensorDataset(pydist.tensor(x), pydist.tensor(y)), BATCH, num_workers=2)}


def _pipeline(x, y):
    return {"x": Dataset.from_tensor_slices((x, y)).batch(BATCH)}


def _endless(x, y):
    return {"x": Dataset.from_tensor_slices((x, y)).batch(BATCH).repeat(), "steps_per_epoch": 16}


def _distributed(x, y):
    return {"x": distribute.get_strategy().experimental_distribute_dataset(_pipeline(x, y)["x"])}


def _generator(x, y):
    return {"x": ((x[i : i + BATCH], y[i : i + BATCH]) for e in range(2) for i in range(0, len(x), BATCH)),
            "steps_per_epoch": 16}  # fmt: skip


def _sequence(x, y):
    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 16

        def __getitem__(self, i):
            return x[BATCH * i : BATCH * (i + 1)], y[BATCH * i : BATCH * (i + 1)]

    return {"x": Batches(), "shuffle": False}


@pytest.mark.parametrize("source", [_tensors, _loader, _pipeline, _endless, _distributed, _generator, _sequence])
def test_batches_from(source):
    x, y = data()
    expected = mlp().fit(**_arrays(x, y), epochs=2, verbose=0).history

    def work(strategy):
        with scope(strategy):
            model, given = mlp(), source(x, y)
        return model.fit(**given, epochs=2, verbose=0).history

    found = {"alone": expected, "threads": work(MirroredStrategy(cpus(3)))}
    found.update(enumerate(ranks(2, lambda rank: work(MirroredStrategy()))))
    near(found, 1e-5)


def test_shuffled_sources_have_one_order():
    """All ranks take rank 0's order: every row once. Nobody has set a seed."""

    def work(rank, source):
        seen = []

        class Seen(keras.layers.Layer):
            def call(self, x):
                if str(x.device) != "meta":
                    seen.extend(x[:, 0].tolist())
                return x

        x = np.arange(130.0, dtype="float32")[:, None]
        strategy = MirroredStrategy()
        with strategy.scope():
            model = keras.Sequential([keras.Input((1,)), Seen(), layers.Dense(1)])
            model.compile("sgd", "mse")
        model.fit(**source(x), epochs=2, verbose=0)
        return seen

    sources = [
        lambda x: {"x": x, "y": x, "batch_size": 32},
        lambda x: {"x": x, "y": x, "batch_size": 32, "shuffle": "batch"},
        lambda x: {"x": DataLoader(TensorDataset(pydist.tensor(x), pydist.tensor(x)), 32, shuffle=True)},
        lambda x: {"x": Dataset.from_tensor_slices((x, x)).shuffle(130).batch(32)},
    ]
    for source in sources:
        first, second = ranks(2, work, source)
        assert sorted(first + second) == sorted([*range(130)] * 2)


def test_batches_of_the_ranks_themselves():
    """A DistributedSampler, and distribute_datasets_from_function: rank 1 ends early, and takes part without rows."""

    def work(rank, source):
        strategy = MirroredStrategy()
        x, y = data(90)
        with strategy.scope():
            model = mlp(optimizer="sgd")
        given = source(strategy, pydist.tensor(x), pydist.tensor(y))
        logs = model.fit(given, epochs=2, verbose=0).history
        return logs, model.get_weights(), model.evaluate(given, verbose=0, return_dict=True)

    def sampled(strategy, x, y):
        dataset = TensorDataset(x, y)
        return DataLoader(dataset, 20, sampler=DistributedSampler(dataset, shuffle=False, pad=False))

    def made(strategy, x, y):
        def batches(context):
            mine = slice(0, 60) if context.input_pipeline_id == 0 else slice(60, 90)
            return Dataset.from_tensor_slices((x[mine], y[mine])).batch(20)

        return strategy.distribute_datasets_from_function(batches)

    x, y = data(90)
    order = {sampled: [*range(40), *range(40, 80), *range(80, 90)],
             made: [*range(20), *range(60, 80), *range(20, 40), *range(80, 90), *range(40, 60)]}  # fmt: skip
    sizes = {sampled: (40, 40, 10), made: (40, 30, 20)}
    for source in (sampled, made):
        model, ends = mlp(optimizer="sgd"), np.cumsum((0, *sizes[source]))
        batches = [(x[order[source]][a:b], y[order[source]][a:b]) for a, b in zip(ends, ends[1:])]
        logs = model.fit((batch for _ in range(2) for batch in batches), steps_per_epoch=3, epochs=2, verbose=0).history
        expected = logs, model.get_weights(), model.evaluate(x, y, verbose=0, return_dict=True)
        first, second = ranks(2, work, source)
        assert same(first, second)
        near({"alone": expected, source.__name__: first}, 1e-5, 1e-6)


def test_steps_per_execution_and_single_batches():
    def work(strategy):
        x, y = data(200)
        with scope(strategy):
            model = mlp(steps_per_execution=3)
        logs = [model.fit(x, y, BATCH, epochs=2, verbose=0, shuffle=False).history]
        logs += [model.train_on_batch(x[:10], y[:10], return_dict=True), model.test_on_batch(x[:3], y[:3])]
        return logs, model.predict(x[:70], 20, verbose=0), model.predict_on_batch(x[:5]), model.get_weights()

    near(everywhere(work, (3,)), 1e-5, 1e-6)


def test_dictionaries_and_class_weights_of_data_sets():
    def work(strategy):
        x, y = data(100)
        batches = Dataset.from_tensor_slices(({"a": x[:, :6], "b": x[:, 6:]}, y)).batch(32)
        with scope(strategy):
            parts = {name: keras.Input((6,), name=name) for name in "ab"}
            joined = layers.Concatenate()([parts["a"], parts["b"]])
            model = compiled(keras.Model(parts, layers.Dense(4, kernel_initializer=seed(1))(joined)))
        logs = model.fit(batches, verbose=0, class_weight={0: 1.0, 1: 3.0, 2: 0.5, 3: 1.0}).history
        return logs, model.predict(batches, verbose=0)

    near(everywhere(work, (2,)), 1e-5, 1e-6)


# Callbacks.


class _StopOn(keras.callbacks.Callback):
    """Stops in one place on one rank, as a limit of time may."""

    def __init__(self, rank, where):
        super().__init__()
        self.rank, self.where, self.batches = rank, where, 0

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1
        if self.where == "batch" and batch == 2 and self.rank == 1:
            self.model.stop_training = True

    def on_epoch_end(self, epoch, logs=None):
        if self.where == "epoch" and epoch == 1 and self.rank == 1:
            self.model.stop_training = True


def test_all_ranks_stop_together():
    def work(rank, where):
        x, y = data(200)
        with MirroredStrategy().scope():
            model = mlp()
        stop = _StopOn(rank, where)
        model.fit(x, y, BATCH, epochs=4, verbose=0, callbacks=[stop])
        return stop.batches

    assert ranks(2, work, "batch") == [3, 3] and ranks(2, work, "epoch") == [8, 8]


@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_early_stopping_sees_the_same_numbers_everywhere(count):
    def work(rank, run):
        x, y = data(200)
        with MirroredStrategy().scope():
            model = mlp(optimizer=keras.optimizers.SGD(0.05))
        noisy = np.random.default_rng(run).integers(0, 4, 50)
        stop = keras.callbacks.EarlyStopping("val_accuracy", patience=2, restore_best_weights=True)
        slow = keras.callbacks.ReduceLROnPlateau("val_accuracy", patience=1)
        history = model.fit(x, y, BATCH, epochs=12, verbose=0, validation_data=(x[:50], noisy), callbacks=[stop, slow])
        return len(history.epoch), history.history, model.get_weights()

    stopped = set()
    for run in range(4):
        found = ranks(count, work, run)
        assert all(same(one, found[0]) for one in found)
        stopped.add(found[0][0])
    assert len(stopped) > 1  # epochs: it depends on the noise


def test_rank_0_writes(tmp_path):
    def work(rank):
        x, y = data(200)
        with MirroredStrategy().scope():
            model = mlp()
        folder = tmp_path / f"rank{rank}"
        folder.mkdir()
        best = keras.callbacks.ModelCheckpoint(folder / "best-{epoch}.keras", "loss", save_best_only=True)
        rows = keras.callbacks.CSVLogger(folder / "log.csv")
        backup = keras.callbacks.BackupAndRestore(folder / "backup", delete_checkpoint=False)
        model.fit(x, y, BATCH, epochs=2, verbose=0, callbacks=[best, rows, backup])
        return best.best, model.predict(x, verbose=0)

    (value, predicted), second = ranks(2, work)
    assert same(second, (value, predicted))
    assert sorted(path.name for path in (tmp_path / "rank0").iterdir()) == [
        "backup",
        "best-1.keras",
        "best-2.keras",
        "log.csv",
    ]
    assert not list((tmp_path / "rank1").iterdir())
    assert np.allclose(
        keras.saving.load_model(tmp_path / "rank0" / "best-2.keras").predict(data(200)[0], verbose=0), predicted
    )


class _Interrupt(keras.callbacks.Callback):
    def __init__(self, at):
        super().__init__()
        self.left = at

    def on_train_batch_begin(self, batch, logs=None):
        self.left -= 1
        if not self.left:
            raise InterruptedError


@pytest.mark.parametrize("every", [pytest.param("epoch", marks=pytest.mark.slow), 3])
def test_backup_and_restore_goes_on_in_the_same_place(tmp_path, every):
    """With the shuffle, dropout, batch norm and metrics of a run that nobody has interrupted."""

    def work(strategy, name, at=0):
        pydist.manual_seed(7)
        x, y = data(300)
        with scope(strategy):
            parts = [
                layers.Dense(8, kernel_initializer=seed(1)),
                layers.BatchNormalization(),
                layers.Dropout(0.3, seed=2),
            ]
            model = keras.Sequential([keras.Input((12,)), *parts, layers.Dense(4, kernel_initializer=seed(2))])
            compiled(model)
        backup = keras.callbacks.BackupAndRestore(tmp_path / name, save_freq=every, delete_checkpoint=False)
        callbacks = [backup, _Interrupt(at)] if at else [backup]
        try:
            history = model.fit(x, y, BATCH, epochs=4, verbose=0, callbacks=callbacks).history
        except InterruptedError:
            return None
        return model.get_weights(), {name: values[-1] for name, values in history.items()}

    for name, strategy in (("alone", lambda: None), ("threads", lambda: MirroredStrategy(cpus(2)))):
        whole = work(strategy(), name)
        work(strategy(), f"{name}2", at=14)
        assert same(work(strategy(), f"{name}2"), whole)
    whole = ranks(2, lambda rank: work(MirroredStrategy(), "ranks"))
    ranks(2, lambda rank: work(MirroredStrategy(), "ranks2", at=14))
    assert all(same(one, whole[0]) for one in ranks(2, lambda rank: work(MirroredStrategy(), "ranks2")))


@pytest.mark.parametrize("name", ["model.keras", "model.h5", "model.weights.h5"])
def test_a_file_is_whole_or_as_before(tmp_path, name, monkeypatch):
    model, path = mlp(), tmp_path / name
    save = model.save_weights if name.endswith("weights.h5") else model.save
    save(path)
    before = path.read_bytes()
    monkeypatch.setattr(np, "asarray", None)
    monkeypatch.setattr(np, "array", None)
    with pytest.raises(TypeError):
        save(path)
    monkeypatch.undo()
    assert path.read_bytes() == before and [found.name for found in tmp_path.iterdir()] == [name]


def test_numbers_are_read_when_somebody_looks(capsys):
    read = []
    x, y = data(640)
    model = mlp()
    item = pydist.Tensor.__float__
    try:
        pydist.Tensor.__float__ = lambda self: read.append(1) or item(self)
        model.fit(x, y, 16, epochs=1, verbose=0)
    finally:
        pydist.Tensor.__float__ = item
    assert len(read) <= 4
    model.fit(x, y, 16, epochs=2, verbose=1)
    shown = capsys.readouterr().out
    assert "Epoch 2/2" in shown and "40/40" in shown and "accuracy: " in shown


# What cannot be.


def test_what_is_refused():
    x, y = data(100)
    outside, one, two = mlp(), MirroredStrategy(cpus(2)), MirroredStrategy(cpus(3))
    with one.scope():
        inside = mlp()
        with pytest.raises(
            ValueError, match=r"fit: Sequential sequential\S* was made outside the scope of MirroredStrategy"
        ):
            outside.fit(x, y)
    with two.scope(), pytest.raises(ValueError, match="predict: Sequential .* was made outside the scope"):
        inside.predict(x)
    with pytest.raises(
        ValueError, match="the data set was distributed by MirroredStrategy.* of 3, .* .expected .* of 2, "
    ):
        inside.fit(two.experimental_distribute_dataset([(x, y)]))
    with pytest.raises(ValueError, match="`y` should not be passed"):
        inside.fit(Dataset.from_tensor_slices((x, y)).batch(8), y)

    class Makes(layers.Layer):
        def call(self, x):
            self.late = keras.Variable(1.0, name="late") if str(x.device) != "meta" else 1.0
            return x * self.late

    with one.scope():
        model = keras.Sequential([keras.Input((12,)), Makes(), layers.Dense(4)])
        compiled(model)
    with pytest.raises(RuntimeError, match=r"strategy.run: \S*late was made in a replica, at .*fit_replicas.py:\d+"):
        model.fit(x, y, verbose=0)
    outside.fit(x, y, verbose=0)
    inside.fit(x, y, verbose=0)


def test_ranks_whose_data_differ():
    def work(rank, kind):
        x, y = data(100)
        with MirroredStrategy().scope():
            model = mlp()
        if kind == "rows":
            x, y = x[: 100 - rank], y[: 100 - rank]
        elif kind == "order":
            x = np.roll(x, rank, 0)
        elif kind == "spec":
            return model.fit(((x[:8, :12].astype(["f4", "f8"][rank]), y[:8]) for _ in range(3)), verbose=0)
        elif kind == "empty":
            return model.fit((batch for batch in [(x[:8], y[:8])] * 3 * (1 - rank)), verbose=0)
        elif kind == "fails":
            return model.fit(((x[:8], y[: 8 // (1 - rank)]) for _ in range(3)), verbose=0)
        model.fit(x, y, verbose=0)

    texts = {"rows": "differs between ranks: rank 0 has with 100 rows", "order": "ends .*, rank 1 has", "spec": "has elements",
             "empty": "at least one batch", "fails": "division"}  # fmt: skip
    for kind, text in texts.items():
        with pytest.raises(pydist.testing.RankFailed, match=text):
            ranks(2, work, kind, timeout=20)


# Parameter servers.


@contextlib.contextmanager
def servers(partitioner=None):
    """(strategy, its ClusterCoordinator, {(job, index): Server}) of two workers and two servers."""
    spec = runner.create_cluster_spec(workers=2, ps=2)
    tasks = {(job, i): distribute.Server(spec, job, i) for job in ("worker", "ps") for i in range(2)}
    strategy = distribute.ParameterServerStrategy(SimpleClusterResolver(spec), partitioner)
    try:
        yield strategy, distribute.coordinator.ClusterCoordinator(strategy), tasks
    finally:
        for task in tasks.values():
            task.stop()


def test_parameter_servers_train():
    """The loop of TensorFlow's tutorial: sharded variables, steps that workers make at the same time, metrics that lose
    nothing, layers with losses of their own."""
    x, y = data(640)
    with servers(partitioners.FixedShardsPartitioner(2)) as (strategy, coordinator, tasks):
        with strategy.scope():
            hidden = layers.Dense(16, "relu", kernel_initializer=seed(1), activity_regularizer="l2")
            parts = [
                keras.Input((12,)),
                hidden,
                layers.BatchNormalization(),
                layers.Dense(4, kernel_initializer=seed(2)),
            ]
            model, optimizer = keras.Sequential(parts), keras.optimizers.Adam(3e-3)
            accuracy, each_loss = (
                metrics.SparseCategoricalAccuracy(),
                losses.SparseCategoricalCrossentropy(True, None, "none"),
            )
        assert strategy.placement(hidden.kernel) == [(0, 0, 6), (1, 6, 12)]

        def dataset_fn(context):
            return Dataset.from_tensor_slices((x, y)).shard(2, context.input_pipeline_id).batch(32).repeat()

        def step(iterator):
            def replica(rows, labels):
                logits = model(rows, training=True)
                loss = distribute.compute_average_loss(each_loss(labels, logits)) + sum(model.losses) / 32
                values = [v.value for v in model.trainable_variables]
                grads = pydist.autograd.grad(loss, values)
                optimizer.apply_gradients(list(zip(grads, model.trainable_variables)))
                accuracy.update_state(labels, logits)
                return loss.detach()

            return strategy.reduce("SUM", strategy.run(replica, next(iterator)), axis=None)

        iterator = iter(
            coordinator.create_per_worker_dataset(lambda: strategy.distribute_datasets_from_function(dataset_fn))
        )
        for _ in range(12):
            accuracy.reset_state()
            for _ in range(20):
                coordinator.schedule(step, (iterator,))
            coordinator.join()
            assert accuracy.count.numpy() == 640
        assert float(accuracy.result()) > 0.85 and optimizer.iterations.numpy() == 240
        assert coordinator.schedule(step, (iterator,)).fetch() < 0.7
        assert abs(model.layers[1].moving_mean.numpy()).max() > 0
        with pytest.raises(
            NotImplementedError, match="fit: ParameterServerStrategy has no steps that all workers make"
        ):
            compiled(model).fit(x, y)
        tasks["ps", 1].stop()
        coordinator.schedule(step, (iterator,))
        with pytest.raises(pydist.PeerFailed, match=r"ps 1 \(127.0.0.1:\d+\) is gone"):
            coordinator.join()


def test_assignments_of_closures():
    with servers(partitioners.MinSizePartitioner(8, 2)) as (strategy, coordinator, _):
        with strategy.scope():
            table = keras.Variable(np.zeros((5, 2), "float32"))
            count = keras.Variable(0.0, trainable=False, aggregation="sum")
            last = keras.Variable(0, dtype="int32", trainable=False)

        def work(i):
            count.assign_add(1.0)
            last.assign(i)
            table.assign(table + 0 * i)
            return float(count.value)

        assert (
            coordinator.fetch([coordinator.schedule(work, (i,)) for i in range(10)]) == [1.0] * 10
        )  # a worker's own part
        coordinator.join()
        assert float(count.value) == 10 and 0 <= int(last.value) < 10
        coordinator.schedule(lambda: table.assign(keras.ops.ones((5, 2)))).get()
        assert table.numpy().sum() == 10 and strategy.placement(table) == [(0, 0, 2), (1, 2, 5)]


def test_tensorboard(tmp_path):
    """Without TensorFlow; on ranks rank 0 writes."""
    x, y = data(200)

    def work(strategy, folder):
        with scope(strategy):
            model = mlp()
        board = keras.callbacks.TensorBoard(folder, histogram_freq=1, write_images=True, update_freq=2)
        model.fit(x, y, 50, epochs=2, verbose=0, validation_data=(x, y), callbacks=[board])

    work(None, tmp_path / "alone")
    ranks(2, lambda rank: work(MirroredStrategy(), tmp_path / f"rank{rank}"))
    tags = {}
    for folder in ("alone", "rank0"):
        files = sorted((tmp_path / folder).glob("*/events*"))
        assert [file.parent.name for file in files] == ["train", "validation"]
        tags[folder] = [file.read_bytes() for file in files]
        for name in (b"epoch_loss", b"epoch_accuracy"):
            assert all(name in content for content in tags[folder])
        train, validation = tags[folder]
        for name in (
            b"batch_loss",
            b"epoch_learning_rate",
            b"/kernel/histogram",
            b"/kernel/image",
            b"graph_keras_model",
        ):
            assert name in train
        assert b"evaluation_loss_vs_iterations" in validation
        assert train.count(b"batch_loss") == 4  # every second one of 8
    assert not (tmp_path / "rank1").exists()


# Logical shards.


@pytest.mark.parametrize("shares", ["even", "measured"])
def test_logical_shards_have_one_result(shares):
    """fit, evaluate and predict give the same bits on any number of devices and ranks, also where a batch has fewer rows
    than there are shards; so do a shuffle, dropout, batch norm, masks' sums over all shards, and data sets of all kinds."""

    def work(strategy):
        pydist.manual_seed(7)
        x, y = data(131)
        with strategy.scope():
            parts = [
                layers.Dense(8, kernel_initializer=seed(1), kernel_regularizer="l2"),
                layers.BatchNormalization(),
                layers.Dropout(0.3),
                layers.Dropout(0.1, seed=2),
            ]
            model = keras.Sequential([keras.Input((12,)), *parts, layers.Dense(4, kernel_initializer=seed(2))])
            compiled(model, weighted_metrics=["accuracy"])
        assert strategy.num_replicas_in_sync == 4
        logs = [model.fit(x, y, 32, epochs=2, verbose=0, validation_data=(x, y)).history]
        weights = np.linspace(0, 1, 131)
        logs += [model.evaluate(x, y, 32, verbose=0, sample_weight=weights), model.train_on_batch(x[:2], y[:2])]
        batches = Dataset.from_tensor_slices((x, y)).shuffle(131, seed=1).batch(50)
        logs += [model.fit(batches, verbose=0).history]
        loader = DataLoader(TensorDataset(pydist.tensor(x), pydist.tensor(y)), batch_size=40, shuffle=True)
        logs += [model.fit(loader, verbose=0).history, model.predict(x, 32, verbose=0)]
        return logs, model.get_weights(), [v.numpy() for v in model.optimizer.variables]

    found = [work(MirroredStrategy(cpus(1), shards=4)), work(MirroredStrategy(cpus(2), shards=4))]
    for count in (2, 3, 4) if shares == "even" else (2,):
        found += ranks(count, lambda rank: work(MirroredStrategy(shards=4, shares=shares)), timeout=120)
    assert all(same(one, found[0]) for one in found[1:])


def test_a_run_with_logical_shards_goes_on_with_another_number_of_ranks(tmp_path):
    def work(strategy, name, at=100):
        pydist.set_rng_state((7, 0, 0))
        x, y = data(300)
        with strategy.scope():
            parts = [
                layers.Dense(8, kernel_initializer=seed(1)),
                layers.BatchNormalization(),
                layers.Dropout(0.3),
            ]
            model = keras.Sequential([keras.Input((12,)), *parts, layers.Dense(4, kernel_initializer=seed(2))])
            compiled(model)
        callbacks = [keras.callbacks.BackupAndRestore(tmp_path / name, save_freq=3, delete_checkpoint=False)]
        interrupt = _Interrupt(at)
        try:
            model.fit(x, y, BATCH, epochs=3, verbose=0, callbacks=[*callbacks, interrupt])
        except InterruptedError:
            return None
        return at - interrupt.left, model.get_weights(), [v.numpy() for v in model.optimizer.variables]

    steps, *whole = work(MirroredStrategy(shards=4), "whole")
    assert ranks(2, lambda rank: work(MirroredStrategy(shards=4), "parts", at=5)) == [None, None]
    assert ranks(3, lambda rank: work(MirroredStrategy(shards=4), "parts", at=7)) == [None] * 3
    rest, *parts = work(MirroredStrategy(cpus(2), shards=4), "parts")
    assert steps == 15 and rest < 12 and same(parts, whole)  # the first run had a backup after 3 steps


def test_a_loader_of_one_rank_is_refused_with_logical_shards():
    def work(rank):
        x, y = data(64)
        with MirroredStrategy(shards=4).scope():
            model = mlp()
        rows = TensorDataset(pydist.tensor(x), pydist.tensor(y))
        model.fit(DataLoader(rows, batch_size=8, sampler=DistributedSampler(rows)), verbose=0)

    with pytest.raises(pydist.testing.RankFailed, match="a loader with a DistributedSampler under a strategy with"):
        ranks(2, work)
