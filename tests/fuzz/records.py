"""Record files and messages of tf.train.Example that are cut, changed or made of noise: they are read, or a DataError says
what is wrong with them."""

import contextlib
import os
import struct
import tempfile

import runner

import pydist
from pydist import _C, data

FEATURES = {
    "b": data.FixedLenFeature([2], data.string),
    "f": data.FixedLenFeature([3], pydist.float32, [0.0, 1.0, 2.0]),
    "i": data.VarLenFeature(pydist.int64),
    "d": data.FixedLenFeature([], data.string, "default"),
    "s": data.FixedLenSequenceFeature([2], pydist.float32, allow_missing=True, default_value=-1.0),
}
PATH = os.path.join(tempfile.mkdtemp(), "file")


def feature(random):
    n = random.choice([0, 1, 2, 2, 3, 4, 40])
    kind = random.randrange(3)
    if kind == 0:
        many = [random.randbytes(random.choice([0, 1, 5, 300])) for _ in range(n)]
        return data.Feature(bytes_list=data.BytesList(value=many))
    if kind == 1:
        return data.Feature(float_list=data.FloatList(value=[random.uniform(-9, 9) for _ in range(n)]))
    many = [random.choice([0, 1, -1, 127, 128, 1 << 40, -(1 << 63), (1 << 63) - 1]) for _ in range(n)]
    return data.Feature(int64_list=data.Int64List(value=many))


def good(random):
    fixed = {"b": data.Feature(bytes_list=data.BytesList(value=[b"x", random.randbytes(random.randrange(9))]))}
    names = random.sample(["f", "i", "d", "s", "other", ""], random.randrange(4))
    made = {**fixed, **{name: feature(random) for name in names}}
    return data.Example(features=data.Features(feature=made)).SerializeToString()


def damaged(random, content):
    content = bytearray(content)
    for _ in range(random.choice([0, 1, 1, 2, 5])):
        at = random.randrange(len(content)) if content else 0
        kind = random.randrange(5)
        if kind == 0 and content:
            content[at] ^= 1 << random.randrange(8)
        elif kind == 1 and content:
            content[at] = random.choice([0, 1, 0x7F, 0x80, 0xFF])
        elif kind == 2:
            del content[at : at + random.choice([1, 2, 9])]
        elif kind == 3:
            content[at:at] = random.choice([b"\xff" * 9 + b"\1", b"\x0a\xff\xff\xff\xff\x0f", random.randbytes(4)])
        else:
            del content[at:]
    return bytes(content)


def read_message(message):
    """By Python and by C, which have to agree where both read it."""
    with contextlib.suppress(data.DataError):
        python = data.Example.FromString(message).features.feature
        columns = data.parse_single_example(message, FEATURES)
        assert columns["b"].tolist() == python["b"].bytes_list.value
        assert columns["i"].tolist() == (python["i"].int64_list.value if "i" in python else [])


def frame(content):
    length = struct.pack("<Q", len(content))
    sums = (struct.pack("<I", _C._data_crc32c(part)) for part in (length, content))
    return length + next(sums) + content + next(sums)


def case(random):
    messages = [damaged(random, good(random)) for _ in range(random.choice([0, 1, 3]))] + [random.randbytes(20)]
    for message in messages:
        read_message(message)
    file = damaged(random, b"".join(map(frame, messages)))
    with open(PATH, "wb") as out:
        out.write(file)
    dataset = data.TFRecordDataset(PATH, num_parallel_reads=random.choice([None, 1]))
    with contextlib.suppress(data.DataError):
        records = [record.numpy() for record in dataset]
        numbers = [random.randrange(len(records)) for _ in range(4)] if records else []
        rows = dataset._node.rows(pydist.tensor(numbers, dtype=pydist.int64), None)[0]
        assert rows.tolist() == [records[i] for i in numbers]
        data.parse_example(rows, FEATURES)
    head, foot, each = random.randrange(4), random.randrange(4), random.randrange(1, 9)
    with contextlib.suppress(data.DataError):
        fixed = data.FixedLengthRecordDataset(PATH, each, head, foot)
        assert b"".join(record.numpy() for record in fixed) == file[head : len(file) - foot]


if __name__ == "__main__":
    runner.main(case)
