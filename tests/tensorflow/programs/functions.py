# tf.function called often: each line is what TensorFlow prints, too
import sys

import numpy as np
import tensorflow as tf

w, b = tf.Variable([[0.5], [-0.25]]), tf.Variable([0.0])
x = tf.constant([[1.0, 2.0], [3.0, -1.0], [0.5, 0.5]])
y = tf.constant([[1.0], [2.0], [0.5]])


@tf.function
def train(x, y, rate):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(tf.matmul(x, w) + b - y))
    for v, g in zip((w, b), tape.gradient(loss, (w, b))):
        v.assign_sub(rate * g)
    return loss


print([f"{float(train(x, y, tf.constant(0.05))):.4f}" for _ in range(8)])
print([f"{float(train(x[:2], y[:2], tf.constant(0.05))):.4f}" for _ in range(5)], np.round(w.numpy(), 3).tolist())


@tf.function
def speaks(n):
    tf.print("called with", n, output_stream=sys.stdout)
    return n + 1


print([int(speaks(tf.constant(k))) for k in range(6)])

seen = []


def note(value):
    seen.append(int(value))
    return value * 2


def one_more(value):
    return value + 1


@tf.function
def notes(n):
    return tf.py_function(note, [n], tf.int32) + tf.numpy_function(one_more, [n], tf.int32)


print([int(notes(tf.constant(k))) for k in range(6)], seen)

total = tf.Variable(0.0)


@tf.function
def add(variable, value):
    return variable.assign_add(value) * 1.0


other = tf.Variable(10.0)
print([float(add(total, 1.0)) for _ in range(5)], [float(add(other, 2.0)) for _ in range(5)], float(total))


class Scaled(tf.Module):
    def __init__(self, by):
        super().__init__()
        self.by = tf.Variable(by)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
    def __call__(self, x):
        return {"scaled": self.by * x, "more": (x + 1.0, [x - 1.0])}


two, three = Scaled(2.0), Scaled(3.0)
for k in range(5):
    a, c = two(tf.fill([2], float(k))), three(tf.fill([2], float(k)))
    two.by.assign_add(1.0)
print(a["scaled"].numpy(), a["more"][1][0].numpy(), c["scaled"].numpy(), c["more"][0].numpy())
