"""Small names that programs import from mxnet.base."""

import numbers

import numpy as np

from pydist.compat.mxnet._base import MXNetError as MXNetError

string_types, integer_types, mx_real_t = (str,), (int, np.int32, np.int64), np.float32
numeric_types = (float, int, np.generic, numbers.Number)


def py_str(text):
    """bytes as a str."""
    return text.decode("utf-8") if isinstance(text, bytes) else text
