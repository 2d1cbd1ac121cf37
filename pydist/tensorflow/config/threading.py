"""tf.config.threading: how many threads an operation has."""

import pydist as _pydist
from pydist.tensorflow._names import lacking as _lacking


def set_intra_op_parallelism_threads(num_threads):
    """Sets the number of threads of an operation; 0 changes nothing."""
    if num_threads:
        _pydist.set_num_threads(int(num_threads))


def get_intra_op_parallelism_threads():
    """The number of threads of an operation."""
    return _pydist.get_num_threads()


def set_inter_op_parallelism_threads(num_threads):
    """Accepted: operations run one after another."""
    if num_threads < 0:
        raise ValueError(f"config.threading: num_threads is {num_threads} (expected 0 or more)")


def get_inter_op_parallelism_threads():
    """1: operations run one after another."""
    return 1


__getattr__ = _lacking(__name__)
