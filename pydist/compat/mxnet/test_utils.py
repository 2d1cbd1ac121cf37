"""What tests of MXNet programs use: comparison, random arrays, a context."""

import contextlib
import importlib
import os
import random as _random

import numpy as np

from pydist.compat.mxnet._base import Context, current_context, lacking, state
from pydist.compat.mxnet.ndarray import random as _draws
from pydist.compat.mxnet.ndarray.ndarray import array

mx = importlib.import_module(__package__)  # `from mxnet.test_utils import *` gives it, too
_TOLERANCES = {np.dtype("f2"): (1e-2, 1e-1), np.dtype("f4"): (1e-4, 1e-3), np.dtype("f8"): (1e-5, 1e-20)}
default_context = current_context


def set_default_context(ctx):
    """The context of new arrays from now on."""
    state.context = Context(ctx)


def same(a, b):
    """Whether all elements are equal."""
    return np.array_equal(np.asarray(a), np.asarray(b))


def assert_almost_equal(a, b, rtol=None, atol=None, names=("a", "b"), equal_nan=False, **kwargs):
    """Raises AssertionError if an element is not within rtol and atol; the default depends on the dtypes."""
    a, b = np.asarray(a), np.asarray(b)
    kinds = [_TOLERANCES[x.dtype] for x in (a, b) if x.dtype in _TOLERANCES] or [(1e-5, 1e-20)]
    rtol, atol = (max(kind[i] for kind in kinds) if given is None else given for i, given in enumerate((rtol, atol)))
    np.testing.assert_allclose(a, b, rtol, atol, equal_nan, err_msg=f"{names[0]} is not near {names[1]}")


def almost_equal(a, b, rtol=None, atol=None, equal_nan=False, **kwargs):
    """Whether assert_almost_equal() raises nothing."""
    try:
        assert_almost_equal(a, b, rtol, atol, equal_nan=equal_nan)
    except AssertionError:
        return False
    return True


def assert_exception(f, exception_type, *args, **kwargs):
    """Raises AssertionError unless f(*args) raises exception_type."""
    try:
        f(*args, **kwargs)
    except exception_type:
        return
    raise AssertionError(f"{getattr(f, '__name__', f)}: no exception (expected {exception_type})")


def compare_optimizer(opt1, opt2, shape, dtype, w_stype="default", g_stype="default", rtol=1e-4, atol=1e-5, **kwargs):
    """One update by each of two optimizers gives the same weights. opt1 sees dense arrays."""
    for i, each in enumerate(shape if isinstance(shape, list) else [shape]):
        w2, g2 = rand_ndarray(each, w_stype, 1, dtype), rand_ndarray(each, g_stype, None, dtype)
        w1, g1 = w2.copy().tostype("default"), g2.copy().tostype("default")
        for optimizer, w, g in ((opt1, w1, g1), (opt2, w2, g2)):
            optimizer.update_multi_precision(i, w, g, optimizer.create_state_multi_precision(i, w))
        assert_almost_equal(w1, w2, rtol, atol)


def rand_shape_nd(num_dim, dim=10):
    """Random sizes from 1 on."""
    return tuple(int(n) for n in np.random.randint(1, dim + 1, num_dim))


def random_arrays(*shapes):
    """Random NumPy arrays: one, or a list."""
    made = [np.asarray(np.random.randn(*s), np.float32) for s in shapes]
    return made if len(made) > 1 else made[0]


def random_sample(population, k):
    """k elements in a random order."""
    return _random.sample(list(population), k)


def rand_ndarray(shape, stype="default", density=None, dtype=None, **kwargs):
    """A random array; of a sparse one, the part `density` is not 0."""
    if stype == "default":
        return _draws.uniform(-1.0, 1.0, shape, dtype)
    density = np.random.rand() if density is None else density
    there = np.random.rand(*(shape if stype == "csr" else (shape[0], *[1] * (len(shape) - 1)))) < density
    return array(np.random.uniform(0.1, 1.0, shape) * there, dtype=dtype).tostype(stype)


def np_reduce(dat, axis, keepdims, numpy_reduce_func):
    """A NumPy reduction over several axes, one by one."""
    axes = [axis] if isinstance(axis, int) else range(dat.ndim) if axis is None else axis
    for each in sorted(axes, reverse=True):
        dat = np.expand_dims(numpy_reduce_func(dat, axis=each), each)
    return dat if keepdims else np.squeeze(dat, tuple(axes))


@contextlib.contextmanager
def environment(*args):
    """Environment variables inside the block: (name, value) or a dict; None removes one."""
    wanted = args[0] if len(args) == 1 else {args[0]: args[1]}
    before = {name: os.environ.get(name) for name in wanted}

    def put(values):
        for name, value in values.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: str(value)})

    put(wanted)
    try:
        yield
    finally:
        put(before)


@contextlib.contextmanager
def discard_stderr():
    """What the block writes to the stream of errors goes nowhere."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stderr(nowhere):
        yield


def retry(n):
    """A decorator: a test that fails runs again, up to n times."""

    def wrap(fn):
        def again(*args, **kwargs):
            for i in range(n):
                try:
                    return fn(*args, **kwargs)
                except AssertionError:
                    if i == n - 1:
                        raise

        again.__name__ = fn.__name__
        return again

    return wrap


_ABSENT = (
    "simple_forward check_numeric_gradient check_symbolic_forward check_symbolic_backward check_consistency".split()
)
__getattr__ = lacking("mx.test_utils", _ABSENT, "eager code and assert_almost_equal")
