"""Encoders, classifiers, adapters and augmentation of the alignment in Table 1.

Every network maps each record by itself: there is no batch normalisation.
"""

import torch
from torch import Tensor, nn


class DigitEncoder(nn.Sequential):
    """Map grey images (n, 1, 28, 28) to 320 features by two convolutions.

    They have size 5 x 5, and 10 and 20 maps. The encoder of Rakotomamonjy2021 has 32 and 20 maps
    and a sigmoid: :class:`models.networks.PublishedDigitEncoder`.
    """

    dim = 320

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 10, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(10, 20, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )


class FeatureEncoder(nn.Sequential):
    """Map feature vectors (n, d) to ``dim`` features by one layer and a tanh.

    Args:
        input_dim: Dimension d of the vectors.
        dim: Number of features.
        normalise: Whether vectors are scaled to norm sqrt(d) first.
    """

    def __init__(self, input_dim: int, dim: int, normalise: bool = True) -> None:
        super().__init__(nn.Linear(input_dim, dim), nn.Tanh())
        self.input_dim = input_dim
        self.dim = dim
        self.normalise = normalise

    def forward(self, records: Tensor) -> Tensor:
        """Map (n, d) to (n, dim)."""
        if self.normalise:
            records = nn.functional.normalize(records, dim=1) * self.input_dim**0.5
        rows: Tensor = super().forward(records)
        return rows


class ShiftAdapter(nn.Module):
    """Scale and shift every entry of feature vectors (n, dim); the identity at first."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(dim))
        self.shift = nn.Parameter(torch.zeros(dim))

    def forward(self, rows: Tensor) -> Tensor:
        """Map (n, d) to (n, d)."""
        return rows * self.log_scale.exp() + self.shift


def classifier(dim: int, n_classes: int, hidden: int = 100) -> nn.Module:
    """Return a classifier of two layers with dropout between them.

    It maps features (n, dim) to logits (n, n_classes).
    """
    return nn.Sequential(
        nn.Linear(dim, hidden), nn.ReLU(), nn.Dropout(0.5), nn.Linear(hidden, n_classes)
    )


# Augmentation of source images


def jitter(images: Tensor) -> Tensor:
    """Augment public images (n, 1, h, w) by random affine maps and stroke widths.

    Rotations reach 10 degrees, scale and shear 10 %, shifts 1.5 pixels of 28, either way. A quarter
    of the images is dilated, a quarter eroded, a quarter blurred, mixed with the original at a
    random weight.
    """
    grid = nn.functional.affine_grid(
        _random_affine_maps(len(images)).to(images), list(images.shape), align_corners=False
    )
    images = nn.functional.grid_sample(images, grid, align_corners=False)
    dilated = nn.functional.max_pool2d(images, 3, 1, 1)
    eroded = -nn.functional.max_pool2d(-images, 3, 1, 1)
    blurred = nn.functional.avg_pool2d(images, 3, 1, 1)
    kind = torch.randint(4, (len(images), 1, 1, 1))
    weight = torch.rand(len(images), 1, 1, 1).to(images)
    changed = images.clone()
    for number, variant in enumerate((dilated, eroded, blurred)):
        changed = torch.where(kind == number, variant, changed)
    return weight * changed + (1 - weight) * images


def _random_affine_maps(n: int) -> Tensor:
    """Draw affine maps (n, 2, 3) of the square from -1 to 1.

    An image of 28 pixels has a length of 2 there.
    """
    angle, width, height, shear, right, down = 2 * torch.rand(6, n) - 1
    cosine = torch.cos(angle * torch.pi / 18)
    sine = torch.sin(angle * torch.pi / 18)
    x_scale = 1 + width / 10
    y_scale = 1 + height / 10
    x_row = [x_scale * cosine, shear / 10 - x_scale * sine, right * 3 / 28]
    y_row = [sine, y_scale * cosine, down * 3 / 28]
    return torch.stack([torch.stack(x_row, 1), torch.stack(y_row, 1)], 1)
