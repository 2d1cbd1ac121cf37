"""The facade beside what TensorFlow gave (record.py). test_tensorflow.py runs this file in a process of its own."""

import contextlib
import importlib
import io
import json
import math
import re
import runpy
import types
from pathlib import Path

import numpy as np
import pytest
import record
import tensorflow as tf

from pydist._docs.names import walk

RECORDED = dict(map(json.loads, record.RECORDED.read_text().splitlines()))


def same(ours, theirs):
    """Whether two results of record.plain are equal, floats up to rounding."""
    if isinstance(theirs, dict):
        return isinstance(ours, dict) and ours.keys() == theirs.keys() and all(same(ours[k], theirs[k]) for k in theirs)
    if isinstance(theirs, list):
        return isinstance(ours, list) and len(ours) == len(theirs) and all(map(same, ours, theirs))
    if isinstance(theirs, float) and isinstance(ours, float):
        return math.isclose(ours, theirs, rel_tol=2e-5, abs_tol=2e-6) or math.isnan(ours) and math.isnan(theirs)
    return type(ours) is type(theirs) and ours == theirs


@pytest.mark.parametrize("line", list(record.lines()))
def test_case(line):
    ours, theirs = record.run(line, tf, np), RECORDED[line]
    assert same(ours, theirs), f"{line}\nours: {ours}\ntheirs: {theirs}"


def test_a_difference_is_found():
    theirs = {"dtype": "float32", "shape": [2], "values": [1.0, 2.0]}
    assert same(dict(theirs), theirs) and len(RECORDED) > 500
    for change in ({"dtype": "float64"}, {"shape": [1, 2]}, {"values": [1.0, 2.1]}, {"values": [1, 2.0]}):
        assert not same({**theirs, **change}, theirs)


@pytest.mark.parametrize("path", record.programs(), ids=lambda path: path.stem)
def test_program_prints_what_it_prints_in_tensorflow(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        runpy.run_path(str(path), run_name="__main__")
    assert out.getvalue() == path.with_suffix(".out").read_text()


def modules():
    """The facade's modules, by their names in TensorFlow."""
    names = [name for name in walk() if name.startswith("pydist.tensorflow") and "._" not in name]
    return {name.replace("pydist.tensorflow", "tf"): importlib.import_module(name) for name in names}


def public_names():
    """(name in TensorFlow, thing) of what the facade's modules have."""
    for theirs, module in modules().items():
        for name in dir(module):
            if not name.startswith("_"):
                yield f"{theirs}.{name}", getattr(module, name)


def thing_called(name):
    """What a dotted name, or the part of it that is one, leads to."""
    found = tf
    for part in name.split(".")[1:]:
        found = getattr(found, part, found)
        if not isinstance(found, types.ModuleType):
            return found
    return found


def test_every_name_is_tested():
    """By a case, a program or a test here: under one of its names."""
    here = Path(__file__).parent
    text = "\n".join(
        p.read_text() for p in [*here.glob("cases_*.txt"), *here.glob("programs/*.py"), *here.glob("*.py")]
    )
    tested = {id(thing_called(name)) for name in set(re.findall(r"(?<![\w.])tf(?:\.\w+)+", text))}
    names = list(public_names())
    assert len(names) > 500
    own = [(n, thing) for n, thing in names if str(getattr(thing, "__module__", "")).startswith("pydist.tensorflow")]
    lacking = [name for name, thing in own if callable(thing) and id(thing) not in tested]
    assert not lacking, f"{len(lacking)} names without a test: {' '.join(lacking)}"


def test_modules_have_no_names_of_their_own():
    """What a module of the facade imports for itself begins with an underscore."""
    parts = {id(module) for module in modules().values()}
    others = {
        id(tf.data),
        id(tf.distribute),
        id(tf.keras),
        id(tf.losses),
        id(tf.metrics),
        id(tf.optimizers),
        id(tf.initializers),
    }
    for name, thing in public_names():
        assert not isinstance(thing, types.ModuleType) or id(thing) in parts | others, name


def test_every_listed_name_is_there():
    for name in dir(tf):
        assert getattr(tf, name) is not None or name == "newaxis", name
    assert isinstance(tf.keras, types.ModuleType) and tf.losses.MeanSquaredError is tf.keras.losses.MeanSquaredError


def test_what_pydist_does_otherwise():
    """Where TensorFlow raises or needs a GPU."""
    assert tf.add(tf.constant([1]), tf.constant([0.5])).dtype == tf.float32  # mixed dtypes are promoted
    with pytest.raises(NotImplementedError, match="PYDIST_NAN=2"):
        tf.debugging.enable_check_numerics()
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.experimental.set_memory_growth(cpu, True)
    assert tf.config.experimental.get_memory_growth(cpu) is True
    for memory in (tf.config.experimental.get_memory_info, tf.config.experimental.reset_memory_stats):
        with pytest.raises(ValueError, match="memory of the CPU is not counted"):
            memory("CPU:0")
    gpu = tf.config.PhysicalDevice("/physical_device:GPU:99", "GPU")
    with pytest.raises(ValueError, match="is not there"):
        tf.config.experimental.set_memory_growth(gpu, True)
