"""Datasets of images, with torchvision's layout on disk."""

from pydist.vision.datasets.cifar import CIFAR10, CIFAR100
from pydist.vision.datasets.fakedata import FakeData
from pydist.vision.datasets.folder import DatasetFolder, ImageFolder
from pydist.vision.datasets.mnist import EMNIST, FashionMNIST, KMNIST, MNIST
from pydist.vision.datasets.vision import VisionDataset

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "DatasetFolder",
    "EMNIST",
    "FakeData",
    "FashionMNIST",
    "ImageFolder",
    "KMNIST",
    "MNIST",
    "VisionDataset",
]
