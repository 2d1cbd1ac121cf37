"""save and async_save."""

import queue
import re
import threading
import traceback
from concurrent.futures import Future, wait
from enum import Enum

from pydist import _C
from pydist.distributed.checkpoint import _words
from pydist.distributed.checkpoint._writing import Writing
from pydist.distributed.checkpoint.api import CheckpointException
from pydist.distributed.checkpoint.default_planner import DefaultSavePlanner
from pydist.distributed.checkpoint.filesystem import FileSystemWriter
from pydist.distributed.checkpoint.metadata import Metadata, StorageMeta
from pydist.distributed.checkpoint.staging import BlockingAsyncStager
from pydist.distributed.checkpoint.stateful import check_state

__all__ = ["AsyncCheckpointerType", "AsyncSaveResponse", "SaveFuture", "async_save", "save", "save_state_dict"]

COPIED_AT_ONCE = 1 << 16  # bytes: async_save copies smaller tensors before it returns


class AsyncCheckpointerType(Enum):
    """How PyTorch's async_save works in the background. pydist's always uses threads in C."""

    THREAD = "thread"
    PROCESS = "process"


def _writer_of(checkpoint_id, storage_writer, op):
    if storage_writer is None:
        if checkpoint_id is None:
            raise ValueError(f"{op}: got neither checkpoint_id nor storage_writer (expected one of them)")
        return FileSystemWriter(checkpoint_id)
    if not isinstance(storage_writer, FileSystemWriter):
        raise TypeError(f"{op}: storage_writer is {type(storage_writer).__name__} (expected FileSystemWriter)")
    return storage_writer


def _result(writing):
    return Metadata({}, storage_meta=StorageMeta(writing.path, writing.words.id))


def save(
    state_dict,
    *,
    checkpoint_id=None,
    storage_writer=None,
    planner=None,
    process_group=None,
    no_dist=False,
    use_collectives=True,
    about=None,
):
    """Saves a state as the folder `checkpoint_id`. All ranks call it, and each writes a share.

    state_dict: a dict; its values are tensors, TensorParts, numbers, text, containers of these, and objects with
    state_dict(), such as modules and optimizers. A plain tensor is the same on all ranks that have its name. storage_writer: a
    FileSystemWriter with options. process_group: the ranks that save; no_dist: this process alone does. about: a dict of
    JSON values for the manifest.

    When it returns, the checkpoint is on the disk. If any rank fails or dies, it raises CheckpointException on all and
    leaves an older checkpoint of that name as it was. Cost: each rank writes 1/W of the bytes of replicated tensors;
    ranks send each other two words of at most 64 bytes, and no collective.

    >>> import os, pydist, tempfile
    >>> from pydist import nn
    >>> from pydist.distributed import checkpoint
    >>> path = os.path.join(tempfile.mkdtemp(), "step-1")
    >>> model = nn.Linear(2, 2)
    >>> _ = checkpoint.save({"model": model, "step": 1}, checkpoint_id=path)
    >>> other, state = nn.Linear(2, 2), {"step": 0}
    >>> checkpoint.load({"model": other}, checkpoint_id=path)
    >>> checkpoint.load(state, checkpoint_id=path)
    >>> pydist.equal(model.weight, other.weight), state
    (True, {'step': 1})
    """
    writing = _begun("save", state_dict, checkpoint_id, storage_writer, process_group, no_dist, about)
    try:
        writing.prepare(state_dict, planner or DefaultSavePlanner())
        writing.write()
    except BaseException as error:
        writing.fail(error)
        _end(writing, error)
    writing.commit()
    return _result(writing)


def save_state_dict(state_dict, storage_writer, process_group=None, coordinator_rank=0, no_dist=False, planner=None):
    """PyTorch's old name of save."""
    return save(
        state_dict, storage_writer=storage_writer, planner=planner, process_group=process_group, no_dist=no_dist
    )


def _begun(op, state_dict, checkpoint_id, storage_writer, process_group, no_dist, about):
    """The Writing of a new save, after the one before it has ended."""
    writer = _writer_of(checkpoint_id, storage_writer, op)
    check_state(state_dict, op)
    try:
        words = _words.words_of(process_group, no_dist)
    except _C.DistError as error:
        raise CheckpointException(f"save: {writer.path} was not saved: {error}") from error
    return Writing(writer, words, about or {})


def _end(writing, error):
    """The end of a save that failed on this rank: raises CheckpointException on all ranks."""
    try:
        writing.commit()
    except CheckpointException as failure:
        if writing.words.ranks == 1 and isinstance(error, CheckpointException):
            raise error from None
        raise (failure if isinstance(error, Exception) else error) from error


class SaveFuture(Future):
    """The end of an async_save. result() waits until the checkpoint is on the disk, and raises what save would raise.

    staging_completion: a Future that ends when all tensors are copied. upload_completion: this object.
    """

    def __init__(self):
        super().__init__()
        self.staging_completion = Future()
        self.upload_completion = self


AsyncSaveResponse = SaveFuture


def async_save(
    state_dict,
    *,
    checkpoint_id=None,
    storage_writer=None,
    planner=None,
    process_group=None,
    async_checkpointer_type=AsyncCheckpointerType.THREAD,
    async_stager=None,
    no_dist=False,
    use_collectives=True,
    about=None,
):
    """Like save, but returns when all ranks have called it, with a SaveFuture. What is saved are the values at the call.

    Threads of the engine copy the tensors while the program goes on; the next step of any optimizer waits until they have
    copied all. Then they write. GPUs copy theirs into pinned memory, before the work that the program gives them next. Tensors below 64 KiB, such as a norm's statistics, are copied before async_save returns. A
    larger tensor that something else than an optimizer changes before it is copied makes this save fail, with an error
    that names it; a checkpoint never has values of two moments. A second call waits until the first save has ended.
    Memory: the bytes that this rank writes.

    >>> import os, pydist, tempfile
    >>> from pydist import nn
    >>> from pydist.distributed import checkpoint
    >>> path = os.path.join(tempfile.mkdtemp(), "step-1")
    >>> model = nn.Linear(2, 2)
    >>> future = checkpoint.async_save({"model": model}, checkpoint_id=path)
    >>> _ = future.result()
    >>> os.listdir(path) and os.path.exists(os.path.join(path, "manifest.json"))
    True
    """
    writing = _begun("async_save", state_dict, checkpoint_id, storage_writer, process_group, no_dist, about)
    future, job = SaveFuture(), queue.SimpleQueue()
    try:
        writing.prepare(state_dict, planner or DefaultSavePlanner(), later=True)
        parts = [_kept(tensor) for tensor in writing.tensors()]
        # before the copies, which take all processors, so that this thread need not wait for one
        threading.Thread(target=_upload, args=(job, future), name="pydist-save").start()
        writing.words.running(future)
        staging = writing.stage(parts)
    except BaseException as error:
        job.put(None)
        writing.fail(error)
        _end(writing, error)
    job.put((writing, staging))
    if isinstance(async_stager, BlockingAsyncStager):
        wait([future.staging_completion])
    return future


def _kept(tensor):
    return tensor.clone() if tensor.numel() * tensor.element_size() < COPIED_AT_ONCE else tensor


def _staged(writing, staging):
    """The checksums of all parts, when they are copied. None: GPUs copy them, without checksums."""
    if staging is None:
        for event in writing.events:
            event.synchronize()
        return None
    try:
        return staging.wait()
    except RuntimeError as error:
        part = re.search(r"part (\d+) was written", str(error))
        if not part:
            raise
        name = [name for file in writing.files for name in file.boxes.entries][int(part[1])]
        raise CheckpointException(
            f"async_save: {name!r} was written before it was copied (expected that only steps of optimizers change tensors of "
            f"{COPIED_AT_ONCE} bytes or more until staging_completion has ended)"
        ) from None


def _upload(job, future):
    """In a thread of its own: waits for the copies, writes them and ends the save."""
    future.set_running_or_notify_cancel()
    given = job.get()
    if given is None:  # async_save has raised
        future.set_result(None)
        return
    (writing, staging), given, failure = given, None, None
    try:
        try:
            checksums = _staged(writing, staging)
            future.staging_completion.set_result(None)
            writing.write(staging and staging.arena, checksums)
            writing.keep(staging)
        except Exception as error:
            if not future.staging_completion.done():
                future.staging_completion.set_exception(_without_frames(error))
            writing.fail(error)
        writing.commit()
        result = _result(writing)
    except BaseException as error:
        failure = _without_frames(error)
    del writing, staging  # the thread holds nothing of the state when the future ends
    if failure is None:
        future.set_result(result)
    else:
        future.set_exception(failure)


def _without_frames(error):
    """The error, whose tracebacks hold no tensors any more."""
    part = error
    while part is not None:
        traceback.clear_frames(part.__traceback__)
        part = part.__cause__ or part.__context__
    return error
