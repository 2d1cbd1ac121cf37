# tf.config: each line is what TensorFlow prints, too
import os

os.environ["CUDA_VISIBLE_DEVICES"] = ""
import tensorflow as tf

tf.config.threading.set_intra_op_parallelism_threads(1), tf.config.threading.set_inter_op_parallelism_threads(1)
print(tf.config.threading.get_intra_op_parallelism_threads(), tf.config.threading.get_inter_op_parallelism_threads())
print(tf.config.list_physical_devices())
print(tf.config.list_physical_devices("GPU"), tf.config.experimental.list_physical_devices("CPU"))
cpu = tf.config.list_physical_devices("CPU")[0]
print(tf.config.get_visible_devices("CPU"), tf.config.set_visible_devices([], "GPU"))
print(tf.config.get_logical_device_configuration(cpu))
tf.config.set_logical_device_configuration(
    cpu, [tf.config.LogicalDeviceConfiguration(), tf.config.LogicalDeviceConfiguration()]
)
print(
    [device.name for device in tf.config.list_logical_devices("CPU")],
    len(tf.config.get_logical_device_configuration(cpu)),
)
print(tf.config.set_soft_device_placement(True), tf.config.get_soft_device_placement())
print(
    tf.config.experimental.get_device_details(cpu),
    tf.config.experimental.tensor_float_32_execution_enabled() in (True, False),
)
print(tf.config.experimental.enable_tensor_float_32_execution(True), tf.config.experimental.enable_op_determinism())
print(tf.config.optimizer.set_jit(False), tf.config.optimizer.get_jit())
print(
    tf.config.optimizer.set_experimental_options({"constant_folding": True}),
    tf.config.optimizer.get_experimental_options()["constant_folding"],
)
print(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).num_replicas_in_sync)
print(tf.config.PhysicalDevice("a", "CPU"), tf.config.LogicalDevice("b", "GPU"))
