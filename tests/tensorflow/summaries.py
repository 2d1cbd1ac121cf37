"""tf.summary: what is in the event files. test_tensorflow.py runs this file in a process of its own."""

import struct

import numpy as np
import tensorflow as tf

from pydist.data.example import _fields


def events(folder):
    """[(step, tag, kind, the content's bytes, plugin)] of the event files of a folder."""
    found = []
    for path in sorted(folder.rglob("*tfevents*")):
        for record in tf.data.TFRecordDataset(str(path)):
            event = dict(_fields(record.numpy(), "event"))
            for _, value in _fields(event.get(5, b""), "summary"):
                parts = dict(_fields(value, "value"))
                kind = next(name for number, name in KINDS.items() if number in parts)
                plugin = dict(_fields(dict(_fields(parts.get(9, b""), "m")).get(1, b""), "p")).get(1, b"")
                found.append(
                    (event.get(2, 0), parts[1].decode(), kind, parts[{v: k for k, v in KINDS.items()}[kind]], plugin)
                )
    return found


KINDS = {2: "scalar", 4: "image", 5: "histogram", 8: "tensor"}


def test_summaries(tmp_path):
    writer = tf.summary.create_file_writer(tmp_path / "a")
    writer.init()
    assert not tf.summary.scalar("outside", 1.0, step=1) and not tf.summary.should_record_summaries()
    with writer.as_default(step=3):
        assert tf.summary.scalar("loss", tf.constant(0.5)) and tf.summary.should_record_summaries()
        assert tf.summary.experimental.get_step() == 3
        tf.summary.histogram("h", tf.range(10.0), step=4)
        tf.summary.image("i", np.zeros((5, 2, 2, 3)), max_outputs=2)
        tf.summary.text("t", "hello")
        with tf.summary.record_if(lambda: False):
            assert not tf.summary.scalar("no", 1.0)
        with tf.summary.experimental.summary_scope("part", values=[1]) as (tag, scope):
            assert (tag, scope) == ("part", "part/")
            metadata = tf.compat.v1.SummaryMetadata(tf.compat.v1.PluginData("mine", b"1"))
            tf.summary.write(tag, "text", step=5, metadata=metadata)
        tf.summary.experimental.set_step(7)
        tf.summary.scalar("loss", 0.25)
    tf.summary.flush(writer)
    writer.close()
    found = events(tmp_path)
    assert [(step, tag, kind) for step, tag, kind, _, _ in found] == [
        (3, "loss", "scalar"), (4, "h", "histogram"), (3, "i", "image"), (3, "i/1", "image"), (3, "t", "tensor"),
        (5, "part", "tensor"), (7, "loss", "scalar"),
    ]  # fmt: skip
    assert [struct.unpack("<f", content)[0] for *_, kind, content, _ in found if kind == "scalar"] == [0.5, 0.25]
    assert found[4][4] == b"text" and found[5][4] == b"mine"


def test_a_default_writer_and_one_that_writes_nothing(tmp_path):
    writer = tf.summary.create_file_writer(str(tmp_path))
    writer.set_as_default(step=1)
    try:
        with tf.summary.create_noop_writer().as_default():
            assert not tf.summary.scalar("no", 1.0)
        assert tf.summary.scalar("yes", 1.0)
    finally:
        tf.summary._here.writers.clear()
        tf.summary.experimental.set_step(None)
    writer.close()
    assert [tag for _, tag, *_ in events(tmp_path)] == ["yes"]
    other = tf.summary.SummaryWriter(str(tmp_path / "b"))
    with other.as_default(), np.testing.assert_raises(ValueError):
        tf.summary.scalar("no step", 1.0)
    other.close()


def test_there_are_no_graphs_to_trace(caplog):
    tf.summary.trace_on(graph=True)
    assert "there are no graphs to trace" in caplog.text
    assert tf.summary.trace_export("x", step=0) is None and tf.summary.trace_off() is None


def test_keras_callback(tmp_path):
    model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    board = tf.keras.callbacks.TensorBoard(tmp_path, histogram_freq=1, write_images=True, update_freq=1)
    x, y = np.ones((8, 3)), np.ones((8, 1))
    model.fit(x, y, epochs=2, verbose=0, callbacks=[board], validation_data=(x, y))
    kinds = {(tag.split("/")[-1], kind) for _, tag, kind, _, _ in events(tmp_path / "train")}
    assert {("epoch_loss", "scalar"), ("batch_loss", "scalar"), ("histogram", "histogram"), ("image", "image")} <= kinds
    assert [step for step, tag, *_ in events(tmp_path / "validation") if tag == "epoch_loss"] == [0, 1]
