"""Classifier networks."""

from typing import cast

from torch import Tensor, nn

from dpswd._validate import at_least, nonnegative

__all__ = ["EncodedClassifier", "Head", "SmallCNN"]


class SmallCNN(nn.Module):
    """Small convolutional classifier of images.

    It has two strided convolutions and one hidden layer. Training on 20,000 images of 28 x 28
    takes about ten seconds on one core.

    Args:
        channels: Channels of the images.
        n_outputs: Number of scores of an image.
        hidden: Size of the hidden layer.
    """

    def __init__(self, channels: int, n_outputs: int, hidden: int = 64) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 16, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(7),
            nn.Flatten(),
            nn.Linear(32 * 49, hidden),
            nn.ReLU(),
            nn.Linear(hidden, n_outputs),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Map images (n, channels, height, width) in [0, 1] to scores (n, n_outputs)."""
        return cast(Tensor, self.layers(images - 0.5))


class EncodedClassifier(nn.Module):
    """Map records to scores of classes by an encoder and a classifier of its features.

    Args:
        encoder: Maps records (n, ...) to features.
        classifier: Maps features to scores (n, C).
    """

    def __init__(self, encoder: nn.Module, classifier: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.classifier = classifier

    def forward(self, records: Tensor) -> Tensor:
        """Map records (n, ...) to scores (n, C)."""
        return cast(Tensor, self.classifier(self.encoder(records)))


class Head(nn.Module):
    """Map features to scores of classes by two layers with dropout between them.

    Args:
        dim: Number of features.
        n_classes: Number of classes.
        hidden: Size of the hidden layer; 0 for one layer.
        dropout: Part of the hidden layer that is left out in training.

    Raises:
        InputError: If a number is out of range.

    Example:
        >>> import torch
        >>> Head(320, 10)(torch.rand(3, 320)).shape
        torch.Size([3, 10])
    """

    def __init__(self, dim: int, n_classes: int, hidden: int = 100, dropout: float = 0.5) -> None:
        super().__init__()
        at_least(1, dim=dim)
        at_least(2, n_classes=n_classes)
        at_least(0, hidden=hidden)
        nonnegative(dropout=dropout)
        self.dim = dim
        self.n_classes = n_classes
        self.hidden = hidden
        self.dropout = dropout
        if hidden:
            self.layers = nn.Sequential(
                nn.Linear(dim, hidden),
                nn.ReLU(),
                nn.Dropout(dropout),
                nn.Linear(hidden, n_classes),
            )
        else:
            self.layers = nn.Sequential(nn.Linear(dim, n_classes))

    def forward(self, features: Tensor) -> Tensor:
        """Map features (n, dim) to scores (n, n_classes)."""
        return cast(Tensor, self.layers(features))
