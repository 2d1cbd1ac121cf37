"""Data sets in folders: Dataset.save and Dataset.load."""

import json
import os
import secrets

from pydist import _C
from pydist._files import replacing
from pydist.data import spec, state, store
from pydist.data.function import Function
from pydist.data.step import NoElement

_FORMAT = "pydist dataset 1"
_NAME = "dataset.json"


def save(dataset, path, shard_func):
    """Writes the elements. What the folder had before stays until dataset.json names the new files."""
    os.makedirs(path, exist_ok=True)
    mark, writers = secrets.token_hex(4), {}
    shard = None if shard_func is None else Function(shard_func, dataset._node, "save")
    iterator = iter(dataset)
    try:
        for number, element in enumerate(iterator):
            leaves = []
            spec.flatten(element, leaves)
            which = 0 if shard is None else _shard_of(shard, leaves, number, iterator._run)
            if which not in writers:
                writers[which] = store.Writer(os.path.join(path, f"{mark}-{which:05}.elements"), "save"), []
            writer, numbers = writers[which]
            writer.add(len(numbers), leaves)
            numbers.append(number)
        if not writers:
            writers[0] = store.Writer(os.path.join(path, f"{mark}-00000.elements"), "save"), []
        plan = state.fingerprint(dataset._node)
        try:
            tree = dataset._node.tree
        except NoElement:
            tree = None
        for writer, _ in writers.values():
            writer.done(plan, tree)
    finally:
        iterator.close()
        for writer, _ in writers.values():
            writer.drop()
    names = [f"{mark}-{which:05}.elements" for which in sorted(writers)]
    with replacing(os.path.join(path, _NAME), "w") as file:
        json.dump({"format": _FORMAT, "files": names}, file)
    for name in os.listdir(path):
        if name.endswith(".elements") and name not in names:
            os.unlink(os.path.join(path, name))


def _shard_of(shard, leaves, number, run):
    value = shard(leaves, number, run)
    return spec.count_of(value, "save", "the result of shard_func", 0)


def load(path):
    """The steps that read the files of a folder."""
    where = os.path.join(path, _NAME)
    try:
        with open(where) as file:
            said = json.load(file)
        names = said["files"] if said.get("format") == _FORMAT else None
    except FileNotFoundError:
        raise FileNotFoundError(
            f"load: {path} has no {_NAME} (expected a folder that Dataset.save has written)"
        ) from None
    except (ValueError, AttributeError, KeyError):
        names = None
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise _C.DataError(f"load: {where} is damaged (expected one that Dataset.save has written)")
    return [store.Stored(os.path.join(path, os.path.basename(name)), "load") for name in names]
