"""`python -m pydist.checkpoint COMMAND ...`: looks at checkpoints and changes their form.

    ls FOLDER               the checkpoints of a folder, such as a CheckpointManager's, and whether they are whole
    verify PATH [--full]    checks sizes and headers, with --full every byte, of a checkpoint or of all in a folder
    show PATH [NAME]        names, dtypes, shapes and boxes; with a NAME its values
    diff A B                what differs between two checkpoints
    convert FROM TO         as a .pt file, a .safetensors file or a folder, by TO's name
    consolidate FROM TO     as a folder of few files that Hugging Face's loader reads
    clean FOLDER            finishes or removes what a crash has left

PATH, FROM, A and B are anything that FileSystemReader reads. The exit code is 1 if a checkpoint is damaged or two differ.
"""

import argparse
import json
import os
import re
import sys
import time
from contextlib import suppress
from math import prod

import pydist
from pydist._files import replacing
from pydist.distributed.checkpoint import (
    DefaultLoadPlanner,
    FileSystemReader,
    FileSystemWriter,
    TensorPart,
    _foreign,
    _format,
    manager,
    save,
)
from pydist.distributed.checkpoint.api import CheckpointException
from pydist.distributed.checkpoint.format_utils import load_whole
from pydist.safetensors import SafetensorError, save_file

AT_ONCE = 64 << 20  # bytes of a tensor that diff holds, of each side
_UNITS = {"": 1, "K": 1000, "M": 1000**2, "G": 1000**3, "T": 1000**4}


def _found(path):
    """The checkpoints in a folder, or the path itself if it is one."""
    if not os.path.exists(path):
        raise CheckpointException(f"there is nothing at {path}")
    if not os.path.isdir(path):
        return [path]
    names = set(os.listdir(path))
    steps = [manager.folder_of(path, step) for step in manager.steps_of(path)]
    others = [
        os.path.join(path, name)
        for name in sorted(names)
        if not name.startswith(".") and os.path.exists(os.path.join(path, name, _format.MANIFEST))
    ]
    is_one = names & {_format.MANIFEST, ".metadata"} or not steps + others
    return [path] if is_one else steps + [other for other in others if other not in steps]


class _Opened:
    """A checkpoint: `index`, `manifest`, and `read`."""

    def __init__(self, path):
        self.path, self._reader = path, FileSystemReader(path)
        self.about = self._reader.read_metadata()
        self.index, self.manifest = self._reader._index, self._reader.manifest

    def read(self, name, value=None):
        """The value of this name; into `value`, a tensor or a TensorPart, if that is given."""
        whole = self.index.tensors.get(name)
        if value is None and whole is not None:
            value = pydist.empty(whole.shape, dtype=whole.dtype, device="cpu")
        state, planner = {name: value}, DefaultLoadPlanner(flatten_state_dict=False)
        planner.set_up_planner(state, self.about, True)
        self._reader.read_data(planner.finish_plan(planner.create_local_plan()), planner)
        return state[name]

    def names(self):
        """All names, in the order of the state."""
        return list(self.about.state_dict_metadata)


def _size(nbytes):
    for unit in ("B", "KB", "MB", "GB"):
        if nbytes < 1000:
            return f"{nbytes:.4g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.4g} TB"


def _many(count, what):
    return f"{count} {what}{'s' * (count != 1)}"


def _nbytes(whole):
    return prod(whole.shape) * whole.dtype.itemsize


def _dtype(dtype):
    return str(dtype).removeprefix("pydist.")


def _one_line(error):
    return " ".join(str(error).split()).encode("utf-8", "backslashreplace").decode()


# The commands. Each returns the exit code.


def ls(args):
    """Prints a line for each checkpoint of a folder."""
    rows = [("name", "step", "size", "files", "ranks", "created", "")]
    for path in _found(args.path):
        name = os.path.basename(os.path.abspath(path))
        step = re.fullmatch(r"step-(\d+)", name)
        row = ["", "", "", ""]
        try:
            with suppress(FileNotFoundError, NotADirectoryError):
                about = _format.read_manifest(path)
                size = sum(file["bytes"] for file in about["files"])
                created = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(about.get("created", 0)))
                row = [_size(size), str(len(about["files"])), str(about.get("ranks", "")), created]
                step = about.get("step", step and int(step[1]))
            opened = _Opened(path)
            why = "whole" if opened.manifest else "whole, not pydist's"
            if opened.manifest.get("durable") is False:
                why += ", but not synced to the disk"
        except (CheckpointException, OSError, ValueError, TypeError, OverflowError) as error:
            why = _one_line(error)
        step = step[1].lstrip("0") or "0" if isinstance(step, re.Match) else str("" if step is None else step)
        rows.append((repr(name)[1:-1], step, *row, why))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    names = os.listdir(args.path) if os.path.isdir(args.path) else []
    left = [name for name in names if name.startswith((".tmp-", ".trash-"))]
    if left:
        print(f"{_many(len(left), 'folder')} of saves that run or were not finished: {', '.join(sorted(left))}")
    return 0


def _damage(opened):
    """The first byte that is wrong, as text; "" if all are right."""
    known, right = _format.known_headers(opened.path, opened.manifest) if opened.manifest else ({}, True)
    if known:  # the files' own headers have not been read
        _format.index_of(opened.path, all_headers=True)
    if not right:
        return f"{os.path.join(opened.path, _format.HEADERS)}: this is not the headers of all files (loading does without it)"
    for name, whole in opened.index.tensors.items():
        for box in whole.boxes:
            if box.crcs is None or not isinstance(box.file, str):
                break
            with open(box.file, "rb") as file:
                file.seek(box.begin)
                for block, crc in enumerate(box.crcs):
                    data = file.read(min(_format.BLOCK, box.nbytes - block * _format.BLOCK))
                    found = pydist._C.io_crc32(data)
                    if found != crc:
                        return f"{box.file}: {name!r} is damaged: block {block} has the checksum {found:08x} (expected {crc:08x})"
        else:
            continue
        opened.read(name)  # files of others have no checksums: that they can be read is all there is
    return ""


def verify(args):
    """Prints a line for each checkpoint."""
    code = 0
    for path in _found(args.path):
        try:
            opened = _Opened(path)
            why = _damage(opened) if args.full else ""
        except (CheckpointException, OSError) as error:
            why = _one_line(error)
        if why:
            code = 1
            print(f"{path}: damaged: {_one_line(why)}")
            continue
        checked = "headers" if not args.full else "every byte" if opened.manifest else "headers, and all can be read"
        size = sum(map(_nbytes, opened.index.tensors.values()))
        print(f"{path}: whole: {_many(len(opened.index.tensors), 'tensor')}, {_size(size)} ({checked})")
    return code


def show(args):
    """Prints all names, or the value of one."""
    opened = _Opened(args.path)
    if args.name is not None:
        if args.name not in opened.about.state_dict_metadata:
            raise CheckpointException(
                f"show: {args.path} has no {args.name!r} (expected one of its names: show {args.path})"
            )
        print(repr(opened.read(args.name)))
        return 0
    for name in opened.names():
        whole = opened.index.tensors.get(name)
        if whole is None:
            text = opened.index.leaves[name]
            print(f"{repr(name)[1:-1]} = {text[:100]}{'...' if len(text) > 100 else ''}")
            continue
        print(f"{repr(name)[1:-1]}: {_dtype(whole.dtype)} {list(whole.shape)}")
        for box in whole.boxes if len(whole.boxes) > 1 else ():
            file = box.file if isinstance(box.file, str) else box.file.path
            print(f"    {list(box.sizes)} at {list(box.offsets)} in {os.path.basename(file)}")
    return 0


def _difference(a, b, name):
    """How the values of a tensor differ, as text; "" if they are equal. NaN equals NaN."""
    whole = a.index.tensors[name]
    count, first, most, differing = prod(whole.shape), None, 0.0, 0
    step = AT_ONCE // whole.dtype.itemsize
    for begin in range(0, count, step):
        parts = []
        for side in (a, b):
            part = pydist.empty(min(step, count - begin), dtype=whole.dtype, device="cpu")
            side.read(name, TensorPart.flat(part, whole.shape, begin))
            parts.append(part)
        x, y = parts
        where = (x != y) & ~((x != x) & (y != y))
        if not where.any():
            continue
        where = where.nonzero().flatten()
        differing += len(where)
        if first is None:
            at = int(where[0])
            index, left = [], begin + at
            for size in reversed(whole.shape):
                left, position = divmod(left, size)
                index.insert(0, position)
            first = f"{name!r} at {index}: {x[at].item()} and {y[at].item()}"
        wide = pydist.complex64 if whole.dtype.is_complex else pydist.float64
        far = (x[where].to(wide) - y[where].to(wide)).abs().max().item()
        most = far if far != far else max(most, far)
    return f"{first} ({differing} of {count} elements differ, by at most {most:g})" if first else ""


def diff(args):
    """Prints what differs."""
    a, b = _Opened(args.a), _Opened(args.b)
    lines = []

    def say(line):
        lines.append(line)
        print(line.encode("utf-8", "backslashreplace").decode())

    for one, other in ((a, b), (b, a)):
        for name in one.names():
            if name not in other.about.state_dict_metadata:
                say(f"{name!r} is only in {one.path}")
    for name in a.names():
        if name not in b.about.state_dict_metadata:
            continue
        x, y = a.index.tensors.get(name), b.index.tensors.get(name)
        if x is None or y is None:
            texts = ["a tensor" if whole else side.index.leaves[name] for whole, side in ((x, a), (y, b))]
            if texts[0] != texts[1] or (x is None) != (y is None):
                say(f"{name!r}: {texts[0][:100]} and {texts[1][:100]}")
        elif (x.dtype, x.shape) != (y.dtype, y.shape):
            say(f"{name!r}: {_dtype(x.dtype)} {list(x.shape)} and {_dtype(y.dtype)} {list(y.shape)}")
        elif text := _difference(a, b, name):
            say(text)
    if not lines:
        print(f"equal: {_many(len(a.names()), 'name')}")
    return 1 if lines else 0


def _metadata(leaves, paths):
    return {"format": "pt", **_format.tree(leaves, paths)}


def _must_be_new(path):
    if os.path.lexists(path):
        raise CheckpointException(f"{path} is there already (expected a name that is not)")


def convert(args):
    """Writes a checkpoint in another form."""
    _must_be_new(args.to)
    if args.to.endswith(".safetensors"):
        opened = _Opened(args.path)
        tensors = {name: opened.read(name) for name in opened.index.tensors}
        save_file(tensors, args.to, _metadata(opened.index.leaves, opened.index.paths))
    elif args.to.endswith((".pt", ".pth", ".bin")):
        pydist.save(load_whole(args.path), args.to)
    else:
        save(load_whole(args.path), storage_writer=FileSystemWriter(args.to, overwrite=False), no_dist=True)
    print(f"wrote {args.to}")
    return 0


def _shards(opened, names, most):
    """Lists of names, the tensors of which have at most that many bytes together. A larger tensor is alone."""
    shards, size = [[]], 0
    for name in names:
        nbytes = _nbytes(opened.index.tensors[name])
        if shards[-1] and size + nbytes > most:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += nbytes
    return shards


def consolidate(args):
    """Writes the tensors as files of Hugging Face's form, with an index if there are several files."""
    opened, only = _Opened(args.path), args.only
    names = [name for name in opened.names() if name in opened.index.tensors and name.startswith(only)]
    if not names or (only and only in names):
        raise CheckpointException(f"consolidate: {args.path} has no tensor whose name begins with {only!r} and goes on")
    leaves = {name[len(only) :]: text for name, text in opened.index.leaves.items() if name.startswith(only)}
    os.makedirs(args.to, exist_ok=True)
    if os.listdir(args.to):
        raise CheckpointException(f"consolidate: {args.to} has files already (expected a new or an empty folder)")
    shards = _shards(opened, names, args.max_shard_size)
    ends = [f"-{i:05d}-of-{len(shards):05d}" for i in range(1, len(shards) + 1)] if len(shards) > 1 else [""]
    files = {f"model{end}.safetensors": shard for end, shard in zip(ends, shards, strict=True)}
    total = sum(_nbytes(opened.index.tensors[name]) for name in names)
    if len(files) > 1:  # first: while a file of it is missing, nobody reads the folder
        places = {name[len(only) :]: file for file, shard in files.items() for name in shard}
        text = json.dumps({"metadata": {"total_size": total}, "weight_map": places}, indent=2)
        with replacing(os.path.join(args.to, _foreign._HF_INDEX)) as file:
            file.write(text.encode())
    more = leaves, {} if only else opened.index.paths  # of the first file
    for file, shard in files.items():
        tensors = {name[len(only) :]: opened.read(name) for name in shard}
        save_file(tensors, os.path.join(args.to, file), _metadata(*more))
        more = {}, {}
    print(f"wrote {_many(len(names), 'tensor')}, {_size(total)}, in {_many(len(shards), 'file')} to {args.to}")
    return 0


def clean(args):
    """Finishes or removes what a crash has left."""
    before = set(os.listdir(args.path))
    for name in manager.clean(args.path):
        step = manager._LEFT.fullmatch(name)
        is_kept = step and step[1] not in before and os.path.exists(os.path.join(args.path, step[1]))
        print(f"{name}: it is whole, and is {step[1]} now" if is_kept else f"{name}: removed")
    return 0


def _bytes(text):
    found = re.fullmatch(r"(\d+)([KMGT]?)B?", text.upper())
    if not found or not int(found[1]):
        raise argparse.ArgumentTypeError(f"got {text!r} (expected a size, such as 5GB)")
    return int(found[1]) * _UNITS[found[2]]


def main(argv=None):
    """Runs the command line. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m pydist.checkpoint", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(run, *names):
        made = commands.add_parser(run.__name__, description=run.__doc__)
        made.set_defaults(run=run)
        for name in names:
            made.add_argument(name, metavar=name.upper())
        return made

    command(ls, "path")
    command(verify, "path").add_argument("--full", action="store_true", help="read all data")
    command(show, "path").add_argument("name", nargs="?", metavar="NAME")
    command(diff, "a", "b")
    command(convert, "path", "to")
    made = command(consolidate, "path", "to")
    made.add_argument("--max-shard-size", type=_bytes, default="5GB", metavar="SIZE", help="of a file [%(default)s]")
    made.add_argument("--only", default="", metavar="PREFIX", help="names that begin with it, which is taken off")
    command(clean, "path")
    args = parser.parse_args(argv)
    try:
        return args.run(args)
    except (CheckpointException, SafetensorError, OSError) as error:
        print(f"checkpoint: {_one_line(error)}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
