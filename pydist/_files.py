"""Files that get their new content at the end, at once."""

import errno
import os
import secrets
import stat
from contextlib import contextmanager, suppress


def _nameless(folder):
    """A descriptor of a new file in `folder` that has no name yet and goes by itself, or None where there are none such."""
    try:
        fd = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o666)
    except (AttributeError, OSError):  # another system, a file system that cannot; what else is wrong, open() will say
        return None
    if os.path.exists(f"/proc/self/fd/{fd}"):
        return fd
    os.close(fd)  # without /proc it would never get a name
    return None


def _sync(fd):
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that knows no such thing
            raise


@contextmanager
def replacing(path, mode="wb"):
    """A file open for writing, whose content `path` gets when the with statement ends, on the disk before it is seen:

        with replacing(path) as file:
            file.write(...)

    Who reads `path` sees what was there or what is new, never a part of it, also after a crash, and whoever else writes
    there at the same time. Where the with statement raises, or the process is killed, what was there stays and nothing
    else is left (on file systems without O_TMPFILE a kill leaves .pydist-*.part). Mode and owner of what was there are
    kept; a link is followed; a pipe or a device is written to.
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
                with suppress(OSError):  # root alone may
                    os.fchown(fd, old.st_uid, old.st_gid)
                os.fchmod(fd, stat.S_IMODE(old.st_mode) & 0o777)
            yield file
            file.flush()
            _sync(fd)
            if not is_named:
                os.link(f"/proc/self/fd/{fd}", part, src_dir_fd=fd)  # src_dir_fd: without it the link itself is linked
                is_named = True
        os.replace(part, path)
        is_named = False
    finally:
        if is_named:
            with suppress(FileNotFoundError):
                os.unlink(part)
    with suppress(PermissionError):  # a folder that may be written to, not read
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _sync(fd)
        finally:
            os.close(fd)
