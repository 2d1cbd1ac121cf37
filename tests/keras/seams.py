"""One test for each change that pydist.keras makes in Keras. test_keras.py runs this file in a process of its own."""

import collections
import importlib
import sys

import numpy as np
import pytest

import pydist
from pydist import keras


def module(name):
    return importlib.import_module(f"keras.src.{name}")


def test_pydist_keras_is_keras():
    assert keras is sys.modules["keras"] is sys.modules["pydist.keras"]
    from pydist.keras.layers import Dense

    assert Dense is keras.layers.Dense
    assert importlib.import_module("pydist.keras._seams").SEAMS


def test_s1_structures_are_taken_apart_by_optree():
    impl = module("tree.torchtree_impl")
    assert impl.flatten is module("tree.optree_impl").flatten and "optree" in vars(impl)
    point = collections.namedtuple("point", "x y")
    tree = {"b": [1, (2, None)], "a": point(3, {"c": 4})}
    assert keras.tree.flatten(tree) == [3, 4, 1, 2, None]
    paths = [path for path, _ in keras.tree.flatten_with_path(tree)]
    assert paths == [("a", 0), ("a", 1, "c"), ("b", 0), ("b", 1, 0), ("b", 1, 1)]
    assert keras.tree.map_structure(lambda x: x and x + 1, tree) == {"b": [2, (3, None)], "a": point(4, {"c": 5})}


@pytest.mark.parametrize("name", ["float32", "float64", "float16", "bfloat16", "int32", "uint8", "bool", "complex64"])
def test_s2_dtypes_have_keras_names(name):
    dtype = getattr(pydist, name)
    assert keras.backend.standardize_dtype(dtype) == name
    assert keras.ops.cast([0, 1], dtype).dtype is dtype
    assert keras.layers.Dense(2, dtype="float64").compute_dtype == "float64"


def test_s2_float64_is_computed_in_float64_where_the_program_asks_for_it():
    a, b = np.random.default_rng(0).standard_normal((2, 40, 40))
    assert keras.ops.matmul(a, b).dtype is pydist.float32  # as over PyTorch
    keras.config.set_floatx("float64")
    try:
        assert np.array_equal(keras.ops.matmul(a, b).numpy(), pydist.matmul(pydist.tensor(a), pydist.tensor(b)).numpy())
        assert keras.backend.result_type("float64", "float32", int) == "float64"
        assert keras.backend.result_type("int64", int) == "int32"
    finally:
        keras.config.set_floatx("float32")


def test_s8_other_frameworks_are_out_of_reach(monkeypatch):
    """Also where they are there: a module of that name changes nothing."""
    monkeypatch.setitem(sys.modules, "tensorflow", pydist)
    utils = module("utils.module_utils")
    for name in ("tensorflow", "jax", "gfile"):
        assert not getattr(utils, name).available
    with pytest.raises(ImportError, match="tensorflow is not used by Keras over pydist"):
        utils.tensorflow.Tensor
    assert utils.h5py.available


def test_s10_big_packages_are_imported_when_they_are_used(monkeypatch):
    assert not {"pandas", "sklearn", "matplotlib"} & set(sys.modules)
    array_slicing = module("trainers.data_adapters.array_slicing")
    assert array_slicing.can_slice_array(np.ones(3))
    frames = pytest.importorskip("pandas")
    assert array_slicing.can_slice_array(frames.Series([1.0])) and array_slicing.can_slice_array(frames.DataFrame())
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    rows = frames.DataFrame({"a": [0.0, 1.0, 2.0], "b": [1.0, 0.0, 1.0]})
    assert model.predict(rows, verbose=0).shape == (3, 1)
    model.fit(rows, frames.Series([1.0, 0.0, 1.0]), verbose=0)
