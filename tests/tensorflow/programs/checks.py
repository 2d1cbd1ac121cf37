# tf.debugging, tf.errors, tf.compat: each line is what TensorFlow prints, too
import logging

import tensorflow as tf


def refused(kind, function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except kind as error:
        return type(error.args).__name__ == "tuple"
    return "not refused"


wrong = tf.errors.InvalidArgumentError
print(tf.debugging.assert_equal([1, 2], [1, 2]), refused(wrong, tf.assert_equal, [1, 2], [1, 3], message="m"))
print(
    refused(wrong, tf.debugging.assert_none_equal, [1, 2], [1, 3]),
    refused(wrong, tf.debugging.assert_less, [1, 2], [2, 2]),
)
print(
    refused(wrong, tf.debugging.assert_less_equal, [1, 3], [2, 2]),
    refused(wrong, tf.debugging.assert_greater, [3, 2], 2),
)
print(refused(wrong, tf.debugging.assert_greater_equal, [1], 2), refused(wrong, tf.debugging.assert_positive, [0]))
print(refused(wrong, tf.debugging.assert_non_negative, [-1]), refused(wrong, tf.debugging.assert_negative, [0]))
print(
    refused(wrong, tf.debugging.assert_non_positive, [1]),
    refused(wrong, tf.debugging.assert_all_finite, [float("nan")], "m"),
)
print(refused(wrong, tf.debugging.assert_near, [1.0], [1.1]), tf.debugging.assert_near([1.0], [1.0 + 1e-7]))
print(refused(ValueError, tf.debugging.assert_rank, [1], 2), tf.debugging.assert_rank([1], 1))
print(
    refused(ValueError, tf.debugging.assert_rank_at_least, [1], 2),
    refused(ValueError, tf.debugging.assert_rank_in, [1], [2, 3]),
)
print(refused(ValueError, tf.debugging.assert_scalar, tf.constant([1])), tf.debugging.assert_scalar(tf.constant(1)))
print(
    refused(TypeError, tf.debugging.assert_type, tf.constant(1), tf.float32),
    refused(TypeError, tf.debugging.assert_integer, tf.constant(1.0)),
)
print(
    tf.debugging.assert_same_float_dtype([tf.constant(1.0)]).name,
    refused(ValueError, tf.debugging.assert_same_float_dtype, [tf.constant(1)]),
)
print(tf.debugging.assert_shapes([(tf.zeros([2, 3]), ("N", 3)), (tf.zeros([2]), ("N",))]))
print(refused(ValueError, tf.debugging.assert_shapes, [(tf.zeros([2, 3]), ("N", 3)), (tf.zeros([4]), ("N",))]))
print(
    tf.debugging.check_numerics(tf.constant([1.0]), "m"),
    refused(wrong, tf.debugging.check_numerics, tf.constant([float("inf")]), "m"),
)
print(
    tf.debugging.is_numeric_tensor(tf.constant(1)),
    refused(wrong, tf.debugging.Assert, False, ["why", tf.constant([1])]),
)
tf.debugging.set_log_device_placement(False)
print(tf.debugging.get_log_device_placement(), tf.Assert(True, ["fine"]))

# what operations raise
for bad in (
    lambda: tf.matmul(tf.ones([2, 3]), tf.ones([2, 3])),
    lambda: tf.constant([1.0, 2.0]) + tf.constant([1.0, 2.0, 3.0]),
    lambda: tf.reshape([1, 2, 3], [2, 2]),
    lambda: tf.concat([tf.ones([2, 2]), tf.ones([3, 3])], 0),
    lambda: tf.strings.to_number("x"),
):
    try:
        bad()
    except tf.errors.InvalidArgumentError as error:
        print(len(error.message) > 10, isinstance(error, tf.errors.OpError), error.op is None)
for kind in (
    tf.errors.AbortedError, tf.errors.AlreadyExistsError, tf.errors.CancelledError, tf.errors.DataLossError,
    tf.errors.DeadlineExceededError, tf.errors.FailedPreconditionError, tf.errors.InternalError,
    tf.errors.NotFoundError, tf.errors.OutOfRangeError, tf.errors.PermissionDeniedError,
    tf.errors.ResourceExhaustedError, tf.errors.UnauthenticatedError, tf.errors.UnavailableError,
    tf.errors.UnimplementedError, tf.errors.UnknownError,
):  # fmt: skip
    print(kind.__name__, issubclass(kind, tf.errors.OpError), end=" ")
print()

# blocks
with tf.device("/CPU:0"):
    print(tf.constant(1))
with tf.device("/job:localhost/replica:0/task:0/device:CPU:0"), tf.name_scope("a") as scope:
    print(scope, tf.Variable(1.0, name="b").name)
with tf.control_dependencies([tf.constant(1)]), tf.init_scope():
    print(tf.group(tf.constant(1)), tf.no_op(), tf.timestamp().dtype.name)

# TensorFlow 1's names
print(
    tf.compat.as_bytes("é"),
    tf.compat.as_text(b"a"),
    tf.compat.as_str("a"),
    tf.compat.as_str_any(1),
    tf.compat.path_to_str("a/b"),
)
print(tf.compat.dimension_value(3), refused(TypeError, tf.compat.as_bytes, 1))
print(
    refused(ValueError, tf.nest.assert_same_structure, [1], [1, 2]),
    refused(TypeError, tf.nest.assert_same_structure, [1], (1,)),
)
settings = tf.compat.v1.ConfigProto()
settings.gpu_options.allow_growth = True
options = tf.compat.v1.GPUOptions(allow_growth=True)
tf.compat.v1.enable_eager_execution()
tf.compat.v1.enable_v2_behavior()
tf.compat.v1.set_random_seed(1)
tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.ERROR)
print(tf.compat.v1.logging.get_verbosity() == logging.ERROR, tf.get_logger().name)
for log in (
    tf.compat.v1.logging.debug,
    tf.compat.v1.logging.info,
    tf.compat.v1.logging.warning,
    tf.compat.v1.logging.warn,
):
    log("nothing %d", 1)
tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.FATAL + 1)
tf.compat.v1.logging.error("nothing"), tf.compat.v1.logging.fatal("nothing")
print(tf.compat.v1.reduce_sum([1, 2]), tf.compat.v1.executing_eagerly_outside_functions())
print(isinstance(tf.__version__, str), tf.version.VERSION == tf.__version__, tf.newaxis)
