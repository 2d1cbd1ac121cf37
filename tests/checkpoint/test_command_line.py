"""`python -m pydist.checkpoint`: what each command prints, writes and returns."""

import json
import math
import os
import re
import subprocess
import sys

import pytest

import pydist
from lib.checkpoint_files import file_names, read, write
from pydist import checkpoint, nn
from pydist.distributed.checkpoint import CheckpointManager, FileSystemWriter, TensorPart, load, save
from pydist.safetensors import load_file
from pydist.testing import run_ranks

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def state(seed=0):
    pydist.manual_seed(seed)
    return {
        "model": {"w": pydist.randn(6, 5), "b": pydist.randn(5), "n": pydist.arange(3)},
        "opt": [{"lr": 0.1, "betas": (0.9, 0.999)}],
        "step": 7,
    }


@pytest.fixture
def path(tmp_path):
    save(state(), checkpoint_id=tmp_path / "a")
    return str(tmp_path / "a")


@pytest.fixture
def call(capsys):
    """A function from arguments to (exit code, what was printed)."""

    def run(*args):
        code = checkpoint.main([str(arg) for arg in args])
        out, err = capsys.readouterr()
        return code, out + err

    return run


def flipped(path, at):
    data = bytearray(read(path))
    data[at] ^= 1
    write(path, data)


def test_the_program(path):
    command = [sys.executable, "-m", "pydist.checkpoint"]
    done = subprocess.run([*command, "verify", "--full", path], capture_output=True, text=True)
    assert done.returncode == 0 and "whole: 3 tensors, 164 B (every byte)" in done.stdout, done
    flipped(os.path.join(path, "00000.safetensors"), -1)
    done = subprocess.run([*command, "verify", "--full", path], capture_output=True, text=True)
    assert done.returncode == 1 and "damaged" in done.stdout and not done.stderr
    assert subprocess.run(command, capture_output=True).returncode == 2


def test_ls_and_verify_a_folder_of_steps(tmp_path, call):
    folder, model = tmp_path / "run", nn.Linear(3, 2)
    with CheckpointManager(folder, keep_last=None, asynchronous=False) as manager:
        for step in (0, 5, 12):
            manager.save(step, {"model": model})
    save({"model": model}, storage_writer=FileSystemWriter(folder / "best", sync_files=False))
    os.mkdir(folder / ".tmp-step-000000000013-ab-1")
    code, text = call("ls", folder)
    lines = text.splitlines()
    assert code == 0 and [line.split()[0] for line in lines[1:5]] == [
        *(f"step-{step:012d}" for step in (0, 5, 12)),
        "best",
    ]
    size = sum(len(read(folder / "best" / name)) for name in file_names(folder / "best"))
    assert re.search(rf"step-0+12 +12 +{size / 1000:.4g} KB +1 +1 +20\d\d-\d\d-\d\d \d\d:\d\d:\d\d +whole$", lines[3])
    assert "not synced" in lines[4] and lines[5].startswith("1 folder of saves")
    code, text = call("verify", folder)
    assert code == 0 and text.count(": whole: 2 tensors") == 4

    os.unlink(folder / "step-000000000005" / "manifest.json")
    flipped(folder / "step-000000000012" / "00000.safetensors", 300)
    code, text = call("ls", folder)
    assert code == 0 and "not finished" in text.splitlines()[2] and "damaged" in text.splitlines()[3]
    code, text = call("verify", folder)
    assert code == 1 and text.count("damaged: ") == 2 and text.count(": whole: ") == 2


def test_ls_of_one_checkpoint_and_of_nothing(path, tmp_path, call):
    code, text = call("ls", path)
    assert code == 0 and text.splitlines()[1].startswith("a ") and text.endswith("whole\n")
    for command in ("ls", "verify", "show", "clean"):
        code, text = call(command, tmp_path / "absent")
        assert code == 1 and "absent" in text and text.count("\n") == 1, command


def test_verify_names_file_and_tensor(path, call):
    file = os.path.join(path, "00000.safetensors")
    at = len(read(file)) - 1
    flipped(file, at)
    code, text = call("verify", path)
    assert code == 0 and "(headers)" in text
    code, text = call("verify", "--full", path)
    assert code == 1 and file in text and "'model.w'" in text and "block 0" in text
    flipped(file, at)
    for at in (0, 9, 2000):  # the length of the header, its JSON, its padding
        flipped(file, at)
        code, text = call("verify", path)
        assert code == 1 and file in text
        flipped(file, at)
    assert call("verify", "--full", path)[0] == 0
    write(file, read(file)[:-1])
    code, text = call("verify", path)
    assert code == 1 and "the file has" in text
    os.unlink(file)
    code, text = call("verify", path)
    assert code == 1 and "missing" in text


def test_verify_of_several_blocks(tmp_path, call):
    """A tensor of two and a half blocks, cut over two boxes of other sizes."""
    whole = pydist.arange(int(2.5 * (1 << 20)), dtype=pydist.int32)
    save({"a": TensorPart(whole, (len(whole) + 9,), (0,)), "b": whole[:7]}, checkpoint_id=tmp_path / "a")
    path = tmp_path / "a"
    code, text = call("verify", path)  # nine elements are in no file
    assert code == 1 and "9 of 2621449 elements are missing" in text
    save({"a": whole, "b": whole[:7]}, checkpoint_id=path)
    assert call("verify", "--full", path)[0] == 0
    file = path / "00000.safetensors"
    begin = len(read(file)) - 4 * (len(whole) + 7)
    for at, block in ((0, 0), ((4 << 20) - 1, 0), (4 << 20, 1), (4 * len(whole) - 1, 2)):
        flipped(file, begin + at)
        code, text = call("verify", "--full", path)
        assert code == 1 and f"'a' is damaged: block {block} " in text
        flipped(file, begin + at)


def test_show(path, call):
    code, text = call("show", path)
    assert code == 0
    for line in ("model.w: float32 [6, 5]", "model.n: int64 [3]", "opt.0.lr = 0.1", "step = 7"):
        assert line in text.splitlines()
    assert call("show", path, "model.n") == (0, "tensor([0, 1, 2])\n")
    assert call("show", path, "opt.0.betas") == (0, "(0.9, 0.999)\n")
    code, text = call("show", path, "model.v")
    assert code == 1 and "'model.v'" in text


def shards(rank, path):
    part = TensorPart(pydist.arange(12.0).view(2, 6)[:, 3 * rank : 3 * rank + 3].contiguous(), (2, 6), (0, 3 * rank))
    save({"a": part, "é\n": "x"}, checkpoint_id=path)


def test_show_has_the_boxes(tmp_path, call):
    run_ranks(2, shards, tmp_path / "a")
    code, text = call("show", tmp_path / "a")
    assert code == 0 and text.splitlines() == [
        "a: float32 [2, 6]",
        "    [2, 3] at [0, 0] in 00000.safetensors",
        "    [2, 3] at [0, 3] in 00001.safetensors",
        'é\\n = "x"',
    ]
    save({"a": pydist.arange(12.0).view(2, 6), "é\n": "x"}, checkpoint_id=tmp_path / "b")
    assert call("diff", tmp_path / "a", tmp_path / "b") == (0, "equal: 2 names\n")


def test_diff(path, tmp_path, call, monkeypatch):
    save(state(), checkpoint_id=tmp_path / "b")
    assert call("diff", path, tmp_path / "b") == (0, "equal: 6 names\n")
    other = state()
    other["model"]["w"][2, 3] += 2.0
    other["model"]["w"][4, 1] -= 0.5
    other["model"]["b"] = other["model"]["b"][:4].double()
    other["model"]["n"] = 5
    other["step"], other["new"] = 8, None
    del other["opt"]
    save(other, checkpoint_id=tmp_path / "c")
    for at_once in (checkpoint.AT_ONCE, 16):  # of a tensor's bytes
        monkeypatch.setattr(checkpoint, "AT_ONCE", at_once)
        code, text = call("diff", path, tmp_path / "c")
        lines = text.splitlines()
        assert code == 1 and len(lines) == 7, text
        assert f"'opt.0.lr' is only in {path}" in lines and f"'new' is only in {tmp_path / 'c'}" in lines
        assert "'model.b': float32 [5] and float64 [4]" in lines and "'step': 7 and 8" in lines
        assert "'model.n': a tensor and 5" in lines
        line = next(line for line in lines if "'model.w' at [2, 3]: " in line)
        assert "(2 of 30 elements differ, by at most 2)" in line


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "complex64", "int8", "uint8", "bool", "int64"])
def test_diff_of_every_kind(tmp_path, call, dtype):
    a = pydist.ones(3, 2).to(getattr(pydist, dtype))
    b = a.clone()
    b[1, 1] = 0
    scalar = a[0, 0].clone()
    save({"a": a, "s": scalar, "e": a[:0]}, checkpoint_id=tmp_path / "a")
    save({"a": b, "s": scalar, "e": a[:0]}, checkpoint_id=tmp_path / "b")
    assert call("diff", tmp_path / "a", tmp_path / "a") == (0, "equal: 3 names\n")
    code, text = call("diff", tmp_path / "a", tmp_path / "b")
    assert code == 1 and text.startswith("'a' at [1, 1]: ") and "(1 of 6 elements differ, by at most 1)" in text


def test_diff_of_values_that_are_no_numbers(tmp_path, call):
    a = pydist.tensor([math.nan, math.inf, 1.0])
    save({"a": a}, checkpoint_id=tmp_path / "a")
    assert call("diff", tmp_path / "a", tmp_path / "a")[0] == 0
    save({"a": pydist.tensor([math.nan, math.inf, math.nan])}, checkpoint_id=tmp_path / "b")
    code, text = call("diff", tmp_path / "a", tmp_path / "b")
    assert code == 1 and text == "'a' at [2]: 1.0 and nan (1 of 3 elements differ, by at most nan)\n"


def equal(a, b):
    if isinstance(a, pydist.Tensor):
        return a.dtype == b.dtype and pydist.equal(a, b)
    if isinstance(a, (dict, list, tuple)):
        keys = a if isinstance(a, dict) else range(len(a))
        return type(a) is type(b) and len(a) == len(b) and all(equal(a[key], b[key]) for key in keys)
    return type(a) is type(b) and a == b


def test_convert_goes_round(path, tmp_path, call):
    names = [path] + [str(tmp_path / name) for name in ("b.pt", "c.safetensors", "d", "e.safetensors", "f.pth")]
    for a, b in zip(names, names[1:]):
        code, text = call("convert", a, b)
        assert (code, text) == (0, f"wrote {b}\n")
        assert call("diff", path, b)[0] == 0
    assert equal(pydist.load(names[1]), state()) and equal(pydist.load(names[-1]), state())
    before = read(names[2])
    code, text = call("convert", path, names[2])
    assert code == 1 and "already" in text and read(names[2]) == before


def test_convert_reads_pytorch(tmp_path, call, torch):
    from torch.distributed import checkpoint as theirs

    w = torch.randn(4, 3)
    theirs.save({"model": {"w": w}, "list": [torch.ones(2)], "n": 3}, checkpoint_id=tmp_path / "a", no_dist=True)
    assert call("verify", "--full", tmp_path / "a")[0] == 0
    assert call("convert", tmp_path / "a", tmp_path / "b")[0] == 0
    mine = {"model": {"w": pydist.zeros(4, 3)}, "n": 0}
    load(mine, checkpoint_id=tmp_path / "b")
    assert mine["model"]["w"].tolist() == w.tolist() and mine["n"] == 3
    assert call("convert", tmp_path / "a", tmp_path / "c.pt")[0] == 0
    loaded = torch.load(tmp_path / "c.pt")
    assert torch.equal(loaded["model"]["w"], w) and loaded["list"][0].tolist() == [1.0, 1.0]


def test_consolidate(path, tmp_path, call):
    code, text = call("consolidate", path, tmp_path / "one")
    assert code == 0 and "3 tensors, 164 B, in 1 file " in text
    assert os.listdir(tmp_path / "one") == ["model.safetensors"]
    assert call("diff", path, tmp_path / "one") == (0, "equal: 6 names\n")
    code, text = call("consolidate", path, tmp_path / "hf", "--max-shard-size", "44B", "--only", "model.")
    assert code == 0 and "in 2 files " in text
    index = json.loads(read(tmp_path / "hf" / "model.safetensors.index.json"))
    first, second = (f"model-0000{i}-of-00002.safetensors" for i in (1, 2))
    assert index == {"metadata": {"total_size": 164}, "weight_map": {"w": first, "b": second, "n": second}}
    for name, file in index["weight_map"].items():
        assert pydist.equal(load_file(tmp_path / "hf" / file)[name], state()["model"][name])
    mine = {name: pydist.zeros_like(value) for name, value in state()["model"].items()}
    load(mine, checkpoint_id=tmp_path / "hf")
    assert equal(mine, state()["model"])

    code, text = call("consolidate", path, tmp_path / "hf")
    assert code == 1 and "files already" in text
    os.unlink(tmp_path / "hf" / second)  # as after a crash
    code, text = call("verify", tmp_path / "hf")
    assert code == 1 and "missing" in text
    code, text = call("consolidate", path, tmp_path / "none", "--only", "nothing.")
    assert code == 1 and "'nothing.'" in text and not os.path.exists(tmp_path / "none")
    with pytest.raises(SystemExit) as error:
        call("consolidate", path, tmp_path / "x", "--max-shard-size", "5 apples")
    assert error.value.code == 2


def test_the_safetensors_package_reads_what_consolidate_writes(path, tmp_path, call):
    theirs = pytest.importorskip("safetensors.numpy")
    call("consolidate", path, tmp_path / "hf", "--only", "model.")
    found = theirs.load_file(tmp_path / "hf" / "model.safetensors")
    assert {name: value.tolist() for name, value in found.items()} == {
        name: value.tolist() for name, value in state()["model"].items()
    }


def test_clean(tmp_path, call):
    with CheckpointManager(tmp_path, asynchronous=False) as manager:
        manager.save(1, {"w": pydist.ones(2)})
        manager.save(2, {"w": pydist.ones(2)})
    os.rename(tmp_path / "step-000000000002", tmp_path / ".tmp-step-000000000002-ab-1")
    os.mkdir(tmp_path / ".trash-step-000000000000-ab")
    code, text = call("clean", tmp_path)
    assert code == 0 and text.splitlines() == [
        ".tmp-step-000000000002-ab-1: it is whole, and is step-000000000002 now",
        ".trash-step-000000000000-ab: removed",
    ]
    assert manager.all_steps() == [1, 2] and call("clean", tmp_path) == (0, "")
