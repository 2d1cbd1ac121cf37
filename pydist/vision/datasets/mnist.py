"""MNIST and datasets in its format."""

import os
import string
from pathlib import Path
from urllib.parse import urljoin
from warnings import warn

import numpy as np

import pydist
from pydist.vision._pillow import pillow
from pydist.vision.datasets import idx
from pydist.vision.datasets.utils import check_integrity, download_and_extract_archive, extract_archive
from pydist.vision.datasets.vision import VisionDataset


def _renamed(old, new):
    """The attribute `new` by its old name, with a warning."""

    def get(self):
        warn(f"{old} has been renamed {new}", stacklevel=2)
        return getattr(self, new)

    return property(get, doc=f"The deprecated name of {new}.")


class MNIST(VisionDataset):
    """Handwritten digits (LeCun, Cortes, Burges): 60,000 images of 28 x 28 for training, 10,000 for testing.

    Reads root/MNIST/raw/train-images-idx3-ubyte and so on, or the same files with .gz. An item is (image, digit); the
    image is a Pillow image of mode L. `data` is uint8 [N, 28, 28], `targets` int64 [N].

    download: downloads missing files. Raises RuntimeError if files are missing, ValueError, which names the file, if
    one is damaged.
    """

    mirrors = ["https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"]
    resources = [
        ("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        ("train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432"),
        ("t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3"),
        ("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c"),
    ]
    classes = [
        "0 - zero",
        "1 - one",
        "2 - two",
        "3 - three",
        "4 - four",
        "5 - five",
        "6 - six",
        "7 - seven",
        "8 - eight",
        "9 - nine",
    ]
    training_file = "training.pt"
    test_file = "test.pt"

    train_labels = test_labels = _renamed("train_labels and test_labels", "targets")
    train_data = test_data = _renamed("train_data and test_data", "data")

    def __init__(self, root, train=True, transform=None, target_transform=None, download=False):
        super().__init__(root, transform=transform, target_transform=target_transform)
        self.train = train
        if download:
            self.download()
        if not self._check_exists():
            raise RuntimeError(
                f"Dataset not found. You can use download=True to download it ({self._names()[0]} in {self.raw_folder})"
            )
        self.data, self.targets = self._load_data()

    def _names(self):
        """The names of the four files without .gz: training images and labels, test images and labels."""
        return [name.removesuffix(".gz") for name, _ in self.resources]

    def _load_data(self):
        images, labels = (idx.read(idx.find(self.raw_folder, n)) for n in self._names()[0 if self.train else 2 :][:2])
        if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
            raise ValueError(
                f"{self.raw_folder}: images {images.shape} and labels {labels.shape} (expected [N, H, W] and [N])"
            )
        return pydist.from_numpy(images.copy()), pydist.from_numpy(labels.astype(np.int64))

    def __getitem__(self, index):
        image = pillow().fromarray(self.data[index].numpy())
        return self._transformed(image, int(self.targets[index]))

    def __len__(self):
        return len(self.data)

    @property
    def raw_folder(self):
        """The folder of the files as they are downloaded."""
        return os.path.join(self.root, type(self).__name__, "raw")

    @property
    def processed_folder(self):
        """The folder in which older releases of torchvision put converted files. pydist does not use it."""
        return os.path.join(self.root, type(self).__name__, "processed")

    @property
    def class_to_idx(self):
        """A dictionary from the classes' names to their numbers."""
        return {name: i for i, name in enumerate(self.classes)}

    def _check_exists(self):
        return all(
            any(check_integrity(os.path.join(self.raw_folder, n + end)) for end in ("", ".gz")) for n in self._names()
        )

    def download(self):
        """Downloads and unpacks missing files. Raises RuntimeError with each URL that was tried."""
        if self._check_exists():
            return
        for name, md5 in self.resources:
            failed = []
            for mirror in self.mirrors:
                try:
                    download_and_extract_archive(urljoin(mirror, name), self.raw_folder, filename=name, md5=md5)
                    break
                except RuntimeError as error:
                    failed.append(str(error))
            else:
                raise RuntimeError(f"Error downloading {name}:\n" + "\n".join(failed))

    def extra_repr(self):
        return f"Split: {'Train' if self.train else 'Test'}"


class FashionMNIST(MNIST):
    """Zalando's articles of clothing, with MNIST's sizes and format, in root/FashionMNIST/raw."""

    mirrors = ["http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"]
    resources = [
        ("train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        ("train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
        ("t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
        ("t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"),
    ]
    classes = [
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ]


class KMNIST(MNIST):
    """Cursive Japanese characters (CODH), with MNIST's sizes and format, in root/KMNIST/raw."""

    mirrors = ["http://codh.rois.ac.jp/kmnist/dataset/kmnist/"]
    resources = [
        ("train-images-idx3-ubyte.gz", "bdb82020997e1d708af4cf47b453dcf7"),
        ("train-labels-idx1-ubyte.gz", "e144d726b3acfaa3e44228e80efcd344"),
        ("t10k-images-idx3-ubyte.gz", "5c965bf0a639b31b8f53240b1b52f4d7"),
        ("t10k-labels-idx1-ubyte.gz", "7320c461ea6c1c855c0b718fb2a4b134"),
    ]
    classes = ["o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"]


class EMNIST(MNIST):
    """NIST's handwritten letters and digits (Cohen et al.), with MNIST's format, in root/EMNIST/raw.

    split: "byclass", "bymerge", "balanced", "letters", "digits" or "mnist". Raises ValueError for any other.
    """

    url = "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip"
    md5 = "58c8d27c78d21e728a6bc7b3cc06412e"
    splits = ("byclass", "bymerge", "balanced", "letters", "digits", "mnist")
    _all = set(string.digits + string.ascii_letters)
    _merged = set("cijklmopsuvwxyz")  # letters whose upper and lower case look alike
    classes_split_dict = {
        "byclass": sorted(_all),
        "bymerge": sorted(_all - _merged),
        "balanced": sorted(_all - _merged),
        "letters": ["N/A", *string.ascii_lowercase],
        "digits": list(string.digits),
        "mnist": list(string.digits),
    }

    def __init__(self, root, split, **kwargs):
        if split not in self.splits:
            raise ValueError(
                f"Unknown value '{split}' for argument split. Valid values are {{{', '.join(self.splits)}}}."
            )
        self.split = split
        self.classes = self.classes_split_dict[split]
        super().__init__(root, **kwargs)

    def _names(self):
        parts = (f"emnist-{self.split}-{part}" for part in ("train", "test"))
        return [f"{part}-{kind}" for part in parts for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")]

    def download(self):
        if self._check_exists():
            return
        download_and_extract_archive(self.url, self.raw_folder, md5=self.md5, remove_finished=True)
        unpacked = Path(self.raw_folder, "gzip")
        for path in unpacked.glob("*.gz"):
            extract_archive(path, self.raw_folder, remove_finished=True)

    def extra_repr(self):
        return f"{super().extra_repr()}\nVariant: {self.split}"
