"""The states in which a power cut may leave a disk, after the calls that `_C.io_trace` has recorded.

The model is ALICE's (OSDI 2014) at its weakest: what fsync and fdatasync of a file have not confirmed may be on the disk
or not, page by page (4 KiB) and independent of the file's size; changes of names which fsync of their folder has not
confirmed may be there or not, each by itself, though a rename or an exchange is one change."""

import os
import random
import struct

from pydist import _C

PAGE = 4096
OPEN, WRITE, TRUNCATE, DATASYNC, SYNC, MKDIR, RENAME, EXCHANGE, LINK, UNLINK, RMDIR = range(1, 12)
HEAD = struct.Struct("<B3xiqIIQ")


def parsed(data):
    """[(op, file, at, path a, path b, data)] of a trace (csrc/io/file.h)."""
    records, at = [], 0
    while at < len(data):
        op, file, where, a, b, count = HEAD.unpack_from(data, at)
        at += HEAD.size
        texts = data[at : at + a].decode(), data[at + a : at + a + b].decode()
        at += a + b
        records.append((op, file, where, *texts, data[at : at + count]))
        at += count
    return records


def record(job):
    """Runs job(done). Returns [record or the number given to done]."""
    found = []

    def done(number):
        found.extend(parsed(_C.io_trace(True)))
        found.append(number)

    _C.io_trace(True)
    try:
        job(done)
    finally:
        found.extend(parsed(_C.io_trace(False)))
    return _ordered(found)


def _ordered(records):
    """Of calls that ran at once the trace has any order: a folder that one rank made may come after a file that another
    one already made there."""
    for at, entry in enumerate(records):
        if not isinstance(entry, int) and entry[0] == MKDIR:
            inside = entry[3] + os.sep
            used = next(
                (i for i in range(at) if not isinstance(records[i], int) and records[i][3].startswith(inside)), at
            )
            records.insert(used, records.pop(at))
    return records


class File:
    """Versions of each page and of the size. The first is on the disk, the last is what programs see."""

    def __init__(self, data=b""):
        self.sizes = [len(data)]
        self.pages = {at // PAGE: [data[at : at + PAGE].ljust(PAGE, b"\0")] for at in range(0, len(data), PAGE)}

    def write(self, at, data):
        """A change of pages; the file grows if it has to."""
        if at + len(data) > self.sizes[-1]:
            self.sizes.append(at + len(data))
        while data:
            number, begin = divmod(at, PAGE)
            part, data = data[: PAGE - begin], data[PAGE - begin :]
            versions = self.pages.setdefault(number, [bytes(PAGE)])
            versions.append(versions[-1][:begin] + part + versions[-1][begin + len(part) :])
            at += len(part)

    def truncate(self, size):
        """A change of the size. Behind it are zeros, at once: the model has no old bytes there."""
        for number, versions in self.pages.items():
            kept = max(0, min(PAGE, size - number * PAGE))
            if any(versions[-1][kept:]):
                versions.append(versions[-1][:kept].ljust(PAGE, b"\0"))
        self.sizes.append(size)

    def sync(self):
        """The disk has all."""
        self.sizes, self.pages = self.sizes[-1:], {number: found[-1:] for number, found in self.pages.items()}

    def content(self, draw):
        """Its bytes, where draw(number of versions) is the number of one of them."""
        size = self.sizes[draw(len(self.sizes))]
        data = bytearray(size)
        for number, versions in self.pages.items():
            part = versions[draw(len(versions))][: max(0, size - number * PAGE)]
            data[number * PAGE : number * PAGE + len(part)] = part
        return bytes(data)


class Disk:
    """A folder of files; `apply` takes the records of a trace, `cut` gives what a power cut may leave."""

    def __init__(self, root):
        self.root, self.files, self.opened = str(root), {}, {}
        self.names = {0: {}}  # by folder {name: its number}, as programs see it
        self.stored = {0: {}}  # the same as fsync has confirmed
        self.changes = []  # the others, in order: [(folder, name, number or None), ...]
        self.count = 0
        self._take(self.root, 0)
        self._confirm()

    def _take(self, path, folder):
        for entry in os.scandir(path):
            node = self._node()
            self.names[folder][entry.name] = node
            if entry.is_dir():
                self.names[node] = {}
                self._take(entry.path, node)
            else:
                with open(entry.path, "rb") as file:
                    self.files[node] = File(file.read())

    def _confirm(self):
        self.stored = {folder: dict(names) for folder, names in self.names.items()}

    def _node(self):
        self.count += 1
        return self.count

    def _place(self, path):
        """(number of its folder, its name)."""
        folder, parts = 0, os.path.relpath(path, self.root).split(os.sep)
        assert parts[0] != "..", f"{path} is outside of {self.root}"
        for name in parts[:-1]:
            folder = self.names[folder][name]
        return folder, parts[-1]

    def _number(self, path):
        if path == self.root:
            return 0
        folder, name = self._place(path)
        return self.names[folder].get(name)

    def _change(self, *sets):
        self.changes.append(sets)
        for folder, name, node in sets:
            self.names[folder].pop(name, None)
            if node is not None:
                self.names[folder][name] = node

    def apply(self, op, file, at, a, b, data):
        """The change of one record."""
        if op == OPEN:
            node = self._number(a)
            if node is None:
                assert at == 1, f"open made {a}, but the trace does not say so"
                node = self._node()
                self.files[node] = File()
                self._change((*self._place(a), node))
            self.opened[file] = node
        elif op == WRITE:
            self.files[self.opened[file]].write(at, data)
        elif op == TRUNCATE:
            self.files[self.opened[file]].truncate(at)
        elif op in (DATASYNC, SYNC):
            node = self.opened[file]
            if node in self.files:
                self.files[node].sync()
            else:
                self._sync_folder(node)
        elif op == MKDIR:
            node = self._node()
            self.names[node], self.stored[node] = {}, {}
            self._change((*self._place(a), node))
        elif op == RENAME:
            node = self._number(a)
            self._change((*self._place(a), None), (*self._place(b), node))
        elif op == EXCHANGE:
            first, second = self._number(a), self._number(b)
            self._change((*self._place(a), second), (*self._place(b), first))
        elif op == LINK:
            self._change((*self._place(b), self._number(a)))
        else:
            assert op in (UNLINK, RMDIR)
            self._change((*self._place(a), None))

    def _sync_folder(self, folder):
        kept = []
        for sets in self.changes:
            if any(where == folder for where, *_ in sets):
                assert all(where == folder for where, *_ in sets), "a rename from one folder to another"
                self._store(self.stored, sets)
            else:
                kept.append(sets)
        self.changes = kept

    @staticmethod
    def _store(names, sets):
        for folder, name, node in sets:
            names.setdefault(folder, {}).pop(name, None)
            if node is not None:
                names[folder][name] = node

    def cut(self, chance):
        """{path: bytes, or None for a folder}: what the disk may have if the power goes now."""
        names = {folder: dict(found) for folder, found in self.stored.items()}
        for sets in _some(self.changes, chance):
            self._store(names, sets)
        found = {}

        def walk(folder, path):
            for name, node in names.get(folder, {}).items():
                inner = f"{path}{name}"
                if node in self.files:
                    found[inner] = self.files[node].content(_drawing(chance))
                else:
                    found[inner] = None
                    walk(node, inner + "/")

        walk(0, "")
        return found


def _some(changes, chance):
    """Some of these changes, in their order: all, none, the first ones, one less, only one, each with a chance of 1/2."""
    count, kind = len(changes), chance.randrange(6)
    if not count or kind == 0:
        return changes
    one = chance.randrange(count)
    if kind == 1:
        return []
    if kind == 2:
        return changes[:one]
    if kind == 3:
        return changes[:one] + changes[one + 1 :]
    if kind == 4:
        return [changes[one]]
    return [change for change in changes if chance.random() < 0.5]


def _drawing(chance):
    """Draws versions of a file's parts: the newest, the oldest, mostly one of these, or any."""
    kind = chance.randrange(5)
    share = {2: 0.1, 3: 0.9}.get(kind)

    def draw(count):
        if kind == 4:
            return chance.randrange(count)
        newest = kind == 0 if share is None else chance.random() < share
        return count - 1 if newest else 0

    return draw


def cuts(disk, records, count, seed):
    """`count` states (what a cut leaves, the last number that was done) at random moments of this record."""
    chance, done, left = random.Random(seed), 0, count
    for at, entry in enumerate(records):
        if isinstance(entry, int):
            done = entry
        else:
            disk.apply(*entry)
        here = left // (len(records) - at)
        for _ in range(here):
            yield disk.cut(chance), done
        left -= here


def write_out(found, folder):
    """Makes the files of a state."""
    os.makedirs(folder)
    for path, data in found.items():
        path = os.path.join(folder, path)
        if data is None:
            os.mkdir(path)
        else:
            with open(path, "wb") as file:
                file.write(data)
