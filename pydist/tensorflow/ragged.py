"""tf.ragged: rows of different lengths (tf.strings.split returns them). They are no elements of pipelines:
`padded_batch` makes batches of rows that differ."""

from pydist.tensorflow._names import lacking as _lacking
from pydist.tensorflow._ragged import constant as constant
from pydist.tensorflow._ragged import map_flat_values as map_flat_values

__getattr__ = _lacking(__name__)
