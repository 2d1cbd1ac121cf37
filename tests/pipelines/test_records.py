"""Record files: what is read is what was written, in tf.data's order, and damage is named."""

import os
import random
import struct
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import pydist
from pydist import _C, data
from pydist.data import Dataset, FixedLengthRecordDataset, TFRecordDataset, TFRecordWriter, files

# What tf.io.TFRecordWriter of TensorFlow 2.21 writes for these records.
RECORDS = [b"one", b"", b"three three three"]
BYTES = bytes.fromhex(
    "0300000000000000b099490e6f6e6501405508000000000000000029039807d8ea82a211000000000000009d6db52e"
    "74687265652074687265652074687265656a3cc1f2"
)


def write(path, records):
    with TFRecordWriter(path) as writer:
        for record in records:
            writer.write(record)
    return str(path)


def strings(dataset):
    return [x.numpy() if not x.ndim else x.tolist() for x in dataset]


def test_files_are_tensorflows(tmp_path):
    path = write(tmp_path / "a", RECORDS)
    assert open(path, "rb").read() == BYTES
    dataset = TFRecordDataset(path)
    assert strings(dataset) == RECORDS and len(dataset) == 3
    assert dataset.element_spec == data.TensorSpec((), data.string)
    assert strings(dataset.batch(2)) == [RECORDS[:2], RECORDS[2:]]
    for names in ([path], data.StringTensor([path]), data.StringTensor(path), np.array([path]), tmp_path / "a"):
        assert strings(TFRecordDataset(names)) == RECORDS
    assert strings(TFRecordDataset([])) == [] and strings(TFRecordDataset([write(tmp_path / "empty", [])])) == []


@pytest.mark.parametrize("isa", ["portable", ""])
def test_checksums_are_those_of_the_standard(isa):
    """RFC 3720 has the first three; the rest is compared with one bit after another."""
    program = """
        import random
        from pydist import _C
        def masked(crc):
            return ((crc >> 15 | crc << 17) + 0xa282ead8) & 0xffffffff
        def slow(data):
            crc = 0xffffffff
            for byte in data:
                crc ^= byte
                for _ in range(8):
                    crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
            return crc ^ 0xffffffff
        for data, crc in [(bytes(32), 0x8a9136aa), (b"\\xff" * 32, 0x62a8ab43), (bytes(range(32)), 0x46dd794e), (b"", 0)]:
            assert slow(data) == crc and _C._data_crc32c(data) == masked(crc)
        draw = random.Random(0)
        for size in [*range(70), 255, 767, 768, 769, 1535, 1536, 1543, 5000]:
            data = draw.randbytes(size)
            assert _C._data_crc32c(data) == masked(slow(data)), size
        print("good")
    """
    environment = {**os.environ, **({"PYDIST_ISA": isa} if isa else {})}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], env=environment, capture_output=True, text=True
    )
    assert done.stdout == "good\n", done.stderr


def test_records_are_read_by_number(tmp_path):
    draw = random.Random(0)
    counts = [3, 0, 5, 1, 2, 7]
    names, all_records = [], []
    for i, count in enumerate(counts):
        records = [draw.randbytes(draw.choice([0, 1, 10, 3000])) for _ in range(count)]
        names.append(write(tmp_path / f"{i}", records))
        all_records += records
    dataset = TFRecordDataset(names)
    assert strings(dataset) == all_records
    for _ in range(20):
        numbers = [draw.randrange(18) for _ in range(draw.randrange(1, 30))]
        rows = dataset._node.rows(pydist.tensor(numbers), None)[0]
        assert rows.tolist() == [all_records[i] for i in numbers]
    shuffled = [x for batch in strings(dataset.shuffle(100, seed=1).batch(4)) for x in batch]
    assert sorted(shuffled) == sorted(all_records) and shuffled != all_records
    assert strings(dataset.shard(3, 1).take(2)) == [all_records[1], all_records[4]]
    begun = iter(dataset.shuffle(100, seed=1).batch(4))
    first = next(begun)
    other = iter(dataset.shuffle(100, seed=1).batch(4))
    other.load_state_dict(begun.state_dict())
    assert first.tolist() + [x for batch in other for x in batch.tolist()] == shuffled


@pytest.mark.parametrize(
    "turns, expected",  # what TensorFlow 2.21 gives
    [
        (2, "00 01 20 02 21 22 30 23 24 40 41 50 51 52 53 54 55 56"),
        (3, "00 20 01 30 21 02 22 40 23 50 41 24 51 52 53 54 55 56"),
        (4, "00 20 30 01 40 21 02 41 22 50 23 51 24 52 53 54 55 56"),
        (None, "00 01 02 20 21 22 23 24 30 40 41 50 51 52 53 54 55 56"),
    ],
)
def test_files_in_turn_are_tensorflows(tmp_path, turns, expected):
    names = [write(tmp_path / f"{i}", [f"{i}{k}" for k in range(count)]) for i, count in enumerate([3, 0, 5, 1, 2, 7])]
    assert b" ".join(strings(TFRecordDataset(names, num_parallel_reads=turns))).decode() == expected
    every = strings(TFRecordDataset(names, num_parallel_reads=data.AUTOTUNE))
    assert every == strings(TFRecordDataset(names, num_parallel_reads=99)) != sorted(every)


def test_records_of_equal_length(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"HEAD" + b"abcdefghi" + b"F")
    assert strings(FixedLengthRecordDataset(path, 3, 4, 1)) == [b"abc", b"def", b"ghi"]
    (tmp_path / "b").write_bytes(b"HEADF")
    both = FixedLengthRecordDataset([path, tmp_path / "b", path], 3, 4, 1)
    assert strings(both.batch(4)) == [[b"abc", b"def", b"ghi", b"abc"], [b"def", b"ghi"]]
    for record, head, foot in [(4, 4, 1), (3, 4, 0), (3, 20, 0)]:
        with pytest.raises(data.DataError, match=f"a has 14 bytes .expected {head} of a header, {foot} of a footer"):
            list(FixedLengthRecordDataset(path, record, head, foot))
    for bad in (0, -1, None, "3"):
        with pytest.raises((TypeError, ValueError), match="record_bytes is"):
            FixedLengthRecordDataset(path, bad)


def test_damage_is_named(tmp_path):
    path = tmp_path / "a"

    def check(content, text, kind=data.DataError):
        path.write_bytes(content)
        with pytest.raises(kind, match=text):
            list(TFRecordDataset(path))

    flipped = bytearray(BYTES)
    flipped[13] ^= 1
    got = _C._data_crc32c(flipped[12:15])
    check(flipped, f"a: record 0 at byte 0 is damaged: its data have checksum 0x{got:08x} .expected 0x08554001")
    flipped = bytearray(BYTES)
    flipped[19] ^= 1
    check(flipped, "a is damaged, or no file of TFRecords: the length of record 1 at byte 19 has checksum 0x")
    check(BYTES[:50], r"a is cut: record 2 at byte 35 ends with the file after 15 bytes .expected 33")
    check(BYTES[:40], "a is cut: record 2 at byte 35 ends with the file after 5 bytes .expected 16")
    check(b"\x89PNG\r\n\x1a\n and so on and so on", "or no file of TFRecords")
    length = struct.pack("<Q", 1 << 62)
    check(
        length + struct.pack("<I", _C._data_crc32c(length)), r"is cut: .* after 12 bytes .expected 4611686018427387920"
    )
    path.unlink()
    with pytest.raises(FileNotFoundError, match="a"):
        list(TFRecordDataset(path))
    with pytest.raises(OSError, match="directory"):
        list(TFRecordDataset(tmp_path))


def test_files_that_change_while_they_are_read(tmp_path):
    path = write(tmp_path / "a", [b"x" * 10_000] * 50)
    whole = open(path, "rb").read()

    def begun():
        rows = iter(TFRecordDataset(path))
        assert next(rows).numpy() == b"x" * 10_000
        return rows

    rows = begun()
    os.truncate(path, 300)
    with pytest.raises(
        data.DataError, match=r"a ends at byte \d+ .expected 500800 bytes.: it was cut while it was read"
    ):
        list(rows)
    open(path, "wb").write(whole)
    dataset = TFRecordDataset(path)
    assert len(dataset) == 50  # counted, and not open yet
    os.utime(path, ns=(1, 1))
    os.truncate(path, 300)
    dataset = TFRecordDataset(write(path, [b"y"]))
    dataset._node.files.stats()
    write(path, [b"y", b"z"])
    with pytest.raises(
        data.DataError, match=r"a has changed since its records were counted: got 34 bytes .expected 17"
    ):
        list(dataset)
    rows = begun_of(tmp_path)
    os.unlink(tmp_path / "b")
    assert len(list(rows)) == 49  # an open file stays readable


def begun_of(folder):
    rows = iter(TFRecordDataset(write(folder / "b", [b"x"] * 50)))
    next(rows)
    return rows


def test_more_files_than_may_stay_open(tmp_path):
    names = [write(tmp_path / f"{i}", [str(i)] * 2) for i in range(300)]
    dataset = TFRecordDataset(names)
    for _ in range(2):
        assert strings(dataset.batch(600)) == [[str(i).encode() for i in range(300) for _ in range(2)]]
    opened = len(os.listdir("/proc/self/fd"))
    del dataset
    assert len(os.listdir("/proc/self/fd")) <= opened - 256


def test_starts_are_kept_beside_large_files(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_LARGE", 64)
    draw = random.Random(1)
    records = [draw.randbytes(30) for _ in range(9)]
    path, beside = write(tmp_path / "a", records), tmp_path / ".a.index"
    assert strings(TFRecordDataset(path)) == records and beside.exists()
    scans = []
    monkeypatch.setattr(files._C, "_data_files_scan", lambda *a, scan=_C._data_files_scan: scans.append(a) or scan(*a))
    assert strings(TFRecordDataset(path)) == records and not scans
    good = beside.read_bytes()
    for content in (b"", good[:-1], good[:50], bytes([good[0] ^ 1]) + good[1:], good[:-3] + b"abc"):
        scans.clear()
        beside.write_bytes(content)
        assert strings(TFRecordDataset(path)) == records and len(scans) == 1 and beside.read_bytes() == good
    write(path, records[:-1])
    assert strings(TFRecordDataset(path)) == records[:-1] and len(scans) == 2
    beside.unlink()
    tmp_path.chmod(0o500)  # root may write there all the same
    assert strings(TFRecordDataset(path)) == records[:-1]
    tmp_path.chmod(0o700)


FAILING = """
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <sys/syscall.h>
#include <unistd.h>
static int left = -1;
static int fails(void) {
    if (left < 0) left = getenv("FAILS") ? atoi(getenv("FAILS")) : 0;
    return left && left--;
}
ssize_t preadv2(int fd, const struct iovec *v, int n, off_t at, int flags) { errno = EAGAIN; return -1; }
ssize_t pread(int fd, void *to, size_t bytes, off_t at) {
    if (fails()) { errno = ERROR; return -1; }
    return syscall(SYS_pread64, fd, to, bytes, at);
}
ssize_t pread64(int fd, void *to, size_t bytes, off_t at) { return pread(fd, to, bytes, at); }
"""


@pytest.mark.parametrize("error, text", [("ESTALE", "Stale file handle"), ("EIO", "Input/output error")])
def test_a_server_that_fails_is_asked_again(tmp_path, error, text):
    """Reads fail through a library that is loaded first: three times are borne, more are an error."""
    (tmp_path / "failing.c").write_text(FAILING.replace("ERROR", error))
    library = str(tmp_path / "failing.so")
    subprocess.run(["gcc", "-shared", "-fPIC", str(tmp_path / "failing.c"), "-o", library], check=True)
    path = write(tmp_path / "a", RECORDS)
    program = f"from pydist.data import TFRecordDataset\nprint(len(list(TFRecordDataset({path!r}))))"

    def run(fails):
        preload = " ".join(filter(None, (os.environ.get("LD_PRELOAD"), library)))
        environment = {**os.environ, "LD_PRELOAD": preload, "FAILS": str(fails)}
        return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)

    assert run(3).stdout == "3\n"
    done = run(4)
    assert done.returncode == 1 and f"OSError: TFRecordDataset: {path}: cannot read it: {text}" in done.stderr


def test_copies_on_this_host(tmp_path):
    shared, local = tmp_path / "shared", tmp_path / "local"
    shared.mkdir()
    names = [write(shared / f"{i}", [f"{i}"] * 3) for i in range(3)]
    packed = tmp_path / "shared" / "packed"
    with TFRecordWriter(packed, "GZIP") as writer:
        writer.write(b"packed")
    dataset = TFRecordDataset(names, local_cache=local)
    assert not local.exists()  # until it is read
    whole = strings(dataset)
    assert whole == [b"0"] * 3 + [b"1"] * 3 + [b"2"] * 3
    assert strings(TFRecordDataset(packed, "GZIP", local_cache=local)) == [b"packed"]
    copies = sorted(path.name.partition("-")[2] for path in local.iterdir() if not path.name.startswith("."))
    assert copies == ["0", "1", "2", "packed"]
    begun = iter(TFRecordDataset(names, local_cache=local))
    next(begun)
    other = iter(TFRecordDataset(names))  # the same plan, wherever the bytes are
    other.load_state_dict(begun.state_dict())
    assert [x.numpy() for x in other] == whole[1:]
    write(shared / "1", [b"new"])  # another file is another copy
    assert strings(TFRecordDataset(names[1], local_cache=local)) == [b"new"]
    for path in local.iterdir():
        if path.name.endswith("-2"):
            path.write_bytes(b"cut")
    with pytest.raises(data.DataError, match="local_cache: .*-2 has 3 bytes .expected 51, as .*shared/2"):
        list(TFRecordDataset(names[2], local_cache=local))


def test_one_process_of_a_host_makes_the_copy(tmp_path):
    path = write(tmp_path / "a", [b"x" * 1000] * 2000)
    program = f"""
import shutil
from pydist.data import TFRecordDataset, files
copies = []
shutil.copyfileobj = lambda *a, copy=shutil.copyfileobj: copies.append(a) or copy(*a)
records = len(list(TFRecordDataset({path!r}, local_cache={str(tmp_path / "local")!r}).batch(100)))
print(records, len(copies))
"""
    running = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = [process.communicate(timeout=60)[0].split() for process in running]
    assert sorted(said) == [["20", "0"], ["20", "0"], ["20", "1"]]


def test_a_writer_that_is_closed(tmp_path):
    writer = TFRecordWriter(tmp_path / "a")
    writer.write("text")
    writer.flush()
    assert strings(TFRecordDataset(tmp_path / "a")) == [b"text"]
    writer.close()
    with pytest.raises(ValueError, match="write after close"):
        writer.write(b"")
    with pytest.raises(TypeError):
        TFRecordWriter(tmp_path / "b").write(3)


@pytest.mark.parametrize("names, kind", [(3, TypeError), ([3], TypeError), (None, TypeError)])
def test_names_that_are_no_paths(names, kind):
    with pytest.raises(kind, match="TFRecordDataset: filenames is .* .expected paths"):
        TFRecordDataset(names)


def test_bad_numbers_of_parallel_reads(tmp_path):
    for bad, kind in [(0, ValueError), (-2, ValueError), (1.5, TypeError)]:
        with pytest.raises(kind, match="num_parallel_reads is"):
            TFRecordDataset("a", num_parallel_reads=bad)


def test_the_engine_checks_what_it_is_told(tmp_path):
    path = write(tmp_path / "a", RECORDS)
    at = os.stat(path)
    made = _C._data_files("op", 0, [(path.encode(), at.st_size, at.st_mtime_ns)])
    for starts in ([5, 0], [-1, 3], [0, 1000], [0, 5], []):
        with pytest.raises(ValueError, match="op: "):
            _C._data_files_index(made, 0, pydist.tensor(starts, dtype=pydist.int64))
    with pytest.raises(IndexError, match="op: file is 1 .expected 0 to 0"):
        _C._data_files_scan(made, 1)
    assert _C._data_files_index(made, 0, pydist.tensor([0, 19])) == 1
    with pytest.raises(IndexError, match="expected 0 to 0"):
        _C._data_files_rows(made, range(2))
    _C._data_files_index(made, 0, pydist.tensor([0, 35]))  # two records as one
    with pytest.raises(
        data.DataError, match="record 0 at byte 0 has 3 bytes .expected 19, as when records were counted"
    ):
        _C._data_files_rows(made, range(1))
    for bad in (object(), 3):
        with pytest.raises((TypeError, ValueError)):
            _C._data_files_rows(bad, range(1))


def test_reads_beside_each_other(tmp_path):
    """Threads read one file at once; a fork while they do goes on reading."""
    draw = random.Random(2)
    records = [draw.randbytes(2000) for _ in range(400)]
    path = write(tmp_path / "a", records)
    program = f"""
import os
from pydist.data import TFRecordDataset
ds = TFRecordDataset({path!r}).shuffle(400, seed=0).map(lambda x: (x, sum(x.numpy())), num_parallel_calls=3).batch(8)
rows = iter(ds)
first = [next(rows)[1].tolist() for _ in range(3)]
pid = os.fork()
total = sum(map(sum, first)) + sum(sum(batch[1].tolist()) for batch in rows)
print(total, flush=True)
if not pid:
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == [str(sum(map(sum, records)))] * 2, done.stderr


def test_where_records_are_among_other_steps(tmp_path):
    names = [write(tmp_path / f"{i}", [f"{i}{k}" for k in range(4)]) for i in range(2)]
    zipped = Dataset.zip(TFRecordDataset(names), Dataset.range(100))
    assert [(x.numpy(), y.item()) for x, y in zipped.skip(6)] == [(b"12", 6), (b"13", 7)]
