"""Data sets of images, from files that are there: nothing is downloaded."""

import gzip
import os

import numpy as np

from pydist.compat.mxnet._base import lacking as _lacking
from pydist.compat.mxnet.gluon.data.dataset import Dataset
from pydist.compat.mxnet.gluon.data.vision import transforms
from pydist.compat.mxnet.ndarray import ndarray as nd
from pydist.vision.datasets import idx as _idx


class _Images(Dataset):
    """Samples are (image [height, width, channels] as uint8, label), after `transform(image, label)`."""

    def __init__(self, root=None, train=True, transform=None):
        home = os.environ.get("MXNET_HOME", os.path.join("~", ".mxnet"))
        self._root = os.path.expanduser(os.path.join(home, "datasets", self.folder) if root is None else root)
        self._train, self._transform = train, transform
        images, labels = self._read()
        self._data, self._label = nd.array(images, dtype="uint8"), labels.astype(np.int32)

    def _find(self, name):
        """The path of a file, or of the same file with .gz."""
        paths = [os.path.join(self._root, name + end) for end in ("", ".gz")]
        found = [path for path in paths if os.path.isfile(path)]
        if not found:
            raise FileNotFoundError(
                f"{type(self).__name__}: no {name} in {self._root} (expected it there; no downloads)"
            )
        return found[0]

    def __len__(self):
        return len(self._label)

    def __getitem__(self, idx):
        image, label = self._data[idx], self._label[idx]
        return (image, label) if self._transform is None else self._transform(image, label)


class MNIST(_Images):
    """Digits of 28 x 28, from root/train-images-idx3-ubyte and so on, with or without .gz."""

    folder = "mnist"

    def _read(self):
        start = "train" if self._train else "t10k"
        images, labels = (_idx.read(self._find(f"{start}-{part}-ubyte")) for part in ("images-idx3", "labels-idx1"))
        return images[..., None], labels


class FashionMNIST(MNIST):
    """Clothes in MNIST's format."""

    folder = "fashion-mnist"


class CIFAR10(_Images):
    """Colour images of 32 x 32, from root/data_batch_1.bin and so on (CIFAR's binary version), with or without .gz."""

    folder = "cifar10"

    def _read(self):
        rows = []
        for name in [f"data_batch_{i}.bin" for i in range(1, 6)] if self._train else ["test_batch.bin"]:
            path = self._find(name)
            with (gzip.open if path.endswith(".gz") else open)(path, "rb") as file:
                part = np.frombuffer(file.read(), np.uint8)
            if part.size % 3073:
                raise ValueError(f"{path}: {part.size} bytes (expected a multiple of 3073: CIFAR's binary version)")
            rows.append(part.reshape(-1, 3073))
        rows = np.concatenate(rows)
        return rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), rows[:, 0]


_ABSENT = ["CIFAR100", "ImageRecordDataset", "ImageFolderDataset", "ImageListDataset"]
__getattr__ = _lacking("mx.gluon.data.vision", _ABSENT, "MNIST, FashionMNIST or CIFAR10")
