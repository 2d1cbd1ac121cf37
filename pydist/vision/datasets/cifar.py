"""CIFAR-10 and CIFAR-100, the Python version."""

import gzip
import os
import zlib
from warnings import warn

import numpy as np

from pydist._unpickle import unpickle
from pydist.vision._pillow import pillow
from pydist.vision.datasets.utils import check_integrity, download_and_extract_archive
from pydist.vision.datasets.vision import VisionDataset

PIXELS = 3 * 32 * 32


def load_batch(path):
    """The dictionary in a batch file. Raises ValueError, which names the file, if it is damaged or holds something
    else."""
    try:
        with open(path, "rb") as file:
            entry = unpickle(file.read(), encoding="latin1")
        if not isinstance(entry, dict):
            raise ValueError(f"a {type(entry).__name__}")
        return {key.decode() if isinstance(key, bytes) else key: value for key, value in entry.items()}
    except FileNotFoundError:
        raise
    except Exception as error:  # a damaged pickle raises nearly any exception
        raise ValueError(f"{path}: not a batch of CIFAR's Python version: {error}") from error


def load_binary(path, labels=1, at=0):
    """(images, labels) of a file of CIFAR's binary version, which may be a .gz: bytes [N, 3072], red, green and blue, and
    [N]. `labels` label bytes stand before each image; `at` is the number of the one that counts. Raises ValueError, which
    names the file, if it is damaged."""
    try:
        with (gzip.open if str(path).endswith(".gz") else open)(path, "rb") as file:
            content = np.frombuffer(file.read(), "uint8")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path}: damaged or cut short: {error} (expected a whole gzip file)") from None
    width = labels + PIXELS
    if not content.size or content.size % width:
        raise ValueError(f"{path}: {content.size} bytes (expected a multiple of {width}: {labels} labels and an image)")
    rows = content.reshape(-1, width)
    return rows[:, labels:], rows[:, at]


class CIFAR10(VisionDataset):
    """50,000 + 10,000 colour images of 32 x 32 in ten classes (Krizhevsky), from root/cifar-10-batches-py.

    An item is (image, class); the image is a Pillow image of mode RGB. `data` is a NumPy array uint8 [N, 32, 32, 3],
    `targets` a list, `classes` the names. The unpickler that reads the files runs nothing.

    The files on disk are used. If some batches are missing or are not the published ones, one warning says so
    (torchvision refuses them); without any batch RuntimeError is raised. download: downloads the published files if
    some are missing.
    """

    base_folder = "cifar-10-batches-py"
    url = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
    filename = "cifar-10-python.tar.gz"
    tgz_md5 = "c58f30108f718f92721af3b95e74349a"
    train_list = [
        ["data_batch_1", "c99cafc152244af753f735de768cd75f"],
        ["data_batch_2", "d4bba439e000b95fd0a9bffe97cbabec"],
        ["data_batch_3", "54ebc095f3ab1f0389bbae665268c751"],
        ["data_batch_4", "634d18415352ddfa80567beed471001a"],
        ["data_batch_5", "482c414d41f54cd18b22e5b47cb7c3cb"],
    ]
    test_list = [["test_batch", "40351d587109b95175f43aff81a1287e"]]
    meta = {"filename": "batches.meta", "key": "label_names", "md5": "5ff9c542aee3614f3951f8cda6e48888"}
    _names = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

    def __init__(self, root, train=True, transform=None, target_transform=None, download=False):
        super().__init__(root, transform=transform, target_transform=target_transform)
        self.train = train
        wanted = self.train_list if train else self.test_list
        if download:
            self._download_or_keep(wanted)
        found = [(name, md5) for name, md5 in wanted if os.path.isfile(self._path(name))]
        if not found:
            raise RuntimeError(
                "Dataset not found or corrupted. You can use download=True to download it "
                f"({wanted[0][0]} in {os.path.join(self.root, self.base_folder)})"
            )
        self._warn_of_others(wanted, found)
        self._read([self._path(name) for name, _ in found])
        self._load_meta()

    def _path(self, name):
        return os.path.join(self.root, self.base_folder, name)

    def _warn_of_others(self, wanted, found):
        missing = [name for name, _ in wanted if not os.path.isfile(self._path(name))]
        other = [name for name, md5 in found if not check_integrity(self._path(name), md5)]
        notes = [
            f"{', '.join(names)} {what}" for names, what in ((missing, "missing"), (other, "not as published")) if names
        ]
        if notes:
            warn(
                f"{type(self).__name__}: {self._path('')}: {'; '.join(notes)}; pydist uses the files that are there",
                stacklevel=4,
            )

    def _read(self, paths):
        data, self.targets = [], []
        for path in paths:
            entry = load_batch(path)
            pixels, labels = entry.get("data"), entry.get("labels", entry.get("fine_labels"))
            is_image = isinstance(pixels, np.ndarray) and pixels.dtype == np.uint8 and pixels.size % 3072 == 0
            if not is_image or labels is None or len(labels) * 3072 != pixels.size:
                raise ValueError(
                    f"{path}: not a batch of CIFAR's Python version: (expected images of 3 x 32 x 32 with a label each)"
                )
            data.append(pixels.reshape(-1, 3, 32, 32))
            self.targets += map(int, labels)
        self.data = np.ascontiguousarray(np.concatenate(data).transpose(0, 2, 3, 1))

    def _load_meta(self):
        path = self._path(self.meta["filename"])
        if os.path.isfile(path):
            entry = load_batch(path)
            if self.meta["key"] not in entry:
                raise ValueError(f"{path}: no {self.meta['key']}")
            self.classes = list(entry[self.meta["key"]])
        elif self._names is not None:
            self.classes = list(self._names)
        else:
            raise RuntimeError(
                f"Dataset metadata file not found or corrupted. You can use download=True to download it ({path})"
            )
        self.class_to_idx = {name: i for i, name in enumerate(self.classes)}

    def __getitem__(self, index):
        return self._transformed(pillow().fromarray(self.data[index]), self.targets[index])

    def __len__(self):
        return len(self.data)

    def _check_integrity(self):
        return all(check_integrity(self._path(name), md5) for name, md5 in self.train_list + self.test_list)

    def _download_or_keep(self, wanted):
        """Calls download() if a file is missing. If that fails, the files on disk are used, if there are any."""
        if all(os.path.isfile(self._path(name)) for name, _ in wanted):
            return
        try:
            self.download()
        except RuntimeError as error:
            if not any(os.path.isfile(self._path(name)) for name, _ in wanted):
                raise
            warn(str(error), stacklevel=4)

    def download(self):
        """Downloads and unpacks the archive, unless the published files are there. Raises RuntimeError with the URL."""
        if not self._check_integrity():
            download_and_extract_archive(self.url, self.root, filename=self.filename, md5=self.tgz_md5)

    def extra_repr(self):
        return f"Split: {'Train' if self.train else 'Test'}"


class CIFAR100(CIFAR10):
    """Images with CIFAR-10's sizes in a hundred classes, from root/cifar-100-python."""

    base_folder = "cifar-100-python"
    url = "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz"
    filename = "cifar-100-python.tar.gz"
    tgz_md5 = "eb9058c3a382ffc7106e4002c42a8d85"
    train_list = [["train", "16019d7e3df5f24257cddd939b257f8d"]]
    test_list = [["test", "f0ef6b0ae62326f3e7ffdfab6717acfc"]]
    meta = {"filename": "meta", "key": "fine_label_names", "md5": "7973b15100ade9c7d40fb424638fde48"}
    _names = None
