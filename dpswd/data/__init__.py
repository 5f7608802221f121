"""Private records for Lightning: embedded digits, MNIST and its kin, folders or zips of images, feature files."""

from dpswd.data.base import PrivateData, Records
from dpswd.data.benchmarks import MNIST, USPS, CelebA, Digits, FashionMNIST
from dpswd.data.features import FeatureFile
from dpswd.data.images import ImageFolder

__all__ = ["MNIST", "USPS", "CelebA", "Digits", "FashionMNIST", "FeatureFile", "ImageFolder", "PrivateData", "Records"]
