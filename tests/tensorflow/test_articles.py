"""Programs of the kind that articles about distributed training print: on one process, on two ranks of the launcher, and
as two TF_CONFIG workers."""

import json
import re
import socket
import subprocess
import sys

import pytest

from lib import processes
from lib.package import installed

pytestmark = pytest.mark.skipif(not installed("keras"), reason="no keras (pip install '.[keras]')")

MIRRORED = """
import tensorflow as tf

tf.keras.utils.set_random_seed(0)
strategy = tf.distribute.MirroredStrategy()
print("Number of devices:", strategy.num_replicas_in_sync)
with strategy.scope():
    model = tf.keras.models.Sequential(
        [
            tf.keras.layers.Dense(64, activation="relu", input_shape=(784,)),
            tf.keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
(x_train, y_train), (x_test, y_test) = tf.keras.datasets.mnist.load_data()
x_train, x_test = x_train.reshape(-1, 784) / 255.0, x_test.reshape(-1, 784) / 255.0
model.fit(x_train, y_train, epochs=5, validation_data=(x_test, y_test), verbose=2)
"""

WORKERS = """
import tensorflow as tf


def create_model():
    return tf.keras.Sequential(
        [
            tf.keras.layers.Dense(128, activation="relu", input_shape=(784,)),
            tf.keras.layers.Dense(10, activation="softmax"),
        ]
    )


tf.keras.utils.set_random_seed(0)
strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()
print("Number of devices:", strategy.num_replicas_in_sync)
with strategy.scope():
    model = create_model()
    model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
(x, y), _ = tf.keras.datasets.mnist.load_data()
x = x[:12800].reshape(-1, 784) / 255.0
data = tf.data.Dataset.from_tensor_slices((x.astype("float32"), y[:12800])).shuffle(12800).batch(64)
history = model.fit(data, epochs=10, verbose=0).history
print(f"accuracy: {history['accuracy'][-1]:.6f}, loss: {history['loss'][-1]:.6f}")
"""

ALONE = ("-m", "pydist.compat")
RANKS = ("-m", "pydist.run", "--compat", "--nproc-per-node", 2)


def addresses(count):
    """Addresses of this machine that nobody listens at."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    found = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    return found


def started(command, program, **env):
    return subprocess.Popen(
        [sys.executable, *map(str, command), program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=processes.environment(OMP_NUM_THREADS="1", **env),
    )  # fmt: skip


def outputs(running, timeout=500):
    """[(exit status, stdout, stderr)] of processes. None of them is left."""
    try:
        texts = [process.communicate(timeout=processes.within(timeout)) for process in running]
    finally:
        for process in running:
            process.kill()
    return [(process.returncode, *text) for process, text in zip(running, texts)]


@pytest.fixture
def program(tmp_path, data_folder, monkeypatch):
    """A function from a text to the path of a program that has MNIST."""
    monkeypatch.setenv("PYDIST_DATA", str(data_folder("mnist").parent))

    def written(text):
        path = tmp_path / "train.py"
        path.write_text(text)
        return path

    return written


def accuracies(out, name):
    return [float(found) for found in re.findall(rf"\b{name}: ([0-9.]+)", out)]


@pytest.mark.slow
def test_mirrored(program):
    [(status, out, err)] = outputs([started(RANKS, program(MIRRORED))])
    assert status == 0, err
    assert out.count("Number of devices: 2") == 2
    found = accuracies(out, "val_accuracy")
    assert len(found) == 5 and found[-1] >= 0.965  # 0.970 and more with most seeds


@pytest.mark.slow
@pytest.mark.parametrize("how", ["one process", "two ranks", "two workers"])
def test_multi_worker(how, program):
    path = program(WORKERS)
    if how == "two workers":
        cluster = {"worker": addresses(2)}
        tasks = [json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}}) for index in (0, 1)]
        running = [started(ALONE, path, TF_CONFIG=task) for task in tasks]
    else:
        running = [started(ALONE if how == "one process" else RANKS, path)]
    done = outputs(running)
    assert [status for status, _, _ in done] == [0] * len(done), done
    found = [accuracies(out, "accuracy") + accuracies(out, "loss") for _, out, _ in done]
    assert found[0][0] >= 0.98 and found == [found[0]] * len(done)
    assert all(f"Number of devices: {1 if how == 'one process' else 2}" in out for _, out, _ in done)


@pytest.mark.slow
def test_images_of_another_shape_are_an_error_of_fit(program):
    path = program(MIRRORED.replace(".reshape(-1, 784)", ""))
    [(status, out, err)] = outputs([started(ALONE, path)])
    assert status == 1 and out == "Number of devices: 1\n"
    assert "ValueError" in err and "28, 28)" in err and 'train.py", line 17' in err, err
