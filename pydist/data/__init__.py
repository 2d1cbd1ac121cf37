"""Input pipelines with tf.data's names: sources, and steps that map, shuffle, batch and repeat.

>>> from pydist.data import Dataset
>>> ds = Dataset.range(10).shuffle(10, seed=0).batch(4)
>>> sorted(x for batch in ds for x in batch.tolist())
[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]

A plan of sources that can be read by number and of steps such as `map`, `shuffle`, `repeat`, `shard` and `batch` is a
function of the element's number: `shuffle` fills no buffer, and an iterator's state is a few numbers.
"""

from pydist import _C
from pydist.data.csv import CsvDataset, decode_csv, make_csv_dataset
from pydist.data.dataset import Dataset
from pydist.data.example import (
    BytesList,
    Example,
    Feature,
    FeatureList,
    FeatureLists,
    Features,
    FixedLenFeature,
    FixedLenSequenceFeature,
    FloatList,
    Int64List,
    SequenceExample,
    VarLenFeature,
    parse_example,
    parse_single_example,
)
from pydist.data.images import decode_image, decode_jpeg, decode_png
from pydist.data.iterator import Iterator, NumpyIterator
from pydist.data.options import AutoShardPolicy, Options, ThreadingOptions
from pydist.data.records import (
    FixedLengthRecordDataset,
    TFRecordDataset,
    TFRecordOptions,
    TFRecordWriter,
    TextLineDataset,
)
from pydist.data.spec import AUTOTUNE, DatasetSpec, TensorSpec, string
from pydist.data.spec import INFINITE as INFINITE_CARDINALITY
from pydist.data.spec import UNKNOWN as UNKNOWN_CARDINALITY
from pydist.data.strings import StringTensor, decode_raw

from pydist.data import experimental  # isort: skip

DataError = _C.DataError

__all__ = [
    "AUTOTUNE",
    "AutoShardPolicy",
    "BytesList",
    "CsvDataset",
    "DataError",
    "Dataset",
    "DatasetSpec",
    "Example",
    "Feature",
    "FeatureList",
    "FeatureLists",
    "Features",
    "FixedLenFeature",
    "FixedLenSequenceFeature",
    "FixedLengthRecordDataset",
    "FloatList",
    "INFINITE_CARDINALITY",
    "Int64List",
    "Iterator",
    "NumpyIterator",
    "Options",
    "SequenceExample",
    "StringTensor",
    "TFRecordDataset",
    "TFRecordOptions",
    "TFRecordWriter",
    "TensorSpec",
    "TextLineDataset",
    "ThreadingOptions",
    "UNKNOWN_CARDINALITY",
    "VarLenFeature",
    "decode_csv",
    "decode_image",
    "decode_jpeg",
    "decode_png",
    "decode_raw",
    "experimental",
    "make_csv_dataset",
    "parse_example",
    "parse_single_example",
    "string",
]
