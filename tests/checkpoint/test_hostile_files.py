"""Checkpoints that are damaged or lie: each is an error that says so, and never a wrong value."""

import contextlib
import copy
import json
import os
import pickle
import random
import shutil
import struct
import zipfile

import pytest

import pydist
from lib import checkpoint_files as files
from pydist import checkpoint as command_line
from pydist.distributed import checkpoint
from pydist.distributed.checkpoint import (
    CheckpointException,
    DefaultLoadPlanner,
    DefaultSavePlanner,
    FileSystemReader,
    TensorPart,
    format_utils,
    load,
    save,
)
from pydist.safetensors import SafetensorError, load_file, save_file
from pydist.testing import run_ranks

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
FLIPS = 2000 if "FULL_LONG" in os.environ else 200
REFUSED = (CheckpointException, SafetensorError)


def tensors():
    return {
        "w": pydist.arange(60.0).view(12, 5),
        "b": pydist.arange(7, dtype=pydist.int64),
        "h": pydist.ones(3).half(),
        "e": pydist.zeros(0, 4),
        "s": pydist.tensor(2.5),
    }


LEAVES = {"step": 7, "name": "é", "t": (1, 2)}


def state():
    return {"model": tensors(), "about": dict(LEAVES)}


def empty():
    return {
        "model": {name: pydist.full_like(value, 9) for name, value in tensors().items()},
        "about": dict.fromkeys(LEAVES),
    }


def is_saved(loaded):
    same = all(
        pydist.equal(loaded["model"][name], value) and loaded["model"][name].dtype == value.dtype
        for name, value in tensors().items()
    )
    return same and loaded["about"] == LEAVES


def write_shares(rank, path):
    w = tensors()["w"]
    mine = w[:, :2] if rank == 0 else w[:, 2:]
    part = TensorPart(mine.contiguous(), w.shape, (0, 2 * rank))
    save({**state(), "model": {**tensors(), "w": part}}, checkpoint_id=path)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A checkpoint of two files."""
    path = tmp_path_factory.mktemp("made") / "a"
    run_ranks(2, write_shares, path)
    loaded = empty()
    load(loaded, checkpoint_id=path)
    assert is_saved(loaded) and len(files.file_names(path)) == 2
    return path


@pytest.fixture
def path(made, tmp_path):
    shutil.copytree(made, tmp_path / "a")
    return str(tmp_path / "a")


def refused(path, word="", wanted=None, verify=True):
    """load raises one of the two errors, and so do load of everything, and verify."""
    with pytest.raises(REFUSED, match=word or None):
        load(empty() if wanted is None else wanted, checkpoint_id=path)
    if verify:
        with pytest.raises(REFUSED, match=word or None):
            FileSystemReader(path).read_metadata()
        with pytest.raises(REFUSED, match=word or None):
            format_utils.load_whole(path)
        assert command_line.main(["verify", str(path)]) == 1


def all_files(path):
    return [os.path.join(path, name) for name in sorted(os.listdir(path))]


# Bytes.


@pytest.mark.parametrize("what", range(3))
def test_cut_padded_and_zeroed_files(path, what):
    file = all_files(path)[what]
    good = files.read(file)
    for data in (
        b"",
        good[:7],
        good[:8],
        good[:100],
        good[:-1],
        good + b"\0",
        good + b" " * 4096,
        b"\0" * len(good),
        b"\xff" * len(good),
        good[: len(good) // 2] + b"\0" * (len(good) - len(good) // 2),
        b"\0" * 8 + good[8:],
        good[1:] + b" ",
    ):
        files.write(file, data)
        with pytest.raises(REFUSED):
            load(empty(), checkpoint_id=path)
        assert command_line.main(["verify", "--full", path]) == 1
    os.unlink(file)
    refused(path, "not finished" if what == 2 else "missing")
    os.mkdir(file)
    refused(path)


def test_every_flipped_bit_is_found(path):
    """By verify --full wherever it is, and by load, which reads all of this checkpoint."""
    names = all_files(path)
    contents = {name: files.read(name) for name in names}
    draw, total = random.Random(1), sum(map(len, contents.values()))
    for _ in range(FLIPS):
        at = draw.randrange(total)
        for name in names:
            if at < len(contents[name]):
                break
            at -= len(contents[name])
        data = bytearray(contents[name])
        data[at] ^= 1 << draw.randrange(8)
        files.write(name, data)
        assert command_line.main(["verify", "--full", path]) == 1, (name, at)
        with pytest.raises(REFUSED):
            load(empty(), checkpoint_id=path)
        files.write(name, contents[name])
    assert command_line.main(["verify", "--full", path]) == 0


def test_every_bit_of_the_manifest_and_of_the_data(path):
    """Not a sample: all of them."""
    for name in all_files(path):
        good = files.read(name)
        begin = 0 if name.endswith(".json") else 8 + struct.unpack("<Q", good[:8])[0]
        for at in range(begin, len(good)):
            data = bytearray(good)
            data[at] ^= 1 << at % 8
            files.write(name, data)
            with pytest.raises(REFUSED):
                load(empty(), checkpoint_id=path)
        files.write(name, good)


def test_damage_is_found_where_it_is_read(path):
    """A tensor that is right loads, whatever another one of its file is like."""
    file = os.path.join(path, "00000.safetensors")
    data = bytearray(files.read(file))
    data[-1] ^= 1
    files.write(file, data)
    with pytest.raises(CheckpointException, match=r"00000\.safetensors: '.*' is damaged: block 0"):
        load(empty(), checkpoint_id=path)
    header, _ = files.taken_apart(bytes(data))
    last = max((entry["data_offsets"], name) for name, entry in header.items() if name != "__metadata__")[1]
    for name, value in tensors().items():
        wanted = {"model": {name: pydist.full_like(value, 9)}}
        if f"model.{name}" == last.split("@")[0]:
            refused(path, "damaged", wanted, verify=False)
        else:
            load(wanted, checkpoint_id=path)
            assert pydist.equal(wanted["model"][name], value)


def test_a_file_that_becomes_shorter_after_its_header_was_read(path):
    reader = FileSystemReader(path)
    reader.read_metadata()
    for name in files.file_names(path):
        file = os.path.join(path, name)
        files.write(file, files.read(file)[:4096])
    with pytest.raises(CheckpointException, match="shorter"):
        load(empty(), storage_reader=reader)


# The manifest. All have the right checksum for what they say.


def entry(**changed):
    def change(found):
        found["files"][0].update(changed)

    return change


def without(key):
    return lambda found: found.pop(key)


def put(key, value):
    return lambda found: found.__setitem__(key, value)


def twice(found):
    found["files"].append(found["files"][0])


def twice_for_once(found):
    found["files"][1] = found["files"][0]


def one_less(found):
    del found["files"][1]


@pytest.mark.parametrize(
    "change",
    [
        put("version", 2), put("version", 1.5), put("version", float("nan")), put("version", True), put("version", "1"),
        put("version", -1), put("version", None), put("version", [1]), without("version"), put("format", "other"), put("format", None),
        without("format"), put("files", {}), put("files", {"a": 1}), put("files", None), put("files", ["x"]),
        put("files", [[]]), without("files"), twice, twice_for_once, one_less,
        entry(name="../a/00000.safetensors"), entry(name="/etc/passwd"), entry(name="x/00000.safetensors"),
        entry(name=".."), entry(name=""), entry(name="00000.safetensors\0"), entry(name="\0.safetensors"),
        entry(name="00000.safetensors\n"), entry(name="x" * 10000 + ".safetensors"), entry(name="\ud800.safetensors"),
        entry(name=5), entry(name=None), entry(name=["00000.safetensors"]), entry(name="manifest.json"),
        entry(name=".safetensors"), entry(name="absent.safetensors"), entry(name="00001.safetensors"),
        entry(bytes=1 << 63), entry(bytes=1 << 64), entry(bytes=10**300), entry(bytes=-1), entry(bytes=0),
        entry(bytes=1e9), entry(bytes="5"), entry(bytes=None), entry(bytes=True), entry(header_crc=0),
        entry(header_crc=-1), entry(header_crc=1 << 70), entry(header_crc="00000000"), entry(header_crc=None),
        entry(header_crc=1.0),
    ],
)  # fmt: skip
def test_manifests_that_lie(path, change):
    found = json.loads(files.read(os.path.join(path, "manifest.json")))
    change(found)
    files.write_manifest(path, found)
    refused(path)


@pytest.mark.parametrize(
    "text",
    [b"", b"null", b"[]", b"5", b'"x"', b"{}", b'{"crc": 5}', b'{"crc": "0000000G"}', b"{" * 100000, b"[" * 100000 + b"]" * 100000,
     b"\xff\xfe", b'{"crc": "00000000"}', b"9" * 10000, b"{\"crc\": NaN}", b"\0" * 100],
)  # fmt: skip
def test_manifests_that_are_none(path, text):
    files.write(os.path.join(path, "manifest.json"), text)
    refused(path, "manifest is damaged")


def test_a_manifest_of_another_checkpoint(path, tmp_path):
    """Of the same state, so that all sizes are the same."""
    run_ranks(2, write_shares, tmp_path / "other")
    for name in ("manifest.json", "00000.safetensors"):
        here, there = (os.path.join(folder, name) for folder in (path, tmp_path / "other"))
        good = files.read(here)
        shutil.copy(there, here)
        refused(path)
        files.write(here, good)
    load(empty(), checkpoint_id=path)


def test_whitespace_in_a_manifest(path):
    name = os.path.join(path, "manifest.json")
    good = files.read(name)
    for data in (good + b"\n", b" " + good, good.replace(b",", b", ", 1), good.replace(b'"files"', b'"files" ')):
        files.write(name, data)
        refused(path, "checksum")


def test_files_of_a_save_that_was_not_finished(path):
    """They are files of safetensors, too, but no folder of Hugging Face's."""
    os.unlink(os.path.join(path, "manifest.json"))
    refused(path, "not finished")


# Headers. The manifest has the right checksum for them.


@pytest.fixture
def rewritten(path):
    """A function that changes the header of one file, and seals the checkpoint."""

    def change(fn, number=0):
        file = os.path.join(path, files.file_names(path)[number])
        header, data = files.taken_apart(files.read(file))
        changed = fn(header, data)
        files.write(file, files.put_together(header, data) if changed is None else changed)
        files.sealed(path)
        return path

    return change


def at(*keys, value):
    def change(header, data):
        place = header
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = value

    return change


def shard(value, *key):
    """DCP_SHARDING_INFO of the box of w in the file."""
    return at("__metadata__", "DCP_SHARDING_INFO", "model.w", *key, value=value)


W = {"saved_offsets": [0, 0], "logical_fqn": "model.w", "shape": [12, 5]}


def test_sealing_alone_changes_nothing(path, rewritten):
    rewritten(lambda header, data: None)
    rewritten(shard({**W}))
    loaded = empty()
    load(loaded, checkpoint_id=path)
    assert is_saved(loaded) and command_line.main(["verify", "--full", path]) == 0


@pytest.mark.parametrize(
    "value",
    [
        {**W, "saved_offsets": [0, 1]}, {**W, "saved_offsets": [0, 2]}, {**W, "saved_offsets": [1, 0]},
        {**W, "saved_offsets": [0, 3]}, {**W, "saved_offsets": [-1, 0]}, {**W, "saved_offsets": [0]},
        {**W, "saved_offsets": []}, {**W, "saved_offsets": [0, 0, 0]}, {**W, "saved_offsets": [0.0, 0]},
        {**W, "saved_offsets": [False, False]}, {**W, "saved_offsets": [1 << 62, 0]}, {**W, "saved_offsets": [10**400, 0]},
        {**W, "saved_offsets": None}, {**W, "saved_offsets": "00"}, {**W, "saved_offsets": {"0": 0}},
        {**W, "saved_offsets": [[0], [0]]}, {**W, "shape": [12, 6]}, {**W, "shape": [12]}, {**W, "shape": [12, 5, 1]},
        {**W, "shape": [1 << 61, 5]}, {**W, "shape": [1 << 61, 1 << 61]}, {**W, "shape": [0, 5]}, {**W, "shape": [12, True]},
        {**W, "shape": [12.0, 5]}, {**W, "shape": None}, {**W, "shape": "125"}, {**W, "logical_fqn": "other"},
        {**W, "logical_fqn": None}, {**W, "logical_fqn": 5}, {**W, "logical_fqn": ["model.w"]}, {"shape": [12, 5]}, None, {}, [], 5, "x",
        [0, 0],
    ],
    ids=str,
)  # fmt: skip
def test_boxes_that_overlap_or_miss_or_lie_outside(rewritten, value):
    refused(rewritten(shard(value)))


def swapped(header, data):
    """Two boxes exchange what they say of their places: sizes do not fit."""
    a, b, *_ = (entry for name, entry in header.items() if name != "__metadata__")
    a["data_offsets"], b["data_offsets"] = b["data_offsets"], a["data_offsets"]


@pytest.mark.parametrize(
    "change",
    [
        at("__metadata__", "DCP_SHARDING_INFO", value="{"), at("__metadata__", "DCP_SHARDING_INFO", value="[]"),
        at("__metadata__", "DCP_SHARDING_INFO", value="null"), at("__metadata__", "DCP_SHARDING_INFO", value={}),
        at("__metadata__", "DCP_SHARDING_INFO", value="[" * 100000), at("__metadata__", "crc32", value="{"),
        at("__metadata__", "DCP_SHARDING_INFO", value='{"x": ' + "9" * 5000 + "}"),
        at("__metadata__", "crc32", value="[]"), at("__metadata__", "crc32", value="null"),
        at("__metadata__", "crc32", value={}), at("__metadata__", "crc32", "model.w", value=""),
        at("__metadata__", "crc32", "model.w", value="0" * 7), at("__metadata__", "crc32", "model.w", value="0" * 9),
        at("__metadata__", "crc32", "model.w", value="0" * 16), at("__metadata__", "crc32", "model.w", value="0000000g"),
        at("__metadata__", "crc32", "model.w", value="0000000G"), at("__metadata__", "crc32", "model.w", value="-0000001"),
        at("__metadata__", "crc32", "model.w", value="００００００００"), at("__metadata__", "crc32", "model.w", value=0),
        at("__metadata__", "crc32", "model.w", value=None), at("__metadata__", "crc32", "model.w", value=[0]),
        at("__metadata__", "tree", value="{"), at("__metadata__", "tree", value="5"), at("__metadata__", "tree", value="[]"),
        at("__metadata__", "tree", value='{"leaves": ' + "[" * 100000), at("__metadata__", "tree", "leaves", value=[]),
        at("__metadata__", "tree", "leaves", value=None), at("__metadata__", "tree", "leaves", "about.step", value=5),
        at("__metadata__", "tree", "leaves", "about.step", value=None), at("__metadata__", "tree", "leaves", "about.step", value="\ud800"),
        at("__metadata__", "tree", "leaves", "about.step", value='"\u00e9"'),
        *[at("__metadata__", "tree", "paths", "about.step", value=value) for value in
          (5, None, "about", [], {}, [None], [["about", 1]], [1.5], [True], [[]], [[[0]]], [{"a": 1}], [["about"]], [["x"]])],
        at("__metadata__", "tree", "paths", value=None), at("__metadata__", "tree", "paths", value=[]),
        at("__metadata__", value=None), at("__metadata__", value=5), at("__metadata__", value=[]), at("__metadata__", value={}),
        at("__metadata__", "crc32", value=5), at("__metadata__", 5, value=[1]),
        at("model.w", value=None), at("model.w", value={}), at("model.w", "dtype", value="F99"), at("model.w", "dtype", value=None),
        at("model.w", "dtype", value="I32"), at("model.w", "dtype", value="F16"), at("model.w", "shape", value=[2, 12]),
        at("model.w", "shape", value=[12, 1, 2]), at("model.w", "shape", value=[-12, -2]), at("model.w", "shape", value=[12.0, 2]),
        at("model.w", "shape", value=[12, 2] + [1] * 60), at("model.w", "shape", value=[1 << 62, 1 << 62]),
        at("model.w", "shape", value=[12, 2] + [1] * 100000),
        at("model.w", "shape", value=""), at("model.w", "shape", value={}), at("model.w", "shape", value="\2"), at("model.w", "shape", value=None), at("model.w", "data_offsets", value=[0, 10**400]), at("model.w", "data_offsets", value=[False, 96]),
        at("model.w", "data_offsets", value=[0.0, 96.0]), at("model.w", "data_offsets", value=[96, 0]), at("model.w", "data_offsets", value=[0]),
        at("model.w", "data_offsets", value=[-96, 0]), at("model.w", "data_offsets", value="01"), swapped,
    ],
)  # fmt: skip
def test_headers_that_lie(path, rewritten, change):
    refused(rewritten(change))


@pytest.mark.parametrize(
    "head",
    [
        struct.pack("<Q", 100_000_000), struct.pack("<Q", 100_000_001), struct.pack("<Q", 1 << 63), struct.pack("<Q", (1 << 64) - 1),
        struct.pack("<Q", 0), struct.pack("<Q", 2) + b"{}", struct.pack("<Q", 2) + b"[]", struct.pack("<Q", 2) + b"\xff\xff",
    ],
)  # fmt: skip
def test_the_length_of_a_header(rewritten, head):
    refused(rewritten(lambda header, data: head + data))


def test_a_header_of_100_mb(path, rewritten):
    """It is read, and is no JSON. A sparse file has no blocks of its own."""
    name = rewritten(lambda header, data: struct.pack("<Q", 100_000_000) + b"{")
    file = os.path.join(path, "00000.safetensors")
    os.truncate(file, 100_000_008)
    files.sealed(name)
    with pytest.raises(REFUSED, match="not JSON"):
        FileSystemReader(path).read_metadata()


@pytest.mark.parametrize("shape", ["", {}, "1", {"1": 1}, None, 1, [[1]], [True], [1.0]], ids=str)
def test_a_shape_that_is_no_list(tmp_path, shape):
    """Of one element, so that a shape of nothing would fit."""
    text = json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, 4]}}).encode()
    files.write(tmp_path / "a.safetensors", struct.pack("<Q", len(text)) + text + bytes(4))
    with pytest.raises(SafetensorError):
        load_file(tmp_path / "a.safetensors")
    refused(tmp_path / "a.safetensors", wanted={"a": pydist.zeros(1)})


def test_a_name_twice_in_a_header(rewritten):
    def change(header, data):
        made = files.put_together(header, data)
        (length,) = struct.unpack("<Q", made[:8])
        text = made[8 : 8 + length].rstrip()
        key = json.dumps(header["model.w"])
        text = text[:-1] + b', "model.w": ' + key.encode() + b"}"
        return struct.pack("<Q", len(text)) + text + data

    refused(rewritten(change), "twice")


def write_nothing(rank, path):
    part = pydist.ones(4, 3)[: 0 if rank else 4].contiguous()
    save({"w": TensorPart(part, (4, 3), (0, 0))}, checkpoint_id=path)


def test_an_empty_part_begins_where_another_one_does(tmp_path):
    run_ranks(2, write_nothing, tmp_path / "a")
    wanted = {"w": pydist.zeros(4, 3)}
    load(wanted, checkpoint_id=tmp_path / "a")
    assert (
        pydist.equal(wanted["w"], pydist.ones(4, 3))
        and command_line.main(["verify", "--full", str(tmp_path / "a")]) == 0
    )


def test_values_lie_within_each_other(path, rewritten):
    """A path that goes through a tensor, or to the place of another value. Names alone are still right."""
    for way in (["model", "w", "x"], ["model", "w"], ["model"], ["about", "step", "x"], ["x"] * 100_000):
        rewritten(at("__metadata__", "tree", "paths", "about.name", value=way))
        with pytest.raises(REFUSED):
            format_utils.load_whole(path)


# Names.


@pytest.mark.parametrize(
    "name", ["..", "../../etc/passwd", "/", "a\0b", "\0", "n" * 10000, "", ".", "a@0,0", "\ud800", "é\n", "$dict", "__metadata__ "]
)  # fmt: skip
def test_names_are_only_names(tmp_path, name, capsys):
    """They come back as they are, and no file has them."""
    save({name: pydist.ones(3), "x": {name + "x": 5}}, checkpoint_id=tmp_path / "a")
    assert set(os.listdir(tmp_path / "a")) == {"manifest.json", "00000.safetensors"} and os.listdir(tmp_path) == ["a"]
    loaded = {name: pydist.zeros(3), "x": {name + "x": 0}}
    load(loaded, checkpoint_id=tmp_path / "a")
    assert pydist.equal(loaded[name], pydist.ones(3)) and loaded["x"] == {name + "x": 5}
    for words in (["verify", "--full"], ["show"], ["diff", str(tmp_path / "a")], ["ls"]):
        assert command_line.main([*words, str(tmp_path / "a")]) == 0
    capsys.readouterr()[0].encode()


def test_a_name_that_the_format_has_for_itself(tmp_path):
    with pytest.raises(REFUSED):
        save({"__metadata__": pydist.ones(3)}, checkpoint_id=tmp_path / "a")
    assert not os.listdir(tmp_path)


# What the state wants.


@pytest.mark.parametrize(
    "wanted",
    [
        pydist.zeros(12, 4), pydist.zeros(60), pydist.zeros(5, 12), pydist.zeros(12, 5, 1), pydist.zeros(()),
        pydist.zeros(12, 5, dtype=pydist.int64), pydist.zeros(12, 5, dtype=pydist.bool), pydist.zeros(12, 5, dtype=pydist.complex64), 5, None,
        {},
    ],
    ids=lambda value: str(getattr(value, "shape", value)),
)  # fmt: skip
def test_another_shape_or_kind_in_the_state(path, wanted):
    refused(path, "model.w", {"model": {"w": wanted}}, verify=False)


@pytest.mark.parametrize("dtype", ["int32", "int8", "uint8", "bool", "float32", "complex64"])
def test_integers_are_not_cut(path, dtype):
    refused(path, "model.b", {"model": {"b": pydist.zeros(7, dtype=getattr(pydist, dtype))}}, verify=False)


def test_floating_point_is_rounded(path):
    wanted = {"model": {"w": pydist.zeros(12, 5, dtype=pydist.float64), "h": pydist.zeros(3)}}
    load(wanted, checkpoint_id=path)
    assert wanted["model"]["w"].tolist() == tensors()["w"].tolist() and wanted["model"]["h"].tolist() == [1.0] * 3


def test_a_value_for_a_tensor_and_a_name_that_is_missing(path):
    refused(path, "about.step", {"about": {"step": pydist.zeros(2)}}, verify=False)
    refused(path, "about.name", {"about": {"name": pydist.zeros(())}}, verify=False)
    refused(path, "model.v", {"model": {"v": pydist.zeros(())}}, verify=False)


# Values that are no tensors.


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "nul", "[1,", '"\\ud8', "[" * 100000 + "]" * 100000, '{"a":' * 100000,
        '{"$nothing":1}', '{"$":1}', '{"$tuple":5}', '{"$tuple":1,"x":2}', '{"$x":1,"$y":2}', '{"$dict":5}', '{"$dict":[1]}',
        '{"$dict":[[1]]}', '{"$dict":[[1,2,3]]}', '{"$dict":[[[],1]]}', '{"$ordered":{"a":1}}', '{"$set":[[]]}', '{"$set":5}',
        '{"$complex":["a"]}', '{"$complex":[1,2,3]}', '{"$bytes":5}', '{"$bytes":"!"}', '{"$bytes":"é"}', '{"$dtype":"Tensor"}', '{"$dtype":[]}',
        '{"$dtype":"__doc__"}', '{"$device":"nowhere"}', '{"$device":5.5}', '{"$size":5}', '{"$size":["a"]}', '{"$size":[1.5]}',
        '{"$size":[1e999]}', "9" * 5000, '{"$pickle":"gASVBAAAAAAAAABLAy4="}', '{"$pickle":5}',
    ],
    ids=lambda text: text[:30],
)  # fmt: skip
def test_values_that_are_damaged(rewritten, text):
    path = rewritten(at("__metadata__", "tree", "leaves", "about.step", value=text))
    refused(path, "about.step", verify=False)
    with pytest.raises(REFUSED):
        format_utils.load_whole(path)


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("bomb",)


def test_a_pickle_is_loaded_only_where_that_is_allowed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointException, match="allow_pickle"):
        save({"a": Bomb()}, checkpoint_id="a")
    save({"a": Bomb()}, checkpoint_id="a", planner=DefaultSavePlanner(allow_pickle=True))
    with pytest.raises(CheckpointException, match="allow_pickle"):
        load({"a": None}, checkpoint_id="a")
    for words in (["verify", "--full", "a"], ["show", "a"], ["diff", "a", "a"], ["ls", "a"]):
        assert command_line.main(words) == 0
    for words in (["show", "a", "a"], ["convert", "a", "b.pt"]):
        assert command_line.main(words) == 1
    assert os.listdir() == ["a"]
    load({"a": None}, checkpoint_id="a", planner=DefaultLoadPlanner(allow_pickle=True))
    assert set(os.listdir()) == {"a", "bomb"}


@pytest.mark.parametrize("text", ["", "AAAA", "gASV", "gAQu", "KFi", "é"])
def test_a_damaged_pickle(rewritten, text):
    value = json.dumps({"$pickle": text})
    path = rewritten(at("__metadata__", "tree", "leaves", "about.step", value=value))
    with pytest.raises(CheckpointException, match="about.step"):
        load(empty(), checkpoint_id=path, planner=DefaultLoadPlanner(allow_pickle=True))


# Checkpoints of others.


@pytest.fixture
def theirs(torch, tmp_path):
    """A folder of torch.distributed.checkpoint."""
    from torch.distributed import checkpoint

    made = {"model": {"w": torch.arange(6.0).view(2, 3), "n": torch.arange(3)}, "list": [torch.ones(2)], "step": 3}
    checkpoint.save(made, checkpoint_id=tmp_path / "theirs", no_dist=True)
    return str(tmp_path / "theirs")


def their_state():
    return {
        "model": {"w": pydist.zeros(2, 3), "n": pydist.zeros(3, dtype=pydist.int64)},
        "list": [pydist.zeros(2)],
        "step": 0,
    }


def change_metadata(path, fn):
    name = os.path.join(path, ".metadata")
    about = pickle.loads(files.read(name))
    changed = fn(about)
    files.write(name, pickle.dumps(about if changed is None else changed))


def test_their_folder_is_read(theirs):
    wanted = their_state()
    load(wanted, checkpoint_id=theirs)
    assert wanted["model"]["w"].tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]] and wanted["step"] == 3
    change_metadata(theirs, lambda about: None)
    load(wanted, checkpoint_id=theirs)


class System:
    def __reduce__(self):
        return os.system, ("touch bomb",)


def test_a_metadata_that_calls_os_system(theirs, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    change_metadata(theirs, lambda about: System())
    refused(theirs, wanted=their_state())
    assert "bomb" not in os.listdir()

    def within(about):
        about.planner_data["x"] = (System(),)

    for change in (within, lambda about: setattr(about, "storage_meta", System())):
        with pytest.raises(FileNotFoundError):
            files.read("bomb")
        shutil.rmtree(theirs)
        import torch
        from torch.distributed import checkpoint

        checkpoint.save({"w": torch.ones(2)}, checkpoint_id=theirs, no_dist=True)
        change_metadata(theirs, change)
        refused(theirs, wanted={"w": pydist.zeros(2)})
    assert "bomb" not in os.listdir()


def test_a_part_that_calls_os_system(theirs, monkeypatch, tmp_path):
    """The pickle within a .pt file within their file."""
    import io

    import torch

    monkeypatch.chdir(tmp_path)
    made = io.BytesIO()
    torch.save(System(), made)
    file = next(name for name in os.listdir(theirs) if name.endswith(".distcp"))
    files.write(os.path.join(theirs, file), made.getvalue())

    def change(about):
        for key, place in about.storage_data.items():
            object.__setattr__(place, "offset", 0)
            object.__setattr__(place, "length", len(made.getvalue()))

    change_metadata(theirs, change)
    refused(theirs, wanted=their_state(), verify=False)
    with pytest.raises(REFUSED):
        format_utils.load_whole(theirs)
    assert command_line.main(["verify", "--full", theirs]) == 1
    assert not os.path.exists("bomb")


def chunk(**changed):
    def change(about):
        for key, value in changed.items():
            object.__setattr__(about.state_dict_metadata["model.w"].chunks[0], key, value)

    return change


def place(**changed):
    def change(about):
        for value in about.storage_data.values():
            for key, new in changed.items():
                object.__setattr__(value, key, new)

    return change


def of(name, key, value):
    return lambda about: setattr(about.state_dict_metadata[name], key, value)


@pytest.mark.parametrize(
    "change",
    [
        lambda about: [], lambda about: None or {"a": 1}, lambda about: 5, lambda about: about.storage_data.clear(),
        lambda about: setattr(about, "state_dict_metadata", None), lambda about: setattr(about, "state_dict_metadata", [1]),
        lambda about: setattr(about, "storage_data", None), lambda about: setattr(about, "planner_data", [1]),
        lambda about: about.planner_data.__setitem__("step", 5), lambda about: about.planner_data.__setitem__("step", ({},)),
        lambda about: about.planner_data.__setitem__("step", ()), lambda about: about.planner_data.__setitem__(5, (1.5,)),
        lambda about: about.state_dict_metadata.__setitem__(5, about.state_dict_metadata["model.w"]),
        lambda about: about.state_dict_metadata.__setitem__("step", about.state_dict_metadata["model.w"]),
        lambda about: about.state_dict_metadata.__setitem__("model.w", about.state_dict_metadata["step"]),
        chunk(offsets=(0.0, 0.0)), chunk(offsets=(False, False)), chunk(offsets=(1, 0)), chunk(offsets=(0,)), chunk(offsets=None),
        chunk(offsets=(10**400, 0)), chunk(sizes=(2, 4)), chunk(sizes=(2,)), chunk(sizes=(2.0, 3.0)), chunk(sizes=None), chunk(sizes=(-2, -3)),
        of("model.w", "size", (1 << 40, 1 << 18)), of("model.w", "size", (2.0, 3)), of("model.w", "size", None), of("model.w", "chunks", []),
        of("model.w", "chunks", None), of("model.w", "properties", None), of("model.w", "chunks", 5),
        place(relative_path="../x"), place(relative_path="/etc/passwd"), place(relative_path=5), place(relative_path=""),
        place(relative_path="absent"), place(relative_path="."), place(offset=1 << 40), place(offset=-1), place(offset=1.5), place(offset=None),
        place(length=1 << 62), place(length=-1), place(length=0), place(length=1.5), place(length=None), place(length=10**400),
    ],
)  # fmt: skip
def test_a_metadata_that_lies(theirs, change):
    change_metadata(theirs, change)
    with pytest.raises(REFUSED):
        load(their_state(), checkpoint_id=theirs)
    with pytest.raises(REFUSED):
        format_utils.load_whole(theirs)
    assert command_line.main(["verify", "--full", theirs]) == 1


def test_their_files_damaged(theirs):
    """Their files are ZIP files, which have checksums, too, and a pickle, which has none."""
    draw = random.Random(2)
    for name in sorted(os.listdir(theirs)):
        name = os.path.join(theirs, name)
        good = files.read(name)
        for data in (b"", good[:-1], good[:100], b"\0" * len(good), good[: len(good) // 2]):
            files.write(name, data)
            with pytest.raises(REFUSED):
                load(their_state(), checkpoint_id=theirs)
        for _ in range(200):
            data = bytearray(good)
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
            files.write(name, data)
            wanted = their_state()
            with contextlib.suppress(*REFUSED):
                load(wanted, checkpoint_id=theirs)
                if not name.endswith(".metadata"):
                    assert (
                        wanted["model"]["w"].flatten().tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
                        and wanted["step"] == 3
                    )
        files.write(name, good)


@pytest.fixture
def hugging_face(tmp_path):
    folder = tmp_path / "hf"
    os.mkdir(folder)
    save_file({"a": pydist.ones(2)}, folder / "one.safetensors")
    save_file({"b": pydist.ones(3)}, folder / "two.safetensors")
    save_file({"a": pydist.zeros(2), "b": pydist.zeros(3)}, tmp_path / "outside.safetensors")
    return str(folder)


GOOD = {"metadata": {}, "weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}


@pytest.mark.parametrize(
    "index",
    [
        {**GOOD, "weight_map": {"a": "../outside.safetensors", "b": "../outside.safetensors"}},
        {**GOOD, "weight_map": {"a": "/etc/passwd", "b": "two.safetensors"}}, {**GOOD, "weight_map": {"a": "one.safetensors\0", "b": "two.safetensors"}},
        {**GOOD, "weight_map": {"a": "absent.safetensors"}}, {**GOOD, "weight_map": {"a": "..", "b": "."}}, {**GOOD, "weight_map": {"a": 5}},
        {**GOOD, "weight_map": {"a": ["one.safetensors"]}}, {**GOOD, "weight_map": []}, {**GOOD, "weight_map": None}, {"metadata": {}}, [], 5, None,
        {**GOOD, "weight_map": {"c": "one.safetensors", "b": "two.safetensors"}}, {**GOOD, "weight_map": {}},
        {**GOOD, "weight_map": {"a": "x" * 5000}}, {**GOOD, "weight_map": {"a": "model.safetensors.index.json"}},
    ],
)  # fmt: skip
def test_an_index_that_lies(hugging_face, index):
    name = os.path.join(hugging_face, "model.safetensors.index.json")
    files.write(name, json.dumps(GOOD).encode())
    wanted = {"a": pydist.zeros(2), "b": pydist.zeros(3)}
    load(wanted, checkpoint_id=hugging_face)
    assert pydist.equal(wanted["b"], pydist.ones(3))
    files.write(name, json.dumps(index).encode())
    refused(hugging_face, wanted=wanted)


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"[" * 100000, b'{"weight_map": ' + b"9" * 5000 + b"}"])
def test_an_index_that_is_none(hugging_face, text):
    files.write(os.path.join(hugging_face, "model.safetensors.index.json"), text)
    refused(hugging_face, "index", {"a": pydist.zeros(2)})


def test_two_files_with_one_name(hugging_face):
    shutil.copy(os.path.join(hugging_face, "one.safetensors"), os.path.join(hugging_face, "three.safetensors"))
    refused(hugging_face, "overlap", {"a": pydist.zeros(2)})


def test_files_of_safetensors_alone(tmp_path, made):
    file = str(tmp_path / "a.safetensors")
    shutil.copy(made / "00000.safetensors", file)
    refused(file, "missing", {"model": {"w": pydist.zeros(12, 5)}})  # the other columns are in the other file
    save_file(tensors(), file)
    good = files.read(file)
    for data in (b"", good[:-1], good + b"\0", good[:20], b"\0" * len(good)):
        files.write(file, data)
        refused(file, wanted={"w": pydist.zeros(12, 5)})
        with pytest.raises(SafetensorError):
            load_file(file)


def test_pt_files(tmp_path):
    file = str(tmp_path / "a.pt")
    pydist.save(state(), file)
    good = files.read(file)
    for data in (b"", good[:-1], good[:100], b"\0" * len(good), pickle.dumps(System()), b"PK\3\4"):
        files.write(file, data)
        refused(file)
    for value in ([1], 5, {"a.b": 1, "a": {"b": 2}}, pydist.ones(2)):
        pydist.save(value, file)
        refused(file)
    with zipfile.ZipFile(file, "w") as made:
        made.writestr("a/data.pkl", pickle.dumps(System()))
    refused(file)
    assert not os.path.exists("bomb")


def test_what_is_no_checkpoint(tmp_path):
    os.mkdir(tmp_path / "empty")
    for what in ("empty", "absent", "absent.safetensors", "absent.pt"):
        refused(tmp_path / what, "no checkpoint")
    with pytest.raises(CheckpointException):
        load(empty(), storage_reader=checkpoint.HuggingFaceStorageReader(tmp_path / "empty"))


def test_states_come_back_as_they_were(path):
    """A load that fails in the header changes no tensor."""
    wanted = empty()
    before = copy.deepcopy(wanted)
    files.write(os.path.join(path, "manifest.json"), b"{}")
    refused(path, wanted=wanted)
    assert all(pydist.equal(wanted["model"][name], value) for name, value in before["model"].items())
