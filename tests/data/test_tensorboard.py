"""Event files, read back by a reader of its own: TFRecords, protocol buffers, and what the summaries hold."""

import struct

import pytest

import pydist
from pydist.utils.tensorboard import SummaryWriter, records

np = pytest.importorskip("numpy")


def crc32c(data):
    """Bit by bit, as RFC 3720 defines it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ 0x82F63B78 * (crc & 1)
    return crc ^ 0xFFFFFFFF


def fields(data):
    """{number: [values]} of a message; groups of bytes stay bytes."""
    out, at = {}, 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        kind = key & 7
        if kind == 0:
            value = varint()
        else:
            size = {1: 8, 5: 4}.get(kind) or varint()
            value = data[at : at + size]
            at += size
        if kind in (1, 5):
            value = struct.unpack("<d" if kind == 1 else "<f", value)[0]
        out.setdefault(key >> 3, []).append(value)
    return out


def events(folder):
    """The messages of the one file in a folder, their checksums compared."""
    (path,) = [p for p in folder.iterdir() if p.is_file()]
    data, at, out = path.read_bytes(), 0, []
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        message = data[at + 12 : at + 12 + length]
        for part, where in ((data[at : at + 8], at + 8), (message, at + 12 + length)):
            crc = crc32c(part)
            assert struct.unpack_from("<I", data, where)[0] == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
        out.append(fields(message))
        at += 16 + length
    return out


def values(folder):
    """[(step, tag, fields of the value)]"""
    first, *rest = events(folder)
    assert first[3] == [b"brain.Event:2"]
    made = [(event.get(2, [0])[0], fields(fields(event[5][0])[1][0])) for event in rest]
    return [(step, value[1][0].decode(), value) for step, value in made]


def test_scalars_and_text(tmp_path):
    assert crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C
    with SummaryWriter(tmp_path) as writer:
        assert writer.get_logdir() == str(tmp_path)
        for step, loss in enumerate(
            [1.5, pydist.tensor(0.25), np.float32(-3), pydist.tensor([2.0], requires_grad=True)]
        ):
            writer.add_scalar("loss/train", loss, step * 1000, walltime=7.0)
        writer.add_text("note", "größer", 5)
        writer.add_scalars("both", {"a": 1, "b": 2}, 3)
        writer.add_graph(pydist.nn.Linear(1, 1))
        with pytest.raises(ValueError, match="2 elements"):
            writer.add_scalar("x", [1, 2])
    got = values(tmp_path)
    assert [(step, tag, value[2][0]) for step, tag, value in got[:4]] == [
        (0, "loss/train", 1.5), (1000, "loss/train", 0.25), (2000, "loss/train", -3.0), (3000, "loss/train", 2.0)
    ]  # fmt: skip
    assert events(tmp_path)[1][1] == [7.0]
    step, tag, value = got[4]
    tensor = fields(value[8][0])
    assert (step, tag, tensor[1], tensor[8]) == (5, "note/text_summary", [7], ["größer".encode()])
    assert fields(fields(value[9][0])[1][0])[1] == [b"text"] and "Linear" in fields(got[5][2][8][0])[8][0].decode()
    assert [values(tmp_path / f"both_{name}")[0][2][2][0] for name in "ab"] == [1, 2]


def test_histograms(tmp_path):
    data = np.random.default_rng(0).normal(size=500)
    with SummaryWriter(tmp_path) as writer:
        writer.add_histogram("w", pydist.tensor(data), 4)
        writer.add_histogram("w", data, 5, bins=10)
        writer.add_histogram("w", [0, 0, 3], 6)
        writer.add_histogram("w", [2.0], 7, bins="auto")
        for wrong, message in (([], "values is empty"), ([float("nan")], "is inf or NaN")):
            with pytest.raises(ValueError, match=message):
                writer.add_histogram("w", wrong)
    for (step, tag, value), given in zip(values(tmp_path), (data, data, np.array([0, 0, 3]), np.array([2.0]))):
        histo = fields(value[5][0])
        limits, counts = (np.frombuffer(histo[i][0], "<f8") for i in (6, 7))
        assert [histo[i][0] for i in range(1, 6)] == pytest.approx(
            [given.min(), given.max(), len(given), given.sum(), (given**2).sum()]
        )
        assert len(limits) == len(counts) and counts.sum() == len(given) and (np.diff(limits) > 0).all()
        for limit, below in zip(limits[:-1], np.cumsum(counts)):  # a bucket ends below its limit
            assert below == (given < limit).sum()


def test_images(tmp_path):
    image = pytest.importorskip("PIL.Image")
    import io

    picture = np.random.default_rng(0).integers(0, 256, (3, 4, 5), dtype=np.uint8)
    with SummaryWriter(tmp_path) as writer:
        writer.add_image("i", pydist.tensor(picture), 1)
        writer.add_image("i", picture[0] / np.float32(255), dataformats="HW")
        writer.add_images("i", np.stack([picture, picture]))
        with pytest.raises(ValueError, match="'CHW', but the image has 2 dims"):
            writer.add_image("i", picture[0])
    wanted = (picture, np.stack([picture[0]] * 3), np.concatenate([picture, picture], 2))
    for (_, _, value), expected in zip(values(tmp_path), wanted):
        held = fields(value[4][0])
        read = np.asarray(image.open(io.BytesIO(held[4][0])))
        assert [held[i][0] for i in (1, 2, 3)] == list(read.shape)
        assert np.abs(read.astype(int) - expected.transpose(1, 2, 0)).max() <= 1


def test_writers_of_one_second_have_files_of_their_own(tmp_path):
    a, b = SummaryWriter(tmp_path / "x"), SummaryWriter(tmp_path / "x")
    a.close()
    b.close()
    assert len(list((tmp_path / "x").iterdir())) == 2
    assert records.integer(2, -1) == b"\x10" + b"\xff" * 9 + b"\x01"
