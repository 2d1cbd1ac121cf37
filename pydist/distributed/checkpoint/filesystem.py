"""Where checkpoints lie: the writer's options, and the reader of all formats."""

import io
import os

import pydist
from pydist import _C
from pydist.distributed.checkpoint import _foreign, _format
from pydist.distributed.checkpoint.api import CheckpointException
from pydist.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from pydist.distributed.checkpoint.planner import LoadItemType

__all__ = ["FileSystemReader", "FileSystemWriter", "StorageReader", "StorageWriter"]

THREADS = 2  # that read or write one file


class StorageWriter:
    """Base class of writers. pydist has one: FileSystemWriter."""


class StorageReader:
    """Base class of readers. pydist has one, FileSystemReader, which reads all formats that pydist knows."""


class FileSystemWriter(StorageWriter):
    """Writes a checkpoint as the folder `path`.

    overwrite: a checkpoint that is there is replaced at once, at the end; without it that is an error. sync_files=False
    does not wait for the disk: the checkpoint may be damaged after a power cut, and its manifest says so. thread_count:
    threads that write the file of this rank. cache_staged_state_dict: the writer keeps the memory of async_save's copies
    for the next one, which copies faster then. commit="marker": files go into the folder itself, and the manifest, written
    last, makes it a checkpoint; for file systems that cannot rename folders, such as object stores.
    """

    def __init__(
        self,
        path,
        single_file_per_rank=True,
        sync_files=True,
        thread_count=THREADS,
        per_thread_copy_ahead=10_000_000,
        cache_staged_state_dict=False,
        overwrite=True,
        *,
        commit="rename",
    ):
        if commit not in ("rename", "marker"):
            raise ValueError(f"FileSystemWriter: commit is {commit!r} (expected 'rename' or 'marker')")
        if thread_count < 1:
            raise ValueError(f"FileSystemWriter: thread_count is {thread_count} (expected 1 or more)")
        self.path, self.sync_files, self.overwrite = os.path.abspath(os.fspath(path)), bool(sync_files), bool(overwrite)
        self.thread_count, self.commit = int(thread_count), commit
        self.arenas = [] if cache_staged_state_dict else None  # the Staging of the last async_save

    checkpoint_id = property(lambda self: self.path, doc="The folder.")
    in_place = False  # whether async_save copies into the file itself; for folders in memory


class FileSystemReader(StorageReader):
    """Reads a checkpoint: a folder that pydist wrote, one of torch.distributed.checkpoint, one of Hugging Face's (with or
    without model.safetensors.index.json), a .safetensors file, or a .pt file. Raises CheckpointException if it is
    damaged or none of these."""

    def __init__(self, path):
        self.path = os.path.abspath(os.fspath(path))

    checkpoint_id = property(lambda self: self.path, doc="The folder or file.")
    _index = None

    def _open(self):
        if self._index is None:
            self.manifest = {}
            try:
                self._index, self.manifest = _format.index_of(self.path)
            except (FileNotFoundError, NotADirectoryError):
                self._index = _foreign.index_of(self.path)
            self._boxes = {  # an empty box may begin where another one does
                (name, tuple(box.offsets)): box
                for name, whole in self._index.tensors.items()
                for box in whole.boxes
                if 0 not in box.sizes
            }
        return self._index

    def read_metadata(self):
        """All names, dtypes, shapes and boxes."""
        index, about = self._open(), {}
        for name in dict.fromkeys([*index.paths, *index.tensors, *index.leaves]):  # in the order of the state
            if name in index.tensors:
                whole = index.tensors[name]
                boxes = [ChunkStorageMetadata(box.offsets, box.sizes) for box in whole.boxes]
                about[name] = TensorStorageMetadata(TensorProperties(whole.dtype), whole.shape, boxes)
            elif name in index.leaves:
                about[name] = BytesStorageMetadata()
        meta = StorageMeta(self.path, self.manifest.get("save_id"))
        return Metadata(
            about, planner_data=dict(index.paths), storage_meta=meta, version=str(self.manifest.get("version"))
        )

    def read_data(self, plan, planner):
        """Reads the items of this plan."""
        index, jobs = self._open(), {}
        for item in plan.items:
            name = item.storage_index.fqn
            if item.type is LoadItemType.BYTE_IO:
                planner.load_bytes(item, io.BytesIO(index.leaves[name].encode()))
                continue
            stored = self._boxes[name, tuple(item.storage_index.offset)]
            jobs.setdefault(stored.file, []).append((item, index.tensors[name], stored))
        for file, items in jobs.items():
            self._read_file(file, items, planner)

    def _read_file(self, file, items, planner):
        reads, ends = [], []
        for item, whole, stored in items:
            tensor = planner.resolve_tensor(item)
            if tuple(tensor.shape) != tuple(item.lengths):
                raise CheckpointException(
                    f"load: resolve_tensor gave a tensor of shape {tuple(tensor.shape)} for {item.dest_index.fqn!r} (expected "
                    f"{tuple(item.lengths)})"
                )
            target = tensor.detach()
            is_real = target.is_floating_point() and whole.dtype.is_floating_point
            if target.dtype != whole.dtype and not is_real:  # numbers of other kinds or widths may not fit
                raise CheckpointException(
                    f"load: {item.dest_index.fqn!r} is {target.dtype} in the state and {whole.dtype} in the checkpoint"
                )
            to = target
            if target.dtype != whole.dtype or not target.is_cpu:
                to = pydist.empty(target.shape, dtype=whole.dtype, device="cpu")
            reads.append(
                (stored.begin, stored.nbytes, stored.sizes, item.storage_offsets, item.lengths, stored.crcs, to)
            )
            ends.append((item, tensor, target, to))
        try:
            if not isinstance(file, str):  # a source of whole boxes, see _foreign
                for (_, _, _, begin, sizes, _, to), (item, *_) in zip(reads, ends, strict=True):
                    to.copy_(_foreign.box(file[item.storage_index.fqn], begin, sizes))
            else:
                _C.io_read(file, reads, THREADS)
        except _C.IoDamaged as error:
            if self.manifest and _format.is_replaced(self.path, self.manifest):
                raise CheckpointException(f"load: {self.path} was replaced by another save while it was read") from None
            why = "is not there: the file is shorter than it was"
            if error.got is not None:
                why = f"has the checksum {error.got:08x} (expected {error.expected:08x})"
            raise CheckpointException(
                f"load: {file}: {items[error.job][0].storage_index.fqn!r} is damaged: block {error.block} of {_format.BLOCK} "
                f"bytes {why}"
            ) from None
        for item, tensor, target, to in ends:
            if to is not target:
                target.copy_(to)
            planner.commit_tensor(item, tensor)
