"""Names of tf.data.experimental: what became methods of Dataset, as functions for `Dataset.apply`."""

from pydist import _C
from pydist.data.csv import CsvDataset, make_csv_dataset
from pydist.data.dataset import Dataset
from pydist.data.options import (
    AutoShardPolicy,
    AutotuneOptions,
    DistributeOptions,
    OptimizationOptions,
    ThreadingOptions,
)
from pydist.data.spec import AUTOTUNE, count_of
from pydist.data.spec import INFINITE as INFINITE_CARDINALITY
from pydist.data.spec import UNKNOWN as UNKNOWN_CARDINALITY
from pydist.data.step import Step
from pydist.data.streams import Stream

Counter = Dataset.counter
RandomDataset = Dataset.random
choose_from_datasets = Dataset.choose_from_datasets
load = Dataset.load
sample_from_datasets = Dataset.sample_from_datasets


def _transformation(name):
    method = getattr(Dataset, name)

    def make(*args, **kwargs):
        return lambda dataset: method(dataset, *args, **kwargs)

    make.__name__ = make.__qualname__ = name
    make.__doc__ = f"Dataset.{name} as a function for `apply`."
    return make


bucket_by_sequence_length = _transformation("bucket_by_sequence_length")
enumerate_dataset = _transformation("enumerate")
group_by_window = _transformation("group_by_window")
ignore_errors = _transformation("ignore_errors")
rejection_resample = _transformation("rejection_resample")
scan = _transformation("scan")
snapshot = _transformation("snapshot")
take_while = _transformation("take_while")
unbatch = _transformation("unbatch")
unique = _transformation("unique")


def cardinality(dataset):
    """Dataset.cardinality."""
    return dataset.cardinality()


def save(dataset, path, compression=None, shard_func=None, checkpoint_args=None):
    """Dataset.save."""
    dataset.save(path, compression, shard_func, checkpoint_args)


def get_single_element(dataset):
    """Dataset.get_single_element."""
    return dataset.get_single_element()


def get_next_as_optional(iterator):
    """The iterator's next element, or None at the end."""
    return iterator.get_next_as_optional()


def shuffle_and_repeat(buffer_size, count=None, seed=None):
    """`shuffle` and `repeat`, for `apply`."""
    return lambda dataset: dataset.shuffle(buffer_size, seed).repeat(count)


def map_and_batch(map_func, batch_size, num_parallel_batches=None, drop_remainder=False, num_parallel_calls=None):
    """`map` and `batch`, for `apply`."""
    threads = num_parallel_calls or num_parallel_batches
    return lambda dataset: dataset.map(map_func, threads).batch(batch_size, drop_remainder)


def parallel_interleave(map_func, cycle_length, block_length=1, sloppy=False, buffer_output_elements=None,
                        prefetch_input_elements=None):  # fmt: skip
    """`interleave` with threads, for `apply`."""
    return lambda dataset: dataset.interleave(map_func, cycle_length, block_length, AUTOTUNE)


class _Asserted(Step):
    """As many elements as the program says."""

    indexed = False
    name = "assert_cardinality"

    def __init__(self, step, expected):
        self.inputs, self.expected = (step,), expected

    def count(self):
        return self.expected

    def stream(self, run):
        return _AssertedStream(self, run)

    def detail(self):
        return (self.expected,)


class _AssertedStream(Stream):
    def __init__(self, step, run):
        super().__init__(step, run)
        self.number = 0

    def __next__(self):
        expected = self.step.expected
        try:
            leaves = next(self.input)
        except StopIteration:
            if expected == INFINITE_CARDINALITY or 0 <= self.number < expected:
                raise _C.DataError(
                    f"assert_cardinality: the data set has {self.number} elements (expected "
                    f"{'no end' if expected < 0 else expected})"
                ) from None
            raise
        self.number += 1
        if 0 <= expected < self.number:
            raise _C.DataError(
                f"assert_cardinality: the data set has more than {expected} elements (expected {expected})"
            )
        return leaves

    def state(self):
        return self.number

    def set_state(self, saved):
        self.number = saved


def assert_cardinality(expected_cardinality):
    """Says how many elements a data set has, for `apply`. Raises DataError where it has another number."""
    expected = count_of(expected_cardinality, "assert_cardinality", "expected_cardinality", INFINITE_CARDINALITY)
    return lambda dataset: dataset._with(_Asserted(dataset._node, expected))


__all__ = [
    "AUTOTUNE",
    "AutoShardPolicy",
    "AutotuneOptions",
    "Counter",
    "CsvDataset",
    "DistributeOptions",
    "INFINITE_CARDINALITY",
    "OptimizationOptions",
    "RandomDataset",
    "ThreadingOptions",
    "UNKNOWN_CARDINALITY",
    "assert_cardinality",
    "bucket_by_sequence_length",
    "cardinality",
    "choose_from_datasets",
    "enumerate_dataset",
    "get_next_as_optional",
    "get_single_element",
    "group_by_window",
    "ignore_errors",
    "load",
    "make_csv_dataset",
    "map_and_batch",
    "parallel_interleave",
    "rejection_resample",
    "sample_from_datasets",
    "save",
    "scan",
    "shuffle_and_repeat",
    "snapshot",
    "take_while",
    "unbatch",
    "unique",
]


def __getattr__(name):
    raise AttributeError(f"pydist.data.experimental has no {name!r} (expected one of {', '.join(__all__)})")
