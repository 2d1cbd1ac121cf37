"""Accuracies that Keras' and TensorFlow's documents publish, over pydist."""

import os
import subprocess
import sys

import pytest

from lib.package import installed
from lib.processes import within

pytestmark = [
    pytest.mark.skipif(not installed("keras"), reason="no keras (pip install '.[keras]')"),
    pytest.mark.skipif("FULL_LONG" not in os.environ, reason="takes long: .ci/full runs it"),
]

MLP = """
(x, y), test = keras.datasets.mnist.load_data()
model = keras.Sequential([layers.Rescaling(1 / 255), layers.Flatten(), layers.Dense(512, "relu"), layers.Dropout(0.2),
                          layers.Dense(512, "relu"), layers.Dropout(0.2), layers.Dense(10, "softmax")])
model.compile("rmsprop", "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(x, y, 128, epochs=20, verbose=0)
print(model.evaluate(*test, verbose=0)[1])
"""
CONVNET = """
(x, y), test = keras.datasets.mnist.load_data()
model = keras.Sequential([layers.Input((28, 28)), layers.Rescaling(1 / 255), layers.Reshape((28, 28, 1)),
                          layers.Conv2D(32, 3, activation="relu"), layers.MaxPooling2D(),
                          layers.Conv2D(64, 3, activation="relu"), layers.MaxPooling2D(),
                          layers.Flatten(), layers.Dropout(0.5), layers.Dense(10, "softmax")])
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(x, y, 128, epochs=15, verbose=0, validation_split=0.1)
print(model.evaluate(*test, verbose=0)[1])
"""
FASHION = """
(x, y), test = keras.datasets.fashion_mnist.load_data()
model = keras.Sequential([layers.Flatten(), layers.Dense(128, "relu"), layers.Dense(10)])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
print(model.fit(x / 255.0, y, epochs=10, verbose=0).history["accuracy"][-1])
"""


@pytest.mark.parametrize(
    "folder, program, lowest, highest",
    [("mnist", MLP, 0.982, 0.986), ("mnist", CONVNET, 0.99, 1), ("fashion-mnist", FASHION, 0.905, 1)],
    ids=["mnist_mlp", "mnist_convnet", "fashion_mlp"],
)
def test_published_accuracy(data_folder, folder, program, lowest, highest):
    code = f"from pydist import keras\nfrom keras import layers\nkeras.utils.set_random_seed(0)\n{program}"
    env = {**os.environ, "PYDIST_DATA": str(data_folder(folder).parent)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=within(3000))
    assert done.returncode == 0 and lowest <= float(done.stdout.split()[-1]) <= highest, done.stdout + done.stderr
