"""The mlp and the cnn in TensorFlow: Keras layers, one compiled function a step."""

import hashlib

import tensorflow as tf

from benchmarks.workloads import WORKLOADS

layers = tf.keras.layers


def _mlp(batch):
    model = tf.keras.Sequential([layers.Input((784,)), layers.Dense(128, "relu"), layers.Dense(10)])
    return model, (batch, 784), tf.keras.optimizers.Adam(1e-3)


def _cnn(batch):
    model = tf.keras.Sequential([
        layers.Input((28, 28, 1)), layers.Conv2D(32, 3, activation="relu"), layers.Conv2D(64, 3, activation="relu"),
        layers.MaxPool2D(), layers.Dropout(0.25), layers.Flatten(), layers.Dense(128, "relu"), layers.Dropout(0.5), layers.Dense(10),
    ])  # fmt: skip
    return model, (batch, 28, 28, 1), tf.keras.optimizers.Adadelta(1.0)


FORMS = {"mlp": _mlp, "cnn": _cnn}


class Training:
    """As benchmarks.workloads.training has it."""

    def __init__(self, name):
        tf.keras.utils.set_random_seed(0)
        file, sizes = WORKLOADS[name]
        self.model, shape, optimizer = FORMS[file](**sizes)
        optimizer.build(self.model.trainable_variables)
        x, t = tf.random.normal(shape), tf.range(shape[0]) % 10
        loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

        @tf.function
        def step():
            with tf.GradientTape() as tape:
                loss = loss_of(t, self.model(x, training=True))
            variables = self.model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
            return loss

        self.jitted = step

    def step(self):
        self.jitted().numpy()

    def hash(self):
        found = hashlib.sha256()
        for v in self.model.trainable_variables:
            found.update(v.numpy().tobytes())
        return found.hexdigest()[:12]

    def flops(self):
        return 0
