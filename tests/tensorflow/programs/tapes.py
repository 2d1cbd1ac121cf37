# GradientTape: each line is what TensorFlow prints, too
import tensorflow as tf

x = tf.Variable(3.0)
with tf.GradientTape() as tape:
    y = x**2
print(tape.gradient(y, x).numpy())
try:
    tape.gradient(y, x)
except RuntimeError as error:
    print("RuntimeError", "non-persistent" in str(error))

w, b = tf.Variable([[1.0, 2.0], [3.0, 4.0]], name="w"), tf.Variable(tf.zeros(2), name="b")
inputs = [[1.0, 2.0]]
with tf.GradientTape(persistent=True) as tape:
    y = tf.matmul(inputs, w) + b
    loss = tf.reduce_mean(y**2)
    assert loss is not None
print(tape.gradient(loss, {"b": b, "w": w}))
print([g.numpy().tolist() for g in tape.gradient(loss, [w, b])])
del tape

# watch
c = tf.constant(3.0)
with tf.GradientTape() as tape:
    tape.watch(c)
    y = c * c
print(tape.gradient(y, c))
with tf.GradientTape() as tape:
    y = c * c
print(tape.gradient(y, c))
c += 1
print(c)

# what a tape does not see
frozen, counter = tf.Variable(2.0, trainable=False), tf.Variable(1)
with tf.GradientTape() as tape:
    y = x * frozen * tf.cast(counter, tf.float32)
print(tape.gradient(y, [x, frozen, counter]))
with tf.GradientTape(watch_accessed_variables=False) as tape:
    tape.watch(x)
    y = x * w[0, 0]
print(tape.gradient(y, [x, w]), len(tape.watched_variables()))
outside = x * 2.0
with tf.GradientTape() as tape:
    y = outside * 3.0
print(tape.gradient(y, x))
with tf.GradientTape() as tape:
    y = x + 1.0
    with tape.stop_recording():
        z = y * y
    y = y * tf.stop_gradient(x)
print(tape.gradient(y, x), z)
with tf.GradientTape() as tape:
    y = b * 0.0
print(tape.gradient(y, w))
with tf.GradientTape(persistent=True) as tape:
    y = b * 0.0
print(tape.gradient(y, w, unconnected_gradients=tf.UnconnectedGradients.ZERO))
print(tape.gradient(y, [w, b], unconnected_gradients="none")[0])

# several targets, weights
with tf.GradientTape(persistent=True) as tape:
    first, second = x * 2.0, x**3
print(tape.gradient([first, second], x), tape.gradient({"a": second}, x))
print(tape.gradient(first, x, output_gradients=tf.constant(10.0)))

# nested
with tf.GradientTape() as outer:
    with tf.GradientTape() as inner:
        y = x * x * x
    dy = inner.gradient(y, x)
print(dy, outer.gradient(dy, x))
with tf.GradientTape(persistent=True) as tape:
    y = x * x * x
    dy = tape.gradient(y, x)
print(tape.gradient(dy, x))
with tf.GradientTape() as one:
    with tf.GradientTape() as two:
        y = x * x
print(one.gradient(y, x), two.gradient(y, x))

# jacobians
v = tf.Variable([1.0, 2.0, 3.0])
with tf.GradientTape(persistent=True) as tape:
    y = v * v * 2.0
    scalar = tf.reduce_sum(y)
print(tape.jacobian(y, v))
print(tape.jacobian(scalar, v), tape.jacobian(y, b))
rows = tf.constant([[1.0, 2.0], [3.0, 4.0]])
with tf.GradientTape() as tape:
    tape.watch(rows)
    y = rows * rows * [1.0, 10.0]
print(tape.batch_jacobian(y, rows))

# assignments while a tape is open: it keeps the values that it saw
with tf.GradientTape(persistent=True) as tape:
    y = x * x
    x.assign_add(1.0)
    z = x * x
print(tape.gradient(y, x), tape.gradient(z, x), x.numpy())
x.assign(3.0)

# control flow
for steps in (1, 3):
    with tf.GradientTape() as tape:
        y = x
        for _ in range(steps):
            y = y * x if y < 20.0 else y
    print(tape.gradient(y, x))


@tf.custom_gradient
def clipped(value):
    def backward(upstream):
        return tf.clip_by_norm(upstream, 0.5)

    return value * 1.0, backward


@tf.custom_gradient
def pair(first, second):
    return (first * 2.0, second * 3.0), lambda a, b: (a * 20.0, b * 30.0)


with tf.GradientTape(persistent=True) as tape:
    y = clipped(x) * 4.0
    left, right = pair(x, v)
print(y, tape.gradient(y, x), tape.gradient(left, x), tape.gradient(right, v), tape.gradient([left, right], [x, v]))


@tf.custom_gradient
def log1pexp(value):
    e = tf.exp(value)
    return tf.math.log(1 + e), lambda upstream: upstream * (1 - 1 / (1 + e))


with tf.GradientTape() as outer:
    outer.watch(big := tf.constant(100.0))
    with tf.GradientTape() as tape:
        tape.watch(big)
        y = log1pexp(big)
    dy = tape.gradient(y, big)
print(dy, outer.gradient(dy, big))

again = tf.recompute_grad(lambda value: tf.exp(value) * 2.0)
with tf.GradientTape() as tape:
    y = again(x)
print(tape.gradient(y, x))

# a loop that learns
tf.random.set_seed(1)
true_w, guess = tf.constant([[2.0], [-3.0]]), tf.Variable([[0.0], [0.0]])
points = tf.constant([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, -1.0]])
for _ in range(100):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(points @ guess - points @ true_w))
    guess.assign_sub(0.3 * tape.gradient(loss, guess))
print(tf.round(guess * 1000.0) / 1000.0)
