"""Damaged files are errors that name the file: .keras, .h5 and .weights.h5.

A .keras file is a zip file, which has a sum of each member's bytes. HDF5 has none: what is written here ends in a SHA-256 of
all bytes before it, which readers of HDF5 ignore. It is compared before a file is read. Files of others have no such end: for
these, what the reader raises is said with the file's name.
"""

import functools
import hashlib
import os
import zipfile

_MARK = b"pydist sha256\0"
_END = len(_MARK) + hashlib.sha256().digest_size
_DAMAGE = OSError, KeyError, RuntimeError, UnicodeDecodeError  # what h5py and Keras raise for damaged HDF5 files


def _digest(file, size):
    found = hashlib.sha256()
    while size and (chunk := file.read(min(size, 1 << 20))):
        found.update(chunk)
        size -= len(chunk)
    return found.digest()


def _sign(path):
    """Appends the end to an HDF5 file."""
    with open(path, "rb+") as file:
        digest = _digest(file, os.path.getsize(path))
        file.seek(0, os.SEEK_END)
        file.write(_MARK + digest)


def _check_h5(path):
    """Whether an HDF5 file is known to be what was written. Raises ValueError if it is not."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        file.seek(max(0, size - _END))
        end = file.read()
        file.seek(0)
        if not end.startswith(_MARK):
            return False
        if _digest(file, size - _END) != end[len(_MARK) :]:
            raise ValueError(f"{path}: damaged: got other bytes than were written (expected those of its SHA-256)")
    return True


def _check_zip(path):
    """The same for a zip file."""
    try:
        with zipfile.ZipFile(path) as archive:
            bad = archive.testzip()
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise ValueError(
            f"{path}: damaged or cut short: {what} (expected a zip file, as model.save writes it)"
        ) from error
    if bad is not None:
        raise ValueError(f"{path}: damaged: got other bytes in {bad} than were written (expected those of its CRC)")
    return True


_CHECKS = {".keras": _check_zip, ".h5": _check_h5, ".hdf5": _check_h5}


def _save(module, *names):
    def signing(plain):
        @functools.wraps(plain)
        def save(model, filepath, *args, **kwargs):
            plain(model, filepath, *args, **kwargs)
            if str(filepath).endswith((".h5", ".hdf5")) and os.path.isfile(filepath):
                _sign(filepath)

        return save

    for name in names:
        setattr(module, name, signing(getattr(module, name)))


def _load(module):
    def checking(plain, at):
        @functools.wraps(plain)
        def load(*args, **kwargs):
            path = kwargs["filepath"] if "filepath" in kwargs else args[at]
            check = _CHECKS.get(os.path.splitext(str(path))[1])
            if check is None or not os.path.isfile(path):
                return plain(*args, **kwargs)
            if check(path):
                return plain(*args, **kwargs)
            try:
                return plain(*args, **kwargs)
            except _DAMAGE as error:
                what = f"{type(error).__name__}: {error}"
                raise ValueError(
                    f"{path}: damaged or of another form: {what} (expected an HDF5 file of Keras)"
                ) from error

        return load

    module.load_model, module.load_weights = checking(module.load_model, 0), checking(module.load_weights, 1)


SEAMS = {
    "keras.src.legacy.saving.legacy_h5_format": lambda module: _save(module, "save_model_to_hdf5"),
    "keras.src.saving.saving_lib": lambda module: _save(module, "save_weights_only"),
    "keras.src.saving.saving_api": _load,
}
