"""TensorFlow's names over pydist: what `import tensorflow as tf` returns under `python -m pydist.compat` and under the
launcher's `--compat`.

Each name is loaded at its first use. docs/guide/tensorflow.md says what is there and what is different.
"""

from pydist import _C
from pydist.data import TensorSpec
from pydist.data import string as string
from pydist.tensorflow._names import lazy as _lazy

__version__ = "2.21.0+pydist"

Tensor, DType = _C.Tensor, _C.dtype
bfloat16, float16, float32, float64 = _C.bfloat16, _C.float16, _C.float32, _C.float64
half, double, bool = _C.float16, _C.float64, _C.bool
int8, int16, int32, int64, uint8 = _C.int8, _C.int16, _C.int32, _C.int64, _C.uint8
complex64, complex128 = _C.complex64, _C.complex128
newaxis = None

_KERAS = "keras._tf_keras.keras."

__getattr__, __dir__ = _lazy(
    __name__,
    {
        "_tensors": "as_dtype",
        "_shapes": "TensorShape",
        "_arrays": """argsort bitcast boolean_mask broadcast_dynamic_shape broadcast_static_shape broadcast_to cast
            clip_by_global_norm clip_by_norm clip_by_value complex concat constant convert_to_tensor ensure_shape
            expand_dims eye fill gather gather_nd get_static_value identity is_tensor linspace meshgrid one_hot ones ones_like
            pad range rank repeat required_space_to_batch_paddings reshape reverse roll saturate_cast scatter_nd
            searchsorted sequence_mask shape size slice sort split squeeze stack stop_gradient strided_slice
            tensor_scatter_nd_add tensor_scatter_nd_max tensor_scatter_nd_min tensor_scatter_nd_sub
            tensor_scatter_nd_update tile transpose unique unique_with_counts unstack where zeros zeros_like""",
        "math": """abs acos acosh add add_n argmax argmin asin asinh atan atan2 atanh cos cosh cumsum divide equal exp
            floor greater greater_equal less less_equal logical_and logical_not logical_or maximum minimum multiply
            negative not_equal pow reduce_all reduce_any reduce_logsumexp reduce_max reduce_mean reduce_min reduce_prod
            reduce_sum round scalar_mul sigmoid sign sin sinh sqrt square subtract tan tanh truediv""",
        "_flow": """Assert TensorArray case cond control_dependencies device executing_eagerly foldl foldr get_logger
            group init_scope inside_function map_fn name_scope no_op numpy_function print py_function scan switch_case
            timestamp vectorized_map while_loop""",
        "_function": "function",
        "_module": "Module VariableAggregation VariableSynchronization",
        "_ragged": "RaggedTensor",
        "sparse": "SparseTensor",
        "linalg": "einsum matmul norm tensordot",
        "strings": "as_string",
        "debugging": "assert_equal assert_greater assert_less assert_rank",
        "_tape": "GradientTape UnconnectedGradients custom_gradient recompute_grad",
        "_over_keras.variable": "Variable",
        "pydist.data.": "data=.",
        "pydist.distribute.": "distribute=.",
        _KERAS: "keras=.",
        _KERAS[:-1] + ".initializers.": """initializers=. constant_initializer=Constant ones_initializer=Ones
            random_normal_initializer=RandomNormal random_uniform_initializer=RandomUniform zeros_initializer=Zeros""",
        _KERAS[:-1] + ".losses.": "losses=.",
        _KERAS[:-1] + ".metrics.": "metrics=.",
        _KERAS[:-1] + ".optimizers.": "optimizers=.",
    },
    """compat config debugging dtypes errors image io linalg lookup math nest nn ragged random saved_model sparse
    strings summary test train version""",
)
