"""index.bin, which has the headers of all files of a checkpoint of many: it is believed only where the manifest says the same."""

import io
import os
import subprocess
import sys

import pytest

import pydist
from pydist import _C
from pydist.distributed import checkpoint
from pydist.distributed.checkpoint import _format
from pydist.testing import RankFailed, run_ranks


def state():
    """Each of up to three ranks writes some of it."""
    return {name: pydist.arange(3000.0) for name in "xyz"}


@pytest.fixture
def indexed(tmp_path, monkeypatch):
    """A checkpoint of three files that has an index.bin."""
    monkeypatch.setattr(_format, "INDEXED", 3)
    run_ranks(3, lambda rank: checkpoint.save(state(), checkpoint_id=tmp_path / "a"))
    return tmp_path / "a"


def loaded(path):
    found = {name: pydist.zeros(3000) for name in "xyz"}
    checkpoint.load(found, checkpoint_id=path)
    return all(pydist.equal(value, pydist.arange(3000.0)) for value in found.values())


def verified(path):
    """The exit code, and what it says."""
    done = subprocess.run(
        [sys.executable, "-m", "pydist.checkpoint", "verify", path, "--full"], capture_output=True, text=True
    )
    return done.returncode, done.stdout + done.stderr


def test_one_file_has_the_headers_of_many(indexed, monkeypatch):
    names = sorted(os.listdir(indexed))
    assert names == [*(f"{i:05d}.safetensors" for i in range(3)), "index.bin", "manifest.json"]
    opened, real = [], _format.parse_header
    monkeypatch.setattr(_format, "parse_header", lambda file, size: opened.append(type(file)) or real(file, size))
    assert loaded(indexed) and opened == [io.BytesIO] * 3
    assert verified(indexed)[0] == 0
    run_ranks(2, lambda rank: checkpoint.save(state(), checkpoint_id=indexed))
    assert "index.bin" not in os.listdir(indexed)


def test_a_damaged_index_is_not_believed(indexed):
    path = indexed / "index.bin"
    good = path.read_bytes()
    for at in range(0, len(good), 61):
        bad = bytearray(good)
        bad[at] ^= 1 << at % 8
        path.write_bytes(bad)
        assert loaded(indexed)
    for bad in (b"", good[:-1], good + b"\0", good[100:], b"\xff" * 100, good[4096:] + good[:4096]):
        path.write_bytes(bad)
        assert loaded(indexed)
        code, text = verified(indexed)
        assert code == 1 and "index.bin: this is not the headers of all files" in text
    path.unlink()
    path.mkdir()
    assert loaded(indexed) and verified(indexed)[0] == 1
    path.rmdir()
    assert loaded(indexed) and verified(indexed)[0] == 0


def test_verify_reads_the_headers_themselves(indexed):
    path = indexed / "00001.safetensors"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    assert loaded(indexed)  # index.bin has that header
    code, text = verified(indexed)
    assert code == 1 and "00001.safetensors" in text and "header" in text


def test_an_index_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    monkeypatch.setattr(_format, "INDEXED", 2)
    for number in range(1, 20):
        _C.fault("rename", number)
        try:
            run_ranks(2, lambda rank: checkpoint.save(state(), checkpoint_id=tmp_path / "a"))
        except RankFailed:
            continue
        finally:
            seen = _C.fault("rename", 0)
        assert loaded(tmp_path / "a") and verified(tmp_path / "a")[0] == 0
        if seen < number:
            break
    assert seen == 4  # those of the manifest, of the folder, of its exchange, and of the index
