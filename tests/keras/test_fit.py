"""Keras' fit on several replicas. Keras runs in a process of its own: in this one, PyTorch itself may be imported already."""

import subprocess
import sys
from pathlib import Path

import pytest

from lib.package import installed
from lib.processes import SLOW, environment, launch, within

pytestmark = pytest.mark.skipif(not installed("keras"), reason="no keras (pip install '.[keras]')")


@pytest.mark.parametrize("marks", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_in_its_own_process(marks):
    file = Path(__file__).with_name("fit_replicas.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", marks, file]
    done = subprocess.run(command, capture_output=True, text=True, timeout=within(300))
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout + done.stderr


PROGRAM = """
import sys
import numpy as np
from pydist import distribute, keras

x = np.random.default_rng(0).standard_normal((100, 8)).astype("float32")
y = x[:, :3].argmax(1)
with distribute.MirroredStrategy().scope():
    model = keras.Sequential([keras.layers.Dense(16, activation="relu"), keras.layers.Dense(3)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
history = model.fit(x, y, batch_size=32, epochs=2, verbose=2, callbacks=[keras.callbacks.EarlyStopping("loss", verbose=1)])
print("losses", history.history["loss"], model.predict(x, verbose=0).sum(), flush=True)
"""


def test_ranks_of_the_launcher(tmp_path):
    """The model is built in fit, nobody has set a seed, and rank 0 alone prints epochs."""
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    code, out, err, _ = launch("--nproc-per-node", 2, script, timeout=within(120))
    lines = [line.partition("] ")[2] for line in out.splitlines()]  # without the rank
    losses = [line for line in lines if line.startswith("losses")]
    assert code == 0 and len(losses) == 2 and losses[0] == losses[1], out + err
    assert lines.count("Epoch 1/2") == lines.count("Epoch 2/2") == 1 and not err, out + err


def test_a_program_without_a_strategy_hears_of_it(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(PROGRAM.replace("with distribute.MirroredStrategy().scope():", "if True:"))
    code, _, err, _ = launch("--nproc-per-node", 2, script, timeout=within(120), env=environment())
    assert code == 0 and "fit: each of 2 ranks trains a model of its own (expected the model in `with " in err


TUTORIAL = """
import sys
import numpy as np
import tensorflow as tf

x = np.random.default_rng(0).standard_normal((200, 6, 6, 1)).astype("float32")
y = (x[:, :3, :, 0].sum((1, 2)) > 0).astype("int64")
strategy = tf.distribute.MirroredStrategy(sys.argv[1:] or None)
dataset = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices((x, y)).batch(64))
tf.keras.utils.set_random_seed(0)
with strategy.scope():
    regularizer = tf.keras.regularizers.L2(1e-3)
    model = tf.keras.Sequential([
        tf.keras.layers.Input(shape=(6, 6, 1)),
        tf.keras.layers.Conv2D(4, 3, activation="relu", kernel_regularizer=regularizer),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(10, kernel_regularizer=regularizer),
    ])
    optimizer = tf.keras.optimizers.Adam(0.01)
    loss_object = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    accuracy = tf.keras.metrics.SparseCategoricalAccuracy()
    steps = tf.Variable(0, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)


def train_step(inputs):
    images, labels = inputs
    with tf.GradientTape() as tape:
        predictions = model(images, training=True)
        loss = tf.nn.compute_average_loss(loss_object(labels, predictions))
        loss += tf.nn.scale_regularization_loss(tf.add_n(model.losses))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    accuracy.update_state(labels, predictions)
    steps.assign_add(1)
    return loss


@tf.function
def distributed_train_step(inputs):
    losses = strategy.run(train_step, args=(inputs,))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)


for epoch in range(2):
    for inputs in dataset:
        loss = distributed_train_step(inputs)
    print(f"{strategy.num_replicas_in_sync} {loss.numpy():.4f} {accuracy.result().numpy():.4f} {steps.numpy()}", flush=True)
"""


GARBAGE = """
import gc
import numpy as np
from pydist import distribute, keras
from pydist import distributed as dist

gc.disable()
strategy = distribute.MirroredStrategy()
x = np.random.default_rng(0).standard_normal((64, 12)).astype("float32")
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class Collect(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == dist.get_rank():
            gc.collect()


for _ in range(3):
    keras.utils.set_random_seed(0)
    with strategy.scope():
        layers = keras.layers.Dense(8), keras.layers.BatchNormalization(), keras.layers.Dense(4)
        model = keras.Sequential([keras.Input((12,)), *layers])
        model.compile("adam", loss, metrics=["accuracy"])
    print(model.fit(x, np.argmax(x[:, :4], 1), batch_size=16, epochs=2, verbose=0, callbacks=[Collect()]).history)
    if dist.get_rank() == 1:
        gc.collect()
"""


def test_ranks_collect_garbage_at_different_times(tmp_path):
    """An old model goes on one rank before another: between two fits, and in the middle of one."""
    script = tmp_path / "train.py"
    script.write_text(GARBAGE)
    code, out, err, _ = launch("--nproc-per-node", 2, "--fold", "off", script, timeout=within(60))
    assert code == 0, err
    said = [line[4:] for line in out.splitlines()]
    assert len(said) == 6 and len(set(said)) == 1, said


@pytest.mark.slow
def test_the_loop_of_tensorflows_tutorial(tmp_path):
    """As it is: on one replica, on two in threads, and on two ranks."""
    script = tmp_path / "train.py"
    script.write_text(TUTORIAL)

    def alone(*args):
        command = [sys.executable, "-m", "pydist.compat", script, *args]
        done = subprocess.run(command, capture_output=True, text=True, timeout=within(120), env=environment())
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    expected, threads = alone(), alone("CPU:0", "CPU:1")
    code, out, err, _ = launch("--compat", "--nproc-per-node", 2, "--fold", "off", script, timeout=within(120))
    assert code == 0, err
    for lines in (threads, *([line[4:] for line in out.splitlines() if line.startswith(f"[{r}]")] for r in (0, 1))):
        assert [line[1:] for line in lines] == [line[1:] for line in expected], (lines, expected)


@pytest.mark.slow
def test_one_sha_of_logical_shards():
    """Four logical shards on 1, 2 and 4 replicas of a process, 1, 2 and 4 ranks, 2 workers of TF_CONFIG, and 2 ranks of which
    one takes twice the time and gives shards away."""
    file = Path(__file__).with_name("shard_worlds.py")
    outputs = [
        subprocess.run([sys.executable, file, *args], capture_output=True, text=True, timeout=within(200))
        for args in (("1", "2", "4"), ("workers",))
    ]
    assert all(done.returncode == 0 for done in outputs), outputs
    lines = [line for done in outputs for line in done.stdout.splitlines()]
    for world, how in ((1, "ranks"), (2, "ranks"), (4, "ranks"), (2, "slowed")):
        code, out, err, _ = launch("--nproc-per-node", world, file, how, timeout=within(200))
        assert code == 0, out + err
        said = [line[line.find("]") + 1 :].strip() for line in out.splitlines()]  # without the rank
        lines += [line for line in said if line.startswith(("mlp", "convnet"))]
    assert len(lines) == 2 * (3 + 2 + 1 + 2 + 4 + 2) and len(set(lines)) == 2, lines
    speed = float(said[-1].split()[1])
    assert said[-1].endswith("of the best split's") and speed >= 0.9 / SLOW, said
