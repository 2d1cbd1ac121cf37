"""Steps of Keras' fit over one backend, for benchmarks/keras.py.

    keras_fit.py BACKEND THREADS

BACKEND: pydist, torch or tensorflow. Reads lines "CASE STEPS EPOCHS VERBOSE" and answers each with a line: seconds of a
step, and processor seconds of a step, in the best epoch. EPOCHS 0: seconds of the first step instead, with all that fit
does before it.
"""

import os
import sys
import time

import numpy as np

backend, threads = sys.argv[1], int(sys.argv[2])
if backend == "pydist":
    import pydist
    from pydist import keras

    pydist.set_num_threads(threads)
else:
    import keras

    if backend == "torch":
        import torch

        torch.set_num_threads(threads)
layers = keras.layers


def mlp():
    parts = [layers.Dense(128, "relu"), layers.Dense(10, "softmax")]
    return keras.Sequential([keras.Input((784,)), *parts]), "adam", 64


def convnet():
    parts = [layers.Conv2D(32, 3, activation="relu"), layers.MaxPooling2D(), layers.Conv2D(64, 3, activation="relu"),
             layers.MaxPooling2D(), layers.Flatten(), layers.Dropout(0.5), layers.Dense(10, "softmax")]  # fmt: skip
    return keras.Sequential([keras.Input((28, 28, 1)), *parts]), "adam", 128


def resnet18():
    def conv(x, width, size=3, stride=1):
        return layers.BatchNormalization()(layers.Conv2D(width, size, stride, padding="same", use_bias=False)(x))

    x = keras.Input((32, 32, 3))
    y = layers.ReLU()(conv(x, 64))
    for width in (64, 128, 256, 512):
        for stride in (1 if width == 64 else 2, 1):
            z = conv(layers.ReLU()(conv(y, width, stride=stride)), width)
            short = y if stride == 1 else conv(y, width, 1, stride)
            y = layers.ReLU()(layers.Add()([z, short]))
    y = layers.Dense(10, "softmax")(layers.GlobalAveragePooling2D()(y))
    return keras.Model(x, y), keras.optimizers.SGD(0.1, momentum=0.9), 32


def lstm():
    parts = [layers.Embedding(20000, 128), layers.LSTM(128), layers.Dense(2, "softmax")]
    return keras.Sequential([keras.Input((80,), dtype="int32"), *parts]), "adam", 32


class Epochs(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.found = []

    def on_epoch_begin(self, epoch, logs=None):
        self.began = time.perf_counter(), time.process_time()

    def on_epoch_end(self, epoch, logs=None):
        self.found.append([now - then for now, then in zip((time.perf_counter(), time.process_time()), self.began)])


models = {}


def model_of(case):
    if case not in models:
        keras.utils.set_random_seed(0)
        model, optimizer, batch = {"mlp": mlp, "convnet": convnet, "resnet18": resnet18, "lstm": lstm}[case]()
        model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
        models[case] = model, batch
    return models[case]


def data(model, rows):
    numbers, shape = np.random.default_rng(0), (rows, *model.input_shape[1:])
    whole = model.inputs[0].dtype == "int32"
    x = numbers.integers(0, 20000, shape).astype("int32") if whole else numbers.random(shape, "float32")
    return x, numbers.integers(0, model.output_shape[-1], rows)


def answer(case, steps, epochs, verbose):
    model, batch = model_of(case)
    x, y = data(model, steps * batch)
    if not epochs:
        begin = time.perf_counter()
        model.fit(x, y, batch_size=batch, verbose=verbose)
        return (time.perf_counter() - begin,)
    timer = Epochs()
    model.fit(x, y, batch_size=batch, epochs=epochs, verbose=verbose, callbacks=[timer])
    return [min(column) / steps for column in zip(*timer.found)]


answers, sys.stdout = os.fdopen(os.dup(1), "w"), open(os.devnull, "w")  # the progress bar goes nowhere
for line in sys.stdin:
    case, *numbers = line.split()
    print(*answer(case, *map(int, numbers)), file=answers, flush=True)
