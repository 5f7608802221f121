"""Private records for Lightning: embedded digits, MNIST and its kin, folders or zips of images, feature files."""

from experiments.data.base import PrivateData, Records
from experiments.data.celeba import CelebA
from experiments.data.digits import Digits
from experiments.data.features import FeatureFile
from experiments.data.images import ImageFolder
from experiments.data.mnist import MNIST, USPS, FashionMNIST

__all__ = ["MNIST", "USPS", "CelebA", "Digits", "FashionMNIST", "FeatureFile", "ImageFolder", "PrivateData", "Records"]
