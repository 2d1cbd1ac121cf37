"""tf.io.gfile: files and folders of this machine."""

import glob as _glob
import os as _os
import shutil as _shutil

from pydist.tensorflow import errors as _errors
from pydist.tensorflow._names import lacking as _lacking


def _path(path):
    path = _os.fspath(path)
    return path.decode() if isinstance(path, bytes) else path


def _named(function, *paths):
    """function(*paths), whose errors are TensorFlow's."""
    try:
        return function(*paths)
    except FileNotFoundError as error:
        raise _errors.NotFoundError(f"{paths[0]}; No such file or directory (expected one)") from error
    except FileExistsError as error:
        raise _errors.AlreadyExistsError(f"{paths[-1]}; File exists (expected another path)") from error
    except PermissionError as error:
        raise _errors.PermissionDeniedError(f"{paths[0]}; Permission denied (expected one that may be used)") from error
    except OSError as error:
        raise _errors.FailedPreconditionError(f"{paths[0]}; {error.strerror} (expected another path)") from error


class GFile:
    """A file, opened at its first use: read, readline, readlines, write, seek, tell, lines by `for`."""

    def __init__(self, name, mode="r"):
        self._name, self._mode, self._file = _path(name), mode, None

    @property
    def name(self):
        """The path."""
        return self._name

    @property
    def mode(self):
        """How it is opened."""
        return self._mode

    def _opened(self):
        if self._file is None:
            encoding = None if "b" in self._mode else "utf-8"
            self._file = _named(lambda path: open(path, self._mode, encoding=encoding), self._name)
        return self._file

    def read(self, n=-1):
        """The next n characters or bytes; -1: all that are left."""
        return self._opened().read(n)

    def readline(self):
        """The next line."""
        return self._opened().readline()

    def readlines(self):
        """The lines that are left."""
        return self._opened().readlines()

    def write(self, file_content):
        """Writes at the end of what was written."""
        self._opened().write(file_content)

    def seek(self, offset=None, whence=0, position=None):
        """Goes to a place."""
        self._opened().seek(offset if position is None else position, whence)

    def tell(self):
        """The place."""
        return self._opened().tell()

    def size(self):
        """The bytes of the file."""
        return _named(_os.path.getsize, self._name)

    def seekable(self):
        """True."""
        return True

    def flush(self):
        """Hands what was written to the system."""
        if self._file is not None:
            self._file.flush()

    def close(self):
        """Closes the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def __iter__(self):
        return iter(self._opened())


def exists(path):
    """Whether there is a file or folder."""
    return _os.path.exists(_path(path))


def isdir(path):
    """Whether it is a folder."""
    return _os.path.isdir(_path(path))


def join(path, *paths):
    """The path of parts."""
    return _os.path.join(_path(path), *map(_path, paths))


def glob(pattern):
    """The paths that match a pattern, or several."""
    patterns = [pattern] if isinstance(pattern, (str, bytes)) or hasattr(pattern, "__fspath__") else pattern
    return [path for one in patterns for path in sorted(_glob.glob(_path(one)))]


def listdir(path):
    """The names in a folder."""
    return _named(_os.listdir, _path(path))


def mkdir(path):
    """Makes a folder."""
    _named(_os.mkdir, _path(path))


def makedirs(path):
    """Makes a folder and those above it."""
    _named(lambda p: _os.makedirs(p, exist_ok=True), _path(path))


def remove(path):
    """Removes a file."""
    _named(_os.remove, _path(path))


def rmtree(path):
    """Removes a folder and all in it."""
    _named(_shutil.rmtree, _path(path))


def rename(src, dst, overwrite=False):
    """Gives a file another path."""
    _refuse_existing(dst, overwrite)
    _named(_os.replace, _path(src), _path(dst))


def copy(src, dst, overwrite=False):
    """Copies a file."""
    _refuse_existing(dst, overwrite)
    _named(_shutil.copyfile, _path(src), _path(dst))


def _refuse_existing(path, overwrite):
    if not overwrite and exists(path):
        raise _errors.AlreadyExistsError(f"{_path(path)}; file already exists (expected overwrite=True)")


class _FileStatistics:
    """length (bytes), mtime_nsec, is_directory."""

    def __init__(self, found):
        self.length, self.mtime_nsec = found.st_size, found.st_mtime_ns
        self.is_directory = bool(found.st_mode & 0o040000)


def stat(path):
    """What the system knows of a file."""
    return _FileStatistics(_named(_os.stat, _path(path)))


def walk(top, topdown=True, onerror=None):
    """(folder, names of folders in it, names of files in it) of a folder and all in it."""
    return _os.walk(_path(top), topdown, onerror)


__getattr__ = _lacking(__name__)
