"""The folder in memory where ranks leave snapshots of their state for the next start of the job (CheckpointManager's
memory_every). It is the launcher's, so it outlives the ranks.

The launcher removes it at the end. A launcher that was killed cannot, but its lock ends with it: the next launcher removes
the folders whose locks nobody has."""

import fcntl
import os

PREFIX = "pydist-snapshots-"


class Snapshots:
    """A context: the folder is there, and PYDIST_SNAPSHOTS names it."""

    def __enter__(self):
        self._place = os.environ.get("PYDIST_SNAPSHOTS_DIR", "/dev/shm")
        self._lock = self._path = None
        try:
            self._sweep()
            while self._lock is None:
                self._path = os.path.join(self._place, PREFIX + os.urandom(6).hex())
                os.mkdir(self._path, 0o700)
                self._lock = _locked(self._path)  # None: another launcher has just swept it away
        except OSError as error:
            os.write(2, f"pydist.run: no snapshots in memory: {error}\n".encode("utf-8", "replace"))
        else:
            os.environ["PYDIST_SNAPSHOTS"] = self._path
        return self

    def __exit__(self, *error):
        if self._lock is not None:
            _remove(self._path)
            os.close(self._lock)

    def _sweep(self):
        for name in os.listdir(self._place):
            path = os.path.join(self._place, name)
            lock = _locked(path) if name.startswith(PREFIX) else None
            if lock is not None:
                _remove(path)
                os.close(lock)


def _locked(path):
    """A descriptor that has this folder's lock; None if another process has it, or another user, or it is gone."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(fd), os.stat(path)):
            return fd
    except OSError:
        pass
    os.close(fd)
    return None


def _remove(path):
    import shutil

    shutil.rmtree(path, ignore_errors=True)
