"""Replayed steps of fit, evaluate and predict give the bits of Python. test_keras.py runs this file in a process of its own."""

import contextlib

import numpy as np
import pytest

import pydist
from lib.ranks import LONG
from pydist import keras
from pydist.distribute import MirroredStrategy
from pydist.testing import run_ranks

layers = keras.layers
keras.random.uniform((1,))  # makes Keras' own seed, which stays
BATCH, CLASSES = 8, 4


def seed(number):
    return keras.initializers.GlorotUniform(number)  # ranks in threads share Python's random numbers


def dense(units, number, activation=None):
    return layers.Dense(units, activation, kernel_initializer=seed(number))


def conv(filters, number, stride=1):
    return layers.Conv2D(filters, 3, stride, padding="same", use_bias=False, kernel_initializer=seed(number))


def mlp():
    x = keras.Input((20,))
    y = layers.Dropout(0.2)(dense(16, 1, "relu")(x))
    return keras.Model(x, dense(CLASSES, 2)(y)), keras.optimizers.Adam(1e-2)


def convnet():
    """Also with a layer that has a seed, and draws from a generator of its own."""
    x = keras.Input((8, 8, 3))
    y = layers.MaxPooling2D(2)(layers.ReLU()(conv(6, 1)(x)))
    y = layers.Dropout(0.2, seed=3)(layers.SpatialDropout2D(0.2, seed=2)(conv(4, 2)(y)))
    y = layers.GaussianNoise(0.1, seed=4)(layers.Flatten()(y))
    rate = keras.optimizers.schedules.ExponentialDecay(1e-2, 10, 0.9)
    return keras.Model(x, dense(CLASSES, 3)(y)), keras.optimizers.SGD(rate, momentum=0.9, nesterov=True)


def resnet20():
    x = keras.Input((8, 8, 3))
    y, number = conv(4, 1)(x), 2
    for width in [4] * 3 + [8] * 3 + [12] * 3:
        stride = 1 + (y.shape[-1] != width)
        z = layers.ReLU()(layers.BatchNormalization()(conv(width, number, stride)(y)))
        z = layers.BatchNormalization()(conv(width, number + 1)(z))
        y = layers.ReLU()(layers.Add()([z, conv(width, number + 2, stride)(y) if stride > 1 else y]))
        number += 3
    return keras.Model(x, dense(CLASSES, number)(layers.GlobalAveragePooling2D()(y))), keras.optimizers.RMSprop(1e-3)


def lstm():
    x = keras.Input((7,), dtype="int32")
    y = layers.Embedding(30, 8, embeddings_initializer=seed(1))(x)
    y = layers.LSTM(12, kernel_initializer=seed(2), recurrent_initializer=seed(3))(y)
    return keras.Model(x, dense(CLASSES, 4)(y)), keras.optimizers.AdamW(1e-2, clipnorm=0.5)


def transformer():
    x = keras.Input((6,), dtype="int32")
    y = layers.Embedding(30, 16, embeddings_initializer=seed(1))(x)
    z = layers.MultiHeadAttention(2, 8, dropout=0.1, kernel_initializer=seed(2))(y, y)
    y = layers.LayerNormalization()(y + z)
    z = dense(16, 4)(layers.Dropout(0.1)(dense(32, 3, "gelu")(y)))
    y = layers.LayerNormalization()(y + z)
    return keras.Model(x, dense(CLASSES, 5)(layers.GlobalAveragePooling1D()(y))), keras.optimizers.Nadam(1e-3)


def compiled(model, optimizer, **options):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], **options)
    return model


def rows(model, count):
    numbers, shape = np.random.default_rng(0), (count, *model.input_shape[1:])
    whole = model.inputs[0].dtype == "int32"
    x = numbers.integers(0, 30, shape).astype("int32") if whole else numbers.standard_normal(shape).astype("float32")
    return x, numbers.integers(0, CLASSES, count)


def states(model):
    functions = model.train_function, model.test_function, model.predict_function
    return [getattr(function.step, "state", "eager") for function in functions]


def results(make, steps, strategy=None, **options):
    """(all that fit, evaluate and predict give, how their steps ran). The last batch of an epoch is smaller."""
    pydist.manual_seed(7)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        model = compiled(*make(), **options)
    x, y = rows(model, BATCH * (steps // 4) - 3)
    history = model.fit(x, y, batch_size=BATCH, epochs=4, verbose=0, shuffle=False).history
    found = history, model.get_weights(), model.evaluate(x, y, BATCH, verbose=0), model.predict(x, BATCH, verbose=0)
    return [np.asarray(leaf).tobytes() for leaf in keras.tree.flatten(found)], states(model)


SHORT = [pytest.param(mlp, 20), pytest.param(convnet, 20)]
STEPS = 200 if LONG else 60
ALL = [pytest.param(make, STEPS, marks=pytest.mark.slow) for make in (mlp, convnet, resnet20, lstm, transformer)]


@pytest.mark.parametrize("make, steps", [*SHORT, *ALL])
def test_bits_of_python(make, steps):
    found, how = results(make, steps)
    assert how == ["replayed"] * 3
    assert found == results(make, steps, run_eagerly=True)[0]


# Ranks in threads record in turns, so each needs more steps until it replays.
@pytest.mark.parametrize("make, steps", [pytest.param(mlp, 60), *ALL])
def test_bits_of_python_on_two_ranks(make, steps):
    found = [run_ranks(2, lambda rank, eager=eager: results(make, steps, MirroredStrategy(), run_eagerly=eager), timeout=300)
             for eager in (False, True)]  # fmt: skip
    assert [how for _, how in found[0]] == [["replayed"] * 3] * 2
    assert [bits for bits, _ in found[0]] == [bits for bits, _ in found[1]]


def test_shares_of_a_batch_are_not_mixed_up():
    """Batches of which a rank has equally many rows count differently where the other rank has more."""

    def work(rank, eager):
        with MirroredStrategy().scope():
            model = compiled(*mlp(), run_eagerly=eager)
        x, y = rows(model, 15)
        for count in [
            14,
            14,
            14,
            15,
            15,
            15,
            14,
            15,
        ] * 6:  # rank 0 has seven rows of each; ranks in threads record in turns
            loss = model.train_on_batch(x[:count], y[:count])
        return float(loss[0]), [w.tobytes() for w in model.get_weights()], model.train_function.step

    pydist.manual_seed(0)
    replayed = run_ranks(2, lambda rank: work(rank, False))
    pydist.manual_seed(0)
    eager = run_ranks(2, lambda rank: work(rank, True))
    assert [r[2].state for r in replayed] == ["replayed"] * 2
    assert [r[:2] for r in replayed] == [r[:2] for r in eager]


def test_replicas_in_threads_and_steps_of_the_program_run_as_python():
    class Mine(keras.Model):
        def train_step(self, data):
            return super().train_step(data)

    for make, devices in ((mlp, 2), (lambda: (Mine(*io(mlp()[0])), "adam"), None)):
        strategy = MirroredStrategy([f"CPU:{i}" for i in range(devices)]) if devices else None
        with contextlib.nullcontext() if strategy is None else strategy.scope():
            model = compiled(*make())
        x, y = rows(model, 40)
        model.fit(x, y, batch_size=BATCH, verbose=0)
        state = getattr(model.train_function.step, "state", "eager")
        assert state == ("replayed" if strategy is None else "eager")


def io(model):
    return model.inputs, model.outputs


def test_a_step_that_reads_the_host_stays_eager():
    def loss(t, y):
        return ((y - 1) ** 2).mean() * (1.0 if float(y.detach().sum()) > 0 else 2.0)

    model = keras.Sequential([keras.Input((20,)), dense(4, 1)])
    model.compile("sgd", loss)
    x, y = rows(model, 64)
    model.fit(x, y, batch_size=BATCH, verbose=0, epochs=2)
    assert "item() reads values of a tensor" in model.train_function.step.state


def test_what_a_step_depends_on_is_watched():
    """Rates, frozen layers, other optimizers, policies, new layers and arrays in place of tensors, in the middle of a training."""

    def work(eager):
        pydist.manual_seed(3)
        model = keras.Sequential([keras.Input((20,)), dense(16, 1, "relu"), layers.Dropout(0.2), dense(CLASSES, 2)])
        compiled(model, keras.optimizers.Adam(1e-2), run_eagerly=eager)
        (x, y), found, replayed = rows(model, BATCH), [], []

        def some():
            found.append([model.train_on_batch(x, y) for _ in range(5)])
            replayed.append(getattr(model.train_function.step, "state", "eager"))

        some()
        model.optimizer.learning_rate = 1e-3
        some()
        model.layers[0].trainable = False
        some()
        model.layers[0].trainable = True
        model.layers[1].rate = 0.5
        some()
        model.optimizer = keras.optimizers.SGD(1e-2)
        some()
        model.layers[0].dtype_policy = "mixed_bfloat16"
        some()
        found.append([w.tobytes() for w in model.get_weights()])
        return found, replayed

    found, replayed = work(False)
    assert replayed == ["replayed"] * 6 and found == work(True)[0]


def test_random_numbers_go_on_where_a_step_was_repeated():
    """A model that draws more in training than in evaluation gives the same numbers afterwards, replayed or not."""

    def work(eager):
        pydist.manual_seed(1)
        model = compiled(*convnet(), run_eagerly=eager)
        x, y = rows(model, 40)
        model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0, validation_data=(x, y), shuffle=True)
        return pydist.rand(4).tolist(), [w.tobytes() for w in model.get_weights()]

    assert work(False) == work(True)
