"""Private records for Lightning: embedded digits, MNIST and its kin, folders or zips of images, feature files."""

from dpswd.data.base import PrivateData, Records
from dpswd.data.celeba import CelebA
from dpswd.data.digits import Digits
from dpswd.data.features import FeatureFile
from dpswd.data.images import ImageFolder
from dpswd.data.mnist import MNIST, USPS, FashionMNIST

__all__ = ["MNIST", "USPS", "CelebA", "Digits", "FashionMNIST", "FeatureFile", "ImageFolder", "PrivateData", "Records"]
