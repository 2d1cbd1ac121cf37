"""tf.compat.v1: names of TensorFlow 1 that programs of TensorFlow 2 use. There is no graph mode."""

from pydist.tensorflow._names import lazy as _lazy

_ROOT = """Assert Tensor TensorArray TensorShape Variable abs add add_n argmax argmin argsort as_dtype bool broadcast_to
    cast clip_by_global_norm clip_by_norm clip_by_value compat concat cond config constant control_dependencies
    convert_to_tensor data debugging device distribute einsum equal errors executing_eagerly exp expand_dims eye fill
    float16 float32 float64 floor function gather gather_nd group identity image initializers int32 int64 io is_tensor
    keras linalg linspace map_fn math matmul maximum meshgrid minimum multiply name_scope newaxis nest nn no_op norm not_equal
    one_hot ones ones_like pad pow py_function random range rank reduce_all reduce_any reduce_max reduce_mean reduce_min
    reduce_prod reduce_sum reshape reverse round saved_model scan scatter_nd shape sigmoid sign size slice split sqrt
    square squeeze stack stop_gradient string strings subtract tanh tensordot tile train transpose uint8 unstack where while_loop zeros
    zeros_like Module GradientTape"""

__getattr__, __dir__ = _lazy(
    __name__,
    {"pydist.tensorflow.": _ROOT},
    "logging tpu",
)


class ConfigProto:
    """Settings of a session: `gpu_options.allow_growth` and the like may be set, and change nothing."""

    def __init__(self, **settings):
        self.gpu_options = GPUOptions()
        self.graph_options = GPUOptions()
        for name, value in settings.items():
            setattr(self, name, value)


class GPUOptions:
    """Settings of GPUs, which change nothing: memory grows as it is needed."""

    def __init__(self, **settings):
        for name, value in settings.items():
            setattr(self, name, value)


def enable_eager_execution(config=None, device_policy=None, execution_mode=None):
    """Nothing: operations are done when they are called."""


def enable_v2_behavior():
    """Nothing: this is TensorFlow 2's behaviour."""


def executing_eagerly_outside_functions():
    """True: operations are done when they are called."""
    return True


def set_random_seed(seed):
    """Sets the seed of all random numbers."""
    from pydist.tensorflow import random

    random.set_seed(seed)


class PluginData:
    """The name of a plugin of TensorBoard, and bytes for it."""

    def __init__(self, plugin_name="", content=b""):
        self.plugin_name, self.content = plugin_name, content


class SummaryMetadata:
    """Which plugin of TensorBoard a summary is for."""

    def __init__(self, plugin_data=None):
        self.plugin_data = plugin_data or PluginData()
