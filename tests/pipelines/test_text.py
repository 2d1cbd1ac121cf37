"""Lines, CSV, compressed files, lists of files, images: what Python's own readers give."""

import csv
import gzip
import io
import os
import random
import zlib

import numpy as np
import pytest

import pydist
from pydist import data
from pydist.data import (
    CsvDataset,
    Dataset,
    FixedLengthRecordDataset,
    StringTensor,
    TFRecordDataset,
    TFRecordOptions,
    TFRecordWriter,
    TextLineDataset,
    decode_csv,
    decode_raw,
    images,
    make_csv_dataset,
)


def strings(dataset):
    return [x.numpy() for x in dataset]


def rows(dataset):
    return [tuple(column.tolist() for column in row) for row in dataset]


# Lines


@pytest.mark.parametrize(
    "content, lines",
    [
        (b"", []),
        (b"\n", [b""]),
        (b"a", [b"a"]),
        (b"a\n\nb\r\n\rc\r", [b"a", b"", b"b", b"\rc"]),
        (b"x" * 3_000_000 + b"\n\xff\0\n", [b"x" * 3_000_000, b"\xff\0"]),
    ],
)
def test_lines(tmp_path, content, lines):
    path = tmp_path / "text"
    path.write_bytes(content)
    assert strings(TextLineDataset(path)) == lines and len(TextLineDataset(path)) == len(lines)
    for kind, pack in (("GZIP", gzip.compress), ("ZLIB", zlib.compress)):
        path.write_bytes(pack(content))
        assert strings(TextLineDataset(path, compression_type=kind)) == lines


def test_lines_of_files_by_number(tmp_path):
    draw = random.Random(0)
    lines, names = [], []
    for i in range(4):
        own = [bytes(draw.choices(b"abc \t", k=draw.choice([0, 3, 200]))) for _ in range(draw.randrange(400))]
        (tmp_path / f"{i}").write_bytes(b"\n".join(own) + b"\n")
        lines += own
        names.append(os.fsencode(tmp_path / f"{i}"))
    dataset = TextLineDataset(names)
    assert strings(dataset) == lines
    assert [x for batch in dataset.batch(64) for x in batch.tolist()] == lines
    shuffled = strings(dataset.shuffle(len(lines), seed=0))
    assert shuffled != lines and sorted(shuffled) == sorted(lines)
    assert strings(dataset.skip(100).take(3)) == lines[100:103] and strings(dataset.shard(7, 3)) == lines[3::7]
    by_names = TextLineDataset(Dataset.from_tensor_slices(names))
    assert strings(by_names) == lines and by_names.cardinality() == data.UNKNOWN_CARDINALITY
    mixed = strings(TextLineDataset(names, num_parallel_reads=2))
    assert mixed == strings(TextLineDataset(Dataset.from_tensor_slices(names), num_parallel_reads=2)) != lines
    iterator = iter(by_names)
    for _ in range(200):
        next(iterator)
    other = iter(by_names)
    other.load_state_dict(iterator.state_dict())
    assert [x.numpy() for x in other] == lines[200:]


def test_lists_of_files(tmp_path):
    for name in ("b.txt", "a.txt", "c.csv", ".hidden.txt"):
        (tmp_path / name).write_text(name)
    found = strings(Dataset.list_files(f"{tmp_path}/*.txt", shuffle=False))
    assert found == [os.fsencode(tmp_path / name) for name in ("a.txt", "b.txt")]
    every = Dataset.list_files([f"{tmp_path}/*.txt", f"{tmp_path}/*"], seed=1)
    assert sorted(strings(every)) == [os.fsencode(tmp_path / name) for name in ("a.txt", "b.txt", "c.csv")]
    assert {tuple(strings(every)) for _ in range(20)} != {tuple(strings(every))}
    assert strings(Dataset.list_files(f"{tmp_path}/*.csv").flat_map(TextLineDataset)) == [b"c.csv"]
    with pytest.raises(FileNotFoundError, match="list_files: no file matches .*nothing"):
        Dataset.list_files(f"{tmp_path}/nothing*")


# Compressed files

# What tf.io.TFRecordWriter of TensorFlow 2.21 writes for [b"one", b"two"].
GZIP = bytes.fromhex("1f8b0800000000000003636680800d333df9f2f352191d42399891844acaf33b279ce40400dfd5aa3526000000")
ZLIB = bytes.fromhex("789c636680800d333df9f2f352191d42399891844acaf33b279ce404007b03086c")


def test_compressed_records_are_tensorflows(tmp_path):
    for kind, content in (("GZIP", GZIP), ("ZLIB", ZLIB)):
        path = tmp_path / kind
        path.write_bytes(content)
        dataset = TFRecordDataset(path, kind)
        assert strings(dataset) == [b"one", b"two"] and dataset.element_spec == data.TensorSpec((), data.string)
        for options in (kind, TFRecordOptions(kind), TFRecordOptions(kind, compression_level=1)):
            with TFRecordWriter(tmp_path / "own", options) as writer:
                writer.write(b"one")
                writer.flush()
                writer.write(b"two")
            written = (tmp_path / "own").read_bytes()
            assert (gzip.decompress if kind == "GZIP" else zlib.decompress)(written) == zlib.decompress(ZLIB)
            assert strings(TFRecordDataset([path, tmp_path / "own"], kind)) == [b"one", b"two"] * 2
        turns = TFRecordDataset([path, tmp_path / "own"], kind, num_parallel_reads=2)
        assert strings(turns) == [b"one", b"one", b"two", b"two"]
        begun, other = iter(dataset), iter(dataset)
        next(begun)
        other.load_state_dict(begun.state_dict())
        assert [x.numpy() for x in other] == [b"two"]


def test_damaged_compressed_files_are_named(tmp_path):
    path = tmp_path / "damaged"
    plain = zlib.decompress(ZLIB)

    def check(content, text, kind="GZIP"):
        path.write_bytes(content)
        with pytest.raises(data.DataError, match=text):
            list(TFRecordDataset(path, kind))

    for cut in (len(GZIP) - 1, 20, 5):
        check(GZIP[:cut], "damaged is cut or damaged, or not of GZIP")
    check(ZLIB[:10], "damaged is cut or damaged, or not of ZLIB", "ZLIB")
    check(plain, "damaged is cut or damaged, or not of GZIP")
    check(plain, "damaged is cut or damaged, or not of ZLIB", "ZLIB")
    for at, text in ((1, "record 0 has a length whose checksum is 0x"), (13, "record 0 has data whose checksum is 0x")):
        flipped = bytearray(plain)
        flipped[at] ^= 4
        check(gzip.compress(flipped), text)
    check(gzip.compress(plain[:-1]), "record 1 has fewer bytes than 3")
    check(gzip.compress(plain[:25]), "record 1 has a head of bytes 6 .expected 12")
    with pytest.raises(ValueError, match="compression_type is 'LZ4' .expected None"):
        TFRecordDataset(path, "LZ4")
    with pytest.raises(ValueError, match="TFRecordOptions: compression_type is 'x'"):
        TFRecordWriter(path, "x")


def test_compressed_records_of_equal_length(tmp_path):
    path = tmp_path / "fixed"
    path.write_bytes(gzip.compress(b"HHabcdefF"))
    assert strings(FixedLengthRecordDataset(path, 3, 2, 1, compression_type="GZIP")) == [b"abc", b"def"]
    with pytest.raises(data.DataError, match="ends with 3 bytes .expected 1 of a footer"):
        list(FixedLengthRecordDataset(path, 4, 2, 1, compression_type="GZIP"))


# CSV


def written(path, table, **options):
    with open(path, "w", newline="") as file:
        csv.writer(file, **options).writerows(table)
    return str(path)


@pytest.mark.parametrize("kind", ["", "GZIP"])
def test_rows_are_pythons(tmp_path, kind):
    draw = random.Random(1)
    texts = ["plain", "with, comma", 'with "quotes"', "two\nlines", "", "\u00e9\u00df", "\r"]
    table = [[i, draw.choice(texts), draw.choice([1.5, -2e30, ""])] for i in range(300)]
    path = written(tmp_path / "table.csv", [["id", "text", "x"], *table])
    if kind:
        (tmp_path / "table.gz").write_bytes(gzip.compress((tmp_path / "table.csv").read_bytes()))
        path = str(tmp_path / "table.gz")
    dataset = CsvDataset(path, [pydist.int64, [b""], [7.0]], header=True, compression_type=kind)
    expected = [(a, b.encode(), np.float32(7.0 if c == "" else c).item()) for a, b, c in table]
    assert rows(dataset) == expected
    batches = list(dataset.batch(64))
    assert [x for a, b, c in batches for x in zip(a.tolist(), b.tolist(), c.tolist())] == expected
    assert dataset.element_spec[2] == data.TensorSpec((), pydist.float32)
    picked = CsvDataset(path, [pydist.float64, pydist.int32], header=True, select_cols=[0, 0], compression_type=kind)
    assert rows(picked.take(2)) == [(0.0, 0), (1.0, 1)]
    left = CsvDataset(path, [[""]], header=True, exclude_cols=[0, 2], compression_type=kind)
    assert rows(left) == [(b,) for _, b, _ in expected]
    if not kind:
        assert sorted(rows(dataset.shuffle(300, seed=0))) == expected and len(dataset) == 300


def test_records_of_csv():
    columns = decode_csv([["1;a", "NA;b"], ["3;c", "4;NA"]], [[9], ["none"]], field_delim=";", na_value="NA")
    assert [column.tolist() for column in columns] == [[[1, 9], [3, 4]], [[b"a", b"b"], [b"c", b"none"]]]
    assert decode_csv("5,6", [pydist.int32, float])[0].dtype is pydist.int32
    assert decode_csv(['a "b" c,d'], [str, str], use_quote_delim=False)[0].tolist() == [b'a "b" c']
    assert decode_csv(["", "x"], [["?"]])[0].tolist() == [b"?", b"x"]


@pytest.mark.parametrize(
    "records, defaults, options, kind, text",
    [
        (["1,2"], [int], {}, data.DataError, "record 0 has 2 fields .expected 1"),
        (["1,2", "1"], [int, int], {}, data.DataError, "record 1 has 1 fields .expected 2"),
        (["1", "x"], [int], {}, data.DataError, "record 1 has 'x' in field 0 .expected a number of pydist.int64"),
        (["1", ""], [int], {}, data.DataError, "record 1 has no value in field 0 .expected one, or a default"),
        (
            ["1", "99999999999"],
            [pydist.int32],
            {},
            data.DataError,
            "record 1 has 99999999999 in field 0 .expected an int32",
        ),
        (["a", '"b'], [str], {}, data.DataError, "record 1 is no record of CSV: .*'\"b'"),
        (['"a"b'], [str], {}, data.DataError, "record 0 is no record of CSV"),
        (["1"], [int], {"select_cols": [2]}, data.DataError, "record 0 has 1 fields .expected 3"),
        (["1"], [], {}, ValueError, "record_defaults has 0 columns"),
        (["1"], [int], {"select_cols": [0, 1]}, ValueError, "record_defaults has 1 columns .expected 2"),
        (["1"], [[1, 2]], {}, ValueError, r"record_defaults has \[1, 2\] for column 0"),
        (["1"], [pydist.uint8], {}, (TypeError, ValueError), "decode_csv"),
        (["1"], [int], {"field_delim": ";;"}, ValueError, "field_delim is ';;' .expected one character"),
        ([1], [int], {}, TypeError, "records is Tensor .expected strings"),
    ],
)
def test_records_that_are_no_csv(records, defaults, options, kind, text):
    with pytest.raises(kind, match=text):
        decode_csv(records, defaults, **options)


def test_tables_with_names(tmp_path):
    head, table = ["age", "name", "score", "big"], [[i, f"n{i}", i / 2, 10**10 + i] for i in range(7)]
    for k in range(2):
        written(tmp_path / f"{k}.csv", [head, *table[k * 4 : k * 4 + 4]])
    found = list(make_csv_dataset(f"{tmp_path}/*.csv", 3, label_name="score", num_epochs=1, shuffle=False))
    assert [len(label) for _, label in found] == [3, 3, 1] and list(found[0][0]) == ["age", "name", "big"]
    features, label = found[1]
    assert features["age"].tolist() == [3, 4, 5] and features["age"].dtype is pydist.int32
    assert features["name"].tolist() == [b"n3", b"n4", b"n5"] and features["big"].dtype is pydist.int64
    assert label.tolist() == [1.5, 2.0, 2.5] and label.dtype is pydist.float32
    endless = make_csv_dataset(f"{tmp_path}/*.csv", 3, select_columns=["age", 3], shuffle_seed=0)
    seen = [x for batch in endless.take(14) for x in batch["age"].tolist()]
    assert sorted(seen) == sorted(list(range(7)) * 6) and list(next(iter(endless))) == ["age", "big"]
    given = make_csv_dataset(f"{tmp_path}/0.csv", 2, column_names=list("abcd"), column_defaults=[float, str, float, str],
                             num_epochs=1, shuffle=False)  # fmt: skip
    assert next(iter(given))["a"].dtype is pydist.float32 and next(iter(given))["d"].tolist()[0] == b"10000000000"
    (tmp_path / "1.csv").write_text("other\n1\n")
    for options, kind, text in [
        ({}, ValueError, "1.csv has columns .*other.* .expected .*age"),
        ({"column_names": ["a", "a"]}, ValueError, "names that differ"),
        ({"column_names": ["a"], "label_name": "b"}, ValueError, "label_name is 'b' .expected one of"),
        ({"column_names": ["a"], "select_columns": ["z"]}, ValueError, "select_columns has 'z'"),
        ({"header": False}, ValueError, "expected names, or a header"),
    ]:
        with pytest.raises(kind, match=text):
            make_csv_dataset(f"{tmp_path}/*.csv", 3, **options)
    with pytest.raises(FileNotFoundError, match="no file matches"):
        make_csv_dataset(f"{tmp_path}/none", 3)
    damaged = written(tmp_path / "damaged.csv", [["a"], [1], ["x"], [3]])
    kept = make_csv_dataset(damaged, 9, column_defaults=[int], num_epochs=1, shuffle=False, ignore_errors=True)
    assert next(iter(kept))["a"].tolist() == [1, 3]


# Bytes and images


def test_bytes_are_numbers():
    numbers = np.arange(12, dtype=np.float32).reshape(3, 4)
    packed = StringTensor([row.tobytes() for row in numbers])
    assert np.array_equal(decode_raw(packed, pydist.float32).numpy(), numbers)
    assert np.array_equal(decode_raw(packed.reshape(3, 1)[1:], pydist.float32).numpy(), numbers[1:, None])
    swapped = StringTensor([row.byteswap().tobytes() for row in numbers])
    assert np.array_equal(decode_raw(swapped, pydist.float32, little_endian=False).numpy(), numbers)
    assert decode_raw(b"ab", pydist.uint8).tolist() == [97, 98]
    assert decode_raw(["a", "bcd"], pydist.uint8, fixed_length=2).tolist() == [[97, 0], [98, 99]]
    assert decode_raw(StringTensor([]), pydist.uint8).shape == (0, 0)
    for bad, text in [
        (["a", "bc"], "string 1 has 2 bytes .expected 1"),
        (["abc"], "strings have 3 bytes .expected a multiple"),
    ]:
        with pytest.raises(ValueError, match=f"decode_raw: {text}"):
            decode_raw(bad, pydist.int16)
    with pytest.raises(ValueError, match="string 0 has 9 bytes"):
        pydist._C._data_strings("op", pydist.zeros(4, dtype=pydist.uint8), pydist.tensor([[0, 9]]))


def picture(mode, size=(13, 9)):
    image = pytest.importorskip("PIL.Image")
    channels = {"L": 1, "RGB": 3, "RGBA": 4}[mode]
    smooth = image.fromarray(np.random.default_rng(0).integers(0, 255, (3, 3, channels), np.uint8).squeeze(), mode)
    return smooth.resize(size)


def encoded(image, kind):
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("fast", [True, False])
def test_images_are_pillows(fast, monkeypatch):
    if fast:
        pytest.importorskip("simplejpeg")
    else:
        monkeypatch.setattr(images, "_simplejpeg", lambda: None)
    for mode in ("L", "RGB"):
        image = picture(mode)
        jpeg, png = encoded(image, "JPEG"), encoded(image, "PNG")
        own = np.asarray(image).reshape(9, 13, -1)
        assert np.array_equal(data.decode_png(png).numpy(), own) and np.array_equal(data.decode_image(png).numpy(), own)
        image = pytest.importorskip("PIL.Image")
        for channels, kind in ((0, mode), (1, "L"), (3, "RGB")):
            with image.open(io.BytesIO(jpeg)) as opened:
                expected = np.asarray(opened.convert(kind)).reshape(9, 13, -1).astype(int)
            found = data.decode_jpeg(StringTensor(["before", jpeg])[1], channels).numpy()
            assert found.shape == expected.shape and found.dtype == np.uint8
            assert np.abs(found - expected).max() <= (2 if channels else 0)  # gray is Y itself, or made of RGB
    four = data.decode_png(encoded(picture("RGBA"), "PNG"))
    assert four.shape == (9, 13, 4) and data.decode_png(encoded(picture("L"), "PNG"), channels=4).shape == (9, 13, 4)
    for content, text in [(jpeg[:100], "damaged"), (b"GIF89a", "damaged"), (b"", "damaged")]:
        with pytest.raises(data.DataError, match=f"decode_jpeg: .*{text}"):
            data.decode_jpeg(content, 3)
    for bad, kind, text in [((jpeg, 2), ValueError, "channels is 2"), (([jpeg],), ValueError, r"contents has shape \(1,\)"),
                            ((3,), TypeError, "contents is Tensor")]:  # fmt: skip
        with pytest.raises(kind, match=text):
            data.decode_jpeg(*bad)
