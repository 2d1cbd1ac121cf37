"""Checkpoints and saved models where pydist goes further than TensorFlow, or refuses. test_tensorflow.py runs this file
in a process of its own."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf


class Net(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.first = tf.keras.layers.Dense(4, activation="relu")
        self.rest = [tf.keras.layers.BatchNormalization(), tf.keras.layers.Dense(2)]

    def call(self, x, training=False):
        x = self.first(x)
        for layer in self.rest:
            x = layer(x)
        return x


def trained(steps=3):
    """A model and its optimizer after some steps."""
    net, optimizer = Net(), tf.keras.optimizers.Adam(0.1)
    train(net, optimizer, steps)
    return net, optimizer


def train(net, optimizer, steps):
    x, y = tf.reshape(tf.range(12.0), [4, 3]), tf.ones([4, 2])
    for _ in range(steps):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(net(x, training=True) - y))
        optimizer.apply_gradients(zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables))
    return loss.numpy()


def values(thing):
    return [np.array(v) for v in thing.variables]


def equal(ours, theirs):
    return len(ours) == len(theirs) and all(np.array_equal(a, b) for a, b in zip(ours, theirs))


def test_layers_and_optimizers_that_are_built_later(tmp_path):
    """Training goes on as if it had not been interrupted, slots of the optimizer and statistics included."""
    tf.keras.utils.set_random_seed(0)
    net, optimizer = trained()
    path = tf.train.Checkpoint(net=net, optimizer=optimizer).save(tmp_path / "ckpt")
    new_net, new_optimizer = Net(), tf.keras.optimizers.Adam(0.1)
    status = tf.train.Checkpoint(net=new_net, optimizer=new_optimizer).restore(path)
    new_net(tf.zeros([1, 3]))
    assert equal(values(new_net), values(net))
    assert train(new_net, new_optimizer, 2) == train(net, optimizer, 2)
    assert equal(values(new_optimizer), values(optimizer)) and int(new_optimizer.iterations) == 5
    status.assert_consumed()


def test_a_model_as_the_root_and_one_that_is_built_already(tmp_path):
    net, _ = trained()
    path = tf.train.Checkpoint(net).write(tmp_path / "root")
    other, _ = trained(1)
    tf.train.Checkpoint(other).read(path).assert_consumed()
    assert equal(values(other), values(net))
    names = [name for name, _ in tf.train.list_variables(path)]
    assert "first/kernel/.ATTRIBUTES/VARIABLE_VALUE" in names and len(names) == len(net.variables)


def test_iterators_and_generators(tmp_path):
    def parts():
        ds = tf.data.Dataset.range(100).shuffle(100, seed=1)
        return {"iterator": iter(ds), "generator": tf.random.Generator.from_seed(3)}

    one = parts()
    seen = [next(one["iterator"]).numpy() for _ in range(30)]
    one["generator"].normal([5])
    path = tf.train.Checkpoint(**one).write(tmp_path / "state")
    two = parts()
    tf.train.Checkpoint(**two).read(path).assert_consumed()
    assert [x.numpy() for x in two["iterator"]] == [x.numpy() for x in one["iterator"]] and len(set(seen)) == 30
    assert np.array_equal(two["generator"].uniform([4]).numpy(), one["generator"].uniform([4]).numpy())


def test_damaged_files_are_named(tmp_path):
    variable = tf.Variable(tf.range(1000.0))
    path = tf.train.Checkpoint(x=variable).write(tmp_path / "c")
    data = Path(f"{path}.data-00000-of-00001")
    whole, index = data.read_bytes(), Path(f"{path}.index").read_text()
    fresh = tf.Variable(tf.zeros(1000))
    for at in (3, 40, len(whole) // 2, len(whole) - 1):
        flipped = bytearray(whole)
        flipped[at] ^= 16
        data.write_bytes(flipped)
        with pytest.raises(tf.errors.DataLossError, match="data-00000-of-00001 is damaged"):
            tf.train.Checkpoint(x=fresh).read(path)
    for size in (0, 5, 100, len(whole) - 1):
        data.write_bytes(whole[:size])
        with pytest.raises(tf.errors.DataLossError, match="data-00000-of-00001 is damaged"):
            tf.train.Checkpoint(x=fresh).read(path)
    assert not fresh.numpy().any()
    data.unlink()
    with pytest.raises(tf.errors.NotFoundError, match="no file .*data-00000-of-00001"):
        tf.train.Checkpoint(x=fresh).read(path)
    data.write_bytes(whole)
    for text in ("", index[:5], "\0\1bundle of TensorFlow", json.dumps([1])):
        Path(f"{path}.index").write_text(text)
        with pytest.raises(tf.errors.DataLossError, match="is TensorFlow's own or damaged"):
            tf.train.Checkpoint(x=fresh).read(path)
    Path(f"{path}.index").write_text(index)
    tf.train.Checkpoint(x=fresh).read(path).assert_consumed()


def test_a_failed_save_leaves_the_files_before(tmp_path, monkeypatch):
    variable = tf.Variable(1.0)
    checkpoint = tf.train.Checkpoint(x=variable)
    path = checkpoint.write(tmp_path / "c")
    variable.assign(2.0)
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", lambda *paths: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            checkpoint.write(path)
    assert sorted(os.listdir(tmp_path)) == ["c.data-00000-of-00001", "c.index"]
    checkpoint.read(path)
    assert variable.numpy() == 1.0


def test_what_cannot_be_saved(tmp_path):
    with pytest.raises(NotImplementedError, match="expected a Keras model; tf.train.Checkpoint saves"):
        tf.saved_model.save(tf.Module(), tmp_path / "a")
    with pytest.raises(ValueError, match="the model has no variables yet"):
        tf.saved_model.save(Net(), tmp_path / "a")
    (tmp_path / "saved_model.pb").write_bytes(b"graph")
    with pytest.raises(NotImplementedError, match="is TensorFlow's own SavedModel"):
        tf.saved_model.load(tmp_path)
    model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(2)])
    tf.saved_model.save(model, tmp_path / "m")
    assert sorted(os.listdir(tmp_path / "m")) == ["model.keras", "saved_model.json"]
    loaded, x = tf.saved_model.load(tmp_path / "m"), tf.ones([1, 3])
    assert np.array_equal(loaded(x).numpy(), model(x).numpy())
    with pytest.raises(NotImplementedError, match="signatures"):
        tf.saved_model.save(model, tmp_path / "m", signatures={"f": None})
