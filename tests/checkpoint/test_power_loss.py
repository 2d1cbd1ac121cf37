"""A power cut at any moment of a save leaves the newest checkpoint whole, and it is the last that was done or a newer one.

The engine records a save's calls; tests/lib/disks.py makes the states which they may leave on a disk. The same check finds
each mistake that is planted into the save."""

import hashlib
import os
import shutil
from copy import deepcopy

import pytest

from lib.disks import Disk, cuts, record, write_out
from lib.steps import KINDS, LARGE, SHAPES, look, prepare, saves
from pydist import _C
from pydist.distributed.checkpoint import _writing, manager
from pydist.testing import run_ranks

STATES = 20_000 if "FULL_LONG" in os.environ else 300
RANKS = ("first of ranks", "overwrite of ranks", "marker overwrite of ranks", "manager of ranks")


def aborted(folder, done):
    """A save that its process does not finish: the folder is complete but for its name. Then a new manager finds it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_writing.Writing, "clean", lambda self: None)
        _after(patch, "io_rename", lambda a, b: b.endswith(_writing._format.MANIFEST), KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            saves("first", folder, lambda number: None)
    manager.clean(folder)
    done(3)


def twice(folder, done):
    """An overwrite that its process does not finish after the exchange. Then a new manager finds both folders."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_writing.Writing, "clean", lambda self: None)
        _after(patch, "io_exchange", lambda a, b: True, KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            saves("overwrite", folder, lambda number: None)
    manager.clean(folder)


def _after(patch, name, wanted, error):
    """The call returns to nobody: the process has ended."""
    call = getattr(_C, name)

    def replaced(*args):
        call(*args)
        if wanted(*args):
            raise error

    patch.setattr(_C, name, replaced)


def trace(kind, root, plant=lambda: None):
    """(Disk before, [number that was done before, record]) of saves of this kind in root/runs/a. plant() comes first."""
    root.mkdir()
    folder = str(root / "runs" / "a")
    plain, of_ranks = kind.removesuffix(" of ranks"), kind.endswith(" of ranks")
    shapes = LARGE if of_ranks else SHAPES
    before = prepare({"aborted": "first", "twice": "overwrite"}.get(kind, plain), folder, shapes)
    disk = Disk(root)
    if kind in ("aborted", "twice"):
        job = lambda done: (aborted if kind == "aborted" else twice)(folder, done)
    elif of_ranks:
        job = lambda done: run_ranks(2, lambda rank: saves(plain, folder, (done, lambda number: None)[rank], shapes))
    else:
        job = lambda done: saves(kind, folder, done)
    plant()
    return disk, [before, *record(job)]


def wrong(kind, root, disk, records, states, seed, seen):
    """What is wrong in the first bad one of that many states, or "". seen: a set of those that were looked at."""
    shapes, marker = LARGE if kind.endswith("ranks") else SHAPES, "marker" in kind
    for number, (found, done) in enumerate(cuts(deepcopy(disk), records, states, seed)):
        digest = hashlib.sha256(repr((sorted(found.items(), key=lambda item: item[0]), done)).encode()).digest()
        if digest in seen:
            continue
        seen.add(digest)
        folder = root / f"state-{seed}-{number}"
        write_out(found, folder)
        why = look(str(folder / "runs" / "a"), done, shapes, marker)
        shutil.rmtree(folder)
        if why:
            names = ", ".join(f"{path} ({'folder' if data is None else len(data)})" for path, data in found.items())
            return f"{kind}: state {number} of seed {seed}: {why}\n{names}"
    return ""


ALL = (*KINDS, "aborted", "twice", *RANKS)


@pytest.mark.parametrize("kind", ALL)
def test_newest_checkpoint_is_whole_after_a_power_cut(kind, tmp_path):
    disk, records = trace(kind, tmp_path / "run")
    seen = set()
    why = wrong(kind, tmp_path, disk, records, STATES // len(ALL) + 1, 1, seen)
    assert not why, why
    assert len(seen) >= 5


# ---- mistakes ------------------------------------------------------------------------------------------------------


def unsynced_files(patch):
    call = _C.io_head
    patch.setattr(_C, "io_head", lambda path, data, sync=True: call(path, data, False))


def unsynced_manifest(patch):
    call = _C.io_put
    patch.setattr(_C, "io_put", lambda path, data, sync=True: call(path, data, False))


def _no_sync(patch, wanted):
    call = _C.io_sync
    patch.setattr(_C, "io_sync", lambda path: None if wanted(os.path.basename(path)) else call(path))


def unsynced_folder(patch):
    _no_sync(patch, lambda name: name.startswith((".tmp-", "step-")))


def unsynced_parent(patch):
    _no_sync(patch, lambda name: name == "a")


def unsynced_parents_above(patch):
    _no_sync(patch, lambda name: name in ("run", "runs"))


def _late(patch, when):
    """The data is synced after the calls for which `when` holds."""
    head, rename, late = _C.io_head, _C.io_rename, []

    def no_sync(path, data, sync=True):
        head(path, data, False)
        late.append(path)

    def renamed(a, b):
        rename(a, b)
        if when(a, b):
            for path in late:
                _C.io_sync(path.replace(os.path.dirname(path), b) if os.path.dirname(path) == a else path)
            late.clear()

    patch.setattr(_C, "io_head", no_sync)
    patch.setattr(_C, "io_rename", renamed)


def manifest_before_data(patch):
    _late(patch, lambda a, b: b.endswith("manifest.json"))


def rename_before_data(patch):
    _late(patch, lambda a, b: os.path.basename(b).startswith("step-"))


def old_deleted_first(patch):
    name = _writing.Writing._name

    def deleting(self, part, final):
        if os.path.isdir(final):
            _writing.remove(final)
        return name(self, part, final)

    patch.setattr(_writing.Writing, "_name", deleting)


def header_before_data(patch):
    """A header that is synced with zeros behind it; the data comes afterwards, and nobody syncs it."""
    write, head = _C.io_write, _C.io_head

    def zeros_first(path, parts, offset, threads=2):
        kept = [bytes(part.reshape(-1).view(_C.uint8).tolist()) if part.numel() else b"" for part in parts]
        patch.setattr(zeros_first, "kept", kept, raising=False)
        sums = [[_C.io_crc32(part)] if part else [] for part in kept]
        write(path, [bytes(len(part)) for part in kept], offset, threads)
        return sums

    def then_data(path, data, sync=True):
        head(path, data, sync)
        head(path, bytes(data) + b"".join(zeros_first.kept), False)

    patch.setattr(_C, "io_write", zeros_first)
    patch.setattr(_C, "io_head", then_data)


def manifest_in_place(patch):
    """commit="marker" empties the old manifest and writes the new one into it."""
    put = _C.io_put

    def in_place(a, b):
        with open(a, "rb") as file:
            data = file.read()
        _C.io_unlink(b)
        put(b, data)

    patch.setattr(_C, "io_exchange", in_place)


def name_before_manifest(patch):
    """The folder gets its name first."""
    put, rename = _C.io_put, _C.io_rename

    def early(path, data, sync=True):
        folder = os.path.dirname(path)
        final = os.path.join(os.path.dirname(folder), os.path.basename(folder)[len(".tmp-") :][: len("step-") + 12])
        rename(folder, final)
        put(os.path.join(final, os.path.basename(path)), data, sync)
        rename(os.path.join(final, os.path.basename(path)), os.path.join(final, "manifest.json"))
        _C.io_sync(final)
        _C.io_sync(os.path.dirname(final))

    patch.setattr(_C, "io_put", early)
    patch.setattr(_C, "io_rename", lambda a, b: None)
    _no_sync(patch, lambda name: name.startswith(".tmp-"))


def old_deleted_in_place(patch):
    """keep_last deletes files of a folder that has its name."""
    patch.setattr(manager, "remove", lambda path, sync=True: _writing.delete(path))


def old_deleted_before_its_name_is(patch):
    patch.setattr(manager, "remove", lambda path, sync=True: _writing.remove(path, False))


def old_deleted_before_done(patch):
    """keep_last deletes the older steps before the new one is there."""
    save = manager.save

    def sweeping(state, **more):
        for step in (1, 2, 3):
            path = manager.folder_of(os.path.dirname(more["storage_writer"].path), step)
            if os.path.isdir(path):
                _writing.remove(path)
        return save(state, **more)

    patch.setattr(manager, "save", sweeping)


def finished_unsynced(patch):
    """`clean` names a folder whose names the disk may not have."""
    _no_sync(patch, lambda name: name.startswith(".tmp-"))


def cleaned_unsynced(patch):
    """`clean` deletes the old folder of an overwrite whose exchange the disk may not have."""
    calls = []

    def wanted(name):
        calls.append(name)
        return name == "a" and calls.count("a") == 1

    _no_sync(patch, wanted)


def manifest_before_names(patch):
    """commit="marker" without the sync of the folder before the manifest."""
    calls = []

    def wanted(name):
        calls.append(name)
        return name.startswith("step-") and len(calls) == 1

    _no_sync(patch, wanted)


PLANTED = [
    ("first", unsynced_files),
    ("overwrite", unsynced_files),
    ("first of ranks", unsynced_files),
    ("first", unsynced_manifest),
    ("first", unsynced_folder),
    ("overwrite", unsynced_folder),
    ("first", unsynced_parent),
    ("overwrite", unsynced_parent),
    ("manager", unsynced_parent),
    ("first", unsynced_parents_above),
    ("new manager", unsynced_parents_above),
    ("first", manifest_before_data),
    ("first", rename_before_data),
    ("overwrite", old_deleted_first),
    ("first", header_before_data),
    ("marker overwrite", manifest_in_place),
    ("first", name_before_manifest),
    ("manager", old_deleted_in_place),
    ("manager", old_deleted_before_its_name_is),
    ("manager", old_deleted_before_done),
    ("aborted", finished_unsynced),
    ("twice", cleaned_unsynced),
    ("marker overwrite", manifest_before_names),
    ("marker", unsynced_parent),
]


@pytest.mark.parametrize("kind, plant", PLANTED, ids=lambda value: getattr(value, "__name__", value))
def test_planted_mistake_is_found(kind, plant, tmp_path, monkeypatch):
    disk, records = trace(kind, tmp_path / "trace", lambda: plant(monkeypatch))
    monkeypatch.undo()
    seen = set()
    assert any(wrong(kind, tmp_path, disk, records, 40, seed, seen) for seed in range(40))
