"""Files whose new content appears all at once, at the end."""

import errno
import fcntl
import os
import secrets
import stat
from contextlib import contextmanager, suppress


def _nameless(folder):
    """A descriptor of a new file in `folder` without a name, which vanishes when closed; None if the system has no such
    files."""
    try:
        fd = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o666)
    except (AttributeError, OSError):  # the system or file system cannot; open() reports other errors
        return None
    if os.path.exists(f"/proc/self/fd/{fd}"):
        return fd
    os.close(fd)  # without /proc the file could never get a name
    return None


def _sync(fd):
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # the file system has no O_TMPFILE
            raise


@contextmanager
def replacing(path, mode="wb"):
    """A file open for writing. When the with statement ends, `path` gets its content, which is on the disk before
    others see it:

        with replacing(path) as file:
            file.write(...)

    A reader of `path` sees the old content or the new one, never a part of it, even after a crash or while another
    process writes there, too. If the with statement raises or the process is killed, the old content stays and nothing
    else is left (on file systems without O_TMPFILE a kill leaves .pydist-*.part). The old file's mode and owner are
    kept. A link is followed; a pipe or a device is written directly.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, mode) as file:
            yield file
        return
    path = os.path.realpath(os.fsdecode(path))
    folder = os.path.dirname(path)
    part = os.path.join(folder, f".pydist-{secrets.token_hex(8)}.part")
    try:
        old = os.stat(path)
    except FileNotFoundError:
        old = None
    fd = _nameless(folder)
    is_named = fd is None
    if is_named:
        fd = os.open(part, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600 if old else 0o666)
    try:
        with os.fdopen(fd, mode) as file:
            if old:
                with suppress(OSError):  # only root may
                    os.fchown(fd, old.st_uid, old.st_gid)
                os.fchmod(fd, stat.S_IMODE(old.st_mode) & 0o777)
            yield file
            file.flush()
            _sync(fd)
            if not is_named:
                os.link(
                    f"/proc/self/fd/{fd}", part, src_dir_fd=fd
                )  # without src_dir_fd the call would link the symbolic link itself
                is_named = True
        os.replace(part, path)
        is_named = False
    finally:
        if is_named:
            with suppress(FileNotFoundError):
                os.unlink(part)
    with suppress(PermissionError):  # a folder with permission to write but not to read
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _sync(fd)
        finally:
            os.close(fd)


@contextmanager
def alone(path):
    """One process of this host at a time is in the with statement of this lock file. A process that dies frees it."""
    with open(path, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
