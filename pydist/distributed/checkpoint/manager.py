"""The checkpoints of a training: one folder for each step."""

import os
import re
import sys
import warnings
from contextlib import suppress

from pydist import _C
from pydist.distributed._group.process_group import get_rank
from pydist.distributed.checkpoint import _format
from pydist.distributed.checkpoint._writing import delete, make_folder, remove
from pydist.distributed.checkpoint.api import CheckpointException
from pydist.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from pydist.distributed.checkpoint.state_dict_loader import load
from pydist.distributed.checkpoint.state_dict_saver import async_save, save

__all__ = ["CheckpointManager"]

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


class CheckpointManager:
    """Saves the steps of a training into `directory`, one folder each, and finds the newest whole one.

    every: `save` skips steps that are no multiple of it. keep_last: how many of the newest steps stay (None: all);
    keep_every: multiples of it stay, too. An older step goes when a newer one is on the disk. asynchronous: saves go on
    in the background (async_save). on_error="warn": a save that fails is a warning, and training goes on. All ranks make
    the manager and call it alike. What a crash has left in the folder is finished or removed, so one job at a time may
    use it.

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
        asynchronous=True,
        on_error="raise",
        *,
        process_group=None,
        planner=None,
        load_planner=None,
        sync_files=True,
        thread_count=2,
    ):
        for name, value in (("keep_last", keep_last), ("keep_every", keep_every), ("every", every)):
            if value is not None and (type(value) is not int or value < 1):
                raise ValueError(f"CheckpointManager: {name} is {value!r} (expected a number above 0, or None)")
        if on_error not in ("raise", "warn"):
            raise ValueError(f"CheckpointManager: on_error is {on_error!r} (expected 'raise' or 'warn')")
        self.directory = os.path.abspath(os.fspath(directory))
        self.keep_last, self.keep_every, self.every = keep_last, keep_every, every
        self.asynchronous, self.on_error, self.process_group = bool(asynchronous), on_error, process_group
        self.planner, self.load_planner = planner, load_planner
        self._options = {"sync_files": sync_files, "thread_count": thread_count}
        self._pending = None  # (step, SaveFuture)
        self._rank = get_rank(process_group)
        if self._rank == 0:
            make_folder(self.directory, bool(sync_files))
            clean(self.directory)

    def __enter__(self):
        return self

    def __exit__(self, kind, *error):
        if kind is None:
            self.wait_until_finished()

    def save(self, step, state_dict, *, force=False, about=None):
        """Saves the state of this step. Returns False if `every` skips it; force=True saves it nevertheless. With
        asynchronous, an error of the save before is raised here."""
        if type(step) is not int or not 0 <= step < 10**18:
            raise ValueError(f"CheckpointManager.save: step is {step!r} (expected a number of 0 or more)")
        if self.every is not None and step % self.every and not force:
            return False
        self.wait_until_finished()
        writer = FileSystemWriter(folder_of(self.directory, step), **self._options)
        more = {"storage_writer": writer, "planner": self.planner, "process_group": self.process_group}
        about = {"step": step, **(about or {})}
        try:
            if self.asynchronous:
                self._pending = step, async_save(state_dict, about=about, **more)
            else:
                save(state_dict, about=about, **more)
                self._sweep(step)
        except (CheckpointException, OSError) as error:
            self._failed(step, error)
        return True

    def wait_until_finished(self):
        """Waits until the save that runs is on the disk. Raises its error."""
        if self._pending is None:
            return
        (step, future), self._pending = self._pending, None
        try:
            future.result()
        except CheckpointException as error:
            self._failed(step, error)
        else:
            self._sweep(step)

    close = wait_until_finished

    def _failed(self, step, error):
        if self.on_error == "raise":
            raise error
        warnings.warn(f"step {step} was not saved: {error}", stacklevel=4)

    def _sweep(self, newest):
        """Removes what need not stay. A step that is newer than the one just saved is of a run that was given up: it
        counts as any other."""
        if self._rank or self.keep_last is None:
            return
        steps = [step for step in self.all_steps() if step <= newest]
        for step in steps[: -self.keep_last]:
            if self.keep_every is None or step % self.keep_every:
                try:
                    remove(folder_of(self.directory, step), self._options["sync_files"])
                except FileNotFoundError:
                    pass
                except OSError as error:
                    warnings.warn(f"step {step} was not removed: {error}", stacklevel=4)

    def all_steps(self):
        """The steps that are there, the newest last."""
        return steps_of(self.directory)

    def latest_step(self):
        """The newest step that is there, or None."""
        return max(self.all_steps(), default=None)

    def restore(self, state_dict, step=None):
        """Loads a step into the state, as `load` does, and returns its number; None if there is no step. step=None: the
        newest one that is whole. If a newer one is damaged, one line on stderr says so.

        All ranks have to see the same folder. They read the newest step that all headers and checksums of which are right;
        a block of data that is damaged is found while it is read, and is an error that names the file."""
        self.wait_until_finished()
        steps = [step] if step is not None else self.all_steps()[::-1]
        for number in steps:
            reader = FileSystemReader(folder_of(self.directory, number))
            try:
                reader.read_metadata()
            except CheckpointException as error:
                if step is not None:
                    raise
                if self._rank == 0:
                    print(f"checkpoint: step {number} is damaged, so an older one is loaded: {error}", file=sys.stderr)
                continue
            load(state_dict, storage_reader=reader, planner=self.load_planner, process_group=self.process_group)
            return number
        if steps:
            raise CheckpointException(f"restore: no step in {self.directory} is whole: {steps}")
        return None
