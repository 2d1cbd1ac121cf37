"""tf.train.Example: the bytes are TensorFlow's, and columns are what the messages say."""

import struct

import numpy as np
import pytest

import pydist
from pydist import data
from pydist.data import (
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

# What TensorFlow 2.21 serializes, in the order of keys.
EXAMPLE = bytes.fromhex(
    "0a530a110a0162120c0a0a0a0278790a000a0200ff0a050a016512000a150a01661210120e0a0c0000c03f000000c0e6b1617f0a200a0169"
    "121b1a190a170001ffffffffffffffffff01ac02808080808080808040"
)
SEQUENCE = bytes.fromhex("0a0c0a0a0a016e12051a030a010312160a140a0177120f0a061a040a0201020a051a030a0105")


def ints(*value):
    return Feature(int64_list=Int64List(value=value))


def floats(*value):
    return Feature(float_list=FloatList(value=value))


def strings(*value):
    return Feature(bytes_list=BytesList(value=value))


def row(**features):
    return Example(features=Features(feature=features)).SerializeToString()


def test_the_bytes_are_tensorflows():
    made = Example(
        features=Features(
            feature={
                "b": strings(b"xy", b"", b"\0\xff"),
                "f": floats(1.5, -2, 3e38),
                "i": ints(0, 1, -1, 300, 2**62),
                "e": Feature(),
            }
        )
    )
    assert made.SerializeToString(deterministic=True) == EXAMPLE and len(EXAMPLE) == made.ByteSize()
    read = Example.FromString(EXAMPLE)
    assert read == made and read.features.feature["i"].int64_list.value == [0, 1, -1, 300, 2**62]
    assert read.features.feature["f"].float_list.value == np.float32([1.5, -2, 3e38]).tolist()
    assert read.features.feature["e"].WhichOneof("kind") is None and read != Example()
    made = SequenceExample(
        context=Features(feature={"n": ints(3)}),
        feature_lists=FeatureLists(feature_list={"w": FeatureList(feature=[ints(1, 2), ints(5)])}),
    )
    assert made.SerializeToString() == SEQUENCE and SequenceExample.FromString(SEQUENCE) == made


def test_messages_are_filled_step_by_step():
    made = Example()
    assert not made.HasField("features") and made.SerializeToString() == b""
    feature = made.features.feature
    feature["a"].int64_list.value.append(5)
    feature["a"].int64_list.value.extend(np.array([6, 7]))
    feature["b"].bytes_list.value.extend([b"x"])
    assert feature["a"].float_list.value == [] and feature["a"].WhichOneof("kind") == "int64_list"
    assert feature["a"].HasField("int64_list") and not feature["a"].HasField("float_list")
    assert Example.FromString(made.SerializeToString()) == made
    copy = Example()
    copy.CopyFrom(made)
    copy.features.feature["a"].float_list.value.append(1.5)  # another kind takes its place
    assert copy.features.feature["a"].int64_list.value == [] and copy != made
    assert "float_list" in repr(copy) and made.features.feature["a"].int64_list.value == [5, 6, 7]


def test_columns_of_a_batch():
    features = {
        "label": FixedLenFeature([], pydist.int64),
        "xy": FixedLenFeature([2], pydist.float32),
        "names": FixedLenFeature((2, 1), data.string),
    }
    rows = [
        row(label=ints(i), xy=floats(i, i + 0.5), names=strings(b"a", b"%d" % i), more=ints(1, 2)) for i in range(5)
    ]
    found = parse_example(rows, features)
    assert list(found) == ["label", "xy", "names"]
    assert found["label"].dtype is pydist.int64 and found["label"].tolist() == list(range(5))
    assert found["xy"].tolist() == [[i, i + 0.5] for i in range(5)]
    assert found["names"].tolist() == [[[b"a"], [b"%d" % i]] for i in range(5)]
    single = parse_single_example(rows[3], features)
    assert single["label"].shape == () and single["label"].item() == 3 and single["xy"].tolist() == [3, 3.5]
    assert single["names"].tolist() == [[b"a"], [b"3"]]
    empty = parse_example(data.StringTensor([]), features)
    assert empty["label"].shape == (0,) and empty["xy"].shape == (0, 2) and empty["names"].shape == (0, 2, 1)


def test_defaults_stand_for_what_is_absent():
    features = {
        "i": FixedLenFeature([2], pydist.int64, 7),
        "f": FixedLenFeature([2], pydist.float32, [1, 2]),
        "s": FixedLenFeature([], data.string, "none"),
        "e": FixedLenFeature([2], data.string, ""),
    }
    rows = [row(i=ints(1, 2), s=strings(b"s")), row(f=floats(5, 6), e=strings(b"x", b"y")), row(i=Feature())]
    found = parse_example(rows, features)
    assert found["i"].tolist() == [[1, 2], [7, 7], [7, 7]] and found["f"].tolist() == [[1, 2], [5, 6], [1, 2]]
    assert found["s"].tolist() == [b"s", b"none", b"none"] and found["e"].tolist()[1:] == [[b"x", b"y"], [b"", b""]]
    single = parse_single_example(rows[1], features)
    assert single["i"].tolist() == [7, 7] and single["s"].numpy() == b"none" and single["f"].tolist() == [5, 6]


def test_rows_of_any_length_are_filled_up():
    features = {
        "i": VarLenFeature(pydist.int64),
        "s": VarLenFeature(data.string),
        "d": FixedLenSequenceFeature([], pydist.float32, allow_missing=True, default_value=9),
        "p": FixedLenSequenceFeature([2], pydist.int64, allow_missing=True, default_value=[4, 5]),
    }
    rows = [row(i=ints(1), s=strings(b"a", b"bc"), p=ints(1, 2, 3, 4)), row(d=floats(1, 2), i=ints(1, 2, 3)), row()]
    found = parse_example(rows, features)
    assert found["i"].tolist() == [[1, 0, 0], [1, 2, 3], [0, 0, 0]]
    assert found["s"].tolist() == [[b"a", b"bc"], [b"", b""], [b"", b""]]
    assert found["d"].tolist() == [[9, 9], [1, 2], [9, 9]]
    assert found["p"].tolist() == [[[1, 2], [3, 4]], [[4, 5], [4, 5]], [[4, 5], [4, 5]]]
    single = parse_single_example(rows[0], features)
    assert single["i"].tolist() == [1] and single["d"].shape == (0,) and single["p"].tolist() == [[1, 2], [3, 4]]
    none = parse_example([row(), row()], features)
    assert none["i"].shape == (2, 0) and none["s"].shape == (2, 0) and none["p"].shape == (2, 0, 2)


def field(number, content):
    return data.example._counted(number, content)


def test_every_form_of_the_wire_is_read():
    """Values that are not packed, lists in parts, keys twice, fields that nobody knows."""
    loose = b"".join(b"\x08" + data.example._varint(n) for n in (1, 200, (1 << 64) - 3))
    values = b"".join(b"\x0d" + struct.pack("<f", x) for x in (1.0, 2.5))
    unknown = b"\x79" + bytes(8) + b"\x7d" + bytes(4) + b"\x78\x01" + field(15, b"???")

    def entry(key, feature):
        return field(1, unknown + field(1, key) + field(2, feature))

    halves = field(3, field(1, b"\x01")) + unknown + field(3, field(1, b"\x02\x03"))
    exchanged = field(1, field(1, b"old")) + field(3, field(1, b"\x09"))
    message = unknown + field(1, entry(b"i", field(3, loose)) + entry(b"f", field(2, values)) + entry(b"h", halves))
    message += field(1, entry(b"h", halves) + entry(b"x", exchanged) + entry(b"i", field(3, loose)) + unknown)
    features = {
        "i": FixedLenFeature([3], pydist.int64),
        "f": FixedLenFeature([2], pydist.float32),
        "h": VarLenFeature(pydist.int64),
        "x": FixedLenFeature([], pydist.int64),
    }
    found = parse_single_example(message, features)
    assert [found[key].tolist() for key in "ifhx"] == [[1, 200, -3], [1.0, 2.5], [1, 2, 3], 9]
    python = Example.FromString(message).features.feature
    assert python["i"].int64_list.value == [1, 200, -3] and python["f"].float_list.value == [1.0, 2.5]
    assert python["h"].int64_list.value == [1, 2, 3] and python["x"].int64_list.value == [9]


GOOD = row(i=ints(1, 2), f=floats(1), s=strings(b"a"))


@pytest.mark.parametrize(
    "first, features, text",
    [
        ({"i": ints(1)}, {"i": FixedLenFeature([], pydist.int64)}, "row 1: feature 'i' has 2 values .expected 1"),
        (
            {"i": ints(1, 2, 3)},
            {"i": FixedLenFeature([3], pydist.int64)},
            "row 1: feature 'i' has 2 values .expected 3",
        ),
        (
            {"i": floats(1, 2)},
            {"i": FixedLenFeature([2], pydist.float32)},
            "row 1: feature 'i' is a int64_list .expected a float_list",
        ),
        (
            {"f": strings(b"1")},
            {"f": FixedLenFeature([1], data.string)},
            "row 1: feature 'f' is a float_list .expected a bytes_list",
        ),
        ({}, {"no": FixedLenFeature([], pydist.int64)}, "row 0 has no feature 'no' .expected one, or a default_value"),
        ({}, {"i": FixedLenSequenceFeature([3], pydist.int64, True)}, "feature 'i' has 2 values .* multiple of 3"),
    ],
)
def test_messages_with_other_values_are_refused(first, features, text):
    with pytest.raises(data.DataError, match=f"parse_example: .*{text}"):
        parse_example([row(**first), GOOD], features)


def test_damaged_messages_are_refused():
    features = {"i": VarLenFeature(pydist.int64), "f": VarLenFeature(pydist.float32), "s": VarLenFeature(data.string)}
    parse_single_example(GOOD, features)
    refused = 0
    for cut in range(1, len(GOOD)):
        for parse in (lambda m: parse_single_example(m, features), Example.FromString):
            with pytest.raises(data.DataError, match="damaged"):
                parse(GOOD[:cut])
                refused -= 1
            refused += 1
    assert refused == 2 * (len(GOOD) - 1)
    for bad in (b"\x0b", b"\x0f", b"\xff" * 11, b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"):
        with pytest.raises(data.DataError, match="row 0 is damaged, or no tf.train.Example"):
            parse_single_example(bad, features)
    spans = pydist.tensor([[0, 4], [3, 9]])
    with pytest.raises(data.DataError, match="row 1 is at bytes 3 to 9 of 8"):
        pydist._C._data_example("op", pydist.zeros(8, dtype=pydist.uint8), spans, ())


@pytest.mark.parametrize(
    "serialized, features, kind, text",
    [
        ([GOOD], {}, ValueError, "features is {} .expected a dictionary with at least one feature"),
        ([GOOD], [1], ValueError, "expected a dictionary"),
        ([GOOD], {"i": 3}, TypeError, "feature 'i' is int .expected FixedLenFeature"),
        ([GOOD], {"i": FixedLenFeature([], pydist.int32)}, TypeError, "'i' has dtype .*int32 .expected float32, int64"),
        ([GOOD], {"i": FixedLenFeature([-1], pydist.int64)}, ValueError, "a size of feature 'i' is -1"),
        ([GOOD], {"i": FixedLenFeature([None], pydist.int64)}, TypeError, "a size of feature 'i' is None"),
        (
            [GOOD],
            {"i": FixedLenFeature([2], pydist.int64, [1, 2, 3])},
            ValueError,
            "'i' has default_value .* .expected 2",
        ),
        ([GOOD], {"i": FixedLenFeature([2], pydist.int64, "a")}, ValueError, "'i' has default_value 'a'"),
        ([GOOD], {"i": FixedLenSequenceFeature([], pydist.int64)}, ValueError, "'i' has allow_missing=False"),
        ([GOOD], {"i": FixedLenSequenceFeature([0], pydist.int64, True)}, ValueError, "expected sizes of 1 or more"),
        (GOOD, {"i": VarLenFeature(pydist.int64)}, ValueError, "expected 1 dims; parse_single_example takes one"),
        ([[GOOD]], {"i": VarLenFeature(pydist.int64)}, ValueError, r"has shape \(1, 1\)"),
        (3, {"i": VarLenFeature(pydist.int64)}, TypeError, "serialized is Tensor .expected strings"),
        ([GOOD], {"i": FixedLenFeature([1] * 99, pydist.int64)}, ValueError, "99 dims"),
    ],
)
def test_what_is_refused(serialized, features, kind, text):
    with pytest.raises(kind, match=f"parse_example: .*{text}"):
        parse_example(serialized, features)


def test_lists_of_other_things_are_refused():
    for make, text in [
        (lambda: BytesList(value=["text"]), "BytesList: value has 'text' .expected bytes"),
        (lambda: FloatList(value=["1"]), "FloatList: value is"),
        (lambda: FloatList(value=[1e60]), "FloatList: value is"),
        (lambda: Int64List(value=[1.5]), "Int64List: value is 1.5"),
        (lambda: Int64List(value=[1 << 63]), "Int64List: value is 9223372036854775808"),
        (lambda: Feature(int64_list=[1]), "Feature: int64_list is list .expected Int64List"),
        (lambda: Features(feature={"a": 1}), "Features: 'a' is int .expected Feature by name"),
        (lambda: Features(feature=[1]), "Features: feature is list .expected a dictionary"),
        (
            lambda: Feature(int64_list=Int64List(), float_list=FloatList()),
            "got float_list and int64_list .expected one",
        ),
        (lambda: Example().HasField("x"), "Example has no field 'x' .expected features"),
    ]:
        with pytest.raises((TypeError, ValueError), match=text):
            make()
    with pytest.raises(AttributeError, match="Example has no field 'feature' .expected features"):
        Example().feature


def test_a_dictionary_of_features_may_change():
    features = {"i": FixedLenFeature([2], pydist.int64)}
    assert parse_single_example(GOOD, features)["i"].tolist() == [1, 2]
    features["f"] = FixedLenFeature([1], pydist.float32)
    assert list(parse_single_example(GOOD, features)) == ["i", "f"]
    features["i"] = VarLenFeature(pydist.int64)
    del features["f"]
    assert list(parse_example([GOOD], features)) == ["i"]
