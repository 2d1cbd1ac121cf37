"""One rank's part of one save.

Each rank writes its files; the folder gets its name when all are on the disk. In every state in which a crash may leave a
disk, a folder with a checkpoint's name is a whole checkpoint.
"""

import errno
import os
import socket
import time
import weakref
from contextlib import suppress

from pydist import _C
from pydist.cuda import current_stream
from pydist.distributed.checkpoint import _format
from pydist.distributed.checkpoint.api import CheckpointException
from pydist.distributed.checkpoint.metadata import StorageMeta
from pydist.distributed.checkpoint.planner import WriteItemType
from pydist.distributed.checkpoint.stateful import plain

_links = {}  # {(parent folder, rank, ranks): the last _File of parameters that do not train}


class _File:
    """A file that a rank writes. old: the _File of an earlier save with the same bytes; state: what they depend on."""

    old = state = None

    def __init__(self, kind, items, more):
        self.kind, self.boxes, self.more = kind, _format.Boxes(items), more


def _checksums(tensor):
    """The CRC-32 of each block of a contiguous tensor."""
    data = memoryview(_C.storage_bytes(tensor)) if tensor.numel() else b""
    begin = tensor.storage_offset() * tensor.element_size()
    end = begin + tensor.numel() * tensor.element_size()
    return [_C.io_crc32(data[at : min(at + _format.BLOCK, end)]) for at in range(begin, end, _format.BLOCK)]


class Writing:
    """One rank's part of one save: `prepare`, then `write`, then `commit`."""

    def __init__(self, writer, words, about):
        self.writer, self.words, self.about = writer, words, about
        self.path = writer.path
        self.parent, self.name = os.path.split(self.path)
        self.is_marker = writer.commit == "marker"
        self.folder = self.path if self.is_marker else os.path.join(self.parent, f".tmp-{self.name}-{words.id}")
        self.files, self.events = [], []
        self.is_unsure = False  # the disk may have the names before or after the last change: nothing may be removed

    def prepare(self, state_dict, planner, later=False):
        """Asks the planner what this rank writes. later: it is written while training goes on; see _copied."""
        self.frozen = {
            param.data_ptr(): param
            for value in state_dict.values()
            if hasattr(value, "named_parameters")
            for _, param in value.named_parameters()
            if not param.requires_grad and not param.is_meta and param.numel()
        }
        planner.rank, planner.ranks = self.words.rank, self.words.ranks
        planner.set_up_planner(plain(state_dict), StorageMeta(self.path, self.words.id), self.words.rank == 0)
        planner.holders = self.words.holders(planner.listing() if hasattr(planner, "listing") else {})
        plan = planner.finish_plan(planner.create_local_plan())
        items, leaves = [], {}
        for item in plan.items:
            data = planner.resolve_data(item)
            if item.type is WriteItemType.BYTE_IO:
                leaves[item.index.fqn] = data.getvalue().decode()
                continue
            if not isinstance(data, _C.Tensor) or tuple(data.shape) != tuple(item.tensor_data.chunk.sizes):
                raise CheckpointException(
                    f"save: resolve_data gave {type(data).__name__} of shape {tuple(getattr(data, 'shape', ()))} for "
                    f"{item.index.fqn!r} (expected a tensor of shape {tuple(item.tensor_data.chunk.sizes)})"
                )
            if data.is_meta:
                raise CheckpointException(f"save: {item.index.fqn!r} is on meta, which has no data")
            data = data.detach().contiguous()
            items.append((item.index.fqn, tuple(item.index.offset), data, item.tensor_data.size))
        items = self._copied(items, later)
        self.files = self._divide(items, {**_format.tree(leaves, plan.planner_data or {}), "save_id": self.words.id})
        if not items and not (leaves and (self.words.rank == 0 or planner.holders)):
            self.files = []

    def _copied(self, items, later):
        """The items with tensors of the CPU. later: GPUs copy theirs to pinned memory in the order of their current streams,
        so what the program does next changes nothing; `self.events` happen when that is done. Then the tensors of the
        CPU are copied, too. Without tensors of GPUs there are no events, and nothing is copied."""
        devices = {tensor.device for _, _, tensor, _ in items if not tensor.is_cpu}
        if not devices:
            return items
        copied = [
            (*place, tensor.clone() if later and tensor.is_cpu else tensor.to("cpu", non_blocking=later), shape)
            for *place, tensor, shape in items
        ]
        if later:
            self.events = [current_stream(device).record_event() for device in devices]
        return copied

    def _divide(self, items, more):
        """The files of this rank: one, and one for parameters that do not train, which later saves link to."""
        still = {i: param for i, item in enumerate(items) if (param := self.frozen.get(item[2].data_ptr())) is not None}
        if self.writer.in_place:  # one file, which gets the copies
            still = {}
        files = [_File("", [item for i, item in enumerate(items) if i not in still], more)]
        if still:
            state = {(*items[i][:2],): (id(param), param._version) for i, param in still.items()}
            last = _links.get(self._link_key())
            files.append(_File("frozen-", [items[i] for i in still], {"save_id": self.words.id}))
            files[1].state, files[1].params = state, [weakref.ref(param) for param in still.values()]
            if last and last.state == state and all(ref() is not None for ref in last.params):
                files[1].old = last
        return files

    def _link_key(self):
        return self.parent, self.words.rank, self.words.ranks

    def tensors(self):
        """What this rank saves."""
        return [tensor for file in self.files for tensor in file.boxes.tensors]

    def _name_of(self, kind, rank):
        return f"{self.words.id}-{kind}{rank:05d}.safetensors" if self.is_marker else f"{kind}{rank:05d}.safetensors"

    def _make_folders(self):
        make_folder(self.parent, self.writer.sync_files)
        with suppress(FileExistsError):
            _C.io_mkdir(self.folder)

    def _path_of(self, file):
        return os.path.join(self.folder, self._name_of(file.kind, self.words.rank))

    def stage(self, parts):
        """Begins to copy `parts`, which are or have the values of `tensors()`, while training goes on. None: GPUs copy
        them."""
        if self.events:
            return None
        if not (self.writer.in_place and self.files):
            return _C.io_stage(parts, 1, reuse=self.writer.arenas.pop() if self.writer.arenas else None)
        (file,) = self.files
        self._make_folders()
        head = len(file.boxes.header(None, file.more))
        self._check_space(self._path_of(file), head + file.boxes.nbytes)
        return _C.io_stage(parts, 1, self._path_of(file), head)

    def keep(self, staging):
        """Keeps the memory of the copies for the next save, if the writer says so."""
        if self.writer.arenas is not None and staging is not None and staging.fd >= 0:
            self.writer.arenas[:] = [staging]

    def write(self, data=None, checksums=None):
        """Writes this rank's files and tells rank 0. data: the bytes of `tensors()` in one buffer, with these checksums;
        None: the tensors themselves."""
        self._make_folders()
        word, at, first = "", 0, 0
        for file in self.files:
            path = self._path_of(file)
            n, nbytes = len(file.boxes.tensors), file.boxes.nbytes
            staged = None if data is None else (data[at : at + nbytes], checksums[first : first + n])
            at, first = at + nbytes, first + n
            if not (file.old and self._link(file, path, staged)):
                self._write_file(file, path, staged)
            word += f"{file.kind or '-'} {file.nbytes} {file.crc:08x} "
            if file.state:
                file.path, file.boxes.tensors = os.path.join(self.path, os.path.basename(path)), None
                _links[self._link_key()] = file
        self.words.say(word.encode())

    def _write_file(self, file, path, staged):
        head, boxes = file.boxes.header(None, file.more), file.boxes
        if staged is None or not self.writer.in_place:
            self._check_space(path, len(head) + boxes.nbytes)
            data = boxes.tensors if staged is None else [staged[0]]
            file.checksums = _C.io_write(path, data, len(head), self.writer.thread_count)
        if staged is not None:
            file.checksums = staged[1]
        head = boxes.header(dict(zip(boxes.entries, file.checksums, strict=True)), file.more)
        _C.io_head(path, head, self.writer.sync_files)
        file.nbytes, file.crc, file.head = len(head) + boxes.nbytes, _C.io_crc32(head), len(head)

    def _link(self, file, path, staged):
        """Whether the file of the last save, if it is still that, has got this name, too. Its checksums are compared with
        those of the parameters now: writes through .data and NumPy leave no other trace."""
        old = file.old
        if (staged[1] if staged else [_checksums(tensor) for tensor in file.boxes.tensors]) != old.checksums:
            return False
        try:
            _C.io_link(old.path, path)
            with open(path, "rb") as opened:
                whole = (
                    os.fstat(opened.fileno()).st_size == old.nbytes and _C.io_crc32(opened.read(old.head)) == old.crc
                )
            if not whole:
                _C.io_unlink(path)
        except OSError:
            return False
        if whole:
            file.nbytes, file.crc, file.head, file.checksums = old.nbytes, old.crc, old.head, old.checksums
        return whole

    def _check_space(self, path, need):
        found = os.statvfs(self.folder)
        if found.f_blocks and found.f_bavail * found.f_frsize < need:
            free = found.f_bavail * found.f_frsize
            raise OSError(errno.ENOSPC, f"No space left on device: {free} bytes are free", path)

    def fail(self, error):
        """This rank cannot write its part: all ranks will hear of it in commit."""
        with suppress(_C.DistError):  # nobody hears it any more: commit will say why
            self.words.say_error(str(error) if isinstance(error, CheckpointException) else self._about(error))

    def _about(self, error):
        text = f"{getattr(error, 'filename', None) or self.path}: {type(error).__name__}: {error}"
        if getattr(error, "errno", None) == errno.ENOSPC:
            need = sum(len(file.boxes.header(None, file.more)) + file.boxes.nbytes for file in self.files)
            text += f" (this rank writes {need} bytes)"
        return text

    def commit(self):
        """Rank 0: when all ranks have written, gives the folder its name and tells all; on an error it removes what was
        written. Others: wait for that. Raises CheckpointException on all ranks."""
        if self.words.rank:
            self.words.listen(self.path)
            return
        try:
            self._commit(self.words.collect(self.path))
        except BaseException as error:
            self.clean()
            failure = error
            if not isinstance(error, CheckpointException):
                text = f"rank 0 on {socket.gethostname()}: {self._about(error)}"
                failure = CheckpointException(f"save: {self.path} was not saved: {text}", {0: text})
            self.words.tell(failure)
            if failure is error or not isinstance(error, Exception):
                raise
            raise failure from error
        self.words.tell()
        with suppress(OSError):  # readers do without it
            self._write_index()

    def _write_index(self):
        """Puts the headers of all files into one, if there are many. The checkpoint is whole without it."""
        if len(self.names) < _format.INDEXED or self.is_marker:  # a marker's folder may have an older save's index
            return
        part = os.path.join(self.path, ".index")
        _C.io_put(part, _format.headers(os.path.join(self.path, name) for name in self.names), self.writer.sync_files)
        _C.io_rename(part, os.path.join(self.path, _format.HEADERS))

    def _commit(self, words):
        files = []
        for rank, word in enumerate(words):
            rest = word.decode().split()
            for kind, nbytes, crc in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
                name = self._name_of("" if kind == "-" else kind, rank)
                files.append({"name": name, "bytes": int(nbytes), "header_crc": int(crc, 16)})
        self.names = [file["name"] for file in files]
        about = {
            "save_id": self.words.id,
            "created": time.time(),
            "ranks": self.words.ranks,
            "durable": self.writer.sync_files,
        }
        data, sync = _format.manifest(files, **about, **self.about), self.writer.sync_files
        part, final = (os.path.join(self.folder, name) for name in (f".manifest-{self.words.id}", _format.MANIFEST))
        if not self.is_marker:
            _C.io_put(part, data, sync)
            _C.io_rename(part, final)
            if sync:
                _C.io_sync(self.folder)
            if old := self._name(self.folder, self.path):
                remove(old)
            return
        if sync:  # the disk has the names of all files, and of the folder, before the manifest says that they are there
            _C.io_sync(self.folder)
            _C.io_sync(self.parent)
        _C.io_put(part, data, sync)
        unused = self._old_files()
        if old := self._name(part, final):
            for name in {os.path.basename(old), *unused} - {file["name"] for file in files}:
                with suppress(OSError):
                    _C.io_unlink(os.path.join(self.folder, name))

    def _old_files(self):
        """For commit="marker": the files of the checkpoint that is replaced."""
        try:
            return [file["name"] for file in _format.read_manifest(self.folder)["files"]]
        except (FileNotFoundError, CheckpointException):
            return []

    def _exists(self):
        return CheckpointException(f"save: {self.path} is there already (expected another name, or overwrite=True)")

    def _name(self, part, final):
        """Gives `part` the name `final`, which makes it the checkpoint, and waits until the disk has it. Returns the new
        name of what had that one, or "". After an error names are as before."""
        old = ""
        try:
            _C.io_rename(part, final)
        except OSError as error:
            if error.errno == errno.ENOENT and self._is_named():
                pass  # NFS did it, lost the answer, and found nothing to rename when it asked again
            elif error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            elif not self.writer.overwrite:
                raise self._exists() from None
            else:
                old = self._exchange(part, final)
        try:
            if self.writer.sync_files:
                _C.io_sync(os.path.dirname(final))
        except OSError:
            self.is_unsure = True
            with suppress(OSError):
                self._exchange(old, final) if old else _C.io_rename(final, part)
            raise
        return old

    def _is_named(self):
        """Whether the checkpoint that has this save's name is this save."""
        try:
            return _format.read_manifest(self.path)["save_id"] == self.words.id
        except (OSError, CheckpointException, KeyError):
            return False

    @staticmethod
    def _exchange(part, final):
        """Gives `part` the name `final` of another one, and returns the other one's new name. Where the file system cannot
        exchange names, as NFS, there is a moment without a folder `final`, and what a crash then leaves is under other
        names; a file is replaced at once."""
        try:
            _C.io_exchange(part, final)
            return part
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOSYS):
                raise
        aside = f"{part}-old"
        if os.path.isdir(final):
            _C.io_rename(final, aside)
            try:
                _C.io_rename(part, final)
            except OSError:
                _C.io_rename(aside, final)
                raise
        else:
            _C.io_link(final, aside)
            os.replace(part, final)
        return aside

    def clean(self):
        """Removes what this save has written, as far as that is possible."""
        if self.is_unsure:
            return
        if not self.is_marker:
            delete(self.folder)
            return
        with suppress(OSError):
            for name in os.listdir(self.folder):
                if self.words.id in name:
                    _C.io_unlink(os.path.join(self.folder, name))


def make_folder(path, sync=True):
    """Makes a folder, and those above it. sync: waits until the disk has their names."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    make_folder(parent, sync)
    with suppress(FileExistsError):
        _C.io_mkdir(path)
    if sync:
        _C.io_sync(parent)


def delete(path):
    """Deletes a folder with all that is in it, as far as that is possible."""
    with suppress(OSError):
        for name in os.listdir(path):
            inner = os.path.join(path, name)
            if os.path.isdir(inner) and not os.path.islink(inner):
                delete(inner)
                continue
            with suppress(OSError):
                _C.io_unlink(inner)
        _C.io_rmdir(path)


def remove(path, sync=True):
    """Deletes a checkpoint: first its name, so that nobody finds a part of it."""
    parent, name = os.path.split(path)
    trash = path
    if not name.startswith((".tmp-", ".trash-")):
        trash = os.path.join(parent, f".trash-{name}-{os.urandom(4).hex()}")
        _C.io_rename(path, trash)
        if sync:  # else the disk may get the deletions first
            _C.io_sync(parent)
    delete(trash)
