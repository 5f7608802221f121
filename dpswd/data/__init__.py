"""Data modules of private records: benchmarks, image folders, feature files, arrays."""

from dpswd.data.base import PrivateData, Records
from dpswd.data.benchmarks import CIFAR10, MNIST, USPS, CelebA, Digits, FashionMNIST
from dpswd.data.features import ArrayData, FeatureFile
from dpswd.data.images import ImageFolder

__all__ = [
    "CIFAR10",
    "MNIST",
    "USPS",
    "ArrayData",
    "CelebA",
    "Digits",
    "FashionMNIST",
    "FeatureFile",
    "ImageFolder",
    "PrivateData",
    "Records",
]
