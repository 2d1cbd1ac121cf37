"""The checkpoints of a training: one folder for each step."""

import json
import os
import re
import socket
import sys
import time
import warnings
import zlib
from contextlib import suppress

from pydist import _C
from pydist.distributed._group.process_group import get_rank
from pydist.distributed.checkpoint import _format, _words
from pydist.distributed.checkpoint._writing import delete, make_folder, remove
from pydist.distributed.checkpoint.api import CheckpointException
from pydist.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from pydist.distributed.checkpoint.state_dict_loader import load
from pydist.distributed.checkpoint.state_dict_saver import async_save, save

__all__ = ["CheckpointManager"]

PATIENCE = 30  # s in which a checkpoint must appear on other hosts
_STEP = re.compile(r"step-(\d{1,18})")
_LEFT = re.compile(r"\.tmp-(step-\d{1,18})-[0-9a-f]+-\d+")


def steps_of(folder):
    """The steps that have a folder here, the newest last."""
    with suppress(FileNotFoundError):
        return sorted(int(found[1]) for name in os.listdir(folder) if (found := _STEP.fullmatch(name)))
    return []


def folder_of(folder, step):
    """The folder of this step."""
    return os.path.join(folder, f"step-{step:012d}")


def clean(folder):
    """Finishes or removes what a crash has left in this folder. Nobody may be saving to it. Returns the names."""
    done = []
    with suppress(FileNotFoundError):
        _C.io_sync(folder)  # a crash may have come before the disk had the names that are seen here
        for name in sorted(os.listdir(folder)):
            path, left = os.path.join(folder, name), _LEFT.fullmatch(name)
            if left and not os.path.exists(os.path.join(folder, left[1])) and _is_whole(path):
                _C.io_sync(path)
                _C.io_rename(path, os.path.join(folder, left[1]))
                _C.io_sync(folder)
            elif name.startswith((".tmp-", ".trash-")) and os.path.isdir(path):
                delete(path)
            else:
                continue
            done.append(name)
    return done


def _is_whole(path):
    try:
        _format.index_of(path)
    except (OSError, CheckpointException):
        return False
    return True


def _wait_for(path):
    """Waits until this rank sees a checkpoint that rank 0 sees: network file systems show other hosts new names late."""
    until = time.monotonic() + PATIENCE
    while not os.path.exists(os.path.join(path, _format.MANIFEST)):
        if time.monotonic() > until:
            raise CheckpointException(
                f"restore: rank 0 sees {path}, and on {socket.gethostname()} it is not there after {PATIENCE} s (expected a "
                "folder that all hosts share, whose mount caches names for a shorter time, as actimeo says for NFS)"
            )
        time.sleep(0.1)


class _MemoryWriter(FileSystemWriter):
    in_place = True


class CheckpointManager:
    """Saves the steps of a training into `directory`, one folder each, and finds the newest whole one.

    every: `save` skips steps that are no multiple of it. keep_last: how many of the newest steps stay (None: all);
    keep_every: multiples of it stay, too. An older step goes when a newer one is on the disk. asynchronous: saves go on
    in the background (async_save), and the memory of their copies stays until close(). on_error="warn": a save that fails is a warning, and training goes on. All ranks make
    the manager and call it alike. What a crash has left in the folder is finished or removed, so one job at a time may
    use it.

    memory_every: steps that `every` skips are kept in memory if they are multiples of it, the newest one only. The
    launcher holds that memory (`pydist.run --max-restarts N`, one host), so it outlives the ranks, and `restore` after a
    restart finds it; the end of the job frees it. It has the bytes of one state, of two while the next one is copied.

    >>> import pydist, tempfile
    >>> from pydist import nn
    >>> from pydist.distributed.checkpoint import CheckpointManager
    >>> model, folder = nn.Linear(2, 2), tempfile.mkdtemp()
    >>> with CheckpointManager(folder, keep_last=2) as manager:
    ...     for step in range(1, 5):
    ...         _ = manager.save(step, {"model": model})
    >>> manager.all_steps()
    [3, 4]
    >>> manager.restore({"model": model})
    4
    """

    def __init__(
        self,
        directory,
        keep_last=3,
        keep_every=None,
        every=None,
        memory_every=None,
        asynchronous=True,
        on_error="raise",
        *,
        process_group=None,
        planner=None,
        load_planner=None,
        sync_files=True,
        thread_count=2,
    ):
        numbers = {"keep_last": keep_last, "keep_every": keep_every, "every": every, "memory_every": memory_every}
        for name, value in numbers.items():
            if value is not None and (type(value) is not int or value < 1):
                raise ValueError(f"CheckpointManager: {name} is {value!r} (expected a number above 0, or None)")
        if on_error not in ("raise", "warn"):
            raise ValueError(f"CheckpointManager: on_error is {on_error!r} (expected 'raise' or 'warn')")
        self.directory = os.path.abspath(os.fspath(directory))
        self.keep_last, self.keep_every, self.every, self.memory_every = keep_last, keep_every, every, memory_every
        self.asynchronous, self.on_error, self.process_group = bool(asynchronous), on_error, process_group
        self.planner, self.load_planner = planner, load_planner
        self._options, self._arenas = {"sync_files": sync_files, "thread_count": thread_count}, []
        self._pending = None  # (step, in memory, SaveFuture)
        self._rank, self._memory = get_rank(process_group), None
        held = os.environ.get("PYDIST_SNAPSHOTS")
        if held:
            self._memory = os.path.join(held, f"{zlib.crc32(os.fsencode(self.directory)):08x}")
        elif memory_every and self._rank == 0:
            warnings.warn(
                "CheckpointManager: nobody keeps snapshots in memory (expected pydist.run with --max-restarts, on one host)",
                stacklevel=2,
            )
        if self._rank == 0:
            make_folder(self.directory, bool(sync_files))
            clean(self.directory)
            if self._memory:
                clean(self._memory)

    def __enter__(self):
        return self

    def __exit__(self, kind, *error):
        if kind is None:
            self.close()

    def save(self, step, state_dict, *, force=False, about=None):
        """Saves the state of this step. Returns False if `every` and memory_every skip it; force=True saves it
        nevertheless. With asynchronous, an error of the save before is raised here."""
        if type(step) is not int or not 0 <= step < 10**18:
            raise ValueError(f"CheckpointManager.save: step is {step!r} (expected a number of 0 or more)")
        in_memory = False
        if self.every is not None and step % self.every and not force:
            in_memory = bool(self._memory and self.memory_every and not step % self.memory_every)
            if not in_memory:
                return False
        self.wait_until_finished()
        if in_memory:
            writer = _MemoryWriter(folder_of(self._memory, step), **{**self._options, "sync_files": False})
        else:
            writer = FileSystemWriter(folder_of(self.directory, step), **self._options)
            writer.arenas = self._arenas
        more = {"storage_writer": writer, "planner": self.planner, "process_group": self.process_group}
        about = {"step": step, **(about or {})}
        try:
            if self.asynchronous:
                self._pending = step, in_memory, async_save(state_dict, about=about, **more)
            else:
                save(state_dict, about=about, **more)
                self._sweep(step, in_memory)
        except (CheckpointException, OSError) as error:
            self._failed(step, error)
        return True

    def wait_until_finished(self):
        """Waits until the save that runs has ended. Raises its error."""
        if self._pending is None:
            return
        (step, in_memory, future), self._pending = self._pending, None
        try:
            future.result()
        except CheckpointException as error:
            self._failed(step, error)
        else:
            self._sweep(step, in_memory)

    def close(self):
        """Waits until the save that runs has ended, raises its error, and frees the memory of copies."""
        try:
            self.wait_until_finished()
        finally:
            self._arenas.clear()

    def _failed(self, step, error):
        if self.on_error == "raise":
            raise error
        warnings.warn(f"step {step} was not saved: {error}", stacklevel=4)

    def _sweep(self, saved, in_memory):
        """Removes what need not stay. A step that is newer than the one just saved is of a run that was given up: on the
        disk it counts as any other, in memory it goes."""
        if self._rank:
            return
        for step in steps_of(self._memory) if self._memory else ():
            if step != saved or not in_memory:
                self._remove(self._memory, step)
        if in_memory or self.keep_last is None:
            return
        steps = [step for step in self.all_steps() if step <= saved]
        for step in steps[: -self.keep_last]:
            if self.keep_every is None or step % self.keep_every:
                self._remove(self.directory, step)

    def _remove(self, folder, step):
        try:
            remove(folder_of(folder, step), self._options["sync_files"] and folder is self.directory)
        except FileNotFoundError:
            pass
        except OSError as error:
            warnings.warn(f"step {step} was not removed: {error}", stacklevel=5)

    def all_steps(self):
        """The steps that are on the disk, the newest last."""
        return steps_of(self.directory)

    def latest_step(self):
        """The newest step that is there, also in memory, or None."""
        return max((step for step, _ in self._found()), default=None)

    def _found(self):
        """(step, folder) of all that is there, the newest first; in memory before on the disk."""
        memory = [(step, self._memory) for step in steps_of(self._memory)] if self._memory else []
        return sorted(memory + [(step, self.directory) for step in self.all_steps()], key=lambda f: -f[0])

    def restore(self, state_dict, step=None):
        """Loads a step into the state, as `load` does, and returns its number; None if there is no step. step=None: the
        newest one that is whole, in memory or on the disk. If a newer one is damaged, one line on stderr says so.

        All ranks have to see the same folder. Rank 0 chooses the step: all its headers and their checksums are right. A
        block of data that is damaged is found while it is read, and is an error that names the file."""
        self.wait_until_finished()
        words = _words.words_of(self.process_group)
        answer = json.loads(words.of_rank_0(json.dumps(self._choice(step)) if self._rank == 0 else None))
        if answer is None:
            return None
        number, folder, why = answer
        if why:
            raise CheckpointException(why)
        _wait_for(folder_of(folder, number))
        reader = FileSystemReader(folder_of(folder, number))
        load(state_dict, storage_reader=reader, planner=self.load_planner, process_group=self.process_group)
        return number

    def _choice(self, wanted):
        """On rank 0: (step, folder, "") of what all ranks load, ("", "", why it cannot be), or None."""
        found = [(step, folder) for step, folder in self._found() if wanted in (None, step)]
        if not found and wanted is not None:
            found = [(wanted, self.directory)]
        why = None
        for step, folder in found:
            try:
                FileSystemReader(folder_of(folder, step)).read_metadata()
            except (CheckpointException, OSError) as error:
                why = str(error)
                if wanted is None:
                    print(f"checkpoint: step {step} is damaged, so an older one is loaded: {error}", file=sys.stderr)
            else:
                return step, folder, ""
        if wanted is None and found:
            why = f"restore: no step in {self.directory} is whole: {[step for step, _ in found]}"
        return ("", "", why) if why else None
