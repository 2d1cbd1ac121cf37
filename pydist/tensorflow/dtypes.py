"""tf.dtypes: the types of elements, and conversions between them."""

from pydist.tensorflow import DType as DType
from pydist.tensorflow import bfloat16 as bfloat16
from pydist.tensorflow import bool as bool
from pydist.tensorflow import complex64 as complex64
from pydist.tensorflow import complex128 as complex128
from pydist.tensorflow import double as double
from pydist.tensorflow import float16 as float16
from pydist.tensorflow import float32 as float32
from pydist.tensorflow import float64 as float64
from pydist.tensorflow import half as half
from pydist.tensorflow import int8 as int8
from pydist.tensorflow import int16 as int16
from pydist.tensorflow import int32 as int32
from pydist.tensorflow import int64 as int64
from pydist.tensorflow import string as string
from pydist.tensorflow import uint8 as uint8
from pydist.tensorflow._names import lazy as _lazy

__getattr__, __dir__ = _lazy(__name__, {"_tensors": "as_dtype", "_arrays": "cast complex saturate_cast"})
