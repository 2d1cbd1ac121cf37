"""Checkpoints that are damaged or lie: ours of two files, PyTorch's folders, Hugging Face's, single files.

    python tests/fuzz/checkpoints.py [--seconds 20] [--seed 0]       (runner.py says how)

A case damages files of a good checkpoint: their bytes, the manifest, or the JSON of headers, whose checksums are then
made right or not. It loads the checkpoint every way there is. It fails where something else than the two errors of
checkpoints is raised, where damage that no checksum was made right for gives other values than those that were saved, or
where a file takes far more memory than it has bytes.
"""

import contextlib
import io
import json
import os
import pickle
import shutil
import struct
import sys
import tempfile
import tracemalloc
import types
from pathlib import Path
from types import SimpleNamespace

import runner

import pydist
from pydist import checkpoint, safetensors
from pydist.distributed.checkpoint import (
    CheckpointException,
    DefaultLoadPlanner,
    FileSystemReader,
    TensorPart,
    _tree,
    format_utils,
    load,
    save,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from lib import checkpoint_files as files

ERRORS = (CheckpointException, safetensors.SafetensorError)
FOLDER = tempfile.mkdtemp()
MORE = 64 << 20  # bytes that a case may take


def tensors():
    return {
        "w": pydist.arange(24.0).view(4, 6),
        "b": pydist.arange(7, dtype=pydist.int64),
        "h": pydist.ones(3).half(),
        "e": pydist.zeros(0, 4),
        "s": pydist.tensor(2.5),
    }


LEAVES = {"step": 7, "name": "é", "t": (1, 2), "d": {"k": [None]}}


def state():
    return {"m": tensors(), "a": dict(LEAVES)}


def empty():
    return {
        "m": {name: pydist.full_like(value, 9) for name, value in tensors().items()},
        "a": {**dict.fromkeys(LEAVES), "d": {"k": None}},
    }


def is_saved(loaded):
    same = all(pydist.equal(loaded["m"][name], value) for name, value in tensors().items())
    return same and loaded["a"] == LEAVES


# Good ones: {name of a file: bytes}.


def contents(path):
    if os.path.isfile(path):
        return {os.path.basename(path): files.read(path)}
    return {name: files.read(os.path.join(path, name)) for name in sorted(os.listdir(path))}


def ours():
    """Its second file has some of the columns of w."""
    path, w = os.path.join(FOLDER, "good"), tensors()["w"]
    part = TensorPart(w[:, :2].contiguous(), w.shape, (0, 0))
    save({"m": {**tensors(), "w": part}, "a": LEAVES}, checkpoint_id=path, no_dist=True)
    other = os.path.join(FOLDER, "other")
    save({"m": {"w": TensorPart(w[:, 2:].contiguous(), w.shape, (0, 2))}}, checkpoint_id=other, no_dist=True)
    shutil.copy(os.path.join(other, "00000.safetensors"), os.path.join(path, "00001.safetensors"))
    found = json.loads(files.read(os.path.join(path, "manifest.json")))
    found["files"].append({**found["files"][0], "name": "00001.safetensors"})
    files.write_manifest(path, found)
    files.sealed(path)
    return contents(path)


def single(name):
    path = os.path.join(FOLDER, name)
    assert checkpoint.main(["convert", os.path.join(FOLDER, "good"), path]) == 0
    return contents(path)


def hugging_face():
    path = os.path.join(FOLDER, "hf")
    words = ["consolidate", os.path.join(FOLDER, "good"), path, "--max-shard-size", "100"]
    assert checkpoint.main(words) == 0
    return contents(path)


def theirs():
    """A folder of torch.distributed.checkpoint. Classes of their names stand for theirs, so that torch is not needed."""
    names = {
        "torch.distributed.checkpoint.metadata": "Metadata MetadataIndex TensorStorageMetadata BytesStorageMetadata "
        "ChunkStorageMetadata TensorProperties",
        "torch.distributed.checkpoint.filesystem": "_StorageInfo",
        "torch": "float32 float16 int64",
    }
    kinds, before = {}, dict(sys.modules)
    for module, text in names.items():
        for at in range(len(module.split("."))):
            sys.modules[".".join(module.split(".")[: at + 1])] = types.ModuleType(module)
    for module, text in names.items():
        for name in text.split():
            kinds[name] = type(name, (), {"__module__": module, "__qualname__": name})
            setattr(sys.modules[module], name, kinds[name])
    kinds["TensorProperties"].__getstate__ = lambda self: (self.dtype,)

    def make(kind, **values):
        made = kinds[kind]()
        vars(made).update(values)
        return made

    about, places, paths, data = {}, {}, {}, b""
    flat, _ = _tree.flatten(state())
    for name, value in flat.items():
        file, key = io.BytesIO(), make("MetadataIndex", fqn=name, offset=None, index=None)
        pydist.save(value, file)
        if isinstance(value, pydist.Tensor):
            size, dtype = tuple(value.shape), kinds[str(value.dtype).removeprefix("pydist.")]
            key.offset, key.index = (0,) * len(size), 0
            chunks = [make("ChunkStorageMetadata", offsets=key.offset, sizes=size)]
            properties = make("TensorProperties", dtype=dtype)
            about[name] = make("TensorStorageMetadata", properties=properties, size=size, chunks=chunks)
        else:
            about[name] = make("BytesStorageMetadata", empty=0)
        part = file.getvalue()
        places[key] = make("_StorageInfo", relative_path="__0_0.distcp", offset=len(data), length=len(part))
        paths[name], data = tuple(name.split(".")), data + part
    whole = make("Metadata", state_dict_metadata=about, planner_data=paths, storage_data=places, storage_meta=None)
    listed = pickle.dumps(whole, 2)
    for name in set(sys.modules) - set(before):
        del sys.modules[name]
    sys.modules.update(before)
    return {".metadata": listed, "__0_0.distcp": data}


# Damage.


def damaged(random, data):
    data = bytearray(data)
    for _ in range(random.choice([1, 1, 1, 2, 5])):
        at = random.randrange(len(data)) if data else 0
        kind = random.randrange(7)
        if kind <= 1 and data:
            data[at] ^= 1 << random.randrange(8)
        elif kind == 2 and data:
            data[at] = random.choice([0, 1, 0x7F, 0x80, 0xFF, ord('"'), ord("9"), ord("[")])
        elif kind == 3:
            del data[at : at + random.choice([1, 2, 8, 500])]
        elif kind == 4:
            data[at:at] = data[random.randrange(len(data) or 1) :][: random.choice([1, 4, 60])]
        elif kind == 5:
            data[at : at + 8] = struct.pack("<Q", random.choice([0, 1, 2**31, 2**40, 2**63, 2**64 - 1]))
        else:
            data[at:] = random.choice([b"", bytes(len(data) - at)])
    return bytes(data)


def value(random):
    """Some JSON that may stand where it should not."""
    return random.choice(
        [
            0, 1, 2, 3, 4, 6, 7, 24, -1, 1.5, 0.0, True, False, None, "", "1", "x", "m.w", "\ud800", "\0", "..", "/x", "w" * 10000, 2**31, 2**62, 2**63,
            2**64, 10**300, float("nan"), float("inf"), [], [0], [1], [0, 0], [0, 2], [2, 0], [4, 6], [[0]], {}, {"a": 1}, {"$tuple": [1]},
            {"$pickle": "gASVBAAAAAAAAABLAy4="}, "00000000", "ffffffff" * 2, "00001.safetensors", "00000.safetensors", ["x"] * 3000,
        ]
    )  # fmt: skip


def changed(random, found):
    """JSON with some of its values changed, left out, doubled or exchanged."""
    for _ in range(random.choice([1, 1, 1, 2, 4])):
        places = []

        def walk(at):
            for key in at if isinstance(at, dict) else range(len(at)):
                places.append((at, key))
                if isinstance(at[key], (dict, list)):
                    walk(at[key])

        walk(found)
        if not places:
            return found
        at, key = random.choice(places)
        other, otherwise = random.choice(places)
        kind = random.randrange(6)
        if kind == 0:
            at[key] = value(random)
        elif kind == 1:
            del at[key]
        elif kind == 2:
            at[key] = json.loads(json.dumps(other[otherwise]))
        elif kind == 3 and type(at[key]) is int:
            at[key] += random.choice([-1, 1, 2**32, 2**62])
        elif kind == 4 and isinstance(at[key], str):
            at[key] = random.choice(
                [at[key][:-1], at[key] + "0", at[key].upper(), at[key] * 2, at[key].replace("0", "1", 1)]
            )
        elif isinstance(at, dict):
            at[random.choice(["", "x", "m.w", "__metadata__", "shape", "a.step", "m.b@0"])] = at[key]
        else:
            at.append(at[key])
    return found


def deep(random):
    return random.choice(
        ["[" * 50000, "[" * 400 + "]" * 400, '{"a":' * 50000, '{"$tuple":' * 400 + "1" + "}" * 400, "9" * 5000]
    )


def liar(random, made):
    """Headers or the manifest say something else, and all checksums of them are right."""
    path = os.path.join(FOLDER, "case")
    write_all(made)
    for name in random.sample(files.file_names(path), random.choice([1, 1, 2])):
        header, data = files.taken_apart(made[name])
        inner = random.choice([header, header["__metadata__"], *header["__metadata__"].values()])
        changed(random, inner if isinstance(inner, (dict, list)) else header)
        if random.random() < 0.1 and isinstance(header.get("__metadata__"), dict):
            header["__metadata__"][random.choice(files.INNER)] = deep(random)
        if random.random() < 0.1:
            data = damaged(random, data)
        whole = files.put_together(header, data)
        files.write(os.path.join(path, name), damaged(random, whole) if random.random() < 0.1 else whole)
    files.sealed(path)
    if random.random() < 0.3:
        found = changed(random, json.loads(files.read(os.path.join(path, "manifest.json"))))
        if isinstance(found, dict):
            files.write_manifest(path, found)


def write_all(made):
    """Writes these files, and returns the path of the checkpoint that they are."""
    path = os.path.join(FOLDER, "case")
    shutil.rmtree(path, ignore_errors=True)
    os.mkdir(path)
    for name, data in made.items():
        files.write(os.path.join(path, name), data)
    return os.path.join(path, *made) if len(made) == 1 else path


# Loading.


def loads(path, is_true, covered):
    """Loads in every way. is_true: what comes has to be what was saved; covered: verify --full finds any change."""
    wanted = empty()
    try:
        load(wanted, checkpoint_id=path)
    except ERRORS:
        pass
    else:
        assert not is_true or is_saved(wanted), "load gave other values"
    part = pydist.full((2, 3), 9.0)
    with contextlib.suppress(*ERRORS):
        planner = DefaultLoadPlanner(allow_partial_load=True)
        load({"m": {"w": TensorPart(part, (4, 6), (1, 1))}}, checkpoint_id=path, planner=planner)
        assert not is_true or pydist.equal(part, tensors()["w"][1:3, 1:4]) or (part == 9).all(), "load of a part"
    with contextlib.suppress(*ERRORS):
        assert not is_true or is_saved(format_utils.load_whole(path)), "load_whole gave other values"
    with contextlib.suppress(*ERRORS):
        FileSystemReader(path).read_metadata()
    code = checkpoint.verify(SimpleNamespace(path=path, full=True))
    assert not covered or code == 1, "verify found nothing"
    for command in (checkpoint.ls, checkpoint.show, checkpoint.diff):
        with contextlib.suppress(*ERRORS):
            assert command(SimpleNamespace(path=path, name=None, a=path, b=path)) in (0, 1)
    return code


def case(random):
    path, kind = os.path.join(FOLDER, "case"), random.randrange(4)
    is_true = covered = False
    if kind <= 1:
        made = dict(OURS)
        for name in random.sample(sorted(made), random.choice([1, 1, 1, 2])):
            made[name] = damaged(random, made[name])
        write_all(made)
        is_true, covered = True, made != OURS
    elif kind == 2:
        liar(random, dict(OURS))
    else:
        good = random.choice(OTHERS)
        made = dict(good)
        name = random.choice(sorted(made))
        if name.endswith(".json"):
            made[name] = json.dumps(changed(random, json.loads(made[name]))).encode()
        elif name.endswith(".safetensors") and random.random() < 0.6:
            header, data = files.taken_apart(made[name])
            made[name] = files.put_together(changed(random, header), data)
        if made == good or random.random() < 0.1:
            made[name] = damaged(random, made[name])
        path = write_all(made)
    tracemalloc.start()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            loads(path, is_true, covered)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MORE, f"a case took {peak} bytes"


with contextlib.redirect_stdout(io.StringIO()):
    OURS = ours()
    OTHERS = [single("a.safetensors"), single("a.pt"), hugging_face(), theirs()]
    for good in (OURS, *OTHERS):
        path = write_all(good)
        assert not loads(path, True, False), path
        check = empty()
        load(check, checkpoint_id=path)
        assert is_saved(check)

if __name__ == "__main__":
    runner.main(case)
