"""S7: `keras.datasets` from files that are on this machine, and downloads that end.

MNIST, Fashion-MNIST and CIFAR are looked for in $PYDIST_DATA and in Keras' own folder (~/.keras/datasets): as published (idx
files; CIFAR's binary and Python versions), also where torchvision puts them. Keras downloads what is not there. One process of
a host downloads a file, while the others wait. Without a network the error says where which file has to be put.
"""

import contextlib
import functools
import inspect
import os
import urllib.error
import urllib.parse
import warnings
from pathlib import Path

import numpy as np

from pydist._download import CHUNK, chunks
from pydist._files import alone, replacing

_PIXELS = 3 * 32 * 32


# ---- files as published ----


def _home():
    from keras.src.backend.config import keras_home

    return Path(keras_home(), "datasets")


def _folders(*names):
    """The folders of these names that exist."""
    tops = [Path(top) for top in (os.environ.get("PYDIST_DATA"), _home()) if top]
    return [top / name for top in tops for name in names if (top / name).is_dir()]


def _from_idx(*names):
    """Keras' result from the first of the folders with all of MNIST's files, or None."""
    from pydist.vision.datasets import idx

    for folder in _folders(*names):
        with contextlib.suppress(FileNotFoundError):
            return idx.read_pair(folder, "train"), idx.read_pair(folder, "t10k")


def _python(path, key):
    """(images, labels) of a file of CIFAR's Python version."""
    from pydist.vision.datasets.cifar import load_batch

    batch = load_batch(path)
    images, labels = np.asarray(batch.get("data", ()), "uint8"), np.asarray(batch.get(key, ()), "uint8")
    if images.size != len(labels) * _PIXELS or not images.size:
        raise ValueError(
            f"{path}: {images.size} bytes and {len(labels)} {key} (expected {_PIXELS} bytes for each label)"
        )
    return images.reshape(-1, _PIXELS), labels


def _from_cifar(names, parts, labels, at, key):
    """Keras' result from the first of the folders `names` with CIFAR's files, or None. parts: the names of the files for
    training and for tests. If some are missing, the others are used, with a warning."""
    from keras.src.backend import image_data_format

    from pydist.vision.datasets.cifar import load_binary

    ways = {".bin": lambda file: load_binary(file, labels, at), "": lambda file: _python(file, key)}
    ways[".bin.gz"] = ways[".bin"]
    for folder, (suffix, read) in ((folder, way) for folder in _folders(*names) for way in ways.items()):
        files = [[folder / f"{name}{suffix}" for name in part] for part in parts]
        there = [[file for file in part if file.is_file()] for part in files]
        if not all(there):
            continue
        missing = [file.name for part in files for file in part if not file.is_file()]
        if missing:
            warnings.warn(f"{folder}: no {', '.join(missing)}; the files that are there are used", stacklevel=4)
        result = []
        for part in there:
            images, classes = (np.concatenate(column) for column in zip(*map(read, part)))
            images = images.reshape(-1, 3, 32, 32)
            images = images if image_data_format() == "channels_first" else images.transpose(0, 2, 3, 1)
            result.append((images, classes.reshape(-1, 1)))
        return tuple(result)


def _mnist(path="mnist.npz"):
    return None if Path(_home(), path).is_file() else _from_idx("mnist", "MNIST/raw")


def _fashion_mnist():
    return _from_idx("fashion-mnist", "FashionMNIST/raw")


def _cifar10():
    parts = [f"data_batch_{n}" for n in range(1, 6)], ["test_batch"]
    return _from_cifar(["cifar-10", "cifar-10-batches-bin", "cifar-10-batches-py"], parts, 1, 0, "labels")


def _cifar100(label_mode="fine"):
    if label_mode in ("fine", "coarse"):
        names = ["cifar-100", "cifar-100-binary", "cifar-100-python"]
        return _from_cifar(names, (["train"], ["test"]), 2, int(label_mode == "fine"), f"{label_mode}_labels")


def _local(find):
    def change(module):
        theirs = module.load_data

        @functools.wraps(theirs)
        def load_data(*args, **kwargs):
            found = find(*args, **kwargs)
            return theirs(*args, **kwargs) if found is None else found

        module.load_data = load_data

    return change


# ---- downloads ----


def _retrieve(url, filename, reporthook=None):
    """urllib's urlretrieve, which ends where a server does not answer. The file appears when it is whole."""
    try:
        with replacing(filename) as file:
            for count, (_, size) in enumerate(chunks(url, file), 1):
                if reporthook:
                    reporthook(count, CHUNK, -1 if size is None else size)
    except urllib.error.HTTPError:
        raise
    except OSError as error:  # URLError is one
        reason = getattr(error, "reason", None) or error
        raise urllib.error.URLError(f"{reason} (expected a network, or this file at {filename})") from error


@contextlib.contextmanager
def _alone(folder, name):
    """One process of this host at a time is in here for this file."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # a folder that cannot be written to; Keras takes another one
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(alone(folder / f".{name}.lock"))
        yield


def _get_once(module):
    theirs = module.get_file
    signature = inspect.signature(theirs)

    @functools.wraps(theirs)
    def get_file(*args, **kwargs):
        given = signature.bind(*args, **kwargs).arguments
        folder = Path(given.get("cache_dir") or module.config.keras_home(), given.get("cache_subdir", "datasets"))
        name = given.get("fname") or urllib.parse.urlsplit(given.get("origin") or "").path
        digest = given.get("file_hash") or given.get("md5_hash")
        with _alone(folder.expanduser(), os.path.basename(str(name))):
            try:
                return theirs(*args, **kwargs)
            except Exception as error:
                if type(error) is not Exception or not digest:  # Keras' own about a download is one
                    raise
                raise RuntimeError(f"{error}, whose hash is {digest}") from error.__cause__

    module.get_file, module.urlretrieve = get_file, _retrieve


SEAMS = {
    "keras.src.datasets.mnist": _local(_mnist),
    "keras.src.datasets.fashion_mnist": _local(_fashion_mnist),
    "keras.src.datasets.cifar10": _local(_cifar10),
    "keras.src.datasets.cifar100": _local(_cifar100),
    "keras.src.utils.file_utils": _get_once,
}
