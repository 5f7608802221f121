"""Encoders, classifiers, adapters and augmentation of the alignment in Table 1.

Every network maps each record by itself: there is no batch normalisation.
"""

import torch
from torch import Tensor, nn


class DigitEncoder(nn.Sequential):
    """Map grey images (n, 1, 28, 28) to 320 features by two 5 x 5 convolutions with 10 and 20 maps.

    The encoder of Rakotomamonjy2021 has 32 and 20 maps and a sigmoid: ``models.networks.PublishedDigitEncoder``.
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
    """Map feature vectors (n, d), by default scaled to norm sqrt(d), to ``dim`` features by one layer and a tanh."""

    def __init__(self, input_dim: int, dim: int, normalise: bool = True) -> None:
        super().__init__(nn.Linear(input_dim, dim), nn.Tanh())
        self.input_dim, self.dim, self.normalise = input_dim, dim, normalise

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
        self.log_scale, self.shift = nn.Parameter(torch.zeros(dim)), nn.Parameter(torch.zeros(dim))

    def forward(self, rows: Tensor) -> Tensor:
        """Map (n, d) to (n, d)."""
        return rows * self.log_scale.exp() + self.shift


def jitter(images: Tensor) -> Tensor:
    """Augment public images (n, 1, h, w) by random rotation, scale, shear, shift and stroke width.

    Rotations reach 10 degrees, scale and shear 10%, shifts 1.5 pixels of 28, either way. A quarter of the images is
    dilated, a quarter eroded, a quarter blurred, mixed with the original at a random weight.
    """
    n = len(images)
    angle, wide, high, shear, right, down = 2 * torch.rand(6, n) - 1
    cosine, sine = torch.cos(angle * torch.pi / 18), torch.sin(angle * torch.pi / 18)
    rows = [
        torch.stack(
            [(1 + wide / 10) * cosine, shear / 10 - (1 + wide / 10) * sine, right * 3 / 28], 1
        ),
        torch.stack([sine, (1 + high / 10) * cosine, down * 3 / 28], 1),
    ]
    grid = nn.functional.affine_grid(
        torch.stack(rows, 1).to(images), list(images.shape), align_corners=False
    )
    images = nn.functional.grid_sample(images, grid, align_corners=False)
    thick = nn.functional.max_pool2d(images, 3, 1, 1)
    thin = -nn.functional.max_pool2d(-images, 3, 1, 1)
    soft = nn.functional.avg_pool2d(images, 3, 1, 1)
    kind, part = torch.randint(4, (n, 1, 1, 1)), torch.rand(n, 1, 1, 1).to(images)
    other = torch.where(
        kind == 0, thick, torch.where(kind == 1, thin, torch.where(kind == 2, soft, images))
    )
    return part * other + (1 - part) * images


def classifier(dim: int, n_classes: int, hidden: int = 100) -> nn.Module:
    """Return a classifier of two layers with dropout between them."""
    return nn.Sequential(
        nn.Linear(dim, hidden), nn.ReLU(), nn.Dropout(0.5), nn.Linear(hidden, n_classes)
    )
