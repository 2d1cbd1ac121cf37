# tf.Variable, tf.function, tf.print: each line is what TensorFlow prints, too
import sys

import numpy as np
import tensorflow as tf

v = tf.Variable([[1.0, 2.0], [3.0, 4.0]], name="weights")
print(v)
print(v.shape, v.dtype, v.name, v.trainable, v.shape.as_list(), v.get_shape().rank)
print(
    v.assign([[1, 2], [3, 5]]).numpy().tolist(),
    v.assign_add(tf.ones([2, 2])).numpy(),
    v.assign_sub(np.ones((2, 2))).numpy(),
)
print(v.read_value(), v.value())
before, row, whole = v.numpy(), v[0], tf.identity(v)
reshaped, as_tensor = tf.reshape(v, [4]), tf.convert_to_tensor(v)
v.assign(v * 0.0)
print(
    before.tolist(),
    row.numpy(),
    whole.numpy().tolist(),
    reshaped.numpy(),
    as_tensor.numpy().tolist(),
    v.numpy().tolist(),
)
try:
    v.assign([1.0])
except ValueError as error:
    print("ValueError", "Cannot assign value to variable" in str(error))
print(tf.Variable(1), tf.Variable(2, dtype=tf.int64), tf.Variable(True), tf.Variable(np.float64(1.5)))
print(tf.Variable(lambda: tf.ones([2])), tf.Variable([1, 2], dtype=tf.float32).dtype.name)
print(isinstance(v, tf.Variable), tf.is_tensor(v), isinstance(v, tf.Tensor))
a = tf.Variable([1.0, 2.0])
print(a + 1, 1 - a, a * a, a / 2, a**2, -a, a[::-1])
print(a < 2.0, a == a, np.ones(2) * a, a + [1.0, 2.0], a + np.ones(2), tf.constant([1.0, 1.0]) + a)
print(len(a.shape), [x.numpy() for x in a], float(a[0]), int(a[1]), bool(a[0]))
print(tf.reduce_sum(a), tf.add(a, a), tf.stack([a, a]), tf.concat([a, [9.0]], 0), tf.shape(a))
n = tf.Variable([1, 2, 3, 4])
print(
    n.scatter_nd_update([[0]], [10]).numpy(),
    n.scatter_nd_add([[1]], [10]).numpy(),
    n.scatter_nd_sub([[2]], [10]).numpy(),
)
print(n.sparse_read([3, 0]).numpy(), n.gather_nd([[1]]).numpy(), n.ref().deref() is n, n.ref() in {n.ref()})
print(np.array(v), np.asarray(v, dtype="float64").dtype, np.asarray(tf.constant([1, 2])))
start = tf.constant([1.0, 2.0])
moved = tf.Variable(start)
moved.assign_add([1.0, 1.0])
print(start, moved.numpy())
any_size = tf.Variable([1.0], shape=tf.TensorShape(None))
print(any_size.assign([[1.0, 2.0]]).numpy())
print(
    tf.Variable(
        1.0, synchronization=tf.VariableSynchronization.ON_READ, aggregation=tf.VariableAggregation.MEAN
    ).numpy()
)
x = tf.constant([1.0, 2.0])
y = x
y += 1.0
y *= 2.0
print(x.numpy(), y.numpy())
print(f"{x[0]} {x[1]:.3f} {tf.constant(0.1)}", tf.constant(7), x.numpy().sum())

# functions


@tf.function
def scaled(x, factor=2.0):
    if tf.reduce_sum(x) > 0:
        return x * factor
    return -x


print(scaled(tf.constant([1.0])), scaled(tf.constant([-1.0]), factor=3.0), scaled(np.float32([2.0])))


@tf.function(input_signature=[tf.TensorSpec([None], tf.float32), tf.TensorSpec([], tf.int32)])
def strict(x, n):
    return x * tf.cast(n, x.dtype)


print(strict([1.0, 2.0], 3), strict(tf.constant([1.0]), tf.constant(2)))
for wrong in (lambda: strict(tf.constant([[1.0]]), 2), lambda: strict([1.0])):
    try:
        wrong()
    except (TypeError, ValueError):
        print("refused")


class Model(tf.Module):
    def __init__(self):
        super().__init__(name="model")
        self.w = tf.Variable(2.0, name="w")
        self.calls = 0

    @tf.function
    def __call__(self, x):
        return self.w * x

    @tf.function
    def numbers(self):
        return {"a": tf.constant(1), "b": [tf.constant(2.0), tf.constant("c")]}


model = Model()
print(model(tf.constant(3.0)), model.numbers())
print(scaled.get_concrete_function(tf.TensorSpec([2], tf.float32))(tf.constant([1.0, 2.0])))
print(tf.function(lambda x: x + 1)(tf.constant(1)), tf.function(lambda: 5)(), tf.function(lambda: None)())
tf.config.run_functions_eagerly(True)
print(tf.config.functions_run_eagerly())
tf.config.run_functions_eagerly(False)
count = tf.Variable(0)


@tf.function
def counted():
    total = tf.constant(0)
    for i in tf.range(5):
        if i % 2 == 0:
            continue
        total += i
    count.assign_add(total)
    while total > 0:
        total -= 3
    return total


print(counted(), counted(), count.numpy())

# print
tf.print("a", tf.constant([1.0, 2.5]), tf.constant([[1, 2], [3, 4]]), 3, output_stream=sys.stdout)
tf.print(tf.range(10), tf.constant("text"), tf.constant(["x", "y"]), True, None, output_stream=sys.stdout)
tf.print(tf.range(10), summarize=-1, sep=",", output_stream=sys.stdout)
tf.print(
    {"loss": tf.constant(0.25)},
    [tf.constant(1), 2],
    tf.constant(1.0),
    tf.constant(1e-10),
    tf.constant(123456.789),
    output_stream=sys.stdout,
)
