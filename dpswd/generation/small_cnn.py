"""A small convolutional classifier: for downstream accuracy, and as eyes of a Frechet distance.

Two convolutions with stride, one hidden layer, Adam with a cosine schedule. The settings are fixed; nothing is tuned
on the records that it is tested on. On one CPU core it learns 20,000 pictures of 28 x 28 pixels in about ten seconds.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpswd._validate import at_least
from dpswd.errors import InputError

__all__ = ["SmallCNN", "train_cnn"]


class SmallCNN(nn.Module):
    """Maps images (n, channels, h, w) to scores (n, n_outputs).

    Args:
        channels: 1 for grey, 3 for RGB.
        n_outputs: Classes, or attributes.
        hidden: Size of the layer before the scores.
    """

    def __init__(self, channels: int, n_outputs: int, hidden: int = 64) -> None:
        super().__init__()
        at_least(1, channels=channels, n_outputs=n_outputs, hidden=hidden)
        self.body = nn.Sequential(
            nn.Conv2d(channels, 16, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(7),
            nn.Flatten(),
            nn.Linear(32 * 49, hidden),
            nn.ReLU(),
        )
        self.head = nn.Linear(hidden, n_outputs)

    def features(self, images: Tensor) -> Tensor:
        """Returns the hidden layer (n, hidden)."""
        return self.body(images - 0.5)

    def forward(self, images: Tensor) -> Tensor:
        """Returns the scores (n, n_outputs)."""
        return self.head(self.features(images))


def train_cnn(
    images: Tensor,
    labels: Tensor,
    n_outputs: int,
    *,
    epochs: int = 8,
    batch: int = 100,
    lr: float = 2e-3,
    seed: int = 0,
) -> SmallCNN:
    """Trains the classifier on images (n, channels, h, w) in [0, 1] and classes (n,); the same seed, the same result.

    The global random state is left as it was.

    Raises:
        InputError: If the images have another shape than (n, channels, h, w).
    """
    at_least(1, epochs=epochs, batch=batch)
    if images.ndim != 4 or len(images) != len(labels):
        raise InputError(
            f"Expected images (n, channels, h, w) and as many labels for the CNN, got {tuple(images.shape)} and "
            f"{tuple(labels.shape)}; feature vectors need another classifier."
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = SmallCNN(images.shape[1], n_outputs)
        optimizer = torch.optim.Adam(network.parameters(), lr=lr)
        steps = epochs * -(-len(images) // batch)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for _ in range(epochs):
            for part in torch.randperm(len(images)).split(batch):
                optimizer.zero_grad()
                F.cross_entropy(network(images[part]), labels[part]).backward()
                optimizer.step()
                schedule.step()
    return network.eval()
