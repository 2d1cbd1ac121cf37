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


FUSED = [
    ("SGD", {}),
    ("SGD", {"momentum": 0.9}),
    ("SGD", {"momentum": 0.9, "nesterov": True}),
    ("Adam", {}),
    ("Adam", {"amsgrad": True, "epsilon": 1e-3}),
    ("AdamW", {"weight_decay": 0.1}),
    ("Nadam", {"epsilon": 1e-3}),
    ("Adamax", {"epsilon": 1e-3}),
    ("Adadelta", {"epsilon": 1e-3}),
    ("RMSprop", {"epsilon": 1e-3}),
    ("RMSprop", {"momentum": 0.9, "centered": True, "epsilon": 1e-3}),
    ("Adagrad", {"epsilon": 1e-3}),
    ("Lion", {"weight_decay": 0.1}),
    ("Adam", {"clipnorm": 0.5, "use_ema": True}),
    ("SGD", {"momentum": 0.9, "gradient_accumulation_steps": 2}),
]


@pytest.mark.parametrize("name, options", FUSED)
def test_s5_a_step_is_one_call_with_keras_formula(name, options, monkeypatch):
    """In float64, against Keras' update_step, which a subclass gets. The rate changes between steps."""
    monkeypatch.setattr(module("backend.config"), "_FLOATX", "float64")  # set_floatx, and back
    made = getattr(keras.optimizers, name)
    calls = []
    call = {"Adamw": "adam", "Nadam": "moments"}.get(name.capitalize(), name.lower()) + "_step"
    fused = getattr(pydist._C, call)
    monkeypatch.setattr(pydist._C, call, lambda *args, **kwargs: calls.append(1) or fused(*args, **kwargs))
    rng = np.random.default_rng(0)
    start = [rng.normal(size=shape) for shape in ((3, 4), (), (5,))]
    rows = [[rng.normal(size=value.shape) for value in start] for _ in range(6)]
    results = []
    for cls in (made, type("Plain", (made,), {})):
        optimizer = cls(keras.optimizers.schedules.ExponentialDecay(0.01, 1, 0.5), **options)
        variables = [keras.Variable(value, dtype="float64") for value in start]
        for grads in rows:
            optimizer.apply([keras.ops.convert_to_tensor(g, "float64") for g in grads], variables)
        results.append([*(variable.numpy() for variable in variables), *(v.numpy() for v in optimizer.variables)])
    assert len(calls) == (3 if "gradient_accumulation_steps" in options else 6)
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-14)


def test_s5_variables_of_several_dtypes():
    variables = [keras.Variable([1.0, 2.0], dtype=dtype) for dtype in ("float32", "float64", "float32")]
    optimizer = keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.1, 1, 1.0))
    optimizer.apply([pydist.ones(2, dtype=pydist.float64) for _ in variables], variables)
    for variable in variables:
        np.testing.assert_allclose(variable.numpy(), [0.9, 1.9], rtol=1e-6)
