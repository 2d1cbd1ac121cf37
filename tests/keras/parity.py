"""Losses of the first 50 steps of five models: `python parity.py torch|pydist FOLDER [MODEL ...]`. test_parity.py runs it twice.

With PyTorch the program writes each model's first weights into the folder, with pydist it reads them there (for nets of
convolutions also those of every second step). Nothing is drawn at random but data, by NumPy. Losses go to FOLDER/torch.json or
FOLDER/pydist.json: {"model optimizer dtype": [loss, ...]}.
"""

import itertools
import json
import os
import sys
from pathlib import Path

import numpy as np

STEPS = 50
side, folder, only = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
if side == "pydist":
    from pydist import keras
else:
    os.environ["KERAS_BACKEND"] = "torch"
    import keras
    from keras.src.backend.common import dtypes

    dtypes.BIT64_TO_BIT32_DTYPE["float64"] = "float64"  # Keras over PyTorch computes sums of float64 in float32
from keras import layers

rng = np.random.default_rng()


def _classes(rows, size):
    """Images and classes that can be learned."""
    x = rng.normal(size=(rows, *size))
    return x, x.reshape(rows, -1)[:, :10].argmax(1)


def mlp():
    x, y = _classes(32 * STEPS, (64,))
    return keras.Sequential([layers.Input(x.shape[1:]), layers.Dense(128, "relu"), layers.Dense(10, "softmax")]), x, y


def convnet():
    x, y = _classes(16 * STEPS, (14, 14, 1))
    model = keras.Sequential([layers.Input(x.shape[1:])])
    for filters in (16, 32):
        model.add(layers.Conv2D(filters, 3, padding="same", activation="relu"))
        model.add(layers.MaxPooling2D(2))
    for layer in (layers.Flatten(), layers.Dense(10, "softmax")):
        model.add(layer)
    return model, x, y


def resnet20():
    images, y = _classes(16 * STEPS, (16, 16, 3))

    def normed(x, filters, stride=1, size=3):
        x = layers.Conv2D(filters, size, stride, padding="same", use_bias=False)(x)
        return layers.BatchNormalization()(x)

    inputs = layers.Input(images.shape[1:])
    x = layers.ReLU()(normed(inputs, 16))
    for filters, stride in ((16, 1), (16, 1), (16, 1), (32, 2), (32, 1), (32, 1), (64, 2), (64, 1), (64, 1)):
        out = normed(layers.ReLU()(normed(x, filters, stride)), filters)
        x = layers.ReLU()(out + (x if x.shape == out.shape else normed(x, filters, stride, 1)))
    outputs = layers.Dense(10, "softmax")(layers.GlobalAveragePooling2D()(x))
    return keras.Model(inputs, outputs), images, y


def _words():
    words = rng.integers(1, 50, size=(16 * STEPS, 20))
    return words, words[:, 0] % 10


def lstm():
    x, y = _words()
    return (
        keras.Sequential(
            [
                layers.Input(x.shape[1:], dtype="int32"),
                layers.Embedding(50, 16),
                layers.LSTM(32),
                layers.Dense(10, "softmax"),
            ]
        ),
        x,
        y,
    )


def transformer():
    words, y = _words()
    inputs = layers.Input(words.shape[1:], dtype="int32")
    places = keras.ops.cumsum(keras.ops.ones_like(inputs), axis=1) - 1
    x = layers.Embedding(50, 32)(inputs) + layers.Embedding(words.shape[1], 32)(places)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 16)(x, x))
    x = layers.LayerNormalization()(x + layers.Dense(32)(layers.Dense(64, "gelu")(x)))
    outputs = layers.Dense(10, "softmax")(layers.GlobalAveragePooling1D()(x))
    return keras.Model(inputs, outputs), words, y


# the model, and its part of Keras' default rates: a deep net at those turns differences of 1e-7 into 1e-1 within 50 steps
MODELS = {mlp: 1, convnet: 1, resnet20: 0.1, lstm: 1, transformer: 1}
# In float32, rounding decides on which side of zero some input of a ReLU lies, or which element is a pool's largest, and losses
# part: in ResNet-20 within a few steps, in the convnet in some environments. Every second step pydist's side goes on from the
# variables that PyTorch's side had, which are in the folder.
TAKEN_OVER = {("convnet", "float32"), ("resnet20", "float32")}
OPTIMIZERS = {
    "momentum": lambda part: keras.optimizers.SGD(0.01 * part, momentum=0.9),
    "adam": lambda part: keras.optimizers.Adam(0.001 * part),
    "rmsprop": lambda part: keras.optimizers.RMSprop(0.001 * part),
}


class Losses(keras.callbacks.Callback):
    """The loss of each step. Keras' logs have the mean since the last reset."""

    def __init__(self, taken_over):
        """taken_over: None, or a prefix of names of files, one for every second step."""
        super().__init__()
        self.of_steps, self.taken_over = [], taken_over

    def on_train_batch_begin(self, batch, logs=None):
        self.model.reset_metrics()
        if self.taken_over and batch and batch % 2 == 0:
            self._take_over(Path(f"{self.taken_over}.{batch}.npz"))

    def _take_over(self, file):
        variables = [*self.model.variables, *self.model.optimizer.variables]
        if side == "torch":
            np.savez(file, *[keras.ops.convert_to_numpy(variable) for variable in variables])
            return
        with np.load(file) as values:
            assert len(values.files) == len(variables)
            for variable, name in zip(variables, values.files):
                assert variable.shape == values[name].shape
                variable.assign(values[name])

    def on_train_batch_end(self, batch, logs=None):
        self.of_steps.append(float(logs["loss"]))


found = {}
for dtype, (make, part) in itertools.product(("float32", "float64"), MODELS.items()):
    if only and make.__name__ not in only:
        continue
    keras.config.set_floatx(dtype)
    keras.config.set_dtype_policy(dtype)
    rng = np.random.default_rng(0)
    first, x, y = make()
    x = x.astype(dtype) if x.dtype.kind == "f" else x.astype("int32")
    weights = folder / f"{make.__name__}.{dtype}.weights.h5"
    if side == "torch":
        first.save_weights(weights)
    for name, optimizer in OPTIMIZERS.items():
        is_taken = (make.__name__, dtype) in TAKEN_OVER
        model = keras.models.clone_model(first)
        losses = Losses(folder / f"{make.__name__}.{name}" if is_taken else None)
        model.load_weights(weights)
        model.compile(optimizer(part), "sparse_categorical_crossentropy")
        model.fit(x, y, len(x) // STEPS, shuffle=False, verbose=0, callbacks=[losses])
        found[f"{make.__name__} {name} {dtype}"] = losses.of_steps
        (folder / f"{side}.json").write_text(json.dumps(found))
